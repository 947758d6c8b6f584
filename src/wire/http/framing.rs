//! Where messages of HTTP/1.1 begin and end, and whether everybody would say so.
//!
//! A [`Framing`] follows one direction of a connection, in pieces of any size. It knows of a head only what decides about
//! framing and routing (RFC 9112 section 6): the line it begins with, Content-Length, Transfer-Encoding, Host, Upgrade. All
//! else must merely have the right form. Of a body with a known length no byte is looked at.

use super::{Fault, Violation};

#[cfg(test)]
mod tests;

/// Bounds on a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Bytes of its first line and its header lines; of trailers.
    pub head_size: usize,
    /// Header lines; trailer lines.
    pub headers: u16,
    /// Whether `_` may be in a header's name.
    pub underscores: bool,
}

/// Follows one direction of a connection of HTTP/1.1 without keeping its bytes.
///
/// The same bytes give the same answer however they are cut. After a violation every further look gives the same one.
#[derive(Debug)]
pub struct Framing {
    caps: Caps,
    side: Side,
    place: Place,
    /// Bytes that this head, chunk line or these trailers may still have.
    left: usize,
    /// Bytes of the body or chunk that are still to come; what was read so far of a number that tells them.
    body: u64,
    /// Digits of that number.
    digits: u8,
    head: Head,
    /// Follows a method, a header's name or a coding.
    word: Match,
    /// Whose value is being read.
    field: Field,
    /// Empty lines before this request line.
    blanks: u8,
    /// Interim answers to this request.
    interim: u8,
    /// What an answer may come to.
    expected: Option<Expected>,
    /// The authority of the target that is being read or compared. Only who sends a target with one needs the memory.
    authority: Option<Box<Authority>>,
    broken_head: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Requests,
    Answers,
}

/// Where the next byte lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Between two messages.
    Between,
    /// At the first byte of a request line or an empty one.
    Start,
    /// Behind the CR of an empty line.
    Blank,
    Method,
    TargetStart,
    /// Behind `*`.
    Asterisk,
    /// Behind so many bytes of `http://`, or `https://`, where the `s` counts although it is missing.
    Scheme(u8),
    Authority,
    /// In path and query.
    Path,
    /// Behind so many bytes of `HTTP/1.1`.
    Version(u8),
    /// Behind so many digits of a status.
    Status(u8),
    Reason,
    /// Behind the CR of a line.
    LineEnd,
    /// At the beginning of a header line, or of the empty one.
    Line,
    Name,
    /// In white space before a value.
    Lead,
    Value,
    /// In white space behind a value that must not have any inside.
    Trail,
    /// Behind the CR of the empty line.
    HeadEnd,
    /// In a body of known length.
    Fixed,
    ChunkStart,
    ChunkSize,
    ChunkExtension,
    /// Behind the CR of a chunk line.
    ChunkLineEnd,
    ChunkData,
    /// Behind the data of a chunk.
    ChunkEnd,
    /// Behind the CR there.
    ChunkEndLf,
    TrailerStart,
    /// In a body that ends with the connection.
    UntilEnd,
    /// This is another protocol.
    Tunnel,
    Broken(Fault),
}

/// What a head has said.
#[derive(Clone, Copy, Debug)]
struct Head {
    /// Whether its first line has ended.
    begun: bool,
    /// Whether these are trailers.
    trailers: bool,
    /// Whether it is HTTP/1.1.
    one_one: bool,
    /// Whether the method is OPTIONS.
    options: bool,
    /// Whether the target has an authority.
    absolute: bool,
    length: bool,
    chunked: bool,
    host: bool,
    upgrade: bool,
    status: u16,
    /// Header lines so far.
    headers: u16,
    /// Where in the authority or Host the next byte lies.
    part: HostPart,
    /// Bytes of Host.
    host_len: u16,
}

#[derive(Clone, Copy, Debug)]
struct Expected {
    head: bool,
    upgrade: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    ContentLength,
    Host,
    Plain,
    TransferEncoding,
}

impl Framing {
    /// What a client sends.
    pub const fn requests(caps: Caps) -> Self {
        Self::new(caps, Side::Requests)
    }

    /// What a backend sends; see [`Framing::expect`].
    pub const fn answers(caps: Caps) -> Self {
        Self::new(caps, Side::Answers)
    }

    const fn new(caps: Caps, side: Side) -> Self {
        Self {
            caps,
            side,
            place: Place::Between,
            left: 0,
            body: 0,
            digits: 0,
            head: Head::NEW,
            word: Match::NONE,
            field: Field::Plain,
            blanks: 0,
            interim: 0,
            expected: None,
            authority: None,
            broken_head: false,
        }
    }

