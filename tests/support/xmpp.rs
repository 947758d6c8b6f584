//! The XMPP cast: a talk that both sides can hold, clients that begin one by STARTTLS or by Direct TLS, and a server that
//! plays a login and echoes what comes after.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::backend::RecordingBackend;
use super::certs::Pair;
use super::client::{Offer, TlsClient};
use super::vestibule::{Setup, Vestibule};
use super::{End, connect, end_of, ports, read_plain, read_tls};

/// Both namespaces of a client's stream.
pub const NAMESPACES: &str =
    "xmlns='jabber:client' xmlns:stream='http://etherx.jabber.org/streams'";
/// The wish to begin TLS.
pub const STARTTLS: &str = "<starttls xmlns='urn:ietf:params:xml:ns:xmpp-tls'/>";
/// The answer to it.
pub const PROCEED: &str = "<proceed xmlns='urn:ietf:params:xml:ns:xmpp-tls'/>";
/// A login whose success every server here gives.
pub const AUTH: &str =
    "<auth xmlns='urn:ietf:params:xml:ns:xmpp-sasl' mechanism='PLAIN'>AGEAYg==</auth>";
/// What a server says to [`AUTH`].
pub const SUCCESS: &str = "<success xmlns='urn:ietf:params:xml:ns:xmpp-sasl'/>";
/// What servers here offer before a login: nothing about TLS.
pub const MECHANISMS: &str = "<mechanisms xmlns='urn:ietf:params:xml:ns:xmpp-sasl'>\
    <mechanism>PLAIN</mechanism></mechanisms>";
/// An offer of STARTTLS.
pub const OFFER: &str = "<starttls xmlns='urn:ietf:params:xml:ns:xmpp-tls'/>";
/// A demand for it.
pub const DEMAND: &str = "<starttls xmlns='urn:ietf:params:xml:ns:xmpp-tls'><required/></starttls>";
/// What servers here offer after a login.
pub const BIND: &str = "<bind xmlns='urn:ietf:params:xml:ns:xmpp-bind'/>";
/// The end of a stream.
pub const CLOSE: &str = "</stream:stream>";

/// A client's stream header with these attributes beside the namespaces.
pub fn header(attributes: &str) -> String {
    format!("<?xml version='1.0'?><stream:stream {NAMESPACES} {attributes}>")
}

/// The header that an ordinary client sends.
pub fn open() -> String {
    header("to='chat.test' version='1.0'")
}

/// A server's answer to a header, each time with another id.
pub fn answer(features: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let id = COUNT.fetch_add(1, Ordering::Relaxed);
    format!(
        "<?xml version='1.0'?><stream:stream from='chat.test' id='server-{id}' version='1.0' \
         {NAMESPACES}><stream:features>{features}</stream:features>"
    )
}

/// What is between `attribute='` and the next `'` in the first header of `text`.
pub fn attribute<'a>(text: &'a str, attribute: &str) -> Option<&'a str> {
    let header = &text[text.find("<stream:stream")?..];
    let header = &header[..header.find('>')?];
    let (_, value) = header.split_once(&format!(" {attribute}='"))?;
    value.split_once('\'').map(|(value, _)| value)
}

/// The condition of the stream error in `text`, which must be ended by `</stream:stream>`.
#[track_caller]
pub fn condition(text: &str) -> &str {
    let (_, error) = text
        .split_once("<stream:error")
        .unwrap_or_else(|| panic!("no stream error in {text:?}"));
    assert!(
        error.ends_with("</stream:error></stream:stream>"),
        "{text:?}"
    );
    let (_, condition) = error.split_once("><").expect("a condition");
    let end = condition.find([' ', '/', '>']).expect("its end");
    assert!(
        condition[end..].starts_with(" xmlns='urn:ietf:params:xml:ns:xmpp-streams'"),
        "{text:?}"
    );
    &condition[..end]
}

/// A connection with what was read from it and not asked for yet.
pub struct Talk<S> {
    /// The connection.
    pub stream: S,
    heard: Vec<u8>,
}

/// A client, or a server, in the clear.
pub type PlainTalk = Talk<TcpStream>;
/// A client within TLS.
pub type SecureTalk<S = TcpStream> = Talk<TlsClient<S>>;

