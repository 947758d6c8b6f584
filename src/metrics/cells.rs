//! The cells: who counts what, one set per worker.

use std::sync::{Arc, OnceLock};

use super::http::{Codes, HttpCells};
use super::names;
use super::{Counter, Gauge};

/// One counter for each word of a fixed list.
#[derive(Debug)]
pub struct Words {
    words: &'static [&'static str],
    counters: Box<[Counter]>,
}

impl Words {
    pub(super) fn new(words: &'static [&'static str]) -> Self {
        Self {
            words,
            counters: words.iter().map(|_| Counter::default()).collect(),
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
            .zip(&self.counters)
            .map(|(word, counter)| (*word, counter.get()))
    }
}

/// What one worker counts for one listener.
#[derive(Debug)]
pub struct ListenerCells {
    /// Full TLS 1.2 handshakes.
    pub tls12_full: Counter,
    /// Resumed TLS 1.2 handshakes.
    pub tls12_resumed: Counter,
    /// Full TLS 1.3 handshakes.
    pub tls13_full: Counter,
    /// Resumed TLS 1.3 handshakes.
    pub tls13_resumed: Counter,
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
    now: Box<[Gauge]>,
    /// By domain, then by phase, then by reason. Made when the first stream ends.
    ended: OnceLock<Box<[Counter]>>,
}

impl StreamCells {
    fn new(domains: usize) -> Self {
        let cells = (domains + 1) * names::PHASES.len();
        Self {
            domains,
            now: (0..cells).map(|_| Gauge::default()).collect(),
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
        let ended = self.ended.get_or_init(|| {
            let cells = self.now.len() * reasons.len();
            (0..cells).map(|_| Counter::default()).collect()
        });
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
        let ended = self.ended.get().map_or(&[][..], |ended| &ended[..]);
        let cells = ended.iter().enumerate();
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
pub struct BackendCells {
    /// Attempts to connect, by outcome: `ok`, `refused`, `timeout`, ...
    pub dials: Words,
    /// Answers of HTTP. Made when the first one comes.
    answers: OnceLock<Box<Codes>>,
}

impl BackendCells {
    /// It has answered a request.
    pub fn answered(&self, status: u16) {
        self.answers.get_or_init(Box::default).count(status);
    }

    /// Answers by class, if there was any.
    pub fn answers(&self) -> Option<&Codes> {
        self.answers.get().map(AsRef::as_ref)
    }
}

impl Default for BackendCells {
    fn default() -> Self {
        Self {
            dials: Words::new(names::DIALS),
            answers: OnceLock::new(),
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
