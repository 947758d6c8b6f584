//! Secrets to keys, nonces and sequence numbers, and the limits of their use.
//!
//! At rest a direction is key bytes, iv, counter and, for TLS 1.3, the traffic secret that the next key update
//! starts from: about 120 bytes. The AEAD's expanded key (0.6 KiB) is made when a burst of records starts
//! and lies on the stack while it lasts; it costs about as much as sealing one short message.

use std::sync::LazyLock;

use rustls::crypto::tls13::{HkdfExpander, OkmBlock};
use rustls::{ConnectionTrafficSecrets, Tls13CipherSuite};
use zeroize::Zeroize;

use super::TlsError;

/// Length of the authentication tag of every suite served.
pub const TAG_LEN: usize = 16;
/// Records that may still be sealed when a key update becomes due: more than one burst holds.
const UPDATE_MARGIN: u64 = 1 << 10;

/// The three AEADs of TLS 1.3 and of TLS 1.2's modern suites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aead {
    /// AES-128-GCM.
    Aes128Gcm,
    /// AES-256-GCM.
    Aes256Gcm,
    /// ChaCha20-Poly1305.
    ChaCha20Poly1305,
}

impl Aead {
    const fn key_len(self) -> usize {
        match self {
            Self::Aes128Gcm => 16,
            Self::Aes256Gcm | Self::ChaCha20Poly1305 => 32,
        }
    }

    /// Most records that one key may protect (RFC 8446 section 5.5, RFC 9147 section 4.5.3 for the figures).
    const fn record_limit(self) -> u64 {
        match self {
            Self::Aes128Gcm | Self::Aes256Gcm => 1 << 24,
            Self::ChaCha20Poly1305 => u64::MAX,
        }
    }
}

/// Whose code does the AEAD: the one that is faster on this CPU. ring has AES-GCM on AVX2 and VAES,
/// aws-lc on AVX-512 (measured: 3.1 against 6.1 us for 16 KiB without AVX-512); elsewhere aws-lc, whose
/// assembly for arm64 is the wider one.
static USE_RING: LazyLock<bool> = LazyLock::new(|| {
    #[cfg(target_arch = "x86_64")]
    {
        !(std::is_x86_feature_detected!("avx512f") && std::is_x86_feature_detected!("vaes"))
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
});

/// An expanded AEAD key, for one burst of records.
#[allow(
    clippy::large_enum_variant,
    reason = "lives on the stack for one burst; a box would be an allocation"
)]
pub enum Cipher {
    /// ring's.
    Ring(ring::aead::LessSafeKey),
    /// aws-lc's.
    AwsLc(aws_lc_rs::aead::LessSafeKey),
}

impl Cipher {
    /// Decrypts `body` (ciphertext and tag) in place; the plaintext is its front. Returns its length.
    #[inline]
    pub fn open(&self, nonce: [u8; 12], aad: &[u8], body: &mut [u8]) -> Result<usize, TlsError> {
        match self {
            Self::Ring(key) => {
                use ring::aead::{Aad, Nonce};
                key.open_in_place(Nonce::assume_unique_for_key(nonce), Aad::from(aad), body)
                    .map(|plain| plain.len())
                    .map_err(|_| TlsError::BadRecord)
            }
            Self::AwsLc(key) => {
                use aws_lc_rs::aead::{Aad, Nonce};
                key.open_in_place(Nonce::assume_unique_for_key(nonce), Aad::from(aad), body)
                    .map(|plain| plain.len())
                    .map_err(|_| TlsError::BadRecord)
            }
        }
    }

    /// Encrypts `plain` in place and writes its tag.
    #[inline]
    pub fn seal(
        &self,
        nonce: [u8; 12],
        aad: &[u8],
        plain: &mut [u8],
        tag: &mut [u8],
    ) -> Result<(), TlsError> {
        const TOO_LONG: TlsError = TlsError::Internal("plaintext too long for the AEAD");
        match self {
            Self::Ring(key) => {
                use ring::aead::{Aad, Nonce};
                let nonce = Nonce::assume_unique_for_key(nonce);
                let made = key
                    .seal_in_place_separate_tag(nonce, Aad::from(aad), plain)
                    .map_err(|_| TOO_LONG)?;
                tag.copy_from_slice(made.as_ref());
            }
            Self::AwsLc(key) => {
                use aws_lc_rs::aead::{Aad, Nonce};
                let nonce = Nonce::assume_unique_for_key(nonce);
                let made = key
                    .seal_in_place_separate_tag(nonce, Aad::from(aad), plain)
                    .map_err(|_| TOO_LONG)?;
                tag.copy_from_slice(made.as_ref());
            }
        }
        Ok(())
    }
}

/// A traffic secret of TLS 1.3 (RFC 8446 section 7.2), 32 or 48 bytes. No `Debug`: it is a secret.
pub struct TrafficSecret {
    bytes: [u8; 48],
    len: u8,
}

impl Drop for TrafficSecret {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}

