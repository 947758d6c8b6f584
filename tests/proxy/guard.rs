//! What a client may make its server parse: bounds and restricted XML until it is authenticated, told by stream errors that
//! stand only between two stanzas; nothing of that afterwards.

use crate::support::backend::RecordingBackend;
use crate::support::vestibule::Vestibule;
use crate::support::xmpp::{
    AUTH, BIND, CLOSE, MECHANISMS, PlainTalk, Play, SUCCESS, SecureTalk, Talk, Way, XmppBackend,
    answer, condition, door, open,
};
use crate::support::{End, within};

/// A client that has heard the features.
async fn greeted(way: Way, vestibule: &Vestibule) -> SecureTalk {
    let mut client = way.connect(vestibule.addr()).await;
    client.say(open()).await;
    client.until("</stream:features>").await;
    client
}

/// What is behind a fault and must never reach a server.
const BEHIND: &str = "<iq id='behind'/>";

#[tokio::test]
async fn each_bound_is_kept_until_the_login_and_told() {
    within(60, async {
        let long = "x".repeat(9 << 10);
        let element = format!("<iq><query>{}</query></iq>", "x".repeat(4 << 10));
        let faults = [
            (
                format!("<iq x='{long}'/>"),
                "policy-violation",
                "a long attribute",
            ),
            (
                format!("<iq {}='1'/>", &long),
                "policy-violation",
                "a long name",
            ),
            (
                format!("<iq x='{}", "x".repeat(1 << 20)),
                "policy-violation",
                "an attribute without end",
            ),
            (
                format!("<iq>{long}</iq>"),
                "policy-violation",
                "a long text",
            ),
            ("<iq/>".repeat(33), "policy-violation", "too many elements"),
            (
                format!("<iq>{}</iq>", "<a/>".repeat(33)),
                "policy-violation",
                "too many in one",
            ),
            ("<a>".repeat(8), "policy-violation", "too deep"),
            (element.repeat(16), "policy-violation", "too much in all"),
            (
                " ".repeat(70 << 10),
                "policy-violation",
                "too much white space",
            ),
            (
                format!("{CLOSE}{}", "x".repeat(70 << 10)),
                "policy-violation",
                "too much behind the end",
            ),
            ("<!-- -->".to_owned(), "restricted-xml", "a comment"),
            ("<!DOCTYPE a>".to_owned(), "restricted-xml", "a DTD"),
            ("<?php ?>".to_owned(), "restricted-xml", "an instruction"),
            ("<iq>&chat;</iq>".to_owned(), "restricted-xml", "an entity"),
            (
                "<iq><!-- --></iq>".to_owned(),
                "restricted-xml",
                "a comment within",
            ),
            (
                "<iq></presence>".to_owned(),
                "not-well-formed",
                "a wrong end",
            ),
            (
                "<iq x='1' x='2'/>".to_owned(),
                "not-well-formed",
                "an attribute twice",
            ),
        ];
        for way in Way::BOTH {
            let backend = XmppBackend::start();
            let vestibule = door(way.scheme(), backend.addr(), "").start().await;
            for (number, (fault, expected, what)) in faults.iter().enumerate() {
                let mut client = greeted(way, &vestibule).await;
                // It may be closed before it has said all of this.
                let _ = client.try_say(format!("{fault}{BEHIND}")).await;
                let (said, end) = client.rest().await;
                assert_eq!(condition(&said), *expected, "{what}");
                assert!(!said.contains("<stream:stream"), "{what}: a second header");
                assert_eq!(end, End::CloseNotify, "{what}");
                drop(client);
                let call = backend.ended(number).await;
                let passed = call.clear.strip_prefix(&open()).expect("the header");
                assert!(fault.starts_with(passed), "{what}: {passed}");
                assert!(passed.len() <= 64 << 10, "{what}: {} bytes", passed.len());
            }
            let reason = [("reason", "restricted-xml"), ("phase", "authentication")];
            vestibule
                .metric_becomes("vestibule_xmpp_streams_ended_total", &reason, 5)
                .await;
            vestibule.is_idle().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_fault_that_comes_with_the_header_never_reaches_a_server() {
    within(30, async {
        for way in Way::BOTH {
            let mut backend = RecordingBackend::start();
            let vestibule = door(way.scheme(), backend.addr(), "").start().await;
            for (fault, expected) in [
                ("<!-- -->".to_owned(), "restricted-xml"),
                ("<iq/>".repeat(33), "policy-violation"),
                ("</iq>".to_owned(), "not-well-formed"),
            ] {
                let mut client = way.connect(vestibule.addr()).await;
                client.say(open() + &fault).await;
                let (said, end) = client.rest().await;
                assert!(
                    said.starts_with("<?xml version='1.0'?><stream:stream "),
                    "{said}"
                );
                assert_eq!(condition(&said), expected);
                assert_eq!(end, End::CloseNotify);
            }
            vestibule.is_idle().await;
            assert!(backend.is_unused());
        }
    })
    .await;
}

#[tokio::test]
async fn after_the_login_nothing_is_bounded_and_nothing_is_changed() {
    within(60, async {
        let sasl2 = Play {
            success: "<success xmlns='urn:xmpp:sasl:2'><authorization-identifier>a@chat.test\
                </authorization-identifier></success>"
                .to_owned(),
            ..Play::default()
        };
        for way in Way::BOTH {
            for (play, restart) in [(Play::default(), true), (sasl2.clone(), false)] {
                let backend = XmppBackend::play(play.clone());
                let vestibule = door(way.scheme(), backend.addr(), "").start().await;
                let mut client = greeted(way, &vestibule).await;
                if restart {
                    client.say(AUTH).await;
                } else {
                    client
                        .say(
                            "<authenticate xmlns='urn:xmpp:sasl:2' mechanism='PLAIN'>\
                            <initial-response>AGEAYg==</initial-response></authenticate>",
                        )
                        .await;
                }
                client.hears(&play.success).await;
                if restart {
                    client.say(open()).await;
                    client.until("</stream:features>").await;
                }
                let stanza = format!(
                    "<message><body>{}</body>{}<!-- &chat; --><![CDATA[<]]></message>",
                    "0123456789abcdef".repeat(1 << 16),
                    "<a><b/></a>".repeat(1000),
                );
                let heard = client.exchange(&stanza).await;
                assert!(heard == stanza, "{} of {} bytes", heard.len(), stanza.len());
            }
        }
    })
    .await;
}

#[tokio::test]
async fn only_the_servers_own_success_lifts_the_bounds() {
    within(30, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door("xmpps", backend.addr(), "").start().await;
        let too_long = format!("<message>{}</message>", "x".repeat(9 << 10));
        for (by_client, by_server) in [
            (
                SUCCESS,
                "<challenge xmlns='urn:ietf:params:xml:ns:xmpp-sasl'/>",
            ),
            (
                "<auth xmlns='urn:ietf:params:xml:ns:xmpp-sasl'/>",
                "<message><success xmlns='urn:ietf:params:xml:ns:xmpp-sasl'/></message>",
            ),
            (
                "<auth xmlns='urn:ietf:params:xml:ns:xmpp-sasl'/>",
                "<success xmlns='urn:other'/>",
            ),
        ] {
            let mut client = Way::Direct.connect(vestibule.addr()).await;
            client.say(open()).await;
            let mut server = Talk::new(backend.accept().await);
            server.hears(open()).await;
            server.say(answer(MECHANISMS)).await;
            client.until("</stream:features>").await;
            client.say(by_client).await;
            server.hears(by_client).await;
            server.say(by_server).await;
            client.hears(by_server).await;
            let _ = client.try_say(&too_long).await;
            assert_eq!(condition(&client.rest().await.0), "policy-violation");
        }
    })
    .await;
}

#[tokio::test]
async fn a_server_that_cannot_be_followed_lifts_no_bounds() {
    within(30, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door("xmpps", backend.addr(), "").start().await;
        // Servers repeat what they are asked, and escaped it is six times as long.
        let asked = format!("<iq id='{}'/>", "\"".repeat(8_000));
        for answered in [
            format!("<iq id='{}' type='error'/>", "&quot;".repeat(8_000)),
            "<!-- -->".to_owned(),
            "no XML".to_owned(),
        ] {
            let mut client = Way::Direct.connect(vestibule.addr()).await;
            client.say(open()).await;
            let mut server = Talk::new(backend.accept().await);
            server.hears(open()).await;
            server.say(answer(MECHANISMS)).await;
            client.until("</stream:features>").await;
            client.say(&asked).await;
            server.hears(&asked).await;
            server.say(&answered).await;
            client.hears(&answered).await;
            let _ = client.try_say("<iq/>".repeat(33)).await;
            let (said, end) = client.rest().await;
            assert_eq!(end, End::CloseNotify);
            if !answered.starts_with("no") {
                assert_eq!(condition(&said), "policy-violation");
            }
        }
        let reason = [("reason", "policy-violation"), ("phase", "authentication")];
        vestibule
            .metric_becomes("vestibule_xmpp_streams_ended_total", &reason, 3)
            .await;
    })
    .await;
}

#[tokio::test]
async fn a_success_in_single_bytes_is_seen() {
    within(30, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door("xmpps", backend.addr(), "").start().await;
        let (mut client, mut server) = authenticating(&vestibule, &mut backend).await;
        for byte in SUCCESS.as_bytes() {
            server.say([*byte]).await;
            client.hears([*byte]).await;
        }
        let phase = [("phase", "established")];
        vestibule
            .metric_becomes("vestibule_xmpp_streams", &phase, 1)
            .await;
        let long = open() + &format!("<message>{}</message>", "x".repeat(100_000));
        let ((), ()) = tokio::join!(client.say(&long), server.hears(&long));
    })
    .await;
}

/// A client, and its server played by the test, up to `<auth/>`.
async fn authenticating(
    vestibule: &Vestibule,
    backend: &mut RecordingBackend,
) -> (SecureTalk, PlainTalk) {
    let mut client = Way::Direct.connect(vestibule.addr()).await;
    client.say(open()).await;
    let mut server = Talk::new(backend.accept().await);
    server.hears(open()).await;
    server.say(answer(MECHANISMS)).await;
    client.until("</stream:features>").await;
    client.say(AUTH).await;
    server.hears(AUTH).await;
    (client, server)
}

#[tokio::test]
async fn without_a_guard_everything_passes_but_the_header_is_still_read() {
    within(30, async {
        let backend = XmppBackend::start();
        let vestibule = door("xmpps", backend.addr(), "guard = false\n")
            .start()
            .await;
        let mut client = greeted(Way::Direct, &vestibule).await;
        let all = format!(
            "<!-- -->{}<iq>{}</iq>{}{AUTH}",
            "<iq/>".repeat(100),
            "x".repeat(100_000),
            "<a>".repeat(50)
        );
        client.say(&all).await;
        client.until(SUCCESS).await;
        client.end().await;
        assert_eq!(backend.ended(0).await.clear, open() + &all);
        let mut client = Way::Direct.connect(vestibule.addr()).await;
        client.say("<html>").await;
        assert_eq!(condition(&client.rest().await.0), "invalid-namespace");
    })
    .await;
}

#[tokio::test]
async fn an_element_of_an_authenticated_client_has_a_cap_where_one_is_set() {
    within(30, async {
        for way in Way::BOTH {
            let backend = XmppBackend::start();
            let vestibule = door(way.scheme(), backend.addr(), "element_size = 10000\n")
                .start()
                .await;
            let mut client = way.connect(vestibule.addr()).await;
            client.login().await;
            // Each for itself is short enough, and `>` in a value ends nothing.
            let short = format!("<message x='>'>{}</message>\n", "x".repeat(9_000));
            for _ in 0..5 {
                assert_eq!(client.exchange(&short).await, short);
            }
            let long = format!("<message>{}</message>{BEHIND}", "x".repeat(10_000));
            let _ = client.try_say(&long).await;
            let (said, end) = client.rest().await;
            let (echoed, _) = said.split_once("<stream:error").unwrap_or((&said, ""));
            assert!(long.starts_with(echoed), "{echoed}");
            assert_eq!(condition(&said), "policy-violation");
            assert_eq!(end, End::CloseNotify);
            drop(client);
            let call = backend.ended(0).await;
            assert!(!call.clear.contains(BEHIND));
            let reason = [("reason", "policy-violation"), ("phase", "established")];
            vestibule
                .metric_becomes("vestibule_xmpp_streams_ended_total", &reason, 1)
                .await;
            vestibule.is_idle().await;
        }
    })
    .await;
}

#[tokio::test]
async fn that_cap_is_not_escaped_by_what_is_no_element() {
    within(30, async {
        let backend = XmppBackend::start();
        let vestibule = door("xmpps", backend.addr(), "element_size = 10000\n")
            .start()
            .await;
        let long = format!("<message>{}</message>{BEHIND}", "x".repeat(10_000));
        // Servers overlook text between two elements.
        let mut client = Way::Direct.connect(vestibule.addr()).await;
        client.login().await;
        let _ = client.try_say(format!("<iq/>x{long}")).await;
        assert_eq!(condition(&client.rest().await.0), "bad-format");
        drop(client);
        assert!(!backend.ended(0).await.clear.contains(BEHIND));
        // Nor is it misjudged where a header does not wait for the login.
        let mut backend = RecordingBackend::start();
        let vestibule = door("xmpps", backend.addr(), "element_size = 10000\n")
            .start()
            .await;
        let (mut client, mut server) = authenticating(&vestibule, &mut backend).await;
        let open = &open()[21..];
        let (early, late) = open.split_at(30);
        client.say(early).await;
        server.hears(early).await;
        server.say(SUCCESS).await;
        client.hears(SUCCESS).await;
        let short = format!("<message>{}</message>", "x".repeat(6_000));
        let short = format!("{late}{}", short.repeat(5));
        client.say(&short).await;
        server.hears(&short).await;
        let _ = client.try_say(&long).await;
        assert_eq!(client.rest().await.1, End::CloseNotify);
        let reason = [("reason", "policy-violation"), ("phase", "established")];
        vestibule
            .metric_becomes("vestibule_xmpp_streams_ended_total", &reason, 1)
            .await;
    })
    .await;
}

#[tokio::test]
async fn in_the_middle_of_what_the_server_says_the_end_comes_without_words() {
    within(30, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door("xmpps", backend.addr(), "element_size = 10000\n")
            .start()
            .await;
        let too_long = format!("<message>{}</message>", "x".repeat(11_000));

        // Before the login.
        let (mut client, mut server) = authenticating(&vestibule, &mut backend).await;
        server
            .say("<challenge xmlns='urn:ietf:params:xml:ns:xmpp-sasl'>YW")
            .await;
        client.until("YW").await;
        let _ = client.try_say(&too_long).await;
        assert_eq!(client.rest().await, (String::new(), End::CloseNotify));
        drop((client, server));

        // After it; what the server still says of its stanza within a moment is waited for.
        for (finishes, words) in [(false, ""), (true, "</body></message>")] {
            let (mut client, mut server) = authenticating(&vestibule, &mut backend).await;
            server.say(SUCCESS).await;
            client.hears(SUCCESS).await;
            client.say(open()).await;
            server.hears(open()).await;
            server.say(answer(BIND)).await;
            client.until("</stream:features>").await;
            server.say("<message><body x='/>'>half a").await;
            client.until("half a").await;
            let _ = client.try_say(&too_long).await;
            server.say(words).await;
            let (said, end) = client.rest().await;
            assert_eq!(end, End::CloseNotify);
            if finishes {
                assert!(said.starts_with(words), "{said}");
                assert_eq!(condition(&said), "policy-violation");
            } else {
                assert_eq!(said, "");
            }
        }
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn that_cap_needs_no_guard_and_no_declaration() {
    within(30, async {
        // SASL2 does not begin a stream anew.
        let sasl2 = Play {
            success: "<success xmlns='urn:xmpp:sasl:2'/>".to_owned(),
            ..Play::default()
        };
        let bare = open()[21..].to_owned();
        for guard in [true, false] {
            for (play, anew) in [(Play::default(), true), (sasl2.clone(), false)] {
                let backend = XmppBackend::play(play.clone());
                let settings = format!("guard = {guard}\nelement_size = 10000\n");
                let vestibule = door("xmpps", backend.addr(), &settings).start().await;
                let mut client = Way::Direct.connect(vestibule.addr()).await;
                client.say(&bare).await;
                client.until("</stream:features>").await;
                client.say(AUTH).await;
                client.hears(&play.success).await;
                if anew {
                    client.say(&bare).await;
                    client.until("</stream:features>").await;
                }
                let short = format!("<message>{}</message>", "x".repeat(6_000));
                for _ in 0..5 {
                    assert_eq!(client.exchange(&short).await, short);
                }
                let long = format!("<message>{}</message>", "x".repeat(10_000));
                let _ = client.try_say(&long).await;
                assert_eq!(condition(&client.rest().await.0), "policy-violation");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_second_try_at_the_login_is_as_good_as_the_first() {
    within(30, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door("xmpps", backend.addr(), "").start().await;
        let (mut client, mut server) = authenticating(&vestibule, &mut backend).await;
        let failure =
            "<failure xmlns='urn:ietf:params:xml:ns:xmpp-sasl'><not-authorized/></failure>";
        server.say(failure).await;
        client.hears(failure).await;
        client.say(AUTH).await;
        server.hears(AUTH).await;
        server.say(SUCCESS).await;
        client.hears(SUCCESS).await;
        let long = open() + &format!("<message>{}</message>", "x".repeat(100_000));
        let ((), ()) = tokio::join!(client.say(&long), server.hears(&long));
    })
    .await;
}
