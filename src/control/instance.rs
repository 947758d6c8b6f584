//! One running instance: what was started, and what can be done with it.

use std::cell::Cell;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::task::LocalSet;

use crate::config::{self, Config, ConfigError, Fault, ListenerId, MaxConnections, Scheme};
use crate::metrics::access::AccessLog;
use crate::metrics::cells::{AcceptCells, WorkerCells};
use crate::pool::{Bounds, BufferPool, PerRecord, Pooled};
use crate::sys::{files, socket};
use crate::tls::terms::TicketKey;
use crate::upstream::{Target, Upstream};
use crate::worker::listener::{Acceptor, Gate, Listener};
use crate::worker::snapshot::Snapshot;
use crate::worker::{self, Parts, WorkerHandle};

use super::admin::Readiness;
use super::telemetry::{Telemetry, open_access_log};
use super::{Load, StartError, build, granted, joined, probe, shared};

/// Descriptors kept for other things than connections: listeners, logs, the admin listener and its clients.
const FILES_RESERVED: u64 = 32;
/// The same for each worker's event loop.
const FILES_RESERVED_PER_WORKER: u64 = 4;
/// How often names of backends are resolved anew.
const RESOLVE_EVERY: Duration = Duration::from_secs(30);

/// A running instance.
pub(super) struct Instance {
    pub(super) config: Config,
    pub(super) telemetry: Telemetry,
    pub(super) access: Option<Arc<AccessLog>>,
    pub(super) pool: BufferPool,
    pub(super) gate: Arc<Gate>,
    pub(super) upstreams: Vec<Arc<Upstream>>,
    pub(super) snapshot: Arc<ArcSwap<Snapshot>>,
    /// One set for each worker.
    pub(super) cells: Vec<WorkerCells>,
    /// By `ListenerId`.
    pub(super) doors: Vec<Door>,
    pub(super) started: Instant,
    pub(super) started_at: SystemTime,
    pub(super) reloads: Cell<(u64, u64)>,
    readiness: Cell<Readiness>,
    tickets: TicketKey,
    workers: Arc<[WorkerHandle]>,
    threads: Cell<Vec<JoinHandle<usize>>>,
    acceptor: Cell<Option<JoinHandle<()>>>,
    stop_accepting: watch::Sender<bool>,
}

/// A listener, seen from here.
pub(super) struct Door {
    pub(super) cells: Arc<AcceptCells>,
    pub(super) active: Arc<AtomicUsize>,
}

