//! Where connections go: balancing, fail-over, Unix sockets, TLS to the backend, and backends that are not there.

use std::net::SocketAddr;

use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncWriteExt, split};

use crate::support::backend::{EchoBackend, PushBackend, UnixEchoBackend};
use crate::support::certs::{Kind, pki};
use crate::support::client::{Offer, TlsClient};
use crate::support::pattern::Pattern;
use crate::support::vestibule::Setup;
use crate::support::{End, ports, read_exactly, read_tls, within};

async fn round_trip(client: &mut TlsClient, message: &[u8]) {
    client.write_all(message).await.unwrap();
    client.flush().await.unwrap();
    assert_eq!(read_exactly(client, message.len()).await, message);
}

#[tokio::test]
async fn connections_are_spread_over_the_backends_evenly() {
    within(30, async {
        let backends = [EchoBackend::start(), EchoBackend::start()];
        let addrs = [
            backends[0].addr().to_string(),
            backends[1].addr().to_string(),
        ];
        let vestibule = Setup::default().listener("tls", &addrs).start().await;
        let mut held = Vec::new();
        for _ in 0..20 {
            let mut client = Offer::default().connect(vestibule.addr()).await;
            round_trip(&mut client, b"spread").await;
            held.push(client);
        }
        assert_eq!(backends[0].served() + backends[1].served(), 20);
        // Each of the workers spreads its own, so that an uneven share of one is possible, not of all.
        assert!(
            backends[0].served().abs_diff(backends[1].served()) <= 2,
            "{} and {}",
            backends[0].served(),
            backends[1].served()
        );
        assert_eq!(
            vestibule.metric("vestibule_backend_connections", &[]).await,
            20
        );
        for addr in &addrs {
            let now = vestibule
                .metric("vestibule_backend_connections", &[("backend", addr)])
                .await;
            assert!((9..=11).contains(&now), "{addr}: {now}");
        }
        drop(held);
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn a_backend_that_refuses_costs_no_client_its_connection_while_another_serves() {
    within(30, async {
        let good = EchoBackend::start();
        let addrs = [ports::free().to_string(), good.addr().to_string()];
        let vestibule = Setup::default().listener("tls", &addrs).start().await;
        for _ in 0..10 {
            let mut client = Offer::default().connect(vestibule.addr()).await;
            round_trip(&mut client, b"served all the same").await;
        }
        assert_eq!(good.served(), 10);
        let failed = vestibule
            .metric("vestibule_dials_total", &[("backend", &addrs[0])])
            .await;
        assert!(failed >= 1, "the one that refuses was tried");
        assert_eq!(
            vestibule
                .metric("vestibule_dials_total", &[("backend", &addrs[1])])
                .await,
            10
        );
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn a_backend_that_refuses_ends_the_clients_connection_and_is_counted() {
    within(20, async {
        let nobody = ports::free();
        let vestibule = Setup::new("tls", nobody).start().await;
        for number in 1..=2 {
            let (bytes, _) = match Offer::default().try_connect(vestibule.addr()).await {
                Ok(mut client) => read_tls(&mut client).await,
                // The end may come before the client has read the server's last flight.
                Err(_) => (vec![], End::Reset),
            };
            assert_eq!(bytes, b"");
            let labels = [("backend", &*nobody.to_string())];
            vestibule
                .metric_becomes("vestibule_dials_total", &labels, number)
                .await;
            vestibule
                .metric_becomes("vestibule_sessions_ended_total", &[], number)
                .await;
        }
        vestibule
            .metric_becomes(
                "vestibule_sessions_ended_total",
                &[("outcome", "closed")],
                0,
            )
            .await;
        vestibule.is_idle().await;
    })
    .await;
}

/// An address whose accept queue is full, so that it answers a new connection with nothing at all.
struct Unanswering {
    addr: SocketAddr,
    _held: Vec<Socket>,
}

impl Unanswering {
    fn start() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let addr = ports::free();
        socket.bind(&addr.into()).unwrap();
        socket.listen(0).unwrap();
        let mut held = vec![socket];
        // The queue takes one or two; the rest stay without an answer.
        for _ in 0..4 {
            let filler = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            filler.set_nonblocking(true).unwrap();
            let _ = filler.connect(&addr.into());
            held.push(filler);
        }
        Self { addr, _held: held }
    }
}

#[tokio::test]
async fn a_backend_that_does_not_answer_is_given_up_after_the_connect_timeout() {
    within(20, async {
        let silent = Unanswering::start();
        let good = EchoBackend::start();
        let alone = Setup::new("tls", silent.addr)
            .args(&["--connect-timeout", "300ms"])
            .start()
            .await;
        let mut client = Offer::default().connect(alone.addr()).await;
        assert_eq!(read_tls(&mut client).await.0, b"");
        let labels = [("backend", &*silent.addr.to_string())];
        alone
            .metric_becomes("vestibule_dials_total", &labels, 1)
            .await;
        alone.is_idle().await;

        let addrs = [silent.addr.to_string(), good.addr().to_string()];
        let vestibule = Setup::default()
            .listener("tls", &addrs)
            .args(&["--connect-timeout", "300ms"])
            .start()
            .await;
        for _ in 0..4 {
            let mut client = Offer::default().connect(vestibule.addr()).await;
            round_trip(&mut client, b"by the other").await;
        }
        assert_eq!(good.served(), 4);
    })
    .await;
}

#[tokio::test]
async fn a_unix_socket_is_a_backend() {
    within(20, async {
        let backend = UnixEchoBackend::start();
        let vestibule = Setup::new("tls", format!("unix:{}", backend.path().display()))
            .start()
            .await;
        let mut client = Offer::default().connect(vestibule.addr()).await;
        round_trip(&mut client, &Pattern::new(5).bytes(100_000)).await;
        client.shutdown().await.unwrap();
        assert_eq!(read_tls(&mut client).await, (vec![], End::CloseNotify));
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn a_tls_backend_is_verified_and_served() {
    within(60, async {
        let ca = pki().ca.display().to_string();
        for kind in [Kind::Ecdsa, Kind::Rsa, Kind::Ed25519] {
            let backend = EchoBackend::start_tls(&pki().issue(kind, &["localhost"]));
            let to = format!("tls://localhost:{}", backend.addr().port());
            let vestibule = Setup::new("tls", to)
                .args(&["--backend-ca", &ca])
                .start()
                .await;
            let (mut read, mut write) = split(Offer::default().connect(vestibule.addr()).await);
            let pattern = Pattern::new(6);
            let sending = async {
                pattern.write(&mut write, 1 << 20).await.unwrap();
                write.shutdown().await.unwrap();
            };
            // close_notify travels through both TLS connections, there and back.
            let receiving = async {
                pattern.verify(&mut read, 1 << 20).await;
                assert_eq!(read_tls(&mut read).await, (vec![], End::CloseNotify));
            };
            tokio::join!(sending, receiving);
            vestibule
                .metric_becomes(
                    "vestibule_sessions_ended_total",
                    &[("outcome", "closed")],
                    1,
                )
                .await;
            vestibule.is_idle().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_tls_backend_that_cannot_be_verified_gets_no_byte_of_a_client() {
    within(30, async {
        let ca = pki().ca.display().to_string();
        let other = EchoBackend::start_tls(&pki().issue(Kind::Ecdsa, &["other.test"]));
        let good = EchoBackend::start_tls(&pki().issue(Kind::Ecdsa, &["localhost"]));
        let plain = EchoBackend::start();
        let cases: [(&str, u16, &[&str]); 3] = [
            (
                "another name in its certificate",
                other.addr().port(),
                &["--backend-ca", &ca],
            ),
            (
                "an authority that is not trusted",
                good.addr().port(),
                &[
                    "--backend-ca",
                    &pki()
                        .issue(Kind::Ecdsa, &["unrelated.test"])
                        .cert
                        .display()
                        .to_string(),
                ],
            ),
            ("no TLS at all", plain.addr().port(), &["--backend-ca", &ca]),
        ];
        for (why, port, args) in cases {
            let vestibule = Setup::new("tls", format!("tls://localhost:{port}"))
                .args(args)
                .start()
                .await;
            let answer = match Offer::default().try_connect(vestibule.addr()).await {
                Ok(mut client) => {
                    let _ = client.write_all(b"a secret").await;
                    let _ = client.flush().await;
                    read_tls(&mut client).await.0
                }
                Err(_) => vec![],
            };
            assert_eq!(answer, b"", "{why}");
            vestibule
                .metric_becomes("vestibule_sessions_ended_total", &[], 1)
                .await;
            vestibule
                .metric_becomes(
                    "vestibule_sessions_ended_total",
                    &[("outcome", "closed")],
                    0,
                )
                .await;
            assert_eq!(
                vestibule
                    .metric("vestibule_bytes_total", &[("direction", "up")])
                    .await,
                0,
                "{why}"
            );
            vestibule.is_idle().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_pushing_backend_on_each_of_several_listeners_is_kept_apart() {
    within(60, async {
        const LEN: u64 = 4 << 20;
        let backends = [
            PushBackend::start(20, LEN, 0),
            PushBackend::start(30, LEN, 0),
        ];
        let mut setup = Setup::default();
        for backend in &backends {
            setup = setup.listener("tls", &[backend.addr().to_string()]);
        }
        let vestibule = setup.start().await;
        let pull = async |listener: usize, seed: u64| {
            let mut client = Offer::default().connect(vestibule.addr_of(listener)).await;
            Pattern::new(seed).verify(&mut client, LEN).await;
            assert_eq!(read_tls(&mut client).await, (vec![], End::CloseNotify));
        };
        tokio::join!(pull(0, 20), pull(1, 30), pull(0, 20), pull(1, 30));
        vestibule
            .metric_becomes("vestibule_bytes_total", &[("direction", "down")], 4 * LEN)
            .await;
    })
    .await;
}
