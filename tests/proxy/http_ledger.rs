//! Requests in numbers and in the access log.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;

use crate::support::certs::fresh_path;
use crate::support::http::{
    HttpBackend, Reply, Two, client, door, get, post, send_all, two_get, two_websocket,
};
use crate::support::vestibule::{Setup, Vestibule};
use crate::support::xmpp::{PlainTalk, Talk};
use crate::support::{connect, within};

const REQUESTS: &str = "vestibule_http_requests_total";
const RESPONSES: &str = "vestibule_http_backend_responses_total";
const OPEN: &str = "vestibule_http_open";
const UPGRADES: &str = "vestibule_http_upgrades_total";
const REFUSED: &str = "vestibule_http_refused_total";
const CUT_SHORT: &str = "vestibule_http_cut_short_total";
const DURATIONS: &str = "vestibule_http_request_duration_seconds_count";

const SWITCH: &str =
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n";

const WISH: &str = "GET /ws HTTP/1.1\r\nHost: chat.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// A server with an answer for each path.
fn backend() -> HttpBackend {
    HttpBackend::start(
        |seen| match seen.path().split('?').next().unwrap_or_default() {
            "/lost" => Reply::raw("HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nlost"),
            "/broken" => Reply::raw("HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"),
            "/cut" => Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf").fin(),
            "/silent" => Reply::raw(""),
            "/nonsense" => Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n").fin(),
            "/ws" => {
                let key = seen.header("sec-websocket-key").expect("a key");
                let accept = tungstenite_accept(key);
                Reply::raw(format!(
                    "{SWITCH}Sec-WebSocket-Accept: {accept}\r\n\r\nwelcome"
                ))
            }
            path => Reply::ok(path),
        },
    )
}

fn tungstenite_accept(key: &str) -> String {
    tokio_tungstenite::tungstenite::handshake::derive_accept_key(key.as_bytes())
}

/// With an access log in this file.
fn logged(setup: Setup, format: &str) -> (Setup, Log) {
    let path = fresh_path("access.log");
    let setup = setup
        .args(&["--log-format", format])
        .args(&["--access-log", &path.display().to_string()]);
    (setup, Log(path))
}

struct Log(PathBuf);

