//! The PROXY protocol, versions 1 and 2: who a connection that was passed on really comes from.
//!
//! [`read`] understands what a balancer in front sends; whether it may be believed is the caller's to know.
//! [`write_v1`] and [`write_v2`] tell a backend. References are to sections of HAProxy's `proxy-protocol.txt`.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use proxy_header::{ParseConfig, Protocol, ProxiedAddress, ProxyHeader, Tlv};

/// Both ends of the connection that a header speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Where the client is.
    pub source: SocketAddr,
    /// The address that it reached.
    pub destination: SocketAddr,
}

/// What [`read`] can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// A header, so far.
    NeedMore,
    /// A whole header.
    Header {
        /// Who is spoken for. `None`: the sender itself (LOCAL, UNKNOWN), or what is not TCP over IP.
        origin: Option<Origin>,
        /// Length of the header; what follows is the connection's own.
        consumed: usize,
    },
}

/// No PROXY header, or one that is too long, cut wrongly or damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no valid PROXY header")]
pub struct Malformed;

/// Longest header that is read: with the addresses, several times what any balancer has to tell.
pub const HEADER_MAX: usize = V2_FIXED + 4096;

/// Reads the header at the beginning of a connection.
///
/// The answer for a prefix is [`Read::NeedMore`] or the answer for the whole.
///
/// # Errors
/// [`Malformed`], at the first byte that shows it where that is the signature, the version, or the length.
pub fn read(bytes: &[u8]) -> Result<Read, Malformed> {
    match bytes.first() {
        None => Ok(Read::NeedMore),
        Some(b'P') => read_v1(bytes),
        Some(_) => read_v2(bytes),
    }
}

/// A line of text (section 2.1).
fn read_v1(bytes: &[u8]) -> Result<Read, Malformed> {
    if !begins(bytes, V1_SIGNATURE) {
        return Err(Malformed);
    }
    // The parser finds a line too long only while that has no end.
    parse(&bytes[..bytes.len().min(V1_MAX)])
}

/// Binary (section 2.2).
fn read_v2(bytes: &[u8]) -> Result<Read, Malformed> {
    if !begins(bytes, V2_SIGNATURE) {
        return Err(Malformed);
    }
    let command = bytes.get(12).copied();
    if !matches!(command, None | Some(V2_LOCAL | V2_PROXY)) {
        return Err(Malformed);
    }
    let Some([high, low]) = bytes.get(14..V2_FIXED) else {
        return Ok(Read::NeedMore);
    };
    let consumed = V2_FIXED + usize::from(u16::from_be_bytes([*high, *low]));
    if consumed > HEADER_MAX {
        return Err(Malformed);
    }
    let Some(header) = bytes.get(..consumed) else {
        return Ok(Read::NeedMore);
    };
    let addresses = match header[13] {
        // Whoever sends LOCAL speaks for itself; then, and where no family is named, the rest has no form.
        _ if command == Some(V2_LOCAL) => None,
        V2_UNSPEC => None,
        family => Some(match family >> 4 {
            1 => 12,
            2 => 36,
            _ => 216,
        }),
    };
    let Some(addresses) = addresses else {
        let origin = None;
        return Ok(Read::Header { origin, consumed });
    };
    let read = parse(header)?;
    // By its own account it is whole, so more bytes cannot help it.
    if read == Read::NeedMore {
        return Err(Malformed);
    }
    check_tlvs(header, V2_FIXED + addresses)?;
    Ok(read)
}

fn parse(bytes: &[u8]) -> Result<Read, Malformed> {
    match ProxyHeader::parse(bytes, ParseConfig::default()) {
        Ok((header, consumed)) => {
            let origin = match header.proxied_address() {
                Some(&ProxiedAddress {
                    protocol: Protocol::Stream,
                    source,
                    destination,
                }) => Some(Origin {
                    source,
                    destination,
                }),
                _ => None,
            };
            Ok(Read::Header { origin, consumed })
        }
        Err(proxy_header::Error::BufferTooShort) => Ok(Read::NeedMore),
        Err(_) => Err(Malformed),
    }
}

