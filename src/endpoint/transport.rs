//! An endpoint as hyper reads and writes it.
//!
//! hyper has buffers of its own, so bytes are copied once between those and a buffer of the pool, in which records
//! are opened and sealed. **No buffer of the pool outlives a call**: what a call leaves over (the first part of a record, plaintext
//! that its reader has no room for, records that the socket does not take) is put aside in an allocation of its own, at most
//! one read's and one write's worth. A silent connection holds neither.
//!
//! A [`Transport`] is a handle: hyper has one, and who drives the connection keeps another, to look at it from outside and
//! to have the endpoint back when hyper is done.

use std::cell::{RefCell, RefMut};
use std::io::{self, IoSlice};
use std::mem;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};

use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use tokio::time::Instant;

use crate::pool::{HEADROOM, Lease, Magazine, PLAIN_MAX, READY_MAX, STRIDE, Size, Wait};
use crate::sys;
use crate::tls::TlsError;
use crate::tls::alert::{Alert, Level};
use crate::tls::record::{Opened, Sealer};

use super::dialogue::Dialogue;
use super::secure::{Rest, write_all};
use super::{Endpoint, Outbound};

/// Room for a message of TLS itself.
const NOTE_LEN: usize = 48;

/// Looks at the plain bytes as they pass.
pub trait Look {
    /// These came next.
    ///
    /// # Errors
    /// They break a rule from this byte on: those before it are still delivered, and nothing after.
    fn received(&mut self, bytes: &[u8]) -> Result<(), usize>;

    /// These leave next.
    fn sent(&mut self, bytes: &[u8]);
}

/// How a transport behaves.
#[derive(Clone, Copy, Debug)]
pub struct Manners {
    /// Most bytes that one read takes from the socket.
    pub read_max: usize,
    /// TLS records that a large buffer holds.
    pub large_records: usize,
    /// Whether the end of TCP without close_notify is an error for the reader: where an answer may last until the end.
    pub truncation_matters: bool,
    /// Whether a shutdown tells the peer. Otherwise who drives the connection does, when all is over.
    pub says_end: bool,
}

/// See the module. All clones are one.
pub struct Transport<L>(Rc<RefCell<Inner<L>>>);

impl<L> Clone for Transport<L> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

/// Looks at a [`Transport`] without keeping it.
pub struct Glance<L>(Weak<RefCell<Inner<L>>>);

impl<L> Clone for Glance<L> {
    fn clone(&self) -> Self {
        Self(Weak::clone(&self.0))
    }
}

impl<L> Glance<L> {
    /// What looks at the bytes, as long as the transport is there.
    pub fn look<T>(&self, with: impl FnOnce(&mut L) -> T) -> Option<T> {
        let inner = self.0.upgrade()?;
        let mut inner = inner.borrow_mut();
        Some(with(&mut inner.look))
    }

    /// See [`Transport::blocked`].
    pub fn blocked(&self) -> Option<Instant> {
        self.0.upgrade()?.borrow().sending.blocked
    }
}

struct Inner<L> {
    endpoint: Endpoint,
    pool: Magazine,
    manners: Manners,
    look: L,
    receiving: Receiving,
    sending: Sending,
}

/// What the way in has left over.
#[derive(Default)]
struct Receiving {
    /// Read and not opened: the first part of a record.
    sealed: Vec<u8>,
    /// Opened, and the reader had no room; from `at` on.
    plain: Vec<u8>,
    at: usize,
    wait: Option<Wait>,
    /// What is in `sealed` came with the handshake and may be whole records.
    fresh: bool,
    /// The last read took all that it could.
    busy: bool,
    state: State,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Open,
    /// The peer has said that it will send no more.
    Ended,
    /// The end of TCP came without close_notify.
    Truncated,
    /// What came breaks a rule.
    Refused,
    /// TLS was broken.
    Broken,
}

/// What the way out has left over.
#[derive(Default)]
struct Sending {
    /// Sealed, and the socket has not taken it; from `at` on.
    unsent: Vec<u8>,
    at: usize,
    wait: Option<Wait>,
    /// A key update must go out before the next record.
    key_update: bool,
    /// Since when the socket takes nothing.
    blocked: Option<Instant>,
    /// The peer has been told that nothing more comes.
    ended: bool,
}

