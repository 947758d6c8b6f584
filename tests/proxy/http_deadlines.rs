//! Each deadline of HTTP fires in its phase and in no other.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::backend::RecordingBackend;
use crate::support::client::Offer;
use crate::support::http::{
    HttpBackend, PREFACE, Reply, Two, client, door, frame, get, head_block, head_block_for,
    next_frame, post, send_all, two, two_get, whole,
};
use crate::support::xmpp::Talk;
use crate::support::{End, within};

const HOST: &str = "Host: chat.test\r\n";
const LIMIT: Duration = Duration::from_millis(400);
/// Longer than that, for what must outlive it.
const LONG: Duration = Duration::from_millis(1500);

/// Settings with this one deadline short.
fn short(key: &str) -> String {
    format!("[timeouts]\n{key} = '400ms'\n")
}

#[tokio::test]
async fn request_is_for_heads() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door(backend.addr(), &short("request")).start().await;
        let began = Instant::now();
        // Half a head, at once or by and by.
        let mut half = client(vestibule.addr()).await;
        half.say("GET / HTTP/1.1\r\nHost: ch").await;
        let dribbling = client(vestibule.addr()).await;
        let (mut read, mut write) = tokio::io::split(dribbling.stream);
        let dribble = tokio::spawn(async move {
            while write.write_all(b"GET").await.is_ok() && write.flush().await.is_ok() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        let mut text = String::new();
        let _ = read.read_to_string(&mut text).await;
        assert!(text.starts_with("HTTP/1.1 408 "), "{text}");
        dribble.abort();
        let got = half.answer().await;
        assert_eq!((got.status, got.header("connection")), (408, Some("close")));
        assert_eq!(half.rest().await, (String::new(), End::CloseNotify));
        assert!(began.elapsed() >= LIMIT);
        // One that says nothing at all.
        let mut silent = client(vestibule.addr()).await;
        assert_eq!(silent.rest().await.1, End::CloseNotify);
        let silent = Two::connect(vestibule.addr()).await;
        let _ = silent.connection.await;
        assert!(backend.is_unused());

        // Not for anything behind the head, nor for silence between requests.
        let mut slow = client(vestibule.addr()).await;
        slow.say(format!(
            "POST / HTTP/1.1\r\n{HOST}Content-Length: 4\r\n\r\n"
        ))
        .await;
        let mut server = Talk::new(backend.accept().await);
        server.until("\r\n\r\n").await;
        tokio::time::sleep(LONG).await;
        slow.say("body").await;
        server.hears("body").await;
        tokio::time::sleep(LONG).await;
        server
            .say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
            .await;
        tokio::time::sleep(LONG).await;
        server.say("k").await;
        assert_eq!(slow.answer().await.body, "ok");
        tokio::time::sleep(LONG).await;
        slow.say(get("/")).await;
        server.until("\r\n\r\n").await;
        server
            .say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            .await;
        assert_eq!(slow.answer().await.body, "ok");
        // The second head has its time, too.
        slow.say("GET").await;
        assert_eq!(slow.answer().await.status, 408);
    })
    .await;
}

