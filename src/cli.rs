//! The command line: what clap reads, laid over the settings file.
//!
//! Every flag of [`Settings`] has an environment twin, `VESTIBULE_` and the flag's name. A flag
//! wins over its twin, that over the file, the file over the default. Lists (`--forward`, `--cert`
//! with `--key`, `--backend-ca`, `--accept-proxy-protocol`, `--trusted-proxies`) add to the file's; all else replaces. A
//! value that cannot be read is wrong usage (clap says so, exit code 2); values that contradict each other are a
//! [`ConfigError`].

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config::file::{File, Given, SocketsTable};
use crate::config::words::{self, Auto};
use crate::config::{
    AccessLog, AdminAddr, Config, ConfigError, Fault, IpNet, LogFormat, Machine, MaxConnections,
    OnTruncation, ProxyProtocol, SocketBuffer, TlsVersion, address, units,
};

/// What stands below every list of flags.
macro_rules! units {
    () => {
        "\
SIZE is bytes, 64KiB, 16MiB. DURATION is 500ms, 10s, 5m, 1h30m; 0 is never.
Each flag FLAG-NAME can be set as VESTIBULE_FLAG_NAME, lists with commas.
A flag wins over its variable, that over the file, that over the default.
Exit codes: 0 fine, 1 could not start or a check failed, 2 wrong usage."
    };
}

const UNITS: &str = units!();
const MORE: &str = concat!(units!(), "\n\n--help tells more and has examples.");
const EXAMPLES: &str = concat!(
    "\
Examples:
  See it work, with nothing to prepare:
    vestibule demo

  Direct TLS for XMPP clients, Prosody behind it:
    vestibule --forward xmpps://0.0.0.0:5223=127.0.0.1:5222 \\
              --cert chat.pem --key chat.key

  XMPP clients with STARTTLS, whose addresses ejabberd gets to see:
    vestibule --forward xmpp://0.0.0.0:5222=127.0.0.1:15222 --proxy-protocol v2 \\
              --cert chat.pem --key chat.key

  A web chat over HTTP/2 and WebSocket, and port 80 that sends browsers there:
    vestibule --forward https://0.0.0.0:443=http://127.0.0.1:5280 \\
              --forward http://0.0.0.0:80 --cert chat.pem --key chat.key

  Two servers that share the load, one folder per certificate, metrics:
    vestibule --forward tls://[::]:8443=chat-1:8080 \\
              --forward tls://[::]:8443=chat-2:8080 \\
              --cert-dir /etc/letsencrypt/live --admin 127.0.0.1:9090

  The same by environment variables, as containers like it:
    VESTIBULE_FORWARD=tls://[::]:8443=chat-1:8080,tls://[::]:8443=chat-2:8080

  Look before you leap; prints the effective settings or every fault:
    vestibule check --config vestibule.toml

",
    units!()
);

const SERVE: &str = "What to serve";
const CERTIFICATES: &str = "Certificates";
const MEMORY: &str = "Memory";
const SOCKETS: &str = "Sockets";
const LIMITS: &str = "Deadlines and limits";
const RUNNING: &str = "Running it";

/// The TLS front door of chat services
///
/// Terminates TLS for chat clients and forwards to the servers behind it.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "vestibule",
    version,
    after_long_help = EXAMPLES,
    after_help = MORE,
    args_conflicts_with_subcommands = true,
    subcommand_help_heading = "Commands (run is the default)",
    override_usage = "vestibule [run] [FLAGS]\n       vestibule check [FLAGS]\n       vestibule demo\n       vestibule healthcheck [--admin ADDR]",
    max_term_width = 100,
)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    settings: Settings,
}

/// Prefix of every variable that is ours.
const VARIABLES: &str = "VESTIBULE_";

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Serve until a signal ends it
    #[command(after_help = MORE, after_long_help = EXAMPLES)]
    Run(Box<Settings>),
    /// Validate what `run` would use and print the effective settings
    #[command(after_help = UNITS)]
    Check(Box<Settings>),
    /// Try it: a certificate, a chat backend and the proxy in one process
    Demo,
    /// Exit 0 if the running instance is ready, for containers without a shell
    Healthcheck(Healthcheck),
}

