//! What a backend is told of a client and what not, what belongs to one hop, and how connections to backends are used.

use crate::support::backend::RecordingBackend;
use crate::support::certs::{Kind, pki};
use crate::support::client::Offer;
use crate::support::http::{HttpBackend, Reply, Two, client, door, get, post, two_get};
use crate::support::ports;
use crate::support::vestibule::Setup;
use crate::support::xmpp::Talk;
use crate::support::{End, within};

const HOST: &str = "Host: chat.test\r\n";

/// What clients say of themselves that is not for them to say.
const SPOOF: &[(&str, &str)] = &[
    ("x-forwarded-for", "6.6.6.6"),
    ("x-forwarded-proto", "http"),
    ("x-forwarded-host", "evil.test"),
    ("x-forwarded-port", "1"),
    ("x-forwarded-server", "evil"),
    ("x-forwarded-prefix", "/evil"),
    ("forwarded", "for=6.6.6.6;proto=http"),
    ("x-real-ip", "6.6.6.6"),
    ("x-client-ip", "6.6.6.6"),
    ("x-cluster-client-ip", "6.6.6.6"),
    ("true-client-ip", "6.6.6.6"),
    ("x-ssl-client-cert", "evil"),
    ("x-ssl-client-verify", "SUCCESS"),
    ("x-ssl-client-dn", "CN=evil"),
    ("x-request-id", "evil"),
    ("x-original-url", "/evil"),
    ("x-rewrite-url", "/evil"),
];

#[tokio::test]
async fn a_backend_is_told_who_the_client_is_and_by_nobody_but_us() {
    within(60, async {
        let backend = HttpBackend::echo();
        let vestibule = door(backend.addr(), "").start().await;
        let mut lines = String::new();
        for (name, value) in SPOOF {
            lines += &format!("{name}: {value}\r\n{}: {value}\r\n", name.to_uppercase());
        }
        let names: Vec<_> = SPOOF.iter().map(|(name, _)| *name).collect();
        let connection = format!("Connection: {}, cookie-not\r\n", names.join(", "));
        let mut one = client(vestibule.addr()).await;
        for more in ["", &lines, &connection, &(connection.clone() + &lines)] {
            one.say(format!("GET /one HTTP/1.1\r\n{HOST}{more}\r\n"))
                .await;
            assert_eq!(one.answer().await.status, 200);
        }
        let mut two = Two::connect(vestibule.addr()).await;
        for spoofed in [false, true] {
            let mut request = two_get("/two");
            if spoofed {
                for (name, value) in SPOOF {
                    request.headers_mut().append(*name, value.parse().unwrap());
                    request.headers_mut().append(*name, value.parse().unwrap());
                }
            }
            assert_eq!(two.ask(request).await.0, 200);
        }
        let requests = backend.requests();
        assert_eq!(requests.len(), 6);
        let mut ids = Vec::new();
        for seen in requests {
            assert_eq!(seen.header("host"), Some("chat.test"));
            assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"));
            assert_eq!(seen.header("x-forwarded-proto"), Some("https"));
            assert_eq!(seen.header("x-forwarded-host"), Some("chat.test"));
            assert_eq!(seen.header("forwarded"), Some("for=127.0.0.1;proto=https"));
            ids.push(seen.header("x-request-id").unwrap().to_owned());
            for (name, value) in &seen.headers {
                let ours = [
                    "x-forwarded-for",
                    "x-forwarded-proto",
                    "x-forwarded-host",
                    "forwarded",
                    "x-request-id",
                ];
                let spoofed = SPOOF.iter().any(|(spoof, _)| spoof == name);
                assert!(!spoofed || ours.contains(&name.as_str()), "{name}: {value}");
                assert!(
                    !value.contains("evil") && !value.contains("6.6.6.6"),
                    "{name}: {value}"
                );
            }
        }
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 6, "{ids:?}");
    })
    .await;
}

