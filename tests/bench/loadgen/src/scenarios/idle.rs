//! Silent connections. Each said a little once, as users do: three messages of 50 bytes and one of 64 KiB. Then
//! all are silent; then all at once send 256 KiB and get them back, and are silent again.

use crate::Result;
use crate::client::{Client, Mode};
use crate::load::Load;
use crate::report::{Measured, Meter, print, rounded};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::Duration;

const SMALL: [usize; 3] = [50; 3];
const LARGE: usize = 64 << 10;
const BURST: usize = 256 << 10;
const BURST_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(clap::Args)]
pub struct Args {
    #[arg(long, value_enum, default_value_t = Mode::Tcp)]
    mode: Mode,
    #[arg(long, default_value_t = 4000)]
    conns: usize,
    /// Seconds of silence before memory is read
    #[arg(long, default_value_t = 3.0)]
    settle: f64,
    /// Seconds of silence whose CPU is measured
    #[arg(long, default_value_t = 5.0)]
    hold: f64,
    #[command(flatten)]
    measured: Measured,
}

pub fn run(args: &Args) -> Result<()> {
    let client = Client::new(args.measured.addr, args.mode, false);
    let meter = Meter::new(&args.measured);
    let base = meter.proxy.pss();
    let load = Load::start(args.conns, move |_, load| user(client.clone(), load))?;
    sleep(Duration::from_secs_f64(args.settle));
    let (idle, mark) = (meter.proxy.pss(), meter.mark());
    sleep(Duration::from_secs_f64(args.hold));
    let window = meter.since(&mark);
    let held = meter.proxy.pss();

    let ready = load.ready();
    load.until_done(ready as usize, BURST_TIMEOUT);
    let burst = meter.proxy.pss();
    sleep(Duration::from_secs(1));
    let after = meter.proxy.pss();
    let alive = load.done.load(Relaxed);
    load.stop();

    let each = |kib: u64| rounded((kib as f64 - base as f64) / ready.max(1) as f64);
    let result = json!({
        "conns": args.conns,
        "lost": args.conns as u64 - alive,
        "errors": load.errors.load(Relaxed),
        "first_error": load.first_error(),
        "base_kib": base,
        "idle_kib": idle,
        "kib_per_conn": each(idle),
        "kib_per_conn_held": each(held),
        "kib_per_conn_in_burst": each(burst),
        "kib_per_conn_after_burst": each(after),
    });
    print("idle", result, &window);
    Ok(())
}

async fn user(client: Client, load: Arc<Load>) {
    let connected = async {
        let _turn = load
            .connecting
            .acquire()
            .await
            .map_err(std::io::Error::other)?;
        let mut connection = client.join("/echo").await?;
        for len in SMALL.into_iter().chain([LARGE]) {
            connection.say(&vec![b'i'; len]).await?;
            connection.hear(len).await?;
        }
        std::io::Result::Ok(connection)
    };
    let mut connection = match connected.await {
        Ok(connection) => connection,
        Err(e) => return load.fail("connect", &e),
    };
    load.begin().await;
    let burst = async {
        connection.say(&vec![b'b'; BURST]).await?;
        connection.hear(BURST).await
    };
    match burst.await {
        Ok(()) => load.done.fetch_add(1, Relaxed),
        Err(e) => return load.fail("burst", &e),
    };
    while !load.stopped() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
