//! What the entity that opened a stream sends, before it is authenticated.

use rxml::{AttrMap, Namespace};

use super::error::Condition;
use super::events::{Event, Events};
use super::{CLIENT, DIALBACK, Role, SASL, SASL2, SERVER, STREAMS, TLS};

/// Bounds on an unauthenticated stream. What passes one is [`Condition::PolicyViolation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Most bytes of the header (what comes before it included) or of one first-level element.
    pub element_size: usize,
    /// Most bytes in all, white space between elements and what follows the stream's end included.
    pub bytes: usize,
    /// Most elements below the stream, nested ones included.
    pub elements: u32,
    /// Deepest nesting, the stream itself being 1.
    pub depth: u32,
}

/// A header or a first-level element, at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The stream's header (RFC 6120 section 4.7).
    Header(Header),
    /// `<starttls/>` (RFC 6120 section 5.4.2.1). The input is exactly behind it.
    Starttls,
    /// Another element.
    Element(Kind),
    /// The end of the stream (RFC 6120 section 4.4). All that follows is skipped.
    End,
}

/// What kind of first-level element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Of SASL, SASL2 or Server Dialback.
    Auth,
    /// `iq`, `message` or `presence` of a content namespace.
    Stanza,
    /// None of these.
    Other,
}

/// What a stream's header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// By the content namespace; a client where only its elements tell (RFC 6120 section 4.8.5).
    pub role: Role,
    /// The domain that is asked for, in lower case (ASCII only), without a final dot.
    pub to: Option<String>,
    /// Who asks, if that is `DOMAIN` or `LOCAL@DOMAIN`.
    pub from: Option<String>,
    /// Major and minor version of XMPP; none before 1.0.
    pub version: Option<(u32, u32)>,
    /// Language, if it looks like a tag of BCP 47.
    pub lang: Option<String>,
}

/// Reads what the initiating entity sends.
///
/// It is fed bytes as they come and never needs them again. What is refused stays refused.
pub struct Initiating {
    events: Events,
    caps: Caps,
    elements: u32,
    /// The first-level element that is being read.
    request: Option<Request>,
}

impl Initiating {
    /// At the first byte of a stream.
    pub fn new(caps: Caps) -> Self {
        Self {
            events: Events::new(caps.element_size, caps.bytes as u64),
            caps,
            elements: 0,
            request: None,
        }
    }

    /// Takes bytes off the front of `input` up to the end of the next request. `None`: all are taken.
    ///
    /// # Errors
    /// The condition of the stream error that this stream deserves; the table is RFC 6120 section 4.9.3.
    pub fn read(&mut self, input: &mut &[u8]) -> Result<Option<Request>, Condition> {
        while let Some(event) = self.events.next(input)? {
            match event {
                Event::Header(attributes, content) => {
                    return match Header::read(&attributes, &content) {
                        Ok(header) => Ok(Some(Request::Header(header))),
                        Err(condition) => self.events.refuse(condition),
                    };
                }
                Event::Start(namespace, name, ..) => {
                    self.elements += 1;
                    let depth = self.events.depth();
                    if self.elements > self.caps.elements || depth > self.caps.depth {
                        return self.events.refuse(Condition::PolicyViolation);
                    }
                    if depth == 2 {
                        self.request = Some(Request::first_level(&namespace, &name));
                    }
                }
                Event::Text(_) => {}
                Event::End if self.events.depth() > 1 => {}
                Event::End => return Ok(self.request.take()),
                Event::Close => return Ok(Some(Request::End)),
            }
        }
        Ok(None)
    }
}

impl Request {
    fn first_level(namespace: &str, name: &str) -> Self {
        match (namespace, name) {
            (TLS, "starttls") => Self::Starttls,
            (SASL | SASL2 | DIALBACK, _) => Self::Element(Kind::Auth),
            (CLIENT | SERVER, "iq" | "message" | "presence") => Self::Element(Kind::Stanza),
            _ => Self::Element(Kind::Other),
        }
    }
}

