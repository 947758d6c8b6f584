//! Requests go where host and path lead.

use crate::support::certs::{Kind, pki};
use crate::support::client::Offer;
use crate::support::http::{
    HttpBackend, Reply, SocketBackend, Two, client, get, two_get, two_websocket,
};
use crate::support::vestibule::Setup;
use crate::support::xmpp::{PlainTalk, Talk};
use crate::support::{End, within};

fn named(name: &'static str) -> HttpBackend {
    HttpBackend::start(move |_| Reply::ok(name))
}

fn upstream(name: &str, addr: impl ToString) -> String {
    let addr = addr.to_string();
    format!("[[upstream]]\nname = '{name}'\nbackend = [{{ address = '{addr}' }}]\n")
}

#[tokio::test]
async fn host_and_path_lead_to_an_upstream() {
    within(60, async {
        let (app, chat, other) = (named("app"), named("chat"), named("other"));
        let cert = pki().issue(Kind::Ecdsa, &["chat.test", "other.test", "*.wild.test"]);
        let file = [
            "[[listener]]\nname = 'web'\nlisten = 'https://@0'\nupstream = 'app'\n",
            "[[route]]\nhosts = ['other.test', '*.wild.test']\nupstream = 'other'\n",
            "[[route]]\npaths = ['/ws', '/bosh/']\nupstream = 'chat'\n",
            &upstream("app", app.addr()),
            &upstream("chat", chat.addr()),
            &upstream("other", other.addr()),
        ]
        .concat();
        let vestibule = Setup::default().cert(&cert).file(&file).start().await;
        let mut one = client(vestibule.addr()).await;
        let mut two = Two::connect(vestibule.addr()).await;
        for (host, path, name) in [
            ("chat.test", "/", "app"),
            ("chat.test", "/ws", "chat"),
            ("chat.test", "/ws/more", "chat"),
            ("chat.test", "/ws?query", "chat"),
            ("chat.test", "/wsx", "app"),
            ("chat.test", "/x/ws", "app"),
            ("chat.test", "/WS", "app"),
            ("chat.test", "/?/ws", "app"),
            ("other.test", "/", "other"),
            ("OTHER.test:8443", "/ws", "other"),
            ("a.wild.test", "/x", "other"),
        ] {
            one.say(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
                .await;
            assert_eq!(one.answer().await.body, name, "{host}{path}");
            let mut request = two_get("/");
            *request.uri_mut() = format!("https://{host}{path}").parse().unwrap();
            assert_eq!(two.ask(request).await.2, name, "{host}{path}");
        }
    })
    .await;
}

#[tokio::test]
async fn what_no_route_leads_to_is_404() {
    within(60, async {
        let (xmpp, web) = (named("xmpp"), named("web"));
        let file = [
            "[[listener]]\nname = 'all'\nlisten = 'auto://@0'\nupstream = 'xmpp'\n",
            "[[route]]\nprotocol = 'http'\npaths = ['/ws']\nupstream = 'web'\n",
            "[xmpp]\nprobe = false\n",
            &upstream("xmpp", xmpp.addr()),
            &upstream("web", web.addr()),
        ]
        .concat();
        let vestibule = Setup::default().file(&file).start().await;
        let mut one = client(vestibule.addr()).await;
        assert_eq!(one.get("/ws").await.body, "web");
        let got = one.get("/").await;
        assert_eq!((got.status, got.header("content-type")), (404, Some("text/plain; charset=utf-8")));
        assert!(got.body.starts_with("404 "), "{}", got.body);
        one.say("GET / HTTP/1.1\r\nHost: chat.test\r\nAccept: text/html, application/json;q=0.9\r\n\r\n").await;
        let got = one.answer().await;
        assert_eq!((got.status, got.header("content-type")), (404, Some("application/json")));
        assert!(got.body.contains("\"status\":404") && got.body.contains("\"no_route\""), "{}", got.body);
        one.say("HEAD / HTTP/1.1\r\nHost: chat.test\r\n\r\n").await;
        let got = one.head().await;
        assert_eq!(got.status, 404);
        assert_eq!(one.get("/ws").await.body, "web");
        let mut two = Two::connect(vestibule.addr()).await;
        assert_eq!(two.get("/").await.0, 404);
        assert_eq!(two.get("/ws").await.2, "web");
        assert!(xmpp.requests().is_empty());
    })
    .await;
}

#[tokio::test]
async fn websockets_are_routed_like_any_request() {
    within(60, async {
        let (app, chat) = (named("app"), SocketBackend::start());
        let file = [
            "[[listener]]\nname = 'web'\nlisten = 'https://@0'\nupstream = 'app'\n",
            "[[route]]\npaths = ['/ws']\nupstream = 'chat'\n",
            &upstream("app", app.addr()),
            &upstream("chat", chat.addr()),
        ]
        .concat();
        let vestibule = Setup::default().file(&file).start().await;
        let mut one = client(vestibule.addr()).await;
        one.say(
            "GET /ws HTTP/1.1\r\nHost: chat.test\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
            Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        )
        .await;
        assert_eq!(one.head().await.status, 101);
        one.say("echo").await;
        one.hears("echo").await;
        let mut two = Two::connect(vestibule.addr()).await;
        assert_eq!(two.get("/").await.2, "app");
        let (answer, _up) = two.send(two_websocket("/ws"), false).await;
        assert_eq!(answer.await.unwrap().status(), 200);
    })
    .await;
}

#[tokio::test]
async fn plain_http_is_sent_to_https() {
    within(60, async {
        let app = named("app");
        let file = [
            "[[listener]]\nname = 'web'\nlisten = 'https://@0'\nupstream = 'app'\n",
            "[[listener]]\nname = 'plain'\nlisten = 'http://@1'\n",
            &upstream("app", app.addr()),
        ]
        .concat();
        let vestibule = Setup::default().file(&file).start().await;
        let port = vestibule.addr().port();
        let mut plain = PlainTalk::connect(vestibule.addr_of(1)).await;
        plain
            .say(
                get("/a?b=c")
                    + "POST /p HTTP/1.1\r\nHost: Chat.Test:80\r\nContent-Length: 4\r\n\r\nbody",
            )
            .await;
        let got = plain.answer().await;
        let location = format!("https://chat.test:{port}/a?b=c");
        assert_eq!(
            (got.status, got.header("location")),
            (301, Some(location.as_str()))
        );
        let got = plain.answer().await;
        assert_eq!(got.status, 308);
        assert!(
            got.header("location")
                .unwrap()
                .eq_ignore_ascii_case(&format!("https://chat.test:{port}/p"))
        );
        // What could be read in two ways is refused here as well.
        plain
            .say("GET / HTTP/1.1\r\nHost: chat.test\nX: y\r\n\r\n")
            .await;
        assert_eq!(plain.answer().await.status, 400);
        assert_eq!(plain.rest().await, (String::new(), End::Fin));
        let mut plain = PlainTalk::connect(vestibule.addr_of(1)).await;
        plain
            .say("GET / HTTP/1.1\r\nHost: chat.test\r\nUpgrade: h2c\r\n\r\nGET / HTTP/1.1\r\n\r\n")
            .await;
        assert_eq!(plain.answer().await.status, 301);
        assert_eq!(plain.rest().await, (String::new(), End::Fin));
        assert!(app.requests().is_empty());
    })
    .await;
}

#[tokio::test]
async fn alpn_says_which_http_it_is() {
    within(60, async {
        let app = named("app");
        let vestibule = Setup::new("https", app.addr()).start().await;
        for (offered, chosen) in [
            (&["h2", "http/1.1"][..], Some("h2")),
            (&["http/1.1", "h2"], Some("h2")),
            (&["http/1.1"], Some("http/1.1")),
            (&[], None),
        ] {
            let stream = Offer::default()
                .alpn(offered)
                .connect(vestibule.addr())
                .await;
            let alpn = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
            assert_eq!(alpn.as_deref(), chosen.map(str::as_bytes));
            if chosen != Some("h2") {
                let mut talk = Talk::new(stream);
                assert_eq!(talk.get("/").await.body, "app");
            }
        }
        // HTTP/2 where HTTP/1.1 was agreed on is no request.
        let mut one = client(vestibule.addr()).await;
        one.say("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        let status = one.answer().await.status;
        assert!((400..600).contains(&status), "{status}");
    })
    .await;
}
