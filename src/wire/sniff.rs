//! What the first bytes of a connection look like.
//!
//! [`sniff`] looks at the opening bytes and names the protocol, as soon as they can mean only one. It reads
//! nothing, keeps nothing and allocates nothing: the caller shows it everything received so far and asks
//! again when there is more. It judges the opening alone; whether the rest is valid is for the
//! protocol's own parser to say.

/// A protocol, by the way it opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Guess {
    /// A TLS record with a handshake message (RFC 8446 section 5.1), SSL 3.0 up to TLS 1.3.
    Tls,
    /// An HTTP/1 request line (RFC 9112 section 3) or the preface of HTTP/2 (RFC 9113 section 3.4).
    Http,
    /// An XML document, hence an XMPP stream header (RFC 6120 section 4.2).
    Xmpp,
    /// An SSH identification string (RFC 4253 section 4.2).
    Ssh,
    /// A PROXY header, version 1 or 2, as a balancer in front sends it.
    Proxy,
    /// None of these.
    Unknown,
}

/// What [`sniff`] can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sniff {
    /// Decided; bytes that follow cannot change it.
    Is(Guess),
    /// All bytes so far fit more than one protocol, or there are none.
    NeedMore,
}

/// Names the protocol that `bytes`, the first of a connection, open.
///
/// The answer for a prefix is either [`Sniff::NeedMore`] or the answer for the whole, and it is
/// decided after [`SNIFF_MAX`] bytes at the latest.
pub fn sniff(bytes: &[u8]) -> Sniff {
    match matching(bytes, 0) {
        Sniff::Is(Guess::Unknown) => {}
        decided_or_pending => return decided_or_pending,
    }
    // Blank lines before a request are to be ignored (RFC 9112 section 2.2), and some XMPP clients send
    // white space first. A few bytes are tolerated, no more.
    let blank = bytes
        .iter()
        .take_while(|byte| byte.is_ascii_whitespace())
        .count();
    match bytes.get(blank) {
        _ if blank == 0 || blank > BLANK_MAX => Sniff::Is(Guess::Unknown),
        None => Sniff::NeedMore,
        Some(_) => match matching(&bytes[blank..], blank) {
            Sniff::Is(Guess::Http) => Sniff::Is(Guess::Http),
            Sniff::Is(Guess::Xmpp) => Sniff::Is(Guess::Xmpp),
            Sniff::Is(_) => Sniff::Is(Guess::Unknown),
            Sniff::NeedMore => Sniff::NeedMore,
        },
    }
}

/// Compares with every opening; after `blank` bytes of white space only those of text protocols count.
fn matching(bytes: &[u8], blank: usize) -> Sniff {
    let mut pending = false;
    for (opening, guess) in OPENINGS {
        if blank > 0 && !matches!(guess, Guess::Http | Guess::Xmpp) {
            continue;
        }
        if bytes.starts_with(opening) {
            return Sniff::Is(*guess);
        }
        pending |= opening.starts_with(bytes);
    }
    // `<?xml`, or the tag itself with whatever prefix the client likes.
    match bytes {
        [b'<'] => return Sniff::NeedMore,
        [b'<', b'?' | b'_' | b'a'..=b'z' | b'A'..=b'Z', ..] => return Sniff::Is(Guess::Xmpp),
        _ => {}
    }
    if pending {
        Sniff::NeedMore
    } else {
        Sniff::Is(Guess::Unknown)
    }
}

/// White space tolerated before the opening of a text protocol.
const BLANK_MAX: usize = 8;

/// Bytes after which [`sniff`] is decided, whatever they are.
pub const SNIFF_MAX: usize = 20;

