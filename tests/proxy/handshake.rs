//! What is agreed on: version, suite, certificate, protocol; and the alert where there is nothing to agree on.

use rustls::ProtocolVersion;
use rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES;
use rustls::version::{TLS12, TLS13};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::backend::{EchoBackend, RecordingBackend};
use crate::support::certs::{Kind, pki};
use crate::support::client::{HandHello, Offer, TlsClient, alert_in};
use crate::support::vestibule::{Setup, Vestibule};
use crate::support::{connect, read_exactly, read_plain, within};

const HANDSHAKE_FAILURE: u8 = 40;
const PROTOCOL_VERSION: u8 = 70;
const UNRECOGNIZED_NAME: u8 = 112;
const NO_APPLICATION_PROTOCOL: u8 = 120;

async fn round_trip(client: &mut TlsClient) {
    client.write_all(b"there and back").await.unwrap();
    client.flush().await.unwrap();
    assert_eq!(read_exactly(client, 14).await, b"there and back");
}

/// A handshake that must fail with this alert, and be counted for this reason.
async fn refused(vestibule: &Vestibule, offer: &Offer, alert: u8, reason: &str) {
    let before = vestibule
        .metric("vestibule_handshake_failures_total", &[])
        .await;
    let of_reason = vestibule
        .metric("vestibule_handshake_failures_total", &[("reason", reason)])
        .await;
    let error = offer
        .try_connect(vestibule.addr())
        .await
        .expect_err("must be refused");
    assert_eq!(alert_in(&error), alert);
    vestibule
        .metric_becomes(
            "vestibule_handshake_failures_total",
            &[("reason", reason)],
            of_reason + 1,
        )
        .await;
    assert_eq!(
        vestibule
            .metric("vestibule_handshake_failures_total", &[])
            .await,
        before + 1
    );
    vestibule.is_idle().await;
}

#[tokio::test]
async fn every_suite_serves_with_every_kind_of_certificate_that_fits_it() {
    within(60, async {
        let backend = EchoBackend::start();
        let kinds = [
            (Kind::Ecdsa, "ecdsa.test"),
            (Kind::Rsa, "rsa.test"),
            (Kind::Ed25519, "ed25519.test"),
        ];
        let pairs = kinds.map(|(kind, name)| pki().issue(kind, &[name]));
        let mut setup = Setup::new("tls", backend.addr());
        for pair in &pairs {
            setup = setup.cert(pair);
        }
        let vestibule = setup.start().await;
        let mut served = 0;
        for suite in ALL_CIPHER_SUITES {
            for ((kind, name), pair) in kinds.iter().zip(&pairs) {
                // In TLS 1.2 the suite says what signs; Ed25519 goes as ECDSA (RFC 8422 section 5.10).
                let by = format!("{:?}", suite.suite());
                if suite.tls13().is_none() && by.contains("_RSA_") != (*kind == Kind::Rsa) {
                    continue;
                }
                let mut client = Offer::named(name)
                    .suite(*suite)
                    .connect(vestibule.addr())
                    .await;
                let session = client.get_ref().1;
                assert_eq!(
                    session.negotiated_cipher_suite().unwrap().suite(),
                    suite.suite()
                );
                assert_eq!(session.peer_certificates().unwrap()[0], pair.der, "{name}");
                round_trip(&mut client).await;
                served += 1;
            }
        }
        assert_eq!(served, 18);
        vestibule
            .metric_becomes("vestibule_handshakes_total", &[("kind", "full")], served)
            .await;
        assert_eq!(
            vestibule
                .metric("vestibule_handshake_failures_total", &[])
                .await,
            0
        );
        vestibule.is_idle().await;
    })
    .await;
}

#[tokio::test]
async fn tls13_is_preferred_and_tls12_served() {
    within(20, async {
        let backend = EchoBackend::start();
        let vestibule = Setup::new("tls", backend.addr()).start().await;
        let mut both = Offer::default().connect(vestibule.addr()).await;
        assert_eq!(
            both.get_ref().1.protocol_version(),
            Some(ProtocolVersion::TLSv1_3)
        );
        round_trip(&mut both).await;
        let mut older = Offer::default()
            .version(&TLS12)
            .connect(vestibule.addr())
            .await;
        assert_eq!(
            older.get_ref().1.protocol_version(),
            Some(ProtocolVersion::TLSv1_2)
        );
        round_trip(&mut older).await;
    })
    .await;
}