/// Whether all fields from `at` on are sound, and the checksum, if there is one, right (section 2.2.3).
fn check_tlvs(header: &[u8], mut at: usize) -> Result<(), Malformed> {
    while at < header.len() {
        let Some(&[kind, high, low]) = header.get(at..at + 3) else {
            return Err(Malformed);
        };
        let value = at + 3..at + 3 + usize::from(u16::from_be_bytes([high, low]));
        at = value.end;
        let bytes = header.get(value.clone()).ok_or(Malformed)?;
        match Tlv::decode(kind, bytes).map_err(|_| Malformed)? {
            Tlv::Crc32c(said) => {
                let before = crc32c::crc32c(&header[..value.start]);
                let zeroed = crc32c::crc32c_append(before, &[0; 4]);
                if crc32c::crc32c_append(zeroed, &header[value.end..]) != said {
                    return Err(Malformed);
                }
            }
            Tlv::Ssl(ssl) if ssl.tlvs().any(|tlv| tlv.is_err()) => return Err(Malformed),
            _ => {}
        }
    }
    Ok(())
}

/// Whether these bytes begin with the signature, or may yet.
fn begins(bytes: &[u8], signature: &[u8]) -> bool {
    bytes.starts_with(signature) || signature.starts_with(bytes)
}

/// What a version 2 header tells of a client.
///
/// A value that is longer than ever needed is left out rather than cut, for a part of a name is another name.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Both ends of the client's connection.
    pub origin: Origin,
    /// The protocol agreed on by ALPN; at most 128 bytes.
    pub alpn: Option<&'a [u8]>,
    /// The name asked for by SNI; at most 255 bytes.
    pub authority: Option<&'a str>,
    /// The connection's id in our logs; at most 128 bytes.
    pub unique_id: Option<&'a [u8]>,
    /// Facts about TLS, if it is spoken.
    pub ssl: Option<Ssl<'a>>,
    /// tls-exporter channel binding (RFC 9266), in our own field of type 0xE0; at most 64 bytes.
    pub exporter: Option<&'a [u8]>,
    /// tls-server-end-point channel binding (RFC 5929 section 4), of type 0xE1; at most 64 bytes.
    pub end_point: Option<&'a [u8]>,
    /// Whether a checksum goes with it.
    pub crc32c: bool,
}

/// Facts about a client's TLS.
#[derive(Clone, Copy, Debug)]
pub struct Ssl<'a> {
    /// `TLSv1.3`, say; at most 32 bytes.
    pub version: &'a str,
    /// The cipher suite's name; at most 64 bytes.
    pub cipher: &'a str,
    /// The client's certificate, if one came.
    pub certificate: Option<Certificate<'a>>,
}

/// Facts about a client's certificate.
#[derive(Clone, Copy, Debug)]
pub struct Certificate<'a> {
    /// Whether its chain was verified.
    pub verified: bool,
    /// Common name of its subject; at most 256 bytes.
    pub common_name: Option<&'a str>,
    /// Whether it was shown on this very connection, rather than earlier in a session that is resumed.
    pub this_connection: bool,
}

/// Appends a version 1 header (section 2.1).
pub fn write_v1(origin: &Origin, out: &mut Vec<u8>) {
    let (family, source, destination) = match ends(origin) {
        Ends::V4(source, destination) => (
            "TCP4",
            IpAddr::V4(source.into()),
            IpAddr::V4(destination.into()),
        ),
        Ends::V6(source, destination) => (
            "TCP6",
            IpAddr::V6(source.into()),
            IpAddr::V6(destination.into()),
        ),
    };
    let ports = (origin.source.port(), origin.destination.port());
    let line = format!(
        "PROXY {family} {source} {destination} {} {}\r\n",
        ports.0, ports.1
    );
    out.extend_from_slice(line.as_bytes());
}

