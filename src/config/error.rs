//! What is wrong with the settings, told so that the operator can mend it.
//!
//! A [`Reason`] is what a parser of one value knows; a [`Fault`] adds the key or flag, and the line
//! of the file, it was given at; a [`ConfigError`] is every fault of one reading, so that one run
//! shows them all.

use std::fmt;
use std::path::PathBuf;

/// Why a value cannot be taken, and what can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// What is wrong, as a clause: `"chat" has no port`.
    pub problem: String,
    /// What to do instead, as a clause: `write HOST:PORT`.
    pub way_out: String,
}

impl Reason {
    /// A reason in two clauses, without a full stop.
    pub fn new(problem: impl Into<String>, way_out: impl Into<String>) -> Self {
        Self {
            problem: problem.into(),
            way_out: way_out.into(),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}; {}", self.problem, self.way_out)
    }
}

impl std::error::Error for Reason {}

/// One thing wrong with the settings.
///
/// Reads as one line: ``listener.chat.listen: "0.0.0.0" has no port; write ADDR:PORT
/// (vestibule.toml, line 3)``.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The key (`buffers.buffer_size`) or flag (`--buffer-size`) at fault. Empty where the file has
    /// no keys yet, being no TOML; then the fault begins with the place.
    pub key: String,
    /// What is wrong, as a clause.
    pub problem: String,
    /// What to do about it, as a clause.
    pub way_out: String,
    /// The settings file it was found in, if that is known.
    pub file: Option<PathBuf>,
    /// The line in it, counted from 1.
    pub line: Option<usize>,
}

impl Fault {
    /// A fault at a key or flag, not tied to a file.
    pub fn new(
        key: impl Into<String>,
        problem: impl Into<String>,
        way_out: impl Into<String>,
    ) -> Self {
        Self {
            key: key.into(),
            problem: problem.into(),
            way_out: way_out.into(),
            file: None,
            line: None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.is_empty() {
            if let Some(file) = &self.file {
                write!(out, "{}, ", file.display())?;
            }
            let line = self.line.unwrap_or(1);
            return write!(out, "line {line}: {}; {}", self.problem, self.way_out);
        }
        write!(out, "{}: {}; {}", self.key, self.problem, self.way_out)?;
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(out, " ({}, line {line})", file.display()),
            (Some(file), None) => write!(out, " ({})", file.display()),
            (None, Some(line)) => write!(out, " (line {line})"),
            (None, None) => Ok(()),
        }
    }
}

/// Every fault found in one reading of the settings; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(pub Vec<Fault>);

impl fmt::Display for ConfigError {
    /// One line a fault, without a line end after the last.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            if index > 0 {
                out.write_str("\n")?;
            }
            fault.fmt(out)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

impl From<Fault> for ConfigError {
    fn from(fault: Fault) -> Self {
        Self(vec![fault])
    }
}