impl<L: Look> Transport<L> {
    /// `rest` was read from the endpoint and not opened.
    pub fn new(
        (endpoint, rest): (Endpoint, Rest),
        pool: Magazine,
        manners: Manners,
        look: L,
    ) -> Self {
        let mut receiving = Receiving::default();
        if let Some(rest) = rest {
            receiving.sealed = rest.into();
            receiving.fresh = true;
        }
        Self(Rc::new(RefCell::new(Inner {
            endpoint,
            pool,
            manners,
            look,
            receiving,
            sending: Sending::default(),
        })))
    }

    /// These plain bytes have been read already, before all others.
    #[must_use]
    pub fn after(self, early: &[u8]) -> Self {
        {
            let inner = &mut *self.0.borrow_mut();
            inner.receiving.hear(&mut inner.look, early);
        }
        self
    }

    /// What looks at the bytes.
    pub fn look(&self) -> RefMut<'_, L> {
        RefMut::map(self.0.borrow_mut(), |inner| &mut inner.look)
    }

    /// For who must not keep it.
    pub fn glance(&self) -> Glance<L> {
        Glance(Rc::downgrade(&self.0))
    }

    /// Since when the peer takes nothing of what is to be sent.
    pub fn blocked(&self) -> Option<Instant> {
        self.0.borrow().sending.blocked
    }

    /// Looks whether the peer has ended or gone, although nobody reads from it at the moment; what it sends meanwhile is kept, one
    /// read of it at most. To be called in the task that reads.
    ///
    /// # Errors
    /// It has gone.
    pub fn listen(&self, cx: &mut Context<'_>) -> io::Result<()> {
        self.0.borrow_mut().listen(cx)
    }

    /// Whether everything that was written has left.
    pub fn flushed(&self) -> bool {
        self.0.borrow().sending.unsent.is_empty()
    }

    /// Whether the peer has said that it will send no more.
    pub fn ended(&self) -> bool {
        matches!(
            self.0.borrow().receiving.state,
            State::Ended | State::Truncated
        )
    }

    /// Takes the endpoint back from a transport that nobody else uses any more, with what was read from it: not opened,
    /// and opened.
    pub fn into_parts(self) -> Option<Parts> {
        let inner = Rc::into_inner(self.0)?.into_inner();
        let Receiving {
            sealed, plain, at, ..
        } = inner.receiving;
        let Sending {
            unsent,
            at: sent,
            ended,
            ..
        } = inner.sending;
        Some(Parts {
            endpoint: inner.endpoint,
            rest: (!sealed.is_empty()).then(|| sealed.into_boxed_slice()),
            plain: plain.get(at..).unwrap_or_default().to_vec(),
            unsent: unsent.get(sent..).unwrap_or_default().to_vec(),
            ended,
        })
    }
}

/// A transport taken apart.
pub struct Parts {
    /// Socket and record layer.
    endpoint: Endpoint,
    /// Read and not opened.
    rest: Rest,
    /// Opened, and not read.
    pub plain: Vec<u8>,
    /// Sealed already, and not taken by the socket: before anything else.
    unsent: Vec<u8>,
    /// The peer has been told that nothing more comes.
    ended: bool,
}

impl Parts {
    /// Breaks off: its peer takes nothing any more.
    pub fn cut(self) {
        sys::socket::reset_on_close(self.endpoint.socket());
    }

    /// What goes on by whole messages, once what was left to write has left.
    ///
    /// # Errors
    /// As write(2).
    pub async fn into_dialogue(self) -> io::Result<Dialogue> {
        write_all(self.endpoint.socket(), &self.unsent).await?;
        Ok(Dialogue::new(self.endpoint, self.rest))
    }

    /// Writes what is left to write, then `words`, then the end: with close_notify if `clean`. Waits for the peer to end, for a
    /// moment, so that the last bytes arrive.
    pub async fn finish(self, words: &[u8], clean: bool) {
        let ended = self.ended;
        // Who has gone misses nothing.
        let Ok(mut dialogue) = self.into_dialogue().await else {
            return;
        };
        if !ended && dialogue.write(words).await.is_err() {
            return;
        }
        if clean && !ended {
            dialogue.finish().await;
        } else {
            dialogue.leave().await;
        }
    }
}

