//! WebSocket over HTTP/1.1 (RFC 6455 section 4): once the backend has said 101, hyper is done and bytes go on as in any
//! other protocol.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{
    CONNECTION, HeaderMap, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_VERSION, SET_COOKIE,
    UPGRADE,
};
use hyper::http::{request, response};
use hyper::{Method, Request, Response, StatusCode, Version};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::config::UpstreamId;
use crate::endpoint::Endpoint;
use crate::endpoint::secure::Rest;
use crate::endpoint::transport::Parts;
use crate::relay::Moved;
use crate::upstream::dial::{Dialed, Reached};
use crate::upstream::{Pick, Upstream};

use super::super::Guest;
use super::super::conversation::Conversation;
use super::backs::{self, Back, Switched};
use super::body::{Answer, Upload};
use super::exchange::Exchange;
use super::forward::{Ending, within};
use super::headers;
use super::problem::Problem;
use super::sticky;
use super::visit::Visit;

/// The only protocol that is changed to.
pub(super) const WEBSOCKET: &[u8] = b"websocket";
/// How long either side may take to accept what came in the new protocol before it was joined.
const JOINING: Duration = Duration::from_secs(10);

/// A backend that has changed the protocol.
pub(super) struct Upgraded {
    switched: oneshot::Receiver<Switched>,
    pick: Pick,
    upstream: UpstreamId,
}

/// Whether a request asks for a WebSocket. Any other wish for an upgrade is not passed on.
///
/// # Errors
/// It asks for a version that is none.
pub(super) fn asked(parts: &request::Parts) -> Result<bool, Problem> {
    let asked = parts.headers.contains_key(UPGRADE)
        && parts.method == Method::GET
        && parts.version == Version::HTTP_11
        && is_websocket(&parts.headers)
        && headers::connection_has(&parts.headers, b"upgrade");
    let version = parts.headers.get(SEC_WEBSOCKET_VERSION);
    match version.map(|version| version.as_bytes().trim_ascii()) {
        _ if !asked => Ok(false),
        Some(b"13") => Ok(true),
        _ => Err(Problem::WEBSOCKET_VERSION),
    }
}

fn is_websocket(headers: &HeaderMap) -> bool {
    let mut protocols = headers.get_all(UPGRADE).iter();
    let first = protocols.next().map(HeaderValue::as_bytes);
    first.is_some_and(|first| first.trim_ascii().eq_ignore_ascii_case(WEBSOCKET))
        && protocols.next().is_none()
}

/// Asks a backend.
pub(super) async fn open(
    visit: &Rc<Visit>,
    mut parts: request::Parts,
    upstream: (UpstreamId, &Arc<Upstream>),
    exchange: &mut Exchange,
) -> Result<(response::Parts, Incoming), Ending> {
    headers::pass_on(&mut parts, visit);
    let (mut head, upgraded) = match ask(visit, parts, upstream, exchange).await? {
        Asked::Switching(head, upgraded) => (head, upgraded),
        Asked::Answered(head, body) => return Ok((head, body)),
    };
    *visit.upgraded.borrow_mut() = Some(upgraded);
    headers::strip_hop_by_hop(&mut head.headers);
    head.headers
        .insert(CONNECTION, HeaderValue::from_static("upgrade"));
    head.headers
        .insert(UPGRADE, HeaderValue::from_static("websocket"));
    let response = Response::from_parts(head, Answer::empty());
    Err(Ending::Switching(response, None))
}

/// What a backend says to a wish for a WebSocket.
pub(super) enum Asked {
    /// It changes the protocol.
    Switching(response::Parts, Upgraded),
    /// It answers otherwise.
    Answered(response::Parts, Incoming),
}

