//! How one side's end reaches the other: close_notify, FIN and RST, each told apart, nothing lost before it.

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::against_all;
use crate::support::backend::RecordingBackend;
use crate::support::client::{Offer, TlsClient};
use crate::support::oracle::{Front, Which};
use crate::support::pattern::Pattern;
use crate::support::record::{DATA, Received, RecordClient};
use crate::support::vestibule::{Setup, Vestibule};
use crate::support::{End, read_exactly, read_plain, read_tls, reset, within};

against_all! {
    20 a_clients_close_notify_reaches_the_backend_as_fin_and_the_backend_may_still_send;
    20 a_backends_fin_reaches_the_client_as_close_notify_and_the_client_may_still_send;
    20 a_backend_that_speaks_and_ends_at_once_is_heard_in_full;
}

const BACKLOG: usize = 3 << 20;

async fn a_clients_close_notify_reaches_the_backend_as_fin_and_the_backend_may_still_send(
    which: Which,
) {
    let mut backend = RecordingBackend::start();
    let front = Front::start(which, backend.addr()).await;
    let mut client = Offer::default().connect(front.addr()).await;
    let pattern = Pattern::new(1);
    let sent = pattern.bytes(BACKLOG);
    let sending = async {
        client.write_all(&sent).await.unwrap();
        client.shutdown().await.unwrap();
    };
    let serving = async {
        let mut back = backend.accept().await;
        let (got, end) = read_plain(&mut back).await;
        assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
        assert_eq!(end, End::Fin);
        back
    };
    let ((), mut back) = tokio::join!(sending, serving);
    let answering = async {
        back.write_all(&sent).await.unwrap();
        back.shutdown().await.unwrap();
    };
    let ((), (got, end)) = tokio::join!(answering, read_tls(&mut client));
    assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
    assert_eq!(end, End::CloseNotify);
    front
        .metric_becomes(
            "vestibule_sessions_ended_total",
            &[("outcome", "closed")],
            1,
        )
        .await;
    front.is_idle().await;
}

async fn a_backends_fin_reaches_the_client_as_close_notify_and_the_client_may_still_send(
    which: Which,
) {
    let mut backend = RecordingBackend::start();
    let front = Front::start(which, backend.addr()).await;
    let mut client = Offer::default().connect(front.addr()).await;
    client.write_all(b"hello").await.unwrap();
    client.flush().await.unwrap();
    let mut back = backend.accept().await;
    assert_eq!(read_exactly(&mut back, 5).await, b"hello");
    let sent = Pattern::new(2).bytes(BACKLOG);
    let serving = async {
        back.write_all(&sent).await.unwrap();
        back.shutdown().await.unwrap();
    };
    let ((), (got, end)) = tokio::join!(serving, read_tls(&mut client));
    assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
    assert_eq!(end, End::CloseNotify);
    let sending = async {
        client.write_all(&sent).await.unwrap();
        client.shutdown().await.unwrap();
    };
    let ((), (got, end)) = tokio::join!(sending, read_plain(&mut back));
    assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
    assert_eq!(end, End::Fin);
    front
        .metric_becomes(
            "vestibule_sessions_ended_total",
            &[("outcome", "closed")],
            1,
        )
        .await;
    front.is_idle().await;
}

async fn a_backend_that_speaks_and_ends_at_once_is_heard_in_full(which: Which) {
    let mut backend = RecordingBackend::start();
    let front = Front::start(which, backend.addr()).await;
    let mut client = Offer::default().connect(front.addr()).await;
    let mut back = backend.accept().await;
    back.write_all(b"goodbye").await.unwrap();
    back.shutdown().await.unwrap();
    assert_eq!(
        read_tls(&mut client).await,
        (b"goodbye".to_vec(), End::CloseNotify)
    );
    client.shutdown().await.unwrap();
    assert_eq!(read_plain(&mut back).await, (vec![], End::Fin));
}

/// A client and its backend's end, after one message from the client.
async fn pair(vestibule: &Vestibule, backend: &mut RecordingBackend) -> (TlsClient, TcpStream) {
    let mut client = Offer::default().connect(vestibule.addr()).await;
    client.write_all(b"hello").await.unwrap();
    client.flush().await.unwrap();
    let mut back = backend.accept().await;
    assert_eq!(read_exactly(&mut back, 5).await, b"hello");
    (client, back)
}

/// Sends a backlog and a bare FIN; what the backend got of it, and how it ended.
async fn truncate(client: &mut TlsClient, back: &mut TcpStream) -> End {
    let sent = Pattern::new(4).bytes(BACKLOG);
    let sending = async {
        client.write_all(&sent).await.unwrap();
        client.flush().await.unwrap();
        client.get_mut().0.shutdown().await.unwrap();
    };
    let ((), (got, end)) = tokio::join!(sending, read_plain(back));
    assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
    end
}

