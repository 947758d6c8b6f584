//! The bound on buffers: who stalls waits, the two directions do not wait for each other, and at the end everything
//! is back.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, split};

use crate::support::backend::{EchoBackend, PushBackend, RecordingBackend, StallingBackend};
use crate::support::client::{Offer, TlsClient};
use crate::support::pattern::Pattern;
use crate::support::vestibule::{Setup, Vestibule, sum};
use crate::support::{End, read_exactly, read_tls, within};

/// The smallest `--buffer-pool-size` that the program takes for two workers.
const SMALLEST_POOL: &str = "640KiB";
/// Connections of which each ties up a buffer, even a small one: more than that pool has.
const STALLED: u64 = 60;

async fn round_trip(client: &mut TlsClient) {
    client.write_all(b"there and back").await.unwrap();
    client.flush().await.unwrap();
    assert_eq!(read_exactly(client, 14).await, b"there and back");
}

/// The pool keeps within its bound, as its own figures have it.
async fn assert_bounded(vestibule: &Vestibule) {
    // Of one moment.
    let (_, page) = vestibule.get("/metrics").await;
    let [limit, now, leased] = [
        "vestibule_pool_limit_bytes",
        "vestibule_pool_bytes",
        "vestibule_pool_leased_bytes",
    ]
    .map(|name| sum(&page, name, &[]));
    assert!(
        leased <= now && now <= limit,
        "{leased} of {now} of {limit}"
    );
}

#[tokio::test]
async fn the_metrics_say_whether_buffers_are_pooled() {
    within(20, async {
        let backend = EchoBackend::start();
        let pooled = Setup::new("tls", backend.addr()).start().await;
        assert_eq!(pooled.metric("vestibule_pool_enabled", &[]).await, 1);
        let fresh = Setup::new("tls", backend.addr())
            .args(&["--no-buffer-pool"])
            .start()
            .await;
        assert_eq!(fresh.metric("vestibule_pool_enabled", &[]).await, 0);
        round_trip(&mut Offer::default().connect(fresh.addr()).await).await;
        fresh.is_idle().await;
        // Nothing is kept without the pool.
        fresh.metric_becomes("vestibule_pool_bytes", &[], 0).await;
    })
    .await;
}

#[tokio::test]
async fn a_client_that_never_reads_still_sends_and_costs_a_bounded_number_of_buffers() {
    within(90, async {
        for args in [&[][..], &["--no-buffer-pool"]] {
            const PUSH: u64 = 64 << 20;
            const UPLOAD: u64 = 16 << 20;
            let mut backend = RecordingBackend::start();
            let vestibule = Setup::new("tls", backend.addr()).args(args).start().await;
            // One round beforehand, so that what is allocated once is there.
            let mut warm = Offer::default().connect(vestibule.addr()).await;
            let mut back = backend.accept().await;
            back.write_all(b"warm").await.unwrap();
            assert_eq!(read_exactly(&mut warm, 4).await, b"warm");
            drop((warm, back));
            vestibule.is_idle().await;
            let before = vestibule.resident_bytes();

            let client = Offer::default().connect(vestibule.addr()).await;
            let (mut read, mut write) = split(client);
            let (mut back_read, mut back_write) = backend.accept().await.into_split();
            let push = tokio::spawn(async move {
                let pattern = Pattern::new(40);
                pattern.write(&mut back_write, PUSH).await.unwrap();
                back_write.shutdown().await.unwrap();
            });
            // Nothing of it is read, yet the upload goes through to its last byte.
            let up = Pattern::new(41);
            let sending = async { up.write(&mut write, UPLOAD).await.unwrap() };
            tokio::join!(sending, up.verify(&mut back_read, UPLOAD));
            assert!(!push.is_finished(), "the push cannot be over");
            assert_bounded(&vestibule).await;
            let leased = vestibule.metric("vestibule_pool_leased_bytes", &[]).await;
            assert!(leased <= 512 << 10, "{leased} bytes for one connection");
            let grown = vestibule.resident_bytes().saturating_sub(before);
            assert!(grown < 1 << 20, "memory has grown by {grown} bytes");

            // And when it reads at last, all is there.
            Pattern::new(40).verify(&mut read, PUSH).await;
            assert_eq!(read_tls(&mut read).await, (vec![], End::CloseNotify));
            push.await.unwrap();
            write.shutdown().await.unwrap();
            let mut rest = Vec::new();
            back_read.read_to_end(&mut rest).await.unwrap();
            assert_eq!(rest, b"");
            vestibule.is_idle().await;
        }
    })
    .await;
}

