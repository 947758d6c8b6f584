//! From settings to what the workers use. Reads certificates and resolves names; opens no socket.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use tokio::net::lookup_host;

use crate::config::{
    self, BackStarttls, Config, ConfigError, Fault, ListenerId, OnTruncation, ProxyTlv,
    SocketBuffer,
};
use crate::handler::Rules;
use crate::pool::{PLAIN_MAX, READY_MAX};
use crate::relay::Limits;
use crate::route::RouteTable;
use crate::sys::socket::Options;
use crate::tls::certs::{CertError, Certificates, Pair, Which};
use crate::tls::handshake::server_name;
use crate::tls::terms::{BackTerms, Terms, TicketKey, TrustError, Wishes, load_trusted};
use crate::upstream::dial::DialTerms;
use crate::upstream::{Backend, Link, Target, Upstream};
use crate::worker::snapshot::{Offer, Snapshot};

/// Reads and checks everything that `config` names.
///
/// # Errors
/// Every fault found, with the file and the key it is about.
pub async fn build(
    config: &Config,
    tickets: &TicketKey,
) -> Result<(Snapshot, Vec<Arc<Upstream>>), ConfigError> {
    let mut faults = Vec::new();
    let certificates = certificates(config, &mut faults);
    let mut upstreams = Vec::new();
    for upstream in &config.upstreams {
        upstreams.push(Arc::new(self::upstream(upstream, &mut faults).await));
    }
    if !faults.is_empty() {
        return Err(ConfigError(faults));
    }
    let snapshot = snapshot(config, certificates, &upstreams, tickets)?;
    Ok((snapshot, upstreams))
}

/// The faults alone, of settings that need not be complete.
pub async fn faults(config: &Config) -> Vec<Fault> {
    let mut faults = Vec::new();
    certificates(config, &mut faults);
    for upstream in &config.upstreams {
        self::upstream(upstream, &mut faults).await;
    }
    faults
}

/// The same with the certificates read anew, and upstreams as they are.
///
/// # Errors
/// Every fault found.
pub fn rebuild(
    config: &Config,
    upstreams: &[Arc<Upstream>],
    tickets: &TicketKey,
) -> Result<Snapshot, ConfigError> {
    let mut faults = Vec::new();
    let certificates = certificates(config, &mut faults);
    if !faults.is_empty() {
        return Err(ConfigError(faults));
    }
    snapshot(config, certificates, upstreams, tickets)
}

fn certificates(config: &Config, faults: &mut Vec<Fault>) -> Option<Arc<Certificates>> {
    let mut pairs = Vec::new();
    for files in &config.certificates {
        match Pair::load(&files.cert, &files.key) {
            Ok(pair) => pairs.push(pair),
            Err(found) => {
                let found = found.iter().map(|(which, error)| match which {
                    Which::Cert => cert_fault("--cert", &files.cert, error),
                    Which::Key => cert_fault("--key", &files.key, error),
                });
                faults.extend(found);
            }
        }
    }
    Certificates::new(pairs).map(Arc::new)
}

/// Named by the flag, which everybody knows, also where the settings file named the file.
fn cert_fault(flag: &str, file: &std::path::Path, error: &CertError) -> Fault {
    // The error is written as "problem; way out".
    let text = error.to_string();
    let (problem, way_out) = text.split_once("; ").unwrap_or((&text, "mend the file"));
    Fault::new(format!("{flag} {}", file.display()), problem, way_out)
}

fn snapshot(
    config: &Config,
    certificates: Option<Arc<Certificates>>,
    upstreams: &[Arc<Upstream>],
    tickets: &TicketKey,
) -> Result<Snapshot, ConfigError> {
    let upstreams: Arc<[Arc<Upstream>]> = upstreams.into();
    let mut listeners = Vec::new();
    for (at, listener) in config.listeners.iter().enumerate() {
        let id = ListenerId(at as u16);
        let rules = rules(config, id, listener, &upstreams);
        let tls = certificates
            .as_ref()
            .map(|certificates| terms(config, listener, &rules, certificates, tickets))
            .transpose()?;
        listeners.push(Offer {
            tls,
            rules: Arc::new(rules),
        });
    }
    Ok(Snapshot {
        listeners,
        certificates,
    })
}

