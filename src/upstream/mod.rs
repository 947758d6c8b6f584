//! Named sets of backends, connecting to them, and what they are told first.

pub mod dial;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use rustls_pki_types::ServerName;

use crate::config::{BackStarttls, ProxyProtocol, ProxyTlv, Sticky};
use crate::tls::terms::BackTerms;
use crate::wire::proxy;

/// How long a backend that could not be connected to is tried last.
const SHUN: Duration = Duration::from_secs(5);

/// A named set of backends.
#[derive(Debug)]
pub struct Upstream {
    /// Its name in the settings; a metric label.
    pub name: String,
    /// At least one.
    pub backends: Vec<Backend>,
    /// How they are spoken to.
    pub link: Link,
    /// Where the next choice among equals starts.
    turn: AtomicUsize,
    epoch: Instant,
}

/// How the backends of an upstream are spoken to.
#[derive(Clone, Debug)]
pub struct Link {
    /// The PROXY header that they are sent first.
    pub proxy: ProxyProtocol,
    /// What a version 2 header tells beside addresses.
    pub tlvs: Vec<ProxyTlv>,
    /// What is done with an offer of STARTTLS from an XMPP backend.
    pub starttls: BackStarttls,
    /// For speaking STARTTLS: what we accept of them.
    pub trust: Option<BackTerms>,
    /// Whether they are spoken to by HTTP/2.
    pub http2: bool,
    /// Which of them a client is sent to.
    pub sticky: Sticky,
}

/// Which backend a client should be sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The one with the fewest connections.
    Any,
    /// Always the same for the same key, as long as it can be connected to.
    Key(u64),
    /// The one whose [`Backend::mark`] this is, else as with a key.
    Mark(u64),
}

impl Default for Link {
    fn default() -> Self {
        Self {
            proxy: ProxyProtocol::Off,
            tlvs: Vec::new(),
            starttls: BackStarttls::Strip,
            trust: None,
            http2: false,
            sticky: Sticky::Off,
        }
    }
}

impl Link {
    /// The PROXY header for one connection; empty where none is wanted. Never LOCAL or UNKNOWN, which XMPP
    /// servers take badly.
    pub fn proxy_header(&self, facts: &proxy::Facts<'_>) -> Vec<u8> {
        let mut header = Vec::new();
        match self.proxy {
            ProxyProtocol::Off => {}
            ProxyProtocol::V1 => proxy::write_v1(&facts.origin, &mut header),
            ProxyProtocol::V2 => {
                let tells = |tlv| self.tlvs.contains(&tlv);
                let told = proxy::Facts {
                    origin: facts.origin,
                    alpn: facts.alpn.filter(|_| tells(ProxyTlv::Alpn)),
                    authority: facts.authority.filter(|_| tells(ProxyTlv::Authority)),
                    unique_id: facts.unique_id.filter(|_| tells(ProxyTlv::UniqueId)),
                    ssl: facts.ssl.filter(|_| tells(ProxyTlv::Ssl)),
                    exporter: facts.exporter.filter(|_| tells(ProxyTlv::Binding)),
                    end_point: facts.end_point.filter(|_| tells(ProxyTlv::Binding)),
                    crc32c: tells(ProxyTlv::Crc32c),
                };
                proxy::write_v2(&told, &mut header);
            }
        }
        header
    }
}

/// One server address.
#[derive(Debug)]
pub struct Backend {
    /// As written in the settings; a metric label.
    pub name: String,
    /// How it is reached.
    pub target: Target,
    /// Connections that it has from us now.
    active: AtomicUsize,
    /// Milliseconds of the upstream's clock until which it is tried last.
    shunned_until_ms: AtomicU64,
    /// What is odd about it has been told.
    told: AtomicBool,
}

/// How a backend is reached.
pub enum Target {
    /// TCP, plain or with TLS on it.
    Tcp {
        /// Present addresses, in the order in which they are tried. Replaced when its name resolves anew.
        addrs: ArcSwap<Vec<SocketAddr>>,
        /// With it, TLS.
        tls: Option<(BackTerms, ServerName<'static>)>,
    },
    /// A Unix stream socket.
    Unix(PathBuf),
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp { addrs, tls } => f
                .debug_struct("Tcp")
                .field("addrs", &addrs.load())
                .field("tls", &tls.is_some())
                .finish(),
            Self::Unix(path) => f.debug_tuple("Unix").field(path).finish(),
        }
    }
}

impl Backend {
    /// A backend that has not been tried yet.
    pub fn new(name: String, target: Target) -> Self {
        Self {
            name,
            target,
            active: AtomicUsize::new(0),
            shunned_until_ms: AtomicU64::new(0),
            told: AtomicBool::new(false),
        }
    }

    /// True the first time: what is odd about a backend is told once.
    pub fn first_time(&self) -> bool {
        !self.told.swap(true, Relaxed)
    }

    /// A number that names it, the same in every instance with the same settings.
    pub fn mark(&self) -> u64 {
        hash(&self.name)
    }

    /// Connections that it has from us now.
    pub fn active(&self) -> usize {
        self.active.load(Relaxed)
    }
}

impl Upstream {
    /// A set of backends, at least one.
    pub fn new(name: String, backends: Vec<Backend>, link: Link) -> Self {
        Self {
            name,
            backends,
            link,
            turn: AtomicUsize::new(0),
            epoch: Instant::now(),
        }
    }

