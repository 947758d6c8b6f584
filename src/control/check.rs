//! `vestibule check`: everything that `run` would use is read and tried, and what would be in force is printed.

use std::fmt::Write as _;

use crate::config::units::size_text;
use crate::config::{self, Config, ConfigError, Fault, MaxConnections};
use crate::sys::{files, socket};
use crate::tls::terms::TicketKey;

use super::instance::max_connections;
use super::telemetry::try_access_log;
use super::{StartError, build};

/// Widest line that lists names.
const WIDTH: usize = 96;

/// Checks, and returns the page to print.
///
/// `found` is what is wrong with the settings already; then only the further faults are looked for,
/// so that one run tells them all. `told` is how many warnings were printed before.
///
/// # Errors
/// Every fault.
pub fn check(config: &Config, found: Vec<Fault>, told: usize) -> Result<String, StartError> {
    let runtime = super::event_loop()?;
    let mut faults = found;
    faults.extend(try_access_log(&config.log));
    if !faults.is_empty() {
        faults.extend(runtime.block_on(build::faults(config)));
        runtime.shutdown_background();
        return Err(ConfigError(faults).into());
    }
    let tickets = TicketKey::random()
        .map_err(|e| ConfigError::from(Fault::new("tls", e.to_string(), "report this")))?;
    let built = runtime.block_on(build::build(config, &tickets));
    runtime.shutdown_background();
    let (snapshot, _) = built?;

    let mut lines = vec!["On this machine:".to_owned()];
    let pool = if config.buffers.pooled {
        "on"
    } else {
        "off (a fresh allocation each time)"
    };
    let most = size_text(config.buffers.pool_size);
    lines.push(format!("  buffer pool {pool}, at most {most}"));
    lines.push(format!(
        "  connections at most {}; {} files may be open, two a connection",
        max_connections(config),
        files::limit()
    ));
    let mut warnings: Vec<String> = too_many_connections(config).into_iter().collect();
    lines.push(
        "  socket buffers as asked -> as given (the kernel doubles what is asked):".to_owned(),
    );
    for listener in &config.listeners {
        for (side, settings) in [("front", &listener.front), ("back", &listener.back)] {
            let options = build::socket_options(settings);
            let (recv, send) = socket::for_connect(listener.addr, &options)
                .and_then(|socket| socket::buffers(&socket))
                .map_err(StartError::system(format!(
                    "listener.{}: socket",
                    listener.name
                )))?;
            let (recv, send) = (
                Given::new(options.recv_buffer, recv),
                Given::new(options.send_buffer, send),
            );
            lines.push(format!(
                "    {} {side}: receive {}, send {}",
                listener.name,
                recv.text(),
                send.text()
            ));
            for (given, way, limit) in [(recv, "recv", "rmem_max"), (send, "send", "wmem_max")] {
                let warning = given.warning(&format!("{side} {way}_buffer"), limit);
                warnings.extend(warning.filter(|text| !warnings.contains(text)));
            }
        }
    }
    if let Some(certificates) = &snapshot.certificates {
        for pair in certificates.pairs() {
            lines.push(format!("  certificate for {}", few(&pair.names)));
        }
    }
    warnings.extend(build::remarks(&snapshot));
    for warning in &warnings {
        lines.push(format!("warning: {warning}"));
    }
    lines.push(match warnings.len() + told {
        0 => "Settings are fine.".to_owned(),
        1 => "Settings are usable, with 1 warning.".to_owned(),
        count => format!("Settings are usable, with {count} warnings."),
    });

    let mut page = config.to_string();
    page.push('\n');
    for line in lines {
        // Writing to a String cannot fail.
        let _ = writeln!(page, "# {line}");
    }
    Ok(page)
}

/// One buffer of a socket, in bytes.
#[derive(Clone, Copy)]
struct Given {
    /// `None`: auto.
    asked: Option<usize>,
    given: usize,
}

impl Given {
    fn new(asked: Option<usize>, given: usize) -> Self {
        Self { asked, given }
    }

    fn capped(self) -> bool {
        self.asked.is_some_and(|asked| self.given / 2 < asked)
    }

    fn text(self) -> String {
        let given = bytes_text(self.given);
        match self.asked {
            None => format!("auto (grows from {given})"),
            Some(asked) if self.capped() => format!("{} -> {given} (capped)", bytes_text(asked)),
            Some(asked) => format!("{} -> {given}", bytes_text(asked)),
        }
    }

    fn warning(self, what: &str, limit: &str) -> Option<String> {
        let asked = bytes_text(self.asked.filter(|_| self.capped())?);
        let most = bytes_text(self.given / 2);
        Some(format!(
            "{what} {asked} is capped by net.core.{limit} at {most}"
        ))
    }
}

/// [`size_text`], with a unit also where there are only bytes.
fn bytes_text(bytes: usize) -> String {
    let text = size_text(bytes);
    if text.ends_with('B') {
        text
    } else {
        format!("{text}B")
    }
}

/// The first names, as many as a line has room for.
fn few(names: &[String]) -> String {
    let mut text = String::new();
    for (at, name) in names.iter().enumerate() {
        if at > 0 && text.len() + name.len() > WIDTH - 36 {
            let _ = write!(text, " and {} more", names.len() - at);
            break;
        }
        let _ = write!(text, "{}{name}", if at > 0 { ", " } else { "" });
    }
    if text.is_empty() {
        text.push_str("no DNS name");
    }
    text
}

/// Whether more connections are asked for than there can be files.
fn too_many_connections(config: &Config) -> Option<String> {
    let MaxConnections::Count(count) = config.limits.max_connections else {
        return None;
    };
    let limits = config::Limits {
        max_connections: MaxConnections::FromFdLimit,
        ..config.limits
    };
    let fit = max_connections(&Config {
        limits,
        ..config.clone()
    });
    (count as usize > fit).then(|| {
        format!(
            "--max-connections {count} needs {} files; at most {fit} will fit",
            u64::from(count) * 2
        )
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_told_in_one_unit_with_who_capped_them() {
        const KIB: usize = 1024;
        let warning = "front send_buffer 64MiB is capped by net.core.wmem_max at 208KiB";
        for (asked, given, text, told) in [
            (None, 128 * KIB, "auto (grows from 128KiB)", None),
            (Some(4 * KIB), 8 * KIB, "4KiB -> 8KiB", None),
            (Some(1152), 2304, "1152B -> 2304B", None),
            (
                Some(64 << 20),
                416 * KIB,
                "64MiB -> 416KiB (capped)",
                Some(warning),
            ),
        ] {
            let given = Given::new(asked, given);
            assert_eq!(given.text(), text);
            let found = given.warning("front send_buffer", "wmem_max");
            assert_eq!(found.as_deref(), told);
        }
    }

    #[test]
    fn a_long_list_of_names_is_cut() {
        let names: Vec<String> = (0..40).map(|n| format!("chat-{n}.example.org")).collect();
        assert_eq!(few(&names[..2]), "chat-0.example.org, chat-1.example.org");
        assert_eq!(
            few(&names),
            "chat-0.example.org, chat-1.example.org, chat-2.example.org and 37 more"
        );
        assert_eq!(few(&[]), "no DNS name");
    }
}
