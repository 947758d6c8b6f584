//! How deep in a stream's elements the next byte lies, by the brackets alone.
//!
//! After authentication nothing is parsed any more, yet two questions remain: may a stream error be put in here, and how
//! long is the element that is being sent? [`Depth`] answers the first and [`Meter`] the second. They keep no bytes and
//! take sound XML for granted: what is not XML may be misjudged, and what can be seen not to be is judged no more by the
//! one and refused by the other.

use memchr::memchr;

use super::{Condition, is_white};

/// Follows one direction of a stream, byte by byte and without keeping any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Open elements, the stream included.
    depth: u32,
    place: Place,
}

/// Where the next byte lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Outside of all markup.
    Outside,
    /// Behind `<`.
    Opened,
    /// In a start tag, outside of quotes.
    Tag,
    /// There, behind `/`.
    Slash,
    /// In an attribute's value, up to `'`.
    Single,
    /// In an attribute's value, up to `"`.
    Double,
    /// In an end tag.
    EndTag,
    /// Behind `<!`.
    Bang,
    /// Behind `<!-`.
    BangDash,
    /// In a comment, behind so many `-` of its end.
    Comment(u8),
    /// Behind `<!` and so many bytes of `[CDATA[`.
    CdataStart(u8),
    /// In a CDATA section, behind so many `]` of its end.
    Cdata(u8),
    /// Behind `<?` and so many bytes of `xml`.
    Name(u8),
    /// In a processing instruction; behind `?` if true.
    Instruction(bool),
    /// In an XML declaration; behind `?` if true.
    Declaration(bool),
    /// In a value there, up to this quote. (Apart from those of tags, which are what a stanza spends its time on.)
    Declared(u8),
    /// This is no XML.
    Lost,
}

impl Depth {
    /// Outside of all markup, with so many elements open: 0 before a stream's header, 1 behind it.
    pub const fn new(depth: u32) -> Self {
        Self {
            depth,
            place: Place::Outside,
        }
    }

