//! Randomness from the kernel.

use rustix::rand::{GetRandomFlags, getrandom};

/// 128 random bits in hexadecimal digits: an identifier that nobody can guess (RFC 6120 section 4.7.3).
pub fn id() -> String {
    use std::fmt::Write;
    let mut bytes = [0; 16];
    // Fails only before the kernel has gathered entropy once, at boot; then it waits instead.
    let _ = getrandom(&mut bytes, GetRandomFlags::empty());
    let mut text = String::with_capacity(32);
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}