fn rules(
    config: &Config,
    id: ListenerId,
    listener: &config::Listener,
    upstreams: &Arc<[Arc<Upstream>]>,
) -> Rules {
    let timeouts = &config.timeouts;
    Rules {
        id,
        name: listener.name.clone(),
        scheme: listener.scheme,
        first_byte: timeouts.first_byte,
        starttls: timeouts.starttls,
        handshake: timeouts.handshake,
        authentication: timeouts.authentication,
        routes: RouteTable::new(config, id),
        upstreams: Arc::clone(upstreams),
        dial: DialTerms {
            options: socket_options(&listener.back),
            timeout: timeouts.connect,
        },
        limits: Arc::new(Limits {
            read_max: config.buffers.buffer_size,
            large_records: large_records(config),
            idle: timeouts.idle,
            half_closed: timeouts.half_closed,
            stall: timeouts.stall,
            write: timeouts.write,
            abort_on_truncation: listener.on_truncation == OnTruncation::Abort,
        }),
        http: config.http,
        request: timeouts.request,
        request_body: timeouts.request_body,
        answer: timeouts.answer,
        upgrade: timeouts.upgrade,
        write: timeouts.write,
        keep_alive: timeouts.keep_alive,
        https_port: listener.https_port,
        trusted_proxies: listener.trusted_proxies.clone(),
        xmpp: config.xmpp.clone(),
        accept_proxy_protocol: listener.accept_proxy_protocol.clone(),
    }
}

fn terms(
    config: &Config,
    listener: &config::Listener,
    rules: &Rules,
    certificates: &Arc<Certificates>,
    tickets: &TicketKey,
) -> Result<Terms, ConfigError> {
    // Servers that come with a certificate are looked at by what is trusted of our own backends, too. Where nothing
    // is, none is verified.
    let ca = config.upstreams.get(usize::from(listener.upstream.0));
    let clients = rules.routes.terminates_servers().then(|| {
        let own = ca.iter().flat_map(|upstream| &upstream.ca);
        let own = own.filter_map(|file| load_trusted(file).ok()).flatten();
        BackTerms::new(own.collect()).ok()
    });
    let mut links = rules.upstreams.iter().map(|upstream| &upstream.link);
    let wishes = Wishes {
        tls12: config.tls.min == config::TlsVersion::V1_2,
        sni_strict: config.tls.sni_strict,
        alpn: &listener.alpn,
        clients: clients.flatten(),
        bindings: links.any(|link| link.tlvs.contains(&ProxyTlv::Binding)),
    };
    Terms::new(Arc::clone(certificates), wishes, tickets)
        .map_err(|e| Fault::new("tls", e.to_string(), "report this").into())
}

/// TLS records that a large buffer holds.
pub fn large_records(config: &Config) -> usize {
    (config.buffers.buffer_size / PLAIN_MAX).clamp(1, READY_MAX)
}

/// Socket settings in the words of `sys`.
pub fn socket_options(socket: &config::Socket) -> Options {
    let bytes = |buffer| match buffer {
        SocketBuffer::Auto => None,
        SocketBuffer::Bytes(bytes) => Some(bytes),
    };
    Options {
        recv_buffer: bytes(socket.recv_buffer),
        send_buffer: bytes(socket.send_buffer),
        notsent_lowat: bytes(socket.notsent_lowat),
        keepalive: socket.keepalive,
        user_timeout: socket.user_timeout,
    }
}

