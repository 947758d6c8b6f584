//! A worker's private stack of slots.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::Lease;
use super::depot::{Depot, Level};
use super::slot::{Size, Slot};
use super::sync::{AtomicUsize, Ordering};

/// Free small slots that are no surplus: a worker that passes one message after the other needs one or two.
const KEEP: usize = 2;

/// One worker's access to the pool. `!Send`; clones are the same magazine. When the last clone and the last
/// lease are gone, what it hoards goes back to the shared pool.
#[derive(Clone, Debug)]
pub struct Magazine {
    inner: Rc<Inner>,
}

#[derive(Debug)]
#[allow(
    clippy::vec_box,
    reason = "slots move between owners by pointer, not by their 200 bytes of cursors"
)]
pub(super) struct Inner {
    depot: Arc<Depot>,
    id: u64,
    small: Hoard,
    large: Hoard,
    /// More is free than calm work needs, and nobody has been told.
    surplus: Cell<bool>,
    /// Who wants to know.
    untidy: RefCell<Option<Waker>>,
    /// Trims of others that are known here.
    trims: Cell<usize>,
    /// Bytes held through leases; this thread alone writes.
    leased: Arc<AtomicUsize>,
}

/// Free slots of one size.
#[derive(Debug)]
#[allow(clippy::vec_box, reason = "as above")]
struct Hoard {
    slots: RefCell<Vec<Box<Slot>>>,
    /// Most of them.
    most: usize,
}

impl Hoard {
    fn new(most: usize) -> Self {
        Self {
            slots: RefCell::default(),
            most,
        }
    }
}

/// A place in the queue for a slot. Dropping it gives the place up.
#[derive(Debug)]
pub struct Wait {
    depot: Arc<Depot>,
    ticket: u64,
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.depot.abandon(self.ticket);
    }
}

impl Magazine {
    pub(super) fn new(depot: Arc<Depot>) -> Self {
        let leased = Arc::new(AtomicUsize::new(0));
        let id = depot.register(Arc::clone(&leased));
        let hoard = |size| Hoard::new(depot.at_hand(size));
        Self {
            inner: Rc::new(Inner {
                small: hoard(Size::Small),
                large: hoard(Size::Large),
                depot,
                id,
                surplus: Cell::new(false),
                untidy: RefCell::default(),
                trims: Cell::new(0),
                leased,
            }),
        }
    }

    /// A lease at once, or none where one would have to wait. None that is large where the pool is tight.
    pub fn try_lease(&self, size: Size) -> Option<Lease> {
        let slot = self
            .inner
            .hoarded(size)
            .or_else(|| self.inner.depot.try_take(size))?;
        Some(self.inner.lend(slot))
    }

    /// A small lease, waiting in turn where the pool is at its bound. `wait` keeps the place in
    /// the queue between calls: hand in the same one, `None` at first; it is `None` again once a lease is
    /// given. The bound of the wait is the caller's: it holds nothing meanwhile.
    pub fn poll_lease(&self, cx: &mut Context<'_>, wait: &mut Option<Wait>) -> Poll<Lease> {
        let slot = match wait {
            None => match self.inner.hoarded(Size::Small) {
                Some(slot) => slot,
                None => match self.inner.depot.take_or_queue(cx.waker()) {
                    Ok(slot) => slot,
                    Err(ticket) => {
                        *wait = Some(Wait {
                            depot: Arc::clone(&self.inner.depot),
                            ticket,
                        });
                        return Poll::Pending;
                    }
                },
            },
            Some(place) => match self.inner.depot.redeem(place.ticket, cx.waker()) {
                Some(slot) => {
                    *wait = None;
                    slot
                }
                None => return Poll::Pending,
            },
        };
        Poll::Ready(self.inner.lend(slot))
    }

    /// A small lease, waiting in turn where the pool is at its bound.
    pub async fn lease(&self) -> Lease {
        let mut wait = None;
        poll_fn(|cx| self.poll_lease(cx, &mut wait)).await
    }