impl Header {
    fn read(attributes: &AttrMap, content: &str) -> Result<Self, Condition> {
        let role = match content {
            CLIENT => Role::Client,
            SERVER => Role::Server,
            // The default namespace may be the stream's own; then each element declares its content namespace.
            STREAMS => Role::Client,
            _ => return Err(Condition::InvalidNamespace),
        };
        let said = |name: &str| attributes.get(Namespace::none(), name).map(String::as_str);
        let version = match said("version") {
            None => None,
            Some(version) => Some(read_version(version).ok_or(Condition::BadFormat)?),
        };
        // As if it had said nothing (RFC 6120 section 4.7.5).
        let version = version.filter(|(major, _)| *major > 0);
        let to = match said("to") {
            None => None,
            Some(to) => Some(domain(to).ok_or(Condition::ImproperAddressing)?),
        };
        let lang = attributes.get(Namespace::xml(), "lang");
        Ok(Self {
            role,
            to,
            from: said("from")
                .filter(|from| is_bare_jid(from))
                .map(str::to_owned),
            version,
            lang: lang.filter(|lang| is_language(lang)).cloned(),
        })
    }
}

/// `MAJOR.MINOR` (RFC 6120 section 4.7.5).
fn read_version(text: &str) -> Option<(u32, u32)> {
    let number = |text: &str| {
        let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| text.parse().ok()).flatten()
    };
    let (major, minor) = text.split_once('.')?;
    Some((number(major)?, number(minor)?))
}

/// A domain, in the form that it is compared in. Whether it exists is not asked.
fn domain(text: &str) -> Option<String> {
    let name = text.strip_suffix('.').unwrap_or(text);
    is_part(name).then(|| name.to_ascii_lowercase())
}

/// A JID without resource (RFC 7622 section 3.1).
fn is_bare_jid(text: &str) -> bool {
    let (local, domain) = match text.split_once('@') {
        Some((local, domain)) => (Some(local), domain),
        None => (None, text),
    };
    local.is_none_or(is_part) && is_part(domain)
}

/// A local part or a domain: not empty, not too long, and without what RFC 7622 section 3.3.1 forbids.
fn is_part(text: &str) -> bool {
    let plain = |character: char| {
        !character.is_control()
            && !character.is_whitespace()
            && !matches!(character, '"' | '&' | '\'' | '/' | '<' | '>' | '@')
    };
    !text.is_empty() && text.len() <= PART_MAX && text.chars().all(plain)
}