/// Appends a version 2 header (section 2.2), always with the command PROXY; it has less than 1,200 bytes.
pub fn write_v2(facts: &Facts<'_>, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(V2_SIGNATURE);
    out.push(V2_PROXY);
    match ends(&facts.origin) {
        Ends::V4(source, destination) => {
            out.extend_from_slice(&[V2_TCP4, 0, 0]);
            out.extend_from_slice(&source);
            out.extend_from_slice(&destination);
        }
        Ends::V6(source, destination) => {
            out.extend_from_slice(&[V2_TCP6, 0, 0]);
            out.extend_from_slice(&source);
            out.extend_from_slice(&destination);
        }
    }
    for end in [facts.origin.source, facts.origin.destination] {
        out.extend_from_slice(&end.port().to_be_bytes());
    }

    put(ALPN, facts.alpn, ALPN_MAX, out);
    put(
        AUTHORITY,
        facts.authority.map(str::as_bytes),
        AUTHORITY_MAX,
        out,
    );
    put(UNIQUE_ID, facts.unique_id, UNIQUE_ID_MAX, out);
    if let Some(ssl) = &facts.ssl {
        let mut value = Vec::with_capacity(128);
        ssl.write(&mut value);
        put(SSL, Some(&value), SSL_MAX, out);
    }
    put(EXPORTER, facts.exporter, BINDING_MAX, out);
    put(END_POINT, facts.end_point, BINDING_MAX, out);
    if facts.crc32c {
        put(CRC32C, Some(&[0; 4]), 4, out);
    }

    let len = (out.len() - start - V2_FIXED) as u16;
    out[start + 14..start + V2_FIXED].copy_from_slice(&len.to_be_bytes());
    if facts.crc32c {
        let sum = crc32c::crc32c(&out[start..]);
        let at = out.len() - 4;
        out[at..].copy_from_slice(&sum.to_be_bytes());
    }
}

impl Ssl<'_> {
    /// The value of the SSL field (section 2.2.5).
    fn write(&self, out: &mut Vec<u8>) {
        let mut client = CLIENT_SSL;
        let mut verified = false;
        let mut common_name = None;
        if let Some(certificate) = &self.certificate {
            client |= CLIENT_CERT_SESS;
            if certificate.this_connection {
                client |= CLIENT_CERT_CONN;
            }
            verified = certificate.verified;
            common_name = certificate.common_name.map(str::as_bytes);
        }
        out.push(client);
        // Zero if a certificate was presented and verified, and only then.
        out.extend_from_slice(&u32::from(!verified).to_be_bytes());
        put(
            SSL_VERSION,
            Some(self.version.as_bytes()),
            SSL_VERSION_MAX,
            out,
        );
        put(
            SSL_CIPHER,
            Some(self.cipher.as_bytes()),
            SSL_CIPHER_MAX,
            out,
        );
        put(SSL_CN, common_name, SSL_CN_MAX, out);
    }
}

/// Appends a field, unless there is nothing to say or far too much.
fn put(kind: u8, value: Option<&[u8]>, max: usize, out: &mut Vec<u8>) {
    if let Some(value) = value
        && (1..=max).contains(&value.len())
    {
        out.push(kind);
        out.extend_from_slice(&(value.len() as u16).to_be_bytes());
        out.extend_from_slice(value);
    }
}

/// The addresses of both ends, of one family.
enum Ends {
    V4([u8; 4], [u8; 4]),
    V6([u8; 16], [u8; 16]),
}

/// IPv4 if both ends are, also within IPv6; else IPv6, with an IPv4 end mapped into it.
fn ends(origin: &Origin) -> Ends {
    let source = origin.source.ip().to_canonical();
    let destination = origin.destination.ip().to_canonical();
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            Ends::V4(source.octets(), destination.octets())
        }
        (source, destination) => Ends::V6(wide(source).octets(), wide(destination).octets()),
    }
}

