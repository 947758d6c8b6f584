//! XMPP streams: what is said before TLS ([`plain()`]), the stream within it until it is joined with a backend
//! ([`secured()`]), and what a backend says first ([`link`]).
//!
//! Nothing that was said before TLS is used after it (RFC 6120 section 5.3.2): the plaintext, its scanner and what it
//! read are gone when the handshake begins. One thing is kept, for settings that ask for it: the host, so that the
//! stream within TLS can be held to it.

mod link;
mod plain;
mod secured;

use std::time::Duration;

use tokio::time::Instant;

use crate::config::{Protocol, Scheme};
use crate::sys;
use crate::wire::xmpp::{Condition, Header, Role, header, stream_error};

use super::{Guest, Refusal, by};

pub use link::{NO_FEATURES, WAY_OUT};
pub(super) use plain::plain;
pub(super) use secured::secured;

/// How long a client may take to accept our last words.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Whom a stream header asks for and how we answer it.
fn response(asked: Option<&Header>, role: Role) -> String {
    let role = asked.map_or(role, |asked| asked.role);
    let id = sys::random::id();
    header(
        role,
        asked.and_then(|asked| asked.to.as_deref()),
        asked.and_then(|asked| asked.from.as_deref()),
        Some(&id),
        asked
            .and_then(|asked| asked.lang.as_deref())
            .unwrap_or("en"),
    )
}

/// The end of a stream that we refuse: our header, if it has not been sent, always comes before an error (RFC
/// 6120 section 4.9.1.2).
fn refusal(unanswered: Option<String>, condition: Condition, text: Option<&str>) -> String {
    unanswered.unwrap_or_default() + &stream_error(condition, text, None)
}

impl Guest<'_> {
    /// The role that a listener is for, where it is for one.
    fn role(&self) -> Option<Role> {
        match self.rules.scheme {
            Scheme::Xmpp | Scheme::Xmpps => Some(Role::Client),
            Scheme::XmppServer | Scheme::XmppsServer => Some(Role::Server),
            Scheme::Auto if self.rules.routes.offers_servers() => None,
            Scheme::Auto | Scheme::Tls | Scheme::Https | Scheme::Http => Some(Role::Client),
        }
    }

    fn told_refused(&self, condition: Condition) -> Refusal {
        let (id, client, listener) = (self.id, self.source, self.rules.name.as_str());
        tracing::debug!(id, %client, listener, condition = condition.name(), "stream refused");
        Refusal {
            outcome: "refused",
            reason: condition.name(),
        }
    }
}

/// Our last words have a moment to leave, no more.
async fn in_a_moment<T>(words: impl Future<Output = T>) {
    by(Some(Instant::now() + LAST_WORDS), words).await;
}

fn protocol(role: Role) -> Protocol {
    match role {
        Role::Client => Protocol::XmppClient,
        Role::Server => Protocol::XmppServer,
    }
}
