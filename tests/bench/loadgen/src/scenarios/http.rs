//! GET requests of 100 bytes, one after the other on connections that are kept, or at a rate.

use crate::Result;
use crate::client::{Client, Mode};
use crate::load::{Load, Pace, Rate, Times};
use crate::report::{Measured, Meter};
use serde_json::json;
use std::sync::Arc;
use std::time::Instant;

const REQUEST: &[u8] =
    b"GET /small HTTP/1.1\r\nHost: localhost\r\nUser-Agent: loadgen\r\nAccept: */*\r\n\r\n";

#[derive(clap::Args)]
pub struct Args {
    #[arg(long, default_value_t = 64)]
    conns: usize,
    #[command(flatten)]
    rate: Rate,
    #[command(flatten)]
    times: Times,
    #[command(flatten)]
    measured: Measured,
}

pub fn run(args: &Args) -> Result<()> {
    let client = Client::new(args.measured.addr, Mode::Web, false);
    let meter = Meter::new(&args.measured);
    let (conns, rate) = (args.conns, args.rate);
    let load = Load::start(conns, move |index, load| {
        user(client.clone(), rate.of_user(index, conns), load)
    })?;
    let measurement = load.measure(args.times, &meter);
    let result = json!({
        "conns": args.conns,
    });
    load.print("http", result, &measurement);
    Ok(())
}

async fn user(client: Client, mut pace: Pace, load: Arc<Load>) {
    let mut connection = match client.open().await {
        Ok(connection) => connection,
        Err(e) => return load.fail("connect", &e),
    };
    let mut scratch = vec![0; 4096];
    load.begin().await;
    while !load.stopped() {
        pace.due().await;
        let start = Instant::now();
        let answer = async {
            connection.send(REQUEST).await?;
            connection.answer(&mut scratch).await
        };
        match answer.await {
            Ok((200, _)) => load.done(start),
            Ok((status, _)) => return load.fail("status", &status),
            Err(e) => return load.fail("get", &e),
        }
    }
}
