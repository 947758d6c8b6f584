//! The one acceptor: takes connections from all listeners, refuses what is over a limit, and hands each one to
//! the worker with the fewest.
//!
//! Chat connections live for hours, so balance must be exact from the start: a kernel that spreads by hash
//! (SO_REUSEPORT) leaves one worker with a third more than another for a day. One listening socket per
//! address also survives reloads without losing what is queued.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::Instant;

use crate::config::ListenerId;
use crate::metrics::cells::AcceptCells;
use crate::sys;

use super::WorkerHandle;
use super::session::Accepted;
use super::snapshot::Snapshot;

/// Most connections taken from one listener before the others have their turn.
const BATCH: usize = 64;
/// How long the acceptor rests when the system has no descriptors or memory for a connection, at first and at most.
const REST: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The limits on connections, shared by acceptor and sessions.
#[derive(Debug)]
pub struct Gate {
    max: usize,
    per_ip: Option<PerIp>,
    total: AtomicUsize,
}

/// Touched when a connection comes and goes, never in between, and only where the limit is set.
#[derive(Debug)]
struct PerIp {
    max: u32,
    counts: Mutex<HashMap<IpAddr, u32>>,
}

impl Gate {
    /// At most `max` connections, and `per_ip` from one IPv4 address or IPv6 /64.
    pub fn new(max: usize, per_ip: Option<u32>) -> Self {
        let per_ip = per_ip.map(|max| PerIp {
            max,
            counts: Mutex::default(),
        });
        Self {
            max,
            per_ip,
            total: AtomicUsize::new(0),
        }
    }

    /// Connections now.
    pub fn total(&self) -> usize {
        self.total.load(Relaxed)
    }

    /// A place for a client, or the reason why there is none. Without an address yet, it is asked for again.
    fn admit(
        self: &Arc<Self>,
        client: Option<IpAddr>,
        listener: Arc<AtomicUsize>,
        worker: Arc<AtomicUsize>,
    ) -> Result<Admission, &'static str> {
        if self.total() >= self.max {
            return Err("max_connections");
        }
        let site = client
            .map(|client| self.count(client))
            .transpose()?
            .flatten();
        self.total.fetch_add(1, Relaxed);
        listener.fetch_add(1, Relaxed);
        worker.fetch_add(1, Relaxed);
        Ok(Admission {
            gate: Arc::clone(self),
            site,
            listener,
            worker,
        })
    }
}

impl Gate {
    /// Counts a client's address, if there is a limit on that.
    fn count(&self, client: IpAddr) -> Result<Option<IpAddr>, &'static str> {
        let Some(per_ip) = &self.per_ip else {
            return Ok(None);
        };
        let site = site(client);
        let mut counts = per_ip.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(site).or_insert(0);
        if *count >= per_ip.max {
            return Err("max_connections_per_ip");
        }
        *count += 1;
        Ok(Some(site))
    }
}

/// Who counts as one client: an IPv4 address, or what one household has of IPv6.
fn site(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(v6) => {
            let mut bytes = v6.octets();
            bytes[8..].fill(0);
            IpAddr::from(bytes)
        }
        v4 => v4,
    }
}

/// One connection's place under the limits, given up on drop.
#[derive(Debug)]
pub struct Admission {
    gate: Arc<Gate>,
    /// What it counts for, where addresses are counted.
    site: Option<IpAddr>,
    listener: Arc<AtomicUsize>,
    worker: Arc<AtomicUsize>,
}

impl Admission {
    /// The client's address has become known: it counts from now on.
    ///
    /// # Errors
    /// It has too many connections.
    pub fn attribute(&mut self, client: IpAddr) -> Result<(), &'static str> {
        if self.site.is_none() {
            self.site = self.gate.count(client)?;
        }
        Ok(())
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.gate.total.fetch_sub(1, Relaxed);
        self.listener.fetch_sub(1, Relaxed);
        self.worker.fetch_sub(1, Relaxed);
        if let (Some(per_ip), Some(site)) = (&self.gate.per_ip, &self.site) {
            let mut counts = per_ip.counts.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(count) = counts.get_mut(site) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(site);
                }
            }
        }
    }
}

/// One listener as the acceptor sees it.
#[derive(Debug)]
pub struct Listener {
    /// Which.
    pub id: ListenerId,
    /// Its name.
    pub name: String,
    /// The acceptor's counters for it.
    pub cells: Arc<AcceptCells>,
    /// Its connections now.
    pub active: Arc<AtomicUsize>,
}

/// What the acceptor needs to serve all listeners.
#[derive(Clone)]
pub struct Acceptor {
    /// The limits.
    pub gate: Arc<Gate>,
    /// Whom to hand connections to; at least one.
    pub workers: Arc<[WorkerHandle]>,
    /// The present settings.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// Numbers the connections.
    pub ids: Arc<AtomicU64>,
}

