//! Addresses as people write them: where to listen, where to forward, where the admin listener is; and the names
//! and networks that routes and listeners know.
//!
//! Only the text is read here; whether a name resolves or an address can be bound is found out
//! later.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use ipnet::IpNet;

use super::error::Reason;
use super::{AdminAddr, Backend, Scheme, words};

/// LISTEN of a listener: `SCHEME://ADDR:PORT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Listen {
    /// What clients speak there.
    pub scheme: Scheme,
    /// Where it is bound.
    pub addr: SocketAddr,
}

impl FromStr for Listen {
    type Err = Reason;

    fn from_str(text: &str) -> Result<Self, Reason> {
        let Some((scheme, addr)) = text.split_once("://") else {
            let schemes = words::listed(Scheme::WORDS);
            return Err(Reason::new(
                format!("{text:?} has no scheme"),
                format!("write SCHEME://{text} with {schemes}"),
            ));
        };
        let scheme = scheme.parse::<Scheme>().map_err(|_| {
            Reason::new(
                format!("scheme {scheme:?} is not known"),
                format!("use {}", words::listed(Scheme::WORDS)),
            )
        })?;
        let addr = socket_addr(
            addr,
            "ADDR:PORT with an IP address, such as 0.0.0.0:8443 or [::]:8443",
        )?;
        Ok(Self { scheme, addr })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}://{}", self.scheme, self.addr)
    }
}

/// LISTEN=BACKEND of `--forward`, or LISTEN alone with scheme `http`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Where to accept.
    pub listen: Listen,
    /// Where to forward; none with scheme `http`, which only redirects.
    pub backend: Option<Backend>,
}

impl FromStr for Forward {
    type Err = Reason;

    fn from_str(text: &str) -> Result<Self, Reason> {
        let (listen, backend) = match text.split_once('=') {
            Some((listen, backend)) => (listen, Some(backend)),
            None => (text, None),
        };
        match (listen.starts_with("http://"), backend) {
            (false, None) => Err(Reason::new(
                "there is no =BACKEND",
                "write LISTEN=BACKEND, such as tls://0.0.0.0:8443=chat:5222",
            )),
            (true, Some(_)) => Err(Reason::new(
                "a listener with scheme http only redirects to https",
                format!("write {listen} without =BACKEND, or https:// for what the backend serves"),
            )),
            (_, backend) => Ok(Self {
                listen: listen.parse()?,
                backend: backend.map(str::parse).transpose()?,
            }),
        }
    }
}

const BACKEND_FORMS: &str =
    "write HOST:PORT, tls://HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:PATH";

impl FromStr for Backend {
    type Err = Reason;

    fn from_str(text: &str) -> Result<Self, Reason> {
        if let Some(path) = text.strip_prefix("unix:") {
            return unix_path(path).map(Self::Unix);
        }
        let Some((scheme, address)) = text.split_once("://") else {
            let (host, port) = host_port(text)?;
            return Ok(Self::Tcp { host, port });
        };
        match scheme {
            "tls" => {
                let (host, port) = host_port(address)?;
                Ok(Self::Tls { host, port })
            }
            "http" => {
                let (host, port) = host_port(address)?;
                Ok(Self::Http { host, port })
            }
            "https" => {
                let (host, port) = host_port(address)?;
                Ok(Self::Https { host, port })
            }
            _ => Err(Reason::new(
                format!("scheme {scheme:?} is not known for a backend"),
                BACKEND_FORMS,
            )),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, host, port) = match self {
            Self::Tcp { host, port } => ("", host, port),
            Self::Tls { host, port } => ("tls://", host, port),
            Self::Http { host, port } => ("http://", host, port),
            Self::Https { host, port } => ("https://", host, port),
            Self::Unix(path) => return write!(out, "unix:{}", path.display()),
        };
        if host.contains(':') {
            write!(out, "{scheme}[{host}]:{port}")
        } else {
            write!(out, "{scheme}{host}:{port}")
        }
    }
}

impl FromStr for AdminAddr {
    type Err = Reason;

