//! Counters side by side, on cache lines of their own.

/// What one writer counts must not lie on a line that another writes: each store would take the line away from the other
/// core. Processors fetch lines of 64 bytes in pairs, so 128 is what keeps two writers apart.
const APART: usize = 128;

/// As many numbers as two lines hold.
const NUMBERS: usize = APART / size_of::<u64>();

#[derive(Debug, Default)]
#[repr(align(128))]
struct Lines<T>([T; NUMBERS]);

const _: () = assert!(align_of::<Lines<u64>>() == APART && size_of::<Lines<u64>>() == APART);

/// A fixed number of counters or gauges that share their cache lines with nothing else.
#[derive(Debug)]
pub(super) struct Row<T> {
    lines: Box<[Lines<T>]>,
    len: usize,
}

impl<T: Default> Row<T> {
    /// So many, all zero.
    pub(super) fn new(len: usize) -> Self {
        let lines = len.div_ceil(NUMBERS);
        Self {
            lines: (0..lines).map(|_| Lines::default()).collect(),
            len,
        }
    }
}

impl<T> Row<T> {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// One of them.
    pub(super) fn get(&self, at: usize) -> Option<&T> {
        self.lines.get(at / NUMBERS)?.0.get(at % NUMBERS)
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.lines.iter().flat_map(|lines| &lines.0).take(self.len)
    }
}
