//! STARTTLS as its clients meet it (RFC 6120 sections 4 and 5): what is answered before TLS, each refusal in its own words,
//! nothing carried over into TLS, and a deadline on every phase.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;

use crate::support::backend::RecordingBackend;
use crate::support::certs::{Kind, pki};
use crate::support::client::{Offer, OneByteClient};
use crate::support::vestibule::Setup;
use crate::support::xmpp::{
    CLOSE, PROCEED, PlainTalk, STARTTLS, Talk, Way, XmppBackend, attribute, condition, door,
    header, open,
};
use crate::support::{End, read_plain, within};

const FEATURES: &str = "<stream:features><starttls xmlns='urn:ietf:params:xml:ns:xmpp-tls'>\
    <required/></starttls></stream:features>";

#[tokio::test]
async fn a_login_goes_through_and_everything_after_it() {
    within(30, async {
        let backend = XmppBackend::start();
        let vestibule = door("xmpp", backend.addr(), "").start().await;
        let mut client = Way::Starttls.connect(vestibule.addr()).await;
        client.login().await;
        client
            .say("<message to='a@chat.test'><body>1 &lt; 2</body></message>")
            .await;
        client
            .hears("<message to='a@chat.test'><body>1 &lt; 2</body></message>")
            .await;
        client.end().await;
        assert_eq!(client.rest().await, (String::new(), End::CloseNotify));
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn our_header_answers_whom_it_was_asked_for() {
    within(30, async {
        let backend = XmppBackend::start();
        let vestibule = door("xmpp", backend.addr(), "").start().await;
        let mut ids = HashSet::new();
        for (asked, from, to, lang) in [
            ("to='chat.test' version='1.0'", "chat.test", None, "en"),
            (
                "to='CHAT.test.' from='juliet@chat.test' xml:lang='de-CH' version='1.0'",
                "chat.test",
                Some("juliet@chat.test"),
                "de-CH",
            ),
            // What is no plain JID, or no language, is not told back.
            (
                "to='chat.test' from='a&apos;b@c/d' xml:lang='e n' version='1.0'",
                "chat.test",
                None,
                "en",
            ),
        ] {
            let mut client = PlainTalk::connect(vestibule.addr()).await;
            client.say(header(asked)).await;
            let answer = client.until("</stream:features>").await;
            assert!(answer.starts_with("<?xml version='1.0'?>"), "{answer}");
            assert!(answer.ends_with(FEATURES), "{answer}");
            assert_eq!(attribute(&answer, "from"), Some(from));
            assert_eq!(attribute(&answer, "to"), to);
            assert_eq!(attribute(&answer, "xml:lang"), Some(lang));
            assert_eq!(attribute(&answer, "version"), Some("1.0"));
            assert_eq!(attribute(&answer, "xmlns"), Some("jabber:client"));
            let id = attribute(&answer, "id").expect("an id").to_owned();
            // 128 bits by 64 letters at the most.
            assert!(id.len() >= 22, "{id}");
            assert!(ids.insert(id), "an id came twice");
        }
    })
    .await;
}

#[tokio::test]
async fn the_id_within_tls_is_the_servers_and_another() {
    within(30, async {
        let backend = XmppBackend::start();
        let vestibule = door("xmpp", backend.addr(), "").start().await;
        let mut client = PlainTalk::connect(vestibule.addr()).await;
        let before = client.proceed().await;
        let mut client = client.secure(&Offer::default()).await;
        client.say(open()).await;
        let within = client.until("</stream:features>").await;
        let id = attribute(&within, "id").expect("an id");
        assert!(id.starts_with("server-"), "{id}");
        assert_ne!(attribute(&before, "id"), Some(id));
    })
    .await;
}

/// What a stream that is refused gets: our header and the error. The header's `from` is the host asked for.
async fn refusal(client: &mut PlainTalk) -> String {
    let (said, end) = client.rest().await;
    assert_eq!(end, End::Fin, "{said}");
    assert!(
        said.starts_with("<?xml version='1.0'?><stream:stream "),
        "{said}"
    );
    assert_eq!(said.matches("<stream:stream").count(), 1, "{said}");
    condition(&said);
    said
}

#[tokio::test]
async fn each_fault_before_tls_is_told_by_its_own_condition_behind_our_header() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door("xmpp", backend.addr(), "").start().await;
        let long = "x".repeat(9 << 10);
        let declared = |rest: &str| format!("<?xml version='1.0'?>{rest}");
        let after = |rest: &str| open() + rest;
        let stream = "http://etherx.jabber.org/streams";
        let table: Vec<(String, &str)> = vec![
            ("GET / HTTP/1.1\r\nHost: chat.test\r\n\r\n".into(), "not-well-formed"),
            ("\u{1}\u{2}\u{3}".into(), "not-well-formed"),
            ("<stream:stream to=chat.test>".into(), "not-well-formed"),
            (declared("<!DOCTYPE stream [<!ENTITY a 'b'>]>"), "restricted-xml"),
            (declared("<!-- a remark -->"), "restricted-xml"),
            (declared("<?php echo ?>"), "restricted-xml"),
            (header("to='&chat;' version='1.0'"), "restricted-xml"),
            (after("<!-- a remark -->"), "restricted-xml"),
            (
                "<stream:stream xmlns:stream='urn:other' xmlns='jabber:client' to='chat.test'>".into(),
                "invalid-namespace",
            ),
            (
                format!("<stream:stream xmlns:stream='{stream}' xmlns='jabber:server' to='chat.test' version='1.0'>"),
                "invalid-namespace",
            ),
            (
                format!("<stream:stream xmlns:stream='{stream}' xmlns='jabber:component:accept' to='chat.test'>"),
                "invalid-namespace",
            ),
            ("<stream:stream xmlns='jabber:client' to='chat.test'>".into(), "bad-namespace-prefix"),
            (header("version='1.0'"), "improper-addressing"),
            (header("to='a@chat.test' version='1.0'"), "improper-addressing"),
            (header("to='elsewhere.test' version='1.0'"), "host-unknown"),
            // Before 1.0 there are no features, hence no way into TLS.
            (header("to='chat.test'"), "unsupported-version"),
            (header("to='chat.test' version='x'"), "bad-format"),
            (
                format!("<?xml version='1.0' encoding='ISO-8859-1'?>{}", &open()[21..]),
                "unsupported-encoding",
            ),
            (after("<iq type='get' id='1'><query xmlns='jabber:iq:auth'/></iq>"), "not-authorized"),
            (after("<message><body>hi</body></message>"), "not-authorized"),
            (
                after("<auth xmlns='urn:ietf:params:xml:ns:xmpp-sasl' mechanism='PLAIN'>AGEAYg==</auth>"),
                "not-authorized",
            ),
            (after("<compress xmlns='http://jabber.org/protocol/compress'/>"), "policy-violation"),
            (after("text"), "bad-format"),
            (header(&format!("to='chat.test' version='1.0' x='{long}'")), "policy-violation"),
            (after(&format!("<starttls x='{long}'")), "policy-violation"),
        ];
        let mut told: HashMap<&str, u64> = HashMap::new();
        for (input, expected) in table {
            let mut client = PlainTalk::connect(vestibule.addr()).await;
            client.say(&input).await;
            let (said, _) = client.rest().await;
            assert!(said.starts_with("<?xml version='1.0'?><stream:stream "), "{input}: {said}");
            assert_eq!(said.matches("<stream:stream").count(), 1, "{input}: {said}");
            assert_eq!(condition(&said), expected, "{input}");
            if input.contains("elsewhere.test") {
                assert_eq!(attribute(&said, "from"), Some("elsewhere.test"));
            }
            *told.entry(expected).or_default() += 1;
        }
        for (condition, count) in told {
            let reason = [("reason", condition), ("phase", "opening")];
            vestibule
                .metric_becomes("vestibule_xmpp_streams_ended_total", &reason, count)
                .await;
        }
        vestibule.is_idle().await;
        assert!(backend.is_unused());
    })
    .await;
}

