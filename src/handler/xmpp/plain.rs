//! A stream before TLS: STARTTLS is all there is to do (RFC 6120 sections 4 and 5).
//!
//! ```text
//!   header --> ours, features --> <starttls/> --> <proceed/> --> white space --> TLS
//!         `--> a host whose TLS is left alone: the bytes so far go to its backend
//! ```

use tokio::time::Instant;

use crate::config::TlsMode;
use crate::endpoint::Socket;
use crate::endpoint::dialogue::read_into;
use crate::endpoint::secure::{linger, write_all};
use crate::wire::xmpp::{
    CLOSE, Condition, FAILURE, Header, Initiating, Kind, PROCEED, Request, Role, features_starttls,
};

use super::super::conversation::Conversation;
use super::super::{Guest, Phase, Refusal, by, deadline, front, raw};
use super::{in_a_moment, protocol, refusal, response, secured};

/// White space that a client may send between `<starttls/>` and TLS. Some send a line break.
const WHITE_MAX: usize = 64;
/// The content type of a TLS handshake record.
const HANDSHAKE: u8 = 0x16;

/// From the first byte of a plaintext stream to a conversation.
///
/// # Errors
/// It came to nothing; the client has been told why.
pub(in super::super) async fn plain(
    socket: Socket,
    early: Vec<u8>,
    guest: &Guest<'_>,
) -> Result<Conversation, Refusal> {
    guest.ledger.enter(Phase::Opening);
    let mut opening = Opening {
        scan: Initiating::new(guest.rules.caps()),
        socket,
        heard: early,
        looked_at: 0,
        header: None,
        answered: false,
        guest,
    };
    let deadline = deadline(guest.at, guest.rules.starttls);
    let agreed = by(deadline, opening.agree()).await;
    match agreed.unwrap_or(Err(Ending::Refused(Condition::ConnectionTimeout))) {
        Ok(Agreed::Starttls { host }) => {
            // Everything that was read and understood ends here.
            let Opening { socket, .. } = opening;
            Box::pin(starttls(socket, &host, guest)).await
        }
        Ok(Agreed::Passthrough { host, upstream }) => {
            let Opening { socket, heard, .. } = opening;
            Box::pin(raw::pass(socket, &heard, Some(&host), upstream, guest)).await
        }
        Err(ending) => Err(Box::pin(opening.end(ending)).await),
    }
}

/// What was agreed on in the clear.
enum Agreed {
    Starttls {
        host: String,
    },
    Passthrough {
        host: String,
        upstream: crate::config::UpstreamId,
    },
}

/// How a stream ends before TLS.
enum Ending {
    /// With a stream error.
    Refused(Condition),
    /// TLS cannot be offered to this host (RFC 6120 section 5.4.2.2).
    NoTls,
    /// As the client wishes (RFC 6120 section 4.4).
    Closed,
    /// Bytes behind `<starttls/>` that do not wait for TLS: somebody slips in commands.
    Injection,
    /// The client is gone, or was never there.
    Left(&'static str),
}

struct Opening<'a> {
    scan: Initiating,
    socket: Socket,
    /// All that was read: a backend that speaks TLS itself gets it.
    heard: Vec<u8>,
    looked_at: usize,
    header: Option<Header>,
    answered: bool,
    guest: &'a Guest<'a>,
}