#[tokio::test]
async fn the_name_asked_for_picks_the_certificate_and_the_first_is_the_default() {
    within(20, async {
        let backend = EchoBackend::start();
        let first = pki().issue(Kind::Ecdsa, &["first.test"]);
        let exact = pki().issue(Kind::Ecdsa, &["exact.wild.test"]);
        let wild = pki().issue(Kind::Ecdsa, &["*.wild.test"]);
        let vestibule = Setup::new("tls", backend.addr())
            .cert(&first)
            .cert(&wild)
            .cert(&exact)
            .start()
            .await;
        let cases = [
            ("first.test", &first),
            ("exact.wild.test", &exact),
            ("EXACT.Wild.Test", &exact),
            ("any.wild.test", &wild),
            // A wildcard stands for one label (RFC 6125 section 6.4.3).
            ("a.b.wild.test", &first),
            ("wild.test", &first),
            ("unknown.test", &first),
        ];
        for (name, pair) in cases {
            let mut client = Offer::named(name)
                .trusting()
                .connect(vestibule.addr())
                .await;
            assert_eq!(
                client.get_ref().1.peer_certificates().unwrap()[0],
                pair.der,
                "{name}"
            );
            round_trip(&mut client).await;
        }
        let mut nameless = Offer {
            sni: false,
            ..Offer::named("first.test")
        }
        .connect(vestibule.addr())
        .await;
        round_trip(&mut nameless).await;
    })
    .await;
}

#[tokio::test]
async fn a_name_that_no_certificate_covers_is_refused_where_that_is_asked_for() {
    within(20, async {
        let backend = EchoBackend::start();
        let wild = pki().issue(Kind::Ecdsa, &["*.wild.test"]);
        let vestibule = Setup::new("tls", backend.addr())
            .cert(&pki().chat)
            .cert(&wild)
            .args(&["--sni-strict"])
            .start()
            .await;
        for version in [&TLS12, &TLS13] {
            for name in ["unknown.test", "a.b.wild.test", "wild.test"] {
                refused(
                    &vestibule,
                    &Offer::named(name).version(version),
                    UNRECOGNIZED_NAME,
                    "unknown_name",
                )
                .await;
            }
        }
        for name in ["chat.test", "any.wild.test"] {
            round_trip(&mut Offer::named(name).connect(vestibule.addr()).await).await;
        }
        // Who asks for nothing gets the default all the same.
        round_trip(
            &mut Offer {
                sni: false,
                ..Offer::default()
            }
            .connect(vestibule.addr())
            .await,
        )
        .await;
    })
    .await;
}

#[tokio::test]
async fn xmpps_agrees_on_xmpp_client_and_serves_clients_without_alpn() {
    within(20, async {
        let backend = EchoBackend::start();
        let vestibule = Setup::new("xmpps", backend.addr()).start().await;
        for version in [&TLS12, &TLS13] {
            for names in [&["xmpp-client"][..], &["h2", "xmpp-client"]] {
                let client = Offer::default()
                    .version(version)
                    .alpn(names)
                    .connect(vestibule.addr())
                    .await;
                assert_eq!(
                    client.get_ref().1.alpn_protocol(),
                    Some(&b"xmpp-client"[..])
                );
            }
            let client = Offer::default()
                .version(version)
                .connect(vestibule.addr())
                .await;
            assert_eq!(client.get_ref().1.alpn_protocol(), None);
            drop(client);
            let offer = Offer::default().version(version).alpn(&["h2"]);
            refused(
                &vestibule,
                &offer,
                NO_APPLICATION_PROTOCOL,
                "no_common_alpn",
            )
            .await;
        }
    })
    .await;
}

#[tokio::test]
async fn tls_serves_any_protocol_without_choosing_one() {
    within(20, async {
        let backend = EchoBackend::start();
        let vestibule = Setup::new("tls", backend.addr()).start().await;
        let mut client = Offer::default()
            .alpn(&["h2", "whatever"])
            .connect(vestibule.addr())
            .await;
        assert_eq!(client.get_ref().1.alpn_protocol(), None);
        round_trip(&mut client).await;
    })
    .await;
}

