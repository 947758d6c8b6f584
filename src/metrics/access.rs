//! The access log: one line per connection and per request of HTTP, never waited for.
//!
//! A worker formats an [`AccessEntry`] or a [`RequestEntry`] into a scratch text of its own thread and hands the line to
//! [`Lines`], so no worker ever waits for a log. Nothing here knows settings; `control::telemetry` opens the log as
//! they say.

use super::lines::{Lines, QUEUE_LINES, Target};
use super::quote;
use std::cell::RefCell;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// What is said of one connection when it ends. `None` is written as `-`, in JSON as `null`.
#[derive(Clone, Debug)]
pub struct AccessEntry<'a> {
    /// When the connection ended.
    pub time: SystemTime,
    /// Number of the connection, the same as in other log lines.
    pub id: u64,
    /// Name of the listener.
    pub listener: &'a str,
    /// The client's address.
    pub client: SocketAddr,
    /// Domain that an XMPP stream is for. Chosen by a stranger.
    pub domain: Option<&'a str>,
    /// Server name that the client asked for. Chosen by a stranger.
    pub sni: Option<&'a str>,
    /// Protocol agreed on by ALPN.
    pub alpn: Option<&'a [u8]>,
    /// TLS version: `TLSv1.2`, `TLSv1.3`.
    pub tls: Option<&'a str>,
    /// Cipher suite.
    pub suite: Option<&'a str>,
    /// Whether the handshake resumed an earlier one.
    pub resumed: bool,
    /// Name of the upstream.
    pub upstream: Option<&'a str>,
    /// The backend that served it.
    pub backend: Option<&'a str>,
    /// From accept to end.
    pub duration: Duration,
    /// Payload bytes from client to backend.
    pub bytes_up: u64,
    /// Payload bytes from backend to client.
    pub bytes_down: u64,
    /// How it ended, in the word of the metric `vestibule_sessions_ended_total`.
    pub outcome: &'a str,
}

/// What is said of one request of HTTP when it ends.
#[derive(Clone, Debug)]
pub struct RequestEntry<'a> {
    /// When the request ended.
    pub time: SystemTime,
    /// What the backend was told as X-Request-Id. Chosen by a trusted proxy, if there is one.
    pub id: RequestId<'a>,
    /// Name of the listener.
    pub listener: &'a str,
    /// The address that the connection came from.
    pub client: SocketAddr,
    /// The address that trusted proxies say they speak for.
    pub forwarded_for: Option<IpAddr>,
    /// Version of HTTP.
    pub version: &'a str,
    /// Chosen by a stranger, as are host and path.
    pub method: &'a str,
    /// Host, as it was asked for.
    pub host: Option<&'a [u8]>,
    /// Path without its query, which may have secrets.
    pub path: &'a str,
    /// What was answered, if anything was.
    pub status: Option<u16>,
    /// The route that it took.
    pub route: Option<&'a str>,
    /// Name of the upstream.
    pub upstream: Option<&'a str>,
    /// The backend that it was sent to.
    pub backend: Option<&'a str>,
    /// From the request's head to the end.
    pub duration: Duration,
    /// From the request's head to the beginning of the answer.
    pub first_byte: Option<Duration>,
    /// Bytes of the request's body.
    pub bytes_up: u64,
    /// Bytes of the answer's body.
    pub bytes_down: u64,
    /// How it ended.
    pub outcome: &'a str,
}

/// Which request.
#[derive(Clone, Copy, Debug)]
pub enum RequestId<'a> {
    /// Numbers of the connection and of the request on it.
    Own(u64, u64),
    /// What a trusted proxy calls it.
    Told(&'a [u8]),
}

/// Most bytes of a text that are written, so that [`QUEUE_LINES`] bounds memory as well: to 20 MiB if all have long paths.
const TEXT_MAX: usize = 1024;
const _: () = assert!(QUEUE_LINES * TEXT_MAX <= 8 << 20);

/// Form of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One JSON object.
    Json,
    /// `key=value` pairs, values quoted where they need it.
    Text,
}

