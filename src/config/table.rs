//! A TOML text read table by table, with every fault kept and placed at its line.
//!
//! A [`Table`] hands out the keys it is asked for; what nobody asked for is unknown. So the list of
//! known keys is the code that reads them, and cannot fall behind it. Reading goes on after a
//! fault, because an operator wants to see all of them at once; that is why the values are taken
//! here by hand and not deserialized, which stops at the first.

use std::cell::RefCell;
use std::collections::BTreeSet;

use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use super::error::{Fault, Reason};
use super::file::File;
use super::words;

/// A value and where it was given, for a fault that only shows beside other values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given<T> {
    /// What was given.
    pub value: T,
    /// The key (`buffers.buffer_size`) or the flag (`--buffer-size`).
    pub key: String,
    /// The line of the file, counted from 1; none for a flag or an environment variable.
    pub line: Option<usize>,
}

impl<T> Given<T> {
    /// A value given by a flag or by its environment variable.
    pub fn by_flag(flag: &str, value: T) -> Self {
        Self {
            value,
            key: flag.to_owned(),
            line: None,
        }
    }

    /// Another value at the same place.
    pub fn with<U>(&self, value: U) -> Given<U> {
        Given {
            value,
            key: self.key.clone(),
            line: self.line,
        }
    }

    /// A fault at the place this was given.
    pub fn fault(&self, problem: impl Into<String>, way_out: impl Into<String>) -> Fault {
        Fault {
            line: self.line,
            ..Fault::new(&self.key, problem, way_out)
        }
    }
}

/// What is found while reading: faults, and which keys exist.
#[derive(Default)]
pub(super) struct Findings {
    pub(super) faults: RefCell<Vec<Fault>>,
    /// Every key asked for, such as `upstream.backend.address`.
    pub(super) known: RefCell<BTreeSet<String>>,
}

/// One table of the file.
pub(super) struct Table<'r> {
    text: &'r str,
    findings: &'r Findings,
    /// What kind of table it is (`upstream.backend`); empty at the top.
    kind: String,
    /// What faults call it (`upstream.chat.backend`).
    pub(super) name: String,
    /// Where it begins.
    pub(super) line: usize,
    entries: DeTable<'r>,
    asked: Vec<&'static str>,
}

impl<'r> Table<'r> {
    /// Parses `text` and reads its top table with `read`. A text that is no TOML reads as an empty
    /// one, after a fault for each place where it is none.
    pub(super) fn read_document<T>(
        text: &'r str,
        findings: &'r Findings,
        read: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let (document, errors) = DeTable::parse_recoverable(text);
        let broken = !errors.is_empty();
        for error in errors {
            let problem = error.message().replace('\n', ", ");
            // Without a place (nested too deeply, say) it is the file as a whole, from its first line.
            let line = Some(error.span().map_or(1, |span| line_at(text, span.start)));
            findings.faults.borrow_mut().push(Fault {
                line,
                // Of no key: the line is all that is known.
                ..Fault::new("", problem, TOML_FORM)
            });
        }
        let table = Self {
            text,
            findings,
            kind: String::new(),
            name: String::new(),
            line: 1,
            entries: if broken {
                DeTable::new()
            } else {
                document.into_inner()
            },
            asked: Vec::new(),
        };
        table.read(read)
    }

    /// Reads this table with `read` and complains about every key that it did not ask for.
    pub(super) fn read<T>(mut self, read: impl FnOnce(&mut Self) -> T) -> T {
        let value = read(&mut self);
        for key in self.entries.keys() {
            let name: &str = key.as_ref();
            let place = if self.kind.is_empty() {
                "at the top of the file".to_owned()
            } else {
                format!("in [{}]", self.kind)
            };
            let way_out = self.way_out_of(name);
            self.push(Fault {
                line: Some(line_at(self.text, key.span().start)),
                ..Fault::new(
                    self.key(&name.escape_debug().to_string()),
                    format!("unknown key {place}"),
                    way_out,
                )
            });
        }
        value
    }

    /// What an unknown key may have been meant for: one that is spelled nearly so here, or the same
    /// in another table (in TOML a line belongs to the table above it, which is easily forgotten).
    fn way_out_of(&self, name: &str) -> String {
        if let Some(near) = words::nearest(name, self.asked.iter().copied()) {
            return format!("did you mean {near}?");
        }
        let homes: Vec<String> = File::keys()
            .iter()
            .filter_map(|key| match key.rsplit_once('.') {
                Some((table, key)) => (key == name).then(|| format!("[{table}]")),
                None => (key == name).then(|| "the top of the file".to_owned()),
            })
            .collect();
        if homes.is_empty() {
            let mut known = self.asked.clone();
            known.sort_unstable();
            format!("known there: {}", known.join(", "))
        } else {
            format!("it belongs to {}", words::listed(&homes))
        }
    }

