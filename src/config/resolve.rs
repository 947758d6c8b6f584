//! From what was written to what holds: [`File::resolve`].
//!
//! Names are joined, defaults filled in, ranges and contradictions checked. All faults are
//! gathered; one that may only follow from another (a listener lost to a mistyped key leaves
//! nothing to serve) waits until that is mended.

mod http;
mod routes;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::sys::limits;

use super::address::{Forward, Listen};
use super::defaults;
use super::error::{ConfigError, Fault};
use super::file::{CertificateTable, File, FlagLists, Given, LimitsTable, ListenerTable, LogTable};
use super::file::{SocketsTable, TimeoutsTable, UpstreamTable, XmppTable};
use super::units::{duration_text, size_text};
use super::words::{self, Auto};
use super::{
    AccessLog, AdminAddr, BackStarttls, Backend, Buffers, Certificate, Config, IpNet, Limits,
    Listener, Log, LogFormat, MaxConnections, OnDrain, OnTruncation, ProxyProtocol, ProxyTlv,
    Scheme, Socket, SocketBuffer, Sticky, Timeouts, Tls, TlsMode, TlsVersion, Upstream, UpstreamId,
    Xmpp, XmppGuard,
};

/// What defaults depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// CPUs the process may use.
    pub cpus: usize,
    /// Bytes of memory the process may use.
    pub memory: u64,
}

impl Machine {
    /// This one, as far as this process may use it.
    pub fn here() -> Self {
        Self {
            cpus: limits::cpus(),
            memory: limits::memory(),
        }
    }
}

impl File {
    /// Checks the settings against each other, fills in what is not said and gives the result, or
    /// every fault.
    ///
    /// Of the outside world only the folder of `cert_dir` is looked at: which certificates there
    /// are.
    pub fn resolve(self) -> Result<Config, ConfigError> {
        self.resolve_on(Machine::here())
    }

    /// [`File::resolve`] with the defaults of a given machine.
    pub fn resolve_on(self, machine: Machine) -> Result<Config, ConfigError> {
        match self.survey(machine) {
            (config, faults) if faults.is_empty() => Ok(config),
            (_, faults) => Err(ConfigError(faults)),
        }
    }

    /// What can be had of the settings, and every fault. Where there is a fault, the settings are
    /// good for finding further ones (files that cannot be read), and not to be served with.
    pub fn survey(mut self, machine: Machine) -> (Config, Vec<Fault>) {
        let mut faults = Faults {
            sound: self.faults.is_empty(),
            list: std::mem::take(&mut self.faults),
        };
        let path = self.path.take();
        let config = self.check(machine, &mut faults);
        let mut list: Vec<Fault> = Vec::new();
        for mut fault in faults.list {
            if fault.line.is_some() {
                fault.file.clone_from(&path);
            }
            // A flag that holds for each listener is at fault once.
            if !list.contains(&fault) {
                list.push(fault);
            }
        }
        (config, list)
    }

