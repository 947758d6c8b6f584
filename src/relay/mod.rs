//! Bytes both ways between two endpoints, until both directions have ended.
//!
//! A [`Relay`] is one future with two halves ([`half`]). They never wait for each other and share
//! nothing but what one side of a TLS connection has to tell its other side ([`Control`]: answer a key update,
//! send an alert). When nothing moves the relay is some 300 bytes, and no buffer is held.

mod half;
pub mod stream;
mod watch;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

use crate::endpoint::Endpoint;
use crate::endpoint::secure::Rest;
use crate::metrics::cells::ListenerCells;
use crate::pool::Magazine;
use crate::tls::TlsError;
use crate::wire::xmpp::{Condition, stream_error};

pub use half::Control;
use half::{Ended, Farewell, Half, Shared, Watcher};
use stream::Stream;
use watch::{Expired, FAREWELL, Watch, Way};

/// Bounds of a relay, shared by all of a listener's.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most bytes that one read takes from a socket.
    pub read_max: usize,
    /// TLS records that a large buffer holds.
    pub large_records: usize,
    /// Silence in both directions that ends it. Zero: none does.
    pub idle: Duration,
    /// Silence that ends it once one direction has ended. Zero: none does.
    pub half_closed: Duration,
    /// How long a buffer may be kept without progress while others wait for one.
    pub stall: Duration,
    /// How long bytes may be held without any movement: taken by nobody, or the first part of a record. Zero: for ever.
    pub write: Duration,
    /// Whether a client's end without close_notify becomes a reset towards the backend.
    pub abort_on_truncation: bool,
}

/// Why a relay is over. The direction that first ended in another way than cleanly decides.
#[derive(Debug, thiserror::Error)]
pub enum End {
    /// Both directions ended as they should.
    #[error("closed by both sides")]
    Closed,
    /// The client ended TCP without close_notify.
    #[error("client ended without close_notify")]
    Truncated,
    /// The client reset the connection, or could not be written to.
    #[error("client gone: {0}")]
    ClientGone(io::Error),
    /// The backend reset the connection, or could not be written to.
    #[error("backend gone: {0}")]
    BackendGone(io::Error),
    /// The client broke the protocol.
    #[error("client broke the protocol: {0}")]
    ClientTls(TlsError),
    /// A TLS backend broke the protocol.
    #[error("backend broke the protocol: {0}")]
    BackendTls(TlsError),
    /// A TLS backend ended TCP without close_notify.
    #[error("backend ended without close_notify")]
    BackendTruncated,
    /// Nothing moved for as long as the listener allows.
    #[error("idle for too long")]
    Idle,
    /// One direction had ended, and the other was silent for too long.
    #[error("half closed for too long")]
    HalfClosed,
    /// It kept a buffer without progress, while others waited for one or for too long.
    #[error("kept a buffer without progress")]
    Stalled,
    /// The client of an XMPP stream broke its rules, and was told so.
    #[error("refused: {}", .0.name())]
    Refused(Condition),
    /// The client of an XMPP stream was not authenticated in time.
    #[error("not authenticated in time")]
    Unauthenticated,
    /// A drain ended it.
    #[error("drained")]
    Drained,
}

impl End {
    /// One word for the metric label `outcome` and the access log.
    pub fn outcome(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Truncated => "truncated",
            Self::ClientGone(_) => "client_gone",
            Self::BackendGone(_) => "backend_gone",
            Self::ClientTls(_) => "client_tls_error",
            Self::BackendTls(_) => "backend_tls_error",
            Self::BackendTruncated => "backend_truncated",
            Self::Idle => "idle_timeout",
            Self::HalfClosed => "half_closed_timeout",
            Self::Stalled => "stalled",
            Self::Refused(_) => "refused",
            Self::Unauthenticated => "authentication_timeout",
            Self::Drained => "drained",
        }
    }

    /// The same more exactly, for the access log and for streams: the condition of the stream error that was sent.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Refused(condition) => condition.name(),
            other => other.outcome(),
        }
    }
}

/// Why we end a relay ourselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dismissal {
    Refused(Condition),
    Unauthenticated,
    Drained,
}

/// What a relay has done.
#[derive(Debug)]
pub struct Outcome {
    /// Why it is over.
    pub end: End,
    /// Whether the backend is to see a reset.
    pub abort_back: bool,
    /// Whether the client ended its TCP stream, so that nobody need wait for it.
    pub front_ended: bool,
    /// Whether the client takes nothing of what is there for it. It gets a reset: our kernel would keep those bytes for it otherwise,
    /// long after the socket is closed.
    pub front_stalled: bool,
    /// Whether the client was told a stream error: it may answer with the end of its stream, before it is sent the end.
    pub parting: bool,
}

/// Payload bytes that a relay has taken from either side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// From the client.
    pub up: u64,
    /// From the backend.
    pub down: u64,
}

