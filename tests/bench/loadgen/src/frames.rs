//! As much of WebSocket as is needed here: frames that are not fragmented (RFC 6455, section 5.2).

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::{Engine, prelude::BASE64_STANDARD};

pub const TEXT: u8 = 1;
pub const BINARY: u8 = 2;
pub const CLOSE: u8 = 8;
pub const PING: u8 = 9;
pub const PONG: u8 = 10;

/// `Sec-WebSocket-Accept` for a key (RFC 6455, section 4.2.2).
pub fn accept(key: &str) -> String {
    let text = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    BASE64_STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()))
}

/// Appends a frame; clients mask their payload.
pub fn put(out: &mut Vec<u8>, opcode: u8, payload: &[u8], mask: Option<[u8; 4]>) {
    out.push(0x80 | opcode);
    let bit = if mask.is_some() { 0x80 } else { 0 };
    match payload.len() {
        len if len < 126 => out.push(bit | len as u8),
        len if len < 65536 => {
            out.push(bit | 126);
            out.extend((len as u16).to_be_bytes());
        }
        len => {
            out.push(bit | 127);
            out.extend((len as u64).to_be_bytes());
        }
    }
    match mask {
        None => out.extend_from_slice(payload),
        Some(key) => {
            out.extend(key);
            out.extend(
                payload
                    .iter()
                    .zip(key.iter().cycle())
                    .map(|(byte, key)| byte ^ key),
            );
        }
    }
}

/// A whole frame at the start of `input`: opcode, where its payload starts, where it ends. The payload is
/// unmasked in place. None while bytes are missing.
pub fn take(input: &mut [u8]) -> Option<(u8, usize, usize)> {
    let (&first, &second) = (input.first()?, input.get(1)?);
    let (len, mut at) = match second & 0x7f {
        126 => (
            u64::from(u16::from_be_bytes(*input.get(2..)?.first_chunk()?)),
            4,
        ),
        127 => (u64::from_be_bytes(*input.get(2..)?.first_chunk()?), 10),
        len => (u64::from(len), 2),
    };
    let key: Option<[u8; 4]> = match second & 0x80 {
        0 => None,
        _ => Some(*input.get(at..)?.first_chunk()?),
    };
    at += key.map_or(0, |key| key.len());
    let end = at.checked_add(usize::try_from(len).ok()?)?;
    let payload = input.get_mut(at..end)?;
    if let Some(key) = key {
        payload
            .iter_mut()
            .zip(key.iter().cycle())
            .for_each(|(byte, key)| *byte ^= key);
    }
    Some((first & 15, at, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 6455, section 1.3.
    #[test]
    fn accept_of_the_rfc() {
        assert_eq!(
            accept("dGhlIHNhbXBsZSBub25jZQ=="),
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );
    }

    #[test]
    fn frames_come_back_and_not_before_their_end() {
        for len in [0, 1, 125, 126, 65535, 65536] {
            for mask in [None, Some([1, 2, 3, 4])] {
                let payload: Vec<u8> = (0..len).map(|i| i as u8).collect();
                let mut frame = Vec::new();
                put(&mut frame, TEXT, &payload, mask);
                let all = frame.len();
                assert!(take(&mut frame.clone()[..all - 1]).is_none());
                let (opcode, start, end) = take(&mut frame).expect("a whole frame");
                assert_eq!((opcode, end, &frame[start..end]), (TEXT, all, &payload[..]));
            }
        }
    }
}
