//! A stream within TLS, from its header until it is joined with a backend.

use tokio::time::Instant;

use crate::config::{Scheme, TlsMode};
use crate::endpoint::dialogue::{Dialogue, DialogueError, Heard};
use crate::relay::Moved;
use crate::relay::stream::{Cap, Guard, Stream};
use crate::route::Choice;
use crate::tls::TlsError;
use crate::tls::handshake::TlsFacts;
use crate::upstream::dial::Dialed;
use crate::wire::proxy;
use crate::wire::sniff::{Guess, Sniff, sniff};
use crate::wire::xmpp::{Condition, Depth, Header, Initiating, Meter, Request, Role};

use super::super::conversation::Conversation;
use super::super::front::Shaken;
use super::super::http;
use super::super::{Guest, Phase, Refusal, by, deadline};
use super::link::{self, Answered, LinkError};
use super::{in_a_moment, protocol, refusal, response};

/// What is said to who speaks HTTP where nobody answers it.
const NO_HTTP: &[u8] =
    b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 34\r\n\
Connection: close\r\n\r\nThis port speaks XMPP, not HTTP.\r\n";

/// From the end of the handshake to a conversation. `told`: the host that was asked for before TLS.
///
/// # Errors
/// It came to nothing; the client has been told why.
pub(in super::super) async fn secured(
    shaken: Shaken,
    told: Option<&str>,
    guest: &Guest<'_>,
) -> Result<Conversation, Refusal> {
    guest.ledger.enter(Phase::Authentication);
    let deadline = deadline(Instant::now(), guest.rules.authentication);
    let facts = shaken.facts;
    let element_size = guest.rules.xmpp.element_size;
    let mut stream = Opening {
        front: Dialogue::new(shaken.endpoint, shaken.rest),
        scan: Initiating::new(guest.rules.caps()),
        cap: (element_size > 0).then(|| Cap {
            meter: Meter::new(0),
            bytes: element_size,
        }),
        heard: Vec::new(),
        looked_at: 0,
        header: None,
        guest,
    };
    let joined = by(deadline, stream.join(&facts, told)).await;
    match joined.unwrap_or(Err(Ending::Refused(Condition::ConnectionTimeout, None))) {
        Ok((dialed, answered)) => {
            let Opening {
                front,
                scan,
                cap,
                looked_at,
                ..
            } = stream;
            // The server's side of the stream has passed up to here; what came with its features, the success of a
            // login that the client did not wait to begin, has not been looked at.
            let (read, unread) = answered
                .bytes
                .split_at(answered.bytes.len() - answered.unread);
            let mut down = Depth::new(0);
            down.feed(read);
            let xmpp = &guest.rules.xmpp;
            let guarded = xmpp.guard.is_some();
            let guard = (guarded || cap.is_some()).then(|| {
                Box::new(Guard {
                    client: guarded.then_some(scan),
                    server: answered.server,
                    deadline: deadline.filter(|_| guarded),
                })
            });
            let begun = Moved {
                up: looked_at as u64,
                down: answered.bytes.len() as u64,
            };
            let mut watched = Stream::new(guard, down, cap);
            watched.answered(unread);
            Ok(Conversation::join_stream(
                front.into_parts(),
                dialed,
                watched,
                begun,
                guest,
            ))
        }
        Err(Ending::Http) if guest.rules.routes.serves_http() => {
            guest.ledger.no_stream();
            let (front, early) = (stream.front.into_parts(), stream.heard);
            Box::pin(http::serve(front, &early, facts, guest)).await
        }
        Err(ending) => Err(Box::pin(stream.end(ending)).await),
    }
}

