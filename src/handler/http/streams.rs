//! Streams of HTTP/2 whose client takes nothing of their answer.
//!
//! The socket shows nothing of it: the client lets other streams flow and keeps the window of one shut, and with it a backend's
//! connection. Such a stream is reset (RFC 9113 section 10.5), its siblings go on.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::Instant;

thread_local! {
    /// The stream whose task runs.
    static CURRENT: RefCell<Option<Rc<Stream>>> = const { RefCell::new(None) };
}

/// One stream's life, as far as it is known outside hyper.
#[derive(Default)]
pub(super) struct Stream {
    /// Since when a part of its answer waits to be taken, and nothing more is asked for.
    given: Cell<Option<Instant>>,
    waker: RefCell<Option<Waker>>,
    ended: Cell<bool>,
}

impl Stream {
    /// The one whose task runs; none outside of HTTP/2.
    pub(super) fn current() -> Option<Rc<Self>> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// hyper asks for more, so the client has taken what there was.
    pub(super) fn asks(&self) {
        self.given.set(None);
    }

    /// The answer, or another part of it, waits to be taken.
    pub(super) fn gives(&self) {
        self.given.set(Some(Instant::now()));
    }

    fn end(&self) {
        self.ended.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// A stream's task runs until this is dropped, by a panic, too: what comes next on this worker is another's.
struct Running;

impl Drop for Running {
    fn drop(&mut self) {
        CURRENT.set(None);
    }
}

/// What runs a stream.
pub(super) struct Task<F> {
    future: Pin<Box<F>>,
    stream: Rc<Stream>,
}

impl<F> Task<F> {
    pub(super) fn new(future: F) -> Self {
        Self {
            // Boxed, since the runtime moves what it runs several times, and this has a few KiB.
            future: Box::pin(future),
            stream: Rc::default(),
        }
    }
}

impl<F: Future> Future for Task<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.stream.ended.get() {
            return Poll::Ready(()); // what is dropped unfinished is reset
        }
        if self.stream.waker.borrow().is_none() {
            *self.stream.waker.borrow_mut() = Some(cx.waker().clone());
        }
        CURRENT.set(Some(Rc::clone(&self.stream)));
        let _running = Running;
        self.future.as_mut().poll(cx).map(|_| ())
    }
}

/// The streams of a connection that have begun an answer, each in a place of its own until it is over.
#[derive(Default)]
pub(super) struct Streams {
    watched: RefCell<Vec<Option<Rc<Stream>>>>,
    free: RefCell<Vec<usize>>,
    /// When they are looked at next.
    due: Cell<Option<Instant>>,
}

impl Streams {
    /// The place of a stream whose answer begins.
    pub(super) fn watch(&self, stream: &Rc<Stream>, limit: Duration) -> usize {
        stream.gives();
        if self.due.get().is_none() && !limit.is_zero() {
            self.due.set(Some(Instant::now() + limit));
        }
        let mut watched = self.watched.borrow_mut();
        let stream = Some(Rc::clone(stream));
        match self.free.borrow_mut().pop() {
            Some(place) => {
                watched[place] = stream;
                place
            }
            None => {
                watched.push(stream);
                watched.len() - 1
            }
        }
    }

    /// The stream at this place is over.
    pub(super) fn forget(&self, place: usize) {
        self.watched.borrow_mut()[place] = None;
        self.free.borrow_mut().push(place);
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.due.get()
    }

    /// Ends those that have waited for as long as `limit`.
    pub(super) fn end_stalled(&self, limit: Duration) {
        let now = Instant::now();
        let watched = self.watched.borrow();
        let mut left = false;
        for stream in watched.iter().flatten() {
            left = true;
            if stream.given.get().is_some_and(|given| given + limit <= now) {
                stream.end();
            }
        }
        self.due.set(left.then(|| now + limit / 4));
    }
}
