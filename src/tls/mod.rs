//! TLS as pure computation on borrowed buffers: no sockets, no clock, no pool.
//!
//! [`handshake`] drives rustls until both sides are sure of each other; then rustls hands out the
//! traffic secrets and is gone, and [`record`] opens and seals records in place, in whatever buffer they lie.
//! rustls is named on this floor alone, its connection API in `handshake` alone.
//!
//! What the record layer takes over from rustls with that, for TLS 1.3 (RFC 8446) and 1.2 (RFC 5246,
//! 5288, 7905): nonces, limits on sizes, on empty records, on key updates and on the use of a key; alerts; the end of
//! a direction; and refusal of everything that has no place after a handshake.

pub mod alert;
pub mod certs;
pub mod error;
pub mod handshake;
pub mod keys;
pub mod record;
pub mod terms;
mod verify;

pub use error::TlsError;