impl AccessEntry<'_> {
    /// Appends the line, with its line break, to `out`.
    pub fn write(&self, out: &mut String, form: Form) {
        let mut line = Line::new(out, form, self.time);
        line.plain("id", self.id, false);
        line.text("listener", Some(self.listener.as_bytes()));
        line.plain("client", self.client, true);
        line.text("domain", self.domain.map(str::as_bytes));
        line.text("sni", self.sni.map(str::as_bytes));
        line.text("alpn", self.alpn);
        line.text("tls", self.tls.map(str::as_bytes));
        line.text("suite", self.suite.map(str::as_bytes));
        line.plain("resumed", self.resumed, false);
        line.text("upstream", self.upstream.map(str::as_bytes));
        line.text("backend", self.backend.map(str::as_bytes));
        line.plain("duration_ms", self.duration.as_millis(), false);
        line.plain("bytes_up", self.bytes_up, false);
        line.plain("bytes_down", self.bytes_down, false);
        line.text("outcome", Some(self.outcome.as_bytes()));
        line.end();
    }
}

impl RequestEntry<'_> {
    /// Appends the line, with its line break, to `out`.
    pub fn write(&self, out: &mut String, form: Form) {
        let mut line = Line::new(out, form, self.time);
        line.plain("kind", "request", true);
        match self.id {
            RequestId::Own(connection, number) => {
                line.plain("id", format_args!("{connection}-{number}"), true);
            }
            RequestId::Told(id) => line.text("id", Some(id)),
        }
        line.text("listener", Some(self.listener.as_bytes()));
        line.plain("client", self.client, true);
        line.known("forwarded_for", self.forwarded_for, true);
        line.plain("version", self.version, true);
        line.text("method", Some(self.method.as_bytes()));
        line.text("host", self.host);
        line.text("path", Some(self.path.as_bytes()));
        line.known("status", self.status, false);
        line.text("route", self.route.map(str::as_bytes));
        line.text("upstream", self.upstream.map(str::as_bytes));
        line.text("backend", self.backend.map(str::as_bytes));
        line.plain("duration_ms", self.duration.as_millis(), false);
        let first_byte = self.first_byte.map(|first_byte| first_byte.as_millis());
        line.known("first_byte_ms", first_byte, false);
        line.plain("bytes_up", self.bytes_up, false);
        line.plain("bytes_down", self.bytes_down, false);
        line.text("outcome", Some(self.outcome.as_bytes()));
        line.end();
    }
}

/// A line under construction: the one place that knows how the two forms differ.
struct Line<'a> {
    out: &'a mut String,
    form: Form,
    first: bool,
}

impl<'a> Line<'a> {
    /// Begins with the time.
    fn new(out: &'a mut String, form: Form, time: SystemTime) -> Self {
        let mut line = Self {
            out,
            form,
            first: true,
        };
        line.plain("time", humantime::format_rfc3339_millis(time), true);
        line
    }

    fn key(&mut self, key: &str) {
        let (before, after) = match (self.form, self.first) {
            (Form::Json, true) => ("{\"", "\":"),
            (Form::Json, false) => (",\"", "\":"),
            (Form::Text, true) => ("", "="),
            (Form::Text, false) => (" ", "="),
        };
        self.first = false;
        self.out.push_str(before);
        self.out.push_str(key);
        self.out.push_str(after);
    }

    /// A value of our own making that needs no escape; `string` asks for quotes in JSON.
    fn plain(&mut self, key: &str, value: impl std::fmt::Display, string: bool) {
        self.key(key);
        let quote = if string && self.form == Form::Json {
            "\""
        } else {
            ""
        };
        let _ = write!(self.out, "{quote}{value}{quote}");
    }

    /// The same, if it is known.
    fn known(&mut self, key: &str, value: Option<impl std::fmt::Display>, string: bool) {
        match value {
            Some(value) => self.plain(key, value, string),
            None => self.text(key, None),
        }
    }

