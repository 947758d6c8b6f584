//! Connections to HTTP backends: opened, used for one request after another, kept while they are silent.
//!
//! Each worker has its own, so nothing is locked. What has carried an upgrade or a PROXY header is never used again: it
//! belongs to one client.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::{Method, Request, Response};
use tokio::sync::oneshot;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep};

use crate::config::UpstreamId;
use crate::endpoint::transport::{Glance, Parts, Transport};
use crate::upstream::Pick;
use crate::upstream::dial::Dialed;

use super::body::Upload;
use super::problem::Problem;
use super::visit::Visit;
use super::{CONNECTION_WINDOW, Local, SEND_BUFFER, STREAM_WINDOW, headers, look};

/// hyper reads ahead this much, and no more.
pub(super) const READ_AHEAD: usize = 32 * 1024;

/// A connection to a backend.
pub(super) struct Back {
    sender: Sender,
    born: Instant,
    /// When it was last used.
    pub(super) since: Instant,
    /// Whether it may be used for others.
    pub(super) shared: bool,
}

/// What requests go out by.
enum Sender {
    /// One after another.
    One(
        http1::SendRequest<Upload>,
        Glance<look::Back>,
        look::BackFault,
    ),
    /// Many at once.
    Two(http2::SendRequest<Upload>),
}

/// A backend that has changed the protocol: its connection, and what it has said in the new one.
pub(super) type Switched = (Parts, Bytes);

/// Opens HTTP/1.1 on a connected backend. With `switched`, it is told when a 101 has come.
pub(super) async fn open(
    dialed: Dialed,
    visit: &Visit,
    shared: bool,
    switched: Option<oneshot::Sender<Switched>>,
) -> Result<(Back, Pick), Problem> {
    let rules = &visit.rules;
    let secure = dialed.endpoint.is_secure();
    let fault = look::BackFault::default();
    let transport = Transport::new(
        (dialed.endpoint, dialed.rest),
        visit.common.pool.clone(),
        rules.manners(),
        look::Back::new(rules.http_caps(true), Rc::clone(&fault)),
    );
    let mut builder = http1::Builder::new();
    builder.max_buf_size(READ_AHEAD.max(rules.http.head_size));
    if let Some(headers) = rules.more_headers() {
        builder.max_headers(headers);
    }
    let (sender, mut connection) = builder
        .handshake(transport.clone())
        .await
        .map_err(|_| Problem::NO_BACKEND)?;
    let watched = transport.clone();
    spawn_local(async move {
        let result = (&mut connection).await;
        let http1::Parts { io, read_buf, .. } = connection.into_parts();
        drop(io);
        let Some(parts) = watched.into_parts() else {
            return;
        };
        match (result, switched) {
            (Ok(()), Some(switched)) => {
                let _ = switched.send((parts, read_buf));
            }
            (result, _) if secure => parts.finish(&[], result.is_ok()).await,
            _ => {}
        }
    });
    let now = Instant::now();
    let back = Back {
        sender: Sender::One(sender, transport.glance(), fault),
        born: now,
        since: now,
        shared,
    };
    Ok((back, dialed.pick))
}

/// Opens HTTP/2 on a connected backend. It is shared by all requests of this worker at once.
pub(super) async fn open_two(
    dialed: Dialed,
    visit: &Visit,
    upstream: UpstreamId,
    shared: bool,
) -> Result<(Back, Pick), Problem> {
    let (back, pool) = ((dialed.endpoint, dialed.rest), visit.common.pool.clone());
    let transport = Transport::new(back, pool, visit.rules.manners(), look::Blind);
    let (sender, connection) = http2::Builder::new(Local)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .handshake(transport.clone())
        .await
        .map_err(|_| Problem::NO_BACKEND)?;
    spawn_local(async move {
        let result = connection.await;
        if let Some(parts) = transport.into_parts() {
            parts.finish(&[], result.is_ok()).await;
        }
    });
    let now = Instant::now();
    let back = |sender| Back {
        sender: Sender::Two(sender),
        born: now,
        since: now,
        shared,
    };
    if shared {
        let place = (upstream, dialed.pick.index());
        visit.common.backs.put(visit, place, back(sender.clone()));
    }
    Ok((back(sender), dialed.pick))
}

