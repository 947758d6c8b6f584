//! A small chat server: one web page, one room, plain HTTP/1.1 and WebSocket.
//!
//! Each text message goes to everybody in the room, its sender included. Queues are bounded: whoever
//! reads too slowly loses messages (and is told how many), whoever does not read at all is shown out.
//!
//! What the server sends is one JSON object per WebSocket message:
//!
//! ```text
//! {"type":"welcome","id":3,"name":"Amber Heron",              to a newcomer, first of all
//!  "client":"192.0.2.7","scheme":"https","request":"12-4"}    and, if a proxy in front told them, where it comes from
//! {"type":"people","people":[{"id":3,"name":"Amber Heron"}]}  when somebody comes, goes or is renamed
//! {"type":"said","id":3,"name":"Amber Heron","text":"Hello"}  a message
//! {"type":"missed","count":12}                                to a slow reader: lost its place
//! ```
//!
//! What a client sends is plain text: a message, or `/name Somebody`. What a proxy tells is believed of everybody, and
//! told to nobody else.

use crate::metrics::quote;
use futures_util::{SinkExt, StreamExt};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::server::create_response_with_body;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error as WsError, Message, Utf8Bytes};

/// People in the room at once.
const PEOPLE_MAX: usize = 256;

/// Most bytes of a message from a client.
const MESSAGE_MAX: usize = 4096;

/// Messages that a slow reader may lag behind.
const NEWS_MAX: usize = 64;

/// Most bytes of what a proxy tells, each.
const TOLD_MAX: usize = 128;

/// Most characters of a name.
const NAME_CHARS_MAX: usize = 24;

/// For the header of a request, also between two on one connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// For one message to leave.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

const PAGE: &str = include_str!("page.html");

const PAGE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
     connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Serves the chat on `listener` for ever: the page at `/`, the room's WebSocket at `/ws`. Drop the
/// future to stop.
pub async fn serve_chat(listener: TcpListener) {
    let room = Arc::new(Room::new());
    super::serve(listener, "chat", move |stream| {
        visit(stream, Arc::clone(&room))
    })
    .await;
}

/// One connection: requests as HTTP, then perhaps a stay in the room.
async fn visit(stream: TcpStream, room: Arc<Room>) {
    let upgraded = Mutex::new(None);
    let answering = service_fn(|request| {
        let response = answer(&request);
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let told = Told::of(request.headers());
            *upgraded.lock().unwrap_or_else(PoisonError::into_inner) = Some(told);
        }
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(16 * 1024)
        .serve_connection(TokioIo::new(stream), answering)
        .without_shutdown()
        .await;
    let told = upgraded
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    match (connection, told) {
        (Ok(parts), Some(told)) => {
            // The client's first frames may have come with its request.
            let socket = WebSocketStream::from_partially_read(
                parts.io.into_inner(),
                parts.read_buf.into(),
                Role::Server,
                Some(limits()),
            );
            stay(socket.await, &told, &room).await;
        }
        (Ok(_), None) => {}
        (Err(error), _) => tracing::debug!(%error, "demo chat request failed"),
    }
}

fn limits() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(MESSAGE_MAX)
        .write_buffer_size(0)
        .max_write_buffer_size(128 * 1024)
        .max_message_size(Some(MESSAGE_MAX))
        .max_frame_size(Some(MESSAGE_MAX))
}

fn answer(request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
    }
    match request.uri().path() {
        "/" => {
            let mut page = Response::new(Full::new(Bytes::from_static(PAGE.as_bytes())));
            let headers = page.headers_mut();
            headers.insert(
                header::CONTENT_TYPE,
                HeaderValue::from_static("text/html; charset=utf-8"),
            );
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
            headers.insert(
                header::X_CONTENT_TYPE_OPTIONS,
                HeaderValue::from_static("nosniff"),
            );
            headers.insert(
                header::CONTENT_SECURITY_POLICY,
                HeaderValue::from_static(PAGE_POLICY),
            );
            page
        }
        "/ws" if !same_origin(request) => plain(
            StatusCode::FORBIDDEN,
            "this room is entered from its own page only\n",
        ),
        "/ws" => create_response_with_body(request, Full::default).unwrap_or_else(|_| {
            plain(
                StatusCode::BAD_REQUEST,
                "this is a WebSocket; open / instead\n",
            )
        }),
        _ => plain(StatusCode::NOT_FOUND, "not found; try /\n"),
    }
}