#[tokio::test]
async fn request_body_is_for_silence_within_a_body() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let settings = short("request_body") + "[http]\nbody_rate = '0'\n";
        let vestibule = door(backend.addr(), &settings).start().await;
        let began = Instant::now();
        let mut one = client(vestibule.addr()).await;
        one.say(format!(
            "POST / HTTP/1.1\r\n{HOST}Content-Length: 10\r\n\r\nhalf"
        ))
        .await;
        let mut server = Talk::new(backend.accept().await);
        server.until("half").await;
        let got = one.answer().await;
        assert_eq!((got.status, got.header("connection")), (408, Some("close")));
        assert_eq!(one.rest().await, (String::new(), End::CloseNotify));
        assert_eq!(server.rest().await.0, "");
        assert!(began.elapsed() >= LIMIT);

        let mut two_client = Two::connect(vestibule.addr()).await;
        let (answer, mut upload) = two_client.send(two("POST", "/"), false).await;
        upload.send_data("half".into(), false).unwrap();
        let mut server = Talk::new(backend.accept().await);
        server.until("half\r\n").await;
        assert_eq!(whole(answer).await.unwrap().0, 408);
        assert_eq!(server.rest().await.0, "");

        // A byte now and then is no silence; nor does it count while the answer is awaited.
        let mut slow = client(vestibule.addr()).await;
        slow.say(format!(
            "POST / HTTP/1.1\r\n{HOST}Content-Length: 10\r\n\r\n"
        ))
        .await;
        let mut server = Talk::new(backend.accept().await);
        server.until("\r\n\r\n").await;
        for _ in 0..10 {
            tokio::time::sleep(LIMIT / 2).await;
            slow.say("x").await;
        }
        server.hears("xxxxxxxxxx").await;
        tokio::time::sleep(LONG).await;
        server
            .say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            .await;
        assert_eq!(slow.answer().await.body, "ok");
        tokio::time::sleep(LONG).await;
        slow.say(get("/")).await;
        server.until("\r\n\r\n").await;
        server
            .say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            .await;
        assert_eq!(slow.answer().await.body, "ok");
    })
    .await;
}

#[tokio::test]
async fn a_body_has_a_least_rate() {
    within(60, async {
        let backend = HttpBackend::echo();
        let settings = "[timeouts]\nrequest_body = '1s'\n[http]\nbody_rate = '100'\n";
        let vestibule = door(backend.addr(), settings).start().await;
        for (piece, lives) in [(5, false), (30, true)] {
            let mut one = client(vestibule.addr()).await;
            one.say(format!(
                "POST / HTTP/1.1\r\n{HOST}Content-Length: {}\r\n\r\n",
                piece * 30
            ))
            .await;
            for _ in 0..30 {
                tokio::time::sleep(Duration::from_millis(100)).await;
                if one.try_say("x".repeat(piece)).await.is_err() {
                    break;
                }
            }
            let got = one.answer().await;
            assert_eq!(got.status, if lives { 200 } else { 408 }, "{piece}");
        }
    })
    .await;
}

#[tokio::test]
async fn answer_is_from_the_end_of_a_request_to_the_head_of_its_answer() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door(backend.addr(), &short("answer")).start().await;
        let began = Instant::now();
        let mut one = client(vestibule.addr()).await;
        one.say(get("/")).await;
        let mut server = Talk::new(backend.accept().await);
        server.until("\r\n\r\n").await;
        assert_eq!(one.answer().await.status, 504);
        assert!(began.elapsed() >= LIMIT);
        assert_eq!(server.rest().await.0, "");
        let mut two_client = Two::connect(vestibule.addr()).await;
        let (answer, _) = two_client.send(two_get("/"), true).await;
        let mut server = Talk::new(backend.accept().await);
        assert_eq!(whole(answer).await.unwrap().0, 504);
        server.until("\r\n\r\n").await;
        assert_eq!(server.rest().await.0, "");

        // The connection goes on; a slow body has its time, and so has a slow answer behind its head.
        one.say(format!(
            "POST / HTTP/1.1\r\n{HOST}Content-Length: 4\r\n\r\n"
        ))
        .await;
        let mut server = Talk::new(backend.accept().await);
        server.until("\r\n\r\n").await;
        tokio::time::sleep(LONG).await;
        one.say("body").await;
        server.hears("body").await;
        server
            .say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
            .await;
        tokio::time::sleep(LONG).await;
        server.say("k").await;
        assert_eq!(one.answer().await.body, "ok");
    })
    .await;
}

