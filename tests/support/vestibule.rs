//! The program under test as a process that ends with its guard.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::certs::{Pair, fresh_path, pki};
use super::ports;

/// What to start. `Setup::new("tls", backend).start().await` is the shortest use.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Scheme and backends of each listener.
    listeners: Vec<(String, Vec<String>)>,
    pairs: Vec<[String; 2]>,
    args: Vec<String>,
    file: Option<String>,
    unread: bool,
}

impl Setup {
    /// One listener that forwards to one backend, which is an address or anything that `--forward` takes.
    pub fn new(scheme: &str, backend: impl ToString) -> Self {
        Self::default().listener(scheme, &[backend.to_string()])
    }

    /// One more listener, balancing over these backends.
    pub fn listener(mut self, scheme: &str, backends: &[String]) -> Self {
        self.listeners.push((scheme.to_owned(), backends.to_vec()));
        self
    }

    /// One more certificate. Without any, that of `chat.test` is used.
    pub fn cert(mut self, pair: &Pair) -> Self {
        self.pairs.push([
            pair.cert.display().to_string(),
            pair.key.display().to_string(),
        ]);
        self
    }

    /// More flags.
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    /// A settings file with this text, beside the flags. In it `@0` is the address of a listener of its own,
    /// [`Vestibule::addr_of`] zero, and so on up to `@9`; those of [`Setup::listener`] come behind.
    pub fn file(mut self, toml: &str) -> Self {
        self.file = Some(toml.to_owned());
        self
    }

    /// Nobody reads what the program says, on either output; the pipes stay open until [`Vestibule::hang_up`].
    pub fn unread(mut self) -> Self {
        self.unread = true;
        self
    }

    /// Starts the program and waits until it says that it is ready.
    pub async fn start(self) -> Vestibule {
        for _ in 0..5 {
            match self.try_start().await {
                Ok(vestibule) => return vestibule,
                // A port that was free a moment ago is not any more: others are tried.
                Err(said) if said.contains("in use") || said.contains("os error 98") => {}
                Err(said) => panic!("the program ended at start:\n{said}"),
            }
        }
        panic!("no free ports in five attempts");
    }

    /// Starts the program, which must refuse to serve; gives its exit status and what it said.
    pub async fn start_refused(self) -> (ExitStatus, String) {
        let (mut vestibule, _) = self.spawn();
        let status = vestibule.ended().await;
        (status, vestibule.said())
    }

    async fn try_start(&self) -> Result<Vestibule, String> {
        let (mut vestibule, deadline) = (self.spawn().0, Instant::now() + START_MAX);
        // There is no event to wait for before the admin listener is there: ask until it answers.
        loop {
            if vestibule.child.try_wait().expect("wait").is_some() {
                vestibule.join_readers();
                return Err(vestibule.said());
            }
            if let Ok((200, _)) = vestibule.try_get("/readyz").await {
                return Ok(vestibule);
            }
            assert!(
                Instant::now() < deadline,
                "not ready after {START_MAX:?}:\n{}",
                vestibule.said()
            );
            tokio::time::sleep(POLL).await;
        }
    }

