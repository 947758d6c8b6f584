//! What one worker counts of the HTTP of one listener. Made when the first request comes: most listeners have none.

use std::time::Duration;

use super::cells::Words;
use super::durations::Durations;
use super::names;
use super::row::Row;
use super::{Counter, Gauge};

/// Answers by the class of their status.
#[derive(Debug, Default)]
pub struct Codes([Counter; names::CODES.len()]);

impl Codes {
    /// Counts one answer; zero stands for none.
    pub fn count(&self, status: u16) {
        self.0[class(status)].add(1);
    }

    /// Each class with its count.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let counts = self.0.iter().map(Counter::get);
        names::CODES.into_iter().zip(counts)
    }
}

/// The index in [`names::CODES`].
fn class(status: u16) -> usize {
    let class = usize::from(status / 100);
    if class < names::CODES.len() { class } else { 0 }
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
#[repr(align(128))] // see `row`
pub struct HttpCells {
    /// By route, the last of which is for requests without one; then by class.
    requests: Row<Counter>,
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
            requests: Row::new((routes + 1) * names::CODES.len()),
            durations: names::WAITS.map(|_| Durations::new(&names::DURATIONS_US)),
            upgrades: Default::default(),
            open: Gauge::default(),
            tunnels: Gauge::default(),
            refused: Words::new(names::HTTP_REFUSED),
            cut_short: Default::default(),
        }
    }

    /// A request has been answered, or, with status zero, has ended without an answer.
    pub fn request(&self, route: Option<u16>, status: u16) {
        let none = self.requests.len() / names::CODES.len() - 1;
        let route = route.map_or(none, |route| usize::from(route).min(none));
        let at = route * names::CODES.len() + class(status);
        if let Some(counter) = self.requests.get(at) {
            counter.add(1);
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
        let codes = names::CODES;
        let cells = self.requests.iter().enumerate();
        let all = cells
            .map(move |(at, counter)| (at / codes.len(), codes[at % codes.len()], counter.get()));
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

    /// Addresses of what is written.
    #[cfg(test)]
    pub(super) fn places(&self) -> impl Iterator<Item = usize> {
        let upgrades = self.upgrades.as_flattened().iter();
        let counters = self.requests.iter().chain(upgrades).chain(&self.cut_short);
        let durations = self.durations.iter().flat_map(Durations::places);
        durations.chain(counters.map(|c| std::ptr::from_ref(c).addr()))
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
