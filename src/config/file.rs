//! The settings as written: a TOML file with the flags and environment variables laid over it.
//!
//! Everything is optional here and nothing is checked beyond its own value. [`File::resolve`] makes
//! a [`Config`](super::Config) of it. Faults found while reading stay with the file until then, so
//! that they are told together with those that only show when values meet.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::address::Listen;
use super::error::{ConfigError, Fault};
use super::table::{Findings, Table};
use super::words::{self, Auto};
use super::{
    AccessLog, AdminAddr, BackStarttls, Backend, IpNet, LogFormat, MaxConnections, OnDrain,
    OnTruncation, Protocol, ProxyProtocol, ProxyTlv, SocketBuffer, Sticky, TlsMode, TlsVersion,
    address, units,
};

pub use super::table::Given;

/// The settings as written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct File {
    /// `[[listener]]`
    pub listeners: Vec<ListenerTable>,
    /// `[[certificate]]`
    pub certificates: Vec<CertificateTable>,
    /// `[[upstream]]`
    pub upstreams: Vec<UpstreamTable>,
    /// `[[route]]`
    pub routes: Vec<RouteTable>,
    /// `[xmpp]`
    pub xmpp: XmppTable,
    /// `[http]`
    pub http: HttpTable,
    /// `[tls]`
    pub tls: TlsTable,
    /// `[buffers]`
    pub buffers: BuffersTable,
    /// `[sockets]`
    pub sockets: SocketsTable,
    /// `[limits]`
    pub limits: LimitsTable,
    /// `[timeouts]`
    pub timeouts: TimeoutsTable,
    /// `[admin]` `address`; none within: `off`.
    pub admin: Option<Given<Option<AdminAddr>>>,
    /// `[log]`
    pub log: LogTable,
    /// `workers`
    pub workers: Option<Given<Auto<u32>>>,
    /// What only flags can say.
    pub flags: FlagLists,
    /// Where it was read from.
    pub(super) path: Option<PathBuf>,
    /// What was wrong with it so far.
    pub(super) faults: Vec<Fault>,
}

/// What the file has no key for: lists that add to its own, what holds for `forwards`, and what holds for every
/// upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlagLists {
    /// `--forward`, LISTEN=BACKEND each.
    pub forwards: Vec<String>,
    /// `--cert`, in the order of `keys`.
    pub certs: Vec<PathBuf>,
    /// `--key`, in the order of `certs`.
    pub keys: Vec<PathBuf>,
    /// `--backend-ca`, for every upstream.
    pub backend_ca: Vec<PathBuf>,
    /// `--on-truncation`, for the listeners of `forwards`.
    pub on_truncation: Option<OnTruncation>,
    /// `--proxy-protocol`, for every upstream.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// `--accept-proxy-protocol`, for every listener.
    pub accept_proxy_protocol: Vec<IpNet>,
    /// `--trusted-proxies`, for every listener that carries HTTP.
    pub trusted_proxies: Vec<IpNet>,
}

/// A `[[listener]]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListenerTable {
    /// What faults call it: `listener.chat`.
    pub key: String,
    /// Line of the file.
    pub line: usize,
    /// Its name.
    pub name: Option<Given<String>>,
    /// Protocol and address.
    pub listen: Option<Given<Listen>>,
    /// Name of an upstream.
    pub upstream: Option<Given<String>>,
    /// ALPN protocols.
    pub alpn: Option<Given<Vec<String>>>,
    /// Where TLS ends.
    pub tls: Option<Given<TlsMode>>,
    /// XMPP domains.
    pub domains: Option<Given<Vec<String>>>,
    /// Balancers in front.
    pub accept_proxy_protocol: Option<Given<Vec<IpNet>>>,
    /// Balancers in front that speak HTTP.
    pub trusted_proxies: Option<Given<Vec<IpNet>>>,
    /// Port that plain HTTP is sent to.
    pub https_port: Option<Given<u16>>,
    /// End of a truncated client.
    pub on_truncation: Option<Given<OnTruncation>>,
    /// Socket settings in place of `[sockets]`.
    pub sockets: SocketsTable,
}

