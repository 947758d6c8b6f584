//! A ClientHello in whatever records: no panic, and the same answer however it arrives and is cut.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vestibule::wire::hello::{Hello, HelloError, Parsed};

/// Everything that a hello tells, as owned values; `None` while it is not whole.
type Told = Option<(Option<String>, bool, Vec<Vec<u8>>, usize)>;

fn told(wire: &[u8]) -> Result<Told, HelloError> {
    Ok(match Hello::parse(wire)? {
        Parsed::NeedMore { at_least } => {
            assert!(at_least > wire.len());
            None
        }
        Parsed::Hello(hello) => {
            assert!(hello.wire_len() <= wire.len());
            let alpn = hello.alpn().map(|name| name.into_owned()).collect();
            Some((
                hello.server_name().map(str::to_owned),
                hello.has_alpn(),
                alpn,
                hello.wire_len(),
            ))
        }
    })
}

/// The handshake bytes of these records, again in records of `size` bytes.
fn cut_again(mut wire: &[u8], size: usize) -> Vec<u8> {
    let mut message = Vec::new();
    while let [_, _, _, high, low, rest @ ..] = wire {
        let (body, rest) = rest.split_at(
            rest.len()
                .min(usize::from(u16::from_be_bytes([*high, *low]))),
        );
        message.extend_from_slice(body);
        wire = rest;
    }
    let record = |part: &[u8]| [&[22, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat();
    message.chunks(size).flat_map(record).collect()
}

fuzz_target!(|input: &[u8]| {
    let Some((&size, wire)) = input.split_first() else {
        return;
    };
    let whole = told(wire);
    // Every prefix of a short input, and some forty of a long one.
    for end in (0..wire.len()).step_by(1 + wire.len() / 40 * usize::from(wire.len() > 600)) {
        let prefix = told(&wire[..end]);
        assert!(prefix == Ok(None) || prefix == whole);
    }
    let Ok(Some((name, has_alpn, alpn, len))) = whole else {
        return;
    };
    let cut = cut_again(&wire[..len], 1 + usize::from(size));
    let (other_name, other_has_alpn, other_alpn, _) =
        told(&cut).expect("still sound").expect("still whole");
    assert_eq!(
        (name, has_alpn, alpn),
        (other_name, other_has_alpn, other_alpn)
    );
});