impl<L: Look> Inner<L> {
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if into.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if self.receiving.deliver(&mut into) {
            return Poll::Ready(Ok(()));
        }
        loop {
            match self.receiving.state {
                State::Open => {}
                State::Ended => return Poll::Ready(Ok(())),
                State::Truncated if !self.manners.truncation_matters => {
                    return Poll::Ready(Ok(()));
                }
                State::Truncated => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                State::Refused | State::Broken => {
                    return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                }
            }
            let before = into.remaining();
            ready!(self.poll_fill(cx, &mut into))?;
            if into.remaining() < before {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Reads once, and gives the reader what it has room for. Nothing may have come but an end.
    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let fresh = mem::take(&mut self.receiving.fresh);
        if !fresh {
            ready!(self.endpoint.socket.poll_read_ready(cx))?;
        }
        let mut lease = match self.poll_room(cx) {
            Poll::Ready(lease) => lease,
            Poll::Pending => {
                self.receiving.fresh = fresh;
                return Poll::Pending;
            }
        };
        if !fresh {
            let most = lease.spare_mut().len().min(self.manners.read_max);
            let read = self
                .endpoint
                .socket
                .try_read(&mut lease.spare_mut()[..most]);
            let Some(n) = read? else {
                self.keep(lease);
                return Poll::Ready(Ok(()));
            };
            if n == 0 {
                self.receiving.state = if self.endpoint.records.is_some() {
                    State::Truncated
                } else {
                    State::Ended
                };
                return Poll::Ready(Ok(()));
            }
            self.receiving.busy = n == most;
            lease.filled_by(n);
        }
        if self.endpoint.records.is_some() {
            self.open(&mut lease, into);
            self.keep(lease);
            self.poll_notes(cx)?;
        } else {
            let bytes = lease.unread_mut();
            self.receiving.take(&mut self.look, bytes, into);
        }
        Poll::Ready(Ok(()))
    }

    /// See [`Transport::listen`].
    fn listen(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while self.receiving.plain.is_empty() && self.receiving.state == State::Open {
            match self.poll_fill(cx, &mut ReadBuf::new(&mut []).unfilled())? {
                Poll::Pending => return Ok(()),
                Poll::Ready(()) => {}
            }
            // Its reader may wait for just this.
            if !self.receiving.plain.is_empty() || self.receiving.state != State::Open {
                cx.waker().wake_by_ref();
            }
        }
        if self.receiving.state == State::Broken {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(())
    }

    /// A buffer with what was put aside in front.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Lease> {
        let receiving = &mut self.receiving;
        let large = if receiving.busy && self.manners.large_records > 1 {
            self.pool.try_lease(Size::Large)
        } else {
            None
        };
        let mut lease = match large {
            Some(lease) => lease,
            None => ready!(self.pool.poll_lease(cx, &mut receiving.wait)),
        };
        // Less than a record, or what came with the handshake: both fit a small buffer.
        let sealed = mem::take(&mut receiving.sealed);
        lease.spare_mut()[..sealed.len()].copy_from_slice(&sealed);
        lease.filled_by(sealed.len());
        Poll::Ready(lease)
    }

    /// Puts what was not opened aside.
    fn keep(&mut self, mut lease: Lease) {
        let unread = &*lease.unread_mut();
        if !unread.is_empty() {
            self.receiving.sealed = unread.to_vec();
        }
    }

    /// Opens the whole records in the buffer.
    fn open(&mut self, lease: &mut Lease, into: &mut ReadBufCursor<'_>) {
        let Some(records) = &mut self.endpoint.records else {
            return;
        };
        let mut key = None;
        while self.receiving.state == State::Open {
            let unread = lease.unread();
            let bytes = &mut lease.bytes_mut()[unread];
            let (len, opened) = match records.opener.record_len(bytes) {
                Ok(Some(len)) if len <= bytes.len() => {
                    (len, records.opener.open(&mut key, &mut bytes[..len]))
                }
                Ok(_) => return,
                Err(error) => (0, Err(error)),
            };
            match opened {
                Ok(Opened::Data(range)) => {
                    self.receiving
                        .take(&mut self.look, &bytes[range], &mut *into);
                }
                Ok(Opened::Nothing) => {}
                Ok(Opened::KeyUpdate { reply }) => self.sending.key_update |= reply,
                // A courtesy, which must not heap up for who takes nothing.
                Ok(Opened::Renegotiation) if !self.sending.unsent.is_empty() => {}
                Ok(Opened::Renegotiation) => {
                    let (level, alert) = (Level::Warning, Alert::NO_RENEGOTIATION);
                    let _ = self.sending.say(&mut records.sealer, level, alert);
                }
                Ok(Opened::CloseNotify) => self.receiving.state = State::Ended,
                Err(error) => {
                    self.receiving.state = State::Broken;
                    if let Some(alert) = error.alert() {
                        let _ = self.sending.say(&mut records.sealer, Level::Fatal, alert);
                    }
                }
            }
            lease.take(len);
        }
    }

    /// What the record layer has to say itself goes out when the socket takes it; hyper need not ask.
    fn poll_notes(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.sending.unsent.is_empty() {
            return Ok(());
        }
        match self.poll_unsent(cx) {
            Poll::Ready(result) => result,
            Poll::Pending => Ok(()),
        }
    }

    fn poll_unsent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sending = &mut self.sending;
        while let Some(bytes) = sending.unsent.get(sending.at..)
            && !bytes.is_empty()
        {
            match self.endpoint.socket.poll_write(cx, bytes) {
                Poll::Ready(Ok(n)) => {
                    sending.at += n;
                    sending.blocked = None;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    sending.blocked.get_or_insert_with(Instant::now);
                    return Poll::Pending;
                }
            }
        }
        sending.unsent = Vec::new();
        sending.at = 0;
        Poll::Ready(Ok(()))
    }

