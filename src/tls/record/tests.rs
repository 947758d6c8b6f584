//! The record layer against rustls as peer, and against itself with a peer that breaks the rules. All in memory.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::client::ClientConnection;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{ClientConfig, ProtocolVersion, RootCertStore, SupportedCipherSuite};

use super::*;
use crate::tls::certs::{Certificates, Pair};
use crate::tls::handshake::{CaptureSecrets, Handshake, Progress, server_name};
use crate::tls::terms::{BackTerms, Terms, TicketKey, Wishes};

const ROOM: usize = 64;

struct World {
    terms: Terms,
    back: BackTerms,
}

fn provider(suite: SupportedCipherSuite) -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![suite],
        ..aws_lc_rs::default_provider()
    })
}

fn world(suite: SupportedCipherSuite) -> World {
    let made = rcgen::generate_simple_self_signed(vec!["chat.test".to_owned()]).unwrap();
    let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let pair = Pair::from_pem(cert.as_bytes(), key.as_bytes()).unwrap();
    let certificates = Arc::new(Certificates::new(vec![pair]).unwrap());
    let tickets = TicketKey::random().unwrap();
    let terms = Terms::new(
        certificates,
        Wishes {
            tls12: true,
            ..Wishes::default()
        },
        &tickets,
    )
    .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let mut config = ClientConfig::builder_with_provider(provider(suite))
        .with_protocol_versions(&[suite.version()])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.enable_secret_extraction = true;
    config.key_log = Arc::new(CaptureSecrets);
    let mut back = BackTerms::new(vec![made.cert.der().clone()]).unwrap();
    back.config = Arc::new(config);
    World { terms, back }
}

fn suites() -> Vec<SupportedCipherSuite> {
    let ecdsa = |suite: &SupportedCipherSuite| {
        let name = format!("{:?}", suite.suite());
        suite.version().version == ProtocolVersion::TLSv1_3 || name.contains("ECDSA")
    };
    let suites: Vec<_> = aws_lc_rs::ALL_CIPHER_SUITES
        .iter()
        .copied()
        .filter(ecdsa)
        .collect();
    assert_eq!(suites.len(), 6, "three AEADs in two versions");
    suites
}

fn suite(name: &str) -> SupportedCipherSuite {
    let named = |s: &SupportedCipherSuite| s.suite().as_str() == Some(name);
    suites().into_iter().find(named).unwrap()
}

const TLS13: &str = "TLS13_AES_128_GCM_SHA256";
const TLS12: &str = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256";
const TLS12_CHACHA: &str = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256";

/// Both ends of a connection on our own record layer.
fn both(suite: SupportedCipherSuite) -> (RecordLayer, RecordLayer) {
    let world = world(suite);
    let mut to_server = Vec::new();
    let mut to_client = Vec::new();
    let name = server_name("chat.test").unwrap();
    let mut client = Handshake::client(&world.back, name, &[], &mut to_server).unwrap();
    let mut server = Handshake::server(&world.terms);
    let (mut client_done, mut server_done) = (false, false);
    let mut rest = Vec::new();
    while !(client_done && server_done) {
        let input = std::mem::take(&mut to_server);
        if let Progress::Done { consumed } = server.step(&input, &mut to_client).unwrap() {
            assert_eq!(consumed, input.len());
            server_done = true;
        }
        let input = std::mem::take(&mut to_client);
        if client_done {
            rest.extend_from_slice(&input); // tickets
        } else if let Progress::Done { consumed } = client.step(&input, &mut to_server).unwrap() {
            rest.extend_from_slice(&input[consumed..]);
            client_done = true;
        }
    }
    let mut client = client.finish().unwrap().records;
    let server = server.finish().unwrap();
    assert_eq!(server.facts.sni.as_deref(), Some("chat.test"));
    let mut key = None;
    while !rest.is_empty() {
        let len = client.opener.record_len(&rest).unwrap().unwrap();
        assert_eq!(
            client.opener.open(&mut key, &mut rest[..len]),
            Ok(Opened::Nothing)
        );
        rest.drain(..len);
    }
    (client, server.records)
}

