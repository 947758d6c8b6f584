//! WebSocket over HTTP/2 (RFC 8441), for backends that speak HTTP/1.1: the stream of a CONNECT is bridged to a connection of
//! its own.

use std::future::{Future, pending, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::ext::Protocol;
use hyper::header::{HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION};
use hyper::http::{request, response};
use hyper::rt::{Read, ReadBuf, Write};
use hyper::upgrade::{OnUpgrade, Upgraded as Stream};
use hyper::{Method, Response, StatusCode};
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::config::UpstreamId;
use crate::endpoint::transport::{Manners, Transport};
use crate::pool::{Magazine, Wait};
use crate::upstream::{Pick, Upstream};

use super::super::turn;
use super::LAST_WORDS;
use super::backs::Switched;
use super::body::Answer;
use super::exchange::Exchange;
use super::forward::Ending;
use super::headers;
use super::look::Blind;
use super::problem::Problem;
use super::upgrade::{Asked, Upgraded, WEBSOCKET, ask};
use super::visit::Visit;

/// Asks a backend for what a CONNECT asks for.
pub(super) async fn open(
    visit: &Rc<Visit>,
    mut parts: request::Parts,
    body: Incoming,
    upstream: (UpstreamId, &Arc<Upstream>),
    exchange: &mut Exchange,
) -> Result<(response::Parts, Incoming), Ending> {
    let protocol = parts.extensions.get::<Protocol>();
    let websocket =
        protocol.is_some_and(|protocol| protocol.as_ref().eq_ignore_ascii_case(WEBSOCKET));
    let stream = parts.extensions.remove::<OnUpgrade>();
    let (true, Some(stream)) = (websocket, stream) else {
        return Err(Problem::CONNECT.into());
    };
    drop(body);
    headers::pass_on(&mut parts, visit);
    parts.method = Method::GET;
    let key = generate_key();
    let accept = derive_accept_key(key.as_bytes());
    let value = HeaderValue::from_str(&key).map_err(|_| Problem::BAD_REQUEST)?;
    parts.headers.insert(SEC_WEBSOCKET_KEY, value);
    parts
        .headers
        .entry(SEC_WEBSOCKET_VERSION)
        .or_insert(HeaderValue::from_static("13"));
    let (mut head, upgraded) = match ask(visit, parts, upstream, exchange).await? {
        Asked::Switching(head, upgraded) => (head, upgraded),
        Asked::Answered(head, body) => return Ok((head, body)),
    };
    let proof = head.headers.remove(SEC_WEBSOCKET_ACCEPT);
    if proof.is_none_or(|proof| proof.as_bytes() != accept.as_bytes()) {
        return Err(Problem::BAD_ANSWER.into());
    }
    headers::strip_hop_by_hop(&mut head.headers);
    head.status = StatusCode::OK;
    let response = Response::from_parts(head, Answer::empty());
    let tunnel = Tunnel { stream, upgraded };
    Err(Ending::Switching(response, Some(tunnel)))
}

/// A stream of HTTP/2 and a backend that has changed the protocol.
pub(super) struct Tunnel {
    stream: OnUpgrade,
    upgraded: Upgraded,
}

impl Tunnel {
    /// Bytes both ways between the stream and the backend's connection, until both have ended.
    pub(super) async fn bridge(self, mut exchange: Box<Exchange>) {
        exchange.becomes_tunnel();
        exchange.visit().common.untidy();
        let Ok(front) = self.stream.await else {
            return;
        };
        let Some(back) = self.upgraded.take().await else {
            exchange.outcome = "backend_gone";
            return;
        };
        Box::pin(bridge(front, back, exchange)).await;
    }
}

async fn bridge(
    mut front: Stream,
    ((parts, glued), _pick, _): (Switched, Pick, UpstreamId),
    mut exchange: Box<Exchange>,
) {
    let visit = Rc::clone(exchange.visit());
    let manners = Manners {
        says_end: true,
        ..visit.rules.manners()
    };
    let early = [&glued[..], &parts.plain].concat();
    // hyper's whole buffer would stay with it.
    drop(glued);
    let Ok(back) = Box::pin(parts.into_dialogue()).await else {
        return;
    };
    let mut back = Transport::new(back.into_parts(), visit.common.pool.clone(), manners, Blind);
    let mut up = Way::default();
    let mut down = Way {
        moved: early.len() as u64,
        left: early,
        ..Way::default()
    };
    let limits = &visit.rules.limits;
    let mut quiet = Quiet::default();
    let pool = &visit.common.pool;
    let number = exchange.number();
    let mut drained = pin!(async {
        let limit = visit.common.leave.told().await;
        if limit.is_zero() {
            return pending().await;
        }
        // Not all of a connection at once either.
        Box::pin(sleep(turn(visit.id ^ number, limit).0)).await;
    });
    let result = poll_fn(|cx| {
        if drained.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok("drained"));
        }
        let one = up.poll(cx, &mut front, &mut back, pool);
        let other = down.poll(cx, &mut back, &mut front, pool);
        exchange.tunnelled(up.moved, down.moved);
        let (limit, outcome) = match (one?, other?) {
            (Poll::Ready(()), Poll::Ready(())) => {
                return Poll::Ready(Ok::<_, io::Error>("closed"));
            }
            (Poll::Pending, Poll::Pending) => (limits.idle, "idle_timeout"),
            _ => (limits.half_closed, "half_closed_timeout"),
        };
        let quiet = quiet.poll(cx, up.moved + down.moved, limit);
        quiet.map(|()| Ok(outcome))
    })
    .await;
    exchange.outcome = result.as_ref().map_or("cut_short", |outcome| *outcome);
    Box::pin(part(front, back, result.is_ok())).await;
}

