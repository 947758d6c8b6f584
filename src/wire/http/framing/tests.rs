//! The corpus: for each rule what breaks it, and what looks alike and does not.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

const CAPS: Caps = Caps {
    head_size: 16 << 10,
    headers: 100,
    underscores: false,
};

/// What a stream comes to: whether it ends between messages, in a tunnel or somewhere else, or a fault and the place of
/// the first byte that is not to be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Boundary,
    Head,
    Body,
    Tunnel,
    Fault(Fault, usize),
}
use End::{Body, Boundary, Tunnel};

/// In pieces of this size. Of what is at fault, `before` tells where the unit begins or the piece, whichever is later.
fn in_pieces(mut framing: Framing, bytes: &[u8], size: usize) -> (End, usize) {
    let mut begins = 0;
    for piece in bytes.chunks(size) {
        if let Err(violation) = framing.look(piece) {
            assert!(violation.before < piece.len());
            let again = Violation {
                before: 0,
                ..violation
            };
            assert_eq!(framing.look(b"GET / HTTP/1.1\r\n"), Err(again));
            assert!(!framing.is_tunnel() && !framing.in_head() && !framing.at_boundary());
            return (
                End::Fault(violation.kind, begins + violation.before),
                begins,
            );
        }
        begins += piece.len();
    }
    let end = if framing.at_boundary() {
        Boundary
    } else if framing.is_tunnel() {
        Tunnel
    } else if framing.in_head() {
        End::Head
    } else {
        Body
    };
    (end, 0)
}

/// The same in pieces of all small sizes.
#[track_caller]
fn judged(framing: impl Fn() -> Framing, bytes: &[u8]) -> End {
    let (whole, _) = in_pieces(framing(), bytes, bytes.len().max(1));
    for size in (1..10).chain([bytes.len() / 2 + 1]) {
        let (end, piece) = in_pieces(framing(), bytes, size);
        let expected = match whole {
            End::Fault(kind, at) => End::Fault(kind, at.max(piece)),
            whole => whole,
        };
        assert_eq!(end, expected, "by {size}: {}", bytes.escape_ascii());
    }
    whole
}

#[track_caller]
fn request(bytes: impl AsRef<[u8]>) -> End {
    judged(|| Framing::requests(CAPS), bytes.as_ref())
}

/// What an answer to a GET comes to, or to a HEAD, or to the wish for an upgrade.
#[track_caller]
fn answer_to(method_is_head: bool, upgrade: bool, bytes: impl AsRef<[u8]>) -> End {
    let framing = || {
        let mut framing = Framing::answers(CAPS);
        framing.expect(method_is_head, upgrade);
        framing
    };
    judged(framing, bytes.as_ref())
}

#[track_caller]
fn answer(bytes: impl AsRef<[u8]>) -> End {
    answer_to(false, false, bytes)
}

/// A request with these header lines beside Host.
fn with(lines: &str) -> String {
    format!("POST /p HTTP/1.1\r\nHost: a.example\r\n{lines}\r\n")
}

#[test]
fn it_is_small() {
    assert!(size_of::<Framing>() <= 112, "{}", size_of::<Framing>());
}

#[test]
fn sound_requests_pass() {
    for bytes in [
        "",
        "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /a%20b?c=d&e={f}|\"g\" HTTP/1.1\r\nhOST:a.example:8443\t \r\nX-Y:\r\nZ: \t a\tb \u{ff}\r\n\r\n",
        "M-SEARCH /c HTTP/1.1\r\nHost: [2001:db8::1]:5281\r\nAccept: */*\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
        "OPTIONS /a HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET hTTp://A.example:80/p?q HTTP/1.1\r\nHost: a.EXAMPLE:80\r\n\r\n",
        "GET https://a.example HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "GET http://a.example?q HTTP/1.0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 000\r\nUpgrade: websocket\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nGET\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked \r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\ntransfer-encoding:chunked\r\n\r\n\
         5;a=\"b c\";d\r\n\r\n0\r\n\r\nA\r\n0123456789\r\n000\r\nX-Sum: 1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Lengths: x\r\nTransfer-Encodin: x\r\nHosts: @\r\n\r\n",
    ] {
        let end = if bytes.contains("Upgrade") {
            Tunnel
        } else {
            Boundary
        };
        assert_eq!(request(bytes), end, "{bytes:?}");
    }
}

