//! One direction of a relayed conversation.
//!
//! ```text
//!   Flowing --end of the source, all of it written--> Ending --end told to the sink--> Done
//!      `----------- the sink cannot be written to -------------------------------------^
//! ```
//!
//! A half moves bytes from its source to its sink and owns at most one lease, and that only while bytes are in
//! flight: bytes the sink has not taken, or the first part of a record. It reads only
//! when its buffer has nothing left to write and the sink takes bytes, so that back pressure is TCP's own. It never
//! changes payload, and only lets an XMPP stream's watcher look at it.

use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::task::{Context, Poll, ready};

use crate::endpoint::secure::Rest;
use crate::endpoint::{Inbound, Outbound};
use crate::metrics::Counter;
use crate::pool::{
    HEADROOM, Lease, Magazine, PLAIN_MAX, READY_MAX, SMALL_LEN, STRIDE, Size, TAILROOM, Wait,
};
use crate::tls::TlsError;
use crate::tls::alert::{Alert, Level};
use crate::tls::keys::Cipher;
use crate::tls::record::{Opened, Opener, Sealer};
use crate::wire::xmpp::Condition;

use super::Limits;
use super::stream::Stream;

/// Most bytes of a record's first part that are kept outside the pool while that is tight.
const ASIDE_MAX: usize = 1024;

/// Most plaintext that a calm flow puts into one record. A client can use a record when its last byte is there: with the
/// usual initial window of ten segments (RFC 6928) a full record, which needs twelve, takes a round trip more.
const CALM_RECORD: usize = 4 * 1024;
/// What is more than that begins with a record that fits one segment.
const FIRST_RECORD: usize = 1369;
const _: () = assert!(
    PLAIN_MAX + (PLAIN_MAX / CALM_RECORD + 1) * (HEADROOM + TAILROOM) <= SMALL_LEN,
    "a full read fits a small buffer as calm records, too"
);

/// What one endpoint's receiving side has for its sending side to do.
#[derive(Debug, Default)]
pub struct Control {
    key_update: bool,
    alert: Option<(Level, Alert)>,
    pub(super) updates_received: u32,
    pub(super) updates_sent: u32,
}

impl Control {
    fn pending(&self) -> bool {
        self.key_update || self.alert.is_some()
    }
}

/// How a direction has ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// As it should: close_notify, or FIN where there is no TLS.
    Clean,
    /// The source ended TCP without close_notify.
    SourceTruncated,
    /// The source could not be read.
    SourceGone(io::Error),
    /// The source broke the protocol.
    SourceTls(TlsError),
    /// The sink could not be written to.
    SinkGone(io::Error),
    /// Nothing more can be sealed for the sink.
    SinkTls(TlsError),
    /// What the source sent is against the rules of the stream; it was not forwarded.
    Refused(Condition),
    /// We end it, the source has not.
    Dismissed,
}

/// What the sink is told before we end a direction ourselves.
#[derive(Debug)]
pub(super) enum Farewell {
    /// Nothing but close_notify.
    Plain,
    /// This, once the stream is between two stanzas.
    Words(Box<str>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Flowing,
    /// The source has ended; what is buffered is still to be written, then the end.
    Ending,
    Done,
}

/// A message of our own to the sink, sealed: an alert or a key update. Rare, so it has its own little allocation
/// instead of a lease: it must get through when the pool is at its bound.
struct Note {
    bytes: Box<[u8]>,
    range: Range<usize>,
    /// The last thing this direction sends.
    fatal: bool,
}

/// Room for a message of TLS itself.
const NOTE_LEN: usize = 48;

/// What a direction uses.
#[derive(Clone, Copy)]
pub(super) struct Shared<'a> {
    pub(super) pool: &'a Magazine,
    pub(super) limits: &'a Limits,
    /// Counts payload.
    pub(super) meter: &'a Counter,
}

