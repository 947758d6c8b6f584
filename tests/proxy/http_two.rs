//! HTTP/2: many things at once on one connection, none of which is another's trouble, and floods.

use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

use crate::support::backend::RecordingBackend;
use crate::support::client::Offer;
use crate::support::http::{
    HttpBackend, PREFACE, Reply, SocketBackend, Two, accept, door, frame, head_block, key_in,
    next_frame, rest_of, send_all, two, two_get, two_websocket, whole,
};
use crate::support::xmpp::Talk;
use crate::support::{End, reset, within};

#[tokio::test]
async fn requests_and_their_bodies_pass() {
    within(60, async {
        let backend = HttpBackend::echo();
        let vestibule = door(backend.addr(), "").start().await;
        let mut client = Two::connect(vestibule.addr()).await;
        assert_eq!(client.get("/a?b").await.2, "0 /a?b ");
        for length in [None, Some("5")] {
            let mut request = two("POST", "/post");
            if let Some(length) = length {
                request
                    .headers_mut()
                    .insert("content-length", length.parse().unwrap());
            }
            let (answer, mut upload) = client.send(request, false).await;
            upload.send_data("hel".into(), false).unwrap();
            upload.send_data("lo".into(), true).unwrap();
            assert_eq!(whole(answer).await.unwrap().2, "0 /post hello");
            let seen = backend.requests().pop().unwrap();
            assert_eq!(seen.header("content-length"), length);
            assert_eq!(seen.header("host"), Some("chat.test"));
        }
        let (answer, _) = client.send(two("POST", "/none"), true).await;
        assert_eq!(whole(answer).await.unwrap().2, "0 /none ");
        assert_eq!(
            backend.requests().pop().unwrap().header("content-length"),
            Some("0")
        );
    })
    .await;
}

#[tokio::test]
async fn bytes_stream_both_ways_as_they_come() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door(backend.addr(), "").start().await;
        let mut client = Two::connect(vestibule.addr()).await;
        let (answer, mut upload) = client.send(two("POST", "/"), false).await;
        upload.send_data("ab".into(), false).unwrap();
        let mut server = Talk::new(backend.accept().await);
        server.until("\r\n2\r\nab\r\n").await;
        server.say("HTTP/1.1 200 OK\r\n\r\n").await;
        let mut body = answer.await.unwrap().into_body();
        for _ in 0..10 {
            upload.send_data("abc".into(), false).unwrap();
            server.hears("3\r\nabc\r\n").await;
            server.say("wxyz").await;
            assert_eq!(body.data().await.unwrap().unwrap(), "wxyz");
        }
        upload.send_data("".into(), true).unwrap();
        server.hears("0\r\n\r\n").await;
        server.end().await;
        assert_eq!(rest_of(&mut body).await.unwrap(), "");
    })
    .await;
}

#[tokio::test]
async fn a_hundred_websockets_and_requests_share_one_connection() {
    within(120, async {
        const SOCKETS: usize = 100;
        let backend = SocketBackend::start();
        let vestibule = door(backend.addr(), "[http]\nstreams = 200\n")
            .start()
            .await;
        let mut client = Two::connect(vestibule.addr()).await;
        assert_eq!(client.get("/").await.2, "ok");
        assert!(client.sender.is_extended_connect_protocol_enabled());
        let mut sockets = Vec::new();
        for number in 0..SOCKETS {
            let (answer, up) = client.send(two_websocket("/ws"), false).await;
            let answer = answer.await.unwrap();
            assert_eq!(answer.status(), 200, "{number}");
            assert_eq!(answer.headers()["sec-websocket-protocol"], "xmpp");
            for name in ["sec-websocket-accept", "upgrade", "connection"] {
                assert!(!answer.headers().contains_key(name), "{name}");
            }
            sockets.push((up, answer.into_body()));
            if number % 10 == 0 {
                assert_eq!(client.get("/").await.2, "ok");
            }
        }
        assert_eq!(backend.served(), (SOCKETS, 0));
        for round in 0..3 {
            for (number, (up, _)) in sockets.iter_mut().enumerate() {
                up.send_data(format!("{round} of {number}").into(), false)
                    .unwrap();
            }
            for (number, (_, down)) in sockets.iter_mut().enumerate() {
                let said = down.data().await.unwrap().unwrap();
                assert_eq!(said, format!("{round} of {number}"));
                down.flow_control().release_capacity(said.len()).unwrap();
            }
            assert_eq!(client.get("/").await.2, "ok");
        }
        // Each ends by itself.
        for (number, (up, down)) in sockets.iter_mut().enumerate() {
            up.send_data(Bytes::new(), true).unwrap();
            assert_eq!(rest_of(down).await.unwrap(), "", "{number}");
        }
        assert_eq!(client.get("/").await.2, "ok");
        drop(sockets);
        drop(client);
        vestibule.is_idle().await;
        assert_eq!(backend.served(), (SOCKETS, SOCKETS));
    })
    .await;
}

