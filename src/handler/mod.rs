//! What a connection turns out to be, once its TLS is up.

pub mod raw;