async fn upstream(upstream: &config::Upstream, faults: &mut Vec<Fault>) -> Upstream {
    let secure = upstream.backends.iter().any(|b| {
        matches!(
            b,
            config::Backend::Tls { .. } | config::Backend::Https { .. }
        )
    }) || upstream.starttls == BackStarttls::Speak;
    let terms = if secure {
        back_terms(upstream, faults)
    } else {
        None
    };
    let mut backends = Vec::new();
    for backend in &upstream.backends {
        let name = backend.to_string();
        let key = format!("upstream.{}.backend", upstream.name);
        let target = match backend {
            config::Backend::Unix(path) => Target::Unix(path.clone()),
            config::Backend::Tcp { host, port } | config::Backend::Http { host, port } => {
                let addrs = addresses(host, *port, &key, faults).await;
                Target::Tcp {
                    addrs: ArcSwap::from_pointee(addrs),
                    tls: None,
                }
            }
            config::Backend::Tls { host, port } | config::Backend::Https { host, port } => {
                let addrs = addresses(host, *port, &key, faults).await;
                let server = server_name(host);
                if let Err(problem) = &server {
                    faults.push(Fault::new(&key, problem, "write tls://HOST:PORT"));
                }
                let tls = terms.clone().zip(server.ok());
                Target::Tcp {
                    addrs: ArcSwap::from_pointee(addrs),
                    tls,
                }
            }
        };
        backends.push(Backend::new(name, target));
    }
    let link = Link {
        proxy: upstream.proxy_protocol,
        tlvs: upstream.proxy_tlvs.clone(),
        starttls: upstream.starttls,
        trust: terms,
        http2: upstream.http2,
        sticky: upstream.sticky,
    };
    Upstream::new(upstream.name.clone(), backends, link)
}

fn back_terms(upstream: &config::Upstream, faults: &mut Vec<Fault>) -> Option<BackTerms> {
    let mut fault = |problem: String, error: &TrustError| {
        let key = format!("upstream.{}.ca", upstream.name);
        let text = format!("{problem}{error}");
        let (problem, way_out) = text.split_once("; ").unwrap_or((&text, "mend the file"));
        faults.push(Fault::new(key, problem, way_out));
    };
    let mut own = Vec::new();
    for file in &upstream.ca {
        match load_trusted(file) {
            Ok(found) => own.extend(found),
            Err(error) => fault(format!("{} ", file.display()), &error),
        }
    }
    // `tls.min` is about clients; what a backend speaks is its own affair, from 1.2 on.
    BackTerms::new(own)
        .map_err(|error| fault(String::new(), &error))
        .ok()
}

async fn addresses(host: &str, port: u16, key: &str, faults: &mut Vec<Fault>) -> Vec<SocketAddr> {
    match resolve(host, port).await {
        Ok(addrs) => addrs,
        Err(problem) => {
            let way_out = "check the name, or write an IP address";
            faults.push(Fault::new(key, problem, way_out));
            Vec::new()
        }
    }
}

/// All addresses of a name, in the resolver's order.
///
/// # Errors
/// What the resolver says, or that there are none.
pub async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let found = lookup_host((host, port))
        .await
        .map_err(|e| format!("{host:?} does not resolve: {e}"))?;
    let addrs: Vec<SocketAddr> = found.collect();
    if addrs.is_empty() {
        Err(format!("{host:?} has no address"))
    } else {
        Ok(addrs)
    }
}

/// Remarks that are no faults: certificates that have expired or soon will.
pub fn remarks(snapshot: &Snapshot) -> Vec<String> {
    const SOON: i64 = 14 * 86_400;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs() as i64);
    let Some(certificates) = &snapshot.certificates else {
        return Vec::new();
    };
    let remark = |pair: &Pair| {
        let name = pair.names.first().map_or("(no DNS name)", String::as_str);
        let left = pair.not_after - now;
        if pair.not_before > now {
            Some(format!("the certificate of {name} is not valid yet"))
        } else if left <= 0 {
            Some(format!(
                "the certificate of {name} has expired; clients will refuse it"
            ))
        } else if left < SOON {
            Some(format!(
                "the certificate of {name} expires in {} days",
                left / 86_400
            ))
        } else {
            None
        }
    };
    certificates.pairs().iter().filter_map(remark).collect()
}