#[tokio::test]
async fn answer_is_also_for_a_backend_that_takes_no_more_of_a_request() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door(backend.addr(), &short("answer")).start().await;
        let one = client(vestibule.addr()).await;
        let (mut read, mut write) = tokio::io::split(one.stream);
        let uploading = tokio::spawn(async move {
            let head = format!("POST / HTTP/1.1\r\n{HOST}Content-Length: 99999999\r\n\r\n");
            let _ = write.write_all(head.as_bytes()).await;
            let piece = vec![b'x'; 64 << 10];
            while write.write_all(&piece).await.is_ok() {}
        });
        let server = backend.accept().await;
        let mut answer = [0; 13];
        read.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 504 ");
        drop((server, read));
        uploading.abort();
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn write_is_for_a_client_that_takes_nothing() {
    within(60, async {
        let body = "x".repeat(32 << 20);
        let backend = HttpBackend::start(move |_| Reply::ok(&body));
        let settings = short("write") + "[sockets]\nfront_send_buffer = '64KiB'\n";
        let vestibule = door(backend.addr(), &settings).start().await;
        let mut deaf = client(vestibule.addr()).await;
        deaf.say(get("/")).await;
        backend.ended(0).await;
        vestibule.is_idle().await;
        let (said, end) = deaf.rest().await;
        assert!(said.len() < 32 << 20);
        assert_ne!(end, End::CloseNotify);

        // The same over HTTP/2, where a connection that is not read is one that is not served.
        let stream = crate::support::client::Offer::default()
            .alpn(&["h2"])
            .connect(vestibule.addr())
            .await;
        let mut stream = stream;
        let large_window = [0, 4, 0x7f, 0xff, 0xff, 0xff];
        let words = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            &crate::support::http::frame(4, 0, 0, &large_window)[..],
            &crate::support::http::frame(8, 0, 0, &[0x7f, 0, 0, 0]),
            &crate::support::http::frame(1, 5, 1, &crate::support::http::head_block()),
        ]
        .concat();
        stream.write_all(&words).await.unwrap();
        backend.ended(1).await;
        vestibule.is_idle().await;
        drop(stream);
    })
    .await;
}

#[tokio::test]
async fn write_is_not_for_a_client_that_is_slow() {
    within(60, async {
        let body = "x".repeat(2 << 20);
        let backend = HttpBackend::start(move |_| Reply::ok(&body));
        let settings =
            "[timeouts]\nwrite = '1s'\nkeep_alive = '1s'\n[sockets]\nfront_send_buffer = '16KiB'\n";
        let vestibule = door(backend.addr(), settings).start().await;
        let tcp = tokio::net::TcpSocket::new_v4().unwrap();
        tcp.set_recv_buffer_size(16 << 10).unwrap();
        let tcp = tcp.connect(vestibule.addr()).await.unwrap();
        let offer = crate::support::client::Offer::default().alpn(&["http/1.1"]);
        let mut slow = offer.over(tcp).await.unwrap();
        slow.write_all(get("/").as_bytes()).await.unwrap();
        let mut chunk = vec![0; 16 << 10];
        let mut total = 0;
        for _ in 0..40 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            total += slow.read(&mut chunk).await.unwrap();
        }
        let mut rest = Vec::new();
        while total < 2 << 20 {
            let n = slow.read_buf(&mut rest).await.unwrap();
            assert!(n > 0);
            total += n;
        }
    })
    .await;
}

#[tokio::test]
async fn keep_alive_is_for_silence_between_requests() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door(backend.addr(), &short("keep_alive")).start().await;
        let mut one = client(vestibule.addr()).await;
        let mut two_client = Two::connect(vestibule.addr()).await;
        // Neither for a slow head, nor for a slow body, nor for a slow answer.
        one.say("POST / HT").await;
        tokio::time::sleep(LONG).await;
        one.say(format!("TP/1.1\r\n{HOST}Content-Length: 4\r\n\r\n"))
            .await;
        let mut server = Talk::new(backend.accept().await);
        server.until("\r\n\r\n").await;
        let (answer, mut upload) = two_client.send(two("POST", "/"), false).await;
        let mut other = Talk::new(backend.accept().await);
        tokio::time::sleep(LONG).await;
        one.say("body").await;
        upload.send_data("body".into(), true).unwrap();
        server.hears("body").await;
        other.until("0\r\n\r\n").await;
        tokio::time::sleep(LONG).await;
        let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no";
        server.say(ok).await;
        other.say(ok).await;
        tokio::time::sleep(LONG).await;
        server.say("k").await;
        other.say("k").await;
        assert_eq!(one.answer().await.body, "ok");
        assert_eq!(whole(answer).await.unwrap().2, "ok");
        let began = Instant::now();
        assert_eq!(one.rest().await, (String::new(), End::CloseNotify));
        assert!(two_client.connection.await.unwrap().is_ok());
        assert!(began.elapsed() >= LIMIT / 2);
    })
    .await;
}

