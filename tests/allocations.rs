//! No heap allocation per record: a counting allocator around a relay in steady state.
//!
//! The relay runs on one thread, whose allocations are counted; client and backend are blocking threads of their own.

#![allow(clippy::unwrap_used, clippy::expect_used, unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use vestibule::endpoint::secure::secure;
use vestibule::endpoint::{Endpoint, Socket};
use vestibule::metrics::cells::ListenerCells;
use vestibule::pool::{Bounds, BufferPool, PerRecord, Pooled};
use vestibule::relay::{Limits, Relay};
use vestibule::tls::certs::{Certificates, Pair};
use vestibule::tls::handshake::{Handshake, Progress, server_name};
use vestibule::tls::record::{Opened, RecordLayer};
use vestibule::tls::terms::{BackTerms, Terms, TicketKey, Wishes};

struct Counting;

static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Set on the thread that the relay runs on.
    static WATCHED: Cell<bool> = const { Cell::new(false) };
}

fn note() {
    if COUNTING.load(SeqCst) && WATCHED.with(Cell::get) {
        ALLOCATIONS.fetch_add(1, SeqCst);
    }
}

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller keeps `alloc_zeroed`'s contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note();
        // SAFETY: the caller keeps `realloc`'s contract.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SMALL: (usize, usize) = (2000, 50);
const BULK: (usize, usize) = (400, 16_384);

struct Client {
    socket: TcpStream,
    records: RecordLayer,
    wire: Vec<u8>,
}

impl Client {
    fn connect(addr: std::net::SocketAddr, terms: &BackTerms) -> Self {
        let mut socket = TcpStream::connect(addr).unwrap();
        socket.set_nodelay(true).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let mut output = Vec::new();
        let name = server_name("chat.test").unwrap();
        let mut handshake = Handshake::client(terms, name, &[], &mut output).unwrap();
        let mut input = [0; 4096];
        let rest = loop {
            socket.write_all(&output).unwrap();
            output.clear();
            let n = socket.read(&mut input).unwrap();
            let progress = handshake.step(&input[..n], &mut output).unwrap();
            if let Progress::Done { consumed } = progress {
                socket.write_all(&output).unwrap();
                break input[consumed..n].to_vec();
            }
        };
        Self {
            socket,
            records: handshake.finish().unwrap().records,
            wire: rest,
        }
    }

    fn send(&mut self, len: usize) {
        let mut buffer = vec![7; len + 64];
        let range = self
            .records
            .sealer
            .seal(&mut None, &mut buffer, 32..32 + len)
            .unwrap();
        self.socket.write_all(&buffer[range]).unwrap();
    }

    fn receive(&mut self, mut len: usize) {
        let mut chunk = [0; 20_000];
        while len > 0 {
            let whole = self.records.opener.record_len(&self.wire).unwrap();
            if let Some(whole) = whole.filter(|whole| *whole <= self.wire.len()) {
                let mut record: Vec<u8> = self.wire.drain(..whole).collect();
                if let Opened::Data(plain) =
                    self.records.opener.open(&mut None, &mut record).unwrap()
                {
                    assert!(record[plain.clone()].iter().all(|byte| *byte == 7));
                    len -= plain.len();
                }
                continue;
            }
            let n = self.socket.read(&mut chunk).unwrap();
            assert_ne!(n, 0, "the relay ended");
            self.wire.extend_from_slice(&chunk[..n]);
        }
    }

    fn echo(&mut self, (rounds, len): (usize, usize)) {
        for _ in 0..rounds {
            self.send(len);
            self.receive(len);
        }
    }
}

fn echo_backend(listener: TcpListener) {
    let (mut socket, _) = listener.accept().unwrap();
    socket.set_nodelay(true).unwrap();
    let mut buffer = vec![0; 65_536];
    loop {
        match socket.read(&mut buffer).unwrap() {
            0 => return,
            n => socket.write_all(&buffer[..n]).unwrap(),
        }
    }
}

/// Allocations on the relay's thread while small and large messages go both ways, after a warm-up.
fn allocations(pooled: bool, tls12: bool) -> usize {
    let made = rcgen::generate_simple_self_signed(vec!["chat.test".to_owned()]).unwrap();
    let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let pair = Pair::from_pem(cert.as_bytes(), key.as_bytes()).unwrap();
    let certificates = Arc::new(Certificates::new(vec![pair]).unwrap());
    let tickets = TicketKey::random().unwrap();
    let terms = Terms::new(
        certificates,
        Wishes {
            tls12: true,
            ..Wishes::default()
        },
        &tickets,
    )
    .unwrap();
    let trust = if tls12 {
        BackTerms::new_tls12
    } else {
        BackTerms::new
    };
    let trust = trust(vec![made.cert.der().clone()]).unwrap();

    let front = TcpListener::bind("127.0.0.1:0").unwrap();
    let back = TcpListener::bind("127.0.0.1:0").unwrap();
    let (front_addr, back_addr) = (front.local_addr().unwrap(), back.local_addr().unwrap());
    let backend = thread::spawn(move || echo_backend(back));
    let client = thread::spawn(move || {
        let mut client = Client::connect(front_addr, &trust);
        client.echo((200, SMALL.1));
        client.echo((50, BULK.1));
        ALLOCATIONS.store(0, SeqCst);
        COUNTING.store(true, SeqCst);
        client.echo(SMALL);
        client.echo(BULK);
        COUNTING.store(false, SeqCst);
        ALLOCATIONS.load(SeqCst)
    });

    WATCHED.set(true);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let bounds = Bounds {
        limit: 16 << 20,
        large_records: 4,
    };
    let pool = if pooled {
        BufferPool::new(bounds, Pooled::default())
    } else {
        BufferPool::new(bounds, PerRecord)
    };
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let magazine = pool.magazine();
        let socket = |stream: TcpStream| {
            stream.set_nonblocking(true).unwrap();
            stream.set_nodelay(true).unwrap();
            Socket::tcp(stream.into()).unwrap()
        };
        let (stream, _) = front.accept().unwrap();
        let front = socket(stream);
        let secured = secure(
            &front,
            Handshake::server(&terms),
            Vec::new(),
            &[],
            &magazine,
        )
        .await;
        let secured = secured.map_err(|e| e.to_string()).unwrap();
        let back = socket(TcpStream::connect(back_addr).unwrap());
        let limits = Limits {
            read_max: 65_536,
            large_records: 4,
            idle: Duration::ZERO,
            half_closed: Duration::from_secs(60),
            stall: Duration::from_secs(60),
            write: Duration::ZERO,
            abort_on_truncation: false,
        };
        let front = Endpoint::secured(front, secured.established.records);
        let cells = Arc::new(ListenerCells::new(0));
        let relay = Relay::new(
            (front, secured.rest),
            (Endpoint::plain(back), None),
            magazine,
            Arc::new(limits),
            cells,
        );
        relay.await;
    });
    backend.join().unwrap();
    assert_eq!(pool.stats().leased_bytes, 0);
    client.join().unwrap()
}

/// One test, since the counter is one.
#[test]
fn a_record_costs_no_allocation_with_the_pool_and_one_without() {
    assert_eq!(allocations(true, false), 0, "TLS 1.3");
    assert_eq!(allocations(true, true), 0, "TLS 1.2");
    let fresh = allocations(false, false);
    let reads = 2 * (SMALL.0 + BULK.0);
    assert!(
        fresh >= reads,
        "without the pool every read has its own buffer: {fresh} for {reads} reads"
    );
}
