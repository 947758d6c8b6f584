//! The documents say what the program says: every metric and every flag is explained, and no other. Their examples can be
//! run, and their links lead somewhere.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use vestibule::config::file::File;

const DOCUMENTS: [&str; 9] = [
    "README.md",
    "CHANGELOG.md",
    "benches/README.md",
    "docs/benchmarks.md",
    "docs/http.md",
    "docs/operating.md",
    "docs/tuning.md",
    "docs/xmpp.md",
    "tests/bench/README.md",
];

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The words of `text` that start with `prefix` and go on in lower case.
fn words(text: &str, prefix: &str) -> BTreeSet<String> {
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-';
    let mut words = BTreeSet::new();
    for (at, _) in text.match_indices(prefix) {
        let rest = &text[at + prefix.len()..];
        let end = rest.find(|c: char| !word(c)).unwrap_or(rest.len());
        let before = text[..at].chars().next_back().unwrap_or(' ');
        if end > 0 && !word(before) {
            words.insert(format!("{prefix}{}", &rest[..end]));
        }
    }
    words
}

#[test]
fn every_metric_is_explained_and_no_other() {
    let names = read("src/metrics/names.rs");
    let declared: BTreeSet<String> = words(&names, "\"vestibule_")
        .into_iter()
        .map(|name| name.trim_start_matches('"').to_owned())
        .filter(|name| !name.ends_with('_'))
        .collect();
    assert!(declared.len() > 10, "{declared:?}");
    let explained = words(&read("docs/operating.md"), "vestibule_");
    assert_eq!(
        declared, explained,
        "src/metrics/names.rs against docs/operating.md"
    );
}

#[test]
fn every_reason_to_refuse_a_request_is_a_label_and_explained() {
    let quoted = |text: &str, before: &str| {
        let lines = text.lines().filter(|line| line.contains(before));
        let word = |line: &str| line.split('"').nth(1).map(str::to_owned);
        lines.filter_map(word).collect::<BTreeSet<String>>()
    };
    let problems = read("src/handler/http/problem.rs");
    let (_, problems) = problems.split_once("\nproblems! {").unwrap();
    let (problems, _) = problems.split_once("\n}\n").unwrap();
    let mut reasons = quoted(problems, ": ");
    for file in ["src/wire/http/fault.rs", "src/wire/http/frames.rs"] {
        reasons.extend(quoted(&read(file), "=> \""));
    }
    reasons.insert("other".to_owned());
    assert!(reasons.len() > 40, "{reasons:?}");
    let names = read("src/metrics/names.rs");
    let (_, list) = names.split_once("HTTP_REFUSED: &[&str] = &[").unwrap();
    let (list, _) = list.split_once(']').unwrap();
    let labels = quoted(list, "\"");
    assert_eq!(reasons, labels, "reasons against src/metrics/names.rs");
    let operating = read("docs/operating.md");
    let missing: Vec<_> = labels
        .iter()
        .filter(|label| !operating.contains(&format!("`{label}`")))
        .collect();
    assert!(missing.is_empty(), "docs/operating.md lacks {missing:?}");
}

#[test]
fn every_flag_is_in_the_readme() {
    let help = Command::new(env!("CARGO_BIN_EXE_vestibule"))
        .args(["run", "--help"])
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    // A flag's own line starts with it; elsewhere flags may be mentioned.
    let mut flags = BTreeSet::new();
    for line in help
        .lines()
        .map(str::trim_start)
        .filter(|line| line.starts_with('-'))
    {
        flags.extend(words(line, "--"));
    }
    assert!(flags.len() > 10, "no flags found in the help:\n{help}");
    let readme = words(&read("README.md"), "--");
    let missing: Vec<_> = flags
        .iter()
        .filter(|flag| !["--help", "--version"].contains(&flag.as_str()))
        .filter(|flag| !readme.contains(*flag))
        .collect();
    assert!(
        missing.is_empty(),
        "flags that README.md does not name: {missing:?}"
    );
}

#[test]
fn whole_examples_resolve() {
    let mut seen = 0;
    for document in DOCUMENTS {
        let text = read(document);
        let blocks = text.split("\n```toml\n").skip(1);
        for block in blocks.map(|rest| rest.split("\n```").next().unwrap()) {
            let is_whole = ["[[listener]]", "[[upstream]]", "[[certificate]]"];
            if is_whole.iter().all(|part| block.contains(part)) {
                let resolved = File::parse(block).unwrap().resolve();
                assert!(resolved.is_ok(), "{document}:\n{block}\n{resolved:?}");
                seen += 1;
            }
        }
    }
    assert!(seen >= 3, "{seen} whole examples");
}

#[test]
fn links_lead_somewhere() {
    for document in DOCUMENTS {
        let text = read(document);
        let folder = Path::new(document).parent().unwrap();
        let links = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.contains("://")) {
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => document.to_owned(),
                path => folder.join(path).to_str().unwrap().to_owned(),
            };
            let there = read(&target);
            let found = heading.is_empty() || headings(&there).contains(heading);
            assert!(found, "{document}: {link} leads to no heading");
        }
    }
}

/// The names that links have for the headings of a text.
fn headings(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter(|line| line.starts_with('#'));
    let names = lines.map(|line| line.trim_start_matches('#').trim().to_lowercase());
    let kept = |c: char| c.is_alphanumeric() || "-_ ".contains(c);
    names
        .map(|name| name.replace(|c| !kept(c), "").replace(' ', "-"))
        .collect()
}
