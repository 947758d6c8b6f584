//! One side of a conversation: a socket, and the record layer if it speaks TLS.
//!
//! An endpoint splits into [`Inbound`] and [`Outbound`], two plain borrows used by one task. No buffer
//! belongs to it: bytes are read into a lease and written from one.

pub mod dialogue;
pub mod secure;
mod socket;
pub mod transport;

use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use crate::pool::{Lease, READY_MAX};
use crate::tls::record::{Opener, RecordLayer, Sealer};

pub use socket::Socket;

/// A socket, plain or with TLS on it.
pub struct Endpoint {
    socket: Socket,
    /// Boxed: half of all endpoints have none.
    records: Option<Box<RecordLayer>>,
}

impl Endpoint {
    /// An endpoint without TLS.
    pub fn plain(socket: Socket) -> Self {
        Self {
            socket,
            records: None,
        }
    }

    /// An endpoint whose TLS handshake is over.
    pub fn secured(socket: Socket, records: RecordLayer) -> Self {
        Self {
            socket,
            records: Some(Box::new(records)),
        }
    }

    /// Whether it speaks TLS.
    pub fn is_secure(&self) -> bool {
        self.records.is_some()
    }

    /// The socket.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// The socket alone; the record layer is gone.
    pub fn into_socket(self) -> Socket {
        self.socket
    }

    /// Both directions, to be used by one task.
    #[inline]
    pub fn split(&mut self) -> (Inbound<'_>, Outbound<'_>) {
        let (opener, sealer) = match &mut self.records {
            None => (None, None),
            Some(records) => (Some(&mut records.opener), Some(&mut records.sealer)),
        };
        (
            Inbound {
                socket: &self.socket,
                opener,
            },
            Outbound {
                socket: &self.socket,
                sealer,
            },
        )
    }
}

/// What is received.
pub struct Inbound<'a> {
    /// The socket.
    pub socket: &'a Socket,
    /// Opens records, where the endpoint has TLS.
    pub opener: Option<&'a mut Opener>,
}

/// What is sent.
pub struct Outbound<'a> {
    /// The socket.
    pub socket: &'a Socket,
    /// Seals records, where the endpoint has TLS.
    pub sealer: Option<&'a mut Sealer>,
}

impl Outbound<'_> {
    /// Writes what is ready in the lease, all of it; returns the bytes of this call in `written`, also when pending.
    ///
    /// # Errors
    /// As write(2).
    #[inline]
    pub fn poll_flush(
        &self,
        cx: &mut Context<'_>,
        lease: &mut Lease,
        written: &mut u64,
    ) -> Poll<io::Result<()>> {
        while lease.has_ready() {
            let n = match lease.only_ready() {
                Some(bytes) => ready!(self.socket.poll_write(cx, bytes))?,
                None => {
                    let mut slices = [IoSlice::new(&[]); READY_MAX];
                    let count = lease.ready(&mut slices);
                    ready!(self.socket.poll_write_vectored(cx, &slices[..count]))?
                }
            };
            lease.sent_by(n);
            *written += n as u64;
        }
        Poll::Ready(Ok(()))
    }
}
