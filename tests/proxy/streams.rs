//! XMPP streams within TLS, however they got there: which clients reach the server, what exactly it is sent and says back,
//! how either side's end reaches the other, and a server that wants STARTTLS of its own.

use std::time::{Duration, Instant};

use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::support::backend::{RecordingBackend, StallingBackend};
use crate::support::certs::{Kind, pki};
use crate::support::client::{Offer, alert_in};
use crate::support::pattern::Pattern;
use crate::support::record::{DATA, HANDSHAKE, Received, RecordClient};
use crate::support::vestibule::Setup;
use crate::support::xmpp::{
    AUTH, CLOSE, DEMAND, MECHANISMS, OFFER, PlainTalk, Play, STARTTLS, SUCCESS, Talk, Way,
    XmppBackend, answer, condition, door, header, logged_in, open,
};
use crate::support::{End, connect, ports, read_plain, read_tls, reset, within};

#[tokio::test]
async fn direct_tls_needs_neither_alpn_nor_a_name() {
    within(30, async {
        for scheme in ["xmpps", "auto"] {
            let backend = XmppBackend::start();
            let vestibule = door(scheme, backend.addr(), "").start().await;
            let plain = Offer::default();
            let nameless = Offer {
                sni: false,
                ..Offer::default()
            };
            let both = Offer::default().alpn(&["xmpp-client"]);
            for offer in [plain, nameless, both] {
                let mut client = Way::Direct.connect_as(vestibule.addr(), &offer).await;
                client.login().await;
                let agreed = client.stream.get_ref().1.alpn_protocol();
                assert_eq!(agreed.unwrap_or(b""), offer.alpn.concat());
            }
            let other = Offer::default().alpn(&["http/1.1"]);
            let refused = other.try_connect(vestibule.addr()).await.unwrap_err();
            assert_eq!(alert_in(&refused), 120);
        }
    })
    .await;
}

#[tokio::test]
async fn one_port_serves_starttls_and_direct_tls() {
    within(30, async {
        let backend = XmppBackend::start();
        let vestibule = door("auto", backend.addr(), "").start().await;
        for way in Way::BOTH {
            way.connect(vestibule.addr()).await.login().await;
        }
        // White space first is a client's habit, too.
        let mut client = PlainTalk::connect(vestibule.addr()).await;
        client.say(" \n").await;
        client.say(&open()[21..]).await;
        client.until("</stream:features>").await;
    })
    .await;
}

#[tokio::test]
async fn who_speaks_http_is_answered_in_its_own_words_within_tls() {
    within(30, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door("auto", backend.addr(), "").start().await;
        let request = "GET /xmpp-websocket HTTP/1.1\r\nHost: chat.test\r\n\r\n";
        let mut client = Way::Direct.connect(vestibule.addr()).await;
        client.say(request).await;
        let (said, end) = client.rest().await;
        assert!(said.starts_with("HTTP/1.1 404 Not Found\r\n"), "{said}");
        let (head, body) = said.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains(&format!("Content-Length: {}", body.len())));
        assert_eq!(end, End::CloseNotify);
        let mut client = PlainTalk::connect(vestibule.addr()).await;
        client.say(request).await;
        let (said, _) = client.rest().await;
        assert_eq!(condition(&said), "not-well-formed");
        vestibule.is_idle().await;
        assert!(backend.is_unused());
    })
    .await;
}

#[tokio::test]
async fn the_servers_first_bytes_are_exactly_the_clients() {
    within(30, async {
        for way in Way::BOTH {
            let backend = XmppBackend::start();
            let vestibule = door(way.scheme(), backend.addr(), "").start().await;
            // Written as no proxy would write it.
            let first = "\u{feff}<?xml  version=\"1.0\" ?>\r\n<stream:stream\n\tto=\"Chat.TEST\" \
                xmlns:stream=\"http://etherx.jabber.org/streams\"  xmlns='jabber:client' \
                version='1.0' xmlns:x='urn:x' x:y='&lt;&#x41;' >\n \n"
                .to_owned()
                + AUTH;
            let mut client = way.connect(vestibule.addr()).await;
            client.say(&first).await;
            client.until(SUCCESS).await;
            client.end().await;
            let call = backend.ended(0).await;
            assert_eq!(call.clear, first);
            assert_eq!(String::from_utf8_lossy(&call.first_read), first);
        }
    })
    .await;
}

