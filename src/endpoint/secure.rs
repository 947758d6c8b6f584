//! TLS handshakes on a socket, and how a connection is closed so that its last words arrive.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::pool::Magazine;
use crate::sys;
use crate::tls::TlsError;
use crate::tls::handshake::{Established, Handshake, Progress};

use super::Socket;

/// How long a peer that was sent our last bytes may take to close, before we do.
const LINGER: Duration = Duration::from_secs(2);
/// Most bytes that are read and thrown away meanwhile.
const LINGER_BYTES_MAX: usize = 256 * 1024;
/// How long a peer may take to acknowledge what was sent before a reset.
const ABORT_WAIT: Duration = Duration::from_secs(5);
/// How often that is looked at.
const ABORT_STEP: Duration = Duration::from_millis(10);

/// Why there is no secured endpoint.
#[derive(Debug, thiserror::Error)]
pub enum SecureError {
    /// TLS itself.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The socket.
    #[error("socket: {0}")]
    Io(#[from] io::Error),
    /// The peer left before the handshake was over. True: without a byte.
    #[error("the peer closed the connection during the handshake")]
    Closed {
        /// It had not sent a single byte.
        silent: bool,
    },
}

/// Bytes that were read too early, at most what a small buffer holds.
pub type Rest = Option<Box<[u8]>>;

/// An established connection with what came behind its handshake.
pub struct Secured {
    /// Facts and record layer.
    pub established: Established,
    /// Bytes read behind the handshake, not opened yet. Not in a lease: connecting to a backend comes next, and
    /// nobody may hold a lease for that long.
    pub rest: Rest,
}

/// Runs `handshake` on `socket`. `output` is what it wants to send first, `early` what has been read already. On an error its alert has been sent, if
/// the socket took it; [`linger`] then lets it arrive. A buffer is leased for the moment of each read only, so that
/// a peer that dawdles holds none. There is no deadline here: the caller has one for the whole.
///
/// # Errors
/// See [`SecureError`].
pub async fn secure(
    socket: &Socket,
    mut handshake: Handshake,
    mut output: Vec<u8>,
    early: &[u8],
    pool: &Magazine,
) -> Result<Secured, SecureError> {
    let mut silent = early.is_empty();
    let mut early = (!early.is_empty()).then_some(early);
    loop {
        write_all(socket, &output).await?;
        output.clear();
        let (step, rest) = match early.take() {
            Some(early) => {
                let step = handshake.step(early, &mut output);
                let rest = behind(&step, early);
                (Some(step), rest)
            }
            None => read_step(socket, &mut handshake, &mut output, pool).await?,
        };
        match step {
            None => return Err(SecureError::Closed { silent }),
            Some(Ok(Progress::NeedMore)) => silent = false,
            Some(Ok(Progress::Done { .. })) => {
                write_all(socket, &output).await?;
                return Ok(Secured {
                    established: handshake.finish()?,
                    rest,
                });
            }
            Some(Err(error)) => {
                // The alert is a courtesy: the error that called for it is what counts.
                let _ = write_all(socket, &output).await;
                return Err(error.into());
            }
        }
    }
}

/// What lies in `input` behind the end of the handshake, if it ended there.
fn behind(step: &Result<Progress, TlsError>, input: &[u8]) -> Rest {
    match step {
        Ok(Progress::Done { consumed }) if *consumed < input.len() => {
            Some(input[*consumed..].into())
        }
        _ => None,
    }
}

/// Reads once and lets the handshake work on it. `None`: the peer has closed.
async fn read_step(
    socket: &Socket,
    handshake: &mut Handshake,
    output: &mut Vec<u8>,
    pool: &Magazine,
) -> io::Result<(Option<Result<Progress, TlsError>>, Rest)> {
    let mut wait = None;
    poll_fn(|cx| {
        loop {
            ready!(socket.poll_read_ready(cx))?;
            let mut lease = ready!(pool.poll_lease(cx, &mut wait));
            let n = match socket.try_read(lease.spare_mut())? {
                None => continue,
                Some(0) => return Poll::Ready(Ok((None, None))),
                Some(n) => n,
            };
            lease.filled_by(n);
            let input = lease.unread_mut();
            let step = handshake.step(input, output);
            let rest = behind(&step, input);
            return Poll::Ready(Ok((Some(step), rest)));
        }
    })
    .await
}

/// Writes all of `bytes`.
///
/// # Errors
/// As write(2).
pub async fn write_all(socket: &Socket, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let n = poll_fn(|cx| socket.poll_write(cx, bytes)).await?;
        bytes = &bytes[n..];
    }
    Ok(())
}

/// Ends what we send and waits for the peer to end, for a moment, throwing away what it still sends. Closing a
/// socket with unread bytes makes the kernel send a reset, and a reset can destroy our last bytes
/// before the peer has read them.
pub async fn linger(socket: &Socket) {
    if socket.shutdown_write().is_err() {
        return; // it is gone already
    }
    let mut total = 0;
    let ended = poll_fn(|cx| poll_discard(socket, cx, &mut total));
    let _ = tokio::time::timeout(LINGER, ended).await;
}

fn poll_discard(socket: &Socket, cx: &mut Context<'_>, total: &mut usize) -> Poll<()> {
    let mut scratch = [0; 4096];
    loop {
        if ready!(socket.poll_read_ready(cx)).is_err() {
            return Poll::Ready(());
        }
        match socket.try_read(&mut scratch) {
            Ok(None) => {}
            Ok(Some(0)) | Err(_) => return Poll::Ready(()),
            Ok(Some(n)) => {
                *total += n;
                if *total > LINGER_BYTES_MAX {
                    return Poll::Ready(());
                }
            }
        }
    }
}

/// Makes the coming close a reset, once the peer's kernel has everything that was written: a reset
/// throws away what is still queued.
pub async fn abort(socket: Socket) {
    let emptied = async {
        while sys::socket::unacknowledged(&socket).is_ok_and(|bytes| bytes > 0) {
            tokio::time::sleep(ABORT_STEP).await;
        }
    };
    let _ = tokio::time::timeout(ABORT_WAIT, emptied).await;
    sys::socket::reset_on_close(&socket);
}
