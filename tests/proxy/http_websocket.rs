//! WebSocket over HTTP/1.1: from the wish to the last byte.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::backend::RecordingBackend;
use crate::support::http::{HttpBackend, Reply, client, door, get};
use crate::support::pattern::Pattern;
use crate::support::vestibule::Vestibule;
use crate::support::xmpp::{PlainTalk, SecureTalk, Talk};
use crate::support::{End, within};

const HOST: &str = "Host: chat.test\r\n";
const KEY: &str = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
const ACCEPT: &str = "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n";

fn wish(lines: &str) -> String {
    format!("GET /ws HTTP/1.1\r\n{HOST}{KEY}{lines}\r\n")
}

fn ordinary() -> String {
    wish("Connection: Upgrade\r\nUpgrade: websocket\r\n")
}

fn yes(lines: &str) -> String {
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{ACCEPT}{lines}\r\n"
    )
}

/// A client and a backend with a WebSocket between them.
async fn joined(vestibule: &Vestibule, backend: &mut RecordingBackend) -> (SecureTalk, PlainTalk) {
    let mut client = client(vestibule.addr()).await;
    client.say(ordinary()).await;
    let mut server = Talk::new(backend.accept().await);
    server.until("\r\n\r\n").await;
    server.say(yes("")).await;
    assert_eq!(client.head().await.status, 101);
    (client, server)
}

#[tokio::test]
async fn a_wish_is_understood_in_all_its_spellings() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door(backend.addr(), "").start().await;
        for lines in [
            "Connection: Upgrade\r\nUpgrade: websocket\r\n",
            "connection: upgrade\r\nupgrade: WebSocket\r\n",
            "Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n",
            "Connection: keep-alive\r\nConnection: UPGRADE\r\nUPGRADE: WEBSOCKET\r\n",
            "Connection: ,, Upgrade ,x-hop\r\nUpgrade:websocket \r\nX-Hop: a\r\n",
        ] {
            let mut client = client(vestibule.addr()).await;
            let more = "Sec-WebSocket-Protocol: xmpp, other\r\nSec-WebSocket-Extensions: permessage-deflate\r\nOrigin: https://chat.test\r\n";
            client.say(wish(&(lines.to_owned() + more))).await;
            let mut server = Talk::new(backend.accept().await);
            let head = server.until("\r\n\r\n").await.to_lowercase();
            for line in [
                "get /ws http/1.1\r\n",
                "\r\nconnection: upgrade\r\n",
                "\r\nupgrade: websocket\r\n",
                "\r\nsec-websocket-key: dghlihnhbxbszsbub25jzq==\r\n",
                "\r\nsec-websocket-version: 13\r\n",
                "\r\nsec-websocket-protocol: xmpp, other\r\n",
                "\r\nsec-websocket-extensions: permessage-deflate\r\n",
                "\r\norigin: https://chat.test\r\n",
                "\r\nx-forwarded-for: 127.0.0.1\r\n",
            ] {
                assert!(head.contains(line), "{line:?} in {head:?}");
            }
            assert!(!head.contains("x-hop"));
            server.say(yes("Sec-WebSocket-Protocol: xmpp\r\nSec-WebSocket-Extensions: permessage-deflate\r\nSet-Cookie: a\r\n")).await;
            let got = client.head().await;
            assert_eq!(got.status, 101, "{lines:?}");
            assert_eq!(got.header("connection").map(str::to_lowercase).as_deref(), Some("upgrade"));
            assert_eq!(got.header("upgrade"), Some("websocket"));
            assert_eq!(got.header("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
            assert_eq!(got.header("sec-websocket-protocol"), Some("xmpp"));
            assert_eq!(got.header("sec-websocket-extensions"), Some("permessage-deflate"));
            assert_eq!(got.header("set-cookie"), Some("a"));
            assert_eq!(got.header("content-length"), None);
            assert_eq!(got.header("transfer-encoding"), None);
            client.say("up").await;
            server.hears("up").await;
            server.say("down").await;
            client.hears("down").await;
        }
    })
    .await;
}

