//! A conversation that we hold ourselves, before bytes are relayed: whole messages, in plain bytes.
//!
//! Few and small messages pass here (a stream's opening, a stream error), so they may be copied. Like the relay it holds no
//! buffer of the pool while it waits.

use std::future::poll_fn;
use std::io;
use std::task::{Poll, ready};

use crate::pool::{HEADROOM, Magazine, PLAIN_MAX};
use crate::tls::TlsError;
use crate::tls::alert::{Alert, Level};
use crate::tls::record::Opened;

use super::secure::{Rest, linger, write_all};
use super::{Endpoint, Socket};

/// Room for a message of TLS itself.
const NOTE_LEN: usize = 48;

/// Why a dialogue is over.
#[derive(Debug, thiserror::Error)]
pub enum DialogueError {
    /// The socket.
    #[error("socket: {0}")]
    Io(#[from] io::Error),
    /// The peer broke the record layer's rules; it has been told.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// What a read has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Bytes.
    Bytes,
    /// The peer's end, as it should be: close_notify, or FIN where there is no TLS.
    End,
    /// FIN without close_notify.
    Truncated,
}

/// See the module.
pub struct Dialogue {
    endpoint: Endpoint,
    /// Read and not opened yet.
    sealed: Vec<u8>,
    /// The peer has said that it will send no more.
    ended: bool,
    /// The peer has been sent a fatal alert, behind which nothing may come.
    broken: bool,
}

impl Dialogue {
    /// `rest` was read behind the handshake. On a plain endpoint there is none.
    pub fn new(endpoint: Endpoint, rest: Rest) -> Self {
        Self {
            endpoint,
            sealed: rest.map_or_else(Vec::new, Vec::from),
            ended: false,
            broken: false,
        }
    }

    /// The endpoint, and what was read from it and not opened.
    pub fn into_parts(self) -> (Endpoint, Rest) {
        let rest = (!self.sealed.is_empty()).then(|| self.sealed.into_boxed_slice());
        (self.endpoint, rest)
    }

    /// Appends what comes next to `plain`: at most what a small buffer or a record holds. No deadline here: the
    /// caller has one.
    ///
    /// # Errors
    /// The socket's, or the record layer's.
    pub async fn read(
        &mut self,
        pool: &Magazine,
        plain: &mut Vec<u8>,
    ) -> Result<Heard, DialogueError> {
        loop {
            if self.ended {
                return Ok(Heard::End);
            }
            if let Some(heard) = self.open(plain).await? {
                return Ok(heard);
            }
            let secure = self.endpoint.records.is_some();
            let into = if secure {
                &mut self.sealed
            } else {
                &mut *plain
            };
            if read_into(&self.endpoint.socket, pool, into).await? == 0 {
                return Ok(if secure { Heard::Truncated } else { Heard::End });
            }
            if !secure {
                return Ok(Heard::Bytes);
            }
        }
    }

    /// Opens records up to the first with payload; those behind it stay as they are, so that an end among them is
    /// found by whoever reads on. `None`: there was no payload in what is there.
    async fn open(&mut self, plain: &mut Vec<u8>) -> Result<Option<Heard>, DialogueError> {
        let mut heard = None;
        let mut cipher = None;
        let mut consumed = 0;
        while heard.is_none()
            && let Some(records) = &mut self.endpoint.records
        {
            let bytes = &mut self.sealed[consumed..];
            let (len, opened) = match records.opener.record_len(bytes) {
                Ok(Some(len)) if len <= bytes.len() => {
                    (len, records.opener.open(&mut cipher, &mut bytes[..len]))
                }
                Ok(_) => break,
                Err(error) => (0, Err(error)),
            };
            consumed += len;
            match opened {
                Ok(Opened::Data(range)) if range.is_empty() => {}
                Ok(Opened::Data(range)) => {
                    plain.extend_from_slice(&bytes[range]);
                    heard = Some(Heard::Bytes);
                }
                Ok(Opened::Nothing | Opened::KeyUpdate { reply: false }) => {}
                Ok(Opened::KeyUpdate { reply: true }) => self.tell(Note::KeyUpdate).await?,
                Ok(Opened::Renegotiation) => {
                    let note = Note::Alert(Level::Warning, Alert::NO_RENEGOTIATION);
                    self.tell(note).await?;
                }
                Ok(Opened::CloseNotify) => {
                    self.ended = true;
                    self.sealed.clear();
                    return Ok(Some(Heard::End));
                }
                Err(error) => {
                    if let Some(alert) = error.alert() {
                        // A courtesy: the error that called for it is what counts.
                        let _ = self.tell(Note::Alert(Level::Fatal, alert)).await;
                        self.broken = true;
                    }
                    return Err(error.into());
                }
            }
        }
        self.sealed.drain(..consumed);
        Ok(heard)
    }