impl Instance {
    /// Builds, binds, and starts the threads.
    pub(super) async fn start(config: Config, telemetry: Telemetry) -> Result<Self, StartError> {
        let tickets = TicketKey::random().map_err(|e| {
            ConfigError::from(Fault::new(
                "tls",
                e.to_string(),
                "give the system a source of randomness",
            ))
        })?;
        let (snapshot, upstreams) = build::build(&config, &tickets).await?;
        for remark in build::remarks(&snapshot) {
            tracing::warn!("{remark}");
        }
        let access = open_access_log(&config.log).map_err(StartError::system("--access-log"))?;
        let access = access.map(Arc::new);
        let most = max_connections(&config);
        if let MaxConnections::Count(wanted) = config.limits.max_connections
            && most < wanted as usize
        {
            tracing::warn!(
                wanted,
                most,
                open_files = files::limit(),
                "--max-connections is more than the limit on open files allows; raise that limit"
            );
        }
        let gate = Arc::new(Gate::new(most, config.limits.max_connections_per_ip));
        let listeners = bind(&config)?;
        let bounds = Bounds {
            limit: config.buffers.pool_size,
            large_records: build::large_records(&config),
        };
        let pool = if config.buffers.pooled {
            BufferPool::new(bounds, Pooled::default())
        } else {
            BufferPool::new(bounds, PerRecord)
        };
        let mut cells = Vec::new();
        let mut workers = Vec::new();
        let mut threads = Vec::new();
        for index in 0..config.workers {
            let backends = upstreams.iter().map(|upstream| upstream.backends.len());
            let domains = snapshot.listeners.iter();
            let domains = domains.map(|offer| offer.rules.routes.domains().len());
            let own = WorkerCells::new(domains, backends);
            cells.push(own.clone());
            let (pool, access) = (pool.clone(), access.clone());
            let (handle, thread) = worker::spawn(Parts {
                index,
                pool,
                cells: own,
                access,
            })
            .map_err(StartError::system("worker thread"))?;
            workers.push(handle);
            threads.push(thread);
        }
        let snapshot = Arc::new(ArcSwap::from_pointee(snapshot));
        let workers = shared(workers);
        let doors = listeners
            .iter()
            .map(|(l, _)| Door {
                cells: Arc::clone(&l.cells),
                active: Arc::clone(&l.active),
            })
            .collect();
        let (stop_accepting, stopped) = watch::channel(false);
        let acceptor = Acceptor {
            gate: Arc::clone(&gate),
            workers: Arc::clone(&workers),
            snapshot: Arc::clone(&snapshot),
            ids: Arc::new(AtomicU64::new(1)),
        };
        let acceptor = accept(acceptor, listeners, stopped)?;
        Ok(Self {
            config,
            telemetry,
            access,
            pool,
            gate,
            upstreams,
            snapshot,
            cells,
            doors,
            started: Instant::now(),
            started_at: SystemTime::now(),
            reloads: Cell::new((0, 0)),
            readiness: Cell::new(Readiness::Starting),
            tickets,
            workers,
            threads: Cell::new(threads),
            acceptor: Cell::new(Some(acceptor)),
            stop_accepting,
        })
    }

    pub(super) fn state(&self) -> Readiness {
        self.readiness.get()
    }

    pub(super) fn set_readiness(&self, readiness: Readiness) {
        self.readiness.set(readiness);
    }

    /// Connections now.
    pub(super) fn connections(&self) -> usize {
        self.gate.total()
    }