    /// Lets one final answer pass, which is that to a HEAD or not (RFC 9112 section 6.3), and may be 101 or not.
    ///
    /// To be called before the request goes out, and not again before its answer has begun.
    pub fn expect(&mut self, method_is_head: bool, upgrade: bool) {
        debug_assert!(self.expected.is_none(), "one request at a time");
        self.interim = 0;
        self.expected = Some(Expected {
            head: method_is_head,
            upgrade,
        });
    }

    /// Whether everything passes: a request with an Upgrade header has come, or a 101. What comes behind such a request may be of
    /// the new protocol already; who does not change to it must not read on.
    pub fn is_tunnel(&self) -> bool {
        self.place == Place::Tunnel
    }

    /// Whether the next byte begins a message.
    pub fn at_boundary(&self) -> bool {
        self.place == Place::Between
    }

    /// Whether a head has begun and not ended. Trailers and chunk lines belong to a body.
    pub fn in_head(&self) -> bool {
        !self.head.trailers
            && !matches!(
                self.place,
                Place::Between
                    | Place::Fixed
                    | Place::ChunkStart
                    | Place::ChunkSize
                    | Place::ChunkExtension
                    | Place::ChunkLineEnd
                    | Place::ChunkData
                    | Place::ChunkEnd
                    | Place::ChunkEndLf
                    | Place::TrailerStart
                    | Place::UntilEnd
                    | Place::Tunnel
                    | Place::Broken(_)
            )
    }

    /// Whether what was wrong was in a head, so that nobody has seen the message that it begins.
    pub fn broke_in_head(&self) -> bool {
        self.broken_head
    }

    /// Goes on by these bytes.
    ///
    /// # Errors
    /// What is wrong with them, at the first byte that shows it.
    pub fn look(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        let mut before = 0;
        self.follow(bytes, &mut before).map_err(|kind| {
            self.broken_head |= self.in_head();
            self.place = Place::Broken(kind);
            Violation { kind, before }
        })
    }

