//! The certificates, and which of them answers for a name.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use zeroize::Zeroizing;

/// Most bytes of a PEM file that are read: a chain with a key is some ten thousand.
const PEM_BYTES_MAX: u64 = 1 << 20;

/// Why a certificate pair cannot be used. Says which file and what to do.
#[derive(Debug, thiserror::Error)]
pub enum CertError {
    /// The file cannot be read.
    #[error("cannot be read: {}; {}", plain(.0), way_to_read(.0))]
    Read(std::io::Error),
    /// The file is larger than any certificate file.
    #[error("has more than 1 MiB; name a PEM file with a certificate chain or a key")]
    TooLarge,
    /// No certificate in it.
    #[error("has no PEM certificate (BEGIN CERTIFICATE); name the file with the full chain")]
    NoCertificate,
    /// No private key in it.
    #[error("has no PEM private key (BEGIN PRIVATE KEY); name the file with the private key")]
    NoKey,
    /// A private key that needs a password.
    #[error("is encrypted; decrypt it: openssl pkey -in FILE -out NEWFILE")]
    Encrypted,
    /// A private key where the chain should be, and the chain where the key should be.
    #[error("is a private key; --cert and --key seem to be swapped")]
    KeyForCert,
    /// The other half of [`CertError::KeyForCert`].
    #[error("is a certificate; --cert and --key seem to be swapped")]
    CertForKey,
    /// Damaged PEM or DER.
    #[error("cannot be parsed: {0}; write the PEM file again from its source")]
    Parse(String),
    /// A kind of key that TLS here does not know.
    #[error(
        "has a key that cannot be used: {0}; use ECDSA P-256 or P-384, RSA of 2048 bits or more, or Ed25519"
    )]
    Key(rustls::Error),
    /// The key belongs to another certificate.
    #[error("does not belong to the certificate; name the key that the certificate was made for")]
    Mismatch,
}

/// What the system says, without its number.
fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((text, _)) => text.to_owned(),
        None => text,
    }
}

fn way_to_read(error: &std::io::Error) -> String {
    if error.kind() == std::io::ErrorKind::PermissionDenied {
        let user = rustix::process::geteuid().as_raw();
        format!("this process runs as user {user}, who must be allowed to read it")
    } else {
        "name a PEM file that exists here".to_owned()
    }
}

/// What is wrong with the files of a pair: never empty.
pub type Faults = Vec<(Which, CertError)>;

/// One certificate chain with its key, and what it is good for.
#[derive(Debug)]
pub struct Pair {
    certified: Arc<CertifiedKey>,
    /// DNS names, lower case; `*.example.org` for a wildcard.
    pub names: Vec<String>,
    /// Seconds since 1970 when it begins to be valid.
    pub not_before: i64,
    /// Seconds since 1970 when it ends.
    pub not_after: i64,
    /// `tls-server-end-point` (RFC 5929 section 4): the hash of the certificate by its signature's own algorithm.
    /// `None` where that has none (Ed25519).
    pub end_point: Option<Box<[u8]>>,
}

/// Which of the two files of a pair is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The chain.
    Cert,
    /// The private key.
    Key,
}

impl Pair {
    /// Reads a PEM chain and its PEM key.
    ///
    /// # Errors
    /// Which file is at fault, and why; both where both are.
    pub fn load(cert: &Path, key: &Path) -> Result<Self, Faults> {
        match (read(cert), read(key)) {
            (Ok(chain), Ok(secret)) => Self::from_pem(&chain, &secret),
            (chain, secret) => {
                let chain = chain.err().map(|error| (Which::Cert, error));
                let secret = secret.err().map(|error| (Which::Key, error));
                Err(chain.into_iter().chain(secret).collect())
            }
        }
    }

    /// The same from PEM text.
    ///
    /// # Errors
    /// Which text is at fault, and why.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, Faults> {
        let cert_error = |e| vec![(Which::Cert, e)];
        let key_error = |e| vec![(Which::Key, e)];
        let parse = |e: rustls::pki_types::pem::Error| CertError::Parse(e.to_string());
        if !holds(chain, CERTIFICATE) && holds(chain, PRIVATE_KEY) && holds(key, CERTIFICATE) {
            return Err(vec![
                (Which::Cert, CertError::KeyForCert),
                (Which::Key, CertError::CertForKey),
            ]);
        }
        if holds(key, OLD_ENCRYPTION) || holds(key, ENCRYPTED_KEY) {
            return Err(key_error(CertError::Encrypted));
        }
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<_, _>>()
            .map_err(|e| cert_error(parse(e)))?;
        let Some(leaf) = chain.first() else {
            return Err(cert_error(CertError::NoCertificate));
        };
        let (names, not_before, not_after) = facts(leaf).map_err(cert_error)?;
        let end_point = end_point(leaf);
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| {
            key_error(match e {
                rustls::pki_types::pem::Error::NoItemsFound => CertError::NoKey,
                other => parse(other),
            })
        })?;
        let signer = any_supported_type(&key).map_err(|e| key_error(CertError::Key(e)))?;
        let certified = CertifiedKey::new(chain, signer);
        match certified.keys_match() {
            Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {}
            Err(_) => return Err(key_error(CertError::Mismatch)),
        }
        Ok(Self {
            certified: Arc::new(certified),
            names,
            not_before,
            not_after,
            end_point,
        })
    }
}

