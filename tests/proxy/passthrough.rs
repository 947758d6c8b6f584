//! Where a connection goes, by host, protocol and listener, and TLS that is left to the server whose it is.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use tokio_rustls::TlsConnector;

use crate::support::backend::{EchoBackend, RecordingBackend};
use crate::support::certs::{Kind, Pair, pki};
use crate::support::client::{Offer, OneByteClient, alert_in};
use crate::support::vestibule::Setup;
use crate::support::xmpp::{
    MECHANISMS, OFFER, PROCEED, PlainTalk, Play, STARTTLS, SUCCESS, SecureTalk, Talk, Way,
    XmppBackend, condition, door, header,
};
use crate::support::{End, within};

/// A server's stream header.
fn server_header(to: &str) -> String {
    header(&format!("to='{to}' from='peer.test' version='1.0'"))
        .replace("jabber:client", "jabber:server")
}

/// A server that speaks STARTTLS with this certificate.
fn own_tls(pair: &Pair) -> XmppBackend {
    XmppBackend::play(Play::offering(&format!("{OFFER}{MECHANISMS}")).tls(pair))
}

/// The certificate that a client was shown.
fn shown<S>(client: &SecureTalk<S>) -> CertificateDer<'static> {
    let certificates = client.stream.get_ref().1.peer_certificates();
    certificates.expect("certificates")[0].clone().into_owned()
}

/// A file with these lines, whose upstreams `a`, `b` and so on have these addresses.
fn file(lines: &str, backends: &[SocketAddr]) -> String {
    let mut file = format!("[xmpp]\nprobe = false\n{lines}\n");
    for (name, addr) in ('a'..).zip(backends) {
        file +=
            &format!("[[upstream]]\nname = '{name}'\n[[upstream.backend]]\naddress = '{addr}'\n");
    }
    file
}