#[tokio::test]
async fn any_other_wish_is_not_passed_on() {
    within(60, async {
        let backend = HttpBackend::echo();
        let vestibule = door(backend.addr(), "").start().await;
        for request in [
            format!("GET / HTTP/1.1\r\n{HOST}{KEY}Upgrade: websocket\r\n\r\n"),
            format!("GET / HTTP/1.1\r\n{HOST}{KEY}Connection: close-not\r\nUpgrade: websocket\r\n\r\n"),
            format!("GET / HTTP/1.1\r\n{HOST}{KEY}Connection: upgrade\r\nUpgrade: websocket, h2c\r\n\r\n"),
            format!("GET / HTTP/1.1\r\n{HOST}{KEY}Connection: upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n\r\n"),
            format!("GET / HTTP/1.1\r\n{HOST}Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n"),
            format!("GET / HTTP/1.1\r\n{HOST}Connection: upgrade\r\nUpgrade: TLS/1.0\r\n\r\n"),
            format!("GET / HTTP/1.0\r\n{HOST}{KEY}Connection: upgrade\r\nUpgrade: websocket\r\n\r\n"),
            format!("POST / HTTP/1.1\r\n{HOST}{KEY}Connection: upgrade\r\nUpgrade: websocket\r\n\r\n"),
        ] {
            let mut client = client(vestibule.addr()).await;
            client.say(&request).await;
            let got = client.answer().await;
            assert_eq!(got.status, 200, "{request:?}");
            assert_eq!(client.rest().await, (String::new(), End::CloseNotify), "{request:?}");
            let seen = backend.requests().pop().unwrap();
            assert_eq!((seen.header("upgrade"), seen.header("http2-settings"), seen.header("connection")), (None, None, None), "{request:?}");
        }
        // A version that is none is told what is one (RFC 6455 section 4.4).
        let mut client = client(vestibule.addr()).await;
        client.say(format!("GET / HTTP/1.1\r\n{HOST}Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 8\r\n\r\n")).await;
        let got = client.answer().await;
        assert_eq!((got.status, got.header("sec-websocket-version")), (426, Some("13")));
    })
    .await;
}

#[tokio::test]
async fn bytes_that_come_early_on_either_side_are_not_lost() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door(backend.addr(), "").start().await;
        let large = "y".repeat(40_000);
        for early in ["first", large.as_str()] {
            let mut client = client(vestibule.addr()).await;
            client.say(ordinary() + early).await;
            let mut server = Talk::new(backend.accept().await);
            server.until("\r\n\r\n").await;
            assert_eq!(server.unheard(), "");
            server.say(yes("") + early).await;
            assert_eq!(client.head().await.status, 101);
            client.hears(early).await;
            server.hears(early).await;
            client.say("up").await;
            server.hears("up").await;
            server.say("down").await;
            client.hears("down").await;
        }
        // In pieces of a byte.
        let mut client = client(vestibule.addr()).await;
        for byte in (ordinary() + "first").bytes() {
            client.say([byte]).await;
        }
        let mut server = Talk::new(backend.accept().await);
        server.until("\r\n\r\n").await;
        for byte in (yes("") + "first").bytes() {
            server.say([byte]).await;
        }
        assert_eq!(client.head().await.status, 101);
        client.hears("first").await;
        server.hears("first").await;
    })
    .await;
}

#[tokio::test]
async fn a_no_passes_and_ends_both_connections() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door(backend.addr(), "").start().await;
        for (status, answer, body) in [
            (403, "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nX-Why: so\r\n\r\nno", "no"),
            (200, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Why: so\r\n\r\n2\r\nno\r\n0\r\n\r\n", "no"),
            (426, "HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nContent-Length: 0\r\nX-Why: so\r\n\r\n", ""),
        ] {
            let mut client = client(vestibule.addr()).await;
            client.say(ordinary() + "GET /smuggled HTTP/1.1\r\n\r\n").await;
            let mut server = Talk::new(backend.accept().await);
            server.until("\r\n\r\n").await;
            server.say(answer).await;
            let got = client.answer().await;
            assert_eq!((got.status, got.body.as_str()), (status, body));
            assert_eq!((got.header("x-why"), got.header("connection")), (Some("so"), Some("close")));
            assert_eq!(client.rest().await, (String::new(), End::CloseNotify));
            assert_eq!(server.rest().await, (String::new(), End::Fin));
            assert!(backend.is_unused());
        }
    })
    .await;
}