/// Where the running instance answers.
#[derive(Args, Clone, Debug)]
pub struct Healthcheck {
    /// Its admin listener: loopback ADDR:PORT or unix:PATH
    #[arg(
        long,
        value_name = "ADDR",
        env = "VESTIBULE_ADMIN",
        hide_env_values = true
    )]
    admin: Option<String>,
    /// Else the settings file that names it
    #[arg(
        long,
        value_name = "FILE",
        env = "VESTIBULE_CONFIG",
        hide_env_values = true
    )]
    config: Option<PathBuf>,
}

/// The flags of `run` and `check`.
#[derive(Args, Clone, Debug, Default)]
pub struct Settings {
    /// Settings file (TOML)
    #[arg(long, value_name = "FILE", env = "VESTIBULE_CONFIG", hide_env = true, help_heading = SERVE)]
    config: Option<PathBuf>,

    /// Accept on LISTEN, forward to BACKEND (repeatable)
    ///
    /// LISTEN is SCHEME://ADDR:PORT:
    ///   tls           any protocol in TLS
    ///   xmpp          XMPP clients with STARTTLS, usually 5222
    ///   xmpps         XMPP clients over Direct TLS, usually 5223
    ///   xmpp-server   XMPP servers with STARTTLS, usually 5269
    ///   xmpps-server  XMPP servers over Direct TLS, usually 5270
    ///   https         HTTP/1.1, HTTP/2, WebSocket and BOSH, usually 443
    ///   http          sends browsers to https, usually 80; without =BACKEND
    ///   auto          XMPP clients both ways on one port; XMPP servers and HTTP too, where
    ///                 a route of the file is for them; told apart by ALPN and first bytes
    /// TLS of servers passes through to the backend, which keeps its certificate.
    /// BACKEND is HOST:PORT, tls://HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:PATH.
    /// Several with one LISTEN balance.
    /// The listeners of a settings file are served too.
    #[arg(long, verbatim_doc_comment, value_name = "LISTEN=BACKEND", env = "VESTIBULE_FORWARD", hide_env = true, value_delimiter = ',', help_heading = SERVE)]
    forward: Vec<String>,

    /// CAs trusted for tls:// and https:// backends (repeatable)
    ///
    /// PEM files, for all upstreams, beside the certificate store of the system.
    #[arg(long, value_name = "FILE", env = "VESTIBULE_BACKEND_CA", hide_env = true, value_delimiter = ',', help_heading = SERVE)]
    backend_ca: Vec<PathBuf>,

    /// Tell every backend the client's address [default: off]
    ///
    /// The server must expect the PROXY header: use_proxy_protocol in ejabberd, mod_net_proxy in Prosody.
    /// v2 also tells ALPN, SNI, TLS version and cipher, and the connection's id in the log.
    #[arg(long, value_name = "off|v1|v2", env = "VESTIBULE_PROXY_PROTOCOL", hide_env = true, help_heading = SERVE)]
    proxy_protocol: Option<ProxyProtocol>,

    /// Balancers in front whose PROXY header is believed (repeatable)
    ///
    /// An address or ADDR/BITS. From these a header is demanded, from all others none is read.
    #[arg(long, value_name = "CIDR", env = "VESTIBULE_ACCEPT_PROXY_PROTOCOL", hide_env = true, value_delimiter = ',', value_parser = address::network, help_heading = SERVE)]
    accept_proxy_protocol: Vec<IpNet>,

    /// Balancers in front whose X-Forwarded-* is kept (repeatable)
    ///
    /// An address or ADDR/BITS. What these say of a client in X-Forwarded-* and Forwarded is appended to,
    /// what all others say is replaced.
    #[arg(long, value_name = "CIDR", env = "VESTIBULE_TRUSTED_PROXIES", hide_env = true, value_delimiter = ',', value_parser = address::network, help_heading = SERVE)]
    trusted_proxies: Vec<IpNet>,

    /// How an end without close_notify is passed on [default: fin]
    #[arg(long, value_name = "fin|abort", env = "VESTIBULE_ON_TRUNCATION", hide_env = true, help_heading = SERVE)]
    on_truncation: Option<OnTruncation>,

