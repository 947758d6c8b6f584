//! `wire::hello` against rustls: hellos that rustls writes, read by us and by rustls' own server side.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use proptest::prelude::*;
use rustls::server::Acceptor;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use vestibule::wire::hello::{Hello, HelloError, Parsed};
use vestibule::wire::sniff::{Guess, Sniff, sniff};

/// Name and protocols as owned values, so that both sides compare.
type Asked = (Option<String>, Vec<Vec<u8>>);

/// The first flight that rustls sends for this name and these protocols, in records of at most `fragment` bytes.
fn first_flight(name: &str, alpn: &[&[u8]], fragment: Option<usize>) -> Vec<u8> {
    let mut config =
        ClientConfig::builder_with_provider(rustls::crypto::aws_lc_rs::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    config.max_fragment_size = fragment;
    let mut client =
        ClientConnection::new(Arc::new(config), name.to_owned().try_into().unwrap()).unwrap();
    let mut wire = Vec::new();
    client.write_tls(&mut wire).unwrap();
    wire
}

fn ours(wire: &[u8]) -> Result<Option<Asked>, HelloError> {
    Ok(match Hello::parse(wire)? {
        Parsed::NeedMore { .. } => None,
        Parsed::Hello(hello) => Some((
            // rustls gives names in lower case, we as they came.
            hello.server_name().map(str::to_ascii_lowercase),
            hello.alpn().map(|name| name.into_owned()).collect(),
        )),
    })
}

/// What rustls' server side reads; `Err` if it refuses.
fn theirs(mut wire: &[u8]) -> Result<Option<Asked>, ()> {
    let mut acceptor = Acceptor::default();
    while !wire.is_empty() {
        acceptor.read_tls(&mut wire).map_err(drop)?;
        if let Some(accepted) = acceptor.accept().map_err(drop)? {
            let hello = accepted.client_hello();
            return Ok(Some((
                hello.server_name().map(str::to_owned),
                hello
                    .alpn()
                    .map(|names| names.map(<[u8]>::to_vec).collect())
                    .unwrap_or_default(),
            )));
        }
    }
    Ok(None)
}

/// The wire's message again, cut into records of `sizes` in turn.
fn cut_again(wire: &[u8], sizes: &[usize]) -> Vec<u8> {
    let mut message = Vec::new();
    let mut rest = wire;
    while let [_, _, _, high, low, tail @ ..] = rest {
        let (body, next) = tail.split_at(usize::from(u16::from_be_bytes([*high, *low])));
        message.extend_from_slice(body);
        rest = next;
    }
    let mut sizes = sizes.iter().cycle();
    let mut out = Vec::new();
    let mut rest = &message[..];
    while !rest.is_empty() {
        let (part, next) = rest.split_at((*sizes.next().unwrap()).min(rest.len()));
        out.extend([22, 3, 1]);
        out.extend(u16::try_from(part.len()).unwrap().to_be_bytes());
        out.extend_from_slice(part);
        rest = next;
    }
    out
}

#[test]
fn a_hello_by_rustls_is_read_as_rustls_reads_it_and_only_when_its_last_byte_is_there() {
    let cases: [(&str, &[&[u8]]); 4] = [
        ("chat.example", &[b"xmpp-client"]),
        (
            "A-very.long-name.with.many.labels.chat.example",
            &[b"h2", b"http/1.1"],
        ),
        ("127.0.0.1", &[]),
        ("localhost", &[&[b'x'; 255][..]; 8]),
    ];
    for (name, alpn) in cases {
        for fragment in [None, Some(64), Some(517)] {
            let wire = first_flight(name, alpn, fragment);
            let truth = theirs(&wire).unwrap().expect("rustls reads its own hello");
            assert_eq!(ours(&wire).unwrap(), Some(truth), "{name}");
            for end in 0..wire.len() {
                assert_eq!(
                    ours(&wire[..end]),
                    Ok(None),
                    "{end} of {} bytes",
                    wire.len()
                );
            }
            assert_eq!(sniff(&wire), Sniff::Is(Guess::Tls));
        }
    }
}

#[test]
fn a_hello_over_one_record_in_size_is_read() {
    let protocol = [b'p'; 255];
    let wire = first_flight("chat.example", &[&protocol[..]; 200], None);
    assert!(wire.len() > 3 * (1 << 14));
    let asked = ours(&wire).unwrap().expect("whole");
    assert_eq!(asked, theirs(&wire).unwrap().expect("whole"));
    assert_eq!(asked.1.len(), 200);
}

proptest! {
    #[test]
    fn cutting_a_hello_into_other_records_changes_nothing(sizes in proptest::collection::vec(1usize..400, 1..6)) {
        let wire = first_flight("chat.example", &[b"xmpp-client", b"h2"], None);
        let cut = cut_again(&wire, &sizes);
        prop_assert_eq!(ours(&cut).unwrap(), ours(&wire).unwrap());
    }

    #[test]
    fn a_damaged_hello_is_refused_or_read_as_rustls_reads_it(
        damage in proptest::collection::vec((0usize..400, any::<u8>()), 1..4),
        sizes in proptest::collection::vec(1usize..400, 1..3),
    ) {
        let mut wire = cut_again(&first_flight("chat.example", &[b"xmpp-client", b"h2"], None), &sizes);
        for (at, byte) in damage {
            let at = at % wire.len();
            wire[at] = byte;
        }
        let whole = ours(&wire);
        for end in 0..wire.len() {
            let part = ours(&wire[..end]);
            prop_assert!(part == Ok(None) || part == whole, "{} bytes: {:?}, then {:?}", end, part, whole);
        }
        if let (Ok(Some(ours)), Ok(Some(theirs))) = (whole, theirs(&wire)) {
            // rustls drops a name that it holds for an address.
            prop_assert!(theirs.0.is_none() || ours.0 == theirs.0);
            prop_assert_eq!(ours.1, theirs.1);
        }
    }

    #[test]
    fn no_bytes_make_it_panic(wire in proptest::collection::vec(any::<u8>(), 0..2048)) {
        let _ = ours(&wire);
        let mut framed = vec![22, 3, 1, 7, 0, 1, 0, 6, 0xfc];
        framed.extend(&wire);
        let _ = ours(&framed);
    }
}