    /// Reads a loopback `ADDR:PORT` or `unix:PATH`. Any other address is refused, since whoever
    /// reaches the admin listener may read and do all that it offers.
    fn from_str(text: &str) -> Result<Self, Reason> {
        if let Some(path) = text.strip_prefix("unix:") {
            return unix_path(path).map(Self::Unix);
        }
        let addr = socket_addr(
            text,
            "a loopback address such as 127.0.0.1:9090, or unix:PATH",
        )?;
        if addr.ip().to_canonical().is_loopback() {
            Ok(Self::Tcp(addr))
        } else {
            let port = addr.port();
            Err(Reason::new(
                format!("{addr} is not loopback, and the admin listener asks for no password"),
                format!("use 127.0.0.1:{port}, [::1]:{port} or unix:PATH"),
            ))
        }
    }
}

impl fmt::Display for AdminAddr {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => addr.fmt(out),
            Self::Unix(path) => write!(out, "unix:{}", path.display()),
        }
    }
}

/// Reads the admin address, or `off`.
pub fn admin(text: &str) -> Result<Option<AdminAddr>, Reason> {
    if text == "off" {
        return Ok(None);
    }
    text.parse().map(Some)
}

fn socket_addr(text: &str, form: &str) -> Result<SocketAddr, Reason> {
    let addr: SocketAddr = text.parse().map_err(|_| not_an_address(text, form))?;
    port_not_zero(addr.port())?;
    Ok(addr)
}

/// What is wrong with a text that is not `ADDR:PORT`, as near as it can be told.
fn not_an_address(text: &str, form: &str) -> Reason {
    let bare = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    match bare.unwrap_or(text).parse::<IpAddr>() {
        Ok(IpAddr::V4(v4)) => {
            let way_out = format!("write ADDR:PORT, such as {v4}:8443");
            return Reason::new(format!("{text:?} has no port"), way_out);
        }
        Ok(IpAddr::V6(_)) => {
            let way_out = "write an IPv6 address in brackets, and a port: [ADDR]:PORT";
            return Reason::new(format!("{text:?} has no port"), way_out);
        }
        Err(_) => {}
    }
    let unknown = Reason::new(
        format!("{text:?} is not an address"),
        format!("write {form}"),
    );
    let Some((host, port)) = text.rsplit_once(':') else {
        return unknown;
    };
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    if digits && port.parse::<u16>().is_err() {
        return Reason::new(format!("{port} is no port"), "write 1 to 65535");
    }
    let meant = match host {
        "localhost" => "127.0.0.1",
        "" | "*" => "0.0.0.0",
        _ => return unknown,
    };
    Reason::new(
        format!("{text:?} is not an address"),
        format!("write {meant}:{}", if digits { port } else { "PORT" }),
    )
}

/// `HOST:PORT`; an IPv6 address stands in brackets, and is told without them.
fn host_port(text: &str) -> Result<(String, u16), Reason> {
    let no_port = || Reason::new(format!("{text:?} has no port"), BACKEND_FORMS);
    let (host, port) = text.rsplit_once(':').ok_or_else(no_port)?;
    if port.is_empty() || host.starts_with('[') && !host.ends_with(']') {
        return Err(no_port());
    }
    let port = self::port(port)?;
    if bracketed(host).is_none() && host.contains(':') {
        return Err(Reason::new(
            format!("{text:?} may be read in more than one way"),
            "write an IPv6 address in brackets: [ADDR]:PORT",
        ));
    }
    if !is_host(host) {
        return Err(Reason::new(
            format!("{host:?} is not a host"),
            "write a name, an IPv4 address or an IPv6 address in brackets",
        ));
    }
    Ok((bracketed(host).unwrap_or(host).to_owned(), port))
}

/// Reads a port.
pub(super) fn port(text: &str) -> Result<u16, Reason> {
    let port: u16 = text.parse().map_err(|_| {
        Reason::new(
            format!("{text:?} is not a port"),
            "write a number from 1 to 65535",
        )
    })?;
    port_not_zero(port)?;
    Ok(port)
}

fn bracketed(host: &str) -> Option<&str> {
    host.strip_prefix('[').and_then(|h| h.strip_suffix(']'))
}

/// A name, an IPv4 address or an IPv6 address in brackets.
fn is_host(host: &str) -> bool {
    match bracketed(host) {
        Some(address) => matches!(address.parse(), Ok(IpAddr::V6(_))),
        None => is_host_name(host),
    }
}