#[tokio::test]
async fn a_balancer_in_front_is_believed_and_added_to() {
    within(60, async {
        let backend = HttpBackend::echo();
        let file = format!(
            "[[listener]]\nname = 'web'\nlisten = 'https://@0'\nupstream = 'u'\ntrusted_proxies = ['127.0.0.0/8']\n\
             [[upstream]]\nname = 'u'\nbackend = [{{ address = '{}' }}]\n",
            backend.addr()
        );
        let vestibule = Setup::default().file(&file).start().await;
        let mut client = client(vestibule.addr()).await;
        client
            .say(format!(
                "GET / HTTP/1.1\r\n{HOST}X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-For: 7.7.7.7, 8.8.8.8\r\n\
                 Forwarded: for=6.6.6.6;proto=http\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: outer.test\r\n\
                 X-Request-Id: outer\r\nX-Real-IP: 6.6.6.6\r\n\r\n"
            ))
            .await;
        assert_eq!(client.answer().await.status, 200);
        let seen = backend.request();
        assert_eq!(seen.header("x-forwarded-for"), Some("6.6.6.6, 7.7.7.7, 8.8.8.8, 127.0.0.1"));
        assert_eq!(seen.header("forwarded"), Some("for=6.6.6.6;proto=http, for=127.0.0.1;proto=https"));
        assert_eq!(seen.header("x-forwarded-proto"), Some("http"));
        assert_eq!(seen.header("x-forwarded-host"), Some("outer.test"));
        assert_eq!(seen.header("x-request-id"), Some("outer"));
        assert_eq!(seen.header("x-real-ip"), Some("6.6.6.6"));
        // Without anything to add to.
        assert_eq!(client.get("/").await.status, 200);
        let seen = backend.requests().pop().unwrap();
        assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"));
        assert_eq!(seen.header("forwarded"), Some("for=127.0.0.1;proto=https"));
        assert_eq!(seen.header("x-forwarded-proto"), Some("https"));
        assert_eq!(seen.header("x-forwarded-host"), Some("chat.test"));
    })
    .await;
}

#[tokio::test]
async fn what_belongs_to_one_hop_goes_no_further() {
    within(60, async {
        let backend = HttpBackend::start(|_| {
            Reply::raw(
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive, X-Hop\r\nX-Hop: a\r\n\
                 Keep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\nUpgrade: h2c\r\nX-End: b\r\n\
                 Set-Cookie: a=1\r\nSet-Cookie: b=2\r\nServer: other\r\n\r\nok",
            )
        });
        let vestibule = door(backend.addr(), "").start().await;
        let mut one = client(vestibule.addr()).await;
        one.say(format!(
            "GET / HTTP/1.1\r\n{HOST}Connection: X-Hop , x-Other,,close-not\r\nConnection: X-Third, Host, Content-Length\r\n\
             X-Hop: a\r\nX-Other: b\r\nX-Third: c\r\nKeep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\n\
             TE: gzip, trailers;q=0.5\r\nX-End: d\r\nAuthorization: Basic e\r\nAccept: f\r\nAccept: g\r\n\r\n"
        ))
        .await;
        let got = one.answer().await;
        let seen = backend.request();
        for name in ["connection", "x-hop", "x-other", "x-third", "keep-alive", "proxy-connection", "upgrade"] {
            assert!(!seen.headers.iter().any(|(other, _)| other == name), "{name}");
            assert!(!got.headers.iter().any(|(other, _)| other == name), "{name}");
        }
        assert_eq!(seen.header("host"), Some("chat.test"));
        assert_eq!(seen.header("x-end"), Some("d"));
        assert_eq!(seen.header("authorization"), Some("Basic e"));
        let accepts = seen.headers.iter().filter(|(name, _)| name == "accept");
        assert_eq!(accepts.count(), 2);
        assert_eq!((got.header("x-end"), got.header("server")), (Some("b"), Some("other")));
        let cookies = got.headers.iter().filter(|(name, _)| name == "set-cookie");
        assert_eq!(cookies.count(), 2);

        let mut two = Two::connect(vestibule.addr()).await;
        let (status, headers, body) = two.get("/").await;
        assert_eq!((status, body.as_str()), (200, "ok"));
        assert!(!headers.contains_key("x-hop") && !headers.contains_key("keep-alive"));
        assert_eq!(headers.get_all("set-cookie").iter().count(), 2);
    })
    .await;
}