/// The end, on both sides.
async fn part(mut front: Stream, back: Transport<Blind>, clean: bool) {
    // An end of the stream, where it has not been told, and no reset.
    if clean {
        let shut = poll_fn(|cx| Pin::new(&mut front).poll_shutdown(cx));
        let _ = timeout(LAST_WORDS, shut).await;
    }
    drop(front);
    if let Some(parts) = back.into_parts() {
        parts.finish(&[], clean).await;
    }
}

/// How long nothing has moved.
#[derive(Default)]
struct Quiet {
    moved: u64,
    limit: Duration,
    since: Option<Instant>,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Quiet {
    /// Ready when it was for this long. Zero: never.
    fn poll(&mut self, cx: &mut Context<'_>, moved: u64, limit: Duration) -> Poll<()> {
        if limit.is_zero() {
            return Poll::Pending;
        }
        if (moved, limit) != (self.moved, self.limit) {
            (self.moved, self.limit, self.since) = (moved, limit, None);
        }
        let due = *self.since.get_or_insert_with(Instant::now) + limit;
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if due < alarm.deadline() {
            alarm.as_mut().reset(due);
        }
        loop {
            ready!(alarm.as_mut().poll(cx));
            if alarm.deadline() >= due {
                return Poll::Ready(());
            }
            alarm.as_mut().reset(due);
        }
    }
}

/// One direction.
#[derive(Default)]
struct Way {
    /// Read, and not taken by the sink; from `at` on.
    left: Vec<u8>,
    at: usize,
    wait: Option<Wait>,
    /// The source has ended.
    ended: bool,
    /// And the sink has been told.
    told: bool,
    moved: u64,
}

impl Way {
    /// As far as it goes now; ready when it has come to its end.
    fn poll<S: Read + Unpin, T: Write + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut S,
        sink: &mut T,
        pool: &Magazine,
    ) -> io::Result<Poll<()>> {
        match self.advance(cx, source, sink, pool) {
            Poll::Ready(Err(error)) => Err(error),
            Poll::Ready(Ok(())) => Ok(Poll::Ready(())),
            Poll::Pending => Ok(Poll::Pending),
        }
    }

    fn advance<S: Read + Unpin, T: Write + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut S,
        sink: &mut T,
        pool: &Magazine,
    ) -> Poll<io::Result<()>> {
        loop {
            while self.at < self.left.len() {
                let n = ready!(Pin::new(&mut *sink).poll_write(cx, &self.left[self.at..]))?;
                if n == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.at += n;
            }
            if self.at > 0 {
                (self.left, self.at) = (Vec::new(), 0);
            }
            if self.ended {
                if !self.told {
                    ready!(Pin::new(&mut *sink).poll_shutdown(cx))?;
                    self.told = true;
                }
                return Poll::Ready(Ok(()));
            }
            let mut lease = ready!(pool.poll_lease(cx, &mut self.wait));
            let mut buffer = ReadBuf::new(lease.spare_mut());
            if Pin::new(&mut *source)
                .poll_read(cx, buffer.unfilled())?
                .is_pending()
            {
                drop(lease);
                ready!(Pin::new(&mut *sink).poll_flush(cx))?;
                return Poll::Pending;
            }
            let bytes = buffer.filled();
            self.ended = bytes.is_empty();
            self.moved += bytes.len() as u64;
            let mut taken = 0;
            while taken < bytes.len() {
                match Pin::new(&mut *sink).poll_write(cx, &bytes[taken..]) {
                    Poll::Ready(Ok(0)) => {
                        return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                    }
                    Poll::Ready(Ok(n)) => taken += n,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {
                        self.left = bytes[taken..].to_vec();
                        return Poll::Pending;
                    }
                }
            }
        }
    }
}
