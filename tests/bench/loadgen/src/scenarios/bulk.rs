//! Gibibytes over some connections, down and then up.

use crate::Result;
use crate::client::{Client, Connection, Mode};
use crate::load::Load;
use crate::report::{Measured, Meter, print, rounded};
use serde_json::{Value, json};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::io::AsyncWriteExt;

const GIB: f64 = (1_u64 << 30) as f64;
const TIMEOUT: Duration = Duration::from_secs(120);

#[derive(clap::Args)]
pub struct Args {
    #[arg(long, value_enum, default_value_t = Mode::Tcp)]
    mode: Mode,
    #[arg(long, default_value_t = 4)]
    conns: usize,
    /// Of all connections together, each way
    #[arg(long, default_value_t = 2.0)]
    gib: f64,
    #[command(flatten)]
    measured: Measured,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Down,
    Up,
}

pub fn run(args: &Args) -> Result<()> {
    let client = Client::new(args.measured.addr, args.mode, false);
    let meter = Meter::new(&args.measured);
    let each = (args.gib * GIB / args.conns as f64) as u64;
    let mut result = json!({ "mode": args.mode.name(), "conns": args.conns, "gib": args.gib });
    let mut failed = (0, String::new());
    let mut last = None;
    for (way, name) in [(Way::Down, "down"), (Way::Up, "up")] {
        let (client, mode) = (client.clone(), args.mode);
        let load = Load::start(args.conns, move |_, load| {
            user(client.clone(), mode, way, each, load)
        })?;
        let mark = meter.mark();
        load.until_done(args.conns, TIMEOUT);
        let window = meter.since(&mark);
        result[name] = json!({
            "cpu_s_per_gib": rounded(window.cpu / args.gib),
            "mib_per_second": rounded(args.gib * 1024.0 / window.seconds),
            "pss_kib": meter.proxy.pss(),
        });
        failed.0 += args.conns as u64 - load.done.load(Relaxed);
        failed.1 += &load.first_error();
        load.stop();
        last = Some(window);
    }
    result["errors"] = failed.0.into();
    result["first_error"] = Value::String(failed.1);
    print("bulk", result, &last.expect("two windows"));
    Ok(())
}

async fn user(client: Client, mode: Mode, way: Way, bytes: u64, load: Arc<Load>) {
    let mut connection = match client.open().await {
        Ok(connection) => connection,
        Err(e) => return load.fail("connect", &e),
    };
    load.begin().await;
    match transfer(&mut connection, mode, way, bytes).await {
        Ok(()) => {
            load.done.fetch_add(1, Relaxed);
        }
        Err(e) => load.fail("bulk", &e),
    }
}

async fn transfer(connection: &mut Connection, mode: Mode, way: Way, bytes: u64) -> io::Result<()> {
    let request = match (mode, way) {
        (Mode::Tcp, Way::Down) => [&b"BULKD"[..], &bytes.to_be_bytes()].concat(),
        (Mode::Tcp, Way::Up) => [&b"BULKU"[..], &bytes.to_be_bytes()].concat(),
        (Mode::Web, Way::Down) => {
            format!("GET /bytes/{bytes} HTTP/1.1\r\nHost: localhost\r\n\r\n").into()
        }
        (Mode::Web, Way::Up) => {
            format!("POST /sink HTTP/1.1\r\nHost: localhost\r\nContent-Length: {bytes}\r\n\r\n")
                .into()
        }
    };
    connection.send(&request).await?;
    let mut buffer = vec![0; 65536];
    if way == Way::Up {
        let mut left = bytes;
        while left > 0 {
            let len = left.min(buffer.len() as u64);
            connection.tls.write_all(&buffer[..len as usize]).await?;
            left -= len;
        }
        connection.tls.flush().await?;
    }
    match (mode, way) {
        (Mode::Tcp, Way::Down) => connection.skip(bytes, &mut buffer).await,
        (Mode::Tcp, Way::Up) => connection.skip(1, &mut buffer).await,
        (Mode::Web, _) => match connection.answer(&mut buffer).await? {
            (200, length) if way == Way::Up || length == bytes => Ok(()),
            (status, length) => Err(io::Error::other(format!("status {status}, {length} bytes"))),
        },
    }
}
