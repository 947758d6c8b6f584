//! The record layer after the handshake: opens and seals records in place, in the buffer they lie in.
//!
//! ```text
//!   TLS 1.3   | 17 03 03 len | plaintext | type | tag (16) |              RFC 8446 section 5.2
//!   TLS 1.2   | type 03 03 len | nonce (8, GCM only) | plaintext | tag |  RFC 5246 6.2.3.3, 5288, 7905
//! ```
//!
//! An [`Opener`] and a [`Sealer`] are the two directions of one connection and know nothing of each other: what
//! a received message asks us to send comes out of [`Opener::open`] as a value, and the caller tells the
//! sealer. Neither allocates.

use std::ops::Range;

use crate::wire::record::{
    ContentType, HEADER_LEN, Header, PLAIN_MAX, TLS12_PAYLOAD_MAX, TLS13_PAYLOAD_MAX,
};

use super::TlsError;
use super::alert::{Alert, Level};
use super::keys::{Aead, Cipher, Keys, TAG_LEN};

/// Most records in a row that bring no data (empty ones, key updates, tickets, warnings): a peer that sends
/// more wants to keep us busy. The same figure as rustls and OpenSSL have for empty records.
pub const FRUITLESS_MAX: u8 = 32;
/// Length of TLS 1.2's explicit nonce (RFC 5288 section 3).
const EXPLICIT_NONCE_LEN: usize = 8;

const KEY_UPDATE: u8 = 24;
const NEW_SESSION_TICKET: u8 = 4;
const HELLO_REQUEST: u8 = 0;
const CLIENT_HELLO: u8 = 1;

/// Protocol version and AEAD construction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// TLS 1.3, any suite.
    Tls13,
    /// TLS 1.2 with AES-GCM: eight bytes of the nonce travel with the record.
    Tls12Gcm,
    /// TLS 1.2 with ChaCha20-Poly1305: the nonce is as in TLS 1.3.
    Tls12ChaCha,
}

impl Protection {
    pub(super) fn tls12(aead: Aead) -> Self {
        match aead {
            Aead::Aes128Gcm | Aead::Aes256Gcm => Self::Tls12Gcm,
            Aead::ChaCha20Poly1305 => Self::Tls12ChaCha,
        }
    }

    /// Bytes of a record in front of its plaintext.
    pub const fn head_len(self) -> usize {
        match self {
            Self::Tls13 | Self::Tls12ChaCha => HEADER_LEN,
            Self::Tls12Gcm => HEADER_LEN + EXPLICIT_NONCE_LEN,
        }
    }

    /// Bytes of a record behind its plaintext, padding apart.
    pub const fn tail_len(self) -> usize {
        match self {
            Self::Tls13 => 1 + TAG_LEN,
            Self::Tls12Gcm | Self::Tls12ChaCha => TAG_LEN,
        }
    }
}

/// Which side of the handshake the peer was: it decides which messages may still come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// We are the server.
    Client,
    /// We are the client.
    Server,
}

/// Both directions of an established connection.
pub struct RecordLayer {
    /// What we receive.
    pub opener: Opener,
    /// What we send.
    pub sealer: Sealer,
}

impl RecordLayer {
    /// Pairs the directions.
    pub(super) fn new(protection: Protection, peer: Peer, receive: Keys, send: Keys) -> Self {
        Self {
            opener: Opener {
                keys: receive.without_limit(),
                protection,
                peer,
                fruitless: 0,
                handshake: PostHandshake::default(),
            },
            sealer: Sealer {
                keys: send,
                protection,
            },
        }
    }
}

/// What one record turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opened {
    /// Payload, at this range of the record; never empty.
    Data(Range<usize>),
    /// Nothing for anybody: an empty record, a warning, a ticket.
    Nothing,
    /// The peer will send no more. What follows it is to be ignored (RFC 8446 section 6.1).
    CloseNotify,
    /// The peer changed its key; with `reply`, it wants us to change ours (RFC 8446 section 4.6.3).
    KeyUpdate {
        /// Whether ours is asked for.
        reply: bool,
    },
    /// The peer asked for a new TLS 1.2 handshake: answer [`Alert::NO_RENEGOTIATION`].
    Renegotiation,
}

