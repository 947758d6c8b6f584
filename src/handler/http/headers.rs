//! Headers that belong to one hop, and facts about the client that a backend is told (RFC 9110 section 7.6.1, RFC 7239).

use std::net::Ipv6Addr;

use hyper::header::{
    AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, Entry,
    FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::request::Parts;
use hyper::http::uri::{Authority, Scheme};
use hyper::{Method, Request, Uri, Version};

use super::body::Upload;
use super::problem::Problem;
use super::visit::Visit;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
pub(super) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
pub(super) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What is in a request that must not be, seen in one pass.
#[derive(Default)]
struct Seen {
    hop_by_hop: bool,
    forwarding: bool,
}

impl Seen {
    fn in_headers(headers: &HeaderMap) -> Self {
        let mut seen = Self::default();
        for name in headers.keys() {
            match name.as_str().as_bytes() {
                b"connection" | b"keep-alive" | b"proxy-connection" | b"te"
                | b"transfer-encoding" | b"upgrade" => seen.hop_by_hop = true,
                b"forwarded" | b"true-client-ip" | b"cf-connecting-ip" | b"proxy" => {
                    seen.forwarding = true;
                }
                [b'x', b'-', ..] => seen.forwarding = true,
                _ => {}
            }
        }
        seen
    }
}

/// Takes out what belongs to the connection that it came on, but for the wish for trailers, which is ours as well.
pub(super) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    if !Seen::in_headers(headers).hop_by_hop {
        return;
    }
    let trailers = headers
        .get_all(TE)
        .iter()
        .flat_map(|value| value.as_bytes().split(|&byte| byte == b','))
        .any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"));
    take_hop_by_hop(headers);
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Takes out what `Connection` names, and what always belongs to one hop.
fn take_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|&byte| byte == b','))
        .filter_map(|token| HeaderName::from_bytes(token.trim_ascii()).ok())
        // What decides about host and length is not for the client to take away.
        .filter(|name| *name != HOST && *name != CONTENT_LENGTH)
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in [
        CONNECTION,
        KEEP_ALIVE,
        PROXY_CONNECTION,
        TE,
        TRANSFER_ENCODING,
        UPGRADE,
    ] {
        headers.remove(name);
    }
}

/// The host that a request is for, without its port, as it was written.
///
/// # Errors
/// There is none, or there are two.
pub(super) fn host<'a>(
    headers: &'a HeaderMap,
    uri: &'a Uri,
    version: Version,
) -> Result<&'a str, Problem> {
    let mut hosts = headers.get_all(HOST).iter();
    let header = hosts.next();
    if hosts.next().is_some() {
        return Err(Problem::HOST);
    }
    let header = match header.map(HeaderValue::to_str) {
        Some(Ok(header)) => Some(header),
        Some(Err(_)) => return Err(Problem::HOST),
        None => None,
    };
    let authority = uri.authority().map(|authority| authority.as_str());
    let host = match (authority, header) {
        (Some(authority), Some(header)) if !authority.eq_ignore_ascii_case(header) => {
            return Err(Problem::HOST);
        }
        (Some(host), _) | (None, Some(host)) => host,
        // HTTP/1.0 had none.
        (None, None) if version == Version::HTTP_10 => return Ok(""),
        (None, None) => return Err(Problem::HOST),
    };
    name_in(host).ok_or(Problem::HOST)
}

/// The name or address in a host with or without a port, if it is one (RFC 3986 section 3.2.2, as far as it is in use).
fn name_in(host: &str) -> Option<&str> {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']')?;
            address.parse::<Ipv6Addr>().ok()?;
            (address, port)
        }
        None => {
            let end = host.find(':').unwrap_or(host.len());
            let (name, port) = host.split_at(end);
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
            if name.is_empty() || !name.bytes().all(fits) {
                return None;
            }
            (name, port)
        }
    };
    let port = port.strip_prefix(':').map_or(port.is_empty(), |port| {
        let digits = port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit());
        digits && port.parse::<u16>().is_ok()
    });
    port.then_some(name)
}

/// What HTTP/2 lets through and HTTP/1.1 would read differently (RFC 9113 section 10.3).
///
/// # Errors
/// The request is not to be forwarded.
pub(super) fn check(parts: &Parts, most: u16) -> Result<(), Problem> {
    if parts.headers.len() > usize::from(most) {
        return Err(Problem::HEADERS);
    }
    if parts.version != Version::HTTP_2 {
        return Ok(()); // its bytes have been looked at
    }
    for value in parts.headers.values() {
        let bytes = value.as_bytes();
        if bytes.trim_ascii().len() != bytes.len() {
            return Err(Problem::BAD_REQUEST);
        }
    }
    let path = parts.uri.path();
    let whole = path == "*" && parts.method == Method::OPTIONS;
    if !(path.starts_with('/') || whole) {
        return Err(Problem::BAD_REQUEST);
    }
    Ok(())
}

/// Whether a header name with an underscore is there: backends may take it for one with a hyphen.
pub(super) fn has_underscore(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| name.as_str().contains('_'))
}