#[tokio::test]
async fn utf_16_is_told_that_it_is_not_spoken_here() {
    within(30, async {
        let backend = XmppBackend::start();
        let vestibule = door("xmpp", backend.addr(), "").start().await;
        let wide = |mark: bool, bytes: fn(u16) -> [u8; 2]| -> Vec<u8> {
            let text = if mark { "\u{feff}" } else { "" }.to_owned() + &open();
            text.encode_utf16().flat_map(bytes).collect()
        };
        for input in [
            wide(true, u16::to_be_bytes),
            wide(true, u16::to_le_bytes),
            wide(false, u16::to_be_bytes),
        ] {
            let mut client = PlainTalk::connect(vestibule.addr()).await;
            client.say(&input).await;
            assert_eq!(
                condition(&refusal(&mut client).await),
                "unsupported-encoding"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn the_error_arrives_although_the_client_still_sends() {
    within(30, async {
        let backend = XmppBackend::start();
        let vestibule = door("xmpp", backend.addr(), "").start().await;
        let mut client = PlainTalk::connect(vestibule.addr()).await;
        client.say(open() + "<message><body>").await;
        // It may fail at any moment; what counts is what can be read afterwards.
        let _ = client.try_say(vec![b'x'; 4 << 20]).await;
        let (said, _) = client.rest().await;
        assert_eq!(condition(&said), "policy-violation");
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn a_stream_is_known_by_its_namespace_and_not_by_its_prefix() {
    within(30, async {
        let backend = XmppBackend::start();
        let vestibule = door("xmpp", backend.addr(), "").start().await;
        let stream = "http://etherx.jabber.org/streams";
        let tls = "urn:ietf:params:xml:ns:xmpp-tls";
        for (first, starttls) in [
            (
                format!("<s:stream xmlns:s='{stream}' xmlns='jabber:client' to='chat.test' version='1.0'>"),
                STARTTLS.to_owned(),
            ),
            (
                format!("<stream xmlns='{stream}' to=\"chat.test\" version=\"1.0\" >"),
                format!("<t:starttls xmlns:t='{tls}'></t:starttls>"),
            ),
            (
                format!(
                    "\u{feff}<?xml version='1.0' encoding='UTF-8'?>\r\n {}",
                    &open()[21..]
                ),
                format!("\n <starttls xmlns=\"{tls}\" />"),
            ),
            (format!(" \n\t{}", &open()[21..]), STARTTLS.to_owned()),
            // Versions above ours are answered with ours (RFC 6120 section 4.7.5).
            (header("to='chat.test' version='2.1'"), STARTTLS.to_owned()),
        ] {
            let mut client = PlainTalk::connect(vestibule.addr()).await;
            client.say(&first).await;
            let greeting = client.until("</stream:features>").await;
            assert_eq!(attribute(&greeting, "version"), Some("1.0"));
            client.say(&starttls).await;
            client.hears(PROCEED).await;
            client.secure(&Offer::default()).await.login().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_client_that_sends_single_bytes_gets_through() {
    within(60, async {
        let backend = XmppBackend::start();
        let vestibule = door("xmpp", backend.addr(), "").start().await;
        let mut client = Talk::new(OneByteClient::connect(vestibule.addr(), 4000).await);
        client.say(open()).await;
        client.until("</stream:features>").await;
        client.say(STARTTLS).await;
        client.hears(PROCEED).await;
        assert_eq!(client.unheard(), "");
        let secure = Offer::default().over(client.stream).await.unwrap();
        Talk::new(secure).login().await;
    })
    .await;
}

#[tokio::test]
async fn header_and_starttls_may_share_a_segment_and_white_space_may_follow() {
    within(30, async {
        let backend = XmppBackend::start();
        let vestibule = door("xmpp", backend.addr(), "").start().await;
        for white in ["", "\n", " \r\n\t "] {
            let mut client = PlainTalk::connect(vestibule.addr()).await;
            client.say(open() + STARTTLS + white).await;
            client.until(PROCEED).await;
            client.secure(&Offer::default()).await.login().await;
            // White space that comes on its own, behind `<proceed/>`.
            let mut client = PlainTalk::connect(vestibule.addr()).await;
            client.proceed().await;
            client.say(white).await;
            client.secure(&Offer::default()).await.login().await;
        }
    })
    .await;
}

#[tokio::test]
async fn what_is_slipped_in_behind_starttls_ends_the_connection() {
    within(30, async {
        let backend = XmppBackend::start();
        let vestibule = door("xmpp", backend.addr(), "").start().await;
        let slipped = [
            "<iq type='set' id='1'/>",
            " <presence/>",
            "x",
            // TLS cannot begin before it was agreed on.
            "\u{16}\u{3}\u{1}",
            CLOSE,
        ];
        for (number, slipped) in slipped.iter().enumerate() {
            // In the same segment: there is no `<proceed/>`.
            let mut client = PlainTalk::connect(vestibule.addr()).await;
            client.say(open() + STARTTLS + slipped).await;
            let (said, _) = client.rest().await;
            assert!(said.ends_with(FEATURES), "{slipped}: {said}");
            let reason = [("reason", "injection"), ("phase", "opening")];
            vestibule
                .metric_becomes(
                    "vestibule_xmpp_streams_ended_total",
                    &reason,
                    number as u64 + 1,
                )
                .await;
        }
        // Behind `<proceed/>`, in place of a TLS record.
        let mut client = PlainTalk::connect(vestibule.addr()).await;
        client.proceed().await;
        client.say("\n<iq type='set' id='1'/>").await;
        assert_eq!(client.rest().await.0, "");
        let reason = [("reason", "injection"), ("phase", "handshake")];
        vestibule
            .metric_becomes("vestibule_xmpp_streams_ended_total", &reason, 1)
            .await;
        vestibule.is_idle().await;
        assert!(backend.calls().is_empty());
    })
    .await;
}

#[tokio::test]
async fn nothing_that_was_said_before_tls_reaches_the_backend() {
    within(30, async {
        let backend = XmppBackend::start();
        let vestibule = door("xmpp", backend.addr(), "").start().await;
        let mut client = PlainTalk::connect(vestibule.addr()).await;
        client
            .say(header(
                "to='chat.test' from='mallory@chat.test' xml:lang='tlh' version='1.0'",
            ))
            .await;
        client.until("</stream:features>").await;
        client.say(STARTTLS).await;
        client.hears(PROCEED).await;
        assert!(backend.calls().is_empty(), "a backend before TLS");
        let mut client = client.secure(&Offer::default()).await;
        client.say(open()).await;
        let answer = client.until("</stream:features>").await;
        assert!(!answer.contains("tlh"), "{answer}");
        client.end().await;
        let call = backend.ended(0).await;
        assert_eq!(call.clear, open());
        assert_eq!(call.ended, Some(End::Fin));
    })
    .await;
}

#[tokio::test]
async fn the_certificate_is_that_of_sni_and_without_it_that_of_the_stream() {
    within(30, async {
        let backend = XmppBackend::start();
        let other = pki().issue(Kind::Ecdsa, &["other.test"]);
        let vestibule = door("xmpp", backend.addr(), "")
            .cert(&pki().chat)
            .cert(&other)
            .start()
            .await;
        for (to, sni, expected) in [
            ("chat.test", None, "chat.test"),
            ("other.test", None, "other.test"),
            ("other.test", Some("other.test"), "other.test"),
            ("other.test", Some("chat.test"), "chat.test"),
        ] {
            let mut client = PlainTalk::connect(vestibule.addr()).await;
            client
                .say(header(&format!("to='{to}' version='1.0'")))
                .await;
            client.until("</stream:features>").await;
            client.say(STARTTLS).await;
            client.hears(PROCEED).await;
            let offer = Offer {
                sni: sni.is_some(),
                ..Offer::named(expected)
            };
            // The handshake verifies the name.
            client.secure(&offer).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_served_domain_without_a_certificate_gets_failure_where_names_are_strict() {
    within(30, async {
        let backend = XmppBackend::start();
        let file = format!(
            "[xmpp]\nprobe = false\n\
             [[listener]]\nlisten = 'xmpp://@0'\nupstream = 'chat'\ndomains = ['chat.test', 'bare.test']\n\
             [[upstream]]\nname = 'chat'\n[[upstream.backend]]\naddress = '{}'\n",
            backend.addr()
        );
        let vestibule = Setup::default()
            .file(&file)
            .args(&["--sni-strict"])
            .start()
            .await;
        let mut client = PlainTalk::connect(vestibule.addr()).await;
        client.say(header("to='bare.test' version='1.0'")).await;
        let (said, end) = client.rest().await;
        let failure = "<failure xmlns='urn:ietf:params:xml:ns:xmpp-tls'/></stream:stream>";
        assert!(said.ends_with(failure), "{said}");
        assert_eq!(attribute(&said, "from"), Some("bare.test"));
        assert_eq!(end, End::Fin);
        let reason = [("reason", "no_certificate"), ("domain", "bare.test")];
        vestibule
            .metric_becomes("vestibule_xmpp_streams_ended_total", &reason, 1)
            .await;
        Way::Starttls.connect(vestibule.addr()).await.login().await;
    })
    .await;
}

#[tokio::test]
async fn the_end_of_a_stream_is_answered_by_the_end_of_ours() {
    within(30, async {
        let backend = XmppBackend::start();
        let vestibule = door("xmpp", backend.addr(), "").start().await;
        let mut client = PlainTalk::connect(vestibule.addr()).await;
        client.say(open()).await;
        client.until("</stream:features>").await;
        client.say(CLOSE).await;
        assert_eq!(client.rest().await, (CLOSE.to_owned(), End::Fin));
        let reason = [("reason", "closed"), ("phase", "opening")];
        vestibule
            .metric_becomes("vestibule_xmpp_streams_ended_total", &reason, 1)
            .await;
    })
    .await;
}

#[tokio::test]
async fn each_phase_has_its_deadline() {
    within(60, async {
        let backend = XmppBackend::start();
        let timeouts = |which: &str| {
            door(
                "xmpp",
                backend.addr(),
                &format!("[timeouts]\n{which} = '400ms'\n"),
            )
        };

        let vestibule = timeouts("first_byte").start().await;
        let mut silent = PlainTalk::connect(vestibule.addr()).await;
        assert_eq!(silent.rest().await.0, "");
        vestibule
            .metric_becomes(
                "vestibule_sessions_ended_total",
                &[("outcome", "opening_failed")],
                1,
            )
            .await;

        let vestibule = timeouts("starttls").start().await;
        for said in [String::new(), "<stream:str".to_owned(), open()] {
            let mut client = PlainTalk::connect(vestibule.addr()).await;
            client.say(&said).await;
            // A stream that never began is not ours to answer before the first byte's own deadline.
            if said.is_empty() {
                continue;
            }
            assert_eq!(condition(&refusal(&mut client).await), "connection-timeout");
        }
        let reason = [("reason", "connection-timeout"), ("phase", "opening")];
        vestibule
            .metric_becomes("vestibule_xmpp_streams_ended_total", &reason, 2)
            .await;

        let vestibule = timeouts("handshake").start().await;
        for said in [&b""[..], b" ", b"\x16\x03\x01"] {
            let mut client = PlainTalk::connect(vestibule.addr()).await;
            client.proceed().await;
            client.say(said).await;
            // An alert in the clear may come; XML may not.
            let (bytes, _) = read_plain(&mut client.stream).await;
            assert!(!bytes.contains(&b'<'), "{bytes:?}");
        }
        let phase = [("phase", "handshake")];
        vestibule
            .metric_becomes("vestibule_xmpp_streams_ended_total", &phase, 3)
            .await;

        let vestibule = timeouts("authentication").start().await;
        for way in [String::new(), "<stream:str".to_owned(), open()] {
            let mut client = Way::Starttls.connect(vestibule.addr()).await;
            client.say(&way).await;
            let (said, end) = client.rest().await;
            assert_eq!(condition(&said), "connection-timeout");
            assert_eq!(said.matches("<stream:stream").count(), 1, "{said}");
            assert_eq!(end, End::CloseNotify);
        }
        let phase = [("phase", "authentication")];
        vestibule
            .metric_becomes("vestibule_xmpp_streams_ended_total", &phase, 3)
            .await;
        // One that is authenticated has no deadline any more.
        let mut client = Way::Starttls.connect(vestibule.addr()).await;
        client.login().await;
        tokio::time::sleep(Duration::from_millis(900)).await;
        client.say("<presence/>").await;
        client.hears("<presence/>").await;
        drop(client);
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn one_byte_and_silence_costs_no_cpu_and_ends_at_the_deadline() {
    within(60, async {
        let backend = XmppBackend::start();
        let vestibule = door(
            "auto",
            backend.addr(),
            "[timeouts]\nfirst_byte = '1500ms'\nstarttls = '1500ms'\nhandshake = '1500ms'\n",
        )
        .start()
        .await;
        let before = vestibule.cpu_ticks();
        let mut ends = JoinSet::new();
        for byte in [&b"<"[..], b" ", b"\x16", b"G"] {
            let mut client = PlainTalk::connect(vestibule.addr()).await;
            client.say(byte).await;
            ends.spawn(async move { read_plain(&mut client.stream).await });
        }
        ends.join_all().await;
        // A loop that spins would take 150 ticks for each.
        let spent = vestibule.cpu_ticks() - before;
        assert!(spent < 50, "{spent} ticks");
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn a_thousand_connections_silent_at_each_phase_are_all_gone() {
    within(240, async {
        let backend = XmppBackend::start();
        let vestibule = door(
            "xmpp",
            backend.addr(),
            "[timeouts]\nfirst_byte = '2s'\nstarttls = '3s'\nhandshake = '2s'\nauthentication = '2s'\n",
        )
        .args(&["--log-level", "warn"])
        .start()
        .await;
        let addr = vestibule.addr();
        for phase in 0..5 {
            let mut ends = JoinSet::new();
            for _ in 0..1000 {
                ends.spawn(async move {
                    let mut client = PlainTalk::connect(addr).await;
                    match phase {
                        0 => {}
                        1 => client.say("<").await,
                        2 => {
                            client.say(open()).await;
                        }
                        // A busy machine may be slower than a deadline: then the end comes where it does.
                        3 => {
                            client.say(open() + STARTTLS).await;
                        }
                        _ => {
                            client.say(open() + STARTTLS).await;
                            if !heard(&mut client, PROCEED).await {
                                return;
                            }
                            let Ok(secure) = Offer::default().over(client.stream).await else {
                                return;
                            };
                            let mut client = Talk::new(secure);
                            let _ = client.try_say(open()).await;
                            client.rest().await;
                            return;
                        }
                    }
                    client.rest().await;
                });
            }
            ends.join_all().await;
            vestibule.is_idle().await;
            let (_, page) = vestibule.get("/metrics").await;
            for line in page.lines().filter(|line| line.starts_with("vestibule_xmpp_streams{")) {
                assert!(line.ends_with(" 0"), "{phase}: {line}");
            }
        }
    })
    .await;
}

/// Whether these words come before the end.
async fn heard(client: &mut PlainTalk, words: &str) -> bool {
    let mut said = Vec::new();
    loop {
        match client.stream.read_buf(&mut said).await {
            Ok(0) | Err(_) => return false,
            Ok(_) if said.ends_with(words.as_bytes()) => return true,
            Ok(_) => {}
        }
    }
}

#[tokio::test]
async fn a_stream_over_the_limit_is_told_that_there_is_no_room() {
    within(30, async {
        let backend = XmppBackend::start();
        let vestibule = door("xmpp", backend.addr(), "")
            .args(&["--max-connections", "1"])
            .start()
            .await;
        let mut first = Way::Starttls.connect(vestibule.addr()).await;
        first.login().await;
        let mut second = tokio::net::TcpStream::connect(vestibule.addr())
            .await
            .expect("connect");
        let (said, end) = read_plain(&mut second).await;
        let said = String::from_utf8(said).expect("text");
        assert!(
            said.starts_with("<?xml version='1.0'?><stream:stream id='"),
            "{said}"
        );
        assert_eq!(condition(&said), "resource-constraint");
        assert!(said.ends_with(CLOSE), "{said}");
        assert_eq!(end, End::Fin);
        let refused = [("reason", "max_connections")];
        vestibule
            .metric_becomes("vestibule_refused_total", &refused, 1)
            .await;
    })
    .await;
}
