//! Bodies on their way: a request's to its backend, an answer's to its client. Both only pass frames on, and look at the
//! clock when nothing comes.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use super::exchange::Exchange;
use super::headers;
use super::problem::Problem;

/// Why a body has not come to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    /// Its sender.
    #[error(transparent)]
    Sender(#[from] hyper::Error),
    /// The listener's rules.
    #[error("{}", .0.text)]
    Problem(Problem),
}

/// How a request's body is getting on; its request looks at it.
#[derive(Default)]
pub(super) struct Progress {
    /// When it came to its end.
    pub(super) ended: Cell<Option<Instant>>,
    /// What broke it.
    pub(super) problem: Cell<Option<Problem>>,
    /// Bytes so far.
    pub(super) bytes: Cell<u64>,
    /// Since when a part of it waits to be taken, and nothing more is asked for.
    pub(super) given: Cell<Option<Instant>>,
}

/// What a request's body must do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Most bytes. Zero: any number.
    pub(super) size: u64,
    /// Silence that ends it, and the time over which `rate` is looked at. Zero: none.
    pub(super) window: Duration,
    /// Least bytes a second. Zero: any.
    pub(super) rate: u32,
}

/// A request's body.
pub(super) enum Upload {
    /// None.
    Empty,
    /// A client's.
    Client(Box<Client>),
}

/// A body that a client sends.
pub(super) struct Client {
    body: Incoming,
    pace: Pace,
    progress: Rc<Progress>,
    /// Since when the client is waited for.
    waiting: Option<Instant>,
    /// How long it has been waited for in this window, and what it has sent meanwhile.
    waited: Duration,
    sent: u64,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Upload {
    pub(super) fn new(body: Incoming, pace: Pace, progress: &Rc<Progress>) -> Self {
        if body.is_end_stream() {
            progress.ended.set(Some(Instant::now()));
            return Self::Empty;
        }
        progress.given.set(Some(Instant::now()));
        Self::Client(Box::new(Client {
            body,
            pace,
            progress: Rc::clone(progress),
            waiting: None,
            waited: Duration::ZERO,
            sent: 0,
            alarm: None,
        }))
    }
}

impl Client {
    fn fail(&mut self, problem: Problem) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.progress.problem.set(Some(problem));
        Poll::Ready(Some(Err(BodyError::Problem(problem))))
    }

    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.progress.given.set(None);
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Pending => self.wait(cx),
            Poll::Ready(Some(Ok(mut frame))) => {
                self.progress.given.set(Some(Instant::now()));
                if let Some(trailers) = frame.trailers_mut() {
                    headers::strip_trailers(trailers);
                }
                if let Some(since) = self.waiting.take() {
                    self.waited += since.elapsed();
                }
                let len = frame.data_ref().map_or(0, Bytes::len) as u64;
                self.sent += len;
                let bytes = self.progress.bytes.get() + len;
                self.progress.bytes.set(bytes);
                if self.pace.size > 0 && bytes > self.pace.size {
                    return self.fail(Problem::TOO_LARGE);
                }
                if self.body.is_end_stream() {
                    self.progress.ended.set(Some(Instant::now()));
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(None) => {
                self.progress.ended.set(Some(Instant::now()));
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(error))) => {
                // Who has gone does not hear this.
                self.progress.problem.set(Some(Problem::BAD_REQUEST));
                Poll::Ready(Some(Err(error.into())))
            }
        }
    }

    /// Nothing is there. One timer for the whole body, set anew when it fires, not with each frame.
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let window = self.pace.window;
        if window.is_zero() {
            return Poll::Pending;
        }
        let now = Instant::now();
        let since = *self.waiting.get_or_insert(now);
        let left = window.saturating_sub(self.waited);
        let alarm = self
            .alarm
            .get_or_insert_with(|| Box::pin(sleep_until(since + left)));
        while alarm.as_mut().poll(cx).is_ready() {
            let due = since + left;
            if due > now {
                alarm.as_mut().reset(due);
                continue;
            }
            let least = (f64::from(self.pace.rate) * window.as_secs_f64()) as u64;
            if self.sent == 0 || self.sent < least {
                return self.fail(Problem::BODY_TIMEOUT);
            }
            (self.waited, self.sent) = (Duration::ZERO, 0);
            self.waiting = Some(now);
            alarm.as_mut().reset(now + window);
            return Poll::Pending;
        }
        Poll::Pending
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Client(client) => client.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Client(client) => client.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Client(client) => client.body.size_hint(),
        }
    }
}

/// An answer's body.
pub(super) enum Answer {
    /// Ours.
    Text(Option<Bytes>, Option<Box<Exchange>>),
    /// A backend's.
    Backend(Incoming, Box<Exchange>),
}

impl Answer {
    pub(super) fn text(text: Bytes) -> Self {
        Self::Text(Some(text), None)
    }

    /// None at all.
    pub(super) fn empty() -> Self {
        Self::Text(None, None)
    }

    /// Keeps the exchange as long as the answer lasts.
    pub(super) fn of(self, mut exchange: Box<Exchange>) -> Self {
        match self {
            Self::Text(text, _) => {
                // Nobody asks for what is not there.
                if text.is_none() {
                    exchange.answered();
                }
                Self::Text(text, Some(exchange))
            }
            backend @ Self::Backend(..) => backend,
        }
    }

    /// A backend's. An empty one is at its end.
    pub(super) fn backend(body: Incoming, mut exchange: Box<Exchange>) -> Self {
        if body.is_end_stream() {
            exchange.answered();
        }
        Self::Backend(body, exchange)
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut *self {
            Self::Text(text, exchange) => {
                let text = text.take();
                if let Some(exchange) = exchange {
                    exchange.given();
                    exchange.passed(text.as_ref().map_or(0, Bytes::len));
                    exchange.answered();
                }
                Poll::Ready(text.map(|text| Ok(Frame::data(text))))
            }
            Self::Backend(body, exchange) => {
                exchange.asked();
                let frame = std::task::ready!(Pin::new(&mut *body).poll_frame(cx));
                match &frame {
                    Some(Ok(frame)) => {
                        exchange.passed(frame.data_ref().map_or(0, Bytes::len));
                        exchange.given();
                        if body.is_end_stream() {
                            exchange.answered();
                        }
                    }
                    Some(Err(_)) => exchange.cut_short(),
                    None => exchange.answered(),
                }
                Poll::Ready(frame)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Text(text, _) => text.is_none(),
            Self::Backend(body, _) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Text(text, _) => SizeHint::with_exact(text.as_ref().map_or(0, Bytes::len) as u64),
            Self::Backend(body, _) => body.size_hint(),
        }
    }
}
