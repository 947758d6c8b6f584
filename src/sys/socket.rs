//! Sockets with their options set at the right moment: buffers before listen and connect, so that the
//! window scale fits them; everything else on the listening socket, from which Linux hands it down to
//! each accepted one without a further system call.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::net::{SendFlags, SocketFlags};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

/// What is set on a socket before it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// SO_RCVBUF in bytes; `None`: the kernel's own tuning.
    pub recv_buffer: Option<usize>,
    /// SO_SNDBUF in bytes; `None`: the kernel's own tuning.
    pub send_buffer: Option<usize>,
    /// TCP_NOTSENT_LOWAT in bytes: how much may wait in the kernel that the path has no room for; `None`: a send buffer full.
    pub notsent_lowat: Option<usize>,
    /// Silence before the first keepalive probe; three more follow, a sixth of it apart. Zero: none.
    pub keepalive: Duration,
    /// TCP_USER_TIMEOUT. Zero: the kernel's default.
    pub user_timeout: Duration,
}

/// Probes without an answer after which a peer counts as gone.
const KEEPALIVE_RETRIES: u32 = 3;

impl Options {
    fn apply(&self, socket: &Socket) -> io::Result<()> {
        if let Some(bytes) = self.recv_buffer {
            socket.set_recv_buffer_size(bytes)?;
        }
        if let Some(bytes) = self.send_buffer {
            socket.set_send_buffer_size(bytes)?;
        }
        if let Some(bytes) = self.notsent_lowat {
            socket.set_tcp_notsent_lowat(u32::try_from(bytes).unwrap_or(u32::MAX))?;
        }
        socket.set_tcp_nodelay(true)?;
        if !self.keepalive.is_zero() {
            let interval = (self.keepalive / 6).max(Duration::from_secs(1));
            socket.set_tcp_keepalive(
                &TcpKeepalive::new()
                    .with_time(self.keepalive.max(Duration::from_secs(1)))
                    .with_interval(interval)
                    .with_retries(KEEPALIVE_RETRIES),
            )?;
        }
        if !self.user_timeout.is_zero() {
            socket.set_tcp_user_timeout(Some(self.user_timeout))?;
        }
        Ok(())
    }
}

/// A listening TCP socket, non-blocking. SO_REUSEADDR is set, so that a restart need not wait for TIME_WAIT.
///
/// # Errors
/// As bind(2), listen(2) and setsockopt(2).
pub fn listen(addr: SocketAddr, options: &Options, backlog: u32) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(addr),
        Type::STREAM.nonblocking(),
        Some(Protocol::TCP),
    )?;
    if addr.is_ipv6() {
        // One listener, one address: 0.0.0.0 and [::] can be had side by side.
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    options.apply(&socket)?;
    socket.bind(&addr.into())?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

/// A TCP socket for `connect` to `addr`, non-blocking, not connected yet.
///
/// # Errors
/// As socket(2) and setsockopt(2).
pub fn for_connect(addr: SocketAddr, options: &Options) -> io::Result<OwnedFd> {
    let socket = Socket::new(
        Domain::for_address(addr),
        Type::STREAM.nonblocking(),
        Some(Protocol::TCP),
    )?;
    options.apply(&socket)?;
    Ok(socket.into())
}

/// Takes one connection from the queue, non-blocking and close-on-exec in the same system call.
///
/// # Errors
/// As accept4(2); `WouldBlock` when the queue is empty.
pub fn accept(listener: impl AsFd) -> io::Result<(OwnedFd, Option<SocketAddr>)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (fd, addr) = rustix::net::acceptfrom_with(listener, flags)?;
    Ok((fd, addr.and_then(|addr| SocketAddr::try_from(addr).ok())))
}

/// Last words for a peer that is closed at once: what its socket takes of them, without waiting.
pub fn say(socket: impl AsFd, words: &[u8]) {
    // Whoever is gone, or does not read, misses them.
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let _ = rustix::net::send(socket, words, flags);
}

/// Makes the coming close a reset (RST): no TIME_WAIT, and the peer sees an error.
pub fn reset_on_close(socket: impl AsFd) {
    // Cannot fail on an open socket; if it does, the close is an ordinary one.
    let _ = SockRef::from(&socket).set_linger(Some(Duration::ZERO));
}