    /// Tells the peer that nothing more comes.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.sending.ended {
            self.sending.ended = true;
            if let Some(records) = &mut self.endpoint.records {
                let (level, alert) = (Level::Warning, Alert::CLOSE_NOTIFY);
                let said = self.sending.say(&mut records.sealer, level, alert);
                said.map_err(broken)?;
            }
        }
        ready!(self.poll_unsent(cx))?;
        Poll::Ready(self.endpoint.socket.shutdown_write())
    }

    /// Waits until the socket takes bytes, with nothing left over from before.
    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_unsent(cx))?;
        match self.endpoint.socket.poll_write_ready(cx) {
            Poll::Pending => {
                self.sending.blocked.get_or_insert_with(Instant::now);
                Poll::Pending
            }
            ready => {
                self.sending.blocked = None;
                ready
            }
        }
    }

    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_writable(cx))?;
        let total: usize = bufs.iter().map(|buf| buf.len()).sum();
        if total == 0 {
            return Poll::Ready(Ok(0));
        }
        let n = if self.endpoint.records.is_some() {
            ready!(self.poll_write_sealed(cx, bufs, total))?
        } else {
            match self.endpoint.socket.poll_write_vectored(cx, bufs) {
                Poll::Pending => {
                    self.sending.blocked.get_or_insert_with(Instant::now);
                    return Poll::Pending;
                }
                Poll::Ready(result) => result?,
            }
        };
        let mut left = n;
        for buf in bufs {
            let len = left.min(buf.len());
            self.look.sent(&buf[..len]);
            left -= len;
        }
        Poll::Ready(Ok(n))
    }

    /// Copies into a buffer, seals there and writes. What the socket does not take counts as written, and goes out before
    /// anything else.
    fn poll_write_sealed(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
        total: usize,
    ) -> Poll<io::Result<usize>> {
        let large = if total > PLAIN_MAX && self.manners.large_records > 1 {
            self.pool.try_lease(Size::Large)
        } else {
            None
        };
        let mut lease = match large {
            Some(lease) => lease,
            None => ready!(self.pool.poll_lease(cx, &mut self.sending.wait)),
        };
        let Some(records) = &mut self.endpoint.records else {
            return Poll::Ready(Ok(0));
        };
        let sealer = &mut records.sealer;
        if self.sending.key_update || sealer.update_due() {
            self.sending.key_update = false;
            let mut note = [0; NOTE_LEN];
            let range = sealer.key_update(&mut note, 0).map_err(broken)?;
            self.sending.unsent.extend_from_slice(&note[range]);
            ready!(self.poll_unsent(cx))?;
            return self.poll_write_sealed(cx, bufs, total);
        }
        let cells = match lease.size() {
            Size::Small => 1,
            Size::Large => self.manners.large_records.min(lease.ready_room()),
        };
        let mut key = None;
        let mut bufs = bufs.iter();
        let mut buf: &[u8] = &[];
        let mut taken = 0;
        for cell in 0..cells {
            let start = cell * STRIDE + HEADROOM;
            let mut end = start;
            while end < start + PLAIN_MAX {
                if buf.is_empty() {
                    match bufs.next() {
                        Some(next) => buf = next,
                        None => break,
                    }
                    continue;
                }
                let n = buf.len().min(start + PLAIN_MAX - end);
                lease.bytes_mut()[end..end + n].copy_from_slice(&buf[..n]);
                buf = &buf[n..];
                end += n;
            }
            if end == start {
                break;
            }
            taken += end - start;
            let record = sealer.seal(&mut key, lease.bytes_mut(), start..end);
            lease.push_ready(record.map_err(broken)?);
        }
        let out = Outbound {
            socket: &self.endpoint.socket,
            sealer: None,
        };
        match out.poll_flush(cx, &mut lease, &mut 0) {
            Poll::Ready(result) => result?,
            Poll::Pending => {
                let mut slices = [IoSlice::new(&[]); READY_MAX];
                let count = lease.ready(&mut slices);
                for slice in &slices[..count] {
                    self.sending.unsent.extend_from_slice(slice);
                }
                self.sending.blocked.get_or_insert_with(Instant::now);
            }
        }
        Poll::Ready(Ok(taken))
    }
}

