//! What Vestibule was told to do, checked and complete.
//!
//! A [`Config`] cannot be wrong in itself: every name it refers to exists, every size and duration is
//! in range, no `Option` stands for a default. It is built once, by [`file::File::resolve`], from
//! the TOML file, the environment and the flags, and never changes afterwards; a reload builds another
//! one. What needs the outside world (certificates, host names, sockets) is checked by
//! `control::build`, not here.

pub mod address;
pub mod defaults;
pub mod error;
pub mod file;
mod resolve;
mod show;
mod table;
pub mod units;
pub mod words;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use ipnet::IpNet;

pub use error::{ConfigError, Fault, Reason};
pub use resolve::Machine;

/// Index of a listener in [`Config::listeners`]; the value of the metric label `listener` is its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u16);

/// Index of an upstream in [`Config::upstreams`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UpstreamId(pub u16);

/// Everything that `run` needs, validated.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Addresses to accept on; at least one.
    pub listeners: Vec<Listener>,
    /// Certificate pairs in the order given; the first is the default. Empty only where no listener and no route
    /// terminates TLS.
    pub certificates: Vec<Certificate>,
    /// Named sets of backends; every [`Listener::upstream`] is an index into it.
    pub upstreams: Vec<Upstream>,
    /// From facts about a connection to an upstream; the first that fits is taken, else the listener's own.
    pub routes: Vec<Route>,
    /// What holds for XMPP streams on all listeners.
    pub xmpp: Xmpp,
    /// What holds for HTTP on all listeners.
    pub http: Http,
    /// Facts about TLS that all listeners share.
    pub tls: Tls,
    /// Worker threads, at least one.
    pub workers: usize,
    /// The shared buffer pool.
    pub buffers: Buffers,
    /// Bounds on what clients may make us hold.
    pub limits: Limits,
    /// Deadlines.
    pub timeouts: Timeouts,
    /// The admin listener, if one is wanted.
    pub admin: Option<AdminAddr>,
    /// Where and how to log.
    pub log: Log,
}

/// One address that is accepted on, with its protocol.
#[derive(Clone, Debug, PartialEq)]
pub struct Listener {
    /// Unique; from the file, else `SCHEME-PORT` (`tls-8443`), else `SCHEME-ADDR-PORT` where that clashes.
    pub name: String,
    /// What clients speak here.
    pub scheme: Scheme,
    /// Where it is bound.
    pub addr: SocketAddr,
    /// Where its connections go. Of a listener of scheme `http`, which has no backend, that of the listener that it
    /// redirects to, else the first there may be: never used.
    pub upstream: UpstreamId,
    /// Socket settings of the client's side.
    pub front: Socket,
    /// Socket settings of the backend's side.
    pub back: Socket,
    /// What the backend sees when a client ends TCP without close_notify.
    pub on_truncation: OnTruncation,
    /// Protocols offered by ALPN, most wanted first. Empty: ALPN is not negotiated.
    pub alpn: Vec<String>,
    /// Whether TLS ends here, where no route says otherwise.
    pub tls: TlsMode,
    /// XMPP domains served, lower case, exact or `*.example.org`. Empty: those that a route names or a certificate
    /// covers. Only these are metric labels.
    pub domains: Vec<String>,
    /// Balancers in front, whose PROXY header is demanded and believed. From all others none is read.
    pub accept_proxy_protocol: Vec<IpNet>,
    /// Balancers in front, whose X-Forwarded-* and Forwarded are kept and appended to; all others' are replaced.
    pub trusted_proxies: Vec<IpNet>,
    /// Port that a listener of scheme `http` sends its clients to; of no meaning for any other.
    pub https_port: u16,
}