/// A `[[certificate]]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateTable {
    /// What faults call it: `certificate.1`.
    pub key: String,
    /// Line of the file.
    pub line: usize,
    /// PEM file of the chain.
    pub cert: Option<Given<PathBuf>>,
    /// PEM file of the private key. `private_key` in code, since `key` is the name of this table.
    pub private_key: Option<Given<PathBuf>>,
}

/// An `[[upstream]]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UpstreamTable {
    /// What faults call it: `upstream.chat`.
    pub key: String,
    /// Line of the file.
    pub line: usize,
    /// Its name.
    pub name: Option<Given<String>>,
    /// PEM files trusted for its `tls://` backends.
    pub ca: Option<Given<Vec<String>>>,
    /// The PROXY header that is sent.
    pub proxy_protocol: Option<Given<ProxyProtocol>>,
    /// What it tells, in version 2.
    pub proxy_tlvs: Option<Given<Vec<ProxyTlv>>>,
    /// What becomes of an offer of STARTTLS.
    pub starttls: Option<Given<BackStarttls>>,
    /// Whether HTTP/2 is spoken.
    pub http2: Option<Given<bool>>,
    /// Which backend a client is sent to.
    pub sticky: Option<Given<Sticky>>,
    /// `address` of each `[[upstream.backend]]`, as far as it could be read.
    pub backends: Vec<Given<Backend>>,
    /// Name and line of each `[[upstream.backend]]` without one.
    pub unread: Vec<(String, usize)>,
}

/// A `[[route]]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteTable {
    /// What faults call it: `route.1`.
    pub key: String,
    /// Line of the file.
    pub line: usize,
    /// Host names.
    pub hosts: Option<Given<Vec<String>>>,
    /// Beginnings of HTTP paths.
    pub paths: Option<Given<Vec<String>>>,
    /// What is spoken.
    pub protocol: Option<Given<Protocol>>,
    /// Names of listeners.
    pub listeners: Option<Given<Vec<String>>>,
    /// Name of an upstream.
    pub upstream: Option<Given<String>>,
    /// Where TLS ends.
    pub tls: Option<Given<TlsMode>>,
}

/// `[xmpp]`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XmppTable {
    /// Whether there are caps before authentication.
    pub guard: Option<Given<bool>>,
    /// Bytes of one element.
    pub guard_element_size: Option<Given<usize>>,
    /// Bytes in all.
    pub guard_bytes: Option<Given<usize>>,
    /// Elements.
    pub guard_elements: Option<Given<u32>>,
    /// Nesting.
    pub guard_depth: Option<Given<u32>>,
    /// Bytes of one element after authentication; zero is no limit.
    pub element_size: Option<Given<usize>>,
    /// Whether `to` is held against SNI.
    pub to_must_match: Option<Given<bool>>,
    /// What a drain tells.
    pub on_drain: Option<Given<OnDrain>>,
    /// Whether backends are asked at start.
    pub probe: Option<Given<bool>>,
}

/// `[http]`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpTable {
    /// Bytes of a head.
    pub head_size: Option<Given<usize>>,
    /// Header fields.
    pub headers: Option<Given<u16>>,
    /// Bytes of a request's body; zero is no limit.
    pub body_size: Option<Given<usize>>,
    /// Bytes of it a second; zero is no limit.
    pub body_rate: Option<Given<usize>>,
    /// Streams of one HTTP/2 connection.
    pub streams: Option<Given<u32>>,
    /// Whether names of headers may have underscores.
    pub underscores: Option<Given<bool>>,
    /// Silent connections to a backend.
    pub idle_backends: Option<Given<usize>>,
    /// How long one is kept.
    pub idle_backend: Option<Given<Duration>>,
    /// How old one may be.
    pub backend_age: Option<Given<Duration>>,
}

/// `[tls]`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsTable {
    /// Oldest version.
    pub min: Option<Given<TlsVersion>>,
    /// Refuse unknown names.
    pub sni_strict: Option<Given<bool>>,
    /// One folder per name.
    pub cert_dir: Option<Given<PathBuf>>,
}