impl Sending {
    /// Seals an alert behind what is left over.
    fn say(&mut self, sealer: &mut Sealer, level: Level, alert: Alert) -> Result<(), TlsError> {
        let mut note = [0; NOTE_LEN];
        let range = sealer.alert(level, alert, &mut note, 0)?;
        self.unsent.extend_from_slice(&note[range]);
        Ok(())
    }
}

fn broken(error: TlsError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl Receiving {
    /// Gives the reader what is there for it. True: something was.
    fn deliver(&mut self, into: &mut ReadBufCursor<'_>) -> bool {
        let left = &self.plain[self.at..];
        if left.is_empty() {
            return false;
        }
        let n = left.len().min(into.remaining());
        into.put_slice(&left[..n]);
        self.at += n;
        if self.at == self.plain.len() {
            self.plain = Vec::new();
            self.at = 0;
        }
        true
    }

    /// Plain bytes came: as many as may be delivered.
    fn admit<'a>(&mut self, look: &mut impl Look, bytes: &'a [u8]) -> &'a [u8] {
        match look.received(bytes) {
            Ok(()) => bytes,
            Err(before) => {
                self.state = State::Refused;
                &bytes[..before]
            }
        }
    }

    /// Plain bytes came, and nobody reads now.
    fn hear(&mut self, look: &mut impl Look, bytes: &[u8]) {
        let bytes = self.admit(look, bytes);
        self.plain.extend_from_slice(bytes);
    }

    /// Plain bytes came: given to the reader as far as there is room.
    fn take(&mut self, look: &mut impl Look, bytes: &[u8], into: &mut ReadBufCursor<'_>) {
        let bytes = self.admit(look, bytes);
        let n = if self.plain.is_empty() {
            bytes.len().min(into.remaining())
        } else {
            0
        };
        into.put_slice(&bytes[..n]);
        self.plain.extend_from_slice(&bytes[n..]);
    }
}

impl<L: Look> Read for Transport<L> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.borrow_mut().poll_read(cx, into)
    }
}

impl<L: Look> Write for Transport<L> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_write(cx, &[IoSlice::new(bytes)])
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().poll_unsent(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.0.borrow_mut();
        if inner.manners.says_end {
            inner.poll_end(cx)
        } else {
            inner.poll_unsent(cx)
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_write(cx, bufs)
    }
}