    /// PEM chain, with --key (repeatable, in pairs)
    ///
    /// The name a client asks for picks among the pairs; the first is the default.
    /// Those of a settings file come after them.
    #[arg(long, value_name = "FILE", env = "VESTIBULE_CERT", hide_env = true, value_delimiter = ',', help_heading = CERTIFICATES)]
    cert: Vec<PathBuf>,

    /// PEM private key of the --cert at the same place
    #[arg(long, value_name = "FILE", env = "VESTIBULE_KEY", hide_env = true, value_delimiter = ',', help_heading = CERTIFICATES)]
    key: Vec<PathBuf>,

    /// One folder per name, with fullchain.pem and privkey.pem
    #[arg(long, value_name = "DIR", env = "VESTIBULE_CERT_DIR", hide_env = true, help_heading = CERTIFICATES)]
    cert_dir: Option<PathBuf>,

    /// Refuse a name that no certificate covers, instead of showing the default
    #[arg(long, env = "VESTIBULE_SNI_STRICT", hide_env = true, action = ArgAction::SetTrue, value_parser = switch, default_value = UNSAID, help_heading = CERTIFICATES)]
    sni_strict: Switch,

    /// Oldest TLS version [default: 1.2]
    #[arg(long, value_name = "1.2|1.3", env = "VESTIBULE_TLS_MIN", hide_env = true, help_heading = CERTIFICATES)]
    tls_min: Option<TlsVersion>,

    /// A fresh allocation for each record instead of the pool
    #[arg(long, env = "VESTIBULE_NO_BUFFER_POOL", hide_env = true, action = ArgAction::SetTrue, value_parser = switch, default_value = UNSAID, help_heading = MEMORY)]
    no_buffer_pool: Switch,

    /// Bound of all buffers [default: 1/8 of the memory limit]
    ///
    /// At the bound reads wait; nothing fails. The default is never below 8MiB and not above 1GiB, unless
    /// the workers need more.
    #[arg(long, value_name = "SIZE|auto", env = "VESTIBULE_BUFFER_POOL_SIZE", hide_env = true, value_parser = words::auto_size, help_heading = MEMORY)]
    buffer_pool_size: Option<Auto<usize>>,

    /// Most that one read takes from a socket [default: 64KiB]
    #[arg(long, value_name = "SIZE", env = "VESTIBULE_BUFFER_SIZE", hide_env = true, value_parser = units::size, help_heading = MEMORY)]
    buffer_size: Option<usize>,

    /// Kernel receive buffer towards clients [default: auto]
    ///
    /// auto lets the kernel grow each buffer with the path, which is right for nearly everybody.
    /// A fixed size caps the speed of a connection at SIZE per round trip.
    #[arg(long, value_name = "SIZE|auto", env = "VESTIBULE_FRONT_RECV_BUFFER", hide_env = true, help_heading = SOCKETS)]
    front_recv_buffer: Option<SocketBuffer>,

    /// Kernel send buffer towards clients [default: auto]
    #[arg(long, value_name = "SIZE|auto", env = "VESTIBULE_FRONT_SEND_BUFFER", hide_env = true, help_heading = SOCKETS)]
    front_send_buffer: Option<SocketBuffer>,

    /// Kernel receive buffer towards backends [default: auto]
    #[arg(long, value_name = "SIZE|auto", env = "VESTIBULE_BACK_RECV_BUFFER", hide_env = true, help_heading = SOCKETS)]
    back_recv_buffer: Option<SocketBuffer>,

    /// Kernel send buffer towards backends [default: auto]
    #[arg(long, value_name = "SIZE|auto", env = "VESTIBULE_BACK_SEND_BUFFER", hide_env = true, help_heading = SOCKETS)]
    back_send_buffer: Option<SocketBuffer>,

    /// From accept to the end of the TLS handshake [default: 10s]
    #[arg(long, value_name = "DURATION", env = "VESTIBULE_HANDSHAKE_TIMEOUT", hide_env = true, value_parser = units::duration, help_heading = LIMITS)]
    handshake_timeout: Option<Duration>,

    /// To connect to one backend [default: 5s]
    #[arg(long, value_name = "DURATION", env = "VESTIBULE_CONNECT_TIMEOUT", hide_env = true, value_parser = units::duration, help_heading = LIMITS)]
    connect_timeout: Option<Duration>,