/// How a stream ends before it is joined.
enum Ending {
    /// With a stream error, and words for people.
    Refused(Condition, Option<&'static str>),
    /// Somebody speaks HTTP.
    Http,
    /// The client broke TLS, and was told so.
    Broken(TlsError),
    /// The client is gone.
    Left(&'static str),
}

impl From<DialogueError> for Ending {
    fn from(error: DialogueError) -> Self {
        match error {
            DialogueError::Io(_) => Self::Left("client_gone"),
            DialogueError::Tls(error) => Self::Broken(error),
        }
    }
}

struct Opening<'a> {
    front: Dialogue,
    scan: Initiating,
    cap: Option<Cap>,
    /// All that was read: it becomes the backend's first bytes.
    heard: Vec<u8>,
    looked_at: usize,
    header: Option<Header>,
    guest: &'a Guest<'a>,
}

impl Opening<'_> {
    /// Reads the header, connects to the backend, and passes on what that answers first.
    async fn join(
        &mut self,
        facts: &TlsFacts,
        told: Option<&str>,
    ) -> Result<(Dialed, Answered), Ending> {
        let header = self.read_header().await?;
        let rules = self.guest.rules;
        let host = facts.sni.as_deref().or(header.to.as_deref());
        let domain = header.to.as_deref().or(host);
        let index = rules.routes.domain(domain);
        self.guest.ledger.names(index, domain);
        let role = self.check(&header, facts, told)?;
        // A domain whose TLS we leave alone is not ours to open, whatever SNI says.
        let choose = |host| rules.routes.choose(host, Some(protocol(role)));
        let ours = |choice: Choice| choice.tls == TlsMode::Terminate;
        let choice = choose(host).filter(|choice| ours(*choice) && choose(domain).is_none_or(ours));
        let choice = choice.ok_or(Ending::Refused(Condition::HostUnknown, None))?;

        let name = header.from.as_deref();
        let certificate = facts.client.as_ref().map(|chain| {
            let verified = self.guest.tls.zip(name);
            (
                verified.is_some_and(|(tls, name)| tls.verifies(chain, name)),
                chain.common_name(),
            )
        });
        let certificate = certificate
            .as_ref()
            .map(|(verified, common_name)| proxy::Certificate {
                verified: *verified,
                common_name: common_name.as_deref(),
                this_connection: !facts.resumed,
            });
        let upstream = self.guest.upstream(choice.upstream);
        let upstream = upstream.map_err(|_| no_backend())?;
        link::check(&upstream.link, &header).map_err(refused)?;
        let first = link::first_bytes(&upstream.link, &header, &self.heard);
        let told = facts.told(certificate);
        let dialed = Box::pin(self.guest.dial(choice.upstream, told, &first)).await;
        let dialed = dialed.map_err(|error| {
            let (id, client, listener) = (self.guest.id, self.guest.source, &rules.name);
            tracing::debug!(id, %client, %listener, "no backend for a stream: {error}");
            no_backend()
        })?;
        let answered = link::answer(dialed, &upstream.link, &header, &self.heard, self.guest);
        let (dialed, answered) = Box::pin(answered).await.map_err(|error| {
            let (id, client, listener) = (self.guest.id, self.guest.source, &rules.name);
            tracing::debug!(id, %client, %listener, "no stream from the backend: {error}");
            match error {
                LinkError::Silent | LinkError::Gone(_) => no_backend(),
                _ => {
                    let text = "the server behind this door is not set up for it";
                    Ending::Refused(Condition::InternalServerError, Some(text))
                }
            }
        })?;
        // Kept until here for a second try; from now on the relay moves bytes.
        self.heard = Vec::new();
        self.front.write(&answered.bytes).await?;
        Ok((dialed, answered))
    }

    /// The stream's header, and a look at whatever came with it.
    async fn read_header(&mut self) -> Result<Header, Ending> {
        loop {
            let heard = self.front.read(self.guest.pool(), &mut self.heard).await?;
            match heard {
                Heard::Bytes => {}
                Heard::End if self.heard.is_empty() => return Err(Ending::Left("silent")),
                Heard::End => return Err(Ending::Left("closed")),
                Heard::Truncated => return Err(Ending::Left("truncated")),
            }
            if self.guest.rules.scheme == Scheme::Auto
                && self.looked_at == 0
                && sniff(&self.heard) == Sniff::Is(Guess::Http)
            {
                return Err(Ending::Http);
            }
            let mut input = &self.heard[self.looked_at..];
            while let Some(request) = self.scan.read(&mut input).map_err(refused)? {
                if let Request::Header(header) = request {
                    self.header = Some(header);
                }
            }
            if let Some(cap) = &mut self.cap {
                let news = &self.heard[self.looked_at..];
                cap.meter.feed(news, cap.bytes).map_err(refused)?;
            }
            self.looked_at = self.heard.len();
            if let Some(header) = &self.header {
                return Ok(header.clone());
            }
        }
    }

    /// Whether this stream may be here.
    fn check(&self, header: &Header, facts: &TlsFacts, told: Option<&str>) -> Result<Role, Ending> {
        let agreed = match facts.alpn.as_deref() {
            Some(b"xmpp-client") => Some(Role::Client),
            Some(b"xmpp-server") => Some(Role::Server),
            _ => None,
        };
        let expected = [self.guest.role(), agreed];
        if expected.iter().flatten().any(|role| *role != header.role) {
            return Err(refused(Condition::InvalidNamespace));
        }
        let rules = self.guest.rules;
        if let Some(host) = &header.to {
            let asked = facts.sni.as_deref().or(told);
            let other = asked.is_some_and(|asked| !asked.eq_ignore_ascii_case(host));
            // As before STARTTLS: where the settings do not say it, the certificates do.
            let covered = || {
                let tls = self.guest.tls;
                tls.is_some_and(|tls| tls.certificates().covering(host).is_some())
            };
            let served = rules.routes.serves(host).unwrap_or_else(covered);
            if !served || (rules.xmpp.to_must_match && other) {
                return Err(refused(Condition::HostUnknown));
            }
        } else if rules.xmpp.to_must_match {
            return Err(refused(Condition::ImproperAddressing));
        }
        Ok(header.role)
    }

    /// Says why and closes.
    async fn end(mut self, ending: Ending) -> Refusal {
        let refusal = match ending {
            Ending::Refused(condition, text) => {
                let role = self.guest.role().unwrap_or(Role::Client);
                let answer = response(self.header.as_ref(), role);
                let words = refusal(Some(answer), condition, text);
                in_a_moment(self.front.write(words.as_bytes())).await;
                self.guest.told_refused(condition)
            }
            Ending::Http => {
                in_a_moment(self.front.write(NO_HTTP)).await;
                Refusal::opening("http")
            }
            Ending::Broken(error) => {
                self.guest.cells.record_errors.count(error.reason());
                Refusal::opening("client_tls_error")
            }
            Ending::Left(reason) => Refusal::opening(reason),
        };
        in_a_moment(self.front.finish()).await;
        refusal
    }
}

fn refused(condition: Condition) -> Ending {
    Ending::Refused(condition, None)
}

fn no_backend() -> Ending {
    Ending::Refused(Condition::RemoteConnectionFailed, None)
}
