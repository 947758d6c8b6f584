//! The proxy that one writes first: accept with tokio-rustls, connect, `copy_bidirectional`.

use crate::Result;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

#[derive(clap::Args)]
pub struct Args {
    /// Where to listen, and where to forward to; may be given again
    #[arg(long, value_parser = forward, required = true, value_name = "LISTEN=BACKEND")]
    forward: Vec<(SocketAddr, SocketAddr)>,
    #[arg(long)]
    cert: PathBuf,
    #[arg(long)]
    key: PathBuf,
    #[arg(long, default_value_t = 2)]
    workers: usize,
}

fn forward(text: &str) -> std::result::Result<(SocketAddr, SocketAddr), String> {
    let (listen, backend) = text.split_once('=').ok_or("LISTEN=BACKEND is wanted")?;
    Ok((
        listen.parse().map_err(|e| format!("{listen}: {e}"))?,
        backend.parse().map_err(|e| format!("{backend}: {e}"))?,
    ))
}

pub fn run(args: &Args) -> Result<()> {
    let certs =
        CertificateDer::pem_file_iter(&args.cert)?.collect::<std::result::Result<Vec<_>, _>>()?;
    let mut config = ServerConfig::builder_with_protocol_versions(&[&rustls::version::TLS13])
        .with_no_client_auth()
        .with_single_cert(certs, PrivateKeyDer::from_pem_file(&args.key)?)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(args.workers)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut listeners = tokio::task::JoinSet::new();
        for &(listen, backend) in &args.forward {
            let listener = TcpListener::bind(listen).await?;
            listeners.spawn(accept(listener, backend, acceptor.clone()));
        }
        while listeners.join_next().await.is_some() {}
        Ok(())
    })
}

async fn accept(listener: TcpListener, backend: SocketAddr, acceptor: TlsAcceptor) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            continue;
        };
        let acceptor = acceptor.clone();
        // Faults end their connection; the generator at the other end counts them.
        tokio::spawn(async move {
            client.set_nodelay(true)?;
            let mut client = acceptor.accept(client).await?;
            let mut backend = TcpStream::connect(backend).await?;
            backend.set_nodelay(true)?;
            tokio::io::copy_bidirectional(&mut client, &mut backend).await
        });
    }
}