    /// Says what runs, once.
    pub(super) fn greet(&self) {
        let config = &self.config;
        for listener in &config.listeners {
            let upstream = config.upstreams.get(usize::from(listener.upstream.0));
            let upstream = upstream.filter(|_| listener.scheme != Scheme::Http);
            tracing::info!(
                listener = %listener.name,
                address = %format_args!("{}://{}", listener.scheme, listener.addr),
                upstream = upstream.map(|upstream| upstream.name.as_str()),
                "listening"
            );
        }
        self.tell_socket_buffers();
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            workers = config.workers,
            buffer_pool = config.buffers.pooled,
            pool_mib = config.buffers.pool_size >> 20,
            max_connections = max_connections(config),
            "ready"
        );
    }

    /// What the kernel gives, once for all listeners with the same.
    fn tell_socket_buffers(&self) {
        let mut told = Vec::new();
        for listener in &self.config.listeners {
            // Who cannot be asked now was asked at the bind.
            for side in granted::sides(listener).into_iter().flatten() {
                let text = side.text();
                if told.contains(&(side.name, text.clone())) {
                    continue;
                }
                tracing::info!(listener = %listener.name, side = side.name, "socket buffers: {text}");
                for warning in side.warnings() {
                    tracing::warn!(listener = %listener.name, "{warning}");
                }
                told.push((side.name, text));
            }
        }
    }

    /// Reads settings and certificates anew. New connections get what can be changed in place; live ones
    /// notice nothing. A fault keeps everything as it is, and says why.
    pub(super) fn reload(&self, load: Load<'_>) {
        if let Some(access) = &self.access
            && let Err(error) = access.reopen()
        {
            tracing::error!(%error, "access log not reopened; lines go on to the old file");
        }
        let (good, bad) = self.reloads.get();
        let built = load().and_then(|config| {
            self.refuse_unchangeable(&config);
            let kept = self.keep_unchangeable(config);
            build::rebuild(&kept, &self.upstreams, &self.tickets)
        });
        match built {
            Ok(snapshot) => {
                for remark in build::remarks(&snapshot) {
                    tracing::warn!("{remark}");
                }
                let certificates = snapshot.certificates.as_ref();
                let certificates = certificates.map_or(0, |all| all.pairs().len());
                self.snapshot.store(Arc::new(snapshot));
                self.reloads.set((good + 1, bad));
                tracing::info!(certificates, "reloaded");
            }
            Err(error) => {
                self.reloads.set((good, bad + 1));
                for fault in &error.0 {
                    tracing::error!("not reloaded, the old settings stay in force: {fault}");
                }
            }
        }
    }

    /// Says which changes need a restart.
    fn refuse_unchangeable(&self, new: &Config) {
        let old = &self.config;
        let key = |l: &config::Listener| {
            let place = (l.name.clone(), l.addr, l.scheme, l.front);
            (place, l.upstream, l.tls, l.domains.clone(), l.https_port)
        };
        let listeners = |c: &Config| c.listeners.iter().map(key).collect::<Vec<_>>();
        let changed = [
            ("listeners", listeners(old) != listeners(new)),
            ("upstreams", old.upstreams != new.upstreams),
            ("routes", old.routes != new.routes),
            ("workers", old.workers != new.workers),
            ("buffers", old.buffers != new.buffers),
            ("limits", old.limits != new.limits),
            ("admin", old.admin != new.admin),
            ("log", old.log != new.log),
        ];
        for (what, changed) in changed {
            if changed {
                tracing::warn!("changes of {what} take effect at a restart");
            }
        }
    }

    /// The new settings with those of the old that a running instance cannot change.
    fn keep_unchangeable(&self, new: Config) -> Config {
        let old = &self.config;
        let mut kept = Config {
            certificates: new.certificates,
            tls: new.tls,
            xmpp: new.xmpp,
            http: new.http,
            timeouts: config::Timeouts {
                drain: old.timeouts.drain,
                ..new.timeouts
            },
            ..old.clone()
        };
        for listener in &mut kept.listeners {
            if let Some(new) = new.listeners.iter().find(|l| l.name == listener.name) {
                listener.alpn.clone_from(&new.alpn);
                listener.back = new.back;
                listener.on_truncation = new.on_truncation;
                listener
                    .accept_proxy_protocol
                    .clone_from(&new.accept_proxy_protocol);
                listener.trusted_proxies.clone_from(&new.trusted_proxies);
            }
        }
        kept
    }

    /// Stops accepting and waits for the sessions, at most as long as the settings say. Returns how many were cut off.
    pub(super) async fn drain(&self) -> usize {
        // Fails only if the acceptor is gone, which is what is wanted.
        let _ = self.stop_accepting.send(true);
        // The acceptor first: what it has handed over is served, and nothing comes after the drain's order.
        if let Some(acceptor) = self.acceptor.take() {
            joined(acceptor).await;
        }
        for worker in self.workers.iter() {
            worker.drain(self.config.timeouts.drain);
        }
        let mut cut = 0;
        for thread in self.threads.take() {
            cut += joined(thread).await.unwrap_or(0);
        }
        cut
    }

    /// Asks XMPP backends what they offer, and says what is odd about it.
    pub(super) async fn probe(&self) {
        let snapshot = self.snapshot.load_full();
        let pairs = snapshot.certificates.as_ref().map(|all| all.pairs());
        let names = pairs
            .into_iter()
            .flatten()
            .flat_map(|pair| pair.names.clone());
        let names: Vec<String> = names.collect();
        probe::probe(&self.config, &names, &self.upstreams, &self.pool).await;
    }

    /// Never ends: keeps the addresses of backends true. A name that fails to resolve keeps its last good ones.
    pub(super) async fn keep_resolving(&self) {
        loop {
            tokio::time::sleep(RESOLVE_EVERY).await;
            for (upstream, settings) in self.upstreams.iter().zip(&self.config.upstreams) {
                for (backend, settings) in upstream.backends.iter().zip(&settings.backends) {
                    let Target::Tcp { addrs, .. } = &backend.target else {
                        continue;
                    };
                    let (config::Backend::Tcp { host, port }
                    | config::Backend::Tls { host, port }
                    | config::Backend::Http { host, port }
                    | config::Backend::Https { host, port }) = settings
                    else {
                        continue;
                    };
                    if host.parse::<std::net::IpAddr>().is_ok() {
                        continue;
                    }
                    match build::resolve(host, *port).await {
                        Ok(found) if **addrs.load() != found => {
                            tracing::info!(
                                upstream = %upstream.name, backend = %backend.name, ?found,
                                "backend has other addresses now"
                            );
                            addrs.store(Arc::new(found));
                        }
                        Ok(_) => {}
                        Err(error) => tracing::warn!(
                            upstream = %upstream.name, backend = %backend.name, %error,
                            "the backend's last good addresses stay in use"
                        ),
                    }
                }
            }
        }
    }
}

