//! A slot: one buffer of fixed length, and how records lie in it.
//!
//! ```text
//!   0        HEADROOM                                                    len
//!   | room   | bytes read from a socket ........................ | spare |
//!            taken ----------> filled ------------------------->
//! ```
//!
//! Reading plaintext that will be sealed uses *cells* of [`STRIDE`] bytes, so that each record's header fits
//! in front and its tag behind, without a copy:
//!
//! ```text
//!   | HEADROOM | 16384 plaintext | TAILROOM | HEADROOM | 16384 plaintext | TAILROOM | ...
//! ```

/// Most plaintext bytes of one record (RFC 8446 section 5.1, RFC 5246 section 6.2.1).
pub const PLAIN_MAX: usize = 16_384;
/// Most bytes of one record on the wire: header and TLS 1.2's generous expansion (RFC 5246 section 6.2.3).
pub const RECORD_WIRE_MAX: usize = 5 + PLAIN_MAX + 2_048;
/// Room in front of plaintext: a record header (5) and TLS 1.2's explicit nonce (8).
pub const HEADROOM: usize = 16;
/// Room behind plaintext: content type (1) and tag (16).
pub const TAILROOM: usize = 32;
/// One cell: a full record's plaintext with its room.
pub const STRIDE: usize = HEADROOM + PLAIN_MAX + TAILROOM;
/// Length of a small slot: any one record, five pages.
pub const SMALL_LEN: usize = 20 * 1024;

const _: () = assert!(SMALL_LEN >= HEADROOM + RECORD_WIRE_MAX + TAILROOM);
const _: () = assert!(SMALL_LEN >= STRIDE);

/// Length of a large slot that holds `records` cells, rounded up to pages.
pub const fn large_len(records: usize) -> usize {
    (records * STRIDE).next_multiple_of(4096)
}

/// The two sizes of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// One record.
    Small,
    /// Several records.
    Large,
}

/// Most ranges that wait for one write.
pub const READY_MAX: usize = 16;

/// One buffer with its cursors. Between leases the cursors mean nothing: a new lease resets them.
pub struct Slot {
    pub(super) size: Size,
    pub(super) bytes: Box<[u8]>,
    /// HEADROOM <= taken <= filled <= bytes.len(): what was read and not yet looked at.
    pub(super) taken: u32,
    pub(super) filled: u32,
    /// Ranges that are to be written, in order: `ready[first..last]`.
    pub(super) ready: [(u32, u32); READY_MAX],
    pub(super) first: u8,
    pub(super) last: u8,
}

impl Slot {
    /// A fresh slot of `len` bytes, zeroed by the allocator (fresh pages cost nothing until touched).
    pub(super) fn new(size: Size, len: usize) -> Box<Self> {
        Box::new(Self {
            size,
            bytes: vec![0; len].into_boxed_slice(),
            taken: HEADROOM as u32,
            filled: HEADROOM as u32,
            ready: [(0, 0); READY_MAX],
            first: 0,
            last: 0,
        })
    }

    /// Bytes that count against the pool's bound.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn reset(&mut self) {
        self.taken = HEADROOM as u32;
        self.filled = HEADROOM as u32;
        self.first = 0;
        self.last = 0;
    }
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the bytes: they are somebody's words.
        f.debug_struct("Slot")
            .field("size", &self.size)
            .field("taken", &self.taken)
            .field("filled", &self.filled)
            .finish_non_exhaustive()
    }
}