    /// Writes all of `plain`.
    ///
    /// # Errors
    /// The socket's, or the record layer's.
    pub async fn write(&mut self, plain: &[u8]) -> Result<(), DialogueError> {
        let Some(records) = &mut self.endpoint.records else {
            return Ok(write_all(&self.endpoint.socket, plain).await?);
        };
        let mut cipher = None;
        let tail = records.sealer.protection().tail_len();
        let mut scratch = Vec::with_capacity(HEADROOM + plain.len().min(PLAIN_MAX) + tail);
        for part in plain.chunks(PLAIN_MAX) {
            scratch.clear();
            scratch.resize(HEADROOM, 0);
            scratch.extend_from_slice(part);
            let range = HEADROOM..scratch.len();
            scratch.resize(range.end + tail, 0);
            let record = records.sealer.seal(&mut cipher, &mut scratch, range)?;
            write_all(&self.endpoint.socket, &scratch[record]).await?;
        }
        Ok(())
    }

    /// Ends TCP without close_notify, as what is broken off is ended, and waits for the peer to end, for a moment, so that our last
    /// bytes arrive.
    pub async fn leave(self) {
        linger(&self.endpoint.socket).await;
    }

    /// Ends what we say: close_notify where there is TLS, then FIN; and waits for the peer to end, for a moment,
    /// so that our last bytes arrive.
    pub async fn finish(mut self) {
        if self.endpoint.records.is_some() && !self.broken {
            let note = Note::Alert(Level::Warning, Alert::CLOSE_NOTIFY);
            // The peer may be gone; then nobody misses it.
            let _ = self.tell(note).await;
        }
        self.leave().await;
    }

    /// Sends a message of TLS itself.
    async fn tell(&mut self, note: Note) -> Result<(), DialogueError> {
        let Some(records) = &mut self.endpoint.records else {
            return Ok(());
        };
        let mut bytes = [0; NOTE_LEN];
        let range = match note {
            Note::Alert(level, alert) => records.sealer.alert(level, alert, &mut bytes, 0)?,
            Note::KeyUpdate => records.sealer.key_update(&mut bytes, 0)?,
        };
        Ok(write_all(&self.endpoint.socket, &bytes[range]).await?)
    }
}

/// A message of TLS itself.
enum Note {
    Alert(Level, Alert),
    KeyUpdate,
}

/// Reads once, appending to `into`. Zero: the end. A buffer is leased for the moment of the read only.
pub async fn read_into(socket: &Socket, pool: &Magazine, into: &mut Vec<u8>) -> io::Result<usize> {
    let mut wait = None;
    poll_fn(|cx| {
        loop {
            ready!(socket.poll_read_ready(cx))?;
            let mut lease = ready!(pool.poll_lease(cx, &mut wait));
            let spare = lease.spare_mut();
            if let Some(n) = socket.try_read(spare)? {
                into.extend_from_slice(&spare[..n]);
                return Poll::Ready(Ok(n));
            }
        }
    })
    .await
}
