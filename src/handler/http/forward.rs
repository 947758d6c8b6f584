//! A request's way to a backend, and its answer's way back.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_LENGTH, HeaderValue, SET_COOKIE, UPGRADE};
use hyper::{Method, Request, Response, StatusCode, Version};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep_until};

use crate::config::{ProxyProtocol, UpstreamId};
use crate::upstream::dial::Reached;
use crate::upstream::{Pick, Upstream, Wanted};

use super::backs::{self, Back};
use super::body::{Answer, Pace, Progress, Upload};
use super::exchange::Exchange;
use super::extended::Tunnel;
use super::headers;
use super::problem::Problem;
use super::visit::Visit;
use super::{extended, sticky, upgrade};

/// How long a connection may have been silent that a request without a copy is trusted to.
const FRESH: Duration = Duration::from_secs(1);

/// Answers one request.
pub(super) async fn answer(
    visit: Rc<Visit>,
    request: Request<Incoming>,
) -> Result<Response<Answer>, Infallible> {
    let mut exchange = Exchange::begin(&visit, &request);
    let json = Problem::wants_json(request.headers());
    match forward(&visit, request, &mut exchange).await {
        Ok((mut head, body)) => {
            exchange.answers(head.status);
            headers::strip_hop_by_hop(&mut head.headers);
            if let Some(cookie) = exchange.cookie.take() {
                head.headers.append(SET_COOKIE, cookie);
            }
            head.version = Version::HTTP_11;
            let close = exchange.close;
            let body = Answer::backend(body, exchange);
            Ok(closing(close, Response::from_parts(head, body)))
        }
        Err(Ending::Switching(response, tunnel)) => {
            exchange.switches(response.status());
            match tunnel {
                None => Ok(response.map(|body: Answer| body.of(exchange))),
                Some(tunnel) => {
                    spawn_local(async move { tunnel.bridge(exchange).await });
                    Ok(response)
                }
            }
        }
        Err(Ending::Problem(problem)) => {
            exchange.refuses(problem);
            tracing::debug!(
                id = visit.id, client = %visit.client, listener = %visit.rules.name,
                status = problem.status.as_u16(), reason = problem.reason, "request refused"
            );
            let close = exchange.close;
            let answer = problem.answer(json).map(|body| body.of(exchange));
            Ok(closing(close, answer))
        }
    }
}

/// Tells that the connection ends behind this answer.
fn closing(close: bool, mut response: Response<Answer>) -> Response<Answer> {
    if close {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(CONNECTION, close);
    }
    response
}

/// What is not an ordinary answer.
pub(super) enum Ending {
    /// Ours.
    Problem(Problem),
    /// The protocol changes: on the connection, or on a stream.
    Switching(Response<Answer>, Option<Tunnel>),
}

