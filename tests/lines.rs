//! Log lines cost nothing while nobody wants them, kept by reading the source.
//!
//! `tracing` looks at the level before it evaluates the fields of an event, but a field that builds a text builds it even where
//! the line is then suppressed, and moved in front of the macro it is built always. What only borrows has neither trouble.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::{Path, PathBuf};

const MACROS: [&str; 5] = ["trace!(", "debug!(", "info!(", "warn!(", "error!("];

/// What allocates.
const BUILDERS: [&str; 9] = [
    "format!(",
    "vec![",
    "String::from",
    ".to_string()",
    ".to_owned()",
    ".to_vec()",
    ".clone()",
    ".collect",
    ".join(",
];

#[test]
fn no_log_line_builds_an_argument() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&src, &mut files);
    let (mut seen, mut faults) = (0, Vec::new());
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let text = text.split("#[cfg(test)]").next().unwrap();
        for (at, arguments) in lines(text) {
            seen += 1;
            let line = text[..at].matches('\n').count() + 1;
            let built = BUILDERS.iter().filter(|word| arguments.contains(*word));
            let name = file.strip_prefix(&src).unwrap().display();
            faults.extend(built.map(|word| format!("src/{name}:{line}: {word}")));
        }
    }
    assert!(seen > 40, "{seen} log lines found");
    assert!(faults.is_empty(), "built for a log line: {faults:#?}");
}

#[test]
fn a_line_that_builds_is_found() {
    let text = "tracing::debug!(\n a = b(c.to_string()), \"(\" \n); x.to_owned(); warn!(\"b\")";
    let found: Vec<_> = lines(text).map(|(_, arguments)| arguments).collect();
    assert_eq!(found, ["\n a = b(c.to_string()), \"(\" \n", "\"b\""]);
}

/// Place and arguments of each macro that logs.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let starts = MACROS.iter().flat_map(|name| text.match_indices(name));
    starts.map(|(at, name)| {
        let from = at + name.len();
        let (mut depth, mut quoted, mut escaped) = (1, false, false);
        let end = text[from..].find(|c| {
            match c {
                '"' if !escaped => quoted = !quoted,
                '(' if !quoted => depth += 1,
                ')' if !quoted => depth -= 1,
                _ => {}
            }
            escaped = quoted && c == '\\' && !escaped;
            depth == 0
        });
        (at, &text[from..from + end.expect("a macro that ends")])
    })
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}
