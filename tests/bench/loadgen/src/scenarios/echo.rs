//! A small message there and back. Without a rate each user sends the next one when the last came back; with one,
//! all together send so many a second, evenly spread.

use crate::Result;
use crate::client::{Client, Mode};
use crate::load::{Load, Pace, Rate, Times};
use crate::report::{Measured, Meter};
use serde_json::json;
use std::sync::Arc;
use std::time::Instant;

#[derive(clap::Args)]
pub struct Args {
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
    let client = Client::new(args.measured.addr, args.mode, false);
    let meter = Meter::new(&args.measured);
    let (conns, message) = (args.conns, args.message);
    let rate = args.rate;
    let load = Load::start(conns, move |index, load| {
        user(client.clone(), message, rate.of_user(index, conns), load)
    })?;
    let measurement = load.measure(args.times, &meter);
    let memory = meter.proxy.pss();
    let result = json!({
        "mode": args.mode.name(),
        "conns": conns,
        "pss_kib": memory,
    });
    load.print("echo", result, &measurement);
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