#[tokio::test]
async fn no_common_version_is_protocol_version() {
    within(20, async {
        let backend = EchoBackend::start();
        let newer = Setup::new("tls", backend.addr())
            .args(&["--tls-min", "1.3"])
            .start()
            .await;
        refused(
            &newer,
            &Offer::default().version(&TLS12),
            PROTOCOL_VERSION,
            "no_common_version",
        )
        .await;
        round_trip(&mut Offer::default().version(&TLS13).connect(newer.addr()).await).await;

        let both = Setup::new("tls", backend.addr()).start().await;
        let old = [
            HandHello {
                legacy_version: 0x0302,
                versions: None,
                suites: vec![0xc02b, 0xc009],
            },
            HandHello {
                legacy_version: 0x0303,
                versions: Some(vec![0x0302, 0x0301]),
                suites: vec![0xc02b],
            },
        ];
        for (number, hello) in old.iter().enumerate() {
            assert_eq!(alert_to(&both, hello).await, PROTOCOL_VERSION, "{hello:?}");
            let labels = [("reason", "no_common_version")];
            both.metric_becomes(
                "vestibule_handshake_failures_total",
                &labels,
                number as u64 + 1,
            )
            .await;
        }
    })
    .await;
}

#[tokio::test]
async fn no_common_suite_is_handshake_failure() {
    within(20, async {
        let mut backend = RecordingBackend::start();
        let vestibule = Setup::new("tls", backend.addr()).start().await;
        let none = [
            // RSA key exchange, and CBC: not served.
            HandHello {
                legacy_version: 0x0303,
                versions: None,
                suites: vec![0x002f, 0xc009],
            },
            // TLS 1.3 with CCM alone.
            HandHello {
                legacy_version: 0x0303,
                versions: Some(vec![0x0304]),
                suites: vec![0x1304],
            },
        ];
        for (number, hello) in none.iter().enumerate() {
            assert_eq!(
                alert_to(&vestibule, hello).await,
                HANDSHAKE_FAILURE,
                "{hello:?}"
            );
            let labels = [("reason", "no_common_suite")];
            vestibule
                .metric_becomes(
                    "vestibule_handshake_failures_total",
                    &labels,
                    number as u64 + 1,
                )
                .await;
        }
        vestibule.is_idle().await;
        assert!(backend.is_unused());
    })
    .await;
}

/// The alert that answers this hello.
async fn alert_to(vestibule: &Vestibule, hello: &HandHello) -> u8 {
    let mut client = connect(vestibule.addr()).await;
    client.write_all(&hello.record()).await.unwrap();
    match read_plain(&mut client).await.0[..] {
        [21, 3, _, 0, 2, 2, description] => description,
        ref other => panic!("no alert but {other:02x?}"),
    }
}

#[tokio::test]
async fn a_client_that_will_not_have_the_certificate_is_counted() {
    within(20, async {
        let mut backend = RecordingBackend::start();
        let vestibule = Setup::new("tls", backend.addr()).start().await;
        // chat.test's certificate is not for this name, so the client ends with an alert of its own.
        Offer::named("other.test")
            .try_connect(vestibule.addr())
            .await
            .expect_err("must not verify");
        vestibule
            .metric_becomes(
                "vestibule_handshake_failures_total",
                &[("reason", "alert_received")],
                1,
            )
            .await;
        vestibule.is_idle().await;
        assert!(backend.is_unused());
    })
    .await;
}

#[tokio::test]
async fn the_client_finds_the_backends_bytes_sent_before_its_own() {
    within(20, async {
        let mut backend = RecordingBackend::start();
        let vestibule = Setup::new("tls", backend.addr()).start().await;
        let mut client = Offer::default().connect(vestibule.addr()).await;
        let mut back = backend.accept().await;
        back.write_all(b"220 ready").await.unwrap();
        let mut greeting = [0; 9];
        client.read_exact(&mut greeting).await.unwrap();
        assert_eq!(&greeting, b"220 ready");
    })
    .await;
}
