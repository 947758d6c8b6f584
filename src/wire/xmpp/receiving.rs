//! What a server says on a stream, until the other side is authenticated.

use std::ops::Range;

use rxml::Namespace;

use super::events::{Event, Events};
use super::{COMPRESS, DIALBACK, LIMITS, SASL, SASL2, STREAM_ERRORS, STREAMS, TLS};

/// A header or a first-level element, at its end. The input is exactly behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The stream's header.
    Header,
    /// `<stream:features/>` (RFC 6120 section 4.3.2).
    Features(Features),
    /// TLS may begin (RFC 6120 section 5.4.2.3).
    Proceed,
    /// TLS cannot begin (RFC 6120 section 5.4.2.2).
    Failure,
    /// The other side is who it says.
    Success {
        /// Whether a new stream begins (RFC 6120 section 6.4.6); not so with SASL2 and Server Dialback.
        restart: bool,
    },
    /// All that follows is compressed (XEP-0138).
    Compressed,
    /// A stream error (RFC 6120 section 4.9).
    Error {
        /// Name of the condition's element; empty if there is none.
        condition: String,
        /// Words for people, cut at some length.
        text: Option<String>,
    },
    /// Another element.
    Element,
    /// The end of the stream. All that follows is skipped.
    End,
}

/// What `<stream:features/>` offers, as far as it matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// The offer of STARTTLS.
    pub starttls: Option<Starttls>,
    /// Names of SASL mechanisms, of either version, at most 32.
    pub mechanisms: Vec<String>,
    /// Most bytes of a first-level element that the server takes (XEP-0478).
    pub max_bytes: Option<u64>,
    /// Where the element lies, from the first byte of the stream.
    pub range: Range<u64>,
}

/// An offer of STARTTLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Starttls {
    /// Whether nothing goes without it.
    pub required: bool,
    /// Where the element lies, from the first byte of the stream.
    pub range: Range<u64>,
}

/// Not a stream as RFC 6120 has it, or a piece of it is longer than allowed. Nothing more can be said about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an XMPP stream")]
pub struct Malformed;

/// Reads what a server says. After [`Answer::Success`] with a restart a new one is needed.
pub struct Receiving {
    events: Events,
    /// The first-level element that is being read.
    answer: Answer,
    /// Whether that is within an offer of STARTTLS.
    in_starttls: bool,
    /// What text is being collected for, and the text.
    field: Option<Field>,
    text: String,
}

/// What text is collected for.
#[derive(Clone, Copy)]
enum Field {
    Mechanism,
    MaxBytes,
    ErrorText,
}

impl Receiving {
    /// At the first byte of a stream. `max_bytes` bounds the header and each first-level element.
    pub fn new(max_bytes: usize) -> Self {
        Self {
            events: Events::new(max_bytes, u64::MAX),
            answer: Answer::Element,
            in_starttls: false,
            field: None,
            text: String::new(),
        }
    }

    /// Takes bytes off the front of `input` up to the end of the next answer. `None`: all are taken.
    ///
    /// # Errors
    /// [`Malformed`], then and ever after.
    pub fn read(&mut self, input: &mut &[u8]) -> Result<Option<Answer>, Malformed> {
        while let Some(event) = self.events.next(input).map_err(|_| Malformed)? {
            match event {
                Event::Header(..) => return Ok(Some(Answer::Header)),
                Event::Start(namespace, name, attributes, start) => {
                    let range = start..self.events.taken();
                    if self.events.depth() == 2 {
                        let valid = || {
                            let kind = attributes.get(Namespace::none(), "type");
                            kind.is_some_and(|kind| kind == "valid")
                        };
                        self.answer = first_level(&namespace, &name, range, valid);
                    } else {
                        self.nested(&namespace, &name, range);
                    }
                }
                Event::Text(text) => {
                    if self.field.is_some() {
                        let room = TEXT_MAX - self.text.len();
                        self.text.push_str(&text[..text.floor_char_boundary(room)]);
                    }
                }
                Event::End => {
                    self.end();
                    if self.events.depth() == 1 {
                        return Ok(Some(std::mem::replace(&mut self.answer, Answer::Element)));
                    }
                }
                Event::Close => return Ok(Some(Answer::End)),
            }
        }
        Ok(None)
    }

    /// The start of an element within one of the first level.
    fn nested(&mut self, namespace: &str, name: &str, range: Range<u64>) {
        let depth = self.events.depth();
        self.field = None;
        match &mut self.answer {
            Answer::Features(features) => match (depth, namespace, name) {
                (3, TLS, "starttls") => {
                    self.in_starttls = true;
                    features.starttls = Some(Starttls {
                        required: false,
                        range,
                    });
                }
                (4, TLS, "required") if self.in_starttls => {
                    if let Some(starttls) = &mut features.starttls {
                        starttls.required = true;
                    }
                }
                (4, SASL | SASL2, "mechanism") => self.field = Some(Field::Mechanism),
                (4, LIMITS, "max-bytes") => self.field = Some(Field::MaxBytes),
                _ => {}
            },
            Answer::Error { condition, .. } if depth == 3 => match (namespace, name) {
                (STREAM_ERRORS, "text") => self.field = Some(Field::ErrorText),
                (STREAM_ERRORS, name) if condition.is_empty() => {
                    condition.push_str(&name[..name.floor_char_boundary(TEXT_MAX)]);
                }
                _ => {}
            },
            _ => {}
        }
    }

