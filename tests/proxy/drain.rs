//! A drain as live streams see it: each is ended in its turn and as the settings say, and none is ended for good.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::support::backend::RecordingBackend;
use crate::support::xmpp::{
    MECHANISMS, PlainTalk, Talk, Way, XmppBackend, answer, condition, door, logged_in, open,
};
use crate::support::{End, connect, within};

#[tokio::test]
async fn a_drain_ends_streams_without_a_word_so_that_they_can_be_resumed() {
    within(60, async {
        for way in Way::BOTH {
            let mut backend = RecordingBackend::start();
            let mut vestibule = door(way.scheme(), backend.addr(), "")
                .args(&["--drain-timeout", "2s"])
                .start()
                .await;
            let (mut client, mut server) = logged_in(way, &vestibule, &mut backend).await;
            // Also in the middle of a stanza, in either direction.
            let (mut busy, mut busy_server) = logged_in(way, &vestibule, &mut backend).await;
            busy.say("<message>up").await;
            busy_server.hears("<message>up").await;
            busy_server.say("<message>down").await;
            busy.hears("<message>down").await;
            vestibule.terminate();
            let (said, end) = client.rest().await;
            assert_eq!((said.as_str(), end), ("", End::CloseNotify));
            let (said, end) = server.rest().await;
            assert_eq!((said.as_str(), end), ("", End::Fin));
            let (said, end) = busy.rest().await;
            assert_eq!((said.as_str(), end), ("", End::CloseNotify));
            let (said, end) = busy_server.rest().await;
            assert_eq!((said.as_str(), end), ("", End::Fin));
            drop((client, server, busy, busy_server));
            assert_eq!(vestibule.ended().await.code(), Some(0));
        }
    })
    .await;
}

#[tokio::test]
async fn a_drain_tells_what_the_settings_say_between_two_stanzas() {
    within(60, async {
        for (setting, expected, content) in [
            ("system-shutdown", "system-shutdown", "/>"),
            (
                "see-other-host=next.test:5222",
                "see-other-host",
                ">next.test:5222</see-other-host>",
            ),
        ] {
            for way in Way::BOTH {
                let mut backend = RecordingBackend::start();
                let settings = format!("on_drain = '{setting}'\n");
                let mut vestibule = door(way.scheme(), backend.addr(), &settings)
                    .args(&["--drain-timeout", "3s"])
                    .start()
                    .await;
                let (mut client, mut server) = logged_in(way, &vestibule, &mut backend).await;
                let (mut stuck, mut stuck_server) = logged_in(way, &vestibule, &mut backend).await;
                stuck_server.say("<message><body>half a").await;
                stuck.until("half a").await;
                // Not authenticated: a word of ours would be no news of use.
                let mut young = way.connect(vestibule.addr()).await;
                young.say(open()).await;
                let mut young_server = Talk::new(backend.accept().await);
                young_server.say(answer(MECHANISMS)).await;
                young.until("</stream:features>").await;
                vestibule.terminate();
                let (said, end) = client.rest().await;
                assert_eq!(condition(&said), expected);
                let tail = format!("{content}</stream:error></stream:stream>");
                assert!(said.ends_with(&tail), "{said}");
                assert_eq!(end, End::CloseNotify);
                let (said, end) = server.rest().await;
                assert_eq!((said.as_str(), end), ("", End::Fin));
                let (said, end) = stuck.rest().await;
                assert_eq!((said.as_str(), end), ("", End::CloseNotify));
                let (said, end) = stuck_server.rest().await;
                assert_eq!((said.as_str(), end), ("", End::Fin));
                let (said, end) = young.rest().await;
                assert_eq!((said.as_str(), end), ("", End::CloseNotify));
                drop((client, server, stuck, stuck_server, young, young_server));
                assert_eq!(vestibule.ended().await.code(), Some(0));
            }
        }
    })
    .await;
}

#[tokio::test]
async fn streams_are_ended_over_the_whole_time_of_a_drain() {
    within(60, async {
        const STREAMS: usize = 50;
        const TENTHS: usize = 10;
        let limit = Duration::from_secs(2);
        let backend = XmppBackend::start();
        let mut vestibule = door("xmpps", backend.addr(), "")
            .args(&["--drain-timeout", "2s"])
            .start()
            .await;
        let mut clients = Vec::new();
        for _ in 0..STREAMS {
            let mut client = Way::Direct.connect(vestibule.addr()).await;
            client.login().await;
            clients.push(client);
        }
        vestibule.terminate();
        let began = Instant::now();
        let mut ends = JoinSet::new();
        for mut client in clients {
            ends.spawn(async move {
                let (said, end) = client.rest().await;
                assert_eq!((said.as_str(), end), ("", End::CloseNotify));
                began.elapsed()
            });
        }
        let mut by_tenth = [0; TENTHS];
        for after in ends.join_all().await {
            let tenth = after.as_millis() * TENTHS as u128 / limit.as_millis();
            by_tenth[(tenth as usize).min(TENTHS - 1)] += 1;
        }
        let most = by_tenth.iter().max().unwrap();
        let used = by_tenth.iter().filter(|count| **count > 0).count();
        assert!(*most <= STREAMS / 3 && used >= 6, "{by_tenth:?}");
        assert_eq!(vestibule.ended().await.code(), Some(0));
        for call in backend.calls() {
            assert!(!call.clear.contains("</stream"), "{}", call.clear);
        }
    })
    .await;
}

