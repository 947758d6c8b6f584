//! The deadlines of a relay, without a timer operation per message.
//!
//! One timer per relay, made when there is something to watch for and freed when there is not: a
//! listener's idle limit, one direction ended, or a buffer held. When it fires it compares what has
//! moved since it last looked. A deadline is thus met within a quarter of its length, and a busy
//! connection touches the timer wheel a few times per deadline, a silent one never (unless `idle` is set).
//!
//! The rule that keeps a stalled peer from starving the rest: **while anybody waits for a buffer, a
//! connection that has kept one for `stall` without moving a byte in that direction is closed.** Without
//! such pressure it may keep its one buffer a direction.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use crate::pool::Magazine;

use super::half::Half;
use super::{End, Limits};

/// How long an alert, the last thing a faulty connection is sent, may take to leave.
const FAREWELL: Duration = Duration::from_secs(2);
/// A deadline is looked at this many times.
const STEPS: u32 = 4;
/// No deadline is looked at more often.
const STEP_MIN: Duration = Duration::from_millis(20);

/// See the module. Empty at rest.
#[derive(Default)]
pub(super) struct Watch(Option<Box<State>>);

struct State {
    sleep: Pin<Box<Sleep>>,
    up: Seen,
    down: Seen,
}

/// One direction as it was when last looked at.
struct Seen {
    moved: u64,
    /// Since when it has not moved.
    since: Instant,
    /// Since when it has held a buffer without moving.
    held: Option<Instant>,
}

impl Seen {
    fn look(half: &Half, now: Instant) -> Self {
        Self {
            moved: half.moved(),
            since: now,
            held: half.holding().then_some(now),
        }
    }

    fn update(&mut self, half: &Half, now: Instant) {
        if self.moved != half.moved() {
            *self = Self::look(half, now);
        } else if !half.holding() {
            self.held = None;
        } else if self.held.is_none() {
            self.held = Some(now);
        }
    }
}

impl Watch {
    /// Ready when a deadline has passed.
    #[inline]
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        up: &Half,
        down: &Half,
        pool: &Magazine,
        limits: &Limits,
    ) -> Poll<End> {
        if self.0.is_none() && shortest(up, down, limits).is_none() {
            return Poll::Pending;
        }
        self.poll_state(cx, up, down, pool, limits)
    }

    fn poll_state(
        &mut self,
        cx: &mut Context<'_>,
        up: &Half,
        down: &Half,
        pool: &Magazine,
        limits: &Limits,
    ) -> Poll<End> {
        loop {
            let Some(state) = &mut self.0 else {
                let Some(period) = shortest(up, down, limits) else {
                    return Poll::Pending;
                };
                let now = Instant::now();
                self.0 = Some(Box::new(State {
                    sleep: Box::pin(sleep_until(now + step(period))),
                    up: Seen::look(up, now),
                    down: Seen::look(down, now),
                }));
                continue;
            };
            ready!(state.sleep.as_mut().poll(cx));
            let now = Instant::now();
            state.up.update(up, now);
            state.down.update(down, now);
            if let Some(end) = state.expired(up, down, now, pool, limits) {
                return Poll::Ready(end);
            }
            match shortest(up, down, limits) {
                None => self.0 = None,
                Some(period) => state.sleep.as_mut().reset(now + step(period)),
            }
        }
    }
}

impl State {
    fn expired(
        &self,
        up: &Half,
        down: &Half,
        now: Instant,
        pool: &Magazine,
        limits: &Limits,
    ) -> Option<End> {
        let quiet = now - self.up.since.max(self.down.since);
        if (up.faulted() || down.faulted()) && quiet >= FAREWELL {
            return Some(End::Stalled);
        }
        let stalled = |seen: &Seen| seen.held.is_some_and(|held| now - held >= limits.stall);
        if pool.pressure() && (stalled(&self.up) || stalled(&self.down)) {
            return Some(End::Stalled);
        }
        if (up.done() || down.done())
            && !limits.half_closed.is_zero()
            && quiet >= limits.half_closed
        {
            return Some(End::HalfClosed);
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
        (up.done() || down.done()) && !limits.half_closed.is_zero(),
        limits.half_closed,
    );
    consider(up.faulted() || down.faulted(), FAREWELL);
    shortest
}

fn step(period: Duration) -> Duration {
    (period / STEPS).max(STEP_MIN)
}