impl<S: AsyncRead + AsyncWrite + Unpin> Talk<S> {
    /// Nothing was said yet.
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            heard: Vec::new(),
        }
    }

    /// Sends this at once.
    pub async fn say(&mut self, words: impl AsRef<[u8]>) {
        self.try_say(words)
            .await
            .expect("the other side is listening");
    }

    /// The same, to somebody who may be gone.
    pub async fn try_say(&mut self, words: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.stream.write_all(words.as_ref()).await?;
        self.stream.flush().await
    }

    /// Everything up to and with `words`.
    pub async fn until(&mut self, words: &str) -> String {
        loop {
            let at = self
                .heard
                .windows(words.len())
                .position(|piece| piece == words.as_bytes());
            if let Some(at) = at {
                let rest = self.heard.split_off(at + words.len());
                return text(std::mem::replace(&mut self.heard, rest));
            }
            if !self.more().await {
                panic!("ended before {words:?}; heard {:?}", self.unheard());
            }
        }
    }

    /// The same, unless the end comes first.
    pub async fn maybe_until(&mut self, words: &str) -> Option<String> {
        loop {
            if self.unheard().contains(words) {
                return Some(self.until(words).await);
            }
            if !self.more().await {
                return None;
            }
        }
    }

    /// Says back what it hears, until the end; then ends, too.
    pub async fn echo(&mut self) -> End {
        let mut bytes = std::mem::take(&mut self.heard);
        loop {
            if self.stream.write_all(&bytes).await.is_err() {
                return End::Reset;
            }
            bytes.clear();
            bytes.reserve(READ_LEN);
            match self.stream.read_buf(&mut bytes).await {
                Ok(0) => {
                    let _ = self.stream.shutdown().await;
                    return End::Fin;
                }
                Ok(_) => {}
                Err(error) => return end_of(&error),
            }
        }
    }

    /// Exactly these words come next.
    pub async fn hears(&mut self, words: impl AsRef<[u8]>) {
        let words = words.as_ref();
        while self.heard.len() < words.len() && self.more().await {}
        let next = &self.heard[..self.heard.len().min(words.len())];
        assert!(
            next == words,
            "{:?} instead of {:?}",
            String::from_utf8_lossy(next),
            String::from_utf8_lossy(words)
        );
        self.heard.drain(..words.len());
    }

    /// So many bytes.
    pub async fn exactly(&mut self, len: usize) -> String {
        while self.heard.len() < len {
            assert!(self.more().await, "ended; heard {:?}", self.unheard());
        }
        let rest = self.heard.split_off(len);
        text(std::mem::replace(&mut self.heard, rest))
    }

    /// What was read and not asked for.
    pub fn unheard(&self) -> String {
        String::from_utf8_lossy(&self.heard).into_owned()
    }

    /// Ends what this side says: FIN, within TLS behind close_notify.
    pub async fn end(&mut self) {
        let _ = self.stream.shutdown().await;
    }

    /// Reads once; false at the end.
    async fn more(&mut self) -> bool {
        self.heard.reserve(READ_LEN);
        match self.stream.read_buf(&mut self.heard).await {
            Ok(n) => n > 0,
            Err(error) => {
                end_of(&error);
                false
            }
        }
    }
}

impl<S: Line> Talk<S> {
    /// The rest, to the end.
    pub async fn rest(&mut self) -> (String, End) {
        let (bytes, end) = self.stream.read_to_end_of_line().await;
        self.heard.extend(bytes);
        (text(std::mem::take(&mut self.heard)), end)
    }
}

/// A connection that ends in its own way.
pub trait Line: AsyncRead + AsyncWrite + Unpin {
    /// Everything up to the end, and which it was.
    fn read_to_end_of_line(&mut self) -> impl Future<Output = (Vec<u8>, End)>;
}

