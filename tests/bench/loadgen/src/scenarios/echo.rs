//! A small message there and back. Without a rate each user sends the next one when the last came back; with one,
//! all together send so many a second, evenly spread.

use crate::Result;
use crate::client::{Client, Mode};
use crate::load::{Load, Pace, Rate, Times};
use crate::report::{Measured, Meter, percentiles, print, rounded};
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

#[derive(clap::Args)]
pub struct Args {
    /// The proxy
    #[arg(long)]
    addr: SocketAddr,
    #[arg(long, value_enum, default_value_t = Mode::Tcp)]
    mode: Mode,
    #[arg(long, default_value_t = 64)]
    conns: usize,
    /// Bytes of a message
    #[arg(long, default_value_t = 50)]
    message: usize,
    #[command(flatten)]
    rate: Rate,
    #[command(flatten)]
    times: Times,
    #[command(flatten)]
    measured: Measured,
}

pub fn run(args: &Args) -> Result<()> {
    let client = Client::new(args.addr, args.mode, false);
    let meter = Meter::new(&args.measured);
    let (conns, message) = (args.conns, args.message);
    let rate = args.rate;
    let load = Load::start(conns, move |index, load| {
        user(client.clone(), message, rate.of_user(index, conns), load)
    })?;
    let measurement = load.measure(args.times, &meter);
    let memory = meter.proxy.memory();
    let (window, done) = (measurement.window, measurement.done);
    let result = json!({
        "mode": args.mode.name(),
        "conns": conns,
        "messages": done,
        "errors": load.errors.load(Relaxed),
        "first_error": load.first_error(),
        "per_second": rounded(done as f64 / window.seconds),
        "cpu_us": window.cpu_us(done),
        "us": percentiles(&measurement.latencies),
        "pss_kib": memory.pss,
    });
    print("echo", result, &window);
    Ok(())
}

async fn user(client: Client, len: usize, mut pace: Pace, load: Arc<Load>) {
    let turn = load.connecting.acquire().await;
    let connected = client.join("/echo").await;
    drop(turn);
    let mut connection = match connected {
        Ok(connection) => connection,
        Err(e) => return load.fail("connect", &e),
    };
    let message = vec![b'm'; len];
    load.begin().await;
    while !load.stopped() {
        pace.due().await;
        let start = Instant::now();
        let echo = async {
            connection.say(&message).await?;
            connection.hear(len).await
        };
        match echo.await {
            Ok(()) => load.done(start),
            Err(e) => return load.fail("echo", &e),
        }
    }
}
