//! The import law of `src/ARCHITECTURE.md`, kept by reading the source.
//!
//! Every module of the crate lies on a floor and may name only what lies lower. This test reads all
//! files under `src/` as tokens (comments, strings and character literals are skipped), follows
//! every path that starts with `crate::`, `super::` or the crate's own name, and reports each one
//! that goes up or sideways. A few outside crates may be named in their own rooms alone; test code
//! may use those freely, for driving and for comparing, but keeps to the floors.
//!
//! It reads text, not meaning: a path hidden behind a re-export or made by a macro is not seen.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::{Path, PathBuf};

/// The floors, ground first. Modules of one floor may not name each other.
const FLOORS: &[&[&str]] = &[
    &["pool", "sys", "metrics"],
    &["wire", "config"],
    &["tls"],
    &["endpoint"],
    &["relay", "route", "upstream"],
    &["handler"],
    &["worker"],
    &["control"],
    &["main", "cli"],
];

/// From this floor up tokio may be named: everything below is pure computation.
const FLOOR_OF_TOKIO: usize = 3;

/// Crates that may be named only in files whose path under `src/` starts with one of these.
const ROOMS: &[(&str, &[&str])] = &[
    ("rustls", &["tls/", "tls.rs"]),
    ("hyper", HTTP_ROOMS),
    ("hyper_util", HTTP_ROOMS),
    ("http_body_util", HTTP_ROOMS),
    ("clap", &["cli.rs"]),
    ("serde", &["config/file.rs"]),
    ("rxml", &["wire/xmpp/"]),
    ("proxy_header", &["wire/proxy.rs"]),
    ("mimalloc", &["main.rs"]),
    ("libmimalloc_sys", &["sys/"]),
];
const HTTP_ROOMS: &[&str] = &["control/", "handler/http/", "endpoint/transport.rs"];

#[test]
fn source_keeps_the_import_law() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&src, &mut files);
    assert!(files.len() > 2, "no source found under {}", src.display());

    let mut faults = Vec::new();
    for file in files {
        let name = file.strip_prefix(&src).unwrap().to_str().unwrap();
        faults.extend(faults_of(name, &fs::read_to_string(&file).unwrap()));
    }
    assert!(
        faults.is_empty(),
        "{} against the import law (see src/ARCHITECTURE.md):\n  {}",
        faults.len(),
        faults.join("\n  ")
    );
}

#[test]
fn an_import_from_a_higher_floor_is_found() {
    for text in [
        "use crate::relay::Relay;",
        "use crate::{pool::Lease, relay::{Half, Relay}};",
        "fn f() { crate::relay::run() }",
        "fn f() { let c = 'x'; let s = \"\\\"\"; super::super::relay::run() }",
        "mod inner { use super::super::super::relay; }",
        "#[cfg(test)] mod tests { use crate::relay::Relay; }",
        "use vestibule::relay::Relay;",
    ] {
        let faults = faults_of("tls/record.rs", text);
        assert_eq!(faults.len(), 1, "{text}: {faults:?}");
        assert!(faults[0].contains("`relay`"), "{faults:?}");
    }
    assert_eq!(
        faults_of("tls/record.rs", "\n\nuse crate::relay::Relay;"),
        ["src/tls/record.rs:3: `tls` (floor 2) may not name `relay` (floor 4)"]
    );
}

#[test]
fn an_import_from_the_same_floor_is_found() {
    assert_eq!(faults_of("relay/half.rs", "use crate::route::X;").len(), 1);
    assert_eq!(faults_of("pool/mod.rs", "use crate::sys::cpu;").len(), 1);
    assert_eq!(faults_of("config/mod.rs", "use crate::wire::X;").len(), 1);
    assert_eq!(faults_of("control/mod.rs", "use crate::cli::Cli;").len(), 1);
}

