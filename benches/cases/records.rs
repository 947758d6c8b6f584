//! The record layer against rustls itself: the same handshake, the same records, opened and sealed by either.
//!
//! `open`: a record lies in the socket and shall lie there as plain text. `seal`: the reverse. The socket's read is a
//! copy into a buffer of ours, its write a copy out of it, on both sides; what rustls copies beyond that is its cost.
//! A burst is four full records that came with one read.

use std::hint::black_box;
use std::io::{Read, Write};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{CipherSuite, ClientConfig, ClientConnection, RootCertStore, ServerConfig};
use rustls::{ServerConnection, SupportedCipherSuite};
use vestibule::tls::certs::{Certificates, Pair};
use vestibule::tls::handshake::{Handshake, Progress};
use vestibule::tls::record::{Opened, RecordLayer};
use vestibule::tls::terms::{Terms, TicketKey, Wishes};

use super::{Case, Entry};

#[derive(Clone, Copy)]
pub(crate) enum Suite {
    Aes128,
    Aes256,
    ChaCha20,
}

impl Suite {
    fn supported(self) -> SupportedCipherSuite {
        let wanted = match self {
            Self::Aes128 => CipherSuite::TLS13_AES_128_GCM_SHA256,
            Self::Aes256 => CipherSuite::TLS13_AES_256_GCM_SHA384,
            Self::ChaCha20 => CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
        };
        let mut all = aws_lc_rs::ALL_CIPHER_SUITES.iter();
        *all.find(|suite| suite.suite() == wanted)
            .expect("rustls has all three")
    }

    fn provider(self) -> Arc<CryptoProvider> {
        Arc::new(CryptoProvider {
            cipher_suites: vec![self.supported()],
            ..aws_lc_rs::default_provider()
        })
    }
}

const NAME: &str = "chat.example.org";

thread_local! {
    /// One for all, so that every client trusts every server.
    static CERTIFICATE: (CertificateDer<'static>, Vec<u8>, String, String) = {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).expect("a certificate");
        let key = &made.signing_key;
        (made.cert.der().clone(), key.serialize_der(), made.cert.pem(), key.serialize_pem())
    };
}

/// A client that speaks this suite alone.
pub(crate) fn client_config(suite: Suite) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    CERTIFICATE.with(|(der, ..)| roots.add(der.clone()).expect("it is a certificate"));
    let config = ClientConfig::builder_with_provider(suite.provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the suites are of TLS 1.3");
    Arc::new(config.with_root_certificates(roots).with_no_client_auth())
}

fn client(suite: Suite) -> ClientConnection {
    let name = NAME.try_into().expect("a name");
    let mut client = ClientConnection::new(client_config(suite), name).expect("a client");
    client.set_buffer_limit(None);
    client
}

/// Our server, after the handshake, and its client.
pub(crate) fn vestibule(suite: Suite) -> (RecordLayer, ClientConnection) {
    let terms = CERTIFICATE.with(|(_, _, cert, key)| {
        let pair = Pair::from_pem(cert.as_bytes(), key.as_bytes()).expect("they belong together");
        let certificates = Arc::new(Certificates::new(vec![pair]).expect("there is one"));
        let tickets = TicketKey::random().expect("the system has randomness");
        Terms::new(certificates, Wishes::default(), &tickets).expect("the provider has TLS 1.3")
    });
    let mut client = client(suite);
    let mut server = Handshake::server(&terms);
    loop {
        let (mut up, mut down) = (Vec::new(), Vec::new());
        client.write_tls(&mut up).expect("a vector takes all");
        let progress = server.step(&up, &mut down).expect("the handshake goes on");
        receive(&mut client, &down);
        if let Progress::Done { .. } = progress {
            let established = server.finish().expect("it is done");
            return (established.records, client);
        }
    }
}

fn receive(client: &mut ClientConnection, mut wire: &[u8]) {
    while !wire.is_empty() {
        client.read_tls(&mut wire).expect("a slice can be read");
        client.process_new_packets().expect("the server is sound");
    }
}

/// The server of rustls, after the handshake, and its client.
fn rustls(suite: Suite) -> (ServerConnection, ClientConnection) {
    let (der, key) = CERTIFICATE.with(|(der, key, ..)| (der.clone(), key.clone()));
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key));
    let config = ServerConfig::builder_with_provider(suite.provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .and_then(|config| {
            config
                .with_no_client_auth()
                .with_single_cert(vec![der], key)
        })
        .expect("they belong together");
    let mut server = ServerConnection::new(Arc::new(config)).expect("a server");
    server.set_buffer_limit(None);
    let mut client = client(suite);
    while client.is_handshaking() || server.is_handshaking() {
        let (mut up, mut down) = (Vec::new(), Vec::new());
        client.write_tls(&mut up).expect("a vector takes all");
        let mut wire = &up[..];
        while !wire.is_empty() {
            server.read_tls(&mut wire).expect("a slice can be read");
            server.process_new_packets().expect("the client is sound");
        }
        while server.wants_write() {
            server.write_tls(&mut down).expect("a vector takes all");
        }
        receive(&mut client, &down);
    }
    (server, client)
}

/// Bytes of a buffer: room for a burst of four records and what goes around them.
const BUFFER: usize = 80 << 10;
/// The largest plain text of a record (RFC 8446 section 5.1).
const RECORD: usize = 16_384;