impl Log {
    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// The first line with this in it; the log is written by a thread of its own, after the fact.
    async fn line(&self, what: &str) -> String {
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        loop {
            let lines = self.lines();
            if let Some(line) = lines.iter().find(|line| line.contains(what)) {
                return line.clone();
            }
            let late = std::time::Instant::now() >= deadline;
            assert!(!late, "{what} is not in {lines:#?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[track_caller]
fn has(line: &str, parts: &[&str]) {
    for part in parts {
        assert!(line.contains(part), "{part} is not in {line}");
    }
}

/// A metric, labels, and the sum of its samples with these.
type Count<'a> = (&'a str, &'a [(&'a str, &'a str)], u64);

async fn all_are_counted(vestibule: &Vestibule, expected: &[Count<'_>]) {
    for (name, labels, count) in expected {
        vestibule.metric_becomes(name, labels, *count).await;
    }
}

#[tokio::test]
async fn requests_are_counted_by_route_class_and_backend() {
    within(30, async {
        let backend = backend();
        let file = format!(
            "[[listener]]\nname = 'web'\nlisten = 'https://@0'\nupstream = 'app'\n\
             [[listener]]\nname = 'plain'\nlisten = 'http://@1'\n\
             [[route]]\npaths = ['/http-bind']\nupstream = 'bosh'\n\
             [[upstream]]\nname = 'app'\n[[upstream.backend]]\naddress = 'http://{addr}'\n\
             [[upstream]]\nname = 'bosh'\n[[upstream.backend]]\naddress = 'http://{addr}'\n",
            addr = backend.addr()
        );
        let vestibule = Setup::default().file(&file).start().await;
        // What is not a sum over occurrences is there before the first.
        let (_, page) = vestibule.get("/metrics").await;
        for sample in [
            "vestibule_http_open{listener=\"web\",kind=\"requests\"} 0\n",
            "vestibule_http_cut_short_total{listener=\"web\",side=\"client\"} 0\n",
            "vestibule_http_request_duration_seconds_bucket{listener=\"web\",kind=\"long_poll\",le=\"+Inf\"} 0\n",
        ] {
            assert!(page.contains(sample), "{sample} is not in {page}");
        }
        assert!(!page.contains("code=\"none\""), "{page}");

        let mut one = client(vestibule.addr()).await;
        for (path, status) in [("/a", 200), ("/lost", 404), ("/broken", 503), ("/http-bind", 200)] {
            assert_eq!(one.get(path).await.status, status);
        }
        let mut two = Two::connect(vestibule.addr()).await;
        assert_eq!(two.get("/b").await.0, 200);
        let mut plain = PlainTalk::connect(vestibule.addr_of(1)).await;
        plain.say(get("/a")).await;
        assert_eq!(plain.head().await.status, 301);

        let web = ("listener", "web");
        all_are_counted(
            &vestibule,
            &[
                (REQUESTS, &[web, ("route", "default"), ("code", "2xx")], 2),
                (REQUESTS, &[web, ("route", "default"), ("code", "4xx")], 1),
                (REQUESTS, &[web, ("route", "default"), ("code", "5xx")], 1),
                (REQUESTS, &[web, ("route", "/http-bind"), ("code", "2xx")], 1),
                (REQUESTS, &[("listener", "plain"), ("route", "-"), ("code", "3xx")], 1),
                (REQUESTS, &[], 6),
                (RESPONSES, &[("upstream", "app"), ("code", "2xx")], 2),
                (RESPONSES, &[("upstream", "app"), ("code", "4xx")], 1),
                (RESPONSES, &[("upstream", "app"), ("code", "5xx")], 1),
                (RESPONSES, &[("upstream", "bosh"), ("code", "2xx")], 1),
                (DURATIONS, &[web, ("kind", "request")], 4),
                (DURATIONS, &[web, ("kind", "long_poll")], 1),
                (DURATIONS, &[], 5),
                (OPEN, &[], 0),
                (REFUSED, &[], 0),
                (CUT_SHORT, &[], 0),
            ],
        )
        .await;
        let (_, page) = vestibule.get("/").await;
        assert!(page.contains("<dd>6 (1 failed)</dd>"), "{page}");
    })
    .await;
}

#[tokio::test]
async fn what_goes_wrong_is_counted_by_its_reason_and_side() {
    within(60, async {
        let backend = backend();
        let setup = door(
            format!("http://{}", backend.addr()),
            "[timeouts]\nanswer = '1s'\nrequest = '1s'\n[http]\nbody_size = '1KiB'\n",
        );
        let (setup, log) = logged(setup, "json");
        let vestibule = setup.start().await;
        let addr = vestibule.addr();

        let mut refused = client(addr).await;
        refused.say("GET / HTTP/1.1\r\nHost: other.example\r\n\r\n").await;
        assert_eq!(refused.answer().await.status, 421);
        assert_eq!(refused.get("/silent").await.status, 504);
        assert_eq!(refused.get("/nonsense").await.status, 502);
        refused.say(post("/big", &"x".repeat(2000))).await;
        assert_eq!(refused.answer().await.status, 413);
        for (reason, status) in [("misdirected", 421), ("answer_timeout", 504), ("bad_answer", 502), ("body_size", 413)] {
            vestibule.metric_becomes(REFUSED, &[("reason", reason)], 1).await;
            // How it was refused stays, though the client has had the whole answer.
            let line = log.line(&format!("\"outcome\":\"{reason}\"")).await;
            has(&line, &[&format!("\"status\":{status},")]);
        }

        let mut smuggler = client(addr).await;
        smuggler
            .say("POST / HTTP/1.1\r\nHost: chat.test\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx")
            .await;
        assert_eq!(smuggler.answer().await.status, 400);
        let mut slow = client(addr).await;
        slow.say("GET / HT").await;
        assert_eq!(slow.answer().await.status, 408);
        for reason in ["content_length_repeated", "request_timeout"] {
            vestibule.metric_becomes(REFUSED, &[("reason", reason)], 1).await;
        }
        assert_eq!(vestibule.metric(REFUSED, &[]).await, 6);
        assert_eq!(vestibule.metric(CUT_SHORT, &[]).await, 0);

        let mut cut = client(addr).await;
        cut.say(get("/cut")).await;
        cut.rest().await;
        vestibule.metric_becomes(CUT_SHORT, &[("side", "backend")], 1).await;
        has(&log.line("\"path\":\"/cut\"").await, &["\"outcome\":\"cut_short\"", "\"bytes_down\":4,"]);

        let mut gone = Two::connect(addr).await;
        let (answer, _) = gone.send(two_get("/silent"), true).await;
        vestibule.metric_becomes(OPEN, &[("kind", "requests")], 1).await;
        drop(answer);
        vestibule.metric_becomes(CUT_SHORT, &[("side", "client")], 1).await;
        vestibule.metric_becomes(REQUESTS, &[("code", "none")], 1).await;
        has(&log.line("client_gone").await, &["\"status\":null", "\"first_byte_ms\":null", "\"version\":\"2\""]);
        vestibule.metric_becomes(OPEN, &[], 0).await;
    })
    .await;
}

#[tokio::test]
async fn upgrades_are_counted_and_a_websocket_over_http_2_is_logged_at_its_end() {
    within(30, async {
        let backend = backend();
        let setup = door(format!("http://{}", backend.addr()), "");
        let (setup, log) = logged(setup, "text");
        let vestibule = setup.start().await;

        let mut one = client(vestibule.addr()).await;
        one.say(WISH).await;
        assert_eq!(one.head().await.status, 101);
        one.hears("welcome").await;
        vestibule
            .metric_becomes(OPEN, &[("kind", "tunnels")], 1)
            .await;
        let line = log.line("outcome=upgraded").await;
        has(
            &line,
            &["status=101", "version=1.1", "path=/ws", "kind=request"],
        );

        let mut refused = client(vestibule.addr()).await;
        refused.say(WISH.replace("/ws", "/lost")).await;
        assert_eq!(refused.answer().await.status, 404);

        let mut failed = client(vestibule.addr()).await;
        failed.say(WISH.replace("/ws", "/nonsense")).await;
        assert_eq!(failed.answer().await.status, 502);

        let mut two = Two::connect(vestibule.addr()).await;
        let wish = two_websocket("/ws?token=secret");
        let (answer, mut send) = two.send(wish, false).await;
        let (head, mut body) = answer.await.expect("an answer").into_parts();
        assert_eq!(head.status, 200);
        vestibule
            .metric_becomes(OPEN, &[("kind", "tunnels")], 2)
            .await;
        assert_eq!(vestibule.metric(OPEN, &[("kind", "requests")]).await, 0);
        send_all(&mut send, Bytes::from_static(b"hello"), false)
            .await
            .expect("sent");
        backend.has_heard(3, "hello").await;
        let first = body.data().await.expect("bytes").expect("bytes");
        assert_eq!(first, "welcome");
        assert!(!log.lines().iter().any(|line| line.contains("version=2")));
        send.send_reset(h2::Reason::CANCEL);
        drop((two, send, body));
        let line = log.line("version=2").await;
        has(
            &line,
            &[
                "kind=request",
                "method=CONNECT",
                "status=200",
                "path=/ws ",
                "bytes_up=5 bytes_down=7",
            ],
        );

        one.end().await;
        one.rest().await;
        vestibule.metric_becomes(OPEN, &[], 0).await;
        all_are_counted(
            &vestibule,
            &[
                (UPGRADES, &[("version", "1.1"), ("outcome", "switched")], 1),
                (UPGRADES, &[("version", "1.1"), ("outcome", "refused")], 1),
                (UPGRADES, &[("version", "1.1"), ("outcome", "failed")], 1),
                (UPGRADES, &[("version", "2"), ("outcome", "switched")], 1),
            ],
        )
        .await;
        assert!(!log.lines().iter().any(|line| line.contains("secret")));
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn the_line_of_a_request_has_the_id_that_the_backend_was_told() {
    within(30, async {
        let backend = backend();
        let setup = door(format!("http://{}", backend.addr()), "");
        let (setup, log) = logged(setup, "json");
        let vestibule = setup.start().await;
        drop(connect(vestibule.addr()).await);
        let mut one = client(vestibule.addr()).await;
        one.get("/first?token=secret").await;
        one.say(post("/second", "four").replace("Host", "X-Request-Id: 99-99\r\nHost"))
            .await;
        one.answer().await;
        for (seen, path) in backend.requests().iter().zip(["/first", "/second"]) {
            let id = seen.header("x-request-id").expect("an id");
            let line = log.line(&format!("\"path\":\"{path}\"")).await;
            has(
                &line,
                &[
                    "\"kind\":\"request\"",
                    &format!("\"id\":\"{id}\""),
                    "\"forwarded_for\":null",
                    "\"version\":\"1.1\"",
                    "\"host\":\"chat.test\"",
                    "\"status\":200",
                    "\"route\":\"default\"",
                    &format!("\"backend\":\"http://{}\"", backend.addr()),
                    "\"outcome\":\"answered\"",
                ],
            );
        }
        let line = log.line("/second").await;
        has(
            &line,
            &["\"method\":\"POST\"", "\"bytes_up\":4,\"bytes_down\":7,"],
        );
        assert!(!log.lines().iter().any(|line| line.contains("secret")));
    })
    .await;
}

#[tokio::test]
async fn behind_a_trusted_proxy_the_line_has_its_id_and_whom_it_speaks_for() {
    within(30, async {
        let backend = backend();
        let file = format!(
            "[[listener]]\nlisten = 'https://@0'\nupstream = 'a'\ntrusted_proxies = ['127.0.0.0/8']\n\
             [[upstream]]\nname = 'a'\n[[upstream.backend]]\naddress = 'http://{}'\n",
            backend.addr()
        );
        let (setup, log) = logged(Setup::default().file(&file), "text");
        let vestibule = setup.start().await;
        let mut one = client(vestibule.addr()).await;
        one.say(
            "GET /x HTTP/1.1\r\nHost: chat.test\r\nX-Request-Id: a status=500\r\n\
             X-Forwarded-For: 203.0.113.9, 192.0.2.7, 127.0.0.2\r\n\r\n",
        )
        .await;
        one.answer().await;
        let line = log.line("path=/x").await;
        has(&line, &["id=\"a status=500\"", " client=127.0.0.1:", "forwarded_for=192.0.2.7", " status=200"]);
    })
    .await;
}

#[tokio::test]
async fn what_a_stranger_writes_makes_no_series_and_forges_no_line() {
    within(30, async {
        let backend = backend();
        let setup = Setup::new("https", format!("http://{}", backend.addr()));
        let (setup, log) = logged(setup, "text");
        let vestibule = setup.start().await;
        let offer = crate::support::client::Offer {
            sni: false,
            ..crate::support::client::Offer::default().alpn(&["http/1.1"])
        };
        let mut one = Talk::new(offer.connect(vestibule.addr()).await);
        one.get("/").await;
        let series = async || {
            let (_, page) = vestibule.get("/metrics").await;
            assert!(!page.contains("strange"), "{page}");
            page.lines()
                .filter(|line| line.starts_with("vestibule_http"))
                .count()
        };
        let before = series().await;
        for n in 0..20 {
            one.say(format!(
                "GET /strange{n}/\"=x HTTP/1.1\r\nHost: strange{n}.test\r\n\r\n"
            ))
            .await;
            let status = one.answer().await.status;
            assert!(matches!(status, 200 | 400), "{status}");
            if status == 400 {
                one = Talk::new(offer.connect(vestibule.addr()).await);
            }
            one.say(format!(
                "GET /strange{n}=status HTTP/1.1\r\nHost: strange{n}.test\r\n\r\n"
            ))
            .await;
            assert_eq!(one.answer().await.status, 200);
        }
        vestibule.metric_becomes(OPEN, &[], 0).await;
        let after = series().await;
        // A reason that had not occurred before, and its class.
        assert!(after <= before + 2, "{before} and then {after}");
        let line = log.line("=status").await;
        has(
            &line,
            &["host=strange0.test path=\"/strange0=status\" status=200"],
        );
    })
    .await;
}
