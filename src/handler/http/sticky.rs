//! Clients that stay with their backend, by a cookie of ours.
//!
//! The cookie names a backend by its [mark](crate::upstream::Backend::mark), so that every instance with the same settings
//! understands it, and nothing need be remembered here.

use hyper::header::{COOKIE, HeaderMap, HeaderValue};

use crate::config::Sticky;
use crate::upstream::{Upstream, Wanted};

use super::visit::Visit;

/// The backend that a request should go to.
pub(super) fn wanted(visit: &Visit, upstream: &Upstream, headers: &HeaderMap) -> Wanted {
    let by_cookie = upstream.link.sticky == Sticky::Cookie;
    match by_cookie.then(|| told(upstream, headers)).flatten() {
        Some(mark) => Wanted::Mark(mark),
        None => visit.guest().wanted(upstream),
    }
}

/// What a client is told that went to the backend with this mark, if it does not know yet.
pub(super) fn tell(upstream: &Upstream, wanted: Wanted, mark: u64) -> Option<HeaderValue> {
    if upstream.link.sticky != Sticky::Cookie || wanted == Wanted::Mark(mark) {
        return None;
    }
    // Chat pages ask from other sites as well.
    let cookie = format!(
        "{}={mark:016x}; Path=/; Secure; HttpOnly; SameSite=None",
        name(upstream)
    );
    HeaderValue::try_from(cookie).ok()
}

fn told(upstream: &Upstream, headers: &HeaderMap) -> Option<u64> {
    let name = name(upstream);
    headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|cookies| cookies.to_str().ok())
        .flat_map(|cookies| cookies.split(';'))
        .filter_map(|cookie| cookie.trim().split_once('='))
        .find(|(cookie, _)| *cookie == name)
        .and_then(|(_, mark)| u64::from_str_radix(mark, 16).ok())
}

/// One for each upstream, since a page may use several.
fn name(upstream: &Upstream) -> String {
    format!("vestibule-{:08x}", upstream.mark() as u32)
}