    /// The end of any element below the stream.
    fn end(&mut self) {
        let end = self.events.taken();
        let text = std::mem::take(&mut self.text);
        let field = self.field.take();
        match &mut self.answer {
            Answer::Features(features) => {
                match field {
                    Some(Field::Mechanism) if features.mechanisms.len() < MECHANISMS_MAX => {
                        features.mechanisms.push(text.trim().to_owned());
                    }
                    Some(Field::MaxBytes) => features.max_bytes = text.trim().parse().ok(),
                    _ => {}
                }
                match (self.events.depth(), &mut features.starttls) {
                    (1, _) => features.range.end = end,
                    (2, Some(starttls)) if self.in_starttls => {
                        self.in_starttls = false;
                        starttls.range.end = end;
                    }
                    _ => {}
                }
            }
            Answer::Error { text: words, .. } if matches!(field, Some(Field::ErrorText)) => {
                *words = Some(text);
            }
            _ => {}
        }
    }
}

/// What an element of the first level is; `valid` tells whether its `type` is that.
fn first_level(
    namespace: &str,
    name: &str,
    range: Range<u64>,
    valid: impl FnOnce() -> bool,
) -> Answer {
    match (namespace, name) {
        (STREAMS, "features") => Answer::Features(Features {
            range,
            ..Features::default()
        }),
        (STREAMS, "error") => Answer::Error {
            condition: String::new(),
            text: None,
        },
        (TLS, "proceed") => Answer::Proceed,
        (TLS, "failure") => Answer::Failure,
        (SASL, "success") => Answer::Success { restart: true },
        (SASL2, "success") => Answer::Success { restart: false },
        (DIALBACK, "result") if valid() => Answer::Success { restart: false },
        (COMPRESS, "compressed") => Answer::Compressed,
        _ => Answer::Element,
    }
}

/// Most bytes of a text that is kept: names of mechanisms are short, words for people need not be long.
const TEXT_MAX: usize = 512;