/// Asks a backend, on a connection of its own, for a WebSocket.
pub(super) async fn ask(
    visit: &Rc<Visit>,
    mut parts: request::Parts,
    (id, upstream): (UpstreamId, &Arc<Upstream>),
    exchange: &mut Exchange,
) -> Result<Asked, Problem> {
    let wanted = sticky::wanted(visit, upstream, &parts.headers);
    parts
        .headers
        .insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    parts
        .headers
        .insert(UPGRADE, HeaderValue::from_static("websocket"));
    exchange.upgrade = true;
    let dialed = visit
        .guest()
        .dial_unless(
            id,
            visit.told(),
            (&[], b"http/1.1"),
            wanted,
            |_| None::<Back>,
        )
        .await;
    let dialed = match dialed {
        Ok(Reached::Dialed(dialed)) => dialed,
        Ok(Reached::Had(..)) => return Err(Problem::NO_BACKEND),
        Err(error) => {
            let (id, client, listener) = (visit.id, visit.client, &visit.rules.name);
            tracing::debug!(id, %client, %listener, "no backend for an upgrade: {error}");
            return Err(Problem::NO_BACKEND);
        }
    };
    let (told, switched) = oneshot::channel();
    let (mut back, pick) = backs::open(dialed, visit, false, Some(told)).await?;
    exchange.backend = Some(pick.index());
    exchange.cookie = sticky::tell(upstream, wanted, pick.backend().mark());
    exchange.upload.ended.set(Some(Instant::now()));
    let request = Request::from_parts(parts, Upload::Empty);
    let sent = back.send(request, true);
    let answered = within(visit.rules.upgrade, &exchange.upload, || None, sent).await;
    let response = match answered {
        Some(Ok(response)) => response,
        Some(Err(error)) => {
            let fault = back.fault();
            tracing::debug!(
                id = visit.id, upstream = %upstream.name, fault,
                "no answer to an upgrade: {}", error.error()
            );
            return Err(match fault {
                Some(_) => Problem::BAD_ANSWER,
                None => Problem::BACKEND_GONE,
            });
        }
        None => return Err(Problem::UPGRADE_TIMEOUT),
    };
    let (mut head, body) = response.into_parts();
    if head.status != StatusCode::SWITCHING_PROTOCOLS {
        exchange.pick = Some(pick);
        exchange.back = Some(back);
        return Ok(Asked::Answered(head, body));
    }
    if !is_websocket(&head.headers) || !head.headers.contains_key(SEC_WEBSOCKET_ACCEPT) {
        return Err(Problem::BAD_ANSWER);
    }
    if let Some(cookie) = exchange.cookie.take() {
        head.headers.append(SET_COOKIE, cookie);
    }
    let upgraded = Upgraded {
        switched,
        pick,
        upstream: id,
    };
    Ok(Asked::Switching(head, upgraded))
}

impl Upgraded {
    /// The backend's connection, once hyper has let go of it.
    pub(super) async fn take(self) -> Option<(Switched, Pick, UpstreamId)> {
        let switched = timeout_at(Instant::now() + JOINING, self.switched).await;
        Some((switched.ok()?.ok()?, self.pick, self.upstream))
    }
}

/// Joins a client and a backend that both have changed the protocol. `early` has come from the client in the new one.
pub(super) async fn join(
    front: Parts,
    early: &[u8],
    upgraded: Upgraded,
    guest: &Guest<'_>,
) -> Option<Conversation> {
    let ((back, glued), pick, upstream) = upgraded.take().await?;
    guest.ledger.sent_to(upstream);
    let up = [early, &front.plain].concat();
    let down = [&glued[..], &back.plain].concat();
    let moved = Moved {
        up: up.len() as u64,
        down: down.len() as u64,
    };
    let deadline = Instant::now() + JOINING;
    let both = async { tokio::join!(settle(front, &down), settle(back, &up)) };
    let (front, back) = timeout_at(deadline, both).await.ok()?;
    let (front, (endpoint, rest)) = (front?, back?);
    let dialed = Dialed {
        endpoint,
        rest,
        pick,
    };
    Some(Conversation::join_websocket(front, dialed, moved, guest))
}

/// Sends what is left over from HTTP, then `words` of the new protocol.
async fn settle(parts: Parts, words: &[u8]) -> Option<(Endpoint, Rest)> {
    let mut dialogue = parts.into_dialogue().await.ok()?;
    dialogue.write(words).await.ok()?;
    Some(dialogue.into_parts())
}
