//! Streams in numbers and in the access log: phases that rise and fall, reasons, domains, and the id that a backend was told.

use std::time::Duration;

use crate::support::certs::{Kind, fresh_path, pki};
use crate::support::client::Offer;
use crate::support::vestibule::{Setup, Vestibule};
use crate::support::xmpp::{
    AUTH, CLOSE, MECHANISMS, PlainTalk, Talk, Way, XmppBackend, answer, door, header, open,
};
use crate::support::{connect, reset, within};

const STREAMS: &str = "vestibule_xmpp_streams";
const ENDED: &str = "vestibule_xmpp_streams_ended_total";

async fn phase_becomes(vestibule: &Vestibule, phase: &str, count: u64) {
    vestibule
        .metric_becomes(STREAMS, &[("phase", phase)], count)
        .await;
}

#[tokio::test]
async fn a_stream_is_in_one_phase_at_a_time() {
    within(30, async {
        let backend = XmppBackend::start();
        let vestibule = door("xmpp", backend.addr(), "").start().await;
        let mut client = PlainTalk::connect(vestibule.addr()).await;
        client.say("<").await;
        phase_becomes(&vestibule, "opening", 1).await;
        client.say(&open()[1..]).await;
        client.until("</stream:features>").await;
        phase_becomes(&vestibule, "opening", 1).await;
        client.say(crate::support::xmpp::STARTTLS).await;
        client.until(crate::support::xmpp::PROCEED).await;
        phase_becomes(&vestibule, "handshake", 1).await;
        phase_becomes(&vestibule, "opening", 0).await;
        let mut client = client.secure(&Offer::default()).await;
        phase_becomes(&vestibule, "authentication", 1).await;
        client.say(open()).await;
        client.until("</stream:features>").await;
        assert_eq!(vestibule.metric(STREAMS, &[]).await, 1);
        client.say(AUTH).await;
        phase_becomes(&vestibule, "established", 1).await;
        assert_eq!(vestibule.metric(STREAMS, &[]).await, 1);
        client.end().await;
        client.rest().await;
        vestibule.metric_becomes(STREAMS, &[], 0).await;
        let end = [("phase", "established"), ("reason", "closed")];
        vestibule.metric_becomes(ENDED, &end, 1).await;
        assert_eq!(vestibule.metric(ENDED, &[]).await, 1);
    })
    .await;
}

