//! A stream as events: the parser, and around it all that XMPP forbids beyond XML, and the bounds.
//!
//! `rxml` parses and resolves namespaces. What lies between the pieces of a stream (the declaration, the header, the
//! elements of the first level) is walked here by hand: white space, a byte order mark, and nothing else. So
//! positions are exact, white space costs no parsing, and what begins with `<!` is told apart.

use rxml::error::EndOrError;
use rxml::{AttrMap, Event as XmlEvent, Namespace, NcName, Options, Parse, Parser, WithOptions};

use super::error::Condition;
use super::{STREAMS, is_white};

/// What a stream consists of.
#[derive(Debug)]
pub(super) enum Event {
    /// The header: its attributes, and the default namespace within it.
    Header(AttrMap, Namespace<'static>),
    /// The start of an element below the stream, at this offset from the first byte.
    Start(Namespace<'static>, NcName, AttrMap, u64),
    /// Character data of an element below the stream, whole or in part.
    Text(String),
    /// The end of an element below the stream.
    End,
    /// The end of the stream.
    Close,
}

/// Reads a stream. After a fault it gives the same fault for ever.
pub(super) struct Events {
    parser: Parser,
    place: Place,
    /// Open elements, the stream included.
    depth: u32,
    /// Bytes taken in all.
    taken: u64,
    /// Bytes of the header, or of the first-level element that is being read.
    piece: usize,
    piece_max: usize,
    bytes_max: u64,
    fault: Option<Condition>,
}

/// Where in a stream the next byte belongs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// At the first bytes, with so many of a byte order mark taken.
    Mark(usize),
    /// Between pieces.
    Gap,
    /// Behind the `<` that begins a piece; the parser has not seen it.
    Opened,
    /// Within a piece: the parser's.
    Inside,
    /// Behind the stream.
    Ended,
}

impl Events {
    /// `piece_max` bounds the header and each first-level element, `bytes_max` everything together.
    pub(super) fn new(piece_max: usize, bytes_max: u64) -> Self {
        let mut parser = Parser::with_options(Options {
            max_token_length: piece_max.min(TOKEN_MAX) + 1,
            ..Options::default()
        });
        // Text is then never held back, whatever its length.
        parser.set_text_buffering(false);
        Self {
            parser,
            place: Place::Mark(0),
            depth: 0,
            taken: 0,
            piece: 0,
            piece_max,
            bytes_max,
            fault: None,
        }
    }

    /// Open elements, the stream being the first.
    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// Bytes taken since the first.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Takes bytes up to the end of the next event. `None`: all are taken.
    pub(super) fn next(&mut self, input: &mut &[u8]) -> Result<Option<Event>, Condition> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let event = self.advance(input);
        match event {
            // A stream may now be silent for long; the parser's buffers are larger than what they hold.
            Ok(None) => self.parser.release_temporaries(),
            Ok(Some(_)) => {}
            Err(fault) => self.fault = Some(fault),
        }
        event
    }

    /// Makes the caller's own judgement final.
    pub(super) fn refuse<T>(&mut self, fault: Condition) -> Result<T, Condition> {
        self.fault = Some(fault);
        Err(fault)
    }

    fn advance(&mut self, input: &mut &[u8]) -> Result<Option<Event>, Condition> {
        loop {
            if self.place == Place::Inside {
                // The end of `<a/>` comes without a byte: the parser is asked before the input.
                if let Some(event) = self.parse(input)? {
                    return Ok(Some(event));
                }
                if self.place != Place::Inside {
                    continue;
                }
            }
            let Some(&byte) = input.first() else {
                return Ok(None);
            };
            if self.room() == 0 {
                return Err(Condition::PolicyViolation);
            }
            match self.place {
                Place::Mark(seen) => match BYTE_ORDER_MARK.get(seen) {
                    Some(&expected) if byte == expected => {
                        self.place = Place::Mark(seen + 1);
                        self.take(input, 1);
                    }
                    Some(_) if seen > 0 => return Err(Condition::NotWellFormed),
                    // The marks of UTF-16, either way round, and its `<` without a mark.
                    Some(_) if matches!(byte, 0 | 0xfe | 0xff) => {
                        return Err(Condition::UnsupportedEncoding);
                    }
                    _ => self.place = Place::Gap,
                },
                Place::Gap if is_white(byte) => {
                    let white = input.iter().take_while(|byte| is_white(**byte)).count();
                    let white = white.min(self.room());
                    self.take(input, white);
                    if self.depth == 1 {
                        self.piece = 0;
                    }
                }
                Place::Gap if byte == b'<' => {
                    self.place = Place::Opened;
                    self.take(input, 1);
                }
                Place::Gap if self.depth == 0 => return Err(Condition::NotWellFormed),
                // Text is for elements (RFC 6120 section 4.1).
                Place::Gap => return Err(Condition::BadFormat),
                Place::Opened => match byte {
                    // A comment, a DTD, or text in a CDATA section.
                    b'!' => return Err(Condition::RestrictedXml),
                    0 if self.depth == 0 => return Err(Condition::UnsupportedEncoding),
                    _ => {
                        self.place = Place::Inside;
                        match self.parser.parse(&mut &b"<"[..], false) {
                            Err(EndOrError::NeedMoreData) => {}
                            Err(EndOrError::Error(error)) => return Err(condition(error)),
                            Ok(_) => return Err(Condition::InternalServerError),
                        }
                    }
                },
                Place::Ended => self.take(input, input.len().min(self.room())),
                // The parser left bytes that it would have liked: there was no room for them.
                Place::Inside => return Err(Condition::PolicyViolation),
            }
        }
    }

