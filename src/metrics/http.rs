//! What one worker counts of the HTTP of one listener. Made when the first request comes: most listeners have none.

use std::time::Duration;

use super::cells::Words;
use super::names;
use super::{Counter, Gauge};

/// Answers by the class of their status.
#[derive(Debug, Default)]
pub struct Codes([Counter; names::CODES.len()]);

impl Codes {
    /// Counts one answer; zero stands for none.
    pub fn count(&self, status: u16) {
        let class = usize::from(status / 100);
        if let Some(counter) = self.0.get(class).or_else(|| self.0.first()) {
            counter.add(1);
        }
    }

    /// Each class with its count.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let counts = self.0.iter().map(Counter::get);
        names::CODES.into_iter().zip(counts)
    }
}

/// How often something took how long.
#[derive(Debug, Default)]
pub struct Durations {
    /// The last one is for what is above all bounds.
    buckets: [Counter; names::DURATIONS_US.len() + 1],
    sum_us: Counter,
}

impl Durations {
    /// It took this long.
    pub fn count(&self, duration: Duration) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = names::DURATIONS_US.partition_point(|bound| *bound < us);
        if let Some(counter) = self.buckets.get(bucket) {
            counter.add(1);
        }
        self.sum_us.add(us);
    }

    /// How many lie in each bucket.
    pub fn buckets(&self) -> impl Iterator<Item = u64> + '_ {
        self.buckets.iter().map(Counter::get)
    }

    /// All of them together, in microseconds.
    pub fn sum_us(&self) -> u64 {
        self.sum_us.get()
    }
}

/// What a request waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Its answer.
    Request,
    /// Something to happen: the backend holds the answer back until then.
    LongPoll,
}

impl Wait {
    /// A success that a backend takes this long over is one that it has held back.
    const HELD: Duration = Duration::from_secs(5);

    /// Tells long polls from other requests, so that the minutes which BOSH (XEP-0124) holds its requests for do not look
    /// like the slowness of an application.
    ///
    /// The path decides where it is one that everybody uses for BOSH, since a poll that is answered soon says as
    /// little about a server's speed as one that is answered late. Anywhere else it is how long the backend took over
    /// a *success*, from the end of the request on: nobody waits for a page for so long, and a slow upload is not held
    /// against it. A failure, which includes our own answer when the backend has none in time, is a request however
    /// late it comes: it must stay in sight. Any rule by time alone would hide those as well.
    pub fn of(bosh: bool, status: u16, held: Duration) -> Self {
        let success = (200..300).contains(&status);
        if bosh || success && held >= Self::HELD {
            Self::LongPoll
        } else {
            Self::Request
        }
    }

    /// Whether this is a path that servers have for BOSH.
    pub fn is_bosh(path: &str) -> bool {
        path.split('/')
            .any(|segment| matches!(segment, "http-bind" | "bosh"))
    }
}

/// How a wish for a WebSocket ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upgrade {
    /// The protocol was changed.
    Switched,
    /// The backend answered otherwise.
    Refused,
    /// No backend answered, or the client left.
    Failed,
}

/// Who ended an answer before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The backend within its answer.
    Backend,
    /// The client, before the answer or within it.
    Client,
}

/// See the module.
#[derive(Debug)]
pub struct HttpCells {
    /// By route; the last is for requests without one.
    requests: Box<[Codes]>,
    durations: [Durations; names::WAITS.len()],
    /// By version.
    upgrades: [[Counter; names::UPGRADES.len()]; names::UPGRADE_VERSIONS.len()],
    /// Requests that have not ended.
    pub open: Gauge,
    /// WebSockets.
    pub tunnels: Gauge,
    /// Refusals, by reason.
    pub refused: Words,
    cut_short: [Counter; names::SIDES.len()],
}

impl HttpCells {
    /// For a listener with this many routes that are metric labels.
    pub fn new(routes: usize) -> Self {
        Self {
            requests: (0..=routes).map(|_| Codes::default()).collect(),
            durations: Default::default(),
            upgrades: Default::default(),
            open: Gauge::default(),
            tunnels: Gauge::default(),
            refused: Words::new(names::HTTP_REFUSED),
            cut_short: Default::default(),
        }
    }

    /// A request has been answered, or, with status zero, has ended without an answer.
    pub fn request(&self, route: Option<u16>, status: u16) {
        let none = self.requests.len() - 1;
        let at = route.map_or(none, |route| usize::from(route).min(none));
        if let Some(codes) = self.requests.get(at) {
            codes.count(status);
        }
    }

    /// Its answer has begun after this long.
    pub fn waited(&self, wait: Wait, duration: Duration) {
        self.durations[wait as usize].count(duration);
    }

