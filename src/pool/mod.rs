//! The one buffer pool: where every payload byte lives while it is in Vestibule's hands.
//!
//! ```text
//!   worker 0: Magazine ---+                 lease:  magazine, else depot, else wait
//!   worker 1: Magazine ---+--- Depot        return: magazine, else depot
//!   worker N: Magazine ---+    (bound, queue of those who wait)
//! ```
//!
//! * A buffer ([`Slot`]) is held only through a [`Lease`], and a lease only while bytes are in flight: an
//!   idle connection holds none.
//! * There are two sizes. A [`Size::Small`] slot holds one TLS record; a [`Size::Large`] one several, for a
//!   busy flow. Only small slots are waited for; who cannot have a large one makes do with a small one.
//! * The [`Depot`] bounds the bytes of all slots together, wherever they are. At the bound a lease *waits*, in
//!   turn: the caller has not read its socket yet, so that the wait becomes TCP back pressure on one
//!   connection. Once anybody waits, magazines hand back what they hoard and keep nothing.
//! * A worker's [`Magazine`] makes the usual lease free of atomics and locks. When the magazine's last owner
//!   goes (the worker has ended and so have its connections), its slots go back to the depot.
//! * What becomes of a slot between two leases is a [`Supply`]'s affair, and can be replaced: [`Pooled`] keeps it,
//!   [`PerRecord`] (`--no-buffer-pool`) frees it, and tests have one that refuses on demand. The bound, the waiting
//!   and the code path are the same.
//! * Beyond half of the bound the pool is *tight* ([`Magazine::tight`]): there are no large slots then, workers hoard
//!   little, and who reads takes only what can be passed on at once. So the second half serves who makes progress,
//!   however many have stalled before.
//! * What a burst has left behind goes back to the allocator when it is over ([`Magazine::surplus`],
//!   [`Magazine::trim`]).
//!
//! Who holds a lease and makes no progress while others wait is the relay's business
//! (`relay::watch`): that is the rule that keeps a stalled client from starving the rest.
//!
//! A returned slot is not wiped. Old bytes stay unseen because a lease shows only what its present holder
//! filled; the spare part is given to a socket read alone.

mod depot;
mod lease;
mod magazine;
mod slot;
mod supply;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use depot::Depot;

pub use depot::PoolStats;
pub use lease::Lease;
pub use magazine::{Magazine, Wait};
pub use slot::{
    HEADROOM, PLAIN_MAX, READY_MAX, RECORD_WIRE_MAX, SMALL_LEN, STRIDE, Size, Slot, TAILROOM,
    large_len,
};
pub use supply::{PerRecord, Pooled, Supply};

/// What holds whatever the supply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Most bytes that all slots together may take.
    pub limit: usize,
    /// TLS records that a large slot holds; at most 1 means that there are no large slots.
    pub large_records: usize,
}

/// The shared pool. Cheap to clone; all clones are the same pool.
#[derive(Clone, Debug)]
pub struct BufferPool {
    depot: Arc<Depot>,
}

impl BufferPool {
    /// A pool over `supply`, with nothing allocated yet.
    pub fn new(bounds: Bounds, supply: impl Supply + 'static) -> Self {
        Self {
            depot: Arc::new(Depot::new(bounds, Box::new(supply))),
        }
    }

    /// A new magazine; one for each worker thread.
    pub fn magazine(&self) -> Magazine {
        Magazine::new(Arc::clone(&self.depot))
    }

    /// Serves who waits, where the supply has refused and would not now.
    pub fn retry(&self) {
        self.depot.retry();
    }

    /// Present figures. Takes the depot's lock for a moment; for scrapes and tests, not for the data path.
    pub fn stats(&self) -> PoolStats {
        self.depot.stats()
    }
}