#[test]
fn what_the_law_allows_is_not_reported() {
    for (file, text) in [
        ("relay/half.rs", "use crate::endpoint::Endpoint;"),
        ("relay/half.rs", "use super::{Outcome, idle::Idle};"),
        ("relay/half.rs", "use crate::relay::idle;"),
        ("relay/mod.rs", "mod tests { use super::*; }"),
        ("pool/mod.rs", "use crate::metrics::Cells;"),
        ("wire/hello.rs", "use crate::config::Name;"),
        ("pool/mod.rs", "pub(crate) fn f<'a>(x: &'a u8) {}"),
        ("main.rs", "mod cli; use vestibule::{config, control};"),
        (
            "cli.rs",
            "use vestibule::config::file::File; use clap::Parser;",
        ),
        ("lib.rs", "pub mod control; pub use crate::control::run;"),
    ] {
        assert_eq!(
            faults_of(file, text),
            Vec::<String>::new(),
            "{file}: {text}"
        );
    }
}

#[test]
fn comments_and_strings_are_not_read() {
    let text = "//! see [`crate::relay`]\n/* crate::relay /* nested */ crate::relay */\n\
        const A: &str = \"crate::relay\"; const B: &str = r#\"crate::relay \" \"#;\n\
        const C: &[u8] = b\"crate::relay\"; const D: char = '\"'; /// crate::relay\nfn f() {}";
    assert_eq!(faults_of("pool/mod.rs", text), Vec::<String>::new());
    let after = format!("{text}\nuse crate::relay::Relay;");
    assert_eq!(faults_of("pool/mod.rs", &after).len(), 1);
}

#[test]
fn a_crate_outside_its_room_is_found() {
    for (file, text) in [
        ("worker/mod.rs", "use rustls::ServerConfig;"),
        ("worker/mod.rs", "fn f(c: &::rustls::ServerConfig) {}"),
        ("handler/raw.rs", "use hyper::Request;"),
        ("tls/terms.rs", "use tokio::net::TcpStream;"),
        ("config/mod.rs", "#[derive(serde::Deserialize)] struct S;"),
        ("main.rs", "use clap::Parser;"),
    ] {
        assert_eq!(faults_of(file, text).len(), 1, "{file}: {text}");
    }
    for (file, text) in [
        ("tls/terms.rs", "use rustls::ServerConfig;"),
        ("handler/http/mod.rs", "use hyper::Request;"),
        ("endpoint/mod.rs", "use tokio::net::TcpStream;"),
        ("endpoint/mod.rs", "use crate::tls::rustls::X;"),
        ("tls/record.rs", "#[cfg(test)] mod tests { use tokio::io; }"),
        ("tls/record/tests.rs", "use tokio::io;"),
    ] {
        assert_eq!(
            faults_of(file, text),
            Vec::<String>::new(),
            "{file}: {text}"
        );
    }
    // Behind a test module the law is in force again, and `not(test)` is not test code.
    let behind = "#[cfg(test)] mod tests { use tokio::io; } use tokio::io;";
    assert_eq!(faults_of("tls/record.rs", behind).len(), 1);
    let not_test = "#[cfg(not(test))] use tokio::io;";
    assert_eq!(faults_of("tls/record.rs", not_test).len(), 1);
}

#[test]
fn a_module_without_a_floor_is_found() {
    assert_eq!(faults_of("attic/mod.rs", "").len(), 1);
    assert_eq!(faults_of("worker/mod.rs", "use crate::attic::X;").len(), 1);
}