    fn follow(&mut self, bytes: &[u8], before: &mut usize) -> Result<(), Fault> {
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.place {
                Place::Between => {
                    self.begin()?;
                    continue;
                }
                Place::Fixed | Place::ChunkData => {
                    rest = self.skip(rest);
                    *before = bytes.len() - rest.len();
                    continue;
                }
                Place::ChunkStart => {
                    self.left = CHUNK_LINE_MAX;
                    self.body = 0;
                    self.digits = 0;
                    self.place = Place::ChunkSize;
                }
                Place::TrailerStart => {
                    self.left = self.caps.head_size;
                    self.head.trailers = true;
                    self.head.headers = 0;
                    self.place = Place::Line;
                }
                Place::UntilEnd | Place::Tunnel => return Ok(()),
                Place::Broken(fault) => return Err(fault),
                _ => {}
            }
            let room = rest.len().min(self.left);
            if room == 0 {
                return Err(self.too_long());
            }
            let mut lines = &rest[..room];
            while !lines.is_empty() && self.place.in_lines() {
                if self.place == Place::Line {
                    lines = self.lines(lines)?;
                    if self.place != Place::Line {
                        continue;
                    }
                }
                lines = self.step(lines)?;
            }
            let taken = room - lines.len();
            self.left -= taken;
            rest = &rest[taken..];
            if !self.place.in_lines() && self.place != Place::TrailerStart {
                *before = bytes.len() - rest.len();
            }
        }
        Ok(())
    }

    /// Begins a head.
    fn begin(&mut self) -> Result<(), Fault> {
        self.head = Head::NEW;
        match self.side {
            Side::Requests => {
                self.left = self.caps.head_size.min(REQUEST_LINE_MAX);
                self.place = Place::Start;
            }
            Side::Answers if self.expected.is_none() => return Err(Fault::ExtraBytes),
            Side::Answers => {
                self.left = self.caps.head_size;
                self.place = Place::Version(0);
            }
        }
        Ok(())
    }

    /// Passes over a body or the data of a chunk.
    fn skip<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let here = usize::try_from(self.body).map_or(bytes.len(), |body| body.min(bytes.len()));
        self.body -= here as u64;
        if self.body == 0 {
            self.place = match self.place {
                Place::ChunkData => {
                    self.left = 2;
                    Place::ChunkEnd
                }
                _ => Place::Between,
            };
        }
        &bytes[here..]
    }

    fn too_long(&self) -> Fault {
        match self.place {
            Place::ChunkSize => Fault::ChunkSize,
            Place::ChunkExtension | Place::ChunkLineEnd => Fault::ChunkExtension,
            _ if self.side == Side::Requests && !self.head.begun => Fault::RequestLineTooLong,
            _ => Fault::HeadTooLarge,
        }
    }

    /// Passes over header lines that are whole, sound and without meaning here, and over the name of one that has some.
    ///
    /// This is all that most lines need. Where there is anything else to say about one, [`Framing::step`] says it.
    #[inline]
    fn lines<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Fault> {
        let mut rest = bytes;
        while self.head.headers < self.caps.headers
            && let Some(first) = rest.first()
        {
            let name = rest
                .iter()
                .position(|byte| CLASSES[usize::from(*byte)] & TOKEN == 0);
            let Some(name @ 1..) = name else {
                break;
            };
            if rest[name] != b':' {
                break;
            }
            let value = &rest[name + 1..];
            let mut word = Match::header(*first);
            word.feed(&rest[..name]);
            if let Some(word) = word.whole() {
                self.head.headers += 1;
                self.field = self.known(word)?;
                self.place = Place::Lead;
                return Ok(value);
            }
            let Some(next) = value[text(value)..].strip_prefix(CRLF) else {
                break;
            };
            self.head.headers += 1;
            rest = next;
        }
        if let Some(next) = rest.strip_prefix(CRLF) {
            self.place = self.head_end()?;
            return Ok(next);
        }
        Ok(rest)
    }

    /// Goes on within lines. The place moves, or a byte is taken, if there is one.
    #[inline]
    fn step<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Fault> {
        let Some((&byte, rest)) = bytes.split_first() else {
            return Ok(bytes);
        };
        self.place = match self.place {
            Place::Line => match byte {
                b'\r' => Place::HeadEnd,
                b' ' | b'\t' => return Err(Fault::ObsFold),
                b':' => return Err(Fault::EmptyName),
                _ if self.head.headers == self.caps.headers => return Err(Fault::TooManyHeaders),
                _ if is_token(byte) => {
                    self.head.headers += 1;
                    self.word = Match::header(byte);
                    return self.name(bytes);
                }
                _ => return Err(or_bare_lf(byte, Fault::HeaderName)),
            },
            Place::Name => return self.name(bytes),
            Place::Lead | Place::Value if self.field == Field::Plain => return self.text(bytes),
            Place::Lead if byte == b' ' && !rest.is_empty() && !is_white(rest[0]) => {
                return self.value(rest);
            }
            Place::Lead if is_white(byte) => Place::Lead,
            Place::Lead | Place::Value => return self.value(bytes),
            Place::Trail => match byte {
                b' ' | b'\t' => Place::Trail,
                b'\r' => self.value_end()?,
                _ => return Err(self.field_fault(byte)),
            },
            Place::LineEnd => match byte {
                b'\n' => self.line_end(),
                _ => return Err(Fault::BareCr),
            },
            Place::HeadEnd => match byte {
                b'\n' => self.head_end()?,
                _ => return Err(Fault::BareCr),
            },

            Place::Start => match byte {
                b'\r' if self.blanks == BLANK_LINES_MAX => return Err(Fault::BlankLines),
                b'\r' => Place::Blank,
                _ if is_token(byte) => {
                    self.blanks = 0;
                    self.word = Match::method(byte);
                    return self.method(bytes);
                }
                _ => return Err(or_bare_lf(byte, Fault::RequestLine)),
            },
            Place::Blank => match byte {
                b'\n' => {
                    self.blanks += 1;
                    Place::Between
                }
                _ => return Err(Fault::BareCr),
            },
            Place::Method => return self.method(bytes),
            Place::TargetStart => match byte {
                b'/' => Place::Path,
                b'*' if self.head.options => Place::Asterisk,
                b'h' | b'H' => Place::Scheme(1),
                _ => return Err(or_bare_lf(byte, Fault::Target)),
            },
            Place::Asterisk => match byte {
                b' ' => Place::Version(0),
                _ => return Err(or_bare_lf(byte, Fault::Target)),
            },
            Place::Scheme(seen) => match (seen, byte.to_ascii_lowercase()) {
                (1 | 2, b't') | (3, b'p') | (4, b's') => Place::Scheme(seen + 1),
                (4 | 5, b':') => Place::Scheme(6),
                (6, b'/') => Place::Scheme(7),
                (7, b'/') => {
                    self.head.absolute = true;
                    self.authority.get_or_insert_default().len = 0;
                    Place::Authority
                }
                _ => return Err(or_bare_lf(byte, Fault::Target)),
            },
            Place::Authority => match byte {
                b'/' | b'?' if self.head.part.is_whole() => Place::Path,
                b' ' if self.head.part.is_whole() => Place::Version(0),
                _ => {
                    let part = self.head.part.next(byte);
                    let kept = self
                        .authority
                        .as_mut()
                        .is_some_and(|authority| authority.push(byte));
                    match part {
                        Some(part) if kept => self.head.part = part,
                        _ => return Err(or_bare_lf(byte, Fault::Target)),
                    }
                    Place::Authority
                }
            },
            Place::Path => {
                let Some(end) = bytes.iter().position(|byte| !is_target(*byte)) else {
                    return Ok(&[]);
                };
                if bytes[end] != b' ' {
                    return Err(or_bare_lf(bytes[end], Fault::Target));
                }
                let version = &bytes[end + 1..];
                if let Some(line) = version.strip_prefix(b"HTTP/1.1\r\n") {
                    self.head.one_one = true;
                    self.place = self.line_end();
                    return Ok(line);
                }
                self.place = Place::Version(0);
                return Ok(version);
            }
            Place::Version(seen) => self.version(seen, byte)?,
            Place::Status(seen) => match (seen, byte) {
                (0, b'1'..=b'9') | (1 | 2, b'0'..=b'9') => {
                    self.head.status = self.head.status * 10 + u16::from(byte - b'0');
                    Place::Status(seen + 1)
                }
                (3, b' ') => Place::Reason,
                // Some servers leave out the space before a reason that they leave out.
                (3, b'\r') => Place::LineEnd,
                _ => return Err(or_bare_lf(byte, Fault::StatusLine)),
            },
            Place::Reason => return self.text(bytes),

            Place::ChunkSize => {
                let digit = match byte {
                    b'0'..=b'9' => byte - b'0',
                    b'a'..=b'f' => byte - b'a' + 10,
                    b'A'..=b'F' => byte - b'A' + 10,
                    b'\r' | b';' if self.digits > 0 => {
                        self.place = match byte {
                            b';' => Place::ChunkExtension,
                            _ => Place::ChunkLineEnd,
                        };
                        return Ok(rest);
                    }
                    _ => return Err(or_bare_lf(byte, Fault::ChunkSize)),
                };
                if self.digits == CHUNK_SIZE_DIGITS_MAX {
                    return Err(Fault::ChunkSize);
                }
                self.digits += 1;
                self.body = self.body << 4 | u64::from(digit);
                Place::ChunkSize
            }
            Place::ChunkExtension => {
                let end = text(bytes);
                self.place = match bytes.get(end) {
                    None => return Ok(&[]),
                    Some(b'\r') => Place::ChunkLineEnd,
                    Some(byte) => return Err(or_bare_lf(*byte, Fault::ChunkExtension)),
                };
                return Ok(&bytes[end + 1..]);
            }
            Place::ChunkLineEnd => match byte {
                b'\n' if self.body == 0 => Place::TrailerStart,
                b'\n' => Place::ChunkData,
                _ => return Err(Fault::BareCr),
            },
            Place::ChunkEnd => match byte {
                b'\r' => Place::ChunkEndLf,
                _ => return Err(or_bare_lf(byte, Fault::ChunkEnd)),
            },
            Place::ChunkEndLf => match byte {
                b'\n' => Place::ChunkStart,
                _ => return Err(Fault::BareCr),
            },

            // Not in lines.
            Place::Between
            | Place::Fixed
            | Place::ChunkStart
            | Place::ChunkData
            | Place::TrailerStart
            | Place::UntilEnd
            | Place::Tunnel
            | Place::Broken(_) => return Ok(bytes),
        };
        Ok(rest)
    }

    /// A line has ended, perhaps the first.
    fn line_end(&mut self) -> Place {
        if !self.head.begun {
            self.head.begun = true;
            if self.side == Side::Requests {
                self.left += self.caps.head_size.saturating_sub(REQUEST_LINE_MAX);
            }
        }
        Place::Line
    }

    /// A request line's method. CONNECT ends here, in whatever case.
    fn method<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Fault> {
        let end = bytes.iter().position(|byte| !is_token(*byte));
        self.word.feed(&bytes[..end.unwrap_or(bytes.len())]);
        let Some(end) = end else {
            self.place = Place::Method;
            return Ok(&[]);
        };
        if bytes[end] != b' ' {
            return Err(or_bare_lf(bytes[end], Fault::RequestLine));
        }
        match self.word.whole() {
            Some(Word::Connect) => return Err(Fault::Connect),
            Some(Word::Options) => self.head.options = true,
            _ => {}
        }
        self.place = Place::TargetStart;
        Ok(&bytes[end + 1..])
    }

    fn version(&mut self, seen: u8, byte: u8) -> Result<Place, Fault> {
        let place = match (seen, byte) {
            (7, b'0') => Place::Version(8),
            (7, b'1') => {
                self.head.one_one = true;
                Place::Version(8)
            }
            (8, b'\r') if self.side == Side::Requests => Place::LineEnd,
            (8, b' ') if self.side == Side::Answers => Place::Status(0),
            (seen, byte) if VERSION.get(usize::from(seen)) == Some(&byte) => {
                Place::Version(seen + 1)
            }
            (5 | 7, b'0'..=b'9') => return Err(Fault::Version),
            _ if self.side == Side::Requests => {
                return Err(or_bare_lf(byte, Fault::RequestLine));
            }
            _ => return Err(or_bare_lf(byte, Fault::StatusLine)),
        };
        Ok(place)
    }

    /// A header's name, up to its colon.
    #[inline]
    fn name<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Fault> {
        let allowed = if self.caps.underscores {
            TOKEN | UNDERSCORE
        } else {
            TOKEN
        };
        let end = bytes
            .iter()
            .position(|byte| CLASSES[usize::from(*byte)] & allowed == 0);
        self.word.feed(&bytes[..end.unwrap_or(bytes.len())]);
        let Some(end) = end else {
            self.place = Place::Name;
            return Ok(&[]);
        };
        match bytes[end] {
            b':' => {}
            b'_' => return Err(Fault::Underscore),
            b' ' | b'\t' => return Err(Fault::SpaceBeforeColon),
            byte => return Err(or_bare_lf(byte, Fault::HeaderName)),
        }
        self.field = match self.word.whole() {
            None => Field::Plain,
            Some(word) => self.known(word)?,
        };
        self.place = Place::Lead;
        Ok(&bytes[end + 1..])
    }

    /// A header with this name begins.
    fn known(&mut self, name: Word) -> Result<Field, Fault> {
        match name {
            Word::ContentLength | Word::Host | Word::TransferEncoding if self.head.trailers => {
                Err(Fault::Trailer)
            }
            Word::ContentLength if self.head.length => Err(Fault::ContentLengthRepeated),
            Word::ContentLength => {
                self.head.length = true;
                self.body = 0;
                self.digits = 0;
                Ok(Field::ContentLength)
            }
            Word::TransferEncoding if self.head.chunked => Err(Fault::TransferEncodingRepeated),
            Word::TransferEncoding => {
                self.head.chunked = true;
                self.word = Match::new(Word::Chunked);
                Ok(Field::TransferEncoding)
            }
            Word::Host if self.side == Side::Answers => Ok(Field::Plain),
            Word::Host if self.head.host => Err(Fault::HostRepeated),
            Word::Host => {
                self.head.host = true;
                self.head.part = HostPart::Start;
                Ok(Field::Host)
            }
            Word::Upgrade => {
                self.head.upgrade = true;
                Ok(Field::Plain)
            }
            Word::Chunked | Word::Connect | Word::Options => Ok(Field::Plain),
        }
    }

    /// A value or a reason that may be anything but control characters (RFC 9110 section 5.5), up to its line's CR.
    #[inline]
    fn text<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Fault> {
        let mut rest = bytes;
        loop {
            let end = text(rest);
            match rest.get(end) {
                None => {
                    if self.place == Place::Lead {
                        self.place = Place::Value;
                    }
                    return Ok(&[]);
                }
                Some(b'\t') => rest = &rest[end + 1..],
                Some(b'\r') => return Ok(self.crlf(&rest[end..])),
                Some(byte) => return Err(or_bare_lf(*byte, Fault::Control)),
            }
        }
    }

    /// A value that decides about framing or routing, up to its line's CR or white space.
    fn value<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Fault> {
        let end = match self.field {
            Field::ContentLength => self.content_length(bytes)?,
            Field::Host => self.host(bytes)?,
            Field::Plain | Field::TransferEncoding => {
                let end = bytes.iter().position(|byte| !byte.is_ascii_graphic());
                let end = end.unwrap_or(bytes.len());
                self.word.feed(&bytes[..end]);
                if self.word.word.is_none() {
                    return Err(Fault::TransferEncoding);
                }
                end
            }
        };
        self.place = match bytes.get(end) {
            None => {
                self.place = Place::Value;
                return Ok(&[]);
            }
            Some(b' ' | b'\t') => Place::Trail,
            Some(b'\r') => {
                self.place = self.value_end()?;
                return Ok(self.crlf(&bytes[end..]));
            }
            Some(byte) => return Err(self.field_fault(*byte)),
        };
        Ok(&bytes[end + 1..])
    }

    /// Digits of a Content-Length, and how many there are.
    fn content_length(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        for (at, byte) in bytes.iter().enumerate() {
            if !byte.is_ascii_digit() {
                return Ok(at);
            }
            if self.digits == CONTENT_LENGTH_DIGITS_MAX {
                return Err(Fault::ContentLength);
            }
            self.digits += 1;
            self.body = self.body * 10 + u64::from(byte - b'0');
        }
        Ok(bytes.len())
    }

    /// Bytes of a Host, and how many there are, compared with the target's authority (RFC 9112 section 3.2.2).
    fn host(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        let mut part = self.head.part;
        let mut end = 0;
        if matches!(part, HostPart::Start | HostPart::Name) {
            let other = bytes.iter().position(|byte| !is_host(*byte));
            end = other.unwrap_or(bytes.len());
            if end > 0 {
                part = HostPart::Name;
            }
        }
        for &byte in &bytes[end..] {
            let Some(next) = part.next(byte) else {
                break;
            };
            part = next;
            end += 1;
        }
        self.head.part = part;
        let at = usize::from(self.head.host_len);
        let fits = end.min(AUTHORITY_MAX - at);
        self.head.host_len += fits as u16;
        if let Some(authority) = &self.authority
            && self.head.absolute
        {
            let same = authority.as_slice().get(at..at + fits);
            if !same.is_some_and(|same| same.eq_ignore_ascii_case(&bytes[..fits])) {
                return Err(Fault::HostMismatch);
            }
        }
        if fits < end {
            return Err(Fault::Host);
        }
        Ok(end)
    }

    /// Passes over CR and, if it is there, the LF that ends the line.
    #[inline]
    fn crlf<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        match bytes.strip_prefix(CRLF) {
            Some(rest) => {
                self.place = self.line_end();
                rest
            }
            None => {
                self.place = Place::LineEnd;
                &bytes[1..]
            }
        }
    }

    fn value_end(&self) -> Result<Place, Fault> {
        let whole = match self.field {
            Field::ContentLength => self.digits > 0,
            Field::Host => self.head.part.is_whole(),
            Field::Plain => true,
            Field::TransferEncoding => self.word.whole().is_some(),
        };
        if !whole {
            return Err(self.field_fault(b'\r'));
        }
        match &self.authority {
            Some(authority)
                if self.field == Field::Host
                    && self.head.absolute
                    && authority.len != self.head.host_len =>
            {
                Err(Fault::HostMismatch)
            }
            _ => Ok(Place::LineEnd),
        }
    }

    /// `byte` does not belong to this field's value.
    fn field_fault(&self, byte: u8) -> Fault {
        match (byte, self.field) {
            (b'\n', _) => Fault::BareLf,
            (b'\r', Field::ContentLength) => Fault::ContentLength,
            (b'\r', Field::Host) => Fault::Host,
            (b'\r', Field::TransferEncoding) => Fault::TransferEncoding,
            (byte, _) if byte.is_ascii_control() => Fault::Control,
            (_, Field::ContentLength) => Fault::ContentLength,
            (_, Field::Host) => Fault::Host,
            (_, Field::TransferEncoding) => Fault::TransferEncoding,
            (_, Field::Plain) => Fault::Control,
        }
    }

    /// The empty line has come: what follows (RFC 9112 section 6.3)?
    fn head_end(&mut self) -> Result<Place, Fault> {
        let head = self.head;
        if head.trailers {
            return Ok(Place::Between);
        }
        if head.length && head.chunked {
            return Err(Fault::LengthAndEncoding);
        }
        if head.chunked && !head.one_one {
            return Err(Fault::TransferEncodingForbidden);
        }
        let announced = if head.chunked {
            Place::ChunkStart
        } else if head.length && self.body > 0 {
            Place::Fixed
        } else {
            Place::Between
        };
        if self.side == Side::Requests {
            return match announced {
                _ if head.one_one && !head.host => Err(Fault::HostMissing),
                Place::ChunkStart | Place::Fixed if head.upgrade => Err(Fault::UpgradeWithBody),
                // What follows may be of another protocol.
                _ if head.upgrade => Ok(Place::Tunnel),
                announced => Ok(announced),
            };
        }

        let Some(expected) = self.expected else {
            return Err(Fault::ExtraBytes);
        };
        match head.status {
            101 if !expected.upgrade => return Err(Fault::UnaskedUpgrade),
            100..=199 if head.chunked => return Err(Fault::TransferEncodingForbidden),
            // Some servers say zero there, which everybody reads alike.
            101 if head.length && self.body == 0 => {}
            100..=199 if head.length => return Err(Fault::ContentLengthForbidden),
            100..=199 if head.status != 101 => {
                if self.interim == INTERIM_MAX {
                    return Err(Fault::Interim);
                }
                self.interim += 1;
                return Ok(Place::Between);
            }
            204 if head.chunked => return Err(Fault::TransferEncodingForbidden),
            _ => {}
        }
        self.expected = None;
        Ok(match head.status {
            101 => Place::Tunnel,
            204 | 304 => Place::Between,
            _ if expected.head => Place::Between,
            _ if !head.chunked && !head.length => Place::UntilEnd,
            _ => announced,
        })
    }
}

