//! The shared part of the pool: the bound, the spare slots, and the queue of those who wait.
//!
//! One short lock. The usual lease never comes here (see `magazine`); it is taken when a
//! magazine runs empty or over, at the bound, and with pooling off.
//!
//! The order in which things happen, checked by `tests/loom.rs`:
//! who waits enqueues, sets `pressure` and then wakes every magazine's recall, all of it under the lock or after
//! it; a magazine that saw no pressure and hoarded a slot does so on the thread that runs its
//! recall afterwards. So no slot rests in a magazine while somebody waits.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use super::Settings;
use super::slot::{SMALL_LEN, Size, Slot, large_len};
use super::sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering};

/// Free slots that the depot keeps; more go back to the allocator.
const SPARE_BYTES_MAX: usize = 2 << 20;

/// Figures of the pool at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Whether slots are kept between leases.
    pub pooled: bool,
    /// The bound, in bytes.
    pub limit_bytes: usize,
    /// Bytes allocated: leased, hoarded by magazines, and spare.
    pub allocated_bytes: usize,
    /// Bytes held through leases.
    pub leased_bytes: usize,
    /// Slots allocated since the start.
    pub allocations: u64,
    /// Leases that had to wait since the start.
    pub waits: u64,
    /// Leases that wait now.
    pub waiting: usize,
}

/// See the module.
pub(super) struct Depot {
    settings: Settings,
    state: Mutex<State>,
    /// Somebody waits. Written under the lock; read without it by magazines.
    pressure: AtomicBool,
}

#[derive(Default)]
#[allow(
    clippy::vec_box,
    reason = "slots move between owners by pointer, not by their 200 bytes of cursors"
)]
struct State {
    small: Vec<Box<Slot>>,
    large: Vec<Box<Slot>>,
    spare_bytes: usize,
    allocated: usize,
    waiting: VecDeque<Waiter>,
    granted: HashMap<u64, Box<Slot>>,
    next_ticket: u64,
    magazines: Vec<Known>,
    next_magazine: u64,
    allocations: u64,
    waits: u64,
}

/// In the queue in the order of tickets, which only grow.
struct Waiter {
    ticket: u64,
    waker: Waker,
}

/// What the depot knows of a magazine.
struct Known {
    id: u64,
    leased: Arc<AtomicUsize>,
    recall: Option<Waker>,
}

/// A slot, or the right to make one; made outside the lock.
enum Taken {
    Spare(Box<Slot>),
    New(Size, usize),
}

impl Taken {
    fn slot(self) -> Box<Slot> {
        match self {
            Self::Spare(slot) => slot,
            Self::New(size, len) => Slot::new(size, len),
        }
    }
}