/// Also where the answer is ours and there at once.
#[tokio::test]
async fn keep_alive_begins_with_each_answer() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door(backend.addr(), &short("keep_alive")).start().await;
        let mut one = client(vestibule.addr()).await;
        let mut two_client = Two::connect(vestibule.addr()).await;
        for _ in 0..8 {
            one.say("GET / HTTP/1.1\r\nHost: other.test\r\n\r\n").await;
            assert_eq!(one.answer().await.status, 421);
            let mut request = two_get("/");
            *request.uri_mut() = "https://other.test/".parse().unwrap();
            assert_eq!(two_client.ask(request).await.0, 421);
            tokio::time::sleep(LIMIT / 4).await;
        }
        assert!(backend.is_unused());
    })
    .await;
}

/// A client that takes its time with the last of an answer is not silent.
#[tokio::test]
async fn keep_alive_begins_when_the_client_has_its_answer() {
    within(60, async {
        let len = 300 << 10;
        let body = "x".repeat(len);
        let backend = HttpBackend::start(move |_| Reply::ok(&body));
        let settings = "[timeouts]\nkeep_alive = '200ms'\n[sockets]\nfront_send_buffer = '16KiB'\n";
        let vestibule = door(backend.addr(), settings).start().await;
        let tcp = tokio::net::TcpSocket::new_v4().unwrap();
        tcp.set_recv_buffer_size(16 << 10).unwrap();
        let tcp = tcp.connect(vestibule.addr()).await.unwrap();
        let offer = crate::support::client::Offer::default().alpn(&["http/1.1"]);
        let mut slow = offer.over(tcp).await.unwrap();
        slow.write_all(get("/").as_bytes()).await.unwrap();
        let mut chunk = vec![0; 8 << 10];
        let mut total = 0;
        while total < len {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let n = slow.read(&mut chunk).await.unwrap();
            assert!(n > 0, "cut off after {total}");
            total += n;
            // The last of it is what matters.
            if total < 150 << 10 {
                total += slow.read(&mut chunk).await.unwrap();
                while total < 150 << 10 {
                    total += slow.read(&mut chunk).await.unwrap();
                }
            }
        }
    })
    .await;
}

#[tokio::test]
async fn half_closed_is_for_a_client_that_will_say_no_more() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door(backend.addr(), &short("half_closed")).start().await;
        for polite in [true, false] {
            let mut one = client(vestibule.addr()).await;
            one.say(get("/")).await;
            let mut server = Talk::new(backend.accept().await);
            server.until("\r\n\r\n").await;
            let began = Instant::now();
            if polite {
                one.end().await;
            } else {
                drop(one);
            }
            assert_eq!(server.rest().await.0, "");
            // Who closes with something unread is gone at once.
            assert!(began.elapsed() >= LIMIT || !polite);
            vestibule.is_idle().await;
        }
        // One that may say more is waited for.
        let mut one = client(vestibule.addr()).await;
        one.say(post("/", "body")).await;
        let mut server = Talk::new(backend.accept().await);
        server.until("body").await;
        tokio::time::sleep(LONG).await;
        server
            .say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            .await;
        assert_eq!(one.answer().await.body, "ok");
    })
    .await;
}

