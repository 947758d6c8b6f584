//! A client that has completed a handshake by rustls and from then on writes its records by hand.
//!
//! It may send what no library would: wrong types, bad padding, replays, damaged bytes; and it shows every
//! record that comes back, alerts by number. Keys come from `dangerous_extract_secrets`, and for
//! key updates from the key log.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use ring::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use rustls::crypto::tls13::OkmBlock;
use rustls::{
    ClientConfig, ClientConnection, ConnectionTrafficSecrets, KeyLog, ProtocolVersion,
    SupportedCipherSuite,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::client::Offer;
use super::{End, connect, end_of};

/// ContentType.change_cipher_spec
pub const CCS: u8 = 20;
/// ContentType.alert
pub const ALERT: u8 = 21;
/// ContentType.handshake
pub const HANDSHAKE: u8 = 22;
/// ContentType.application_data
pub const DATA: u8 = 23;

/// KeyUpdate without and with the wish for an answer (RFC 8446 section 4.6.3).
pub const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];
/// The same, and the peer must update too.
pub const KEY_UPDATE_REQUESTED: [u8; 5] = [24, 0, 0, 1, 1];

/// What came from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// A protected record and what it holds.
    Record(u8, Vec<u8>),
    /// A record in the clear.
    Plain(u8, Vec<u8>),
    /// The end of the TCP stream; [`End::CloseNotify`] comes as a record.
    End(End),
}

/// The client.
pub struct RecordClient {
    /// The socket.
    pub tcp: TcpStream,
    inbox: Vec<u8>,
    /// Writing.
    pub tx: Direction,
    /// Reading.
    pub rx: Direction,
    /// Whether the handshake resumed an earlier one.
    pub resumed: bool,
}

impl RecordClient {
    /// Connects and completes the handshake.
    pub async fn connect(addr: SocketAddr, offer: &Offer) -> Self {
        Self::handshake(addr, offer, Arc::new(offer.config()), |_| Vec::new()).await
    }

    /// Completes the handshake and writes `glued(self)` in the same call as the client's last flight.
    ///
    /// `config` is the offer's, perhaps with sessions to resume.
    pub async fn handshake(
        addr: SocketAddr,
        offer: &Offer,
        config: Arc<ClientConfig>,
        glued: impl FnOnce(&mut Self) -> Vec<u8>,
    ) -> Self {
        let secrets = Arc::new(Secrets::default());
        let mut config = ClientConfig::clone(&config);
        config.enable_secret_extraction = true;
        config.key_log = Arc::clone(&secrets) as Arc<dyn KeyLog>;
        let mut tls = ClientConnection::new(Arc::new(config), offer.server_name()).expect("client");
        let mut tcp = connect(addr).await;
        let mut inbox = Vec::new();
        let mut flight = Vec::new();
        loop {
            while tls.wants_write() {
                tls.write_tls(&mut flight).expect("in memory");
            }
            if !tls.is_handshaking() {
                break;
            }
            tcp.write_all(&std::mem::take(&mut flight))
                .await
                .expect("write");
            // One record at a time: what follows the handshake is ours to open.
            let record = next_record(&mut tcp, &mut inbox)
                .await
                .expect("the server's flight");
            tls.read_tls(&mut &record[..]).expect("in memory");
            tls.process_new_packets().expect("handshake");
        }
        let suite = tls.negotiated_cipher_suite().expect("negotiated");
        let resumed = tls.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
        let keys = tls.dangerous_extract_secrets().expect("extraction is on");
        let direction = |(seq, keys), label| Direction::new(suite, seq, keys, secrets.get(label));
        let mut client = Self {
            tcp,
            inbox,
            tx: direction(keys.tx, "CLIENT_TRAFFIC_SECRET_0"),
            rx: direction(keys.rx, "SERVER_TRAFFIC_SECRET_0"),
            resumed,
        };
        flight.extend(glued(&mut client));
        client.send(&flight).await;
        client
    }

    /// Writes these bytes as they are.
    pub async fn send(&mut self, bytes: &[u8]) {
        self.tcp.write_all(bytes).await.expect("write");
    }

    /// Writes as much as the peer takes: it may already have ended the connection.
    pub async fn send_perhaps(&mut self, bytes: &[u8]) {
        let _ = self.tcp.write_all(bytes).await;
    }

    /// Seals one record and writes it.
    pub async fn send_record(&mut self, kind: u8, payload: &[u8]) {
        let record = self.tx.seal(kind, payload);
        self.send(&record).await;
    }

    /// Seals data into records and writes them.
    pub async fn send_data(&mut self, data: &[u8]) {
        for part in data.chunks(1 << 14) {
            self.send_record(DATA, part).await;
        }
    }