impl Line for TcpStream {
    async fn read_to_end_of_line(&mut self) -> (Vec<u8>, End) {
        read_plain(self).await
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Line for TlsClient<S> {
    async fn read_to_end_of_line(&mut self) -> (Vec<u8>, End) {
        read_tls(self).await
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("UTF-8")
}

impl PlainTalk {
    /// A client that has said nothing yet.
    pub async fn connect(addr: SocketAddr) -> Self {
        Self::new(connect(addr).await)
    }

    /// Up to `<proceed/>`, as an ordinary client goes; gives what the server said before it.
    pub async fn proceed(&mut self) -> String {
        self.say(open()).await;
        let greeting = self.until("</stream:features>").await;
        self.say(STARTTLS).await;
        self.hears(PROCEED).await;
        greeting
    }

    /// TLS on this connection, nothing being unheard.
    pub async fn secure(self, offer: &Offer) -> SecureTalk {
        assert_eq!(self.unheard(), "");
        Talk::new(offer.over(self.stream).await.expect("handshake"))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> SecureTalk<S> {
    /// Says something long to an echo, and gives as much as comes back, reading and writing at once.
    pub async fn exchange(&mut self, words: &str) -> String {
        assert_eq!(self.unheard(), "");
        let mut back = vec![0; words.len()];
        let (mut read, mut write) = tokio::io::split(&mut self.stream);
        let saying = async {
            write.write_all(words.as_bytes()).await.expect("written");
            write.flush().await.expect("written");
        };
        let (_, heard) = tokio::join!(saying, read.read_exact(&mut back));
        heard.expect("an echo of all of it");
        text(back)
    }

    /// A login from the header to the features behind it.
    pub async fn login(&mut self) {
        self.say(open()).await;
        self.until("</stream:features>").await;
        self.say(AUTH).await;
        self.hears(SUCCESS).await;
        self.say(open()).await;
        self.until("</stream:features>").await;
    }
}

/// The two ways into TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// RFC 6120 section 5.
    Starttls,
    /// XEP-0368.
    Direct,
}

impl Way {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Starttls, Self::Direct];

    /// The scheme of a client listener for it.
    pub fn scheme(self) -> &'static str {
        match self {
            Self::Starttls => "xmpp",
            Self::Direct => "xmpps",
        }
    }

    /// A client within TLS that has said nothing there.
    pub async fn connect(self, addr: SocketAddr) -> SecureTalk {
        self.connect_as(addr, &Offer::default()).await
    }

    /// The same with this offer.
    pub async fn connect_as(self, addr: SocketAddr, offer: &Offer) -> SecureTalk {
        match self {
            Self::Starttls => {
                let mut client = PlainTalk::connect(addr).await;
                client.proceed().await;
                client.secure(offer).await
            }
            Self::Direct => Talk::new(offer.connect(addr).await),
        }
    }
}

/// What a server plays.
#[derive(Clone)]
pub struct Play {
    /// What it offers before a login.
    pub features: String,
    /// What it says instead of features; then it ends.
    pub error: Option<String>,
    /// What it says when somebody logs in.
    pub success: String,
    /// Its certificate, if it speaks STARTTLS; within TLS it offers it no more.
    pub tls: Option<TlsAcceptor>,
}

impl Default for Play {
    fn default() -> Self {
        Self {
            features: MECHANISMS.to_owned(),
            error: None,
            success: SUCCESS.to_owned(),
            tls: None,
        }
    }
}

impl Play {
    /// A server with these features before a login.
    pub fn offering(features: &str) -> Self {
        Self {
            features: features.to_owned(),
            ..Self::default()
        }
    }

    /// One that speaks STARTTLS with this certificate.
    pub fn tls(mut self, pair: &Pair) -> Self {
        let config = rustls::ServerConfig::builder_with_provider(
            rustls::crypto::aws_lc_rs::default_provider().into(),
        )
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![pair.der.clone()], pair.private_key())
        .expect("certificate");
        self.tls = Some(TlsAcceptor::from(Arc::new(config)));
        self
    }
}

/// What one connection to a server has brought.
#[derive(Clone, Debug, Default)]
pub struct Call {
    /// What the first read took.
    pub first_read: Vec<u8>,
    /// The PROXY header, if one came.
    pub proxy: Vec<u8>,
    /// Everything in the clear behind that.
    pub clear: String,
    /// Everything within the server's own TLS.
    pub secure: String,
    /// How it ended.
    pub ended: Option<End>,
}

/// A server that plays: a login for whoever asks, then an echo; at its peer's end it ends, too.
pub struct XmppBackend {
    addr: SocketAddr,
    calls: Arc<Mutex<Vec<Call>>>,
    task: JoinHandle<()>,
}

impl XmppBackend {
    /// An ordinary one.
    pub fn start() -> Self {
        Self::play(Play::default())
    }

