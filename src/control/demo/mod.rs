//! `vestibule demo`: a throw-away certificate, two small backends and what to try.
//!
//! Nothing here is for production. The backends know nothing of TLS, as real chat servers behind Vestibule; the chat speaks
//! HTTP/1.1 and gets it whatever its browsers speak, the echo speaks nothing at all.

mod chat;

pub use chat::serve_chat;

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, LocalSet, spawn_local};

use crate::config::AdminAddr;
use crate::config::file::File;

use super::telemetry::Telemetry;
use super::{AbortOnDrop, StartError};

/// How long a throw-away certificate is valid: long enough that nobody is warned of its end.
const VALID_FOR: Duration = Duration::from_secs(30 * 86_400);

/// Clocks differ a little between machines and containers.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);

/// Connections that a demo backend serves at once; the next wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 512;

/// Pause after an accept that failed (no file descriptor left), so that it does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// A self-signed certificate for this machine's own names, and its key.
pub struct ThrowawayCertificate {
    /// The certificate as PEM.
    pub cert_pem: String,
    /// Its private key as PEM (PKCS #8).
    pub key_pem: String,
    /// The certificate as DER, for a client that is to trust it.
    pub cert_der: Vec<u8>,
}

/// Makes a certificate for `localhost`, `chat.localhost`, `127.0.0.1` and `::1` (ECDSA P-256) that is
/// valid for 30 days. Its key is nowhere but in the result.
///
/// # Errors
/// When the cryptographic library fails.
pub fn throwaway_certificate() -> Result<ThrowawayCertificate, rcgen::Error> {
    let names = ["localhost", "chat.localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let mut params = rcgen::CertificateParams::new(names)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "Vestibule demo (throw-away)");
    params.not_before = (SystemTime::now() - CLOCK_SKEW).into();
    params.not_after = (SystemTime::now() + VALID_FOR).into();
    params.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let key = rcgen::KeyPair::generate()?;
    let cert = params.self_signed(&key)?;
    Ok(ThrowawayCertificate {
        cert_pem: cert.pem(),
        key_pem: key.serialize_pem(),
        cert_der: cert.der().to_vec(),
    })
}

/// Where the demo is to be found, if these ports are free; else anywhere.
const CHAT_PORT: u16 = 8443;
const ECHO_PORT: u16 = 8444;
const ADMIN_PORT: u16 = 9090;

/// Runs certificate, backends and proxy in this process until Ctrl-C.
///
/// # Errors
/// When it could not start.
pub fn run() -> Result<(), StartError> {
    let runtime = super::event_loop()?;
    let local = LocalSet::new();
    let result = local.block_on(&runtime, serve_all());
    runtime.shutdown_background();
    result
}

async fn serve_all() -> Result<(), StartError> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let chat = bind().await.map_err(StartError::system("demo backend"))?;
    let echo = bind().await.map_err(StartError::system("demo backend"))?;
    let chat_backend = chat
        .local_addr()
        .map_err(StartError::system("demo backend"))?;
    let echo_backend = echo
        .local_addr()
        .map_err(StartError::system("demo backend"))?;
    let (chat_addr, echo_addr) = (free(CHAT_PORT)?, free(ECHO_PORT)?);
    let admin = AdminAddr::Tcp(free(ADMIN_PORT)?);

    let made = throwaway_certificate()
        .map_err(|e| StartError::system("demo certificate")(io::Error::other(e)))?;
    // In memory alone: nothing is left behind, and a read-only root will do.
    let cert = memory_file(made.cert_pem.as_bytes())?;
    let key = memory_file(made.key_pem.as_bytes())?;
    let mut file = File::default();
    file.flags.forwards = vec![
        format!("https://{chat_addr}={chat_backend}"),
        format!("tls://{echo_addr}={echo_backend}"),
    ];
    file.flags.certs = vec![memory_path(&cert)];
    file.flags.keys = vec![memory_path(&key)];
    let mut config = file.resolve()?;
    // Better to read in metrics and on the status page than what is made of scheme and port.
    let names = ["chat", "echo"];
    for (listener, name) in config.listeners.iter_mut().zip(names) {
        listener.name = name.to_owned();
    }
    for (upstream, name) in config.upstreams.iter_mut().zip(names) {
        upstream.name = name.to_owned();
    }
    config.admin = Some(admin.clone());
    config.log.level = "warn".to_owned();
    // Ctrl-C ends it at once: there is nobody to wait for.
    config.timeouts.drain = Duration::from_millis(1);

    let telemetry = Telemetry::install(&config.log)
        .map_err(|e| StartError::system("log")(io::Error::other(e)))?;
    let _chat = AbortOnDrop(spawn_local(serve_chat(chat)));
    let _echo = AbortOnDrop(spawn_local(serve_echo(echo)));
    let load = || Ok(config.clone());
    let started = || print!("{}", banner(chat_addr, echo_addr, Some(&admin)));
    super::serve(config.clone(), telemetry, &load, &started).await
}