#[tokio::test]
async fn a_proxy_header_and_the_first_bytes_come_in_one_read() {
    within(30, async {
        for way in Way::BOTH {
            for version in ["v1", "v2"] {
                let backend = XmppBackend::start();
                let vestibule = door(way.scheme(), backend.addr(), "")
                    .args(&["--proxy-protocol", version])
                    .start()
                    .await;
                way.connect(vestibule.addr()).await.login().await;
                let call = backend.call();
                assert!(call.proxy.len() > 20, "{call:?}");
                let together = [&call.proxy[..], open().as_bytes()].concat();
                assert_eq!(call.first_read, together);
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_single_space_passes_at_once_both_ways() {
    within(30, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door("xmpps", backend.addr(), "").start().await;
        let (mut client, mut server) = logged_in(Way::Direct, &vestibule, &mut backend).await;
        client.say(" ").await;
        server.hears(" ").await;
        server.say(" ").await;
        client.hears(" ").await;
    })
    .await;
}

#[tokio::test]
async fn a_client_that_has_ended_its_stream_still_hears_the_servers_end() {
    within(30, async {
        for way in Way::BOTH {
            let mut backend = RecordingBackend::start();
            let vestibule = door(way.scheme(), backend.addr(), "").start().await;
            let (mut client, mut server) = logged_in(way, &vestibule, &mut backend).await;
            client.say(CLOSE).await;
            client.end().await;
            let (heard, end) = server.rest().await;
            assert_eq!((heard.as_str(), end), (CLOSE, End::Fin));
            server.say("<message/>").await;
            server.say(CLOSE).await;
            server.end().await;
            let (heard, end) = client.rest().await;
            assert_eq!(heard, format!("<message/>{CLOSE}"));
            assert_eq!(end, End::CloseNotify);
            let closed = [("reason", "closed"), ("phase", "established")];
            vestibule
                .metric_becomes("vestibule_xmpp_streams_ended_total", &closed, 1)
                .await;
            vestibule.is_idle().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_server_that_has_ended_still_hears_the_client() {
    within(30, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door("xmpps", backend.addr(), "").start().await;
        let (mut client, mut server) = logged_in(Way::Direct, &vestibule, &mut backend).await;
        server.say(CLOSE).await;
        server.end().await;
        let (heard, end) = client.rest().await;
        assert_eq!((heard.as_str(), end), (CLOSE, End::CloseNotify));
        client.say("<presence type='unavailable'/>").await;
        client.say(CLOSE).await;
        client.end().await;
        let (heard, end) = server.rest().await;
        assert_eq!(heard, format!("<presence type='unavailable'/>{CLOSE}"));
        assert_eq!(end, End::Fin);
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn the_server_never_hears_an_end_of_the_stream_that_the_client_did_not_send() {
    within(60, async {
        let backend = XmppBackend::start();
        let vestibule = door(
            "xmpps",
            backend.addr(),
            "element_size = 10000\n[timeouts]\nauthentication = '2s'\n",
        )
        .start()
        .await;
        let mut number = 0;
        let mut heard_by_the_server = async |after_login: bool, what: &str| {
            let call = backend.ended(number).await;
            number += 1;
            let expected = if after_login {
                open() + AUTH + &open()
            } else {
                open()
            };
            assert!(call.clear.starts_with(&expected), "{what}: {}", call.clear);
            assert!(!call.clear.contains("</stream"), "{what}: {}", call.clear);
            assert_eq!(call.ended, Some(End::Fin), "{what}");
        };
        let login = async || {
            let mut client = Way::Direct.connect(vestibule.addr()).await;
            client.login().await;
            client
        };

        let mut client = login().await;
        client.end().await;
        heard_by_the_server(true, "close_notify").await;

        let mut client = login().await;
        client.stream.get_mut().0.shutdown().await.unwrap();
        heard_by_the_server(true, "a bare FIN").await;

        let mut client = login().await;
        let _ = client
            .try_say(format!("<message>{}", "x".repeat(20_000)))
            .await;
        let (said, _) = client.rest().await;
        assert_eq!(condition(&said), "policy-violation");
        drop(client);
        heard_by_the_server(true, "an element too long").await;

        let mut client = Way::Direct.connect(vestibule.addr()).await;
        client.say(open()).await;
        client.until("</stream:features>").await;
        client.say("<!-- -->").await;
        assert_eq!(condition(&client.rest().await.0), "restricted-xml");
        drop(client);
        heard_by_the_server(false, "a fault before the login").await;

        let mut client = Way::Direct.connect(vestibule.addr()).await;
        client.say(open()).await;
        client.until("</stream:features>").await;
        assert_eq!(condition(&client.rest().await.0), "connection-timeout");
        drop(client);
        heard_by_the_server(false, "no login in time").await;

        let client = login().await;
        reset(client.stream.into_inner().0);
        let call = backend.ended(5).await;
        assert!(!call.clear.contains("</stream"), "{}", call.clear);
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn a_slow_reader_does_not_hold_up_what_it_sends() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door("xmpps", backend.addr(), "").start().await;
        let (mut client, server) = logged_in(Way::Direct, &vestibule, &mut backend).await;
        let before = vestibule.resident_bytes();
        let (mut server_read, mut server_write) = server.stream.into_split();
        // The client reads nothing of this, so it is stuck somewhere.
        let flood = tokio::spawn(async move {
            let stanza = format!("<message>{}</message>", "x".repeat(60_000));
            for _ in 0..1100 {
                if server_write.write_all(stanza.as_bytes()).await.is_err() {
                    return false;
                }
            }
            true
        });
        let pattern = Pattern::new(9);
        const LEN: u64 = 4 << 20;
        let sending = async {
            pattern.write(&mut client.stream, LEN).await.unwrap();
        };
        tokio::join!(sending, pattern.verify(&mut server_read, LEN));
        assert!(!flood.is_finished(), "64 MB were taken by somebody");
        let grown = vestibule.resident_bytes().saturating_sub(before);
        assert!(grown < 4 << 20, "{grown} bytes");
        drop(client);
        flood.await.unwrap();
        drop(server_read);
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn without_a_server_the_client_is_told_so_and_not_reset() {
    within(30, async {
        for way in Way::BOTH {
            let vestibule = door(way.scheme(), ports::free(), "").start().await;
            let mut client = way.connect(vestibule.addr()).await;
            client.say(open()).await;
            let (said, end) = client.rest().await;
            assert!(
                said.starts_with("<?xml version='1.0'?><stream:stream "),
                "{said}"
            );
            assert_eq!(condition(&said), "remote-connection-failed");
            assert_eq!(end, End::CloseNotify);
            vestibule.is_idle().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_server_that_closes_without_a_word_is_as_good_as_none() {
    within(30, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door("xmpps", backend.addr(), "").start().await;
        let mut client = Way::Direct.connect(vestibule.addr()).await;
        client.say(open()).await;
        drop(backend.accept().await);
        let (said, end) = client.rest().await;
        assert_eq!(condition(&said), "remote-connection-failed");
        assert_eq!(end, End::CloseNotify);
    })
    .await;
}

#[tokio::test]
async fn an_optional_offer_of_starttls_is_taken_out_and_nothing_else_is_touched() {
    within(30, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door("xmpps", backend.addr(), "").start().await;
        let before = "<?xml version='1.0'?>\n<stream:stream id=\"1\" xmlns='jabber:client' \
            xmlns:stream='http://etherx.jabber.org/streams'\nversion='1.0'>\n <stream:features>";
        let after = " <mechanisms xmlns='urn:ietf:params:xml:ns:xmpp-sasl'><mechanism>PLAIN\
            </mechanism></mechanisms>\n</stream:features> <a xmlns='urn:a'/>";
        for offer in [
            OFFER,
            "<starttls xmlns='urn:ietf:params:xml:ns:xmpp-tls'> <optional/> </starttls>",
            "<t:starttls xmlns:t=\"urn:ietf:params:xml:ns:xmpp-tls\" ></t:starttls >",
        ] {
            let mut client = Way::Direct.connect(vestibule.addr()).await;
            client.say(open()).await;
            let mut server = Talk::new(backend.accept().await);
            server.hears(open()).await;
            // In pieces, so that no single read has it all.
            let said = format!("{before}{offer}{after}");
            for piece in said.as_bytes().chunks(7) {
                server.say(piece).await;
                tokio::task::yield_now().await;
            }
            client.hears(format!("{before}{after}")).await;
            // From now on it is the client's and the server's own talk.
            server.say(offer).await;
            client.hears(offer).await;
        }
        vestibule
            .says("the backend offers STARTTLS to clients that are inside TLS already")
            .await;
    })
    .await;
}

/// A listener whose upstream has these settings.
fn linked(scheme: &str, backend: &XmppBackend, settings: &str) -> Setup {
    Setup::default().file(&format!(
        "[xmpp]\nprobe = false\n\
         [[listener]]\nlisten = '{scheme}://@0'\nupstream = 'chat'\n\
         [[upstream]]\nname = 'chat'\n{settings}\n[[upstream.backend]]\naddress = '{}'\n",
        backend.addr()
    ))
}

#[tokio::test]
async fn an_optional_offer_is_left_in_where_the_settings_say_so() {
    within(30, async {
        let backend = XmppBackend::play(Play::offering(&format!("{OFFER}{MECHANISMS}")));
        let vestibule = linked("xmpps", &backend, "starttls = 'keep'").start().await;
        let mut client = Way::Direct.connect(vestibule.addr()).await;
        client.say(open()).await;
        let answer = client.until("</stream:features>").await;
        assert!(
            answer.ends_with(&format!("{OFFER}{MECHANISMS}</stream:features>")),
            "{answer}"
        );
        // A demand is not: clients would wait for what cannot be.
        let backend = XmppBackend::play(Play::offering(&format!("{DEMAND}{MECHANISMS}")));
        let vestibule = linked("xmpps", &backend, "starttls = 'keep'").start().await;
        let mut client = Way::Direct.connect(vestibule.addr()).await;
        client.say(open()).await;
        assert_eq!(condition(&client.rest().await.0), "internal-server-error");
    })
    .await;
}

#[tokio::test]
async fn a_server_that_demands_starttls_fails_loudly_and_the_way_out_is_named() {
    within(30, async {
        let demanding = Play::offering(&format!("{DEMAND}{MECHANISMS}"));
        // Prosody without a TLS module.
        let helpless = Play {
            error: Some(format!(
                "<stream:error><undefined-condition xmlns='urn:ietf:params:xml:ns:xmpp-streams'/>\
                 <text xmlns='urn:ietf:params:xml:ns:xmpp-streams'>No stream features to proceed with\
                 </text></stream:error>{CLOSE}"
            )),
            ..Play::default()
        };
        for play in [demanding, helpless] {
            for way in Way::BOTH {
                let backend = XmppBackend::play(play.clone());
                let vestibule = door(way.scheme(), backend.addr(), "").start().await;
                let mut client = way.connect(vestibule.addr()).await;
                client.say(open()).await;
                let (said, end) = client.rest().await;
                assert_eq!(condition(&said), "internal-server-error");
                assert_eq!(said.matches("<stream:stream").count(), 1, "{said}");
                assert_eq!(end, End::CloseNotify);
                vestibule.says("modules_disabled = { \"tls\" }").await;
                vestibule.says("starttls_required off this listener").await;
                vestibule.says("starttls = \"speak\"").await;
                vestibule.is_idle().await;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn starttls_is_spoken_to_the_server_and_the_clients_words_are_only_said_within_it() {
    within(30, async {
        let ca = format!("starttls = 'speak'\nca = ['{}']", pki().ca.display());
        for (way, offer) in Way::BOTH.into_iter().zip([OFFER, DEMAND]) {
            let backend =
                XmppBackend::play(Play::offering(&format!("{offer}{MECHANISMS}")).tls(&pki().chat));
            let vestibule = linked(way.scheme(), &backend, &ca)
                .args(&["--proxy-protocol", "v1"])
                .start()
                .await;
            let first = header("to='chat.test' from='juliet@chat.test' version='1.0'") + AUTH;
            let mut client = way.connect(vestibule.addr()).await;
            client.say(&first).await;
            let heard = client.until(SUCCESS).await;
            assert!(!heard.contains("xmpp-tls"), "{heard}");
            let long = format!("<message>{}</message>", "x".repeat(100_000));
            client.say(&long).await;
            client.hears(&long).await;
            client.end().await;
            assert_eq!(client.rest().await, (String::new(), End::CloseNotify));
            let call = backend.ended(0).await;
            assert!(
                call.clear
                    .starts_with("<?xml version='1.0'?><stream:stream to='chat.test'")
            );
            assert!(
                call.clear.ends_with(&format!(">{STARTTLS}")),
                "{}",
                call.clear
            );
            assert!(!call.clear.contains("juliet"), "{}", call.clear);
            assert!(!call.clear.contains("<auth"), "{}", call.clear);
            assert_eq!(call.secure, first + &long);
            assert!(call.proxy.starts_with(b"PROXY TCP4 "), "{:?}", call.proxy);
            assert!(call.first_read.ends_with(b">"), "{:?}", call.first_read);
            vestibule.is_idle().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_server_with_the_wrong_certificate_or_no_offer_is_not_spoken_to() {
    within(30, async {
        let ca = format!("starttls = 'speak'\nca = ['{}']", pki().ca.display());
        let other = pki().issue(Kind::Ecdsa, &["other.test"]);
        let offering = Play::offering(&format!("{OFFER}{MECHANISMS}"));
        for (play, ca, what) in [
            (offering.clone().tls(&other), &ca[..], "another domain"),
            (
                offering.tls(&pki().chat),
                "starttls = 'speak'",
                "an unknown authority",
            ),
            (Play::default(), &ca[..], "no offer"),
        ] {
            let backend = XmppBackend::play(play);
            let vestibule = linked("xmpps", &backend, ca).start().await;
            let mut client = Way::Direct.connect(vestibule.addr()).await;
            client.say(open() + AUTH).await;
            let (said, end) = client.rest().await;
            assert_eq!(condition(&said), "internal-server-error", "{what}");
            assert_eq!(end, End::CloseNotify);
            vestibule.says("the backend cannot serve streams").await;
            let call = backend.ended(0).await;
            assert!(!call.clear.contains("<auth"), "{what}: {}", call.clear);
            assert_eq!(call.secure, "", "{what}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_client_that_leaves_before_its_header_costs_the_server_nothing() {
    within(30, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door("xmpps", backend.addr(), "").start().await;
        let mut silent = Way::Direct.connect(vestibule.addr()).await;
        silent.end().await;
        silent.rest().await;
        let mut half = Way::Direct.connect(vestibule.addr()).await;
        half.say("<stream:stream to='chat").await;
        half.end().await;
        half.rest().await;
        // Nor does one that never speaks TLS.
        drop(connect(vestibule.addr()).await);
        vestibule.is_idle().await;
        assert!(backend.is_unused());
        for reason in ["silent", "closed"] {
            let reason = [("reason", reason), ("phase", "authentication")];
            vestibule
                .metric_becomes("vestibule_xmpp_streams_ended_total", &reason, 1)
                .await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_stream_from_before_version_1_is_not_kept_waiting_for_features() {
    within(8, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door("xmpps", backend.addr(), "").start().await;
        for before in ["to='chat.test'", "to='chat.test' version='0.9'"] {
            let mut client = Way::Direct.connect(vestibule.addr()).await;
            client.say(header(before)).await;
            let mut server = Talk::new(backend.accept().await);
            server.hears(header(before)).await;
            server.say(header("from='chat.test' id='1'")).await;
            client.hears(header("from='chat.test' id='1'")).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_servers_own_error_reaches_the_client_as_it_is() {
    within(30, async {
        let error = format!(
            "<stream:error><host-unknown xmlns='urn:ietf:params:xml:ns:xmpp-streams'/></stream:error>{CLOSE}"
        );
        let backend = XmppBackend::play(Play {
            error: Some(error.clone()),
            ..Play::default()
        });
        let vestibule = door("xmpps", backend.addr(), "").start().await;
        let mut client = Way::Direct.connect(vestibule.addr()).await;
        client.say(open()).await;
        let (said, end) = client.rest().await;
        assert!(said.contains("id='server-"), "{said}");
        assert!(said.ends_with(&format!(">{error}")), "{said}");
        assert_eq!(said.matches("<stream:stream").count(), 1, "{said}");
        assert_eq!(end, End::CloseNotify);
    })
    .await;
}

#[tokio::test]
async fn a_server_that_says_nothing_does_not_hold_a_client_past_its_deadline() {
    within(30, async {
        let backend = StallingBackend::start();
        let vestibule = door(
            "xmpps",
            backend.addr(),
            "[timeouts]\nauthentication = '500ms'\n",
        )
        .start()
        .await;
        let mut client = Way::Direct.connect(vestibule.addr()).await;
        client.say(open()).await;
        let (said, end) = client.rest().await;
        assert_eq!(condition(&said), "connection-timeout");
        assert_eq!(end, End::CloseNotify);
        drop(client);
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn what_a_server_says_instead_of_features_is_not_kept_without_bound() {
    within(30, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door("xmpps", backend.addr(), "").start().await;
        let mut client = Way::Direct.connect(vestibule.addr()).await;
        client.say(open()).await;
        let mut server = Talk::new(backend.accept().await);
        server.hears(open()).await;
        let begun = Instant::now();
        let features = answer(MECHANISMS);
        let (header, features) = features.split_once("<stream:features>").unwrap();
        let white = format!("{header}{}", " ".repeat(1 << 20));
        let ((), ()) = tokio::join!(server.say(&white), client.hears(&white));
        // Without one it is kept for ten seconds.
        assert!(begun.elapsed() < Duration::from_secs(9));
        let features = format!("<stream:features>{features}");
        server.say(&features).await;
        client.hears(&features).await;
        client.say(AUTH).await;
        server.hears(AUTH).await;
        server.say(SUCCESS).await;
        client.hears(SUCCESS).await;
        let phase = [("phase", "established")];
        vestibule
            .metric_becomes("vestibule_xmpp_streams", &phase, 1)
            .await;
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_down_or_not_set_up_leaves_the_streams_to_another() {
    within(30, async {
        let good = XmppBackend::start();
        let bad = XmppBackend::play(Play::offering(DEMAND));
        let addrs = [ports::free(), good.addr()].map(|addr| addr.to_string());
        let vestibule = Setup::default()
            .listener("xmpps", &addrs)
            .file("[xmpp]\nprobe = false\n")
            .start()
            .await;
        for _ in 0..4 {
            Way::Direct.connect(vestibule.addr()).await.login().await;
        }
        assert_eq!(good.calls().len(), 4);
        let addrs = [bad.addr(), good.addr()].map(|addr| addr.to_string());
        let vestibule = Setup::default()
            .listener("xmpps", &addrs)
            .file("[xmpp]\nprobe = false\n")
            .start()
            .await;
        // It is tried once at most; who comes after that goes elsewhere.
        let mut refused = 0;
        for _ in 0..4 {
            let mut client = Way::Direct.connect(vestibule.addr()).await;
            client.say(open() + CLOSE).await;
            client.end().await;
            let (said, _) = client.rest().await;
            refused += usize::from(said.contains("internal-server-error"));
        }
        assert!(refused <= 1, "{refused}");
    })
    .await;
}

/// Records need not end where messages do.
#[tokio::test]
async fn what_was_read_behind_the_header_and_not_opened_is_not_lost() {
    within(30, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door("xmpps", backend.addr(), "").start().await;
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let offer = Offer::default().version(version);
            let mut client = RecordClient::connect(vestibule.addr(), &offer).await;
            let first = open();
            let (head, tail) = first.split_at(60);
            let records = [head, tail, &AUTH[..10], &AUTH[10..]]
                .map(|part| client.tx.seal(DATA, part.as_bytes()));
            // The last record comes in halves, the first of which is read with the header.
            let bytes = records.concat();
            let (now, later) = bytes.split_at(bytes.len() - records[3].len() / 2);
            client.send(now).await;
            let mut server = Talk::new(backend.accept().await);
            server.hears(first).await;
            let said = answer(MECHANISMS);
            server.say(&said).await;
            assert_eq!(client.data(said.len()).await, said.as_bytes());
            server.hears(&AUTH[..10]).await;
            client.send(later).await;
            server.hears(&AUTH[10..]).await;
        }
    })
    .await;
}

#[tokio::test]
async fn key_updates_around_the_header_are_followed() {
    within(30, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door("xmpps", backend.addr(), "").start().await;
        let offer = Offer::default().version(&rustls::version::TLS13);
        let mut client = RecordClient::connect(vestibule.addr(), &offer).await;
        let first = open();
        for part in [&first[..50], &first[50..]] {
            // Asks for ours in return.
            client.send_record(HANDSHAKE, &[24, 0, 0, 1, 1]).await;
            client.tx.update();
            let answered = Received::Record(HANDSHAKE, vec![24, 0, 0, 1, 0]);
            assert_eq!(client.receive().await, answered);
            client.rx.update();
            client.send_record(DATA, part.as_bytes()).await;
        }
        let mut server = Talk::new(backend.accept().await);
        server.hears(&first).await;
        let said = answer(MECHANISMS);
        server.say(&said).await;
        assert_eq!(client.data(said.len()).await, said.as_bytes());
        client.send_record(DATA, AUTH.as_bytes()).await;
        server.hears(AUTH).await;
    })
    .await;
}

#[tokio::test]
async fn a_client_that_breaks_tls_before_its_header_gets_the_alert_and_reaches_nobody() {
    within(30, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door("xmpps", backend.addr(), "").start().await;
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let offer = Offer::default().version(version);
            let mut client = RecordClient::connect(vestibule.addr(), &offer).await;
            let whole = client.tx.seal(DATA, &open().as_bytes()[..40]);
            let mut broken = client.tx.seal(DATA, &open().as_bytes()[40..]);
            *broken.last_mut().unwrap() ^= 1;
            client.send(&[whole, broken].concat()).await;
            client.expect_fatal(20).await;
        }
        let reason = [("reason", "client_tls_error"), ("phase", "authentication")];
        vestibule
            .metric_becomes("vestibule_xmpp_streams_ended_total", &reason, 2)
            .await;
        let counted = [("reason", "bad_record_mac")];
        vestibule
            .metric_becomes("vestibule_record_errors_total", &counted, 2)
            .await;
        vestibule.is_idle().await;
        assert!(backend.is_unused());
    })
    .await;
}

#[tokio::test]
async fn what_a_client_asks_for_is_never_the_servers_fault() {
    within(30, async {
        let settings = format!("starttls = 'speak'\nca = ['{}']", pki().ca.display());
        let backend =
            XmppBackend::play(Play::offering(&format!("{OFFER}{MECHANISMS}")).tls(&pki().chat));
        let vestibule = linked("xmpps", &backend, &settings).start().await;
        for (to, expected) in [
            ("", "improper-addressing"),
            ("to='elsewhere.test'", "host-unknown"),
            ("to='b\u{fc}cher.test'", "host-unknown"),
        ] {
            let mut client = Way::Direct.connect(vestibule.addr()).await;
            client.say(header(&format!("{to} version='1.0'"))).await;
            assert_eq!(condition(&client.rest().await.0), expected);
        }
        assert!(backend.calls().is_empty());
        Way::Direct.connect(vestibule.addr()).await.login().await;
        let said = vestibule.said();
        assert!(!said.contains("cannot serve streams"), "{said}");
    })
    .await;
}

#[tokio::test]
async fn a_client_that_ends_with_its_first_words_has_ended() {
    within(30, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door("xmpps", backend.addr(), "").start().await;
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let offer = Offer::default().version(version);
            let mut client = RecordClient::connect(vestibule.addr(), &offer).await;
            let words = open() + CLOSE;
            let records = [
                client.tx.seal(DATA, words.as_bytes()),
                client.tx.seal(21, &[1, 0]),
            ];
            client.send(&records.concat()).await;
            let mut server = Talk::new(backend.accept().await);
            server.hears(&words).await;
            let said = answer(MECHANISMS) + CLOSE;
            server.say(&said).await;
            assert_eq!(server.rest().await, (String::new(), End::Fin));
            server.end().await;
            assert_eq!(client.alert().await, (said.into_bytes(), [1, 0]));
        }
        let closed = [("outcome", "closed")];
        vestibule
            .metric_becomes("vestibule_sessions_ended_total", &closed, 2)
            .await;
    })
    .await;
}

/// Whoever goes on sending has no more time than who is silent.
#[tokio::test]
async fn a_client_that_dribbles_meets_its_deadline() {
    within(30, async {
        let backend = XmppBackend::start();
        let timeouts = "[timeouts]\nstarttls = '500ms'\nauthentication = '500ms'\n";
        let vestibule = door("auto", backend.addr(), timeouts).start().await;
        let dribble = async |write: &mut (dyn AsyncWrite + Unpin)| {
            while write.write_all(b" ").await.is_ok() && write.flush().await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        for greeted in [false, true] {
            let mut client = PlainTalk::connect(vestibule.addr()).await;
            if greeted {
                client.say(open()).await;
            }
            let (mut read, mut write) = client.stream.split();
            let said = tokio::select! {
                said = read_plain(&mut read) => said,
                () = dribble(&mut write) => panic!("no end was heard"),
            };
            let said = String::from_utf8(said.0).unwrap();
            assert_eq!(condition(&said), "connection-timeout");

            let mut client = Way::Direct.connect(vestibule.addr()).await;
            if greeted {
                client.say(open()).await;
            }
            let (mut read, mut write) = tokio::io::split(client.stream);
            let said = tokio::select! {
                said = read_tls(&mut read) => said,
                () = dribble(&mut write) => panic!("no end was heard"),
            };
            let said = String::from_utf8(said.0).unwrap();
            assert_eq!(condition(&said), "connection-timeout");
        }
    })
    .await;
}
