//! The servers behind the proxy, without TLS.
//!
//! TCP: what comes goes back. Where the first bytes are `BULKD` or `BULKU` and eight bytes of length, it is a
//! download or an upload of so many bytes instead; an upload is answered by one byte.
//!
//! HTTP/1.1: `GET /bytes/N` answers with N bytes, anything else with 100; bodies are read and dropped. WebSocket:
//! on `/chat` rooms of five to ten users, where everybody hears all that is said; elsewhere what comes goes back.

use crate::Result;
use crate::frames;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

const ROOM_SIZES: [usize; 6] = [5, 8, 6, 10, 7, 9];
const CHUNK: usize = 256 * 1024;

#[derive(clap::Args)]
pub struct Args {
    #[arg(long)]
    tcp_port: u16,
    #[arg(long)]
    http_port: u16,
}

pub fn run(args: &Args) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async {
        let (echo, http) = (listen(args.tcp_port)?, listen(args.http_port)?);
        let rooms = Arc::new(Rooms::default());
        // Faults end their connection; the generator at the other end counts them.
        tokio::join!(
            accept(&echo, |socket| async { drop(echo_conn(socket).await) }),
            accept(&http, move |socket| {
                let rooms = rooms.clone();
                async { drop(http_conn(socket, rooms).await) }
            }),
        );
        Ok(())
    })
}

fn listen(port: u16) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(([127, 0, 0, 1], port).into())?;
    socket.listen(4096)
}

async fn accept<F: Future<Output = ()> + Send + 'static>(
    listener: &TcpListener,
    serve: impl Fn(TcpStream) -> F,
) {
    loop {
        if let Ok((socket, _)) = listener.accept().await {
            let _ = socket.set_nodelay(true);
            tokio::spawn(serve(socket));
        }
    }
}

// ---- A connection's two ends

/// The writing end: writes at once, keeps what the socket did not take.
struct Out {
    w: OwnedWriteHalf,
    pending: Mutex<Vec<u8>>,
    waker: Mutex<Option<Waker>>,
}

impl Out {
    fn new(w: OwnedWriteHalf) -> Arc<Out> {
        Arc::new(Out {
            w,
            pending: Mutex::default(),
            waker: Mutex::default(),
        })
    }

    fn send(&self, data: &[u8]) {
        let mut p = self.pending.lock().unwrap();
        let mut at = 0;
        if p.is_empty() {
            while at < data.len() {
                match self.w.try_write(&data[at..]) {
                    Ok(n) => at += n,
                    Err(_) => break, // a dead peer shows at the reading end
                }
            }
        }
        if at < data.len() {
            p.extend_from_slice(&data[at..]);
            if let Some(w) = self.waker.lock().unwrap().take() {
                w.wake();
            }
        }
    }

