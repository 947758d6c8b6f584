//! The user's end: TLS 1.3, and HTTP/1.1 or WebSocket over it.
//!
//! Certificates are not checked, so that the generator leaves the CPU to the proxy.

use crate::frames;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue,
};
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider, kx_group};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, NamedGroup, SignatureScheme};
use std::collections::VecDeque;
use std::io::{self, Error};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
const HEAD_MAX: usize = 65536;

/// What a connection carries.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Bytes, as of XMPP
    Tcp,
    /// HTTP and WebSocket
    Web,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Web => "web",
        }
    }
}

/// Opens connections to one address. Everybody offers one suite and one group, so that every proxy does the
/// same cryptography.
#[derive(Clone)]
pub struct Client {
    addr: SocketAddr,
    connector: TlsConnector,
    mode: Mode,
}

impl Client {
    pub fn new(addr: SocketAddr, mode: Mode, resume: bool) -> Self {
        let mut provider = default_provider();
        provider.cipher_suites = vec![cipher_suite::TLS13_AES_128_GCM_SHA256];
        provider.kx_groups = vec![kx_group::X25519];
        let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3 has a suite and a group")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Unchecked))
            .with_no_client_auth();
        if mode == Mode::Web {
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
        }
        config.resumption = match resume {
            true => Resumption::store(Arc::new(Tickets::default())),
            false => Resumption::disabled(),
        };
        Self {
            addr,
            connector: TlsConnector::from(Arc::new(config)),
            mode,
        }
    }

    /// A connection that speaks bytes, or HTTP.
    pub async fn open(&self) -> io::Result<Connection> {
        let open = async {
            let socket = TcpStream::connect(self.addr).await?;
            socket.set_nodelay(true)?;
            let name = ServerName::try_from("localhost").expect("a name");
            self.connector.connect(name, socket).await
        };
        let tls = tokio::time::timeout(CONNECT_TIMEOUT, open)
            .await
            .map_err(|_| Error::from(io::ErrorKind::TimedOut))??;
        Ok(Connection {
            tls,
            mode: self.mode,
            unread: Vec::new(),
            at: 0,
            frame: Vec::new(),
            mask: 0x9e37_79b9,
        })
    }

    /// A connection for messages: as it is, or with a WebSocket at `path`.
    pub async fn join(&self, path: &str) -> io::Result<Connection> {
        let mut connection = self.open().await?;
        if self.mode == Mode::Web {
            let request = format!(
                "GET {path} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: loadgen\r\nConnection: Upgrade\r\n\
                 Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            );
            connection.send(request.as_bytes()).await?;
            let (status, _) = connection.head().await?;
            if status != 101 {
                return Err(Error::other(format!(
                    "the upgrade was answered by {status}"
                )));
            }
        }
        Ok(connection)
    }
}

/// One user's connection.
pub struct Connection {
    pub tls: TlsStream<TcpStream>,
    mode: Mode,
    /// What has arrived; before `at` it is dealt with.
    unread: Vec<u8>,
    at: usize,
    frame: Vec<u8>,
    mask: u32,
}

impl Connection {
    pub fn resumed(&self) -> bool {
        self.tls.get_ref().1.handshake_kind() == Some(rustls::HandshakeKind::Resumed)
    }

    pub async fn send(&mut self, data: &[u8]) -> io::Result<()> {
        self.tls.write_all(data).await?;
        self.tls.flush().await
    }

