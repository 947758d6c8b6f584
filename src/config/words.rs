//! Values that are one word or number out of a few: read from text and written back.
//!
//! The file, the environment and the flags share these, so a value is spelled alike in all three.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::error::Reason;
use super::{
    AccessLog, BackStarttls, LogFormat, MaxConnections, OnDrain, OnTruncation, Protocol,
    ProxyProtocol, ProxyTlv, Scheme, SocketBuffer, Sticky, TlsMode, TlsVersion,
};
use super::{address, units};

/// Spells the variants of an enum: `FromStr` reads the words, `Display` writes them, `WORDS` has them in order.
macro_rules! spelled {
    ($type:ident: $($word:literal is $variant:ident),+ $(,)?) => {
        impl $type {
            /// How its values are written.
            pub const WORDS: &[&str] = &[$($word),+];
        }

        impl FromStr for $type {
            type Err = Reason;

            fn from_str(text: &str) -> Result<Self, Reason> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(not_one_of(text, Self::WORDS)),
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(match self {
                    $(Self::$variant => $word),+
                })
            }
        }
    };
}

spelled!(OnTruncation: "fin" is Fin, "abort" is Abort);
spelled!(LogFormat: "text" is Text, "json" is Json);
spelled!(TlsMode: "terminate" is Terminate, "passthrough" is Passthrough);
spelled!(Protocol: "xmpp-client" is XmppClient, "xmpp-server" is XmppServer, "http" is Http);
spelled!(Sticky: "off" is Off, "address" is Address, "cookie" is Cookie);
spelled!(ProxyProtocol: "off" is Off, "v1" is V1, "v2" is V2);
spelled!(BackStarttls: "strip" is Strip, "keep" is Keep, "speak" is Speak);
spelled!(
    ProxyTlv:
    "alpn" is Alpn,
    "authority" is Authority,
    "unique_id" is UniqueId,
    "ssl" is Ssl,
    "crc32c" is Crc32c,
    "binding" is Binding,
);
spelled!(
    Scheme:
    "tls" is Tls,
    "xmpp" is Xmpp,
    "xmpps" is Xmpps,
    "xmpp-server" is XmppServer,
    "xmpps-server" is XmppsServer,
    "https" is Https,
    "http" is Http,
    "auto" is Auto,
);

/// A value, or `auto`: what suits this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auto<T> {
    /// Find out.
    Auto,
    /// As told.
    Set(T),
}

/// Reads `auto` or what `value` reads.
pub fn auto<T>(text: &str, value: impl Fn(&str) -> Result<T, Reason>) -> Result<Auto<T>, Reason> {
    if text == "auto" {
        return Ok(Auto::Auto);
    }
    value(text).map(Auto::Set).map_err(|mut reason| {
        reason.way_out.push_str(", or auto");
        reason
    })
}

/// Reads a whole number.
pub fn count<T: FromStr>(text: &str) -> Result<T, Reason> {
    let digits: String = text.chars().filter(|&c| c != '_').collect();
    digits.parse().map_err(|_| {
        if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
            Reason::new(format!("{text} is too large"), "write a smaller number")
        } else {
            Reason::new(
                format!("{text:?} is not a whole number"),
                "write digits, such as 1000",
            )
        }
    })
}

/// Reads a number of worker threads, or `auto`.
pub fn workers(text: &str) -> Result<Auto<u32>, Reason> {
    auto(text, count)
}

/// Reads a SIZE, or `auto`.
pub fn auto_size(text: &str) -> Result<Auto<usize>, Reason> {
    auto(text, units::size)
}

/// Reads a word for yes or no.
pub fn switch(text: &str) -> Result<bool, Reason> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err(not_one_of(text, &["true", "false"])),
    }
}

/// Reads a log level, or a filter such as `info,vestibule::relay=debug`.
///
/// A filter's grammar belongs to the subscriber that gets it. A bare word is checked here, since a
/// mistyped level would be taken for the name of a module and log nothing.
pub fn log_level(text: &str) -> Result<String, Reason> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let filter = text.contains(['=', ',', '[', ':']);
    if filter || LEVELS.contains(&text) {
        Ok(text.to_owned())
    } else {
        Err(not_one_of(text, &LEVELS))
    }
}