    fn spawn(&self) -> (Vestibule, Vec<String>) {
        let admin = ports::free();
        let mut args = vec!["--admin".to_owned(), admin.to_string()];
        let mut addrs = Vec::new();
        let mut file = self.file.clone();
        if let Some(toml) = &mut file {
            for number in 0..10 {
                let place = format!("@{number}");
                if !toml.contains(&place) {
                    break;
                }
                addrs.push(ports::free());
                *toml = toml.replace(&place, &addrs[number].to_string());
            }
        }
        for (scheme, backends) in &self.listeners {
            let addr = ports::free();
            addrs.push(addr);
            for backend in backends {
                args.extend([
                    "--forward".to_owned(),
                    format!("{scheme}://{addr}={backend}"),
                ]);
            }
        }
        let chat = &pki().chat;
        let default = [[
            chat.cert.display().to_string(),
            chat.key.display().to_string(),
        ]];
        let pairs = if self.pairs.is_empty() {
            &default[..]
        } else {
            &self.pairs
        };
        for [cert, key] in pairs {
            args.extend([
                "--cert".to_owned(),
                cert.clone(),
                "--key".to_owned(),
                key.clone(),
            ]);
        }
        if let Some(toml) = &file {
            let path = fresh_path("vestibule.toml");
            std::fs::write(&path, toml).expect("write");
            args.extend(["--config".to_owned(), path.display().to_string()]);
        }
        let given = |flag: &str| {
            self.args
                .iter()
                .any(|arg| arg.split('=').next() == Some(flag))
        };
        if !given("--log-level") {
            args.extend(["--log-level", "debug"].map(str::to_owned));
        }
        if !given("--workers") {
            args.extend(["--workers", "2"].map(str::to_owned));
        }
        args.extend(self.args.iter().cloned());

        let mut command = Command::new(env!("CARGO_BIN_EXE_vestibule"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("VESTIBULE_") {
                command.env_remove(name);
            }
        }
        let mut child = command
            .args(&args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let said = Arc::new(Mutex::new(String::new()));
        let pipes = [
            OwnedFd::from(child.stdout.take().expect("piped")),
            OwnedFd::from(child.stderr.take().expect("piped")),
        ];
        let (readers, unread) = if self.unread {
            (Vec::new(), Vec::from(pipes))
        } else {
            let readers = pipes.map(|pipe| collect(File::from(pipe), &said));
            (Vec::from(readers), Vec::new())
        };
        (
            Vestibule {
                child,
                admin,
                addrs,
                said,
                readers,
                unread,
            },
            args,
        )
    }
}

/// The running program; killed when dropped, and its output shown if the test fails.
pub struct Vestibule {
    child: Child,
    admin: SocketAddr,
    addrs: Vec<SocketAddr>,
    said: Arc<Mutex<String>>,
    readers: Vec<std::thread::JoinHandle<()>>,
    unread: Vec<OwnedFd>,
}

impl Vestibule {
    /// Where the first listener is.
    pub fn addr(&self) -> SocketAddr {
        self.addrs[0]
    }

    /// Where the listener with this number is.
    pub fn addr_of(&self, listener: usize) -> SocketAddr {
        self.addrs[listener]
    }

    /// Everything printed so far, on both outputs.
    pub fn said(&self) -> String {
        self.said.lock().expect("lock").clone()
    }

    /// Waits until this has been printed: the log is written by a thread of its own, after the fact.
    pub async fn says(&self, text: &str) {
        let deadline = Instant::now() + METRIC_MAX;
        while !self.said().contains(text) {
            assert!(
                Instant::now() < deadline,
                "{text:?} was not said:\n{}",
                self.said()
            );
            tokio::time::sleep(POLL).await;
        }
    }

    /// Who does not read goes away altogether.
    pub fn hang_up(&mut self) {
        self.unread.clear();
    }

    /// Asks the process to drain.
    pub fn terminate(&self) {
        let pid = i32::try_from(self.pid()).expect("a process id");
        let pid = rustix::process::Pid::from_raw(pid).expect("a process id");
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("kill");
    }

    /// The process, for signals.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end of the process.
    pub async fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + END_MAX;
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                self.join_readers();
                return status;
            }
            assert!(Instant::now() < deadline, "still running:\n{}", self.said());
            tokio::time::sleep(POLL).await;
        }
    }

    /// Status and body of a page of the admin listener.
    pub async fn get(&self, path: &str) -> (u16, String) {
        self.try_get(path)
            .await
            .expect("the admin listener answers")
    }

    /// The sum of a metric's samples that carry all of these labels; 0 if there are none.
    pub async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let (status, page) = self.get("/metrics").await;
        assert_eq!(status, 200, "{page}");
        sum(&page, name, labels)
    }

    /// Waits until the metric has this value, which it must then keep in the sense that it is not passed.
    ///
    /// Counting and closing are not one step, so a test that saw the end may be ahead of the count.
    pub async fn metric_becomes(&self, name: &str, labels: &[(&str, &str)], value: u64) {
        let deadline = Instant::now() + METRIC_MAX;
        loop {
            let (_, page) = self.get("/metrics").await;
            let now = sum(&page, name, labels);
            if now == value {
                return;
            }
            if Instant::now() >= deadline {
                let family: Vec<_> = page.lines().filter(|line| line.starts_with(name)).collect();
                panic!("{name}{labels:?} is {now}, not {value}; the page has {family:#?}");
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until nothing is held any more: no connection, no backend connection, no buffer.
    pub async fn is_idle(&self) {
        for name in [
            "vestibule_connections",
            "vestibule_backend_connections",
            "vestibule_pool_leased_bytes",
        ] {
            self.metric_becomes(name, &[], 0).await;
        }
    }

    /// Resident memory of the process in bytes.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("proc");
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .expect("VmRSS");
        line.split_whitespace()
            .nth(1)
            .expect("a number")
            .parse::<u64>()
            .expect("a number")
            << 10
    }

    /// CPU time of the process so far, in ticks of a hundredth of a second.
    pub fn cpu_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("proc");
        let (_, fields) = stat.rsplit_once(')').expect("a name");
        let field = |number: usize| -> u64 {
            let field = fields.split_whitespace().nth(number);
            field.expect("a field").parse().expect("a number")
        };
        field(11) + field(12)
    }

    async fn try_get(&self, path: &str) -> std::io::Result<(u16, String)> {
        let mut stream = TcpStream::connect(self.admin).await?;
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.admin
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .unwrap_or(0);
        Ok((status, body.to_owned()))
    }

    fn join_readers(&mut self) {
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
    }
}

impl Drop for Vestibule {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.join_readers();
        let said = self.said();
        // A panic inside the program is never right, whatever the test was about.
        let panicked = said.contains("panicked at");
        if std::thread::panicking() {
            let tail: Vec<_> = said.lines().rev().take(SAID_MAX).collect();
            eprintln!("--- the program said (last {SAID_MAX} lines):");
            for line in tail.iter().rev() {
                eprintln!("    {line}");
            }
        } else if panicked {
            panic!("the program panicked:\n{said}");
        }
    }
}

/// The sum of all samples of a family that carry these labels.
pub fn sum(page: &str, name: &str, labels: &[(&str, &str)]) -> u64 {
    page.lines()
        .filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let (own, value) = rest.rsplit_once(' ')?;
            let own = own
                .strip_prefix('{')
                .and_then(|own| own.strip_suffix('}'))
                .unwrap_or(own);
            // Another family whose name begins the same.
            if !rest.starts_with(['{', ' ']) {
                return None;
            }
            let carries = |(key, value): &(&str, &str)| {
                own.split("\",")
                    .any(|label| label.trim_end_matches('"') == format!("{key}=\"{value}"))
            };
            labels
                .iter()
                .all(carries)
                .then(|| value.parse::<f64>().ok())
                .flatten()
        })
        .sum::<f64>() as u64
}

fn collect(
    stream: impl Read + Send + 'static,
    said: &Arc<Mutex<String>>,
) -> std::thread::JoinHandle<()> {
    let said = Arc::clone(said);
    std::thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            let mut said = said.lock().expect("lock");
            said.push_str(&String::from_utf8_lossy(&line));
            said.push('\n');
        }
    })
}

const START_MAX: Duration = Duration::from_secs(20);
const END_MAX: Duration = Duration::from_secs(20);
const METRIC_MAX: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);
const SAID_MAX: usize = 60;
