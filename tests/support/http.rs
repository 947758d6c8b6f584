//! The HTTP cast: servers that read strictly, keep every byte they saw and answer what a test tells them; clients that write
//! HTTP/1.1 and frames of HTTP/2 by hand, and an ordinary one of HTTP/2.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::client::Offer;
use super::vestibule::Setup;
use super::xmpp::{SecureTalk, Talk};
use super::{End, end_of, ports, read_plain, reset};

/// What a server has read as a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The number of its connection.
    pub connection: usize,
    /// Request line.
    pub line: String,
    /// Header lines as they came, the names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body, without the chunks that it came in.
    pub body: String,
    /// Trailers, in the same form as headers.
    pub trailers: Vec<(String, String)>,
}

impl Seen {
    /// The only value of a header, or none.
    #[track_caller]
    pub fn header(&self, name: &str) -> Option<&str> {
        only(&self.headers, name)
    }

    /// The target of the request line.
    pub fn path(&self) -> &str {
        self.line.split(' ').nth(1).unwrap_or_default()
    }
}

#[track_caller]
fn only<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let mut values = headers.iter().filter(|(other, _)| other == name);
    let value = values.next().map(|(_, value)| value.as_str());
    assert!(values.next().is_none(), "{name} twice in {headers:?}");
    value
}

/// What a server does with a request.
#[derive(Clone, Debug)]
pub struct Reply {
    bytes: Vec<u8>,
    then: Then,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Go,
    Fin,
    Reset,
}

impl Reply {
    /// These bytes; then the next request.
    pub fn raw(bytes: impl AsRef<[u8]>) -> Self {
        Self {
            bytes: bytes.as_ref().to_vec(),
            then: Then::Go,
        }
    }

    /// 200 with this body.
    pub fn ok(body: &str) -> Self {
        let len = body.len();
        Self::raw(format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n{body}"
        ))
    }

    /// Then FIN.
    #[must_use]
    pub fn fin(mut self) -> Self {
        self.then = Then::Fin;
        self
    }

    /// Then RST.
    #[must_use]
    pub fn reset(mut self) -> Self {
        self.then = Then::Reset;
        self
    }
}

#[derive(Default)]
struct Notes {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    requests: Vec<Seen>,
    /// Bytes behind the last whole request, of each connection.
    unfinished: Vec<Vec<u8>>,
    ended: Vec<Option<End>>,
}

impl Notes {
    fn of<T>(&self, write: impl FnOnce(&mut State) -> T) -> T {
        let result = write(&mut self.state.lock().expect("lock"));
        self.changed.notify_waiters();
        result
    }
}

/// A server that reads requests one after the other and answers as it was told. It reads strictly: what is not a request of one
/// clear meaning stays where it is, [`HttpBackend::unfinished`].
pub struct HttpBackend {
    addr: SocketAddr,
    notes: Arc<Notes>,
    task: JoinHandle<()>,
}

impl HttpBackend {
    /// Answers each with 200 and the number of its connection, its target and its body.
    pub fn echo() -> Self {
        Self::start(|seen| {
            Reply::ok(&format!(
                "{} {} {}",
                seen.connection,
                seen.path(),
                seen.body
            ))
        })
    }

    /// Answers as told.
    pub fn start(script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::from_std(ports::listener()).expect("a listener for tokio");
        let addr = listener
            .local_addr()
            .expect("a bound socket has an address");
        let notes = Arc::<Notes>::default();
        let script = Arc::new(script);
        let all = Arc::clone(&notes);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let number = all.of(|state| {
                    state.unfinished.push(Vec::new());
                    state.ended.push(None);
                    state.ended.len() - 1
                });
                let (notes, script) = (Arc::clone(&all), Arc::clone(&script));
                tokio::spawn(async move {
                    let end = serve(stream, number, &notes, &*script).await;
                    notes.of(|state| state.ended[number] = Some(end));
                });
            }
        });
        Self { addr, notes, task }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Whole requests so far, of all connections.
    pub fn requests(&self) -> Vec<Seen> {
        self.notes.of(|state| state.requests.clone())
    }

    /// The only one.
    #[track_caller]
    pub fn request(&self) -> Seen {
        let requests = self.requests();
        assert_eq!(requests.len(), 1, "{requests:#?}");
        requests.into_iter().next().expect("one")
    }

    /// Their targets.
    pub fn paths(&self) -> Vec<String> {
        let requests = self.requests();
        requests.iter().map(|seen| seen.path().to_owned()).collect()
    }

    /// Connections so far.
    pub fn connections(&self) -> usize {
        self.notes.of(|state| state.ended.len())
    }

    /// What has come behind the last whole request of each connection.
    pub fn unfinished(&self) -> Vec<String> {
        let of_each = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        self.notes
            .of(|state| state.unfinished.iter().map(of_each).collect())
    }

    /// Waits until a connection has ended.
    pub async fn ended(&self, number: usize) -> End {
        self.when(|state| state.ended.get(number).copied().flatten())
            .await
    }

    /// Waits until so many requests have come.
    pub async fn has_seen(&self, requests: usize) {
        self.when(|state| (state.requests.len() >= requests).then_some(()))
            .await;
    }

    /// Waits until the unfinished bytes of a connection end like this.
    pub async fn has_heard(&self, number: usize, words: &str) {
        let ends = |state: &State| {
            let bytes = state.unfinished.get(number)?;
            bytes.ends_with(words.as_bytes()).then_some(())
        };
        self.when(ends).await;
    }

    async fn when<T>(&self, found: impl Fn(&State) -> Option<T>) -> T {
        loop {
            let changed = self.notes.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(value) = found(&self.notes.state.lock().expect("lock")) {
                return value;
            }
            changed.await;
        }
    }
}

