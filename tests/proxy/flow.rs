//! How much is read, held and sent at once: small for a message, large for a burst, nothing at rest.

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;
use tokio::time::{Duration, sleep};

use crate::support::backend::{EchoBackend, PushBackend, RecordingBackend};
use crate::support::client::Offer;
use crate::support::pattern::Pattern;
use crate::support::record::{DATA, Received, RecordClient};
use crate::support::vestibule::{Setup, Vestibule};
use crate::support::{End, read_exactly, within};

/// A full record's plaintext.
const FULL: usize = 16_384;

/// The lengths of the records in which so many bytes come.
async fn lengths(client: &mut RecordClient, mut bytes: usize) -> Vec<usize> {
    let mut lengths = Vec::new();
    while bytes > 0 {
        match client.receive().await {
            Received::Record(DATA, data) => {
                bytes -= data.len();
                lengths.push(data.len());
            }
            other => panic!("{other:?} after {lengths:?}"),
        }
    }
    lengths
}

/// Whether every thread of the process is in this state (proc(5)).
fn all_threads_are(pid: u32, state: char) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut stats = threads.map(|thread| {
        let stat = thread.unwrap().path().join("stat");
        std::fs::read_to_string(stat).unwrap_or_default()
    });
    stats.all(|stat| {
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with(state))
    })
}

