//! What a backend says first, and STARTTLS where it is spoken on that side, too.
//!
//! The client is inside TLS already, so an offer of STARTTLS from the backend must not reach it (RFC 6120 section
//! 5.3.1, XEP-0368 section 3): an optional one is taken out of the features, a required one is told loudly, since
//! clients would hang on it. Or we speak STARTTLS to the backend ourselves.

use std::borrow::Cow;
use std::time::Duration;

use tokio::time::Instant;

use crate::config::BackStarttls;
use crate::endpoint::Endpoint;
use crate::endpoint::dialogue::{Dialogue, DialogueError, Heard};
use crate::endpoint::secure::{SecureError, secure};
use crate::tls::handshake::{Handshake, server_name};
use crate::upstream::Link;
use crate::upstream::dial::Dialed;
use crate::wire::xmpp::{Answer, Condition, Header, Receiving, STARTTLS, Starttls, header};

use super::super::{Guest, by};

/// Most bytes of a backend's header, or of its features.
const ANSWER_MAX: usize = 32 * 1024;
/// Most bytes of both: there may be white space between them.
const ANSWERS_MAX: usize = 2 * ANSWER_MAX;
/// How long a backend may take to say its features, in that many bytes, before what it has said is passed on as it is.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// What the operator of a backend that demands STARTTLS must do.
pub const WAY_OUT: &str = "the backend demands STARTTLS from a client whose TLS has ended here; \
Prosody: modules_disabled = { \"tls\" } and c2s_require_encryption = false, or mod_vestibule; \
ejabberd: take starttls and starttls_required off this listener; \
or set starttls = \"speak\" for this upstream";

/// Why a backend cannot serve a stream.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    /// It closed without a word.
    #[error("closed without a word")]
    Silent,
    /// It could not be read or written.
    #[error("{0}")]
    Gone(#[from] DialogueError),
    /// It demands STARTTLS.
    #[error("STARTTLS is required")]
    Required,
    /// STARTTLS is to be spoken, and it does not offer it or does not go on with it.
    #[error("no STARTTLS to be had")]
    NoOffer,
    /// The handshake with it failed.
    #[error("TLS: {0}")]
    Tls(#[from] SecureError),
}

/// The backend's first words, as the client shall get them.
pub(super) struct Answered {
    pub(super) bytes: Vec<u8>,
    /// What has read them, to read on.
    pub(super) server: Receiving,
    /// How many of them, the last ones, it has not read: what came with the features.
    pub(super) unread: usize,
}

/// Whether a backend can be spoken to for this stream: where STARTTLS is, the stream's domain is what it proves to be.
/// What a client lacks is not the backend's fault.
///
/// # Errors
/// What the client is told.
pub(super) fn check(link: &Link, asked: &Header) -> Result<(), Condition> {
    if link.starttls != BackStarttls::Speak {
        return Ok(());
    }
    let host = asked.to.as_deref().ok_or(Condition::ImproperAddressing)?;
    match server_name(host) {
        Ok(_) => Ok(()),
        Err(_) => Err(Condition::HostUnknown),
    }
}

/// What a backend gets first: the client's own bytes, or, where TLS comes between, a header of ours that asks for
/// it and tells nothing else.
pub(super) fn first_bytes<'a>(link: &Link, asked: &Header, heard: &'a [u8]) -> Cow<'a, [u8]> {
    if link.starttls == BackStarttls::Speak {
        header(asked.role, None, asked.to.as_deref(), None, "en")
            .into_bytes()
            .into()
    } else {
        heard.into()
    }
}

/// Reads a backend's first words. One that cannot serve streams is tried last for a while.
///
/// # Errors
/// It cannot serve the stream; its operator has been told, once.
pub(super) async fn answer(
    dialed: Dialed,
    link: &Link,
    asked: &Header,
    heard: &[u8],
    guest: &Guest<'_>,
) -> Result<(Dialed, Answered), LinkError> {
    let Dialed {
        endpoint,
        rest,
        pick,
    } = dialed;
    let back = Dialogue::new(endpoint, rest);
    match talk(back, link, asked, heard, guest).await {
        Ok((back, answered, stripped)) => {
            if stripped && pick.backend().first_time() {
                let backend = &pick.backend().name;
                tracing::warn!(%backend, "the backend offers STARTTLS to clients that are inside TLS already; the offer is taken out");
            }
            let (endpoint, rest) = back.into_parts();
            let dialed = Dialed {
                endpoint,
                rest,
                pick,
            };
            Ok((dialed, answered))
        }
        Err(error) => {
            pick.shun();
            if matches!(
                error,
                LinkError::Required | LinkError::NoOffer | LinkError::Tls(_)
            ) && pick.backend().first_time()
            {
                let backend = &pick.backend().name;
                let way_out = error.way_out();
                tracing::error!(%backend, %error, "the backend cannot serve streams: {way_out}");
            }
            Err(error)
        }
    }
}

impl LinkError {
    fn way_out(&self) -> &'static str {
        match self {
            Self::Required => WAY_OUT,
            Self::NoOffer => {
                "starttls = \"speak\" needs a backend that offers it; else write \"strip\""
            }
            Self::Tls(_) => {
                "name its certificate or authority in the upstream's ca; it is verified for the stream's domain"
            }
            Self::Silent | Self::Gone(_) => "see its log",
        }
    }
}