    /// Lets the parser have what there is room for. `None`: it wants more, or the piece was the declaration.
    fn parse(&mut self, input: &mut &[u8]) -> Result<Option<Event>, Condition> {
        let mut window = &input[..input.len().min(self.room())];
        let offered = window.len();
        let parsed = self.parser.parse(&mut window, false);
        self.take(input, offered - window.len());
        let event = match parsed {
            Err(EndOrError::NeedMoreData) => return Ok(None),
            Err(EndOrError::Error(error)) => return Err(condition(error)),
            // It is never told that the input ends.
            Ok(None) => return Err(Condition::InternalServerError),
            Ok(Some(event)) => event,
        };
        Ok(Some(match event {
            XmlEvent::XmlDeclaration(..) => {
                self.place = Place::Gap;
                return Ok(None);
            }
            XmlEvent::StartElement(_, (namespace, name), attributes) if self.depth == 0 => {
                if namespace != STREAMS || name != "stream" {
                    return Err(Condition::InvalidNamespace);
                }
                self.depth = 1;
                self.between();
                Event::Header(attributes, self.default_namespace()?)
            }
            XmlEvent::StartElement(metrics, (namespace, name), attributes) => {
                self.depth += 1;
                let start = self.taken - metrics.len() as u64;
                Event::Start(namespace, name, attributes, start)
            }
            XmlEvent::Text(_, text) => Event::Text(text),
            XmlEvent::EndElement(_) => {
                self.depth -= 1;
                match self.depth {
                    0 => {
                        self.place = Place::Ended;
                        Event::Close
                    }
                    1 => {
                        self.between();
                        Event::End
                    }
                    _ => Event::End,
                }
            }
        }))
    }

    /// The namespace of a name without prefix, directly behind the header.
    ///
    /// The parser keeps declarations to itself, so it is asked what an element there would be.
    fn default_namespace(&mut self) -> Result<Namespace<'static>, Condition> {
        let mut probe = &b"<x/>"[..];
        let start = self.parser.parse(&mut probe, false);
        let end = self.parser.parse(&mut probe, false);
        match (start, end) {
            (
                Ok(Some(XmlEvent::StartElement(_, (namespace, _), _))),
                Ok(Some(XmlEvent::EndElement(_))),
            ) => Ok(namespace),
            // `<stream:stream/>`: a stream with an end and no room for anything.
            _ => Err(Condition::BadFormat),
        }
    }

    fn between(&mut self) {
        self.place = Place::Gap;
        self.piece = 0;
    }

    fn take(&mut self, input: &mut &[u8], count: usize) {
        *input = &input[count..];
        self.taken += count as u64;
        self.piece += count;
    }

    /// Bytes that may be taken before a bound is passed.
    fn room(&self) -> usize {
        let all = usize::try_from(self.bytes_max.saturating_sub(self.taken)).unwrap_or(usize::MAX);
        // White space between elements belongs to none, nor does what comes behind the stream.
        if self.place == Place::Ended || (self.depth == 1 && self.place == Place::Gap) {
            all
        } else {
            all.min(self.piece_max.saturating_sub(self.piece))
        }
    }
}

/// What the parser's refusal is called in XMPP.
fn condition(error: rxml::Error) -> Condition {
    match error {
        rxml::Error::RestrictedXml(ENCODING) => Condition::UnsupportedEncoding,
        rxml::Error::RestrictedXml(LONG_TOKEN) => Condition::PolicyViolation,
        rxml::Error::RestrictedXml(_) | rxml::Error::UndeclaredEntity => Condition::RestrictedXml,
        rxml::Error::UndeclaredNamespacePrefix(_) => Condition::BadNamespacePrefix,
        _ => Condition::NotWellFormed,
    }
}

/// Longest name or attribute value, and the room that the parser takes while it reads one.
const TOKEN_MAX: usize = 8 << 10;

/// U+FEFF in UTF-8.
const BYTE_ORDER_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];

/// How the parser words two of its refusals. It promises nothing about that; the tests would tell.
const ENCODING: &str = "only utf-8 encoding is allowed";
const LONG_TOKEN: &str = "long name or reference";
