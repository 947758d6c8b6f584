//! Both directions of HTTP/1.1 and of HTTP/2: no panic, the same judgement however the bytes arrive, and nothing passes
//! that the parser behind would refuse.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vestibule::wire::http::{Caps, Fault, Frames, Framing};

/// How a direction ends: what is at fault and from which byte on, or where it is.
#[derive(Debug, PartialEq)]
enum End {
    Fault(Fault, usize),
    Place(bool, bool, bool),
}

/// How it ends in pieces of these sizes, and where the last piece begins.
fn judged(mut framing: Framing, bytes: &[u8], sizes: &[u8]) -> (End, usize) {
    let mut sizes = sizes.iter().map(|size| usize::from(*size) + 1).cycle();
    let (mut rest, mut begins) = (bytes, 0);
    while !rest.is_empty() {
        let (piece, next) = rest.split_at(rest.len().min(sizes.next().unwrap_or(1)));
        if let Err(violation) = framing.look(piece) {
            assert!(violation.before < piece.len());
            return (
                End::Fault(violation.kind, begins + violation.before),
                begins,
            );
        }
        begins += piece.len();
        rest = next;
    }
    let place = End::Place(
        framing.at_boundary(),
        framing.in_head(),
        framing.is_tunnel(),
    );
    (place, begins)
}

fn framing(framing: impl Fn() -> Framing, bytes: &[u8], sizes: &[u8]) {
    let mut whole = framing();
    let whole = match whole.look(bytes) {
        Ok(()) => End::Place(whole.at_boundary(), whole.in_head(), whole.is_tunnel()),
        Err(violation) => {
            // What is told to be before the fault has none.
            let mut before = framing();
            assert_eq!(before.look(&bytes[..violation.before]), Ok(()));
            assert!(!before.in_head());
            End::Fault(violation.kind, violation.before)
        }
    };
    for sizes in [&[0], sizes] {
        let (pieces, begins) = judged(framing(), bytes, sizes);
        let expected = match whole {
            End::Fault(kind, at) => End::Fault(kind, at.max(begins)),
            End::Place(..) => {
                assert_eq!(pieces, whole);
                continue;
            }
        };
        assert_eq!(pieces, expected);
    }
}

/// If these bytes begin with a request's head that passes, the parser takes it for the same.
fn compared(caps: Caps, bytes: &[u8]) {
    let mut framing = Framing::requests(caps);
    let mut end = 0;
    for byte in bytes {
        if framing.look(&[*byte]).is_err() {
            return;
        }
        end += 1;
        let over = !framing.in_head()
            && *byte == b'\n'
            && !bytes[..end].iter().all(u8::is_ascii_whitespace);
        if over {
            break;
        }
    }
    let head = &bytes[..end];
    if head.is_empty() || framing.in_head() || head.iter().all(u8::is_ascii_whitespace) {
        return;
    }
    let lines = head
        .split(|byte| *byte == b'\n')
        .filter(|line| line.len() > 1);
    let mut headers = [httparse::EMPTY_HEADER; 120];
    let mut request = httparse::Request::new(&mut headers);
    assert_eq!(request.parse(head), Ok(httparse::Status::Complete(end)));
    assert_eq!(request.headers.len() + 1, lines.count());
    let named = |name: &str| {
        let all = request.headers.iter();
        all.filter(move |header| header.name.eq_ignore_ascii_case(name))
            .count()
    };
    let (lengths, encodings) = (named("content-length"), named("transfer-encoding"));
    assert!(lengths + encodings <= 1 && named("host") <= 1);
    assert!(request.version == Some(0) || named("host") == 1);
    for header in request.headers.iter() {
        if header.name.eq_ignore_ascii_case("content-length") {
            let digits = std::str::from_utf8(header.value).unwrap();
            let length: u64 = digits.parse().unwrap();
            assert_eq!(framing.at_boundary() || framing.is_tunnel(), length == 0);
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            assert!(header.value.eq_ignore_ascii_case(b"chunked"));
        }
    }
    assert_eq!(framing.is_tunnel(), named("upgrade") > 0);
    assert!(lengths + encodings == 1 || framing.at_boundary() || framing.is_tunnel());
}

fn frames(frames: Frames, bytes: &[u8], sizes: &[u8]) {
    let (mut whole, mut pieces) = (frames, frames);
    let said = whole.look(bytes, 7);
    let mut sizes = sizes.iter().map(|size| usize::from(*size) + 1).cycle();
    let mut rest = bytes;
    let mut said_in_pieces = Ok(());
    while !rest.is_empty() && said_in_pieces.is_ok() {
        let (piece, next) = rest.split_at(rest.len().min(sizes.next().unwrap_or(1)));
        said_in_pieces = pieces.look(piece, 7);
        rest = next;
    }
    assert_eq!(said, said_in_pieces);
    assert_eq!(whole.last_stream(), pieces.last_stream());
    assert_eq!(whole.data(), pieces.data());
    if said.is_ok() {
        assert_eq!(whole.at_boundary(), pieces.at_boundary());
    }
}

fuzz_target!(|input: &[u8]| {
    // How it is cut comes first, so that what is cut can be written by hand.
    let Some(([mode, sizes @ ..], bytes)) = input.split_first_chunk::<4>() else {
        return;
    };
    let caps = if mode & 1 == 0 {
        Caps {
            head_size: 16 << 10,
            headers: 100,
            underscores: mode & 2 == 2,
        }
    } else {
        Caps {
            head_size: 100,
            headers: 3,
            underscores: mode & 2 == 2,
        }
    };
    match mode >> 6 {
        0 => {
            framing(|| Framing::requests(caps), bytes, sizes);
            compared(caps, bytes);
        }
        1 => {
            let answers = || {
                let mut framing = Framing::answers(caps);
                framing.expect(mode & 4 == 4, mode & 8 == 8);
                framing
            };
            framing(answers, bytes, sizes);
        }
        2 => frames(Frames::client(), bytes, sizes),
        _ => frames(Frames::server(), bytes, sizes),
    }
});
