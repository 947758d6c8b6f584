//! A connected stream socket in the event loop, TCP or Unix.
//!
//! Reads and writes go through `try_io` with our own system call, for one reason: an operation that moved fewer
//! bytes than it could have has emptied (or filled) the socket, and reporting that as "would block" clears
//! the readiness at once. The next attempt then waits for an event and does not cost an EAGAIN.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll, ready};

use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

use crate::sys;

/// A connected stream socket.
#[derive(Debug)]
pub enum Socket {
    /// TCP.
    Tcp(TcpStream),
    /// A Unix stream socket.
    Unix(UnixStream),
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Socket {
    /// A connected, non-blocking TCP socket, registered with this thread's event loop.
    ///
    /// # Errors
    /// When the event loop cannot take it.
    pub fn tcp(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self::Tcp(TcpStream::from_std(fd.into())?))
    }

    /// The address that the peer has connected to, where there is one.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(stream) => stream.local_addr().ok(),
            Self::Unix(_) => None,
        }
    }

    /// Waits until there is something to read, or the end.
    #[inline]
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(cx),
            Self::Unix(stream) => stream.poll_read_ready(cx),
        }
    }

    /// Waits until the kernel takes bytes.
    #[inline]
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_write_ready(cx),
            Self::Unix(stream) => stream.poll_write_ready(cx),
        }
    }

    /// The same, asking the kernel anew instead of believing the last event: before something scarce is taken
    /// for the sake of a write.
    pub fn poll_write_ready_anew(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_write_ready(cx))?;
            if sys::socket::writable(self) {
                return Poll::Ready(Ok(()));
            }
            // Takes back what the event loop believed; an event that came meanwhile is kept.
            let _ = self.try_io(Interest::WRITABLE, || Err(io::ErrorKind::WouldBlock.into()));
        }
    }

    /// The same, and how many bytes the kernel then takes with one write, whatever their segments cost it: for who must not be left
    /// with a rest.
    pub fn poll_write_room(&self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        ready!(self.poll_write_ready_anew(cx))?;
        Poll::Ready(Ok(sys::socket::send_room(self)))
    }

    #[inline]
    fn try_io(
        &self,
        interest: Interest,
        operation: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.try_io(interest, operation),
            Self::Unix(stream) => stream.try_io(interest, operation),
        }
    }

    /// One system call of at most `most` bytes; `None`: not ready after all.
    #[inline]
    fn attempt(
        &self,
        interest: Interest,
        most: usize,
        mut operation: impl FnMut() -> io::Result<usize>,
    ) -> io::Result<Option<usize>> {
        let mut moved = None;
        let result = self.try_io(interest, || {
            let n = loop {
                match operation() {
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    other => break other?,
                }
            };
            moved = Some(n);
            if 0 < n && n < most {
                Err(io::ErrorKind::WouldBlock.into())
            } else {
                Ok(())
            }
        });
        match (moved, result) {
            (Some(n), _) => Ok(Some(n)),
            (None, Err(e)) if e.kind() != io::ErrorKind::WouldBlock => Err(e),
            (None, _) => Ok(None),
        }
    }

    /// Reads what is there, if anything is: `None` when not. Zero is the end.
    ///
    /// # Errors
    /// As read(2).
    #[inline]
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let socket = SockRef::from(self);
        self.attempt(Interest::READABLE, buffer.len(), || (&*socket).read(buffer))
    }

    /// The same into several places.
    ///
    /// # Errors
    /// As readv(2).
    #[inline]
    pub fn try_read_vectored(
        &self,
        slices: &mut [IoSliceMut<'_>],
        most: usize,
    ) -> io::Result<Option<usize>> {
        let socket = SockRef::from(self);
        self.attempt(Interest::READABLE, most, || {
            (&*socket).read_vectored(slices)
        })
    }

    /// Writes some of `bytes`, waiting until the kernel takes any.
    ///
    /// # Errors
    /// As write(2).
    #[inline]
    pub fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_write_ready(cx))?;
            let socket = SockRef::from(self);
            let write = || (&*socket).write(bytes);
            if let Some(n) = self.attempt(Interest::WRITABLE, bytes.len(), write)? {
                return Poll::Ready(Ok(n));
            }
        }
    }

    /// Writes some of the slices, waiting until the kernel takes any.
    ///
    /// # Errors
    /// As writev(2).
    pub fn poll_write_vectored(
        &self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let most = slices.iter().map(|slice| slice.len()).sum();
        loop {
            ready!(self.poll_write_ready(cx))?;
            let socket = SockRef::from(self);
            let write = || (&*socket).write_vectored(slices);
            if let Some(n) = self.attempt(Interest::WRITABLE, most, write)? {
                return Poll::Ready(Ok(n));
            }
        }
    }

    /// Ends what we send (FIN).
    ///
    /// # Errors
    /// As shutdown(2).
    pub fn shutdown_write(&self) -> io::Result<()> {
        SockRef::from(self).shutdown(Shutdown::Write)
    }
}