impl std::fmt::Debug for Depot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Depot")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Depot {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            state: Mutex::new(State::default()),
            pressure: AtomicBool::new(false),
        }
    }

    pub(super) fn pooled(&self) -> bool {
        self.settings.pooled
    }

    pub(super) fn has_large(&self) -> bool {
        self.settings.large_records > 1
    }

    fn len_of(&self, size: Size) -> usize {
        match size {
            Size::Small => SMALL_LEN,
            Size::Large => large_len(self.settings.large_records),
        }
    }

    /// Whether anybody waits for a slot.
    pub(super) fn pressure(&self) -> bool {
        self.pressure.load(Ordering::Relaxed)
    }

    /// A slot at once, or none: the bound is reached, or others were here before.
    pub(super) fn try_take(&self, size: Size) -> Option<Box<Slot>> {
        let mut state = self.lock();
        if !state.waiting.is_empty() {
            return None;
        }
        let taken = self.take(&mut state, size)?;
        drop(state);
        Some(taken.slot())
    }

    /// A slot at once, or a place in the queue, whose holder `waker` wakes when a slot was granted.
    pub(super) fn take_or_queue(&self, waker: &Waker) -> Result<Box<Slot>, u64> {
        let mut state = self.lock();
        if state.waiting.is_empty()
            && let Some(taken) = self.take(&mut state, Size::Small)
        {
            drop(state);
            return Ok(taken.slot());
        }
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.waits += 1;
        state.waiting.push_back(Waiter {
            ticket,
            waker: waker.clone(),
        });
        self.pressure.store(true, Ordering::Relaxed);
        // Outside the lock: a waker may run code of another runtime.
        let recalls: Vec<Waker> = state
            .magazines
            .iter()
            .filter_map(|m| m.recall.clone())
            .collect();
        drop(state);
        for recall in recalls {
            recall.wake();
        }
        Err(ticket)
    }

    /// What became of a place in the queue. `None`: it still waits, and `waker` is woken next time.
    pub(super) fn redeem(&self, ticket: u64, waker: &Waker) -> Option<Box<Slot>> {
        let mut state = self.lock();
        if let Some(slot) = state.granted.remove(&ticket) {
            return Some(slot);
        }
        if let Ok(at) = state.waiting.binary_search_by_key(&ticket, |w| w.ticket)
            && !state.waiting[at].waker.will_wake(waker)
        {
            state.waiting[at].waker = waker.clone();
        }
        None
    }

    /// Gives up a place in the queue; a slot granted meanwhile goes to the next.
    pub(super) fn abandon(&self, ticket: u64) {
        let mut state = self.lock();
        if let Some(slot) = state.granted.remove(&ticket) {
            self.give_locked(state, slot);
        } else if let Ok(at) = state.waiting.binary_search_by_key(&ticket, |w| w.ticket) {
            state.waiting.remove(at);
            self.note_pressure(&state);
        }
    }

    /// Takes a slot back: to the first who waits, else to the spare ones, else to the allocator.
    pub(super) fn give(&self, slot: Box<Slot>) {
        let state = self.lock();
        self.give_locked(state, slot);
    }

    fn give_locked(&self, mut state: MutexGuard<'_, State>, slot: Box<Slot>) {
        let len = slot.len();
        if state.waiting.is_empty() {
            if self.settings.pooled && state.spare_bytes + len <= SPARE_BYTES_MAX {
                state.spare_bytes += len;
                match slot.size {
                    Size::Small => state.small.push(slot),
                    Size::Large => state.large.push(slot),
                }
            } else {
                state.allocated -= len;
                drop(state);
                drop(slot);
            }
            return;
        }
        // Those who wait want small slots; a large one makes room for several.
        let mut first = match slot.size {
            Size::Small => Some(slot),
            Size::Large => {
                state.allocated -= len;
                None
            }
        };
        let mut wake = Vec::new();
        while !state.waiting.is_empty() {
            let Some(slot) = first
                .take()
                .or_else(|| self.take(&mut state, Size::Small).map(Taken::slot))
            else {
                break;
            };
            let Some(waiter) = state.waiting.pop_front() else {
                break;
            };
            state.granted.insert(waiter.ticket, slot);
            wake.push(waiter.waker);
        }
        self.note_pressure(&state);
        drop(state);
        for waker in wake {
            waker.wake();
        }
    }

    /// Spare, else new within the bound, else none.
    fn take(&self, state: &mut State, size: Size) -> Option<Taken> {
        let spare = match size {
            Size::Small => state.small.pop(),
            Size::Large => state.large.pop(),
        };
        if let Some(slot) = spare {
            state.spare_bytes -= slot.len();
            return Some(Taken::Spare(slot));
        }
        let len = self.len_of(size);
        while state.allocated + len > self.settings.limit {
            // Spare slots of the other size are in the way.
            let other = match size {
                Size::Small => state.large.pop(),
                Size::Large => None,
            }?;
            state.spare_bytes -= other.len();
            state.allocated -= other.len();
        }
        state.allocated += len;
        state.allocations += 1;
        Some(Taken::New(size, len))
    }

    fn note_pressure(&self, state: &State) {
        self.pressure
            .store(!state.waiting.is_empty(), Ordering::Relaxed);
    }

    /// Makes a magazine known. `leased` is its own count of bytes held through leases.
    pub(super) fn register(&self, leased: Arc<AtomicUsize>) -> u64 {
        let mut state = self.lock();
        let id = state.next_magazine;
        state.next_magazine += 1;
        state.magazines.push(Known {
            id,
            leased,
            recall: None,
        });
        id
    }

    /// Whom to wake when slots are wanted back from a magazine. Returns whether they are wanted now.
    pub(super) fn set_recall(&self, magazine: u64, waker: &Waker) -> bool {
        let mut state = self.lock();
        if let Some(known) = state.magazines.iter_mut().find(|m| m.id == magazine)
            && !known.recall.as_ref().is_some_and(|w| w.will_wake(waker))
        {
            known.recall = Some(waker.clone());
        }
        !state.waiting.is_empty()
    }

    /// The magazine is gone.
    pub(super) fn deregister(&self, magazine: u64) {
        let mut state = self.lock();
        state.magazines.retain(|m| m.id != magazine);
    }

    pub(super) fn stats(&self) -> PoolStats {
        let state = self.lock();
        PoolStats {
            pooled: self.settings.pooled,
            limit_bytes: self.settings.limit,
            allocated_bytes: state.allocated,
            leased_bytes: state
                .magazines
                .iter()
                .map(|m| m.leased.load(Ordering::Relaxed))
                .sum(),
            allocations: state.allocations,
            waits: state.waits,
            waiting: state.waiting.len(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under this lock would be a fault of this file alone, and every step leaves the state whole.
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