impl Drop for HttpBackend {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    mut stream: TcpStream,
    number: usize,
    notes: &Notes,
    script: &(impl Fn(&Seen) -> Reply + ?Sized),
) -> End {
    let mut input = Vec::new();
    loop {
        while let Some((mut seen, len)) = request(&input) {
            seen.connection = number;
            input.drain(..len);
            let reply = script(&seen);
            notes.of(|state| {
                state.requests.push(seen);
                state.unfinished[number].clone_from(&input);
            });
            let mut written = Ok(());
            // A script may have nothing to say.
            if !reply.bytes.is_empty() {
                written = stream.write_all(&reply.bytes).await;
            }
            match (written, reply.then) {
                (Err(error), _) => return end_of(&error),
                (_, Then::Go) => {}
                (_, Then::Fin) => {
                    let _ = stream.shutdown().await;
                    return read_plain(&mut stream).await.1;
                }
                (_, Then::Reset) => {
                    reset(stream);
                    return End::Reset;
                }
            }
        }
        match stream.read_buf(&mut input).await {
            Ok(0) => return End::Fin,
            Ok(_) => notes.of(|state| state.unfinished[number].clone_from(&input)),
            Err(error) => return end_of(&error),
        }
    }
}

/// The request at the front, if it is whole, and its length.
fn request(input: &[u8]) -> Option<(Seen, usize)> {
    let (line, headers, mut at) = head(input)?;
    let mut seen = Seen {
        line,
        headers,
        ..Seen::default()
    };
    if let Some(coding) = seen.header("transfer-encoding") {
        assert_eq!(coding, "chunked");
        assert_eq!(seen.header("content-length"), None);
        let (body, trailers, len) = chunks(&input[at..])?;
        seen.body = body;
        seen.trailers = trailers;
        at += len;
    } else if let Some(len) = seen.header("content-length") {
        let len = len.parse::<usize>().expect("a length");
        let body = input.get(at..at + len)?;
        seen.body = String::from_utf8(body.to_vec()).expect("UTF-8");
        at += len;
    }
    Some((seen, at))
}

type Headers = Vec<(String, String)>;

/// First line and header lines, and the length up to the body.
fn head(input: &[u8]) -> Option<(String, Headers, usize)> {
    let end = find(input, b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&input[..end - 4]).expect("UTF-8");
    let mut lines = text.split("\r\n");
    let line = lines.next().expect("a first line").to_owned();
    let headers = lines
        .map(|line| {
            assert!(!line.contains(['\r', '\n', '\0']), "{line:?}");
            let (name, value) = line.split_once(':').expect("a colon");
            (name.to_ascii_lowercase(), value.trim().to_owned())
        })
        .collect();
    Some((line, headers, end))
}

/// A body in chunks with its trailers, and its length.
fn chunks(input: &[u8]) -> Option<(String, Headers, usize)> {
    let mut body = Vec::new();
    let mut at = 0;
    loop {
        let line = find(&input[at..], b"\r\n")?;
        let size = std::str::from_utf8(&input[at..at + line]).expect("UTF-8");
        let size = size.split(';').next().expect("a size").trim();
        let size = usize::from_str_radix(size, 16).expect("a chunk size");
        if size == 0 {
            // A line of its own, so that trailers have the form of a head.
            let (_, trailers, len) = if input[at + line..].starts_with(b"\r\n\r\n") {
                (String::new(), Vec::new(), line + 4)
            } else {
                head(&input[at..])?
            };
            let body = String::from_utf8(body).expect("UTF-8");
            return Some((body, trailers, at + len));
        }
        at += line + 2;
        body.extend_from_slice(input.get(at..at + size)?);
        assert_eq!(input.get(at + size..at + size + 2)?, b"\r\n");
        at += size + 2;
    }
}

