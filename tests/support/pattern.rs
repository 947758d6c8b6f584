//! A long stream of bytes that both ends can make for themselves, so that every byte is compared.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Pseudo-random bytes, repeated with a period that no buffer size divides.
pub struct Pattern {
    block: Vec<u8>,
}

impl Pattern {
    /// The stream of this seed.
    pub fn new(seed: u64) -> Self {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut step = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        };
        Self {
            block: (0..PERIOD).map(|_| step()).collect(),
        }
    }

    /// The first `len` bytes.
    pub fn bytes(&self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            bytes.extend_from_slice(self.at(bytes.len() as u64, (len - bytes.len()) as u64));
        }
        bytes
    }

    /// Writes the first `len` bytes in pieces of an odd size, and flushes.
    pub async fn write(
        &self,
        sink: &mut (impl AsyncWrite + Unpin),
        len: u64,
    ) -> std::io::Result<()> {
        let mut sent = 0;
        while sent < len {
            let piece = self.at(sent, (len - sent).min(PIECE));
            sink.write_all(piece).await?;
            sent += piece.len() as u64;
        }
        sink.flush().await
    }

    /// Reads `len` bytes and fails at the first that is not the pattern's.
    pub async fn verify(&self, source: &mut (impl AsyncRead + Unpin), len: u64) {
        let mut chunk = vec![0; 64 << 10];
        let mut seen = 0;
        while seen < len {
            let most = (len - seen).min(chunk.len() as u64) as usize;
            let n = source.read(&mut chunk[..most]).await.expect("read");
            assert!(n > 0, "ended after {seen} of {len} bytes");
            self.check(seen, &chunk[..n]);
            seen += n as u64;
        }
    }

    /// Fails unless `bytes` are what the stream has at `offset`.
    pub fn check(&self, mut offset: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let expected = self.at(offset, bytes.len() as u64);
            let (now, later) = bytes.split_at(expected.len());
            if let Some(wrong) = now.iter().zip(expected).position(|(a, b)| a != b) {
                panic!("byte {} is not what was sent", offset + wrong as u64);
            }
            offset += now.len() as u64;
            bytes = later;
        }
    }

    /// Up to `most` bytes at `offset`.
    fn at(&self, offset: u64, most: u64) -> &[u8] {
        let start = (offset % PERIOD as u64) as usize;
        &self.block[start..PERIOD.min(start + most as usize)]
    }
}

const PERIOD: usize = 1_048_573;
const PIECE: u64 = 50_021;
