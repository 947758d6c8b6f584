//! Drives rustls until a connection is established, and takes the secrets over. The only file that knows rustls'
//! connection API.
//!
//! ```text
//!   Accepting --ClientHello--> Running --Finished, tickets written--> Established (rustls is gone)
//! ```
//!
//! rustls is never fed beyond the record that is being read: what lies behind the peer's Finished is application
//! data that our own record layer shall open. Within a record bytes are handed over as they come, so
//! that a peer which dawdles holds no buffer of the pool, only rustls' own few KiB.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use rustls::client::ClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::{Accepted, AcceptedAlert, Acceptor};
use rustls::{
    CipherSuite, Connection, HandshakeKind, KeyLog, ProtocolVersion, SupportedCipherSuite,
};

use crate::wire::record::{ContentType, HEADER_LEN, Header, TLS12_PAYLOAD_MAX};
use crate::wire::sniff::{Guess, Sniff, sniff};

use super::TlsError;
use super::alert::{Alert, Level};
use super::certs::Chosen;
use super::keys::{Keys, TrafficSecret};
use super::record::{Peer, Protection, RecordLayer};
use super::terms::{BackTerms, ClientChain, Terms};

/// Most bytes of a whole handshake in one direction. An honest one has a few thousand, with a client's
/// certificate chain some ten thousand.
const HANDSHAKE_BYTES_MAX: usize = 128 * 1024;

/// What is known of a connection once it is established.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFacts {
    /// The name that the client asked for.
    pub sni: Option<Box<str>>,
    /// The protocol agreed on by ALPN.
    pub alpn: Option<Box<[u8]>>,
    /// `TLSv1.3` or `TLSv1.2`.
    pub version: &'static str,
    /// The cipher suite's IANA name.
    pub suite: &'static str,
    /// Whether a ticket spared the full handshake.
    pub resumed: bool,
    /// The certificate that a client came with, where it was asked for one.
    pub client: Option<ClientChain>,
    /// Where they are wanted.
    pub bindings: Option<Box<Bindings>>,
}

/// What ties an authentication to this very TLS connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bindings {
    /// `tls-exporter` (RFC 9266). Not secret once the client has used it, but nobody else's business.
    pub exporter: [u8; 32],
    /// `tls-server-end-point` of the certificate that was shown.
    pub end_point: Option<Box<[u8]>>,
}

/// An established connection.
pub struct Established {
    /// What is known of it.
    pub facts: TlsFacts,
    /// Its record layer.
    pub records: RecordLayer,
}

/// What a step has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All input was used; more is needed.
    NeedMore,
    /// The handshake is complete after `consumed` bytes of the input; what follows is application data.
    /// Output, if any, must still be sent; then call [`Handshake::finish`].
    Done {
        /// Bytes of the input that belonged to the handshake.
        consumed: usize,
    },
}

/// A handshake in progress, on either side.
pub struct Handshake {
    state: State,
    header: [u8; HEADER_LEN],
    /// Bytes of the present record's header that are there; its payload follows once all are.
    header_have: usize,
    payload_left: usize,
    total: usize,
    /// Start of the ClientHello: message type, length, and the version that matters for those before TLS 1.2.
    hello: [u8; 6],
    /// How many of them are there; no more are taken once the first record has ended.
    hello_have: usize,
    secrets: Captured,
    sni: Option<Box<str>>,
    /// The host that a client without SNI has told in another way.
    told: Option<Box<str>>,
    /// Whether bindings are wanted, and of which certificate.
    end_point: Option<Option<Box<[u8]>>>,
}

enum State {
    Accepting(Acceptor, Terms),
    Running(Connection),
    /// After an error.
    Ended,
}

impl Handshake {
    /// As the server of a client that has yet to say hello.
    pub fn server(terms: &Terms) -> Self {
        Self::new(State::Accepting(Acceptor::default(), terms.clone()))
    }

    /// As the client of a backend known as `name`; `output` gets the ClientHello.
    ///
    /// # Errors
    /// When rustls cannot begin.
    pub fn client(
        terms: &BackTerms,
        name: ServerName<'static>,
        alpn: &[&[u8]],
        output: &mut Vec<u8>,
    ) -> Result<Self, TlsError> {
        let config = Arc::clone(&terms.config);
        let alpn = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        let connection = ClientConnection::new_with_alpn(config, name, alpn);
        let connection = connection.map_err(TlsError::Handshake)?;
        let mut connection = Connection::from(connection);
        drain(&mut connection, output)?;
        Ok(Self::new(State::Running(connection)))
    }

    fn new(state: State) -> Self {
        Self {
            state,
            header: [0; HEADER_LEN],
            header_have: 0,
            payload_left: 0,
            total: 0,
            hello: [0; 6],
            hello_have: 0,
            secrets: Captured::default(),
            sni: None,
            told: None,
            end_point: None,
        }
    }

