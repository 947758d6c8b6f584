//! The pool under the interleavings that loom finds: the bound holds, no slot is lost, and nobody who waits is
//! forgotten, not even when the only free slot rests in the magazine of a worker that sleeps.
//!
//! The files of `src/pool` are compiled here a second time, over loom's primitives instead of the standard
//! library's, so that the crate itself needs no switch for it.

#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    clippy::unwrap_used,
    clippy::expect_used
)]
#![allow(missing_docs, reason = "the documented copy is the crate's")]

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};

use loom::future::{AtomicWaker, block_on};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

mod sync {
    pub(super) use loom::sync::atomic::{AtomicUsize, Ordering};
    pub(super) use loom::sync::{Mutex, MutexGuard};
}

#[path = "../src/pool/depot.rs"]
mod depot;
#[path = "../src/pool/lease.rs"]
mod lease;
#[path = "../src/pool/magazine.rs"]
mod magazine;
#[path = "../src/pool/slot.rs"]
mod slot;
#[path = "../src/pool/supply.rs"]
mod supply;

use depot::{Depot, Level};
use lease::Lease;
use magazine::Magazine;
use slot::{SMALL_LEN, Size};
use supply::Pooled;

#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub limit: usize,
    pub large_records: usize,
}

/// A pool that has room for so many small slots.
fn depot(slots: usize) -> std::sync::Arc<Depot> {
    let limit = slots * SMALL_LEN;
    let bounds = Bounds {
        limit,
        large_records: 1,
    };
    std::sync::Arc::new(Depot::new(bounds, Box::new(Pooled::default())))
}

/// Every interleaving with at most two preemptions: the full space takes hours, and faults hide in few.
fn model(test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(test);
}

/// Runs `work` as a worker does: with the magazine's recall beside it.
fn as_worker<T>(magazine: &Magazine, work: impl Future<Output = T>) -> T {
    let mut recall = pin!(magazine.recall());
    let mut work = pin!(work);
    block_on(poll_fn(|cx: &mut Context<'_>| {
        let _ = recall.as_mut().poll(cx);
        work.as_mut().poll(cx)
    }))
}

fn assert_all_returned(depot: &Depot) {
    let stats = depot.stats();
    assert_eq!(stats.leased_bytes, 0);
    assert_eq!(stats.waiting, 0);
    assert!(stats.allocated_bytes <= stats.limit_bytes);
    assert!(depot.level() != Level::Waited);
    let slots = stats.limit_bytes / SMALL_LEN;
    for _ in 0..slots {
        assert!(depot.try_take(Size::Small).is_some(), "a slot was lost");
    }
}

#[test]
fn two_workers_share_one_slot() {
    model(|| {
        let depot = depot(1);
        let worker = |depot: std::sync::Arc<Depot>| {
            let magazine = Magazine::new(depot);
            as_worker(&magazine, async { drop(magazine.lease().await) });
        };
        let other = {
            let depot = std::sync::Arc::clone(&depot);
            thread::spawn(move || worker(depot))
        };
        worker(std::sync::Arc::clone(&depot));
        other.join().unwrap();
        assert_all_returned(&depot);
    });
}

#[test]
fn a_sleeping_workers_hoard_reaches_who_waits() {
    model(|| {
        let depot = depot(1);
        let done = Arc::new((AtomicBool::new(false), AtomicWaker::new()));
        let sleeper = {
            let (depot, done) = (std::sync::Arc::clone(&depot), Arc::clone(&done));
            thread::spawn(move || {
                let magazine = Magazine::new(depot);
                // Leased and returned: now it is hoarded. Then the worker sleeps until the other is served.
                as_worker(&magazine, async {
                    drop(magazine.lease().await);
                    poll_fn(|cx: &mut Context<'_>| {
                        done.1.register_by_ref(cx.waker());
                        if done.0.load(Ordering::SeqCst) {
                            Poll::Ready(())
                        } else {
                            Poll::Pending
                        }
                    })
                    .await;
                });
            })
        };
        let magazine = Magazine::new(std::sync::Arc::clone(&depot));
        as_worker(&magazine, async { drop(magazine.lease().await) });
        drop(magazine);
        done.0.store(true, Ordering::SeqCst);
        done.1.wake();
        sleeper.join().unwrap();
        assert_all_returned(&depot);
    });
}

#[test]
fn who_gives_up_waiting_loses_no_slot() {
    model(|| {
        let depot = depot(1);
        let holder = Magazine::new(std::sync::Arc::clone(&depot));
        let held = holder.try_lease(Size::Small).unwrap();
        let quitter = {
            let depot = std::sync::Arc::clone(&depot);
            thread::spawn(move || {
                let magazine = Magazine::new(depot);
                let mut wait = None;
                // Asked for once, then given up: granted meanwhile or not.
                let polled = block_on(poll_fn(|cx: &mut Context<'_>| {
                    Poll::Ready(magazine.poll_lease(cx, &mut wait).is_ready())
                }));
                drop(wait);
                polled
            })
        };
        drop(held);
        drop(holder);
        quitter.join().unwrap();
        assert_all_returned(&depot);
    });
}
