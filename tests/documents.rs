//! The documents say what the program says: every metric and every flag is explained, and no other.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

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