impl Back {
    /// Sends a request, of a version of HTTP that is this connection's, and waits for the answer's head.
    ///
    /// # Errors
    /// hyper's, with the request if nothing of it was sent.
    pub(super) async fn send(
        &mut self,
        mut request: Request<Upload>,
        upgrade: bool,
    ) -> Result<Response<Incoming>, TrySendError<Request<Upload>>> {
        match &mut self.sender {
            Sender::One(sender, glance, _) => {
                let head = *request.method() == Method::HEAD;
                glance.look(|look| look.expect(head, upgrade));
                sender.try_send_request(request).await
            }
            Sender::Two(sender) => {
                headers::for_http2(&mut request);
                sender.try_send_request(request).await
            }
        }
    }

    /// Since when it takes nothing of a request.
    pub(super) fn blocked(&self) -> impl Fn() -> Option<Instant> + use<> {
        let glance = match &self.sender {
            Sender::One(_, glance, _) => Some(glance.clone()),
            Sender::Two(_) => None,
        };
        move || glance.as_ref()?.blocked()
    }

    /// What was wrong with its answer.
    pub(super) fn fault(&self) -> Option<&'static str> {
        match &self.sender {
            Sender::One(_, _, fault) => fault.get().map(|fault| fault.name()),
            Sender::Two(_) => None,
        }
    }

    fn is_closed(&self) -> bool {
        match &self.sender {
            Sender::One(sender, ..) => sender.is_closed(),
            Sender::Two(sender) => sender.is_closed(),
        }
    }

    fn is_ready(&self) -> bool {
        match &self.sender {
            Sender::One(sender, ..) => sender.is_ready(),
            Sender::Two(sender) => sender.is_ready(),
        }
    }

    /// The same connection for another request at the same time, where that can be.
    fn again(&self) -> Option<Self> {
        match &self.sender {
            Sender::One(..) => None,
            Sender::Two(sender) => Some(Self {
                sender: Sender::Two(sender.clone()),
                ..*self
            }),
        }
    }
}

/// See the module.
#[derive(Default)]
pub(in super::super) struct Backs {
    /// By upstream, then by backend; the last is the one used last.
    idle: RefCell<Vec<Vec<Vec<Back>>>>,
    /// Whether somebody looks for those that have been silent for too long.
    swept: Cell<bool>,
}

impl Backs {
    /// One that may be used now: the one used last, since it is the likeliest to be still open.
    pub(super) fn take(
        &self,
        visit: &Visit,
        (upstream, backend): (UpstreamId, usize),
    ) -> Option<Back> {
        let mut idle = self.idle.borrow_mut();
        let idle = idle.get_mut(usize::from(upstream.0))?.get_mut(backend)?;
        let http = &visit.rules.http;
        while let Some(mut back) = idle.pop() {
            let usable = !back.is_closed()
                && back.since.elapsed() < http.idle_backend
                && (http.backend_age.is_zero() || back.born.elapsed() < http.backend_age);
            if usable && back.is_ready() {
                if let Some(again) = back.again() {
                    back.since = Instant::now();
                    idle.push(back);
                    return Some(again);
                }
                return Some(back);
            }
        }
        None
    }

    /// Keeps one for the next request.
    pub(super) fn keep(
        &self,
        visit: &Visit,
        (upstream, backend): (UpstreamId, usize),
        mut back: Back,
    ) {
        // Many at once: it is kept already.
        if !matches!(back.sender, Sender::Two(_)) {
            back.since = Instant::now();
            self.put(visit, (upstream, backend), back);
        }
    }

    fn put(&self, visit: &Visit, (upstream, backend): (UpstreamId, usize), back: Back) {
        let http = &visit.rules.http;
        if !back.shared || back.is_closed() || http.idle_backend.is_zero() {
            return;
        }
        let mut idle = self.idle.borrow_mut();
        let upstream = usize::from(upstream.0);
        if idle.len() <= upstream {
            idle.resize_with(upstream + 1, Vec::new);
        }
        let Some(backends) = idle.get_mut(upstream) else {
            return;
        };
        if backends.len() <= backend {
            backends.resize_with(backend + 1, Vec::new);
        }
        if let Some(idle) = backends.get_mut(backend)
            && idle.len() < http.idle_backends
        {
            idle.push(back);
        }
        if !self.swept.replace(true) {
            let (common, limit) = (Rc::clone(&visit.common), http.idle_backend);
            spawn_local(async move { common.backs.sweep(limit).await });
        }
    }

    /// Closes those that nobody has used for so long, until none is left.
    async fn sweep(&self, limit: Duration) {
        loop {
            sleep(limit).await;
            let mut left = false;
            for idle in self.idle.borrow_mut().iter_mut().flatten() {
                idle.retain(|back| !back.is_closed() && back.since.elapsed() < limit);
                left |= !idle.is_empty();
            }
            if !left {
                break;
            }
        }
        self.swept.set(false);
    }
}