    /// A client that sends no SNI gets the certificate of `host`, which it has told in another way.
    #[must_use]
    pub fn told(mut self, host: Option<&str>) -> Self {
        self.told = host.map(Box::from);
        self
    }

    /// Takes what came from the peer; `output` gets what shall be sent. On an error an alert may be in
    /// `output`, to be sent before the end.
    ///
    /// # Errors
    /// The handshake has failed, and this value with it.
    pub fn step(&mut self, input: &[u8], output: &mut Vec<u8>) -> Result<Progress, TlsError> {
        let result = self.advance(input, output);
        if let Err(error) = &result {
            if let Some(alert) = error.alert() {
                output.extend_from_slice(&alert.plain_record(Level::Fatal));
            }
            self.state = State::Ended;
        }
        result
    }

    fn advance(&mut self, input: &[u8], output: &mut Vec<u8>) -> Result<Progress, TlsError> {
        let mut consumed = 0;
        while consumed < input.len() {
            let rest = &input[consumed..];
            let part = if self.header_have < HEADER_LEN {
                let part = rest.len().min(HEADER_LEN - self.header_have);
                self.header[self.header_have..][..part].copy_from_slice(&rest[..part]);
                self.header_have += part;
                if self.header_have == HEADER_LEN {
                    let first_bytes = if part == HEADER_LEN {
                        rest
                    } else {
                        &self.header
                    };
                    self.payload_left = self.checked_payload(first_bytes)?;
                }
                part
            } else {
                let part = rest.len().min(self.payload_left);
                self.note_hello(&rest[..part]);
                self.payload_left -= part;
                part
            };
            self.total += part;
            if self.total > HANDSHAKE_BYTES_MAX {
                return Err(TlsError::HandshakeTooLong);
            }
            self.hand_over(&rest[..part])?;
            consumed += part;
            if self.header_have == HEADER_LEN && self.payload_left == 0 {
                self.header_have = 0;
                if self.process(output)? {
                    return Ok(Progress::Done { consumed });
                }
            }
        }
        Ok(Progress::NeedMore)
    }

    /// Refuses by its header what cannot be part of a handshake.
    fn checked_payload(&self, first_bytes: &[u8]) -> Result<usize, TlsError> {
        let Some(header) = Header::parse(&self.header) else {
            return Err(TlsError::Internal("header"));
        };
        let first = self.total < HEADER_LEN;
        match ContentType::from_u8(header.content_type) {
            None => return Err(TlsError::NotTls(opening(first_bytes))),
            Some(_) if header.major != 3 => return Err(TlsError::NotTls(opening(first_bytes))),
            Some(ContentType::Handshake | ContentType::Alert) => {}
            Some(_) if first => return Err(TlsError::UnexpectedMessage("no ClientHello")),
            Some(_) => {}
        }
        if header.payload > TLS12_PAYLOAD_MAX {
            return Err(TlsError::RecordOverflow);
        }
        if header.payload == 0 && header.content_type != ContentType::ApplicationData as u8 {
            return Err(TlsError::UnexpectedMessage(
                "an empty record in the handshake",
            ));
        }
        Ok(header.payload)
    }

    /// Keeps the first bytes of the first record's payload.
    fn note_hello(&mut self, payload: &[u8]) {
        if let Some(room) = self.hello.get_mut(self.hello_have..) {
            let n = room.len().min(payload.len());
            room[..n].copy_from_slice(&payload[..n]);
            self.hello_have += n;
        }
    }

    /// Whether the client knows nothing newer than TLS 1.1: whoever knows TLS 1.2 or 1.3 says 3.3 here (RFC 8446
    /// section 4.1.2). rustls would first miss extensions that such a client cannot have.
    fn is_old(&self) -> bool {
        const CLIENT_HELLO: u8 = 1;
        self.hello_have == self.hello.len()
            && self.hello[0] == CLIENT_HELLO
            && (self.hello[4], self.hello[5]) < (3, 3)
    }

    /// Copies bytes into rustls' own buffer.
    fn hand_over(&mut self, mut bytes: &[u8]) -> Result<(), TlsError> {
        while !bytes.is_empty() {
            let read = match &mut self.state {
                State::Accepting(acceptor, _) => acceptor.read_tls(&mut bytes),
                State::Running(connection) => connection.read_tls(&mut bytes),
                State::Ended => return Err(TlsError::Internal("a handshake that has failed")),
            };
            match read {
                Ok(0) | Err(_) => return Err(TlsError::HandshakeTooLong),
                Ok(_) => {}
            }
        }
        Ok(())
    }