    /// Whether anybody waits for a slot, on any worker.
    pub fn pressure(&self) -> bool {
        self.inner.depot.level() == Level::Waited
    }

    /// Whether half of the pool's bound is in use, or more: hold nothing that need not be held.
    #[inline]
    pub fn tight(&self) -> bool {
        self.inner.depot.level() >= Level::Tight
    }

    /// Ready when more is free than calm work needs. Then wait for the burst to be over, and [`Self::trim`].
    pub async fn surplus(&self) {
        poll_fn(|cx| {
            if self.inner.surplus.get() {
                return Poll::Ready(());
            }
            *self.inner.untidy.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Frees what this magazine and the depot do not need in calm times. What was made by other threads may become free by that, so
    /// their magazines are told that there is a surplus.
    pub fn trim(&self) {
        self.inner.surplus.set(false);
        for (hoard, most) in [(&self.inner.small, KEEP), (&self.inner.large, 0)] {
            let most = hoard.slots.borrow().len().min(most);
            let spare = hoard.slots.borrow_mut().split_off(most);
            for slot in spare {
                self.inner.depot.give(slot);
            }
        }
        self.inner.depot.trim(self.inner.id);
    }

    /// Never ends: hands the hoard back whenever somebody, on any worker, has to wait. A worker runs
    /// this beside its connections.
    pub async fn recall(&self) {
        poll_fn(|cx| {
            let told = self.inner.depot.set_recall(self.inner.id, cx.waker());
            if told.wanted {
                self.inner.flush();
            }
            if self.inner.trims.replace(told.trims) != told.trims {
                self.inner.note_surplus();
            }
            Poll::<()>::Pending
        })
        .await;
    }
}

#[allow(clippy::vec_box, reason = "as above")]
impl Inner {
    fn hoard(&self, size: Size) -> &Hoard {
        match size {
            Size::Small => &self.small,
            Size::Large => &self.large,
        }
    }

    #[inline]
    fn hoarded(&self, size: Size) -> Option<Box<Slot>> {
        match (self.depot.level(), size) {
            // Others were here before; large ones are not for tight times.
            (Level::Waited, _) | (Level::Tight, Size::Large) => return None,
            _ => {}
        }
        self.hoard(size).slots.borrow_mut().pop()
    }

    #[inline]
    fn lend(self: &Rc<Self>, mut slot: Box<Slot>) -> Lease {
        slot.reset();
        let leased = self.leased.load(Ordering::Relaxed);
        self.leased.store(leased + slot.len(), Ordering::Relaxed);
        Lease::new(slot, Rc::clone(self))
    }

    #[inline]
    pub(super) fn take_back(&self, slot: Box<Slot>) {
        let leased = self.leased.load(Ordering::Relaxed);
        self.leased.store(leased - slot.len(), Ordering::Relaxed);
        let hoard = self.hoard(slot.size);
        let most = match (self.depot.level(), slot.size) {
            (Level::Calm, _) => hoard.most,
            (Level::Tight, Size::Small) => hoard.most.min(KEEP),
            (Level::Tight, Size::Large) | (Level::Waited, _) => 0,
        };
        let mut slots = hoard.slots.borrow_mut();
        let hoarding = slots.len() < most;
        if hoarding {
            let calm = slot.size == Size::Small && slots.len() < KEEP;
            slots.push(slot);
            drop(slots);
            if calm {
                return;
            }
        } else {
            drop(slots);
            self.depot.give(slot);
        }
        self.note_surplus();
    }

    fn note_surplus(&self) {
        if !self.surplus.replace(true)
            && let Some(waker) = self.untidy.borrow_mut().take()
        {
            waker.wake();
        }
    }

    fn flush(&self) {
        for size in [Size::Small, Size::Large] {
            // Taken out first: giving may wake, and a waker may lease.
            let hoard = std::mem::take(&mut *self.hoard(size).slots.borrow_mut());
            for slot in hoard {
                self.depot.give(slot);
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.flush();
        self.depot.deregister(self.id);
    }
}