/// A rustls client and our server side of one connection.
fn with_rustls(suite: SupportedCipherSuite) -> (ClientConnection, RecordLayer) {
    let world = world(suite);
    let name = server_name("chat.test").unwrap();
    let mut client = ClientConnection::new(Arc::clone(&world.back.config), name).unwrap();
    let mut server = Handshake::server(&world.terms);
    loop {
        let mut flight = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut flight).unwrap();
        }
        let mut answer = Vec::new();
        let progress = server.step(&flight, &mut answer).unwrap();
        let mut answer = &answer[..];
        while !answer.is_empty() {
            client.read_tls(&mut answer).unwrap();
            client.process_new_packets().unwrap();
        }
        if let Progress::Done { .. } = progress {
            return (client, server.finish().unwrap().records);
        }
    }
}

fn seal_as(sealer: &mut Sealer, content_type: ContentType, plain: &[u8]) -> Vec<u8> {
    let mut buffer = vec![0; plain.len() + 2 * ROOM];
    buffer[ROOM..ROOM + plain.len()].copy_from_slice(plain);
    let range = ROOM..ROOM + plain.len();
    let record = sealer
        .seal_as(content_type, &mut None, &mut buffer, range)
        .unwrap();
    buffer[record].to_vec()
}

fn seal(sealer: &mut Sealer, plain: &[u8]) -> Vec<u8> {
    seal_as(sealer, ContentType::ApplicationData, plain)
}

fn open(opener: &mut Opener, record: &[u8]) -> Result<Opened, TlsError> {
    let mut record = record.to_vec();
    match opener.record_len(&record)? {
        Some(len) => assert_eq!(len, record.len()),
        None => panic!("no header"),
    }
    opener.open(&mut None, &mut record)
}

fn open_data(opener: &mut Opener, record: &[u8]) -> Vec<u8> {
    let mut record = record.to_vec();
    match opener.open(&mut None, &mut record).unwrap() {
        Opened::Data(plain) => record[plain].to_vec(),
        other => panic!("{other:?}"),
    }
}

fn send_by_rustls(client: &mut ClientConnection, plain: &[u8]) -> Vec<u8> {
    client.writer().write_all(plain).unwrap();
    flush_rustls(client)
}

fn flush_rustls(client: &mut ClientConnection) -> Vec<u8> {
    let mut wire = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut wire).unwrap();
    }
    wire
}

fn receive_by_rustls(client: &mut ClientConnection, mut wire: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    while !wire.is_empty() {
        client.read_tls(&mut wire).unwrap();
        client.process_new_packets().unwrap();
        let _ = client.reader().read_to_end(&mut plain); // ends with WouldBlock
    }
    plain
}

/// TLS 1.3 with explicit padding, which our sealer never writes.
fn seal_padded(sealer: &mut Sealer, content_type: u8, plain: &[u8], padding: usize) -> Vec<u8> {
    let mut inner = plain.to_vec();
    inner.push(content_type);
    inner.resize(inner.len() + padding, 0);
    let seq = sealer.keys.next_seq().unwrap();
    let header = Header::bytes(ContentType::ApplicationData, inner.len() + TAG_LEN);
    let mut tag = [0; TAG_LEN];
    let cipher = sealer.keys.cipher().unwrap();
    cipher
        .seal(sealer.keys.nonce(seq), &header, &mut inner, &mut tag)
        .unwrap();
    [&header[..], &inner, &tag].concat()
}