    /// Goes on by these bytes.
    ///
    /// An XML declaration in the stream or before it begins a new stream, as a restart does (RFC 6120 section 4.3.3).
    pub fn feed(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = self.step(rest);
        }
    }

    /// Whether the stream is between two first-level elements, where another one or a stream error may stand.
    pub fn at_boundary(&self) -> bool {
        self.depth == 1 && self.place == Place::Outside
    }

    /// Open elements, the stream included; meaningless once [`Depth::lost`].
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Whether something came that is no XML (compressed bytes, say), so that there is no boundary any more.
    pub fn lost(&self) -> bool {
        self.place == Place::Lost
    }

    /// Goes on by one byte at least, and not past the end of a tag. There must be a byte.
    #[inline]
    fn step<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let Some((&byte, rest)) = bytes.split_first() else {
            return bytes;
        };
        self.place = match self.place {
            Place::Outside if self.depth > 1 => {
                return match memchr(b'<', bytes) {
                    Some(at) => self.enter(Place::Opened, &bytes[at + 1..]),
                    None => &[],
                };
            }
            Place::Outside => {
                return match bytes.iter().position(|byte| !is_white(*byte)) {
                    Some(at) if bytes[at] == b'<' => self.enter(Place::Opened, &bytes[at + 1..]),
                    Some(_) => self.enter(Place::Lost, &[]),
                    None => &[],
                };
            }
            Place::Opened => match byte {
                b'/' => Place::EndTag,
                b'!' => Place::Bang,
                b'?' => Place::Name(0),
                b'>' | b'<' => Place::Lost,
                _ => Place::Tag,
            },
            Place::Tag | Place::Slash => {
                let end = bytes
                    .iter()
                    .position(|byte| matches!(byte, b'>' | b'\'' | b'"'));
                let Some(at) = end else {
                    self.place = match bytes.last() {
                        Some(b'/') => Place::Slash,
                        _ => Place::Tag,
                    };
                    return &[];
                };
                let slash = match at.checked_sub(1) {
                    Some(before) => bytes[before] == b'/',
                    None => self.place == Place::Slash,
                };
                let place = match bytes[at] {
                    b'\'' => Place::Single,
                    b'"' => Place::Double,
                    _ => {
                        self.depth = self.depth.saturating_add(u32::from(!slash));
                        Place::Outside
                    }
                };
                return self.enter(place, &bytes[at + 1..]);
            }
            Place::Single | Place::Double => {
                let quote = if self.place == Place::Single {
                    b'\''
                } else {
                    b'"'
                };
                return match bytes.iter().position(|byte| *byte == quote) {
                    Some(at) => self.enter(Place::Tag, &bytes[at + 1..]),
                    None => &[],
                };
            }
            Place::EndTag => {
                return match bytes.iter().position(|byte| *byte == b'>') {
                    Some(at) => {
                        let place = match self.depth.checked_sub(1) {
                            Some(depth) => {
                                self.depth = depth;
                                Place::Outside
                            }
                            None => Place::Lost,
                        };
                        self.enter(place, &bytes[at + 1..])
                    }
                    None => &[],
                };
            }
            Place::Bang => match byte {
                b'-' => Place::BangDash,
                // Text is for elements; and a DTD has no place in a stream.
                b'[' if self.depth > 1 => Place::CdataStart(1),
                _ => Place::Lost,
            },
            Place::BangDash if byte == b'-' => Place::Comment(0),
            Place::BangDash => Place::Lost,
            Place::Comment(dashes) => match (dashes, byte) {
                (2, b'>') => Place::Outside,
                (2, b'-') => Place::Comment(2),
                (dashes, b'-') => Place::Comment(dashes + 1),
                _ => return self.skip_to(b'-', Place::Comment(0), rest),
            },
            Place::CdataStart(seen) => match CDATA.get(usize::from(seen)) {
                Some(&expected) if byte != expected => Place::Lost,
                _ if usize::from(seen) + 1 == CDATA.len() => Place::Cdata(0),
                _ => Place::CdataStart(seen + 1),
            },
            Place::Cdata(brackets) => match (brackets, byte) {
                (2, b'>') => Place::Outside,
                (2, b']') => Place::Cdata(2),
                (brackets, b']') => Place::Cdata(brackets + 1),
                _ => return self.skip_to(b']', Place::Cdata(0), rest),
            },
            Place::Name(seen) => match XML.get(usize::from(seen)) {
                Some(&expected) if byte == expected => Place::Name(seen + 1),
                None if is_white(byte) && self.depth <= 1 => Place::Declaration(false),
                _ => Place::Instruction(byte == b'?'),
            },
            Place::Instruction(true) if byte == b'>' => Place::Outside,
            Place::Instruction(_) => Place::Instruction(byte == b'?'),
            Place::Declaration(true) if byte == b'>' => {
                self.depth = 0;
                Place::Outside
            }
            Place::Declaration(_) if matches!(byte, b'\'' | b'"') => Place::Declared(byte),
            Place::Declaration(_) => Place::Declaration(byte == b'?'),
            Place::Declared(quote) if byte == quote => Place::Declaration(false),
            Place::Declared(quote) => Place::Declared(quote),
            Place::Lost => return &[],
        };
        rest
    }

    #[inline]
    fn enter<'a>(&mut self, place: Place, rest: &'a [u8]) -> &'a [u8] {
        self.place = place;
        rest
    }

    /// Enters `place` and goes on up to, and not including, the next `byte`.
    fn skip_to<'a>(&mut self, byte: u8, place: Place, rest: &'a [u8]) -> &'a [u8] {
        self.place = place;
        memchr(byte, rest).map_or(&[], |at| &rest[at..])
    }
}

/// Bounds the length of first-level elements in a stream of which no byte is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meter {
    depth: Depth,
    /// Bytes of the element that is being sent.
    bytes: usize,
}

impl Meter {
    /// As [`Depth::new`].
    pub const fn new(depth: u32) -> Self {
        Self {
            depth: Depth::new(depth),
            bytes: 0,
        }
    }

    /// Goes on by these bytes.
    ///
    /// A declaration and a header count as one element each.
    ///
    /// # Errors
    /// An element has more than `most` bytes; or what came is no XML, and nothing behind it can be measured: servers
    /// overlook text between two elements and go on.
    pub fn feed(&mut self, bytes: &[u8], most: usize) -> Result<(), Condition> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let between = self.is_between();
            let next = self.depth.step(rest);
            let taken = rest.len() - next.len();
            rest = next;
            if !between {
                self.bytes = self.bytes.saturating_add(taken);
            } else if self.depth.place == Place::Opened {
                // White space came first, perhaps; it belongs to nothing.
                self.bytes = 1;
            }
            if self.depth.lost() {
                return Err(Condition::BadFormat);
            }
            if self.bytes > most {
                return Err(Condition::PolicyViolation);
            }
            if self.is_between() {
                self.bytes = 0;
            }
        }
        Ok(())
    }

    /// How deep the next byte lies.
    pub fn depth(&self) -> Depth {
        self.depth
    }

    /// A new stream begins (RFC 6120 section 6.4.6); its header may have come already, in part or whole.
    pub fn restart(&mut self) {
        self.depth.depth = self.depth.depth.saturating_sub(1);
    }

    fn is_between(&self) -> bool {
        self.depth.depth <= 1 && self.depth.place == Place::Outside
    }
}