/// Who looks at the payload as it passes.
pub(super) enum Watcher<'a> {
    /// Nobody.
    Nobody,
    /// At what an XMPP client sends.
    OfClient(&'a mut Stream),
    /// At what its server sends.
    OfServer(&'a mut Stream),
}

impl Watcher<'_> {
    #[inline]
    fn look(&mut self, payload: &[u8]) -> Result<(), Condition> {
        match self {
            Self::Nobody => Ok(()),
            Self::OfClient(stream) => stream.sent(payload),
            Self::OfServer(stream) => {
                stream.answered(payload);
                Ok(())
            }
        }
    }
}

/// One direction. See the module.
pub(super) struct Half {
    lease: Option<Lease>,
    /// Unread bytes kept outside the pool: read before the relay began, or the first part of a record put aside
    /// while others wait for a buffer.
    aside: Rest,
    /// What was put aside may hold whole records: look at it without waiting for more.
    unseen: bool,
    /// Nothing is read, because the sink's kernel has not yet sent what it was given before.
    blocked: bool,
    /// A place in the queue for a lease.
    wait: Option<Wait>,
    note: Option<Box<Note>>,
    farewell: Option<Box<Farewell>>,
    ended: Option<Box<Ended>>,
    /// Bytes read from the source, with what TLS adds.
    received: u64,
    /// Bytes written to the sink, with what TLS adds.
    moved: u64,
    /// Payload bytes that have come from the source.
    payload: u64,
    phase: Phase,
    /// The last read was full: take a large buffer next time.
    busy: bool,
    /// close_notify was sealed.
    notified: bool,
    /// The sink was told words of ours, and may answer them before the end.
    parting: bool,
    /// A truncated source ends in a reset, which is the caller's to make: no FIN before it.
    reset_truncated: bool,
}

impl Half {
    /// `rest` was read from the source already.
    pub(super) fn new(rest: Rest, reset_truncated: bool) -> Self {
        Self {
            lease: None,
            unseen: rest.is_some(),
            aside: rest,
            blocked: false,
            wait: None,
            note: None,
            farewell: None,
            ended: None,
            received: 0,
            moved: 0,
            payload: 0,
            phase: Phase::Flowing,
            busy: false,
            notified: false,
            parting: false,
            reset_truncated,
        }
    }

    /// Payload bytes that have passed before this half began.
    pub(super) fn begin_at(&mut self, payload: u64) {
        self.payload = payload;
    }

    /// Bytes read from the source and written to the sink, with what TLS adds.
    pub(super) fn traffic(&self) -> u64 {
        self.received + self.moved
    }

    /// Payload bytes that have come from the source.
    pub(super) fn payload(&self) -> u64 {
        self.payload
    }

    /// Whether a buffer is held.
    pub(super) fn holding(&self) -> bool {
        self.lease.is_some()
    }

    /// Whether bytes are held, here or by the kernel for the sink, which takes nothing; or the source has sent a part of a record.
    pub(super) fn burdened(&self) -> bool {
        self.lease.is_some() || self.aside.is_some() || self.note.is_some() || self.blocked
    }

    /// Makes do with a small buffer where a large one is held for what fits it: the rest of a burst.
    pub(super) fn shrink(&mut self, pool: &Magazine) {
        if let Some(lease) = &mut self.lease
            && lease.size() == Size::Large
            && lease.held() <= SMALL_LEN - HEADROOM
            && let Some(mut small) = pool.try_lease(Size::Small)
        {
            lease.move_to(&mut small);
            self.lease = Some(small);
        }
    }

    /// Puts the first part of a record aside, if it is small, and gives the buffer back: for when the pool is tight.
    pub(super) fn put_aside(&mut self) {
        // While a note waits for the sink, whole records may lie unopened behind it.
        if let Some(lease) = &mut self.lease
            && self.note.is_none()
            && !lease.has_ready()
            && (1..=ASIDE_MAX).contains(&lease.unread().len())
        {
            self.aside = Some((&*lease.unread_mut()).into());
            self.lease = None;
        }
    }

    /// Whether it has ended in another way than it should.
    pub(super) fn ended_badly(&self) -> bool {
        !matches!(
            self.ended.as_deref(),
            None | Some(Ended::Clean | Ended::Dismissed)
        )
    }