/// The receiving direction.
pub struct Opener {
    keys: Keys,
    protection: Protection,
    peer: Peer,
    /// Records in a row without data.
    fruitless: u8,
    handshake: PostHandshake,
}

/// A handshake message that comes in parts. Only its first five bytes are ever needed.
#[derive(Default)]
struct PostHandshake {
    head: [u8; 5],
    have: u8,
    /// Bytes of a message without interest that are still to come.
    skip: u32,
}

impl PostHandshake {
    fn in_progress(&self) -> bool {
        self.have > 0 || self.skip > 0
    }
}

impl Opener {
    /// How many bytes the record at the start of `bytes` has, header included; `None` if its header is not
    /// there yet. What can be refused by its header is refused before the rest arrives.
    #[inline]
    pub fn record_len(&self, bytes: &[u8]) -> Result<Option<usize>, TlsError> {
        let Some(header) = Header::parse(bytes) else {
            return Ok(None);
        };
        let most = match self.protection {
            Protection::Tls13 => {
                // After the handshake everything is protected, and looks like data (RFC 8446 section 5.1).
                if header.content_type != ContentType::ApplicationData as u8 {
                    return Err(TlsError::UnexpectedMessage("an unprotected record"));
                }
                TLS13_PAYLOAD_MAX
            }
            Protection::Tls12Gcm | Protection::Tls12ChaCha => {
                match ContentType::from_u8(header.content_type) {
                    None | Some(ContentType::ChangeCipherSpec) => {
                        return Err(TlsError::UnexpectedMessage("a record of this type"));
                    }
                    Some(_) if (header.major, header.minor) != (3, 3) => {
                        return Err(TlsError::RecordVersion);
                    }
                    Some(_) => {}
                }
                TLS12_PAYLOAD_MAX
            }
        };
        if header.payload > most {
            return Err(TlsError::RecordOverflow);
        }
        Ok(Some(HEADER_LEN + header.payload))
    }

    /// The construction of the records.
    pub fn protection(&self) -> Protection {
        self.protection
    }

    /// Opens one whole record in place. `cipher` is the expanded key for this burst: `None` at
    /// first, and again after a key change.
    #[inline]
    pub fn open(
        &mut self,
        cipher: &mut Option<Cipher>,
        record: &mut [u8],
    ) -> Result<Opened, TlsError> {
        let (content_type, plain) = self.unprotect(cipher, record)?;
        let content = record.get(plain.clone()).unwrap_or_default();
        match content_type {
            ContentType::ApplicationData if !plain.is_empty() => {
                if self.handshake.in_progress() {
                    return Err(TlsError::UnexpectedMessage(
                        "data inside a handshake message",
                    ));
                }
                self.fruitless = 0;
                return Ok(Opened::Data(plain));
            }
            ContentType::Alert => {
                let opened = Self::alert(self.protection, content)?;
                if opened == Opened::Nothing {
                    self.count_fruitless()?;
                }
                return Ok(opened);
            }
            ContentType::ApplicationData => {}
            ContentType::Handshake => {
                self.count_fruitless()?;
                return self.post_handshake(cipher, plain, record);
            }
            ContentType::ChangeCipherSpec => {
                return Err(TlsError::UnexpectedMessage(
                    "ChangeCipherSpec after Finished",
                ));
            }
        }
        if self.handshake.in_progress() {
            return Err(TlsError::UnexpectedMessage(
                "data inside a handshake message",
            ));
        }
        self.count_fruitless()?;
        Ok(Opened::Nothing)
    }

