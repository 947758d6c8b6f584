//! The server's side of a handshake with a stranger: no panic, an alert for every fault, and no difference
//! between bytes that come at once and bytes that come in pieces.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use vestibule::tls::TlsError;
use vestibule::tls::certs::{Certificates, Pair};
use vestibule::tls::handshake::{Handshake, Progress};
use vestibule::tls::terms::{Terms, TicketKey, Wishes};

static TERMS: LazyLock<Terms> = LazyLock::new(|| {
    let cert = include_bytes!("../../../certs/ecdsa.cert.pem");
    let key = include_bytes!("../../../certs/ecdsa.key.pem");
    let pair = Pair::from_pem(cert, key).expect("the development certificate");
    let certificates = Arc::new(Certificates::new(vec![pair]).expect("one certificate"));
    let ticket_key = TicketKey::random().expect("randomness");
    let wishes = Wishes {
        tls12: true,
        alpn: &["xmpp-client".to_owned()],
        ..Wishes::default()
    };
    Terms::new(certificates, wishes, &ticket_key)
    .expect("both versions")
});

/// How it ends when the input comes in pieces of this size: `None` while more is wanted.
fn end(input: &[u8], size: usize) -> Option<&'static str> {
    let mut handshake = Handshake::server(&TERMS);
    let mut output = Vec::new();
    for piece in input.chunks(size) {
        output.clear();
        match handshake.step(piece, &mut output) {
            Ok(Progress::NeedMore) => {}
            Ok(Progress::Done { consumed }) => {
                assert!(consumed <= piece.len());
                return Some("done");
            }
            Err(error) => {
                // The peer's own alert is not answered; all else is told.
                let told = matches!(output[..], [.., 2, _]) || output.contains(&23);
                assert!(
                    told || matches!(error, TlsError::AlertReceived(_))
                        || error.reason() == "alert_received",
                    "{error}: {output:02x?}"
                );
                return Some(error.reason());
            }
        }
    }
    None
}

fuzz_target!(|input: &[u8]| {
    let Some((&size, input)) = input.split_first() else {
        return;
    };
    assert_eq!(
        end(input, input.len().max(1)),
        end(input, 1 + usize::from(size))
    );
});