    /// Silence in both directions [default: 0, never]
    #[arg(long, value_name = "DURATION", env = "VESTIBULE_IDLE_TIMEOUT", hide_env = true, value_parser = units::duration, help_heading = LIMITS)]
    idle_timeout: Option<Duration>,

    /// For sessions to end when stopping [default: 30s]
    #[arg(long, value_name = "DURATION", env = "VESTIBULE_DRAIN_TIMEOUT", hide_env = true, value_parser = units::duration, help_heading = LIMITS)]
    drain_timeout: Option<Duration>,

    /// Most connections [default: auto, by the limit on files]
    #[arg(long, value_name = "N|auto", env = "VESTIBULE_MAX_CONNECTIONS", hide_env = true, help_heading = LIMITS)]
    max_connections: Option<MaxConnections>,

    /// Most from one IPv4 address or IPv6 /64 [default: 0, no limit]
    #[arg(long, value_name = "N", env = "VESTIBULE_MAX_CONNECTIONS_PER_IP", hide_env = true, value_parser = words::count::<u32>, help_heading = LIMITS)]
    max_connections_per_ip: Option<u32>,

    /// Worker threads [default: auto, the CPUs this process may use]
    #[arg(long, value_name = "N|auto", env = "VESTIBULE_WORKERS", hide_env = true, value_parser = words::workers, help_heading = RUNNING)]
    workers: Option<Auto<u32>>,

    /// Metrics and health at loopback ADDR:PORT or unix:PATH [default: off]
    #[arg(long, value_name = "ADDR", env = "VESTIBULE_ADMIN", hide_env = true, help_heading = RUNNING)]
    admin: Option<String>,

    /// off, error, warn, info, debug, trace or a filter [default: info]
    ///
    /// A filter sets levels by module: info,vestibule::relay=debug
    #[arg(long, value_name = "LEVEL", env = "VESTIBULE_LOG_LEVEL", hide_env = true, value_parser = words::log_level, help_heading = RUNNING)]
    log_level: Option<String>,

    /// Form of log lines [default: text]
    #[arg(long, value_name = "text|json", env = "VESTIBULE_LOG_FORMAT", hide_env = true, help_heading = RUNNING)]
    log_format: Option<LogFormat>,

    /// A line per connection to FILE, or to standard output [default: off]
    #[arg(long, value_name = "FILE|-", env = "VESTIBULE_ACCESS_LOG", hide_env = true, help_heading = RUNNING)]
    access_log: Option<AccessLog>,

    /// Flags of which the value came from the environment.
    #[arg(skip)]
    by_environment: BTreeSet<String>,
}

/// A flag without a value, whose twin may also say no.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Switch {
    #[default]
    Unsaid,
    On,
    Off,
}

/// What clap takes for a [`Switch`] that is not given. (Its own default, `false`, could not be told
/// from a `false` in the environment, which must win over the file.)
const UNSAID: &str = "unsaid";

fn switch(text: &str) -> Result<Switch, crate::config::Reason> {
    if text == UNSAID {
        return Ok(Switch::Unsaid);
    }
    let on = words::switch(text)?;
    Ok(if on { Switch::On } else { Switch::Off })
}

impl Switch {
    fn said(self) -> Option<bool> {
        match self {
            Self::Unsaid => None,
            Self::On => Some(true),
            Self::Off => Some(false),
        }
    }
}

impl Cli {
    /// Reads the arguments of this process and its environment. Wrong usage ends the process with 2, help with 0.
    pub fn from_process() -> Self {
        let args: Vec<OsString> = std::env::args_os().collect();
        match Self::read(&args) {
            Ok(cli) => cli,
            Err(error) if error.kind() == ErrorKind::DisplayHelp => {
                let text = error.render();
                let colour = io::stdout().is_terminal()
                    && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
                let text = if colour {
                    text.ansi().to_string()
                } else {
                    text.to_string()
                };
                let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
                // Who closes the pipe wants no more of it.
                let _ = writeln!(io::stdout(), "{}", lines.join("\n"));
                std::process::exit(0)
            }
            Err(error) => error.exit(),
        }
    }