    fn count_fruitless(&mut self) -> Result<(), TlsError> {
        self.fruitless += 1;
        if self.fruitless > FRUITLESS_MAX {
            return Err(TlsError::UnexpectedMessage("too many records without data"));
        }
        Ok(())
    }

    /// Authenticates and decrypts; returns the inner type and where the content lies.
    #[inline]
    fn unprotect(
        &mut self,
        cipher: &mut Option<Cipher>,
        record: &mut [u8],
    ) -> Result<(ContentType, Range<usize>), TlsError> {
        let cipher = match cipher {
            Some(cipher) => cipher,
            None => cipher.insert(self.keys.cipher()?),
        };
        let seq = self.keys.next_seq()?;
        let Some((head, body)) = record.split_at_mut_checked(HEADER_LEN) else {
            return Err(TlsError::Internal("not a whole record"));
        };
        if self.protection == Protection::Tls13 {
            let len = cipher.open(self.keys.nonce(seq), head, body)?;
            // Content, type, and zeros as padding (RFC 8446 section 5.4).
            let Some(at) = body[..len].iter().rposition(|byte| *byte != 0) else {
                return Err(TlsError::UnexpectedMessage("a record without content type"));
            };
            if len > PLAIN_MAX + 1 {
                return Err(TlsError::RecordOverflow);
            }
            let Some(content_type) = ContentType::from_u8(body[at]) else {
                return Err(TlsError::UnexpectedMessage("a record of this type"));
            };
            if at == 0 && content_type != ContentType::ApplicationData {
                // Only data may be empty (RFC 8446 section 5.4).
                return Err(TlsError::UnexpectedMessage("an empty fragment"));
            }
            return Ok((content_type, HEADER_LEN..HEADER_LEN + at));
        }
        let explicit = self.protection.head_len() - HEADER_LEN;
        let Some((nonce_part, sealed)) = body.split_at_mut_checked(explicit) else {
            return Err(TlsError::BadRecord);
        };
        let nonce = if explicit == 0 {
            self.keys.nonce(seq)
        } else {
            let mut nonce = *self.keys.iv();
            nonce[4..].copy_from_slice(nonce_part);
            nonce
        };
        let Some(len) = sealed.len().checked_sub(TAG_LEN) else {
            return Err(TlsError::BadRecord);
        };
        let aad = tls12_aad(seq, head[0], len);
        let len = cipher.open(nonce, &aad, sealed)?;
        if len > PLAIN_MAX {
            return Err(TlsError::RecordOverflow);
        }
        let content_type = ContentType::from_u8(head[0])
            .ok_or(TlsError::UnexpectedMessage("a record of this type"))?;
        let start = HEADER_LEN + explicit;
        Ok((content_type, start..start + len))
    }

    fn alert(protection: Protection, content: &[u8]) -> Result<Opened, TlsError> {
        let &[level, description] = content else {
            return Err(TlsError::Decode("an alert of another length"));
        };
        match (Alert(description), level) {
            (Alert::CLOSE_NOTIFY, _) => Ok(Opened::CloseNotify),
            (Alert::USER_CANCELED, _) => Ok(Opened::Nothing),
            // In TLS 1.3 the level means nothing (RFC 8446 section 6).
            (_, 1) if protection != Protection::Tls13 => Ok(Opened::Nothing),
            (Alert(description), _) => Err(TlsError::AlertReceived(description)),
        }
    }

    /// Handshake messages after the handshake: joined, and answered by a value.
    fn post_handshake(
        &mut self,
        cipher: &mut Option<Cipher>,
        content: Range<usize>,
        record: &[u8],
    ) -> Result<Opened, TlsError> {
        let mut rest = &record[content];
        if rest.is_empty() {
            return Err(TlsError::UnexpectedMessage("an empty fragment"));
        }
        let mut opened = Opened::Nothing;
        loop {
            let state = &mut self.handshake;
            let skipped = rest.len().min(state.skip as usize);
            state.skip -= skipped as u32;
            rest = &rest[skipped..];
            let Some((byte, after)) = rest.split_first() else {
                return Ok(opened);
            };
            rest = after;
            state.head[usize::from(state.have)] = *byte;
            state.have += 1;
            match self.message(rest.is_empty())? {
                None | Some(Message::Skipped) => {}
                Some(Message::Renegotiation) => opened = Opened::Renegotiation,
                Some(Message::KeyUpdate { reply }) => {
                    *cipher = None;
                    self.keys.step()?;
                    opened = Opened::KeyUpdate { reply };
                }
            }
        }
    }