const CDATA: &[u8] = b"[CDATA[";
const XML: &[u8] = b"xml";

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;
    use rxml::error::EndOrError;
    use rxml::{Event, Parse, Parser};

    use super::*;

    fn after(depth: u32, bytes: impl AsRef<[u8]>) -> Depth {
        let mut whole = Depth::new(depth);
        whole.feed(bytes.as_ref());
        let mut pieces = Depth::new(depth);
        for byte in bytes.as_ref() {
            pieces.feed(std::slice::from_ref(byte));
        }
        assert_eq!(whole, pieces);
        whole
    }

    #[test]
    fn it_is_as_small_as_it_should_be() {
        assert!(size_of::<Depth>() <= 8);
    }

    #[test]
    fn a_boundary_is_between_elements_alone() {
        for bytes in [
            "",
            " \r\n\t",
            "<a/>",
            "<a></a>",
            "<a><b/></a>\n",
            "<!--a-->",
            "<?a?>",
        ] {
            assert!(after(1, bytes).at_boundary(), "{bytes}");
        }
        for bytes in [
            "<",
            "<a",
            "<a/",
            "<a b='/>",
            "<a b=\"/>",
            "<a b='/' >",
            "<a>",
            "<a></a",
            "<a>b",
            "<a><![CDATA[</a>",
            "<a><![CDATA[]]</a>",
            "<!--->",
            "<!-- --",
            "<?a",
            "<?a b>",
            "<a><b/>",
            "<a><!--</a>",
        ] {
            let depth = after(1, bytes);
            assert!(!depth.at_boundary() && !depth.lost(), "{bytes}");
        }
        assert_eq!(after(0, "<s>").depth(), 1);
        assert!(after(0, "<?xml version='1.0'?><s a='>'>").at_boundary());
        assert!(!after(0, "<s></s>").at_boundary());
        assert!(after(1, "<a><![CDATA[</a>]]]></a>").at_boundary());
        assert!(after(1, "<a><!-- </a> ---></a>").at_boundary());
    }

    #[test]
    fn a_declaration_begins_a_new_stream() {
        assert_eq!(after(1, "<?xml version='1.0'?>").depth(), 0);
        assert!(after(1, "<?xml version=\"1.0\" ?><s>").at_boundary());
        assert!(after(0, "<?xml version='?>'?><s>").at_boundary());
        assert!(!after(0, "<?xml version='1.0\"?>iq").lost());
        assert_eq!(after(1, "<?xml-a ?>").depth(), 1);
        assert_eq!(after(1, "<?xm ?>").depth(), 1);
        assert_eq!(after(2, "<?xml ?>").depth(), 2);
    }

    #[test]
    fn what_is_no_xml_ends_the_judgement() {
        for (depth, bytes) in [
            (1, "x"),
            (0, "x"),
            (1, "\u{78}\u{9c}"),
            (1, "<a/>&amp;"),
            (0, "</a>"),
            (1, "</a></a>"),
            (1, "<![CDATA[ ]]>"),
            (1, "<!DOCTYPE a>"),
            (2, "<![CDATX["),
            (2, "<!-a"),
            (2, "<>"),
        ] {
            let mut depth = after(depth, bytes);
            assert!(depth.lost(), "{bytes}");
            depth.feed(b"<?xml version='1.0'?><a>");
            assert!(depth.lost() && !depth.at_boundary());
        }
    }

    #[test]
    fn an_element_is_measured_without_what_lies_between() {
        let element = "<a b='c'>d</a>";
        for most in 0..20 {
            for (before, after) in [("", ""), ("   ", "   "), ("<e/>\n", "<f/>")] {
                let bytes = format!("{before}{element}{after}");
                let fits = most >= element.len();
                assert_eq!(Meter::new(1).feed(bytes.as_bytes(), most).is_ok(), fits);
                let mut meter = Meter::new(1);
                let mut pieces = bytes.as_bytes().chunks(1);
                assert_eq!(pieces.all(|piece| meter.feed(piece, most).is_ok()), fits);
            }
        }
        assert_eq!(Meter::new(1).feed(&[b' '; 100], 3), Ok(()));
        let too_long = Err(Condition::PolicyViolation);
        assert_eq!(Meter::new(1).feed(b"<a b='ccccccccc", 8), too_long);
        assert_eq!(Meter::new(0).feed(b"<s><a/><a/>", 4), Ok(()));
        assert_eq!(Meter::new(1).feed(b"</too-long>", 4), too_long);
    }

    #[test]
    fn what_cannot_be_measured_is_no_way_past_a_cap() {
        for bytes in [&b"<a/>x<b/>"[..], b"\x78\x9c", b"<!DOCTYPE a>", b"</s></s>"] {
            let judged = Meter::new(1).feed(bytes, 100);
            assert_eq!(judged, Err(Condition::BadFormat));
        }
    }

    #[test]
    fn a_header_that_did_not_wait_for_the_login_is_measured_as_any() {
        let stream = "<s x=''><a>1234</a>";
        for ahead in 0..="<s x=''>".len() {
            let mut meter = Meter::new(1);
            assert_eq!(meter.feed(&stream.as_bytes()[..ahead], 11), Ok(()));
            meter.restart();
            assert_eq!(meter.feed(&stream.as_bytes()[ahead..], 11), Ok(()));
            assert_eq!(
                meter.feed(b"<a><b/><b/><b/>", 11),
                Err(Condition::PolicyViolation)
            );
        }
    }

    /// Sound XML as our parser takes it, with all that could confuse.
    fn element() -> impl Strategy<Value = String> {
        let name = "[a-z]{1,3}";
        let attribute = prop_oneof![
            "[a-z/>= \\]-]{0,8}".prop_map(|value| format!("'{value}\"'")),
            "[a-z/>= \\]-]{0,8}".prop_map(|value| format!("\"{value}'\"")),
        ];
        let tag = (name, prop::option::of((name, attribute)), "[ \n]{0,2}");
        let tag = tag.prop_map(|(name, attribute, white)| {
            let attribute =
                attribute.map_or_else(String::new, |(name, value)| format!(" {name}={value}"));
            (name, attribute + &white)
        });
        let leaf = prop_oneof![
            tag.clone()
                .prop_map(|(name, rest)| format!("<{name}{rest}/>")),
            "[a-z/='\"> \n-]{0,8}",
            "[a-z<>/&' \\]-]{0,8}"
                .prop_filter("no end", |text| !text.contains("]]>"))
                .prop_map(|text| format!("<![CDATA[{text}]]>")),
            Just("&lt;&#x3e;&amp;".to_owned()),
        ];
        leaf.prop_recursive(5, 40, 5, move |inner| {
            (tag.clone(), prop::collection::vec(inner, 0..5)).prop_map(|((name, rest), inner)| {
                format!("<{name}{rest}>{}</{name} >", inner.concat())
            })
        })
    }

    /// Open elements after these bytes, as the parser has it. `None`: no XML.
    fn parsed(parser: &mut Parser, depth: &mut u32, mut bytes: &[u8]) -> Option<u32> {
        loop {
            match parser.parse(&mut bytes, false) {
                Ok(Some(Event::StartElement(..))) => *depth += 1,
                Ok(Some(Event::EndElement(_))) => *depth -= 1,
                Ok(_) => {}
                Err(EndOrError::NeedMoreData) => return Some(*depth),
                Err(EndOrError::Error(_)) => return None,
            }
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_the_parser(
            inner in prop::collection::vec(element(), 0..5),
            sizes in prop::collection::vec(1usize..20, 1..40),
        ) {
            let wrapped: String = inner.iter().map(|inner| format!("<q>{inner}</q>\n")).collect();
            let document = format!("<?xml version='1.0'?>\n<s x='>'>{wrapped}</s>");
            let mut rest = document.as_bytes();
            let mut sizes = sizes.iter().cycle();
            let (mut ours, mut parser, mut theirs) = (Depth::new(0), Parser::new(), 0);
            while !rest.is_empty() {
                let (piece, next) = rest.split_at(rest.len().min(*sizes.next().unwrap()));
                rest = next;
                ours.feed(piece);
                prop_assert_eq!(parsed(&mut parser, &mut theirs, piece), Some(ours.depth()));
                prop_assert!(!ours.lost());
            }
            prop_assert_eq!(ours.depth(), 0);
        }

        #[test]
        fn pieces_make_no_difference(
            bytes in prop::collection::vec(prop::sample::select(&b"<>/!?-[]CDAT'\" xml\na\x00"[..]), 0..60),
            depth in 0u32..4,
        ) {
            after(depth, &bytes);
        }
    }
}