    /// Sends close_notify; the socket stays open.
    pub async fn close_notify(&mut self) {
        self.send_record(ALERT, &[1, 0]).await;
    }

    /// The next record, whatever it is.
    pub async fn receive_any(&mut self) -> Received {
        let mut record = match next_record(&mut self.tcp, &mut self.inbox).await {
            Ok(record) => record,
            Err(end) => return Received::End(end),
        };
        let tls13 = self.rx.tls13;
        if tls13 && record[0] != DATA {
            return Received::Plain(record[0], record.split_off(5));
        }
        let (kind, payload) = self.rx.open(&record).expect("the server's record opens");
        Received::Record(kind, payload)
    }

    /// The next record that is not a session ticket.
    pub async fn receive(&mut self) -> Received {
        loop {
            match self.receive_any().await {
                Received::Record(HANDSHAKE, message) if message.first() == Some(&4) => {}
                received => return received,
            }
        }
    }

    /// This many bytes of data, from as many records as it takes.
    pub async fn data(&mut self, len: usize) -> Vec<u8> {
        let mut data = Vec::new();
        while data.len() < len {
            match self.receive().await {
                Received::Record(DATA, part) => data.extend(part),
                other => panic!("after {} of {len} bytes: {other:?}", data.len()),
            }
        }
        data
    }

    /// Everything up to an alert, whose level and description are given too.
    pub async fn alert(&mut self) -> (Vec<u8>, [u8; 2]) {
        let mut data = Vec::new();
        loop {
            match self.receive().await {
                Received::Record(DATA, part) => data.extend(part),
                Received::Record(ALERT, alert) => {
                    return (data, alert.try_into().expect("two bytes"));
                }
                other => panic!("no alert but {other:?}"),
            }
        }
    }

    /// Expects a fatal alert with this description, and then the end of the connection.
    pub async fn expect_fatal(&mut self, description: u8) {
        let (_, alert) = self.alert().await;
        assert_eq!(alert, [2, description], "the alert's level and description");
        match self.receive().await {
            Received::End(_) => {}
            other => panic!("after a fatal alert: {other:?}"),
        }
    }
}

/// One direction of a connection: key, iv and counter.
#[derive(Clone)]
pub struct Direction {
    suite: SupportedCipherSuite,
    tls13: bool,
    key: Vec<u8>,
    iv: [u8; 12],
    /// Number of the next record.
    pub seq: u64,
    secret: Vec<u8>,
}