    /// The same from given arguments, the program's name first. What is wrong with a value of the
    /// environment is told with the name of its variable.
    ///
    /// # Errors
    /// Wrong usage, or that help is asked for.
    pub fn read(args: &[OsString]) -> Result<Self, clap::Error> {
        let matches = Self::command()
            .try_get_matches_from(args)
            .map_err(|error| name_variable(error, args))?;
        let mut cli = Self::from_arg_matches(&matches)?;
        match (&mut cli.command, matches.subcommand()) {
            (Some(Command::Run(settings) | Command::Check(settings)), Some((_, matches))) => {
                settings.by_environment = by_environment(matches);
            }
            _ => cli.settings.by_environment = by_environment(&matches),
        }
        Ok(cli)
    }

    /// What to do; `run` where nothing is said.
    pub fn into_command(self) -> Command {
        self.command
            .unwrap_or_else(|| Command::Run(Box::new(self.settings)))
    }
}

/// The variable of a flag such as `--workers`.
fn variable_of(flag: &str) -> String {
    let name = flag.trim_start_matches('-').replace('-', "_");
    format!("{VARIABLES}{}", name.to_uppercase())
}

fn by_environment(matches: &ArgMatches) -> BTreeSet<String> {
    let ids = matches.ids().map(clap::Id::as_str);
    // An id that is no argument (a group) has no source.
    ids.filter(|id| matches!(matches.try_contains_id(id), Ok(true)))
        .filter(|id| matches.value_source(id) == Some(ValueSource::EnvVariable))
        .map(|id| format!("--{}", id.replace('_', "-")))
        .collect()
}

/// Puts the variable in the place of the flag, where the value at fault was not given by the flag.
fn name_variable(mut error: clap::Error, args: &[OsString]) -> clap::Error {
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let flag = shown
        .split([' ', '='])
        .next()
        .unwrap_or_default()
        .to_owned();
    let by_flag = args.iter().any(|arg| {
        let arg = arg.to_string_lossy();
        arg.strip_prefix(flag.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    });
    let variable = variable_of(&flag);
    if flag.starts_with("--") && !by_flag && std::env::var_os(&variable).is_some() {
        error.insert(ContextKind::InvalidArg, ContextValue::String(variable));
    }
    error
}

/// What to say of each variable of the environment that begins like ours and is none.
pub fn unknown_variables() -> Vec<String> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut unknown = unknown_among(names);
    unknown.sort_unstable();
    unknown
}

fn unknown_among(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut command = Cli::command();
    command.build();
    let known: Vec<String> = command
        .get_arguments()
        .filter_map(|arg| arg.get_env()?.to_str()?.strip_prefix(VARIABLES))
        .map(str::to_owned)
        .collect();
    let told = |name: String| {
        let rest = name.strip_prefix(VARIABLES)?;
        if known.iter().any(|known| known == rest) || is_of_kubernetes(rest) {
            return None;
        }
        Some(
            match words::nearest(rest, known.iter().map(String::as_str)) {
                Some(near) => format!("{name} is no setting; did you mean {VARIABLES}{near}?"),
                None => format!("{name} is no setting; vestibule run --help lists what there is"),
            },
        )
    };
    names.filter_map(told).collect()
}

/// Whether Kubernetes makes such a variable for a service whose name begins with `vestibule`:
/// `SERVICE_HOST`, `SERVICE_PORT_XMPPS`, `PORT_5223_TCP_ADDR`, `ADMIN_PORT`.
fn is_of_kubernetes(rest: &str) -> bool {
    let rest = format!("_{rest}");
    ["_SERVICE_HOST", "_SERVICE_PORT"]
        .iter()
        .any(|part| rest.contains(part))
        || rest.ends_with("_PORT")
        || rest.match_indices("_PORT_").any(|(at, part)| {
            rest.as_bytes()
                .get(at + part.len())
                .is_some_and(u8::is_ascii_digit)
        })
}

impl Settings {
    /// Names in each fault what the operator has written: the variable where a value came from the
    /// environment, and no flag for a certificate that the settings file or its folder names.
    pub fn as_given(&self, faults: Vec<Fault>) -> ConfigError {
        ConfigError(faults.into_iter().map(|fault| self.name(fault)).collect())
    }

