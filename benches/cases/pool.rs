//! A lease and its return, with the pool and without.

use std::hint::black_box;

use vestibule::pool::{Bounds, BufferPool, Magazine, PerRecord, Pooled, Size};

use super::{Case, Entry};

struct LeaseCase {
    magazine: Magazine,
    size: Size,
}

impl LeaseCase {
    fn new(pooled: bool, size: Size) -> Self {
        let bounds = Bounds {
            limit: 16 << 20,
            large_records: 4,
        };
        let pool = if pooled {
            BufferPool::new(bounds, Pooled::default())
        } else {
            BufferPool::new(bounds, PerRecord)
        };
        Self {
            magazine: pool.magazine(),
            size,
        }
    }
}

impl Case for LeaseCase {
    fn run(&mut self, _: &[u8]) {
        black_box(self.magazine.try_lease(self.size)).expect("the pool is far from its bound");
    }
}

pub(crate) fn entries() -> Vec<Entry> {
    let mut entries = Vec::new();
    for (name, size) in [("small", Size::Small), ("large", Size::Large)] {
        for (how, pooled) in [("pooled", true), ("per-record", false)] {
            entries.push(Entry::new(format!("lease/{name}/{how}"), move || {
                LeaseCase::new(pooled, size)
            }));
        }
    }
    entries
}
