//! What a client may and may not put into records once the handshake is over.
//!
//! Everything that rustls takes over in an ordinary proxy is the program's own here, so where both must agree the
//! same test runs against the oracle.

use rustls::SupportedProtocolVersion;
use rustls::version::{TLS12, TLS13};
use tokio::io::AsyncWriteExt;

use crate::against_all;
use crate::support::backend::{EchoBackend, RecordingBackend};
use crate::support::client::Offer;
use crate::support::oracle::{Front, Which};
use crate::support::record::{
    ALERT, CCS, DATA, HANDSHAKE, KEY_UPDATE, KEY_UPDATE_REQUESTED, Received, RecordClient, framed,
};
use crate::support::{read_exactly, read_plain, within};

const UNEXPECTED_MESSAGE: u8 = 10;
const BAD_RECORD_MAC: u8 = 20;
const RECORD_OVERFLOW: u8 = 22;
const ILLEGAL_PARAMETER: u8 = 47;
const DECODE_ERROR: u8 = 50;
const PROTOCOL_VERSION: u8 = 70;
const NO_RENEGOTIATION: u8 = 100;

const BOTH: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];
/// Records in a row without data that are put up with; the next one is too much.
const FRUITLESS_MAX: usize = 32;

against_all! {
    20 a_flipped_bit_anywhere_is_bad_record_mac;
    20 a_record_sent_twice_is_bad_record_mac;
    20 a_record_left_out_is_bad_record_mac;
    20 a_record_cut_short_is_bad_record_mac;
    20 a_record_too_short_for_a_tag_is_bad_record_mac;
    20 more_content_than_a_record_may_hold_is_record_overflow;
    20 a_key_update_that_asks_nonsense_is_illegal;
    20 a_key_update_of_another_length_cannot_be_decoded;
    20 a_key_update_that_does_not_end_its_record_is_unexpected;
    20 a_key_update_is_followed;
    20 a_key_update_with_a_request_is_answered_before_the_next_data;
    20 key_updates_between_data_may_go_on_for_ever;
    20 a_key_update_in_two_records_is_one_message;
    20 a_renegotiation_in_tls12_is_declined_and_the_connection_goes_on;
    20 a_fatal_alert_ends_the_connection_without_an_answer;
}

/// Sends `bad`, which must end the connection with this alert; nothing but what was sound before may reach the
/// backend, and others are served as before.
async fn refused(
    which: Which,
    version: &'static SupportedProtocolVersion,
    description: u8,
    bad: impl FnOnce(&mut RecordClient) -> Vec<u8>,
) {
    let mut backend = RecordingBackend::start();
    let front = Front::start(which, backend.addr()).await;
    let mut client = RecordClient::connect(front.addr(), &Offer::default().version(version)).await;
    client.send_record(DATA, b"before").await;
    let mut back = backend.accept().await;
    assert_eq!(read_exactly(&mut back, 6).await, b"before");
    let bad = bad(&mut client);
    let after = client.tx.clone().seal(DATA, b"after");
    client.send_perhaps(&[bad, after].concat()).await;
    let ((got, _), ()) = tokio::join!(read_plain(&mut back), client.expect_fatal(description));
    assert_eq!(String::from_utf8_lossy(&got), "");
    // The program waits for the client to close, so that its alert is not lost.
    drop(client);
    let broken = [("outcome", "client_tls_error")];
    front
        .metric_becomes("vestibule_sessions_ended_total", &broken, 1)
        .await;
    front
        .metric_becomes("vestibule_sessions_ended_total", &[], 1)
        .await;
    let reason = [("reason", reason_of(description))];
    front
        .metric_becomes("vestibule_record_errors_total", &reason, 1)
        .await;
    front
        .metric_becomes("vestibule_record_errors_total", &[], 1)
        .await;
    drop(back);
    front.is_idle().await;
    // The one connection ended, not the worker.
    let mut next = RecordClient::connect(front.addr(), &Offer::default().version(version)).await;
    next.send_record(DATA, b"served").await;
    next.close_notify().await;
    assert_eq!(read_plain(&mut backend.accept().await).await.0, b"served");
}

/// What the program counts with this alert.
fn reason_of(description: u8) -> &'static str {
    match description {
        UNEXPECTED_MESSAGE => "unexpected_message",
        BAD_RECORD_MAC => "bad_record_mac",
        RECORD_OVERFLOW => "record_overflow",
        ILLEGAL_PARAMETER => "illegal_parameter",
        DECODE_ERROR => "decode_error",
        PROTOCOL_VERSION => "record_version",
        other => panic!("no reason for the alert {other}"),
    }
}