/// `[buffers]`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BuffersTable {
    /// Whether buffers are pooled.
    pub pool: Option<Given<bool>>,
    /// Bytes of all buffers.
    pub pool_size: Option<Given<Auto<usize>>>,
    /// Bytes of one read.
    pub buffer_size: Option<Given<usize>>,
}

/// `[sockets]`, and the same keys in a `[[listener]]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketsTable {
    /// SO_RCVBUF towards clients.
    pub front_recv_buffer: Option<Given<SocketBuffer>>,
    /// SO_SNDBUF towards clients.
    pub front_send_buffer: Option<Given<SocketBuffer>>,
    /// SO_RCVBUF towards backends.
    pub back_recv_buffer: Option<Given<SocketBuffer>>,
    /// SO_SNDBUF towards backends.
    pub back_send_buffer: Option<Given<SocketBuffer>>,
    /// TCP_NOTSENT_LOWAT, both sides.
    pub notsent_lowat: Option<Given<SocketBuffer>>,
    /// TCP keepalive, both sides.
    pub keepalive: Option<Given<Duration>>,
    /// TCP_USER_TIMEOUT, both sides.
    pub user_timeout: Option<Given<Duration>>,
}

/// `[limits]`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitsTable {
    /// Connections in all.
    pub max_connections: Option<Given<MaxConnections>>,
    /// Connections of one address; zero is no limit.
    pub max_connections_per_ip: Option<Given<u32>>,
    /// Accept queue.
    pub backlog: Option<Given<u32>>,
}

/// `[timeouts]`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimeoutsTable {
    /// First byte.
    pub first_byte: Option<Given<Duration>>,
    /// Start of TLS after STARTTLS.
    pub starttls: Option<Given<Duration>>,
    /// TLS handshake.
    pub handshake: Option<Given<Duration>>,
    /// SASL success.
    pub authentication: Option<Given<Duration>>,
    /// Connecting to a backend.
    pub connect: Option<Given<Duration>>,
    /// Head of a request.
    pub request: Option<Given<Duration>>,
    /// Silence within a request's body.
    pub request_body: Option<Given<Duration>>,
    /// First byte of an answer.
    pub answer: Option<Given<Duration>>,
    /// Answer to an upgrade.
    pub upgrade: Option<Given<Duration>>,
    /// A client that takes nothing.
    pub write: Option<Given<Duration>>,
    /// Silence between two requests.
    pub keep_alive: Option<Given<Duration>>,
    /// Silence.
    pub idle: Option<Given<Duration>>,
    /// Silence after one side has ended.
    pub half_closed: Option<Given<Duration>>,
    /// Holding a buffer without progress.
    pub stall: Option<Given<Duration>>,
    /// Drain.
    pub drain: Option<Given<Duration>>,
}

/// `[log]`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogTable {
    /// Level or filter.
    pub level: Option<Given<String>>,
    /// Text or JSON.
    pub format: Option<Given<LogFormat>>,
    /// Access log.
    pub access: Option<Given<AccessLog>>,
}