struct Ours {
    records: RecordLayer,
    client: ClientConnection,
    buffer: Vec<u8>,
    out: Vec<u8>,
    len: usize,
}

impl Ours {
    fn new(suite: Suite, len: usize) -> Self {
        let (records, client) = vestibule(suite);
        Self {
            records,
            client,
            buffer: vec![0; BUFFER],
            out: Vec::with_capacity(BUFFER),
            len,
        }
    }
}

struct OpenOurs(Ours);

impl Case for OpenOurs {
    fn input(&mut self) -> Vec<u8> {
        sent(&mut self.0.client, self.0.len)
    }

    fn run(&mut self, input: &[u8]) {
        let Ours {
            records,
            buffer,
            out,
            ..
        } = &mut self.0;
        out.clear();
        let mut rest = &mut buffer[..input.len()];
        rest.copy_from_slice(black_box(input));
        let mut cipher = None;
        while let Some(len) = records.opener.record_len(rest).expect("a record") {
            let (record, next) = rest.split_at_mut(len);
            match records.opener.open(&mut cipher, record).expect("sound") {
                Opened::Data(plain) => out.extend_from_slice(&record[plain]),
                _ => unreachable!("the client sends nothing else"),
            }
            rest = next;
        }
        black_box(out);
    }
}

struct SealOurs(Ours);

impl Case for SealOurs {
    fn input(&mut self) -> Vec<u8> {
        vec![7; self.0.len]
    }

    fn run(&mut self, input: &[u8]) {
        let Ours {
            records,
            buffer,
            out,
            ..
        } = &mut self.0;
        out.clear();
        let protection = records.sealer.protection();
        let stride = protection.head_len() + RECORD + protection.tail_len();
        let mut cipher = None;
        for (piece, place) in black_box(input)
            .chunks(RECORD)
            .zip(buffer.chunks_mut(stride))
        {
            let plain = protection.head_len()..protection.head_len() + piece.len();
            place[plain.clone()].copy_from_slice(piece);
            let record = records.sealer.seal(&mut cipher, place, plain);
            out.extend_from_slice(&place[record.expect("it fits")]);
        }
        black_box(out);
    }
}

struct Theirs {
    server: ServerConnection,
    client: ClientConnection,
    buffer: Vec<u8>,
    out: Vec<u8>,
    len: usize,
}

impl Theirs {
    fn new(suite: Suite, len: usize) -> Self {
        let (server, client) = rustls(suite);
        Self {
            server,
            client,
            buffer: vec![0; BUFFER],
            out: Vec::with_capacity(BUFFER),
            len,
        }
    }
}

struct OpenTheirs(Theirs);

impl Case for OpenTheirs {
    fn input(&mut self) -> Vec<u8> {
        sent(&mut self.0.client, self.0.len)
    }

    fn run(&mut self, input: &[u8]) {
        let Theirs {
            server,
            buffer,
            out,
            ..
        } = &mut self.0;
        out.clear();
        let mut wire = black_box(input);
        while !wire.is_empty() {
            server.read_tls(&mut wire).expect("a slice can be read");
            let state = server.process_new_packets().expect("sound");
            let mut left = state.plaintext_bytes_to_read();
            while left > 0 {
                let n = server.reader().read(buffer).expect("there is some");
                out.extend_from_slice(&buffer[..n]);
                left -= n;
            }
        }
        black_box(out);
    }
}

struct SealTheirs(Theirs);

impl Case for SealTheirs {
    fn input(&mut self) -> Vec<u8> {
        vec![7; self.0.len]
    }

    fn run(&mut self, input: &[u8]) {
        let Theirs {
            server,
            buffer,
            out,
            ..
        } = &mut self.0;
        out.clear();
        let plain = &mut buffer[..input.len()];
        plain.copy_from_slice(black_box(input));
        server.writer().write_all(plain).expect("no limit is set");
        while server.wants_write() {
            server.write_tls(out).expect("a vector takes all");
        }
        black_box(out);
    }
}

/// So much payload as the client puts it on the wire.
pub(crate) fn sent(client: &mut ClientConnection, len: usize) -> Vec<u8> {
    let mut wire = Vec::new();
    client
        .writer()
        .write_all(&vec![7; len])
        .expect("no limit is set");
    while client.wants_write() {
        client.write_tls(&mut wire).expect("a vector takes all");
    }
    wire
}

pub(crate) fn entries() -> Vec<Entry> {
    let suites = [
        ("aes128", Suite::Aes128),
        ("aes256", Suite::Aes256),
        ("chacha20", Suite::ChaCha20),
    ];
    let sizes = [
        ("100", 100),
        ("1400", 1400),
        ("16384", RECORD),
        ("4x16384", 4 * RECORD),
    ];
    let mut entries = Vec::new();
    for (suite_name, suite) in suites {
        for (size, len) in sizes {
            let name = |step, who| format!("{step}/{suite_name}/{size}/{who}");
            entries.extend([
                Entry::new(name("open", "vestibule"), move || {
                    OpenOurs(Ours::new(suite, len))
                }),
                Entry::new(name("open", "rustls"), move || {
                    OpenTheirs(Theirs::new(suite, len))
                }),
                Entry::new(name("seal", "vestibule"), move || {
                    SealOurs(Ours::new(suite, len))
                }),
                Entry::new(name("seal", "rustls"), move || {
                    SealTheirs(Theirs::new(suite, len))
                }),
            ]);
        }
    }
    entries
}