/// The known word nearest to what was written, if one is near enough to be meant.
pub fn nearest<'a>(text: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|word| (strsim::jaro_winkler(text, word), word))
        .filter(|(likeness, _)| *likeness >= 0.8)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, word)| word)
}

/// `a, b or c`.
pub fn listed<S: AsRef<str>>(words: &[S]) -> String {
    match words {
        [] => String::new(),
        [one] => one.as_ref().to_owned(),
        [first @ .., last] => {
            let first: Vec<&str> = first.iter().map(AsRef::as_ref).collect();
            format!("{} or {}", first.join(", "), last.as_ref())
        }
    }
}

fn not_one_of(text: &str, words: &[&str]) -> Reason {
    Reason::new(
        format!("{text:?} is not known here"),
        format!("write {}", listed(words)),
    )
}

impl FromStr for TlsVersion {
    type Err = Reason;

    fn from_str(text: &str) -> Result<Self, Reason> {
        match text {
            "1.2" => Ok(Self::V1_2),
            "1.3" => Ok(Self::V1_3),
            "1.0" | "1.1" => Err(Reason::new(
                format!("TLS {text} is broken and not served"),
                "write 1.2 or 1.3",
            )),
            _ => Err(not_one_of(text, &["1.2", "1.3"])),
        }
    }
}

impl fmt::Display for TlsVersion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::V1_2 => "1.2",
            Self::V1_3 => "1.3",
        })
    }
}

impl FromStr for AccessLog {
    type Err = Reason;

    fn from_str(text: &str) -> Result<Self, Reason> {
        match text {
            "" => Err(Reason::new(
                "the name is empty",
                "write a file, - for standard output, or off",
            )),
            "off" => Ok(Self::Off),
            "-" => Ok(Self::Stdout),
            file => Ok(Self::File(PathBuf::from(file))),
        }
    }
}

impl fmt::Display for AccessLog {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => out.write_str("off"),
            Self::Stdout => out.write_str("-"),
            Self::File(path) => path.display().fmt(out),
        }
    }
}

impl FromStr for SocketBuffer {
    type Err = Reason;

    fn from_str(text: &str) -> Result<Self, Reason> {
        Ok(match auto_size(text)? {
            Auto::Auto => Self::Auto,
            Auto::Set(bytes) => Self::Bytes(bytes),
        })
    }
}

impl fmt::Display for SocketBuffer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => out.write_str("auto"),
            Self::Bytes(bytes) => out.write_str(&units::size_text(*bytes)),
        }
    }
}

impl FromStr for MaxConnections {
    type Err = Reason;

    fn from_str(text: &str) -> Result<Self, Reason> {
        Ok(match auto(text, count)? {
            Auto::Auto => Self::FromFdLimit,
            Auto::Set(count) => Self::Count(count),
        })
    }
}

impl fmt::Display for MaxConnections {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FromFdLimit => out.write_str("auto"),
            Self::Count(count) => count.fmt(out),
        }
    }
}

impl FromStr for OnDrain {
    type Err = Reason;

    fn from_str(text: &str) -> Result<Self, Reason> {
        match text.split_once('=').unwrap_or((text, "")) {
            ("close", "") => Ok(Self::Close),
            ("system-shutdown", "") => Ok(Self::SystemShutdown),
            ("see-other-host", host) => address::other_host(host).map(Self::SeeOtherHost),
            _ => Err(not_one_of(
                text,
                &["close", "system-shutdown", "see-other-host=HOST[:PORT]"],
            )),
        }
    }
}

impl fmt::Display for OnDrain {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Close => out.write_str("close"),
            Self::SystemShutdown => out.write_str("system-shutdown"),
            Self::SeeOtherHost(host) => write!(out, "see-other-host={host}"),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use super::*;