    /// A number that names it, the same in every instance with the same settings.
    pub fn mark(&self) -> u64 {
        hash(&self.name)
    }

    /// The backend to try next: of those not `tried`, first those not shunned, then the one with the fewest
    /// connections, among equals the next in turn. It counts as connected until the [`Pick`] is dropped.
    fn pick(self: &Arc<Self>, tried: u64, wanted: Wanted) -> Option<Pick> {
        let now = self.now_ms();
        let count = self.backends.len();
        let start = match wanted {
            Wanted::Any if count > 1 => self.turn.fetch_add(1, Relaxed),
            _ => 0,
        };
        let best = (0..count)
            .map(|step| (start + step) % count)
            .filter(|at| *at >= 64 || tried & (1 << at) == 0)
            .min_by_key(|at| {
                let backend = &self.backends[*at];
                let rank = match wanted {
                    Wanted::Any => backend.active() as u64,
                    // Rendezvous hashing: when one is gone, only its clients go elsewhere.
                    Wanted::Key(key) => hash((key, &backend.name)),
                    Wanted::Mark(mark) if mark == backend.mark() => 0,
                    Wanted::Mark(mark) => hash((mark, &backend.name)).max(1),
                };
                (backend.shunned_until_ms.load(Relaxed) > now, rank)
            })?;
        self.backends[best].active.fetch_add(1, Relaxed);
        Some(Pick {
            upstream: Arc::clone(self),
            at: best,
        })
    }

    fn now_ms(&self) -> u64 {
        self.epoch.elapsed().as_millis() as u64
    }
}

/// The same in every process of this build.
fn hash(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// A client's address as a key, whatever port it comes from.
pub fn key_of(client: IpAddr) -> u64 {
    hash(client.to_canonical())
}

/// One backend chosen, counted as connected until dropped.
#[derive(Debug)]
pub struct Pick {
    upstream: Arc<Upstream>,
    at: usize,
}

impl Pick {
    /// Which.
    pub fn backend(&self) -> &Backend {
        &self.upstream.backends[self.at]
    }

    /// Its index in the upstream.
    pub fn index(&self) -> usize {
        self.at
    }

    /// It is tried last for a while.
    pub fn shun(&self) {
        let until = self.upstream.now_ms() + SHUN.as_millis() as u64;
        self.backend().shunned_until_ms.store(until, Relaxed);
    }

    fn welcome(&self) {
        self.backend().shunned_until_ms.store(0, Relaxed);
    }
}

impl Drop for Pick {
    fn drop(&mut self) {
        self.backend().active.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn upstream(count: usize) -> Arc<Upstream> {
        let backend = |at| Backend::new(format!("b{at}"), Target::Unix(PathBuf::from("/nowhere")));
        Arc::new(Upstream::new(
            "u".to_owned(),
            (0..count).map(backend).collect(),
            Link::default(),
        ))
    }

    #[test]
    fn equals_are_taken_in_turn_and_the_emptiest_first() {
        let upstream = upstream(3);
        let picks: Vec<_> = (0..6)
            .filter_map(|_| upstream.pick(0, Wanted::Any))
            .collect();
        let active = || {
            upstream
                .backends
                .iter()
                .map(Backend::active)
                .collect::<Vec<_>>()
        };
        assert_eq!(active(), [2, 2, 2]);
        let mut picks = picks;
        picks.retain(|pick| pick.index() != 1);
        assert_eq!(active(), [2, 0, 2]);
        assert_eq!(
            upstream.pick(0, Wanted::Any).map(|pick| pick.index()),
            Some(1)
        );
    }

    #[test]
    fn a_shunned_backend_is_tried_last_and_none_twice() {
        let upstream = upstream(2);
        let first = upstream.pick(0, Wanted::Any).map(|pick| {
            pick.shun();
            pick.index()
        });
        let second = upstream.pick(0, Wanted::Any).map(|pick| pick.index());
        assert_ne!(first, second);
        let again = upstream
            .pick(1 << second.unwrap_or(0), Wanted::Any)
            .map(|pick| pick.index());
        assert_eq!(again, first, "shunned, but the only one left");
        assert!(upstream.pick(3, Wanted::Any).is_none());
    }

    #[test]
    fn a_client_keeps_its_backend_until_that_is_gone() {
        let upstream = upstream(5);
        let at = |tried, wanted| upstream.pick(tried, wanted).map(|pick| pick.index());
        let mut used = [0; 5];
        for key in 0..1000 {
            let first = at(0, Wanted::Key(key)).unwrap();
            used[first] += 1;
            assert_eq!(at(0, Wanted::Key(key)), Some(first));
            let other = (first + 1) % 5;
            assert_eq!(at(1 << other, Wanted::Key(key)), Some(first));
            assert_ne!(at(1 << first, Wanted::Key(key)), Some(first));
        }
        assert!(
            used.iter().all(|count| (100..300).contains(count)),
            "{used:?}"
        );
        for (index, backend) in upstream.backends.iter().enumerate() {
            assert_eq!(at(0, Wanted::Mark(backend.mark())), Some(index));
        }
        assert!(at(0, Wanted::Mark(7)).is_some());
    }
}