    /// Reads once. Safe to cancel.
    pub async fn fill(&mut self) -> io::Result<()> {
        if self.at == self.unread.len() {
            self.unread.clear();
            self.unread.shrink_to(8192);
            self.at = 0;
        } else if self.at > 4096 {
            self.unread.drain(..self.at);
            self.at = 0;
        }
        self.unread.reserve(if self.unread.len() > 1024 {
            32768
        } else {
            1024
        });
        match self.tls.read_buf(&mut self.unread).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    // ---- Messages

    pub async fn say(&mut self, message: &[u8]) -> io::Result<()> {
        if self.mode == Mode::Tcp {
            return self.send(message).await;
        }
        self.mask = self
            .mask
            .wrapping_mul(0x0019_660d)
            .wrapping_add(0x3c6e_f35f);
        let mut frame = std::mem::take(&mut self.frame);
        frame.clear();
        frames::put(
            &mut frame,
            frames::TEXT,
            message,
            Some(self.mask.to_be_bytes()),
        );
        let sent = self.send(&frame).await;
        if frame.capacity() <= 1024 {
            self.frame = frame;
        }
        sent
    }

    /// Waits for the message of `len` bytes that was sent to come back.
    pub async fn hear(&mut self, len: usize) -> io::Result<()> {
        if self.mode == Mode::Tcp {
            let mut scratch = vec![0; len.min(16384)];
            return self.skip(len as u64, &mut scratch).await;
        }
        match self.message().await?.len() {
            got if got == len => Ok(()),
            got => Err(Error::other(format!("{got} bytes came back of {len}"))),
        }
    }

    /// The next WebSocket message.
    pub async fn message(&mut self) -> io::Result<&[u8]> {
        let (from, to) = loop {
            match self.arrived()? {
                Some(place) => break place,
                None => self.fill().await?,
            }
        };
        Ok(&self.unread[from..to])
    }

    /// The next WebSocket message, where it is here already.
    pub fn next(&mut self) -> io::Result<Option<&[u8]>> {
        Ok(self.arrived()?.map(|(from, to)| &self.unread[from..to]))
    }

    fn arrived(&mut self) -> io::Result<Option<(usize, usize)>> {
        match frames::take(&mut self.unread[self.at..]) {
            None => Ok(None),
            Some((frames::TEXT, start, end)) => {
                let at = self.at;
                self.at += end;
                Ok(Some((at + start, at + end)))
            }
            Some((opcode, ..)) => Err(Error::other(format!("a frame of type {opcode} came"))),
        }
    }

    // ---- HTTP

    /// The head of an answer: status and length of its body.
    async fn head(&mut self) -> io::Result<(u16, u64)> {
        let end = loop {
            let unread = &self.unread[self.at..];
            if let Some(at) = unread.windows(4).position(|four| four == b"\r\n\r\n") {
                break self.at + at + 4;
            }
            if unread.len() > HEAD_MAX {
                return Err(Error::other("a head without end"));
            }
            self.fill().await?;
        };
        let head = String::from_utf8_lossy(&self.unread[self.at..end]);
        let status = head
            .get(9..12)
            .and_then(|s| s.parse().ok())
            .ok_or_else(|| Error::other("no status"))?;
        let mut length = 0;
        for (name, value) in head.lines().skip(1).filter_map(|line| line.split_once(':')) {
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().map_err(Error::other)?;
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                return Err(Error::other("chunked answers are not expected"));
            }
        }
        self.at = end;
        Ok((status, length))
    }

    /// An answer, whose body is dropped: its status and length.
    pub async fn answer(&mut self, scratch: &mut [u8]) -> io::Result<(u16, u64)> {
        let (status, length) = self.head().await?;
        let here = ((self.unread.len() - self.at) as u64).min(length);
        self.at += here as usize;
        self.skip(length - here, scratch).await?;
        Ok((status, length))
    }

    pub async fn skip(&mut self, mut bytes: u64, scratch: &mut [u8]) -> io::Result<()> {
        while bytes > 0 {
            let want = bytes.min(scratch.len() as u64) as usize;
            match self.tls.read(&mut scratch[..want]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                got => bytes -= got as u64,
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Unchecked;

impl ServerCertVerifier for Unchecked {
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
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

/// The newest tickets, each used once. A proxy that sends a ticket with every resumption never lets them run
/// out; where they do run out, `resumed_percent` shows the full handshakes.
#[derive(Default, Debug)]
struct Tickets {
    group: Mutex<Option<NamedGroup>>,
    tickets: Mutex<VecDeque<Tls13ClientSessionValue>>,
}

const TICKETS_MAX: usize = 256;

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        *self.group.lock().expect("nobody panics here") = Some(group);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        *self.group.lock().expect("nobody panics here")
    }

    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, _: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        let mut tickets = self.tickets.lock().expect("nobody panics here");
        if tickets.len() >= TICKETS_MAX {
            tickets.pop_front();
        }
        tickets.push_back(ticket);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.tickets.lock().expect("nobody panics here").pop_front()
    }
}