#[test]
fn rustls_and_we_understand_each_other_in_every_suite() {
    for suite in suites() {
        let (mut client, mut records) = with_rustls(suite);
        for len in [1, 2, 50, 1000, PLAIN_MAX] {
            let plain: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let wire = send_by_rustls(&mut client, &plain);
            assert_eq!(
                open_data(&mut records.opener, &wire),
                plain,
                "{suite:?} {len}"
            );
            let wire = seal(&mut records.sealer, &plain);
            assert_eq!(
                receive_by_rustls(&mut client, &wire),
                plain,
                "{suite:?} {len}"
            );
        }
        client.send_close_notify();
        let wire = flush_rustls(&mut client);
        assert_eq!(open(&mut records.opener, &wire), Ok(Opened::CloseNotify));
        let mut room = [0; 64];
        let alert = records
            .sealer
            .alert(Level::Warning, Alert::CLOSE_NOTIFY, &mut room, 0)
            .unwrap();
        let mut alert = &room[alert];
        client.read_tls(&mut alert).unwrap();
        assert!(
            client.process_new_packets().unwrap().peer_has_closed(),
            "{suite:?}"
        );
    }
}

#[test]
fn key_updates_work_both_ways_with_rustls_in_every_tls13_suite() {
    for suite in suites()
        .into_iter()
        .filter(|s| s.version().version == ProtocolVersion::TLSv1_3)
    {
        let (mut client, mut records) = with_rustls(suite);
        for round in 0..5_u8 {
            client.refresh_traffic_keys().unwrap();
            let update = flush_rustls(&mut client);
            assert_eq!(
                open(&mut records.opener, &update),
                Ok(Opened::KeyUpdate { reply: true })
            );
            let wire = send_by_rustls(&mut client, &[round; 40]);
            assert_eq!(open_data(&mut records.opener, &wire), [round; 40]);

            let mut room = [0; 64];
            let update = records.sealer.key_update(&mut room, 0).unwrap();
            assert!(receive_by_rustls(&mut client, &room[update]).is_empty());
            let wire = seal(&mut records.sealer, &[round; 41]);
            assert_eq!(receive_by_rustls(&mut client, &wire), [round; 41]);
        }
    }
}

#[test]
fn a_key_update_is_due_before_the_limit_and_the_key_refuses_at_it() {
    let (mut client, mut server) = both(suite(TLS13));
    server.sealer.set_limit(2000);
    for _ in 0..900 {
        seal(&mut server.sealer, b"x");
    }
    assert!(!server.sealer.update_due());
    for _ in 0..200 {
        seal(&mut server.sealer, b"x");
    }
    assert!(server.sealer.update_due());
    let mut room = [0; 64];
    server.sealer.key_update(&mut room, 0).unwrap();
    assert!(!server.sealer.update_due());

    let (_, mut server) = both(suite(TLS12));
    server.sealer.set_limit(3);
    seal(&mut server.sealer, b"x");
    assert!(
        !server.sealer.update_due(),
        "TLS 1.2 has no way to another key"
    );
    seal(&mut server.sealer, b"x");
    let mut buffer = [0; 256];
    let refused = server.sealer.seal(&mut None, &mut buffer, 64..65);
    assert_eq!(refused, Err(TlsError::KeyExhausted));
    // Receiving has no such limit: there are peers that never change their key.
    client.sealer.set_limit(u64::MAX);
}

#[test]
fn a_flipped_bit_anywhere_is_refused() {
    for name in [TLS13, TLS12, TLS12_CHACHA] {
        let len = {
            let (mut client, _) = both(suite(name));
            seal(&mut client.sealer, b"hello").len()
        };
        for at in 5..len {
            let (mut client, mut server) = both_cached(name);
            let mut record = seal(&mut client.sealer, b"hello");
            record[at] ^= 0x10;
            assert_eq!(
                open(&mut server.opener, &record),
                Err(TlsError::BadRecord),
                "{name} {at}"
            );
        }
    }
}

/// A handshake costs a millisecond in debug builds; fine for a few dozen.
fn both_cached(name: &str) -> (RecordLayer, RecordLayer) {
    both(suite(name))
}

#[test]
fn replayed_reordered_and_dropped_records_are_refused() {
    for name in [TLS13, TLS12_CHACHA] {
        let (mut client, mut server) = both(suite(name));
        let one = seal(&mut client.sealer, b"one");
        let two = seal(&mut client.sealer, b"two");
        assert_eq!(open_data(&mut server.opener, &one), b"one");
        assert_eq!(
            open(&mut server.opener, &one),
            Err(TlsError::BadRecord),
            "{name}: replayed"
        );
        let (mut client, mut server) = both(suite(name));
        seal(&mut client.sealer, b"one");
        assert_eq!(
            open(&mut server.opener, &two),
            Err(TlsError::BadRecord),
            "{name}: dropped"
        );
    }
}