    /// Lets rustls work on the record that is now whole. True: established.
    fn process(&mut self, output: &mut Vec<u8>) -> Result<bool, TlsError> {
        if matches!(self.state, State::Accepting(..)) {
            if self.is_old() {
                return Err(TlsError::OldVersion);
            }
            self.hello_have = usize::MAX;
        }
        match &mut self.state {
            State::Accepting(acceptor, _) => match acceptor.accept() {
                Ok(None) => return Ok(false),
                Ok(Some(accepted)) => self.accepted(accepted, output)?,
                Err((error, alert)) => return Err(refused(error, alert, output)),
            },
            State::Running(connection) => {
                let before = output.len();
                let processed = connection.process_new_packets();
                self.secrets.drain();
                drain(connection, output)?;
                if let Err(error) = &processed
                    && !matches!(error, rustls::Error::AlertReceived(_))
                    && !self.secrets.any()
                {
                    // Without secrets nothing is encrypted yet.
                    ensure_told(error, before, output);
                }
                let state = processed.map_err(TlsError::Handshake)?;
                if state.peer_has_closed() {
                    return Err(TlsError::UnexpectedMessage("close_notify in the handshake"));
                }
            }
            State::Ended => return Err(TlsError::Internal("a handshake that has failed")),
        }
        let State::Running(connection) = &self.state else {
            return Ok(false);
        };
        Ok(!connection.is_handshaking() && !connection.wants_write())
    }

    /// The ClientHello is whole: choose by it, and answer.
    fn accepted(&mut self, accepted: Accepted, output: &mut Vec<u8>) -> Result<(), TlsError> {
        let State::Accepting(_, terms) = std::mem::replace(&mut self.state, State::Ended) else {
            return Err(TlsError::Internal("not accepting"));
        };
        let name = accepted.client_hello().server_name().map(Box::from);
        if terms.sni_strict
            && let Some(name) = &name
            && terms.certificates.covering(name).is_none()
        {
            return Err(TlsError::UnknownName);
        }
        self.sni = name;
        let asked = self.sni.as_deref().or(self.told.as_deref());
        let pair = terms.certificates.answering(asked);
        if terms.bindings {
            self.end_point = Some(pair.and_then(|pair| pair.end_point.clone()));
        }
        let mut config = Arc::clone(&terms.config);
        if self.sni.is_none()
            && let (Some(_), Some(pair)) = (&self.told, pair)
        {
            Arc::make_mut(&mut config).cert_resolver = Arc::new(Chosen::new(pair));
        }
        match accepted.into_connection(config) {
            Ok(connection) => {
                self.secrets.drain();
                let mut connection = Connection::from(connection);
                drain(&mut connection, output)?;
                self.state = State::Running(connection);
                Ok(())
            }
            Err((error, alert)) => {
                self.secrets.drain();
                Err(refused(error, alert, output))
            }
        }
    }

    /// After [`Progress::Done`]: the record layer, and rustls' state is freed.
    ///
    /// # Errors
    /// When rustls will not part with the secrets; it does so for the configurations that [`Terms`] makes.
    pub fn finish(self) -> Result<Established, TlsError> {
        let State::Running(connection) = self.state else {
            return Err(TlsError::Internal("the handshake is not complete"));
        };
        let suite = connection
            .negotiated_cipher_suite()
            .ok_or(TlsError::Internal("no suite after the handshake"))?;
        let peer = match &connection {
            Connection::Client(_) => Peer::Server,
            Connection::Server(_) => Peer::Client,
        };
        let client = match &connection {
            Connection::Server(server) => server.peer_certificates().map(|chain| {
                ClientChain(chain.iter().map(|der| der.clone().into_owned()).collect())
            }),
            Connection::Client(_) => None,
        };
        let tls13 = connection.protocol_version() == Some(ProtocolVersion::TLSv1_3);
        let bindings = match self.end_point {
            // Before TLS 1.3 the exporter is bound to the connection only with an extension that not all have.
            Some(end_point) if tls13 => {
                let mut exporter = [0; 32];
                connection
                    .export_keying_material(&mut exporter, b"EXPORTER-Channel-Binding", Some(&[]))
                    .map_err(TlsError::Handshake)?;
                Some(Box::new(Bindings {
                    exporter,
                    end_point,
                }))
            }
            _ => None,
        };
        let facts = TlsFacts {
            client,
            bindings,
            sni: self.sni,
            alpn: connection.alpn_protocol().map(Box::from),
            version: if tls13 { "TLSv1.3" } else { "TLSv1.2" },
            suite: iana_name(suite),
            resumed: connection.handshake_kind() == Some(HandshakeKind::Resumed),
        };
        let extracted = connection
            .dangerous_extract_secrets()
            .map_err(TlsError::Handshake)?;
        let records = match suite {
            SupportedCipherSuite::Tls13(suite) => {
                const LOST: TlsError = TlsError::Internal("a traffic secret was not captured");
                let client = self.secrets.client.ok_or(LOST)?;
                let server = self.secrets.server.ok_or(LOST)?;
                let (receive, send) = match peer {
                    Peer::Client => (client, server),
                    Peer::Server => (server, client),
                };
                let receive = Keys::new(extracted.rx, Some((receive, suite)))?;
                let send = Keys::new(extracted.tx, Some((send, suite)))?;
                RecordLayer::new(Protection::Tls13, peer, receive, send)
            }
            SupportedCipherSuite::Tls12(_) => {
                let receive = Keys::new(extracted.rx, None)?;
                let send = Keys::new(extracted.tx, None)?;
                RecordLayer::new(Protection::tls12(send.aead()), peer, receive, send)
            }
        };
        Ok(Established { facts, records })
    }
}

