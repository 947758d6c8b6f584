//! A lease: one slot held for a moment, with its cursors.

use std::io::IoSlice;
use std::ops::Range;
use std::rc::Rc;

use super::magazine::Inner;
use super::slot::{HEADROOM, READY_MAX, Size, Slot};

/// One buffer, held. It goes back where it came from on drop.
///
/// Bytes pass through three stages: *filled* (read from a socket), *taken* (looked at: opened, or meant to be
/// sealed), *ready* (ranges that a socket shall get). What is ready may lie anywhere in the buffer
/// before `taken`.
#[derive(Debug)]
pub struct Lease {
    /// `Some` until drop.
    slot: Option<Box<Slot>>,
    home: Rc<Inner>,
}

impl Drop for Lease {
    #[inline]
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.home.take_back(slot);
        }
    }
}

impl Lease {
    pub(super) fn new(slot: Box<Slot>, home: Rc<Inner>) -> Self {
        Self {
            slot: Some(slot),
            home,
        }
    }

    #[inline]
    fn slot(&self) -> &Slot {
        match &self.slot {
            Some(slot) => slot,
            None => unreachable!("a lease has its slot until it is dropped"),
        }
    }

    #[inline]
    fn slot_mut(&mut self) -> &mut Slot {
        match &mut self.slot {
            Some(slot) => slot,
            None => unreachable!("a lease has its slot until it is dropped"),
        }
    }

    /// Small or large.
    pub fn size(&self) -> Size {
        self.slot().size
    }

    /// The whole buffer, for work in place at ranges that the caller keeps.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.slot_mut().bytes
    }

    /// Room behind what was filled; for a read from a socket.
    #[inline]
    pub fn spare_mut(&mut self) -> &mut [u8] {
        let slot = self.slot_mut();
        &mut slot.bytes[slot.filled as usize..]
    }

    /// `n` bytes of the spare room were filled.
    #[inline]
    pub fn filled_by(&mut self, n: usize) {
        let slot = self.slot_mut();
        slot.filled += n as u32;
        debug_assert!(slot.filled as usize <= slot.bytes.len());
    }

    /// What was filled and not yet taken, as a range of the buffer.
    #[inline]
    pub fn unread(&self) -> Range<usize> {
        let slot = self.slot();
        slot.taken as usize..slot.filled as usize
    }

    /// What was filled and not yet taken.
    #[inline]
    pub fn unread_mut(&mut self) -> &mut [u8] {
        let range = self.unread();
        &mut self.slot_mut().bytes[range]
    }

    /// `n` of the unread bytes were looked at.
    #[inline]
    pub fn take(&mut self, n: usize) {
        let slot = self.slot_mut();
        slot.taken += n as u32;
        debug_assert!(slot.taken <= slot.filled);
    }

    /// Moves the unread bytes to the front, so that the room behind them is largest. Only when nothing is ready.
    pub fn compact(&mut self) {
        debug_assert!(!self.has_ready());
        let slot = self.slot_mut();
        let unread = slot.taken as usize..slot.filled as usize;
        if unread.start != HEADROOM {
            slot.filled = (HEADROOM + unread.len()) as u32;
            slot.taken = HEADROOM as u32;
            slot.bytes.copy_within(unread, HEADROOM);
        }
    }

    /// Copies the unread bytes into a fresh lease that has room for them.
    pub fn move_unread_to(&mut self, other: &mut Self) {
        let unread = self.unread();
        let n = unread.len();
        other.spare_mut()[..n].copy_from_slice(&self.slot().bytes[unread]);
        other.filled_by(n);
        self.take(n);
    }

    /// How many bytes are held: ready to be written, and unread.
    pub fn held(&self) -> usize {
        let slot = self.slot();
        let ready = &slot.ready[slot.first as usize..slot.last as usize];
        let ready: u32 = ready.iter().map(|(start, end)| end - start).sum();
        ready as usize + self.unread().len()
    }

    /// Copies what is held into a fresh lease that has room for it.
    pub fn move_to(&mut self, other: &mut Self) {
        let mut slices = [IoSlice::new(&[]); READY_MAX];
        let count = self.ready(&mut slices);
        let mut ready = 0;
        for slice in &slices[..count] {
            other.spare_mut()[..slice.len()].copy_from_slice(slice);
            other.filled_by(slice.len());
            ready += slice.len();
        }
        if ready > 0 {
            let start = other.unread().start;
            other.take(ready);
            other.push_ready(start..start + ready);
        }
        self.sent_by(ready);
        self.move_unread_to(other);
    }

    /// Adds a range to what shall be written. At most [`Lease::ready_room`] times.
    #[inline]
    pub fn push_ready(&mut self, range: Range<usize>) {
        let slot = self.slot_mut();
        debug_assert!(range.end <= slot.bytes.len() && !range.is_empty());
        slot.ready[slot.last as usize] = (range.start as u32, range.end as u32);
        slot.last += 1;
    }

    /// How many ranges may still be added.
    #[inline]
    pub fn ready_room(&self) -> usize {
        READY_MAX - self.slot().last as usize
    }

    /// Whether there is something to write.
    #[inline]
    pub fn has_ready(&self) -> bool {
        let slot = self.slot();
        slot.first < slot.last
    }

    /// The first range that shall be written, if it is the only one.
    #[inline]
    pub fn only_ready(&self) -> Option<&[u8]> {
        let slot = self.slot();
        if slot.last - slot.first != 1 {
            return None;
        }
        let (start, end) = slot.ready[slot.first as usize];
        Some(&slot.bytes[start as usize..end as usize])
    }

    /// What shall be written, as slices for one vectored write; returns how many there are.
    pub fn ready<'a>(&'a self, slices: &mut [IoSlice<'a>; READY_MAX]) -> usize {
        let slot = self.slot();
        let ranges = &slot.ready[slot.first as usize..slot.last as usize];
        for (slice, (start, end)) in slices.iter_mut().zip(ranges) {
            *slice = IoSlice::new(&slot.bytes[*start as usize..*end as usize]);
        }
        ranges.len()
    }

    /// `n` bytes of what was ready were written.
    pub fn sent_by(&mut self, mut n: usize) {
        let slot = self.slot_mut();
        while n > 0 && slot.first < slot.last {
            let (start, end) = &mut slot.ready[slot.first as usize];
            let len = (*end - *start) as usize;
            if n < len {
                *start += n as u32;
                return;
            }
            n -= len;
            slot.first += 1;
        }
        debug_assert_eq!(n, 0);
        if slot.first == slot.last {
            slot.first = 0;
            slot.last = 0;
        }
    }
}
