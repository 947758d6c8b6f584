//! Many users at once: they get ready, begin together, are measured, and stop.

use crate::Result;
use crate::report::{Meter, Window, histogram, percentiles, print, rounded};
use hdrhistogram::Histogram;
use serde_json::Value;
use std::fmt::Display;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// How many users connect at a time: a queue of connections that wait for their handshakes is not measured here.
const CONNECTING: usize = 64;
/// How long all of them may take.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

const WAITING: u8 = 0;
const WARMING: u8 = 1;
const MEASURED: u8 = 2;
const STOPPED: u8 = 3;

/// What all users of a scenario share. They live on one thread; the thread that measures reads the counters.
pub struct Load {
    phase: AtomicU8,
    ready: AtomicU64,
    /// Operations that ended well, ever.
    pub done: AtomicU64,
    pub errors: AtomicU64,
    first_error: Mutex<Option<String>>,
    latencies: Mutex<Histogram<u64>>,
    pub connecting: Semaphore,
}

/// What a window gave.
pub struct Measurement {
    window: Window,
    /// Operations in it.
    done: u64,
    latencies: Histogram<u64>,
}

/// When the window is, in seconds.
#[derive(clap::Args, Clone, Copy)]
pub struct Times {
    /// Seconds of load before what is measured
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    /// Seconds that are measured
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

impl Load {
    /// Starts `users` tasks `user(index, load)` on a thread of their own, and waits until each is ready or has failed.
    pub fn start<F>(
        users: usize,
        user: impl Fn(usize, Arc<Self>) -> F + Send + 'static,
    ) -> Result<Arc<Self>>
    where
        F: Future<Output = ()> + 'static,
    {
        let load = Arc::new(Self {
            phase: AtomicU8::new(WAITING),
            ready: AtomicU64::new(0),
            done: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            first_error: Mutex::default(),
            latencies: Mutex::new(histogram()),
            connecting: Semaphore::new(CONNECTING),
        });
        let theirs = load.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            let tasks = tokio::task::LocalSet::new();
            for index in 0..users {
                tasks.spawn_local(user(index, theirs.clone()));
            }
            runtime.block_on(tasks);
        });
        let start = Instant::now();
        while load.ready.load(Relaxed) + load.errors.load(Relaxed) < users as u64 {
            if start.elapsed() > READY_TIMEOUT {
                let ready = load.ready.load(Relaxed);
                return Err(format!(
                    "only {ready} of {users} connections; first error: {}",
                    load.first_error()
                )
                .into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(load)
    }

    pub fn ready(&self) -> u64 {
        self.ready.load(Relaxed)
    }

    /// Says that this user is ready, and waits for all the others.
    pub async fn begin(&self) {
        self.ready.fetch_add(1, Relaxed);
        while self.phase.load(Relaxed) == WAITING {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub fn stopped(&self) -> bool {
        self.phase.load(Relaxed) == STOPPED
    }

    /// Counts an operation that began at `start`.
    pub fn done(&self, start: Instant) {
        self.done.fetch_add(1, Relaxed);
        if self.phase.load(Relaxed) == MEASURED {
            // Beyond 60 s it would be an error of its own; the scenarios end before.
            self.latencies
                .lock()
                .expect("nobody panics here")
                .saturating_record(start.elapsed().as_nanos() as u64);
        }
    }

    pub fn fail(&self, what: &str, error: &impl Display) {
        self.errors.fetch_add(1, Relaxed);
        self.first_error
            .lock()
            .expect("nobody panics here")
            .get_or_insert_with(|| format!("{what}: {error}"));
    }

    pub fn first_error(&self) -> String {
        self.first_error
            .lock()
            .expect("nobody panics here")
            .clone()
            .unwrap_or_default()
    }

    /// Lets the users begin, warms up, and measures what they do.
    pub fn measure(&self, times: Times, meter: &Meter) -> Measurement {
        self.phase.store(WARMING, Relaxed);
        std::thread::sleep(Duration::from_secs_f64(times.warmup));
        let (mark, before) = (meter.mark(), self.done.load(Relaxed));
        self.phase.store(MEASURED, Relaxed);
        std::thread::sleep(Duration::from_secs_f64(times.seconds));
        let done = self.done.load(Relaxed) - before;
        let window = meter.since(&mark);
        self.stop();
        let latencies = self.latencies.lock().expect("nobody panics here").clone();
        Measurement {
            window,
            done,
            latencies,
        }
    }

    /// Prints what was measured, beside what only this scenario knows.
    pub fn print(&self, scenario: &str, mut result: Value, measurement: &Measurement) {
        let Measurement {
            window,
            done,
            latencies,
        } = measurement;
        result["operations"] = (*done).into();
        result["errors"] = self.errors.load(Relaxed).into();
        result["first_error"] = self.first_error().into();
        result["per_second"] = rounded(*done as f64 / window.seconds).into();
        result["cpu_us"] = window.cpu_us(*done).into();
        result["us"] = percentiles(latencies);
        print(scenario, result, window);
    }

    /// Lets the users begin, and waits until `users` operations ended one way or the other, or `limit` is over.
    pub fn until_done(&self, users: usize, limit: Duration) {
        self.phase.store(WARMING, Relaxed);
        let (start, before) = (Instant::now(), self.ended());
        while self.ended() - before < users as u64 && start.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn ended(&self) -> u64 {
        self.done.load(Relaxed) + self.errors.load(Relaxed)
    }

    pub fn stop(&self) {
        self.phase.store(STOPPED, Relaxed);
    }
}

/// How often all users together do something.
#[derive(clap::Args, Clone, Copy)]
pub struct Rate {
    /// Operations a second of all users together, evenly spread; else each as soon as the last one ended
    #[arg(long)]
    rate: Option<f64>,
}

/// When one user's next operation is due.
pub struct Pace {
    first: Duration,
    period: Option<Duration>,
    due: Option<tokio::time::Instant>,
}

impl Rate {
    pub fn of_user(self, index: usize, users: usize) -> Pace {
        let period = self
            .rate
            .map(|rate| Duration::from_secs_f64(users as f64 / rate));
        let first = period
            .unwrap_or_default()
            .mul_f64(index as f64 / users as f64);
        Pace {
            first,
            period,
            due: None,
        }
    }
}

impl Pace {
    pub async fn due(&mut self) {
        let Some(period) = self.period else { return };
        let due = match self.due {
            Some(last) => last + period,
            None => tokio::time::Instant::now() + self.first,
        };
        self.due = Some(due);
        tokio::time::sleep_until(due).await;
    }
}