impl Place {
    /// Whether the next byte belongs to a line of a head, of trailers, or of a chunk's.
    #[inline]
    fn in_lines(self) -> bool {
        !matches!(
            self,
            Self::Between
                | Self::Fixed
                | Self::ChunkStart
                | Self::ChunkData
                | Self::TrailerStart
                | Self::UntilEnd
                | Self::Tunnel
                | Self::Broken(_)
        )
    }
}

impl Head {
    const NEW: Self = Self {
        begun: false,
        trailers: false,
        one_one: false,
        options: false,
        absolute: false,
        length: false,
        chunked: false,
        host: false,
        upgrade: false,
        status: 0,
        headers: 0,
        part: HostPart::Start,
        host_len: 0,
    };
}

/// Where in `host [ ":" port ]` the next byte lies (RFC 3986 section 3.2, without what no name in use has).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostPart {
    Start,
    Name,
    /// Behind `[`.
    Bracket,
    /// In an address in brackets.
    Literal,
    /// Behind `]`.
    Behind,
    /// Behind so many digits of a port, which is this so far.
    Port(u8, u16),
}

impl HostPart {
    /// Behind `byte`, if it may stand here.
    fn next(self, byte: u8) -> Option<Self> {
        match (self, byte) {
            (Self::Start, b'[') => Some(Self::Bracket),
            (
                Self::Bracket | Self::Literal,
                b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F' | b':' | b'.',
            ) => Some(Self::Literal),
            (Self::Literal, b']') => Some(Self::Behind),
            (Self::Name | Self::Behind, b':') => Some(Self::Port(0, 0)),
            (Self::Port(digits, port), b'0'..=b'9') if digits < 5 => {
                let port = port.checked_mul(10)?.checked_add(u16::from(byte - b'0'))?;
                Some(Self::Port(digits + 1, port))
            }
            (Self::Start | Self::Name, byte) if is_host(byte) => Some(Self::Name),
            _ => None,
        }
    }

