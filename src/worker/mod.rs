//! Worker threads: each one event loop with its own connections, its own magazine, its own counters.
//!
//! Nothing is shared between workers on the data path but the pool's bound. A session runs from birth to death on
//! one worker; a panic in one ends that connection alone.

pub mod listener;
pub mod session;
pub mod snapshot;

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::timeout;

use crate::metrics::access::AccessLog;
use crate::metrics::cells::WorkerCells;
use crate::pool::BufferPool;

use crate::handler::Common;

use session::Accepted;

/// How others reach a worker.
#[derive(Clone, Debug)]
pub struct WorkerHandle {
    /// Bounded by the limit on connections: each message but the drain holds an admission.
    orders: mpsc::UnboundedSender<Order>,
    /// Connections it has, those on their way included.
    pub connections: Arc<AtomicUsize>,
}

enum Order {
    Serve(Box<Accepted>),
    Drain { limit: Duration },
}

/// The worker has ended.
#[derive(Debug, thiserror::Error)]
#[error("the worker has ended")]
pub struct Gone;

impl WorkerHandle {
    /// Hands a connection over.
    ///
    /// # Errors
    /// When the worker has ended; the connection is closed.
    pub fn serve(&self, accepted: Accepted) -> Result<(), Gone> {
        let order = Order::Serve(Box::new(accepted));
        self.orders.send(order).map_err(|_| Gone)
    }

    /// Lets the worker end once its sessions have, at the latest after `limit` (zero: whenever they have).
    pub fn drain(&self, limit: Duration) {
        // A worker that is gone has drained.
        let _ = self.orders.send(Order::Drain { limit });
    }
}

/// What a worker is made of.
pub struct Parts {
    /// Its number, for the thread's name.
    pub index: usize,
    /// The shared pool.
    pub pool: BufferPool,
    /// Its counters.
    pub cells: WorkerCells,
    /// The access log, if there is one.
    pub access: Option<Arc<AccessLog>>,
}

/// Starts a worker thread. It ends with the number of sessions that its drain has cut off.
///
/// # Errors
/// When the system has no thread or no event loop for it.
pub fn spawn(parts: Parts) -> io::Result<(WorkerHandle, JoinHandle<usize>)> {
    let (orders, inbox) = mpsc::unbounded_channel();
    // Made here, so that a failure is told to who starts it.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let name = format!("worker-{}", parts.index);
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        let local = LocalSet::new();
        let cut = local.block_on(&runtime, work(parts, inbox));
        // Dropping the set ends what is left: each session is counted and logged, and all leases go back.
        drop(local);
        cut
    })?;
    Ok((
        WorkerHandle {
            orders,
            connections: Arc::default(),
        },
        thread,
    ))
}

/// A worker's life: serves what it is handed until it is told to drain.
async fn work(parts: Parts, mut inbox: mpsc::UnboundedReceiver<Order>) -> usize {
    let pool = parts.pool.magazine();
    let recalled = pool.clone();
    spawn_local(async move { recalled.recall().await });
    let common = Rc::new(Common::new(pool, parts.cells, parts.access));
    let tidied = Rc::clone(&common);
    spawn_local(async move { tidied.tidy_up().await });
    let live = Rc::new(Live::default());
    let limit = loop {
        match inbox.recv().await {
            Some(Order::Serve(accepted)) => {
                let common = Rc::clone(&common);
                let alive = Alive::new(&live);
                common.untidy();
                spawn_local(async move {
                    let _alive = alive;
                    session::run(accepted, Rc::clone(&common)).await;
                    common.untidy();
                });
            }
            Some(Order::Drain { limit }) => break limit,
            None => return live.count.get(),
        }
    };
    common.leave.tell(limit);
    if limit.is_zero() {
        live.ended().await;
    } else {
        // Past the limit they are dropped with the set.
        let _ = timeout(limit, live.ended()).await;
    }
    common.leave.end();
    live.count.get()
}

/// The sessions of a worker, counted.
#[derive(Default)]
struct Live {
    count: Cell<usize>,
    none_left: Notify,
}

impl Live {
    async fn ended(&self) {
        while self.count.get() > 0 {
            self.none_left.notified().await;
        }
    }
}

/// One session, counted while it lives, however it ends.
struct Alive(Rc<Live>);

impl Alive {
    fn new(live: &Rc<Live>) -> Self {
        live.count.set(live.count.get() + 1);
        Self(Rc::clone(live))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("a session panicked and ended alone; this is a fault of Vestibule's");
        }
        let left = self.0.count.get() - 1;
        self.0.count.set(left);
        if left == 0 {
            self.0.none_left.notify_one();
        }
    }
}
