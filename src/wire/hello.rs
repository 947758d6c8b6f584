//! What a TLS client asks for before any key exists: server name and ALPN protocols.
//!
//! [`Hello::parse`] reads the first flight of a connection as it came from the socket: one handshake message,
//! cut into records wherever the client liked. Nothing is decrypted, nothing negotiated and nothing kept;
//! names are borrowed from the input, and copied only if a record boundary cuts through them.
//! A caller that forwards the connection unopened sends the same bytes on.
//!
//! References: RFC 8446 sections 4.1.2 (ClientHello), 4.2 (extensions), 5.1 (records); RFC 6066 section 3
//! (server_name); RFC 7301 section 3.1 (ALPN).

use std::borrow::Cow;

/// What a ClientHello asks for.
#[derive(Clone, Debug)]
pub struct Hello<'a> {
    server_name: Option<Cow<'a, str>>,
    alpn: Option<Cursor<'a>>,
    wire_len: usize,
}

/// What [`Hello::parse`] found in the bytes so far.
#[derive(Clone, Debug)]
pub enum Parsed<'a> {
    /// A whole ClientHello.
    Hello(Hello<'a>),
    /// All bytes so far are sound, but the message goes on.
    NeedMore {
        /// Length of the input below which asking again is in vain.
        at_least: usize,
    },
}