    /// Looks at the head collected so far. `last`: the record ends here.
    fn message(&mut self, last: bool) -> Result<Option<Message>, TlsError> {
        let state = &mut self.handshake;
        let head = &state.head[..usize::from(state.have)];
        let tls13 = self.protection == Protection::Tls13;
        let message = match (head[0], self.peer) {
            (KEY_UPDATE, _) if tls13 => {
                if head.len() >= 4 && head[1..4] != [0, 0, 1] {
                    return Err(TlsError::Decode("a KeyUpdate of another length"));
                }
                let &[_, _, _, _, request] = head else {
                    return Ok(None);
                };
                if request > 1 {
                    return Err(TlsError::Illegal("KeyUpdate's request"));
                }
                if !last {
                    // The key changes behind it, so it must end its record (RFC 8446 section 5.1).
                    return Err(TlsError::UnexpectedMessage(
                        "a KeyUpdate that does not end its record",
                    ));
                }
                Message::KeyUpdate {
                    reply: request == 1,
                }
            }
            (NEW_SESSION_TICKET, Peer::Server) if tls13 => {
                let &[_, a, b, c] = head else {
                    return Ok(None);
                };
                state.skip = u32::from_be_bytes([0, a, b, c]);
                Message::Skipped
            }
            (CLIENT_HELLO, Peer::Client) | (HELLO_REQUEST, Peer::Server) if !tls13 => {
                let &[_, a, b, c] = head else {
                    return Ok(None);
                };
                state.skip = u32::from_be_bytes([0, a, b, c]);
                Message::Renegotiation
            }
            _ => {
                return Err(TlsError::UnexpectedMessage(
                    "a handshake message of this type",
                ));
            }
        };
        state.have = 0;
        Ok(Some(message))
    }
}

enum Message {
    Skipped,
    Renegotiation,
    KeyUpdate { reply: bool },
}

/// TLS 1.2's additional data (RFC 5246 section 6.2.3.3).
fn tls12_aad(seq: u64, content_type: u8, len: usize) -> [u8; 13] {
    let mut aad = [0; 13];
    aad[..8].copy_from_slice(&seq.to_be_bytes());
    aad[8..11].copy_from_slice(&[content_type, 3, 3]);
    aad[11..].copy_from_slice(&(len as u16).to_be_bytes());
    aad
}

/// The sending direction. Not `Clone`: it owns its counter, and a nonce is used once.
pub struct Sealer {
    keys: Keys,
    protection: Protection,
}

impl Sealer {
    /// The construction of the records.
    pub fn protection(&self) -> Protection {
        self.protection
    }

    /// Seals `plain` (a range of `buffer`, at most 16,384 bytes) in place as data. `buffer` must have
    /// [`Protection::head_len`] bytes in front of it and [`Protection::tail_len`] behind, which
    /// are overwritten. Returns the record's range.
    #[inline]
    pub fn seal(
        &mut self,
        cipher: &mut Option<Cipher>,
        buffer: &mut [u8],
        plain: Range<usize>,
    ) -> Result<Range<usize>, TlsError> {
        self.seal_as(ContentType::ApplicationData, cipher, buffer, plain)
    }

    /// Writes an alert into `buffer`, sealed, at `at`: 40 bytes are enough.
    pub fn alert(
        &mut self,
        level: Level,
        alert: Alert,
        buffer: &mut [u8],
        at: usize,
    ) -> Result<Range<usize>, TlsError> {
        self.control(ContentType::Alert, &alert.bytes(level), buffer, at)
    }

