//! Quoting: text that a stranger may have chosen, put safely into a line of ours.
//!
//! Server names and ALPN values come from hostile clients, paths and names from files. Each function
//! appends to a buffer and allocates nothing of its own; what comes out contains no line break and no
//! control character, so that nobody forges a line or a terminal command.

use std::fmt::Write;

/// Appends `value` as a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD.
pub fn json(out: &mut String, value: &[u8]) {
    out.push('"');
    for chunk in value.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                c if c.is_control() || is_invisible(c) => {
                    // All of these lie in the basic plane: one escape holds them.
                    let _ = write!(out, "\\u{:04x}", u32::from(c));
                }
                c => out.push(c),
            }
        }
        if !chunk.invalid().is_empty() {
            out.push('\u{fffd}');
        }
    }
    out.push('"');
}

/// Appends `value` for a `key=value` line: bare if it is printable ASCII without blanks, quotes, `=` or
/// backslash, else in double quotes with `\"`, `\\` and `\xNN` for every other byte.
pub fn bare_or_quoted(out: &mut String, value: &[u8]) {
    let plain = |b: &u8| b.is_ascii_graphic() && !matches!(b, b'"' | b'\\' | b'=');
    // A bare `-` stands for "nothing", so a value that is just that is quoted.
    if !value.is_empty() && value != b"-" && value.iter().all(plain) {
        out.extend(value.iter().copied().map(char::from));
        return;
    }
    out.push('"');
    for &b in value {
        match b {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b' '..=b'~' => out.push(b.into()),
            _ => {
                let _ = write!(out, "\\x{b:02x}");
            }
        }
    }
    out.push('"');
}

/// Appends a label value of the Prometheus text format, without its quotes.
pub(super) fn label(out: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

/// Appends a help text of the Prometheus text format, where a quote needs no escape.
pub(super) fn help(out: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

/// Line separators and marks that turn the direction of writing: they make a line look like another.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quoted(write: fn(&mut String, &[u8]), value: &[u8]) -> String {
        let mut out = String::new();
        write(&mut out, value);
        out
    }

    #[test]
    fn json_strings_hold_no_control_character() {
        assert_eq!(quoted(json, b"chat.example"), r#""chat.example""#);
        assert_eq!(
            quoted(json, b"a\"b\\c\nd\x1b[2J\x7f"),
            "\"a\\\"b\\\\c\\nd\\u001b[2J\\u007f\""
        );
        assert_eq!(quoted(json, b"h2\xff\xfe"), "\"h2\u{fffd}\u{fffd}\"");
        assert_eq!(
            quoted(json, "\u{85}\u{2028}\u{202e}é".as_bytes()),
            "\"\\u0085\\u2028\\u202eé\""
        );
    }

    #[test]
    fn plain_values_stay_bare_and_all_others_are_quoted() {
        assert_eq!(quoted(bare_or_quoted, b"xmpp-client"), "xmpp-client");
        assert_eq!(quoted(bare_or_quoted, b"[::1]:443"), "[::1]:443");
        assert_eq!(quoted(bare_or_quoted, b""), "\"\"");
        assert_eq!(quoted(bare_or_quoted, b"-"), "\"-\"");
        assert_eq!(quoted(bare_or_quoted, b"a outcome=ok"), "\"a outcome=ok\"");
        assert_eq!(
            quoted(bare_or_quoted, b"x\"\\\n\x1b\xc3"),
            "\"x\\\"\\\\\\x0a\\x1b\\xc3\""
        );
    }

    #[test]
    fn every_byte_comes_out_printable() {
        let all: Vec<u8> = (0..=255).collect();
        for write in [json, bare_or_quoted] {
            assert!(quoted(write, &all).chars().all(|c| !c.is_control()));
        }
        assert!(quoted(bare_or_quoted, &all).is_ascii());
    }
}