async fn a_flipped_bit_anywhere_is_bad_record_mac(which: Which) {
    for version in BOTH {
        // In the ciphertext and in the tag.
        for from_end in [20, 1] {
            refused(which, version, BAD_RECORD_MAC, |client| {
                let mut record = client.tx.seal(DATA, b"some bytes that will be damaged");
                let at = record.len() - from_end;
                record[at] ^= 0x10;
                record
            })
            .await;
        }
    }
    // The type is authenticated in TLS 1.2.
    refused(which, &TLS12, BAD_RECORD_MAC, |client| {
        let mut record = client.tx.seal(DATA, b"\x01\x00");
        record[0] = ALERT;
        record
    })
    .await;
}

async fn a_record_sent_twice_is_bad_record_mac(which: Which) {
    for version in BOTH {
        refused(which, version, BAD_RECORD_MAC, |client| {
            // The very record that came before, whose content must not arrive twice.
            client.tx.seq -= 1;
            client.tx.seal(DATA, b"before")
        })
        .await;
    }
}

async fn a_record_left_out_is_bad_record_mac(which: Which) {
    for version in BOTH {
        refused(which, version, BAD_RECORD_MAC, |client| {
            client.tx.seal(DATA, b"lost on the way");
            client.tx.seal(DATA, b"out of order")
        })
        .await;
    }
}

async fn a_record_cut_short_is_bad_record_mac(which: Which) {
    for version in BOTH {
        refused(which, version, BAD_RECORD_MAC, |client| {
            let record = client.tx.seal(DATA, b"cut short");
            framed(DATA, &record[5..record.len() - 1])
        })
        .await;
    }
}

async fn a_record_too_short_for_a_tag_is_bad_record_mac(which: Which) {
    for version in BOTH {
        for len in [1, 8, 15, 16] {
            refused(which, version, BAD_RECORD_MAC, |_| {
                framed(DATA, &vec![0; len])
            })
            .await;
        }
    }
}

async fn more_content_than_a_record_may_hold_is_record_overflow(which: Which) {
    for version in BOTH {
        refused(which, version, RECORD_OVERFLOW, |client| {
            client.tx.seal(DATA, &[b'x'; (1 << 14) + 1])
        })
        .await;
    }
    refused(which, &TLS13, RECORD_OVERFLOW, |client| {
        // Padding counts too.
        let inner = [b"x", &[DATA][..], &[0; 1 << 14]].concat();
        client.tx.seal_inner(&inner)
    })
    .await;
}