/// What clients speak on a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// TLS to plain TCP, any protocol.
    Tls,
    /// XMPP client connections with STARTTLS (RFC 6120 section 5).
    Xmpp,
    /// XMPP client connections over Direct TLS (XEP-0368).
    Xmpps,
    /// XMPP server connections with STARTTLS.
    XmppServer,
    /// XMPP server connections over Direct TLS.
    XmppsServer,
    /// HTTP/1.1 and HTTP/2 over TLS (RFC 9112, RFC 9113), with WebSocket and BOSH in them.
    Https,
    /// Plain HTTP/1.1, answered with a redirect to https.
    Http,
    /// Told apart by first bytes, ALPN and first decrypted bytes: XMPP clients both ways, and servers and HTTP where a
    /// route is for them.
    Auto,
}

impl Scheme {
    /// Whether connections may turn out to be XMPP streams.
    pub fn carries_xmpp(self) -> bool {
        !matches!(self, Self::Tls | Self::Https | Self::Http)
    }

    /// Whether connections may turn out to be HTTP over TLS.
    pub fn carries_http(self) -> bool {
        matches!(self, Self::Https | Self::Auto)
    }
}

/// Where TLS ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TlsMode {
    /// Here.
    Terminate,
    /// At the backend: the client's bytes are forwarded as they are, chosen by SNI or the stream's `to`.
    Passthrough,
}

/// What a connection turned out to speak, as far as routes care.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// XMPP, client to server (`jabber:client`).
    XmppClient,
    /// XMPP, server to server (`jabber:server`).
    XmppServer,
    /// HTTP of any version.
    Http,
}

/// From facts about a connection to an upstream. All that is said must fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Host names, lower case, exact or `*.example.org` (one label): SNI, else the stream's `to`; of HTTP the request's
    /// host. Empty: any.
    pub hosts: Vec<String>,
    /// Beginnings of HTTP paths in whole segments (`/ws` is not a beginning of `/wss`), each with a leading and none
    /// but `/` with a final slash. Empty: any. With some, the route is for HTTP alone.
    pub paths: Vec<String>,
    /// What is spoken. `None`: anything.
    pub protocol: Option<Protocol>,
    /// Where it came in. Empty: anywhere.
    pub listeners: Vec<ListenerId>,
    /// Where it goes.
    pub upstream: UpstreamId,
    /// Where TLS ends. `None`: as the listener says.
    pub tls: Option<TlsMode>,
}

/// What holds for XMPP streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xmpp {
    /// Caps until SASL success is seen. `None`: not guarded.
    pub guard: Option<XmppGuard>,
    /// Most bytes of one top-level element from an authenticated client. Zero: the server decides.
    pub element_size: usize,
    /// Whether the stream's `to` within TLS must be the host that SNI, or before STARTTLS `to`, has asked for.
    pub to_must_match: bool,
    /// What an authenticated stream is told when a drain ends it.
    pub on_drain: OnDrain,
    /// Whether backends are asked at start what they offer.
    pub probe: bool,
}

/// What holds for HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http {
    /// Most bytes of a request's or an answer's head.
    pub head_size: usize,
    /// Most header fields of a request or an answer.
    pub headers: u16,
    /// Most bytes of a request's body. Zero: the backend decides.
    pub body_size: u64,
    /// Least bytes a second of a request's body, on average over `timeouts.request_body`. Zero, there or here: none.
    pub body_rate: u32,
    /// Most streams at once on one HTTP/2 connection.
    pub streams: u32,
    /// Whether header names may have underscores, which backends may take for hyphens.
    pub underscores: bool,
    /// Most silent connections that a worker keeps to one backend.
    pub idle_backends: usize,
    /// How long one is kept. Zero: none is.
    pub idle_backend: Duration,
    /// How old a connection to a backend may be to be used again. Zero: any age.
    pub backend_age: Duration,
}

/// Which of its backends a client is sent to by an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sticky {
    /// The one with the fewest connections.
    Off,
    /// The same for the same client address, as long as the set stays as it is.
    Address,
    /// The same as before, by a cookie of ours (HTTP alone).
    Cookie,
}

