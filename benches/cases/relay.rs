//! One message through the relay, as a worker does it: real sockets on loopback, one thread, the pool, no timer.
//!
//! `up`: a sealed record in the client's socket until its plain text is in the backend's hands; `down`: the reverse. The
//! tasks of client and backend are part of the round, a write and a read each.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::task::LocalSet;
use vestibule::endpoint::{Endpoint, Socket};
use vestibule::metrics::cells::ListenerCells;
use vestibule::pool::{Bounds, BufferPool, PerRecord, Pooled};
use vestibule::relay::{Limits, Relay};

use super::records::{self, Suite};
use super::{Case, Entry};

#[derive(Clone, Copy)]
enum Direction {
    Up,
    Down,
}

struct Message {
    runtime: Runtime,
    tasks: LocalSet,
    client: tokio::net::TcpStream,
    backend: tokio::net::TcpStream,
    /// The client's end of TLS.
    tls: rustls::ClientConnection,
    direction: Direction,
    len: usize,
    received: Vec<u8>,
}

impl Message {
    fn new(direction: Direction, len: usize, pooled: bool) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let tasks = LocalSet::new();
        let (records, tls) = records::vestibule(Suite::Aes128);
        let (client, backend) = tasks.block_on(&runtime, async {
            let (client, front) = pair();
            let (back, backend) = pair();
            let bounds = Bounds {
                limit: 16 << 20,
                large_records: 4,
            };
            let pool = if pooled {
                BufferPool::new(bounds, Pooled::default())
            } else {
                BufferPool::new(bounds, PerRecord)
            };
            let socket = |stream: TcpStream| Socket::tcp(stream.into()).expect("a socket");
            let limits = Limits {
                read_max: 65_536,
                large_records: 4,
                idle: Duration::ZERO,
                half_closed: Duration::from_secs(60),
                stall: Duration::from_secs(60),
                write: Duration::ZERO,
                abort_on_truncation: false,
            };
            let relay = Relay::new(
                (Endpoint::secured(socket(front), records), None),
                (Endpoint::plain(socket(back)), None),
                pool.magazine(),
                Arc::new(limits),
                Arc::new(ListenerCells::new(0)),
            );
            tokio::task::spawn_local(async move {
                relay.await;
            });
            let ours = |stream| tokio::net::TcpStream::from_std(stream).expect("a socket");
            (ours(client), ours(backend))
        });
        Self {
            runtime,
            tasks,
            client,
            backend,
            tls,
            direction,
            len,
            received: vec![0; len + 256],
        }
    }
}

impl Case for Message {
    fn input(&mut self) -> Vec<u8> {
        match self.direction {
            Direction::Up => records::sent(&mut self.tls, self.len),
            Direction::Down => vec![7; self.len],
        }
    }

    fn run(&mut self, input: &[u8]) {
        // A record of TLS 1.3 adds its header, the type and the tag (RFC 8446 section 5.2).
        let (from, to, len) = match self.direction {
            Direction::Up => (&mut self.client, &mut self.backend, self.len),
            Direction::Down => (&mut self.backend, &mut self.client, self.len + 22),
        };
        let received = &mut self.received[..len];
        self.tasks.block_on(&self.runtime, async {
            from.write_all(input).await.expect("the relay is there");
            to.read_exact(received).await.expect("the relay is there");
        });
    }
}

/// Two ends of a connection on loopback.
fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
    let address = listener.local_addr().expect("it is bound");
    let one = TcpStream::connect(address).expect("it listens");
    let (other, _) = listener.accept().expect("one has come");
    for stream in [&one, &other] {
        stream.set_nonblocking(true).expect("a socket");
        stream.set_nodelay(true).expect("a socket");
    }
    (one, other)
}

pub(crate) fn entries() -> Vec<Entry> {
    let mut entries = Vec::new();
    for (name, direction) in [("up", Direction::Up), ("down", Direction::Down)] {
        for (how, pooled) in [("pooled", true), ("per-record", false)] {
            entries.push(Entry::new(format!("relay/{name}/200/{how}"), move || {
                Message::new(direction, 200, pooled)
            }));
        }
    }
    entries
}
