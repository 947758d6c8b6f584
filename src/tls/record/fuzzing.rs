//! A way into the record layer for its fuzz target: both ends with keys that everybody knows, and a
//! sealer that seals what no peer of good will would. Built for fuzzing alone.

use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::{ConnectionTrafficSecrets, SupportedCipherSuite};

use super::super::keys::TrafficSecret;
use super::*;

/// Both ends of a connection: ours, as the server's, and the peer's.
///
/// # Errors
/// None for what is passed here.
pub fn pair(protection: Protection) -> Result<(RecordLayer, RecordLayer), TlsError> {
    let end = |peer, receive, send| {
        Ok(RecordLayer::new(
            protection,
            peer,
            keys(protection, receive)?,
            keys(protection, send)?,
        ))
    };
    Ok((end(Peer::Client, 1, 2)?, end(Peer::Server, 2, 1)?))
}

/// One direction's keys, each made of one byte repeated.
fn keys(protection: Protection, byte: u8) -> Result<Keys, TlsError> {
    let key = AeadKey::from([byte; 32]);
    let iv = Iv::from([byte; 12]);
    let secrets = match protection {
        Protection::Tls13 | Protection::Tls12ChaCha => {
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv }
        }
        Protection::Tls12Gcm => ConnectionTrafficSecrets::Aes256Gcm { key, iv },
    };
    let update = match (protection, TLS13_AES_128_GCM_SHA256) {
        (Protection::Tls13, SupportedCipherSuite::Tls13(suite)) => {
            TrafficSecret::new(&[byte; 32]).map(|secret| (secret, suite))
        }
        _ => None,
    };
    Keys::new((0, secrets), update)
}

/// A record around any plaintext. TLS 1.3: `plain` is all of it, content type and padding included.
///
/// # Errors
/// When the key has reached its limit.
pub fn seal_any(sealer: &mut Sealer, content_type: u8, plain: &[u8]) -> Result<Vec<u8>, TlsError> {
    let cipher = sealer.keys.cipher()?;
    let seq = sealer.keys.next_seq()?;
    let nonce = sealer.keys.nonce(seq);
    let explicit = sealer.protection.head_len() - HEADER_LEN;
    let payload = explicit + plain.len() + TAG_LEN;
    let mut record = Header::bytes(ContentType::ApplicationData, payload).to_vec();
    let aad = if sealer.protection == Protection::Tls13 {
        record.clone()
    } else {
        record[0] = content_type;
        tls12_aad(seq, content_type, plain.len()).to_vec()
    };
    record.extend_from_slice(&nonce[12 - explicit..]);
    let mut inner = plain.to_vec();
    let mut tag = [0; TAG_LEN];
    cipher.seal(nonce, &aad, &mut inner, &mut tag)?;
    record.extend_from_slice(&inner);
    record.extend_from_slice(&tag);
    Ok(record)
}

/// Steps to the next key, as after a KeyUpdate that was sent.
///
/// # Errors
/// In TLS 1.2, which has none.
pub fn step(sealer: &mut Sealer) -> Result<(), TlsError> {
    sealer.keys.step()
}