/// Everything in `text`, the file `name` under `src/`, that breaks the law; one line each.
fn faults_of(name: &str, text: &str) -> Vec<String> {
    let mut module: Vec<String> = Path::new(name)
        .with_extension("")
        .iter()
        .map(|part| part.to_str().unwrap().to_owned())
        .collect();
    if module.last().is_some_and(|last| last == "mod") {
        module.pop();
    }
    let own = module[0].clone();
    let in_tests_file = module.last().is_some_and(|last| last == "tests");
    if own == "lib" {
        return Vec::new(); // The table of contents names every floor.
    }
    let Some(own_floor) = floor_of(&own) else {
        return vec![format!(
            "src/{name}: `{own}` has no floor; give it one in tests/floors.rs"
        )];
    };
    if own == "main" {
        module.clear(); // The root of its crate.
    }

    let mut faults = Vec::new();
    for found in paths(text, &module) {
        let place = format!("src/{name}:{}", found.line);
        match found.start {
            Start::Crate => {
                let Some(target) = found.path.first() else {
                    continue;
                };
                if *target == own || own == "main" {
                    continue;
                }
                match floor_of(target) {
                    None => faults.push(format!(
                        "{place}: `{target}` is no module with a floor; name things by their module"
                    )),
                    Some(floor) if may_name(own_floor, target, floor) => {}
                    Some(floor) => faults.push(format!(
                        "{place}: `{own}` (floor {own_floor}) may not name `{target}` (floor {floor})"
                    )),
                }
            }
            Start::Outside if found.in_test || in_tests_file => {}
            Start::Outside => {
                let outside = &found.path[0];
                if outside == "tokio" && own_floor < FLOOR_OF_TOKIO {
                    faults.push(format!("{place}: tokio below floor {FLOOR_OF_TOKIO}"));
                }
                for (_, rooms) in ROOMS.iter().filter(|(crate_name, _)| crate_name == outside) {
                    if !rooms.iter().any(|room| name.starts_with(room)) {
                        let rooms = rooms.join(", ");
                        faults.push(format!("{place}: `{outside}` may be named only in {rooms}"));
                    }
                }
            }
        }
    }
    faults
}

fn may_name(own_floor: usize, target: &str, floor: usize) -> bool {
    floor < own_floor || target == "metrics" || (target == "config" && own_floor >= 1)
}

fn floor_of(module: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&module))
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// Where a path begins.
#[derive(Clone, Copy, PartialEq)]
enum Start {
    /// In this crate; `path` is counted from its root.
    Crate,
    /// In another crate (or with a local name); `path[0]` is its name.
    Outside,
}

struct Found {
    start: Start,
    path: Vec<String>,
    line: usize,
    in_test: bool,
}

/// A brace that is open: the module it opened, if it did, and whether it is test code.
struct Scope {
    module: Option<String>,
    test: bool,
}

