//! Where free slots rest: the part of the pool that can be replaced.
//!
//! The bound, the queue of those who wait and the leases are the same for every supply; a supply only decides what becomes
//! of a slot between two leases.

use std::fmt::Debug;

use super::slot::{Size, Slot};

/// Free slots that the pool keeps for all workers; more go back to the allocator.
const SPARE_BYTES_MAX: usize = 2 << 20;
/// Most free slots of a size that a worker keeps at hand: enough for the leases of one turn of its event loop.
const AT_HAND: (usize, usize) = (16, 4);

/// See the module. Called by one thread at a time.
pub trait Supply: Debug + Send {
    /// A free slot of this size that rests here.
    fn take(&mut self, size: Size) -> Option<Box<Slot>>;

    /// Takes in a slot that nobody uses any more. What comes back is freed.
    fn put(&mut self, slot: Box<Slot>) -> Option<Box<Slot>>;

    /// Whether a new slot may be made now, the pool's bound apart. If not, who wants one waits, until a slot comes back or
    /// [`BufferPool::retry`](super::BufferPool::retry) is called.
    fn may_make(&mut self, _size: Size) -> bool {
        true
    }

    /// Bytes that rest here.
    fn resting(&self) -> usize {
        0
    }

    /// Most free slots of this size that each worker may keep at hand, where taking one costs no lock.
    fn at_hand(&self, _size: Size) -> usize {
        0
    }
}

/// Slots are kept for the next lease: nothing is allocated for each record.
#[derive(Debug, Default)]
#[allow(
    clippy::vec_box,
    reason = "slots move between owners by pointer, not by their 200 bytes of cursors"
)]
pub struct Pooled {
    small: Vec<Box<Slot>>,
    large: Vec<Box<Slot>>,
    resting: usize,
}

impl Supply for Pooled {
    fn take(&mut self, size: Size) -> Option<Box<Slot>> {
        let slot = match size {
            Size::Small => self.small.pop(),
            Size::Large => self.large.pop(),
        }?;
        self.resting -= slot.len();
        Some(slot)
    }

    fn put(&mut self, slot: Box<Slot>) -> Option<Box<Slot>> {
        if self.resting + slot.len() > SPARE_BYTES_MAX {
            return Some(slot);
        }
        self.resting += slot.len();
        match slot.size {
            Size::Small => self.small.push(slot),
            Size::Large => self.large.push(slot),
        }
        None
    }

    fn resting(&self) -> usize {
        self.resting
    }

    fn at_hand(&self, size: Size) -> usize {
        match size {
            Size::Small => AT_HAND.0,
            Size::Large => AT_HAND.1,
        }
    }
}

/// Each lease is a fresh allocation, freed at its end (`--no-buffer-pool`).
#[derive(Debug, Default)]
pub struct PerRecord;

impl Supply for PerRecord {
    fn take(&mut self, _size: Size) -> Option<Box<Slot>> {
        None
    }

    fn put(&mut self, slot: Box<Slot>) -> Option<Box<Slot>> {
        Some(slot)
    }
}
