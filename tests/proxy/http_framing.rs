//! What could be read in more than one way is refused, whoever sends it: a backend sees the requests that came whole before it
//! and nothing else, and a client takes no cut answer for a whole one.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::support::backend::RecordingBackend;
use crate::support::certs::pki;
use crate::support::http::{
    HttpBackend, PREFACE, Reply, Two, client, door, frame, get, next_frame, post, rest_of, two,
    two_get, whole,
};
use crate::support::vestibule::{Setup, Vestibule};
use crate::support::xmpp::{PlainTalk, SecureTalk, Talk};
use crate::support::{End, reset, within};

const HOST: &str = "Host: chat.test\r\n";

/// Requests that are refused by their heads, with the status that says so.
fn heads() -> Vec<(u16, String)> {
    let with = |status: u16, lines: &str| {
        let head = format!("POST /bad HTTP/1.1\r\n{HOST}{lines}\r\n");
        (status, head + "0\r\n\r\n")
    };
    let line = |status: u16, line: &str| (status, format!("{line}\r\n{HOST}\r\n"));
    let mut list = vec![
        with(400, "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"),
        with(400, "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"),
        with(400, "Content-Length: 5, 5\r\n"),
        with(400, "Content-Length: 5\r\nContent-Length: 5\r\n"),
        with(400, "Content-Length: 5\r\nContent-Length: 6\r\n"),
        with(400, "Content-Length: +5\r\n"),
        with(400, "Content-Length: -5\r\n"),
        with(400, "Content-Length: 0x5\r\n"),
        with(400, "Content-Length: 5 5\r\n"),
        with(400, "Content-Length:\r\n"),
        with(400, "Content-Length: 5;\r\n"),
        with(400, "Content-Length: \"5\"\r\n"),
        with(400, "Content-Length: 99999999999999999999\r\n"),
        with(400, "Content-Length : 5\r\n"),
        with(400, "Content-Length\t: 5\r\n"),
        with(501, "Transfer-Encoding: chunked, chunked\r\n"),
        with(501, "Transfer-Encoding: gzip, chunked\r\n"),
        with(501, "Transfer-Encoding: chunked, identity\r\n"),
        with(501, "Transfer-Encoding: identity\r\n"),
        with(501, "Transfer-Encoding: xchunked\r\n"),
        with(501, "Transfer-Encoding: chunked;q=1\r\n"),
        with(501, "Transfer-Encoding:\r\n"),
        with(501, "Transfer-Encoding: \"chunked\"\r\n"),
        with(400, "Transfer-Encoding: chunked\x0b\r\n"),
        with(400, "Transfer-Encoding: \x0bchunked\r\n"),
        with(
            400,
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        ),
        with(
            400,
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        ),
        with(400, "Transfer-Encoding : chunked\r\n"),
        with(501, "Transfer-Encoding:\r\n chunked\r\n"),
        with(400, "X: a\r\n b\r\n"),
        with(400, "X: a\r\n\tContent-Length: 5\r\n"),
        with(400, " X: a\r\n"),
        with(400, "X: a\nContent-Length: 5\r\n"),
        with(400, "X: a\rContent-Length: 5\r\n"),
        with(400, "X: a\0b\r\n"),
        with(400, "X\0: a\r\n"),
        with(400, "X: a\x7f\r\n"),
        with(400, "X y: a\r\n"),
        with(400, "X\r\n"),
        with(400, ": a\r\n"),
        with(400, "X_y: a\r\n"),
        with(400, "Content_Length: 5\r\n"),
        with(400, "X(: a\r\n"),
        with(400, "Host: chat.test\r\n"),
        with(400, "Host: other.test\r\n"),
        with(400, "Upgrade: websocket\r\nContent-Length: 5\r\n"),
        with(400, "Upgrade: h2c\r\nTransfer-Encoding: chunked\r\n"),
        line(405, "CONNECT chat.test:443 HTTP/1.1"),
        line(405, "CONNECT / HTTP/1.1"),
        line(400, "GET http://other.test/ HTTP/1.1"),
        line(400, "GET https://chat.test:444/ HTTP/1.1"),
        line(400, "GET https://a@chat.test/ HTTP/1.1"),
        line(400, "GET  /bad HTTP/1.1"),
        line(400, "GET /bad  HTTP/1.1"),
        line(400, "GET\t/bad HTTP/1.1"),
        line(400, "GET /bad\tHTTP/1.1"),
        line(400, "GET /bad HTTP/1.1 "),
        line(400, "GET /b ad HTTP/1.1"),
        line(400, "GET /b\0ad HTTP/1.1"),
        line(400, "GET bad HTTP/1.1"),
        line(400, "GET * HTTP/1.1"),
        line(400, "GET /bad"),
        line(400, " GET /bad HTTP/1.1"),
        line(400, "G(T /bad HTTP/1.1"),
        line(400, "GET /bad HTTP/1,1"),
        line(400, "GET /bad http/1.1"),
        line(505, "GET /bad HTTP/1.2"),
        line(505, "GET /bad HTTP/2.0"),
        (400, format!("GET /bad HTTP/1.1\n{HOST}\r\n")),
        (400, "GET /bad HTTP/1.1\r\nHost: chat.test\n\r\n".to_owned()),
        (400, "GET /bad HTTP/1.1\r\nHost: chat.test\r\n\n".to_owned()),
        (400, "\nGET /bad HTTP/1.1\r\n\r\n".to_owned()),
        (400, "GET /bad HTTP/1.1\r\n\r\n".to_owned()),
        (
            400,
            "GET /bad HTTP/1.1\r\nHost: a@chat.test\r\n\r\n".to_owned(),
        ),
        (
            400,
            "GET /bad HTTP/1.1\r\nHost: chat.test/x\r\n\r\n".to_owned(),
        ),
        (
            400,
            "GET /bad HTTP/1.1\r\nHost: chat.test, b\r\n\r\n".to_owned(),
        ),
        (400, "GET /bad HTTP/1.1\r\nHost:\r\n\r\n".to_owned()),
        (
            400,
            format!("POST /bad HTTP/1.0\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ),
        (
            414,
            format!("GET /{} HTTP/1.1\r\n{HOST}\r\n", "a".repeat(9 << 10)),
        ),
        with(431, &format!("X: {}\r\n", "a".repeat(17 << 10))),
        with(431, &"X: a\r\n".repeat(101)),
    ];
    // The same with many lines, of which none is long.
    list.push(with(
        431,
        &format!("X: {}\r\n", "a".repeat(1000)).repeat(20),
    ));
    list
}

async fn refused(client: &mut SecureTalk, status: u16, what: &str) {
    let got = client.answer().await;
    assert_eq!(got.status, status, "{what:?}: {got:?}");
    assert_eq!(got.header("connection"), Some("close"), "{what:?}");
    assert_eq!(
        client.rest().await,
        (String::new(), End::CloseNotify),
        "{what:?}"
    );
}

#[tokio::test]
async fn a_head_of_two_meanings_is_refused_and_no_backend_sees_it() {
    within(120, async {
        let backend = HttpBackend::echo();
        let vestibule = door(backend.addr(), "").start().await;
        let mut good = 0;
        for (status, bad) in heads() {
            // Alone, and between two that are as they should be.
            let mut alone = client(vestibule.addr()).await;
            alone.say(&bad).await;
            refused(&mut alone, status, &bad).await;
            let mut between = client(vestibule.addr()).await;
            between
                .say(post("/before", "body") + &bad + &get("/after"))
                .await;
            let got = between.answer().await;
            assert_eq!(got.status, 200, "{bad:?}");
            refused(&mut between, status, &bad).await;
            good += 1;
            assert_eq!(backend.requests().len(), good, "{bad:?}");
        }
        assert!(backend.paths().iter().all(|path| path == "/before"));
        assert!(backend.unfinished().iter().all(String::is_empty));
    })
    .await;
}

#[tokio::test]
async fn a_body_of_two_meanings_is_refused_and_is_no_request_to_a_backend() {
    within(60, async {
        let backend = HttpBackend::echo();
        let vestibule = door(backend.addr(), "").start().await;
        for body in [
            "5\r\nhelloX0\r\n\r\n",
            "5\r\nhello\n0\r\n\r\n",
            "5\nhello\r\n0\r\n\r\n",
            "0x5\r\nhello\r\n0\r\n\r\n",
            "+5\r\nhello\r\n0\r\n\r\n",
            "-5\r\nhello\r\n0\r\n\r\n",
            " 5\r\nhello\r\n0\r\n\r\n",
            "5 \r\nhello\r\n0\r\n\r\n",
            "\r\n5\r\nhello\r\n0\r\n\r\n",
            ";\r\n5\r\nhello\r\n0\r\n\r\n",
            "5;a\nb\r\nhello\r\n0\r\n\r\n",
            "5;a\0b\r\nhello\r\n0\r\n\r\n",
            "fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
            "g\r\nhello\r\n0\r\n\r\n",
            "5\r\nhello\r\n0\r\nContent-Length: 5\r\n\r\n",
            "5\r\nhello\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
            "5\r\nhello\r\n0\r\nHost: other.test\r\n\r\n",
            "5\r\nhello\r\n0\r\nX y\r\n\r\n",
            "5\r\nhello\r\n0\r\n\n",
            "5\r\nhello\r\n0\r\nX: a\r\n b\r\n\r\n",
        ] {
            let mut client = client(vestibule.addr()).await;
            let head = format!("POST /bad HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n");
            client.say(head + body + &get("/after")).await;
            refused(&mut client, 400, body).await;
        }
        assert_eq!(backend.paths(), [""; 0]);
        // What has begun to go there has been broken off.
        for number in 0..backend.connections() {
            backend.ended(number).await;
        }
        assert!(!backend.unfinished().concat().contains("/after"));
    })
    .await;
}

/// A wish to upgrade may be followed by another protocol, so what comes behind it is not looked at; nor may it then be read as
/// HTTP, whatever the request was answered.
/// What stands behind a request must not end up in its answer.
#[tokio::test]
async fn a_refusal_does_not_fill_up_an_answer_that_was_cut_short() {
    within(60, async {
        let backend = HttpBackend::start(|seen| match seen.path() {
            "/close" => Reply::raw("HTTP/1.1 200 OK\r\n\r\nyyy").fin(),
            _ => Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nyyy").fin(),
        });
        let vestibule = door(backend.addr(), "").start().await;
        for (request, cut) in [
            ("GET /cut HTTP/1.1", true),
            ("GET /cut HTTP/1.0", true),
            ("GET /close HTTP/1.0", false),
        ] {
            let mut client = client(vestibule.addr()).await;
            client
                .say(format!("{request}\r\n{HOST}\r\nnot HTTP at all\r\n\r\n"))
                .await;
            let (all, ended) = client.rest().await;
            assert!(all.ends_with("\r\n\r\nyyy"), "{request}: {all}");
            assert!(!cut || ended != End::CloseNotify, "{request}: {ended:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn nothing_behind_a_wish_to_upgrade_is_a_request() {
    within(60, async {
        let backend = HttpBackend::echo();
        // One listener leads everywhere, the other nowhere but to XMPP.
        let other = format!(
            "[[listener]]\nname = 'only'\nlisten = 'auto://@0'\nupstream = 'u'\n\
             [[route]]\nprotocol = 'http'\nlisteners = ['only']\npaths = ['/elsewhere']\nupstream = 'u'\n\
             [[upstream]]\nname = 'u'\nbackend = [{{ address = '{0}' }}]\n[xmpp]\nprobe = false\n",
            backend.addr()
        );
        let vestibule = door(backend.addr(), &other).start().await;
        let smuggled = format!(
            "POST /smuggled HTTP/1.1\r\n{HOST}Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        );
        let wish = |host: &str, more: &str| {
            format!("GET /wish HTTP/1.1\r\nHost: {host}\r\nConnection: upgrade\r\n{more}\r\n{smuggled}")
        };
        let websocket = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";
        for (listener, host, more, status) in [
            (1, "chat.test", websocket, 200),
            (1, "chat.test", "Upgrade: h2c\r\nHTTP2-Settings: AA\r\n", 200),
            (1, "chat.test", "Upgrade: websocket\r\n", 426),
            (1, "other.test", websocket, 421),
            (0, "chat.test", websocket, 404),
            (0, "chat.test", "Upgrade: websocket\r\n", 404),
        ] {
            let mut client = client(vestibule.addr_of(listener)).await;
            client.say(wish(host, more)).await;
            refused(&mut client, status, more).await;
        }
        assert_eq!(backend.paths(), ["/wish"; 2]);
        assert!(backend.unfinished().iter().all(String::is_empty), "{:?}", backend.unfinished());
    })
    .await;
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_their_order() {
    within(60, async {
        let backend = HttpBackend::echo();
        let vestibule = door(backend.addr(), "").start().await;
        let mut client = client(vestibule.addr()).await;
        let mut all = String::from("\r\n");
        for number in 0..50 {
            all += &get(&format!("/{number}"));
            all += &post(&format!("/p{number}"), &"x".repeat(number));
            all += &format!(
                "POST /c{number} HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\n\r\n"
            );
        }
        client.say(all).await;
        for number in 0..50 {
            assert_eq!(client.answer().await.body, format!("0 /{number} "));
            let body = "x".repeat(number);
            assert_eq!(client.answer().await.body, format!("0 /p{number} {body}"));
            assert_eq!(client.answer().await.body, format!("0 /c{number} abc"));
        }
        assert_eq!((backend.connections(), backend.requests().len()), (1, 150));
        client.end().await;
        assert_eq!(client.rest().await, (String::new(), End::CloseNotify));
    })
    .await;
}

/// The answer to the first is large and its client slow: what is said about the second must come behind its last byte.
#[tokio::test]
async fn a_refusal_waits_for_the_answer_before_it() {
    within(60, async {
        let body = "x".repeat(3 << 20);
        let answer = body.clone();
        let backend = HttpBackend::start(move |_| Reply::ok(&answer));
        let vestibule = door(backend.addr(), "").start().await;
        let mut client = client(vestibule.addr()).await;
        client.say(get("/") + "GET bad HTTP/1.1\r\n\r\n").await;
        backend.has_seen(1).await;
        // Enough that everything of it is on its way.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let got = client.answer().await;
        assert!(got.status == 200 && got.body == body);
        refused(&mut client, 400, "bad").await;
    })
    .await;
}

/// The test plays the backend: this is the whole of what it says to one request. Gives what the client then reads.
async fn answered(
    vestibule: &Vestibule,
    backend: &mut RecordingBackend,
    answer: &str,
) -> (SecureTalk, PlainTalk) {
    let mut client = client(vestibule.addr()).await;
    client.say(get("/")).await;
    let mut server = Talk::new(backend.accept().await);
    server.until("\r\n\r\n").await;
    server.say(answer).await;
    (client, server)
}

#[tokio::test]
async fn an_answer_of_two_meanings_is_502() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door(backend.addr(), "").start().await;
        let early = "HTTP/1.1 103 Early Hints\r\n\r\n";
        for answer in [
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\nab\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nab",
            "HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nab",
            "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nab",
            "HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nab",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nab",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\nContent-Length: 2\r\n\r\nab",
            "HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 2\r\n\r\nab",
            "HTTP/1.1 200 OK\r\nX: a\0\r\nContent-Length: 2\r\n\r\nab",
            "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
            "HTTP/1.1 099 What\r\nContent-Length: 2\r\n\r\nab",
            "HTTP/1.1 20 OK\r\nContent-Length: 2\r\n\r\nab",
            "HTTP/2 200 OK\r\nContent-Length: 2\r\n\r\nab",
            "hello\r\n\r\n",
            &early.repeat(17),
            &format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "a".repeat(20 << 10)),
        ] {
            let (mut client, mut server) = answered(&vestibule, &mut backend, answer).await;
            let got = client.answer().await;
            assert_eq!(got.status, 502, "{answer:?}");
            // Its connection is at its end, and the client's is not.
            server.rest().await;
            client.say(get("/again")).await;
            let mut server = Talk::new(backend.accept().await);
            server.until("\r\n\r\n").await;
            server.say("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
            assert_eq!(client.answer().await.status, 200, "{answer:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn interim_answers_pass_and_are_few() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door(backend.addr(), "").start().await;
        let early = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".repeat(16);
        let answer = early + "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        let (mut client, _server) = answered(&vestibule, &mut backend, &answer).await;
        let mut got = client.head().await;
        while got.status == 103 {
            got = client.head().await;
        }
        assert_eq!(got.status, 200);
        client.hears("ok").await;
    })
    .await;
}

#[tokio::test]
async fn bytes_that_nobody_asked_for_end_a_backends_connection() {
    within(60, async {
        for extra in ["x", "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nqueued"] {
            let mut backend = RecordingBackend::start();
            let vestibule = door(backend.addr(), "")
                .args(&["--workers", "1"])
                .start()
                .await;
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok{extra}");
            let (mut client, mut server) = answered(&vestibule, &mut backend, &answer).await;
            assert_eq!(client.answer().await.body, "ok");
            let (_, _) = server.rest().await;
            client.say(get("/next")).await;
            let mut server = Talk::new(backend.accept().await);
            server.until("\r\n\r\n").await;
            server
                .say("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nown")
                .await;
            assert_eq!(client.answer().await.body, "own");
        }
    })
    .await;
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Death {
    Fin,
    Reset,
}

#[tokio::test]
async fn a_cut_answer_is_no_whole_one_over_http_1() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door(backend.addr(), "").start().await;
        for death in [Death::Fin, Death::Reset] {
            for (answer, tail) in [
                ("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", "half"),
                ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", "half\r\n"),
                ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhalf", "half"),
                ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n0\r\n", "half\r\n"),
                ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n0\r\nX: y\r\n", "half\r\n"),
                ("HTTP/1.1 200 OK\r\n\r\nhalf", "half"),
                ("HTTP/1.0 200 OK\r\n\r\nhalf", "half"),
            ] {
                // Without a length, FIN is an end like any other.
                if death == Death::Fin && !answer.contains("ength") && !answer.contains("chunked") {
                    continue;
                }
                let (mut client, server) = answered(&vestibule, &mut backend, answer).await;
                let mut heard = client.until("half").await;
                match death {
                    Death::Fin => drop(server),
                    Death::Reset => reset(server.stream),
                }
                let (rest, end) = client.rest().await;
                heard += &rest;
                assert_ne!(end, End::CloseNotify, "{death:?} {answer:?}");
                assert!(!heard.ends_with("0\r\n\r\n"), "{death:?} {answer:?}: {heard:?}");
                assert!(heard.ends_with(tail) || heard.ends_with("half\r\n"), "{heard:?}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_cut_answer_is_no_whole_one_over_http_2() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door(backend.addr(), "").start().await;
        let mut client = Two::connect(vestibule.addr()).await;
        for death in [Death::Fin, Death::Reset] {
            for answer in [
                "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
                "HTTP/1.1 200 OK\r\n\r\nhalf",
            ] {
                if death == Death::Fin && answer.ends_with("OK\r\n\r\nhalf") {
                    continue;
                }
                let (response, _) = client.send(two_get("/"), true).await;
                let mut server = Talk::new(backend.accept().await);
                server.until("\r\n\r\n").await;
                server.say(answer).await;
                let mut body = response.await.unwrap().into_body();
                assert_eq!(body.data().await.unwrap().unwrap(), "half");
                match death {
                    Death::Fin => drop(server),
                    Death::Reset => reset(server.stream),
                }
                let end = body.data().await.expect("no end");
                assert!(
                    end.expect_err("an error").is_reset(),
                    "{death:?} {answer:?}"
                );
            }
        }
        // The connection goes on.
        let (response, _) = client.send(two_get("/"), true).await;
        let mut server = Talk::new(backend.accept().await);
        server.until("\r\n\r\n").await;
        server
            .say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            .await;
        assert_eq!(whole(response).await.unwrap().2, "ok");
    })
    .await;
}

#[tokio::test]
async fn answers_without_a_body_have_none() {
    within(60, async {
        let backend = HttpBackend::start(|seen| match seen.path() {
            "/204" => Reply::raw("HTTP/1.1 204 No Content\r\nX: y\r\n\r\n"),
            "/304" => {
                Reply::raw("HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\nETag: \"a\"\r\n\r\n")
            }
            "/chunked" => Reply::raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
            "/close" => Reply::raw("HTTP/1.1 200 OK\r\nX: y\r\n\r\n").fin(),
            _ => Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"),
        });
        let vestibule = door(backend.addr(), "").start().await;
        let mut client = client(vestibule.addr()).await;
        let mut two_client = Two::connect(vestibule.addr()).await;
        for (method, path, status, length) in [
            ("HEAD", "/", 200, Some("99")),
            ("HEAD", "/chunked", 200, None),
            ("HEAD", "/close", 200, None),
            ("GET", "/204", 204, None),
            ("GET", "/304", 304, None),
            ("HEAD", "/", 200, Some("99")),
        ] {
            client
                .say(format!("{method} {path} HTTP/1.1\r\n{HOST}\r\n"))
                .await;
            let got = client.head().await;
            assert_eq!(got.status, status, "{method} {path}");
            assert_eq!(got.header("content-length"), length, "{method} {path}");
            let (status_two, headers, body) = two_client.ask(two(method, path)).await;
            let length_two = headers
                .get("content-length")
                .map(|value| value.to_str().unwrap())
                // Whether a 304 has it is left to who sends it.
                .filter(|_| status != 304);
            assert_eq!(
                (status_two, length_two, body.as_str()),
                (status, length, ""),
                "{method} {path}"
            );
        }
        client.end().await;
        assert_eq!(client.rest().await, (String::new(), End::CloseNotify));
    })
    .await;
}

#[tokio::test]
async fn http_1_0_is_spoken_on_either_side() {
    within(60, async {
        let backend = HttpBackend::start(|seen| match seen.path() {
            "/old" => Reply::raw("HTTP/1.0 200 OK\r\n\r\nto the end").fin(),
            "/length" => Reply::raw("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok").fin(),
            _ => Reply::raw(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            ),
        });
        let vestibule = door(backend.addr(), "").start().await;
        let mut modern = client(vestibule.addr()).await;
        assert_eq!(modern.get("/old").await.body, "to the end");
        assert_eq!(modern.get("/length").await.body, "ok");
        assert_eq!(modern.get("/chunked").await.body, "ok");
        for (path, body) in [
            ("/old", "to the end"),
            ("/length", "ok"),
            ("/chunked", "ok"),
        ] {
            let mut old = client(vestibule.addr()).await;
            old.say(format!("GET {path} HTTP/1.0\r\n{HOST}\r\n")).await;
            let (said, end) = old.rest().await;
            let (head, rest) = said.split_once("\r\n\r\n").unwrap();
            assert!(!head.to_lowercase().contains("transfer-encoding"), "{head}");
            assert_eq!((rest, end), (body, End::CloseNotify), "{path}");
        }
        // Two requests on one connection, if it is asked for.
        let mut old = client(vestibule.addr()).await;
        for _ in 0..2 {
            old.say(format!(
                "GET /length HTTP/1.0\r\n{HOST}Connection: keep-alive\r\n\r\n"
            ))
            .await;
            assert_eq!(old.answer().await.body, "ok");
        }
        assert!(
            backend
                .requests()
                .iter()
                .all(|seen| seen.line.ends_with(" HTTP/1.1"))
        );
    })
    .await;
}

#[tokio::test]
async fn trailers_pass_both_ways() {
    within(60, async {
        let backend = HttpBackend::start(|_| {
            Reply::raw("HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 7\r\n\r\n")
        });
        let vestibule = door(backend.addr(), "").start().await;
        let mut one = client(vestibule.addr()).await;
        one.say(format!(
            "POST / HTTP/1.1\r\n{HOST}TE: trailers\r\nConnection: TE\r\nTrailer: X-Up\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nup\r\n0\r\nX-Up: 8\r\n\r\n"
        ))
        .await;
        let got = one.answer().await;
        assert_eq!(got.body, "ok");
        assert_eq!(got.trailers, [("x-sum".to_owned(), "7".to_owned())]);
        let seen = backend.request();
        assert_eq!(seen.body, "up");
        assert_eq!(seen.trailers, [("x-up".to_owned(), "8".to_owned())]);

        let mut client = Two::connect(vestibule.addr()).await;
        let mut request = two("POST", "/");
        request.headers_mut().insert("te", "trailers".parse().unwrap());
        request.headers_mut().insert("trailer", "x-up".parse().unwrap());
        let (answer, mut upload) = client.send(request, false).await;
        upload.send_data("up".into(), false).unwrap();
        let mut trailers = http::HeaderMap::new();
        trailers.insert("x-up", "9".parse().unwrap());
        upload.send_trailers(trailers).unwrap();
        let mut body = answer.await.unwrap().into_body();
        assert_eq!(rest_of(&mut body).await.unwrap(), "ok");
        assert_eq!(body.trailers().await.unwrap().unwrap()["x-sum"], "7");
        let seen = backend.requests().pop().unwrap();
        assert_eq!((seen.body.as_str(), &seen.trailers[..]), ("up", &[("x-up".to_owned(), "9".to_owned())][..]));
    })
    .await;
}

/// A backend may merge them into the head, where nobody would look at them again.
#[tokio::test]
async fn trailers_tell_nothing_that_is_believed_in_a_head() {
    const TRAILERS: [(&str, &str); 16] = [
        ("x-ok", "1"),
        ("x-forwarded-for", "192.0.2.1"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-anything", "a"),
        ("forwarded", "for=192.0.2.1"),
        ("x-real-ip", "192.0.2.1"),
        ("x-request-id", "mine"),
        ("true-client-ip", "192.0.2.1"),
        ("cookie", "admin=1"),
        ("authorization", "Basic YTpi"),
        ("x_forwarded_for", "192.0.2.1"),
        ("content-type", "text/html"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "close"),
        ("te", "trailers"),
        ("x-fine", "2"),
    ];
    within(60, async {
        // hyper has a list of its own towards backends of HTTP/1.1, and none towards those of HTTP/2.
        let backend = HttpBackend::echo();
        let (two_backend, mut arriving) = trailers_of_http_2();
        let file = format!(
            "[[listener]]\nlisten = 'https://@0'\nupstream = 'one'\n\
             [[listener]]\nlisten = 'https://@1'\nupstream = 'two'\n\
             [[upstream]]\nname = 'one'\nbackend = [{{ address = 'http://{}' }}]\n\
             [[upstream]]\nname = 'two'\nhttp2 = true\nbackend = [{{ address = 'http://{two_backend}' }}]\n",
            backend.addr()
        );
        let vestibule = Setup::default().file(&file).start().await;
        let declared = TRAILERS.map(|(name, _)| name).join(", ");
        for listener in [0, 1] {
            let mut arrived = async || {
                let mut trailers = match listener {
                    0 => backend.requests().pop().unwrap().trailers,
                    _ => arriving.recv().await.unwrap(),
                };
                trailers.sort();
                trailers
            };
            let left = [("x-fine", "2"), ("x-ok", "1")].map(|(n, v)| (n.to_owned(), v.to_owned()));
            let addr = vestibule.addr_of(listener);

            let mut one = client(addr).await;
            // Its framing has a name with an underscore refused.
            let hyphens = TRAILERS.iter().filter(|(name, _)| !name.contains('_'));
            let lines: String = hyphens.map(|(n, v)| format!("{n}: {v}\r\n")).collect();
            one.say(format!(
                "POST / HTTP/1.1\r\n{HOST}Trailer: {declared}, x-named\r\n\
                 Transfer-Encoding: chunked\r\n\r\n2\r\nup\r\n0\r\n\
                 {lines}Connection: X-Named\r\nX-Named: 3\r\n\r\n"
            ))
            .await;
            assert_eq!(one.answer().await.status, 200);
            assert_eq!(arrived().await, left, "HTTP/1.1 to {listener}");

            let mut client = Two::connect(addr).await;
            let mut request = two("POST", "/two");
            let headers = request.headers_mut();
            headers.insert("trailer", declared.parse().unwrap());
            let (answer, mut upload) = client.send(request, false).await;
            upload.send_data("up".into(), false).unwrap();
            let mut trailers = http::HeaderMap::new();
            for (name, value) in TRAILERS {
                // Those of one hop are malformed in HTTP/2 (RFC 9113 section 8.2.2).
                if !matches!(name, "keep-alive" | "proxy-connection") {
                    trailers.insert(name, value.parse().unwrap());
                }
            }
            upload.send_trailers(trailers).unwrap();
            assert_eq!(whole(answer).await.unwrap().0, 200);
            assert_eq!(arrived().await, left, "HTTP/2 to {listener}");
        }
    })
    .await;
}

type Fields = Vec<(String, String)>;

/// A server of HTTP/2 that says 200 to each request at its end, and the trailers that it came with.
fn trailers_of_http_2() -> (SocketAddr, mpsc::UnboundedReceiver<Fields>) {
    let listener = crate::support::ports::listener();
    let addr = listener.local_addr().unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let (tell, told) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let tell = tell.clone();
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    let tell = tell.clone();
                    tokio::spawn(async move {
                        let mut body = request.into_body();
                        rest_of(&mut body).await.unwrap();
                        let trailers = body.trailers().await.unwrap().unwrap_or_default();
                        let field = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
                            (name.to_string(), value.to_str().unwrap().to_owned())
                        };
                        let _ = tell.send(trailers.iter().map(field).collect());
                        let _ = respond.send_response(http::Response::new(()), true);
                    });
                }
            });
        }
    });
    (addr, told)
}

/// HTTP/1.1 has its own tests; over HTTP/2 the host comes by another way.
#[tokio::test]
async fn an_authority_of_http_2_is_a_host_and_a_port() {
    within(60, async {
        let backend = HttpBackend::echo();
        let vestibule = door(backend.addr(), "").start().await;
        for (host, refused) in [
            ("chat.test", false),
            ("CHAT.test:443", false),
            ("[chat.test]evil", true),
            ("[::1]evil", true),
            ("chat.test:80/evil", true),
            ("chat.test/evil", true),
            ("chat.test:99999", true),
            ("chat.test:65536", true),
            ("chat.test:+80", true),
            ("chat.test:", true),
            ("user@chat.test", true),
            ("chat.test@evil", true),
            ("chat.test evil", true),
            ("chat.test,evil", true),
            ("chat.test?evil", true),
            ("chat.test#evil", true),
            ("", true),
        ] {
            for name in [&[1][..], b"\x00\x04host"] {
                let block = [
                    &[0x82, 0x87, 0x84][..],
                    name,
                    &[host.len() as u8],
                    host.as_bytes(),
                ]
                .concat();
                let offer = crate::support::client::Offer::default().alpn(&["h2"]);
                let mut stream = offer.connect(vestibule.addr()).await;
                let words = [PREFACE, &frame(1, 5, 1, &block)].concat();
                tokio::io::AsyncWriteExt::write_all(&mut stream, &words)
                    .await
                    .unwrap();
                let said = loop {
                    match next_frame(&mut stream).await.unwrap() {
                        // 200 and 400 are the eighth and the twelfth of the static table.
                        Some((1, _, 1, payload)) if payload[0] == 0x88 => break "200",
                        Some((1, _, 1, payload)) if payload[0] == 0x8c => break "400",
                        Some((3, _, 1, payload)) if payload == [0, 0, 0, 1] => {
                            break "PROTOCOL_ERROR";
                        }
                        Some((0 | 1 | 3 | 7, _, _, payload)) => panic!("{host:?}: {payload:x?}"),
                        Some(_) => {}
                        None => panic!("{host:?}: the end"),
                    }
                };
                assert_eq!(said != "200", refused, "{host:?}: {said}");
            }
        }
        assert_eq!(backend.paths().len(), 4);
        for request in backend.requests() {
            let host = request.header("host").unwrap().to_lowercase();
            assert!(
                ["chat.test", "chat.test:443"].contains(&host.as_str()),
                "{host}"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn a_client_that_waits_for_100_gets_it() {
    within(60, async {
        let backend = HttpBackend::echo();
        let vestibule = door(backend.addr(), "").start().await;
        let mut client = client(vestibule.addr()).await;
        client
            .say(format!(
                "POST / HTTP/1.1\r\n{HOST}Expect: 100-continue\r\nContent-Length: 4\r\n\r\n"
            ))
            .await;
        client.until("100 Continue\r\n\r\n").await;
        client.say("body").await;
        let mut got = client.answer().await;
        while got.status == 100 {
            got = client.answer().await;
        }
        assert_eq!(got.body, "0 / body");
    })
    .await;
}

#[tokio::test]
async fn an_early_answer_is_readable_while_its_client_uploads() {
    within(60, async {
        let refusal = "HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig";
        // By the backend, which then reads on, closes, or has reset the connection.
        for vice in ["reads", "stalls", "closes"] {
            let mut backend = RecordingBackend::start();
            let vestibule = door(backend.addr(), "[timeouts]\nkeep_alive = '1s'\n")
                .start()
                .await;
            let mut client = client(vestibule.addr()).await;
            client
                .say(format!(
                    "POST / HTTP/1.1\r\n{HOST}Content-Length: 8000000\r\n\r\nbegun"
                ))
                .await;
            let mut server = Talk::new(backend.accept().await);
            server.until("begun").await;
            server.say(refusal).await;
            let server = match vice {
                "closes" => {
                    server.end().await;
                    Some(server)
                }
                _ => Some(server),
            };
            if vice == "reads" {
                tokio::spawn(async move { server.unwrap().rest().await });
            } else {
                std::mem::forget(server);
            }
            let (mut read, mut write) = tokio::io::split(client.stream);
            let uploading = tokio::spawn(async move {
                let piece = vec![b'x'; 64 << 10];
                for _ in 0..100 {
                    if tokio::io::AsyncWriteExt::write_all(&mut write, &piece)
                        .await
                        .is_err()
                    {
                        break;
                    }
                }
                write
            });
            let mut heard = Vec::new();
            let mut chunk = [0; 4096];
            while !heard.ends_with(b"big") {
                let n = tokio::io::AsyncReadExt::read(&mut read, &mut chunk).await;
                let n = n.unwrap_or(0);
                assert!(n > 0, "{vice}: {}", String::from_utf8_lossy(&heard));
                heard.extend_from_slice(&chunk[..n]);
            }
            assert!(heard.starts_with(b"HTTP/1.1 413 "), "{vice}");
            drop((read, uploading.await));
            vestibule
                .metric_becomes("vestibule_connections", &[], 0)
                .await;
        }
    })
    .await;
}

#[tokio::test]
async fn http_2_brings_nothing_that_http_1_would_read_otherwise() {
    within(60, async {
        let backend = HttpBackend::echo();
        let vestibule = door(backend.addr(), "").start().await;
        let mut client = Two::connect(vestibule.addr()).await;
        for (name, value, status) in [
            ("x_y", "a", 400),
            ("host", "other.test", 400),
            ("x", " a", 400),
            ("x", "a ", 400),
        ] {
            let mut request = two_get("/bad");
            request.headers_mut().insert(
                name,
                http::HeaderValue::from_bytes(value.as_bytes()).unwrap(),
            );
            let (got, ..) = client.ask(request).await;
            assert_eq!(got, status, "{name}: {value:?}");
        }
        assert_eq!(backend.paths(), [""; 0]);
        // What hyper or h2 refuse themselves must be no request either.
        use crate::support::http::{PREFACE, frame};
        let literal = |name: &str, value: &str| {
            [
                &[0, name.len() as u8][..],
                name.as_bytes(),
                &[value.len() as u8],
                value.as_bytes(),
            ]
            .concat()
        };
        let head = crate::support::http::head_block();
        for block in [
            [&head[..], &literal("transfer-encoding", "chunked")].concat(),
            [&head[..], &literal("connection", "close")].concat(),
            [&head[..], &literal("upgrade", "websocket")].concat(),
            [&head[..], &literal("x", "a\r\nb: c")].concat(),
            [&head[..], &literal("x", "a\nb")].concat(),
            [&head[..], &literal("x", "a\0b")].concat(),
            [&head[..], &literal("x y", "a")].concat(),
            [&head[..], &literal("x:", "a")].concat(),
            [&head[..], &literal("X", "a")].concat(),
            [&head[..], &literal("content-length", "5")].concat(),
            [&head[..], &literal("content-length", "+0")].concat(),
            [&head[..], &literal("host", "other.test")].concat(),
            [
                &head[..],
                &literal("host", "chat.test"),
                &literal("host", "chat.test"),
            ]
            .concat(),
            [&head[..], &literal(":path", "/twice")].concat(),
            [&head[..], &literal(":authority", "other.test")].concat(),
            [
                &[0x82, 0x87][..],
                &literal(":authority", "chat.test"),
                &literal(":path", "bad"),
            ]
            .concat(),
            [
                &[0x82, 0x87][..],
                &literal(":authority", "chat.test"),
                &literal(":path", "/b ad"),
            ]
            .concat(),
            [
                &[0x82, 0x87][..],
                &literal(":authority", "chat.test"),
                &literal(":path", "/b\r\nad"),
            ]
            .concat(),
            [
                &[0x82, 0x87][..],
                &literal(":authority", "chat.test"),
                &literal(":path", ""),
            ]
            .concat(),
            [
                &[0x82, 0x87][..],
                &literal(":authority", "chat.test"),
                &literal(":path", "http://other.test/"),
            ]
            .concat(),
            [
                &[0x82, 0x87][..],
                &literal(":authority", "a@chat.test"),
                &literal(":path", "/"),
            ]
            .concat(),
            [&[0x82, 0x87, 0x84][..]].concat(),
            [
                &[0x87, 0x84][..],
                &literal(":method", "G T"),
                &literal(":authority", "chat.test"),
            ]
            .concat(),
            [
                &[0x87, 0x84][..],
                &literal(":method", "CONNECT"),
                &literal(":authority", "chat.test"),
            ]
            .concat(),
        ] {
            let offer = crate::support::client::Offer::default().alpn(&["h2"]);
            let mut stream = offer.connect(vestibule.addr()).await;
            let ping = frame(6, 0, 0, b"12345678");
            let words = [PREFACE, &frame(1, 5, 1, &block), &ping].concat();
            tokio::io::AsyncWriteExt::write_all(&mut stream, &words)
                .await
                .unwrap();
            // An answer, a reset or the end, and not the backend's.
            loop {
                match next_frame(&mut stream).await.unwrap() {
                    // 200 is the eighth of the static table.
                    Some((1, _, 1, payload)) => assert_ne!(payload[0], 0x88, "{block:x?}"),
                    Some((3, _, 1, _) | (7, ..)) | None => break,
                    Some((0, flags, 1, _)) if flags & 1 == 1 => break,
                    Some(_) => {}
                }
            }
        }
        assert_eq!(backend.paths(), [""; 0]);
        assert!(backend.unfinished().iter().all(String::is_empty));
    })
    .await;
}

/// Without a length, the end of TLS is the end of the answer, and that of TCP is not.
#[tokio::test]
async fn an_answer_up_to_the_end_of_tls_ends_with_close_notify() {
    within(60, async {
        let config = rustls::ServerConfig::builder_with_provider(
            rustls::crypto::aws_lc_rs::default_provider().into(),
        )
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![pki().chat.der.clone()], pki().chat.private_key())
        .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
        let mut backend = RecordingBackend::start();
        let file = format!(
            "[[listener]]\nname = 'web'\nlisten = 'https://@0'\nupstream = 'u'\n\
             [[upstream]]\nname = 'u'\nca = ['{}']\n\
             backend = [{{ address = 'https://localhost:{}' }}]\n",
            pki().ca.display(),
            backend.addr().port()
        );
        let vestibule = Setup::default().file(&file).start().await;
        for whole in [true, false] {
            let mut client = client(vestibule.addr()).await;
            client.say(get("/")).await;
            let mut server = Talk::new(acceptor.accept(backend.accept().await).await.unwrap());
            server.until("\r\n\r\n").await;
            server.say("HTTP/1.1 200 OK\r\n\r\nhalf").await;
            if whole {
                server.end().await;
                assert_eq!(client.answer().await.body, "half");
            } else {
                client.until("half").await;
                drop(server.stream.into_inner().0);
                let (said, end) = client.rest().await;
                assert_ne!(end, End::CloseNotify);
                assert!(!said.contains("0\r\n\r\n"), "{said:?}");
            }
        }
    })
    .await;
}