#[test]
fn a_fault_has_a_near_miss_that_is_none() {
    use Fault::*;

    let many = |line: &str, count: usize| line.repeat(count);
    for (kind, bad, good) in [
        // Lines.
        (BareLf, with("X: y\n"), with("X: y\r\n")),
        (
            BareLf,
            "GET / HTTP/1.1\nHost: a\r\n\r\n".to_owned(),
            with(""),
        ),
        (BareLf, "GET /\n".to_owned(), with("")),
        (BareLf, "\nGET / HTTP/1.1\r\n".to_owned(), with("")),
        (BareLf, with("X:\n y\r\n"), with("X: \r\n")),
        (BareLf, with("X\n"), with("X:\r\n")),
        (
            BareLf,
            with("Content-Length: 1\n"),
            with("Content-Length: 0\r\n"),
        ),
        (
            BareLf,
            with("Content-Length: 1 \n"),
            with("Content-Length: 0 \r\n"),
        ),
        (
            BareLf,
            format!("{}\n", &with("")[..with("").len() - 2]),
            with(""),
        ),
        (BareCr, with("X: a\rb\r\n"), with("X: ab\r\n")),
        (BareCr, with("X: a\r\r\n"), with("X: a\r\n")),
        (BareCr, "\rGET / HTTP/1.1\r\n\r\n".to_owned(), with("")),
        (
            BareCr,
            format!("{}X", &with("")[..with("").len() - 1]),
            with(""),
        ),
        (BlankLines, many("\r\n", 5), many("\r\n", 4)),
        // The request line.
        (
            RequestLine,
            "GET  / HTTP/1.1\r\n".to_owned().replace("  ", "\t"),
            with(""),
        ),
        (Target, "GET  / HTTP/1.1\r\n".to_owned(), with("")),
        (RequestLine, "GET /  HTTP/1.1\r\n".to_owned(), with("")),
        (RequestLine, "GET / HTTP/1.1 \r\n".to_owned(), with("")),
        (RequestLine, "GET / HTTP/1.10\r\n".to_owned(), with("")),
        (RequestLine, "GET / http/1.1\r\n".to_owned(), with("")),
        (RequestLine, " GET / HTTP/1.1\r\n".to_owned(), with("")),
        (RequestLine, "G(T / HTTP/1.1\r\n".to_owned(), with("")),
        (RequestLine, "\x16\x03\x01".to_owned(), with("")),
        (Version, "GET / HTTP/2.0\r\n".to_owned(), with("")),
        (Version, "GET / HTTP/1.2\r\n".to_owned(), with("")),
        (Version, "GET / HTTP/0.9\r\n".to_owned(), with("")),
        (Target, "GET /\r\n".to_owned(), with("")),
        (Target, "GET /a\tb HTTP/1.1\r\n".to_owned(), with("")),
        (Target, "GET /a\x7f HTTP/1.1\r\n".to_owned(), with("")),
        (Target, "GET /\u{e9} HTTP/1.1\r\n".to_owned(), with("")),
        (Target, "GET /a#b HTTP/1.1\r\n".to_owned(), with("")),
        (Target, "GET a HTTP/1.1\r\n".to_owned(), with("")),
        (Target, "GET ?a HTTP/1.1\r\n".to_owned(), with("")),
        (
            Target,
            "GET * HTTP/1.1\r\n".to_owned(),
            "OPTIONS * HTTP/1.0\r\n\r\n".to_owned(),
        ),
        (
            Target,
            "OPTIONS *a HTTP/1.1\r\n".to_owned(),
            "OPTIONS * HTTP/1.0\r\n\r\n".to_owned(),
        ),
        (
            Target,
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
            with(""),
        ),
        (
            Target,
            "GET ftp://a/ HTTP/1.0\r\n\r\n".to_owned(),
            "GET http://a/ HTTP/1.0\r\n\r\n".to_owned(),
        ),
        (
            Target,
            "GET httpss://a/ HTTP/1.0\r\n\r\n".to_owned(),
            "GET https://a/ HTTP/1.0\r\n\r\n".to_owned(),
        ),
        (
            Target,
            "GET http:/a/ HTTP/1.0\r\n\r\n".to_owned(),
            "GET http://a/ HTTP/1.0\r\n\r\n".to_owned(),
        ),
        (
            Target,
            "GET http:///a HTTP/1.0\r\n\r\n".to_owned(),
            "GET http://a/ HTTP/1.0\r\n\r\n".to_owned(),
        ),
        (
            Target,
            "GET http://u@a/ HTTP/1.0\r\n\r\n".to_owned(),
            "GET http://a/u@a HTTP/1.0\r\n\r\n".to_owned(),
        ),
        (
            Target,
            "GET http://a:/ HTTP/1.0\r\n\r\n".to_owned(),
            "GET http://a:1/ HTTP/1.0\r\n\r\n".to_owned(),
        ),
        (
            Target,
            format!("GET http://{}/", "a".repeat(262)),
            format!("GET http://{} HTTP/1.0\r\n\r\n", "a".repeat(261)),
        ),
        (
            Connect,
            "CONNECT a:443 HTTP/1.1\r\n".to_owned(),
            with("").replace("POST", "CONNECTS"),
        ),
        (
            Connect,
            "connect a:443 HTTP/1.1\r\n".to_owned(),
            with("").replace("POST", "connec"),
        ),
        // Header lines.
        (SpaceBeforeColon, with("X : y\r\n"), with("X: y\r\n")),
        (
            SpaceBeforeColon,
            with("Transfer-Encoding\t: chunked\r\n"),
            with("X:\ty\r\n"),
        ),
        (ObsFold, with("X: y\r\n z\r\n"), with("X: y\r\nz:\r\n")),
        (ObsFold, with("X: y\r\n\t\r\n"), with("X: y\r\n")),
        (
            ObsFold,
            "GET / HTTP/1.1\r\n Host: a\r\n\r\n".to_owned(),
            with(""),
        ),
        (EmptyName, with(": y\r\n"), with("X: y\r\n")),
        (HeaderName, with("X\r\n"), with("X:\r\n")),
        (HeaderName, with("X\0: y\r\n"), with("X: y\r\n")),
        (HeaderName, with("\u{e9}: y\r\n"), with("X: \u{e9}\r\n")),
        (
            HeaderName,
            with("X(: y\r\n"),
            with("X!#$%&'*+-.^`|~0: ()\r\n"),
        ),
        (Control, with("X: a\0b\r\n"), with("X: a\tb\r\n")),
        (
            Control,
            with("X: 0123456\x1f\r\n"),
            with("X: 0123456 7 \r\n"),
        ),
        (Control, with("X: 0123456\x7f\r\n"), with("X: 0123456~\r\n")),
        (
            Control,
            with("X: 01234567\x0b01234567\r\n"),
            with("X: 01234567!01234567\r\n"),
        ),
        (
            Underscore,
            with("Content_Length: 5\r\n"),
            with("X-Y: a_b\r\n"),
        ),
        (Underscore, with("_: 5\r\n"), with("-: a_b\r\n")),
        (
            TooManyHeaders,
            with(&many("X: y\r\n", 100)),
            with(&many("X: y\r\n", 99)),
        ),
        (
            RequestLineTooLong,
            format!("GET /{}", "a".repeat(8 << 10)),
            with("").replace("/p", &format!("/{}", "a".repeat((8 << 10) - 17))),
        ),
        (RequestLineTooLong, "A".repeat((8 << 10) + 1), with("")),
        (
            HeadTooLarge,
            with(&format!("X: {}\r\n", "y".repeat(16 << 10))),
            with(&format!("X: {}\r\n", "y".repeat((16 << 10) - 42))),
        ),
        // Length.
        (
            ContentLength,
            with("Content-Length:\r\n"),
            with("Content-Length: 0\r\n"),
        ),
        (
            ContentLength,
            with("Content-Length: \t \r\n"),
            with("Content-Length: \t0 \r\n"),
        ),
        (
            ContentLength,
            with("Content-Length: +0\r\n"),
            with("Content-Length: 0\r\n"),
        ),
        (
            ContentLength,
            with("Content-Length: -1\r\n"),
            with("Content-Length: 0\r\n"),
        ),
        (
            ContentLength,
            with("Content-Length: 0x0\r\n"),
            with("Content-Length: 00\r\n"),
        ),
        (
            ContentLength,
            with("Content-Length: 0, 0\r\n"),
            with("Content-Length: 0 \r\n"),
        ),
        (
            ContentLength,
            with("Content-Length: 0 0\r\n"),
            with("Content-Length: 0 \r\n"),
        ),
        (
            ContentLength,
            with("Content-Length: 0.0\r\n"),
            with("Content-Length: 0\r\n"),
        ),
        (
            Control,
            with("Content-Length: 0\x0b\r\n"),
            with("Content-Length: 0\t\r\n"),
        ),
        (
            Control,
            with("Content-Length: 0 \x0b\r\n"),
            with("Content-Length: 0 \t\r\n"),
        ),
        (
            ContentLength,
            with("Content-Length: 0000000000000000000\r\n"),
            with("Content-Length: 000000000000000000\r\n"),
        ),
        (
            ContentLengthRepeated,
            with("Content-Length: 0\r\nContent-Length: 0\r\n"),
            with("Content-Length: 0\r\nContent-Lengt: 0\r\n"),
        ),
        (
            TransferEncoding,
            with("Transfer-Encoding: gzip, chunked\r\n"),
            with("TE: gzip, chunked\r\n"),
        ),
        (
            TransferEncoding,
            with("Transfer-Encoding: chunked, identity\r\n"),
            with("X: chunked, identity\r\n"),
        ),
        (
            TransferEncoding,
            with("Transfer-Encoding: xchunked\r\n"),
            with("X: chunked\r\n"),
        ),
        (
            TransferEncoding,
            with("Transfer-Encoding: chunkedx\r\n"),
            with("X: chunked\r\n"),
        ),
        (
            TransferEncoding,
            with("Transfer-Encoding: chunk\r\n"),
            with("X: chunked\r\n"),
        ),
        (
            TransferEncoding,
            with("Transfer-Encoding: chunked chunked\r\n"),
            with("X: chunked\r\n"),
        ),
        (
            TransferEncoding,
            with("Transfer-Encoding: \"chunked\"\r\n"),
            with("X: chunked\r\n"),
        ),
        (
            TransferEncoding,
            with("Transfer-Encoding: identity\r\n"),
            with("X: chunked\r\n"),
        ),
        (
            TransferEncoding,
            with("Transfer-Encoding:\r\n"),
            with("X: chunked\r\n"),
        ),
        (
            Control,
            with("Transfer-Encoding: \x0bchunked\r\n"),
            with("X: chunked\r\n"),
        ),
        (
            Control,
            with("Transfer-Encoding: chunked\x0c\r\n"),
            with("X: chunked\r\n"),
        ),
        (
            TransferEncodingRepeated,
            with("Transfer-Encoding: chunked\r\ntransfer-encoding: chunked\r\n"),
            with(""),
        ),
        (
            TransferEncodingForbidden,
            "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
            "POST / HTTP/1.0\r\nTE: chunked\r\n\r\n".to_owned(),
        ),
        (
            LengthAndEncoding,
            with("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n"),
            with("Content-Length: 0\r\nTE: chunked\r\n"),
        ),
        (
            LengthAndEncoding,
            with("Transfer-Encoding: chunked\r\nContent-Length: 0\r\n"),
            with(""),
        ),
        (
            UpgradeWithBody,
            with("Upgrade: websocket\r\nContent-Length: 1\r\n"),
            with("Upgrade: websocket\r\nContent-Length: 0\r\n"),
        ),
        (
            UpgradeWithBody,
            with("Transfer-Encoding: chunked\r\nUPGRADE: h2c\r\n"),
            with("Upgrade: h2c\r\n"),
        ),
        // Host.
        (
            HostMissing,
            "GET / HTTP/1.1\r\n\r\n".to_owned(),
            "GET / HTTP/1.0\r\n\r\n".to_owned(),
        ),
        (
            HostMissing,
            "GET http://a/ HTTP/1.1\r\n\r\n".to_owned(),
            "GET http://a/ HTTP/1.0\r\n\r\n".to_owned(),
        ),
        (
            HostRepeated,
            with("Host: a.example\r\n"),
            with("Hos: a.example\r\n"),
        ),
        (
            HostRepeated,
            "GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n".to_owned(),
            "GET / HTTP/1.0\r\nHost: a\r\n\r\n".to_owned(),
        ),
        (
            HostMismatch,
            "GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n".to_owned(),
            "GET http://a/ HTTP/1.1\r\nHost: A\r\n\r\n".to_owned(),
        ),
        (
            HostMismatch,
            "GET http://a/ HTTP/1.1\r\nHost: ab\r\n\r\n".to_owned(),
            "GET http://ab/ HTTP/1.1\r\nHost: ab\r\n\r\n".to_owned(),
        ),
        (
            HostMismatch,
            "GET http://ab/ HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
            "GET http://a/b HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        ),
        (
            HostMismatch,
            "GET http://ab/ HTTP/1.1\r\nHost: a \r\n\r\n".to_owned(),
            "GET http://a HTTP/1.1\r\nHost: a \r\n\r\n".to_owned(),
        ),
        (
            HostMismatch,
            "GET http://a/ HTTP/1.1\r\nHost: a:80\r\n\r\n".to_owned(),
            "GET http://a:80/ HTTP/1.1\r\nHost: a:80\r\n\r\n".to_owned(),
        ),
    ] {
        let End::Fault(found, _) = request(&bad) else {
            panic!("{kind:?} passes: {bad:?}");
        };
        assert_eq!(found, kind, "{bad:?}");
        let end = if kind == UpgradeWithBody {
            Tunnel
        } else {
            Boundary
        };
        assert_eq!(request(&good), end, "{good:?}");
    }
}

#[test]
fn a_host_is_a_name_or_an_address_with_or_without_a_port() {
    let long = "a".repeat(AUTHORITY_MAX);
    for good in [
        "a",
        "A-1.b_c~.",
        "192.0.2.1:1",
        "a:65535",
        "[::1]",
        "[::ffff:192.0.2.1]:80",
        &long,
    ] {
        let bytes = format!("GET / HTTP/1.1\r\nHost: {good}\t\r\n\r\n");
        assert_eq!(request(bytes), Boundary, "{good}");
    }
    let long = "a".repeat(AUTHORITY_MAX + 1);
    for bad in [
        "",
        " ",
        "a b",
        "a,b",
        "a, b",
        "u@a",
        "a/b",
        "a:",
        ":80",
        "a:65536",
        "a:99999",
        "[::1]:70000",
        "a:123456",
        "a:8x",
        "a:1:2",
        "::1",
        "[]",
        "[::1",
        "[::g]",
        "[::1]a",
        "[::1%25x]",
        "a%2eb",
        "\u{e9}",
        "a;b",
        "http://a",
        "a\\b",
        "a?b",
        "a#b",
        "\"a\"",
        "*",
        &long,
    ] {
        let bytes = format!("GET / HTTP/1.1\r\nHost: {bad}\r\n\r\n");
        assert_eq!(request(bytes), End::Fault(Fault::Host, 0), "{bad}");
    }
    let bytes = "GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n";
    assert_eq!(request(bytes), End::Fault(Fault::Control, 0));
}

#[test]
fn chunks_are_taken_at_their_word() {
    let head = with("Transfer-Encoding: chunked\r\n");
    let begins = head.len();
    let extension = format!("5;{}\r\nabcde\r\n0\r\n\r\n", "x".repeat(256));
    for good in [
        "0\r\n\r\n",
        "1\r\n\n\r\n0\r\n\r\n",
        "00000000000000a\r\n0123456789\r\n0\r\n\r\n",
        "1;\r\nx\r\n0;a\r\n\r\n",
        "0\r\nA: b\r\nContent-Type: \r\nUpgrade: x\r\n\r\n",
        &extension,
    ] {
        assert_eq!(request(format!("{head}{good}")), Boundary, "{good:?}");
    }

    use Fault::*;
    let extension = format!("5;{}", "x".repeat(CHUNK_LINE_MAX));
    let trailers = format!("0\r\n{}", "A: b\r\n".repeat(101));
    let trailer = format!("0\r\nA: {}", "b".repeat(16 << 10));
    for (kind, bad, at) in [
        (ChunkSize, "\r\n", 0),
        (ChunkSize, ";a\r\n", 0),
        (ChunkSize, " 1\r\nx\r\n", 0),
        (ChunkSize, "1 \r\nx\r\n", 0),
        (ChunkSize, "1 ;a\r\nx\r\n", 0),
        (ChunkSize, "0x1\r\nx\r\n", 0),
        (ChunkSize, "+1\r\nx\r\n", 0),
        (ChunkSize, "-1\r\nx\r\n", 0),
        (ChunkSize, "g\r\n", 0),
        (ChunkSize, "1_0\r\n", 0),
        (ChunkSize, "0000000000000001\r\nx\r\n", 0),
        (ChunkSize, "ffffffffffffffff\r\n", 0),
        (BareLf, "1\nx\r\n", 0),
        (BareLf, "1;a\nx\r\n", 0),
        (BareCr, "1\rx\r\n", 0),
        (BareCr, "1;a\rx\r\n", 0),
        (ChunkExtension, "1;a\tb\r\nx\r\n", 0),
        (ChunkExtension, "1;a\0\r\nx\r\n", 0),
        (ChunkExtension, &extension, 0),
        (ChunkEnd, "1\r\nxy\r\n", 4),
        (BareLf, "1\r\nx\n0\r\n\r\n", 4),
        (BareCr, "1\r\nx\rx", 4),
        (ChunkSize, "1\r\nx\r\n\r\n", 6),
        (ChunkSize, "1\r\nx\r\ny\r\n", 6),
        (Trailer, "0\r\nContent-Length: 0\r\n\r\n", 0),
        (
            Trailer,
            "0\r\nX: y\r\nTransfer-Encoding: chunked\r\n\r\n",
            0,
        ),
        (Trailer, "1\r\nx\r\n0\r\nHost: a\r\n\r\n", 6),
        (ObsFold, "0\r\n X: y\r\n\r\n", 0),
        (SpaceBeforeColon, "0\r\nX : y\r\n\r\n", 0),
        (Underscore, "0\r\nX_: y\r\n\r\n", 0),
        (SpaceBeforeColon, "0\r\nGET / HTTP/1.1\r\n", 0),
        (BareLf, "0\r\n\n", 0),
        (BareCr, "0\r\n\rx", 0),
        (TooManyHeaders, &trailers, 0),
        (HeadTooLarge, &trailer, 0),
    ] {
        let end = request(format!("{head}{bad}"));
        assert_eq!(end, End::Fault(kind, begins + at), "{bad:?}");
    }
}

#[test]
fn what_is_whole_before_a_fault_may_pass() {
    let whole = [
        with(""),
        format!("{}hello", with("Content-Length: 5\r\n")),
        format!(
            "{}1\r\nx\r\n0\r\nA: b\r\n\r\n",
            with("Transfer-Encoding: chunked\r\n")
        ),
    ];
    let all = whole.concat();
    assert_eq!(request(&all), Boundary);
    assert_eq!(request(format!("{all}{all}")), Boundary);
    for (bad, kind) in [
        (with("X : y\r\n"), Fault::SpaceBeforeColon),
        ("\u{e9}".to_owned(), Fault::RequestLine),
        (
            with("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n"),
            Fault::LengthAndEncoding,
        ),
    ] {
        assert_eq!(
            request(format!("{all}{bad}{all}")),
            End::Fault(kind, all.len())
        );
        // Empty lines belong to nothing.
        assert_eq!(
            request(format!("{all}\r\n{bad}")),
            End::Fault(kind, all.len() + 2)
        );
    }
    // A body of the length announced is all that passes: the rest is a request of its own.
    let smuggled = format!(
        "{}hello{}",
        with("Content-Length: 5\r\n"),
        "G\0T / HTTP/1.1\r\n"
    );
    assert_eq!(
        request(&smuggled),
        End::Fault(Fault::RequestLine, smuggled.len() - 16)
    );
}

#[test]
fn a_deadline_knows_what_it_waits_for() {
    let mut framing = Framing::requests(CAPS);
    let chunked = with("Transfer-Encoding: chunked\r\n");
    for (bytes, end) in [
        ("", Boundary),
        ("\r", End::Head),
        ("\n", Boundary),
        ("G", End::Head),
        ("ET / HTTP/1.1\r\nHost: a\r\n", End::Head),
        ("Content-Length: 2\r\n\r", End::Head),
        ("\n", Body),
        ("1", Body),
        ("2", Boundary),
        (&chunked, Body),
        ("1", Body),
        ("\r\n", Body),
        ("x", Body),
        ("\r", Body),
        ("\n", Body),
        ("0;a", Body),
        ("\r\n", Body),
        ("X: y\r\n", Body),
        ("\r", Body),
        ("\n", Boundary),
        ("G", End::Head),
    ] {
        framing.look(bytes.as_bytes()).unwrap();
        assert_eq!(framing.at_boundary(), end == Boundary, "{bytes:?}");
        assert_eq!(framing.in_head(), end == End::Head, "{bytes:?}");
    }
}

#[test]
fn underscores_pass_where_they_may() {
    let caps = Caps {
        underscores: true,
        ..CAPS
    };
    let bytes = with("a_b: c\r\n_: d\r\nContent_Length: x\r\n");
    assert_eq!(
        judged(|| Framing::requests(caps), bytes.as_bytes()),
        Boundary
    );
}

#[test]
fn a_small_cap_holds_to_the_byte() {
    let bytes = with("X: y\r\n");
    let headers = |headers| {
        let caps = Caps { headers, ..CAPS };
        judged(|| Framing::requests(caps), bytes.as_bytes())
    };
    assert_eq!(headers(2), Boundary);
    assert_eq!(headers(1), End::Fault(Fault::TooManyHeaders, 0));
    for head_size in 0..=bytes.len() {
        let caps = Caps { head_size, ..CAPS };
        let expected = match head_size {
            0..18 => End::Fault(Fault::RequestLineTooLong, 0),
            _ if head_size < bytes.len() => End::Fault(Fault::HeadTooLarge, 0),
            _ => Boundary,
        };
        assert_eq!(
            judged(|| Framing::requests(caps), bytes.as_bytes()),
            expected,
            "{head_size}"
        );
    }
}

#[test]
fn a_tunnel_is_not_looked_into() {
    let mut framing = Framing::requests(CAPS);
    framing
        .look(with("Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n").as_bytes())
        .unwrap();
    assert!(framing.is_tunnel());
    framing.look(b"\x81\x05hello\n\n\r").unwrap();
    assert!(framing.is_tunnel() && !framing.at_boundary() && !framing.in_head());
}

#[test]
fn answers_have_the_bodies_that_their_requests_and_statuses_say() {
    let ok = "HTTP/1.1 200 OK\r\n";
    for (head, end) in [
        (format!("{ok}Content-Length: 0\r\n\r\n"), Boundary),
        (format!("{ok}Content-Length: 3\r\n\r\n\0\r\n"), Boundary),
        (format!("{ok}Content-Length: 3\r\n\r\n\0\r"), Body),
        (
            format!("{ok}Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"),
            Boundary,
        ),
        (format!("{ok}\r\n"), Body),
        (format!("{ok}\r\nHTTP/1.1 200 OK\r\nX : \n\0"), Body),
        (
            format!("{ok}Host: a b\r\nHost:\r\nUpgrade: h2c\r\nContent-Length: 1\r\n\r\nx"),
            Boundary,
        ),
        ("HTTP/1.0 200\r\n\r\nx".to_owned(), Body),
        (
            "HTTP/1.1 999 \u{e9}\t!\r\nContent-Length: 0\r\n\r\n".to_owned(),
            Boundary,
        ),
        ("HTTP/1.1 204 \r\n\r\n".to_owned(), Boundary),
        (
            "HTTP/1.1 204 \r\nContent-Length: 7\r\n\r\n".to_owned(),
            Boundary,
        ),
        (
            "HTTP/1.1 304 N\r\nContent-Length: 7\r\n\r\n".to_owned(),
            Boundary,
        ),
        (
            "HTTP/1.1 304 N\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
            Boundary,
        ),
        ("HTTP/1.1 100 C\r\n\r\n".to_owned(), Boundary),
    ] {
        assert_eq!(answer(&head), end, "{head:?}");
    }
    for lines in [
        "",
        "Content-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\n",
    ] {
        assert_eq!(answer_to(true, false, format!("{ok}{lines}\r\n")), Boundary);
    }
}

#[test]
fn answers_are_held_to_the_rules() {
    use Fault::*;
    let ok = "HTTP/1.1 200 OK\r\n";
    for (kind, bad) in [
        (StatusLine, "\r\nHTTP/1.1 200 OK\r\n".to_owned()),
        (StatusLine, "HTTP/1.1  200 OK\r\n".to_owned()),
        (StatusLine, "HTTP/1.1 20 OK\r\n".to_owned()),
        (StatusLine, "HTTP/1.1 2000 OK\r\n".to_owned()),
        (StatusLine, "HTTP/1.1 099 OK\r\n".to_owned()),
        (StatusLine, "HTTP/1.1\t200 OK\r\n".to_owned()),
        (StatusLine, "HTTP/1.1\r\n".to_owned()),
        (StatusLine, "ICY 200 OK\r\n".to_owned()),
        (Version, "HTTP/2.0 200 OK\r\n".to_owned()),
        (Version, "HTTP/1.2 200 OK\r\n".to_owned()),
        (BareLf, "HTTP/1.1 200 OK\n".to_owned()),
        (BareLf, "HTTP/1.1 200\n".to_owned()),
        (Control, "HTTP/1.1 200 O\0K\r\n".to_owned()),
        (
            LengthAndEncoding,
            format!("{ok}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ),
        (
            ContentLengthRepeated,
            format!("{ok}Content-Length: 1\r\nContent-Length: 1\r\n\r\n"),
        ),
        (ContentLength, format!("{ok}Content-Length: 1, 1\r\n\r\n")),
        (
            TransferEncoding,
            format!("{ok}Transfer-Encoding: gzip\r\n\r\n"),
        ),
        (
            TransferEncodingForbidden,
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
        ),
        (
            TransferEncodingForbidden,
            "HTTP/1.1 204 N\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
        ),
        (
            TransferEncodingForbidden,
            "HTTP/1.1 103 E\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
        ),
        (
            ContentLengthForbidden,
            "HTTP/1.1 100 C\r\nContent-Length: 0\r\n\r\n".to_owned(),
        ),
        (
            UnaskedUpgrade,
            "HTTP/1.1 101 S\r\nUpgrade: x\r\n\r\n".to_owned(),
        ),
        (ObsFold, format!("{ok}X: y\r\n z\r\n\r\n")),
        (
            HeadTooLarge,
            format!("HTTP/1.1 200 {}", "x".repeat(16 << 10)),
        ),
        (Underscore, format!("{ok}a_b: c\r\n\r\n")),
    ] {
        assert_eq!(answer(&bad), End::Fault(kind, 0), "{bad:?}");
    }
    for (kind, whole, extra) in [
        (ExtraBytes, format!("{ok}Content-Length: 1\r\n\r\nx"), "y"),
        (
            ExtraBytes,
            format!("{ok}Content-Length: 1\r\n\r\nx"),
            "\r\n",
        ),
        (
            ExtraBytes,
            "HTTP/1.1 204 N\r\nContent-Length: 1\r\n\r\n".to_owned(),
            "x",
        ),
        (
            ExtraBytes,
            format!("{ok}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            ok,
        ),
        (
            Interim,
            "HTTP/1.1 102 P\r\n\r\n".repeat(16),
            "HTTP/1.1 102 P\r\n\r\n",
        ),
        (
            ChunkSize,
            format!("{ok}Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"),
            "x\r\n",
        ),
    ] {
        assert_eq!(
            answer(format!("{whole}{extra}")),
            End::Fault(kind, whole.len()),
            "{whole:?}"
        );
    }
    assert_eq!(
        judged(|| Framing::answers(CAPS), b"H"),
        End::Fault(ExtraBytes, 0)
    );
    let head = format!("{ok}Content-Length: 1\r\n\r\n");
    assert_eq!(
        answer_to(true, false, format!("{head}x")),
        End::Fault(ExtraBytes, head.len())
    );
}

#[test]
fn an_upgrade_that_was_asked_for_ends_the_judgement() {
    let switch = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n";
    assert_eq!(answer_to(false, true, switch), Tunnel);
    assert_eq!(
        answer_to(false, true, format!("{switch}\x01\x05hello\n")),
        Tunnel
    );
    let early = format!("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n{switch}");
    assert_eq!(answer_to(false, true, early), Tunnel);
    let refused = "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno";
    assert_eq!(answer_to(false, true, refused), Boundary);
    let extra = End::Fault(Fault::ExtraBytes, refused.len());
    assert_eq!(answer_to(false, true, format!("{refused}{switch}")), extra);
}

#[test]
fn each_request_has_one_final_answer() {
    let mut framing = Framing::answers(CAPS);
    for method_is_head in [false, true, false] {
        framing.expect(method_is_head, false);
        for _ in 0..16 {
            framing.look(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
            assert!(framing.at_boundary());
        }
        framing
            .look(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n")
            .unwrap();
        assert_eq!(framing.at_boundary(), method_is_head);
        if !method_is_head {
            framing.look(b"x").unwrap();
        }
        assert!(framing.at_boundary());
    }
    let violation = framing.look(b"x").unwrap_err();
    assert_eq!(violation.to_string(), "extra_bytes");
    assert_eq!(violation.kind.status(), 502);
}

#[test]
fn every_fault_has_a_status_for_the_client() {
    for (bytes, status) in [
        (&b"GET / HTTP/1.1\n"[..], 400),
        (b"CONNECT a:1 HTTP/1.1\r\n", 405),
        (&[b'A'; (8 << 10) + 1], 414),
        (with(&"X: y\r\n".repeat(100)).as_bytes(), 431),
        (
            with(&format!("X: {}", "y".repeat(16 << 10))).as_bytes(),
            431,
        ),
        (with("Transfer-Encoding: br\r\n").as_bytes(), 501),
        (b"GET / HTTP/3.0\r\n", 505),
    ] {
        let violation = Framing::requests(CAPS).look(bytes).unwrap_err();
        assert_eq!(violation.kind.status(), status, "{violation}");
    }
}

/// Pieces of messages, sound and not, that find each other often enough.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        &b"GET / HTTP/1.1\r\n"[..],
        b"GET http://a/ HTTP/1.1\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 101 S\r\n",
        b"HTTP/1.1 100 C\r\n\r\n",
        b"Host: a\r\n",
        b"Content-Length: 3\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Upgrade: x\r\n",
        b"X: y\r\n",
        b"\r\n",
        b"\r\n\r\n",
        b"abc",
        b"3\r\nabc\r\n",
        b"0\r\n\r\n",
        b"0\r\n",
        b"3;a\r\n",
        b" ",
        b"\n",
        b"\r",
        b":",
        b"\0",
        b"_",
        b"OPTIONS * HTTP/1.0\r\n",
    ]);
    prop::collection::vec(piece, 0..14).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn pieces_make_no_difference(bytes in pieces(), method_is_head: bool, upgrade: bool) {
        request(&bytes);
        answer_to(method_is_head, upgrade, &bytes);
    }

    #[test]
    fn text_ends_at_the_first_control_character(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        let first = bytes.iter().position(u8::is_ascii_control);
        prop_assert_eq!(text(&bytes), first.unwrap_or(bytes.len()));
    }

    #[test]
    fn text_ends_at_a_lone_control_character(at in 0usize..40, control in prop::sample::select(vec![0u8, 9, 10, 31, 127])) {
        for other in [b' ', b'~', 0x80, 0xff] {
            let mut bytes = [other; 40];
            bytes[at] = control;
            prop_assert_eq!(text(&bytes), at);
        }
    }
}