    /// Whether a key update should go out before much more is sealed.
    #[inline]
    pub fn update_due(&self) -> bool {
        self.keys.update_due()
    }

    /// Writes a KeyUpdate message that asks for none in return, and steps to the next key. 40 bytes are enough.
    pub fn key_update(&mut self, buffer: &mut [u8], at: usize) -> Result<Range<usize>, TlsError> {
        self.update(0, buffer, at)
    }

    /// The same, asking for one in return; we never do, tests' clients do.
    #[doc(hidden)]
    pub fn key_update_asking(
        &mut self,
        buffer: &mut [u8],
        at: usize,
    ) -> Result<Range<usize>, TlsError> {
        self.update(1, buffer, at)
    }

    fn update(
        &mut self,
        request: u8,
        buffer: &mut [u8],
        at: usize,
    ) -> Result<Range<usize>, TlsError> {
        let message = [KEY_UPDATE, 0, 0, 1, request];
        let range = self.control(ContentType::Handshake, &message, buffer, at)?;
        self.keys.step()?;
        Ok(range)
    }

    fn control(
        &mut self,
        content_type: ContentType,
        message: &[u8],
        buffer: &mut [u8],
        at: usize,
    ) -> Result<Range<usize>, TlsError> {
        let start = at + self.protection.head_len();
        let plain = start..start + message.len();
        let Some(room) = buffer.get_mut(plain.clone()) else {
            return Err(TlsError::Internal("no room for a message"));
        };
        room.copy_from_slice(message);
        self.seal_as(content_type, &mut None, buffer, plain)
    }

    #[inline]
    fn seal_as(
        &mut self,
        content_type: ContentType,
        cipher: &mut Option<Cipher>,
        buffer: &mut [u8],
        plain: Range<usize>,
    ) -> Result<Range<usize>, TlsError> {
        const NO_ROOM: TlsError = TlsError::Internal("no room around the plaintext");
        let cipher = match cipher {
            Some(cipher) => cipher,
            None => cipher.insert(self.keys.cipher()?),
        };
        let len = plain.len();
        if len > PLAIN_MAX {
            return Err(TlsError::Internal("more plaintext than a record holds"));
        }
        let start = plain
            .start
            .checked_sub(self.protection.head_len())
            .ok_or(NO_ROOM)?;
        let range = start..plain.end + self.protection.tail_len();
        let record = buffer.get_mut(range.clone()).ok_or(NO_ROOM)?;
        let payload = record.len() - HEADER_LEN;
        let (head, body) = record.split_at_mut(HEADER_LEN);
        let seq = self.keys.next_seq()?;
        let nonce = self.keys.nonce(seq);
        if self.protection == Protection::Tls13 {
            head.copy_from_slice(&Header::bytes(ContentType::ApplicationData, payload));
            body[len] = content_type as u8;
            let (inner, tag) = body.split_at_mut(len + 1);
            cipher.seal(nonce, head, inner, tag)?;
        } else {
            head.copy_from_slice(&Header::bytes(content_type, payload));
            let explicit = self.protection.head_len() - HEADER_LEN;
            let (nonce_part, sealed) = body.split_at_mut(explicit);
            nonce_part.copy_from_slice(&nonce[12 - explicit..]);
            let (inner, tag) = sealed.split_at_mut(len);
            cipher.seal(nonce, &tls12_aad(seq, content_type as u8, len), inner, tag)?;
        }
        Ok(range)
    }

    /// Brings the limit of the key near, so that tests reach it.
    #[cfg(test)]
    pub(super) fn set_limit(&mut self, limit: u64) {
        self.keys.set_limit(limit);
    }
}

#[cfg(fuzzing)]
pub mod fuzzing;
#[cfg(test)]
mod tests;