/// Reads `HOST` or `HOST:PORT`, which stays as it is.
pub(super) fn other_host(text: &str) -> Result<String, Reason> {
    if is_host(text) || host_port(text).is_ok() {
        return Ok(text.to_owned());
    }
    Err(Reason::new(
        format!("{text:?} is not a host"),
        "write HOST or HOST:PORT, an IPv6 address in brackets",
    ))
}

/// Reads a domain as a client asks for it, or `*.` and a domain for every name one label below it. It comes back in
/// lower case and without a final dot.
pub(super) fn domain(text: &str) -> Result<String, Reason> {
    let lower = text.to_ascii_lowercase();
    let lower = lower.strip_suffix('.').unwrap_or(&lower);
    if is_host_name(lower.strip_prefix("*.").unwrap_or(lower)) && !lower.ends_with('.') {
        return Ok(lower.to_owned());
    }
    let way_out = if text == "*" {
        "leave the list empty for any"
    } else if text.is_ascii() {
        "write a domain such as chat.example, or *.chat.example for all names one label below it"
    } else {
        "write it as DNS has it: xn--..."
    };
    Err(Reason::new(format!("{text:?} is not a domain"), way_out))
}

/// Reads the beginning of HTTP paths. It comes back without a final slash, unless it is `/`.
///
/// Only what a path looks like once it is normalised is taken, since nothing else would ever fit: no escapes, no dot
/// segments (RFC 3986 section 6.2.2).
pub(super) fn path(text: &str) -> Result<String, Reason> {
    let refused = |problem: &str, way_out: String| {
        let problem = format!("{text:?} {problem}");
        Err(Reason::new(problem, way_out))
    };
    if let Some(at) = text.find(['?', '#']) {
        return refused("goes on behind the path", format!("write {}", &text[..at]));
    }
    let Some(inner) = text.strip_prefix('/') else {
        let way_out = match text {
            "" => "write / for all paths".to_owned(),
            _ => format!("write /{text}"),
        };
        return refused("has no slash in front", way_out);
    };
    if inner.contains('*') {
        let way_out = "leave it out: a path stands for all below it";
        return refused("has a *", way_out.to_owned());
    }
    let inner = inner.strip_suffix('/').unwrap_or(inner);
    if inner.is_empty() && text == "/" {
        return Ok(text.to_owned());
    }
    if inner.split('/').any(str::is_empty) {
        return refused("has two slashes in a row", "write one".to_owned());
    }
    if inner
        .split('/')
        .any(|segment| matches!(segment, "." | ".."))
    {
        let way_out = "write the path that it comes to".to_owned();
        return refused("has a segment of dots", way_out);
    }
    // Those of RFC 3986 section 3.3 that stand for themselves.
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._~!$&'()+,;=:@/".contains(c);
    if let Some(c) = inner.chars().find(|&c| !plain(c)) {
        let problem = match c {
            '%' => "is percent-encoded".to_owned(),
            c => format!("has a {c:?}, which is percent-encoded on the way"),
        };
        let way_out = "write only the segments before, or characters that need no encoding";
        return refused(&problem, way_out.to_owned());
    }
    Ok(format!("/{inner}"))
}

/// Reads `ADDR/BITS`, or an address alone.
pub fn network(text: &str) -> Result<IpNet, Reason> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(address.into());
    }
    let network: IpNet = text.parse().map_err(|_| {
        Reason::new(
            format!("{text:?} is not a network"),
            "write an address such as 192.0.2.1, or ADDR/BITS such as 10.0.0.0/8",
        )
    })?;
    // Wider than it looks at first sight, and this list is for whom to believe.
    if network.addr() != network.network() {
        let (whole, one) = (network.trunc(), network.addr());
        return Err(Reason::new(
            format!("{text} is an address within a network"),
            format!("write {whole} for the network, or {one} for the address alone"),
        ));
    }
    Ok(network)
}

/// Names as resolvers take them; the underscore is for container networks, which hand such names
/// out.
fn is_host_name(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    host.len() <= 253
        && host.split('.').all(|label| {
            (1..=63).contains(&label.len())
                && label
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        })
}