#[tokio::test]
async fn a_yes_that_is_none_is_502() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door(backend.addr(), "").start().await;
        let yes = "HTTP/1.1 101 Switching Protocols\r\n";
        for answer in [
            format!("{yes}Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"),
            format!("{yes}Connection: Upgrade\r\nUpgrade: h2c\r\n{ACCEPT}\r\n"),
            format!("{yes}Connection: Upgrade\r\n{ACCEPT}\r\n"),
            format!("{yes}Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 5\r\n{ACCEPT}\r\n"),
            format!("{yes}Connection: Upgrade\r\nUpgrade: websocket\r\nTransfer-Encoding: chunked\r\n{ACCEPT}\r\n"),
            "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(17),
        ] {
            let mut client = client(vestibule.addr()).await;
            client.say(ordinary() + "frame").await;
            let mut server = Talk::new(backend.accept().await);
            server.until("\r\n\r\n").await;
            server.say(&answer).await;
            let got = client.answer().await;
            assert_eq!((got.status, got.header("connection")), (502, Some("close")), "{answer:?}");
            assert_eq!(client.rest().await, (String::new(), End::CloseNotify));
            let (said, _) = server.rest().await;
            assert_eq!(said, "");
        }
        // One that ends without a word.
        let mut client = client(vestibule.addr()).await;
        client.say(ordinary()).await;
        drop(backend.accept().await);
        assert_eq!(client.answer().await.status, 502);
    })
    .await;
}

#[tokio::test]
async fn a_backend_that_does_not_decide_is_504_in_time() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door(backend.addr(), "[timeouts]\nupgrade = '300ms'\n")
            .start()
            .await;
        let mut client = client(vestibule.addr()).await;
        client.say(ordinary()).await;
        let mut server = Talk::new(backend.accept().await);
        server.until("\r\n\r\n").await;
        server.say("HTTP/1.1 103 Early Hints\r\n\r\n").await;
        let mut got = client.answer().await;
        if got.status == 103 {
            got = client.answer().await;
        }
        assert_eq!((got.status, got.header("connection")), (504, Some("close")));
        assert_eq!(client.rest().await, (String::new(), End::CloseNotify));
        let (said, _) = server.rest().await;
        assert_eq!(said, "");
    })
    .await;
}

#[tokio::test]
async fn each_side_may_end_before_the_other() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door(backend.addr(), "").start().await;
        let (mut client, mut server) = joined(&vestibule, &mut backend).await;
        client.end().await;
        assert_eq!(server.rest().await, (String::new(), End::Fin));
        server.say("last words").await;
        client.hears("last words").await;
        server.end().await;
        assert_eq!(client.rest().await, (String::new(), End::CloseNotify));

        let (mut client, mut server) = joined(&vestibule, &mut backend).await;
        server.say("bye").await;
        server.end().await;
        assert_eq!(client.rest().await, ("bye".to_owned(), End::CloseNotify));
        client.say("last words").await;
        server.hears("last words").await;
        client.end().await;
        assert_eq!(server.rest().await, (String::new(), End::Fin));
        drop((client, server));

        // A backend that dies is no clean end.
        let (mut client, server) = joined(&vestibule, &mut backend).await;
        crate::support::reset(server.stream);
        let (said, end) = client.rest().await;
        assert_eq!(said, "");
        assert_ne!(end, End::CloseNotify);
        drop(client);
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn much_passes_both_ways_at_once() {
    within(120, async {
        const LEN: u64 = 20 << 20;
        let mut backend = RecordingBackend::start();
        let vestibule = door(backend.addr(), "").start().await;
        let (client, server) = joined(&vestibule, &mut backend).await;
        let (up, down) = (Pattern::new(1), Pattern::new(2));
        let (mut client_in, mut client_out) = tokio::io::split(client.stream);
        let (mut server_in, mut server_out) = server.stream.into_split();
        let one = async {
            up.write(&mut client_out, LEN).await.unwrap();
            client_out.shutdown().await.unwrap();
        };
        let other = async {
            down.write(&mut server_out, LEN).await.unwrap();
            server_out.shutdown().await.unwrap();
        };
        tokio::join!(
            one,
            other,
            down.verify(&mut client_in, LEN),
            up.verify(&mut server_in, LEN)
        );
        let mut rest = Vec::new();
        assert_eq!(client_in.read_to_end(&mut rest).await.unwrap(), 0);
        assert_eq!(server_in.read_to_end(&mut rest).await.unwrap(), 0);
    })
    .await;
}