#[tokio::test]
async fn a_target_and_a_host_arrive_as_they_were_written() {
    within(60, async {
        let backend = HttpBackend::echo();
        let vestibule = door(backend.addr(), "").start().await;
        let mut one = client(vestibule.addr()).await;
        let mut two = Two::connect(vestibule.addr()).await;
        let paths = [
            "/",
            "/a%2fb%00?c=%0d%0a&d=/../e",
            "//a//b/",
            "/a/../b/./c",
            "/?",
            "/a?b?c",
            "/%",
            "/a;b=c",
        ];
        for path in paths {
            assert_eq!(one.get(path).await.status, 200, "{path}");
            assert_eq!(two.get(path).await.0, 200, "{path}");
        }
        let twice: Vec<_> = paths.iter().flat_map(|path| [*path; 2]).collect();
        assert_eq!(backend.paths(), twice);
        for (target, host, port) in [
            ("/", "CHAT.test:8443", "CHAT.test:8443"),
            (
                "https://chat.test:8443/",
                "chat.test:8443",
                "chat.test:8443",
            ),
            ("http://Chat.Test/", "chat.test", "Chat.Test"),
        ] {
            one.say(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
                .await;
            assert_eq!(one.answer().await.status, 200, "{target}");
            let seen = backend.requests().pop().unwrap();
            assert_eq!(
                (seen.path(), seen.header("host")),
                ("/", Some(port)),
                "{target}"
            );
        }
        one.say(format!("OPTIONS * HTTP/1.1\r\n{HOST}\r\n")).await;
        assert_eq!(one.answer().await.status, 200);
        assert_eq!(backend.requests().pop().unwrap().line, "OPTIONS * HTTP/1.1");
        for method in ["PROPFIND", "M-SEARCH", "PATCH", "DELETE", "TRACE"] {
            one.say(format!("{method} /m HTTP/1.1\r\n{HOST}\r\n")).await;
            assert_eq!(one.answer().await.status, 200);
            assert!(backend.requests().pop().unwrap().line.starts_with(method));
        }
    })
    .await;
}

#[tokio::test]
async fn crumbs_of_cookies_are_one_cookie() {
    within(60, async {
        let backend = HttpBackend::echo();
        let vestibule = door(backend.addr(), "").start().await;
        let mut two = Two::connect(vestibule.addr()).await;
        let mut request = two_get("/");
        for crumb in ["a=1", "b=2", "c=\"3 4\""] {
            request
                .headers_mut()
                .append("cookie", crumb.parse().unwrap());
        }
        assert_eq!(two.ask(request).await.0, 200);
        assert_eq!(
            backend.request().header("cookie"),
            Some("a=1; b=2; c=\"3 4\"")
        );
    })
    .await;
}

#[tokio::test]
async fn one_connection_to_a_backend_serves_many_clients_one_after_another() {
    within(60, async {
        let backend = HttpBackend::echo();
        let vestibule = door(backend.addr(), "")
            .args(&["--workers", "1"])
            .start()
            .await;
        for number in 0..10 {
            let mut one = client(vestibule.addr()).await;
            assert_eq!(one.get(&format!("/{number}")).await.status, 200);
            one.say(post("/p", "body")).await;
            assert_eq!(one.answer().await.status, 200);
            let mut two = Two::connect(vestibule.addr()).await;
            for _ in 0..3 {
                assert_eq!(two.get("/two").await.0, 200);
            }
        }
        assert_eq!((backend.connections(), backend.requests().len()), (1, 50));
        vestibule
            .metric_becomes("vestibule_backend_connections", &[], 0)
            .await;
    })
    .await;
}

#[tokio::test]
async fn requests_at_once_have_connections_of_their_own() {
    within(60, async {
        let backend = HttpBackend::start(|seen| match seen.path() {
            "/held" => Reply::raw(""),
            _ => Reply::ok("ok"),
        });
        let vestibule = door(backend.addr(), "")
            .args(&["--workers", "1"])
            .start()
            .await;
        let mut two = Two::connect(vestibule.addr()).await;
        let mut held = Vec::new();
        for number in 0..20 {
            held.push(two.send(two_get("/held"), true).await);
            backend.has_seen(number + 1).await;
        }
        assert_eq!(backend.connections(), 20);
        assert_eq!(two.get("/").await.2, "ok");
        // Who goes takes the request along.
        drop(held);
        for number in 0..20 {
            backend.ended(number).await;
        }
        assert_eq!(two.get("/").await.2, "ok");
        assert_eq!(backend.connections(), 21);
    })
    .await;
}

#[tokio::test]
async fn a_silent_connection_to_a_backend_is_closed_after_its_time() {
    within(60, async {
        let backend = HttpBackend::echo();
        let settings = "[http]\nidle_backend = '300ms'\n";
        let vestibule = door(backend.addr(), settings).start().await;
        let mut one = client(vestibule.addr()).await;
        assert_eq!(one.get("/").await.status, 200);
        assert_eq!(backend.ended(0).await, End::Fin);
        assert_eq!(one.get("/").await.body, "1 / ");

        let none = "[http]\nidle_backend = '0'\n";
        let vestibule = door(backend.addr(), none).start().await;
        let mut one = client(vestibule.addr()).await;
        let before = backend.connections();
        for _ in 0..3 {
            assert_eq!(one.get("/").await.status, 200);
        }
        assert_eq!(backend.connections(), before + 3);
    })
    .await;
}

/// The backend closes a kept connection at the very moment that the next request goes out.
#[tokio::test]
async fn a_request_that_met_a_closing_connection_is_sent_again_if_that_does_no_harm() {
    within(60, async {
        let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        for (request, again) in [
            (get("/"), true),
            (format!("DELETE / HTTP/1.1\r\n{HOST}\r\n"), true),
            (post("/", ""), false),
            (post("/", "body"), false),
            (
                format!("PUT / HTTP/1.1\r\n{HOST}Content-Length: 4\r\n\r\nbody"),
                false,
            ),
            (format!("PATCH / HTTP/1.1\r\n{HOST}\r\n"), false),
        ] {
            let mut backend = RecordingBackend::start();
            let vestibule = door(backend.addr(), "[http]\nidle_backend = '60s'\n")
                .args(&["--workers", "1"])
                .start()
                .await;
            let mut one = client(vestibule.addr()).await;
            one.say(get("/first")).await;
            let mut server = Talk::new(backend.accept().await);
            server.until("\r\n\r\n").await;
            server.say(ok).await;
            assert_eq!(one.answer().await.body, "ok");
            // Long enough that it may have gone stale.
            tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
            one.say(&request).await;
            server.until("\r\n\r\n").await;
            drop(server);
            if again {
                let mut server = Talk::new(backend.accept().await);
                server.until("\r\n\r\n").await;
                server.say(ok).await;
                assert_eq!(one.answer().await.body, "ok", "{request:?}");
            } else {
                let got = one.answer().await;
                assert_eq!(got.status, 502, "{request:?}");
                assert!(backend.is_unused(), "{request:?}");
            }
            // Once is enough.
            one.say(get("/")).await;
            let mut server = Talk::new(backend.accept().await);
            server.until("\r\n\r\n").await;
            drop(server);
            assert_eq!(one.answer().await.status, 502);
            assert!(backend.is_unused());
        }
    })
    .await;
}

#[tokio::test]
async fn a_connection_that_the_backend_has_closed_is_not_used() {
    within(60, async {
        let backend = HttpBackend::start(|_| Reply::ok("ok").fin());
        let vestibule = door(backend.addr(), "").start().await;
        let mut one = client(vestibule.addr()).await;
        for number in 0..10 {
            one.say(post("/", "body")).await;
            assert_eq!(one.answer().await.body, "ok");
            backend.ended(number).await;
        }
        assert_eq!(backend.requests().len(), 10);
    })
    .await;
}

#[tokio::test]
async fn behind_a_proxy_header_each_request_has_a_connection_of_its_own() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let file = format!(
            "[[listener]]\nname = 'web'\nlisten = 'https://@0'\nupstream = 'u'\n\
             [[upstream]]\nname = 'u'\nproxy_protocol = 'v1'\nbackend = [{{ address = '{}' }}]\n",
            backend.addr()
        );
        let vestibule = Setup::default()
            .file(&file)
            .args(&["--workers", "1"])
            .start()
            .await;
        let mut one = client(vestibule.addr()).await;
        for _ in 0..3 {
            let port = one.stream.get_ref().0.local_addr().unwrap().port();
            one.say(get("/")).await;
            let mut server = Talk::new(backend.accept().await);
            server
                .hears(format!(
                    "PROXY TCP4 127.0.0.1 127.0.0.1 {port} {}\r\nGET / HTTP/1.1\r\n",
                    vestibule.addr().port()
                ))
                .await;
            server.until("\r\n\r\n").await;
            server
                .say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                .await;
            assert_eq!(one.answer().await.body, "ok");
            assert_eq!(server.rest().await, (String::new(), End::Fin));
        }
    })
    .await;
}