/// With the smallest pool, many clients that each tie up a buffer, and an honest one.
async fn honest_among_stalled(args: &[&str]) {
    let pushing = PushBackend::start(50, 64 << 20, 0);
    let echo = EchoBackend::start();
    let vestibule = Setup::default()
        .listener("tls", &[pushing.addr().to_string()])
        .listener("tls", &[echo.addr().to_string()])
        .args(&["--buffer-pool-size", SMALLEST_POOL])
        .args(args)
        .file("[timeouts]\nstall = \"1s\"\n")
        .start()
        .await;
    let mut stalled = Vec::new();
    for _ in 0..STALLED {
        stalled.push(Offer::default().connect(vestibule.addr()).await);
    }
    let mut honest = Offer::default().connect(vestibule.addr_of(1)).await;
    for _ in 0..5 {
        round_trip(&mut honest).await;
        assert_bounded(&vestibule).await;
    }
    // They hold no more than half of the pool, and the rest is for who makes progress: nobody has had to wait, and
    // nobody was cut off for it.
    let leased = vestibule.metric("vestibule_pool_leased_bytes", &[]).await;
    let limit = vestibule.metric("vestibule_pool_limit_bytes", &[]).await;
    assert!(
        leased > limit / 8,
        "{leased} of {limit}: this shows nothing"
    );
    let waits = vestibule.metric("vestibule_pool_waits_total", &[]).await;
    assert_eq!(waits, 0, "{leased} of {limit}");
    assert_eq!(
        vestibule.metric("vestibule_connections", &[]).await,
        STALLED + 1
    );
    honest.shutdown().await.unwrap();
    assert_eq!(read_tls(&mut honest).await, (vec![], End::CloseNotify));
    drop(stalled);
    vestibule.is_idle().await;
}

#[tokio::test]
async fn an_honest_client_is_served_beside_stalled_ones_with_the_smallest_pool() {
    within(60, honest_among_stalled(&[])).await;
}

#[tokio::test]
async fn an_honest_client_is_served_beside_stalled_ones_without_a_pool() {
    within(60, honest_among_stalled(&["--no-buffer-pool"])).await;
}

#[tokio::test]
async fn backends_that_never_read_do_not_starve_an_honest_client_either() {
    within(60, async {
        let stalling = StallingBackend::start();
        let echo = EchoBackend::start();
        let vestibule = Setup::default()
            .listener("tls", &[stalling.addr().to_string()])
            .listener("tls", &[echo.addr().to_string()])
            .args(&["--buffer-pool-size", SMALLEST_POOL])
            .file("[timeouts]\nstall = \"1s\"\n")
            .start()
            .await;
        // Each sends until nothing is taken any more.
        let mut senders = Vec::new();
        for number in 0..STALLED {
            let mut client = Offer::default().connect(vestibule.addr()).await;
            senders.push(tokio::spawn(async move {
                let _ = Pattern::new(number).write(&mut client, 64 << 20).await;
            }));
        }
        let mut honest = Offer::default().connect(vestibule.addr_of(1)).await;
        for _ in 0..5 {
            round_trip(&mut honest).await;
            assert_bounded(&vestibule).await;
        }
        for sender in senders {
            sender.abort();
        }
    })
    .await;
}

#[tokio::test]
async fn a_stalled_client_is_left_alone_while_nobody_waits_for_a_buffer() {
    within(30, async {
        let pushing = PushBackend::start(60, 16 << 20, 0);
        let vestibule = Setup::new("tls", pushing.addr())
            .file("[timeouts]\nstall = \"300ms\"\n")
            .start()
            .await;
        let mut client = Offer::default().connect(vestibule.addr()).await;
        // Longer than the stall timeout: there is no event for a thing that must not happen.
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        Pattern::new(60).verify(&mut client, 16 << 20).await;
        assert_eq!(read_tls(&mut client).await, (vec![], End::CloseNotify));
    })
    .await;
}

#[tokio::test]
async fn after_many_connections_of_every_kind_everything_is_given_back() {
    within(90, async {
        let echo = EchoBackend::start();
        let vestibule = Setup::new("tls", echo.addr()).start().await;
        let pattern = Pattern::new(70);
        for round in 0..4u64 {
            let mut held = Vec::new();
            for number in 0..25usize {
                let mut client = Offer::default().connect(vestibule.addr()).await;
                let message = pattern.bytes(1 + number * 997);
                client.write_all(&message).await.unwrap();
                client.flush().await.unwrap();
                assert!(read_exactly(&mut client, message.len()).await == message);
                held.push(client);
            }
            assert_eq!(vestibule.metric("vestibule_connections", &[]).await, 25);
            for (number, mut client) in held.into_iter().enumerate() {
                match number % 3 {
                    0 => client.shutdown().await.unwrap(),
                    1 => crate::support::reset(client.into_inner().0),
                    _ => drop(client),
                }
            }
            vestibule.is_idle().await;
            let ended = vestibule
                .metric("vestibule_sessions_ended_total", &[])
                .await;
            assert_eq!(ended, 25 * (round + 1), "every connection ends once");
            assert_eq!(
                vestibule.metric("vestibule_connections_total", &[]).await,
                ended
            );
        }
    })
    .await;
}
