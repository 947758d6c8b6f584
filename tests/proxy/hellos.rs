//! How a handshake may arrive, and what first bytes that are none are answered.

use std::sync::Arc;

use rustls::version::{TLS12, TLS13};
use tokio::io::{AsyncReadExt, AsyncWriteExt, split};

use crate::against_all;
use crate::support::backend::{EchoBackend, RecordingBackend};
use crate::support::client::{HandHello, Offer, OneByteClient};
use crate::support::oracle::{Front, Which};
use crate::support::record::{DATA, RecordClient, framed};
use crate::support::vestibule::{Setup, Vestibule};
use crate::support::{End, connect, read_exactly, read_plain, within};

against_all! {
    30 a_hello_byte_by_byte_is_a_hello;
    30 a_hello_in_several_records_is_a_hello;
    30 a_hello_over_several_segments_and_records_is_a_hello;
    30 data_glued_to_finished_arrives;
    60 every_later_connection_resumes_whichever_worker_answers;
}

async fn echoes(stream: impl AsyncReadExt + tokio::io::AsyncWrite + Unpin, message: &[u8]) {
    let (mut read, mut write) = split(stream);
    write.write_all(message).await.unwrap();
    write.flush().await.unwrap();
    assert_eq!(read_exactly(&mut read, message.len()).await, message);
}

async fn a_hello_byte_by_byte_is_a_hello(which: Which) {
    let backend = EchoBackend::start();
    let front = Front::start(which, backend.addr()).await;
    for version in [&TLS12, &TLS13] {
        let slow = OneByteClient::connect(front.addr(), 4_000).await;
        let client = Offer::default().version(version).over(slow).await.unwrap();
        echoes(client, b"slow but sure").await;
    }
}

async fn a_hello_in_several_records_is_a_hello(which: Which) {
    let backend = EchoBackend::start();
    let front = Front::start(which, backend.addr()).await;
    // In two, in many, and in the smallest that rustls makes.
    for fragment in [1_000, 100, 32] {
        let offer = Offer {
            fragment: Some(fragment),
            ..Offer::default()
        };
        echoes(offer.connect(front.addr()).await, b"whole again").await;
        let slow = OneByteClient::connect(front.addr(), 400).await;
        echoes(offer.over(slow).await.unwrap(), b"whole again").await;
    }
}