#[test]
fn sizes_are_refused_by_the_header_alone() {
    let (_, server) = both(suite(TLS13));
    let header = |payload| Header::bytes(ContentType::ApplicationData, payload);
    assert_eq!(server.opener.record_len(&header(16_640)), Ok(Some(16_645)));
    assert_eq!(
        server.opener.record_len(&header(16_641)),
        Err(TlsError::RecordOverflow)
    );
    let (_, server) = both(suite(TLS12));
    assert_eq!(server.opener.record_len(&header(18_432)), Ok(Some(18_437)));
    assert_eq!(
        server.opener.record_len(&header(18_433)),
        Err(TlsError::RecordOverflow)
    );
    assert_eq!(server.opener.record_len(&header(18_433)[..4]), Ok(None));
}

#[test]
fn more_plaintext_than_allowed_is_refused() {
    let (mut client, mut server) = both(suite(TLS13));
    let full = seal_padded(&mut client.sealer, 23, &[7; PLAIN_MAX], 0);
    assert_eq!(open_data(&mut server.opener, &full).len(), PLAIN_MAX);
    let over = seal_padded(&mut client.sealer, 23, &[7; PLAIN_MAX + 1], 0);
    assert_eq!(
        open(&mut server.opener, &over),
        Err(TlsError::RecordOverflow)
    );
    // Padding counts too (RFC 8446 section 5.4).
    let (mut client, mut server) = both(suite(TLS13));
    let over = seal_padded(&mut client.sealer, 23, &[7; PLAIN_MAX], 1);
    assert_eq!(
        open(&mut server.opener, &over),
        Err(TlsError::RecordOverflow)
    );
}

#[test]
fn padding_is_taken_off_and_a_record_of_nothing_but_zeros_is_refused() {
    let (mut client, mut server) = both(suite(TLS13));
    let padded = seal_padded(&mut client.sealer, 23, b"ends in zero\0\0", 300);
    assert_eq!(open_data(&mut server.opener, &padded), b"ends in zero\0\0");
    let zeros = seal_padded(&mut client.sealer, 0, b"", 20);
    let error = open(&mut server.opener, &zeros).unwrap_err();
    assert_eq!(error.alert(), Some(Alert::UNEXPECTED_MESSAGE));
}

#[test]
fn a_run_of_records_without_data_ends_the_connection() {
    for name in [TLS13, TLS12] {
        let (mut client, mut server) = both(suite(name));
        for _ in 0..3 {
            for _ in 0..FRUITLESS_MAX {
                let empty = seal(&mut client.sealer, b"");
                assert_eq!(open(&mut server.opener, &empty), Ok(Opened::Nothing));
            }
            let data = seal(&mut client.sealer, b"data");
            assert_eq!(open_data(&mut server.opener, &data), b"data");
        }
        for _ in 0..FRUITLESS_MAX {
            let empty = seal(&mut client.sealer, b"");
            assert_eq!(open(&mut server.opener, &empty), Ok(Opened::Nothing));
        }
        let empty = seal(&mut client.sealer, b"");
        let error = open(&mut server.opener, &empty).unwrap_err();
        assert_eq!(error.alert(), Some(Alert::UNEXPECTED_MESSAGE), "{name}");
    }
}

#[test]
fn a_run_of_key_updates_ends_the_connection() {
    let (mut client, mut server) = both(suite(TLS13));
    let mut update = |client: &mut RecordLayer| {
        let mut room = [0; 64];
        let range = client.sealer.key_update(&mut room, 0).unwrap();
        open(&mut server.opener, &room[range])
    };
    for _ in 0..FRUITLESS_MAX {
        assert_eq!(update(&mut client), Ok(Opened::KeyUpdate { reply: false }));
    }
    assert_eq!(
        update(&mut client).unwrap_err().alert(),
        Some(Alert::UNEXPECTED_MESSAGE)
    );
}