#[tokio::test]
async fn servers_keep_their_own_tls_by_default() {
    within(30, async {
        let own = pki().issue(Kind::Ecdsa, &["chat.test"]);
        let backend = own_tls(&own);
        let vestibule = door("xmpp-server", backend.addr(), "").start().await;
        let first = server_header("chat.test");
        let mut client = PlainTalk::connect(vestibule.addr()).await;
        client.say(&first).await;
        let greeting = client.until("</stream:features>").await;
        assert!(greeting.contains("id='server-"), "{greeting}");
        assert!(greeting.contains(OFFER), "{greeting}");
        client.say(STARTTLS).await;
        client.hears(PROCEED).await;
        let mut client = client.secure(&Offer::default()).await;
        assert_eq!(shown(&client), own.der);
        client.say(&first).await;
        client.until("</stream:features>").await;
        client.end().await;
        let call = backend.ended(0).await;
        assert_eq!(call.clear, first.clone() + STARTTLS);
        assert_eq!(call.secure, first);
        vestibule.is_idle().await;

        let own = pki().issue(Kind::Ecdsa, &["chat.test"]);
        let backend = EchoBackend::start_tls(&own);
        let vestibule = door("xmpps-server", backend.addr(), "").start().await;
        let offer = Offer::default().alpn(&["xmpp-server"]);
        let slow = OneByteClient::connect(vestibule.addr(), 500).await;
        let mut client = Talk::new(offer.over(slow).await.unwrap());
        assert_eq!(shown(&client), own.der);
        let long = "0123456789abcdef".repeat(1 << 14);
        assert_eq!(client.exchange(&long).await, long);
        client.end().await;
        assert_eq!(client.rest().await, (String::new(), End::CloseNotify));
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_is_passed_through_still_has_to_be_one() {
    within(30, async {
        let mut backend = RecordingBackend::start();
        let lines = "[[listener]]\nlisten = 'xmpp-server://@0'\nupstream = 'a'\n\
            domains = ['chat.test']";
        let vestibule = Setup::default()
            .file(&file(lines, &[backend.addr()]))
            .start()
            .await;
        for (said, expected) in [
            (server_header("elsewhere.test"), "host-unknown"),
            (header("to='chat.test' version='1.0'"), "invalid-namespace"),
            ("<!-- -->".to_owned(), "restricted-xml"),
            ("GET / HTTP/1.1\r\n".to_owned(), "not-well-formed"),
        ] {
            let mut client = PlainTalk::connect(vestibule.addr()).await;
            client.say(&said).await;
            let (said, _) = client.rest().await;
            assert_eq!(condition(&said), expected);
        }
        vestibule.is_idle().await;
        assert!(backend.is_unused());
    })
    .await;
}

#[tokio::test]
async fn a_name_that_is_not_served_does_not_reach_a_server_by_its_hello() {
    within(30, async {
        let own = pki().issue(Kind::Ecdsa, &["chat.test", "elsewhere.test"]);
        let backend = EchoBackend::start_tls(&own);
        let lines = "[[listener]]\nlisten = 'xmpps-server://@0'\nupstream = 'a'\n\
            domains = ['chat.test']";
        let vestibule = Setup::default()
            .file(&file(lines, &[backend.addr()]))
            .start()
            .await;
        let served = Offer::default().connect(vestibule.addr()).await;
        assert_eq!(shown(&Talk::new(served)), own.der);
        let other = Offer::named("elsewhere.test");
        let refused = other.try_connect(vestibule.addr()).await.unwrap_err();
        assert_eq!(alert_in(&refused), 112);
        assert_eq!(backend.served(), 1);
    })
    .await;
}

#[tokio::test]
async fn servers_are_told_from_clients_by_alpn_on_one_port() {
    within(30, async {
        let own = pki().issue(Kind::Ecdsa, &["chat.test"]);
        let clients = XmppBackend::start();
        let servers = EchoBackend::start_tls(&own);
        let lines = "[[listener]]\nlisten = 'auto://@0'\nupstream = 'a'\n\
            [[route]]\nprotocol = 'xmpp-server'\nupstream = 'b'\ntls = 'passthrough'";
        let vestibule = Setup::default()
            .file(&file(lines, &[clients.addr(), servers.addr()]))
            .start()
            .await;
        let server = Offer::default().alpn(&["xmpp-server"]);
        let mut server = Talk::new(server.connect(vestibule.addr()).await);
        assert_eq!(shown(&server), own.der);
        server.exchange("anything").await;
        for offer in [Offer::default(), Offer::default().alpn(&["xmpp-client"])] {
            let mut client = Way::Direct.connect_as(vestibule.addr(), &offer).await;
            assert_eq!(shown(&client), pki().chat.der);
            client.login().await;
        }
        assert_eq!((clients.calls().len(), servers.served()), (2, 1));
    })
    .await;
}

#[tokio::test]
async fn servers_are_told_from_clients_by_their_streams_on_one_port() {
    within(30, async {
        let own = pki().issue(Kind::Ecdsa, &["chat.test"]);
        let (clients, servers) = (XmppBackend::start(), own_tls(&own));
        let lines = "[[listener]]\nlisten = 'auto://@0'\nupstream = 'a'\n\
            [[route]]\nprotocol = 'xmpp-server'\nupstream = 'b'\ntls = 'passthrough'";
        let vestibule = Setup::default()
            .file(&file(lines, &[clients.addr(), servers.addr()]))
            .start()
            .await;
        let mut server = PlainTalk::connect(vestibule.addr()).await;
        server.say(server_header("chat.test")).await;
        server.until("</stream:features>").await;
        server.say(STARTTLS).await;
        server.hears(PROCEED).await;
        assert_eq!(shown(&server.secure(&Offer::default()).await), own.der);
        Way::Starttls.connect(vestibule.addr()).await.login().await;
        assert_eq!((clients.calls().len(), servers.calls().len()), (1, 1));

        // Without such a route servers are not served.
        let vestibule = door("auto", clients.addr(), "").start().await;
        let mut server = PlainTalk::connect(vestibule.addr()).await;
        server.say(server_header("chat.test")).await;
        assert_eq!(condition(&server.rest().await.0), "invalid-namespace");
    })
    .await;
}

#[tokio::test]
async fn a_domain_of_a_client_listener_may_keep_its_own_tls() {
    within(30, async {
        let own = pki().issue(Kind::Ecdsa, &["bound.test"]);
        let (ours, theirs) = (XmppBackend::start(), own_tls(&own));
        let direct = EchoBackend::start_tls(&own);
        let lines = "[[listener]]\nname = 'starttls'\nlisten = 'xmpp://@0'\nupstream = 'a'\n\
            [[listener]]\nname = 'direct'\nlisten = 'xmpps://@1'\nupstream = 'a'\n\
            [[route]]\nhosts = ['bound.test']\nlisteners = ['starttls']\nupstream = 'b'\n\
            tls = 'passthrough'\n\
            [[route]]\nhosts = ['bound.test']\nlisteners = ['direct']\nupstream = 'c'\n\
            tls = 'passthrough'";
        let backends = [ours.addr(), theirs.addr(), direct.addr()];
        let vestibule = Setup::default().file(&file(lines, &backends)).start().await;
        let bound = Offer::named("bound.test");

        let mut client = PlainTalk::connect(vestibule.addr()).await;
        let first = header("to='bound.test' version='1.0'");
        client.say(&first).await;
        client.until("</stream:features>").await;
        client.say(STARTTLS).await;
        client.hears(PROCEED).await;
        assert_eq!(shown(&client.secure(&bound).await), own.der);
        let client = Way::Direct.connect_as(vestibule.addr_of(1), &bound).await;
        assert_eq!(shown(&client), own.der);

        for (number, way) in Way::BOTH.into_iter().enumerate() {
            let mut client = way.connect(vestibule.addr_of(number)).await;
            assert_eq!(shown(&client), pki().chat.der);
            client.login().await;
        }
        // Its streams are not ours to open: within our TLS it is not known.
        let nameless = Offer {
            sni: false,
            ..Offer::default()
        };
        for offer in [nameless, Offer::default()] {
            for (number, way) in Way::BOTH.into_iter().enumerate() {
                let addr = vestibule.addr_of(number);
                let mut client = way.connect_as(addr, &offer).await;
                client.say(&first).await;
                assert_eq!(condition(&client.rest().await.0), "host-unknown");
            }
        }
        assert_eq!(ours.calls().len(), 2);
        assert_eq!((theirs.calls().len(), direct.served()), (1, 1));
    })
    .await;
}

#[tokio::test]
async fn routes_go_by_host_and_listener_and_the_first_that_fits_is_taken() {
    within(60, async {
        let backends: Vec<_> = (0..4).map(|_| XmppBackend::start()).collect();
        let addrs: Vec<_> = backends.iter().map(XmppBackend::addr).collect();
        let lines = "[[listener]]\nname = 'starttls'\nlisten = 'xmpp://@0'\nupstream = 'a'\n\
            [[listener]]\nname = 'direct'\nlisten = 'xmpps://@1'\nupstream = 'a'\n\
            [[route]]\nhosts = ['one.test']\nupstream = 'b'\n\
            [[route]]\nhosts = ['*.one.test', 'two.test']\nlisteners = ['direct']\nupstream = 'c'\n\
            [[route]]\nhosts = ['two.test']\nupstream = 'd'";
        let cert = pki().issue(
            Kind::Ecdsa,
            &["one.test", "*.one.test", "two.test", "three.test"],
        );
        let vestibule = Setup::default()
            .cert(&pki().chat)
            .cert(&cert)
            .file(&file(lines, &addrs))
            .start()
            .await;
        let mut expected = [0; 4];
        for (host, sni, way, goes_to) in [
            ("one.test", true, Way::Starttls, 1),
            ("one.test", true, Way::Direct, 1),
            ("one.test", false, Way::Starttls, 1),
            ("sub.one.test", true, Way::Direct, 2),
            ("sub.one.test", true, Way::Starttls, 0),
            ("two.test", true, Way::Direct, 2),
            ("two.test", true, Way::Starttls, 3),
            ("three.test", true, Way::Direct, 0),
            ("three.test", true, Way::Starttls, 0),
        ] {
            let addr = vestibule.addr_of(usize::from(way == Way::Direct));
            let offer = Offer {
                sni,
                ..Offer::named(host)
            };
            let first = header(&format!("to='{host}' version='1.0'"));
            let mut client = match way {
                Way::Direct => way.connect_as(addr, &offer).await,
                Way::Starttls => {
                    let mut client = PlainTalk::connect(addr).await;
                    client.say(&first).await;
                    client.until("</stream:features>").await;
                    client.say(STARTTLS).await;
                    client.hears(PROCEED).await;
                    client.secure(&offer).await
                }
            };
            client.say(&first).await;
            client.until("</stream:features>").await;
            expected[goes_to] += 1;
            let calls: Vec<_> = backends.iter().map(|b| b.calls().len()).collect();
            assert_eq!(calls, expected, "{host} {way:?}");
        }
        // Without SNI the stream's own `to` decides.
        let nameless = Offer {
            sni: false,
            ..Offer::default()
        };
        let mut client = Way::Direct
            .connect_as(vestibule.addr_of(1), &nameless)
            .await;
        client.say(header("to='two.test' version='1.0'")).await;
        client.until("</stream:features>").await;
        assert_eq!(backends[2].calls().len(), expected[2] + 1);
    })
    .await;
}

#[tokio::test]
async fn a_host_that_is_not_served_is_unknown_before_tls_and_within() {
    within(30, async {
        let mut backend = RecordingBackend::start();
        let lines = "[[listener]]\nlisten = 'auto://@0'\nupstream = 'a'\n\
            domains = ['chat.test', '*.rooms.test']";
        let wide = pki().issue(
            Kind::Ecdsa,
            &["chat.test", "other.test", "*.rooms.test", "rooms.test"],
        );
        let vestibule = Setup::default()
            .cert(&wide)
            .file(&file(lines, &[backend.addr()]))
            .start()
            .await;
        for host in [
            "other.test",
            "rooms.test",
            "a.b.rooms.test",
            "sub.chat.test",
        ] {
            let first = header(&format!("to='{host}' version='1.0'"));
            let mut client = PlainTalk::connect(vestibule.addr()).await;
            client.say(&first).await;
            assert_eq!(condition(&client.rest().await.0), "host-unknown", "{host}");
            for way in Way::BOTH {
                let mut client = way.connect(vestibule.addr()).await;
                client.say(&first).await;
                let (said, end) = client.rest().await;
                assert_eq!(condition(&said), "host-unknown", "{host}");
                assert_eq!(end, End::CloseNotify);
            }
        }
        vestibule.is_idle().await;
        assert!(backend.is_unused());
        let mut client = PlainTalk::connect(vestibule.addr()).await;
        client.say(header("to='A.Rooms.Test' version='1.0'")).await;
        client.until("</stream:features>").await;

        // Where the settings do not say it, the certificates do.
        let vestibule = door("auto", backend.addr(), "").start().await;
        let first = header("to='other.test' version='1.0'");
        let mut client = PlainTalk::connect(vestibule.addr()).await;
        client.say(&first).await;
        assert_eq!(condition(&client.rest().await.0), "host-unknown");
        for way in Way::BOTH {
            let mut client = way.connect(vestibule.addr()).await;
            client.say(&first).await;
            assert_eq!(condition(&client.rest().await.0), "host-unknown");
        }
        assert!(backend.is_unused());
    })
    .await;
}

#[tokio::test]
async fn the_domain_within_tls_may_be_held_to_the_one_that_was_asked_for() {
    within(60, async {
        let cert = pki().issue(Kind::Ecdsa, &["chat.test", "other.test"]);
        let nameless = Offer {
            sni: false,
            ..Offer::default()
        };
        for strict in [false, true] {
            let settings = format!("to_must_match = {strict}\n");
            for (way, offer, to, refused) in [
                (Way::Direct, Offer::default(), "to='chat.test'", None),
                (Way::Direct, Offer::default(), "to='CHAT.test.'", None),
                (
                    Way::Direct,
                    Offer::default(),
                    "to='other.test'",
                    Some("host-unknown"),
                ),
                (
                    Way::Direct,
                    Offer::default(),
                    "",
                    Some("improper-addressing"),
                ),
                (Way::Direct, nameless.clone(), "to='other.test'", None),
                (
                    Way::Starttls,
                    Offer::default(),
                    "to='other.test'",
                    Some("host-unknown"),
                ),
                // What was asked for before TLS is `chat.test`.
                (
                    Way::Starttls,
                    nameless.clone(),
                    "to='other.test'",
                    Some("host-unknown"),
                ),
                (Way::Starttls, nameless.clone(), "to='chat.test'", None),
            ] {
                let backend = XmppBackend::start();
                let vestibule = door(way.scheme(), backend.addr(), &settings)
                    .cert(&cert)
                    .start()
                    .await;
                let mut client = way.connect_as(vestibule.addr(), &offer).await;
                client.say(header(&format!("{to} version='1.0'"))).await;
                match refused.filter(|_| strict) {
                    None => drop(client.until("</stream:features>").await),
                    Some(expected) => {
                        assert_eq!(condition(&client.rest().await.0), expected, "{way:?} {to}");
                        assert!(backend.calls().is_empty());
                    }
                }
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_servers_tls_that_ends_here_tells_the_backend_of_its_certificate() {
    within(60, async {
        let peer = pki().issue(Kind::Ecdsa, &["peer.test"]);
        let ca = pki().ca.display().to_string();
        let lines = "[[listener]]\nname = 'starttls'\nlisten = 'xmpp-server://@0'\nupstream = 'a'\n\
            tls = 'terminate'\n\
            [[listener]]\nname = 'direct'\nlisten = 'xmpps-server://@1'\nupstream = 'a'\n\
            tls = 'terminate'";
        for (way, from, certificate) in [
            (Way::Starttls, "peer.test", Some((true, "peer.test"))),
            (Way::Direct, "peer.test", Some((true, "peer.test"))),
            // The certificate is another's.
            (Way::Starttls, "mallory.test", Some((false, "peer.test"))),
            (Way::Starttls, "peer.test", None),
            (Way::Direct, "peer.test", None),
        ] {
            let backend = XmppBackend::start();
            let vestibule = Setup::default()
                .file(&file(lines, &[backend.addr()]))
                .args(&["--proxy-protocol", "v2", "--backend-ca", &ca])
                .start()
                .await;
            let first = server_header("chat.test").replace("peer.test", from);
            let mut config = Offer::default().config();
            if certificate.is_some() {
                config = rustls::ClientConfig::builder_with_provider(
                    rustls::crypto::aws_lc_rs::default_provider().into(),
                )
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(pki().roots.clone())
                .with_client_auth_cert(vec![peer.der.clone()], peer.private_key())
                .unwrap();
            }
            let mut client =
                PlainTalk::connect(vestibule.addr_of(usize::from(way == Way::Direct))).await;
            if way == Way::Starttls {
                client.say(&first).await;
                client.until("</stream:features>").await;
                client.say(STARTTLS).await;
                client.hears(PROCEED).await;
            }
            let connector = TlsConnector::from(Arc::new(config));
            let name = Offer::default().server_name();
            let mut client = Talk::new(connector.connect(name, client.stream).await.unwrap());
            assert_eq!(shown(&client), pki().chat.der);
            client.say(&first).await;
            client.until("</stream:features>").await;
            // The SSL field: that TLS is spoken, that a certificate came now and in this session, its verdict.
            let header = backend.call().proxy;
            let (bits, verdict) = match certificate {
                None => (1, 1),
                Some((verified, _)) => (7, u8::from(!verified)),
            };
            let field = [bits, 0, 0, 0, verdict, 0x21];
            assert!(
                header.windows(6).any(|piece| piece == field),
                "{field:?} in {header:?}"
            );
            let name = certificate.map(|(_, name)| [&[0x22, 0, 9], name.as_bytes()].concat());
            let told = header
                .windows(12)
                .any(|piece| Some(piece) == name.as_deref());
            assert_eq!(told, certificate.is_some());
            // Dialback needs no certificate.
            client
                .say(
                    "<db:result xmlns:db='jabber:server:dialback' from='peer.test' \
                to='chat.test'>key</db:result>",
                )
                .await;
            client.end().await;
            let call = backend.ended(0).await;
            assert!(call.clear.starts_with(&first), "{}", call.clear);
            assert!(call.clear.ends_with("</db:result>"), "{}", call.clear);
            assert!(!call.clear.contains(SUCCESS));
        }
    })
    .await;
}
