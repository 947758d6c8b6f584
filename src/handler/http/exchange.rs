//! One request and its answer, from its head to the last byte: what is counted and logged of it, and what is given back at its end.

use std::rc::Rc;
use std::time::{Duration, SystemTime};

use hyper::header::HeaderValue;
use hyper::{Request, StatusCode, Version};
use tokio::time::Instant;

use crate::config::UpstreamId;
use crate::metrics::access::{AccessLog, RequestEntry, RequestId};
use crate::metrics::http::{HttpCells, Side, Upgrade, Wait};
use crate::upstream::Pick;

use super::backs::Back;
use super::body::Progress;
use super::noted::Noted;
use super::problem::Problem;
use super::streams::Stream;
use super::visit::{Open, Visit};

/// The outcome of what has not come to its end.
const UNDER_WAY: &str = "client_gone";

/// See the module. Ends when it is dropped, counted once.
pub(super) struct Exchange {
    open: Open,
    /// Its stream, in HTTP/2, and the place at which that is watched.
    stream: Option<Rc<Stream>>,
    watched: Option<usize>,
    begun: Instant,
    /// From there to the beginning of the answer.
    first_byte: Option<Duration>,
    two: bool,
    one_zero: bool,
    bosh: bool,
    /// The route that it took.
    pub(super) route: Option<u16>,
    /// What keeps the client with its backend.
    pub(super) cookie: Option<HeaderValue>,
    /// Whether the connection is to close behind it.
    pub(super) close: bool,
    /// Whether a backend was asked for a WebSocket.
    pub(super) upgrade: bool,
    /// It has become a WebSocket.
    tunnel: bool,
    /// The answer has come to its end.
    whole: bool,
    /// Where it went.
    pub(super) upstream: Option<UpstreamId>,
    /// The backend's count of requests.
    pub(super) pick: Option<Pick>,
    /// Which backend it is.
    pub(super) backend: Option<usize>,
    /// Its connection, kept for the next request once this one is answered.
    pub(super) back: Option<Back>,
    /// What was answered; zero before.
    status: u16,
    /// The request's body.
    pub(super) upload: Rc<Progress>,
    sent: u64,
    /// In one word how it ended.
    pub(super) outcome: &'static str,
    /// For the access log, if there is one.
    noted: Option<Box<Noted>>,
}

impl Exchange {
    pub(super) fn begin<B>(visit: &Rc<Visit>, request: &Request<B>) -> Box<Self> {
        visit.requests.set(visit.requests.get() + 1);
        visit.http().open.add(1);
        let noted = visit.common.access.is_some();
        Box::new(Self {
            open: Open::new(visit),
            stream: Stream::current(),
            watched: None,
            cookie: None,
            begun: Instant::now(),
            first_byte: None,
            two: request.version() == Version::HTTP_2,
            one_zero: request.version() == Version::HTTP_10,
            bosh: Wait::is_bosh(request.uri().path()),
            route: None,
            close: false,
            upgrade: false,
            tunnel: false,
            whole: false,
            upstream: None,
            pick: None,
            backend: None,
            back: None,
            status: 0,
            upload: Rc::default(),
            sent: 0,
            outcome: UNDER_WAY,
            noted: noted.then(|| Box::new(Noted::of(request, visit))),
        })
    }

    /// A backend's answer begins.
    pub(super) fn answers(&mut self, status: StatusCode) {
        self.begins(status, Upgrade::Refused);
        self.backend_answers();
    }

    /// A backend changes the protocol.
    pub(super) fn switches(&mut self, status: StatusCode) {
        self.outcome = "upgraded";
        self.begins(status, Upgrade::Switched);
        self.backend_answers();
    }

    /// An answer of ours begins, in the place of a backend's.
    pub(super) fn refuses(&mut self, problem: Problem) {
        self.outcome = problem.reason;
        self.open.visit().http().refused.count(problem.reason);
        self.begins(problem.status, Upgrade::Failed);
    }

    /// An answer of ours begins that says where to go.
    pub(super) fn redirects(&mut self, status: StatusCode) {
        self.outcome = "redirected";
        self.begins(status, Upgrade::Failed);
    }

    fn begins(&mut self, status: StatusCode, upgrade: Upgrade) {
        if let Some(stream) = &self.stream {
            let visit = self.open.visit();
            self.watched = Some(visit.streams.watch(stream, visit.rules.write));
        }
        let first_byte = self.begun.elapsed();
        self.first_byte = Some(first_byte);
        self.status = status.as_u16();
        let cells = self.cells();
        cells.request(self.route, self.status);
        if self.upgrade {
            cells.upgrade(self.two, upgrade);
        }
        // What no backend was to answer says nothing of how fast they are.
        if self.upstream.is_some() {
            let held = self.upload.ended.get().map(|ended| ended.elapsed());
            let wait = Wait::of(self.bosh, self.status, held.unwrap_or_default());
            cells.waited(wait, first_byte);
        }
    }