impl From<Problem> for Ending {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

type Head = hyper::http::response::Parts;

async fn forward(
    visit: &Rc<Visit>,
    request: Request<Incoming>,
    exchange: &mut Exchange,
) -> Result<(Head, Incoming), Ending> {
    let rules = &visit.rules;
    let (mut parts, body) = request.into_parts();
    // What comes behind such a head is not looked at, since it may be of another protocol. If it is not, nobody reads on.
    exchange.close = parts.version != Version::HTTP_2 && parts.headers.contains_key(UPGRADE);
    headers::check(&parts, rules.http.headers)?;
    if parts.version == Version::HTTP_2
        && !rules.http.underscores
        && headers::has_underscore(&parts.headers)
    {
        return Err(Problem::BAD_REQUEST.into());
    }
    let host = headers::host(&parts.headers, &parts.uri, parts.version)?;
    // HTTP/1.0 need not say it; then it is what the handshake was for.
    let host = Some(host).filter(|host| !host.is_empty());
    if host.is_some_and(|host| !visit.may_ask_for(host)) {
        return Err(Problem::MISDIRECTED.into());
    }
    let host = host.or_else(|| visit.server_name()).ok_or(Problem::HOST)?;
    let choice = rules.routes.choose_http(Some(host), parts.uri.path());
    let choice = choice.ok_or(Problem::NO_ROUTE)?;
    exchange.route = Some(choice.route);
    exchange.upstream = Some(choice.upstream);
    let upstream = rules.upstreams.get(usize::from(choice.upstream.0));
    let upstream = upstream.ok_or(Problem::NO_ROUTE)?;
    if parts.method == Method::CONNECT {
        let switched = extended::open(visit, parts, body, (choice.upstream, upstream), exchange);
        return Box::pin(switched).await;
    }
    if upgrade::asked(&parts)? {
        let switched = upgrade::open(visit, parts, (choice.upstream, upstream), exchange);
        return Box::pin(switched).await;
    }
    let wanted = sticky::wanted(visit, upstream, &parts.headers);
    headers::pass_on(&mut parts, visit);
    let pace = Pace {
        size: rules.http.body_size,
        window: rules.request_body,
        rate: rules.http.body_rate,
    };
    if pace.size > 0 && hyper::body::Body::size_hint(&body).lower() > pace.size {
        return Err(Problem::TOO_LARGE.into());
    }
    let upload = Upload::new(body, pace, &exchange.upload);
    let empty = matches!(upload, Upload::Empty);
    // HTTP/2 need not say so, and some backends want to be told (RFC 9110 section 8.6).
    if empty && matches!(parts.method, Method::POST | Method::PUT | Method::PATCH) {
        let none = HeaderValue::from_static("0");
        parts.headers.entry(CONTENT_LENGTH).or_insert(none);
    }
    let spare = empty && is_idempotent(&parts.method);
    let mut request = Request::from_parts(parts, upload);
    let mut again = true;
    loop {
        let (mut back, used) =
            reach(visit, (choice.upstream, upstream), wanted, exchange, again).await?;
        // A connection that has been silent for a while may be closing at this moment.
        let copy = (used && spare && back.since.elapsed() > FRESH).then(|| copy_of(&request));
        let blocked = back.blocked();
        let sent = back.send(request, false);
        let answered = within(rules.answer, &exchange.upload, blocked, sent).await;
        let error = match answered {
            Some(Ok(response)) => {
                let (head, body) = response.into_parts();
                if head.status == StatusCode::SWITCHING_PROTOCOLS {
                    return Err(Problem::BAD_ANSWER.into());
                }
                exchange.back = Some(back);
                return Ok((head, body));
            }
            Some(Err(error)) => error,
            None => return Err(Problem::ANSWER_TIMEOUT.into()),
        };
        if let Some(problem) = exchange.upload.problem.get() {
            return Err(problem.into());
        }
        let mut error = error;
        let unsent = error.take_message();
        let fault = back.fault();
        tracing::debug!(
            id = visit.id, upstream = %upstream.name, used, fault,
            "no answer from a backend: {}", error.error()
        );
        request = match (unsent, copy) {
            (Some(unsent), _) if again => unsent,
            (None, Some(copy)) if again && fault.is_none() => copy,
            _ if fault.is_some() || error.error().is_parse() => {
                return Err(Problem::BAD_ANSWER.into());
            }
            _ => return Err(Problem::BACKEND_GONE.into()),
        };
        // Once more, on a connection of its own.
        again = false;
    }
}

/// A connection to a backend; true: it has been used before. Not with `fresh`.
async fn reach(
    visit: &Rc<Visit>,
    (id, upstream): (UpstreamId, &Arc<Upstream>),
    wanted: Wanted,
    exchange: &mut Exchange,
    reuse: bool,
) -> Result<(Back, bool), Problem> {
    (exchange.pick, exchange.backend) = (None, None);
    let shared = upstream.link.proxy == ProxyProtocol::Off;
    let two = upstream.link.http2;
    let alpn: &[u8] = if two { b"h2" } else { b"http/1.1" };
    let had = |pick: &Pick| {
        (reuse && shared)
            .then(|| visit.common.backs.take(visit, (id, pick.index())))
            .flatten()
    };
    let reached = visit
        .guest()
        .dial_unless(id, visit.told(), (&[], alpn), wanted, had)
        .await;
    let (back, pick, used) = match reached {
        Ok(Reached::Had(back, pick)) => (back, pick, true),
        Ok(Reached::Dialed(dialed)) if two => {
            let (back, pick) = backs::open_two(dialed, visit, id, shared).await?;
            (back, pick, false)
        }
        Ok(Reached::Dialed(dialed)) => {
            let (back, pick) = backs::open(dialed, visit, shared, None).await?;
            (back, pick, false)
        }
        Err(error) => {
            let (id, client, listener) = (visit.id, visit.client, &visit.rules.name);
            tracing::debug!(id, %client, %listener, "no backend for a request: {error}");
            return Err(Problem::NO_BACKEND);
        }
    };
    exchange.backend = Some(pick.index());
    exchange.cookie = sticky::tell(upstream, wanted, pick.backend().mark());
    exchange.pick = Some(pick);
    Ok((back, used))
}

/// Waits for an answer as long as allowed from the end of the request on, or from when the backend takes no more of it.
pub(super) async fn within<T>(
    limit: Duration,
    upload: &Progress,
    blocked: impl Fn() -> Option<Instant>,
    answer: impl Future<Output = T>,
) -> Option<T> {
    let mut answer = pin!(answer);
    if limit.is_zero() {
        return Some(answer.await);
    }
    loop {
        let waits = || {
            let given = || upload.given.get();
            upload.ended.get().or_else(&blocked).or_else(given)
        };
        let from = waits().unwrap_or_else(Instant::now);
        tokio::select! {
            biased;
            answer = &mut answer => return Some(answer),
            () = sleep_until(from + limit) => {
                if waits().is_some_and(|from| from + limit <= Instant::now()) {
                    return None;
                }
            }
        }
    }
}

/// RFC 9110 section 9.2.2.
fn is_idempotent(method: &Method) -> bool {
    matches!(
        *method,
        Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE | Method::PUT | Method::DELETE
    )
}

/// The same request again; it has no body.
fn copy_of(request: &Request<Upload>) -> Request<Upload> {
    let mut copy = Request::new(Upload::Empty);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    copy
}