    /// The settings as far as they can be had; they only count when no fault was found.
    fn check(self, machine: Machine, faults: &mut Faults) -> Config {
        let workers = match &self.workers {
            Some(
                given @ Given {
                    value: Auto::Set(count),
                    ..
                },
            ) => {
                let count = given.with(*count);
                faults.within(Some(&count), 1, &defaults::WORKERS, |n| n.to_string()) as usize
            }
            _ => machine.cpus.clamp(1, *defaults::WORKERS.end() as usize),
        };
        let mut upstreams = upstreams(&self.upstreams, &self.flags, faults);
        let plain = Socket {
            recv_buffer: SocketBuffer::Auto,
            send_buffer: SocketBuffer::Auto,
            notsent_lowat: SocketBuffer::Bytes(defaults::NOTSENT_LOWAT),
            keepalive: defaults::KEEPALIVE,
            user_timeout: defaults::USER_TIMEOUT,
        };
        let common = sockets(&self.sockets, [plain, plain], faults);
        let mut drafts = listeners(&self.listeners, &upstreams, common, &self.flags, faults);
        drafts.extend(forwards(&self.flags, common, faults));
        if drafts.is_empty() && self.flags.forwards.is_empty() {
            faults.unless_it_follows(Fault::new(
                "listener",
                "there is nothing to serve",
                "give --forward LISTEN=BACKEND, such as tls://0.0.0.0:8443=chat:5222, or a [[listener]] in the file",
            ));
        }
        let places: Vec<Place> = drafts.iter().map(Draft::place).collect();
        let mut listeners = name_and_join(drafts, &mut upstreams, &self.flags, faults);
        let routes = routes::routes(&self.routes, &listeners, &upstreams, faults);
        for (at, place) in places.iter().enumerate().take(listeners.len()) {
            match &place.alpn {
                None => listeners[at].alpn = routes::default_alpn(at, &listeners, &routes),
                Some(given) => http::check_alpn(given, at, &listeners, &routes, faults),
            }
        }
        http::redirects(&mut listeners, &places, &routes, faults);
        http::backends(&listeners, &places, &upstreams, faults);
        http::backends_of_routes(&self.routes, &routes, &listeners, &upstreams, faults);
        http::check_upstreams(&self.upstreams, &listeners, &routes, &upstreams, faults);
        // Whoever only passes TLS through needs no certificate.
        let terminates = listeners.is_empty()
            || listeners
                .iter()
                .any(|l| l.tls == TlsMode::Terminate && l.scheme != Scheme::Http)
            || routes.iter().any(|r| r.tls == Some(TlsMode::Terminate));
        let admin = self.admin.as_ref().and_then(|admin| {
            if let Some(AdminAddr::Tcp(addr)) = &admin.value
                && let Some(other) = listeners.iter().find(|other| overlap(other.addr, *addr))
            {
                faults.push(admin.fault(
                    format!("listener {:?} serves {}", other.name, other.addr),
                    "give the admin listener an address of its own",
                ));
            }
            admin.value.clone()
        });
        Config {
            certificates: certificates(&self, terminates, faults),
            tls: Tls {
                min: said(self.tls.min.as_ref(), TlsVersion::V1_2),
                sni_strict: said(self.tls.sni_strict.as_ref(), false),
            },
            buffers: buffers(&self, workers, machine.memory, faults),
            limits: limits_of(&self.limits, faults),
            timeouts: timeouts(&self.timeouts, faults),
            log: log(&self.log),
            xmpp: xmpp(&self.xmpp, faults),
            http: http::http(&self.http, faults),
            routes,
            listeners,
            upstreams,
            workers,
            admin,
        }
    }
}

/// The faults found so far.
struct Faults {
    list: Vec<Fault>,
    /// Reading found none. Otherwise something that was written is not there now, and what misses
    /// it is not to blame.
    sound: bool,
}

impl Faults {
    fn push(&mut self, fault: Fault) {
        self.list.push(fault);
    }

    /// For what would be missing only because its definition could not be read.
    fn unless_it_follows(&mut self, fault: Fault) {
        if self.sound {
            self.push(fault);
        }
    }

    /// What was given, which must lie in the range, or the default.
    fn within<T: PartialOrd + Copy>(
        &mut self,
        given: Option<&Given<T>>,
        default: T,
        range: &RangeInclusive<T>,
        write: impl Fn(T) -> String,
    ) -> T {
        if let Some(given) = given
            && !range.contains(&given.value)
        {
            self.push(given.fault(
                format!("{} is out of range", write(given.value)),
                format!("write {} to {}", write(*range.start()), write(*range.end())),
            ));
        }
        said(given, default)
    }

    /// [`Faults::within`] where zero is never, or off.
    fn zero_or_within<T: PartialOrd + Copy + Default>(
        &mut self,
        given: Option<&Given<T>>,
        default: T,
        range: &RangeInclusive<T>,
        write: impl Fn(T) -> String,
    ) -> T {
        if let Some(given) = given
            && given.value != T::default()
            && !range.contains(&given.value)
        {
            let (least, most) = (write(*range.start()), write(*range.end()));
            self.push(given.fault(
                format!("{} is out of range", write(given.value)),
                format!("write {least} to {most}, or 0"),
            ));
        }
        said(given, default)
    }
}

fn said<T: Clone>(given: Option<&Given<T>>, default: T) -> T {
    given.map_or(default, |given| given.value.clone())
}

/// A fault at a table as a whole.
fn missing(table: &str, line: usize, key: &str, way_out: impl Into<String>) -> Fault {
    Fault {
        line: Some(line),
        ..Fault::new(format!("{table}.{key}"), "missing", way_out)
    }
}

/// A listener whose name and upstream may not be settled yet.
struct Draft {
    /// Where it was given, for faults.
    place: Given<()>,
    /// Its table, where there is one, for faults about what is missing.
    table: Given<()>,
    /// The name given, and where.
    name: Option<(String, Given<()>)>,
    listen: Listen,
    target: Target,
    front: Socket,
    back: Socket,
    on_truncation: OnTruncation,
    /// None: what follows from scheme and routes.
    alpn: Option<Given<Vec<String>>>,
    tls: TlsMode,
    domains: Vec<String>,
    accept_proxy_protocol: Vec<IpNet>,
    trusted_proxies: Vec<IpNet>,
    https_port: Option<u16>,
}