#[tokio::test]
async fn a_connection_is_for_the_names_of_its_certificate() {
    within(60, async {
        let backend = HttpBackend::echo();
        let other = pki().issue(Kind::Ecdsa, &["other.test", "*.wild.test"]);
        let vestibule = door(backend.addr(), "")
            .cert(&pki().chat)
            .cert(&other)
            .start()
            .await;
        for (name, host, status) in [
            ("chat.test", "chat.test", 200),
            ("chat.test", "CHAT.TEST:443", 200),
            ("chat.test", "localhost", 200),
            ("other.test", "a.wild.test", 200),
            ("chat.test", "nobody.test", 421),
            ("chat.test", "xchat.test", 421),
            ("chat.test", "[::1]", 421),
            ("chat.test", "a.b.wild.test", 421),
        ] {
            let stream = Offer::named(name)
                .alpn(&["http/1.1"])
                .connect(vestibule.addr())
                .await;
            let mut client = Talk::new(stream);
            client
                .say(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"))
                .await;
            assert_eq!(client.answer().await.status, status, "{name} {host}");
            // 421 ends nothing.
            client
                .say(format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n"))
                .await;
            assert_eq!(client.answer().await.status, 200);
        }
        let mut two = Two::connect(vestibule.addr()).await;
        let mut request = two_get("/");
        *request.uri_mut() = "https://nobody.test/".parse().unwrap();
        assert_eq!(two.ask(request).await.0, 421);
        assert_eq!(two.get("/").await.0, 200);
        assert!(
            backend
                .requests()
                .iter()
                .all(|seen| !seen.header("host").unwrap().contains("nobody"))
        );
    })
    .await;
}

#[tokio::test]
async fn a_backend_that_cannot_be_reached_is_502() {
    within(60, async {
        let vestibule = door(ports::free(), "").start().await;
        let mut one = client(vestibule.addr()).await;
        let got = one.get("/").await;
        assert_eq!(
            (got.status, got.header("content-type")),
            (502, Some("text/plain; charset=utf-8"))
        );
        one.say(format!(
            "GET / HTTP/1.1\r\n{HOST}Accept: application/json\r\n\r\n"
        ))
        .await;
        let got = one.answer().await;
        assert_eq!(
            (got.status, got.header("content-type")),
            (502, Some("application/json"))
        );
        assert!(got.body.contains("\"no_backend\""), "{}", got.body);
        // With a body that nobody takes.
        one.say(post("/", &"x".repeat(100_000))).await;
        assert_eq!(one.answer().await.status, 502);
        let mut two = Two::connect(vestibule.addr()).await;
        assert_eq!(two.get("/").await.0, 502);
    })
    .await;
}

/// More than hyper has room for by itself, and as many as the settings allow.
#[tokio::test]
async fn as_many_headers_pass_as_the_settings_allow_both_ways() {
    within(60, async {
        let lines: String = (0..150).map(|n| format!("X-{n}: y\r\n")).collect();
        let answer = format!("HTTP/1.1 200 OK\r\n{lines}Content-Length: 0\r\n\r\n");
        let backend = HttpBackend::start(move |_| Reply::raw(&answer));
        let settings = "[http]\nheaders = 160\n";
        let vestibule = door(backend.addr(), settings).start().await;
        let mut client = client(vestibule.addr()).await;
        client
            .say(format!("GET / HTTP/1.1\r\n{HOST}{lines}\r\n"))
            .await;
        let got = client.answer().await;
        assert_eq!((got.status, got.header("x-149")), (200, Some("y")));
        let many = lines.clone() + &lines;
        client
            .say(format!("GET / HTTP/1.1\r\n{HOST}{many}\r\n"))
            .await;
        assert_eq!(client.answer().await.status, 431);
    })
    .await;
}

#[tokio::test]
async fn a_body_above_the_limit_is_413() {
    within(60, async {
        let backend = HttpBackend::echo();
        let vestibule = door(backend.addr(), "[http]\nbody_size = '2KiB'\n").start().await;
        let big = "x".repeat(2049);
        for request in [
            post("/", &big),
            format!("POST / HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n801\r\n{big}\r\n0\r\n\r\n"),
        ] {
            let mut one = client(vestibule.addr()).await;
            one.say(post("/", &big[..2048])).await;
            assert_eq!(one.answer().await.status, 200);
            one.say(request).await;
            let got = one.answer().await;
            assert_eq!((got.status, got.header("connection")), (413, Some("close")));
            assert_eq!(one.rest().await, (String::new(), End::CloseNotify));
        }
        assert_eq!(backend.requests().len(), 2);
    })
    .await;
}

#[tokio::test]
async fn bytes_stream_both_ways_as_they_come() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door(backend.addr(), "").start().await;
        let mut one = client(vestibule.addr()).await;
        one.say(format!(
            "POST / HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n"
        ))
        .await;
        let mut server = Talk::new(backend.accept().await);
        server.until("\r\n2\r\nab\r\n").await;
        server
            .say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
            .await;
        one.until("1\r\nx\r\n").await;
        for _ in 0..10 {
            one.say("3\r\nabc\r\n").await;
            server.hears("3\r\nabc\r\n").await;
            server.say("4\r\nwxyz\r\n").await;
            one.hears("4\r\nwxyz\r\n").await;
        }
        one.say("0\r\n\r\n").await;
        server.hears("0\r\n\r\n").await;
        server.say("0\r\n\r\n").await;
        one.hears("0\r\n\r\n").await;
        // The same connections once more.
        one.say(get("/")).await;
        server.until("\r\n\r\n").await;
        server
            .say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            .await;
        assert_eq!(one.answer().await.body, "ok");
    })
    .await;
}