/// What an unauthenticated XMPP client may make its server parse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XmppGuard {
    /// Most bytes of the stream header or of one element.
    pub element_size: usize,
    /// Most bytes in all.
    pub bytes: usize,
    /// Most elements below the stream, nested ones included.
    pub elements: u32,
    /// Deepest nesting, the stream itself being 1.
    pub depth: u32,
}

/// What an authenticated XMPP stream is told when a drain ends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnDrain {
    /// Nothing: TLS's close_notify and the end, which XEP-0198 resumes from.
    Close,
    /// The stream error `system-shutdown` (RFC 6120 section 4.9.3.20), if the stream is between two stanzas.
    SystemShutdown,
    /// The stream error `see-other-host` with this `HOST` or `HOST:PORT` (section 4.9.3.19), likewise.
    SeeOtherHost(String),
}

/// A PEM chain and its private key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// PEM file with the chain, end entity first.
    pub cert: PathBuf,
    /// PEM file with the private key.
    pub key: PathBuf,
}

/// A named set of backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// Unique; from the file, else the listener's name.
    pub name: String,
    /// At least one.
    pub backends: Vec<Backend>,
    /// PEM files whose certificates are trusted for `tls://` backends, beside the system's.
    pub ca: Vec<PathBuf>,
    /// The PROXY header that its backends are sent first.
    pub proxy_protocol: ProxyProtocol,
    /// What a version 2 header tells beside addresses.
    pub proxy_tlvs: Vec<ProxyTlv>,
    /// What is done when an XMPP backend offers STARTTLS to a stream whose TLS ended here.
    pub starttls: BackStarttls,
    /// Whether its backends are spoken to by HTTP/2.
    pub http2: bool,
    /// Which backend a client is sent to.
    pub sticky: Sticky,
}

/// The PROXY header that a backend is sent before the client's first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// None.
    Off,
    /// Version 1, a line of text.
    V1,
    /// Version 2, binary.
    V2,
}

/// A field of the PROXY header, version 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyTlv {
    /// The protocol agreed on by ALPN.
    Alpn,
    /// The name that the client asked for by SNI.
    Authority,
    /// The connection's id in our logs.
    UniqueId,
    /// TLS version, cipher, and the client's certificate if one came.
    Ssl,
    /// A checksum of the header.
    Crc32c,
    /// Channel bindings of the client's TLS (types 0xE0 tls-exporter, 0xE1 tls-server-end-point); an experiment.
    Binding,
}

/// What is done when an XMPP backend offers STARTTLS to a stream whose TLS ended here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackStarttls {
    /// An optional offer is taken out; a required one is an error that names the option to change.
    Strip,
    /// An optional offer is left in.
    Keep,
    /// Vestibule itself negotiates it, and the way to the backend is encrypted anew.
    Speak,
}

/// One server address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Plain TCP.
    Tcp {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
    },
    /// TLS over TCP; the certificate is verified for `host`.
    Tls {
        /// Name or address, also sent as SNI.
        host: String,
        /// Port.
        port: u16,
    },
    /// The same as `Tcp`, written as `http://`.
    Http {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
    },
    /// The same as `Tls`, written as `https://`.
    Https {
        /// Name or address, also sent as SNI.
        host: String,
        /// Port.
        port: u16,
    },
    /// A Unix stream socket.
    Unix(PathBuf),
}

/// TLS facts that all listeners share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// Oldest version accepted.
    pub min: TlsVersion,
    /// Refuse a server name that no certificate covers.
    pub sni_strict: bool,
}

/// Protocol versions that are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// TLS 1.2 (RFC 5246) and 1.3.
    V1_2,
    /// TLS 1.3 only (RFC 8446).
    V1_3,
}

/// The shared buffer pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// False with `--no-buffer-pool`: a fresh allocation each time, same bound.
    pub pooled: bool,
    /// Most bytes that all buffers together may take.
    pub pool_size: usize,
    /// Most bytes that one read takes from a socket.
    pub buffer_size: usize,
}