    fn name(&self, mut fault: Fault) -> Fault {
        let (flag, rest) = match fault.key.split_once(' ') {
            Some((flag, rest)) => (flag, format!(" {rest}")),
            None => (fault.key.as_str(), String::new()),
        };
        let files = match flag {
            "--cert" => Some(&self.cert),
            "--key" => Some(&self.key),
            _ => None,
        };
        let elsewhere = files.is_some_and(|files| {
            !rest.is_empty() && !files.iter().any(|file| file == Path::new(&rest[1..]))
        });
        if elsewhere {
            fault.key = fault.key.trim_start_matches('-').to_owned();
        } else if self.by_environment.contains(flag) {
            fault.key = variable_of(flag) + &rest;
        }
        fault
    }

    /// Reads the settings file, if one is named, lays flags and environment over it, and checks the
    /// whole.
    ///
    /// Call it again to read the file again, as a reload does.
    ///
    /// # Errors
    /// Every fault of the file and of the values together.
    pub fn load(&self) -> Result<Config, ConfigError> {
        match self.survey() {
            (config, faults) if faults.is_empty() => Ok(config),
            (_, faults) => Err(ConfigError(faults)),
        }
    }

    /// The settings as far as they can be had, and every fault; see [`File::survey`].
    pub fn survey(&self) -> (Config, Vec<Fault>) {
        let mut file = self.config.as_deref().map(File::open).unwrap_or_default();
        self.lay_over(&mut file);
        let (config, faults) = file.survey(Machine::here());
        (config, self.as_given(faults).0)
    }

    fn lay_over(&self, file: &mut File) {
        file.flags.forwards.clone_from(&self.forward);
        file.flags.certs.clone_from(&self.cert);
        file.flags.keys.clone_from(&self.key);
        file.flags.backend_ca.clone_from(&self.backend_ca);
        file.flags.proxy_protocol = self.proxy_protocol;
        let balancers = &self.accept_proxy_protocol;
        file.flags.accept_proxy_protocol.clone_from(balancers);
        let proxies = &self.trusted_proxies;
        file.flags.trusted_proxies.clone_from(proxies);
        put(&mut file.workers, "--workers", self.workers.as_ref());
        match self.admin.as_deref().map(address::admin).transpose() {
            Ok(admin) => put(&mut file.admin, "--admin", admin.as_ref()),
            Err(reason) => file.refuse(Fault::new("--admin", reason.problem, reason.way_out)),
        }

        // What the file may say for one listener, a flag says for all of them.
        file.flags.on_truncation = self.on_truncation;
        self.lay_over_sockets(&mut file.sockets);
        for listener in &mut file.listeners {
            self.lay_over_sockets(&mut listener.sockets);
            let flag = self.on_truncation.as_ref();
            put(&mut listener.on_truncation, "--on-truncation", flag);
        }

        let tls = &mut file.tls;
        put(&mut tls.cert_dir, "--cert-dir", self.cert_dir.as_ref());
        put(
            &mut tls.sni_strict,
            "--sni-strict",
            self.sni_strict.said().as_ref(),
        );
        put(&mut tls.min, "--tls-min", self.tls_min.as_ref());

        let buffers = &mut file.buffers;
        let pool = self.no_buffer_pool.said().map(|no| !no);
        put(&mut buffers.pool, "--no-buffer-pool", pool.as_ref());
        put(
            &mut buffers.pool_size,
            "--buffer-pool-size",
            self.buffer_pool_size.as_ref(),
        );
        put(
            &mut buffers.buffer_size,
            "--buffer-size",
            self.buffer_size.as_ref(),
        );

        let timeouts = &mut file.timeouts;
        put(
            &mut timeouts.handshake,
            "--handshake-timeout",
            self.handshake_timeout.as_ref(),
        );
        put(
            &mut timeouts.connect,
            "--connect-timeout",
            self.connect_timeout.as_ref(),
        );
        put(
            &mut timeouts.idle,
            "--idle-timeout",
            self.idle_timeout.as_ref(),
        );
        put(
            &mut timeouts.drain,
            "--drain-timeout",
            self.drain_timeout.as_ref(),
        );

        let (limits, per_ip) = (&mut file.limits, self.max_connections_per_ip);
        put(
            &mut limits.max_connections,
            "--max-connections",
            self.max_connections.as_ref(),
        );
        put(
            &mut limits.max_connections_per_ip,
            "--max-connections-per-ip",
            per_ip.as_ref(),
        );

        let log = &mut file.log;
        put(&mut log.level, "--log-level", self.log_level.as_ref());
        put(&mut log.format, "--log-format", self.log_format.as_ref());
        put(&mut log.access, "--access-log", self.access_log.as_ref());
    }

