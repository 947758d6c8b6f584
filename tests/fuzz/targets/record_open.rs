//! Records after a handshake, by a peer that has the right keys and no good will, or a middle that has none.
//!
//! The input is a small program: the protection, then one record after the other, each with what it is, a length
//! and a payload.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vestibule::tls::record::fuzzing::{pair, seal_any, step};
use vestibule::tls::record::{Opened, Protection};

fuzz_target!(|input: &[u8]| {
    let Some((&which, mut program)) = input.split_first() else {
        return;
    };
    let protection = [
        Protection::Tls13,
        Protection::Tls12Gcm,
        Protection::Tls12ChaCha,
    ][usize::from(which) % 3];
    let tls13 = protection == Protection::Tls13;
    let (mut ours, mut peer) = pair(protection).expect("fixed keys");
    let mut cipher = None;
    // Nothing strange has been sent yet.
    let mut honest = true;
    while let [what, extra, high, low, rest @ ..] = program {
        let len = usize::from(u16::from_be_bytes([*high, *low]))
            .min(rest.len())
            .min(1 << 14);
        let (payload, rest) = rest.split_at(len);
        program = rest;
        // What may come out as data, and whether the record is genuine.
        let (mut record, data, genuine) = match what % 4 {
            0 => {
                let inner = if tls13 {
                    [payload, &[23]].concat()
                } else {
                    payload.to_vec()
                };
                (
                    seal_any(&mut peer.sealer, 23, &inner).expect("fresh key"),
                    payload,
                    true,
                )
            }
            1 => {
                honest = false;
                let end = payload.iter().rposition(|byte| *byte != 0).unwrap_or(0);
                let data = if tls13 { &payload[..end] } else { payload };
                (
                    seal_any(&mut peer.sealer, *extra, payload).expect("fresh key"),
                    data,
                    true,
                )
            }
            2 => {
                honest = false;
                let mut record = seal_any(&mut peer.sealer, 23, payload).expect("fresh key");
                let bit = usize::from(*extra) % (8 * (record.len() - 5)) + 40;
                record[bit / 8] ^= 1 << (bit % 8);
                (record, payload, false)
            }
            _ => {
                honest = false;
                let header = [*extra, 3, 3, (len >> 8) as u8, len as u8];
                ([&header, payload].concat(), payload, false)
            }
        };
        for end in 0..5 {
            assert!(matches!(ours.opener.record_len(&record[..end]), Ok(None)));
        }
        match ours.opener.record_len(&record) {
            Ok(Some(len)) => assert_eq!(len, record.len()),
            Ok(None) => panic!("the header is there"),
            Err(_) => return assert!(!honest),
        }
        match ours.opener.open(&mut cipher, &mut record) {
            Ok(opened) => {
                assert!(genuine, "what nobody has sealed was opened");
                match opened {
                    Opened::Data(range) => {
                        assert!(!range.is_empty());
                        assert_eq!(&record[range], data);
                    }
                    Opened::KeyUpdate { .. } => step(&mut peer.sealer).expect("TLS 1.3"),
                    Opened::CloseNotify => return,
                    Opened::Nothing | Opened::Renegotiation => {}
                }
            }
            // Even an honest peer may send too many empty records.
            Err(_) => return assert!(!honest || payload.is_empty()),
        }
    }
});
