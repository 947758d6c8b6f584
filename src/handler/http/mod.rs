//! HTTP/1.1 and HTTP/2 of clients, on hyper (RFC 9112, RFC 9113), and their requests' way to backends.
//!
//! ```text
//!   endpoint -> transport (looked at: framing, frames) -> hyper -> request -> route -> backend's connection -> answer
//!                                                                    `-- 101 --> both endpoints leave hyper -> relay
//! ```
//!
//! hyper reads and writes messages; what it would tolerate and others read differently is refused before it sees it
//! (`look`). A connection has one timer, whatever it waits for (`Phases`).

mod backs;
mod body;
mod exchange;
mod extended;
mod forward;
mod headers;
mod look;
mod noted;
mod problem;
mod redirect;
mod sticky;
mod streams;
mod upgrade;
mod visit;

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use tokio::task::spawn_local;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::config::defaults;
use crate::endpoint::secure::Rest;
use crate::endpoint::transport::{Manners, Parts, Transport};
use crate::endpoint::{Endpoint, Socket};
use crate::tls::handshake::TlsFacts;
use crate::wire::http::{Caps, goaway};

use super::conversation::Conversation;
use super::{Guest, Refusal, Rules, by};

pub(super) use backs::Backs;
use body::Answer;
use problem::Problem;
use streams::Task;
use visit::Visit;

/// HTTP/2: what one stream may send before it is read on. Chat needs little, and each byte is a client's to make us hold.
const STREAM_WINDOW: u32 = 64 * 1024;
/// The same for all streams of a connection.
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// HTTP/2: most bytes of one stream's answer that wait for its client.
const SEND_BUFFER: usize = 32 * 1024;
/// The last words of a connection have this long.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// hyper's tasks stay on this worker.
#[derive(Clone)]
struct Local;

impl<F: Future + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, future: F) {
        spawn_local(Task::new(future));
    }
}

impl Rules {
    /// Bounds on heads; of answers only their size.
    fn http_caps(&self, answers: bool) -> Caps {
        Caps {
            head_size: self.http.head_size,
            headers: self.http.headers,
            underscores: answers || self.http.underscores,
        }
    }

    /// How a transport of a backend behaves.
    fn manners(&self) -> Manners {
        Manners {
            read_max: self.limits.read_max,
            large_records: self.limits.large_records,
            truncation_matters: true,
            says_end: false,
        }
    }

    /// Header fields of a head, if there may be more than hyper has room for without an allocation.
    fn more_headers(&self) -> Option<usize> {
        let headers = self.http.headers;
        (headers > defaults::HEADERS).then_some(usize::from(headers))
    }
}

/// Serves HTTP on a connection until it ends.
///
/// # Errors
/// How it has ended, unless it has become a conversation.
pub(super) async fn serve(
    front: (Endpoint, Rest),
    early: &[u8],
    facts: TlsFacts,
    guest: &Guest<'_>,
) -> Result<Conversation, Refusal> {
    let two = facts.alpn.as_deref() == Some(b"h2");
    let look = if two {
        look::Front::two()
    } else {
        look::Front::one(guest.rules.http_caps(false))
    };
    let transport = transport(front, look, guest).after(early);
    let visit = Visit::new(guest, Some(facts));
    let requests = Rc::clone(&visit);
    let service = service_fn(move |request| forward::answer(Rc::clone(&requests), request));
    if two {
        serve_two(transport, service, &visit).await
    } else {
        serve_one(transport, service, &visit, guest).await
    }
}

/// Sends a client that speaks plain HTTP to where it is to speak HTTP over TLS. `early` was read already.
///
/// # Errors
/// How it has ended.
pub(super) async fn redirect(
    socket: Socket,
    early: &[u8],
    guest: &Guest<'_>,
) -> Result<Conversation, Refusal> {
    let look = look::Front::one(guest.rules.http_caps(false));
    let front = (Endpoint::plain(socket), None);
    let transport = transport(front, look, guest).after(early);
    let visit = Visit::new(guest, None);
    let requests = Rc::clone(&visit);
    let service = service_fn(move |request| redirect::answer(Rc::clone(&requests), request));
    serve_one(transport, service, &visit, guest).await
}

fn transport(
    front: (Endpoint, Rest),
    look: look::Front,
    guest: &Guest<'_>,
) -> Transport<look::Front> {
    let manners = Manners {
        truncation_matters: false,
        ..guest.rules.manners()
    };
    Transport::new(front, guest.pool().clone(), manners, look)
}