    fn lay_over_sockets(&self, sockets: &mut SocketsTable) {
        for (place, flag, value) in [
            (
                &mut sockets.front_recv_buffer,
                "--front-recv-buffer",
                self.front_recv_buffer,
            ),
            (
                &mut sockets.front_send_buffer,
                "--front-send-buffer",
                self.front_send_buffer,
            ),
            (
                &mut sockets.back_recv_buffer,
                "--back-recv-buffer",
                self.back_recv_buffer,
            ),
            (
                &mut sockets.back_send_buffer,
                "--back-send-buffer",
                self.back_send_buffer,
            ),
        ] {
            put(place, flag, value.as_ref());
        }
    }
}

/// Puts what a flag says in the place of what the file says.
fn put<T: Clone>(place: &mut Option<Given<T>>, flag: &str, value: Option<&T>) {
    if let Some(value) = value {
        *place = Some(Given::by_flag(flag, value.clone()));
    }
}

impl Healthcheck {
    /// The admin address to ask.
    ///
    /// # Errors
    /// When none is given, or it cannot be read.
    pub fn target(&self) -> Result<AdminAddr, ConfigError> {
        let unknown = Fault::new(
            "--admin",
            "no admin listener is known",
            "give --admin ADDR as the running instance has it",
        );
        if let Some(text) = &self.admin {
            let admin = address::admin(text)
                .map_err(|reason| Fault::new("--admin", reason.problem, reason.way_out))?;
            return admin.ok_or_else(|| unknown.into());
        }
        let file = self.config.as_deref().map(File::open).unwrap_or_default();
        match file.admin.as_ref().and_then(|given| given.value.clone()) {
            Some(admin) => Ok(admin),
            None if file.faults().is_empty() => Err(unknown.into()),
            None => Err(ConfigError(file.faults().to_vec())),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_is_none_is_told_and_those_of_kubernetes_are_not() {
        for (name, told) in [
            ("VESTIBULE_WORKERS", None),
            ("HOME", None),
            ("VESTIBULE_SERVICE_HOST", None),
            ("VESTIBULE_SERVICE_PORT", None),
            ("VESTIBULE_SERVICE_PORT_XMPPS", None),
            ("VESTIBULE_PORT", None),
            ("VESTIBULE_PORT_5223_TCP", None),
            ("VESTIBULE_PORT_5223_TCP_ADDR", None),
            ("VESTIBULE_ADMIN_PORT_9090_TCP_PROTO", None),
            ("VESTIBULE_ADMIN_SERVICE_HOST", None),
            (
                "VESTIBULE_WORKER",
                Some("VESTIBULE_WORKER is no setting; did you mean VESTIBULE_WORKERS?"),
            ),
            (
                "VESTIBULE_XYZ",
                Some("VESTIBULE_XYZ is no setting; vestibule run --help lists what there is"),
            ),
        ] {
            let found = unknown_among(std::iter::once(name.to_owned()));
            assert_eq!(found.first().map(String::as_str), told);
        }
    }

    #[test]
    fn a_fault_names_what_was_written() {
        let settings = Settings {
            cert: vec!["a.pem".into()],
            by_environment: ["--cert", "--workers"].map(str::to_owned).into(),
            ..Settings::default()
        };
        for (key, told) in [
            ("--workers", "VESTIBULE_WORKERS"),
            ("--cert a.pem", "VESTIBULE_CERT a.pem"),
            ("--cert b.pem", "cert b.pem"),
            ("--key a.pem", "key a.pem"),
            ("--admin", "--admin"),
            ("limits.backlog", "limits.backlog"),
        ] {
            let faults = settings.as_given(vec![Fault::new(key, "problem", "way out")]);
            assert_eq!(faults.to_string(), format!("{told}: problem; way out"));
        }
    }
}