    /// One value as `parse` reads it. A number stands for its digits: `4` and `"4"` are the same.
    pub(super) fn value<T>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, Reason>,
    ) -> Option<Given<T>> {
        let found = self.take(key)?;
        let text = scalar(&found.value).ok_or_else(|| wrong_kind(&found.value, "one value"));
        self.keep(found, text.and_then(|text| parse(&text)))
    }

    /// `true` or `false`.
    pub(super) fn switch(&mut self, key: &'static str) -> Option<Given<bool>> {
        let found = self.take(key)?;
        let value = match found.value {
            DeValue::Boolean(value) => Ok(value),
            ref other => Err(wrong_kind(other, "true or false")),
        };
        self.keep(found, value)
    }

    /// A list of texts.
    pub(super) fn list(&mut self, key: &'static str) -> Option<Given<Vec<String>>> {
        const FORM: &str = "a list of texts: [\"...\", \"...\"]";
        let found = self.take(key)?;
        let texts = match &found.value {
            DeValue::Array(items) => items
                .iter()
                .map(|item| match item.get_ref() {
                    DeValue::String(text) => Ok(text.clone().into_owned()),
                    other => Err(wrong_kind(other, FORM)),
                })
                .collect(),
            other => Err(wrong_kind(other, FORM)),
        };
        self.keep(found, texts)
    }

    /// A list of texts as `parse` reads each, none of them twice. What cannot be read is left out.
    pub(super) fn values<T: PartialEq>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, Reason>,
    ) -> Option<Given<Vec<T>>> {
        let texts = self.list(key)?;
        let mut values = Vec::new();
        for text in &texts.value {
            match parse(text) {
                Ok(value) if values.contains(&value) => {
                    self.push(texts.fault(format!("{text:?} is there twice"), "name each once"));
                }
                Ok(value) => values.push(value),
                Err(reason) => self.push(texts.fault(reason.problem, reason.way_out)),
            }
        }
        Some(texts.with(values))
    }

    /// Reads `[key]` with `read`; an absent table reads as an empty one.
    pub(super) fn table<T>(&mut self, key: &'static str, read: impl FnOnce(&mut Self) -> T) -> T {
        let (entries, line) = match self.take(key) {
            None => (DeTable::new(), self.line),
            Some(Given {
                value: DeValue::Table(entries),
                line,
                ..
            }) => (entries, line.unwrap_or(self.line)),
            Some(other) => {
                let reason = wrong_kind(&other.value, &format!("a table: [{}]", self.kind_of(key)));
                self.push(other.fault(reason.problem, reason.way_out));
                (DeTable::new(), self.line)
            }
        };
        self.inner(key, self.key(key), entries, line).read(read)
    }

    /// Reads each `[[key]]` with `read`, under the name `key.N` until that gives it a better one.
    pub(super) fn tables<T>(
        &mut self,
        key: &'static str,
        mut read: impl FnMut(&mut Self) -> T,
    ) -> Vec<T> {
        let Some(found) = self.take(key) else {
            return Vec::new();
        };
        let form = format!("tables: [[{}]]", self.kind_of(key));
        let items = match found.value {
            DeValue::Array(items) => items,
            ref other => {
                let reason = wrong_kind(other, &form);
                self.push(found.fault(reason.problem, reason.way_out));
                return Vec::new();
            }
        };
        let mut values = Vec::new();
        for (index, item) in items.into_iter().enumerate() {
            let line = line_at(self.text, item.span().start);
            let name = format!("{}.{}", self.key(key), index + 1);
            match item.into_inner() {
                DeValue::Table(entries) => {
                    values.push(self.inner(key, name, entries, line).read(&mut read));
                }
                other => {
                    let reason = wrong_kind(&other, &form);
                    self.push(Fault {
                        line: Some(line),
                        ..Fault::new(name, reason.problem, reason.way_out)
                    });
                }
            }
        }
        values
    }

    fn inner(&self, key: &str, name: String, entries: DeTable<'r>, line: usize) -> Self {
        Self {
            text: self.text,
            findings: self.findings,
            kind: self.kind_of(key),
            name,
            line,
            entries,
            asked: Vec::new(),
        }
    }

    fn take(&mut self, key: &'static str) -> Option<Given<DeValue<'r>>> {
        self.asked.push(key);
        self.findings.known.borrow_mut().insert(self.kind_of(key));
        let (name, value) = self.entries.remove_entry(key)?;
        Some(Given {
            value: value.into_inner(),
            key: self.key(key),
            line: Some(line_at(self.text, Spanned::span(&name).start)),
        })
    }

    /// Puts the read value in the place of the found one, or the reason among the faults.
    fn keep<T>(&self, found: Given<DeValue<'_>>, read: Result<T, Reason>) -> Option<Given<T>> {
        match read {
            Ok(value) => Some(Given {
                value,
                key: found.key,
                line: found.line,
            }),
            Err(reason) => {
                self.push(found.fault(reason.problem, reason.way_out));
                None
            }
        }
    }

    fn key(&self, key: &str) -> String {
        join(&self.name, key)
    }

    fn kind_of(&self, key: &str) -> String {
        join(&self.kind, key)
    }

    fn push(&self, fault: Fault) {
        self.findings.faults.borrow_mut().push(fault);
    }
}

const TOML_FORM: &str = "write KEY = VALUE, where a text stands in quotes: name = \"chat\"";

fn join(table: &str, key: &str) -> String {
    if table.is_empty() {
        key.to_owned()
    } else {
        format!("{table}.{key}")
    }
}

fn line_at(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().iter().take(offset);
    before.filter(|&&byte| byte == b'\n').count() + 1
}

/// The text of a text or number; decimal, however it was written.
fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.clone().into_owned()),
        DeValue::Integer(number) => Some(decimal(number)),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        _ => None,
    }
}

fn decimal(number: &DeInteger<'_>) -> String {
    i128::from_str_radix(number.as_str(), number.radix())
        .map_or_else(|_| number.to_string(), |value| value.to_string())
}

fn wrong_kind(value: &DeValue<'_>, wanted: &str) -> Reason {
    let found = match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    };
    Reason::new(
        format!("{found} does not belong here"),
        format!("write {wanted}"),
    )
}