    fn backend_answers(&self) {
        let cells = &self.open.visit().common.cells.upstreams;
        let backend = self.upstream.zip(self.backend).and_then(|(id, backend)| {
            let backends = cells.get(usize::from(id.0))?;
            backends.get(backend)
        });
        if let Some(backend) = backend {
            backend.answers.count(self.status);
        }
    }

    /// More of the answer is asked for.
    pub(super) fn asked(&self) {
        if let Some(stream) = &self.stream {
            stream.asks();
        }
    }

    /// A part of the answer is given.
    pub(super) fn given(&self) {
        if let Some(stream) = &self.stream {
            stream.gives();
        }
    }

    /// Bytes of the answer's body are on their way.
    pub(super) fn passed(&mut self, len: usize) {
        self.sent += len as u64;
        self.open.visit().cells.down_bytes.add(len as u64);
    }

    /// The answer has come to its end. Its connection is free again, if the request has ended, too.
    pub(super) fn answered(&mut self) {
        self.whole = true;
        if self.outcome == UNDER_WAY {
            self.outcome = "answered";
        }
        if let (Some(back), Some(upstream), Some(pick)) =
            (self.back.take(), self.upstream, &self.pick)
            && self.upload.ended.get().is_some()
        {
            let visit = self.open.visit();
            let place = (upstream, pick.index());
            visit.common.backs.keep(visit, place, back);
        }
    }

    /// The backend has not finished its answer.
    pub(super) fn cut_short(&mut self) {
        if self.outcome == UNDER_WAY {
            self.outcome = "cut_short";
            self.cells().cut_short(Side::Backend);
        }
        self.back = None;
    }

    /// It goes on as a WebSocket on this stream of HTTP/2.
    pub(super) fn becomes_tunnel(&mut self) {
        self.outcome = UNDER_WAY;
        self.tunnel = true;
        // Its bytes do not pass by here.
        self.asked();
        self.cells().open.add(-1);
        self.cells().tunnels.add(1);
    }

    /// So many bytes have passed through it so far.
    pub(super) fn tunnelled(&mut self, up: u64, down: u64) {
        let cells = &self.open.visit().cells;
        cells.up_bytes.add(up - self.upload.bytes.get());
        cells.down_bytes.add(down - self.sent);
        self.upload.bytes.set(up);
        self.sent = down;
    }

    pub(super) fn visit(&self) -> &Rc<Visit> {
        self.open.visit()
    }

    /// Its number on its connection.
    pub(super) fn number(&self) -> u64 {
        self.open.number()
    }

    fn cells(&self) -> &HttpCells {
        self.open.visit().http()
    }

    fn log(&self, log: &AccessLog, noted: &Noted) {
        let visit = self.open.visit();
        let rules = &visit.rules;
        let upstream = self.upstream;
        let upstream = upstream.and_then(|id| rules.upstreams.get(usize::from(id.0)));
        let backend = upstream
            .zip(self.backend)
            .and_then(|(upstream, backend)| upstream.backends.get(backend));
        let route = self
            .route
            .and_then(|route| rules.routes.http_routes().get(usize::from(route)));
        log.request(&RequestEntry {
            time: SystemTime::now(),
            id: match &noted.id {
                Some(id) => RequestId::Told(id.as_bytes()),
                None => RequestId::Own(visit.id, self.open.number()),
            },
            listener: &rules.name,
            client: visit.client,
            forwarded_for: noted.forwarded_for,
            version: noted.version(),
            method: noted.method.as_str(),
            host: noted.host(),
            path: noted.uri.path(),
            status: (self.status > 0).then_some(self.status),
            route: route.map(String::as_str),
            upstream: upstream.map(|upstream| upstream.name.as_str()),
            backend: backend.map(|backend| backend.name.as_str()),
            duration: self.begun.elapsed(),
            first_byte: self.first_byte,
            bytes_up: self.upload.bytes.get(),
            bytes_down: self.sent,
            outcome: self.outcome,
        });
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if self.one_zero || self.first_byte.is_some() && !self.whole && !self.tunnel {
            self.open.visit().nothing_follows.set(true);
        }
        if let Some(place) = self.watched {
            self.open.visit().streams.forget(place);
        }
        let common = &self.open.visit().common;
        common.untidy();
        let over = common.leave.is_over();
        if std::thread::panicking() {
            self.outcome = "panicked";
        } else if self.outcome == UNDER_WAY && over {
            self.outcome = "drained";
        }
        let cells = self.cells();
        if self.first_byte.is_none() {
            cells.request(self.route, 0);
            if self.upgrade {
                cells.upgrade(self.two, Upgrade::Failed);
            }
        }
        if self.tunnel {
            cells.tunnels.add(-1);
        } else {
            cells.open.add(-1);
            if self.outcome == UNDER_WAY {
                cells.cut_short(Side::Client);
            }
            let up = self.upload.bytes.get();
            self.open.visit().cells.up_bytes.add(up);
        }
        let access = self.open.visit().common.access.as_deref();
        if let (Some(log), Some(noted)) = (access, &self.noted) {
            self.log(log, noted);
        }
    }
}
