//! Bytes go through unchanged, both ways, however they are cut.

use tokio::io::{AsyncWriteExt, split};

use crate::against_all;
use crate::support::backend::{EchoBackend, PushBackend};
use crate::support::client::Offer;
use crate::support::oracle::{Front, Which};
use crate::support::pattern::Pattern;
use crate::support::record::{DATA, RecordClient};
use crate::support::{End, read_exactly, read_tls, within};

against_all! {
    20 small_messages_come_back_as_they_went;
    60 sixty_four_mebibytes_both_ways_at_once_arrive_unchanged;
    30 every_length_around_a_record_arrives_unchanged;
}

async fn small_messages_come_back_as_they_went(which: Which) {
    let backend = EchoBackend::start();
    let front = Front::start(which, backend.addr()).await;
    let mut client = Offer::default().connect(front.addr()).await;
    let bytes = Pattern::new(5).bytes(200 * 97);
    let mut total = 0;
    for (round, block) in bytes.chunks(97).enumerate() {
        let message = &block[..1 + round % 97];
        client.write_all(message).await.unwrap();
        client.flush().await.unwrap();
        assert_eq!(read_exactly(&mut client, message.len()).await, message);
        total += message.len() as u64;
    }
    client.shutdown().await.unwrap();
    assert_eq!(read_tls(&mut client).await, (vec![], End::CloseNotify));
    for direction in ["up", "down"] {
        front
            .metric_becomes("vestibule_bytes_total", &[("direction", direction)], total)
            .await;
    }
    front.is_idle().await;
}

async fn sixty_four_mebibytes_both_ways_at_once_arrive_unchanged(which: Which) {
    const LEN: u64 = 64 << 20;
    let backend = PushBackend::start(7, LEN, LEN);
    let front = Front::start(which, backend.addr()).await;
    let (mut read, mut write) = split(Offer::default().connect(front.addr()).await);
    let (down, up) = (Pattern::new(7), Pattern::new(8));
    let sending = async {
        up.write(&mut write, LEN).await.unwrap();
        write.shutdown().await.unwrap();
    };
    let receiving = async {
        down.verify(&mut read, LEN).await;
        assert_eq!(read_tls(&mut read).await, (vec![], End::CloseNotify));
    };
    tokio::join!(sending, receiving);
    for direction in ["up", "down"] {
        front
            .metric_becomes("vestibule_bytes_total", &[("direction", direction)], LEN)
            .await;
    }
    front.is_idle().await;
}

async fn every_length_around_a_record_arrives_unchanged(which: Which) {
    let backend = EchoBackend::start();
    let front = Front::start(which, backend.addr()).await;
    let pattern = Pattern::new(3);
    let mut client = Offer::default().connect(front.addr()).await;
    for len in [
        1, 2, 16_383, 16_384, 16_385, 32_767, 32_768, 32_769, 65_535, 65_536, 65_537, 200_000,
    ] {
        let message = pattern.bytes(len);
        let (mut read, mut write) = split(&mut client);
        let sending = async {
            write.write_all(&message).await.unwrap();
            write.flush().await.unwrap();
        };
        let ((), echoed) = tokio::join!(sending, read_exactly(&mut read, len));
        assert!(echoed == message, "{len} bytes came back changed");
    }
}

#[tokio::test]
async fn records_of_every_size_and_padding_carry_their_bytes() {
    within(30, async {
        let backend = EchoBackend::start();
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let front = Front::start(Which::Vestibule, backend.addr()).await;
            let mut client =
                RecordClient::connect(front.addr(), &Offer::default().version(version)).await;
            let pattern = Pattern::new(11);
            for len in [1, 15, 16, 17, 1_000, 16_383, 16_384] {
                client.send_record(DATA, &pattern.bytes(len)).await;
                assert!(client.data(len).await == pattern.bytes(len), "{len}");
            }
            if version.version == rustls::ProtocolVersion::TLSv1_3 {
                for padding in [1, 255, 16_000] {
                    let inner = [b"padded", &[DATA][..], &vec![0; padding]].concat();
                    let record = client.tx.seal_inner(&inner);
                    client.send(&record).await;
                    assert_eq!(client.data(6).await, b"padded");
                }
                // The most that the protocol allows: 2^14 of content and its type (RFC 8446 section 5.2).
                let inner = [b"full", &[DATA][..], &vec![0; (1 << 14) - 4]].concat();
                let record = client.tx.seal_inner(&inner);
                client.send(&record).await;
                assert_eq!(client.data(4).await, b"full");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_record_dribbled_byte_by_byte_is_one_record() {
    within(30, async {
        let backend = EchoBackend::start();
        let front = Front::start(Which::Vestibule, backend.addr()).await;
        let mut client = RecordClient::connect(front.addr(), &Offer::default()).await;
        let records = [
            client.tx.seal(DATA, b"first"),
            client.tx.seal(DATA, b"second"),
        ]
        .concat();
        for byte in &records {
            client.send(&[*byte]).await;
            tokio::task::yield_now().await;
        }
        assert_eq!(client.data(11).await, b"firstsecond");
        // And the other way round: many in one segment.
        let many: Vec<u8> = (0..200u8)
            .flat_map(|n| client.tx.seal(DATA, &[n]))
            .collect();
        client.send(&many).await;
        assert_eq!(client.data(200).await, (0..200).collect::<Vec<u8>>());
    })
    .await;
}