#[tokio::test]
async fn however_a_stream_ends_it_is_counted_once_and_its_phase_is_left() {
    within(60, async {
        let backend = XmppBackend::start();
        let vestibule = door(
            "xmpp",
            backend.addr(),
            "[timeouts]\nstarttls = '1s'\nhandshake = '1s'\nauthentication = '1s'\nhalf_closed = '1s'\n",
        )
        .start()
        .await;
        let addr = vestibule.addr();
        let mut count = 0;
        let mut ends = async |phase: &str, reason: &str| {
            let end = [("phase", phase), ("reason", reason)];
            vestibule.metric_becomes(ENDED, &end, 1).await;
            vestibule.metric_becomes(STREAMS, &[], 0).await;
            count += 1;
            assert_eq!(vestibule.metric(ENDED, &[]).await, count, "{phase} {reason}");
        };

        let mut client = PlainTalk::connect(addr).await;
        client.say(open()).await;
        client.until("</stream:features>").await;
        client.end().await;
        client.rest().await;
        ends("opening", "closed").await;

        let mut client = PlainTalk::connect(addr).await;
        client.say(open()).await;
        client.rest().await;
        ends("opening", "connection-timeout").await;

        let mut client = PlainTalk::connect(addr).await;
        client.say(open()).await;
        client.until("</stream:features>").await;
        reset(client.stream);
        ends("opening", "client_gone").await;

        let mut client = PlainTalk::connect(addr).await;
        client.proceed().await;
        client.say("\u{16}garbage that is no record of TLS").await;
        client.rest().await;
        ends("handshake", "handshake_failed").await;

        let mut client = Way::Starttls.connect(addr).await;
        client.end().await;
        client.rest().await;
        ends("authentication", "silent").await;

        let mut client = Way::Starttls.connect(addr).await;
        client.say("<a/>").await;
        client.rest().await;
        ends("authentication", "invalid-namespace").await;

        let mut client = Way::Starttls.connect(addr).await;
        client.say(open()).await;
        client.rest().await;
        ends("authentication", "authentication_timeout").await;

        let mut client = Way::Starttls.connect(addr).await;
        client.login().await;
        reset(client.stream.into_inner().0);
        ends("established", "client_gone").await;

        let mut client = Way::Starttls.connect(addr).await;
        client.login().await;
        tokio::io::AsyncWriteExt::shutdown(client.stream.get_mut().0)
            .await
            .unwrap();
        client.rest().await;
        ends("established", "truncated").await;
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn only_configured_domains_are_labels() {
    within(30, async {
        let backend = XmppBackend::start();
        let file = format!(
            "[xmpp]\nprobe = false\n\
             [[listener]]\nlisten = 'xmpp://@0'\nupstream = 'a'\ndomains = ['chat.test', '*.rooms.test']\n\
             [[upstream]]\nname = 'a'\n[[upstream.backend]]\naddress = '{}'\n",
            backend.addr()
        );
        let cert = pki().issue(Kind::Ecdsa, &["chat.test", "*.rooms.test"]);
        let vestibule = Setup::default().cert(&cert).file(&file).start().await;
        let mut held = Vec::new();
        for host in ["chat.test", "a.rooms.test", "b.rooms.test"] {
            let mut client = PlainTalk::connect(vestibule.addr()).await;
            client.say(header(&format!("to='{host}' version='1.0'"))).await;
            client.until("</stream:features>").await;
            held.push(client);
        }
        let mut strange = PlainTalk::connect(vestibule.addr()).await;
        strange.say(header("to='stranger.test' version='1.0'")).await;
        strange.rest().await;
        vestibule
            .metric_becomes(STREAMS, &[("domain", "chat.test")], 1)
            .await;
        vestibule
            .metric_becomes(STREAMS, &[("domain", "*.rooms.test")], 2)
            .await;
        vestibule
            .metric_becomes(ENDED, &[("reason", "host-unknown")], 1)
            .await;
        let (_, page) = vestibule.get("/metrics").await;
        assert!(!page.contains("stranger"), "a stranger's word is a label");
        assert!(!page.contains("a.rooms.test"), "a stranger's word is a label");
        drop(held);
        vestibule.metric_becomes(STREAMS, &[], 0).await;
    })
    .await;
}

#[tokio::test]
async fn the_access_line_has_the_domain_and_the_id_that_the_backend_was_told() {
    within(30, async {
        let backend = XmppBackend::start();
        let path = fresh_path("access.log");
        let vestibule = door("xmpp", backend.addr(), "")
            .args(&["--proxy-protocol", "v2", "--log-format", "json"])
            .args(&["--access-log", &path.display().to_string()])
            .start()
            .await;
        // Numbers before it, so that the id is none that a fault would hit by chance.
        for _ in 0..3 {
            drop(connect(vestibule.addr()).await);
        }
        let nameless = Offer {
            sni: false,
            ..Offer::default()
        };
        let mut client = Way::Starttls.connect_as(vestibule.addr(), &nameless).await;
        client.login().await;
        client.end().await;
        client.rest().await;
        let mut refused = PlainTalk::connect(vestibule.addr()).await;
        refused
            .say(header("to='stranger\u{e9}.test' version='1.0'"))
            .await;
        refused.rest().await;
        vestibule.is_idle().await;

        let header = backend.call().proxy;
        let at = header
            .windows(2)
            .position(|piece| piece == [5, 0])
            .expect("UNIQUE_ID");
        let len = usize::from(header[at + 2]);
        let id = std::str::from_utf8(&header[at + 3..at + 3 + len]).unwrap();
        let line = async |what: &str| loop {
            let log = std::fs::read_to_string(&path).unwrap();
            if let Some(line) = log.lines().find(|line| line.contains(what)) {
                return line.to_owned();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        let stream = line("\"outcome\":\"closed\"}").await;
        for part in [
            &format!("\"id\":{id},")[..],
            "\"domain\":\"chat.test\"",
            "\"sni\":null",
            "\"tls\":\"TLSv1.3\"",
            &format!("\"backend\":\"{}\"", backend.addr()),
        ] {
            assert!(stream.contains(part), "{part} is not in {stream}");
        }
        let up = open().len() * 2 + AUTH.len();
        assert!(stream.contains(&format!("\"bytes_up\":{up},")), "{stream}");
        let refused = line("host-unknown").await;
        assert!(refused.contains("\"backend\":null"), "{refused}");
        // Whom a client has asked for in vain is what an operator looks for.
        assert!(
            refused.contains("\"domain\":\"stranger\u{e9}.test\""),
            "{refused}"
        );
    })
    .await;
}

#[tokio::test]
async fn bytes_of_a_stream_are_counted_from_its_first() {
    within(30, async {
        let mut backend = crate::support::backend::RecordingBackend::start();
        let vestibule = door("xmpps", backend.addr(), "").start().await;
        let mut client = Way::Direct.connect(vestibule.addr()).await;
        client.say(open()).await;
        let mut server = Talk::new(backend.accept().await);
        server.hears(open()).await;
        let said = answer(MECHANISMS);
        server.say(&said).await;
        client.hears(&said).await;
        client.say(CLOSE).await;
        server.hears(CLOSE).await;
        server.say(CLOSE).await;
        client.hears(CLOSE).await;
        let bytes = "vestibule_bytes_total";
        let up = (open().len() + CLOSE.len()) as u64;
        let down = (said.len() + CLOSE.len()) as u64;
        vestibule
            .metric_becomes(bytes, &[("direction", "up")], up)
            .await;
        vestibule
            .metric_becomes(bytes, &[("direction", "down")], down)
            .await;
    })
    .await;
}

#[tokio::test]
async fn what_is_passed_through_has_a_phase_of_its_own() {
    within(30, async {
        let backend = XmppBackend::start();
        let vestibule = door("xmpp-server", backend.addr(), "").start().await;
        let first = open().replace("jabber:client", "jabber:server");
        let mut client = PlainTalk::connect(vestibule.addr()).await;
        client.say(&first).await;
        client.until("</stream:features>").await;
        phase_becomes(&vestibule, "passed", 1).await;
        assert_eq!(vestibule.metric(STREAMS, &[]).await, 1);
        client.end().await;
        client.rest().await;
        vestibule.metric_becomes(STREAMS, &[], 0).await;
        let end = [("phase", "passed"), ("reason", "closed")];
        vestibule.metric_becomes(ENDED, &end, 1).await;
    })
    .await;
}
