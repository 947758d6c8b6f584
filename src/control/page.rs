//! What the admin listener shows: the cells of all threads, summed.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use crate::config::Scheme;
use crate::metrics::cells::{ListenerCells, Words, WorkerCells};
use crate::metrics::names as n;
use crate::metrics::render::Exposition;
use crate::sys::files;

use super::admin::{AdminSource, ListenerStatus, Readiness, Status};
use super::instance::Instance;

impl AdminSource for Instance {
    fn metrics(&self) -> String {
        let mut page = Exposition::new();
        self.process(&mut page);
        for (at, listener) in self.config.listeners.iter().enumerate() {
            self.listener(&mut page, at, &listener.name);
        }
        self.certificates(&mut page);
        self.backends(&mut page);
        self.pool(&mut page);
        let (good, bad) = self.reloads.get();
        page.family(&n::RELOADS_TOTAL)
            .sample(&[("outcome", "ok")], good)
            .sample(&[("outcome", "failed")], bad);
        let lost = self.telemetry.lines_dropped();
        let lost = lost + self.access.as_ref().map_or(0, |access| access.dropped());
        page.family(&n::LOG_LINES_DROPPED_TOTAL).sample(&[], lost);
        page.family(&n::LOG_LINES_SUPPRESSED_TOTAL)
            .sample(&[], self.telemetry.lines_suppressed());
        page.finish()
    }

    fn status(&self) -> Status {
        let listeners = self.config.listeners.iter().zip(&self.doors);
        let upstream = |at: u16| self.config.upstreams.get(usize::from(at));
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime: self.started.elapsed(),
            readiness: self.state(),
            listeners: listeners
                .map(|(listener, door)| ListenerStatus {
                    name: listener.name.clone(),
                    address: format!("{}://{}", listener.scheme, listener.addr),
                    upstream: upstream(listener.upstream.0)
                        .map_or_else(String::new, |u| u.name.clone()),
                    connections: door.connections() as u64,
                    accepted: door.cells.accepted.get(),
                })
                .collect(),
        }
    }

    fn readiness(&self) -> Readiness {
        self.state()
    }
}

impl Instance {
    fn process(&self, page: &mut Exposition) {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        page.family(&n::BUILD_INFO).sample(&version, 1_u64);
        let started = self
            .started_at
            .duration_since(UNIX_EPOCH)
            .unwrap_or(Duration::ZERO);
        page.family(&n::START_TIME_SECONDS)
            .sample(&[], started.as_secs_f64());
        page.family(&n::READY)
            .sample(&[], self.state() == Readiness::Ready);
        page.family(&n::WORKERS).sample(&[], self.config.workers);
        page.family(&n::OPEN_FILES).sample(&[], files::open());
        page.family(&n::MAX_OPEN_FILES).sample(&[], files::limit());
    }

    fn listener(&self, page: &mut Exposition, at: usize, name: &str) {
        let label = ("listener", name);
        let Some(door) = self.doors.get(at) else {
            return;
        };
        page.family(&n::CONNECTIONS_TOTAL)
            .sample(&[label], door.cells.accepted.get());
        page.family(&n::CONNECTIONS)
            .sample(&[label], door.connections());
        for (reason, count) in door.cells.refused.iter() {
            page.family(&n::REFUSED_TOTAL)
                .sample(&[label, ("reason", reason)], count);
        }
        for (reason, count) in door.cells.errors.iter() {
            page.family(&n::ACCEPT_ERRORS_TOTAL)
                .sample(&[label, ("reason", reason)], count);
        }
        let cells: Vec<&ListenerCells> = self
            .cells
            .iter()
            .filter_map(|cells| cells.listeners.get(at))
            .map(AsRef::as_ref)
            .collect();
        let sum = |count: fn(&ListenerCells) -> u64| cells.iter().map(|c| count(c)).sum::<u64>();
        for (version, kind, count) in [
            ("1.2", "full", sum(|c| c.tls12_full.get())),
            ("1.2", "resumed", sum(|c| c.tls12_resumed.get())),
            ("1.3", "full", sum(|c| c.tls13_full.get())),
            ("1.3", "resumed", sum(|c| c.tls13_resumed.get())),
        ] {
            let labels = [label, ("version", version), ("kind", kind)];
            page.family(&n::HANDSHAKES_TOTAL).sample(&labels, count);
        }
        for (reason, count) in summed(cells.iter().map(|c| &c.handshake_failures)) {
            page.family(&n::HANDSHAKE_FAILURES_TOTAL)
                .sample(&[label, ("reason", reason)], count);
        }
        for (reason, count) in summed(cells.iter().map(|c| &c.record_errors)) {
            page.family(&n::RECORD_ERRORS_TOTAL)
                .sample(&[label, ("reason", reason)], count);
        }
        for (outcome, count) in summed(cells.iter().map(|c| &c.ended)) {
            page.family(&n::SESSIONS_ENDED_TOTAL)
                .sample(&[label, ("outcome", outcome)], count);
        }
        if self
            .config
            .listeners
            .get(at)
            .is_some_and(|l| l.scheme != Scheme::Tls)
        {
            self.streams(page, label, at, &cells);
        }
        page.family(&n::BYTES_TOTAL)
            .sample(&[label, ("direction", "up")], sum(|c| c.up_bytes.get()))
            .sample(&[label, ("direction", "down")], sum(|c| c.down_bytes.get()));
        page.family(&n::KEY_UPDATES_TOTAL)
            .sample(
                &[label, ("direction", "up")],
                sum(|c| c.updates_received.get()),
            )
            .sample(
                &[label, ("direction", "down")],
                sum(|c| c.updates_sent.get()),
            );
    }