#[tokio::test]
async fn each_side_of_a_websocket_may_end_before_the_other() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door(backend.addr(), "").start().await;
        let mut client = Two::connect(vestibule.addr()).await;
        assert!(client.get_settings().await);
        for first in ["client", "server"] {
            let (answer, mut up) = client.send(two_websocket("/ws"), false).await;
            let mut server = Talk::new(backend.accept().await);
            let head = server.until("\r\n\r\n").await;
            assert!(head.starts_with("GET /ws HTTP/1.1\r\n"), "{head}");
            server.say(accept(key_in(&head), "") + "glued").await;
            let mut down = answer.await.unwrap().into_body();
            assert_eq!(down.data().await.unwrap().unwrap(), "glued");
            if first == "client" {
                up.send_data("bye".into(), true).unwrap();
                assert_eq!(server.rest().await, ("bye".to_owned(), End::Fin));
                server.say("last words").await;
                server.end().await;
                assert_eq!(rest_of(&mut down).await.unwrap(), "last words");
            } else {
                server.say("bye").await;
                server.end().await;
                assert_eq!(rest_of(&mut down).await.unwrap(), "bye");
                up.send_data("last words".into(), true).unwrap();
                assert_eq!(server.rest().await, ("last words".to_owned(), End::Fin));
            }
        }
        // What one side breaks off ends for the other.
        let (answer, mut up) = client.send(two_websocket("/ws"), false).await;
        let mut server = Talk::new(backend.accept().await);
        let head = server.until("\r\n\r\n").await;
        server.say(accept(key_in(&head), "")).await;
        let mut down = answer.await.unwrap().into_body();
        reset(server.stream);
        // hyper can only end a stream, so this is no more than an end without WebSocket's own.
        if let Err(error) = rest_of(&mut down).await {
            assert!(error.is_reset(), "{error:?}");
        }
        up.send_reset(Reason::CANCEL);

        let (answer, mut up) = client.send(two_websocket("/ws"), false).await;
        let mut server = Talk::new(backend.accept().await);
        let head = server.until("\r\n\r\n").await;
        server.say(accept(key_in(&head), "")).await;
        let _down = answer.await.unwrap().into_body();
        up.send_reset(Reason::CANCEL);
        server.rest().await;
    })
    .await;
}

impl Two {
    /// Whether WebSockets are offered, once the server's settings are there.
    async fn get_settings(&mut self) -> bool {
        while !self.sender.is_extended_connect_protocol_enabled() {
            self.sender = self.sender.clone().ready().await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        true
    }
}

#[tokio::test]
async fn a_connect_that_is_no_websocket_is_refused() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door(backend.addr(), "[timeouts]\nupgrade = '300ms'\n").start().await;
        let mut client = Two::connect(vestibule.addr()).await;
        client.get_settings().await;
        for protocol in ["connect-udp", "webtransport", "websocket2", "xmpp"] {
            let mut request = two("CONNECT", "/ws");
            let protocol = h2::ext::Protocol::from(protocol);
            request.extensions_mut().insert(protocol);
            assert_eq!(client.ask(request).await.0, 501);
        }
        let mut request = two("CONNECT", "");
        *request.uri_mut() = "chat.test:443".parse().unwrap();
        let status = client.ask(request).await.0;
        assert!((400..600).contains(&status), "{status}");
        assert!(backend.is_unused());
        // A backend that says no, or yes with the wrong proof, or nothing.
        for (answer, status) in [
            ("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno".to_owned(), 403),
            (accept("AAAAAAAAAAAAAAAAAAAAAA==", ""), 502),
            ("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n".to_owned(), 502),
            (String::new(), 504),
        ] {
            let (response, _up) = client.send(two_websocket("/ws"), false).await;
            let mut server = Talk::new(backend.accept().await);
            server.until("\r\n\r\n").await;
            server.say(&answer).await;
            assert_eq!(response.await.unwrap().status(), status, "{answer:?}");
            server.rest().await;
        }
    })
    .await;
}