/// Whether this looks like a language tag (RFC 5646 section 2.1): subtags of one to eight letters or digits.
fn is_language(text: &str) -> bool {
    let subtag = |tag: &str| {
        (1..=8).contains(&tag.len()) && tag.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    text.len() <= LANGUAGE_MAX
        && text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.split('-').all(subtag)
}

/// Most bytes of each part of a JID (RFC 7622 section 3.1).
const PART_MAX: usize = 1023;

/// Longer than any tag in use (RFC 5646 section 4.4.1 speaks of 35).
const LANGUAGE_MAX: usize = 64;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const CAPS: Caps = Caps {
        element_size: 400,
        bytes: 1000,
        elements: 5,
        depth: 4,
    };

    /// What comes out when the input comes in pieces of `size` bytes, and how it ends.
    fn read_in(input: &[u8], size: usize) -> (Vec<Request>, Option<Condition>) {
        let mut initiating = Initiating::new(CAPS);
        let mut requests = Vec::new();
        for mut piece in input.chunks(size) {
            loop {
                match initiating.read(&mut piece) {
                    Ok(Some(request)) => requests.push(request),
                    Ok(None) => break assert!(piece.is_empty()),
                    Err(condition) => {
                        assert_eq!(initiating.read(&mut &b"<"[..]), Err(condition));
                        return (requests, Some(condition));
                    }
                }
            }
        }
        (requests, None)
    }

    /// The same, and it must not depend on the pieces.
    fn read(input: impl AsRef<[u8]>) -> (Vec<Request>, Option<Condition>) {
        let input = input.as_ref();
        let whole = read_in(input, input.len().max(1));
        for size in 1..input.len().min(60) {
            let text = String::from_utf8_lossy(input);
            assert_eq!(read_in(input, size), whole, "in pieces of {size}: {text}");
        }
        whole
    }

    /// The fault of a stream that is refused before its header is told.
    #[track_caller]
    fn fault(input: impl AsRef<[u8]>) -> Condition {
        let (requests, fault) = read(input);
        assert_eq!(requests, []);
        fault.unwrap()
    }

    /// The header of a stream that consists of it.
    #[track_caller]
    fn header(input: impl AsRef<[u8]>) -> Header {
        match read(input) {
            (requests, None) if requests.len() == 1 => match requests.into_iter().next() {
                Some(Request::Header(header)) => header,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    fn with(attributes: &str) -> String {
        format!("<stream:stream xmlns:stream='{STREAMS}' xmlns='{CLIENT}' {attributes}>")
    }

    #[test]
    fn a_header_is_told_as_it_is() {
        assert_eq!(
            header(with(
                "to='Example.ORG.' from='juliet@example.org' version='1.0' xml:lang='de-CH'"
            )),
            Header {
                role: Role::Client,
                to: Some("example.org".to_owned()),
                from: Some("juliet@example.org".to_owned()),
                version: Some((1, 0)),
                lang: Some("de-CH".to_owned()),
            }
        );
        assert_eq!(
            header(with("")),
            Header {
                role: Role::Client,
                to: None,
                from: None,
                version: None,
                lang: None,
            }
        );
        assert_eq!(header(with("version='2.1'")).version, Some((2, 1)));
        assert_eq!(header(with("version='0.9'")).version, None);
        assert_eq!(
            header(with("to='b\u{fc}cher.example'")).to.as_deref(),
            Some("b\u{fc}cher.example")
        );
        assert_eq!(header(with("to='[::1]'")).to.as_deref(), Some("[::1]"));
    }

    #[test]
    fn what_cannot_be_told_back_is_left_out() {
        for from in [
            "a@b/c",
            "@b",
            "a@",
            "",
            "a b@c",
            "a@b@c",
            "a&apos;b@c",
            "/x",
        ] {
            let header = header(with(&format!("from='{from}' xml:lang='e n'")));
            assert_eq!((header.from, header.lang), (None, None), "{from}");
        }
        for lang in ["", "-", "en-", "1x", "en_US", "abcdefghi", "x'"] {
            let lang = lang.replace('\'', "&apos;");
            assert_eq!(header(with(&format!("xml:lang='{lang}'"))).lang, None);
        }
    }

    #[test]
    fn prefixes_are_the_senders_own() {
        for stream in [
            format!("<s:stream xmlns:s='{STREAMS}' xmlns='{SERVER}' xmlns:db='{DIALBACK}'>"),
            format!("<?xml version='1.0'?>\n<s:stream xmlns='{SERVER}'\n xmlns:s=\"{STREAMS}\" >"),
        ] {
            assert_eq!(header(stream).role, Role::Server);
        }
        let (requests, fault) = read(format!(
            "<stream xmlns='{STREAMS}' to='a'><message xmlns='{CLIENT}'><body>hi</body></message>\
             <t:starttls xmlns:t='{TLS}'/></stream>"
        ));
        assert_eq!(fault, None);
        assert_eq!(
            requests[1..],
            [
                Request::Element(Kind::Stanza),
                Request::Starttls,
                Request::End
            ]
        );
    }

    #[test]
    fn a_mark_and_white_space_may_come_first() {
        for before in [
            "",
            " \n\t\r",
            "\u{feff}",
            "\u{feff} \n",
            "<?xml version='1.0'?>",
            "\u{feff}<?xml version=\"1.0\" encoding='utf-8' standalone='yes' ?>\r\n ",
            " \n<?xml version='1.0' encoding='UTF-8'?>",
        ] {
            header(format!("{before}{}", with("")));
        }
        assert_eq!(
            fault(format!(" \u{feff}{}", with(""))),
            Condition::NotWellFormed
        );
        assert_eq!(fault(b"\xef\xbbx"), Condition::NotWellFormed);
        assert_eq!(fault([b' '; 401]), Condition::PolicyViolation);
    }

    #[test]
    fn each_fault_has_its_condition() {
        use Condition::*;
        let declared = |rest: &str| format!("<?xml version='1.0'?>{rest}");
        for (input, condition) in [
            ("GET / HTTP/1.1\r\n\r\n".to_owned(), NotWellFormed),
            ("\x16\x03\x01".to_owned(), NotWellFormed),
            ("<1>".to_owned(), NotWellFormed),
            ("</stream>".to_owned(), NotWellFormed),
            ("<<".to_owned(), NotWellFormed),
            (with("to='a' to='b'"), NotWellFormed),
            (with("to=a"), NotWellFormed),
            (with("to='<'"), NotWellFormed),
            ("<?xml?>".to_owned(), NotWellFormed),
            ("<!DOCTYPE stream>".to_owned(), RestrictedXml),
            (
                declared("<!DOCTYPE stream [<!ENTITY a 'b'>]>"),
                RestrictedXml,
            ),
            (declared("<!-- -->"), RestrictedXml),
            (declared("<?php ?>"), RestrictedXml),
            (declared("<?xml version='1.0'?>"), RestrictedXml),
            ("<?php ?>".to_owned(), RestrictedXml),
            ("<!-- -->".to_owned(), RestrictedXml),
            ("<?xml version='1.1'?>".to_owned(), RestrictedXml),
            (with("to='&a;'"), RestrictedXml),
            (
                format!("<stream:features xmlns:stream='{STREAMS}'>"),
                InvalidNamespace,
            ),
            (
                "<stream:stream xmlns:stream='a'>".to_owned(),
                InvalidNamespace,
            ),
            ("<stream>".to_owned(), InvalidNamespace),
            ("<html>".to_owned(), InvalidNamespace),
            (
                format!("<s:stream xmlns:s='{STREAMS}' xmlns='jabber:component:accept'>"),
                InvalidNamespace,
            ),
            (format!("<s:stream xmlns:s='{STREAMS}'>"), InvalidNamespace),
            (
                "<stream:stream xmlns='jabber:client'>".to_owned(),
                BadNamespacePrefix,
            ),
            (with("b:to='a'"), BadNamespacePrefix),
            (with("to=''"), ImproperAddressing),
            (with("to='.'"), ImproperAddressing),
            (with("to='a@b'"), ImproperAddressing),
            (with("to='a/b'"), ImproperAddressing),
            (with("to='a b'"), ImproperAddressing),
            (with("version=''"), BadFormat),
            (with("version='1'"), BadFormat),
            (with("version='1.'"), BadFormat),
            (with("version='+1.0'"), BadFormat),
            (with("version='1.99999999999'"), BadFormat),
            (with("").replace('>', "/>"), BadFormat),
            (
                "<?xml version='1.0' encoding='UTF-16'?>".to_owned(),
                UnsupportedEncoding,
            ),
            (
                "<?xml version='1.0' encoding='iso-8859-1'?>".to_owned(),
                UnsupportedEncoding,
            ),
            ("<\0s\0".to_owned(), UnsupportedEncoding),
            ("\0<\0s".to_owned(), UnsupportedEncoding),
        ] {
            assert_eq!(fault(&input), condition, "{input}");
        }
        for mark in [b"\xff\xfe<\0", b"\xfe\xff\0<"] {
            assert_eq!(fault(mark), UnsupportedEncoding);
        }
    }

    #[test]
    fn each_fault_behind_the_header_has_its_condition() {
        use Condition::*;
        for (input, condition) in [
            ("GET", BadFormat),
            ("<!-- -->", RestrictedXml),
            ("<!DOCTYPE a>", RestrictedXml),
            ("<![CDATA[a]]>", RestrictedXml),
            ("<?xml version='1.0'?>", RestrictedXml),
            ("<?a?>", RestrictedXml),
            ("<a>&b;</a>", RestrictedXml),
            ("<a><!-- --></a>", RestrictedXml),
            ("<a><?b?></a>", RestrictedXml),
            ("<b:a/>", BadNamespacePrefix),
            ("<a></b>", NotWellFormed),
            ("<a b='1'b='2'/>", NotWellFormed),
            ("<a>\x01</a>", NotWellFormed),
            ("</b>", NotWellFormed),
            ("&amp;", BadFormat),
        ] {
            let (requests, fault) = read(with("") + input);
            assert_eq!(requests.len(), 1, "{input}");
            assert_eq!(fault, Some(condition), "{input}");
        }
    }

    #[test]
    fn elements_are_told_at_their_end_and_by_their_kind() {
        let (requests, fault) = read(
            with("")
                + " <auth xmlns='urn:ietf:params:xml:ns:xmpp-sasl' mechanism='PLAIN'>AA==</auth>\n\
                <authenticate xmlns='urn:xmpp:sasl:2'/><iq/><iq xmlns='jabber:other'/></stream:stream>GET",
        );
        assert_eq!(fault, None);
        assert_eq!(
            requests[1..],
            [
                Request::Element(Kind::Auth),
                Request::Element(Kind::Auth),
                Request::Element(Kind::Stanza),
                Request::Element(Kind::Other),
                Request::End
            ]
        );
    }

    #[test]
    fn the_input_is_left_exactly_behind_each_request() {
        let stream = with("");
        for tag in [
            format!("<starttls xmlns='{TLS}'/>"),
            format!("<starttls xmlns='{TLS}'></starttls>"),
            format!("<x:starttls xmlns:x='{TLS}' > </x:starttls >"),
        ] {
            for (behind, said) in [("\n", &tag), ("", &tag), ("<x", &tag), ("\x16\x03", &tag)] {
                let whole = format!("{stream}{said}{behind}");
                for cut in 0..=stream.len() + said.len() {
                    let mut initiating = Initiating::new(CAPS);
                    let (mut first, _) = whole.as_bytes().split_at(cut);
                    let mut seen = Vec::new();
                    while let Some(request) = initiating.read(&mut first).unwrap() {
                        seen.push((request, cut - first.len()));
                    }
                    let mut second = &whole.as_bytes()[cut..];
                    while seen.len() < 2 {
                        let request = initiating.read(&mut second).unwrap().unwrap();
                        seen.push((request, whole.len() - second.len()));
                    }
                    assert_eq!(seen[0].1, stream.len());
                    assert_eq!(seen[1], (Request::Starttls, stream.len() + said.len()));
                }
            }
        }
    }

    #[test]
    fn every_cap_holds() {
        let head = with("");
        // Exactly as much as is allowed, and one more.
        let long = |len: usize| {
            let around = with("to=''").len();
            with(&format!("to='{}'", "a".repeat(len - around)))
        };
        header(long(400));
        assert_eq!(fault(long(401)), Condition::PolicyViolation);
        assert_eq!(
            fault(format!("<stream:stream a='{}", "a".repeat(400))),
            Condition::PolicyViolation
        );

        let body = |len: usize| format!("{head}<a>{}</a>", "b".repeat(len - "<a></a>".len()));
        assert_eq!(read(body(400)).1, None);
        assert_eq!(read(body(401)).1, Some(Condition::PolicyViolation));

        // White space between elements counts to the whole alone.
        let white = |len: usize| format!("{head}{}", " ".repeat(len - head.len()));
        assert_eq!(read(white(1000)).1, None);
        assert_eq!(read(white(1001)).1, Some(Condition::PolicyViolation));
        // What comes behind the stream counts, too.
        let ended = |len: usize| {
            format!(
                "{head}</stream:stream>{}",
                "x".repeat(len - head.len() - 16)
            )
        };
        assert_eq!(read(ended(1000)).1, None);
        assert_eq!(read(ended(1001)).1, Some(Condition::PolicyViolation));
        let bodies = |last: usize| body(400) + &body(400)[head.len()..] + &body(last)[head.len()..];
        let left = 1000 - head.len() - 800;
        assert_eq!(read(bodies(left)).1, None);
        assert_eq!(read(bodies(left + 1)).1, Some(Condition::PolicyViolation));

        assert_eq!(read(head.clone() + &"<a/>".repeat(5)).1, None);
        let (requests, fault) = read(head.clone() + &"<a/>".repeat(6));
        assert_eq!(
            (requests.len(), fault),
            (6, Some(Condition::PolicyViolation))
        );
        assert_eq!(
            read(head.clone() + "<a><b/><b/><b/><b/><b/></a>").1,
            Some(Condition::PolicyViolation)
        );
        assert_eq!(read(head.clone() + "<a><b><c/></b></a>").1, None);
        assert_eq!(
            read(head + "<a><b><c><d/></c></b></a>").1,
            Some(Condition::PolicyViolation)
        );
    }

    #[test]
    fn a_long_name_or_value_is_against_the_policy_whatever_an_element_may_have() {
        let caps = Caps {
            element_size: 1 << 20,
            bytes: 1 << 20,
            ..CAPS
        };
        for stream in [
            with(&format!("a='{}'", "b".repeat(20_000))),
            format!("<{}", "b".repeat(20_000)),
        ] {
            assert_eq!(
                Initiating::new(caps).read(&mut stream.as_bytes()),
                Err(Condition::PolicyViolation)
            );
        }
        let stream = with("") + "<a>" + &"b".repeat(100_000) + "</a>";
        let mut input = stream.as_bytes();
        let mut initiating = Initiating::new(caps);
        initiating.read(&mut input).unwrap();
        assert_eq!(
            initiating.read(&mut input),
            Ok(Some(Request::Element(Kind::Other)))
        );
    }
}