    /// XMPP streams of one listener, by domain.
    fn streams(
        &self,
        page: &mut Exposition,
        label: (&str, &str),
        at: usize,
        cells: &[&ListenerCells],
    ) {
        let snapshot = self.snapshot.load();
        let domains = snapshot.listeners.get(at).map(|l| l.rules.routes.domains());
        let domain = |index: usize| {
            let known = domains.and_then(|domains| domains.get(index));
            ("domain", known.map_or("other", String::as_str))
        };
        let mut now = BTreeMap::new();
        let mut past = BTreeMap::new();
        for cells in cells {
            for (index, phase, count) in cells.streams.present() {
                *now.entry((index, phase)).or_insert(0) += count;
            }
            for (index, phase, reason, count) in cells.streams.past() {
                *past.entry((index, phase, reason)).or_insert(0) += count;
            }
        }
        for ((index, phase), count) in now {
            page.family(&n::XMPP_STREAMS)
                .sample(&[label, domain(index), ("phase", phase)], count);
        }
        for ((index, phase, reason), count) in past {
            let labels = [label, domain(index), ("phase", phase), ("reason", reason)];
            page.family(&n::XMPP_STREAMS_ENDED_TOTAL)
                .sample(&labels, count);
        }
    }

    fn certificates(&self, page: &mut Exposition) {
        let snapshot = self.snapshot.load();
        let Some(certificates) = &snapshot.certificates else {
            return;
        };
        let mut seen = std::collections::HashSet::new();
        for pair in certificates.pairs() {
            let name = pair.names.first().map_or("", String::as_str);
            if seen.insert(name) {
                page.family(&n::CERTIFICATE_EXPIRY_SECONDS)
                    .sample(&[("name", name)], pair.not_after);
            }
        }
    }

    fn backends(&self, page: &mut Exposition) {
        for (at, upstream) in self.upstreams.iter().enumerate() {
            let of_worker = |cells: &WorkerCells| cells.upstreams.get(at).cloned();
            let cells: Vec<_> = self.cells.iter().filter_map(of_worker).collect();
            for (which, backend) in upstream.backends.iter().enumerate() {
                let labels = [
                    ("upstream", upstream.name.as_str()),
                    ("backend", backend.name.as_str()),
                ];
                page.family(&n::BACKEND_CONNECTIONS)
                    .sample(&labels, backend.active());
                let dials = cells
                    .iter()
                    .filter_map(|cells| cells.get(which))
                    .map(|c| &c.dials);
                for (outcome, count) in summed(dials) {
                    let labels = [labels[0], labels[1], ("outcome", outcome)];
                    page.family(&n::DIALS_TOTAL).sample(&labels, count);
                }
            }
        }
    }

    fn pool(&self, page: &mut Exposition) {
        let stats = self.pool.stats();
        page.family(&n::POOL_ENABLED).sample(&[], stats.pooled);
        page.family(&n::POOL_LIMIT_BYTES)
            .sample(&[], stats.limit_bytes);
        page.family(&n::POOL_BYTES)
            .sample(&[], stats.allocated_bytes);
        page.family(&n::POOL_LEASED_BYTES)
            .sample(&[], stats.leased_bytes);
        page.family(&n::POOL_WAITS_TOTAL).sample(&[], stats.waits);
        page.family(&n::POOL_WAITING).sample(&[], stats.waiting);
        page.family(&n::POOL_ALLOCATIONS_TOTAL)
            .sample(&[], stats.allocations);
    }
}

/// The same words of all workers, added up.
fn summed<'a>(sets: impl Iterator<Item = &'a Words>) -> Vec<(&'static str, u64)> {
    let mut sums: Vec<(&'static str, u64)> = Vec::new();
    for (index, words) in sets.enumerate() {
        for (at, (word, count)) in words.iter().enumerate() {
            match sums.get_mut(at) {
                Some((_, sum)) if index > 0 => *sum += count,
                _ => sums.push((word, count)),
            }
        }
    }
    sums
}