/// Be it an answer of a few bytes that the backend has long given, or one of our own.
#[tokio::test]
async fn write_is_also_for_a_small_answer_whose_stream_is_shut() {
    within(60, async {
        let backend = HttpBackend::echo();
        let vestibule = door(backend.addr(), &short("write")).start().await;
        let mut stream = Offer::default()
            .alpn(&["h2"])
            .connect(vestibule.addr())
            .await;
        let shut = [0, 4, 0, 0, 0, 0];
        let words = [
            &PREFACE[..24],
            &frame(4, 0, 0, &shut),
            &frame(1, 5, 1, &head_block()),
            &frame(1, 5, 3, &head_block_for("other.test")),
        ]
        .concat();
        let began = Instant::now();
        stream.write_all(&words).await.unwrap();
        let mut reset = Vec::new();
        while reset.len() < 2 {
            let (kind, _, number, payload) = next_frame(&mut stream).await.unwrap().unwrap();
            match kind {
                0 => assert_eq!(payload.len(), 0, "data through a shut window"),
                3 => reset.push(number),
                kind => assert_ne!(kind, 7, "GOAWAY"),
            }
        }
        let took = began.elapsed();
        assert!(took >= LIMIT && took < LIMIT * 10, "{took:?}");
        reset.sort_unstable();
        assert_eq!(reset, [1, 3]);

        // The connection goes on, and who opens the window is answered.
        let words = [frame(1, 5, 5, &head_block()), frame(8, 0, 5, &[0, 0, 1, 0])].concat();
        stream.write_all(&words).await.unwrap();
        loop {
            let (kind, flags, number, payload) = next_frame(&mut stream).await.unwrap().unwrap();
            assert!(!matches!(kind, 3 | 7), "{kind} {payload:?}");
            if (kind, number) == (0, 5) {
                assert_eq!(payload, b"0 / ");
                if flags & 1 == 1 {
                    break;
                }
            }
        }
        drop(stream);
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn answer_is_also_for_a_backend_of_http_2_that_opens_no_window() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let file = format!(
            "[[listener]]\nlisten = 'https://@0'\nupstream = 'u'\n\
             [[upstream]]\nname = 'u'\nhttp2 = true\nbackend = [{{ address = 'http://{}' }}]\n{}",
            backend.addr(),
            short("answer")
        );
        let vestibule = crate::support::vestibule::Setup::default()
            .file(&file)
            .start()
            .await;
        let body = vec![b'x'; 1 << 20];
        for version in [1, 2] {
            let began = Instant::now();
            let (addr, body) = (vestibule.addr(), body.clone());
            let asked = tokio::spawn(async move {
                if version == 2 {
                    let mut client = Two::connect(addr).await;
                    let (answer, mut upload) = client.send(two("POST", "/"), false).await;
                    let sent = tokio::spawn(async move {
                        let _ = send_all(&mut upload, body.into(), true).await;
                    });
                    let status = whole(answer).await.unwrap().0;
                    sent.abort();
                    return status;
                }
                let (mut read, mut write) = tokio::io::split(client(addr).await.stream);
                let sent = tokio::spawn(async move {
                    let len = body.len();
                    let head = format!("POST / HTTP/1.1\r\n{HOST}Content-Length: {len}\r\n\r\n");
                    let _ = write.write_all(head.as_bytes()).await;
                    let _ = write.write_all(&body).await;
                });
                let mut status = [0; 12];
                read.read_exact(&mut status).await.unwrap();
                sent.abort();
                assert!(status.starts_with(b"HTTP/1.1 "));
                std::str::from_utf8(&status[9..]).unwrap().parse().unwrap()
            });
            let mut server = backend.accept().await;
            let mut preface = [0; 24];
            server.read_exact(&mut preface).await.unwrap();
            assert_eq!(preface, PREFACE[..24]);
            let shut = [0, 4, 0, 0, 0, 0];
            server.write_all(&frame(4, 0, 0, &shut)).await.unwrap();
            server.write_all(&frame(4, 1, 0, &[])).await.unwrap();
            let (mut heads, mut uploaded) = (0, 0);
            // A reset of the stream or the end of the connection.
            while let Ok(Some((kind, flags, number, payload))) = next_frame(&mut server).await {
                match kind {
                    // What everybody may send before the settings have arrived (RFC 9113 section 6.9.2).
                    0 => uploaded += payload.len(),
                    1 => heads += 1,
                    3 if number != 0 => break,
                    6 if flags == 0 => server.write_all(&frame(6, 1, 0, &payload)).await.unwrap(),
                    _ => {}
                }
            }
            assert_eq!(asked.await.unwrap(), 504);
            let took = began.elapsed();
            assert!(took >= LIMIT && took < LIMIT * 10, "{took:?}");
            assert!(heads == 1 && uploaded < 1 << 16, "{heads} {uploaded}");
        }
        vestibule.is_idle().await;
    })
    .await;
}