    /// Whether nothing is missing.
    fn is_whole(self) -> bool {
        match self {
            Self::Name | Self::Behind => true,
            Self::Port(digits, _) => digits > 0,
            Self::Start | Self::Bracket | Self::Literal => false,
        }
    }
}

/// The authority of a target, in lower case.
#[derive(Debug)]
struct Authority {
    bytes: [u8; AUTHORITY_MAX],
    len: u16,
}

impl Authority {
    /// Whether there was room.
    fn push(&mut self, byte: u8) -> bool {
        match self.bytes.get_mut(usize::from(self.len)) {
            Some(place) => {
                *place = byte.to_ascii_lowercase();
                self.len += 1;
                true
            }
            None => false,
        }
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self {
            bytes: [0; AUTHORITY_MAX],
            len: 0,
        }
    }
}

/// A word that means something here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Chunked,
    Connect,
    ContentLength,
    Host,
    Options,
    TransferEncoding,
    Upgrade,
}

impl Word {
    const fn bytes(self) -> &'static [u8] {
        match self {
            Self::Chunked => b"chunked",
            Self::Connect => b"connect",
            Self::ContentLength => b"content-length",
            Self::Host => b"host",
            Self::Options => b"options",
            Self::TransferEncoding => b"transfer-encoding",
            Self::Upgrade => b"upgrade",
        }
    }
}