async fn a_hello_over_several_segments_and_records_is_a_hello(which: Which) {
    let backend = EchoBackend::start();
    let front = Front::start(which, backend.addr()).await;
    // 200 names of 250 bytes: 50 KiB in four records.
    let names: Vec<String> = (0..200).map(|n| format!("{n:0250}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    echoes(
        Offer::default().alpn(&names).connect(front.addr()).await,
        b"heard you out",
    )
    .await;
}

async fn data_glued_to_finished_arrives(which: Which) {
    let backend = EchoBackend::start();
    let front = Front::start(which, backend.addr()).await;
    let offer = Offer::default().version(&TLS13);
    // One record, several, and more than one read takes.
    for records in [1, 3, 40] {
        let mut client =
            RecordClient::handshake(front.addr(), &offer, Arc::new(offer.config()), |client| {
                (0..records)
                    .flat_map(|n| client.tx.seal(DATA, &vec![n; 5_000]))
                    .collect()
            })
            .await;
        let expected: Vec<u8> = (0..records).flat_map(|n| vec![n; 5_000]).collect();
        assert!(
            client.data(expected.len()).await == expected,
            "{records} records"
        );
    }
    // In TLS 1.2 the client speaks last only when it resumes.
    let offer = Offer::default().version(&TLS12);
    let config = Arc::new(offer.config());
    let glued = |client: &mut RecordClient| client.tx.seal(DATA, b"glued");
    let mut first = RecordClient::handshake(front.addr(), &offer, Arc::clone(&config), glued).await;
    assert_eq!(first.data(5).await, b"glued");
    let mut second = RecordClient::handshake(front.addr(), &offer, config, glued).await;
    assert_eq!(second.data(5).await, b"glued");
    assert!(second.resumed);
}

#[tokio::test]
async fn half_a_record_glued_to_finished_waits_for_its_other_half() {
    within(20, async {
        let backend = EchoBackend::start();
        let front = Front::start(Which::Vestibule, backend.addr()).await;
        let offer = Offer::default();
        let mut rest = Vec::new();
        let mut client =
            RecordClient::handshake(front.addr(), &offer, Arc::new(offer.config()), |client| {
                let mut record = client.tx.seal(DATA, &[b'h'; 16_384]);
                rest = record.split_off(3);
                record
            })
            .await;
        client.send(&rest).await;
        assert!(client.data(16_384).await == [b'h'; 16_384]);
    })
    .await;
}

async fn every_later_connection_resumes_whichever_worker_answers(which: Which) {
    const CONNECTIONS: u64 = 24;
    let backend = EchoBackend::start();
    for version in [&TLS12, &TLS13] {
        let front = Front::start(which, backend.addr()).await;
        let offer = Offer::default().version(version);
        let config = Arc::new(offer.config());
        // All are held: the workers take turns then.
        let mut held = Vec::new();
        for number in 0..CONNECTIONS {
            let connector = tokio_rustls::TlsConnector::from(Arc::clone(&config));
            let stream = connect(front.addr()).await;
            let mut client = connector
                .connect(offer.server_name(), stream)
                .await
                .unwrap();
            client.write_all(b"?").await.unwrap();
            client.flush().await.unwrap();
            assert_eq!(read_exactly(&mut client, 1).await, b"?");
            let kind = client.get_ref().1.handshake_kind().unwrap();
            if matches!(which, Which::Oracle) && *version == TLS12 {
                // Its session cache is good for one resumption at a time; not what is tested here.
                continue;
            }
            let expected = if number == 0 {
                rustls::HandshakeKind::Full
            } else {
                rustls::HandshakeKind::Resumed
            };
            // A retry for another key share is a full handshake, too, but none happens with rustls on both sides.
            assert_eq!(kind, expected, "connection {number}, {version:?}");
            held.push(client);
        }
        front
            .metric_becomes("vestibule_handshakes_total", &[("kind", "full")], 1)
            .await;
        front
            .metric_becomes(
                "vestibule_handshakes_total",
                &[("kind", "resumed")],
                CONNECTIONS - 1,
            )
            .await;
    }
}

/// Everything that the listener answers to these first bytes, and how it ends.
async fn answer_to(vestibule: &Vestibule, bytes: &[u8]) -> (Vec<u8>, End) {
    let mut client = connect(vestibule.addr()).await;
    client.write_all(bytes).await.unwrap();
    read_plain(&mut client).await
}

/// A fatal alert in the clear; the minor version is the sender's choice before one is agreed on.
fn assert_alert(answer: &[u8], description: u8) {
    assert!(
        matches!(answer, [21, 3, 1..=3, 0, 2, 2, own] if *own == description),
        "not the alert {description}: {answer:02x?}"
    );
}

#[tokio::test]
async fn plain_http_on_a_tls_port_gets_an_alert_and_a_debug_line_that_says_so() {
    within(20, async {
        let mut backend = RecordingBackend::start();
        let vestibule = Setup::new("tls", backend.addr()).start().await;
        let (answer, _) = answer_to(&vestibule, b"GET / HTTP/1.1\r\nHost: chat.test\r\n\r\n").await;
        assert_alert(&answer, 10);
        vestibule
            .metric_becomes(
                "vestibule_handshake_failures_total",
                &[("reason", "not_tls")],
                1,
            )
            .await;
        assert_eq!(
            vestibule
                .metric("vestibule_handshake_failures_total", &[])
                .await,
            1
        );
        assert_eq!(vestibule.metric("vestibule_handshakes_total", &[]).await, 0);
        vestibule.is_idle().await;
        vestibule.says("HTTP").await;
        assert!(backend.is_unused());
    })
    .await;
}

#[tokio::test]
async fn first_bytes_that_are_no_hello_get_an_alert_and_reach_no_backend() {
    within(30, async {
        let mut backend = RecordingBackend::start();
        let vestibule = Setup::new("tls", backend.addr()).start().await;
        let cases: [(&[u8], u8); 8] = [
            (b"<?xml version='1.0'?><stream:stream to='chat.test'>", 10),
            (b"SSH-2.0-OpenSSH_9.2\r\n", 10),
            (&[0; 64], 10),
            // SSL 2's ClientHello.
            (&[0x80, 0x2e, 0x01, 0x03, 0x01, 0x00, 0x15], 10),
            // Data, and a ChangeCipherSpec, before anything else.
            (&framed(DATA, b"early"), 10),
            (&framed(20, &[1]), 10),
            // A record that no buffer should wait for.
            (&[22, 3, 1, 0xff, 0xff], 22),
            // An empty handshake record.
            (&framed(22, b""), 10),
        ];
        for (number, (bytes, description)) in cases.iter().enumerate() {
            let (answer, _) = answer_to(&vestibule, bytes).await;
            assert_alert(&answer, *description);
            vestibule
                .metric_becomes("vestibule_handshake_failures_total", &[], number as u64 + 1)
                .await;
        }
        vestibule.is_idle().await;
        assert!(backend.is_unused());
    })
    .await;
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_its_hello_is_counted_and_forgotten() {
    within(30, async {
        let mut backend = RecordingBackend::start();
        let vestibule = Setup::new("tls", backend.addr()).start().await;
        let hello = HandHello {
            legacy_version: 0x0303,
            versions: None,
            suites: vec![0xc02b],
        }
        .record();
        for (number, len) in [1, 4, 5, 6, 50, hello.len() - 1].into_iter().enumerate() {
            let mut client = connect(vestibule.addr()).await;
            client.write_all(&hello[..len]).await.unwrap();
            client.shutdown().await.unwrap();
            assert_eq!(read_plain(&mut client).await.0, b"", "{len} bytes");
            vestibule
                .metric_becomes("vestibule_handshake_failures_total", &[], number as u64 + 1)
                .await;
        }
        vestibule.is_idle().await;
        assert!(backend.is_unused());
    })
    .await;
}

#[tokio::test]
async fn a_hello_without_end_is_refused_before_it_costs_memory() {
    within(30, async {
        let backend = EchoBackend::start();
        let vestibule = Setup::new("tls", backend.addr()).start().await;
        // A ClientHello of 16 MiB less one byte, as far as it gets.
        let mut client = connect(vestibule.addr()).await;
        let mut first = vec![1, 0xff, 0xff, 0xff, 3, 3];
        first.resize(16_384, 0);
        let sending = async {
            let (mut read, mut write) = client.split();
            let sending = async {
                write.write_all(&framed(22, &first)).await?;
                loop {
                    write.write_all(&framed(22, &[0; 16_384])).await?;
                }
            };
            let (_, (answer, _)): (std::io::Result<()>, _) =
                tokio::join!(sending, read_plain(&mut read));
            answer
        };
        let answer = sending.await;
        assert!(
            matches!(answer[..], [21, 3, _, 0, 2, 2, _]),
            "{answer:02x?}"
        );
        vestibule
            .metric_becomes("vestibule_handshake_failures_total", &[], 1)
            .await;
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn a_hello_that_says_it_is_too_long_gets_an_alert() {
    within(20, async {
        let mut backend = RecordingBackend::start();
        let vestibule = Setup::new("tls", backend.addr()).start().await;
        let mut first = vec![1, 0xff, 0xff, 0xff, 3, 3];
        first.resize(16_384, 0);
        let (answer, _) = answer_to(&vestibule, &framed(22, &first)).await;
        assert!(
            matches!(answer[..], [21, 3, _, 0, 2, 2, _]),
            "{answer:02x?}"
        );
        vestibule
            .metric_becomes("vestibule_handshake_failures_total", &[], 1)
            .await;
        assert!(backend.is_unused());
    })
    .await;
}