    fn text(&mut self, key: &str, value: Option<&[u8]>) {
        self.key(key);
        let value = value.map(|value| value.get(..TEXT_MAX).unwrap_or(value));
        match (self.form, value) {
            (Form::Json, Some(value)) => quote::json(self.out, value),
            (Form::Json, None) => self.out.push_str("null"),
            (Form::Text, Some(value)) => quote::bare_or_quoted(self.out, value),
            (Form::Text, None) => self.out.push('-'),
        }
    }

    fn end(self) {
        self.out
            .push_str(if self.form == Form::Json { "}\n" } else { "\n" });
    }
}

/// Where the lines go. Shared by all workers; dropping the last of it writes out what waits, for about
/// a second at most.
#[derive(Debug)]
pub struct AccessLog {
    form: Form,
    lines: Lines,
    path: Option<PathBuf>,
}

impl AccessLog {
    /// Appends to the file at `path`, which is created if need be.
    ///
    /// # Errors
    /// When the file cannot be opened for appending, or there is no thread for it.
    pub fn to_file(path: &Path, form: Form) -> io::Result<Self> {
        let file = open(path)?;
        Self::start(Box::new(file), Some(path.to_owned()), form)
    }

    /// Writes to standard output.
    ///
    /// # Errors
    /// When there is no thread for it.
    pub fn to_stdout(form: Form) -> io::Result<Self> {
        Self::start(Box::new(io::stdout()), None, form)
    }

    fn start(target: Target, path: Option<PathBuf>, form: Form) -> io::Result<Self> {
        let told = |error: &io::Error| {
            tracing::warn!(%error, "lines of the access log are lost, and counted, until it can be written again");
        };
        Ok(Self {
            form,
            lines: Lines::start("access-log", target, told)?,
            path,
        })
    }

    /// Queues the line of one connection. Never waits.
    pub fn line(&self, entry: &AccessEntry<'_>) {
        self.put(|line, form| entry.write(line, form));
    }

    /// Queues the line of one request. Never waits.
    pub fn request(&self, entry: &RequestEntry<'_>) {
        self.put(|line, form| entry.write(line, form));
    }

    fn put(&self, write: impl FnOnce(&mut String, Form)) {
        thread_local! {
            static SCRATCH: RefCell<String> = const { RefCell::new(String::new()) };
        }
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.clear();
            write(scratch, self.form);
            self.lines.put(scratch.as_bytes());
        });
    }

    /// Opens the file again under its name: what moved it away (logrotate) then has it alone. Lines
    /// that wait go to the new file. Does nothing for standard output.
    ///
    /// # Errors
    /// When the file cannot be opened; the old one stays in use.
    pub fn reopen(&self) -> io::Result<()> {
        let Some(path) = &self.path else {
            return Ok(());
        };
        self.lines.turn_to(Box::new(open(path)?));
        Ok(())
    }

    /// Lines lost so far: the queue was full, or the target refused them.
    pub fn dropped(&self) -> u64 {
        self.lines.lost()
    }
}