#[test]
fn handshake_messages_may_come_in_parts_and_key_update_must_end_its_record() {
    let (mut client, mut server) = both(suite(TLS13));
    for part in [&[24][..], &[0, 0], &[1]] {
        let record = seal_as(&mut client.sealer, ContentType::Handshake, part);
        assert_eq!(open(&mut server.opener, &record), Ok(Opened::Nothing));
    }
    let record = seal_as(&mut client.sealer, ContentType::Handshake, &[1]);
    assert_eq!(
        open(&mut server.opener, &record),
        Ok(Opened::KeyUpdate { reply: true })
    );
    client.sealer.keys.step().unwrap();
    let data = seal(&mut client.sealer, b"under the new key");
    assert_eq!(open_data(&mut server.opener, &data), b"under the new key");

    let two = [24, 0, 0, 1, 0, 24, 0, 0, 1, 0];
    let record = seal_as(&mut client.sealer, ContentType::Handshake, &two);
    let error = open(&mut server.opener, &record).unwrap_err();
    assert_eq!(error.alert(), Some(Alert::UNEXPECTED_MESSAGE));
}

#[test]
fn what_has_no_place_after_the_handshake_is_refused() {
    use ContentType::{Alert as A, ChangeCipherSpec as C, Handshake as H};
    let bad: [(ContentType, &[u8], Alert); 9] = [
        (H, b"", Alert::UNEXPECTED_MESSAGE),
        (H, &[1, 0, 0, 0], Alert::UNEXPECTED_MESSAGE),
        (H, &[4, 0, 0, 0], Alert::UNEXPECTED_MESSAGE),
        (H, &[24, 0, 0, 2, 0, 0], Alert::DECODE_ERROR),
        (H, &[24, 0, 0, 1, 2], Alert::ILLEGAL_PARAMETER),
        (A, b"", Alert::UNEXPECTED_MESSAGE),
        (A, &[1], Alert::DECODE_ERROR),
        (A, &[1, 0, 0], Alert::DECODE_ERROR),
        (C, &[1], Alert::UNEXPECTED_MESSAGE),
    ];
    for (content_type, message, alert) in bad {
        let (mut client, mut server) = both(suite(TLS13));
        let record = seal_as(&mut client.sealer, content_type, message);
        let error = open(&mut server.opener, &record).unwrap_err();
        assert_eq!(error.alert(), Some(alert), "{content_type:?} {message:?}");
    }
    // Unprotected, of any type.
    for (name, content_type) in [
        (TLS13, 20),
        (TLS13, 21),
        (TLS13, 22),
        (TLS12, 20),
        (TLS12, 99),
    ] {
        let (_, server) = both(suite(name));
        let error = server
            .opener
            .record_len(&[content_type, 3, 3, 0, 1])
            .unwrap_err();
        assert_eq!(
            error.alert(),
            Some(Alert::UNEXPECTED_MESSAGE),
            "{name} {content_type}"
        );
    }
    let (_, server) = both(suite(TLS12));
    assert_eq!(
        server.opener.record_len(&[23, 3, 1, 0, 40]),
        Err(TlsError::RecordVersion)
    );
    // Data inside a handshake message.
    let (mut client, mut server) = both(suite(TLS13));
    let part = seal_as(&mut client.sealer, H, &[24, 0]);
    assert_eq!(open(&mut server.opener, &part), Ok(Opened::Nothing));
    let data = seal(&mut client.sealer, b"data");
    let error = open(&mut server.opener, &data).unwrap_err();
    assert_eq!(error.alert(), Some(Alert::UNEXPECTED_MESSAGE));
}

