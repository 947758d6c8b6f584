//! An authority of our own for one test run, and certificates by it.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SignatureAlgorithm,
};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

/// A certificate and its key, in files as the program wants them and in memory.
#[derive(Debug)]
pub struct Pair {
    /// PEM chain.
    pub cert: PathBuf,
    /// PEM key.
    pub key: PathBuf,
    /// The end entity's certificate.
    pub der: CertificateDer<'static>,
    key_der: Vec<u8>,
}

impl Pair {
    /// The key for a rustls configuration.
    pub fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.key_der.clone()).into()
    }
}

/// Kind of a certificate's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// P-256.
    Ecdsa,
    /// RSA, 2048 bits.
    Rsa,
    /// Ed25519.
    Ed25519,
}

impl Kind {
    fn algorithm(self) -> &'static SignatureAlgorithm {
        match self {
            Self::Ecdsa => &rcgen::PKCS_ECDSA_P256_SHA256,
            Self::Rsa => &rcgen::PKCS_RSA_SHA256,
            Self::Ed25519 => &rcgen::PKCS_ED25519,
        }
    }
}

/// The authority and the certificates that most tests use.
pub struct Pki {
    issuer: Issuer<'static, KeyPair>,
    /// PEM file with the authority's certificate.
    pub ca: PathBuf,
    /// Trusts the authority alone.
    pub roots: RootCertStore,
    /// For `chat.test` and `localhost`.
    pub chat: Pair,
}

/// The one of this test process.
pub fn pki() -> &'static Pki {
    static PKI: OnceLock<Pki> = OnceLock::new();
    PKI.get_or_init(Pki::new)
}

impl Pki {
    fn new() -> Self {
        let mut params = CertificateParams::new([]).expect("params");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "Vestibule test authority");
        let key = KeyPair::generate_for(Kind::Ecdsa.algorithm()).expect("key");
        let cert = params.self_signed(&key).expect("self-signed");
        let ca = folder().join("ca.pem");
        std::fs::write(&ca, cert.pem()).expect("write");
        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone()).expect("trust anchor");
        let issuer = Issuer::new(params, key);
        let chat = issue(&issuer, Kind::Ecdsa, &["chat.test", "localhost"]);
        Self {
            issuer,
            ca,
            roots,
            chat,
        }
    }

    /// A new certificate for these names; wildcards are allowed.
    pub fn issue(&self, kind: Kind, names: &[&str]) -> Pair {
        issue(&self.issuer, kind, names)
    }
}

fn issue(issuer: &Issuer<'static, KeyPair>, kind: Kind, names: &[&str]) -> Pair {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut params = CertificateParams::new(
        names
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>(),
    )
    .expect("params");
    params
        .distinguished_name
        .push(DnType::CommonName, names[0].to_owned());
    let key = KeyPair::generate_for(kind.algorithm()).expect("key");
    let leaf = params.signed_by(&key, issuer).expect("signed");
    let (cert, key_file) = (
        folder().join(format!("{number}.pem")),
        folder().join(format!("{number}.key")),
    );
    std::fs::write(&cert, leaf.pem()).expect("write");
    std::fs::write(&key_file, key.serialize_pem()).expect("write");
    Pair {
        cert,
        key: key_file,
        der: leaf.der().clone(),
        key_der: key.serialize_der(),
    }
}

/// A folder of this process for files that tests make.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(std::process::id().to_string());
        std::fs::create_dir_all(&folder).expect("a folder for test files");
        folder
    })
}

/// A name in [`folder`] that nobody else uses.
pub fn fresh_path(name: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    folder().join(format!("{}-{name}", COUNT.fetch_add(1, Ordering::Relaxed)))
}
