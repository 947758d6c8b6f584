//! `vestibule check`: everything that `run` would use is read and tried, and what would be in force is printed.

use std::fmt::Write as _;

use crate::config::{Config, ConfigError};
use crate::sys::{files, socket};
use crate::tls::terms::TicketKey;

use super::instance::max_connections;
use super::{StartError, build};

/// Checks, and returns the page to print.
///
/// # Errors
/// Every fault found.
pub fn check(config: &Config) -> Result<String, StartError> {
    let runtime = super::event_loop()?;
    let tickets = TicketKey::random().map_err(|e| {
        ConfigError::from(crate::config::Fault::new(
            "tls",
            e.to_string(),
            "report this",
        ))
    })?;
    let built = runtime.block_on(build::build(config, &tickets));
    runtime.shutdown_background();
    let (snapshot, _) = built?;
    let mut page = config.to_string();
    let mut line = |text: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(page, "{}", format!("# {text}").trim_end());
    };
    line("");
    line("What this comes to on this machine:");
    line(&format!(
        "buffer pool {}, at most {} MiB",
        if config.buffers.pooled {
            "on"
        } else {
            "off (a fresh allocation each time)"
        },
        config.buffers.pool_size >> 20
    ));
    line(&format!(
        "at most {} connections; {} files may be open, two a connection",
        max_connections(config),
        files::limit()
    ));
    for listener in &config.listeners {
        for (side, settings) in [("front", &listener.front), ("back", &listener.back)] {
            let options = build::socket_options(settings);
            let given = socket::for_connect(listener.addr, &options)
                .and_then(|socket| socket::buffers(&socket))
                .map_err(StartError::system(format!(
                    "listener.{}: socket",
                    listener.name
                )))?;
            line(&format!(
                "listener {}: {side} socket buffers as the kernel gave them: {} bytes to receive{}, {} to send{}",
                listener.name,
                given.0,
                growth(options.recv_buffer.is_none()),
                given.1,
                growth(options.send_buffer.is_none()),
            ));
        }
    }
    if let Some(offer) = snapshot.listeners.first() {
        for pair in offer.tls.certificates().pairs() {
            line(&format!("certificate for {}", pair.names.join(", ")));
        }
    }
    for remark in build::remarks(&snapshot) {
        line(&format!("warning: {remark}"));
    }
    line("Settings are fine.");
    Ok(page)
}

/// What `auto` adds to a first size.
fn growth(auto: bool) -> &'static str {
    if auto {
        " (grows by the kernel's own tuning)"
    } else {
        ""
    }
}
