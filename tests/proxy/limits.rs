//! Deadlines and bounds: each is kept, counted, and hurts nobody else.

use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::backend::{EchoBackend, RecordingBackend};
use crate::support::client::{HandHello, Offer, TlsClient};
use crate::support::vestibule::{Setup, Vestibule};
use crate::support::{End, connect, end_of, read_exactly, read_plain, read_tls, within};

async fn round_trip(client: &mut TlsClient) {
    client.write_all(b"there and back").await.unwrap();
    client.flush().await.unwrap();
    assert_eq!(read_exactly(client, 14).await, b"there and back");
}

/// A connection that is closed without a byte, perhaps while it is still being made.
async fn assert_refused(vestibule: &Vestibule) {
    match TcpStream::connect(vestibule.addr()).await {
        Ok(mut client) => assert_eq!(read_plain(&mut client).await.0, b""),
        Err(error) => assert_eq!(end_of(&error), End::Reset),
    }
}

/// Half of a ClientHello.
fn half_hello() -> Vec<u8> {
    let mut hello = HandHello {
        legacy_version: 0x0303,
        versions: Some(vec![0x0304]),
        suites: vec![0x1301],
    }
    .record();
    hello.truncate(hello.len() / 2);
    hello
}

#[tokio::test]
async fn silent_and_half_hello_clients_meet_the_handshake_timeout() {
    within(20, async {
        let mut backend = RecordingBackend::start();
        let vestibule = Setup::new("tls", backend.addr())
            .args(&["--handshake-timeout", "400ms"])
            .start()
            .await;
        let began = Instant::now();
        let mut silent = connect(vestibule.addr()).await;
        let mut half = connect(vestibule.addr()).await;
        half.write_all(&half_hello()).await.unwrap();
        // One that goes on sending is no better: the deadline is for the whole handshake.
        let mut dribbling = connect(vestibule.addr()).await;
        let dribble = async {
            let (mut read, mut write) = dribbling.split();
            let dribble = async {
                for byte in half_hello() {
                    if write.write_all(&[byte]).await.is_err() {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            tokio::select! {
                () = dribble => panic!("all bytes were taken"),
                ended = read_plain(&mut read) => ended,
            }
        };
        let ends = tokio::join!(read_plain(&mut silent), read_plain(&mut half), dribble);
        assert!(began.elapsed() >= Duration::from_millis(400));
        for (bytes, _) in [ends.0, ends.1, ends.2] {
            // Nothing, or an alert in the clear.
            assert!(
                matches!(bytes[..], [] | [21, 3, _, 0, 2, ..]),
                "{bytes:02x?}"
            );
        }
        vestibule
            .metric_becomes(
                "vestibule_handshake_failures_total",
                &[("reason", "timeout")],
                3,
            )
            .await;
        assert_eq!(
            vestibule
                .metric("vestibule_handshake_failures_total", &[])
                .await,
            3
        );
        vestibule.is_idle().await;
        assert!(backend.is_unused());
    })
    .await;
}

#[tokio::test]
async fn four_hundred_dead_handshakes_leave_a_login_alone() {
    within(60, async {
        let backend = EchoBackend::start();
        let vestibule = Setup::new("tls", backend.addr()).start().await;
        let mut held: Vec<TcpStream> = Vec::new();
        let hello = half_hello();
        for number in 0..400 {
            let mut client = connect(vestibule.addr()).await;
            if number % 2 == 1 {
                client.write_all(&hello).await.unwrap();
            }
            held.push(client);
        }
        vestibule
            .metric_becomes("vestibule_connections", &[], 400)
            .await;
        // As a login goes: a few exchanges, each waiting for the one before.
        let mut client = Offer::default()
            .alpn(&["xmpp-client"])
            .connect(vestibule.addr())
            .await;
        for _ in 0..8 {
            round_trip(&mut client).await;
        }
        client.shutdown().await.unwrap();
        assert_eq!(read_tls(&mut client).await, (vec![], End::CloseNotify));
        // None of them holds a buffer while it says nothing.
        vestibule
            .metric_becomes("vestibule_pool_leased_bytes", &[], 0)
            .await;
        assert_eq!(vestibule.metric("vestibule_connections", &[]).await, 400);
        drop(held);
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn over_max_connections_a_client_is_refused_at_once_and_counted() {
    within(20, async {
        let backend = EchoBackend::start();
        let vestibule = Setup::new("tls", backend.addr())
            .args(&["--max-connections", "3"])
            .start()
            .await;
        let mut held = Vec::new();
        for _ in 0..3 {
            let mut client = Offer::default().connect(vestibule.addr()).await;
            round_trip(&mut client).await;
            held.push(client);
        }
        for number in 1..=3 {
            assert_refused(&vestibule).await;
            vestibule
                .metric_becomes("vestibule_refused_total", &[], number)
                .await;
        }
        assert_eq!(vestibule.metric("vestibule_connections", &[]).await, 3);
        for client in &mut held {
            round_trip(client).await;
        }
        // A place that becomes free is given away again.
        held.pop();
        vestibule
            .metric_becomes("vestibule_connections", &[], 2)
            .await;
        round_trip(&mut Offer::default().connect(vestibule.addr()).await).await;
        assert_eq!(vestibule.metric("vestibule_refused_total", &[]).await, 3);
    })
    .await;
}

#[tokio::test]
async fn over_max_connections_per_ip_only_that_client_is_refused() {
    within(20, async {
        let backend = EchoBackend::start();
        let vestibule = Setup::new("tls", backend.addr())
            .args(&["--max-connections-per-ip", "2"])
            .start()
            .await;
        let mut held = Vec::new();
        for _ in 0..2 {
            let mut client = Offer::default().connect(vestibule.addr()).await;
            round_trip(&mut client).await;
            held.push(client);
        }
        assert_refused(&vestibule).await;
        vestibule
            .metric_becomes("vestibule_refused_total", &[], 1)
            .await;
        // Another address of the loopback net is another client.
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let other = socket.connect(vestibule.addr()).await.unwrap();
        round_trip(&mut Offer::default().over(other).await.unwrap()).await;
        held.clear();
        vestibule.is_idle().await;
        round_trip(&mut Offer::default().connect(vestibule.addr()).await).await;
        assert_eq!(vestibule.metric("vestibule_refused_total", &[]).await, 1);
    })
    .await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_a_busy_one_is_not() {
    within(20, async {
        let backend = EchoBackend::start();
        let vestibule = Setup::new("tls", backend.addr())
            .args(&["--idle-timeout", "600ms"])
            .start()
            .await;
        let mut idle = Offer::default().connect(vestibule.addr()).await;
        let mut busy = Offer::default().connect(vestibule.addr()).await;
        round_trip(&mut idle).await;
        let ended = async {
            let began = Instant::now();
            let (bytes, _) = read_tls(&mut idle).await;
            assert_eq!(bytes, b"");
            began.elapsed()
        };
        tokio::pin!(ended);
        let after = loop {
            tokio::select! {
                after = &mut ended => break after,
                () = tokio::time::sleep(Duration::from_millis(100)) => round_trip(&mut busy).await,
            }
        };
        assert!(after >= Duration::from_millis(500), "{after:?}");
        round_trip(&mut busy).await;
        vestibule
            .metric_becomes(
                "vestibule_sessions_ended_total",
                &[("outcome", "idle_timeout")],
                1,
            )
            .await;
        vestibule
            .metric_becomes("vestibule_connections", &[], 1)
            .await;
    })
    .await;
}

#[tokio::test]
async fn without_an_idle_timeout_a_silent_connection_stays() {
    within(20, async {
        let backend = EchoBackend::start();
        let vestibule = Setup::new("tls", backend.addr())
            .args(&["--handshake-timeout", "300ms"])
            .start()
            .await;
        let mut client = Offer::default().connect(vestibule.addr()).await;
        round_trip(&mut client).await;
        // The handshake's deadline must not outlive the handshake.
        let silence = tokio::time::timeout(Duration::from_millis(900), read_tls(&mut client)).await;
        assert!(silence.is_err(), "ended: {silence:?}");
        round_trip(&mut client).await;
        // An idle connection holds no buffer at all.
        vestibule
            .metric_becomes("vestibule_pool_leased_bytes", &[], 0)
            .await;
        assert_eq!(vestibule.metric("vestibule_connections", &[]).await, 1);
    })
    .await;
}
