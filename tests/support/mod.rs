//! What the integration tests are made of: the program as a guarded process, backends and clients named
//! for their vices, certificates, and a plain tokio-rustls proxy as the oracle.

pub mod backend;
pub mod certs;
pub mod client;
pub mod http;
pub mod oracle;
pub mod pattern;
pub mod ports;
pub mod record;
pub mod vestibule;
pub mod xmpp;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::TcpStream;

/// Runs a test and fails it if it takes longer than this many seconds.
pub async fn within<T>(seconds: u64, test: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Duration::from_secs(seconds), test).await {
        Ok(value) => value,
        Err(_) => panic!("not finished after {seconds} seconds"),
    }
}

/// How the reading side of a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// TLS: close_notify. Plain TCP has no such thing.
    CloseNotify,
    /// TCP FIN; over TLS that is without close_notify.
    Fin,
    /// TCP RST.
    Reset,
}

/// Everything up to the end of a plain connection, and how it ended.
pub async fn read_plain(stream: &mut (impl AsyncRead + Unpin)) -> (Vec<u8>, End) {
    read_until_end(stream, End::Fin).await
}

/// Everything up to the end of a TLS connection, and how it ended.
pub async fn read_tls(stream: &mut (impl AsyncRead + Unpin)) -> (Vec<u8>, End) {
    read_until_end(stream, End::CloseNotify).await
}

async fn read_until_end(stream: &mut (impl AsyncRead + Unpin), end_of_file: End) -> (Vec<u8>, End) {
    let mut bytes = Vec::new();
    let mut chunk = vec![0; 64 << 10];
    loop {
        match stream.read(&mut chunk).await {
            Ok(0) => return (bytes, end_of_file),
            Ok(n) => bytes.extend_from_slice(&chunk[..n]),
            Err(error) => return (bytes, end_of(&error)),
        }
    }
}

/// The end that a failed read stands for.
pub fn end_of(error: &io::Error) -> End {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => End::Fin,
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionAborted => End::Reset,
        kind => panic!("read failed, {kind:?}: {error}"),
    }
}

/// Reads exactly this many bytes.
pub async fn read_exactly(stream: &mut (impl AsyncRead + Unpin), len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    stream
        .read_exact(&mut bytes)
        .await
        .expect("the bytes that were sent");
    bytes
}

/// Connects TCP.
pub async fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).await.expect("connect");
    stream.set_nodelay(true).expect("TCP_NODELAY");
    stream
}

/// Closes a socket with RST instead of FIN.
pub fn reset(stream: TcpStream) {
    socket2::SockRef::from(&stream)
        .set_linger(Some(Duration::ZERO))
        .expect("SO_LINGER");
    drop(stream);
}
