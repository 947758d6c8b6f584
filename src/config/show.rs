//! Settings written back: the effective ones, as a file that `--config` takes.
//!
//! Everything is said, defaults too, so that what `check` prints holds on any machine and in any
//! later version. Socket settings stand with each listener, since that is where they hold.

use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};

use super::units::{duration_text, size_text};
use super::{
    Config, Http, Listener, ProxyProtocol, Route, Scheme, TlsMode, Upstream, UpstreamId, Xmpp,
};

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
        for route in &self.routes {
            self.route(route, out)?;
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
        let (front, back) = (&listener.front, &listener.back);
        writeln!(out, "\n[[listener]]")?;
        writeln!(out, "name = {}", quoted(&listener.name))?;
        writeln!(out, "listen = \"{}://{}\"", listener.scheme, listener.addr)?;
        // What makes no sense for a scheme cannot be said there.
        if listener.scheme == Scheme::Http {
            writeln!(out, "https_port = {}", listener.https_port)?;
        } else {
            writeln!(out, "upstream = {}", self.upstream(listener.upstream))?;
            writeln!(out, "tls = \"{}\"", listener.tls)?;
            if listener.tls == TlsMode::Terminate {
                writeln!(out, "alpn = {}", texts(&listener.alpn))?;
            }
            writeln!(out, "domains = {}", texts(&listener.domains))?;
        }
        if listener.scheme.carries_http() {
            let trusted = texts(&listener.trusted_proxies);
            writeln!(out, "trusted_proxies = {trusted}")?;
        }
        writeln!(
            out,
            "accept_proxy_protocol = {}",
            texts(&listener.accept_proxy_protocol)
        )?;
        writeln!(out, "on_truncation = \"{}\"", listener.on_truncation)?;
        writeln!(out, "front_recv_buffer = \"{}\"", front.recv_buffer)?;
        writeln!(out, "front_send_buffer = \"{}\"", front.send_buffer)?;
        writeln!(out, "back_recv_buffer = \"{}\"", back.recv_buffer)?;
        writeln!(out, "back_send_buffer = \"{}\"", back.send_buffer)?;
        writeln!(out, "notsent_lowat = \"{}\"", front.notsent_lowat)?;
        writeln!(out, "keepalive = \"{}\"", duration_text(front.keepalive))?;
        writeln!(
            out,
            "user_timeout = \"{}\"",
            duration_text(front.user_timeout)
        )
    }

    fn route(&self, route: &Route, out: &mut Formatter<'_>) -> fmt::Result {
        let listeners: Vec<&str> = route
            .listeners
            .iter()
            .filter_map(|id| self.listeners.get(usize::from(id.0)))
            .map(|listener| listener.name.as_str())
            .collect();
        writeln!(out, "\n[[route]]")?;
        writeln!(out, "hosts = {}", texts(&route.hosts))?;
        writeln!(out, "paths = {}", texts(&route.paths))?;
        if let Some(protocol) = route.protocol {
            writeln!(out, "protocol = \"{protocol}\"")?;
        }
        writeln!(out, "listeners = {}", texts(&listeners))?;
        writeln!(out, "upstream = {}", self.upstream(route.upstream))?;
        if let Some(tls) = route.tls {
            writeln!(out, "tls = \"{tls}\"")?;
        }
        Ok(())
    }

    /// The name of an upstream, quoted.
    fn upstream(&self, id: UpstreamId) -> String {
        let upstream = self.upstreams.get(usize::from(id.0));
        quoted(upstream.map_or("", |upstream| upstream.name.as_str()))
    }

    fn tables(&self, out: &mut Formatter<'_>) -> fmt::Result {
        writeln!(out, "\n[tls]")?;
        writeln!(out, "min = \"{}\"", self.tls.min)?;
        writeln!(out, "sni_strict = {}", self.tls.sni_strict)?;

        write_xmpp(&self.xmpp, out)?;
        write_http(&self.http, out)?;

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
            ("first_byte", timeouts.first_byte),
            ("starttls", timeouts.starttls),
            ("handshake", timeouts.handshake),
            ("authentication", timeouts.authentication),
            ("connect", timeouts.connect),
            ("request", timeouts.request),
            ("request_body", timeouts.request_body),
            ("answer", timeouts.answer),
            ("upgrade", timeouts.upgrade),
            ("write", timeouts.write),
            ("keep_alive", timeouts.keep_alive),
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
    writeln!(out, "proxy_protocol = \"{}\"", upstream.proxy_protocol)?;
    // No other version has any, nor may they be said beside one.
    if upstream.proxy_protocol == ProxyProtocol::V2 {
        writeln!(out, "proxy_tlvs = {}", texts(&upstream.proxy_tlvs))?;
    }
    writeln!(out, "starttls = \"{}\"", upstream.starttls)?;
    writeln!(out, "http2 = {}", upstream.http2)?;
    writeln!(out, "sticky = \"{}\"", upstream.sticky)?;
    for backend in &upstream.backends {
        writeln!(out, "\n[[upstream.backend]]")?;
        writeln!(out, "address = {}", quoted(&backend.to_string()))?;
    }
    Ok(())
}

fn write_xmpp(xmpp: &Xmpp, out: &mut Formatter<'_>) -> fmt::Result {
    writeln!(out, "\n[xmpp]")?;
    writeln!(out, "guard = {}", xmpp.guard.is_some())?;
    if let Some(guard) = &xmpp.guard {
        let (element, bytes) = (size_text(guard.element_size), size_text(guard.bytes));
        writeln!(out, "guard_element_size = \"{element}\"")?;
        writeln!(out, "guard_bytes = \"{bytes}\"")?;
        writeln!(out, "guard_elements = {}", guard.elements)?;
        writeln!(out, "guard_depth = {}", guard.depth)?;
    }
    writeln!(out, "element_size = \"{}\"", size_text(xmpp.element_size))?;
    writeln!(out, "to_must_match = {}", xmpp.to_must_match)?;
    writeln!(out, "on_drain = \"{}\"", xmpp.on_drain)?;
    writeln!(out, "probe = {}", xmpp.probe)
}

fn write_http(http: &Http, out: &mut Formatter<'_>) -> fmt::Result {
    let body = usize::try_from(http.body_size).unwrap_or(usize::MAX);
    writeln!(out, "\n[http]")?;
    writeln!(out, "head_size = \"{}\"", size_text(http.head_size))?;
    writeln!(out, "headers = {}", http.headers)?;
    writeln!(out, "body_size = \"{}\"", size_text(body))?;
    writeln!(
        out,
        "body_rate = \"{}\"",
        size_text(http.body_rate as usize)
    )?;
    writeln!(out, "streams = {}", http.streams)?;
    writeln!(out, "underscores = {}", http.underscores)?;
    writeln!(out, "idle_backends = {}", http.idle_backends)?;
    writeln!(
        out,
        "idle_backend = \"{}\"",
        duration_text(http.idle_backend)
    )?;
    writeln!(out, "backend_age = \"{}\"", duration_text(http.backend_age))
}

/// A list of texts.
fn texts<T: ToString>(items: &[T]) -> String {
    list(items, |item| quoted(&item.to_string()))
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
