#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::*;

const LARGE: usize = large_len(4);

fn pool(limit: usize, pooled: bool) -> BufferPool {
    let bounds = Bounds {
        limit,
        large_records: 4,
    };
    if pooled {
        BufferPool::new(bounds, Pooled::default())
    } else {
        BufferPool::new(bounds, PerRecord)
    }
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn waker() -> (Arc<Count>, Waker) {
    let count = Arc::new(Count::default());
    (Arc::clone(&count), Waker::from(count))
}

#[test]
fn a_returned_slot_is_lent_again_and_nothing_is_allocated() {
    let pool = pool(1 << 20, true);
    let magazine = pool.magazine();
    for _ in 0..1000 {
        let one = magazine.try_lease(Size::Small).unwrap();
        let two = magazine.try_lease(Size::Large).unwrap();
        assert_eq!(pool.stats().leased_bytes, SMALL_LEN + LARGE);
        drop((one, two));
    }
    let stats = pool.stats();
    assert_eq!((stats.allocations, stats.leased_bytes), (2, 0));
}

#[test]
fn without_pooling_each_lease_is_fresh_and_the_bound_holds() {
    let pool = pool(2 * SMALL_LEN, false);
    let magazine = pool.magazine();
    for round in 1..=10 {
        let one = magazine.try_lease(Size::Small).unwrap();
        assert_eq!(pool.stats().allocations, round);
        assert_eq!(pool.stats().allocated_bytes, SMALL_LEN);
        drop(one);
        assert_eq!(pool.stats().allocated_bytes, 0);
    }
    let _one = magazine.try_lease(Size::Small).unwrap();
    let _two = magazine.try_lease(Size::Small).unwrap();
    assert!(magazine.try_lease(Size::Small).is_none());
}

#[test]
fn a_lease_shows_only_what_its_present_holder_filled() {
    let pool = pool(1 << 20, true);
    let magazine = pool.magazine();
    let mut lease = magazine.try_lease(Size::Small).unwrap();
    lease.spare_mut()[..6].copy_from_slice(b"secret");
    lease.filled_by(6);
    drop(lease);
    let mut lease = magazine.try_lease(Size::Small).unwrap();
    assert!(lease.unread().is_empty());
    assert!(!lease.has_ready());
    assert_eq!(lease.unread_mut(), b"");
}

#[test]
fn cursors_keep_their_order_through_partial_writes() {
    let pool = pool(1 << 20, true);
    let magazine = pool.magazine();
    let mut lease = magazine.try_lease(Size::Small).unwrap();
    lease.spare_mut()[..10].copy_from_slice(b"0123456789");
    lease.filled_by(10);
    let at = lease.unread().start;
    lease.push_ready(at..at + 4);
    lease.push_ready(at + 5..at + 8);
    lease.take(8);
    let mut slices = [std::io::IoSlice::new(&[]); READY_MAX];
    assert_eq!(lease.ready(&mut slices), 2);
    assert_eq!((&*slices[0], &*slices[1]), (&b"0123"[..], &b"567"[..]));
    lease.sent_by(5);
    assert_eq!(lease.only_ready(), Some(&b"67"[..]));
    lease.sent_by(2);
    assert!(!lease.has_ready());
    assert_eq!(lease.ready_room(), READY_MAX);
    lease.compact();
    assert_eq!(lease.unread(), HEADROOM..HEADROOM + 2);
    let mut large = magazine.try_lease(Size::Large).unwrap();
    lease.move_unread_to(&mut large);
    assert_eq!(large.unread_mut(), b"89");
    assert!(lease.unread().is_empty());
}

#[test]
fn at_the_bound_leases_wait_in_turn_and_none_overtakes() {
    let pool = pool(2 * SMALL_LEN, true);
    let (a, b) = (pool.magazine(), pool.magazine());
    let held = (
        a.try_lease(Size::Small).unwrap(),
        b.try_lease(Size::Small).unwrap(),
    );
    let (first_woken, first) = waker();
    let (second_woken, second) = waker();
    let (mut wait_first, mut wait_second) = (None, None);
    assert!(
        a.poll_lease(&mut Context::from_waker(&first), &mut wait_first)
            .is_pending()
    );
    assert!(
        b.poll_lease(&mut Context::from_waker(&second), &mut wait_second)
            .is_pending()
    );
    assert!(a.pressure());
    assert_eq!(pool.stats().waiting, 2);
    drop(held.1); // on the magazine of the second, and yet it is the first's turn
    assert_eq!(first_woken.0.load(Ordering::Relaxed), 1);
    assert_eq!(second_woken.0.load(Ordering::Relaxed), 0);
    assert!(
        b.try_lease(Size::Small).is_none(),
        "others were here before"
    );
    let Poll::Ready(lease) = a.poll_lease(&mut Context::from_waker(&first), &mut wait_first) else {
        panic!("it was granted");
    };
    assert!(wait_first.is_none());
    drop(lease);
    assert_eq!(second_woken.0.load(Ordering::Relaxed), 1);
    let second = b.poll_lease(&mut Context::from_waker(&second), &mut wait_second);
    assert!(second.is_ready());
    assert!(!a.pressure());
}

#[test]
fn who_gives_up_waiting_hands_its_turn_on() {
    let pool = pool(SMALL_LEN, true);
    let magazine = pool.magazine();
    let held = magazine.try_lease(Size::Small).unwrap();
    let (_, first) = waker();
    let (woken, second) = waker();
    let (mut wait_first, mut wait_second) = (None, None);
    let poll =
        |waker: &Waker, wait: &mut _| magazine.poll_lease(&mut Context::from_waker(waker), wait);
    assert!(poll(&first, &mut wait_first).is_pending());
    assert!(poll(&second, &mut wait_second).is_pending());
    drop(held);
    drop(wait_first.take()); // granted, and given up before it was fetched
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert!(poll(&second, &mut wait_second).is_ready());
    assert_eq!(pool.stats().waiting, 0);
    assert_eq!(pool.stats().leased_bytes, 0);
}

#[test]
fn a_waiter_calls_in_what_another_magazine_hoards() {
    let pool = pool(SMALL_LEN, true);
    let (idle, busy) = (pool.magazine(), pool.magazine());
    drop(idle.try_lease(Size::Small).unwrap()); // hoarded by a worker that now sleeps
    let (recalled, recall) = waker();
    let mut recall_task = pin!(idle.recall());
    assert!(
        recall_task
            .as_mut()
            .poll(&mut Context::from_waker(&recall))
            .is_pending()
    );
    let (woken, waiter) = waker();
    let mut wait = None;
    assert!(
        busy.poll_lease(&mut Context::from_waker(&waiter), &mut wait)
            .is_pending()
    );
    assert_eq!(recalled.0.load(Ordering::Relaxed), 1);
    assert!(
        recall_task
            .as_mut()
            .poll(&mut Context::from_waker(&recall))
            .is_pending()
    );
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert!(
        busy.poll_lease(&mut Context::from_waker(&waiter), &mut wait)
            .is_ready()
    );
}

#[test]
fn spare_large_slots_make_room_for_small_ones() {
    let pool = pool(2 * LARGE, true);
    let magazine = pool.magazine();
    let large = magazine.try_lease(Size::Large).unwrap();
    let small: Vec<_> = std::iter::from_fn(|| magazine.try_lease(Size::Small)).collect();
    assert_eq!(small.len(), LARGE / SMALL_LEN, "the bound holds");
    let (woken, waiter) = waker();
    let mut wait = None;
    assert!(
        magazine
            .poll_lease(&mut Context::from_waker(&waiter), &mut wait)
            .is_pending()
    );
    drop(large);
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert!(
        magazine
            .poll_lease(&mut Context::from_waker(&waiter), &mut wait)
            .is_ready()
    );
    assert!(pool.stats().allocated_bytes <= pool.stats().limit_bytes);
}

#[test]
fn a_worker_that_ends_returns_everything() {
    let pool = pool(1 << 20, true);
    for _ in 0..20 {
        let pool = pool.clone();
        std::thread::spawn(move || {
            let magazine = pool.magazine();
            let leases: Vec<_> = (0..30)
                .map_while(|_| magazine.try_lease(Size::Small))
                .collect();
            assert_eq!(leases.len(), 30);
        })
        .join()
        .unwrap();
    }
    let stats = pool.stats();
    assert_eq!(stats.leased_bytes, 0);
    assert_eq!(
        stats.allocations, 30,
        "threads that come and go use the same slots"
    );
    assert!(stats.allocated_bytes <= 30 * SMALL_LEN);
}

#[test]
fn beyond_half_of_the_bound_there_are_small_slots_alone() {
    let pool = pool(4 * LARGE, true);
    let magazine = pool.magazine();
    let mut large: Vec<_> = std::iter::from_fn(|| magazine.try_lease(Size::Large)).collect();
    assert_eq!(large.len(), 2);
    assert!(!magazine.tight(), "just at the half");
    let small = magazine.try_lease(Size::Small).unwrap();
    assert!(magazine.tight());
    large.pop();
    assert!(
        magazine.try_lease(Size::Large).is_none() || !magazine.tight(),
        "what a worker hoards is no way around it"
    );
    drop((small, large));
    magazine.trim();
    assert!(!magazine.tight());
    assert!(magazine.try_lease(Size::Large).is_some());
}

#[test]
fn a_burst_leaves_nothing_behind_but_what_calm_work_needs() {
    let pool = pool(16 << 20, true);
    let magazine = pool.magazine();
    let (woken, waker) = waker();
    let mut surplus = Box::pin(magazine.surplus());
    let mut look = || surplus.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(look().is_pending());
    for _ in 0..10 {
        drop(magazine.try_lease(Size::Small));
    }
    assert!(look().is_pending(), "calm work leaves no surplus");
    let burst: Vec<_> = std::iter::from_fn(|| magazine.try_lease(Size::Large)).collect();
    let many: Vec<_> = std::iter::from_fn(|| magazine.try_lease(Size::Small)).collect();
    assert!(burst.len() > 100 && many.len() > 300);
    drop((burst, many));
    assert_eq!(woken.0.load(Ordering::Relaxed), 1, "told once");
    assert!(look().is_ready());
    magazine.trim();
    let kept = pool.stats().allocated_bytes;
    assert!(kept <= 2 * SMALL_LEN, "{kept} bytes");
    assert_eq!(pool.stats().leased_bytes, 0);
}

/// A supply that makes nothing new while it is shut.
#[derive(Debug)]
struct Shut(Arc<AtomicBool>);

impl Supply for Shut {
    fn take(&mut self, _size: Size) -> Option<Box<Slot>> {
        None
    }

    fn put(&mut self, slot: Box<Slot>) -> Option<Box<Slot>> {
        Some(slot)
    }

    fn may_make(&mut self, _size: Size) -> bool {
        !self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn a_supply_that_refuses_makes_wait_until_it_is_asked_again() {
    let shut = Arc::new(AtomicBool::new(true));
    let bounds = Bounds {
        limit: 1 << 20,
        large_records: 4,
    };
    let pool = BufferPool::new(bounds, Shut(Arc::clone(&shut)));
    let magazine = pool.magazine();
    assert!(magazine.try_lease(Size::Small).is_none());
    let (woken, waiter) = waker();
    let mut wait = None;
    let mut ask = || magazine.poll_lease(&mut Context::from_waker(&waiter), &mut wait);
    assert!(ask().is_pending());
    pool.retry();
    assert!(ask().is_pending(), "it still refuses");
    shut.store(false, Ordering::Relaxed);
    pool.retry();
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert!(ask().is_ready());
    assert_eq!(pool.stats().waiting, 0);
}

#[test]
fn what_is_held_moves_to_a_smaller_slot_in_its_order() {
    let pool = pool(1 << 20, true);
    let magazine = pool.magazine();
    let mut large = magazine.try_lease(Size::Large).unwrap();
    large.spare_mut()[..9].copy_from_slice(b"012345678");
    large.filled_by(9);
    let at = large.unread().start;
    large.push_ready(at..at + 3);
    large.push_ready(at + 4..at + 6);
    large.take(7);
    large.sent_by(1);
    assert_eq!(large.held(), 6);
    let mut small = magazine.try_lease(Size::Small).unwrap();
    large.move_to(&mut small);
    assert_eq!(small.only_ready(), Some(&b"1245"[..]));
    assert_eq!(small.unread_mut(), b"78");
    assert_eq!((small.held(), large.held()), (6, 0));
}
