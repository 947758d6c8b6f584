//! A worker's private stack of slots.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::Lease;
use super::depot::Depot;
use super::slot::{Size, Slot};
use super::sync::{AtomicUsize, Ordering};

/// Most free slots of a size that a worker hoards: enough for the leases of one turn of its event loop.
const HOARD_SMALL: usize = 16;
const HOARD_LARGE: usize = 4;

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
    small: RefCell<Vec<Box<Slot>>>,
    large: RefCell<Vec<Box<Slot>>>,
    /// Bytes held through leases; this thread alone writes.
    leased: Arc<AtomicUsize>,
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
        Self {
            inner: Rc::new(Inner {
                depot,
                id,
                small: RefCell::default(),
                large: RefCell::default(),
                leased,
            }),
        }
    }

    /// A lease at once, or none where one would have to wait.
    pub fn try_lease(&self, size: Size) -> Option<Lease> {
        if size == Size::Large && !self.inner.depot.has_large() {
            return None;
        }
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
        self.inner.depot.pressure()
    }

    /// Never ends: hands the hoard back whenever somebody, on any worker, has to wait. A worker runs
    /// this beside its connections.
    pub async fn recall(&self) {
        poll_fn(|cx| {
            if self.inner.depot.set_recall(self.inner.id, cx.waker()) {
                self.inner.flush();
            }
            Poll::<()>::Pending
        })
        .await;
    }
}

#[allow(clippy::vec_box, reason = "as above")]
impl Inner {
    fn stack(&self, size: Size) -> &RefCell<Vec<Box<Slot>>> {
        match size {
            Size::Small => &self.small,
            Size::Large => &self.large,
        }
    }

    #[inline]
    fn hoarded(&self, size: Size) -> Option<Box<Slot>> {
        if self.depot.pressure() {
            return None; // others were here before
        }
        self.stack(size).borrow_mut().pop()
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
        if self.depot.pooled() && !self.depot.pressure() {
            let mut stack = self.stack(slot.size).borrow_mut();
            let most = match slot.size {
                Size::Small => HOARD_SMALL,
                Size::Large => HOARD_LARGE,
            };
            if stack.len() < most {
                stack.push(slot);
                return;
            }
        }
        self.depot.give(slot);
    }

    fn flush(&self) {
        for size in [Size::Small, Size::Large] {
            // Taken out first: giving may wake, and a waker may lease.
            let hoard = std::mem::take(&mut *self.stack(size).borrow_mut());
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