fn port_not_zero(port: u16) -> Result<(), Reason> {
    if port == 0 {
        return Err(Reason::new(
            "port 0 cannot be reached by anybody",
            "write a port from 1 to 65535",
        ));
    }
    Ok(())
}

/// A path of a Unix socket; the kernel's `sun_path` has room for 107 bytes and a zero.
fn unix_path(path: &str) -> Result<PathBuf, Reason> {
    const LEN_MAX: usize = 107;
    if path.is_empty() {
        Err(Reason::new(
            "there is no path behind unix:",
            "write unix:PATH",
        ))
    } else if path.len() > LEN_MAX || path.contains('\0') {
        Err(Reason::new(
            format!("{path:?} cannot be the path of a socket"),
            format!("write at most {LEN_MAX} bytes, none of them zero"),
        ))
    } else {
        Ok(PathBuf::from(path))
    }
}

/// Whether `name` may name a listener or an upstream: it goes into metric labels and log lines.
pub(super) fn check_name(name: &str) -> Result<(), Reason> {
    const LEN_MAX: usize = 64;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    if name.is_empty() || name.len() > LEN_MAX || !name.chars().all(plain) {
        return Err(Reason::new(
            format!("{name:?} cannot be a name"),
            format!(
                "write 1 to {LEN_MAX} letters, digits or {}",
                words::listed(&["-", "_", ".", ":"])
            ),
        ));
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_write_back_what_they_read() {
        for text in [
            "tls://0.0.0.0:8443",
            "xmpp://0.0.0.0:5222",
            "xmpps://[::]:5223",
            "xmpp-server://0.0.0.0:5269",
            "xmpps-server://0.0.0.0:5270",
            "https://0.0.0.0:443",
            "http://[::]:80",
            "auto://0.0.0.0:443",
        ] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
        for text in [
            "chat:5222",
            "chat_server.internal.:5222",
            "10.0.0.1:5222",
            "[2001:db8::1]:5222",
            "tls://chat.example:5223",
            "tls://[::1]:5223",
            "http://127.0.0.1:5280",
            "https://[::1]:5281",
            "unix:/run/chat.sock",
            "unix:chat.sock",
        ] {
            assert_eq!(text.parse::<Backend>().unwrap().to_string(), text);
        }
        for text in ["127.0.0.1:9090", "[::1]:9090", "unix:/run/admin.sock"] {
            assert_eq!(text.parse::<AdminAddr>().unwrap().to_string(), text);
        }
        assert_eq!(admin("off"), Ok(None));
    }

    #[test]
    fn listen_refused_says_why() {
        for (text, message) in [
            (
                "0.0.0.0:8443",
                "\"0.0.0.0:8443\" has no scheme; write SCHEME://0.0.0.0:8443 with tls, xmpp, xmpps, xmpp-server, xmpps-server, https, http or auto",
            ),
            (
                "ftp://0.0.0.0:21",
                "scheme \"ftp\" is not known; use tls, xmpp, xmpps, xmpp-server, xmpps-server, https, http or auto",
            ),
            (
                "tls://localhost:8443",
                "\"localhost:8443\" is not an address; write 127.0.0.1:8443",
            ),
            (
                "tls://127.0.0.1",
                "\"127.0.0.1\" has no port; write ADDR:PORT, such as 127.0.0.1:8443",
            ),
            (
                "tls://::1:8443",
                "\"::1:8443\" has no port; write an IPv6 address in brackets, and a port: [ADDR]:PORT",
            ),
            (
                "tls://[::1]",
                "\"[::1]\" has no port; write an IPv6 address in brackets, and a port: [ADDR]:PORT",
            ),
            (
                "tls://127.0.0.1:95223",
                "95223 is no port; write 1 to 65535",
            ),
            (
                "tls://*:8443",
                "\"*:8443\" is not an address; write 0.0.0.0:8443",
            ),
            (
                "tls://0.0.0.0",
                "\"0.0.0.0\" has no port; write ADDR:PORT, such as 0.0.0.0:8443",
            ),
            (
                "tls://0.0.0.0:0",
                "port 0 cannot be reached by anybody; write a port from 1 to 65535",
            ),
        ] {
            assert_eq!(text.parse::<Listen>().unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn backend_refused_says_why() {
        for (text, message) in [
            (
                "chat",
                "\"chat\" has no port; write HOST:PORT, tls://HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:PATH",
            ),
            (
                "chat:",
                "\"chat:\" has no port; write HOST:PORT, tls://HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:PATH",
            ),
            (
                "",
                "\"\" has no port; write HOST:PORT, tls://HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:PATH",
            ),
            (
                "[::1]",
                "\"[::1]\" has no port; write HOST:PORT, tls://HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:PATH",
            ),
            (
                "tls://chat",
                "\"chat\" has no port; write HOST:PORT, tls://HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:PATH",
            ),
            (
                "chat:xmpp",
                "\"xmpp\" is not a port; write a number from 1 to 65535",
            ),
            (
                "chat:65536",
                "\"65536\" is not a port; write a number from 1 to 65535",
            ),
            (
                "chat:0",
                "port 0 cannot be reached by anybody; write a port from 1 to 65535",
            ),
            (
                "::1:5222",
                "\"::1:5222\" may be read in more than one way; write an IPv6 address in brackets: [ADDR]:PORT",
            ),
            (
                "[chat]:5222",
                "\"[chat]\" is not a host; write a name, an IPv4 address or an IPv6 address in brackets",
            ),
            (
                ":5222",
                "\"\" is not a host; write a name, an IPv4 address or an IPv6 address in brackets",
            ),
            (
                "ch at:5222",
                "\"ch at\" is not a host; write a name, an IPv4 address or an IPv6 address in brackets",
            ),
            (
                "http://chat",
                "\"chat\" has no port; write HOST:PORT, tls://HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:PATH",
            ),
            (
                "http://chat:80/path",
                "\"80/path\" is not a port; write a number from 1 to 65535",
            ),
            (
                "tcp://chat:80",
                "scheme \"tcp\" is not known for a backend; write HOST:PORT, tls://HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:PATH",
            ),
            ("unix:", "there is no path behind unix:; write unix:PATH"),
        ] {
            assert_eq!(text.parse::<Backend>().unwrap_err().to_string(), message);
        }
        let long = format!("unix:/{}", "a".repeat(107));
        assert!(long.parse::<Backend>().is_err());
    }

    #[test]
    fn admin_refused_says_why() {
        for (text, message) in [
            (
                "0.0.0.0:9090",
                "0.0.0.0:9090 is not loopback, and the admin listener asks for no password; use 127.0.0.1:9090, [::1]:9090 or unix:PATH",
            ),
            (
                "localhost:9090",
                "\"localhost:9090\" is not an address; write 127.0.0.1:9090",
            ),
        ] {
            assert_eq!(admin(text).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn domains_are_lower_case_without_a_final_dot() {
        for (text, read) in [
            ("Chat.Example.", "chat.example"),
            ("*.Example.org", "*.example.org"),
            ("localhost", "localhost"),
            ("xn--mnchen-3ya.example", "xn--mnchen-3ya.example"),
            ("192.0.2.1", "192.0.2.1"),
        ] {
            assert_eq!(domain(text).unwrap(), read);
        }
        let form = "write a domain such as chat.example, or *.chat.example for all names one label below it";
        for (text, way_out) in [
            ("", form),
            ("*.", form),
            (".", form),
            ("a..", form),
            ("*.*.example", form),
            ("chat.*.example", form),
            ("me@chat.example", form),
            ("*", "leave the list empty for any"),
            ("münchen.example", "write it as DNS has it: xn--..."),
        ] {
            let told = domain(text).unwrap_err().to_string();
            assert_eq!(told, format!("{text:?} is not a domain; {way_out}"));
        }
    }

    #[test]
    fn networks_have_no_address_within() {
        for (text, read) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("192.0.2.1", "192.0.2.1/32"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("::1", "::1/128"),
            ("0.0.0.0/0", "0.0.0.0/0"),
        ] {
            assert_eq!(network(text).unwrap().to_string(), read);
        }
        for (text, message) in [
            (
                "10.0.0.1/8",
                "10.0.0.1/8 is an address within a network; write 10.0.0.0/8 for the network, or 10.0.0.1 for the address alone",
            ),
            (
                "10.0.0.0/33",
                "\"10.0.0.0/33\" is not a network; write an address such as 192.0.2.1, or ADDR/BITS such as 10.0.0.0/8",
            ),
            (
                "unix:/run/x",
                "\"unix:/run/x\" is not a network; write an address such as 192.0.2.1, or ADDR/BITS such as 10.0.0.0/8",
            ),
        ] {
            assert_eq!(network(text).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn forward_reads_a_backend_path_with_an_equals_sign() {
        let forward: Forward = "tls://[::]:1=unix:/run/a=b".parse().unwrap();
        assert_eq!(forward.backend, Some(Backend::Unix("/run/a=b".into())));
        assert_eq!(
            "tls://[::]:1".parse::<Forward>().unwrap_err().to_string(),
            "there is no =BACKEND; write LISTEN=BACKEND, such as tls://0.0.0.0:8443=chat:5222"
        );
    }

    #[test]
    fn forward_of_plain_http_has_no_backend() {
        let forward: Forward = "http://[::]:80".parse().unwrap();
        assert_eq!(forward.listen.scheme, Scheme::Http);
        assert_eq!(forward.backend, None);
        for (text, message) in [
            (
                "http://[::]:80=chat:80",
                "a listener with scheme http only redirects to https; write http://[::]:80 without =BACKEND, or https:// for what the backend serves",
            ),
            (
                "http://[::]",
                "\"[::]\" has no port; write an IPv6 address in brackets, and a port: [ADDR]:PORT",
            ),
            (
                "https://[::]:443",
                "there is no =BACKEND; write LISTEN=BACKEND, such as tls://0.0.0.0:8443=chat:5222",
            ),
        ] {
            assert_eq!(text.parse::<Forward>().unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn paths_are_as_requests_have_them_when_normalised() {
        for (text, read) in [
            ("/", "/"),
            ("/ws", "/ws"),
            ("/ws/", "/ws"),
            ("/a/b.c/~d;e=f/", "/a/b.c/~d;e=f"),
            ("/.well-known/acme", "/.well-known/acme"),
        ] {
            assert_eq!(path(text).unwrap(), read);
        }
        let encoding = "write only the segments before, or characters that need no encoding";
        for (text, told) in [
            (
                "",
                "has no slash in front; write / for all paths".to_owned(),
            ),
            ("ws", "has no slash in front; write /ws".to_owned()),
            ("/ws?x=/", "goes on behind the path; write /ws".to_owned()),
            ("/ws#x", "goes on behind the path; write /ws".to_owned()),
            (
                "/ws/*",
                "has a *; leave it out: a path stands for all below it".to_owned(),
            ),
            ("//", "has two slashes in a row; write one".to_owned()),
            ("/a//b", "has two slashes in a row; write one".to_owned()),
            ("/a//", "has two slashes in a row; write one".to_owned()),
            (
                "/a/../b",
                "has a segment of dots; write the path that it comes to".to_owned(),
            ),
            (
                "/./",
                "has a segment of dots; write the path that it comes to".to_owned(),
            ),
            ("/a%20b", format!("is percent-encoded; {encoding}")),
            (
                "/a b",
                format!("has a ' ', which is percent-encoded on the way; {encoding}"),
            ),
            (
                "/ä",
                format!("has a 'ä', which is percent-encoded on the way; {encoding}"),
            ),
            (
                "/a\\b",
                format!("has a '\\\\', which is percent-encoded on the way; {encoding}"),
            ),
        ] {
            assert_eq!(
                path(text).unwrap_err().to_string(),
                format!("{text:?} {told}")
            );
        }
    }

    proptest! {
        #[test]
        fn paths_read_back(text in "/[a-z/.]{0,12}") {
            if let Ok(read) = path(&text) {
                prop_assert_eq!(path(&read), Ok(read));
            }
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = path(&text);
            let _ = text.parse::<Forward>();
            let _ = text.parse::<AdminAddr>();
        }

        #[test]
        fn backends_read_back(text in "((tls|https?)://)?[a-z0-9.-]{1,20}:[0-9]{1,5}") {
            if let Ok(backend) = text.parse::<Backend>() {
                prop_assert_eq!(backend.to_string().parse::<Backend>(), Ok(backend));
            }
        }
    }
}