#[tokio::test]
async fn what_has_been_asked_to_upgrade_serves_nobody_else() {
    within(60, async {
        let backend = HttpBackend::start(|seen| match seen.path() {
            "/ws" => Reply::raw("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
            _ => Reply::ok(&seen.connection.to_string()),
        });
        let vestibule = door(backend.addr(), "")
            .args(&["--workers", "1"])
            .start()
            .await;
        let mut first = client(vestibule.addr()).await;
        assert_eq!(first.get("/").await.body, "0");
        // Not on a connection that others use either.
        let mut second = client(vestibule.addr()).await;
        second.say(ordinary()).await;
        assert_eq!(second.answer().await.status, 404);
        backend.ended(1).await;
        assert_eq!(first.get("/").await.body, "0");
        assert_eq!(backend.connections(), 2);
    })
    .await;
}

#[tokio::test]
async fn a_silent_websocket_outlives_every_deadline_of_http() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let settings = "[timeouts]\nrequest = '300ms'\nrequest_body = '300ms'\nanswer = '300ms'\nupgrade = '300ms'\n\
             write = '300ms'\nkeep_alive = '300ms'\n[http]\nidle_backend = '300ms'\nbackend_age = '300ms'\n";
        let vestibule = door(backend.addr(), settings).start().await;
        let (mut client, mut server) = joined(&vestibule, &mut backend).await;
        tokio::time::sleep(Duration::from_millis(1500)).await;
        client.say("still").await;
        server.hears("still").await;
        server.say("here").await;
        client.hears("here").await;
    })
    .await;
}

#[tokio::test]
async fn a_drain_ends_websockets_in_their_turn() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let mut vestibule = door(backend.addr(), "")
            .args(&["--drain-timeout", "2s"])
            .start()
            .await;
        let mut pairs = Vec::new();
        for _ in 0..10 {
            pairs.push(joined(&vestibule, &mut backend).await);
        }
        vestibule.terminate();
        for (client, server) in &mut pairs {
            let (said, end) = client.rest().await;
            assert_eq!((said.as_str(), end), ("", End::CloseNotify));
            let (said, end) = server.rest().await;
            assert_eq!((said.as_str(), end), ("", End::Fin));
        }
        drop(pairs);
        assert_eq!(vestibule.ended().await.code(), Some(0));
    })
    .await;
}

#[tokio::test]
async fn a_websocket_may_follow_requests_on_its_connection() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door(backend.addr(), "").start().await;
        let mut client = client(vestibule.addr()).await;
        client.say(get("/") + &ordinary()).await;
        let mut first = Talk::new(backend.accept().await);
        first.until("\r\n\r\n").await;
        first
            .say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            .await;
        assert_eq!(client.answer().await.body, "ok");
        let mut server = Talk::new(backend.accept().await);
        server.until("\r\n\r\n").await;
        server.say(yes("")).await;
        assert_eq!(client.head().await.status, 101);
        client.say("up").await;
        server.hears("up").await;
    })
    .await;
}
