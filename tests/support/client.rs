//! Clients: an ordinary one by tokio-rustls, one that sends single bytes, and hellos written by hand.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, DigitallySignedStruct, SignatureScheme, SupportedCipherSuite,
    SupportedProtocolVersion,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::certs::pki;
use super::connect;

/// A TLS client's end of a connection.
pub type TlsClient<S = TcpStream> = tokio_rustls::client::TlsStream<S>;

/// What a client offers. `Offer::default()` is an ordinary one that asks for `chat.test`.
#[derive(Clone, Debug)]
pub struct Offer {
    /// Only this version.
    pub version: Option<&'static SupportedProtocolVersion>,
    /// Only this suite, and the version it belongs to.
    pub suite: Option<SupportedCipherSuite>,
    /// Protocols for ALPN.
    pub alpn: Vec<Vec<u8>>,
    /// The name asked for, and the one the certificate must be for.
    pub name: String,
    /// Whether the name is sent.
    pub sni: bool,
    /// Whether the certificate is verified against the tests' authority.
    pub verify: bool,
    /// Longest record the client writes, in bytes.
    pub fragment: Option<usize>,
}

impl Default for Offer {
    fn default() -> Self {
        Self {
            version: None,
            suite: None,
            alpn: Vec::new(),
            name: "chat.test".to_owned(),
            sni: true,
            verify: true,
            fragment: None,
        }
    }
}

impl Offer {
    /// An ordinary client that asks for this name.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..Self::default()
        }
    }

    /// With this suite alone.
    pub fn suite(mut self, suite: SupportedCipherSuite) -> Self {
        self.suite = Some(suite);
        self
    }

    /// With this version alone.
    pub fn version(mut self, version: &'static SupportedProtocolVersion) -> Self {
        self.version = Some(version);
        self
    }

    /// With these protocols.
    pub fn alpn(mut self, names: &[&str]) -> Self {
        self.alpn = names.iter().map(|name| name.as_bytes().to_vec()).collect();
        self
    }

    /// Takes any certificate; signatures are still verified.
    pub fn trusting(mut self) -> Self {
        self.verify = false;
        self
    }

    /// The rustls configuration; its session store is its own.
    pub fn config(&self) -> ClientConfig {
        let mut provider = aws_lc_rs::default_provider();
        if let Some(suite) = self.suite {
            provider.cipher_suites = vec![suite];
        }
        let provider = Arc::new(provider);
        let of_suite = self.suite.map(|suite| suite.version());
        let versions: Vec<_> = match self.version.or(of_suite) {
            Some(version) => vec![version],
            None => rustls::ALL_VERSIONS.to_vec(),
        };
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions)
            .expect("versions");
        let mut config = if self.verify {
            builder
                .with_root_certificates(pki().roots.clone())
                .with_no_client_auth()
        } else {
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
                .with_no_client_auth()
        };
        config.alpn_protocols.clone_from(&self.alpn);
        config.enable_sni = self.sni;
        config.max_fragment_size = self.fragment;
        config.resumption = Resumption::in_memory_sessions(32);
        config
    }

    /// The name as rustls wants it.
    pub fn server_name(&self) -> ServerName<'static> {
        self.name.clone().try_into().expect("a server name")
    }

    /// Connects and completes the handshake.
    pub async fn connect(&self, addr: SocketAddr) -> TlsClient {
        self.try_connect(addr).await.expect("handshake")
    }

    /// Connects; the error is that of the handshake.
    pub async fn try_connect(&self, addr: SocketAddr) -> io::Result<TlsClient> {
        self.over(connect(addr).await).await
    }

    /// Completes the handshake over this stream.
    pub async fn over<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> io::Result<TlsClient<S>> {
        TlsConnector::from(Arc::new(self.config()))
            .connect(self.server_name(), stream)
            .await
    }
}

/// The alert that ended a handshake.
pub fn alert_in(error: &io::Error) -> u8 {
    match error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>())
    {
        Some(rustls::Error::AlertReceived(alert)) => u8::from(*alert),
        _ => panic!("no alert but {error:?}"),
    }
}

/// Takes any certificate, but not a wrong signature by its key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            cert,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            cert,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A stream that sends one byte at a time, each in a segment of its own, for its first so many bytes.
pub struct OneByteClient {
    stream: TcpStream,
    slowly: usize,
    pause: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl OneByteClient {
    /// Connects; the first `slowly` bytes will go one by one.
    pub async fn connect(addr: SocketAddr, slowly: usize) -> Self {
        Self {
            stream: connect(addr).await,
            slowly,
            pause: None,
        }
    }
}

impl AsyncWrite for OneByteClient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.slowly == 0 || bytes.is_empty() {
            return Pin::new(&mut this.stream).poll_write(cx, bytes);
        }
        // A moment between two bytes, so that the other side really reads them apart.
        let pause = this
            .pause
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(Duration::from_millis(1))));
        std::task::ready!(pause.as_mut().poll(cx));
        this.pause = None;
        let sent = std::task::ready!(Pin::new(&mut this.stream).poll_write(cx, &bytes[..1]))?;
        this.slowly -= sent;
        Poll::Ready(Ok(sent))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl AsyncRead for OneByteClient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

/// A ClientHello written by hand, for what rustls would never offer.
#[derive(Clone, Debug)]
pub struct HandHello {
    /// legacy_version, and the newest one for servers that know no other field.
    pub legacy_version: u16,
    /// The supported_versions extension, if it is sent.
    pub versions: Option<Vec<u16>>,
    /// Cipher suites.
    pub suites: Vec<u16>,
}

impl HandHello {
    /// The record with the message.
    pub fn record(&self) -> Vec<u8> {
        let mut extensions = Vec::new();
        let mut extension = |kind: u16, data: &[u8]| {
            extensions.extend(kind.to_be_bytes());
            extensions.extend(vector(2, data));
        };
        extension(
            0,
            &vector(2, &[&[0][..], &vector(2, b"chat.test")].concat()),
        );
        extension(10, &vector(2, &numbers(&[0x001d, 0x0017])));
        extension(13, &vector(2, &numbers(&[0x0403, 0x0804, 0x0401, 0x0807])));
        if let Some(versions) = &self.versions {
            extension(43, &vector(1, &numbers(versions)));
        }
        // A share on X25519: its base point is as good as any.
        let share = [
            &numbers(&[0x001d])[..],
            &vector(2, &[&[9][..], &[0; 31]].concat()),
        ]
        .concat();
        extension(51, &vector(2, &share));
        let body = [
            &self.legacy_version.to_be_bytes()[..],
            &[0x5a; 32],
            &vector(1, &[0xa5; 32]),
            &vector(2, &numbers(&self.suites)),
            &vector(1, &[0]),
            &vector(2, &extensions),
        ]
        .concat();
        let message = [&[1][..], &vector(3, &body)].concat();
        [&[22, 3, 1][..], &vector(2, &message)].concat()
    }
}

/// Big-endian, one after the other.
fn numbers(numbers: &[u16]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| number.to_be_bytes())
        .collect()
}

/// The bytes behind a length of this many bytes.
fn vector(width: usize, bytes: &[u8]) -> Vec<u8> {
    [
        &bytes.len().to_be_bytes()[size_of::<usize>() - width..],
        bytes,
    ]
    .concat()
}
