//! Bytes into meaning: the words of the protocols that pass through, without a socket, a buffer pool or TLS keys.

pub mod hello;
pub mod sniff;