/// Every path in `text`, a file of module `module`, with `super` and `self` resolved.
fn paths(text: &str, module: &[String]) -> Vec<Found> {
    let tokens = tokens(text);
    let word = |at: usize| {
        tokens
            .get(at)
            .map_or("", |token: &Token| token.text.as_str())
    };
    let mut scopes: Vec<Scope> = Vec::new();
    let mut found = Vec::new();
    let mut test_item = false; // A `#[cfg(test)]` was read and its item has not begun or ended yet.
    let mut module_name = None;
    let mut at = 0;
    while at < tokens.len() {
        let in_test = test_item || scopes.iter().any(|scope| scope.test);
        match word(at) {
            "#" if word(at + 1) == "[" && word(at + 2) == "cfg" => {
                let mut end = at + 3;
                while end < tokens.len() && word(end) != "]" {
                    let negated = word(end - 1) == "(" && word(end - 2) == "not";
                    test_item |= word(end) == "test" && !negated;
                    end += 1;
                }
                at = end;
            }
            "mod" => module_name = Some(word(at + 1).to_owned()),
            "{" => scopes.push(Scope {
                module: module_name.take(),
                test: std::mem::take(&mut test_item),
            }),
            "}" => {
                scopes.pop();
            }
            ";" => {
                module_name = None;
                test_item = false;
            }
            first if is_name(first) && (at == 0 || starts_path(&tokens, at)) => {
                let mut root: Vec<String> = module.to_vec();
                root.extend(scopes.iter().filter_map(|scope| scope.module.clone()));
                let mut rest = at;
                let start = match first {
                    "crate" | "vestibule" if word(at + 1) == "::" => {
                        root.clear();
                        rest = at + 2;
                        Start::Crate
                    }
                    "super" | "self" if word(at + 1) == "::" => {
                        while matches!(word(rest), "super" | "self") {
                            if word(rest) == "super" {
                                root.pop();
                            }
                            rest += 2;
                        }
                        Start::Crate
                    }
                    // A lone name may be anything; it can be a crate only before `::` or in `use`.
                    _ if word(at + 1) == "::" || (at > 0 && word(at - 1) == "use") => {
                        root.clear();
                        Start::Outside
                    }
                    _ => {
                        at += 1;
                        continue;
                    }
                };
                let line = tokens[at].line;
                let mut leaves = Vec::new();
                let end = tree(&tokens, rest, &root, &mut leaves);
                leaves.sort();
                leaves.dedup_by(|a, b| a.first() == b.first());
                found.extend(leaves.into_iter().map(|path| Found {
                    start,
                    path,
                    line,
                    in_test,
                }));
                at = end;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// Whether the name at `at` begins a path, rather than continuing one or being a field or method.
fn starts_path(tokens: &[Token], at: usize) -> bool {
    match tokens[at - 1].text.as_str() {
        "::" => at < 2 || !(is_name(&tokens[at - 2].text) || tokens[at - 2].text == ">"),
        "." | "mod" => false,
        _ => true,
    }
}

/// Reads the path or use tree at `at`, adds its leaves, and returns where it ends.
fn tree(tokens: &[Token], mut at: usize, root: &[String], leaves: &mut Vec<Vec<String>>) -> usize {
    let word = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    let mut path = root.to_vec();
    loop {
        match word(at) {
            "{" => {
                at += 1;
                while at < tokens.len() && word(at) != "}" {
                    at = if word(at) == "," {
                        at + 1
                    } else {
                        tree(tokens, at, &path, leaves).max(at + 1)
                    };
                }
                return at + 1;
            }
            name if is_name(name) => path.push(name.to_owned()),
            _ => break,
        }
        at += 1;
        if word(at) != "::" {
            break;
        }
        at += 1;
    }
    leaves.push(path);
    at
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

struct Token {
    text: String,
    line: usize,
}

/// Names, `::` and single other characters; no comments, strings, character literals, lifetimes.
fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let at = |index: usize| chars.get(index).copied().unwrap_or('\0');
    let mut tokens = Vec::new();
    let mut line = 1;
    let mut i = 0;
    while i < chars.len() {
        let start = i;
        match at(i) {
            '/' if at(i + 1) == '/' => {
                while i < chars.len() && at(i) != '\n' {
                    i += 1;
                }
            }
            '/' if at(i + 1) == '*' => {
                let mut depth = 1;
                i += 2;
                while i < chars.len() && depth > 0 {
                    match (at(i), at(i + 1)) {
                        ('*', '/') => (depth, i) = (depth - 1, i + 2),
                        ('/', '*') => (depth, i) = (depth + 1, i + 2),
                        _ => i += 1,
                    }
                }
            }
            '"' => {
                i += 1;
                while i < chars.len() && at(i) != '"' {
                    i += if at(i) == '\\' { 2 } else { 1 };
                }
                i += 1;
            }
            // A character literal, or else the quote of a lifetime, which is then read as a name.
            '\'' if at(i + 1) == '\\' => {
                i += 3;
                while i < chars.len() && at(i) != '\'' {
                    i += 1;
                }
                i += 1;
            }
            '\'' if at(i + 2) == '\'' => i += 3,
            '\'' => {
                i += 1;
                while at(i).is_alphanumeric() || at(i) == '_' {
                    i += 1;
                }
            }
            c if c.is_alphanumeric() || c == '_' => {
                while at(i).is_alphanumeric() || at(i) == '_' {
                    i += 1;
                }
                let name: String = chars[start..i].iter().collect();
                let hashes = (i..).take_while(|&index| at(index) == '#').count();
                if matches!(name.as_str(), "r" | "br" | "cr") && at(i + hashes) == '"' {
                    i += hashes + 1;
                    let closes = |index: usize| {
                        at(index) == '"' && (1..=hashes).all(|hash| at(index + hash) == '#')
                    };
                    while i < chars.len() && !closes(i) {
                        i += 1;
                    }
                    i += hashes + 1;
                } else {
                    tokens.push(Token { text: name, line });
                }
            }
            ':' if at(i + 1) == ':' => {
                tokens.push(Token {
                    text: "::".to_owned(),
                    line,
                });
                i += 2;
            }
            c => {
                if !c.is_whitespace() {
                    tokens.push(Token {
                        text: c.to_string(),
                        line,
                    });
                }
                i += 1;
            }
        }
        let end = i.min(chars.len());
        line += chars[start..end].iter().filter(|&&c| c == '\n').count();
    }
    tokens
}
