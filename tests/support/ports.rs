//! Ports for tests: on loopback and below the range that the kernel gives to outgoing connections, so
//! that none is taken between finding and using it by a connection that happens to start.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// A bound, listening, non-blocking socket.
pub fn listener() -> TcpListener {
    for _ in 0..SPAN {
        if let Ok(listener) = TcpListener::bind(next()) {
            listener.set_nonblocking(true).expect("O_NONBLOCK");
            return listener;
        }
    }
    panic!("no free port between {FIRST} and {}", FIRST + SPAN);
}

/// An address that was free a moment ago. Another process may still take it: be ready to ask for another.
pub fn free() -> SocketAddr {
    listener()
        .local_addr()
        .expect("a bound socket has an address")
}

/// The next candidate; test processes that run at once begin at different places.
fn next() -> SocketAddr {
    static COUNT: AtomicU16 = AtomicU16::new(0);
    let offset = (std::process::id() as u16)
        .wrapping_mul(211)
        .wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed));
    (Ipv4Addr::LOCALHOST, FIRST + offset % SPAN).into()
}

const FIRST: u16 = 12_000;
const SPAN: u16 = 12_000;