/// What only a relay has that is looked into, or that we end ourselves.
#[derive(Default)]
struct Attended {
    /// An XMPP stream.
    stream: Option<Stream>,
    dismissal: Option<Dismissal>,
    /// When something must have happened: authentication, or the end of a dismissal.
    until: Option<Instant>,
}

/// See the module. Polled to its end it gives the [`Outcome`]; endpoints and byte counts stay with it.
pub struct Relay {
    front: Endpoint,
    back: Endpoint,
    up: Half,
    down: Half,
    /// What the front's receiving side has for its sending side.
    front_control: Control,
    /// The same for the back.
    back_control: Control,
    /// Whether the way down was the first to end badly.
    down_first: Option<bool>,
    watch: Watch,
    attended: Option<Box<Attended>>,
    pool: Magazine,
    limits: Arc<Limits>,
    cells: Arc<ListenerCells>,
}

fn stream_of(attended: &mut Option<Box<Attended>>) -> Option<&mut Stream> {
    attended.as_mut()?.stream.as_mut()
}

impl Relay {
    /// Joins two endpoints, each with what was read from it already and not opened.
    pub fn new(
        (front, front_rest): (Endpoint, Rest),
        (back, back_rest): (Endpoint, Rest),
        pool: Magazine,
        limits: Arc<Limits>,
        cells: Arc<ListenerCells>,
    ) -> Self {
        Self {
            front,
            back,
            up: Half::new(front_rest, limits.abort_on_truncation),
            down: Half::new(back_rest, false),
            front_control: Control::default(),
            back_control: Control::default(),
            down_first: None,
            watch: Watch::default(),
            attended: None,
            pool,
            limits,
            cells,
        }
    }

    /// These bytes have passed already.
    #[must_use]
    pub fn begun(mut self, begun: Moved) -> Self {
        self.up.begin_at(begun.up);
        self.down.begin_at(begun.down);
        self
    }

    /// Watches an XMPP stream as it passes. `begun` has passed already.
    #[must_use]
    pub fn watching(self, stream: Stream, begun: Moved) -> Self {
        let mut this = self.begun(begun);
        this.attended = Some(Box::new(Attended {
            until: stream.deadline(),
            stream: Some(stream),
            dismissal: None,
        }));
        this
    }

    /// Whether it is an XMPP stream, and if so, whether its client is authenticated.
    #[inline]
    pub fn authenticated(&self) -> Option<bool> {
        let own = self.attended.as_ref()?;
        own.stream.as_ref().map(Stream::authenticated)
    }

    /// Ends it for a drain: the client is told `words`, a whole stream error, if the stream gets between two stanzas
    /// within `patience`, and at the latest after [`FAREWELL`]; the backend sees the end of TCP and nothing else, so
    /// that the session can be resumed (XEP-0198). To be polled again after this.
    pub fn drain(&mut self, words: Option<&str>, patience: Duration) {
        let patience = patience.min(FAREWELL);
        self.dismiss(Dismissal::Drained, words.map(Box::from), patience);
    }

    fn dismiss(&mut self, why: Dismissal, words: Option<Box<str>>, patience: Duration) {
        let own = self.attended.get_or_insert_default();
        if own.dismissal.is_some() {
            return;
        }
        own.dismissal = Some(why);
        own.until = Some(Instant::now() + patience);
        self.up.dismiss();
        self.down
            .take_leave(words.map_or(Farewell::Plain, Farewell::Words));
    }

    /// What has moved so far.
    pub fn moved(&self) -> Moved {
        Moved {
            up: self.up.payload(),
            down: self.down.payload(),
        }
    }

    /// Key updates that were received from and sent to the client.
    pub fn key_updates(&self) -> (u32, u32) {
        (
            self.front_control.updates_received,
            self.front_control.updates_sent,
        )
    }

    /// The endpoints, to close them, the front with what was read from it and not opened. Leases are given back.
    pub fn into_endpoints(mut self) -> ((Endpoint, Rest), Endpoint) {
        ((self.front, self.up.take_rest()), self.back)
    }

    /// Both directions as far as they go now; then whether it is over.
    #[inline]
    fn advance(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        let (front_in, front_out) = self.front.split();
        let (back_in, back_out) = self.back.split();
        let with = |meter| Shared {
            pool: &self.pool,
            limits: &self.limits,
            meter,
        };
        let tell = (&mut self.front_control, &mut self.back_control);
        let watched = match stream_of(&mut self.attended) {
            None => Watcher::Nobody,
            Some(stream) => Watcher::OfClient(stream),
        };
        let with_up = with(&self.cells.up_bytes);
        let up = self.up.poll(cx, front_in, back_out, tell, watched, with_up);
        if self.down_first.is_none() && self.up.ended_badly() {
            self.down_first = Some(false);
        }
        if up.is_ready() && self.up.truncated() && self.limits.abort_on_truncation {
            return Poll::Ready(self.outcome());
        }
        if let Some(own) = &mut self.attended
            && own.dismissal.is_none()
            && let Some(condition) = self.up.refused()
        {
            own.dismissal = Some(Dismissal::Refused(condition));
            own.until = Some(Instant::now() + FAREWELL);
            let words = stream_error(condition, None, None).into();
            self.down.take_leave(Farewell::Words(words));
        }
        let tell = (&mut self.back_control, &mut self.front_control);
        let watched = match stream_of(&mut self.attended) {
            None => Watcher::Nobody,
            Some(stream) => Watcher::OfServer(stream),
        };
        let with_down = with(&self.cells.down_bytes);
        let down = self
            .down
            .poll(cx, back_in, front_out, tell, watched, with_down);
        if self.down_first.is_none() && self.down.ended_badly() {
            self.down_first = Some(true);
        }
        let over = up.is_ready() && down.is_ready();
        if over || self.up.source_gone() || self.down.source_gone() {
            Poll::Ready(self.outcome())
        } else {
            Poll::Pending
        }
    }