/// Whether a browser sends this from our own page. Other programs send no `Origin` at all.
fn same_origin(request: &Request<Incoming>) -> bool {
    let text = |name| {
        request
            .headers()
            .get(name)
            .and_then(|value| value.to_str().ok())
    };
    match (
        request.headers().contains_key(header::ORIGIN),
        text(header::ORIGIN),
        text(header::HOST),
    ) {
        (false, _, _) => true,
        (true, Some(origin), Some(host)) => origin
            .split_once("://")
            .is_some_and(|(_, from)| from.eq_ignore_ascii_case(host)),
        (true, _, _) => false,
    }
}

fn plain(code: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = code;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

/// What a proxy in front has said of a client, as members of a JSON object.
#[derive(Default)]
struct Told(String);

impl Told {
    fn of(headers: &HeaderMap) -> Self {
        let mut told = String::new();
        for (member, name) in [
            ("client", "x-forwarded-for"),
            ("scheme", "x-forwarded-proto"),
            ("request", "x-request-id"),
        ] {
            if let Some(value) = headers.get(name).filter(|value| value.len() <= TOLD_MAX) {
                let _ = write!(told, ",\"{member}\":");
                quote::json(&mut told, value.as_bytes());
            }
        }
        Self(told)
    }
}

/// The one room.
struct Room {
    people: Mutex<People>,
    news: broadcast::Sender<Utf8Bytes>,
}

#[derive(Default)]
struct People {
    last_id: u64,
    names: BTreeMap<u64, String>,
}

impl Room {
    fn new() -> Self {
        Self {
            people: Mutex::default(),
            news: broadcast::Sender::new(NEWS_MAX),
        }
    }

    /// Takes a seat, if one is left.
    fn enter(self: &Arc<Self>) -> Option<Seat> {
        let mut people = self.people();
        if people.names.len() >= PEOPLE_MAX {
            return None;
        }
        people.last_id += 1;
        let id = people.last_id;
        people.names.insert(id, invented_name(id));
        // Before the news of it, so that the newcomer hears who is here.
        let news = self.news.subscribe();
        self.tell(people.roll());
        Some(Seat {
            id,
            news,
            room: Arc::clone(self),
        })
    }

    /// To everybody. It is no fault that nobody is here.
    fn tell(&self, news: String) {
        let _ = self.news.send(news.into());
    }

    fn people(&self) -> MutexGuard<'_, People> {
        self.people.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl People {
    fn roll(&self) -> String {
        let mut out = String::from("{\"type\":\"people\",\"people\":[");
        for (n, (id, name)) in self.names.iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            let _ = write!(out, "{comma}{{\"id\":{id},\"name\":");
            quote::json(&mut out, name.as_bytes());
            out.push('}');
        }
        out.push_str("]}");
        out
    }
}

/// A place in the room, given back on drop.
struct Seat {
    id: u64,
    news: broadcast::Receiver<Utf8Bytes>,
    room: Arc<Room>,
}

impl Seat {
    fn name(&self) -> String {
        self.room
            .people()
            .names
            .get(&self.id)
            .cloned()
            .unwrap_or_default()
    }

    fn welcome(&self, told: &Told) -> String {
        let mut out = format!("{{\"type\":\"welcome\",\"id\":{},\"name\":", self.id);
        quote::json(&mut out, self.name().as_bytes());
        out.push_str(&told.0);
        out.push('}');
        out
    }

    /// Takes what its holder sent: a new name or a message.
    fn take(&self, text: &str) {
        if let Some(name) = text.strip_prefix("/name ") {
            let name: String = name
                .trim()
                .chars()
                .filter(|c| !c.is_control())
                .take(NAME_CHARS_MAX)
                .collect();
            if !name.is_empty() {
                let mut people = self.room.people();
                people.names.insert(self.id, name);
                self.room.tell(people.roll());
            }
        } else if !text.trim().is_empty() {
            let mut out = format!("{{\"type\":\"said\",\"id\":{},\"name\":", self.id);
            quote::json(&mut out, self.name().as_bytes());
            out.push_str(",\"text\":");
            quote::json(&mut out, text.trim_end().as_bytes());
            out.push('}');
            self.room.tell(out);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut people = self.room.people();
        people.names.remove(&self.id);
        self.room.tell(people.roll());
    }
}

/// From the first word to the last of one person.
async fn stay(mut socket: WebSocketStream<TcpStream>, told: &Told, room: &Arc<Room>) {
    let Some(mut seat) = room.enter() else {
        return goodbye(socket, CloseCode::Again, "the room is full").await;
    };
    if !send(&mut socket, seat.welcome(told).into()).await {
        return;
    }
    loop {
        tokio::select! {
            news = seat.news.recv() => {
                let text = match news {
                    Ok(text) => text,
                    Err(broadcast::error::RecvError::Lagged(count)) => {
                        format!("{{\"type\":\"missed\",\"count\":{count}}}").into()
                    }
                    Err(broadcast::error::RecvError::Closed) => return,
                };
                if !send(&mut socket, text).await {
                    return;
                }
            }
            message = socket.next() => match message {
                Some(Ok(Message::Text(text))) => seat.take(&text),
                Some(Ok(Message::Binary(_))) => {
                    return goodbye(socket, CloseCode::Unsupported, "text only").await;
                }
                // Pings are answered by the library.
                Some(Ok(Message::Close(_) | Message::Frame(_) | Message::Ping(_) | Message::Pong(_))) => {}
                Some(Err(WsError::Capacity(_))) => {
                    return goodbye(socket, CloseCode::Size, "a message is at most 4096 bytes").await;
                }
                Some(Err(_)) | None => return,
            }
        }
    }
}

/// Whether the text left in time.
async fn send(socket: &mut WebSocketStream<TcpStream>, text: Utf8Bytes) -> bool {
    let sent = tokio::time::timeout(SEND_TIMEOUT, socket.send(Message::Text(text))).await;
    matches!(sent, Ok(Ok(())))
}

async fn goodbye(mut socket: WebSocketStream<TcpStream>, code: CloseCode, reason: &'static str) {
    let frame = CloseFrame {
        code,
        reason: reason.into(),
    };
    let _ = tokio::time::timeout(SEND_TIMEOUT, socket.close(Some(frame))).await;
}

/// A name until its owner gives another.
fn invented_name(id: u64) -> String {
    const FIRST: [&str; 16] = [
        "Amber", "Birch", "Cedar", "Coral", "Dusk", "Fern", "Hazel", "Indigo", "Juniper", "Linen",
        "Maple", "Ochre", "Pearl", "Russet", "Saffron", "Willow",
    ];
    const LAST: [&str; 15] = [
        "Heron", "Otter", "Lark", "Fox", "Wren", "Hare", "Owl", "Finch", "Badger", "Swift",
        "Marten", "Robin", "Seal", "Crane", "Lynx",
    ];
    // 16 and 15 have no common factor: 240 names before one comes again.
    let pick = |names: &[&'static str]| names[(id % names.len() as u64) as usize];
    format!("{} {}", pick(&FIRST), pick(&LAST))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_tungstenite::client_async;

    type Client = WebSocketStream<TcpStream>;

    /// Runs `client` against a server on a loopback port.
    async fn with_server<F: Future>(client: impl FnOnce(SocketAddr) -> F) -> F::Output {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::select! {
            () = serve_chat(listener) => unreachable!(),
            output = client(addr) => output,
        }
    }

    async fn join(addr: SocketAddr) -> Client {
        let stream = TcpStream::connect(addr).await.unwrap();
        client_async(format!("ws://{addr}/ws"), stream)
            .await
            .unwrap()
            .0
    }

    /// The next message that contains `part`; those before are passed over.
    async fn hear(client: &mut Client, part: &str) -> String {
        loop {
            match client.next().await.unwrap().unwrap() {
                Message::Text(text) if text.contains(part) => return text.to_string(),
                Message::Text(_) => {}
                other => panic!("waiting for {part}: {other:?}"),
            }
        }
    }

    async fn get(addr: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn a_message_reaches_everybody_and_its_sender() {
        with_server(|addr| async move {
            let mut ada = join(addr).await;
            hear(&mut ada, "welcome").await;
            ada.send("/name  Ada \u{7} ".into()).await.unwrap();
            hear(&mut ada, "\"Ada \"").await;
            let mut bob = join(addr).await;
            let roll = hear(&mut bob, "people").await;
            assert!(
                roll.contains("{\"id\":1,\"name\":\"Ada \"},{\"id\":2,\"name\":\""),
                "{roll}"
            );
            ada.send("Hi \"Bob\" <b>".into()).await.unwrap();
            let said = r#"{"type":"said","id":1,"name":"Ada ","text":"Hi \"Bob\" <b>"}"#;
            assert_eq!(hear(&mut ada, "said").await, said);
            assert_eq!(hear(&mut bob, "said").await, said);
        })
        .await;
    }

    #[tokio::test]
    async fn a_newcomer_hears_what_a_proxy_said_of_it() {
        use tokio_tungstenite::tungstenite::client::IntoClientRequest;
        with_server(|addr| async move {
            let mut direct = join(addr).await;
            let welcome = hear(&mut direct, "welcome").await;
            assert!(!welcome.contains("client"), "{welcome}");

            let mut request = format!("ws://{addr}/ws").into_client_request().unwrap();
            for (name, value) in [
                ("x-forwarded-for", "192.0.2.7".to_owned()),
                ("x-forwarded-proto", "ht\"tps".to_owned()),
                ("x-request-id", "7".repeat(TOLD_MAX + 1)),
            ] {
                request.headers_mut().insert(name, value.parse().unwrap());
            }
            let stream = TcpStream::connect(addr).await.unwrap();
            let mut proxied = client_async(request, stream).await.unwrap().0;
            let welcome = hear(&mut proxied, "welcome").await;
            let told = r#","client":"192.0.2.7","scheme":"ht\"tps"}"#;
            assert!(welcome.ends_with(told), "{welcome}");
        })
        .await;
    }

    #[tokio::test]
    async fn who_leaves_is_taken_off_the_roll() {
        with_server(|addr| async move {
            let mut ada = join(addr).await;
            let mut bob = join(addr).await;
            hear(&mut ada, "\"id\":2").await;
            bob.close(None).await.unwrap();
            while hear(&mut ada, "people").await.contains("\"id\":2") {}
            let carol = join(addr).await;
            hear(&mut ada, "\"id\":3").await;
            // Without a word, as when a network goes away.
            drop(carol);
            while hear(&mut ada, "people").await.contains("\"id\":3") {}
        })
        .await;
    }

    #[tokio::test]
    async fn a_message_over_the_limit_ends_its_sender_alone() {
        with_server(|addr| async move {
            let mut ada = join(addr).await;
            let mut bob = join(addr).await;
            ada.send("x".repeat(MESSAGE_MAX).into()).await.unwrap();
            hear(&mut bob, &"x".repeat(MESSAGE_MAX)).await;
            ada.send("x".repeat(MESSAGE_MAX + 1).into()).await.unwrap();
            let close = loop {
                if let Message::Close(frame) = ada.next().await.unwrap().unwrap() {
                    break frame.unwrap();
                }
            };
            assert_eq!(close.code, CloseCode::Size);
            bob.send("still here".into()).await.unwrap();
            hear(&mut bob, "still here").await;
        })
        .await;
    }

    #[tokio::test]
    async fn a_full_room_says_so() {
        let room = Arc::new(Room::new());
        let mut seats: Vec<_> = (0..PEOPLE_MAX).map(|_| room.enter().unwrap()).collect();
        assert!(room.enter().is_none());
        drop(seats.pop());
        assert!(room.enter().is_some());
    }

    #[tokio::test]
    async fn a_slow_reader_is_told_what_it_lost_and_holds_no_memory() {
        let room = Arc::new(Room::new());
        let mut slow = room.enter().unwrap();
        let fast = room.enter().unwrap();
        for n in 0..3 * NEWS_MAX {
            fast.take(&format!("message {n}"));
        }
        assert!(room.news.len() <= NEWS_MAX);
        let lagged = slow.news.recv().await;
        assert!(
            matches!(lagged, Err(broadcast::error::RecvError::Lagged(n)) if n >= 2 * NEWS_MAX as u64)
        );
        assert!(
            slow.news
                .recv()
                .await
                .unwrap()
                .contains(&format!("message {}\"", 2 * NEWS_MAX))
        );
    }

    #[tokio::test]
    async fn the_page_needs_nothing_from_elsewhere() {
        with_server(|addr| async move {
            let page = get(
                addr,
                "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            )
            .await;
            assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
            assert!(page.contains("content-security-policy: default-src 'none'"));
            for outside in ["http://", "https://", "src=", "@import", "url("] {
                assert!(!PAGE.contains(outside), "{outside}");
            }
        })
        .await;
    }

    #[tokio::test]
    async fn strangers_pages_and_plain_requests_do_not_enter_the_room() {
        with_server(|addr| async move {
            let upgrade = "Connection: close, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
            let foreign = get(
                addr,
                &format!(
                    "GET /ws HTTP/1.1\r\nHost: localhost:8443\r\n{upgrade}Origin: https://evil.example\r\n\r\n"
                ),
            )
            .await;
            assert!(foreign.starts_with("HTTP/1.1 403 "), "{foreign}");
            let end = "Connection: close\r\n\r\n";
            let plain = get(addr, &format!("GET /ws HTTP/1.1\r\nHost: x\r\n{end}")).await;
            assert!(plain.starts_with("HTTP/1.1 400 "), "{plain}");
            assert!(get(addr, &format!("GET /x HTTP/1.1\r\nHost: x\r\n{end}")).await.starts_with("HTTP/1.1 404 "));
            let post = get(addr, &format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n{end}")).await;
            assert!(post.starts_with("HTTP/1.1 405 "), "{post}");
        })
        .await;
    }

    #[tokio::test]
    async fn a_frame_glued_to_the_upgrade_request_is_not_lost() {
        with_server(|addr| async move {
            let mut bytes = b"GET /ws HTTP/1.1\r\nHost: localhost:8443\r\nOrigin: https://localhost:8443\r\n\
                Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
                .to_vec();
            // A final text frame of two bytes, masked with zeros.
            bytes.extend([0x81, 0x82, 0, 0, 0, 0]);
            bytes.extend(b"hi");
            let mut stream = TcpStream::connect(addr).await.unwrap();
            stream.write_all(&bytes).await.unwrap();
            let mut answer = Vec::new();
            while !String::from_utf8_lossy(&answer).contains("\"text\":\"hi\"") {
                assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0);
            }
            assert!(answer.starts_with(b"HTTP/1.1 101 "));
        })
        .await;
    }

    #[test]
    fn invented_names_do_not_come_again_soon() {
        let names: std::collections::HashSet<_> = (0..240).map(invented_name).collect();
        assert_eq!(names.len(), 240);
    }
}