#[tokio::test]
async fn large_bodies_pass_by_flow_control() {
    within(120, async {
        let backend = HttpBackend::start(|seen| Reply::ok(&seen.body));
        let vestibule = door(backend.addr(), "").start().await;
        let mut client = Two::connect(vestibule.addr()).await;
        let body: Bytes = "0123456789abcdef".repeat(100_000).into();
        let mut tasks = JoinSet::new();
        for _ in 0..4 {
            let (answer, mut upload) = client.send(two("POST", "/"), false).await;
            let body = body.clone();
            tasks.spawn(async move {
                send_all(&mut upload, body.clone(), true).await.unwrap();
                assert!(whole(answer).await.unwrap().2 == body);
            });
        }
        tasks.join_all().await;
    })
    .await;
}

#[tokio::test]
async fn streams_that_stand_still_do_not_stop_the_others() {
    within(60, async {
        let large = "x".repeat(1 << 20);
        let answer = large.clone();
        let backend = HttpBackend::start(move |seen| match seen.path() {
            "/large" => Reply::ok(&answer),
            _ => Reply::ok(&seen.body.len().to_string()),
        });
        let mut stalling = RecordingBackend::start();
        let file = format!(
            "[[listener]]\nname = 'web'\nlisten = 'https://@0'\nupstream = 'u'\n\
             [[route]]\npaths = ['/stall']\nupstream = 's'\n\
             [[upstream]]\nname = 'u'\nbackend = [{{ address = '{}' }}]\n\
             [[upstream]]\nname = 's'\nbackend = [{{ address = '{}' }}]\n",
            backend.addr(),
            stalling.addr()
        );
        let vestibule = crate::support::vestibule::Setup::default()
            .file(&file)
            .start()
            .await;
        let mut builder = h2::client::Builder::new();
        builder
            .initial_connection_window_size(16 << 20)
            .initial_window_size(64 << 10);
        let mut client = Two::build(vestibule.addr(), &builder).await;
        // Answers that the client does not read,
        let mut held = Vec::new();
        for _ in 0..9 {
            let (answer, _) = client.send(two_get("/large"), true).await;
            held.push(answer.await.unwrap().into_body());
        }
        // and requests that the backend does not read.
        let mut stalled = Vec::new();
        for _ in 0..9 {
            let (answer, mut upload) = client.send(two("POST", "/stall"), false).await;
            let sending = tokio::spawn(async move {
                let all = Bytes::from(vec![b'x'; 32 << 20]);
                let _ = send_all(&mut upload, all, true).await;
            });
            stalled.push((answer, sending, stalling.accept().await));
        }
        for _ in 0..20 {
            let (answer, mut upload) = client.send(two("POST", "/"), false).await;
            send_all(&mut upload, large.clone().into(), true)
                .await
                .unwrap();
            assert_eq!(whole(answer).await.unwrap().2, large.len().to_string());
            assert!(client.get("/large").await.2 == large);
        }
        for mut body in held {
            assert!(rest_of(&mut body).await.unwrap() == large);
        }
        for (_, sending, _) in stalled {
            assert!(!sending.is_finished());
            sending.abort();
        }
    })
    .await;
}

