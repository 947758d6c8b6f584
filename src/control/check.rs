//! `vestibule check`: everything that `run` would use is read and tried, and what would be in force is printed.

use std::fmt::Write as _;

use crate::config::units::size_text;
use crate::config::{self, Config, ConfigError, Fault, MaxConnections};
use crate::sys::files;
use crate::tls::terms::TicketKey;

use super::instance::max_connections;
use super::telemetry::try_access_log;
use super::{StartError, build, granted};

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
        for side in granted::sides(listener).map_err(StartError::system(format!(
            "listener.{}: socket",
            listener.name
        )))? {
            lines.push(format!(
                "    {} {}: {}",
                listener.name,
                side.name,
                side.text()
            ));
            let new = side.warnings();
            warnings.extend(
                new.filter(|text| !warnings.contains(text))
                    .collect::<Vec<_>>(),
            );
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
