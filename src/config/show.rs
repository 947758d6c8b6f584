//! Settings written back: the effective ones, as a file that `--config` takes.
//!
//! Everything is said, defaults too, so that what `check` prints holds on any machine and in any
//! later version. Socket settings stand with each listener, since that is where they hold.

use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};

use super::units::{duration_text, size_text};
use super::{Config, Listener, Upstream};

impl Display for Config {
    /// Writes TOML that resolves to an equal [`Config`]. (A path that is not UTF-8 cannot stand in
    /// TOML; it is shown as well as can be.)
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        writeln!(out, "workers = {}", self.workers)?;
        for listener in &self.listeners {
            self.listener(listener, out)?;
        }
        for upstream in &self.upstreams {
            write_upstream(upstream, out)?;
        }
        for certificate in &self.certificates {
            writeln!(out, "\n[[certificate]]")?;
            writeln!(out, "cert = {}", path(&certificate.cert))?;
            writeln!(out, "key = {}", path(&certificate.key))?;
        }
        self.tables(out)
    }
}

impl Config {
    fn listener(&self, listener: &Listener, out: &mut Formatter<'_>) -> fmt::Result {
        let upstream = self.upstreams.get(usize::from(listener.upstream.0));
        let upstream = upstream.map_or("", |upstream| upstream.name.as_str());
        let (front, back) = (&listener.front, &listener.back);
        writeln!(out, "\n[[listener]]")?;
        writeln!(out, "name = {}", quoted(&listener.name))?;
        writeln!(out, "listen = \"{}://{}\"", listener.scheme, listener.addr)?;
        writeln!(out, "upstream = {}", quoted(upstream))?;
        writeln!(out, "alpn = {}", list(&listener.alpn, |text| quoted(text)))?;
        writeln!(out, "on_truncation = \"{}\"", listener.on_truncation)?;
        writeln!(out, "front_recv_buffer = \"{}\"", front.recv_buffer)?;
        writeln!(out, "front_send_buffer = \"{}\"", front.send_buffer)?;
        writeln!(out, "back_recv_buffer = \"{}\"", back.recv_buffer)?;
        writeln!(out, "back_send_buffer = \"{}\"", back.send_buffer)?;
        writeln!(out, "keepalive = \"{}\"", duration_text(front.keepalive))?;
        writeln!(
            out,
            "user_timeout = \"{}\"",
            duration_text(front.user_timeout)
        )
    }

    fn tables(&self, out: &mut Formatter<'_>) -> fmt::Result {
        writeln!(out, "\n[tls]")?;
        writeln!(out, "min = \"{}\"", self.tls.min)?;
        writeln!(out, "sni_strict = {}", self.tls.sni_strict)?;

        let buffers = &self.buffers;
        writeln!(out, "\n[buffers]")?;
        writeln!(out, "pool = {}", buffers.pooled)?;
        writeln!(out, "pool_size = \"{}\"", size_text(buffers.pool_size))?;
        writeln!(out, "buffer_size = \"{}\"", size_text(buffers.buffer_size))?;

        let limits = &self.limits;
        let per_ip = limits.max_connections_per_ip.unwrap_or(0);
        writeln!(out, "\n[limits]")?;
        writeln!(out, "max_connections = \"{}\"", limits.max_connections)?;
        writeln!(out, "max_connections_per_ip = {per_ip}")?;
        writeln!(out, "backlog = {}", limits.backlog)?;

        let timeouts = &self.timeouts;
        writeln!(out, "\n[timeouts]")?;
        for (key, value) in [
            ("handshake", timeouts.handshake),
            ("connect", timeouts.connect),
            ("idle", timeouts.idle),
            ("half_closed", timeouts.half_closed),
            ("stall", timeouts.stall),
            ("drain", timeouts.drain),
        ] {
            writeln!(out, "{key} = \"{}\"", duration_text(value))?;
        }

        let admin = self.admin.as_ref().map(ToString::to_string);
        writeln!(out, "\n[admin]")?;
        writeln!(
            out,
            "address = {}",
            quoted(admin.as_deref().unwrap_or("off"))
        )?;

        let log = &self.log;
        writeln!(out, "\n[log]")?;
        writeln!(out, "level = {}", quoted(&log.level))?;
        writeln!(out, "format = \"{}\"", log.format)?;
        writeln!(out, "access = {}", quoted(&log.access.to_string()))
    }
}

fn write_upstream(upstream: &Upstream, out: &mut Formatter<'_>) -> fmt::Result {
    writeln!(out, "\n[[upstream]]")?;
    writeln!(out, "name = {}", quoted(&upstream.name))?;
    writeln!(
        out,
        "ca = {}",
        list(&upstream.ca, |file: &PathBuf| path(file))
    )?;
    for backend in &upstream.backends {
        writeln!(out, "\n[[upstream.backend]]")?;
        writeln!(out, "address = {}", quoted(&backend.to_string()))?;
    }
    Ok(())
}

fn list<T>(items: &[T], write: impl Fn(&T) -> String) -> String {
    let items: Vec<String> = items.iter().map(write).collect();
    format!("[{}]", items.join(", "))
}

fn path(path: &Path) -> String {
    quoted(&path.display().to_string())
}

/// A TOML basic string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