    /// One that plays this.
    pub fn play(play: Play) -> Self {
        let listener = TcpListener::from_std(ports::listener()).expect("a listener for tokio");
        let addr = listener
            .local_addr()
            .expect("a bound socket has an address");
        let calls: Arc<Mutex<Vec<Call>>> = Arc::default();
        let all = Arc::clone(&calls);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let number = {
                    let mut calls = all.lock().expect("lock");
                    calls.push(Call::default());
                    calls.len() - 1
                };
                let note = Note {
                    calls: Arc::clone(&all),
                    number,
                };
                tokio::spawn(serve(stream, play.clone(), note));
            }
        });
        Self { addr, calls, task }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// What has come so far, by connection. The probe of the start is among it unless that is off.
    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().expect("lock").clone()
    }

    /// The only connection that there was.
    #[track_caller]
    pub fn call(&self) -> Call {
        let calls = self.calls();
        assert_eq!(calls.len(), 1, "{calls:#?}");
        calls.into_iter().next().expect("one")
    }

    /// Waits until the connection with this number has ended, and gives what it has brought.
    pub async fn ended(&self, number: usize) -> Call {
        loop {
            if let Some(call) = self.calls().get(number)
                && call.ended.is_some()
            {
                return call.clone();
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
}

impl Drop for XmppBackend {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Most that one read takes.
const READ_LEN: usize = 64 << 10;

struct Note {
    calls: Arc<Mutex<Vec<Call>>>,
    number: usize,
}

impl Note {
    fn of<T>(&self, write: impl FnOnce(&mut Call) -> T) -> T {
        write(&mut self.calls.lock().expect("lock")[self.number])
    }
}

async fn serve(stream: TcpStream, play: Play, note: Note) {
    let mut stream = stream;
    let mut input = Vec::new();
    // The PROXY header first, if there is one.
    loop {
        input.reserve(READ_LEN);
        match stream.read_buf(&mut input).await {
            Ok(0) => return note.of(|call| call.ended = Some(End::Fin)),
            Err(error) => return note.of(|call| call.ended = Some(end_of(&error))),
            Ok(_) => {}
        }
        note.of(|call| {
            if call.first_read.is_empty() {
                call.first_read.clone_from(&input);
            }
        });
        if let Some(len) = proxy_len(&input) {
            let rest = input.split_off(len);
            note.of(|call| {
                call.proxy = std::mem::replace(&mut input, rest);
                call.clear = String::from_utf8_lossy(&input).into_owned();
            });
            break;
        }
    }
    let wants_tls = perform(&mut stream, &play, &play.features, input, |bytes| {
        note.of(|call| call.clear.push_str(&String::from_utf8_lossy(bytes)));
    })
    .await;
    let end = match (wants_tls, &play.tls) {
        (Err(end), _) => end,
        (Ok(()), None) => unreachable!("nobody asks for what is not there"),
        (Ok(()), Some(tls)) => match tls.accept(stream).await {
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => End::Reset,
            Err(error) => end_of(&error),
            Ok(mut stream) => {
                let features = play.features.replace(OFFER, "").replace(DEMAND, "");
                let secure = perform(&mut stream, &play, &features, Vec::new(), |bytes| {
                    note.of(|call| call.secure.push_str(&String::from_utf8_lossy(bytes)));
                });
                secure.await.expect_err("TLS within TLS")
            }
        },
    };
    note.of(|call| call.ended = Some(end));
}

/// The length of the PROXY header at the front, zero if there is none; `None`: not there in full.
fn proxy_len(input: &[u8]) -> Option<usize> {
    const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
    if input.starts_with(b"PROXY ") {
        return input
            .windows(2)
            .position(|piece| piece == b"\r\n")
            .map(|at| at + 2);
    }
    if !input.starts_with(V2) {
        return Some(0);
    }
    let len = input.get(14..16)?;
    let len = 16 + usize::from(u16::from_be_bytes([len[0], len[1]]));
    (input.len() >= len).then_some(len)
}

/// Plays until the end, or until TLS is agreed on (`Ok`).
async fn perform<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    play: &Play,
    features: &str,
    mut input: Vec<u8>,
    hear: impl Fn(&[u8]),
) -> Result<(), End> {
    let mut authenticated = false;
    loop {
        while let Some((len, cue)) = cue(&input) {
            input.drain(..len);
            let words = match cue {
                Cue::Header => match (&play.error, authenticated) {
                    (Some(error), _) => {
                        let whole = answer("");
                        let header = whole.split("<stream:features>").next().expect("a header");
                        let _ = stream
                            .write_all(format!("{header}{error}").as_bytes())
                            .await;
                        let _ = stream.shutdown().await;
                        return Err(read_plain(stream).await.1);
                    }
                    (None, true) => answer(BIND),
                    (None, false) => answer(features),
                },
                Cue::Starttls if play.tls.is_some() => {
                    stream
                        .write_all(PROCEED.as_bytes())
                        .await
                        .map_err(|error| end_of(&error))?;
                    return Ok(());
                }
                Cue::Starttls => continue,
                Cue::Auth => {
                    authenticated = true;
                    play.success.clone()
                }
            };
            stream
                .write_all(words.as_bytes())
                .await
                .map_err(|error| end_of(&error))?;
        }
        if authenticated && !input.is_empty() && !input.starts_with(b"<?xml") {
            let echo = std::mem::take(&mut input);
            stream
                .write_all(&echo)
                .await
                .map_err(|error| end_of(&error))?;
        }
        stream.flush().await.map_err(|error| end_of(&error))?;
        let before = input.len();
        input.reserve(READ_LEN);
        match stream.read_buf(&mut input).await {
            Ok(0) => {
                let _ = stream.shutdown().await;
                return Err(End::Fin);
            }
            Ok(_) => hear(&input[before..]),
            Err(error) => return Err(end_of(&error)),
        }
    }
}

enum Cue {
    Header,
    Starttls,
    Auth,
}

/// The first thing in `input` that a server answers, and the length up to its end.
fn cue(input: &[u8]) -> Option<(usize, Cue)> {
    let find = |what: &[u8], from: usize| {
        let piece = input.get(from..)?;
        let at = piece.windows(what.len()).position(|piece| piece == what)?;
        Some(from + at)
    };
    let header = find(b"<stream:stream", 0).and_then(|at| Some((find(b">", at)? + 1, Cue::Header)));
    let starttls = find(b"<starttls", 0).and_then(|at| Some((find(b">", at)? + 1, Cue::Starttls)));
    let auth = find(b"<auth", 0).and_then(|at| {
        let end = find(b"</auth", at)?;
        Some((find(b">", end)? + 1, Cue::Auth))
    });
    [header, starttls, auth]
        .into_iter()
        .flatten()
        .min_by_key(|(len, _)| *len)
}

/// One listener in front of one server, with these settings of `[xmpp]` and whatever tables follow them. Nobody asks the
/// server what it offers at start, so that all it hears is the tests'.
pub fn door(scheme: &str, backend: impl ToString, settings: &str) -> Setup {
    Setup::new(scheme, backend).file(&format!("[xmpp]\nprobe = false\n{settings}"))
}

/// A client that has logged in to a server that the test plays itself.
pub async fn logged_in(
    way: Way,
    vestibule: &Vestibule,
    backend: &mut RecordingBackend,
) -> (SecureTalk, PlainTalk) {
    let mut client = way.connect(vestibule.addr()).await;
    client.say(open()).await;
    let mut server = Talk::new(backend.accept().await);
    server.hears(open()).await;
    server.say(answer(MECHANISMS)).await;
    client.until("</stream:features>").await;
    client.say(AUTH).await;
    server.hears(AUTH).await;
    server.say(SUCCESS).await;
    client.hears(SUCCESS).await;
    client.say(open()).await;
    server.hears(open()).await;
    server.say(answer(BIND)).await;
    client.until("</stream:features>").await;
    (client, server)
}
