//! Connections that are opened and ended, full or resumed.

use crate::Result;
use crate::client::{Client, Mode};
use crate::load::{Load, Times};
use crate::report::{Measured, Meter, rounded};
use serde_json::json;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(clap::Args)]
pub struct Args {
    /// How many at a time
    #[arg(long, default_value_t = 16)]
    conns: usize,
    /// Resume with the tickets of earlier ones
    #[arg(long)]
    resume: bool,
    #[command(flatten)]
    times: Times,
    #[command(flatten)]
    measured: Measured,
}

pub fn run(args: &Args) -> Result<()> {
    let client = Client::new(args.measured.addr, Mode::Web, args.resume);
    let meter = Meter::new(&args.measured);
    let resumed = Arc::new(AtomicU64::new(0));
    let theirs = resumed.clone();
    let load = Load::start(args.conns, move |_, load| {
        user(client.clone(), theirs.clone(), load)
    })?;
    let measurement = load.measure(args.times, &meter);
    let ever = load.done.load(Relaxed).max(1);
    let result = json!({
        "conns": args.conns,
        "resumed_percent": rounded(100.0 * resumed.load(Relaxed) as f64 / ever as f64),
    });
    load.print("handshake", result, &measurement);
    Ok(())
}

async fn user(client: Client, resumed: Arc<AtomicU64>, load: Arc<Load>) {
    load.begin().await;
    let mut scratch = vec![0; 4096];
    while !load.stopped() {
        let start = Instant::now();
        let handshake = async {
            let mut connection = client.open().await?;
            resumed.fetch_add(connection.resumed().into(), Relaxed);
            // Ends it, and waits for the other side to do so: then it has surely done its half of the handshake,
            // and its tickets are read.
            connection.tls.shutdown().await?;
            match connection.skip(u64::MAX, &mut scratch).await {
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => Ok(()),
                ended => ended,
            }
        };
        match timeout(HANDSHAKE_TIMEOUT, handshake)
            .await
            .unwrap_or(Err(io::ErrorKind::TimedOut.into()))
        {
            Ok(()) => load.done(start),
            Err(e) => return load.fail("handshake", &e),
        }
    }
}
