//! The shared part of the pool: the bound, the supply of free slots, and the queue of those who wait.
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

use super::Bounds;
use super::slot::{SMALL_LEN, Size, Slot, large_len};
use super::supply::Supply;
use super::sync::{AtomicUsize, Mutex, MutexGuard, Ordering};

/// The share of the bound beyond which the pool is tight.
const TIGHT_SHARE: usize = 2;

/// How much of the pool is in use; in the order of need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub(super) enum Level {
    Calm,
    /// Half of the bound is in use, or more.
    Tight,
    /// Somebody waits.
    Waited,
}

/// Figures of the pool at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// The bound, in bytes.
    pub limit_bytes: usize,
    /// Bytes allocated: leased, hoarded by magazines, and resting.
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
    bounds: Bounds,
    state: Mutex<State>,
    /// A [`Level`]. Written under the lock; read without it by magazines.
    level: AtomicUsize,
}

struct State {
    supply: Box<dyn Supply>,
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
    /// How often others have freed slots that may have been made on its thread.
    trims: usize,
}

/// Why a magazine was woken.
pub(super) struct Told {
    /// Somebody waits for slots.
    pub(super) wanted: bool,
    /// How often others have freed some.
    pub(super) trims: usize,
}

impl State {
    fn recalls(&self, of: impl Fn(&Known) -> bool) -> Vec<Waker> {
        let known = self.magazines.iter().filter(|known| of(known));
        known.filter_map(|known| known.recall.clone()).collect()
    }
}

/// A slot, or the right to make one; made outside the lock.
enum Taken {
    Rested(Box<Slot>),
    New(Size, usize),
}

impl Taken {
    fn slot(self) -> Box<Slot> {
        match self {
            Self::Rested(slot) => slot,
            Self::New(size, len) => Slot::new(size, len),
        }
    }
}

impl std::fmt::Debug for Depot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Depot")
            .field("bounds", &self.bounds)
            .finish_non_exhaustive()
    }
}

impl Depot {
    pub(super) fn new(bounds: Bounds, supply: Box<dyn Supply>) -> Self {
        let state = State {
            supply,
            allocated: 0,
            waiting: VecDeque::new(),
            granted: HashMap::new(),
            next_ticket: 0,
            magazines: Vec::new(),
            next_magazine: 0,
            allocations: 0,
            waits: 0,
        };
        Self {
            bounds,
            state: Mutex::new(state),
            level: AtomicUsize::new(Level::Calm as usize),
        }
    }

    /// Most free slots of this size that a magazine may hoard.
    pub(super) fn at_hand(&self, size: Size) -> usize {
        self.lock().supply.at_hand(size)
    }

    fn len_of(&self, size: Size) -> usize {
        match size {
            Size::Small => SMALL_LEN,
            Size::Large => large_len(self.bounds.large_records),
        }
    }

    /// How much is in use.
    #[inline]
    pub(super) fn level(&self) -> Level {
        match self.level.load(Ordering::Relaxed) {
            0 => Level::Calm,
            1 => Level::Tight,
            _ => Level::Waited,
        }
    }

    /// A slot at once, or none: the bound is reached, or others were here before.
    pub(super) fn try_take(&self, size: Size) -> Option<Box<Slot>> {
        let mut state = self.lock();
        if !state.waiting.is_empty() {
            return None;
        }
        let taken = self.take(&mut state, size)?;
        self.note_level(&state);
        drop(state);
        Some(taken.slot())
    }

    /// A slot at once, or a place in the queue, whose holder `waker` wakes when a slot was granted.
    pub(super) fn take_or_queue(&self, waker: &Waker) -> Result<Box<Slot>, u64> {
        let mut state = self.lock();
        if state.waiting.is_empty()
            && let Some(taken) = self.take(&mut state, Size::Small)
        {
            self.note_level(&state);
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
        self.note_level(&state);
        // Outside the lock: a waker may run code of another runtime.
        let recalls = state.recalls(|_| true);
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
            self.note_level(&state);
        }
    }

    /// Takes a slot back: to the first who waits, else to the supply.
    pub(super) fn give(&self, slot: Box<Slot>) {
        let state = self.lock();
        self.give_locked(state, slot);
    }