/// What is left of a draft for faults that only show when all names are joined.
struct Place {
    listen: Given<()>,
    table: Given<()>,
    alpn: Option<Given<Vec<String>>>,
    https_port: Option<u16>,
}

impl Draft {
    fn place(&self) -> Place {
        Place {
            listen: self.place.clone(),
            table: self.table.clone(),
            alpn: self.alpn.clone(),
            https_port: self.https_port,
        }
    }
}

enum Target {
    /// Scheme `http` has none.
    None,
    Known(UpstreamId),
    /// An upstream of its own, with the name of the listener.
    Own(Vec<Backend>),
}

fn upstreams(tables: &[UpstreamTable], flags: &FlagLists, faults: &mut Faults) -> Vec<Upstream> {
    let mut upstreams: Vec<Upstream> = Vec::new();
    for table in tables {
        let Some(name) = &table.name else {
            let way_out = "name it, so that a listener can refer to it";
            faults.unless_it_follows(missing(&table.key, table.line, "name", way_out));
            continue;
        };
        if upstreams.iter().any(|other| other.name == name.value) {
            faults.push(name.fault("another upstream has this name", "give each its own"));
        }
        let mut backends: Vec<Backend> = Vec::new();
        for backend in &table.backends {
            if backends.contains(&backend.value) {
                faults.push(backend.fault(
                    format!("{} is there twice", backend.value),
                    "name each backend once",
                ));
            }
            backends.push(backend.value.clone());
        }
        for (backend, line) in &table.unread {
            let way_out = "write address = \"HOST:PORT\"";
            faults.unless_it_follows(missing(backend, *line, "address", way_out));
        }
        if table.backends.is_empty() && table.unread.is_empty() {
            let way_out = "add [[upstream.backend]] with address = \"HOST:PORT\"";
            faults.unless_it_follows(missing(&table.key, table.line, "backend", way_out));
        }
        let own_ca = table
            .ca
            .iter()
            .flat_map(|ca| ca.value.iter().map(PathBuf::from));
        let of_file = said(table.proxy_protocol.as_ref(), ProxyProtocol::Off);
        if let Some(given) = &table.proxy_tlvs
            && of_file != ProxyProtocol::V2
            && flags.proxy_protocol.is_none()
        {
            faults.unless_it_follows(given.fault(
                "only version 2 of the PROXY protocol has such fields",
                "write proxy_protocol = \"v2\", or take proxy_tlvs away",
            ));
        }
        if let Some(given) = &table.starttls
            && given.value == BackStarttls::Speak
            && let Some(backend) = backends
                .iter()
                .find(|b| matches!(b, Backend::Tls { .. } | Backend::Https { .. }))
        {
            faults.push(given.fault(
                format!("{backend} is encrypted already"),
                "write that backend without TLS, or take starttls away",
            ));
        }
        let proxy_protocol = flags.proxy_protocol.unwrap_or(of_file);
        let tlvs = said(table.proxy_tlvs.as_ref(), defaults::PROXY_TLVS.to_vec());
        upstreams.push(Upstream {
            name: name.value.clone(),
            backends,
            ca: own_ca.chain(flags.backend_ca.iter().cloned()).collect(),
            proxy_protocol,
            proxy_tlvs: tlvs_of(proxy_protocol, tlvs),
            starttls: said(table.starttls.as_ref(), BackStarttls::Strip),
            http2: said(table.http2.as_ref(), false),
            sticky: said(table.sticky.as_ref(), Sticky::Off),
        });
    }
    if let (Some(last), Err(_)) = (tables.last(), u16::try_from(upstreams.len())) {
        faults.push(Fault::new(
            &last.key,
            "too many upstreams",
            "at most 65535 are served",
        ));
    }
    upstreams
}

/// No version but the second has any.
fn tlvs_of(version: ProxyProtocol, tlvs: Vec<ProxyTlv>) -> Vec<ProxyTlv> {
    match version {
        ProxyProtocol::V2 => tlvs,
        ProxyProtocol::Off | ProxyProtocol::V1 => Vec::new(),
    }
}

