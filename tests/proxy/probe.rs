//! What is found out about a server at start, before the first client finds it.

use crate::support::ports;
use crate::support::vestibule::Setup;
use crate::support::xmpp::{CLOSE, DEMAND, MECHANISMS, OFFER, Play, Way, XmppBackend};

use crate::support::within;

/// A door for one domain in front of this server, with these settings of `[xmpp]`.
fn asking(backend: impl ToString, settings: &str) -> Setup {
    Setup::default().file(&format!(
        "[xmpp]\n{settings}\n\
         [[listener]]\nlisten = 'xmpps://@0'\nupstream = 'chat'\ndomains = ['chat.test']\n\
         [[upstream]]\nname = 'chat'\n[[upstream.backend]]\naddress = '{}'\n",
        backend.to_string()
    ))
}

#[tokio::test]
async fn a_server_is_asked_once_as_a_client_would_and_left_in_order() {
    within(30, async {
        for version in ["off", "v1", "v2"] {
            let backend = XmppBackend::start();
            let vestibule = asking(backend.addr(), "")
                .args(&["--proxy-protocol", version])
                .start()
                .await;
            let call = backend.ended(0).await;
            assert!(
                call.clear
                    .starts_with("<?xml version='1.0'?><stream:stream to='chat.test'"),
                "{}",
                call.clear
            );
            assert!(call.clear.ends_with(CLOSE), "{}", call.clear);
            // ejabberd accepts nobody while it waits for the header: all comes at once.
            assert!(call.first_read.ends_with(b">"), "{:?}", call.first_read);
            match version {
                "off" => assert!(call.proxy.is_empty()),
                "v1" => assert!(call.proxy.starts_with(b"PROXY TCP4 127.0.0.1 ")),
                _ => assert_eq!(call.proxy[12], 0x21, "PROXY and never LOCAL"),
            }
            let said = vestibule.said();
            assert!(!said.contains("the backend"), "{said}");
            Way::Direct.connect(vestibule.addr()).await.login().await;
            assert_eq!(backend.calls().len(), 2);
        }
    })
    .await;
}

#[tokio::test]
async fn what_would_keep_clients_out_is_told_at_start() {
    within(60, async {
        let error = |condition: &str, text: &str| Play {
            error: Some(format!(
                "<stream:error><{condition} xmlns='urn:ietf:params:xml:ns:xmpp-streams'/>\
                 <text xmlns='urn:ietf:params:xml:ns:xmpp-streams'>{text}</text></stream:error>{CLOSE}"
            )),
            ..Play::default()
        };
        let limits = "<limits xmlns='urn:xmpp:stream-limits:0'><max-bytes>262144</max-bytes></limits>";
        let plus = MECHANISMS.replace("PLAIN", "SCRAM-SHA-256-PLUS");
        for (play, expected) in [
            (Play::offering(&format!("{DEMAND}{MECHANISMS}")), "starttls_required off this listener"),
            (
                error("undefined-condition", "No stream features to proceed with"),
                "c2s_require_encryption = false",
            ),
            (error("host-unknown", "who?"), "does it serve this domain?"),
            (Play::offering(""), "it offers no way to log in"),
            (Play::offering(&format!("{OFFER}{MECHANISMS}")), "the offer is taken out"),
            (Play::offering(&plus), "channel binding"),
            (
                Play::offering(&format!("{MECHANISMS}{limits}")),
                "elements of 262144 bytes, but xmpp.element_size lets 10000 through",
            ),
        ] {
            let backend = XmppBackend::play(play);
            let vestibule = asking(backend.addr(), "element_size = 10000").start().await;
            vestibule.says(expected).await;
            vestibule.says("backend=").await;
        }
    })
    .await;
}

#[tokio::test]
async fn nobody_is_asked_where_the_settings_say_so_and_a_server_that_is_down_later() {
    within(30, async {
        let backend = XmppBackend::start();
        let vestibule = asking(backend.addr(), "probe = false").start().await;
        Way::Direct.connect(vestibule.addr()).await.login().await;
        assert_eq!(backend.calls().len(), 1);
        let vestibule = asking(ports::free(), "").start().await;
        vestibule
            .says("the backend does not answer yet, it is asked again")
            .await;
    })
    .await;
}