/// Why bytes are not a ClientHello. Final: no further byte would mend it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// A record that does not carry a handshake message.
    #[error("record has content type {0}, not handshake(22)")]
    NotHandshake(u8),
    /// A record header whose version is not 3.x.
    #[error("record has major version {0}, not 3")]
    NotTls(u8),
    /// A record longer than 2^14 bytes.
    #[error("record of {0} bytes is over the limit of {RECORD_MAX}")]
    RecordTooLong(usize),
    /// A handshake record without content (RFC 8446 section 5.1 forbids it).
    #[error("empty handshake record")]
    EmptyRecord,
    /// Another handshake message than ClientHello.
    #[error("handshake message has type {0}, not client_hello(1)")]
    NotClientHello(u8),
    /// A ClientHello above [`HELLO_MAX`].
    #[error("ClientHello of {0} bytes is over the limit of {HELLO_MAX}")]
    TooLong(usize),
    /// A field that is longer than the structure around it, or bytes behind the last field.
    #[error("lengths inside the ClientHello contradict each other")]
    BadLength,
    /// A vector that is shorter or longer than its definition allows.
    #[error("{0} has a length that its definition forbids")]
    BadVector(&'static str),
    /// An extension sent twice (RFC 8446 section 4.2).
    #[error("extension {0} is sent twice")]
    Repeated(&'static str),
    /// A host name with bytes that no host name has, or none at all.
    #[error("server_name holds no valid host name")]
    BadName,
}

impl<'a> Hello<'a> {
    /// Reads the ClientHello that `wire`, the first bytes of a connection, begin with.
    ///
    /// Bytes after the message are not looked at. The answer for a prefix is [`Parsed::NeedMore`] or the
    /// answer for the whole. The cost is linear in the number of records until the message is complete.
    ///
    /// # Errors
    /// [`HelloError`] as soon as the bytes can no longer become a ClientHello.
    pub fn parse(wire: &'a [u8]) -> Result<Parsed<'a>, HelloError> {
        let (message, wire_len) = match whole_message(wire)? {
            Message::Whole { message, wire_len } => (message, wire_len),
            Message::NeedMore { at_least } => return Ok(Parsed::NeedMore { at_least }),
        };
        let mut body = message;
        body.skip(HANDSHAKE_HEADER)?;
        // legacy_version and random say nothing about names.
        body.skip(2 + 32)?;
        let session_id = body.vector_u8()?;
        if session_id.left > 32 {
            return Err(HelloError::BadVector("session_id"));
        }
        let suites = body.vector_u16()?;
        if suites.left < 2 || !suites.left.is_multiple_of(2) {
            return Err(HelloError::BadVector("cipher_suites"));
        }
        if body.vector_u8()?.left == 0 {
            return Err(HelloError::BadVector("compression_methods"));
        }
        let mut hello = Self {
            server_name: None,
            alpn: None,
            wire_len,
        };
        // TLS 1.2 lets a client leave the block out altogether (RFC 5246 section 7.4.1.2).
        if body.left > 0 {
            let extensions = body.vector_u16()?;
            if body.left > 0 {
                return Err(HelloError::BadLength);
            }
            hello.read_extensions(extensions)?;
        }
        Ok(Parsed::Hello(hello))
    }

    /// The host name asked for, ASCII, without a trailing dot; case as the client wrote it.
    ///
    /// Only the characters are checked: an address in digits, which RFC 6066 forbids, comes through and
    /// will match no certificate.
    pub fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    /// The protocols offered by ALPN, most wanted first; nothing if the client does not speak ALPN.
    pub fn alpn(&self) -> impl Iterator<Item = Cow<'a, [u8]>> + use<'a> {
        let mut list = self.alpn;
        // The list was checked by `parse`; an error here would end the iteration.
        std::iter::from_fn(move || {
            list.as_mut()
                .filter(|list| list.left > 0)?
                .vector_u8()
                .ok()?
                .bytes()
                .ok()
        })
    }

    /// Whether the client sent the ALPN extension.
    pub fn has_alpn(&self) -> bool {
        self.alpn.is_some()
    }

    /// Bytes of the input up to the end of the message, record headers included.
    pub fn wire_len(&self) -> usize {
        self.wire_len
    }

    fn read_extensions(&mut self, mut extensions: Cursor<'a>) -> Result<(), HelloError> {
        while extensions.left > 0 {
            let kind = extensions.u16()?;
            let data = extensions.vector_u16()?;
            match kind {
                SERVER_NAME if self.server_name.is_some() => {
                    return Err(HelloError::Repeated("server_name"));
                }
                SERVER_NAME => self.server_name = Some(host_name(data)?),
                ALPN if self.alpn.is_some() => return Err(HelloError::Repeated("alpn")),
                ALPN => self.alpn = Some(protocol_list(data)?),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The one host name of a ServerNameList (RFC 6066 section 3).
fn host_name<'a>(mut data: Cursor<'a>) -> Result<Cow<'a, str>, HelloError> {
    let mut list = data.vector_u16()?;
    if data.left > 0 {
        return Err(HelloError::BadLength);
    }
    let mut found = None;
    while list.left > 0 {
        let kind = list.u8()?;
        // A type that is not known has a form that is not known, yet all so far begin with a length.
        let name = list.vector_u16()?;
        match kind {
            HOST_NAME if found.is_some() => return Err(HelloError::Repeated("host_name")),
            HOST_NAME => found = Some(checked_name(name)?),
            _ => {}
        }
    }
    found.ok_or(HelloError::BadName)
}

/// The bytes as a host name, if they can be one.
fn checked_name<'a>(name: Cursor<'a>) -> Result<Cow<'a, str>, HelloError> {
    if name.left > NAME_MAX {
        return Err(HelloError::BadName);
    }
    let name = match name.bytes()? {
        Cow::Borrowed(bytes) => str::from_utf8(bytes)
            .map(Cow::Borrowed)
            .map_err(|_| HelloError::BadName)?,
        Cow::Owned(bytes) => String::from_utf8(bytes)
            .map(Cow::Owned)
            .map_err(|_| HelloError::BadName)?,
    };
    let name = match name {
        Cow::Borrowed(name) => Cow::Borrowed(name.strip_suffix('.').unwrap_or(name)),
        Cow::Owned(mut name) => {
            if name.ends_with('.') {
                name.pop();
            }
            Cow::Owned(name)
        }
    };
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if name.is_empty() || !name.bytes().all(sound) || name.split('.').any(str::is_empty) {
        return Err(HelloError::BadName);
    }
    Ok(name)
}

/// The ProtocolNameList of an ALPN extension, every name in it checked (RFC 7301 section 3.1).
fn protocol_list<'a>(mut data: Cursor<'a>) -> Result<Cursor<'a>, HelloError> {
    let list = data.vector_u16()?;
    if data.left > 0 {
        return Err(HelloError::BadLength);
    }
    let mut names = list;
    if names.left == 0 {
        return Err(HelloError::BadVector("protocol_name_list"));
    }
    while names.left > 0 {
        if names.vector_u8()?.left == 0 {
            return Err(HelloError::BadVector("protocol_name"));
        }
    }
    Ok(list)
}

/// A handshake message, once its last byte is there.
enum Message<'a> {
    Whole {
        message: Cursor<'a>,
        wire_len: usize,
    },
    NeedMore {
        at_least: usize,
    },
}

