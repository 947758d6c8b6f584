//! Both directions of an XMPP stream: no panic, the same answers however the bytes arrive, places that are right, and
//! a depth that is the parser's.
#![no_main]

use std::fmt::Debug;

use libfuzzer_sys::fuzz_target;
use rxml::error::EndOrError;
use rxml::{Event, Parse, Parser};
use vestibule::wire::xmpp::{Answer, Caps, Depth, Initiating, Meter, Receiving};

/// What is told, each with the place behind it, and how it ends.
type Told<T, E> = (Vec<(T, usize)>, Option<E>);

/// Everything that `read` tells of a stream that comes in pieces of this size.
fn told<T, E: Debug + PartialEq>(
    stream: &[u8],
    size: usize,
    mut read: impl FnMut(&mut &[u8]) -> Result<Option<T>, E>,
) -> Told<T, E> {
    let mut list = Vec::new();
    let mut behind = 0;
    for mut piece in stream.chunks(size) {
        behind += piece.len();
        loop {
            match read(&mut piece) {
                Ok(Some(told)) => list.push((told, behind - piece.len())),
                Ok(None) => break assert!(piece.is_empty()),
                Err(error) => {
                    assert_eq!(read(&mut piece).err().as_ref(), Some(&error));
                    return (list, Some(error));
                }
            }
        }
    }
    (list, None)
}

fn initiating(stream: &[u8], sizes: [usize; 3], small: bool) {
    let caps = if small {
        Caps {
            element_size: 200,
            bytes: 600,
            elements: 6,
            depth: 4,
        }
    } else {
        Caps {
            element_size: 1 << 20,
            bytes: 1 << 24,
            elements: 1 << 20,
            depth: 1 << 20,
        }
    };
    let [whole, pieces, bytes] = sizes.map(|size| {
        let mut initiating = Initiating::new(caps);
        told(stream, size, |input| initiating.read(input))
    });
    assert_eq!(whole, pieces);
    assert_eq!(whole, bytes);
    for (_, end) in &whole.0 {
        assert_eq!(stream[end - 1], b'>');
    }
}

/// Whether a server may say this, and has not ended.
fn receiving(stream: &[u8], sizes: [usize; 3], small: bool) -> bool {
    let max_bytes = if small { 200 } else { 1 << 20 };
    let [whole, pieces, bytes] = sizes.map(|size| {
        let mut receiving = Receiving::new(max_bytes);
        told(stream, size, |input| receiving.read(input))
    });
    assert_eq!(whole, pieces);
    assert_eq!(whole, bytes);
    for (answer, end) in &whole.0 {
        assert_eq!(stream[end - 1], b'>');
        if let Answer::Features(features) = answer {
            assert_eq!(features.range.end, *end as u64);
            let offer = features.starttls.as_ref().map(|starttls| &starttls.range);
            for range in offer.into_iter().chain([&features.range]) {
                assert!(features.range.start <= range.start && range.end <= features.range.end);
                let element = &stream[range.start as usize..range.end as usize];
                assert!(element.starts_with(b"<") && element.ends_with(b">"));
            }
        }
    }
    let ended = whole.0.iter().any(|(answer, _)| *answer == Answer::End);
    whole.1.is_none() && !ended
}

/// `sound`: it is a stream, so no judgement may have ended.
fn depth(stream: &[u8], size: usize, sound: bool) {
    for start in 0..3 {
        let (mut whole, mut pieces) = (Depth::new(start), Depth::new(start));
        whole.feed(stream);
        let (mut meter, mut measured) = (Meter::new(start), Meter::new(start));
        let most = 10 * size;
        let mut fits = true;
        for piece in stream.chunks(size) {
            pieces.feed(piece);
            fits &= measured.feed(piece, most).is_ok();
        }
        assert_eq!(whole, pieces);
        assert_eq!(meter.feed(stream, most).is_ok(), fits);
        assert!(!fits || measured.depth() == whole);
    }

    let (mut parser, mut theirs, mut ours) = (Parser::new(), 0, Depth::new(0));
    for mut piece in stream.chunks(size) {
        ours.feed(piece);
        loop {
            match parser.parse(&mut piece, false) {
                Ok(Some(Event::StartElement(..))) => theirs += 1,
                Ok(Some(Event::EndElement(_))) => theirs -= 1,
                Ok(_) => {}
                Err(EndOrError::NeedMoreData) => break,
                Err(EndOrError::Error(_)) => return,
            }
        }
        assert!(ours.lost() || ours.depth() == theirs);
    }
    assert!(!sound || !ours.lost());
}

fuzz_target!(|input: &[u8]| {
    let [size, caps, stream @ ..] = input else {
        return;
    };
    let size = 1 + usize::from(*size);
    let sizes = [stream.len().max(1), size, 1];
    initiating(stream, sizes, caps & 1 == 1);
    let sound = receiving(stream, sizes, caps & 2 == 2);
    depth(stream, size, sound && !stream.starts_with(b"\xef"));
});