    /// A wish for a WebSocket has ended, over HTTP/2 or HTTP/1.1.
    pub fn upgrade(&self, two: bool, outcome: Upgrade) {
        self.upgrades[usize::from(two)][outcome as usize].add(1);
    }

    /// An answer has not come to its end.
    pub fn cut_short(&self, side: Side) {
        self.cut_short[side as usize].add(1);
    }

    /// Requests: route, class, how many, where there were any.
    pub fn requests(&self) -> impl Iterator<Item = (usize, &'static str, u64)> + '_ {
        let routes = self.requests.iter().enumerate();
        let all = routes.flat_map(|(route, codes)| codes.iter().map(move |(c, n)| (route, c, n)));
        all.filter(|(.., count)| *count > 0)
    }

    /// Durations by what was waited for.
    pub fn durations(&self) -> impl Iterator<Item = (&'static str, &Durations)> {
        names::WAITS.into_iter().zip(&self.durations)
    }

    /// Wishes for a WebSocket: version, outcome, how many.
    pub fn upgrades(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + '_ {
        let versions = names::UPGRADE_VERSIONS.into_iter().zip(&self.upgrades);
        versions.flat_map(|(version, counters)| {
            let outcomes = names::UPGRADES.into_iter().zip(counters);
            outcomes.map(move |(outcome, counter)| (version, outcome, counter.get()))
        })
    }

    /// Answers that did not come to their end, by side.
    pub fn sides(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let counts = self.cut_short.iter().map(Counter::get);
        names::SIDES.into_iter().zip(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_counted_by_class_and_odd_ones_as_none() {
        let codes = Codes::default();
        for status in [0, 101, 200, 204, 301, 404, 499, 502, 600, 999] {
            codes.count(status);
        }
        let counts: Vec<_> = codes.iter().collect();
        assert_eq!(
            counts,
            [
                ("none", 3),
                ("1xx", 1),
                ("2xx", 2),
                ("3xx", 1),
                ("4xx", 2),
                ("5xx", 1)
            ]
        );
    }

    #[test]
    fn a_duration_lies_in_the_first_bucket_that_holds_it() {
        let durations = Durations::default();
        for us in [0, 1_000, 1_001, 150_000_000, 150_000_001] {
            durations.count(Duration::from_micros(us));
        }
        let buckets: Vec<_> = durations.buckets().collect();
        assert_eq!(buckets.len(), names::DURATIONS_US.len() + 1);
        assert_eq!((buckets[0], buckets[1]), (2, 1));
        assert_eq!((buckets[16], buckets[17]), (1, 1));
        assert_eq!(durations.sum_us(), 300_002_002);
        assert!(names::DURATIONS_US.is_sorted());
    }

    #[test]
    fn polls_are_told_by_their_path_or_by_a_late_success() {
        let wait = |path, status, seconds| {
            let held = Duration::from_secs(seconds);
            Wait::of(Wait::is_bosh(path), status, held)
        };
        assert_eq!(wait("/http-bind", 200, 0), Wait::LongPoll);
        assert_eq!(wait("/x/http-bind/", 404, 0), Wait::LongPoll);
        assert_eq!(wait("/bosh", 200, 60), Wait::LongPoll);
        assert_eq!(wait("/http-binder", 200, 0), Wait::Request);
        assert_eq!(wait("/sync", 200, 4), Wait::Request);
        assert_eq!(wait("/sync", 200, 5), Wait::LongPoll);
        assert_eq!(wait("/sync", 504, 150), Wait::Request);
        assert_eq!(wait("/sync", 302, 9), Wait::Request);
    }

    #[test]
    fn a_request_without_a_route_is_counted_apart() {
        let cells = HttpCells::new(2);
        cells.request(Some(1), 200);
        cells.request(None, 404);
        cells.request(Some(u16::MAX), 0);
        let requests: Vec<_> = cells.requests().collect();
        assert_eq!(requests, [(1, "2xx", 1), (2, "none", 1), (2, "4xx", 1)]);
    }

    #[test]
    fn labels_stand_in_the_order_of_their_enums() {
        assert_eq!(names::WAITS[Wait::LongPoll as usize], "long_poll");
        assert_eq!(names::UPGRADES[Upgrade::Switched as usize], "switched");
        assert_eq!(names::UPGRADES[Upgrade::Failed as usize], "failed");
        assert_eq!(names::SIDES[Side::Client as usize], "client");
        let cells = HttpCells::new(1);
        cells.upgrade(true, Upgrade::Refused);
        let counted: Vec<_> = cells.upgrades().filter(|(.., count)| *count > 0).collect();
        assert_eq!(counted, [("2", "refused", 1)]);
    }
}