fn wide(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

const V1_SIGNATURE: &[u8] = b"PROXY ";
/// Longest line, its end included (section 2.1).
const V1_MAX: usize = 107;

const V2_SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, command, family, length.
const V2_FIXED: usize = 16;
const V2_LOCAL: u8 = 0x20;
const V2_PROXY: u8 = 0x21;
const V2_UNSPEC: u8 = 0x00;
const V2_TCP4: u8 = 0x11;
const V2_TCP6: u8 = 0x21;

const ALPN: u8 = 0x01;
const AUTHORITY: u8 = 0x02;
const CRC32C: u8 = 0x03;
const UNIQUE_ID: u8 = 0x05;
const SSL: u8 = 0x20;
const SSL_VERSION: u8 = 0x21;
const SSL_CN: u8 = 0x22;
const SSL_CIPHER: u8 = 0x23;
const EXPORTER: u8 = 0xe0;
const END_POINT: u8 = 0xe1;

const CLIENT_SSL: u8 = 0x01;
const CLIENT_CERT_CONN: u8 = 0x02;
const CLIENT_CERT_SESS: u8 = 0x04;

const ALPN_MAX: usize = 128;
/// As long as a host name can be.
const AUTHORITY_MAX: usize = 255;
/// Section 2.2.4.
const UNIQUE_ID_MAX: usize = 128;
const SSL_VERSION_MAX: usize = 32;
const SSL_CIPHER_MAX: usize = 64;
const SSL_CN_MAX: usize = 256;
const SSL_MAX: usize = 5 + 3 + SSL_VERSION_MAX + 3 + SSL_CIPHER_MAX + 3 + SSL_CN_MAX;
/// A hash or an exported secret.
const BINDING_MAX: usize = 64;

/// A header fits a segment of any path (section 2.2: it is to be sent and received at once).
const _: () = assert!(
    V2_FIXED
        + 36
        + 3 * 7
        + ALPN_MAX
        + AUTHORITY_MAX
        + UNIQUE_ID_MAX
        + SSL_MAX
        + 2 * BINDING_MAX
        + 4
        < 1200
);

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn origin(source: &str, destination: &str) -> Origin {
        Origin {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
        }
    }

    fn v4() -> Origin {
        origin("192.0.2.1:4321", "198.51.100.7:443")
    }

    fn facts(origin: Origin) -> Facts<'static> {
        Facts {
            origin,
            alpn: None,
            authority: None,
            unique_id: None,
            ssl: None,
            exporter: None,
            end_point: None,
            crc32c: false,
        }
    }

    fn v2(facts: &Facts<'_>) -> Vec<u8> {
        let mut out = b"before".to_vec();
        write_v2(facts, &mut out);
        out.split_off(6)
    }

    /// Everything that can be told.
    fn full(origin: Origin) -> Facts<'static> {
        Facts {
            alpn: Some(b"xmpp-client"),
            authority: Some("example.org"),
            unique_id: Some(b"c0ffee"),
            ssl: Some(Ssl {
                version: "TLSv1.3",
                cipher: "TLS_AES_128_GCM_SHA256",
                certificate: Some(Certificate {
                    verified: true,
                    common_name: Some("romeo"),
                    this_connection: true,
                }),
            }),
            exporter: Some(&[1; 32]),
            end_point: Some(&[2; 32]),
            crc32c: true,
            ..facts(origin)
        }
    }

    /// Reads it whole, with something behind it, and cut at every byte.
    #[track_caller]
    fn read_all(header: &[u8]) -> Option<Origin> {
        for end in 0..header.len() {
            assert_eq!(read(&header[..end]), Ok(Read::NeedMore), "{end}");
        }
        let Ok(Read::Header { origin, consumed }) = read(header) else {
            panic!("{:?}", read(header));
        };
        assert_eq!(consumed, header.len());
        assert_eq!(read(&[header, b"<s"].concat()), read(header));
        origin
    }

    /// A version 2 header by hand.
    fn by_hand(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let len = (rest.len() as u16).to_be_bytes();
        [V2_SIGNATURE, &[command, family], &len, rest].concat()
    }

    const V4_ENDS: [u8; 12] = [192, 0, 2, 1, 198, 51, 100, 7, 0x10, 0xe1, 0x01, 0xbb];

    #[test]
    fn version_1_is_a_line() {
        for (origin, line) in [
            (v4(), "PROXY TCP4 192.0.2.1 198.51.100.7 4321 443\r\n"),
            (
                origin("[2001:db8::1]:1", "[::1]:65535"),
                "PROXY TCP6 2001:db8::1 ::1 1 65535\r\n",
            ),
            (
                origin("[::ffff:192.0.2.1]:4321", "198.51.100.7:443"),
                "PROXY TCP4 192.0.2.1 198.51.100.7 4321 443\r\n",
            ),
            (
                origin("192.0.2.1:1", "[2001:db8::1]:2"),
                "PROXY TCP6 ::ffff:192.0.2.1 2001:db8::1 1 2\r\n",
            ),
        ] {
            let mut out = Vec::new();
            write_v1(&origin, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), line);
            let read = read_all(line.as_bytes()).unwrap();
            assert_eq!(read.source.port(), origin.source.port());
            assert_eq!(
                read.source.ip().to_canonical(),
                origin.source.ip().to_canonical()
            );
            assert_eq!(read.destination, origin.destination);
        }
        assert_eq!(read_all(b"PROXY UNKNOWN\r\n"), None);
        assert_eq!(read_all(b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n"), None);
    }

    #[test]
    fn what_is_no_version_1_is_told() {
        for line in [
            "GET / HTTP/1.1\r\n",
            "PRI * HTTP/2.0\r\n",
            "PROXYxTCP4 192.0.2.1 198.51.100.7 4321 443\r\n",
            "PROXY TCP5 192.0.2.1 198.51.100.7 4321 443\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.7 4321 99999\r\n",
            "PROXY TCP4 192.0.2.256 198.51.100.7 4321 443\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.7 4321 443\rx",
            "PROXY TCP4 192.0.2.1 198.51.100.7 4321 443\n<stream>\n<a/>\n",
        ] {
            let line = format!("{line}{}", " ".repeat(110));
            assert_eq!(read(line.as_bytes()), Err(Malformed), "{line}");
        }
        let long = format!("PROXY UNKNOWN {}\r\n", "a".repeat(V1_MAX));
        assert_eq!(read(long.as_bytes()), Err(Malformed));
        assert_eq!(read(&long.as_bytes()[..V1_MAX]), Err(Malformed));
        assert_eq!(read(b"PX"), Err(Malformed));
    }

    #[test]
    fn version_2_is_what_the_paper_says() {
        assert_eq!(v2(&facts(v4())), by_hand(0x21, 0x11, &V4_ENDS));
        assert_eq!(
            v2(&facts(origin(
                "[::ffff:192.0.2.1]:4321",
                "[::ffff:198.51.100.7]:443"
            ))),
            by_hand(0x21, 0x11, &V4_ENDS)
        );
        let mut mixed = [0; 36];
        mixed[10..16].copy_from_slice(&[0xff, 0xff, 192, 0, 2, 1]);
        mixed[16..20].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
        mixed[31] = 9;
        mixed[32..].copy_from_slice(&[0x10, 0xe1, 0x14, 0x66]);
        let ends = origin("192.0.2.1:4321", "[2001:db8::9]:5222");
        assert_eq!(v2(&facts(ends)), by_hand(0x21, 0x21, &mixed));

        let ssl = |certificate| Facts {
            ssl: Some(Ssl {
                version: "TLSv1.2",
                cipher: "C",
                certificate,
            }),
            ..facts(v4())
        };
        let field = |client, verify, rest: &[u8]| {
            let inner = [
                &[client, 0, 0, 0, verify],
                &b"\x21\0\x07TLSv1.2\x23\0\x01C"[..],
                rest,
            ]
            .concat();
            by_hand(
                0x21,
                0x11,
                &[&V4_ENDS, &[0x20, 0, inner.len() as u8][..], &inner].concat(),
            )
        };
        assert_eq!(v2(&ssl(None)), field(1, 1, b""));
        for (verified, this_connection, client, verify) in [
            (true, true, 7, 0),
            (false, true, 7, 1),
            (true, false, 5, 0),
            (false, false, 5, 1),
        ] {
            let certificate = Certificate {
                verified,
                common_name: Some("ab"),
                this_connection,
            };
            assert_eq!(
                v2(&ssl(Some(certificate))),
                field(client, verify, b"\x22\0\x02ab")
            );
        }

        let many = Facts {
            ssl: None,
            crc32c: false,
            exporter: Some(b"E"),
            end_point: Some(b"P"),
            ..full(v4())
        };
        let fields =
            b"\x01\0\x0bxmpp-client\x02\0\x0bexample.org\x05\0\x06c0ffee\xe0\0\x01E\xe1\0\x01P";
        assert_eq!(
            v2(&many),
            by_hand(0x21, 0x11, &[&V4_ENDS[..], fields].concat())
        );
    }

    #[test]
    fn what_is_written_is_read_back() {
        for ends in [v4(), origin("[2001:db8::1]:1", "[2001:db8::2]:2")] {
            let header = v2(&full(ends));
            assert_eq!(read_all(&header), Some(ends));
            let (parsed, _) = ProxyHeader::parse(&header, ParseConfig::default()).unwrap();
            assert_eq!(parsed.alpn(), Some(&b"xmpp-client"[..]));
            assert_eq!(parsed.authority(), Some("example.org"));
            assert_eq!(parsed.unique_id(), Some(&b"c0ffee"[..]));
            let ssl = parsed.ssl().unwrap();
            assert_eq!((ssl.verify(), ssl.version()), (0, Some("TLSv1.3")));
            assert_eq!(ssl.cipher(), Some("TLS_AES_128_GCM_SHA256"));
            assert_eq!(ssl.cn(), Some("romeo"));
            let kinds: Vec<u8> = parsed.tlvs().map(|tlv| tlv.unwrap().kind()).collect();
            assert_eq!(kinds, [1, 2, 5, 0x20, 0xe0, 0xe1, 3]);
        }
    }

    #[test]
    fn a_checksum_is_that_of_the_paper() {
        // Crc32c of "123456789" is e3069283 (RFC 3720 appendix B.4 has the polynomial).
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        let header = v2(&Facts {
            crc32c: true,
            ..facts(v4())
        });
        let (before, sum) = header.split_at(header.len() - 4);
        let zeroed = [before, &[0; 4]].concat();
        assert_eq!(sum, crc32c::crc32c(&zeroed).to_be_bytes());

        let whole = v2(&full(v4()));
        for at in V2_FIXED..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            assert_eq!(read(&damaged), Err(Malformed), "{at}");
        }
    }

    #[test]
    fn what_is_too_long_is_left_out() {
        let long = "a".repeat(2000);
        let mut facts = full(v4());
        facts.alpn = Some(long.as_bytes());
        facts.authority = Some(&long);
        facts.unique_id = Some(long.as_bytes());
        facts.exporter = Some(long.as_bytes());
        facts.ssl = Some(Ssl {
            version: &long,
            cipher: "",
            certificate: Some(Certificate {
                verified: true,
                common_name: Some(&long),
                this_connection: false,
            }),
        });
        let header = v2(&facts);
        assert_eq!(read_all(&header), Some(v4()));
        let (parsed, _) = ProxyHeader::parse(&header, ParseConfig::default()).unwrap();
        let kinds: Vec<u8> = parsed.tlvs().map(|tlv| tlv.unwrap().kind()).collect();
        assert_eq!(kinds, [0x20, 0xe1, 3]);
        assert_eq!(parsed.ssl().unwrap().tlvs().count(), 0);
    }

    #[test]
    fn who_speaks_for_itself_or_not_for_tcp_has_no_origin() {
        assert_eq!(read_all(&by_hand(0x20, 0x00, b"")), None);
        assert_eq!(read_all(&by_hand(0x20, 0x11, &V4_ENDS)), None);
        assert_eq!(read_all(&by_hand(0x20, 0x7f, b"anything")), None);
        assert_eq!(read_all(&by_hand(0x21, 0x00, b"anything")), None);
        assert_eq!(read_all(&by_hand(0x21, 0x12, &V4_ENDS)), None);
        assert_eq!(read_all(&by_hand(0x21, 0x31, &[0; 216])), None);
    }

    #[test]
    fn what_is_no_version_2_is_told_at_once() {
        for bytes in [
            &b"<"[..],
            b"\x16",
            b"\r\n\r\r",
            b"\r\n\r\n\0\r\nQUIT\n\x11",
            b"\r\n\r\n\0\r\nQUIT\n\x22",
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x10\x01",
        ] {
            assert_eq!(read(bytes), Err(Malformed), "{bytes:?}");
            assert_eq!(read(&bytes[..bytes.len() - 1]), Ok(Read::NeedMore));
        }
        let with = |rest: &[u8]| read(&by_hand(0x21, 0x11, &[&V4_ENDS, rest].concat()));
        assert!(with(b"").is_ok());
        assert!(with(b"\x04\0\0\xee\0\x01x").is_ok());
        for rest in [
            &b"\x04"[..],
            b"\x04\0",
            b"\x04\0\x01",
            b"\x02\0\x01\xff",
            b"\x03\0\x01a",
            b"\x20\0\0",
            b"\x20\0\x06\0\0\0\0\0\x21",
        ] {
            assert_eq!(with(rest), Err(Malformed), "{rest:?}");
        }
        assert_eq!(read(&by_hand(0x21, 0x11, &V4_ENDS[1..])), Err(Malformed));
        assert_eq!(read(&by_hand(0x21, 0x41, &[0; 300])), Err(Malformed));
        assert_eq!(read(&by_hand(0x21, 0x10, &V4_ENDS)), Err(Malformed));
    }
}