    fn outcome(&mut self) -> Outcome {
        let abort_back = self.up.truncated() && self.limits.abort_on_truncation;
        let front_ended = self.up.source_ended();
        let up = self.up.take_end();
        let down = self.down.take_end();
        let (up, down) = match self.down_first {
            Some(true) => (None, down),
            Some(false) => (up, None),
            None => (up, down),
        };
        let dismissal = self.attended.as_ref().and_then(|own| own.dismissal);
        let end = match (up, down) {
            _ if dismissal == Some(Dismissal::Drained) => End::Drained,
            _ if dismissal == Some(Dismissal::Unauthenticated) => End::Unauthenticated,
            (Some(Ended::Refused(condition)), _) => End::Refused(condition),
            (Some(Ended::SourceTls(e)), _) => End::ClientTls(e),
            (_, Some(Ended::SinkTls(e))) => End::ClientTls(e),
            (Some(Ended::SinkTls(e)), _) | (_, Some(Ended::SourceTls(e))) => End::BackendTls(e),
            (Some(Ended::SourceGone(e)), _) | (_, Some(Ended::SinkGone(e))) => End::ClientGone(e),
            (Some(Ended::SinkGone(e)), _) | (_, Some(Ended::SourceGone(e))) => End::BackendGone(e),
            (Some(Ended::SourceTruncated), _) => End::Truncated,
            (_, Some(Ended::SourceTruncated)) => End::BackendTruncated,
            _ => End::Closed,
        };
        Outcome {
            end,
            abort_back,
            front_ended,
            front_stalled: false,
            parting: self.down.parting(),
        }
    }
}

impl Relay {
    /// The deadline has passed. Ready: nothing is left to wait for.
    fn expired(&mut self) -> Poll<Outcome> {
        let Some(own) = &mut self.attended else {
            return Poll::Ready(self.outcome());
        };
        match own.dismissal {
            None => {
                let words = stream_error(Condition::ConnectionTimeout, None, None);
                self.dismiss(Dismissal::Unauthenticated, Some(words.into()), FAREWELL);
                Poll::Pending
            }
            // The server is in the middle of a stanza and stays there: the end without words.
            Some(_) if self.down.taking_leave() => {
                own.until = Some(Instant::now() + FAREWELL);
                self.down.take_leave(Farewell::Plain);
                Poll::Pending
            }
            Some(_) => Poll::Ready(self.outcome()),
        }
    }
}

impl Future for Relay {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let this = self.get_mut();
        loop {
            if let Poll::Ready(outcome) = this.advance(cx) {
                return Poll::Ready(outcome);
            }
            if let Some(own) = &mut this.attended
                && own.until.is_some()
                && own.dismissal.is_none()
                && own.stream.as_ref().is_some_and(Stream::authenticated)
            {
                own.until = None;
                this.watch = Watch::default();
            }
            let until = this.attended.as_ref().and_then(|own| own.until);
            let Self {
                front,
                back,
                up,
                down,
                watch,
                pool,
                limits,
                ..
            } = &mut *this;
            let (front, back) = (front.socket(), back.socket());
            let ways = (
                Way {
                    half: up,
                    source: front,
                    sink: back,
                },
                Way {
                    half: down,
                    source: back,
                    sink: front,
                },
            );
            match watch.poll(cx, ways, until, pool, limits) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Expired::Until) => {
                    if let Poll::Ready(outcome) = this.expired() {
                        return Poll::Ready(outcome);
                    }
                }
                // The fault says more than the deadline that its alert has missed.
                Poll::Ready(Expired::Ended(_)) if up.faulted() || down.faulted() => {
                    return Poll::Ready(this.outcome());
                }
                Poll::Ready(Expired::Ended(end)) => {
                    let front_stalled = matches!(end, End::Stalled) && down.burdened();
                    return Poll::Ready(Outcome {
                        end,
                        abort_back: false,
                        front_ended: up.source_ended(),
                        front_stalled,
                        parting: false,
                    });
                }
            }
        }
    }
}