const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";
/// Behind what kind of key it is: `-----BEGIN EC`, or nothing.
const PRIVATE_KEY: &str = "PRIVATE KEY-----";
/// PKCS#8 (RFC 5958).
const ENCRYPTED_KEY: &str = "-----BEGIN ENCRYPTED PRIVATE KEY-----";
/// A header of PEM (RFC 1421) as OpenSSL wrote it before PKCS#8.
const OLD_ENCRYPTION: &str = "Proc-Type: 4,ENCRYPTED";

fn holds(text: &[u8], words: &str) -> bool {
    text.windows(words.len()).any(|at| at == words.as_bytes())
}

/// Reads a bounded file; wiped after use, since it may be a key. Never waits: a FIFO in its place reads as empty.
fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, CertError> {
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(nonblock)
        .open(path)
        .map_err(CertError::Read)?;
    let len = file
        .metadata()
        .map_or(0, |facts| facts.len())
        .min(PEM_BYTES_MAX);
    // Room for all of it at once: a buffer that grows leaves copies behind that nobody wipes.
    let mut bytes = Zeroizing::new(Vec::with_capacity(len as usize + 64));
    file.take(PEM_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(CertError::Read)?;
    if bytes.len() as u64 > PEM_BYTES_MAX {
        return Err(CertError::TooLarge);
    }
    Ok(bytes)
}

/// DNS names of subjectAltName, and validity.
fn facts(leaf: &CertificateDer<'_>) -> Result<(Vec<String>, i64, i64), CertError> {
    use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
    let (_, parsed) =
        X509Certificate::from_der(leaf).map_err(|e| CertError::Parse(e.to_string()))?;
    let san = parsed
        .subject_alternative_name()
        .map_err(|e| CertError::Parse(e.to_string()))?;
    let names = san.map_or_else(Vec::new, |san| {
        san.value
            .general_names
            .iter()
            .filter_map(|name| match name {
                GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
                _ => None,
            })
            .collect()
    });
    let validity = parsed.validity();
    Ok((
        names,
        validity.not_before.timestamp(),
        validity.not_after.timestamp(),
    ))
}

/// See [`Pair::end_point`].
fn end_point(leaf: &CertificateDer<'_>) -> Option<Box<[u8]>> {
    use aws_lc_rs::digest::{SHA256, SHA384, SHA512, digest};
    use x509_parser::prelude::{FromDer, X509Certificate};
    let (_, parsed) = X509Certificate::from_der(leaf).ok()?;
    let algorithm = match parsed.signature_algorithm.algorithm.to_id_string().as_str() {
        // ecdsa-with-SHA384 and -SHA512 (RFC 5758 section 3.2), RSA with the same (RFC 8017 appendix C).
        "1.2.840.10045.4.3.3" | "1.2.840.113549.1.1.12" => &SHA384,
        "1.2.840.10045.4.3.4" | "1.2.840.113549.1.1.13" => &SHA512,
        // MD5 and SHA-1 are replaced by SHA-256, says the RFC.
        "1.2.840.10045.4.3.2" | "1.2.840.113549.1.1.11" | "1.2.840.113549.1.1.5" => &SHA256,
        _ => return None,
    };
    Some(digest(algorithm, leaf).as_ref().into())
}

/// The common name of a certificate's subject.
pub(super) fn common_name(leaf: &CertificateDer<'_>) -> Option<String> {
    use x509_parser::prelude::{FromDer, X509Certificate};
    let (_, parsed) = X509Certificate::from_der(leaf).ok()?;
    let name = parsed.subject().iter_common_name().next()?;
    name.as_str().ok().map(str::to_owned)
}

/// The store: exact name, else wildcard of one label (RFC 6125 section 6.4.3), else the first pair.
#[derive(Debug)]
pub struct Certificates {
    pairs: Vec<Pair>,
    exact: HashMap<String, usize>,
    /// Keyed by what follows `*.`.
    wildcard: HashMap<String, usize>,
}

impl Certificates {
    /// A store of these; the first is the default. `None` if there are none.
    pub fn new(pairs: Vec<Pair>) -> Option<Self> {
        if pairs.is_empty() {
            return None;
        }
        let mut exact = HashMap::new();
        let mut wildcard = HashMap::new();
        for (at, pair) in pairs.iter().enumerate() {
            for name in &pair.names {
                match name.strip_prefix("*.") {
                    Some(parent) => wildcard.entry(parent.to_owned()).or_insert(at),
                    None => exact.entry(name.clone()).or_insert(at),
                };
            }
        }
        Some(Self {
            pairs,
            exact,
            wildcard,
        })
    }

    /// All of them, the default first.
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// The pair that covers `name`, if one does.
    pub fn covering(&self, name: &str) -> Option<&Pair> {
        // SNI is compared without regard to case (RFC 6066 section 3); rustls hands it out in lower case
        // only for some inputs, so it is folded here, on the stack where it is short.
        let mut folded = [0; 253];
        let folded = folded.get_mut(..name.len())?;
        folded.copy_from_slice(name.as_bytes());
        folded.make_ascii_lowercase();
        let name = std::str::from_utf8(folded).ok()?;
        let at = self.exact.get(name).or_else(|| {
            let (label, parent) = name.split_once('.')?;
            (!label.is_empty()).then(|| self.wildcard.get(parent))?
        })?;
        self.pairs.get(*at)
    }
}

impl Certificates {
    /// The pair for a client that asks for `name`: the one that covers it, else the default.
    pub(super) fn answering(&self, name: Option<&str>) -> Option<&Pair> {
        let pair = name.and_then(|name| self.covering(name));
        pair.or_else(|| self.pairs.first())
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let pair = self.answering(hello.server_name())?;
        Some(Arc::clone(&pair.certified))
    }
}

/// One pair whatever is asked for: for a client that asks for none, and has told its host in another way.
#[derive(Debug)]
pub(super) struct Chosen(Arc<CertifiedKey>);

impl Chosen {
    pub(super) fn new(pair: &Pair) -> Self {
        Self(Arc::clone(&pair.certified))
    }
}

impl ResolvesServerCert for Chosen {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use super::*;

    fn pair(names: &[&str]) -> Pair {
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let key = made.signing_key.serialize_pem();
        Pair::from_pem(made.cert.pem().as_bytes(), key.as_bytes()).unwrap()
    }

    #[test]
    fn a_name_finds_its_exact_then_its_wildcard_certificate() {
        let store = Certificates::new(vec![
            pair(&["chat.example.org", "*.example.org"]),
            pair(&["Special.example.org"]),
        ])
        .unwrap();
        let of = |name| store.covering(name).map(|p| p.names[0].as_str());
        assert_eq!(of("chat.example.org"), Some("chat.example.org"));
        assert_eq!(of("SPECIAL.example.org"), Some("special.example.org"));
        assert_eq!(of("other.example.org"), Some("chat.example.org"));
        assert_eq!(of("a.b.example.org"), None, "a wildcard covers one label");
        assert_eq!(of("example.org"), None);
        assert_eq!(of(".example.org"), None);
        assert_eq!(of(&"x".repeat(300)), None);
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let one = rcgen::generate_simple_self_signed(vec!["a.test".to_owned()]).unwrap();
        let two = rcgen::generate_simple_self_signed(vec!["b.test".to_owned()]).unwrap();
        let error = Pair::from_pem(
            one.cert.pem().as_bytes(),
            two.signing_key.serialize_pem().as_bytes(),
        )
        .unwrap_err();
        let (which, error) = &error[0];
        assert_eq!(*which, Which::Key);
        assert!(matches!(error, CertError::Mismatch), "{error:?}");
    }

    #[test]
    fn files_that_are_none_say_so() {
        let made = rcgen::generate_simple_self_signed(vec!["a.test".to_owned()]).unwrap();
        let cert = made.cert.pem();
        let key = made.signing_key.serialize_pem();
        let pkcs8 = key.replace(" PRIVATE", " ENCRYPTED PRIVATE");
        let old = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nAAAA\n-----END RSA PRIVATE KEY-----\n";
        let encrypted = "key is encrypted; decrypt it: openssl pkey -in FILE -out NEWFILE";
        for (chain, secret, message) in [
            (
                key.as_str(),
                cert.as_str(),
                "cert is a private key; --cert and --key seem to be swapped, \
                 key is a certificate; --cert and --key seem to be swapped",
            ),
            (&cert, &pkcs8, encrypted),
            (&cert, old, encrypted),
            (
                &cert,
                &cert,
                "key has no PEM private key (BEGIN PRIVATE KEY); name the file with the private key",
            ),
            (
                &key,
                &key,
                "cert has no PEM certificate (BEGIN CERTIFICATE); name the file with the full chain",
            ),
        ] {
            let faults = Pair::from_pem(chain.as_bytes(), secret.as_bytes()).unwrap_err();
            let told: Vec<String> = faults
                .iter()
                .map(|(which, error)| match which {
                    Which::Cert => format!("cert {error}"),
                    Which::Key => format!("key {error}"),
                })
                .collect();
            assert_eq!(told.join(", "), message);
        }
    }

    #[test]
    fn files_that_cannot_be_read_are_both_told_with_the_way_out() {
        let absent = Path::new("/nowhere/to/be.pem");
        let faults = Pair::load(absent, absent).unwrap_err();
        assert_eq!(faults.len(), 2);
        let user = rustix::process::geteuid().as_raw();
        let denied = CertError::Read(std::io::Error::from_raw_os_error(13));
        for (error, message) in [
            (
                &faults[0].1,
                "cannot be read: No such file or directory; name a PEM file that exists here"
                    .to_owned(),
            ),
            (
                &denied,
                format!(
                    "cannot be read: Permission denied; this process runs as user {user}, who must be allowed to read it"
                ),
            ),
        ] {
            assert_eq!(error.to_string(), message);
        }
    }
}