/// Bytes written that the peer has not acknowledged yet (SIOCOUTQ, tcp(7)).
///
/// # Errors
/// As ioctl(2).
#[allow(unsafe_code)]
pub fn unacknowledged(socket: impl AsFd) -> io::Result<usize> {
    use rustix::ioctl::{Getter, ioctl};
    /// `TIOCOUTQ`, which is `SIOCOUTQ` on a socket.
    const SIOCOUTQ: rustix::ioctl::Opcode = 0x5411;
    // WHY: rustix and socket2 have no safe call for it, and a reset before the queue is empty would lose bytes.
    // SAFETY: SIOCOUTQ takes a pointer to one int and fills it (tcp(7)); `Getter` provides exactly that,
    // and the descriptor stays borrowed for the call.
    let queued = unsafe { ioctl(socket, Getter::<SIOCOUTQ, i32>::new()) }?;
    Ok(usize::try_from(queued).unwrap_or(0))
}

/// Bytes that a socket which takes any takes at the least: a segment's worth.
const ROOM_MIN: usize = 1024;

/// How many bytes a socket that takes any takes for sure. The kernel counts what a segment costs it, up to twice its bytes.
pub fn send_room(socket: impl AsFd) -> usize {
    let queued = unacknowledged(&socket).unwrap_or(0);
    let size = SockRef::from(&socket).send_buffer_size().unwrap_or(0);
    (size / 2).saturating_sub(queued).max(ROOM_MIN)
}

/// Whether the kernel takes bytes now, asked anew. It also makes the kernel tell when it does again.
pub fn writable(socket: impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(&socket, PollFlags::OUT)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // What cannot be asked is found out by writing.
    !matches!(poll(&mut fds, Some(&now)), Ok(0))
}

/// Whether the connection is gone in both directions: reset, or given up by keepalive.
pub fn dead(socket: impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(&socket, PollFlags::empty())];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // ERR and HUP are always told.
    matches!(poll(&mut fds, Some(&now)), Ok(told) if told > 0)
}

/// What the kernel really gave: receive and send buffer in bytes, as getsockopt(2) reports them (Linux
/// doubles what was asked for, and keeps the other half for its book-keeping).
///
/// # Errors
/// As getsockopt(2).
pub fn buffers(socket: impl AsFd) -> io::Result<(usize, usize)> {
    let socket = SockRef::from(&socket);
    Ok((socket.recv_buffer_size()?, socket.send_buffer_size()?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    const OPTIONS: Options = Options {
        recv_buffer: Some(16_384),
        send_buffer: Some(8_192),
        notsent_lowat: Some(65_536),
        keepalive: Duration::from_secs(90),
        user_timeout: Duration::from_secs(70),
    };

    fn assert_set(socket: SockRef<'_>) {
        // Linux doubles what is asked for.
        assert_eq!(socket.recv_buffer_size().unwrap(), 32_768);
        assert_eq!(socket.send_buffer_size().unwrap(), 16_384);
        assert_eq!(socket.tcp_notsent_lowat().unwrap(), 65_536);
        assert!(socket.tcp_nodelay().unwrap());
        assert!(socket.keepalive().unwrap());
        assert_eq!(
            socket.tcp_keepalive_time().unwrap(),
            Duration::from_secs(90)
        );
        assert_eq!(
            socket.tcp_keepalive_interval().unwrap(),
            Duration::from_secs(15)
        );
        assert_eq!(
            socket.tcp_user_timeout().unwrap(),
            Some(Duration::from_secs(70))
        );
        assert!(socket.nonblocking().unwrap());
    }

    #[test]
    fn accepted_sockets_inherit_every_option_and_do_not_block() {
        let listener = listen("127.0.0.1:0".parse().unwrap(), &OPTIONS, 16).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (fd, addr) = loop {
            match accept(&listener) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
                accepted => break accepted.unwrap(),
            }
        };
        assert_eq!(addr, Some(client.local_addr().unwrap()));
        assert_set(SockRef::from(&fd));
    }

    #[test]
    fn sockets_for_connect_have_every_option_before_they_connect() {
        let fd = for_connect("127.0.0.1:1".parse().unwrap(), &OPTIONS).unwrap();
        assert_set(SockRef::from(&fd));
    }

    #[test]
    fn auto_leaves_the_buffers_to_the_kernel() {
        let auto = Options {
            recv_buffer: None,
            send_buffer: None,
            ..OPTIONS
        };
        let plain = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        let ours = for_connect("127.0.0.1:1".parse().unwrap(), &auto).unwrap();
        assert_eq!(buffers(&ours).unwrap(), buffers(&plain).unwrap());
    }

    #[test]
    fn what_the_peer_has_not_acknowledged_is_known() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(unacknowledged(&client).unwrap(), 0);
    }
}
