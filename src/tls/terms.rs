//! What a listener offers its clients, and what we accept of a `tls://` backend.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::{NoServerSessionStorage, ProducesTickets};
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion, version};

use super::certs::Certificates;
use super::handshake::CaptureSecrets;
use super::verify::Verifier;

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

/// What one listener offers.
#[derive(Clone, Debug)]
pub struct Terms {
    pub(super) config: Arc<ServerConfig>,
    pub(super) certificates: Arc<Certificates>,
    pub(super) sni_strict: bool,
}

impl Terms {
    /// `tls12`: offer TLS 1.2 beside 1.3. `alpn`: protocols offered, most wanted first; empty: none is negotiated.
    ///
    /// # Errors
    /// When the crypto provider lacks a version; it does not.
    pub fn new(
        certificates: Arc<Certificates>,
        tls12: bool,
        sni_strict: bool,
        alpn: &[String],
        tickets: &TicketKey,
    ) -> Result<Self, rustls::Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions(tls12))?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&certificates) as _);
        config.alpn_protocols = alpn.iter().map(|name| name.clone().into_bytes()).collect();
        config.ticketer = Arc::clone(&tickets.0);
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.enable_secret_extraction = true;
        config.key_log = Arc::new(CaptureSecrets);
        Ok(Self {
            config: Arc::new(config),
            certificates,
            sni_strict,
        })
    }

    /// The certificates behind it.
    pub fn certificates(&self) -> &Certificates {
        &self.certificates
    }
}

/// What we accept of the backends of one upstream.
#[derive(Clone, Debug)]
pub struct BackTerms {
    pub(super) config: Arc<ClientConfig>,
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
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(|e| rustls(&e))?
            .dangerous() // the name is rustls' warning; webpki stays the verifier
            .with_custom_certificate_verifier(Arc::new(Verifier {
                pinned: own,
                webpki,
            }))
            .with_no_client_auth();
        config.enable_secret_extraction = true;
        config.key_log = Arc::new(CaptureSecrets);
        Ok(Self {
            config: Arc::new(config),
        })
    }
}

fn versions(tls12: bool) -> &'static [&'static SupportedProtocolVersion] {
    static BOTH: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];
    static NEWER: &[&SupportedProtocolVersion] = &[&version::TLS13];
    if tls12 { BOTH } else { NEWER }
}