    /// Whether it is over because its source is dead, which then is no sink for the other direction either.
    pub(super) fn source_gone(&self) -> bool {
        self.done() && matches!(self.ended.as_deref(), Some(Ended::SourceGone(_)))
    }

    /// Whether it ended because somebody broke the protocol, and only an alert is left to say.
    pub(super) fn faulted(&self) -> bool {
        matches!(
            self.ended.as_deref(),
            Some(Ended::SourceTls(_) | Ended::SinkTls(_))
        )
    }

    /// What the stream error is to say, if what the source sent was refused.
    pub(super) fn refused(&self) -> Option<Condition> {
        match self.ended.as_deref() {
            Some(Ended::Refused(condition)) => Some(*condition),
            _ => None,
        }
    }

    /// Reads no more from the source; what was read is still written.
    pub(super) fn dismiss(&mut self) {
        if self.phase == Phase::Flowing {
            self.end(Ended::Dismissed);
        }
    }

    /// Ends what the sink gets with `farewell`, as soon as it may stand there. `Words` may be replaced by `Plain` while
    /// they wait.
    pub(super) fn take_leave(&mut self, farewell: Farewell) {
        if self.phase != Phase::Done {
            self.farewell = Some(Box::new(farewell));
        }
    }

    /// Whether words of ours were the last, and the end is left to the caller.
    pub(super) fn parting(&self) -> bool {
        self.parting && self.done()
    }

    /// What was read from the source and not opened, if we have ended this direction.
    pub(super) fn take_rest(&mut self) -> Rest {
        self.aside.take()
    }

    /// Whether words of ours still wait to be said.
    pub(super) fn taking_leave(&self) -> bool {
        matches!(self.farewell.as_deref(), Some(Farewell::Words(_)))
    }

    /// Whether this direction is over.
    pub(super) fn done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Whether the source's TCP stream is known to be at its end.
    pub(super) fn source_ended(&self) -> bool {
        matches!(
            self.ended.as_deref(),
            Some(Ended::SourceTruncated | Ended::SourceGone(_))
        )
    }

    /// Whether the source ended without saying so.
    pub(super) fn truncated(&self) -> bool {
        matches!(
            self.ended.as_deref(),
            Some(Ended::SourceTruncated | Ended::SourceGone(_) | Ended::SourceTls(_))
        )
    }

    pub(super) fn take_end(&mut self) -> Option<Ended> {
        self.ended.take().map(|ended| *ended)
    }

    fn end(&mut self, ended: Ended) {
        self.ended.get_or_insert_with(|| Box::new(ended));
        self.phase = Phase::Ending;
    }

