//! A relay alone, polled by hand's count: what must not make it busy.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::task::{LocalSet, spawn_local, yield_now};

use vestibule::endpoint::secure::secure;
use vestibule::endpoint::{Endpoint, Socket};
use vestibule::metrics::cells::ListenerCells;
use vestibule::pool::{Bounds, BufferPool, Pooled};
use vestibule::relay::{Limits, Relay};
use vestibule::tls::certs::{Certificates, Pair};
use vestibule::tls::handshake::{Handshake, Progress, server_name};
use vestibule::tls::record::RecordLayer;
use vestibule::tls::terms::{BackTerms, Terms, TicketKey, Wishes};

const LIMITS: Limits = Limits {
    read_max: 65_536,
    large_records: 4,
    idle: Duration::ZERO,
    half_closed: Duration::from_secs(600),
    stall: Duration::from_secs(600),
    write: Duration::ZERO,
    abort_on_truncation: false,
};

/// A client that shakes hands, blocking, on our own record layer, and returns when the server has ended its side.
fn client(addr: std::net::SocketAddr, trust: &BackTerms) -> (TcpStream, RecordLayer) {
    let mut socket = TcpStream::connect(addr).unwrap();
    let mut output = Vec::new();
    let name = server_name("chat.test").unwrap();
    let mut handshake = Handshake::client(trust, name, &[], &mut output).unwrap();
    let mut input = [0; 4096];
    loop {
        socket.write_all(&output).unwrap();
        output.clear();
        let n = socket.read(&mut input).unwrap();
        if let Progress::Done { .. } = handshake.step(&input[..n], &mut output).unwrap() {
            socket.write_all(&output).unwrap();
            // Tickets, close_notify, FIN: then that way is over.
            socket
                .set_read_timeout(Some(Duration::from_secs(10)))
                .unwrap();
            socket.read_to_end(&mut Vec::new()).unwrap();
            return (socket, handshake.finish().unwrap().records);
        }
    }
}

fn nonblocking(stream: TcpStream) -> Socket {
    stream.set_nonblocking(true).unwrap();
    Socket::tcp(stream.into()).unwrap()
}

/// A key update that asks for one in return, when nothing more can be sent: the reply has to wait for ever, and
/// half a record keeps a buffer occupied. Neither is a reason to work.
#[test]
fn a_reply_that_cannot_be_sent_does_not_make_a_relay_spin() {
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
    let trust = BackTerms::new(vec![made.cert.der().clone()]).unwrap();

    let front = TcpListener::bind("127.0.0.1:0").unwrap();
    let back = TcpListener::bind("127.0.0.1:0").unwrap();
    let (front_addr, back_addr) = (front.local_addr().unwrap(), back.local_addr().unwrap());
    let client = thread::spawn(move || client(front_addr, &trust));

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let bounds = Bounds {
        limit: 16 << 20,
        large_records: 4,
    };
    let pool = BufferPool::new(bounds, Pooled::default());
    LocalSet::new().block_on(&runtime, async {
        let magazine = pool.magazine();
        let front = nonblocking(front.accept().unwrap().0);
        let handshake = Handshake::server(&terms);
        let secured = secure(&front, handshake, Vec::new(), &[], &magazine).await;
        let secured = secured.map_err(|e| e.to_string()).unwrap();
        let to_back = nonblocking(TcpStream::connect(back_addr).unwrap());
        let backend = back.accept().unwrap().0;
        let relay = Relay::new(
            (
                Endpoint::secured(front, secured.established.records),
                secured.rest,
            ),
            (Endpoint::plain(to_back), None),
            magazine,
            Arc::new(LIMITS),
            Arc::new(ListenerCells::new(0)),
        );
        let polls = Rc::new(Cell::new(0_usize));
        let counted = Rc::clone(&polls);
        let task = spawn_local(async move {
            let mut relay = pin!(relay);
            poll_fn(|cx| {
                counted.set(counted.get() + 1);
                relay.as_mut().poll(cx)
            })
            .await
        });

        // The backend ends its side; the way to the client is over.
        backend.shutdown(std::net::Shutdown::Write).unwrap();
        while !client.is_finished() {
            yield_now().await;
        }
        let (mut socket, mut records) = client.join().unwrap();

        let mut room = [0; 64];
        let update = records.sealer.key_update_asking(&mut room, 0).unwrap();
        socket.write_all(&room[update]).unwrap();
        socket.write_all(&[23, 3, 3, 1, 0, 1, 2, 3]).unwrap(); // half a record

        // Until both have arrived and been worked on.
        while pool.stats().leased_bytes == 0 {
            yield_now().await;
            tokio::task::yield_now().await;
        }
        let before = polls.get();
        for _ in 0..1000 {
            yield_now().await;
        }
        let more = polls.get() - before;
        assert!(more < 20, "polled {more} times while nothing came");
        drop(socket);
        let outcome = task.await.unwrap();
        assert_eq!(outcome.end.outcome(), "truncated");
    });
}
