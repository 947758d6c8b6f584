//! A log that nobody reads, or that cannot be written, is nobody's trouble but its own.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::support::backend::EchoBackend;
use crate::support::client::{Offer, TlsClient};
use crate::support::vestibule::{Setup, Vestibule};
use crate::support::{connect, within};

const LOST: &str = "vestibule_log_lines_dropped_total";

/// More than may wait for a reader: those in the queue, and what the pipe holds.
const FLOOD: u64 = 10_000;

/// Many clients that speak no TLS; at level debug each is worth a line.
async fn flood(vestibule: &Vestibule, clients: u64) {
    let mut tasks = JoinSet::new();
    for task in 0..20 {
        let addr = vestibule.addr();
        tasks.spawn(async move {
            for _ in (task..clients).step_by(20) {
                let mut client = connect(addr).await;
                let _ = client.write_all(b"x\n").await;
                let _ = client.shutdown().await;
                let _ = client.read_to_end(&mut Vec::new()).await;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

/// An echo must be back before long.
async fn echo(client: &mut TlsClient) {
    let start = Instant::now();
    client.write_all(b"hello").await.unwrap();
    let mut back = [0; 5];
    client.read_exact(&mut back).await.unwrap();
    assert_eq!(&back, b"hello");
    let took = start.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
}

async fn ends_soon(vestibule: &mut Vestibule) {
    let start = Instant::now();
    vestibule.terminate();
    assert!(vestibule.ended().await.success());
    let took = start.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_reader_slows_nothing_and_what_it_misses_is_counted() {
    within(120, async {
        let backend = EchoBackend::start();
        let mut vestibule = Setup::new("tls", backend.addr())
            .args(&["--access-log", "-"])
            .unread()
            .start()
            .await;
        let mut client = Offer::default().connect(vestibule.addr()).await;
        tokio::join!(flood(&vestibule, FLOOD), async {
            for _ in 0..100 {
                echo(&mut client).await;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        let failed = ("outcome", "handshake_failed");
        let ended = "vestibule_sessions_ended_total";
        vestibule.metric_becomes(ended, &[failed], FLOOD).await;
        let lost = vestibule.metric(LOST, &[]).await;
        assert!(lost > 1000 && lost < 2 * FLOOD, "{lost}");
        echo(&mut client).await;
        let mut another = Offer::default().connect(vestibule.addr()).await;
        echo(&mut another).await;
        drop((client, another));

        ends_soon(&mut vestibule).await;
    })
    .await;
}

#[tokio::test]
async fn readers_that_have_gone_are_no_signal_and_no_panic() {
    within(60, async {
        let backend = EchoBackend::start();
        let mut vestibule = Setup::new("tls", backend.addr())
            .args(&["--access-log", "-"])
            .unread()
            .start()
            .await;
        let mut client = Offer::default().connect(vestibule.addr()).await;
        echo(&mut client).await;
        assert_eq!(vestibule.metric(LOST, &[]).await, 0);
        vestibule.hang_up();
        flood(&vestibule, 100).await;
        // For each a line on either output, and one about the access log, told once.
        vestibule.metric_becomes(LOST, &[], 201).await;
        echo(&mut client).await;
        drop(client);
        ends_soon(&mut vestibule).await;
    })
    .await;
}

#[tokio::test]
async fn a_full_disk_loses_lines_and_says_so_once() {
    within(60, async {
        let backend = EchoBackend::start();
        let mut vestibule = Setup::new("tls", backend.addr())
            .args(&["--access-log", "/dev/full"])
            .start()
            .await;
        let mut client = Offer::default().connect(vestibule.addr()).await;
        flood(&vestibule, 300).await;
        vestibule.metric_becomes(LOST, &[], 300).await;
        echo(&mut client).await;
        vestibule.says("lines of the access log are lost").await;
        drop(client);
        ends_soon(&mut vestibule).await;
        let said = vestibule.said();
        let told = said
            .lines()
            .filter(|line| line.contains("of the access log"));
        let told: Vec<_> = told.collect();
        assert_eq!(told.len(), 1, "{told:#?}");
        assert!(
            told[0].contains(" WARN ") && told[0].contains("No space left"),
            "{told:#?}"
        );
    })
    .await;
}

#[tokio::test]
async fn a_flood_of_one_warning_is_a_few_lines_and_a_count() {
    within(60, async {
        let backend = EchoBackend::start();
        let file = format!(
            "[[listener]]\nlisten = 'tls://@0'\nupstream = 'a'\naccept_proxy_protocol = ['127.0.0.0/8']\n\
             [[upstream]]\nname = 'a'\n[[upstream.backend]]\naddress = '{}'\n",
            backend.addr()
        );
        let mut vestibule = Setup::default().file(&file).start().await;
        flood(&vestibule, 500).await;
        vestibule
            .metric_becomes("vestibule_sessions_ended_total", &[], 500)
            .await;
        let suppressed = "vestibule_log_lines_suppressed_total";
        let suppressed = vestibule.metric(suppressed, &[]).await;
        // A new window may have begun meanwhile.
        let printed = 500 - suppressed;
        assert!((10..=40).contains(&printed), "{printed}");
        ends_soon(&mut vestibule).await;
        let said = vestibule.said();
        let count = |text: &str| said.matches(text).count() as u64;
        let told = count("similar lines suppressed: no PROXY header");
        assert_eq!(count("no PROXY header") - told, printed);
        let numbers = said.lines().filter_map(|line| {
            let (before, _) = line.split_once(" similar lines suppressed")?;
            before.rsplit(' ').next()?.parse::<u64>().ok()
        });
        assert_eq!(numbers.sum::<u64>(), suppressed, "{said}");
        assert!((1..=4).contains(&told), "{told}");
    })
    .await;
}

#[tokio::test]
async fn what_the_kernel_gives_for_socket_buffers_is_told_once() {
    within(60, async {
        let backend = EchoBackend::start();
        let vestibule = Setup::new("tls", backend.addr())
            .args(&["--front-send-buffer", "4KiB", "--back-recv-buffer", "1GiB"])
            .start()
            .await;
        vestibule.says("ready").await;
        let said = vestibule.said();
        let told = |words: &str| said.matches(words).count();
        assert_eq!(told("socket buffers: "), 2, "{said}");
        assert_eq!(told("send 4KiB -> 8KiB, unsent 128KiB"), 1, "{said}");
        assert_eq!(
            told("back recv_buffer 1GiB is capped by net.core.rmem_max at "),
            1,
            "{said}"
        );
    })
    .await;
}
