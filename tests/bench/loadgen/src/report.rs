//! The window that is measured, and the line of JSON about it.

use crate::usage::{Processes, machine};
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Instant;

/// The proxy, and whose processes are measured.
#[derive(clap::Args)]
pub struct Measured {
    /// Where the proxy listens
    #[arg(long)]
    pub addr: SocketAddr,
    /// Processes of the proxy; what they start is counted with them
    #[arg(long, value_delimiter = ',', required = true)]
    pids: Vec<u32>,
    /// Process of the backend, to tell its share from that of strangers
    #[arg(long)]
    backend_pid: Option<u32>,
}

/// Reads the clocks of proxy, backend and generator.
pub struct Meter {
    pub proxy: Processes,
    generator: Processes,
    backend: Processes,
    /// What fixed work costs here and now. Where it differs between two runs, the machine did.
    fixed_work: Value,
}

/// The beginning of a window.
pub struct Mark {
    at: Instant,
    cpu: [f64; 3],
    machine: crate::usage::Machine,
}

/// What was used between a mark and now.
pub struct Window {
    pub seconds: f64,
    /// Seconds of CPU of the proxy.
    pub cpu: f64,
    json: Value,
}

impl Meter {
    pub fn new(measured: &Measured) -> Self {
        Self {
            proxy: Processes::new(measured.pids.iter().copied()),
            generator: Processes::new([std::process::id()]),
            backend: Processes::new(measured.backend_pid),
            fixed_work: fixed_work(),
        }
    }

    fn cpu(&self) -> [f64; 3] {
        [self.proxy.cpu(), self.generator.cpu(), self.backend.cpu()]
    }

    pub fn mark(&self) -> Mark {
        Mark {
            cpu: self.cpu(),
            machine: machine(),
            at: Instant::now(),
        }
    }

    pub fn since(&self, mark: &Mark) -> Window {
        let seconds = mark.at.elapsed().as_secs_f64();
        let now = self.cpu();
        let [proxy, generator, backend] = std::array::from_fn(|i| now[i] - mark.cpu[i]);
        let (machine, before) = (machine(), mark.machine);
        let busy = machine.busy - before.busy;
        let percent = |cpu: f64| rounded(100.0 * cpu / seconds);
        Window {
            seconds,
            cpu: proxy,
            json: json!({
                "seconds": rounded(seconds),
                "cpu_s": rounded(proxy),
                "cpu_percent": percent(proxy),
                "generator_percent": percent(generator),
                "backend_percent": percent(backend),
                "others_percent": percent((busy - proxy - generator - backend).max(0.0)),
                "steal_percent": percent(machine.steal - before.steal),
                "fixed_work": self.fixed_work,
            }),
        }
    }
}

impl Window {
    pub fn cpu_us(&self, operations: u64) -> Option<f64> {
        (operations > 0).then(|| rounded(self.cpu * 1e6 / operations as f64))
    }
}

/// Prints what was measured, `window` among it, as a line of JSON.
pub fn print(scenario: &str, mut result: Value, window: &Window) {
    if let (Value::Object(result), Value::Object(window)) = (&mut result, &window.json) {
        result.insert("scenario".into(), scenario.into());
        result.extend(window.clone());
    }
    println!("{result}");
}

/// Four digits after the point are more than any clock here knows.
pub fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

/// Nanoseconds from 1 µs to 60 s, with three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1_000, 60_000_000_000, 3).expect("the bounds are in order")
}

/// Percentiles in microseconds of a histogram of nanoseconds.
pub fn percentiles(histogram: &Histogram<u64>) -> Value {
    let us = |ns: u64| rounded(ns as f64 / 1e3);
    let at = |quantile| us(histogram.value_at_quantile(quantile));
    json!({ "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "p999": at(0.999), "max": us(histogram.max()) })
}

/// Microseconds of CPU for 1 MiB of AES-128-GCM, and for 50 bytes through a pair of sockets.
fn fixed_work() -> Value {
    use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
    let cpu_us = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
    };
    let key = LessSafeKey::new(
        UnboundKey::new(&AES_128_GCM, &[1; 16]).expect("the key is as long as it must be"),
    );
    let mut block = [0; 16384];
    let start = cpu_us();
    for _ in 0..2048 {
        let nonce = Nonce::assume_unique_for_key([0; 12]);
        let sealed = key.seal_in_place_separate_tag(nonce, Aad::empty(), &mut block);
        assert!(sealed.is_ok(), "the block is short enough");
    }
    let cipher = (cpu_us() - start) / 32.0;
    let (mut one, mut other) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
    let start = cpu_us();
    for _ in 0..10_000 {
        one.write_all(&block[..50])
            .and_then(|()| other.read_exact(&mut block[..50]))
            .expect("both ends are here");
    }
    json!({ "cipher_us_per_mib": rounded(cipher), "socket_us": rounded((cpu_us() - start) / 10_000.0) })
}
