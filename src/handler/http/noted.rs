//! What the access log tells of a request, kept until its end: handles of what hyper has parsed, nothing is copied.

use std::net::{IpAddr, SocketAddr};

use hyper::header::{HOST, HeaderMap, HeaderValue};
use hyper::{Method, Request, Uri, Version};

use crate::config::IpNet;

use super::headers::{X_FORWARDED_FOR, X_REQUEST_ID};
use super::visit::Visit;

/// See the module.
pub(super) struct Noted {
    version: Version,
    pub(super) method: Method,
    pub(super) uri: Uri,
    host: Option<HeaderValue>,
    /// The name that a trusted proxy has given it.
    pub(super) id: Option<HeaderValue>,
    /// Whom trusted proxies speak for.
    pub(super) forwarded_for: Option<IpAddr>,
}

impl Noted {
    pub(super) fn of<B>(request: &Request<B>, visit: &Visit) -> Self {
        let headers = request.headers();
        let told = visit.trusted.then(|| headers.get(X_REQUEST_ID).cloned());
        let nets = &visit.rules.trusted_proxies;
        let forwarded_for = visit.trusted.then(|| forwarded_for(headers, nets));
        Self {
            version: request.version(),
            method: request.method().clone(),
            uri: request.uri().clone(),
            host: headers.get(HOST).cloned(),
            id: told.flatten(),
            forwarded_for: forwarded_for.flatten(),
        }
    }

    pub(super) fn version(&self) -> &'static str {
        match self.version {
            Version::HTTP_10 => "1.0",
            Version::HTTP_2 => "2",
            _ => "1.1",
        }
    }

    /// As it was asked for, with its port.
    pub(super) fn host(&self) -> Option<&[u8]> {
        let authority = self.uri.authority();
        let authority = authority.map(|authority| authority.as_str().as_bytes());
        authority.or_else(|| self.host.as_ref().map(HeaderValue::as_bytes))
    }
}

/// The client that trusted proxies speak for: each appends whom it sees, so the last address that is none of theirs is as
/// far as they can be believed.
fn forwarded_for(headers: &HeaderMap, trusted: &[IpNet]) -> Option<IpAddr> {
    let lines = headers.get_all(X_FORWARDED_FOR).iter().rev();
    let addresses = lines.flat_map(|line| line.as_bytes().rsplit(|&byte| byte == b','));
    let mut known = None;
    for address in addresses {
        let Some(address) = address_in(address) else {
            break;
        };
        known = Some(address);
        if !trusted.iter().any(|net| net.contains(&address)) {
            break;
        }
    }
    known
}

/// With or without brackets and port: there is no one way to write it.
fn address_in(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok()?.trim();
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    let address = bare.unwrap_or(text).parse().ok().or_else(with_port);
    address.map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_last_address_that_is_no_proxy_is_believed() {
        let trusted: Vec<IpNet> = ["10.0.0.0/8", "fd00::/8"]
            .iter()
            .map(|net| net.parse().unwrap())
            .collect();
        for (lines, expected) in [
            (&["192.0.2.7"][..], Some("192.0.2.7")),
            (&["198.51.100.1, 192.0.2.7"], Some("192.0.2.7")),
            (&["198.51.100.1,192.0.2.7 , 10.0.0.3"], Some("192.0.2.7")),
            (
                &["198.51.100.1", "192.0.2.7", "10.1.1.1"],
                Some("192.0.2.7"),
            ),
            (&["[2001:db8::1]:4711, fd00::1"], Some("2001:db8::1")),
            (&["[2001:db8::1]"], Some("2001:db8::1")),
            (&["192.0.2.7:80"], Some("192.0.2.7")),
            (&["::ffff:192.0.2.7"], Some("192.0.2.7")),
            (&["192.0.2.7, unknown, 10.0.0.3"], Some("10.0.0.3")),
            (&["192.0.2.7, unknown"], None),
            (&["10.0.0.1, 10.0.0.2"], Some("10.0.0.1")),
            (&[""], None),
            (&[], None),
        ] {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(X_FORWARDED_FOR, line.parse().unwrap());
            }
            let expected = expected.map(|address| address.parse().unwrap());
            assert_eq!(forwarded_for(&headers, &trusted), expected, "{lines:?}");
        }
    }
}