    fn give_locked(&self, mut state: MutexGuard<'_, State>, slot: Box<Slot>) {
        let len = slot.len();
        if state.waiting.is_empty() {
            let freed = state.supply.put(slot);
            if freed.is_some() {
                state.allocated -= len;
            }
            self.note_level(&state);
            drop(state);
            drop(freed);
            return;
        }
        // Those who wait want small slots; a large one makes room for several.
        let first = match slot.size {
            Size::Small => Some(slot),
            Size::Large => {
                state.allocated -= len;
                None
            }
        };
        self.serve(state, first);
    }

    /// Serves who waits, in turn, as far as there are slots: `first` and then others.
    fn serve(&self, mut state: MutexGuard<'_, State>, mut first: Option<Box<Slot>>) {
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
        self.note_level(&state);
        drop(state);
        for waker in wake {
            waker.wake();
        }
    }

    /// Serves who waits, where the supply may have changed its mind.
    pub(super) fn retry(&self) {
        self.serve(self.lock(), None);
    }

    /// One that rests, else new within the bound, else none.
    fn take(&self, state: &mut State, size: Size) -> Option<Taken> {
        let len = self.len_of(size);
        if size == Size::Large {
            // Small ones must be left for others.
            let in_use = state.allocated - state.supply.resting();
            if self.bounds.large_records <= 1 || in_use + len > self.bounds.limit / TIGHT_SHARE {
                return None;
            }
        }
        if let Some(slot) = state.supply.take(size) {
            return Some(Taken::Rested(slot));
        }
        if !state.supply.may_make(size) {
            return None;
        }
        while state.allocated + len > self.bounds.limit {
            // What rests and is of the other size is in the way.
            let other = match size {
                Size::Small => state.supply.take(Size::Large),
                Size::Large => None,
            }?;
            state.allocated -= other.len();
        }
        state.allocated += len;
        state.allocations += 1;
        Some(Taken::New(size, len))
    }

    fn note_level(&self, state: &State) {
        let in_use = state.allocated - state.supply.resting();
        let level = if !state.waiting.is_empty() {
            Level::Waited
        } else if in_use > self.bounds.limit / TIGHT_SHARE {
            Level::Tight
        } else {
            Level::Calm
        };
        self.level.store(level as usize, Ordering::Relaxed);
    }

    /// Frees what rests, and tells all magazines but this one, if it was anything.
    pub(super) fn trim(&self, magazine: u64) {
        let mut state = self.lock();
        let mut freed = Vec::new();
        for size in [Size::Small, Size::Large] {
            freed.extend(std::iter::from_fn(|| state.supply.take(size)));
        }
        if freed.is_empty() {
            return;
        }
        state.allocated -= freed.iter().map(|slot| slot.len()).sum::<usize>();
        for known in state.magazines.iter_mut().filter(|m| m.id != magazine) {
            known.trims += 1;
        }
        let others = state.recalls(|known| known.id != magazine);
        drop(state);
        drop(freed);
        for other in others {
            other.wake();
        }
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
            trims: 0,
        });
        id
    }

    /// Whom to wake when slots are wanted back from a magazine, or others have freed some. Returns how both stand.
    pub(super) fn set_recall(&self, magazine: u64, waker: &Waker) -> Told {
        let mut state = self.lock();
        let wanted = !state.waiting.is_empty();
        let Some(known) = state.magazines.iter_mut().find(|m| m.id == magazine) else {
            return Told { wanted, trims: 0 };
        };
        if !known.recall.as_ref().is_some_and(|w| w.will_wake(waker)) {
            known.recall = Some(waker.clone());
        }
        Told {
            wanted,
            trims: known.trims,
        }
    }

    /// The magazine is gone.
    pub(super) fn deregister(&self, magazine: u64) {
        let mut state = self.lock();
        state.magazines.retain(|m| m.id != magazine);
    }

    pub(super) fn stats(&self) -> PoolStats {
        let state = self.lock();
        PoolStats {
            limit_bytes: self.bounds.limit,
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
