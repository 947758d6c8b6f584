//! Servers behind the proxy, named for what they do.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::certs::{Pair, fresh_path};
use super::pattern::Pattern;
use super::ports;

/// Sends back what it gets; when its peer ends, sends the rest and ends too.
pub struct EchoBackend {
    addr: SocketAddr,
    served: Arc<AtomicU32>,
    task: JoinHandle<()>,
}

impl EchoBackend {
    /// On plain TCP.
    pub fn start() -> Self {
        Self::serve(None)
    }

    /// On TLS with this certificate.
    pub fn start_tls(pair: &Pair) -> Self {
        let config = rustls::ServerConfig::builder_with_provider(
            rustls::crypto::aws_lc_rs::default_provider().into(),
        )
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![pair.der.clone()], pair.private_key())
        .expect("certificate");
        Self::serve(Some(TlsAcceptor::from(Arc::new(config))))
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Connections accepted so far.
    pub fn served(&self) -> u32 {
        self.served.load(Ordering::Relaxed)
    }

    fn serve(tls: Option<TlsAcceptor>) -> Self {
        let (listener, addr) = bind();
        let served = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&served);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                let tls = tls.clone();
                tokio::spawn(async move {
                    match tls {
                        None => echo(stream).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                echo(stream).await;
                            }
                        }
                    }
                });
            }
        });
        Self { addr, served, task }
    }
}

impl Drop for EchoBackend {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The same on a Unix socket.
pub struct UnixEchoBackend {
    path: PathBuf,
    task: JoinHandle<()>,
}

impl UnixEchoBackend {
    /// On a socket file of its own.
    pub fn start() -> Self {
        let path = fresh_path("echo.sock");
        let listener = UnixListener::bind(&path).expect("bind");
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(echo(stream));
            }
        });
        Self { path, task }
    }

    /// The socket file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for UnixEchoBackend {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn echo(stream: impl AsyncRead + AsyncWrite) {
    let (mut read, mut write) = tokio::io::split(stream);
    if tokio::io::copy(&mut read, &mut write).await.is_ok() {
        let _ = write.shutdown().await;
    }
}

/// Hands every accepted connection to the test, which plays the server itself and sees how it ends.
pub struct RecordingBackend {
    addr: SocketAddr,
    accepted: mpsc::UnboundedReceiver<TcpStream>,
    task: JoinHandle<()>,
}

impl RecordingBackend {
    /// On plain TCP.
    pub fn start() -> Self {
        let (listener, addr) = bind();
        let (sender, accepted) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                if sender.send(stream).is_err() {
                    return;
                }
            }
        });
        Self {
            addr,
            accepted,
            task,
        }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The next connection.
    pub async fn accept(&mut self) -> TcpStream {
        self.accepted
            .recv()
            .await
            .expect("the backend still listens")
    }

    /// True if no connection waits to be taken.
    pub fn is_unused(&mut self) -> bool {
        self.accepted.try_recv().is_err()
    }
}

impl Drop for RecordingBackend {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Sends a whole pattern at once to everybody, whether they read or not, and reads what comes meanwhile.
pub struct PushBackend {
    addr: SocketAddr,
    task: JoinHandle<()>,
}

impl PushBackend {
    /// Pushes the first `push` bytes of the pattern `seed`, expects `pull` bytes of `seed + 1`, then ends;
    /// with `echo` afterwards, what still comes is sent back first.
    pub fn start(seed: u64, push: u64, pull: u64) -> Self {
        let (listener, addr) = bind();
        let task = tokio::spawn(async move {
            let patterns = Arc::new((Pattern::new(seed), Pattern::new(seed + 1)));
            while let Ok((stream, _)) = listener.accept().await {
                let patterns = Arc::clone(&patterns);
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.into_split();
                    let pushing = async {
                        patterns.0.write(&mut write, push).await?;
                        write.shutdown().await
                    };
                    let _ = tokio::join!(pushing, patterns.1.verify(&mut read, pull));
                });
            }
        });
        Self { addr, task }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for PushBackend {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Accepts and then does nothing: neither reads nor writes nor ends.
pub struct StallingBackend {
    addr: SocketAddr,
    task: JoinHandle<()>,
}

impl StallingBackend {
    /// On plain TCP.
    pub fn start() -> Self {
        let (listener, addr) = bind();
        let task = tokio::spawn(async move {
            let mut held = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                held.push(stream);
            }
        });
        Self { addr, task }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for StallingBackend {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn bind() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::from_std(ports::listener()).expect("a listener for tokio");
    let addr = listener
        .local_addr()
        .expect("a bound socket has an address");
    (listener, addr)
}
