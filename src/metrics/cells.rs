//! The cells: who counts what, one set per worker.
//!
//! All sets are made by one thread at start, one after the other, so nothing but alignment keeps the cells of two workers
//! apart: what holds counters is aligned to two cache lines, and rows of them are [`Row`]s.

use std::sync::{Arc, OnceLock};

use super::durations::Durations;
use super::http::{Codes, HttpCells};
use super::names;
use super::row::Row;
use super::{Counter, Gauge};

/// One counter for each word of a fixed list.
#[derive(Debug)]
pub struct Words {
    words: &'static [&'static str],
    counters: Row<Counter>,
}

impl Words {
    pub(super) fn new(words: &'static [&'static str]) -> Self {
        Self {
            words,
            counters: Row::new(words.len()),
        }
    }

    /// Counts one `word`; one that is not in the list counts as its last, `other`.
    pub fn count(&self, word: &str) {
        let at = self.words.iter().position(|known| *known == word);
        let at = at.unwrap_or(self.words.len() - 1);
        if let Some(counter) = self.counters.get(at) {
            counter.add(1);
        }
    }

    /// Each word with its count.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.words
            .iter()
            .zip(self.counters.iter())
            .map(|(word, counter)| (*word, counter.get()))
    }
}

/// What one worker counts for one listener.
#[derive(Debug)]
#[repr(align(128))]
pub struct ListenerCells {
    /// Full TLS 1.2 handshakes.
    pub tls12_full: Counter,
    /// Resumed TLS 1.2 handshakes.
    pub tls12_resumed: Counter,
    /// Full TLS 1.3 handshakes.
    pub tls13_full: Counter,
    /// Resumed TLS 1.3 handshakes.
    pub tls13_resumed: Counter,
    /// How long those took.
    pub handshakes: Durations,
    /// Handshakes that failed, by reason.
    pub handshake_failures: Words,
    /// Connections ended after the handshake because the client broke the record layer's rules, by reason.
    pub record_errors: Words,
    /// Sessions that ended, by outcome.
    pub ended: Words,
    /// Payload bytes from clients.
    pub up_bytes: Counter,
    /// Payload bytes from backends.
    pub down_bytes: Counter,
    /// Key updates received from clients.
    pub updates_received: Counter,
    /// Key updates sent to clients.
    pub updates_sent: Counter,
    /// XMPP streams.
    pub streams: StreamCells,
    /// Requests of HTTP. Made when the first one comes.
    http: OnceLock<Box<HttpCells>>,
}

impl ListenerCells {
    /// For a listener with this many domains that are metric labels.
    pub fn new(domains: usize) -> Self {
        Self {
            streams: StreamCells::new(domains),
            http: OnceLock::new(),
            tls12_full: Counter::default(),
            tls12_resumed: Counter::default(),
            tls13_full: Counter::default(),
            tls13_resumed: Counter::default(),
            handshakes: Durations::new(&names::HANDSHAKES_US),
            handshake_failures: Words::new(names::HANDSHAKE_FAILURES),
            record_errors: Words::new(names::RECORD_ERRORS),
            ended: Words::new(names::OUTCOMES),
            up_bytes: Counter::default(),
            down_bytes: Counter::default(),
            updates_received: Counter::default(),
            updates_sent: Counter::default(),
        }
    }

    /// Those of HTTP, with this many routes that are metric labels.
    pub fn http(&self, routes: usize) -> &HttpCells {
        self.http.get_or_init(|| Box::new(HttpCells::new(routes)))
    }

    /// Those of HTTP, if there was any.
    pub fn past_http(&self) -> Option<&HttpCells> {
        self.http.get().map(AsRef::as_ref)
    }
}

/// Where an XMPP stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamPhase {
    /// In the clear, before STARTTLS.
    Opening,
    /// From the start of TLS on.
    Handshake,
    /// Within TLS, until SASL success.
    Authentication,
    /// From then on.
    Established,
    /// Its TLS is left alone.
    Passed,
}

/// What one worker counts of one listener's XMPP streams. Domains are told by index; one behind the last stands for all
/// others.
#[derive(Debug)]
pub struct StreamCells {
    domains: usize,
    /// By domain, then by phase.
    now: Row<Gauge>,
    /// By domain, then by phase, then by reason. Made when the first stream ends.
    ended: OnceLock<Row<Counter>>,
}

impl StreamCells {
    fn new(domains: usize) -> Self {
        let cells = (domains + 1) * names::PHASES.len();
        Self {
            domains,
            now: Row::new(cells),
            ended: OnceLock::new(),
        }
    }

    /// The index of a domain that is no label.
    pub fn other(&self) -> u16 {
        self.domains as u16
    }

    fn at(&self, domain: u16, phase: StreamPhase) -> usize {
        usize::from(domain).min(self.domains) * names::PHASES.len() + phase as usize
    }

    /// So many more streams are there now.
    pub fn now(&self, domain: u16, phase: StreamPhase, more: i64) {
        if let Some(gauge) = self.now.get(self.at(domain, phase)) {
            gauge.add(more);
        }
    }