#[test]
fn alerts_are_told_apart() {
    let (mut client, mut server) = both(suite(TLS13));
    let canceled = seal_as(&mut client.sealer, ContentType::Alert, &[1, 90]);
    assert_eq!(open(&mut server.opener, &canceled), Ok(Opened::Nothing));
    let warning = seal_as(&mut client.sealer, ContentType::Alert, &[1, 42]);
    assert_eq!(
        open(&mut server.opener, &warning),
        Err(TlsError::AlertReceived(42))
    );
    let (mut client, mut server) = both(suite(TLS12));
    let warning = seal_as(&mut client.sealer, ContentType::Alert, &[1, 100]);
    assert_eq!(open(&mut server.opener, &warning), Ok(Opened::Nothing));
    let fatal = seal_as(&mut client.sealer, ContentType::Alert, &[2, 40]);
    assert_eq!(
        open(&mut server.opener, &fatal),
        Err(TlsError::AlertReceived(40))
    );
}

#[test]
fn a_new_tls12_handshake_is_declined_by_either_side() {
    let hello = [&[1, 0, 1, 0][..], &[0; 256]].concat();
    let (mut client, mut server) = both(suite(TLS12));
    let record = seal_as(&mut client.sealer, ContentType::Handshake, &hello);
    assert_eq!(open(&mut server.opener, &record), Ok(Opened::Renegotiation));
    let data = seal(&mut client.sealer, b"still here");
    assert_eq!(open_data(&mut server.opener, &data), b"still here");
    let request = seal_as(&mut server.sealer, ContentType::Handshake, &[0, 0, 0, 0]);
    assert_eq!(
        open(&mut client.opener, &request),
        Ok(Opened::Renegotiation)
    );
}

#[test]
fn nonces_are_never_used_twice() {
    let (mut client, _) = both(suite(TLS12));
    let mut seen = std::collections::HashSet::new();
    for _ in 0..100 {
        let record = seal(&mut client.sealer, b"x");
        assert!(
            seen.insert(record[5..13].to_vec()),
            "TLS 1.2's explicit nonce"
        );
    }
    let (mut client, _) = both(suite(TLS13));
    let same: std::collections::HashSet<_> = (0..100)
        .map(|_| seal(&mut client.sealer, b"the same words"))
        .collect();
    assert_eq!(same.len(), 100);
}

#[test]
fn no_room_around_the_plaintext_is_an_error_and_no_panic() {
    let (mut client, _) = both(suite(TLS12));
    let mut buffer = [0; 64];
    for range in [0..10, 12..20, 50..60] {
        let refused = client.sealer.seal(&mut None, &mut buffer, range.clone());
        assert!(matches!(refused, Err(TlsError::Internal(_))), "{range:?}");
    }
}

#[test]
fn every_reason_is_a_word_of_the_metric() {
    use crate::metrics::names::HANDSHAKE_FAILURES;
    let errors = [
        TlsError::BadRecord,
        TlsError::RecordOverflow,
        TlsError::UnexpectedMessage(""),
        TlsError::Decode(""),
        TlsError::Illegal(""),
        TlsError::RecordVersion,
        TlsError::AlertReceived(0),
        TlsError::NotTls(""),
        TlsError::OldVersion,
        TlsError::UnknownName,
        TlsError::HandshakeTooLong,
        TlsError::KeyExhausted,
        TlsError::Internal(""),
        TlsError::Handshake(rustls::Error::NoApplicationProtocol),
        TlsError::Handshake(rustls::Error::DecryptError),
        TlsError::Handshake(rustls::Error::General(String::new())),
    ];
    for error in errors {
        assert!(
            HANDSHAKE_FAILURES.contains(&error.reason()),
            "{error:?}: {}",
            error.reason()
        );
    }
}

/// Found by fuzzing: rustls ends such a client without an alert.
#[test]
fn a_client_without_a_signature_scheme_for_our_key_is_told_so() {
    let seed = include_bytes!("../../../tests/fuzz/seeds/handshake/refused-without-alert");
    let world = world(suite(TLS13));
    let mut output = Vec::new();
    let error = Handshake::server(&world.terms)
        .step(&seed[1..], &mut output)
        .unwrap_err();
    assert_eq!(error.reason(), "no_common_signature");
    assert_eq!(output, Alert::HANDSHAKE_FAILURE.plain_record(Level::Fatal));
}