/// The whole of it; true: an offer was taken out.
async fn talk(
    mut back: Dialogue,
    link: &Link,
    asked: &Header,
    heard: &[u8],
    guest: &Guest<'_>,
) -> Result<(Dialogue, Answered, bool), LinkError> {
    let mut said = listen(&mut back, asked, guest).await?;
    if link.starttls == BackStarttls::Speak {
        back = Box::pin(speak(back, said, link, asked, guest)).await?;
        back.write(heard).await?;
        said = listen(&mut back, asked, guest).await?;
    }
    let Said {
        mut answered,
        offer,
    } = said;
    let mut stripped = false;
    if let Some(offer) = offer {
        if offer.required {
            return Err(LinkError::Required);
        }
        let cut = usize::try_from(offer.range.start)..usize::try_from(offer.range.end);
        if link.starttls != BackStarttls::Keep
            && let (Ok(start), Ok(end)) = (cut.start, cut.end)
            && start <= end
            && end <= answered.bytes.len()
        {
            answered.bytes.drain(start..end);
            stripped = true;
        }
    }
    Ok((back, answered, stripped))
}

/// What a backend has said, up to its features or to whatever came in their place.
struct Said {
    answered: Answered,
    offer: Option<Starttls>,
}

async fn listen(back: &mut Dialogue, asked: &Header, guest: &Guest<'_>) -> Result<Said, LinkError> {
    let until = Some(Instant::now() + ANSWER_WAIT);
    let mut bytes = Vec::new();
    let mut server = Receiving::new(ANSWER_MAX);
    let mut offer = None;
    let mut unread = 0;
    'listening: while bytes.len() < ANSWERS_MAX {
        let looked_at = bytes.len();
        match by(until, back.read(guest.pool(), &mut bytes)).await {
            Some(Ok(Heard::Bytes)) => {}
            Some(Err(error)) => return Err(error.into()),
            // It speaks in a way that is not known here, or not at all.
            None | Some(Ok(Heard::End | Heard::Truncated)) => break,
        }
        let mut input = &bytes[looked_at..];
        loop {
            match server.read(&mut input) {
                Ok(None) => break,
                // Before version 1.0 no features follow.
                Ok(Some(Answer::Header)) if asked.version.is_some() => {}
                Ok(Some(Answer::Features(features))) => {
                    offer = features.starttls;
                    unread = input.len();
                    break 'listening;
                }
                Ok(Some(Answer::Error { text, .. }))
                    if text
                        .as_deref()
                        .is_some_and(|text| text.contains(NO_FEATURES)) =>
                {
                    return Err(LinkError::Required);
                }
                Ok(Some(_)) => {
                    unread = input.len();
                    break 'listening;
                }
                Err(_) => break 'listening,
            }
        }
    }
    if bytes.is_empty() {
        return Err(LinkError::Silent);
    }
    Ok(Said {
        answered: Answered {
            bytes,
            server,
            unread,
        },
        offer,
    })
}

/// In what Prosody says when it wants encryption and has no way to begin it.
pub const NO_FEATURES: &str = "stream features";

/// Negotiates STARTTLS with a backend (RFC 6120 section 5.4). What it says in the clear is thrown away.
async fn speak(
    mut back: Dialogue,
    said: Said,
    link: &Link,
    asked: &Header,
    guest: &Guest<'_>,
) -> Result<Dialogue, LinkError> {
    let (Some(_), Some(trust), Some(host)) = (&said.offer, &link.trust, &asked.to) else {
        return Err(LinkError::NoOffer);
    };
    let name = server_name(host).map_err(|_| LinkError::NoOffer)?;
    back.write(STARTTLS.as_bytes()).await?;
    let mut server = said.answered.server;
    let mut bytes = Vec::new();
    let until = Some(Instant::now() + ANSWER_WAIT);
    loop {
        bytes.clear();
        match by(until, back.read(guest.pool(), &mut bytes)).await {
            Some(Ok(Heard::Bytes)) => {}
            Some(Err(error)) => return Err(error.into()),
            None | Some(Ok(Heard::End | Heard::Truncated)) => return Err(LinkError::NoOffer),
        }
        let mut input = &bytes[..];
        match server.read(&mut input) {
            Ok(None) => {}
            // Nothing may come behind it: the backend speaks next within TLS.
            Ok(Some(Answer::Proceed)) if input.is_empty() => break,
            Ok(Some(_)) | Err(_) => return Err(LinkError::NoOffer),
        }
    }
    let (endpoint, _) = back.into_parts();
    let socket = endpoint.into_socket();
    let mut hello = Vec::new();
    let handshake = Handshake::client(trust, name, &[], &mut hello).map_err(SecureError::from)?;
    let secured = by(until, secure(&socket, handshake, hello, &[], guest.pool())).await;
    let secured = secured.ok_or(LinkError::NoOffer)??;
    let endpoint = Endpoint::secured(socket, secured.established.records);
    Ok(Dialogue::new(endpoint, secured.rest))
}