    /// Moves what can be moved. Of the controls, the first is for what is heard from the source and its sending
    /// side shall do, the second tells what the sink shall be sent beside the bytes. Ready when
    /// this direction is over.
    #[inline]
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        source: Inbound<'_>,
        sink: Outbound<'_>,
        controls: (&mut Control, &mut Control),
        watcher: Watcher<'_>,
        shared: Shared<'_>,
    ) -> Poll<()> {
        if self.phase == Phase::Done {
            return Poll::Ready(());
        }
        let before = self.payload;
        let result = self.run(cx, source, sink, controls, watcher, shared);
        shared.meter.add(self.payload - before);
        match result {
            Poll::Pending => Poll::Pending,
            Poll::Ready(result) => {
                if let Err(error) = result {
                    self.ended
                        .get_or_insert_with(|| Box::new(Ended::SinkGone(error)));
                }
                self.phase = Phase::Done;
                self.blocked = false;
                self.lease = None;
                self.wait = None;
                self.note = None;
                self.farewell = None;
                Poll::Ready(())
            }
        }
    }

    /// Ready: the direction is over; an error is the sink's.
    fn run(
        &mut self,
        cx: &mut Context<'_>,
        mut source: Inbound<'_>,
        mut sink: Outbound<'_>,
        (heard, tell): (&mut Control, &mut Control),
        mut watcher: Watcher<'_>,
        Shared { pool, limits, .. }: Shared<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            // 1. What was begun is finished first: a record must not be cut by another.
            if let Some(lease) = &mut self.lease {
                ready!(sink.poll_flush(cx, lease, &mut self.moved))?;
            }
            if let Some(note) = &mut self.note {
                self.wait = None; // a slot granted meanwhile would be held for as long as this takes
                while !note.range.is_empty() {
                    note.range.start +=
                        ready!(sink.socket.poll_write(cx, &note.bytes[note.range.clone()]))?;
                }
                let fatal = note.fatal;
                self.note = None;
                if fatal {
                    return Poll::Ready(sink.socket.shutdown_write());
                }
            }
            // 2. What the other direction wants told: key updates and alerts.
            if let Some(sealer) = sink.sealer.as_deref_mut()
                && (tell.pending() || sealer.update_due())
            {
                self.note = self.next_note(sealer, tell).map(Box::new);
                continue;
            }
            // 3. Our own end of it, where it may stand.
            if self.farewell.is_some() && self.may_leave(&watcher) {
                self.leave(sink.sealer.as_deref_mut());
                continue;
            }
            // 4. Records that are there already.
            if self.unseen && self.phase == Phase::Flowing {
                ready!(self.poll_room(cx, pool));
                self.unseen = false;
            }
            if self.phase == Phase::Flowing
                && let Some(opener) = source.opener.as_deref_mut()
                && let Some(lease) = &mut self.lease
                && !lease.unread().is_empty()
            {
                let knew = heard.pending();
                self.open_records(opener, sink.sealer.as_deref_mut(), heard, &mut watcher);
                if heard.pending() && !knew {
                    // The other half acts on it, and may have been polled before this one. Once: it may also
                    // be unable to for long, and waking again and again would spin.
                    cx.waker().wake_by_ref();
                }
                if self.lease.as_ref().is_some_and(Lease::has_ready) {
                    continue;
                }
            }
            // 5. The end of the source, told to the sink once everything before it is written.
            if self.phase == Phase::Ending {
                self.keep_rest();
                if self.parting {
                    return Poll::Ready(Ok(()));
                }
                if let Some(sealer) = sink.sealer.as_deref_mut()
                    && !self.notified
                    && matches!(self.ended.as_deref(), Some(Ended::Clean | Ended::Dismissed))
                {
                    self.notified = true;
                    tell.alert = Some((Level::Warning, Alert::CLOSE_NOTIFY));
                    self.note = self.next_note(sealer, tell).map(Box::new);
                    continue;
                }
                if self.reset_truncated && self.truncated() {
                    return Poll::Ready(Ok(()));
                }
                return Poll::Ready(sink.socket.shutdown_write());
            }
            // 6. Nothing is held, or the first part of a record. Read on, if the sink takes bytes at all.
            if self
                .lease
                .as_ref()
                .is_some_and(|lease| lease.unread().is_empty())
            {
                self.lease = None;
            }
            let room = if pool.tight() && self.lease.is_none() {
                sink.socket.poll_write_room(cx)
            } else {
                let ready = sink.socket.poll_write_ready(cx);
                ready.map_ok(|()| usize::MAX)
            };
            self.blocked = room.is_pending();
            let room = ready!(room)?;
            match source.socket.poll_read_ready(cx) {
                Poll::Pending => {
                    if pool.tight() {
                        self.put_aside();
                        self.shrink(pool);
                    }
                    return Poll::Pending;
                }
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    self.end(Ended::SourceGone(error));
                    continue;
                }
            }
            ready!(self.poll_room(cx, pool));
            let most = limits.read_max.min(room);
            match self.read(&source, sink.sealer.as_deref_mut(), &mut watcher, most) {
                Ok(true) => {}
                Ok(false) => {
                    // Not ready after all; the loop waits for it, with nothing held for nothing.
                }
                Err(ended) => self.end(ended),
            }
        }
    }

    /// Whether a farewell may stand here. One that waits when the source has ended at another place is not said.
    fn may_leave(&self, watcher: &Watcher<'_>) -> bool {
        match (self.farewell.as_deref(), watcher) {
            (Some(Farewell::Words(_)), Watcher::OfServer(stream)) => stream.at_boundary(),
            _ => true,
        }
    }

    /// Seals the farewell and ends this direction behind it.
    fn leave(&mut self, sealer: Option<&mut Sealer>) {
        if let Some(Farewell::Words(words)) = self.farewell.take().map(|farewell| *farewell) {
            let mut bytes = vec![0; HEADROOM];
            bytes.extend_from_slice(words.as_bytes());
            let plain = HEADROOM..bytes.len();
            let range = match sealer {
                None => Ok(plain),
                Some(sealer) => {
                    bytes.resize(plain.end + sealer.protection().tail_len(), 0);
                    sealer.seal(&mut None, &mut bytes, plain)
                }
            };
            match range {
                Ok(range) => {
                    self.parting = true;
                    self.note = Some(Box::new(Note {
                        bytes: bytes.into_boxed_slice(),
                        range,
                        fatal: false,
                    }));
                }
                Err(error) => self.end(Ended::SinkTls(error)),
            }
        }
        self.end(Ended::Dismissed);
    }

    /// Gives the buffer back. What the source sent after we have ended it ourselves is kept: it may be its last words.
    fn keep_rest(&mut self) {
        let Some(mut lease) = self.lease.take() else {
            return;
        };
        let ours = matches!(
            self.ended.as_deref(),
            Some(Ended::Dismissed | Ended::Refused(_))
        );
        let unread = &*lease.unread_mut();
        if ours && !unread.is_empty() {
            self.aside = Some(unread.into());
        }
    }

    /// Seals the next message of our own.
    fn next_note(&mut self, sealer: &mut Sealer, tell: &mut Control) -> Option<Note> {
        let mut bytes = [0; NOTE_LEN];
        let (range, fatal) = if let Some((level, alert)) = tell.alert.take() {
            (
                sealer.alert(level, alert, &mut bytes, 0),
                level == Level::Fatal,
            )
        } else {
            tell.key_update = false;
            tell.updates_sent += 1;
            (sealer.key_update(&mut bytes, 0), false)
        };
        match range {
            Ok(range) => Some(Note {
                bytes: bytes.into(),
                range,
                fatal,
            }),
            Err(error) => {
                // The key is used up (TLS 1.2): the end, and no alert can be sealed either.
                self.end(Ended::SinkTls(error));
                None
            }
        }
    }

    /// A buffer with room for a read: a large one for a busy flow if there is one, else a small one.
    fn poll_room(&mut self, cx: &mut Context<'_>, pool: &Magazine) -> Poll<()> {
        match &mut self.lease {
            None => {
                let large = if self.busy {
                    pool.try_lease(Size::Large)
                } else {
                    None
                };
                let mut lease = match large {
                    Some(lease) => lease,
                    None => ready!(pool.poll_lease(cx, &mut self.wait)),
                };
                if let Some(aside) = self.aside.take() {
                    lease.spare_mut()[..aside.len()].copy_from_slice(&aside);
                    lease.filled_by(aside.len());
                }
                self.lease = Some(lease);
            }
            Some(held) => {
                held.compact();
                if self.busy
                    && held.size() == Size::Small
                    && let Some(mut large) = pool.try_lease(Size::Large)
                {
                    held.move_unread_to(&mut large);
                    self.lease = Some(large);
                }
            }
        }
        Poll::Ready(())
    }

    /// One read of at most so many bytes (a record is read as a whole); what came is ready to be written, or lies unread to be
    /// opened. False: nothing was there.
    #[inline]
    fn read(
        &mut self,
        source: &Inbound<'_>,
        sealer: Option<&mut Sealer>,
        watcher: &mut Watcher<'_>,
        most: usize,
    ) -> Result<bool, Ended> {
        let Some(lease) = &mut self.lease else {
            return Ok(false);
        };
        let secure = source.opener.is_some();
        let (asked, n) = if secure || sealer.is_none() {
            let spare = lease.spare_mut();
            let most = spare.len().min(most);
            (most, source.socket.try_read(&mut spare[..most]))
        } else {
            read_cells(source, lease, most)
        };
        let Some(n) = n.map_err(Ended::SourceGone)? else {
            if lease.unread().is_empty() {
                self.lease = None;
            }
            return Ok(false);
        };
        if n == 0 {
            // A record that was begun is lost with it; what was whole before it is written already.
            return Err(if secure {
                Ended::SourceTruncated
            } else {
                Ended::Clean
            });
        }
        self.received += n as u64;
        let calm = !self.busy;
        self.busy = n == asked || (self.busy && n > PLAIN_MAX);
        if !secure {
            self.payload += n as u64;
        }
        match sealer {
            _ if secure => lease.filled_by(n),
            Some(sealer) if calm => seal_calm(lease, sealer, watcher, n)?,
            Some(sealer) => seal_cells(lease, sealer, watcher, n)?,
            None => {
                lease.filled_by(n);
                let range = lease.unread();
                lease.take(n);
                lease.push_ready(range);
            }
        }
        Ok(true)
    }

    /// Opens the whole records in the buffer, as many as one write takes.
    fn open_records(
        &mut self,
        opener: &mut Opener,
        mut sealer: Option<&mut Sealer>,
        heard: &mut Control,
        watcher: &mut Watcher<'_>,
    ) {
        let Some(lease) = &mut self.lease else {
            return;
        };
        let mut open_key: Option<Cipher> = None;
        let mut seal_key: Option<Cipher> = None;
        let mut sealed_to = 0;
        let ended = loop {
            if lease.ready_room() == 0 {
                return;
            }
            let unread = lease.unread();
            let bytes = &mut lease.bytes_mut()[unread.clone()];
            let len = match opener.record_len(bytes) {
                Ok(Some(len)) if len <= bytes.len() => len,
                Ok(_) => return,
                Err(error) => break Ended::SourceTls(error),
            };
            let record_end = unread.start + len;
            if let Some(sealer) = &sealer {
                // Sealed again in place, the record may need more room than it had.
                let had = opener.protection();
                let needs = sealer.protection();
                let plain = len.saturating_sub(had.head_len() + had.tail_len());
                let most = plain + needs.head_len() + needs.tail_len();
                if lease.has_ready() && record_end - sealed_to < most {
                    return; // once what is ready is written there is room
                }
            }
            let opened = opener.open(
                &mut open_key,
                &mut lease.bytes_mut()[unread.start..record_end],
            );
            lease.take(len);
            match opened {
                Ok(Opened::Data(plain)) => {
                    self.payload += plain.len() as u64;
                    let plain = unread.start + plain.start..unread.start + plain.end;
                    if let Err(condition) = watcher.look(&lease.bytes_mut()[plain.clone()]) {
                        break Ended::Refused(condition);
                    }
                    let ready = match &mut sealer {
                        None => plain,
                        Some(sealer) => {
                            let room = sealed_to..record_end;
                            match reseal(sealer, &mut seal_key, lease.bytes_mut(), plain, room) {
                                Ok(record) => record,
                                Err(error) => break Ended::SinkTls(error),
                            }
                        }
                    };
                    sealed_to = ready.end;
                    lease.push_ready(ready);
                }
                Ok(Opened::Nothing) => {}
                Ok(Opened::CloseNotify) => break Ended::Clean,
                Ok(Opened::KeyUpdate { reply }) => {
                    heard.updates_received += 1;
                    heard.key_update |= reply;
                }
                Ok(Opened::Renegotiation) => {
                    heard.alert = Some((Level::Warning, Alert::NO_RENEGOTIATION));
                }
                Err(error) => break Ended::SourceTls(error),
            }
        };
        if let Ended::SourceTls(error) = &ended
            && let Some(alert) = error.alert()
        {
            heard.alert = Some((Level::Fatal, alert));
        }
        self.end(ended);
    }
}

