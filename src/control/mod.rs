//! The control plane: start, signals, reload, drain, and the admin listener, on the main thread's own event loop.
//!
//! ```text
//!   settings -> build (reads, resolves) -> bind -> workers, acceptor -> ready -> signals -> drain -> end
//! ```
//!
//! A fault in the settings is told before the first socket opens. Nothing here is on the data path; the workers
//! share no lock with it.

pub mod admin;
pub mod build;
pub mod check;
pub mod demo;
mod granted;
pub mod healthcheck;
mod instance;
mod page;
mod probe;
pub mod telemetry;

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::LocalSet;

use crate::config::{Config, ConfigError};

use admin::{AdminServer, Readiness};
use instance::Instance;
use telemetry::Telemetry;

/// Reads the settings; called again at each reload.
pub type Load<'a> = &'a dyn Fn() -> Result<Config, ConfigError>;

/// Why `run` could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The settings, or what they name.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The system.
    #[error("{what}: {error}")]
    System {
        /// What was wanted of it.
        what: String,
        /// What it said.
        error: io::Error,
    },
}

impl StartError {
    fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |error| Self::System { what, error }
    }
}

/// The event loop of the control plane. It has one blocking thread beside it, for the resolver.
///
/// # Errors
/// When the system has none.
pub fn event_loop() -> Result<tokio::runtime::Runtime, StartError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()
        .map_err(StartError::system("event loop"))
}

/// Serves until a signal ends it; returns when the drain is over.
///
/// # Errors
/// When it could not start.
pub fn run(load: Load<'_>) -> Result<(), StartError> {
    let config = load()?;
    let telemetry = Telemetry::install(&config.log).map_err(|e| {
        ConfigError::from(crate::config::Fault::new(
            "log.level",
            e.to_string(),
            "use error, warn, info, debug or trace",
        ))
    })?;
    let runtime = event_loop()?;
    let local = LocalSet::new();
    let result = local.block_on(&runtime, serve(config, telemetry, load, &|| {}));
    // A resolver that hangs must not hold up the end.
    runtime.shutdown_background();
    result
}

/// The same within an event loop that runs already; `started` is called once connections are accepted.
///
/// # Errors
/// When it could not start.
pub async fn serve(
    config: Config,
    telemetry: Telemetry,
    load: Load<'_>,
    started: &dyn Fn(),
) -> Result<(), StartError> {
    let mut signals = Signals::new().map_err(StartError::system("signals"))?;
    // Bound before the first listener: a fault is told before anybody is let in.
    let admin = config.admin.as_ref().map(AdminServer::bind).transpose();
    let admin = admin.map_err(StartError::system("--admin"))?;
    let instance = Rc::new(Instance::start(config, telemetry).await?);
    let _admin = admin.map(|server| {
        let source = Rc::clone(&instance);
        AbortOnDrop(tokio::task::spawn_local(server.serve(source)))
    });
    let resolving = Rc::clone(&instance);
    let _resolving = AbortOnDrop(tokio::task::spawn_local(async move {
        resolving.keep_resolving().await
    }));
    let probing = Rc::clone(&instance);
    let _probing = AbortOnDrop(tokio::task::spawn_local(
        async move { probing.probe().await },
    ));
    let watching = Rc::clone(&instance);
    let _watching = AbortOnDrop(tokio::task::spawn_local(async move {
        watching.telemetry.watch().await
    }));
    instance.set_readiness(Readiness::Ready);
    instance.greet();
    started();
    loop {
        match signals.next().await {
            Asked::Reload => instance.reload(load),
            Asked::Stop(name) => {
                tracing::info!(
                    signal = name,
                    connections = instance.connections(),
                    limit_s = instance.config.timeouts.drain.as_secs(),
                    "draining; a second signal ends at once"
                );
                break;
            }
        }
    }
    instance.set_readiness(Readiness::Draining);
    let drained = instance.drain();
    tokio::pin!(drained);
    loop {
        tokio::select! {
            cut = &mut drained => {
                tracing::info!(connections_cut = cut, "drained");
                break;
            }
            asked = signals.next() => match asked {
                Asked::Reload => tracing::warn!("not reloaded: draining"),
                Asked::Stop(name) => {
                    tracing::warn!(
                        signal = name, connections_cut = instance.connections(), "ending at once"
                    );
                    break;
                }
            }
        }
    }
    instance.telemetry.tell_suppressed();
    Ok(())
}

/// What a signal asks for.
enum Asked {
    Reload,
    Stop(&'static str),
}

/// The signals that mean something. Installed before anything else, since a process that is PID 1 gets only those
/// it has a handler for.
struct Signals {
    hangup: Signal,
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.hangup.recv() => Asked::Reload,
            _ = self.interrupt.recv() => Asked::Stop("SIGINT"),
            _ = self.terminate.recv() => Asked::Stop("SIGTERM"),
        }
    }
}

/// A task that ends with its owner.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Joins a thread without blocking the event loop. `None`: it ended badly, and that has been told.
async fn joined<T: Send + 'static>(thread: std::thread::JoinHandle<T>) -> Option<T> {
    let (done, wait) = tokio::sync::oneshot::channel();
    let name = thread.thread().name().unwrap_or("thread").to_owned();
    let spawned = std::thread::Builder::new()
        .name("join".to_owned())
        .spawn(move || {
            let _ = done.send(thread.join().ok());
        });
    let result = if spawned.is_ok() {
        wait.await.ok().flatten()
    } else {
        None
    };
    if result.is_none() {
        tracing::error!(thread = %name, "ended badly");
    }
    result
}

/// Shares what it is given between threads of the process.
fn shared<T>(items: Vec<T>) -> Arc<[T]> {
    items.into()
}