/// Walks over the record headers until the first handshake message is complete.
fn whole_message(wire: &[u8]) -> Result<Message<'_>, HelloError> {
    // Message bytes before the present record, and its header as far as it is known.
    let mut gathered = 0;
    let mut header = [0; HANDSHAKE_HEADER];
    let mut start = 0;
    loop {
        let Some(len) = record_len(&wire[start..])? else {
            return Ok(Message::NeedMore {
                at_least: start + RECORD_HEADER,
            });
        };
        let body = start + RECORD_HEADER;
        let fragment = &wire[body..wire.len().min(body + len)];
        for (at, byte) in header.iter_mut().skip(gathered).zip(fragment) {
            *at = *byte;
        }
        let arrived = gathered + fragment.len();
        if arrived > 0 && header[0] != CLIENT_HELLO {
            return Err(HelloError::NotClientHello(header[0]));
        }
        // The length is judged when it is whole, so that an answer does not depend on how bytes arrive.
        let total = (arrived >= HANDSHAKE_HEADER).then(|| {
            HANDSHAKE_HEADER + u32::from_be_bytes([0, header[1], header[2], header[3]]) as usize
        });
        if let Some(total) = total {
            if total > HELLO_MAX {
                return Err(HelloError::TooLong(total));
            }
            if arrived >= total {
                let message = Cursor {
                    chunk: &[],
                    rest: wire,
                    left: total,
                };
                return Ok(Message::Whole {
                    message,
                    wire_len: body + total - gathered,
                });
            }
        }
        if fragment.len() < len {
            let wanted = total.unwrap_or(HANDSHAKE_HEADER) - gathered;
            return Ok(Message::NeedMore {
                at_least: body + wanted.min(len),
            });
        }
        gathered = arrived;
        start = body + len;
    }
}

/// The content length of the handshake record at the start of `wire`, if its header is there.
fn record_len(wire: &[u8]) -> Result<Option<usize>, HelloError> {
    match *wire {
        [kind, ..] if kind != HANDSHAKE => Err(HelloError::NotHandshake(kind)),
        [_, major, ..] if major != 3 => Err(HelloError::NotTls(major)),
        [_, _, _, high, low, ..] => match usize::from(u16::from_be_bytes([high, low])) {
            0 => Err(HelloError::EmptyRecord),
            len if len > RECORD_MAX => Err(HelloError::RecordTooLong(len)),
            len => Ok(Some(len)),
        },
        _ => Ok(None),
    }
}

/// A place in a message that lies in pieces in successive records.
///
/// `left` bounds it: a cursor over a vector ends where the vector ends, whatever follows.
#[derive(Clone, Copy, Debug)]
struct Cursor<'a> {
    /// What is left of the present record.
    chunk: &'a [u8],
    /// The records after it, from a header on.
    rest: &'a [u8],
    /// Bytes up to the end of this structure.
    left: usize,
}

impl<'a> Cursor<'a> {
    /// The next bytes of this structure that lie together: at least one and at most `most`.
    fn piece(&mut self, most: usize) -> Result<&'a [u8], HelloError> {
        if most > self.left {
            return Err(HelloError::BadLength);
        }
        if self.chunk.is_empty() {
            let len = record_len(self.rest)?.ok_or(HelloError::BadLength)?;
            let records = &self.rest[RECORD_HEADER..];
            (self.chunk, self.rest) = records.split_at(len.min(records.len()));
        }
        let (piece, chunk) = self.chunk.split_at(most.min(self.chunk.len()));
        if piece.is_empty() {
            return Err(HelloError::BadLength);
        }
        self.chunk = chunk;
        self.left -= piece.len();
        Ok(piece)
    }

    fn skip(&mut self, mut len: usize) -> Result<(), HelloError> {
        while len > 0 {
            len -= self.piece(len)?.len();
        }
        Ok(())
    }

    fn u8(&mut self) -> Result<u8, HelloError> {
        Ok(self.piece(1)?[0])
    }

    fn u16(&mut self) -> Result<u16, HelloError> {
        Ok(u16::from_be_bytes([self.u8()?, self.u8()?]))
    }

    /// Takes `len` bytes off as a structure of their own.
    fn take(&mut self, len: usize) -> Result<Self, HelloError> {
        let mut taken = *self;
        self.skip(len)?;
        taken.left = len;
        Ok(taken)
    }

    fn vector_u8(&mut self) -> Result<Self, HelloError> {
        let len = self.u8()?;
        self.take(usize::from(len))
    }

    fn vector_u16(&mut self) -> Result<Self, HelloError> {
        let len = self.u16()?;
        self.take(usize::from(len))
    }

    /// Everything up to the end of this structure, copied only if a record boundary cuts through it.
    fn bytes(mut self) -> Result<Cow<'a, [u8]>, HelloError> {
        if self.left == 0 {
            return Ok(Cow::Borrowed(&[]));
        }
        let first = self.piece(self.left)?;
        if self.left == 0 {
            return Ok(Cow::Borrowed(first));
        }
        let mut bytes = Vec::with_capacity(first.len() + self.left);
        bytes.extend_from_slice(first);
        while self.left > 0 {
            bytes.extend_from_slice(self.piece(self.left)?);
        }
        Ok(Cow::Owned(bytes))
    }
}

