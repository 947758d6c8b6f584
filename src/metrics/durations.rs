//! How long things took: a histogram with one writer.

use std::time::Duration;

use super::Counter;
use super::row::Row;

/// How often something took how long. Counting costs a look through a few bounds and two additions.
#[derive(Debug)]
pub struct Durations {
    /// Upper bounds of the buckets, in microseconds.
    bounds: &'static [u64],
    /// One for each bound, one for what is above all of them, and the sum.
    counts: Row<Counter>,
}

impl Durations {
    /// With these bounds.
    pub(super) fn new(bounds_us: &'static [u64]) -> Self {
        Self {
            bounds: bounds_us,
            counts: Row::new(bounds_us.len() + 2),
        }
    }

    /// It took this long.
    pub fn count(&self, duration: Duration) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = self.bounds.partition_point(|bound| *bound < us);
        for (at, more) in [(bucket, 1), (self.bounds.len() + 1, us)] {
            if let Some(counter) = self.counts.get(at) {
                counter.add(more);
            }
        }
    }

    /// How many lie in each bucket.
    pub fn buckets(&self) -> impl Iterator<Item = u64> + '_ {
        let buckets = self.counts.iter().take(self.bounds.len() + 1);
        buckets.map(Counter::get)
    }

    /// All of them together, in microseconds.
    pub fn sum_us(&self) -> u64 {
        let sum = self.counts.get(self.bounds.len() + 1);
        sum.map_or(0, Counter::get)
    }

    /// Addresses of what is written.
    #[cfg(test)]
    pub(super) fn places(&self) -> impl Iterator<Item = usize> {
        self.counts.iter().map(|c| std::ptr::from_ref(c).addr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::names;

    #[test]
    fn a_duration_lies_in_the_first_bucket_that_holds_it() {
        let durations = Durations::new(&names::DURATIONS_US);
        for us in [0, 1_000, 1_001, 150_000_000, 150_000_001] {
            durations.count(Duration::from_micros(us));
        }
        let buckets: Vec<_> = durations.buckets().collect();
        assert_eq!(buckets.len(), names::DURATIONS_US.len() + 1);
        assert_eq!((buckets[0], buckets[1]), (2, 1));
        assert_eq!((buckets[16], buckets[17]), (1, 1));
        assert_eq!(buckets.iter().sum::<u64>(), 5);
        assert_eq!(durations.sum_us(), 300_002_002);
        assert!(names::DURATIONS_US.is_sorted());
        assert!(names::HANDSHAKES_US.is_sorted());
    }
}