fn listeners(
    tables: &[ListenerTable],
    upstreams: &[Upstream],
    common: [Socket; 2],
    flags: &FlagLists,
    faults: &mut Faults,
) -> Vec<Draft> {
    let mut drafts = Vec::new();
    for table in tables {
        let [front, back] = sockets(&table.sockets, common, faults);
        let whole = Given {
            value: (),
            key: table.key.clone(),
            line: Some(table.line),
        };
        let scheme = table.listen.as_ref().map(|listen| listen.value.scheme);
        let target = match scheme {
            Some(Scheme::Http) => Target::None,
            _ => Target::Known(upstream_of(
                table.upstream.as_ref(),
                &whole,
                upstreams,
                faults,
            )),
        };
        let Some(listen) = &table.listen else {
            let way_out = "write listen = \"SCHEME://ADDR:PORT\", such as \"xmpp://0.0.0.0:5222\"";
            faults.unless_it_follows(missing(&table.key, table.line, "listen", way_out));
            continue;
        };
        let scheme = listen.value.scheme;
        let tls = said(table.tls.as_ref(), default_tls(scheme));
        http::misplaced(table, scheme, faults);
        drafts.push(Draft {
            place: listen.with(()),
            table: whole,
            name: table
                .name
                .as_ref()
                .map(|name| (name.value.clone(), name.with(()))),
            listen: listen.value,
            target,
            front,
            back,
            on_truncation: said(table.on_truncation.as_ref(), OnTruncation::Fin),
            alpn: alpn(table.alpn.as_ref(), tls, faults),
            tls,
            domains: said(table.domains.as_ref(), Vec::new()),
            accept_proxy_protocol: with_flag(
                table.accept_proxy_protocol.as_ref(),
                &flags.accept_proxy_protocol,
            ),
            trusted_proxies: trusted(table.trusted_proxies.as_ref(), scheme, flags),
            https_port: table.https_port.as_ref().map(|given| given.value),
        });
    }
    drafts
}

/// The networks of the file, then those of a flag that holds everywhere.
fn with_flag(given: Option<&Given<Vec<IpNet>>>, flag: &[IpNet]) -> Vec<IpNet> {
    let mut networks = said(given, Vec::new());
    for network in flag {
        if !networks.contains(network) {
            networks.push(*network);
        }
    }
    networks
}

/// Whose word on a client is kept. Nobody's where no HTTP is spoken.
fn trusted(given: Option<&Given<Vec<IpNet>>>, scheme: Scheme, flags: &FlagLists) -> Vec<IpNet> {
    if scheme.carries_http() {
        with_flag(given, &flags.trusted_proxies)
    } else {
        Vec::new()
    }
}

/// Servers keep their own certificates: other servers know them by those (SASL EXTERNAL).
fn default_tls(scheme: Scheme) -> TlsMode {
    match scheme {
        Scheme::XmppServer | Scheme::XmppsServer => TlsMode::Passthrough,
        Scheme::Tls
        | Scheme::Xmpp
        | Scheme::Xmpps
        | Scheme::Https
        | Scheme::Http
        | Scheme::Auto => TlsMode::Terminate,
    }
}

/// The upstream that a listener or a route names; `whole` is that table.
fn upstream_of(
    wanted: Option<&Given<String>>,
    whole: &Given<()>,
    upstreams: &[Upstream],
    faults: &mut Faults,
) -> UpstreamId {
    let names: Vec<&str> = upstreams
        .iter()
        .map(|upstream| upstream.name.as_str())
        .collect();
    let Some(wanted) = wanted else {
        let way_out = match names.as_slice() {
            [] => "add an [[upstream]] and name it here".to_owned(),
            names => format!("name an upstream: {}", words::listed(names)),
        };
        let fault = Fault::new(format!("{}.upstream", whole.key), "missing", way_out);
        faults.unless_it_follows(Fault {
            line: whole.line,
            ..fault
        });
        return UNKNOWN;
    };
    if let Some(index) = names.iter().position(|name| *name == wanted.value) {
        return UpstreamId(u16::try_from(index).unwrap_or(u16::MAX));
    }
    faults.unless_it_follows(wanted.fault(
        format!("no upstream is named {:?}", wanted.value),
        way_to_known(&wanted.value, &names, "[[upstream]]"),
    ));
    UNKNOWN
}

/// What stands for an upstream that is none, so that nothing else is said of it.
const UNKNOWN: UpstreamId = UpstreamId(u16::MAX);