#[tokio::test]
async fn a_drain_without_streams_ends_at_once_and_one_with_them_goes_on_serving_them() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let mut vestibule = door("xmpps", backend.addr(), "")
            .args(&["--drain-timeout", "0"])
            .start()
            .await;
        let (mut client, mut server) = logged_in(Way::Direct, &vestibule, &mut backend).await;
        vestibule.terminate();
        vestibule.metric_becomes("vestibule_ready", &[], 0).await;
        // Without a limit they have as long as they like.
        client.say("<presence/>").await;
        server.hears("<presence/>").await;
        server.say("<presence/>").await;
        client.hears("<presence/>").await;
        client.end().await;
        server.end().await;
        drop((client, server));
        assert_eq!(vestibule.ended().await.code(), Some(0));

        let mut vestibule = door("xmpps", backend.addr(), "").start().await;
        vestibule.terminate();
        assert_eq!(vestibule.ended().await.code(), Some(0));
    })
    .await;
}

#[tokio::test]
async fn what_has_not_become_a_stream_does_not_hold_up_a_drain() {
    within(60, async {
        let backend = XmppBackend::start();
        let mut vestibule = door("xmpp", backend.addr(), "")
            .args(&["--drain-timeout", "1s"])
            .start()
            .await;
        let _silent = connect(vestibule.addr()).await;
        let mut opened = PlainTalk::connect(vestibule.addr()).await;
        opened.say(open()).await;
        opened.until("</stream:features>").await;
        let mut agreed = PlainTalk::connect(vestibule.addr()).await;
        agreed.proceed().await;
        let mut nameless = Way::Starttls.connect(vestibule.addr()).await;
        nameless.say("<?xml version='1.0'?>").await;
        vestibule
            .metric_becomes("vestibule_connections", &[], 4)
            .await;
        vestibule.terminate();
        assert_eq!(vestibule.ended().await.code(), Some(0));
    })
    .await;
}

/// A connection that is lost takes nothing with it: the server sees the end of TCP alone, and the next connection resumes.
#[tokio::test]
async fn a_session_is_resumed_through_the_next_door_after_the_first_was_killed() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let vestibule = door("xmpps", backend.addr(), "").start().await;
        let (mut client, mut server) = logged_in(Way::Direct, &vestibule, &mut backend).await;
        client
            .say("<enable xmlns='urn:xmpp:sm:3' resume='true'/>")
            .await;
        server.until("resume='true'/>").await;
        server
            .say("<enabled xmlns='urn:xmpp:sm:3' id='s1' resume='true'/>")
            .await;
        client.until("id='s1' resume='true'/>").await;
        drop(vestibule);
        let (said, _) = server.rest().await;
        assert_eq!(said, "");
        let _ = client.rest().await;

        let vestibule = door("xmpps", backend.addr(), "").start().await;
        let (mut client, mut server) = logged_in(Way::Direct, &vestibule, &mut backend).await;
        client
            .say("<resume xmlns='urn:xmpp:sm:3' previd='s1' h='0'/>")
            .await;
        server.until("previd='s1' h='0'/>").await;
        server
            .say("<resumed xmlns='urn:xmpp:sm:3' previd='s1' h='0'/>")
            .await;
        client
            .hears("<resumed xmlns='urn:xmpp:sm:3' previd='s1' h='0'/>")
            .await;
    })
    .await;
}

#[tokio::test]
async fn also_the_last_stream_of_a_drain_is_ended_in_order() {
    within(60, async {
        let mut backend = RecordingBackend::start();
        let mut vestibule = door("xmpps", backend.addr(), "on_drain = 'system-shutdown'\n")
            .args(&["--drain-timeout", "3s"])
            .start()
            .await;
        let mut pairs = Vec::new();
        for _ in 0..12 {
            let (mut client, mut server) = logged_in(Way::Direct, &vestibule, &mut backend).await;
            server.say("<message>half a").await;
            client.until("half a").await;
            pairs.push((client, server));
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