impl Direction {
    fn new(
        suite: SupportedCipherSuite,
        seq: u64,
        keys: ConnectionTrafficSecrets,
        secret: Vec<u8>,
    ) -> Self {
        let (ConnectionTrafficSecrets::Aes128Gcm { key, iv }
        | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
        | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv }) = keys
        else {
            panic!("an AEAD that the tests do not know");
        };
        let iv = iv.as_ref().try_into().expect("12 bytes");
        Self {
            suite,
            tls13: suite.version().version == ProtocolVersion::TLSv1_3,
            key: key.as_ref().to_vec(),
            iv,
            seq,
            secret,
        }
    }

    /// The next generation of the key (RFC 8446 section 7.2).
    pub fn update(&mut self) {
        let suite = self.suite.tls13().expect("only TLS 1.3 has key updates");
        let expand = |secret: &[u8], label: &[u8], len: usize| {
            let mut out = vec![0; len];
            suite
                .hkdf_provider
                .expander_for_okm(&OkmBlock::new(secret))
                .expand_slice(
                    &[
                        &(len as u16).to_be_bytes(),
                        &[6 + label.len() as u8],
                        b"tls13 ",
                        label,
                        &[0],
                    ],
                    &mut out,
                )
                .expect("short output");
            out
        };
        self.secret = expand(&self.secret, b"traffic upd", self.secret.len());
        self.key = expand(&self.secret, b"key", self.key.len());
        self.iv = expand(&self.secret, b"iv", 12)
            .try_into()
            .expect("12 bytes");
        self.seq = 0;
    }

    /// A record of this type, as the version and suite want it.
    pub fn seal(&mut self, kind: u8, payload: &[u8]) -> Vec<u8> {
        if self.tls13 {
            self.seal_inner(&[payload, &[kind]].concat())
        } else {
            self.seal_tls12(kind, payload, 0)
        }
    }

    /// A record whose length field, authenticated with it, claims `more` bytes of payload than there are.
    pub fn seal_tls12(&mut self, kind: u8, payload: &[u8], more: usize) -> Vec<u8> {
        let (nonce, explicit) = if self.is_chacha() {
            (self.xored(), Vec::new())
        } else {
            let nonce = self.xored();
            (nonce, nonce[4..].to_vec())
        };
        let mut aad = self.seq.to_be_bytes().to_vec();
        aad.extend([kind, 3, 3]);
        aad.extend(((payload.len() + more) as u16).to_be_bytes());
        self.seq += 1;
        let mut body = payload.to_vec();
        self.aead()
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(aad),
                &mut body,
            )
            .expect("seal");
        body.splice(0..0, explicit);
        framed(kind, &body)
    }

    /// TLS 1.3: a record around this inner plaintext, content type and padding included.
    pub fn seal_inner(&mut self, inner: &[u8]) -> Vec<u8> {
        assert!(self.tls13);
        let nonce = self.xored();
        self.seq += 1;
        let mut body = inner.to_vec();
        let len = ((body.len() + 16) as u16).to_be_bytes();
        let aad = Aad::from([DATA, 3, 3, len[0], len[1]]);
        self.aead()
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut body)
            .expect("seal");
        framed(DATA, &body)
    }

    /// Type and payload of a record; `None` if it does not open.
    pub fn open(&mut self, record: &[u8]) -> Option<(u8, Vec<u8>)> {
        let (header, body) = record.split_at(5);
        if self.tls13 {
            let nonce = Nonce::assume_unique_for_key(self.xored());
            self.seq += 1;
            let mut body = body.to_vec();
            let inner = self
                .aead()
                .open_in_place(nonce, Aad::from(header), &mut body)
                .ok()?;
            let end = inner.iter().rposition(|byte| *byte != 0)?;
            return Some((inner[end], inner[..end].to_vec()));
        }
        let (nonce, sealed) = if self.is_chacha() {
            (self.xored(), body)
        } else {
            let (explicit, sealed) = body.split_at_checked(8)?;
            let mut nonce = self.iv;
            nonce[4..].copy_from_slice(explicit);
            (nonce, sealed)
        };
        let mut aad = self.seq.to_be_bytes().to_vec();
        aad.extend([header[0], 3, 3]);
        aad.extend((sealed.len().checked_sub(16)? as u16).to_be_bytes());
        self.seq += 1;
        let mut sealed = sealed.to_vec();
        let plain = self
            .aead()
            .open_in_place(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(aad),
                &mut sealed,
            )
            .ok()?;
        Some((header[0], plain.to_vec()))
    }

    fn xored(&self) -> [u8; 12] {
        let mut nonce = self.iv;
        for (byte, seq) in nonce[4..].iter_mut().zip(self.seq.to_be_bytes()) {
            *byte ^= seq;
        }
        nonce
    }

    fn is_chacha(&self) -> bool {
        format!("{:?}", self.suite.suite()).contains("CHACHA20")
    }

    fn aead(&self) -> LessSafeKey {
        let algorithm = match (self.is_chacha(), self.key.len()) {
            (true, _) => &aead::CHACHA20_POLY1305,
            (false, 16) => &aead::AES_128_GCM,
            (false, _) => &aead::AES_256_GCM,
        };
        LessSafeKey::new(UnboundKey::new(algorithm, &self.key).expect("key length"))
    }
}

/// A record with this body, sealed or not.
pub fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind, 3, 3][..], &(body.len() as u16).to_be_bytes(), body].concat()
}

/// The next whole record off the socket.
async fn next_record(tcp: &mut TcpStream, inbox: &mut Vec<u8>) -> Result<Vec<u8>, End> {
    loop {
        if let [_, _, _, high, low, ..] = inbox[..] {
            let len = 5 + usize::from(u16::from_be_bytes([high, low]));
            if inbox.len() >= len {
                return Ok(inbox.drain(..len).collect());
            }
        }
        match tcp.read_buf(inbox).await {
            Ok(0) if inbox.is_empty() => return Err(End::Fin),
            Ok(0) => panic!("ended within a record: {inbox:02x?}"),
            Ok(_) => {}
            Err(error) => return Err(end_of(&error)),
        }
    }
}

/// The traffic secrets of one connection, as rustls logs them.
#[derive(Debug, Default)]
struct Secrets(Mutex<Vec<(String, Vec<u8>)>>);

impl Secrets {
    fn get(&self, label: &str) -> Vec<u8> {
        let all = self.0.lock().expect("lock");
        all.iter()
            .find(|(own, _)| own == label)
            .map(|(_, secret)| secret.clone())
            .unwrap_or_default()
    }
}

impl KeyLog for Secrets {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        self.0
            .lock()
            .expect("lock")
            .push((label.to_owned(), secret.to_vec()));
    }
}
