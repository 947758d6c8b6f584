//! The deadlines of a relay, without a timer operation per message.
//!
//! One timer per relay, made when there is something to watch for and freed when there is not: a
//! listener's idle limit, one direction ended, or a buffer held. When it fires it compares what has
//! moved since it last looked. A deadline is thus met within a quarter of its length, and a busy
//! connection touches the timer wheel a few times per deadline, a silent one never (unless `idle` is set).
//!
//! What counts as movement is what the peers do, not what our kernel takes: bytes received from the source, and
//! bytes that the sink's side has acknowledged. A slow reader behind megabytes of send buffer is thus not silent.
//!
//! The rule that keeps a stalled peer from starving the rest: **while anybody waits for a buffer, a
//! connection that has kept one for `stall` and moved less than [`STALL_BYTES`] in that direction meanwhile is
//! closed.** Without such pressure it may keep its one buffer a direction, a small one as soon as that is enough, and
//! for as long as `write` without any movement: a peer that takes nothing of what is there for it, or leaves a record half
//! sent, has gone or pretends to be slow.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use crate::endpoint::Socket;
use crate::pool::{Magazine, PLAIN_MAX};
use crate::sys;

use super::half::Half;
use super::{End, Limits};

/// What a connection must move within `stall` to keep a buffer that others wait for: one record.
pub(super) const STALL_BYTES: usize = PLAIN_MAX;
/// How long an alert, the last thing a faulty connection is sent, may take to leave.
pub(super) const FAREWELL: Duration = Duration::from_secs(2);
/// A deadline is looked at this many times.
const STEPS: u32 = 4;
/// No deadline is looked at more often.
const STEP_MIN: Duration = Duration::from_millis(20);

/// What has passed.
pub(super) enum Expired {
    /// One of the relay's own deadlines.
    Ended(End),
    /// The moment that the caller has named.
    Until,
}

/// One direction with its sockets.
pub(super) struct Way<'a> {
    pub(super) half: &'a mut Half,
    pub(super) source: &'a Socket,
    pub(super) sink: &'a Socket,
}

/// See the module. Empty at rest.
#[derive(Default)]
pub(super) struct Watch(Option<Box<State>>);

struct State {
    sleep: Pin<Box<Sleep>>,
    /// What it was set for.
    period: Option<Duration>,
    up: Seen,
    down: Seen,
}

/// One direction as it was when last looked at.
struct Seen {
    progress: i64,
    /// Since when there has been none.
    since: Instant,
    /// Since when it has held a buffer without much progress, and how much there was then.
    held: Option<(Instant, i64)>,
}

impl Way<'_> {
    /// Bytes received from the source and acknowledged by the sink. Only differences mean something: what was sent
    /// before the relay began may count as not acknowledged.
    fn progress(&self) -> i64 {
        let queued = sys::socket::unacknowledged(self.sink).unwrap_or(0);
        self.half.traffic() as i64 - queued as i64
    }
}

impl Seen {
    fn look(way: &Way<'_>, now: Instant) -> Self {
        let progress = way.progress();
        let held = way.half.holding().then_some((now, progress));
        Self {
            progress,
            since: now,
            held,
        }
    }

    fn update(&mut self, way: &Way<'_>, now: Instant) {
        let progress = way.progress();
        if progress != self.progress {
            self.progress = progress;
            self.since = now;
        }
        let enough = |at: i64| progress - at >= STALL_BYTES as i64;
        self.held = match self.held {
            _ if !way.half.holding() => None,
            Some((since, at)) if !enough(at) => Some((since, at)),
            _ => Some((now, progress)),
        };
    }

    fn stalled(&self, now: Instant, stall: Duration) -> bool {
        self.held.is_some_and(|(since, _)| now - since >= stall)
    }
}