/// The client ends what it says behind its request, and still has the answer.
#[tokio::test]
async fn a_client_that_ends_behind_its_request_has_the_answer() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door(backend.addr(), "").start().await;
        let mut one = client(vestibule.addr()).await;
        one.say(get("/")).await;
        one.end().await;
        let mut server = Talk::new(backend.accept().await);
        server.until("\r\n\r\n").await;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        server
            .say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            .await;
        assert_eq!(one.answer().await.body, "ok");
        assert_eq!(one.rest().await, (String::new(), End::CloseNotify));
    })
    .await;
}

/// A client that is gone for good is waited for by nobody: its request is broken off at the backend.
#[tokio::test]
async fn a_client_that_has_gone_takes_its_request_along() {
    within(60, async {
        let backend = HttpBackend::start(|_| Reply::raw(""));
        let vestibule = door(backend.addr(), "").start().await;
        let mut one = client(vestibule.addr()).await;
        one.say(get("/")).await;
        backend.has_seen(1).await;
        crate::support::reset(one.stream.into_inner().0);
        backend.ended(0).await;
        vestibule.is_idle().await;
        let mut two = Two::connect(vestibule.addr()).await;
        let _held = two.send(two_get("/"), true).await;
        backend.has_seen(2).await;
        two.connection.abort();
        backend.ended(1).await;
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn a_drain_lets_requests_have_their_answers() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let mut vestibule = door(backend.addr(), "")
            .args(&["--drain-timeout", "10s"])
            .start()
            .await;
        let mut busy = client(vestibule.addr()).await;
        let mut idle = client(vestibule.addr()).await;
        let mut young = client(vestibule.addr()).await;
        young.say("GET / HT").await;
        let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        idle.say(get("/")).await;
        let mut server = Talk::new(backend.accept().await);
        server.until("\r\n\r\n").await;
        server.say(ok).await;
        assert_eq!(idle.answer().await.body, "ok");
        busy.say(get("/")).await;
        let mut server = Talk::new(backend.accept().await);
        server.until("\r\n\r\n").await;
        vestibule.terminate();
        // Nothing is asked there.
        assert_eq!(idle.rest().await, (String::new(), End::CloseNotify));
        server.say(ok).await;
        let got = busy.answer().await;
        assert_eq!(
            (got.body.as_str(), got.header("connection")),
            ("ok", Some("close"))
        );
        assert_eq!(busy.rest().await, (String::new(), End::CloseNotify));
        drop(young);
        assert_eq!(vestibule.ended().await.code(), Some(0));
    })
    .await;
}