/// Makes a request one of HTTP/1.1 for a backend, which is told who the client is.
pub(super) fn pass_on(parts: &mut Parts, visit: &Visit) {
    let seen = Seen::in_headers(&parts.headers);
    let headers = &mut parts.headers;
    if seen.hop_by_hop {
        strip_hop_by_hop(headers);
    }
    if let Some(authority) = parts.uri.authority()
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        headers.insert(HOST, host);
    }
    if parts.version == Version::HTTP_10
        && !headers.contains_key(HOST)
        && let Some(Ok(host)) = visit.server_name().map(HeaderValue::from_str)
    {
        headers.insert(HOST, host);
    }
    if parts.version == Version::HTTP_2 {
        join_cookies(headers);
    }
    if parts.uri.authority().is_some() || parts.uri.scheme().is_some() {
        let mut origin = hyper::http::uri::Parts::default();
        origin.path_and_query = parts.uri.path_and_query().cloned();
        parts.uri = Uri::from_parts(origin).unwrap_or_default();
    }
    parts.version = Version::HTTP_11;
    if visit.trusted {
        append(headers, X_FORWARDED_FOR, &visit.address);
        append(headers, FORWARDED, &visit.forwarded);
        headers
            .entry(X_FORWARDED_PROTO)
            .or_insert(HeaderValue::from_static("https"));
        if let Some(host) = headers.get(HOST).cloned() {
            headers.entry(X_FORWARDED_HOST).or_insert(host);
        }
    } else {
        if seen.forwarding {
            strip_forwarding(headers);
        }
        headers.insert(X_FORWARDED_FOR, visit.address.clone());
        headers.insert(FORWARDED, visit.forwarded.clone());
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static("https"));
        if let Some(host) = headers.get(HOST).cloned() {
            headers.insert(X_FORWARDED_HOST, host);
        }
    }
    if !(visit.trusted && headers.contains_key(X_REQUEST_ID))
        && let Ok(id) = HeaderValue::try_from(visit.request_id())
    {
        headers.insert(X_REQUEST_ID, id);
    }
}

/// Makes a request of HTTP/1.1 one of HTTP/2 (RFC 9113 section 8.3.1).
pub(super) fn for_http2(request: &mut Request<Upload>) {
    let host = request.headers_mut().remove(HOST);
    let mut target = hyper::http::uri::Parts::default();
    target.scheme = Some(Scheme::HTTPS);
    target.authority = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
    target.path_and_query = request.uri().path_and_query().cloned();
    if let Ok(uri) = Uri::from_parts(target) {
        *request.uri_mut() = uri;
    }
    *request.version_mut() = Version::HTTP_2;
}

/// Takes out what a client that nobody vouches for says of itself.
fn strip_forwarding(headers: &mut HeaderMap) {
    const PREFIX: &str = "x-forwarded-";
    let told: Vec<HeaderName> = headers
        .keys()
        .filter(|name| {
            let name = name.as_str();
            name.starts_with(PREFIX)
                || matches!(
                    name,
                    "forwarded"
                        | "proxy"
                        | "cf-connecting-ip"
                        | "x-forwarded"
                        | "x-host"
                        | "x-original-forwarded-for"
                        | "x-original-host"
                        | "x-real-ip"
                        | "x-client-ip"
                        | "x-cluster-client-ip"
                        | "true-client-ip"
                        | "x-ssl-client-cert"
                        | "x-ssl-client-verify"
                        | "x-ssl-client-dn"
                        | "x-request-id"
                        | "x-original-url"
                        | "x-rewrite-url"
                )
        })
        .cloned()
        .collect();
    for name in told {
        headers.remove(name);
    }
}

/// Takes out of a request's trailers what is only believed in its head, where it was looked at: backends may merge them
/// (RFC 9110 section 6.5.1).
pub(super) fn strip_trailers(trailers: &mut HeaderMap) {
    take_hop_by_hop(trailers);
    strip_forwarding(trailers);
    let refused: Vec<HeaderName> = trailers
        .iter()
        .filter(|(name, value)| {
            let bytes = value.as_bytes();
            let decides = matches!(
                **name,
                HOST | COOKIE | AUTHORIZATION | CONTENT_LENGTH | CONTENT_TYPE | CONTENT_ENCODING
            );
            decides || name.as_str().contains('_') || bytes.trim_ascii().len() != bytes.len()
        })
        .map(|(name, _)| name.clone())
        .collect();
    for name in refused {
        trailers.remove(name);
    }
}

/// HTTP/2 may send each cookie in a field of its own (RFC 9113 section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let Entry::Occupied(mut cookies) = headers.entry(COOKIE) else {
        return;
    };
    if cookies.iter().nth(1).is_none() {
        return;
    }
    let mut joined = Vec::new();
    for cookie in cookies.iter() {
        if !joined.is_empty() {
            joined.extend_from_slice(b"; ");
        }
        joined.extend_from_slice(cookie.as_bytes());
    }
    if let Ok(joined) = HeaderValue::from_bytes(&joined) {
        cookies.insert(joined);
    }
}

/// Adds to a list that a balancer in front has begun.
fn append(headers: &mut HeaderMap, name: HeaderName, value: &HeaderValue) {
    let mut list = Vec::new();
    for earlier in headers.get_all(&name) {
        list.extend_from_slice(earlier.as_bytes());
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(value.as_bytes());
    if let Ok(list) = HeaderValue::from_bytes(&list) {
        headers.insert(name, list);
    }
}

/// Whether `Connection` has this token; lists, case and several lines are all in use.
pub(super) fn connection_has(headers: &HeaderMap, wanted: &[u8]) -> bool {
    headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|&byte| byte == b','))
        .any(|token| token.trim_ascii().eq_ignore_ascii_case(wanted))
}