fn find(input: &[u8], words: &[u8]) -> Option<usize> {
    input.windows(words.len()).position(|piece| piece == words)
}

/// An https listener in front of one backend, with this settings file.
pub fn door(backend: impl ToString, settings: &str) -> Setup {
    Setup::new("https", backend).file(settings)
}

/// A client of HTTP/1.1 that has said nothing yet.
pub async fn client(addr: SocketAddr) -> SecureTalk {
    Talk::new(Offer::default().alpn(&["http/1.1"]).connect(addr).await)
}

/// An answer as a client has read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Got {
    /// Status.
    pub status: u16,
    /// Header lines, the names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body, without the chunks that it came in.
    pub body: String,
    /// Trailers.
    pub trailers: Vec<(String, String)>,
}

impl Got {
    /// The only value of a header, or none.
    #[track_caller]
    pub fn header(&self, name: &str) -> Option<&str> {
        only(&self.headers, name)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Talk<S> {
    /// The next head, as it is.
    pub async fn head(&mut self) -> Got {
        let text = self.until("\r\n\r\n").await;
        let (line, headers, _) = head(text.as_bytes()).expect("a head");
        let status = line.split(' ').nth(1).expect("a status");
        Got {
            status: status.parse().expect("a number"),
            headers,
            body: String::new(),
            trailers: Vec::new(),
        }
    }

    /// The next answer, which must have a length or chunks.
    pub async fn answer(&mut self) -> Got {
        let mut got = self.head().await;
        if let Some(coding) = got.header("transfer-encoding") {
            assert_eq!(coding, "chunked");
            assert_eq!(got.header("content-length"), None);
            loop {
                let line = self.until("\r\n").await;
                let size = usize::from_str_radix(line.trim_end(), 16).expect("a chunk size");
                if size == 0 {
                    break;
                }
                got.body.push_str(&self.exactly(size).await);
                self.hears("\r\n").await;
            }
            loop {
                let line = self.until("\r\n").await;
                let Some((name, value)) = line.trim_end().split_once(": ") else {
                    break;
                };
                got.trailers.push((name.to_owned(), value.to_owned()));
            }
        } else if !(got.status < 200 || matches!(got.status, 204 | 304)) {
            let len = got.header("content-length").expect("a length");
            got.body = self.exactly(len.parse().expect("a number")).await;
        }
        got
    }

    /// Asks, and gives the answer.
    pub async fn get(&mut self, path: &str) -> Got {
        self.say(get(path)).await;
        self.answer().await
    }
}

/// An ordinary request.
pub fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: chat.test\r\n\r\n")
}

/// An ordinary request with a body.
pub fn post(path: &str, body: &str) -> String {
    let len = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: chat.test\r\nContent-Length: {len}\r\n\r\n{body}")
}

/// An ordinary client of HTTP/2.
pub struct Two {
    /// For requests.
    pub sender: SendRequest<Bytes>,
    /// Ends with the connection.
    pub connection: JoinHandle<Result<(), h2::Error>>,
}

impl Two {
    /// Connects.
    pub async fn connect(addr: SocketAddr) -> Self {
        Self::build(addr, &h2::client::Builder::new()).await
    }

    /// The same with other settings.
    pub async fn build(addr: SocketAddr, builder: &h2::client::Builder) -> Self {
        let stream = Offer::default().alpn(&["h2"]).connect(addr).await;
        let (sender, connection) = builder.handshake(stream).await.expect("handshake");
        let connection = tokio::spawn(connection);
        Self { sender, connection }
    }

    /// Sends a request's head.
    pub async fn send(
        &mut self,
        request: Request<()>,
        end: bool,
    ) -> (ResponseFuture, SendStream<Bytes>) {
        let mut sender = self.sender.clone().ready().await.expect("ready");
        sender.send_request(request, end).expect("a request")
    }

    /// Sends a request without a body, and reads the whole answer.
    pub async fn ask(&mut self, request: Request<()>) -> (u16, HeaderMap, String) {
        let (answer, _) = self.send(request, true).await;
        whole(answer).await.expect("an answer")
    }

    /// GET.
    pub async fn get(&mut self, path: &str) -> (u16, HeaderMap, String) {
        self.ask(two_get(path)).await
    }
}

/// A request of HTTP/2.
pub fn two_get(path: &str) -> Request<()> {
    two("GET", path)
}

/// The same with another method.
pub fn two(method: &str, path: &str) -> Request<()> {
    Request::builder()
        .method(method)
        .uri(format!("https://chat.test{path}"))
        .body(())
        .expect("a request")
}

/// A wish for a WebSocket over HTTP/2 (RFC 8441).
pub fn two_websocket(path: &str) -> Request<()> {
    let mut request = two("CONNECT", path);
    let protocol = h2::ext::Protocol::from_static("websocket");
    request.extensions_mut().insert(protocol);
    let headers = request.headers_mut();
    headers.insert("sec-websocket-version", "13".parse().expect("a value"));
    headers.insert("sec-websocket-protocol", "xmpp".parse().expect("a value"));
    request
}

/// An answer up to its end.
pub async fn whole(answer: ResponseFuture) -> Result<(u16, HeaderMap, String), h2::Error> {
    let (head, mut body) = answer.await?.into_parts();
    let text = rest_of(&mut body).await?;
    Ok((head.status.as_u16(), head.headers, text))
}

/// A body up to its end.
pub async fn rest_of(body: &mut RecvStream) -> Result<String, h2::Error> {
    let mut text = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        text.extend_from_slice(&data);
    }
    Ok(String::from_utf8(text).expect("UTF-8"))
}