/// Socket settings of one side of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Kernel receive buffer in bytes (SO_RCVBUF), or the kernel's own tuning.
    pub recv_buffer: SocketBuffer,
    /// Kernel send buffer in bytes (SO_SNDBUF), or the kernel's own tuning.
    pub send_buffer: SocketBuffer,
    /// How much may wait in the kernel that the path has no room for (TCP_NOTSENT_LOWAT), or the kernel's own setting.
    pub notsent_lowat: SocketBuffer,
    /// TCP keepalive: silence before the first probe; three probes follow, a sixth of it apart. Zero: off.
    pub keepalive: Duration,
    /// TCP_USER_TIMEOUT: longest that sent bytes may stay unacknowledged. Zero: the kernel's default.
    pub user_timeout: Duration,
}

/// Size of a kernel socket buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketBuffer {
    /// The kernel's own tuning.
    Auto,
    /// Fixed, in bytes, as asked for (Linux doubles it for its book-keeping).
    Bytes(usize),
}

/// What the backend sees when a client ends TCP without close_notify, after every byte before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnTruncation {
    /// An ordinary end (FIN).
    Fin,
    /// A reset (RST).
    Abort,
}

/// Bounds on what clients may make us hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most connections at once; over it, refused at once and counted.
    pub max_connections: MaxConnections,
    /// Most connections at once from one IPv4 address or one IPv6 /64.
    pub max_connections_per_ip: Option<u32>,
    /// Length of the kernel's accept queue (listen(2)).
    pub backlog: u32,
}

/// Most connections at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxConnections {
    /// As many as the limit on open files allows, two a connection.
    FromFdLimit,
    /// As told.
    Count(u32),
}

/// Deadlines. Zero is never, where the field says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From accept to the first byte of an XMPP stream, and to the end of a PROXY header. Zero: never.
    pub first_byte: Duration,
    /// From accept to the start of TLS on a STARTTLS stream. Zero: never.
    pub starttls: Duration,
    /// From accept, or from the start of TLS on a STARTTLS stream, to the end of the TLS handshake. Zero: never.
    pub handshake: Duration,
    /// From the end of the handshake to SASL success on an XMPP stream. Zero: never.
    pub authentication: Duration,
    /// For one attempt to connect to one backend, its TLS handshake included. Zero: never.
    pub connect: Duration,
    /// From the first byte of a request, or the end of the handshake, to the end of its head. Zero: never.
    pub request: Duration,
    /// Silence of a client within a request's body. Zero: never.
    pub request_body: Duration,
    /// From the end of a request to the first byte of the answer. Zero: never.
    pub answer: Duration,
    /// From the end of a request for an upgrade to its answer. Zero: never.
    pub upgrade: Duration,
    /// A peer that takes nothing of what is there for it, or leaves a TLS record half sent. Zero: never.
    pub write: Duration,
    /// Silence between two requests. Zero: never.
    pub keep_alive: Duration,
    /// Silence in both directions. Zero: never.
    pub idle: Duration,
    /// Silence of a connection of which one direction has ended. Zero: never.
    pub half_closed: Duration,
    /// How long a connection may keep a buffer without progress while others wait for one. Never zero.
    pub stall: Duration,
    /// How long a drain waits for sessions to end. Zero: until the last has.
    pub drain: Duration,
}

/// Where the admin listener is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminAddr {
    /// A loopback address.
    Tcp(SocketAddr),
    /// A Unix stream socket, made with mode 0600.
    Unix(PathBuf),
}

/// Where and how to log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// `error`, `warn`, `info`, `debug`, `trace`, or a filter as tracing-subscriber's `EnvFilter` reads it.
    pub level: String,
    /// Text for people or JSON for machines.
    pub format: LogFormat,
    /// One line per connection, if wanted.
    pub access: AccessLog,
}

/// Form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Where the access log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessLog {
    /// Nowhere.
    Off,
    /// Standard output.
    Stdout,
    /// A file, appended to.
    File(PathBuf),
}