/// Most names of mechanisms that are kept.
const MECHANISMS_MAX: usize = 32;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const PROSODY: &str = "<?xml version='1.0'?><stream:stream id='1' version='1.0' from='a' \
        xmlns:stream='http://etherx.jabber.org/streams' xmlns='jabber:client'>";

    fn read_in(input: &str, size: usize) -> Result<Vec<Answer>, Malformed> {
        let mut receiving = Receiving::new(600);
        let mut answers = Vec::new();
        for mut piece in input.as_bytes().chunks(size) {
            while let Some(answer) = receiving.read(&mut piece)? {
                answers.push(answer);
            }
            assert!(piece.is_empty());
        }
        Ok(answers)
    }

    /// What a server says behind its header, and it must not depend on the pieces.
    fn read(said: &str) -> Result<Vec<Answer>, Malformed> {
        let input = format!("{PROSODY}{said}");
        let whole = read_in(&input, input.len());
        for size in 1..60 {
            assert_eq!(read_in(&input, size), whole, "in pieces of {size}: {said}");
        }
        whole.map(|mut answers| {
            assert_eq!(answers.remove(0), Answer::Header);
            answers
        })
    }

    #[test]
    fn features_are_told_with_their_places() {
        for (offer, required) in [
            ("<starttls xmlns='urn:ietf:params:xml:ns:xmpp-tls'/>", false),
            (
                "<starttls xmlns='urn:ietf:params:xml:ns:xmpp-tls'><required/></starttls>",
                true,
            ),
            (
                "<t:starttls xmlns:t='urn:ietf:params:xml:ns:xmpp-tls' >\n<t:required /> </t:starttls >",
                true,
            ),
        ] {
            let before = "\n<stream:features> <mechanisms xmlns='urn:ietf:params:xml:ns:xmpp-sasl'>\
                <mechanism>SCRAM-SHA-1</mechanism><mechanism> PLAIN\n</mechanism></mechanisms> ";
            let after = "<authentication xmlns='urn:xmpp:sasl:2'><mechanism>X</mechanism></authentication>\
                <limits xmlns='urn:xmpp:stream-limits:0'><max-bytes>262144</max-bytes></limits></stream:features>";
            let said = format!("{before}{offer}{after}");
            let answers = read(&(said.clone() + "\n<stream:features/>")).unwrap();
            let Answer::Features(features) = &answers[0] else {
                panic!("{answers:?}");
            };
            let whole = format!("{PROSODY}{said}");
            let at = |range: &Range<u64>| &whole[range.start as usize..range.end as usize];
            assert_eq!(at(&features.range), said.trim_start());
            let starttls = features.starttls.as_ref().unwrap();
            assert_eq!((at(&starttls.range), starttls.required), (offer, required));
            assert_eq!(features.mechanisms, ["SCRAM-SHA-1", "PLAIN", "X"]);
            assert_eq!(features.max_bytes, Some(262_144));

            let start = whole.len() as u64 + 1;
            assert_eq!(
                answers[1],
                Answer::Features(Features {
                    range: start..start + 18,
                    ..Features::default()
                })
            );
        }
    }

    #[test]
    fn what_only_looks_like_an_offer_is_none() {
        for features in [
            "<starttls/>",
            "<a><starttls xmlns='urn:ietf:params:xml:ns:xmpp-tls'/></a>",
            "<a xmlns='b'><required xmlns='urn:ietf:params:xml:ns:xmpp-tls'/></a>",
        ] {
            let answers = read(&format!("<stream:features>{features}</stream:features>")).unwrap();
            let Answer::Features(features) = &answers[0] else {
                panic!("{answers:?}");
            };
            assert_eq!(features.starttls, None);
        }
    }

    #[test]
    fn the_names_of_mechanisms_are_bounded() {
        let name = format!("<mechanism>{}</mechanism>", "\u{fc}".repeat(3));
        let said = format!(
            "<stream:features><mechanisms xmlns='urn:ietf:params:xml:ns:xmpp-sasl'>{}</mechanisms></stream:features>",
            name.repeat(40)
        );
        let mut receiving = Receiving::new(1 << 16);
        let whole = format!("{PROSODY}{said}");
        let mut input = whole.as_bytes();
        receiving.read(&mut input).unwrap();
        let Ok(Some(Answer::Features(features))) = receiving.read(&mut input) else {
            panic!("no features");
        };
        assert_eq!(
            features.mechanisms,
            vec!["\u{fc}".repeat(3); MECHANISMS_MAX]
        );
    }

    #[test]
    fn success_tells_whether_a_new_stream_begins() {
        let restart = |restart| Ok(vec![Answer::Success { restart }]);
        let sasl = "<success xmlns='urn:ietf:params:xml:ns:xmpp-sasl'>dj0=</success>";
        assert_eq!(read(sasl), restart(true));
        let sasl2 = "<success xmlns='urn:xmpp:sasl:2'><authorization-identifier>a@b</authorization-identifier></success>";
        assert_eq!(read(sasl2), restart(false));
        let dialback = "<d:result xmlns:d='jabber:server:dialback' from='a' to='b' type='valid'/>";
        assert_eq!(read(dialback), restart(false));
        assert_eq!(
            read(&dialback.replace("'valid'", "'invalid'")),
            Ok(vec![Answer::Element])
        );
        assert_eq!(
            read("<success xmlns='jabber:client'/>"),
            Ok(vec![Answer::Element])
        );
    }

    #[test]
    fn the_rest_is_told_by_its_name() {
        assert_eq!(
            read(
                "<proceed xmlns='urn:ietf:params:xml:ns:xmpp-tls'/>\
                 <failure xmlns='urn:ietf:params:xml:ns:xmpp-tls'/>\
                 <failure xmlns='urn:ietf:params:xml:ns:xmpp-sasl'><not-authorized/></failure>\
                 <compressed xmlns='http://jabber.org/protocol/compress'/><iq/></stream:stream>"
            ),
            Ok(vec![
                Answer::Proceed,
                Answer::Failure,
                Answer::Element,
                Answer::Compressed,
                Answer::Element,
                Answer::End
            ])
        );
        let error = |condition: &str, text: Option<&str>| {
            Ok(vec![Answer::Error {
                condition: condition.to_owned(),
                text: text.map(str::to_owned),
            }])
        };
        let streams = "xmlns='urn:ietf:params:xml:ns:xmpp-streams'";
        assert_eq!(
            read(&format!(
                "<stream:error><undefined-condition {streams}/><text {streams}>No stream &lt;features&gt;</text>\
                 <app xmlns='x'/></stream:error>"
            )),
            error("undefined-condition", Some("No stream <features>"))
        );
        assert_eq!(read("<stream:error/>"), error("", None));
    }

    #[test]
    fn what_is_no_stream_or_too_long_is_malformed() {
        for said in ["hello", "<a></b>", "<!-- -->", "<a>&nbsp;</a>"] {
            assert_eq!(read(said), Err(Malformed), "{said}");
        }
        assert!(read(&format!("<a>{}</a>", "b".repeat(593))).is_ok());
        assert!(read(&format!("<a>{}</a>", "b".repeat(594))).is_err());
        assert_eq!(read_in("<html>", 1), Err(Malformed));
    }
}