impl File {
    /// Reads a TOML text. Every fault that shows in a single value or key is in the error, with its
    /// line; this opens nothing and believes nothing, so it may be given any text.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let file = Self::read(text);
        if file.faults.is_empty() {
            Ok(file)
        } else {
            Err(ConfigError(file.faults))
        }
    }

    /// Reads the file at `path`. What is wrong with it, an unreadable file included, is told by
    /// [`File::resolve`].
    pub fn open(path: &Path) -> Self {
        let mut file = match fs::read_to_string(path) {
            Ok(text) => Self::read(&text),
            Err(error) => Self {
                faults: vec![Fault::new(
                    "--config",
                    format!("cannot read {}: {error}", path.display()),
                    "name a TOML file that this user may read",
                )],
                ..Self::default()
            },
        };
        file.path = Some(path.to_owned());
        for fault in file.faults.iter_mut().filter(|fault| fault.line.is_some()) {
            fault.file.clone_from(&file.path);
        }
        file
    }

    /// Adds a fault found in what was laid over the file; [`File::resolve`] tells it with the
    /// others.
    pub fn refuse(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// What was wrong so far.
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }

    /// Every key that a file may have, with its table: `upstream.backend.address`.
    pub fn keys() -> BTreeSet<String> {
        let findings = Findings::default();
        let every_table =
            "[[listener]]\n[[certificate]]\n[[upstream]]\n[[upstream.backend]]\n[[route]]\n";
        Table::read_document(every_table, &findings, Self::take);
        findings.known.take()
    }

    fn read(text: &str) -> Self {
        let findings = Findings::default();
        let mut file = Table::read_document(text, &findings, Self::take);
        file.faults = findings.faults.take();
        // As the eye goes over the file.
        file.faults.sort_by_key(|fault| fault.line);
        file
    }

    fn take(top: &mut Table<'_>) -> Self {
        Self {
            workers: top.value("workers", words::workers),
            listeners: top.tables("listener", ListenerTable::take),
            certificates: top.tables("certificate", CertificateTable::take),
            upstreams: top.tables("upstream", UpstreamTable::take),
            routes: top.tables("route", RouteTable::take),
            xmpp: top.table("xmpp", XmppTable::take),
            http: top.table("http", HttpTable::take),
            tls: top.table("tls", TlsTable::take),
            buffers: top.table("buffers", BuffersTable::take),
            sockets: top.table("sockets", SocketsTable::take),
            limits: top.table("limits", LimitsTable::take),
            timeouts: top.table("timeouts", TimeoutsTable::take),
            admin: top.table("admin", |admin| admin.value("address", address::admin)),
            log: top.table("log", LogTable::take),
            ..Self::default()
        }
    }
}

impl ListenerTable {
    fn take(table: &mut Table<'_>) -> Self {
        let name = table.value("name", name);
        if let Some(name) = &name {
            table.name = format!("listener.{}", name.value);
        }
        let listen = table.value("listen", str::parse::<Listen>);
        if let (None, Some(listen)) = (&name, &listen) {
            let Listen { scheme, addr } = listen.value;
            table.name = format!("listener.{scheme}-{}", addr.port());
        }
        Self {
            upstream: table.value("upstream", text),
            alpn: table.list("alpn"),
            tls: table.value("tls", str::parse),
            domains: table.values("domains", address::domain),
            accept_proxy_protocol: table.values("accept_proxy_protocol", address::network),
            trusted_proxies: table.values("trusted_proxies", address::network),
            https_port: table.value("https_port", address::port),
            on_truncation: table.value("on_truncation", str::parse),
            sockets: SocketsTable::take(table),
            key: table.name.clone(),
            line: table.line,
            name,
            listen,
        }
    }
}

impl CertificateTable {
    fn take(table: &mut Table<'_>) -> Self {
        Self {
            key: table.name.clone(),
            line: table.line,
            cert: table.value("cert", path),
            private_key: table.value("key", path),
        }
    }
}

impl UpstreamTable {
    fn take(table: &mut Table<'_>) -> Self {
        let name = table.value("name", name);
        if let Some(name) = &name {
            table.name = format!("upstream.{}", name.value);
        }
        let backends = table.tables("backend", |backend| {
            let address = backend.value("address", str::parse::<Backend>);
            address.ok_or_else(|| (backend.name.clone(), backend.line))
        });
        let (addresses, unread): (Vec<_>, Vec<_>) = backends.into_iter().partition(Result::is_ok);
        Self {
            ca: table.list("ca"),
            proxy_protocol: table.value("proxy_protocol", str::parse),
            proxy_tlvs: table.values("proxy_tlvs", str::parse),
            starttls: table.value("starttls", str::parse),
            http2: table.switch("http2"),
            sticky: table.value("sticky", str::parse),
            backends: addresses.into_iter().flatten().collect(),
            unread: unread.into_iter().filter_map(Result::err).collect(),
            key: table.name.clone(),
            line: table.line,
            name,
        }
    }
}

impl RouteTable {
    fn take(table: &mut Table<'_>) -> Self {
        Self {
            key: table.name.clone(),
            line: table.line,
            hosts: table.values("hosts", address::domain),
            paths: table.values("paths", address::path),
            protocol: table.value("protocol", str::parse),
            listeners: table.values("listeners", text),
            upstream: table.value("upstream", text),
            tls: table.value("tls", str::parse),
        }
    }
}

