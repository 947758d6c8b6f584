//! The cells: who counts what, one set per worker.

use std::sync::Arc;

use super::Counter;
use super::names;

/// One counter for each word of a fixed list.
#[derive(Debug)]
pub struct Words {
    words: &'static [&'static str],
    counters: Box<[Counter]>,
}

impl Words {
    fn new(words: &'static [&'static str]) -> Self {
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
}

impl Default for ListenerCells {
    fn default() -> Self {
        Self {
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
}

/// What one worker counts for one backend: attempts to connect, by outcome.
#[derive(Debug)]
pub struct BackendCells {
    /// `ok`, `refused`, `timeout`, ...
    pub dials: Words,
}

impl Default for BackendCells {
    fn default() -> Self {
        Self {
            dials: Words::new(names::DIALS),
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
    /// Cells for this many listeners, and this many backends in each upstream.
    pub fn new(listeners: usize, upstreams: impl Iterator<Item = usize>) -> Self {
        Self {
            listeners: (0..listeners).map(|_| Arc::default()).collect(),
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