    /// A stream has ended.
    pub fn ended(&self, domain: u16, phase: StreamPhase, reason: &str) {
        let reasons = names::STREAM_REASONS;
        let cells = self.now.len() * reasons.len();
        let ended = self.ended.get_or_init(|| Row::new(cells));
        let word = reasons.iter().position(|known| *known == reason);
        let word = word.unwrap_or(reasons.len() - 1);
        if let Some(counter) = ended.get(self.at(domain, phase) * reasons.len() + word) {
            counter.add(1);
        }
    }

    /// Streams now: domain, phase, how many.
    pub fn present(&self) -> impl Iterator<Item = (usize, &'static str, i64)> + '_ {
        let phases = names::PHASES;
        let cells = self.now.iter().enumerate();
        cells.map(move |(at, gauge)| (at / phases.len(), phases[at % phases.len()], gauge.get()))
    }

    /// Streams that have ended: domain, phase, reason, how many; where there were any.
    pub fn past(&self) -> impl Iterator<Item = (usize, &'static str, &'static str, u64)> + '_ {
        let (phases, reasons) = (names::PHASES, names::STREAM_REASONS);
        let ended = self.ended.get().into_iter();
        let cells = ended.flat_map(Row::iter).enumerate();
        let cells = cells.map(move |(at, counter)| {
            let (place, reason) = (at / reasons.len(), reasons[at % reasons.len()]);
            let (domain, phase) = (place / phases.len(), phases[place % phases.len()]);
            (domain, phase, reason, counter.get())
        });
        cells.filter(|(.., count)| *count > 0)
    }
}

/// What one worker counts for one backend.
#[derive(Debug)]
#[repr(align(128))]
pub struct BackendCells {
    /// Attempts to connect, by outcome: `ok`, `refused`, `timeout`, ...
    pub dials: Words,
    /// Answers of HTTP, by class.
    pub answers: Codes,
}

impl Default for BackendCells {
    fn default() -> Self {
        Self {
            dials: Words::new(names::DIALS),
            answers: Codes::default(),
        }
    }
}

/// What one worker counts.
#[derive(Clone, Debug)]
pub struct WorkerCells {
    /// By `ListenerId`.
    pub listeners: Vec<Arc<ListenerCells>>,
    /// By `UpstreamId`, then by backend.
    pub upstreams: Vec<Arc<[BackendCells]>>,
}

impl WorkerCells {
    /// Cells for listeners with this many domains each, and upstreams with this many backends each.
    pub fn new(
        listeners: impl Iterator<Item = usize>,
        upstreams: impl Iterator<Item = usize>,
    ) -> Self {
        Self {
            listeners: listeners
                .map(|domains| Arc::new(ListenerCells::new(domains)))
                .collect(),
            upstreams: upstreams
                .map(|backends| (0..backends).map(|_| BackendCells::default()).collect())
                .collect(),
        }
    }
}

/// What the acceptor counts for one listener.
#[derive(Debug)]
#[repr(align(128))]
pub struct AcceptCells {
    /// Connections taken.
    pub accepted: Counter,
    /// Connections refused at once, by reason.
    pub refused: Words,
    /// accept(2) errors, by reason.
    pub errors: Words,
}

impl Default for AcceptCells {
    fn default() -> Self {
        Self {
            accepted: Counter::default(),
            refused: Words::new(names::REFUSALS),
            errors: Words::new(names::ACCEPT_ERRORS),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Where everything lies that a worker writes.
    fn written(cells: &WorkerCells) -> Vec<usize> {
        fn at<T>(what: &T) -> usize {
            std::ptr::from_ref(what).addr()
        }
        let mut places = Vec::new();
        for cells in &cells.listeners {
            cells.streams.ended(0, StreamPhase::Opening, "closed");
            let http = cells.http(20);
            places.extend([&cells.tls12_full, &cells.updates_sent].map(at));
            places.extend([&cells.up_bytes, &cells.down_bytes].map(at));
            places.extend([&http.open, &http.tunnels].map(at));
            for words in [
                &cells.handshake_failures,
                &cells.record_errors,
                &cells.ended,
                &http.refused,
            ] {
                places.extend(words.counters.iter().map(at));
            }
            places.extend(cells.streams.now.iter().map(at));
            places.extend(cells.streams.ended.get().unwrap().iter().map(at));
            places.extend(cells.handshakes.places());
            places.extend(http.places());
        }
        for cells in cells.upstreams.iter().flat_map(|cells| cells.iter()) {
            places.push(at(&cells.answers));
            places.extend(cells.dials.counters.iter().map(at));
        }
        places
    }

    #[test]
    fn no_two_workers_write_to_the_same_pair_of_cache_lines() {
        let workers: Vec<_> = (0..8)
            .map(|_| WorkerCells::new([0, 3].into_iter(), [1, 2].into_iter()))
            .collect();
        let mut owner = std::collections::HashMap::new();
        for (worker, cells) in workers.iter().enumerate() {
            let places = written(cells);
            assert!(places.len() > 400, "{}", places.len());
            for place in places {
                let other = *owner.entry(place / 128).or_insert(worker);
                assert_eq!(other, worker, "{place:x}");
            }
        }
        assert_eq!(align_of::<ListenerCells>(), 128);
        assert_eq!(align_of::<BackendCells>(), 128);
        assert_eq!(align_of::<AcceptCells>(), 128);
        assert_eq!(align_of::<HttpCells>(), 128);
    }
}