impl Opening<'_> {
    async fn agree(&mut self) -> Result<Agreed, Ending> {
        loop {
            let mut input = &self.heard[self.looked_at..];
            let request = self.scan.read(&mut input).map_err(Ending::Refused)?;
            self.looked_at = self.heard.len() - input.len();
            match request {
                None => self.listen().await?,
                Some(Request::Header(header)) => {
                    let header = self.header.insert(header).clone();
                    if let Some(agreed) = self.greet(&header).await? {
                        return Ok(agreed);
                    }
                }
                Some(Request::Starttls) => {
                    let rest = &self.heard[self.looked_at..];
                    if rest.iter().any(|byte| !byte.is_ascii_whitespace()) {
                        return Err(Ending::Injection);
                    }
                    let host = self.header.as_ref().and_then(|header| header.to.clone());
                    let host = host.ok_or(Ending::Refused(Condition::ImproperAddressing))?;
                    return Ok(Agreed::Starttls { host });
                }
                Some(Request::Element(Kind::Auth | Kind::Stanza)) => {
                    return Err(Ending::Refused(Condition::NotAuthorized));
                }
                Some(Request::Element(Kind::Other)) => {
                    return Err(Ending::Refused(Condition::PolicyViolation));
                }
                Some(Request::End) => return Err(Ending::Closed),
            }
        }
    }

    /// Reads on.
    async fn listen(&mut self) -> Result<(), Ending> {
        match read_into(&self.socket, self.guest.pool(), &mut self.heard).await {
            Ok(0) => Err(Ending::Left("closed")),
            Ok(_) => Ok(()),
            Err(_) => Err(Ending::Left("client_gone")),
        }
    }

    /// Checks whom the header asks for, and answers it. `Some`: that host's TLS is left alone.
    async fn greet(&mut self, header: &Header) -> Result<Option<Agreed>, Ending> {
        let refuse = |condition| Err(Ending::Refused(condition));
        let rules = self.guest.rules;
        if self.guest.role().is_some_and(|role| role != header.role) {
            return refuse(Condition::InvalidNamespace);
        }
        let Some(host) = &header.to else {
            return refuse(Condition::ImproperAddressing);
        };
        let index = rules.routes.domain(Some(host));
        self.guest.ledger.names(index, Some(host));
        let Some(choice) = rules.routes.choose(Some(host), Some(protocol(header.role))) else {
            return refuse(Condition::HostUnknown);
        };
        let passed = choice.tls == TlsMode::Passthrough;
        let covered = self
            .guest
            .tls
            .and_then(|tls| tls.certificates().covering(host));
        let served = rules.routes.serves(host);
        if !served.unwrap_or_else(|| passed || covered.is_some()) {
            return refuse(Condition::HostUnknown);
        }
        if passed {
            let (host, upstream) = (host.clone(), choice.upstream);
            return Ok(Some(Agreed::Passthrough { host, upstream }));
        }
        if header.version.is_none() {
            // Before 1.0 there are no features, hence no way to TLS.
            return refuse(Condition::UnsupportedVersion);
        }
        match self.guest.tls {
            Some(tls) if covered.is_some() || !tls.sni_strict() => {}
            _ => return Err(Ending::NoTls),
        }
        let answer = response(Some(header), header.role) + features_starttls();
        self.answered = true;
        match write_all(&self.socket, answer.as_bytes()).await {
            Ok(()) => Ok(None),
            Err(_) => Err(Ending::Left("client_gone")),
        }
    }

    /// Says why and closes.
    async fn end(self, ending: Ending) -> Refusal {
        let role = self.guest.role().unwrap_or(Role::Client);
        let unanswered = || (!self.answered).then(|| response(self.header.as_ref(), role));
        let (words, refused) = match ending {
            Ending::Refused(condition) => (
                refusal(unanswered(), condition, None),
                self.guest.told_refused(condition),
            ),
            Ending::NoTls => (
                unanswered().unwrap_or_default() + FAILURE,
                Refusal::opening("no_certificate"),
            ),
            Ending::Closed => (
                unanswered().unwrap_or_default() + CLOSE,
                Refusal::opening("closed"),
            ),
            Ending::Injection => {
                let (id, client) = (self.guest.id, self.guest.source);
                tracing::debug!(id, %client, "bytes behind <starttls/> that do not wait for TLS");
                return Refusal::opening("injection");
            }
            Ending::Left(reason) => return Refusal::opening(reason),
        };
        in_a_moment(write_all(&self.socket, words.as_bytes())).await;
        linger(&self.socket).await;
        refused
    }
}

/// Lets TLS begin.
async fn starttls(socket: Socket, host: &str, guest: &Guest<'_>) -> Result<Conversation, Refusal> {
    guest.ledger.enter(Phase::Handshake);
    let since = Instant::now();
    let deadline = deadline(since, guest.rules.handshake);
    let mut early = Vec::new();
    let begun = async {
        write_all(&socket, PROCEED.as_bytes()).await.ok()?;
        let mut white = 0;
        loop {
            early.clear();
            if read_into(&socket, guest.pool(), &mut early).await.ok()? == 0 {
                return None;
            }
            let blank = early.iter().take_while(|byte| byte.is_ascii_whitespace());
            let blank = blank.count();
            white += blank;
            if white > WHITE_MAX {
                return Some(false);
            }
            if let Some(first) = early.get(blank) {
                let is_tls = *first == HANDSHAKE;
                early.drain(..blank);
                return Some(is_tls);
            }
        }
    };
    match by(deadline, begun).await {
        Some(Some(true)) => {}
        Some(Some(false)) => return Err(Refusal::opening("injection")),
        Some(None) => return Err(Refusal::handshake("closed")),
        None => return Err(Refusal::handshake("timeout")),
    }
    let shaken = front::shake(socket, &early, Some(host), since, guest).await?;
    drop(early);
    Box::pin(secured(shaken, Some(host), guest)).await
}
