//! What is counted, without a lock and without a shared cache line.
//!
//! Each worker (and the acceptor) has a set of cells ([`cells`]) of its own that it alone writes; a scrape sums them all
//! ([`render`]). An increment is a plain load and store of an atomic: no `lock` prefix, no contention.
//! Labels have few values, known at start: listener, route, upstream, backend, outcome; never a client.

pub mod access;
pub mod cells;
pub mod durations;
pub mod http;
pub mod lines;
pub mod names;
pub mod quote;
pub mod render;
mod row;

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// A number that only grows. **One writer**; anybody may read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the owner of the cell may call this: two writers would lose counts.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// The present value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A number that goes up and down. **One writer**; anybody may read.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Adds `n`, which may be negative. Only the owner of the cell may call this.
    #[inline]
    pub fn add(&self, n: i64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// The present value.
    pub fn get(&self) -> i64 {
        self.0.load(Relaxed)
    }
}
