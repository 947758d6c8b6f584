//! A TLS proxy as anybody would write it, with tokio-rustls and a copy loop.
//!
//! Where the expected behaviour is the ordinary one, the same test runs against this and against the
//! program: it proves that a test asks for something reasonable, and that the program's own record layer
//! is no different from rustls'.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::certs::pki;
use super::ports;
use super::vestibule::{Setup, Vestibule};

/// The naive proxy.
pub struct Oracle {
    addr: SocketAddr,
    task: JoinHandle<()>,
}

impl Oracle {
    /// Serves `chat.test` and forwards to this backend.
    pub fn start(backend: SocketAddr) -> Self {
        let chat = &pki().chat;
        let config = rustls::ServerConfig::builder_with_provider(
            rustls::crypto::aws_lc_rs::default_provider().into(),
        )
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![chat.der.clone()], chat.private_key())
        .expect("certificate");
        let tls = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::from_std(ports::listener()).expect("a listener for tokio");
        let addr = listener
            .local_addr()
            .expect("a bound socket has an address");
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let tls = tls.clone();
                tokio::spawn(async move {
                    let mut front = tls.accept(stream).await?;
                    let mut back = TcpStream::connect(backend).await?;
                    tokio::io::copy_bidirectional(&mut front, &mut back).await
                });
            }
        });
        Self { addr, task }
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Which proxy a test runs against.
#[derive(Clone, Copy, Debug)]
pub enum Which {
    /// The program.
    Vestibule,
    /// The program with a fresh allocation for each buffer.
    Unpooled,
    /// The naive proxy.
    Oracle,
}

/// One of them, running.
pub enum Front {
    /// The program.
    Vestibule(Vestibule),
    /// The naive proxy.
    Oracle(Oracle),
}

impl Front {
    /// Starts one in front of this backend.
    pub async fn start(which: Which, backend: SocketAddr) -> Self {
        match which {
            Which::Vestibule => Self::Vestibule(Setup::new("tls", backend).start().await),
            Which::Unpooled => Self::Vestibule(
                Setup::new("tls", backend)
                    .args(&["--no-buffer-pool"])
                    .start()
                    .await,
            ),
            Which::Oracle => Self::Oracle(Oracle::start(backend)),
        }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        match self {
            Self::Vestibule(vestibule) => vestibule.addr(),
            Self::Oracle(oracle) => oracle.addr,
        }
    }

    /// Waits for a metric of the program; the oracle counts nothing.
    pub async fn metric_becomes(&self, name: &str, labels: &[(&str, &str)], value: u64) {
        if let Self::Vestibule(vestibule) = self {
            vestibule.metric_becomes(name, labels, value).await;
        }
    }

    /// Waits until the program holds nothing any more.
    pub async fn is_idle(&self) {
        if let Self::Vestibule(vestibule) = self {
            vestibule.is_idle().await;
        }
    }
}

/// Makes three tests of one: against the program, without its pool, and against the oracle.
#[macro_export]
macro_rules! against_all {
    ($($(#[$doc:meta])* $seconds:literal $name:ident;)*) => {$(
        mod $name {
            use $crate::support::{oracle::Which, within};

            #[tokio::test]
            async fn through_vestibule() {
                within($seconds, super::$name(Which::Vestibule)).await;
            }

            #[tokio::test]
            async fn through_vestibule_without_a_pool() {
                within($seconds, super::$name(Which::Unpooled)).await;
            }

            #[tokio::test]
            async fn through_the_oracle() {
                within($seconds, super::$name(Which::Oracle)).await;
            }
        }
    )*};
}
