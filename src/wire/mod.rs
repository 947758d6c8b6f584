//! Bytes to meaning: the words of the protocols that pass through. Pure functions over borrowed bytes; no sockets, no
//! clock, no pool, no keys.

pub mod hello;
pub mod http;
pub mod proxy;
pub mod record;
pub mod sniff;
pub mod xmpp;