/// What to do about a name that no `table` has.
fn way_to_known(name: &str, known: &[&str], table: &str) -> String {
    match (words::nearest(name, known.iter().copied()), known) {
        (Some(near), _) => format!("did you mean {near}?"),
        (None, []) => format!("add a table {table} with name = {name:?}"),
        (None, known) => format!("known are {}", words::listed(known)),
    }
}

/// The protocols given, checked.
fn alpn(
    given: Option<&Given<Vec<String>>>,
    tls: TlsMode,
    faults: &mut Faults,
) -> Option<Given<Vec<String>>> {
    let given = given?;
    if tls == TlsMode::Passthrough {
        faults.unless_it_follows(given.fault(
            "TLS passes through here, so the backend chooses the protocol",
            "take alpn away, or write tls = \"terminate\"",
        ));
    }
    for (index, protocol) in given.value.iter().enumerate() {
        if !(1..=255).contains(&protocol.len()) {
            faults.push(given.fault(
                format!("{protocol:?} cannot be an ALPN protocol"),
                "write 1 to 255 bytes, such as xmpp-client",
            ));
        } else if given.value[..index].contains(protocol) {
            faults.push(given.fault(
                format!("{protocol:?} is there twice"),
                "name each protocol once",
            ));
        }
    }
    Some(given.clone())
}

/// One draft for each LISTEN; the backends of equal ones gather behind it.
fn forwards(flags: &FlagLists, common: [Socket; 2], faults: &mut Faults) -> Vec<Draft> {
    let mut drafts: Vec<Draft> = Vec::new();
    for text in &flags.forwards {
        let key = format!("--forward {text}");
        let Forward { listen, backend } = match text.parse() {
            Ok(forward) => forward,
            Err(super::Reason { problem, way_out }) => {
                faults.push(Fault::new(key, problem, way_out));
                continue;
            }
        };
        if let Some(draft) = drafts.iter_mut().find(|draft| draft.listen == listen) {
            match (&mut draft.target, backend) {
                (Target::Own(backends), Some(backend)) => {
                    if backends.contains(&backend) {
                        let problem = format!("{backend} is there twice");
                        faults.push(Fault::new(key, problem, "name each backend once"));
                    }
                    backends.push(backend);
                }
                _ => faults.push(Fault::new(key, "it is there twice", "give it once")),
            }
            continue;
        }
        let [front, back] = common;
        drafts.push(Draft {
            place: Given::by_flag(&key, ()),
            table: Given::by_flag(&key, ()),
            name: None,
            target: backend.map_or(Target::None, |backend| Target::Own(vec![backend])),
            front,
            back,
            on_truncation: flags.on_truncation.unwrap_or(OnTruncation::Fin),
            alpn: None,
            tls: default_tls(listen.scheme),
            domains: Vec::new(),
            accept_proxy_protocol: flags.accept_proxy_protocol.clone(),
            trusted_proxies: trusted(None, listen.scheme, flags),
            https_port: None,
            listen,
        });
    }
    drafts
}