/// Never waits: a FIFO that nobody reads is an error, not the end of the control plane. Once it is open, the log's own
/// thread may wait for its reader.
fn open(path: &Path) -> io::Result<File> {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(path)?;
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn entry() -> AccessEntry<'static> {
        AccessEntry {
            time: SystemTime::UNIX_EPOCH + Duration::from_millis(1_764_534_387_042),
            id: 17,
            listener: "xmpps-5223",
            client: "[2001:db8::1]:50000".parse().unwrap(),
            domain: Some("chat.example"),
            sni: Some("chat.example"),
            alpn: Some(b"xmpp-client"),
            tls: Some("1.3"),
            suite: Some("TLS_AES_128_GCM_SHA256"),
            resumed: true,
            upstream: Some("prosody"),
            backend: Some("127.0.0.1:5222"),
            duration: Duration::from_micros(61_234_999),
            bytes_up: 1024,
            bytes_down: 65536,
            outcome: "closed",
        }
    }

    fn written(entry: &AccessEntry<'_>, form: Form) -> String {
        let mut out = String::new();
        entry.write(&mut out, form);
        out
    }

    #[test]
    fn a_text_line_reads_as_pairs() {
        assert_eq!(
            written(&entry(), Form::Text),
            "time=2025-11-30T20:26:27.042Z id=17 listener=xmpps-5223 client=[2001:db8::1]:50000 \
             domain=chat.example sni=chat.example alpn=xmpp-client tls=1.3 suite=TLS_AES_128_GCM_SHA256 resumed=true \
             upstream=prosody backend=127.0.0.1:5222 duration_ms=61234 bytes_up=1024 bytes_down=65536 \
             outcome=closed\n"
        );
    }

    #[test]
    fn a_json_line_is_one_object() {
        let bare = AccessEntry {
            domain: None,
            sni: None,
            alpn: None,
            backend: None,
            ..entry()
        };
        assert_eq!(
            written(&bare, Form::Json),
            "{\"time\":\"2025-11-30T20:26:27.042Z\",\"id\":17,\"listener\":\"xmpps-5223\",\
             \"client\":\"[2001:db8::1]:50000\",\"domain\":null,\"sni\":null,\"alpn\":null,\"tls\":\"1.3\",\
             \"suite\":\"TLS_AES_128_GCM_SHA256\",\"resumed\":true,\"upstream\":\"prosody\",\
             \"backend\":null,\"duration_ms\":61234,\"bytes_up\":1024,\"bytes_down\":65536,\
             \"outcome\":\"closed\"}\n"
        );
    }

    fn request() -> RequestEntry<'static> {
        RequestEntry {
            time: SystemTime::UNIX_EPOCH + Duration::from_millis(1_764_534_387_042),
            id: RequestId::Own(17, 3),
            listener: "web",
            client: "[2001:db8::1]:50000".parse().unwrap(),
            forwarded_for: Some("192.0.2.7".parse().unwrap()),
            version: "2",
            method: "GET",
            host: Some(b"chat.example"),
            path: "/a%20b",
            status: Some(200),
            route: Some("/a"),
            upstream: Some("app"),
            backend: Some("http://127.0.0.1:8080"),
            duration: Duration::from_micros(61_234_999),
            first_byte: Some(Duration::from_micros(12_999)),
            bytes_up: 5,
            bytes_down: 65536,
            outcome: "answered",
        }
    }

    fn request_written(entry: &RequestEntry<'_>, form: Form) -> String {
        let mut out = String::new();
        entry.write(&mut out, form);
        out
    }

    #[test]
    fn a_request_has_a_line_of_its_own_kind() {
        assert_eq!(
            request_written(&request(), Form::Text),
            "time=2025-11-30T20:26:27.042Z kind=request id=17-3 listener=web client=[2001:db8::1]:50000 \
             forwarded_for=192.0.2.7 version=2 method=GET host=chat.example path=/a%20b status=200 route=/a \
             upstream=app backend=http://127.0.0.1:8080 duration_ms=61234 first_byte_ms=12 bytes_up=5 \
             bytes_down=65536 outcome=answered\n"
        );
        let bare = RequestEntry {
            id: RequestId::Told(b"a\"b"),
            forwarded_for: None,
            host: None,
            status: None,
            route: None,
            upstream: None,
            backend: None,
            first_byte: None,
            outcome: "client_gone",
            ..request()
        };
        assert_eq!(
            request_written(&bare, Form::Json),
            "{\"time\":\"2025-11-30T20:26:27.042Z\",\"kind\":\"request\",\"id\":\"a\\\"b\",\
             \"listener\":\"web\",\"client\":\"[2001:db8::1]:50000\",\"forwarded_for\":null,\"version\":\"2\",\
             \"method\":\"GET\",\"host\":null,\"path\":\"/a%20b\",\"status\":null,\"route\":null,\
             \"upstream\":null,\"backend\":null,\"duration_ms\":61234,\"first_byte_ms\":null,\"bytes_up\":5,\
             \"bytes_down\":65536,\"outcome\":\"client_gone\"}\n"
        );
    }

    #[test]
    fn a_hostile_request_forges_neither_a_field_nor_a_line() {
        let hostile = RequestEntry {
            id: RequestId::Told(b"1 status=200\nkind=request"),
            method: "GET\tX",
            host: Some(b"a outcome=answered\xff\r\n"),
            path: "/ status=200\n\u{1b}[2J\u{2028}",
            ..request()
        };
        for form in [Form::Text, Form::Json] {
            let line = request_written(&hostile, form);
            assert_eq!(line.matches(['\n', '\r']).count(), 1, "{line}");
            assert!(!line.contains(['\u{1b}', '\u{2028}']), "{line}");
        }
        let text = request_written(&hostile, Form::Text);
        for part in [
            r#" id="1 status=200\x0akind=request" "#,
            r#" host="a outcome=answered\xff\x0d\x0a" "#,
            r#" path="/ status=200\x0a\x1b[2J\xe2\x80\xa8" "#,
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn a_long_path_is_cut() {
        let path = "/é".repeat(2000);
        let long = RequestEntry {
            path: &path,
            ..request()
        };
        for form in [Form::Text, Form::Json] {
            let line = request_written(&long, form);
            assert!(line.len() < 6 * TEXT_MAX, "{}", line.len());
            assert!(line.contains("outcome"));
        }
    }

    #[test]
    fn a_hostile_name_forges_neither_a_field_nor_a_line() {
        let sni = "x outcome=closed\ntime=1 \u{1b}[2J\"";
        let hostile = AccessEntry {
            sni: Some(sni),
            alpn: Some(b"\xff\n"),
            ..entry()
        };
        for form in [Form::Text, Form::Json] {
            let line = written(&hostile, form);
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            assert!(!line.contains('\u{1b}'), "{line}");
        }
        let text = written(&hostile, Form::Text);
        assert!(
            text.contains(r#"sni="x outcome=closed\x0atime=1 \x1b[2J\"" alpn="\xff\x0a""#),
            "{text}"
        );
    }

    /// A folder of its own below the system's temporary one, removed at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("vestibule-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_is_appended_to_and_complete_after_drop() {
        let scratch = Scratch::new("access-append");
        let path = scratch.0.join("access.log");
        std::fs::write(&path, "before\n").unwrap();
        let log = AccessLog::to_file(&path, Form::Text).unwrap();
        for id in 0..100 {
            log.line(&AccessEntry { id, ..entry() });
        }
        assert_eq!(log.dropped(), 0);
        drop(log);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("before\ntime="));
        assert_eq!(text.lines().count(), 101);
    }

    #[test]
    fn after_reopen_lines_go_to_the_new_file() {
        let scratch = Scratch::new("access-rotate");
        let (path, moved) = (scratch.0.join("access.log"), scratch.0.join("access.log.1"));
        let log = AccessLog::to_file(&path, Form::Json).unwrap();
        std::fs::rename(&path, &moved).unwrap();
        log.reopen().unwrap();
        log.line(&entry());
        drop(log);
        assert_eq!(std::fs::read_to_string(&moved).unwrap(), "");
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1);
    }

    #[test]
    fn a_failed_reopen_keeps_the_old_file() {
        let scratch = Scratch::new("access-keep");
        let folder = scratch.0.join("logs");
        std::fs::create_dir(&folder).unwrap();
        let moved = scratch.0.join("moved");
        let log = AccessLog::to_file(&folder.join("access.log"), Form::Text).unwrap();
        std::fs::rename(&folder, &moved).unwrap();
        assert!(log.reopen().is_err());
        log.line(&entry());
        drop(log);
        assert_eq!(
            std::fs::read_to_string(moved.join("access.log"))
                .unwrap()
                .lines()
                .count(),
            1
        );
    }

    #[test]
    fn a_line_that_the_disk_refuses_is_counted() {
        let log = AccessLog::to_file(Path::new("/dev/full"), Form::Text).unwrap();
        log.line(&entry());
        log.lines.finish();
        assert_eq!(log.dropped(), 1);
    }
}