    #[test]
    fn words_read_back_what_they_write() {
        for text in ["1.2", "1.3"] {
            assert_eq!(text.parse::<TlsVersion>().unwrap().to_string(), text);
        }
        for text in OnTruncation::WORDS {
            assert_eq!(text.parse::<OnTruncation>().unwrap().to_string(), *text);
        }
        for text in ProxyTlv::WORDS {
            assert_eq!(text.parse::<ProxyTlv>().unwrap().to_string(), *text);
        }
        for text in [
            "close",
            "system-shutdown",
            "see-other-host=b.example",
            "see-other-host=[2001:db8::1]:5222",
            "see-other-host=[2001:db8::1]",
            "see-other-host=192.0.2.1:5222",
        ] {
            assert_eq!(text.parse::<OnDrain>().unwrap().to_string(), text);
        }
        for text in ["off", "-", "/var/log/access", "./off"] {
            assert_eq!(text.parse::<AccessLog>().unwrap().to_string(), text);
        }
        for text in ["auto", "64KiB"] {
            assert_eq!(text.parse::<SocketBuffer>().unwrap().to_string(), text);
        }
        for text in ["auto", "20000"] {
            assert_eq!(text.parse::<MaxConnections>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn words_refused_say_what_is_known() {
        let cases = [
            (
                "1.1".parse::<TlsVersion>().unwrap_err(),
                "TLS 1.1 is broken and not served; write 1.2 or 1.3",
            ),
            (
                "2".parse::<TlsVersion>().unwrap_err(),
                "\"2\" is not known here; write 1.2 or 1.3",
            ),
            (
                "rst".parse::<OnTruncation>().unwrap_err(),
                "\"rst\" is not known here; write fin or abort",
            ),
            (
                "xml".parse::<LogFormat>().unwrap_err(),
                "\"xml\" is not known here; write text or json",
            ),
            (
                "v3".parse::<ProxyProtocol>().unwrap_err(),
                "\"v3\" is not known here; write off, v1 or v2",
            ),
            (
                "sni".parse::<ProxyTlv>().unwrap_err(),
                "\"sni\" is not known here; write alpn, authority, unique_id, ssl, crc32c or binding",
            ),
            (
                "end".parse::<OnDrain>().unwrap_err(),
                "\"end\" is not known here; write close, system-shutdown or see-other-host=HOST[:PORT]",
            ),
            (
                "close=a".parse::<OnDrain>().unwrap_err(),
                "\"close=a\" is not known here; write close, system-shutdown or see-other-host=HOST[:PORT]",
            ),
            (
                "see-other-host".parse::<OnDrain>().unwrap_err(),
                "\"\" is not a host; write HOST or HOST:PORT, an IPv6 address in brackets",
            ),
            (
                "see-other-host=::1:5222".parse::<OnDrain>().unwrap_err(),
                "\"::1:5222\" is not a host; write HOST or HOST:PORT, an IPv6 address in brackets",
            ),
            (
                "".parse::<AccessLog>().unwrap_err(),
                "the name is empty; write a file, - for standard output, or off",
            ),
            (
                "big".parse::<SocketBuffer>().unwrap_err(),
                "\"big\" is not a size; write bytes (65536) or a number with a unit (64KiB, 16MiB), or auto",
            ),
            (
                "many".parse::<MaxConnections>().unwrap_err(),
                "\"many\" is not a whole number; write digits, such as 1000, or auto",
            ),
            (
                count::<u32>("-1").unwrap_err(),
                "\"-1\" is not a whole number; write digits, such as 1000",
            ),
            (
                count::<u32>("4294967296").unwrap_err(),
                "4294967296 is too large; write a smaller number",
            ),
            (
                count::<u16>("65536").unwrap_err(),
                "65536 is too large; write a smaller number",
            ),
            (
                "ip".parse::<Sticky>().unwrap_err(),
                "\"ip\" is not known here; write off, address or cookie",
            ),
            (
                switch("maybe").unwrap_err(),
                "\"maybe\" is not known here; write true or false",
            ),
            (
                log_level("inf").unwrap_err(),
                "\"inf\" is not known here; write off, error, warn, info, debug or trace",
            ),
        ];
        for (reason, text) in cases {
            assert_eq!(reason.to_string(), text);
        }
    }

    #[test]
    fn nearest_finds_a_slip_and_leaves_a_stranger() {
        let known = ["recv_buffer", "send_buffer", "backlog"];
        assert_eq!(nearest("backlogg", known), Some("backlog"));
        assert_eq!(nearest("recv_bufer", known), Some("recv_buffer"));
        assert_eq!(nearest("colour", known), None);
    }
}