/// Reads plaintext into the cells of the buffer, each with room for its record around it.
#[inline]
fn read_cells(
    source: &Inbound<'_>,
    lease: &mut Lease,
    most: usize,
) -> (usize, io::Result<Option<usize>>) {
    if lease.size() == Size::Small {
        let most = PLAIN_MAX.min(most);
        let cell = &mut lease.bytes_mut()[HEADROOM..HEADROOM + most];
        return (most, source.socket.try_read(cell));
    }
    let mut slices: [IoSliceMut<'_>; READY_MAX] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
    let mut asked = 0;
    let mut cells = 0;
    let chunks = lease.bytes_mut().chunks_exact_mut(STRIDE);
    for (slice, cell) in slices.iter_mut().zip(chunks) {
        let len = PLAIN_MAX.min(most - asked);
        if len == 0 {
            break;
        }
        *slice = IoSliceMut::new(&mut cell[HEADROOM..HEADROOM + len]);
        asked += len;
        cells += 1;
    }
    (
        asked,
        source.socket.try_read_vectored(&mut slices[..cells], asked),
    )
}

/// Seals what a calm flow's read has put into the first cell, in small records if it is much.
#[inline]
fn seal_calm(
    lease: &mut Lease,
    sealer: &mut Sealer,
    watcher: &mut Watcher<'_>,
    n: usize,
) -> Result<(), Ended> {
    let mut key = None;
    let bytes = lease.bytes_mut();
    watcher
        .look(&bytes[HEADROOM..HEADROOM + n])
        .map_err(Ended::Refused)?;
    if n <= CALM_RECORD {
        let record = sealer.seal(&mut key, bytes, HEADROOM..HEADROOM + n);
        lease.push_ready(record.map_err(Ended::SinkTls)?);
        return Ok(());
    }
    // Moved apart from the last to the first, so that each has room around it.
    let records = 1 + (n - FIRST_RECORD).div_ceil(CALM_RECORD);
    let from = |at: usize| match at {
        0 => 0,
        at => (FIRST_RECORD + (at - 1) * CALM_RECORD).min(n),
    };
    let place = |at: usize| HEADROOM + from(at) + at * (HEADROOM + TAILROOM);
    for at in (1..records).rev() {
        let plain = HEADROOM + from(at)..HEADROOM + from(at + 1);
        bytes.copy_within(plain, place(at));
    }
    for at in 0..records {
        let start = place(at);
        let plain = start..start + from(at + 1) - from(at);
        let record = sealer.seal(&mut key, lease.bytes_mut(), plain);
        lease.push_ready(record.map_err(Ended::SinkTls)?);
    }
    Ok(())
}

/// Seals what a read has put into the cells.
#[inline]
fn seal_cells(
    lease: &mut Lease,
    sealer: &mut Sealer,
    watcher: &mut Watcher<'_>,
    mut n: usize,
) -> Result<(), Ended> {
    let mut key = None;
    let mut cell = 0;
    while n > 0 {
        let start = cell + HEADROOM;
        let len = n.min(PLAIN_MAX);
        let plain = start..start + len;
        let bytes = lease.bytes_mut();
        watcher
            .look(&bytes[plain.clone()])
            .map_err(Ended::Refused)?;
        let record = sealer.seal(&mut key, bytes, plain);
        lease.push_ready(record.map_err(Ended::SinkTls)?);
        n -= len;
        cell += STRIDE;
    }
    Ok(())
}

/// Seals `plain` again for the other side, within `room`, moving it where header or tag would not fit otherwise.
fn reseal(
    sealer: &mut Sealer,
    key: &mut Option<Cipher>,
    bytes: &mut [u8],
    plain: Range<usize>,
    room: Range<usize>,
) -> Result<Range<usize>, TlsError> {
    let head = sealer.protection().head_len();
    let tail = sealer.protection().tail_len();
    let latest = room.end.checked_sub(tail + plain.len());
    let Some(latest) = latest.filter(|latest| *latest >= room.start + head) else {
        return Err(TlsError::Internal("no room to seal a record again"));
    };
    let start = plain.start.clamp(room.start + head, latest);
    let len = plain.len();
    if start != plain.start {
        bytes.copy_within(plain, start);
    }
    sealer.seal(key, bytes, start..start + len)
}