/// Settles the names, checks that names and addresses are single, and gives forwards their
/// upstreams.
fn name_and_join(
    drafts: Vec<Draft>,
    upstreams: &mut Vec<Upstream>,
    flags: &FlagLists,
    faults: &mut Faults,
) -> Vec<Listener> {
    let short = |listen: &Listen| format!("{}-{}", listen.scheme, listen.addr.port());
    let mut wanted: HashMap<String, HashSet<SocketAddr>> = HashMap::new();
    for draft in &drafts {
        let given = draft.name.as_ref().map(|(name, _)| name.clone());
        let name = given.unwrap_or_else(|| short(&draft.listen));
        wanted.entry(name).or_default().insert(draft.listen.addr);
    }
    let mut listeners: Vec<Listener> = Vec::new();
    for draft in drafts {
        let Listen { scheme, addr } = draft.listen;
        let name_place = draft.name.as_ref().map_or(&draft.place, |(_, place)| place);
        let name = draft.name.as_ref().map_or_else(
            || {
                let name = short(&draft.listen);
                if wanted.get(&name).is_some_and(|addrs| addrs.len() > 1) {
                    format!("{scheme}-{}-{}", addr.ip(), addr.port())
                } else {
                    name
                }
            },
            |(name, _)| name.clone(),
        );
        if let Some(other) = listeners.iter().find(|other| other.addr == addr) {
            faults.push(draft.place.fault(
                format!("{addr} is served by listener {:?} too", other.name),
                "give each listener an address of its own",
            ));
        } else if let Some(other) = listeners.iter().find(|other| overlap(other.addr, addr)) {
            faults.push(draft.place.fault(
                format!(
                    "{addr} overlaps with {} of listener {:?}",
                    other.addr, other.name
                ),
                "give each listener a port of its own, or each an address of this machine",
            ));
        } else if listeners.iter().any(|other| other.name == name) {
            faults.push(name_place.fault(
                format!("another listener is named {name:?}"),
                "give each a name of its own",
            ));
        }
        let upstream = match draft.target {
            Target::None => UpstreamId(0),
            Target::Known(id) => id,
            Target::Own(backends) => {
                if upstreams.iter().any(|other| other.name == name) {
                    faults.push(draft.place.fault(
                        format!("its upstream would be named {name:?} like one of the file"),
                        "rename that one",
                    ));
                }
                let proxy_protocol = flags.proxy_protocol.unwrap_or(ProxyProtocol::Off);
                upstreams.push(Upstream {
                    name: name.clone(),
                    backends,
                    ca: flags.backend_ca.clone(),
                    proxy_protocol,
                    proxy_tlvs: tlvs_of(proxy_protocol, defaults::PROXY_TLVS.to_vec()),
                    starttls: BackStarttls::Strip,
                    http2: false,
                    sticky: Sticky::Off,
                });
                UpstreamId(u16::try_from(upstreams.len() - 1).unwrap_or(u16::MAX))
            }
        };
        if u16::try_from(listeners.len()).is_err() {
            faults.push(
                draft
                    .place
                    .fault("too many listeners", "at most 65535 are served"),
            );
            break;
        }
        listeners.push(Listener {
            name,
            scheme,
            addr,
            upstream,
            front: draft.front,
            back: draft.back,
            on_truncation: draft.on_truncation,
            alpn: draft.alpn.map_or_else(Vec::new, |given| given.value),
            tls: draft.tls,
            domains: draft.domains,
            accept_proxy_protocol: draft.accept_proxy_protocol,
            trusted_proxies: draft.trusted_proxies,
            https_port: draft.https_port.unwrap_or(defaults::HTTPS_PORT),
        });
    }
    listeners
}

/// Whether the kernel would not bind both. `0.0.0.0` and `[::]` are each for all addresses of their own
/// family.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let all = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port()
        && one.is_ipv4() == other.is_ipv4()
        && (all || one.ip() == other.ip())
}

/// Front and back, where `table` says nothing as in `base`.
fn sockets(table: &SocketsTable, base: [Socket; 2], faults: &mut Faults) -> [Socket; 2] {
    let mut buffer = |given: &Option<Given<SocketBuffer>>, base: SocketBuffer| {
        if let Some(
            given @ Given {
                value: SocketBuffer::Bytes(bytes),
                ..
            },
        ) = given
        {
            let bytes = given.with(*bytes);
            faults.within(Some(&bytes), 0, &defaults::SOCKET_BUFFERS, size_text);
        }
        said(given.as_ref(), base)
    };
    let [front, back] = base;
    let front_buffers = (
        buffer(&table.front_recv_buffer, front.recv_buffer),
        buffer(&table.front_send_buffer, front.send_buffer),
    );
    let back_buffers = (
        buffer(&table.back_recv_buffer, back.recv_buffer),
        buffer(&table.back_send_buffer, back.send_buffer),
    );
    let notsent_lowat = buffer(&table.notsent_lowat, front.notsent_lowat);
    let keepalive = table.keepalive.as_ref();
    let keepalives = &defaults::KEEPALIVES;
    let keepalive = faults.zero_or_within(keepalive, front.keepalive, keepalives, duration_text);
    let user_timeout = faults.zero_or_within(
        table.user_timeout.as_ref(),
        front.user_timeout,
        &defaults::USER_TIMEOUTS,
        duration_text,
    );
    [front_buffers, back_buffers].map(|(recv_buffer, send_buffer)| Socket {
        recv_buffer,
        send_buffer,
        notsent_lowat,
        keepalive,
        user_timeout,
    })
}