/// Sends all of it as the window allows.
pub async fn send_all(
    stream: &mut SendStream<Bytes>,
    mut bytes: Bytes,
    end: bool,
) -> Result<(), h2::Error> {
    while !bytes.is_empty() {
        stream.reserve_capacity(bytes.len());
        let room = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
        let room = room.ok_or(h2::Reason::CANCEL)??;
        let piece = bytes.split_to(room.min(bytes.len()));
        let last = bytes.is_empty() && end;
        stream.send_data(piece, last)?;
    }
    Ok(())
}

/// What a client of HTTP/2 says first.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// A frame of HTTP/2.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// The head of `GET /` for `chat.test`, as HPACK has it without its tables.
pub fn head_block() -> Vec<u8> {
    head_block_for("chat.test")
}

/// The same with another host, which may be anything.
pub fn head_block_for(host: &str) -> Vec<u8> {
    // :method GET, :scheme https, :path /, and :authority as a literal.
    [
        &[0x82, 0x87, 0x84, 0x01, host.len() as u8][..],
        host.as_bytes(),
    ]
    .concat()
}

/// Kind, flags, stream and payload of the next frame; none at the end.
pub async fn next_frame(
    stream: &mut (impl AsyncRead + Unpin),
) -> io::Result<Option<(u8, u8, u32, Vec<u8>)>> {
    let mut head = [0; 9];
    match stream.read_exact(&mut head).await {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, l0, l1, l2]) as usize];
    stream.read_exact(&mut payload).await?;
    Ok(Some((
        kind,
        flags,
        u32::from_be_bytes([s0, s1, s2, s3]),
        payload,
    )))
}

/// A server that says yes to every WebSocket, then sends back what it gets; to anything else it answers 200 `ok`. At its peer's end
/// it ends, too.
pub struct SocketBackend {
    addr: SocketAddr,
    served: Arc<Mutex<Vec<Option<End>>>>,
    task: JoinHandle<()>,
}

impl SocketBackend {
    /// On plain TCP.
    pub fn start() -> Self {
        let listener = TcpListener::from_std(ports::listener()).expect("a listener for tokio");
        let addr = listener
            .local_addr()
            .expect("a bound socket has an address");
        let served = Arc::<Mutex<Vec<Option<End>>>>::default();
        let all = Arc::clone(&served);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let all = Arc::clone(&all);
                tokio::spawn(async move {
                    let mut talk = Talk::new(stream);
                    loop {
                        let Some(request) = talk.maybe_until("\r\n\r\n").await else {
                            return;
                        };
                        let (_, headers, _) = head(request.as_bytes()).expect("a head");
                        let Some(key) = only(&headers, "sec-websocket-key") else {
                            talk.say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                                .await;
                            continue;
                        };
                        let number = {
                            let mut all = all.lock().expect("lock");
                            all.push(None);
                            all.len() - 1
                        };
                        let protocol = only(&headers, "sec-websocket-protocol").unwrap_or("none");
                        talk.say(accept(
                            key,
                            &format!("Sec-WebSocket-Protocol: {protocol}\r\n"),
                        ))
                        .await;
                        let end = talk.echo().await;
                        all.lock().expect("lock")[number] = Some(end);
                        return;
                    }
                });
            }
        });
        Self { addr, served, task }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// WebSockets so far, and how many of them have ended.
    pub fn served(&self) -> (usize, usize) {
        let served = self.served.lock().expect("lock");
        (served.len(), served.iter().flatten().count())
    }
}

impl Drop for SocketBackend {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// 101 with the proof that this key asks for.
pub fn accept(key: &str, lines: &str) -> String {
    let accept =
        tokio_tungstenite::tungstenite::handshake::derive_accept_key(key.trim().as_bytes());
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: {accept}\r\n{lines}\r\n"
    )
}

/// The key in a request's head.
pub fn key_in(head: &str) -> &str {
    let (_, rest) = head
        .split_once("sec-websocket-key: ")
        .expect("a key in the head");
    rest.split("\r\n").next().expect("its end")
}