/// Openings of a fixed form; none is a prefix of another.
const OPENINGS: &[(&[u8], Guess)] = &[
    // Content type handshake(22), then a version. Its low byte "MUST be ignored for all purposes".
    (b"\x16\x03", Guess::Tls),
    (b"GET ", Guess::Http),
    (b"HEAD ", Guess::Http),
    (b"POST ", Guess::Http),
    (b"PUT ", Guess::Http),
    (b"DELETE ", Guess::Http),
    (b"CONNECT ", Guess::Http),
    (b"OPTIONS ", Guess::Http),
    (b"TRACE ", Guess::Http),
    (b"PATCH ", Guess::Http),
    (b"PRI * HTTP/2", Guess::Http),
    (b"SSH-", Guess::Ssh),
    (b"PROXY ", Guess::Proxy),
    (b"\r\n\r\n\0\r\nQUIT\n", Guess::Proxy),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn is(bytes: &[u8]) -> Guess {
        match sniff(bytes) {
            Sniff::Is(guess) => guess,
            Sniff::NeedMore => panic!("{bytes:?} is still undecided"),
        }
    }

    #[test]
    fn each_protocol_is_known_by_its_opening() {
        assert_eq!(is(b"\x16\x03\x01\x02\x00\x01"), Guess::Tls);
        assert_eq!(is(b"\x16\x03\x00"), Guess::Tls);
        assert_eq!(is(b"GET / HTTP/1.1\r\n"), Guess::Http);
        assert_eq!(is(b"OPTIONS * HTTP/1.1\r\n"), Guess::Http);
        assert_eq!(is(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), Guess::Http);
        assert_eq!(is(b"<?xml version='1.0'?>"), Guess::Xmpp);
        assert_eq!(is(b"<stream:stream to='a'>"), Guess::Xmpp);
        assert_eq!(is(b"SSH-2.0-x\r\n"), Guess::Ssh);
        assert_eq!(is(b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\n"), Guess::Proxy);
        assert_eq!(is(b"\r\n\r\n\0\r\nQUIT\n\x21"), Guess::Proxy);
    }

    #[test]
    fn what_fits_nothing_is_unknown_at_the_first_byte_that_shows_it() {
        for bytes in [
            &b"\0"[..],
            b"\x16\x02",
            b"\x80\x2e\x01\x03\x01",
            b"get ",
            b"GETX",
            b"<\0",
            b"\x15\x03",
        ] {
            assert_eq!(is(bytes), Guess::Unknown, "{bytes:?}");
        }
        assert_eq!(sniff(b""), Sniff::NeedMore);
    }

    #[test]
    fn a_little_white_space_may_precede_text_but_nothing_else() {
        assert_eq!(is(b"\r\nGET / HTTP/1.1\r\n"), Guess::Http);
        assert_eq!(is(b"\n <stream:stream"), Guess::Xmpp);
        assert_eq!(is(b"\r\n\x16\x03\x01"), Guess::Unknown);
        assert_eq!(is(b"\r\n\r\n\r\nGET / "), Guess::Http);
        assert_eq!(is(b" SSH-2.0"), Guess::Unknown);
        assert_eq!(is(&[b' '; BLANK_MAX + 1]), Guess::Unknown);
        assert_eq!(sniff(&[b' '; BLANK_MAX]), Sniff::NeedMore);
    }

    #[test]
    fn no_opening_hides_another_and_all_are_decided_within_the_bound() {
        for (i, (opening, _)) in OPENINGS.iter().enumerate() {
            assert!(opening.len() + BLANK_MAX <= SNIFF_MAX || opening.len() <= SNIFF_MAX);
            for (j, (other, _)) in OPENINGS.iter().enumerate() {
                assert!(
                    i == j || !other.starts_with(opening),
                    "{opening:?} hides {other:?}"
                );
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn more_bytes_never_change_a_decision(
            opening in 0..OPENINGS.len(),
            blank in proptest::collection::vec(proptest::sample::select(&b" \r\n\t"[..]), 0..10),
            keep in 0usize..16,
            tail in proptest::collection::vec(proptest::num::u8::ANY, 0..24),
        ) {
            let opening = OPENINGS[opening].0;
            let bytes = [&blank, &opening[..keep.min(opening.len())], &tail].concat();
            let whole = sniff(&bytes);
            for end in 0..bytes.len() {
                let prefix = sniff(&bytes[..end]);
                assert!(prefix == Sniff::NeedMore || prefix == whole, "{end} of {bytes:?}: {prefix:?}, then {whole:?}");
            }
            if bytes.len() >= SNIFF_MAX {
                assert_ne!(whole, Sniff::NeedMore);
            }
        }
    }
}
