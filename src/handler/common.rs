//! What all connections of a worker have in common.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use crate::metrics::access::AccessLog;
use crate::metrics::cells::WorkerCells;
use crate::pool::Magazine;
use crate::sys;

use super::http::Backs;

/// One worker's.
pub struct Common {
    /// The worker's magazine.
    pub pool: Magazine,
    /// The worker's counters.
    pub cells: WorkerCells,
    /// The access log, if there is one.
    pub access: Option<Arc<AccessLog>>,
    /// Told when the worker drains.
    pub leave: Leave,
    /// Silent connections to HTTP backends.
    pub(super) backs: Backs,
    /// Whether memory will be left behind.
    untidy: Cell<bool>,
    tidying: Notify,
}

impl Common {
    /// With nothing in it yet.
    pub fn new(pool: Magazine, cells: WorkerCells, access: Option<Arc<AccessLog>>) -> Self {
        Self {
            pool,
            cells,
            access,
            leave: Leave::default(),
            backs: Backs::default(),
            untidy: Cell::default(),
            tidying: Notify::default(),
        }
    }
}

/// How long after something has begun or was freed memory is given back: a beginning needs ten times what it keeps, and what a burst has
/// used may be used again at once.
const TIDY_AFTER: Duration = Duration::from_millis(250);

impl Common {
    /// Memory will be left behind in a moment.
    pub fn untidy(&self) {
        if !self.untidy.replace(true) {
            self.tidying.notify_one();
        }
    }

    /// Never ends: gives memory back a moment after it was left behind, once for all that comes meanwhile. A worker runs this
    /// beside its connections.
    pub async fn tidy_up(&self) {
        loop {
            tokio::select! {
                () = self.tidying.notified() => {}
                () = self.pool.surplus() => {}
            }
            sleep(TIDY_AFTER).await;
            self.untidy.set(false);
            self.pool.trim();
            sys::memory::give_back();
        }
    }
}

/// When the connection with this number leaves in a drain of such a length, and how long it may then take.
pub fn turn(id: u64, limit: Duration) -> (Duration, Duration) {
    // Evenly, whoever came when: multiplied by the golden ratio, neighbours in number are far apart.
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    const SHARE: f64 = 0.9;
    let place = (id.wrapping_mul(GOLDEN) >> 11) as f64 / (1_u64 << 53) as f64;
    // The last of them still ends in order, and not by the end of the drain.
    let patience = limit.mul_f64((1.0 - SHARE) / 2.0);
    (limit.mul_f64(SHARE * place), patience)
}

/// Tells the sessions of a worker that it drains.
#[derive(Default)]
pub struct Leave {
    limit: Cell<Option<Duration>>,
    over: Cell<bool>,
    notify: Notify,
}

impl Leave {
    /// The worker drains: this is how long the sessions have. Zero: as long as they like.
    pub fn tell(&self, limit: Duration) {
        self.limit.set(Some(limit));
        self.notify.notify_waiters();
    }

    /// Whoever has not left is cut off.
    pub fn end(&self) {
        self.over.set(true);
    }

    /// Whether the drain has ended.
    pub fn is_over(&self) -> bool {
        self.over.get()
    }

    /// Ready when the worker drains, with how long the sessions have.
    pub async fn told(&self) -> Duration {
        loop {
            let notified = self.notify.notified();
            if let Some(limit) = self.limit.get() {
                return limit;
            }
            notified.await;
        }
    }
}