    fn poll_flush(&self, cx: &mut Context<'_>) -> io::Result<()> {
        let mut p = self.pending.lock().unwrap();
        while !p.is_empty() {
            let s: &TcpStream = self.w.as_ref();
            match s.poll_write_ready(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(r) => r?,
            }
            match self.w.try_write(&p) {
                Ok(n) => drop(p.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
        if p.capacity() > 0 {
            *p = Vec::new();
        }
        let mut w = self.waker.lock().unwrap();
        if !w.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
            *w = Some(cx.waker().clone());
        }
        Ok(())
    }
}

/// Reads once, and flushes what is pending meanwhile. Stops reading while more than
/// 1 MiB waits to go out.
async fn read_some(r: &mut OwnedReadHalf, out: &Out, buf: &mut [u8]) -> io::Result<usize> {
    poll_fn(|cx| {
        out.poll_flush(cx)?;
        if out.pending.lock().unwrap().len() > 1 << 20 {
            return Poll::Pending;
        }
        let mut rb = ReadBuf::new(buf);
        match Pin::new(&mut *r).poll_read(cx, &mut rb) {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(rb.filled().len())),
            Poll::Ready(Err(e)) => Poll::Ready(Err(e)),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

// ---- TCP port

async fn echo_conn(s: TcpStream) -> io::Result<()> {
    let (mut r, w) = s.into_split();
    let out = Out::new(w);
    let mut buf = vec![0u8; 16384];
    let mut n = r.read(&mut buf).await?;
    if n >= 13 && buf.starts_with(b"BULK") {
        let len = u64::from_be_bytes(buf[5..13].try_into().unwrap());
        let down = buf[4] == b'D';
        let Ok(out) = Arc::try_unwrap(out) else {
            unreachable!()
        };
        let mut s = r.reunite(out.w).expect("same stream");
        if down {
            return send_zeros(&mut s, len).await;
        }
        skip(&mut s, len.saturating_sub(n as u64 - 13)).await?;
        return s.write_all(b"k").await;
    }
    while n > 0 {
        out.send(&buf[..n]);
        n = read_some(&mut r, &out, &mut buf).await?;
    }
    Ok(())
}

async fn send_zeros(s: &mut (impl tokio::io::AsyncWrite + Unpin), mut len: u64) -> io::Result<()> {
    static ZEROS: [u8; CHUNK] = [0; CHUNK];
    while len > 0 {
        let n = len.min(CHUNK as u64) as usize;
        s.write_all(&ZEROS[..n]).await?;
        len -= n as u64;
    }
    Ok(())
}

async fn skip(s: &mut (impl AsyncRead + Unpin), mut len: u64) -> io::Result<()> {
    let mut buf = vec![0u8; CHUNK];
    while len > 0 {
        let want = len.min(CHUNK as u64) as usize;
        let n = s.read(&mut buf[..want]).await?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        len -= n as u64;
    }
    Ok(())
}

// ---- HTTP port

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().skip(1).find_map(|l| {
        let (k, v) = l.split_once(':')?;
        k.eq_ignore_ascii_case(name).then(|| v.trim())
    })
}

async fn http_conn(mut s: TcpStream, rooms: Arc<Rooms>) -> io::Result<()> {
    let small = response(&[b'x'; 100]);
    let mut buf: Vec<u8> = Vec::with_capacity(1024);
    loop {
        let end = loop {
            if let Some(i) = buf.windows(4).position(|w| w == b"\r\n\r\n") {
                break i + 4;
            }
            if buf.len() > 65536 || s.read_buf(&mut buf).await? == 0 {
                return Ok(());
            }
        };
        let head = String::from_utf8_lossy(&buf[..end]).into_owned();
        buf.drain(..end);
        let mut first = head.split(' ');
        let (method, path) = (first.next().unwrap_or(""), first.next().unwrap_or(""));
        if let Some(key) = header(&head, "sec-websocket-key") {
            let r = format!(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {}\r\n\r\n",
                frames::accept(key)
            );
            s.write_all(r.as_bytes()).await?;
            let chat = path.starts_with("/chat");
            return ws_conn(s, buf, chat.then_some(rooms)).await;
        }
        if let Some(n) = header(&head, "content-length").and_then(|v| v.parse::<u64>().ok()) {
            if header(&head, "expect").is_some() {
                s.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
            }
            let have = (buf.len() as u64).min(n);
            buf.drain(..have as usize);
            skip(&mut s, n - have).await?;
        } else if header(&head, "transfer-encoding").is_some() {
            s.write_all(
                b"HTTP/1.1 411 Length Required\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            )
            .await?;
            return Ok(());
        }
        let close = header(&head, "connection").is_some_and(|v| v.eq_ignore_ascii_case("close"));
        let body_len = path
            .strip_prefix("/bytes/")
            .and_then(|n| n.parse::<u64>().ok());
        match body_len {
            Some(n) if method == "GET" => {
                let h = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {n}\r\n\r\n"
                );
                s.write_all(h.as_bytes()).await?;
                send_zeros(&mut s, n).await?;
            }
            _ => s.write_all(&small).await?,
        }
        if close {
            return Ok(());
        }
    }
}

fn response(body: &[u8]) -> Vec<u8> {
    let mut r = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    r.extend(body);
    r
}

// ---- Rooms

#[derive(Default)]
struct Rooms(Mutex<(u64, Option<Arc<Room>>)>);

struct Room {
    id: u64,
    cap: usize,
    members: Mutex<Vec<Option<Arc<Out>>>>,
}

impl Rooms {
    /// The newest room, or a new one once it is full or somebody left it.
    fn join(&self, out: Arc<Out>) -> (Arc<Room>, usize) {
        let mut g = self.0.lock().unwrap();
        if let Some(room) = g.1.clone() {
            let mut m = room.members.lock().unwrap();
            if m.len() < room.cap && m.iter().all(Option::is_some) {
                m.push(Some(out));
                let slot = m.len() - 1;
                drop(m);
                return (room, slot);
            }
        }
        let id = g.0;
        g.0 += 1;
        let room = Arc::new(Room {
            id,
            cap: ROOM_SIZES[id as usize % ROOM_SIZES.len()],
            members: Mutex::new(vec![Some(out)]),
        });
        g.1 = Some(room.clone());
        (room, 0)
    }
}

async fn ws_conn(s: TcpStream, mut buf: Vec<u8>, rooms: Option<Arc<Rooms>>) -> io::Result<()> {
    let (mut r, w) = s.into_split();
    let out = Out::new(w);
    let mut frame = Vec::new();
    let room = rooms.map(|rs| rs.join(out.clone()));
    if let Some((room, slot)) = &room {
        let hello = format!("W {} {} {}", room.id, slot, room.cap);
        frames::put(&mut frame, frames::TEXT, hello.as_bytes(), None);
        out.send(&frame);
    }
    let res = ws_loop(&mut r, &out, &mut buf, room.as_ref().map(|r| &*r.0), frame).await;
    if let Some((room, slot)) = room {
        room.members.lock().unwrap()[slot] = None;
    }
    res
}

async fn ws_loop(
    r: &mut OwnedReadHalf,
    out: &Out,
    buf: &mut Vec<u8>,
    room: Option<&Room>,
    mut frame: Vec<u8>,
) -> io::Result<()> {
    let mut chunk = vec![0u8; 2048];
    loop {
        let mut at = 0;
        while let Some((op, s, e)) = frames::take(&mut buf[at..]) {
            let payload = &buf[at + s..at + e];
            frame.clear();
            match op {
                frames::TEXT | frames::BINARY => {
                    frames::put(&mut frame, op, payload, None);
                    match room {
                        None => out.send(&frame),
                        Some(room) => {
                            for m in room.members.lock().unwrap().iter().flatten() {
                                m.send(&frame);
                            }
                        }
                    }
                }
                frames::PING => {
                    frames::put(&mut frame, frames::PONG, payload, None);
                    out.send(&frame);
                }
                frames::CLOSE => {
                    frames::put(&mut frame, frames::CLOSE, payload, None);
                    out.send(&frame);
                    return Ok(());
                }
                _ => {}
            }
            at += e;
        }
        buf.drain(..at);
        if buf.is_empty() && buf.capacity() > 4096 {
            *buf = Vec::new();
        }
        // A long message is read in long pieces.
        if buf.len() > 1024 && chunk.len() < 65536 {
            chunk = vec![0u8; 65536];
        } else if buf.is_empty() && chunk.len() > 2048 {
            chunk = vec![0u8; 2048];
        }
        let n = read_some(r, out, &mut chunk).await?;
        if n == 0 {
            return Ok(());
        }
        buf.extend_from_slice(&chunk[..n]);
    }
}
