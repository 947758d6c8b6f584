//! Bytes to meaning: pure functions over borrowed bytes. No sockets, no clock, no pool.

pub mod record;
