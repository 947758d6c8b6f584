//! What a listener offers its clients, and what we accept of a `tls://` backend.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ProducesTickets};
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion, version};

use super::certs::{self, Certificates};
use super::handshake::CaptureSecrets;
use super::verify::{AskClient, Verifier};

/// Key of the session tickets: made at start, renewed every six hours, each accepted for twelve. It
/// outlives reloads, and one serves all workers, so that a session resumes whichever answers (RFC 5077, RFC 8446 4.6.1).
#[derive(Clone, Debug)]
pub struct TicketKey(Arc<dyn ProducesTickets>);

impl TicketKey {
    /// A random key.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn random() -> Result<Self, rustls::Error> {
        Ok(Self(aws_lc_rs::Ticketer::new()?))
    }
}

/// What a listener asks for beside its certificates.
#[derive(Clone, Debug, Default)]
pub struct Wishes<'a> {
    /// Offer TLS 1.2 beside 1.3.
    pub tls12: bool,
    /// Refuse a name that no certificate covers.
    pub sni_strict: bool,
    /// Protocols offered, most wanted first; empty: none is negotiated.
    pub alpn: &'a [String],
    /// Ask clients for a certificate, without demanding one, and verify it later against these.
    pub clients: Option<BackTerms>,
    /// Work out the channel bindings of each connection.
    pub bindings: bool,
}

/// What one listener offers.
#[derive(Clone, Debug)]
pub struct Terms {
    pub(super) config: Arc<ServerConfig>,
    pub(super) certificates: Arc<Certificates>,
    pub(super) sni_strict: bool,
    pub(super) bindings: bool,
    clients: Option<BackTerms>,
}

impl Terms {
    /// Offers these certificates under these wishes.
    ///
    /// # Errors
    /// When the crypto provider lacks a version; it does not.
    pub fn new(
        certificates: Arc<Certificates>,
        wishes: Wishes<'_>,
        tickets: &TicketKey,
    ) -> Result<Self, rustls::Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions(wishes.tls12))?;
        let builder = match &wishes.clients {
            None => builder.with_no_client_auth(),
            Some(trust) => {
                let asks = AskClient(Arc::clone(&trust.verifier));
                builder.with_client_cert_verifier(Arc::new(asks))
            }
        };
        let mut config = builder.with_cert_resolver(Arc::clone(&certificates) as _);
        let alpn = wishes.alpn.iter();
        config.alpn_protocols = alpn.map(|name| name.clone().into_bytes()).collect();
        config.ticketer = Arc::clone(&tickets.0);
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.enable_secret_extraction = true;
        config.key_log = Arc::new(CaptureSecrets);
        Ok(Self {
            config: Arc::new(config),
            certificates,
            sni_strict: wishes.sni_strict,
            bindings: wishes.bindings,
            clients: wishes.clients,
        })
    }

    /// Whether the certificate that a client came with is one that we trust for `name`: its chain, its validity and
    /// the name (XEP-0178 section 3; the purpose is a server's, since servers have no other).
    pub fn verifies(&self, chain: &ClientChain, name: &str) -> bool {
        let (Some(trust), [end_entity, intermediates @ ..]) = (&self.clients, &*chain.0) else {
            return false;
        };
        let Ok(name) = ServerName::try_from(name) else {
            return false;
        };
        let verifier = &trust.verifier;
        verifier
            .verify_server_cert(end_entity, intermediates, &name, &[], UnixTime::now())
            .is_ok()
    }

    /// Whether a name that no certificate covers is refused.
    pub fn sni_strict(&self) -> bool {
        self.sni_strict
    }

    /// The certificates behind it.
    pub fn certificates(&self) -> &Certificates {
        &self.certificates
    }
}

/// The certificate that a client came with, and what it sent with it; not verified yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientChain(pub(super) Box<[CertificateDer<'static>]>);

impl ClientChain {
    /// The common name of its subject, if it has one.
    pub fn common_name(&self) -> Option<String> {
        self.0.first().and_then(certs::common_name)
    }
}

/// What we accept of the backends of one upstream, or of servers that connect to us.
#[derive(Clone, Debug)]
pub struct BackTerms {
    pub(super) config: Arc<ClientConfig>,
    verifier: Arc<Verifier>,
}

/// Why the trust in backends cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The file cannot be read or parsed.
    #[error(
        "cannot be used: {0}; name a PEM file with the backend's certificate or its authority's"
    )]
    File(String),
    /// No certificate in it.
    #[error(
        "has no PEM certificate (BEGIN CERTIFICATE); name the backend's certificate or its authority's"
    )]
    Empty,
    /// Nothing to trust at all.
    #[error(
        "the system has no trusted certificates; name the backend's or its authority's with --backend-ca (file: upstream.ca)"
    )]
    NoRoots,
    /// rustls refuses.
    #[error("{0}")]
    Rustls(String),
}

/// Certificates trusted for backends, read from `file`.
///
/// # Errors
/// When it cannot be read or holds none.
pub fn load_trusted(file: &Path) -> Result<Vec<CertificateDer<'static>>, TrustError> {
    let found: Vec<_> = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect)
        .map_err(|e| TrustError::File(format!("{e:?}")))?;
    if found.is_empty() {
        return Err(TrustError::Empty);
    }
    Ok(found)
}

impl BackTerms {
    /// Trusts what the system trusts, and `own`: authorities, or backends' certificates as they are.
    ///
    /// # Errors
    /// When there is nothing to trust.
    pub fn new(own: Vec<CertificateDer<'static>>) -> Result<Self, TrustError> {
        Self::of(own, versions(true))
    }

    /// The same with TLS 1.2 alone, for tests of how we serve it.
    ///
    /// # Errors
    /// When there is nothing to trust.
    #[doc(hidden)]
    pub fn new_tls12(own: Vec<CertificateDer<'static>>) -> Result<Self, TrustError> {
        Self::of(own, &[&version::TLS12])
    }

    fn of(
        own: Vec<CertificateDer<'static>>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Result<Self, TrustError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        roots.add_parsable_certificates(own.iter().cloned());
        if roots.is_empty() {
            return Err(TrustError::NoRoots);
        }
        let rustls = |e: &dyn std::fmt::Display| TrustError::Rustls(e.to_string());
        let webpki =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .build()
                .map_err(|e| rustls(&e))?;
        let verifier = Arc::new(Verifier {
            pinned: own,
            webpki,
        });
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(|e| rustls(&e))?
            .dangerous() // the name is rustls' warning; webpki stays the verifier
            .with_custom_certificate_verifier(Arc::clone(&verifier) as _)
            .with_no_client_auth();
        config.enable_secret_extraction = true;
        config.key_log = Arc::new(CaptureSecrets);
        Ok(Self {
            config: Arc::new(config),
            verifier,
        })
    }
}

fn versions(tls12: bool) -> &'static [&'static SupportedProtocolVersion] {
    static BOTH: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];
    static NEWER: &[&SupportedProtocolVersion] = &[&version::TLS13];
    if tls12 { BOTH } else { NEWER }
}