/// Compares a word that comes in pieces, in any case, with the one it can be by its first byte.
#[derive(Clone, Copy, Debug)]
struct Match {
    word: Option<Word>,
    /// Bytes that were the same.
    at: u8,
}

impl Match {
    const NONE: Self = Self { word: None, at: 0 };

    const fn new(word: Word) -> Self {
        Self {
            word: Some(word),
            at: 0,
        }
    }

    /// A header's name that begins with `first`, which is yet to be fed.
    #[inline]
    fn header(first: u8) -> Self {
        match first | 0x20 {
            b'c' => Self::new(Word::ContentLength),
            b'h' => Self::new(Word::Host),
            b't' => Self::new(Word::TransferEncoding),
            b'u' => Self::new(Word::Upgrade),
            _ => Self::NONE,
        }
    }

    /// A method that begins with `first`, which is yet to be fed.
    fn method(first: u8) -> Self {
        match first | 0x20 {
            b'c' => Self::new(Word::Connect),
            b'o' => Self::new(Word::Options),
            _ => Self::NONE,
        }
    }

    #[inline]
    fn feed(&mut self, bytes: &[u8]) {
        let Some(word) = self.word else {
            return;
        };
        let at = usize::from(self.at);
        match word.bytes().get(at..at + bytes.len()) {
            Some(same) if same.eq_ignore_ascii_case(bytes) => self.at += bytes.len() as u8,
            _ => self.word = None,
        }
    }