/// Stops the process while `meanwhile` happens.
async fn stopped(vestibule: &Vestibule, meanwhile: impl Future<Output = ()>) {
    let pid = Pid::from_raw(i32::try_from(vestibule.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    while !all_threads_are(vestibule.pid(), 'T') {
        sleep(Duration::from_millis(1)).await;
    }
    meanwhile.await;
    kill_process(pid, Signal::CONT).unwrap();
}

#[tokio::test]
async fn an_answer_begins_with_small_records_and_goes_on_with_full_ones() {
    within(30, async {
        let mut backend = RecordingBackend::start();
        let vestibule = Setup::new("tls", backend.addr()).start().await;
        let mut client = RecordClient::connect(vestibule.addr(), &Offer::default()).await;
        let mut back = backend.accept().await;
        for round in 0..2 {
            // A calm moment before each: a message that fits one record.
            back.write_all(&[round; 3000]).await.unwrap();
            assert_eq!(lengths(&mut client, 3000).await.iter().sum::<usize>(), 3000);
            let answer = Pattern::new(3).bytes(1 << 20);
            let sending = async {
                stopped(&vestibule, async {
                    // What fits the sockets between both is there when the process goes on.
                    back.write_all(&answer[..FULL]).await.unwrap();
                })
                .await;
                back.write_all(&answer[FULL..]).await.unwrap();
            };
            let (lengths, ()) = tokio::join!(lengths(&mut client, answer.len()), sending);
            assert_eq!(lengths[..4], [1369, 4096, 4096, 4096], "{lengths:?}");
            assert!(lengths.iter().filter(|len| **len == FULL).count() > 30);
        }
    })
    .await;
}

#[tokio::test]
async fn what_lies_ready_in_pieces_leaves_as_one_record() {
    within(30, async {
        let mut backend = RecordingBackend::start();
        let vestibule = Setup::new("tls", backend.addr()).start().await;
        let mut client = RecordClient::connect(vestibule.addr(), &Offer::default()).await;
        let mut back = backend.accept().await;
        back.set_nodelay(true).unwrap();
        back.write_all(b"first").await.unwrap();
        assert_eq!(lengths(&mut client, 5).await, [5]);
        stopped(&vestibule, async {
            for piece in 0..20_u8 {
                back.write_all(&[piece; 100]).await.unwrap();
            }
        })
        .await;
        assert_eq!(lengths(&mut client, 2000).await, [2000]);
    })
    .await;
}

#[tokio::test]
async fn half_a_record_is_waited_for_until_the_write_deadline() {
    within(30, async {
        let backend = EchoBackend::start();
        let vestibule = Setup::new("tls", backend.addr())
            .file("[timeouts]\nwrite = \"1s\"\n")
            .start()
            .await;
        let mut silent = RecordClient::connect(vestibule.addr(), &Offer::default()).await;
        silent.send_data(b"there and back").await;
        assert_eq!(silent.data(14).await, b"there and back");
        let mut half = RecordClient::connect(vestibule.addr(), &Offer::default()).await;
        let mut slow = RecordClient::connect(vestibule.addr(), &Offer::default()).await;
        let record = half.tx.seal(DATA, &[7; 10_000]);
        half.send(&record[..9_000]).await;
        // Who is slow, and goes on, is heard.
        let record = slow.tx.seal(DATA, &[7; 1_000]);
        for part in record.chunks(250) {
            slow.send(part).await;
            sleep(Duration::from_millis(500)).await;
        }
        assert_eq!(slow.data(1_000).await, [7; 1_000]);
        assert!(matches!(half.receive().await, Received::End(_)));
        let stalled = [("outcome", "stalled")];
        let ended = "vestibule_sessions_ended_total";
        vestibule.metric_becomes(ended, &stalled, 1).await;
        // Nothing is due from who is silent.
        silent.send_data(b"still here").await;
        assert_eq!(silent.data(10).await, b"still here");
    })
    .await;
}

#[tokio::test]
async fn who_takes_nothing_is_let_go_at_the_write_deadline_and_who_takes_little_is_not() {
    within(60, async {
        const PUSH: u64 = 12 << 20;
        let backend = PushBackend::start(9, PUSH, 0);
        let vestibule = Setup::new("tls", backend.addr())
            .file("[timeouts]\nwrite = \"1s\"\n")
            .start()
            .await;
        let nothing = Offer::default().connect(vestibule.addr()).await;
        // A kernel tells of room in large steps where its buffer is large; and where it is less than two of loopback's segments, only
        // as often as the sender's persist timer asks, whose steps double beyond the deadline.
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(128 << 10).unwrap();
        let tcp = socket.connect(vestibule.addr()).await.unwrap();
        let mut little = Offer::default().over(tcp).await.unwrap();
        let mut left = PUSH;
        let stalled = [("outcome", "stalled")];
        while vestibule
            .metric("vestibule_sessions_ended_total", &stalled)
            .await
            == 0
            || left > PUSH * 3 / 4
        {
            read_exactly(&mut little, 128 << 10).await;
            left -= 128 << 10;
            sleep(Duration::from_millis(100)).await;
        }
        drop(nothing);
        while left > 0 {
            read_exactly(&mut little, 128 << 10).await;
            left -= 128 << 10;
        }
        let end = crate::support::read_tls(&mut little).await;
        assert_eq!(end, (vec![], End::CloseNotify));
        drop(little);
        let ended = vestibule
            .metric("vestibule_sessions_ended_total", &stalled)
            .await;
        assert_eq!(ended, 1);
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn what_a_burst_has_used_goes_back_to_the_system() {
    within(60, async {
        const PUSH: u64 = 32 << 20;
        let backend = PushBackend::start(5, PUSH, 0);
        let vestibule = Setup::new("tls", backend.addr())
            .args(&["--workers", "1", "--buffer-pool-size", "16MiB"])
            .start()
            .await;
        let mut clients = Vec::new();
        for _ in 0..30 {
            clients.push(Offer::default().connect(vestibule.addr()).await);
        }
        // Each holds what the socket does not take.
        while vestibule.metric("vestibule_pool_leased_bytes", &[]).await < 1 << 20 {
            sleep(Duration::from_millis(20)).await;
        }
        drop(clients);
        vestibule.is_idle().await;
        // Two small slots are what a calm worker keeps.
        let kept = 2 * (20 << 10);
        while vestibule.metric("vestibule_pool_bytes", &[]).await > kept {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}
