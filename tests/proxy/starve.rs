//! Who is slow, who is hostile, and what the rest must not suffer from it.

use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::{interval, sleep};
use tokio_rustls::TlsAcceptor;

use crate::support::backend::{EchoBackend, PushBackend};
use crate::support::certs::{fresh_path, pki};
use crate::support::client::Offer;
use crate::support::pattern::Pattern;
use crate::support::record::{DATA, Received, RecordClient};
use crate::support::vestibule::Setup;
use crate::support::{End, connect, read_exactly, within};

/// The smallest pool of one worker: sixteen small buffers.
const SMALLEST: [&str; 6] = [
    "--workers",
    "1",
    "--buffer-pool-size",
    "320KiB",
    "--buffer-size",
    "16KiB",
];

#[tokio::test]
async fn data_glued_to_the_handshake_waits_for_its_backend_outside_the_pool() {
    within(60, async {
        let ca = pki().ca.display().to_string();
        let backend = EchoBackend::start_tls(&pki().chat);
        let vestibule = Setup::new("tls", format!("tls://localhost:{}", backend.addr().port()))
            .args(&SMALLEST)
            .args(&["--backend-ca", &ca])
            .start()
            .await;
        let addr = vestibule.addr();
        // More than the pool has buffers, all at once: each backend's handshake needs one, too.
        let clients = (0..40_u8).map(|number| {
            tokio::spawn(async move {
                let offer = Offer::default();
                let config = std::sync::Arc::new(offer.config());
                let mut client = RecordClient::handshake(addr, &offer, config, |client| {
                    client.tx.seal(DATA, &[number; 700])
                })
                .await;
                assert_eq!(client.data(700).await, [number; 700]);
            })
        });
        for client in clients.collect::<Vec<_>>() {
            client.await.unwrap();
        }
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn clients_that_trickle_records_do_not_keep_buffers_from_others() {
    within(90, async {
        let backend = EchoBackend::start();
        let vestibule = Setup::new("tls", backend.addr())
            .args(&SMALLEST)
            .file("[timeouts]\nstall = \"400ms\"\n")
            .start()
            .await;
        let mut tricklers = Vec::new();
        for number in 0..40 {
            let mut client = RecordClient::connect(vestibule.addr(), &Offer::default()).await;
            tricklers.push(tokio::spawn(async move {
                // A whole record and a part of the next, again and again: a few bytes, or most of it and slower.
                let (part, pace) = if number % 2 == 0 {
                    (3, 150)
                } else {
                    (9_000, 700)
                };
                let mut rest = Vec::new();
                let mut pace = interval(Duration::from_millis(pace));
                loop {
                    pace.tick().await;
                    rest.extend(client.tx.seal(DATA, b"tick"));
                    let mut next = client.tx.seal(DATA, &[7; 10_000]);
                    let later = next.split_off(part);
                    rest.extend(next);
                    if client.tcp.write_all(&rest).await.is_err() {
                        return;
                    }
                    rest = later;
                }
            }));
        }
        for _ in 0..20 {
            let mut client = Offer::default().connect(vestibule.addr()).await;
            client.write_all(b"there and back").await.unwrap();
            client.flush().await.unwrap();
            assert_eq!(read_exactly(&mut client, 14).await, b"there and back");
        }
        for trickler in tricklers {
            trickler.abort();
        }
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn a_slow_reader_who_keeps_reading_is_neither_idle_nor_stalled() {
    within(60, async {
        const PUSH: u64 = 6 << 20;
        let backend = PushBackend::start(3, PUSH, 0);
        let vestibule = Setup::new("tls", backend.addr())
            .args(&["--idle-timeout", "600ms"])
            .start()
            .await;
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(32 << 10).unwrap();
        let tcp = socket.connect(vestibule.addr()).await.unwrap();
        let mut client = Offer::default().over(tcp).await.unwrap();
        let pattern = Pattern::new(3);
        let mut at = 0;
        let mut chunk = vec![0; 128 << 10];
        // The pace is the client's own: less than the kernel's buffers would show for a second.
        let mut pace = interval(Duration::from_millis(100));
        while at < PUSH {
            pace.tick().await;
            let n = client.read(&mut chunk).await.unwrap();
            assert_ne!(n, 0, "cut after {at} bytes: {}", vestibule.said());
            pattern.check(at, &chunk[..n]);
            at += n as u64;
        }
        drop(client);
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn a_unix_backend_with_a_full_queue_is_waited_for() {
    within(60, async {
        let path = fresh_path("full.sock");
        let socket =
            socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
        socket
            .bind(&socket2::SockAddr::unix(&path).unwrap())
            .unwrap();
        socket.listen(2).unwrap();
        socket.set_nonblocking(true).unwrap();
        let listener = tokio::net::UnixListener::from_std(socket.into()).unwrap();
        let vestibule = Setup::new("tls", format!("unix:{}", path.display()))
            .start()
            .await;
        let addr = vestibule.addr();
        let clients = (0..30_u8).map(|number| {
            tokio::spawn(async move {
                let mut client = Offer::default().connect(addr).await;
                client.write_all(&[number; 100]).await.unwrap();
                client.flush().await.unwrap();
                assert_eq!(read_exactly(&mut client, 100).await, [number; 100]);
            })
        });
        let clients: Vec<_> = clients.collect();
        // Nothing is accepted before the queue has overflowed for sure.
        vestibule
            .metric_becomes("vestibule_handshakes_total", &[("kind", "full")], 30)
            .await;
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.into_split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        for client in clients {
            client.await.unwrap();
        }
        assert_eq!(
            vestibule
                .metric(
                    "vestibule_sessions_ended_total",
                    &[("outcome", "no_backend")]
                )
                .await,
            0
        );
    })
    .await;
}

#[tokio::test]
async fn a_backend_that_cuts_its_tls_is_blamed_and_not_the_client_who_complains() {
    within(30, async {
        let ca = pki().ca.display().to_string();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let config = rustls::ServerConfig::builder_with_provider(std::sync::Arc::new(
            rustls::crypto::aws_lc_rs::default_provider(),
        ))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![pki().chat.der.clone()], pki().chat.private_key())
        .unwrap();
        let acceptor = TlsAcceptor::from(std::sync::Arc::new(config));
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = acceptor.accept(stream).await.unwrap();
            read_exactly(&mut stream, 5).await;
            drop(stream); // FIN without close_notify
        });
        let vestibule = Setup::new("tls", format!("tls://localhost:{port}"))
            .args(&["--backend-ca", &ca])
            .start()
            .await;
        let mut client = RecordClient::connect(vestibule.addr(), &Offer::default()).await;
        client.send_data(b"hello").await;
        assert_eq!(client.receive().await, Received::End(End::Fin));
        // As OpenSSL 3 does where close_notify is missing.
        let alert = client.tx.seal(21, &[2, 50]);
        client.send_perhaps(&alert).await;
        drop(client);
        vestibule
            .metric_becomes(
                "vestibule_sessions_ended_total",
                &[("outcome", "backend_truncated")],
                1,
            )
            .await;
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn without_descriptors_the_acceptor_rests_and_serves_again_once_there_are_some() {
    within(60, async {
        let backend = EchoBackend::start();
        let vestibule = Setup::new("tls", backend.addr()).start().await;
        let pid = Pid::from_raw(i32::try_from(vestibule.pid()).unwrap());
        let open = vestibule.metric("vestibule_open_files", &[]).await;
        let usual = getrlimit(Resource::Nofile);
        let set = |current| {
            let limit = Rlimit {
                current,
                maximum: usual.maximum,
            };
            prlimit(pid, Resource::Nofile, limit).unwrap();
        };
        // Room for the admin listener's next client and one connection, then none.
        set(Some(open + 1));
        let mut waiting = Vec::new();
        for _ in 0..4 {
            waiting.push(connect(vestibule.addr()).await);
        }
        sleep(Duration::from_millis(1500)).await; // the time in which a spinning acceptor would fail thousands of times
        set(usual.current);
        let mut client = Offer::default().connect(vestibule.addr()).await;
        client.write_all(b"there and back").await.unwrap();
        client.flush().await.unwrap();
        assert_eq!(read_exactly(&mut client, 14).await, b"there and back");
        let errors = vestibule
            .metric(
                "vestibule_accept_errors_total",
                &[("reason", "process_files")],
            )
            .await;
        assert!((1..=60).contains(&errors), "{errors} failed accepts");
    })
    .await;
}
