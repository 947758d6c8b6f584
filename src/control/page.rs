//! What the admin listener shows: the cells of all threads, summed.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use crate::config::Scheme;
use crate::metrics::cells::{ListenerCells, Words};
use crate::metrics::http::HttpCells;
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
            requests: self.requests(),
            listeners: listeners
                .map(|(listener, door)| ListenerStatus {
                    name: listener.name.clone(),
                    address: format!("{}://{}", listener.scheme, listener.addr),
                    upstream: upstream(listener.upstream.0)
                        .filter(|_| listener.scheme != Scheme::Http)
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
    /// Requests of HTTP on all listeners, and how many of them failed on our side; none if there is no HTTP.
    fn requests(&self) -> Option<(u64, u64)> {
        let listeners = self.cells.iter().flat_map(|cells| &cells.listeners);
        let mut http = listeners.filter_map(|c| c.past_http()).peekable();
        http.peek()?;
        let counts = http.flat_map(HttpCells::requests);
        Some(counts.fold((0, 0), |(all, failed), (_, code, count)| {
            let failure = if code == "5xx" { count } else { 0 };
            (all + count, failed + failure)
        }))
    }

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
        let took = cells.iter().map(|c| &c.handshakes);
        page.family(&n::HANDSHAKE_DURATION_SECONDS)
            .durations(&[label], &n::HANDSHAKES_US, took);
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
            .is_some_and(|l| l.scheme.carries_xmpp())
        {
            self.streams(page, label, at, &cells);
        }
        self.http(page, label, at, &cells);
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

    /// Requests of one listener, if it has any.
    fn http(&self, page: &mut Exposition, label: (&str, &str), at: usize, all: &[&ListenerCells]) {
        let snapshot = self.snapshot.load();
        let Some(rules) = snapshot.listeners.get(at).map(|offer| &offer.rules) else {
            return;
        };
        if rules.scheme != Scheme::Http && !rules.routes.serves_http() {
            return;
        }
        let routes = rules.routes.http_routes();
        // Nothing, so that the sums are there before the first request.
        let none = HttpCells::new(0);
        let cells: Vec<&HttpCells> = all.iter().filter_map(|cells| cells.past_http()).collect();
        let cells = || cells.iter().copied().chain([&none]);
        for ((route, code), count) in added(cells().flat_map(|c| {
            let requests = c.requests();
            requests.map(|(route, code, count)| ((route, code), count))
        })) {
            let route = routes.get(route).map_or(n::NO_ROUTE, String::as_str);
            let labels = [label, ("route", route), ("code", code)];
            page.family(&n::HTTP_REQUESTS_TOTAL).sample(&labels, count);
        }
        for (which, kind) in n::WAITS.into_iter().enumerate() {
            let took = cells().filter_map(|c| c.durations().nth(which));
            page.family(&n::HTTP_REQUEST_DURATION_SECONDS).durations(
                &[label, ("kind", kind)],
                &n::DURATIONS_US,
                took.map(|(_, durations)| durations),
            );
        }
        let open: [fn(&HttpCells) -> i64; 2] = [|c| c.open.get(), |c| c.tunnels.get()];
        for (kind, count) in n::HTTP_KINDS.into_iter().zip(open) {
            let count = cells().map(count).sum::<i64>();
            page.family(&n::HTTP_OPEN)
                .sample(&[label, ("kind", kind)], count);
        }
        for ((version, outcome), count) in added(cells().flat_map(|c| {
            let upgrades = c.upgrades();
            upgrades.map(|(version, outcome, count)| ((version, outcome), count))
        })) {
            let labels = [label, ("version", version), ("outcome", outcome)];
            page.family(&n::HTTP_UPGRADES_TOTAL).sample(&labels, count);
        }
        let refused = summed(cells().map(|c| &c.refused));
        for (reason, count) in refused.into_iter().filter(|(_, count)| *count > 0) {
            page.family(&n::HTTP_REFUSED_TOTAL)
                .sample(&[label, ("reason", reason)], count);
        }
        for (side, count) in added(cells().flat_map(HttpCells::sides)) {
            page.family(&n::HTTP_CUT_SHORT_TOTAL)
                .sample(&[label, ("side", side)], count);
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
            // Borrowed: a clone would write to what belongs to a worker.
            let workers = self.cells.iter();
            let cells: Vec<_> = workers.filter_map(|c| c.upstreams.get(at)).collect();
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
                let answers = cells.iter().filter_map(|cells| cells.get(which));
                let answers = answers
                    .flat_map(|c| c.answers.iter())
                    .filter(|(_, count)| *count > 0);
                for (code, count) in added(answers) {
                    let labels = [labels[0], labels[1], ("code", code)];
                    page.family(&n::HTTP_BACKEND_RESPONSES_TOTAL)
                        .sample(&labels, count);
                }
                for (outcome, count) in summed(dials) {
                    let labels = [labels[0], labels[1], ("outcome", outcome)];
                    page.family(&n::DIALS_TOTAL).sample(&labels, count);
                }
            }
        }
    }

    fn pool(&self, page: &mut Exposition) {
        let stats = self.pool.stats();
        page.family(&n::POOL_ENABLED)
            .sample(&[], self.config.buffers.pooled);
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

/// Counts of all workers, added up.
fn added<K: Ord>(counts: impl Iterator<Item = (K, u64)>) -> BTreeMap<K, u64> {
    let mut sums = BTreeMap::new();
    for (key, count) in counts {
        *sums.entry(key).or_default() += count;
    }
    sums
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