/// The window of one stream stays shut while all else flows: nothing of that shows on the socket.
#[tokio::test]
async fn a_stream_whose_client_takes_nothing_is_reset_alone() {
    within(60, async {
        let large = "x".repeat(1 << 20);
        let backend = HttpBackend::start(move |seen| match seen.path() {
            "/large" => Reply::ok(&large),
            _ => Reply::ok("y"),
        });
        let settings = "[timeouts]\nwrite = '500ms'\n";
        let vestibule = door(backend.addr(), settings).start().await;
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(1000);
        let mut client = Two::build(vestibule.addr(), &builder).await;
        let (answer, _) = client.send(two_get("/large"), true).await;
        let mut held = answer.await.unwrap().into_body();
        let first = held.data().await.unwrap().unwrap();
        assert_eq!(first.len(), 1000);
        // It never gives window back; the others do.
        let error = loop {
            assert_eq!(client.get("/").await.2, "y");
            tokio::select! {
                biased;
                data = held.data() => break data.unwrap().unwrap_err(),
                () = tokio::task::yield_now() => {}
            }
        };
        assert_eq!(error.reason(), Some(Reason::CANCEL));
        assert_eq!(client.get("/").await.2, "y");
        drop((client, held));
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn a_drain_lets_streams_end_and_says_goaway() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let mut vestibule = door(backend.addr(), "")
            .args(&["--drain-timeout", "5s"])
            .start()
            .await;
        let mut client = Two::connect(vestibule.addr()).await;
        let (answer, _) = client.send(two_get("/"), true).await;
        let mut server = Talk::new(backend.accept().await);
        server.until("\r\n\r\n").await;
        let mut idle = Two::connect(vestibule.addr()).await;
        idle.get_settings().await;
        vestibule.terminate();
        // Nothing was open there.
        let ended = idle.connection.await.unwrap();
        assert!(ended.is_ok(), "{ended:?}");
        // No new request is taken, and the old one has its answer.
        loop {
            let mut sender = client.sender.clone();
            match std::future::poll_fn(|cx| sender.poll_ready(cx)).await {
                Err(error) => {
                    assert!(
                        error.is_go_away() && error.reason() == Some(Reason::NO_ERROR),
                        "{error:?}"
                    );
                    break;
                }
                Ok(()) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
        server
            .say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            .await;
        assert_eq!(whole(answer).await.unwrap().2, "ok");
        let ended = client.connection.await.unwrap();
        assert!(ended.is_ok(), "{ended:?}");
        assert_eq!(vestibule.ended().await.code(), Some(0));
    })
    .await;
}

#[tokio::test]
async fn a_drain_ends_websockets_in_their_turn() {
    within(60, async {
        let backend = SocketBackend::start();
        let mut vestibule = door(backend.addr(), "")
            .args(&["--drain-timeout", "2s"])
            .start()
            .await;
        let mut client = Two::connect(vestibule.addr()).await;
        client.get_settings().await;
        let mut sockets = Vec::new();
        for _ in 0..20 {
            let (answer, up) = client.send(two_websocket("/ws"), false).await;
            sockets.push((answer.await.unwrap().into_body(), up));
        }
        vestibule.terminate();
        for (down, _) in &mut sockets {
            assert_eq!(rest_of(down).await.unwrap(), "");
        }
        drop(sockets);
        assert_eq!(vestibule.ended().await.code(), Some(0));
    })
    .await;
}

#[tokio::test]
async fn a_silent_websocket_outlives_every_deadline_of_http_and_not_idle() {
    within(60, async {
        let backend = SocketBackend::start();
        let short = "request = '300ms'\nrequest_body = '300ms'\nanswer = '300ms'\nupgrade = '300ms'\n\
             write = '300ms'\nkeep_alive = '300ms'\nhalf_closed = '300ms'\n";
        for (idle, lives) in [("0", true), ("600ms", false)] {
            let settings = format!("[timeouts]\n{short}idle = '{idle}'\n");
            let vestibule = door(backend.addr(), &settings).start().await;
            let mut client = Two::connect(vestibule.addr()).await;
            client.get_settings().await;
            let (answer, mut up) = client.send(two_websocket("/ws"), false).await;
            let mut down = answer.await.unwrap().into_body();
            for _ in 0..6 {
                tokio::time::sleep(Duration::from_millis(300)).await;
                up.send_data("still".into(), false).unwrap();
                assert_eq!(down.data().await.unwrap().unwrap(), "still");
            }
            tokio::time::sleep(Duration::from_millis(1500)).await;
            let sent = up.send_data("here".into(), false);
            if lives {
                sent.unwrap();
                assert_eq!(down.data().await.unwrap().unwrap(), "here");
            } else {
                assert_eq!(rest_of(&mut down).await.unwrap_or_default(), "");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_silent_connection_hears_goaway_before_its_end() {
    within(60, async {
        let backend = HttpBackend::echo();
        let settings = "[timeouts]\nkeep_alive = '300ms'\nrequest = '60s'\n";
        let vestibule = door(backend.addr(), settings).start().await;
        let mut stream = Offer::default()
            .alpn(&["h2"])
            .connect(vestibule.addr())
            .await;
        let words = [PREFACE, &frame(1, 5, 1, &head_block())].concat();
        stream.write_all(&words).await.unwrap();
        let mut goaway = None;
        while let Some((kind, _, _, payload)) = next_frame(&mut stream).await.unwrap() {
            if kind == 7 {
                goaway = Some(payload);
            }
        }
        assert_eq!(goaway.expect("GOAWAY"), [0, 0, 0, 1, 0, 0, 0, 0]);
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn floods_end_their_connection_and_no_other() {
    within(120, async {
        let backend = HttpBackend::echo();
        let vestibule = door(backend.addr(), "")
            .args(&["--workers", "1"])
            .start()
            .await;
        let mut honest = Two::connect(vestibule.addr()).await;
        let head = head_block();
        let get = |stream: u32| frame(1, 5, stream, &head);
        let rapid: Vec<u8> = (0..2000)
            .flat_map(|number| {
                [
                    get(2 * number + 1),
                    frame(3, 0, 2 * number + 1, &[0, 0, 0, 8]),
                ]
                .concat()
            })
            .collect();
        // A window that is too large makes us reset the stream.
        let made: Vec<u8> = (0..2000)
            .flat_map(|number| {
                [
                    get(2 * number + 1),
                    frame(8, 0, 2 * number + 1, &[0x7f, 0xff, 0xff, 0xff]),
                ]
                .concat()
            })
            .collect();
        let open = frame(1, 4, 1, &head);
        let long = frame(1, 1, 1, &head);
        let floods = [
            ("rapid reset", rapid),
            ("made you reset", made),
            ("ping", frame(6, 0, 0, &[0; 8]).repeat(5000)),
            ("settings", frame(4, 0, 0, &[0, 3, 0, 0, 0, 9]).repeat(5000)),
            (
                "empty data",
                [open.clone(), frame(0, 0, 1, &[]).repeat(5000)].concat(),
            ),
            (
                "continuation",
                [long, frame(9, 0, 1, &[0, 1, b'x', 1, b'y']).repeat(5000)].concat(),
            ),
            (
                "empty continuation",
                [frame(1, 1, 1, &head), frame(9, 0, 1, &[]).repeat(5000)].concat(),
            ),
            ("priority", frame(2, 0, 1, &[0, 0, 0, 3, 1]).repeat(5000)),
            ("window", frame(8, 0, 0, &[0, 0, 0, 1]).repeat(5000)),
            ("unknown", frame(0xfa, 0, 0, &[]).repeat(5000)),
        ];
        for (name, bytes) in floods {
            assert_eq!(honest.get("/").await.0, 200);
            let mut stream = Offer::default()
                .alpn(&["h2"])
                .connect(vestibule.addr())
                .await;
            stream.write_all(PREFACE).await.unwrap();
            let (mut read, mut write) = tokio::io::split(stream);
            // It stops when it is not heard any more.
            let flooding = tokio::spawn(async move {
                for piece in bytes.chunks(1000) {
                    if write.write_all(piece).await.is_err() {
                        break;
                    }
                }
                let _ = write.flush().await;
                write
            });
            let mut all = Vec::new();
            // However it ends, what came before is read.
            let _ = tokio::io::AsyncReadExt::read_to_end(&mut read, &mut all).await;
            let mut codes = Vec::new();
            let mut rest = &all[..];
            while let [l0, l1, l2, kind, _, _, _, _, _, after @ ..] = rest {
                let len = u32::from_be_bytes([0, *l0, *l1, *l2]) as usize;
                if *kind == 7 {
                    codes.push(after[7]);
                }
                rest = &after[len..];
            }
            assert_eq!(codes.last(), Some(&0x0b), "{name}: {codes:?}");
            assert_eq!(honest.get("/").await.0, 200);
            drop((flooding.await, read));
        }
        drop(honest);
        vestibule.is_idle().await;
    })
    .await;
}

/// What is no flood: many requests one after another, a ping for each, and windows given back in small pieces.
#[tokio::test]
async fn a_busy_client_is_no_flood() {
    within(60, async {
        let body = "x".repeat(200_000);
        let backend = HttpBackend::start(move |_| Reply::ok(&body));
        let vestibule = door(backend.addr(), "").start().await;
        let mut client = Two::connect(vestibule.addr()).await;
        for number in 0..300 {
            let (answer, _) = client.send(two_get("/"), true).await;
            let mut body = answer.await.unwrap().into_body();
            // One in ten is given up.
            if number % 10 == 0 {
                continue;
            }
            while let Some(data) = body.data().await {
                body.flow_control()
                    .release_capacity(data.unwrap().len())
                    .unwrap();
            }
        }
    })
    .await;
}