/// Most connections at once: as many as files may be open for, two each, or fewer if so told.
pub(super) fn max_connections(config: &Config) -> usize {
    let reserved = FILES_RESERVED + FILES_RESERVED_PER_WORKER * config.workers as u64;
    let files = files::limit().saturating_sub(reserved) / 2;
    let most = usize::try_from(files).unwrap_or(usize::MAX).max(1);
    match config.limits.max_connections {
        MaxConnections::Count(count) => most.min(count as usize),
        MaxConnections::FromFdLimit => most,
    }
}

/// Binds all listeners, or none.
pub(super) fn bind(config: &Config) -> Result<Vec<(Listener, TcpListener)>, StartError> {
    let mut faults = Vec::new();
    let mut listeners = Vec::new();
    for (at, listener) in config.listeners.iter().enumerate() {
        let options = build::socket_options(&listener.front);
        match socket::listen(listener.addr, &options, config.limits.backlog) {
            Ok(socket) => {
                let listener = Listener {
                    id: ListenerId(at as u16),
                    name: listener.name.clone(),
                    cells: Arc::default(),
                    active: Arc::default(),
                };
                listeners.push((listener, socket));
            }
            Err(error) => {
                let way_out = match error.kind() {
                    std::io::ErrorKind::AddrInUse => {
                        "stop the program that has it (ss -ltnp shows which), or choose another port"
                    }
                    std::io::ErrorKind::PermissionDenied => {
                        "choose a port from 1024 on, or grant CAP_NET_BIND_SERVICE"
                    }
                    _ => "choose an address of this machine",
                };
                let key = format!("listener.{}.listen", listener.name);
                let what = format!("{}://{}: {error}", listener.scheme, listener.addr);
                faults.push(Fault::new(key, what, way_out));
            }
        }
    }
    if faults.is_empty() {
        Ok(listeners)
    } else {
        Err(ConfigError(faults).into())
    }
}

/// Starts the acceptor's thread.
fn accept(
    acceptor: Acceptor,
    listeners: Vec<(Listener, TcpListener)>,
    stopped: watch::Receiver<bool>,
) -> Result<JoinHandle<()>, StartError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(StartError::system("event loop"))?;
    let thread = std::thread::Builder::new().name("accept".to_owned());
    let body = move || {
        let local = LocalSet::new();
        for (listener, socket) in listeners {
            local.spawn_local(acceptor.clone().serve(listener, socket, stopped.clone()));
        }
        drop((acceptor, stopped));
        runtime.block_on(local);
    };
    thread
        .spawn(body)
        .map_err(StartError::system("acceptor thread"))
}

/// What a listener has accepted.
impl Door {
    pub(super) fn connections(&self) -> usize {
        self.active.load(Relaxed)
    }
}