impl Acceptor {
    /// Accepts until `drain` turns true; then the listening socket is closed.
    pub async fn serve(
        self,
        listener: Listener,
        socket: TcpListener,
        mut drain: watch::Receiver<bool>,
    ) {
        tokio::select! {
            _ = drain.wait_for(|drain| *drain) => {}
            error = self.accept_all(&listener, socket) => {
                tracing::error!(listener = %listener.name, %error, "listener failed and accepts no more");
            }
        }
    }

    /// Ends only with an error of the event loop.
    async fn accept_all(&self, listener: &Listener, socket: TcpListener) -> io::Error {
        // Unlike tokio's own listener, this does not put accepted sockets into this thread's event loop first.
        #[expect(
            deprecated,
            reason = "its successor is unsafe for types whose descriptor may change; a TcpListener's cannot"
        )]
        let socket = match AsyncFd::with_interest(socket, Interest::READABLE) {
            Ok(socket) => socket,
            Err(error) => return error,
        };
        let mut rest = REST.0;
        loop {
            let mut ready = match socket.readable().await {
                Ok(ready) => ready,
                Err(error) => return error,
            };
            for _ in 0..BATCH {
                match sys::socket::accept(socket.get_ref()) {
                    Ok((fd, client)) => {
                        rest = REST.0;
                        self.take(listener, fd, client);
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        ready.clear_ready();
                        break;
                    }
                    Err(error) => {
                        let reason = reason(&error);
                        listener.cells.errors.count(reason);
                        if reason == "aborted" {
                            continue; // the client left the queue; the next may be fine
                        }
                        tracing::warn!(
                            listener = %listener.name, %error, rest_ms = rest.as_millis() as u64,
                            "cannot accept; raise the limit on open files or lower --max-connections"
                        );
                        tokio::time::sleep(rest).await;
                        rest = (rest * 2).min(REST.1);
                        break;
                    }
                }
            }
            drop(ready);
            yield_now().await;
        }
    }

    /// Admits a connection and hands it on, or closes it.
    fn take(&self, listener: &Listener, fd: OwnedFd, client: Option<SocketAddr>) {
        listener.cells.accepted.add(1);
        let refuse = |reason: &'static str, fd: OwnedFd| {
            listener.cells.refused.count(reason);
            tracing::debug!(listener = %listener.name, ?client, reason, "refused");
            sys::socket::reset_on_close(&fd);
        };
        let Some(addr) = client else {
            return refuse("no_address", fd);
        };
        let snapshot = self.snapshot.load();
        let fewest = self
            .workers
            .iter()
            .min_by_key(|worker| worker.connections.load(Relaxed));
        let (Some(offer), Some(worker)) = (snapshot.listener(listener.id), fewest) else {
            return refuse("no_worker", fd);
        };
        let (active, load) = (
            Arc::clone(&listener.active),
            Arc::clone(&worker.connections),
        );
        // A balancer in front is no client; its clients are counted once it has told their addresses.
        let site = (!offer.rules.trusts(addr.ip())).then(|| addr.ip());
        let admission = match self.gate.admit(site, active, load) {
            Ok(admission) => admission,
            Err(reason) => {
                if let Some(words) = offer.rules.no_room() {
                    listener.cells.refused.count(reason);
                    tracing::debug!(listener = %listener.name, ?client, reason, "refused");
                    return sys::socket::say(&fd, words.as_bytes());
                }
                return refuse(reason, fd);
            }
        };
        let accepted = Accepted {
            fd,
            id: self.ids.fetch_add(1, Relaxed),
            client: addr,
            tls: offer.tls.clone(),
            rules: Arc::clone(&offer.rules),
            admission,
            at: Instant::now(),
        };
        // Fails only if the worker is gone; the connection is then closed, and counted by nobody else.
        if worker.serve(accepted).is_err() {
            listener.cells.refused.count("no_worker");
        }
    }
}

fn reason(error: &io::Error) -> &'static str {
    use rustix::io::Errno;
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE) => "process_files",
        Some(Errno::NFILE) => "system_files",
        Some(Errno::NOBUFS | Errno::NOMEM) => "memory",
        Some(Errno::CONNABORTED | Errno::PROTO | Errno::PERM | Errno::INTR) => "aborted",
        _ => "other",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_per_household_and_given_back() {
        let gate = Arc::new(Gate::new(3, Some(1)));
        let count = || Arc::new(AtomicUsize::new(0));
        let admit = |ip: &str| gate.admit(Some(ip.parse().unwrap()), count(), count());
        let first = admit("2001:db8::1").unwrap();
        assert_eq!(
            admit("2001:db8::ffff").unwrap_err(),
            "max_connections_per_ip"
        );
        let _second = admit("192.0.2.1").unwrap();
        assert_eq!(
            admit("::ffff:192.0.2.1").unwrap_err(),
            "max_connections_per_ip"
        );
        let _third = admit("192.0.2.2").unwrap();
        assert_eq!(admit("192.0.2.3").unwrap_err(), "max_connections");
        drop(first);
        assert!(admit("2001:db8::2").is_ok());
        assert_eq!(gate.total(), 2);
    }
}