impl XmppTable {
    fn take(table: &mut Table<'_>) -> Self {
        Self {
            guard: table.switch("guard"),
            guard_element_size: table.value("guard_element_size", units::size),
            guard_bytes: table.value("guard_bytes", units::size),
            guard_elements: table.value("guard_elements", words::count),
            guard_depth: table.value("guard_depth", words::count),
            element_size: table.value("element_size", units::size),
            to_must_match: table.switch("to_must_match"),
            on_drain: table.value("on_drain", str::parse),
            probe: table.switch("probe"),
        }
    }
}

impl HttpTable {
    fn take(table: &mut Table<'_>) -> Self {
        Self {
            head_size: table.value("head_size", units::size),
            headers: table.value("headers", words::count),
            body_size: table.value("body_size", units::size),
            body_rate: table.value("body_rate", units::size),
            streams: table.value("streams", words::count),
            underscores: table.switch("underscores"),
            idle_backends: table.value("idle_backends", words::count),
            idle_backend: table.value("idle_backend", units::duration),
            backend_age: table.value("backend_age", units::duration),
        }
    }
}

impl TlsTable {
    fn take(table: &mut Table<'_>) -> Self {
        Self {
            min: table.value("min", str::parse),
            sni_strict: table.switch("sni_strict"),
            cert_dir: table.value("cert_dir", path),
        }
    }
}

impl BuffersTable {
    fn take(table: &mut Table<'_>) -> Self {
        Self {
            pool: table.switch("pool"),
            pool_size: table.value("pool_size", words::auto_size),
            buffer_size: table.value("buffer_size", units::size),
        }
    }
}

impl SocketsTable {
    fn take(table: &mut Table<'_>) -> Self {
        Self {
            front_recv_buffer: table.value("front_recv_buffer", str::parse),
            front_send_buffer: table.value("front_send_buffer", str::parse),
            back_recv_buffer: table.value("back_recv_buffer", str::parse),
            back_send_buffer: table.value("back_send_buffer", str::parse),
            notsent_lowat: table.value("notsent_lowat", str::parse),
            keepalive: table.value("keepalive", units::duration),
            user_timeout: table.value("user_timeout", units::duration),
        }
    }
}

impl LimitsTable {
    fn take(table: &mut Table<'_>) -> Self {
        Self {
            max_connections: table.value("max_connections", str::parse),
            max_connections_per_ip: table.value("max_connections_per_ip", words::count),
            backlog: table.value("backlog", words::count),
        }
    }
}

impl TimeoutsTable {
    fn take(table: &mut Table<'_>) -> Self {
        Self {
            first_byte: table.value("first_byte", units::duration),
            starttls: table.value("starttls", units::duration),
            handshake: table.value("handshake", units::duration),
            authentication: table.value("authentication", units::duration),
            connect: table.value("connect", units::duration),
            request: table.value("request", units::duration),
            request_body: table.value("request_body", units::duration),
            answer: table.value("answer", units::duration),
            upgrade: table.value("upgrade", units::duration),
            write: table.value("write", units::duration),
            keep_alive: table.value("keep_alive", units::duration),
            idle: table.value("idle", units::duration),
            half_closed: table.value("half_closed", units::duration),
            stall: table.value("stall", units::duration),
            drain: table.value("drain", units::duration),
        }
    }
}

impl LogTable {
    fn take(table: &mut Table<'_>) -> Self {
        Self {
            level: table.value("level", words::log_level),
            format: table.value("format", str::parse),
            access: table.value("access", str::parse),
        }
    }
}

fn text(text: &str) -> Result<String, super::Reason> {
    Ok(text.to_owned())
}

fn name(name: &str) -> Result<String, super::Reason> {
    address::check_name(name).map(|()| name.to_owned())
}

fn path(path: &str) -> Result<PathBuf, super::Reason> {
    if path.is_empty() {
        return Err(super::Reason::new(
            "the path is empty",
            "name a file or folder",
        ));
    }
    Ok(PathBuf::from(path))
}
