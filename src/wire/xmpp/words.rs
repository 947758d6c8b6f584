//! What we say ourselves: our header, our features, and the answers to STARTTLS.

use super::{Role, STREAMS};

/// The end of a stream (RFC 6120 section 4.4), ours or a server's; its header's prefix must be `stream`.
pub const CLOSE: &str = "</stream:stream>";
/// The wish to begin TLS (RFC 6120 section 5.4.2.1).
pub const STARTTLS: &str = "<starttls xmlns='urn:ietf:params:xml:ns:xmpp-tls'/>";
/// TLS may begin (RFC 6120 section 5.4.2.3).
pub const PROCEED: &str = "<proceed xmlns='urn:ietf:params:xml:ns:xmpp-tls'/>";
/// TLS cannot begin, and the stream ends (RFC 6120 section 5.4.2.2).
pub const FAILURE: &str = "<failure xmlns='urn:ietf:params:xml:ns:xmpp-tls'/></stream:stream>";

/// A stream header (RFC 6120 section 4.7): the response to another one, or, without an `id`, the first.
///
/// `from` and `to` are left out where there is nothing to say. All values are escaped.
pub fn header(
    role: Role,
    from: Option<&str>,
    to: Option<&str>,
    id: Option<&str>,
    lang: &str,
) -> String {
    let mut text = String::with_capacity(320);
    text.push_str("<?xml version='1.0'?><stream:stream");
    let optional = [("from", from), ("to", to), ("id", id)];
    let said = optional
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    for (name, value) in said.chain([
        ("version", "1.0"),
        ("xml:lang", lang),
        ("xmlns", role.namespace()),
        ("xmlns:stream", STREAMS),
    ]) {
        text.push(' ');
        text.push_str(name);
        text.push_str("='");
        escape(value, &mut text);
        text.push('\'');
    }
    text.push('>');
    text
}

/// The features of a stream before TLS: STARTTLS, and it is required (RFC 6120 sections 5.3.1 and 5.4.1).
pub const fn features_starttls() -> &'static str {
    "<stream:features><starttls xmlns='urn:ietf:params:xml:ns:xmpp-tls'><required/></starttls></stream:features>"
}

/// Appends `value` so that it is character data, in an element or in either kind of quotes.
///
/// What XML cannot say at all becomes U+FFFD.
pub(super) fn escape(value: &str, text: &mut String) {
    for character in value.chars() {
        match character {
            '&' => text.push_str("&amp;"),
            '<' => text.push_str("&lt;"),
            '>' => text.push_str("&gt;"),
            '\'' => text.push_str("&apos;"),
            '"' => text.push_str("&quot;"),
            '\t' => text.push_str("&#9;"),
            '\n' => text.push_str("&#10;"),
            '\r' => text.push_str("&#13;"),
            '\0'..='\x1f' | '\u{fffe}' | '\u{ffff}' => text.push('\u{fffd}'),
            _ => text.push(character),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::{Answer, Receiving};
    use super::*;

    #[test]
    fn a_header_says_what_there_is_to_say() {
        assert_eq!(
            header(Role::Client, Some("a.example"), None, Some("x1"), "en"),
            "<?xml version='1.0'?><stream:stream from='a.example' id='x1' version='1.0' xml:lang='en' \
             xmlns='jabber:client' xmlns:stream='http://etherx.jabber.org/streams'>"
        );
        assert_eq!(
            header(Role::Server, None, Some("b'<>&\"\t\u{1}"), None, "de"),
            "<?xml version='1.0'?><stream:stream to='b&apos;&lt;&gt;&amp;&quot;&#9;\u{fffd}' version='1.0' \
             xml:lang='de' xmlns='jabber:server' xmlns:stream='http://etherx.jabber.org/streams'>"
        );
    }

    #[test]
    fn our_words_are_what_they_say() {
        let said = [
            &header(Role::Client, Some("a"), Some("b@a"), Some("1"), "en"),
            features_starttls(),
            PROCEED,
            FAILURE,
        ]
        .concat();
        let mut input = said.as_bytes();
        let mut receiving = Receiving::new(1 << 10);
        let mut next = || receiving.read(&mut input).unwrap().unwrap();
        assert_eq!(next(), Answer::Header);
        let Answer::Features(features) = next() else {
            panic!("no features");
        };
        let offer = features.starttls.unwrap();
        assert!(offer.required);
        let cut = &said[offer.range.start as usize..offer.range.end as usize];
        assert!(cut.starts_with("<starttls ") && cut.ends_with("</starttls>"));
        assert_eq!(
            [next(), next(), next()],
            [Answer::Proceed, Answer::Failure, Answer::End]
        );
    }
}