    /// The word, if all of it came and nothing else.
    #[inline]
    fn whole(self) -> Option<Word> {
        self.word
            .filter(|word| word.bytes().len() == usize::from(self.at))
    }
}

/// Leading bytes that are no control characters.
#[inline]
fn text(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
    const SPACES: u64 = u64::from_ne_bytes([b' '; 8]);
    const DELETES: u64 = u64::from_ne_bytes([0x7f; 8]);
    const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);

    // Eight at once. A borrow can only come out of a byte that is one, so the lowest found is right.
    let (words, rest) = bytes.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let below = word.wrapping_sub(SPACES) & !word;
        let delete = word ^ DELETES;
        let equal = delete.wrapping_sub(ONES) & !delete;
        let found = (below | equal) & HIGH;
        if found != 0 {
            return at * 8 + (found.trailing_zeros() / 8) as usize;
        }
    }
    let control = rest.iter().position(u8::is_ascii_control);
    bytes.len() - rest.len() + control.unwrap_or(rest.len())
}

const fn or_bare_lf(byte: u8, fault: Fault) -> Fault {
    match byte {
        b'\n' => Fault::BareLf,
        _ => fault,
    }
}

const fn is_white(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Whether a token may have it (RFC 9110 section 5.6.2).
#[inline]
fn is_token(byte: u8) -> bool {
    CLASSES[usize::from(byte)] & (TOKEN | UNDERSCORE) != 0
}

/// Whether path and query may have it, as far as we care: printable, and no fragment begins.
#[inline]
fn is_target(byte: u8) -> bool {
    CLASSES[usize::from(byte)] & TARGET != 0
}

/// Whether a host's name may have it, as none in use has anything else (RFC 3986 section 2.3).
#[inline]
fn is_host(byte: u8) -> bool {
    CLASSES[usize::from(byte)] & HOST != 0
}

/// A token may have it, `_` apart.
const TOKEN: u8 = 1;
const UNDERSCORE: u8 = 2;
const TARGET: u8 = 4;
const HOST: u8 = 8;

static CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut byte = 0x21;
    while byte < 0x7f {
        classes[byte] = match byte as u8 {
            b'_' => UNDERSCORE,
            b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'`'
            | b'|' | b'~' => TOKEN,
            byte if byte.is_ascii_alphanumeric() => TOKEN,
            _ => 0,
        };
        if byte as u8 != b'#' {
            classes[byte] |= TARGET;
        }
        if (byte as u8).is_ascii_alphanumeric() || matches!(byte as u8, b'-' | b'.' | b'_' | b'~') {
            classes[byte] |= HOST;
        }
        byte += 1;
    }
    classes
};

const CRLF: &[u8] = b"\r\n";
const VERSION: &[u8] = b"HTTP/1.";
/// RFC 9112 section 3 wants 8,000 at least.
const REQUEST_LINE_MAX: usize = 8 << 10;
/// RFC 9112 section 2.2 wants one at least.
const BLANK_LINES_MAX: u8 = 4;
const CONTENT_LENGTH_DIGITS_MAX: u8 = 18;
const CHUNK_SIZE_DIGITS_MAX: u8 = 15;
/// The digits, an extension of up to 256 bytes, CRLF.
const CHUNK_LINE_MAX: usize = 15 + 256 + 2;
const INTERIM_MAX: u8 = 16;
/// A host name and a port.
const AUTHORITY_MAX: usize = 255 + 6;