#[tokio::test]
async fn a_handshake_message_that_has_no_place_is_unexpected() {
    // ClientHello, Certificate, Finished, a session ticket, and what nobody knows.
    for kind in [1, 11, 20, 4, 254] {
        refused_by_vestibule(&TLS13, UNEXPECTED_MESSAGE, |client| {
            client.tx.seal(HANDSHAKE, &[kind, 0, 0, 2, 0, 0])
        })
        .await;
    }
    refused_by_vestibule(&TLS12, UNEXPECTED_MESSAGE, |client| {
        client.tx.seal(
            HANDSHAKE,
            &[20, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        )
    })
    .await;
}

#[tokio::test]
async fn an_inner_type_that_tls_does_not_know_is_unexpected() {
    refused_by_vestibule(&TLS13, UNEXPECTED_MESSAGE, |client| {
        client.tx.seal(99, b"what is this")
    })
    .await;
    refused_by_vestibule(&TLS13, UNEXPECTED_MESSAGE, |client| {
        client.tx.seal(CCS, &[1])
    })
    .await;
}

async fn a_key_update_that_asks_nonsense_is_illegal(which: Which) {
    refused(which, &TLS13, ILLEGAL_PARAMETER, |client| {
        client.tx.seal(HANDSHAKE, &[24, 0, 0, 1, 2])
    })
    .await;
}

async fn a_key_update_of_another_length_cannot_be_decoded(which: Which) {
    refused(which, &TLS13, DECODE_ERROR, |client| {
        client.tx.seal(HANDSHAKE, &[24, 0, 0, 2, 0, 0])
    })
    .await;
    refused(which, &TLS13, DECODE_ERROR, |client| {
        client.tx.seal(HANDSHAKE, &[24, 0, 0, 0])
    })
    .await;
}

async fn a_key_update_that_does_not_end_its_record_is_unexpected(which: Which) {
    refused(which, &TLS13, UNEXPECTED_MESSAGE, |client| {
        client
            .tx
            .seal(HANDSHAKE, &[KEY_UPDATE, KEY_UPDATE].concat())
    })
    .await;
}

#[tokio::test]
async fn an_endless_run_of_empty_records_is_unexpected() {
    for version in BOTH {
        refused_by_vestibule(version, UNEXPECTED_MESSAGE, |client| {
            (0..=FRUITLESS_MAX)
                .flat_map(|_| client.tx.seal(DATA, b""))
                .collect()
        })
        .await;
    }
}

#[tokio::test]
async fn a_run_of_empty_records_within_the_bound_is_put_up_with_again_and_again() {
    within(20, async {
        let backend = EchoBackend::start();
        let front = Front::start(Which::Vestibule, backend.addr()).await;
        for version in BOTH {
            let mut client =
                RecordClient::connect(front.addr(), &Offer::default().version(version)).await;
            for _ in 0..5 {
                for _ in 0..FRUITLESS_MAX {
                    client.send_record(DATA, b"").await;
                }
                client.send_record(DATA, b"at last").await;
                assert_eq!(client.data(7).await, b"at last");
            }
        }
    })
    .await;
}

/// As [`refused`], for what only the program itself is this strict about.
async fn refused_by_vestibule(
    version: &'static SupportedProtocolVersion,
    description: u8,
    bad: impl FnOnce(&mut RecordClient) -> Vec<u8>,
) {
    within(20, refused(Which::Vestibule, version, description, bad)).await;
}

#[tokio::test]
async fn key_updates_without_data_between_them_are_unexpected_when_they_do_not_end() {
    refused_by_vestibule(&TLS13, UNEXPECTED_MESSAGE, |client| {
        let mut records = Vec::new();
        for _ in 0..=FRUITLESS_MAX {
            records.extend(client.tx.seal(HANDSHAKE, &KEY_UPDATE));
            client.tx.update();
        }
        records
    })
    .await;
}

#[tokio::test]
async fn a_record_header_over_the_limit_is_record_overflow_before_its_content_comes() {
    refused_by_vestibule(&TLS13, RECORD_OVERFLOW, |_| vec![DATA, 3, 3, 0x41, 0x01]).await;
    refused_by_vestibule(&TLS12, RECORD_OVERFLOW, |_| vec![DATA, 3, 3, 0x48, 0x01]).await;
}

#[tokio::test]
async fn a_record_of_padding_alone_is_unexpected() {
    for len in [1, 100, 16_385] {
        refused_by_vestibule(&TLS13, UNEXPECTED_MESSAGE, |client| {
            client.tx.seal_inner(&vec![0; len])
        })
        .await;
    }
}

#[tokio::test]
async fn a_change_cipher_spec_after_finished_is_unexpected() {
    for version in BOTH {
        refused_by_vestibule(version, UNEXPECTED_MESSAGE, |_| framed(CCS, &[1])).await;
    }
}

#[tokio::test]
async fn a_record_in_the_clear_after_finished_is_refused() {
    for kind in [ALERT, HANDSHAKE, 99] {
        refused_by_vestibule(&TLS13, UNEXPECTED_MESSAGE, |_| framed(kind, &[1, 0])).await;
    }
    refused_by_vestibule(&TLS12, UNEXPECTED_MESSAGE, |_| framed(99, &[1, 0])).await;
    // In TLS 1.2 a type does not tell a record in the clear; its missing tag does.
    refused_by_vestibule(&TLS12, BAD_RECORD_MAC, |_| framed(ALERT, &[1, 0])).await;
    refused_by_vestibule(&TLS12, BAD_RECORD_MAC, |_| {
        framed(DATA, b"GET / HTTP/1.1\r\nHost: chat.test\r\n\r\n")
    })
    .await;
}

#[tokio::test]
async fn an_empty_alert_or_handshake_record_is_unexpected() {
    refused_by_vestibule(&TLS13, UNEXPECTED_MESSAGE, |client| {
        client.tx.seal(HANDSHAKE, b"")
    })
    .await;
    refused_by_vestibule(&TLS13, UNEXPECTED_MESSAGE, |client| {
        client.tx.seal(ALERT, b"")
    })
    .await;
    refused_by_vestibule(&TLS12, UNEXPECTED_MESSAGE, |client| {
        client.tx.seal(HANDSHAKE, b"")
    })
    .await;
}

#[tokio::test]
async fn an_alert_of_another_length_cannot_be_decoded() {
    for version in BOTH {
        refused_by_vestibule(version, DECODE_ERROR, |client| {
            client.tx.seal(ALERT, &[1, 0, 0])
        })
        .await;
    }
}

#[tokio::test]
async fn another_version_in_a_record_header_is_protocol_version_in_tls12() {
    refused_by_vestibule(&TLS12, PROTOCOL_VERSION, |client| {
        let mut record = client.tx.seal(DATA, b"of another version");
        record[2] = 1;
        record
    })
    .await;
}

#[tokio::test]
async fn data_inside_a_handshake_message_is_unexpected() {
    refused_by_vestibule(&TLS13, UNEXPECTED_MESSAGE, |client| {
        [
            client.tx.seal(HANDSHAKE, &KEY_UPDATE[..3]),
            client.tx.seal(DATA, b"too early"),
        ]
        .concat()
    })
    .await;
}

async fn a_key_update_is_followed(which: Which) {
    let backend = EchoBackend::start();
    let front = Front::start(which, backend.addr()).await;
    for suite in rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES
        .iter()
        .filter(|suite| suite.tls13().is_some())
    {
        let mut client = RecordClient::connect(front.addr(), &Offer::default().suite(*suite)).await;
        client.send_record(DATA, b"old key").await;
        assert_eq!(client.data(7).await, b"old key");
        client.send_record(HANDSHAKE, &KEY_UPDATE).await;
        client.tx.update();
        client.send_record(DATA, b"new key").await;
        // Not asked for, so the server's key stays: this would not open otherwise.
        assert_eq!(client.data(7).await, b"new key");
        client.close_notify().await;
        assert_eq!(client.alert().await, (vec![], [1, 0]));
    }
    front
        .metric_becomes("vestibule_key_updates_total", &[("direction", "up")], 3)
        .await;
    front
        .metric_becomes("vestibule_key_updates_total", &[("direction", "down")], 0)
        .await;
}

async fn a_key_update_with_a_request_is_answered_before_the_next_data(which: Which) {
    let backend = EchoBackend::start();
    let front = Front::start(which, backend.addr()).await;
    for suite in rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES
        .iter()
        .filter(|suite| suite.tls13().is_some())
    {
        let mut client = RecordClient::connect(front.addr(), &Offer::default().suite(*suite)).await;
        for round in 0..3u8 {
            client.send_record(HANDSHAKE, &KEY_UPDATE_REQUESTED).await;
            client.tx.update();
            client.send_record(DATA, &[round; 9]).await;
            assert_eq!(
                client.receive().await,
                Received::Record(HANDSHAKE, KEY_UPDATE.to_vec())
            );
            client.rx.update();
            assert_eq!(
                client.receive().await,
                Received::Record(DATA, vec![round; 9])
            );
        }
    }
    front
        .metric_becomes("vestibule_key_updates_total", &[("direction", "up")], 9)
        .await;
    front
        .metric_becomes("vestibule_key_updates_total", &[("direction", "down")], 9)
        .await;
}

async fn key_updates_between_data_may_go_on_for_ever(which: Which) {
    let backend = EchoBackend::start();
    let front = Front::start(which, backend.addr()).await;
    let mut client = RecordClient::connect(front.addr(), &Offer::default()).await;
    for round in 0..100u8 {
        client.send_record(HANDSHAKE, &KEY_UPDATE).await;
        client.tx.update();
        client.send_record(DATA, &[round; 3]).await;
        assert_eq!(client.data(3).await, [round; 3]);
    }
}

async fn a_key_update_in_two_records_is_one_message(which: Which) {
    let backend = EchoBackend::start();
    let front = Front::start(which, backend.addr()).await;
    for cut in 1..KEY_UPDATE.len() {
        let mut client = RecordClient::connect(front.addr(), &Offer::default()).await;
        client
            .send_record(HANDSHAKE, &KEY_UPDATE_REQUESTED[..cut])
            .await;
        client
            .send_record(HANDSHAKE, &KEY_UPDATE_REQUESTED[cut..])
            .await;
        client.tx.update();
        client.send_record(DATA, b"new key").await;
        assert_eq!(
            client.receive().await,
            Received::Record(HANDSHAKE, KEY_UPDATE.to_vec())
        );
        client.rx.update();
        assert_eq!(client.data(7).await, b"new key");
    }
}

#[tokio::test]
async fn requests_for_key_updates_while_the_backend_pushes_are_answered_between_its_records() {
    within(30, async {
        let mut backend = RecordingBackend::start();
        let front = Front::start(Which::Vestibule, backend.addr()).await;
        let mut client = RecordClient::connect(front.addr(), &Offer::default()).await;
        let mut back = backend.accept().await;
        let pushing = tokio::spawn(async move {
            let sent = vec![b'd'; 4 << 20];
            back.write_all(&sent).await.unwrap();
            back
        });
        let (mut seen, mut updates) = (0, 0);
        while seen < 4 << 20 {
            match client.receive().await {
                Received::Record(DATA, part) => {
                    assert!(part.iter().all(|byte| *byte == b'd'));
                    seen += part.len();
                    if updates < 5 {
                        client.send_record(HANDSHAKE, &KEY_UPDATE_REQUESTED).await;
                        client.tx.update();
                        client.send_record(DATA, b"u").await;
                        updates += 1;
                    }
                }
                Received::Record(HANDSHAKE, message) => {
                    assert_eq!(message, KEY_UPDATE);
                    client.rx.update();
                }
                other => panic!("{other:?}"),
            }
        }
        drop(pushing.await.unwrap());
    })
    .await;
}

async fn a_renegotiation_in_tls12_is_declined_and_the_connection_goes_on(which: Which) {
    let backend = EchoBackend::start();
    let front = Front::start(which, backend.addr()).await;
    let mut client = RecordClient::connect(front.addr(), &Offer::default().version(&TLS12)).await;
    client.send_record(DATA, b"before").await;
    assert_eq!(client.data(6).await, b"before");
    // A ClientHello such as an old client sends; its header is the record's matter, not the message's.
    let hello = crate::support::client::HandHello {
        legacy_version: 0x0303,
        versions: None,
        suites: vec![0xc02b],
    };
    client.send_record(HANDSHAKE, &hello.record()[5..]).await;
    client.send_record(DATA, b"after").await;
    assert_eq!(
        client.receive().await,
        Received::Record(ALERT, vec![1, NO_RENEGOTIATION])
    );
    assert_eq!(client.data(5).await, b"after");
}

async fn a_fatal_alert_ends_the_connection_without_an_answer(which: Which) {
    for version in BOTH {
        let mut backend = RecordingBackend::start();
        let front = Front::start(which, backend.addr()).await;
        let mut client =
            RecordClient::connect(front.addr(), &Offer::default().version(version)).await;
        client.send_record(DATA, b"before").await;
        let mut back = backend.accept().await;
        assert_eq!(read_exactly(&mut back, 6).await, b"before");
        client.send_record(ALERT, &[2, 80]).await;
        assert_eq!(read_plain(&mut back).await.0, b"");
        assert!(matches!(client.receive().await, Received::End(_)));
        drop((client, back));
        let broken = [("outcome", "client_tls_error")];
        front
            .metric_becomes("vestibule_sessions_ended_total", &broken, 1)
            .await;
        let reason = [("reason", "alert_received")];
        front
            .metric_becomes("vestibule_record_errors_total", &reason, 1)
            .await;
        front.is_idle().await;
    }
}

#[tokio::test]
async fn sound_records_before_a_bad_one_in_the_same_segment_reach_the_backend() {
    within(20, async {
        for version in BOTH {
            let mut backend = RecordingBackend::start();
            let front = Front::start(Which::Vestibule, backend.addr()).await;
            let mut client =
                RecordClient::connect(front.addr(), &Offer::default().version(version)).await;
            let mut bad = client.tx.clone().seal(DATA, b"second");
            let sound = client.tx.seal(DATA, b"first");
            client.tx.seal(DATA, b"second");
            *bad.last_mut().unwrap() ^= 1;
            client.send(&[sound, bad].concat()).await;
            let mut back = backend.accept().await;
            let ((got, _), ()) =
                tokio::join!(read_plain(&mut back), client.expect_fatal(BAD_RECORD_MAC));
            assert_eq!(String::from_utf8_lossy(&got), "first");
        }
    })
    .await;
}