async fn serve_one<S>(
    transport: Transport<look::Front>,
    service: S,
    visit: &Rc<Visit>,
    guest: &Guest<'_>,
) -> Result<Conversation, Refusal>
where
    S: Service<Request<Incoming>, Response = Response<Answer>, Error = Infallible>,
{
    let mut builder = http1::Builder::new();
    builder
        .half_close(true)
        .max_buf_size(backs::READ_AHEAD.max(visit.rules.http.head_size));
    if let Some(headers) = visit.rules.more_headers() {
        builder.max_headers(headers);
    }
    let mut connection = builder.serve_connection(transport.clone(), service);
    let ending = drive(&mut connection, &transport, visit, |connection| {
        connection.graceful_shutdown();
    })
    .await;
    // An answer that is under way ends here unfinished, and nothing of ours may stand in its place.
    let idle = visit.open.get() == 0 && !visit.nothing_follows.get();
    let http1::Parts {
        io,
        read_buf,
        service,
        ..
    } = connection.into_parts();
    drop((io, service));
    let upgraded = visit.upgraded.borrow_mut().take();
    let (fault, in_head) = {
        let look = transport.look();
        (look.fault(), look.in_head())
    };
    let Some(parts) = transport.into_parts() else {
        return Err(Refusal::served("internal"));
    };
    if let (Ending::Done, Some(upgraded)) = (&ending, upgraded) {
        let joined = upgrade::join(parts, &read_buf, upgraded, guest).await;
        return joined.ok_or(Refusal::served("client_gone"));
    }
    if let Some((fault, _)) = fault {
        visit.http().refused.count(fault.name());
        let (id, client, listener) = (visit.id, visit.client, &visit.rules.name);
        let reason = fault.name();
        tracing::debug!(id, %client, %listener, reason, "request refused by its framing");
    }
    let words = match (&ending, fault) {
        (_, Some((fault, true))) if idle => Problem::refused(fault).bytes(),
        // Who has asked nothing, as browsers do that connect ahead, is told nothing.
        (Ending::Expired(Phase::Head), None) if idle && in_head => {
            let problem = Problem::HEAD_TIMEOUT;
            visit.http().refused.count(problem.reason);
            problem.bytes()
        }
        _ => Vec::new(),
    };
    let silent = !in_head && visit.requests.get() == 0;
    let clean = !words.is_empty() || silent || ending.is_clean();
    finish(parts, &words, clean, &ending).await;
    Err(Refusal::served(match fault {
        Some(_) => "bad_request",
        None => ending.reason(),
    }))
}

async fn serve_two<S>(
    transport: Transport<look::Front>,
    service: S,
    visit: &Rc<Visit>,
) -> Result<Conversation, Refusal>
where
    S: Service<Request<Incoming>, Response = Response<Answer>, Error = Infallible>,
    S::Future: 'static,
{
    let http = &visit.rules.http;
    let mut connection = http2::Builder::new(Local)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(http.streams)
        .max_header_list_size(u32::try_from(http.head_size).unwrap_or(u32::MAX))
        .max_send_buf_size(SEND_BUFFER)
        .enable_connect_protocol()
        .serve_connection(transport.clone(), service);
    let ending = drive(&mut connection, &transport, visit, |connection| {
        connection.graceful_shutdown();
    })
    .await;
    drop(connection);
    let (flood, last) = {
        let look = transport.look();
        (look.flood(), look.last_stream())
    };
    if let Some(flood) = flood {
        visit.http().refused.count(flood.name());
    }
    let idle = matches!(ending, Ending::Expired(Phase::Idle));
    let words = match last {
        Some(last) if (flood.is_some() || idle) && transport.flushed() => {
            goaway(last, flood.is_some()).to_vec()
        }
        _ => Vec::new(),
    };
    let Some(parts) = transport.into_parts() else {
        return Err(Refusal::served("internal"));
    };
    let clean = ending.is_clean() || flood.is_some();
    finish(parts, &words, clean, &ending).await;
    Err(Refusal::served(match flood {
        Some(_) => "flood",
        None => ending.reason(),
    }))
}

/// The last words to a client, if it takes any.
async fn finish(parts: Parts, words: &[u8], clean: bool, ending: &Ending) {
    if let Ending::Expired(Phase::Blocked) = ending {
        parts.cut();
    } else {
        let until = Instant::now() + LAST_WORDS;
        by(Some(until), parts.finish(words, clean)).await;
    }
}

/// How hyper's part of a connection has ended.
enum Ending {
    /// As it should.
    Done,
    /// hyper could not go on.
    Failed,
    /// A deadline has passed.
    Expired(Phase),
}

impl Ending {
    fn is_clean(&self) -> bool {
        matches!(self, Self::Done | Self::Expired(Phase::Idle))
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Done => "closed",
            Self::Failed => "client_gone",
            Self::Expired(Phase::Idle) => "keep_alive_timeout",
            Self::Expired(Phase::Head) => "request_timeout",
            Self::Expired(Phase::HalfClosed) => "half_closed_timeout",
            Self::Expired(Phase::Busy | Phase::Blocked | Phase::Stalled) => "write_timeout",
        }
    }
}