/// Longest ClientHello that is read, its four bytes of header included. Post-quantum key shares take less
/// than 2 KiB, and rustls draws the line at the same place.
pub const HELLO_MAX: usize = 0xffff;

/// Most content that a plaintext record may have (RFC 8446 section 5.1).
const RECORD_MAX: usize = 1 << 14;
const RECORD_HEADER: usize = 5;
const HANDSHAKE_HEADER: usize = 4;
/// Longest host name (RFC 1035 section 2.3.4), with a trailing dot.
const NAME_MAX: usize = 254;

/// ContentType.handshake
const HANDSHAKE: u8 = 22;
/// HandshakeType.client_hello
const CLIENT_HELLO: u8 = 1;
/// ExtensionType.server_name
const SERVER_NAME: u16 = 0;
/// ExtensionType.application_layer_protocol_negotiation
const ALPN: u16 = 16;
/// NameType.host_name
const HOST_NAME: u8 = 0;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use super::*;

    fn v8(bytes: &[u8]) -> Vec<u8> {
        [&[u8::try_from(bytes.len()).unwrap()], bytes].concat()
    }

    fn v16(bytes: &[u8]) -> Vec<u8> {
        [&u16::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
    }

    fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &v16(data)].concat()
    }

    fn sni(name: &[u8]) -> Vec<u8> {
        extension(SERVER_NAME, &v16(&[&[HOST_NAME][..], &v16(name)].concat()))
    }

    /// A ClientHello with this extension block, without a record header.
    fn message(extensions: Option<&[u8]>) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend(v8(&[1; 32]));
        body.extend(v16(&[0x13, 0x01]));
        body.extend(v8(&[0]));
        if let Some(extensions) = extensions {
            body.extend(v16(extensions));
        }
        let len = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&[CLIENT_HELLO][..], &len[1..], &body].concat()
    }

    /// The message in records of at most `size` bytes.
    fn records(message: &[u8], size: usize) -> Vec<u8> {
        message
            .chunks(size)
            .flat_map(|part| [&[HANDSHAKE, 3, 1][..], &v16(part)].concat())
            .collect()
    }

    fn error(message: &[u8]) -> HelloError {
        Hello::parse(&records(message, RECORD_MAX)).expect_err("must be refused")
    }

    fn hello(wire: &[u8]) -> Hello<'_> {
        match Hello::parse(wire).unwrap() {
            Parsed::Hello(hello) => hello,
            Parsed::NeedMore { at_least } => panic!("wants {at_least} of {}", wire.len()),
        }
    }

    #[test]
    fn name_and_protocols_are_read_however_the_records_are_cut() {
        let alpn = extension(ALPN, &v16(&[v8(b"xmpp-client"), v8(b"h2")].concat()));
        let message = message(Some(&[sni(b"Chat.example."), alpn].concat()));
        for size in 1..message.len() + 2 {
            let wire = records(&message, size);
            let hello = hello(&wire);
            assert_eq!(hello.server_name(), Some("Chat.example"));
            assert_eq!(
                hello.alpn().collect::<Vec<_>>(),
                [&b"xmpp-client"[..], b"h2"]
            );
            assert_eq!(hello.wire_len(), wire.len());
        }
    }

    #[test]
    fn a_name_in_one_record_is_borrowed() {
        let wire = records(&message(Some(&sni(b"chat.example"))), RECORD_MAX);
        assert!(matches!(
            hello(&wire).server_name,
            Some(Cow::Borrowed("chat.example"))
        ));
    }

    #[test]
    fn need_more_names_a_length_that_brings_the_answer_nearer() {
        let wire = records(&message(Some(&sni(b"chat.example"))), 7);
        let mut steps = 0;
        let mut len = 0;
        while let Parsed::NeedMore { at_least } = Hello::parse(&wire[..len]).unwrap() {
            assert!(at_least > len && at_least <= wire.len());
            for short in len..at_least {
                assert!(
                    matches!(Hello::parse(&wire[..short]).unwrap(), Parsed::NeedMore { at_least: same } if same >= at_least || short == len)
                );
            }
            len = at_least;
            steps += 1;
        }
        assert_eq!(len, wire.len());
        assert!(steps <= 2 * wire.len().div_ceil(12) + 1, "{steps} steps");
    }

    #[test]
    fn a_hello_without_extensions_is_a_hello() {
        let wire = records(&message(None), RECORD_MAX);
        let hello = hello(&wire);
        assert_eq!(
            (hello.server_name(), hello.has_alpn(), hello.alpn().count()),
            (None, false, 0)
        );
    }

    #[test]
    fn bytes_behind_the_hello_are_left_alone() {
        let wire = records(&message(Some(&[])), RECORD_MAX);
        let longer = [&wire[..], b"\x17\x03\x03 whatever"].concat();
        assert_eq!(hello(&longer).wire_len(), wire.len());
    }

    #[test]
    fn names_that_cannot_be_host_names_are_refused() {
        for name in [
            &b""[..],
            b".",
            b"a..b",
            b".a",
            b"a b",
            b"a\0",
            b"\xc3\xa4",
            &[b'a'; 255],
        ] {
            assert_eq!(
                error(&message(Some(&sni(name)))),
                HelloError::BadName,
                "{name:?}"
            );
        }
        assert_eq!(
            error(&message(Some(&extension(SERVER_NAME, &v16(&[]))))),
            HelloError::BadName
        );
    }

    #[test]
    fn repeated_names_are_refused() {
        let twice = [sni(b"a"), sni(b"b")].concat();
        assert_eq!(
            error(&message(Some(&twice))),
            HelloError::Repeated("server_name")
        );
        let name = [&[HOST_NAME][..], &v16(b"a")].concat();
        let twice = extension(SERVER_NAME, &v16(&[&name[..], &name].concat()));
        assert_eq!(
            error(&message(Some(&twice))),
            HelloError::Repeated("host_name")
        );
        let alpn = extension(ALPN, &v16(&v8(b"h2")));
        assert_eq!(
            error(&message(Some(&[&alpn[..], &alpn].concat()))),
            HelloError::Repeated("alpn")
        );
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        let sound = message(Some(&sni(b"chat.example")));
        // Every single length field in turn, made one larger and one smaller.
        let fields: [usize; 7] = [38, 72, 75, 78, 82, 84, 87];
        for at in fields {
            for wrong in [sound[at].wrapping_add(1), sound[at].wrapping_sub(1)] {
                let mut lying = sound.clone();
                lying[at] = wrong;
                let wire = records(&lying, RECORD_MAX);
                if let Ok(Parsed::Hello(hello)) = Hello::parse(&wire) {
                    panic!("byte {at} = {wrong}: accepted as {hello:?}");
                }
            }
        }
        assert_eq!(
            error(&message(Some(&extension(ALPN, &v16(&[]))))),
            HelloError::BadVector("protocol_name_list")
        );
        assert_eq!(
            error(&message(Some(&extension(ALPN, &v16(&[0]))))),
            HelloError::BadVector("protocol_name")
        );
        assert_eq!(
            error(&message(Some(&extension(ALPN, &v16(&[2, b'h']))))),
            HelloError::BadLength
        );
    }

    #[test]
    fn what_is_no_hello_is_told_at_the_first_byte_that_shows_it() {
        let refused = |wire: &[u8]| Hello::parse(wire).expect_err("must be refused");
        assert_eq!(refused(b"G"), HelloError::NotHandshake(b'G'));
        assert_eq!(refused(&[22, 2]), HelloError::NotTls(2));
        assert_eq!(refused(&[22, 3, 1, 0, 0]), HelloError::EmptyRecord);
        assert_eq!(
            refused(&[22, 3, 1, 0x40, 1]),
            HelloError::RecordTooLong(0x4001)
        );
        assert_eq!(refused(&[22, 3, 1, 0, 9, 2]), HelloError::NotClientHello(2));
        assert_eq!(
            refused(&[22, 3, 1, 0, 9, 1, 1, 0, 0]),
            HelloError::TooLong(0x1_0004)
        );
        // The second record is judged like the first.
        assert_eq!(
            refused(&[22, 3, 1, 0, 1, 1, 23]),
            HelloError::NotHandshake(23)
        );
    }
}
