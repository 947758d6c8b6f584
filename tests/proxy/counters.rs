//! Counters are exact, whoever looks at them meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::backend::EchoBackend;
use crate::support::client::Offer;
use crate::support::vestibule::Setup;
use crate::support::xmpp::{Way, XmppBackend, door};
use crate::support::{End, read_tls, within};

const BYTES: &str = "vestibule_bytes_total";
const TOOK: &str = "vestibule_handshake_duration_seconds";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_while_somebody_scrapes_all_the_time() {
    const CLIENTS: u64 = 24;
    const MESSAGES: u64 = 60;
    within(60, async {
        let backend = EchoBackend::start();
        let vestibule = Arc::new(Setup::new("tls", backend.addr()).start().await);
        let scrapes = Arc::new(AtomicU64::new(0));
        let over = Arc::new(AtomicBool::new(false));
        let scraper = tokio::spawn({
            let (vestibule, scrapes, over) = (vestibule.clone(), scrapes.clone(), over.clone());
            async move {
                let (mut bytes, mut handshakes) = (0, 0);
                while !over.load(Relaxed) {
                    let now = vestibule.metric(BYTES, &[]).await;
                    assert!(now >= bytes, "{now} bytes after {bytes}");
                    bytes = now;
                    let now = vestibule.metric("vestibule_handshakes_total", &[]).await;
                    assert!(now >= handshakes, "{now} handshakes after {handshakes}");
                    handshakes = now;
                    scrapes.fetch_add(1, Relaxed);
                }
            }
        });
        let mut clients = Vec::new();
        for number in 0..CLIENTS {
            let addr = vestibule.addr();
            clients.push(tokio::spawn(async move {
                let mut client = Offer::default().connect(addr).await;
                let mut sent = 0;
                for message in 0..MESSAGES {
                    // From a chat message to several records.
                    let len = 1 + (number * 7 + message * 911) % 40_000;
                    let message = vec![message as u8; len as usize];
                    client.write_all(&message).await.unwrap();
                    let mut back = vec![0; message.len()];
                    client.read_exact(&mut back).await.unwrap();
                    assert_eq!(back, message);
                    sent += len;
                }
                client.shutdown().await.unwrap();
                assert_eq!(read_tls(&mut client).await, (Vec::new(), End::CloseNotify));
                sent
            }));
        }
        let mut sent = 0;
        for client in clients {
            sent += client.await.unwrap();
        }
        vestibule.is_idle().await;
        over.store(true, Relaxed);
        scraper.await.unwrap();
        assert!(scrapes.load(Relaxed) > 5, "{scrapes:?}");

        for direction in ["up", "down"] {
            let labels = [("direction", direction)];
            vestibule.metric_becomes(BYTES, &labels, sent).await;
        }
        for (name, labels) in [
            ("vestibule_connections_total", &[][..]),
            ("vestibule_handshakes_total", &[]),
            ("vestibule_handshake_duration_seconds_count", &[]),
            (
                "vestibule_handshake_duration_seconds_bucket",
                &[("le", "+Inf")],
            ),
            ("vestibule_sessions_ended_total", &[("outcome", "closed")]),
            ("vestibule_sessions_ended_total", &[]),
            ("vestibule_dials_total", &[("outcome", "ok")]),
        ] {
            assert_eq!(vestibule.metric(name, labels).await, CLIENTS, "{name}");
        }
    })
    .await;
}

#[tokio::test]
async fn completed_handshakes_have_a_duration_and_failed_ones_none() {
    within(30, async {
        let backend = XmppBackend::start();
        let vestibule = door("auto", backend.addr(), "").start().await;
        let count = format!("{TOOK}_count");
        assert_eq!(vestibule.metric(&count, &[]).await, 0);
        let mut strange = crate::support::connect(vestibule.addr()).await;
        strange
            .write_all(b"\x16\x03\x01\x00\x01\x00")
            .await
            .unwrap();
        strange.shutdown().await.unwrap();
        let _ = strange.read_to_end(&mut Vec::new()).await;
        vestibule
            .metric_becomes("vestibule_handshake_failures_total", &[], 1)
            .await;
        assert_eq!(vestibule.metric(&count, &[]).await, 0);
        for (number, way) in [Way::Starttls, Way::Direct].into_iter().enumerate() {
            let mut client = way.connect(vestibule.addr()).await;
            client.login().await;
            assert_eq!(vestibule.metric(&count, &[]).await, number as u64 + 1);
        }
        let (_, page) = vestibule.get("/metrics").await;
        assert!(page.contains(&format!("# TYPE {TOOK} histogram")), "{page}");
        let sum = page
            .lines()
            .find(|line| line.starts_with(&format!("{TOOK}_sum")));
        let sum: f64 = sum.unwrap().rsplit(' ').next().unwrap().parse().unwrap();
        assert!(sum > 0.0 && sum < 20.0, "{sum}");
        let long = [("le", "10")];
        let bucket = format!("{TOOK}_bucket");
        assert_eq!(vestibule.metric(&bucket, &long).await, 2);
    })
    .await;
}