impl Watch {
    /// Ready when a deadline has passed.
    #[inline]
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        (up, down): (Way<'_>, Way<'_>),
        until: Option<Instant>,
        pool: &Magazine,
        limits: &Limits,
    ) -> Poll<Expired> {
        let idle = until.is_none() && shortest(up.half, down.half, limits).is_none();
        if self.0.is_none() && idle {
            return Poll::Pending;
        }
        self.poll_state(cx, up, down, until, pool, limits)
    }

    fn poll_state(
        &mut self,
        cx: &mut Context<'_>,
        up: Way<'_>,
        down: Way<'_>,
        until: Option<Instant>,
        pool: &Magazine,
        limits: &Limits,
    ) -> Poll<Expired> {
        loop {
            let Some(state) = &mut self.0 else {
                let now = Instant::now();
                let period = shortest(up.half, down.half, limits);
                let Some(next) = next_look(now, period, until) else {
                    return Poll::Pending;
                };
                self.0 = Some(Box::new(State {
                    sleep: Box::pin(sleep_until(next)),
                    period,
                    up: Seen::look(&up, now),
                    down: Seen::look(&down, now),
                }));
                continue;
            };
            if let Some(until) = until
                && state.sleep.deadline() > until
            {
                state.sleep.as_mut().reset(until);
            }
            // A shorter deadline has begun to run.
            let period = shortest(up.half, down.half, limits);
            if let Some(shorter) = period.filter(|new| state.period.is_none_or(|old| *new < old)) {
                let next = Instant::now() + step(shorter);
                state.period = period;
                if next < state.sleep.deadline() {
                    state.sleep.as_mut().reset(next);
                }
            }
            ready!(state.sleep.as_mut().poll(cx));
            let now = Instant::now();
            if until.is_some_and(|until| now >= until) {
                self.0 = None;
                return Poll::Ready(Expired::Until);
            }
            state.up.update(&up, now);
            state.down.update(&down, now);
            if let Some(end) = state.expired(&up, &down, now, pool, limits) {
                return Poll::Ready(Expired::Ended(end));
            }
            for half in [&mut *up.half, &mut *down.half] {
                if pool.tight() {
                    half.put_aside();
                }
                half.shrink(pool);
            }
            state.period = shortest(up.half, down.half, limits);
            match next_look(now, state.period, until) {
                None => self.0 = None,
                Some(next) => state.sleep.as_mut().reset(next),
            }
        }
    }
}

impl State {
    fn expired(
        &self,
        up: &Way<'_>,
        down: &Way<'_>,
        now: Instant,
        pool: &Magazine,
        limits: &Limits,
    ) -> Option<End> {
        let quiet = now - self.up.since.max(self.down.since);
        if (up.half.faulted() || down.half.faulted()) && quiet >= FAREWELL {
            return Some(End::Stalled);
        }
        let stalled = |seen: &Seen| seen.stalled(now, limits.stall);
        if pool.pressure() && (stalled(&self.up) || stalled(&self.down)) {
            return Some(End::Stalled);
        }
        let silent = |way: &Way<'_>, seen: &Seen| {
            way.half.burdened() && !limits.write.is_zero() && now - seen.since >= limits.write
        };
        if silent(up, &self.up) || silent(down, &self.down) {
            return Some(End::Stalled);
        }
        if !limits.half_closed.is_zero() && quiet >= limits.half_closed {
            // A half that waits for its sink does not hear that its source is gone; here it is noticed.
            let gone = |way: &Way<'_>| {
                let reset = io::Error::from(io::ErrorKind::ConnectionReset);
                (!way.half.done() && sys::socket::dead(way.source)).then_some(reset)
            };
            if let Some(error) = gone(up) {
                return Some(End::ClientGone(error));
            }
            if let Some(error) = gone(down) {
                return Some(End::BackendGone(error));
            }
            if up.half.done() || down.half.done() {
                return Some(End::HalfClosed);
            }
        }
        (!limits.idle.is_zero() && quiet >= limits.idle).then_some(End::Idle)
    }
}

/// The shortest deadline that is running.
#[inline]
fn shortest(up: &Half, down: &Half, limits: &Limits) -> Option<Duration> {
    let mut shortest = (!limits.idle.is_zero()).then_some(limits.idle);
    let mut consider = |running: bool, period: Duration| {
        if running {
            shortest = Some(shortest.map_or(period, |other| other.min(period)));
        }
    };
    consider(up.holding() || down.holding(), limits.stall);
    consider(
        (up.burdened() || down.burdened()) && !limits.write.is_zero(),
        limits.write,
    );
    consider(
        (up.done() || down.done()) && !limits.half_closed.is_zero(),
        limits.half_closed,
    );
    consider(up.faulted() || down.faulted(), FAREWELL);
    shortest
}

/// When to look next: within the shortest deadline several times, and when `until` has come.
fn next_look(now: Instant, period: Option<Duration>, until: Option<Instant>) -> Option<Instant> {
    let next = period.map(|period| now + step(period));
    match (next, until) {
        (Some(next), Some(until)) => Some(next.min(until)),
        (next, until) => next.or(until),
    }
}

fn step(period: Duration) -> Duration {
    (period / STEPS).max(STEP_MIN)
}