/// What a connection waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The next request.
    Idle,
    /// The rest of a request's head.
    Head,
    /// Whatever a request waits for has deadlines of its own.
    Busy,
    /// The client to take what is sent.
    Blocked,
    /// The client to take what is sent on one stream.
    Stalled,
    /// An answer, for a client that will send no more.
    HalfClosed,
}

/// The one timer of a connection. It is set for the deadline that comes first; when it fires it is looked at what the connection
/// waits for by then.
struct Phases {
    phase: Phase,
    since: Instant,
    /// Requests until then.
    requests: u64,
    alarm: Option<Pin<Box<Sleep>>>,
    due: Instant,
}

impl Phases {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            phase: Phase::Head,
            since: now,
            requests: 0,
            alarm: None,
            due: now,
        }
    }

    /// Ready when a deadline has passed. To be polled after the connection, whose poll may have changed what it waits for.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        transport: &Transport<look::Front>,
        visit: &Visit,
    ) -> Poll<Phase> {
        // An answer has not ended before its client has it.
        let open = visit.open.get() > 0 || transport.blocked().is_some();
        let requests = visit.requests.get();
        let phase = if open {
            if transport.ended() {
                Phase::HalfClosed
            } else {
                Phase::Busy
            }
        } else if transport.look().in_head() || requests == 0 {
            Phase::Head
        } else {
            Phase::Idle
        };
        // Some requests have their answer at once.
        if phase != self.phase || requests != self.requests {
            (self.phase, self.since) = (phase, Instant::now());
            self.requests = requests;
        }
        let rules = &visit.rules;
        let limit = match phase {
            Phase::Idle => rules.keep_alive,
            Phase::Head => rules.request,
            Phase::HalfClosed => rules.limits.half_closed,
            Phase::Busy | Phase::Blocked | Phase::Stalled => Duration::ZERO,
        };
        loop {
            let own = (!limit.is_zero()).then(|| (self.since + limit, phase));
            let blocked = transport.blocked().filter(|_| !rules.write.is_zero());
            let blocked = blocked.map(|since| (since + rules.write, Phase::Blocked));
            let stalled = visit.streams.due().map(|due| (due, Phase::Stalled));
            let all = own.into_iter().chain(blocked).chain(stalled);
            let Some((due, phase)) = all.min_by_key(|(due, _)| *due) else {
                return Poll::Pending;
            };
            let alarm = match &mut self.alarm {
                Some(alarm) => {
                    if due < self.due {
                        alarm.as_mut().reset(due);
                        self.due = due;
                    }
                    alarm
                }
                None => {
                    self.due = due;
                    self.alarm.insert(Box::pin(sleep_until(due)))
                }
            };
            ready!(alarm.as_mut().poll(cx));
            if due <= self.due.max(Instant::now()) {
                if phase != Phase::Stalled {
                    return Poll::Ready(phase);
                }
                visit.streams.end_stalled(rules.write);
                continue;
            }
            alarm.as_mut().reset(due);
            self.due = due;
        }
    }
}

/// Lets hyper serve a connection until it ends or a deadline has passed. A drain lets it finish what it has begun.
async fn drive<C>(
    connection: &mut C,
    transport: &Transport<look::Front>,
    visit: &Rc<Visit>,
    shut_down: impl Fn(Pin<&mut C>),
) -> Ending
where
    C: Future<Output = hyper::Result<()>> + Unpin,
{
    let mut phases = Phases::new();
    let mut drained = pin!(visit.common.leave.told());
    let mut leaving = false;
    poll_fn(|cx| {
        if !leaving && drained.as_mut().poll(cx).is_ready() {
            leaving = true;
            shut_down(Pin::new(connection));
        }
        match Pin::new(&mut *connection).poll(cx) {
            Poll::Ready(Ok(())) => return Poll::Ready(Ending::Done),
            Poll::Ready(Err(error)) => {
                tracing::debug!(id = visit.id, client = %visit.client, "HTTP ended: {error}");
                return Poll::Ready(Ending::Failed);
            }
            Poll::Pending => {}
        }
        if visit.open.get() > 0
            && transport.look().is_one()
            && let Err(error) = transport.listen(cx)
        {
            tracing::debug!(id = visit.id, client = %visit.client, "a client has gone: {error}");
            return Poll::Ready(Ending::Failed);
        }
        // A flood may be made of what hyper has let pass.
        if transport.look().flood().is_some() {
            return Poll::Ready(Ending::Failed);
        }
        phases.poll(cx, transport, visit).map(Ending::Expired)
    })
    .await
}