impl TrafficSecret {
    /// Copies a secret; one of another length than a TLS hash has is refused.
    pub fn new(secret: &[u8]) -> Option<Self> {
        let mut bytes = [0; 48];
        bytes.get_mut(..secret.len())?.copy_from_slice(secret);
        Some(Self {
            bytes,
            len: secret.len() as u8,
        })
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// What only TLS 1.3 has: the way to the next key.
struct Update {
    secret: TrafficSecret,
    suite: &'static Tls13CipherSuite,
}

/// One direction's key, iv and counter. Not `Clone`: a nonce is used once. No `Debug`: it is a secret.
pub struct Keys {
    aead: Aead,
    key: [u8; 32],
    iv: [u8; 12],
    seq: u64,
    limit: u64,
    update: Option<Box<Update>>,
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.key.zeroize();
        self.iv.zeroize();
    }
}

impl Keys {
    /// Takes over what rustls extracted: the sequence number of the next record and its secrets. With `update`, TLS 1.3.
    pub(super) fn new(
        (seq, secrets): (u64, ConnectionTrafficSecrets),
        update: Option<(TrafficSecret, &'static Tls13CipherSuite)>,
    ) -> Result<Self, TlsError> {
        let (aead, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Aead::Aes128Gcm, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Aead::Aes256Gcm, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
                (Aead::ChaCha20Poly1305, key, iv)
            }
            _ => return Err(TlsError::Internal("a suite that the record layer lacks")),
        };
        let bad = || TlsError::Internal("secrets of another length");
        let mut keys = Self {
            aead,
            key: [0; 32],
            iv: iv.as_ref().try_into().map_err(|_| bad())?,
            seq,
            limit: aead.record_limit(),
            update: update.map(|(secret, suite)| Box::new(Update { secret, suite })),
        };
        let len = aead.key_len();
        keys.key[..len].copy_from_slice(key.as_ref().get(..len).ok_or_else(bad)?);
        Ok(keys)
    }

    /// Which AEAD.
    pub fn aead(&self) -> Aead {
        self.aead
    }

    /// The expanded key, for one burst.
    #[inline]
    pub fn cipher(&self) -> Result<Cipher, TlsError> {
        const BAD: TlsError = TlsError::Internal("key refused by the AEAD");
        let key = &self.key[..self.aead.key_len()];
        if *USE_RING {
            use ring::aead::{
                AES_128_GCM, AES_256_GCM, CHACHA20_POLY1305, LessSafeKey, UnboundKey,
            };
            let algorithm = match self.aead {
                Aead::Aes128Gcm => &AES_128_GCM,
                Aead::Aes256Gcm => &AES_256_GCM,
                Aead::ChaCha20Poly1305 => &CHACHA20_POLY1305,
            };
            let key = UnboundKey::new(algorithm, key).map_err(|_| BAD)?;
            Ok(Cipher::Ring(LessSafeKey::new(key)))
        } else {
            use aws_lc_rs::aead::{
                AES_128_GCM, AES_256_GCM, CHACHA20_POLY1305, LessSafeKey, UnboundKey,
            };
            let algorithm = match self.aead {
                Aead::Aes128Gcm => &AES_128_GCM,
                Aead::Aes256Gcm => &AES_256_GCM,
                Aead::ChaCha20Poly1305 => &CHACHA20_POLY1305,
            };
            let key = UnboundKey::new(algorithm, key).map_err(|_| BAD)?;
            Ok(Cipher::AwsLc(LessSafeKey::new(key)))
        }
    }

    /// The iv, for TLS 1.2's explicit nonces.
    #[inline]
    pub(super) fn iv(&self) -> &[u8; 12] {
        &self.iv
    }

    /// The next sequence number, used up; none once the key has reached its limit.
    #[inline]
    pub(super) fn next_seq(&mut self) -> Result<u64, TlsError> {
        if self.seq >= self.limit {
            return Err(TlsError::KeyExhausted);
        }
        let seq = self.seq;
        self.seq += 1;
        Ok(seq)
    }

    /// The nonce of record `seq`: iv xor sequence number (RFC 8446 section 5.3, RFC 7905 section 2).
    #[inline]
    pub(super) fn nonce(&self, seq: u64) -> [u8; 12] {
        let mut nonce = self.iv;
        for (byte, count) in nonce[4..].iter_mut().zip(seq.to_be_bytes()) {
            *byte ^= count;
        }
        nonce
    }

    /// Whether a key update should be sent before much more is sealed.
    #[inline]
    pub fn update_due(&self) -> bool {
        self.seq >= self.limit.saturating_sub(UPDATE_MARGIN) && self.update.is_some()
    }

    /// Steps to the next key: "traffic upd", then "key" and "iv" (RFC 8446 sections 7.2 and 7.3).
    pub fn step(&mut self) -> Result<(), TlsError> {
        const BAD: TlsError = TlsError::Internal("key derivation");
        let update = self.update.as_mut().ok_or(BAD)?;
        let hkdf = update.suite.hkdf_provider;
        let expander = hkdf.expander_for_okm(&OkmBlock::new(update.secret.as_slice()));
        let len = usize::from(update.secret.len);
        let mut next = TrafficSecret {
            bytes: [0; 48],
            len: len as u8,
        };
        expand_label(&*expander, b"traffic upd", &mut next.bytes[..len]).ok_or(BAD)?;
        update.secret = next;
        let expander = hkdf.expander_for_okm(&OkmBlock::new(update.secret.as_slice()));
        let key = &mut self.key[..self.aead.key_len()];
        expand_label(&*expander, b"key", key).ok_or(BAD)?;
        expand_label(&*expander, b"iv", &mut self.iv).ok_or(BAD)?;
        self.seq = 0;
        Ok(())
    }

    /// Lifts the limit: it is the sealing side that must keep it, and there are peers that never update.
    pub(super) fn without_limit(mut self) -> Self {
        self.limit = u64::MAX;
        self
    }

    /// Brings the limit near, so that tests reach it.
    #[cfg(test)]
    pub(super) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }
}

/// HKDF-Expand-Label with an empty context (RFC 8446 section 7.1).
fn expand_label(expander: &dyn HkdfExpander, label: &[u8], out: &mut [u8]) -> Option<()> {
    const PREFIX: &[u8] = b"tls13 ";
    let len = u16::try_from(out.len()).ok()?.to_be_bytes();
    let label_len = [u8::try_from(PREFIX.len() + label.len()).ok()?];
    expander
        .expand_slice(&[&len, &label_len, PREFIX, label, &[0]], out)
        .ok()
}