/// This port on loopback if it is free, else another.
fn free(port: u16) -> Result<SocketAddr, StartError> {
    let bind = |port| std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    bind(port)
        .or_else(|_| bind(0))
        .and_then(|listener| listener.local_addr())
        .map_err(StartError::system("demo port"))
}

/// A file that exists in memory alone, as long as the descriptor is open.
fn memory_file(content: &[u8]) -> Result<std::fs::File, StartError> {
    let fd = rustix::fs::memfd_create("vestibule-demo", rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(|e| StartError::system("demo certificate")(e.into()))?;
    let mut file = std::fs::File::from(fd);
    file.write_all(content)
        .map_err(StartError::system("demo certificate"))?;
    Ok(file)
}

/// The path under which this process can open it.
fn memory_path(file: &std::fs::File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Sends back what it gets, for ever, on each connection; when a client has ended its side and has
/// everything back, ends the other. Drop the future to stop.
pub async fn serve_echo(listener: TcpListener) {
    serve(listener, "echo", |mut stream: TcpStream| async move {
        let (mut from, mut to) = stream.split();
        // A client that goes away in the middle is no fault of the demo.
        if tokio::io::copy(&mut from, &mut to).await.is_ok() {
            let _ = tokio::io::AsyncWriteExt::shutdown(&mut to).await;
        }
    })
    .await;
}

/// Accepts for ever and gives each connection a task of its own; all end with this future.
async fn serve<F>(listener: TcpListener, what: &'static str, serve_one: impl Fn(TcpStream) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut tasks = JoinSet::new();
    // The semaphore is never closed, so this ends only with the future.
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Small messages are the point of both backends.
                let _ = stream.set_nodelay(true);
                let one = serve_one(stream);
                tasks.spawn(async move {
                    one.await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "demo {what} backend cannot accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
        while tasks.try_join_next().is_some() {}
    }
}

/// What the demo prints: where to look and what to paste. `https_chat` and `tls_echo` are the proxy's
/// addresses, not the backends'.
pub fn banner(https_chat: SocketAddr, tls_echo: SocketAddr, admin: Option<&AdminAddr>) -> String {
    let (chat, echo) = (reachable(https_chat), reachable(tls_echo));
    let mut text = format!(
        "Vestibule demo. TLS ends here; the servers behind know nothing of it.\n\
         \n\
         \x20 In a browser   https://localhost:{port}/\n\
         \x20                The browser warns once about the made-up certificate: go on.\n\
         \x20                A second window makes it a conversation.\n\
         \n\
         \x20 Or paste       # one page, two versions of HTTP; its server speaks 1.1 alone\n\
         \x20                curl -ksI --http1.1 https://localhost:{port}/\n\
         \x20                curl -ksI --http2 https://localhost:{port}/\n\
         \x20                # what was agreed (it grumbles about the made-up certificate)\n\
         \x20                openssl s_client -brief -connect localhost:{port} </dev/null\n\
         \x20                # no HTTP at all: each line you type comes back\n\
         \x20                openssl s_client -quiet -connect {echo}\n",
        port = chat.port(),
    );
    let _ = match admin {
        Some(AdminAddr::Tcp(addr)) => {
            let addr = reachable(*addr);
            writeln!(
                text,
                "\n  Look inside    http://{addr}/\n                 curl http://{addr}/metrics"
            )
        }
        Some(AdminAddr::Unix(path)) => writeln!(
            text,
            "\n  Look inside    curl --unix-socket {} http://localhost/metrics",
            path.display()
        ),
        None => Ok(()),
    };
    text.push_str("\nCtrl-C ends it.\n");
    text
}

/// An address that a client on this machine can connect to.
fn reachable(mut addr: SocketAddr) -> SocketAddr {
    if addr.ip().is_unspecified() {
        addr.set_ip(match addr.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    addr
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

    #[test]
    fn the_certificate_names_this_machine_and_lasts_some_days() {
        let made = throwaway_certificate().unwrap();
        let (_, cert) = X509Certificate::from_der(&made.cert_der).unwrap();
        let names = &cert
            .subject_alternative_name()
            .unwrap()
            .unwrap()
            .value
            .general_names;
        assert!(names.contains(&GeneralName::DNSName("localhost")));
        assert!(names.contains(&GeneralName::DNSName("chat.localhost")));
        assert!(names.contains(&GeneralName::IPAddress(&[127, 0, 0, 1])));
        assert!(names.contains(&GeneralName::IPAddress(&Ipv6Addr::LOCALHOST.octets())));
        assert!(cert.validity().is_valid());
        let left = cert.validity().time_to_expiration().unwrap().whole_hours();
        assert!((29 * 24..=30 * 24).contains(&left), "{left}");
    }

    #[test]
    fn rustls_takes_the_pair_and_a_client_that_trusts_it_connects_by_each_name() {
        use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
        let made = throwaway_certificate().unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let server = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(made.cert_pem.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(made.key_pem.as_bytes()).unwrap(),
            )
            .unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from(made.cert_der)).unwrap();
        let client = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let (server, client) = (Arc::new(server), Arc::new(client));
        for name in ["localhost", "chat.localhost", "127.0.0.1", "::1"] {
            let mut near = rustls::ClientConnection::new(
                Arc::clone(&client),
                ServerName::try_from(name).unwrap(),
            )
            .unwrap();
            let mut far = rustls::ServerConnection::new(Arc::clone(&server)).unwrap();
            while near.is_handshaking() || far.is_handshaking() {
                let mut wire = Vec::new();
                near.write_tls(&mut wire).unwrap();
                far.read_tls(&mut &wire[..]).unwrap();
                far.process_new_packets().unwrap();
                wire.clear();
                far.write_tls(&mut wire).unwrap();
                near.read_tls(&mut &wire[..]).unwrap();
                near.process_new_packets().unwrap();
            }
        }
    }

    #[tokio::test]
    async fn echo_sends_everything_back_after_the_client_has_ended_its_side() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let client = async {
            let stream = TcpStream::connect(addr).await.unwrap();
            let (mut from, mut to) = stream.into_split();
            let sent: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
            let mut back = Vec::new();
            let send = async {
                to.write_all(&sent).await.unwrap();
                to.shutdown().await.unwrap();
            };
            let ((), read) = tokio::join!(send, from.read_to_end(&mut back));
            read.unwrap();
            assert!(back == sent);
        };
        tokio::select! {
            () = serve_echo(listener) => unreachable!(),
            () = client => {}
        }
    }

    #[test]
    fn the_banner_shows_addresses_that_work_and_how_to_end() {
        let admin = AdminAddr::Tcp("127.0.0.1:9100".parse().unwrap());
        let text = banner(
            "0.0.0.0:8443".parse().unwrap(),
            "[::]:8444".parse().unwrap(),
            Some(&admin),
        );
        for part in [
            "https://localhost:8443/",
            "curl -ksI --http1.1 https://localhost:8443/",
            "curl -ksI --http2 https://localhost:8443/",
            "openssl s_client -quiet -connect [::1]:8444",
            "curl http://127.0.0.1:9100/metrics",
            "Ctrl-C ends it.",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(text.lines().all(|line| line.len() < 80), "{text}");
    }
}