/// Pairs of the flags, then of the file, then of the folder: so a flag's first is the default.
/// There must be one if anything `terminates` TLS.
fn certificates(file: &File, terminates: bool, faults: &mut Faults) -> Vec<Certificate> {
    let (certs, keys) = (&file.flags.certs, &file.flags.keys);
    let without_key = certs
        .iter()
        .skip(keys.len())
        .map(|file| ("--cert", file, "--key"));
    let without_cert = keys
        .iter()
        .skip(certs.len())
        .map(|file| ("--key", file, "--cert"));
    for (flag, file, other) in without_key.chain(without_cert) {
        faults.push(Fault::new(
            format!("{flag} {}", file.display()),
            format!("has no {other}"),
            "give one --key for each --cert, in the same order",
        ));
    }
    let mut pairs: Vec<Certificate> = certs
        .iter()
        .zip(keys)
        .map(|(cert, key)| Certificate {
            cert: cert.clone(),
            key: key.clone(),
        })
        .collect();
    for table in &file.certificates {
        pairs.extend(certificate(table, faults));
    }
    if let Some(dir) = &file.tls.cert_dir {
        certificates_in(dir, &mut pairs, faults);
    } else if terminates && pairs.is_empty() && certs.len() == keys.len() {
        faults.unless_it_follows(Fault::new(
            "certificate",
            "there is none",
            "give --cert FILE and --key FILE, --cert-dir DIR, or a [[certificate]] in the file",
        ));
    }
    pairs
}

fn certificate(table: &CertificateTable, faults: &mut Faults) -> Option<Certificate> {
    let pair = (&table.cert, &table.private_key);
    if let (Some(cert), Some(key)) = pair {
        return Some(Certificate {
            cert: cert.value.clone(),
            key: key.value.clone(),
        });
    }
    for (given, key, what) in [
        (pair.0, "cert", "name the PEM file of the chain"),
        (pair.1, "key", "name the PEM file of the private key"),
    ] {
        if given.is_none() {
            faults.unless_it_follows(missing(&table.key, table.line, key, what));
        }
    }
    None
}

/// The pairs in the folders of `dir`, by name. Plain files are left aside (certbot puts a README
/// there), and names that begin with a dot (a mounted Kubernetes secret has such folders for
/// itself).
fn certificates_in(dir: &Given<PathBuf>, pairs: &mut Vec<Certificate>, faults: &mut Faults) {
    let mut folders = match folders(&dir.value) {
        Ok(folders) => folders,
        Err(error) => {
            faults.push(dir.fault(
                format!("cannot read {}: {error}", dir.value.display()),
                "name a folder that this user may read",
            ));
            return;
        }
    };
    folders.sort();
    if folders.is_empty() {
        faults.push(dir.fault(
            format!("{} has no folder in it", dir.value.display()),
            "put one there for each name, with fullchain.pem and privkey.pem",
        ));
    }
    for folder in folders {
        let (cert, key) = (folder.join("fullchain.pem"), folder.join("privkey.pem"));
        let missing = [&cert, &key].into_iter().filter(|file| !file.is_file());
        let mut complete = true;
        for file in missing {
            complete = false;
            faults.push(dir.fault(
                format!("there is no file {}", file.display()),
                "put fullchain.pem and privkey.pem into each folder",
            ));
        }
        if complete {
            pairs.push(Certificate { cert, key });
        }
    }
}

fn folders(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        // Not `entry.file_type()`: a link to a folder is a folder here.
        if !hidden && entry.path().is_dir() {
            folders.push(entry.path());
        }
    }
    Ok(folders)
}

fn buffers(file: &File, workers: usize, memory: u64, faults: &mut Faults) -> Buffers {
    let table = &file.buffers;
    let (given, sizes) = (table.buffer_size.as_ref(), &defaults::BUFFER_SIZES);
    let buffer_size = faults.within(given, defaults::BUFFER_SIZE, sizes, size_text);
    let floor = defaults::pool_floor(workers, buffer_size.clamp(*sizes.start(), *sizes.end()));
    let share = usize::try_from(memory / defaults::POOL_SHARE).unwrap_or(usize::MAX);
    let default = share
        .clamp(defaults::POOL_MIN, defaults::POOL_MAX)
        .max(floor);
    let pool_size = match &table.pool_size {
        None
        | Some(Given {
            value: Auto::Auto, ..
        }) => default,
        Some(Given {
            value: Auto::Set(size),
            ..
        }) if *size >= floor && *size as u64 <= defaults::POOL_LIMIT => *size,
        Some(given) => {
            let problem = match given.value {
                Auto::Set(size) if size < floor => format!(
                    "{} is too small for {workers} workers that read up to {} at once",
                    size_text(size),
                    size_text(buffer_size)
                ),
                _ => "more than any machine has".to_owned(),
            };
            faults.push(given.fault(
                problem,
                format!("write {} or more, or auto", size_text(floor)),
            ));
            default
        }
    };
    Buffers {
        pooled: said(table.pool.as_ref(), true),
        pool_size,
        buffer_size,
    }
}