/// The suite's name as IANA has it; rustls has names of its own for those of TLS 1.3.
fn iana_name(suite: SupportedCipherSuite) -> &'static str {
    match suite.suite() {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => "TLS_AES_128_GCM_SHA256",
        CipherSuite::TLS13_AES_256_GCM_SHA384 => "TLS_AES_256_GCM_SHA384",
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => "TLS_CHACHA20_POLY1305_SHA256",
        other => other.as_str().unwrap_or("unknown"),
    }
}

/// A ClientHello that rustls refuses, with its alert.
fn refused(error: rustls::Error, mut alert: AcceptedAlert, output: &mut Vec<u8>) -> TlsError {
    let before = output.len();
    // Writing to a Vec cannot fail.
    let _ = alert.write_all(output);
    ensure_told(&error, before, output);
    TlsError::Handshake(error)
}

/// Where rustls has written nothing since `before` (a message refused by its length alone, a client without a
/// signature scheme for our key), an alert that fits, in the clear: everybody is told.
fn ensure_told(error: &rustls::Error, before: usize, output: &mut Vec<u8>) {
    if output.len() == before {
        let fitting = match error {
            rustls::Error::InvalidMessage(_) => Alert::DECODE_ERROR,
            _ => Alert::HANDSHAKE_FAILURE,
        };
        output.extend_from_slice(&fitting.plain_record(Level::Fatal));
    }
}

/// What somebody says who does not speak TLS, for the log.
fn opening(bytes: &[u8]) -> &'static str {
    match sniff(bytes) {
        Sniff::Is(Guess::Http) => "plain HTTP on a TLS port",
        Sniff::Is(Guess::Xmpp) => "XMPP without TLS (STARTTLS?) on a TLS port",
        Sniff::Is(Guess::Ssh) => "SSH on a TLS port",
        Sniff::Is(Guess::Proxy) => "a PROXY header that is not expected here",
        _ => "the first bytes are no TLS record",
    }
}

/// Moves what rustls wants to send into `output`.
fn drain(connection: &mut Connection, output: &mut Vec<u8>) -> Result<(), TlsError> {
    while connection.wants_write() {
        let written: io::Result<usize> = connection.write_tls(output);
        written.map_err(|_| TlsError::Internal("rustls' output"))?;
    }
    Ok(())
}

/// The secrets that later key updates start from (RFC 8446 section 7.2).
#[derive(Default)]
struct Captured {
    client: Option<TrafficSecret>,
    server: Option<TrafficSecret>,
}

thread_local! {
    /// Filled while rustls processes a record and emptied right after, on the same thread.
    static CAPTURED: RefCell<Captured> = RefCell::default();
}

impl Captured {
    fn any(&self) -> bool {
        self.client.is_some() || self.server.is_some()
    }

    fn drain(&mut self) {
        CAPTURED.with_borrow_mut(|captured| {
            if let Some(secret) = captured.client.take() {
                self.client = Some(secret);
            }
            if let Some(secret) = captured.server.take() {
                self.server = Some(secret);
            }
        });
    }
}

/// A key log that logs nothing: rustls offers the traffic secrets nowhere else.
#[derive(Debug)]
pub(super) struct CaptureSecrets;

impl KeyLog for CaptureSecrets {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        CAPTURED.with_borrow_mut(|captured| match label {
            "CLIENT_TRAFFIC_SECRET_0" => captured.client = TrafficSecret::new(secret),
            "SERVER_TRAFFIC_SECRET_0" => captured.server = TrafficSecret::new(secret),
            _ => {}
        });
    }

    fn will_log(&self, label: &str) -> bool {
        matches!(label, "CLIENT_TRAFFIC_SECRET_0" | "SERVER_TRAFFIC_SECRET_0")
    }
}

/// The name a backend is asked for and verified by; an IP address is one too.
///
/// # Errors
/// When `host` is neither.
pub fn server_name(host: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(host.to_owned()).map_err(|e| format!("{host:?} is no server name: {e}"))
}