#[tokio::test]
async fn a_bare_fin_reaches_the_backend_as_fin_after_every_byte_and_is_counted_as_truncated() {
    within(20, async {
        let mut backend = RecordingBackend::start();
        let vestibule = Setup::new("tls", backend.addr()).start().await;
        let (mut client, mut back) = pair(&vestibule, &mut backend).await;
        assert_eq!(truncate(&mut client, &mut back).await, End::Fin);
        // A client that ends this way may still be listening.
        back.write_all(b"heard").await.unwrap();
        back.shutdown().await.unwrap();
        assert_eq!(
            read_tls(&mut client).await,
            (b"heard".to_vec(), End::CloseNotify)
        );
        vestibule
            .metric_becomes(
                "vestibule_sessions_ended_total",
                &[("outcome", "truncated")],
                1,
            )
            .await;
        assert_eq!(
            vestibule
                .metric("vestibule_sessions_ended_total", &[])
                .await,
            1
        );
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn a_bare_fin_reaches_the_backend_as_reset_after_every_byte_where_the_listener_asks_for_it() {
    within(20, async {
        let mut backend = RecordingBackend::start();
        let vestibule = Setup::new("tls", backend.addr())
            .args(&["--on-truncation", "abort"])
            .start()
            .await;
        let (mut client, mut back) = pair(&vestibule, &mut backend).await;
        // The kernel drops what a reset overtakes in the peer's receive queue, so the backend reads along.
        assert_eq!(truncate(&mut client, &mut back).await, End::Reset);
        vestibule
            .metric_becomes(
                "vestibule_sessions_ended_total",
                &[("outcome", "truncated")],
                1,
            )
            .await;
        vestibule.is_idle().await;
        // close_notify is an ordinary end all the same.
        let (mut client, mut back) = pair(&vestibule, &mut backend).await;
        client.shutdown().await.unwrap();
        assert_eq!(read_plain(&mut back).await, (vec![], End::Fin));
    })
    .await;
}

#[tokio::test]
async fn half_a_record_before_a_bare_fin_is_not_passed_on() {
    within(20, async {
        let mut backend = RecordingBackend::start();
        let vestibule = Setup::new("tls", backend.addr()).start().await;
        let mut client = RecordClient::connect(vestibule.addr(), &Offer::default()).await;
        let whole = client.tx.seal(DATA, b"whole");
        let half = client.tx.seal(DATA, b"never finished");
        client
            .send(&[&whole[..], &half[..half.len() - 1]].concat())
            .await;
        client.tcp.shutdown().await.unwrap();
        let mut back = backend.accept().await;
        assert_eq!(read_plain(&mut back).await, (b"whole".to_vec(), End::Fin));
        drop(back);
        vestibule
            .metric_becomes(
                "vestibule_sessions_ended_total",
                &[("outcome", "truncated")],
                1,
            )
            .await;
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn a_backends_reset_shows_the_client_no_close_notify() {
    within(20, async {
        let mut backend = RecordingBackend::start();
        let vestibule = Setup::new("tls", backend.addr()).start().await;
        let (mut client, back) = pair(&vestibule, &mut backend).await;
        reset(back);
        let (bytes, end) = read_tls(&mut client).await;
        assert_eq!(bytes, b"");
        assert_ne!(end, End::CloseNotify);
        vestibule
            .metric_becomes(
                "vestibule_sessions_ended_total",
                &[("outcome", "backend_gone")],
                1,
            )
            .await;
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn a_clients_reset_ends_the_backends_connection_too() {
    within(20, async {
        let mut backend = RecordingBackend::start();
        let vestibule = Setup::new("tls", backend.addr()).start().await;
        let (client, mut back) = pair(&vestibule, &mut backend).await;
        reset(client.into_inner().0);
        assert_eq!(read_plain(&mut back).await.0, b"");
        vestibule
            .metric_becomes(
                "vestibule_sessions_ended_total",
                &[("outcome", "client_gone")],
                1,
            )
            .await;
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn data_after_close_notify_never_reaches_the_backend() {
    within(20, async {
        let mut backend = RecordingBackend::start();
        let vestibule = Setup::new("tls", backend.addr()).start().await;
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let mut client =
                RecordClient::connect(vestibule.addr(), &Offer::default().version(version)).await;
            let sealed = [
                client.tx.seal(DATA, b"before"),
                client.tx.seal(21, &[1, 0]),
                client.tx.seal(DATA, b"after"),
            ];
            client.send(&sealed.concat()).await;
            let mut back = backend.accept().await;
            assert_eq!(read_plain(&mut back).await, (b"before".to_vec(), End::Fin));
            // Any data received after a closure alert MUST be ignored (RFC 8446 section 6.1).
            back.write_all(b"still here").await.unwrap();
            back.shutdown().await.unwrap();
            assert_eq!(client.data(10).await, b"still here");
            assert_eq!(client.alert().await, (vec![], [1, 0]));
        }
    })
    .await;
}

#[tokio::test]
async fn the_last_bytes_and_close_notify_precede_the_fin_on_the_wire() {
    within(20, async {
        let mut backend = RecordingBackend::start();
        let vestibule = Setup::new("tls", backend.addr()).start().await;
        let mut client = RecordClient::connect(vestibule.addr(), &Offer::default()).await;
        let mut back = backend.accept().await;
        back.write_all(b"last").await.unwrap();
        back.shutdown().await.unwrap();
        assert_eq!(client.alert().await, (b"last".to_vec(), [1, 0]));
        client.close_notify().await;
        assert_eq!(read_plain(&mut back).await, (vec![], End::Fin));
        assert_eq!(client.receive().await, Received::End(End::Fin));
        vestibule.is_idle().await;
    })
    .await;
}