fn limits_of(table: &LimitsTable, faults: &mut Faults) -> Limits {
    if let Some(given) = &table.max_connections
        && let MaxConnections::Count(count) = given.value
    {
        let count = given.with(count);
        faults.within(Some(&count), 0, &defaults::CONNECTIONS, |n| n.to_string());
    }
    let backlog = table.backlog.as_ref();
    let backlogs = &defaults::BACKLOGS;
    Limits {
        max_connections: said(table.max_connections.as_ref(), MaxConnections::FromFdLimit),
        max_connections_per_ip: table
            .max_connections_per_ip
            .as_ref()
            .map(|given| given.value)
            .filter(|&count| count > 0),
        backlog: faults.within(backlog, defaults::BACKLOG, backlogs, |n| n.to_string()),
    }
}

fn xmpp(table: &XmppTable, faults: &mut Faults) -> Xmpp {
    let number = |n: u32| n.to_string();
    let guard = XmppGuard {
        element_size: faults.within(
            table.guard_element_size.as_ref(),
            defaults::GUARD_ELEMENT_SIZE,
            &defaults::GUARD_ELEMENT_SIZES,
            size_text,
        ),
        bytes: faults.within(
            table.guard_bytes.as_ref(),
            defaults::GUARD_BYTES,
            &defaults::GUARD_BYTES_RANGE,
            size_text,
        ),
        elements: faults.within(
            table.guard_elements.as_ref(),
            defaults::GUARD_ELEMENTS,
            &defaults::GUARD_ELEMENTS_RANGE,
            number,
        ),
        depth: faults.within(
            table.guard_depth.as_ref(),
            defaults::GUARD_DEPTH,
            &defaults::GUARD_DEPTHS,
            number,
        ),
    };
    let guarded = said(table.guard.as_ref(), true);
    if !guarded {
        let sizes = [&table.guard_element_size, &table.guard_bytes];
        let counts = [&table.guard_elements, &table.guard_depth];
        let sizes = sizes.into_iter().flatten().map(|given| given.with(()));
        let counts = counts.into_iter().flatten().map(|given| given.with(()));
        for bound in sizes.chain(counts) {
            faults.push(bound.fault(
                "holds for nothing, since the guard is off",
                "write guard = true, or take this away",
            ));
        }
    }
    Xmpp {
        guard: guarded.then_some(guard),
        element_size: faults.zero_or_within(
            table.element_size.as_ref(),
            0,
            &defaults::ELEMENT_SIZES,
            size_text,
        ),
        to_must_match: said(table.to_must_match.as_ref(), false),
        on_drain: said(table.on_drain.as_ref(), OnDrain::Close),
        probe: said(table.probe.as_ref(), true),
    }
}

fn timeouts(table: &TimeoutsTable, faults: &mut Faults) -> Timeouts {
    let mut deadline = |given: &Option<Given<Duration>>, default| {
        let range = &defaults::DEADLINES;
        faults.zero_or_within(given.as_ref(), default, range, duration_text)
    };
    Timeouts {
        first_byte: deadline(&table.first_byte, defaults::FIRST_BYTE),
        starttls: deadline(&table.starttls, defaults::STARTTLS),
        authentication: deadline(&table.authentication, defaults::AUTHENTICATION),
        handshake: deadline(&table.handshake, defaults::HANDSHAKE),
        connect: deadline(&table.connect, defaults::CONNECT),
        request: deadline(&table.request, defaults::REQUEST),
        request_body: deadline(&table.request_body, defaults::REQUEST_BODY),
        answer: deadline(&table.answer, defaults::ANSWER),
        upgrade: deadline(&table.upgrade, defaults::UPGRADE),
        write: deadline(&table.write, defaults::WRITE),
        keep_alive: deadline(&table.keep_alive, defaults::KEEP_ALIVE),
        idle: deadline(&table.idle, defaults::IDLE),
        half_closed: deadline(&table.half_closed, defaults::HALF_CLOSED),
        drain: deadline(&table.drain, defaults::DRAIN),
        stall: faults.within(
            table.stall.as_ref(),
            defaults::STALL,
            &defaults::STALLS,
            duration_text,
        ),
    }
}

fn log(table: &LogTable) -> Log {
    Log {
        level: said(table.level.as_ref(), defaults::LOG_LEVEL.to_owned()),
        format: said(table.format.as_ref(), LogFormat::Text),
        access: said(table.access.as_ref(), AccessLog::Off),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests;
