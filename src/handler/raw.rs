//! Bytes of any protocol: out of TLS, or with TLS still on them.

use crate::config::UpstreamId;
use crate::endpoint::secure::linger;
use crate::endpoint::{Endpoint, Socket};
use crate::upstream::dial::DialError;

use super::conversation::Conversation;
use super::front::Shaken;
use super::{Guest, Phase, Refusal, Told};

/// Joins a client whose TLS ended here with a backend.
///
/// # Errors
/// No backend takes it; the client has been sent the end, and no close_notify: nothing that it could take for the
/// backend's own end.
pub(super) async fn open(shaken: Shaken, guest: &Guest<'_>) -> Result<Conversation, Refusal> {
    let facts = &shaken.facts;
    let choice = guest.rules.routes.choose(facts.sni.as_deref(), None);
    let choice = choice.ok_or(Refusal::NO_BACKEND)?;
    let told = facts.told(None);
    match guest.dial(choice.upstream, told, &[]).await {
        Ok(dialed) => Ok(Conversation::join(
            (shaken.endpoint, shaken.rest),
            dialed,
            guest,
        )),
        Err(error) => Err(refused(shaken.endpoint.socket(), &error, guest).await),
    }
}

/// Joins a client whose TLS we leave alone with a backend, which gets `early` first.
///
/// # Errors
/// No backend takes it.
pub(super) async fn pass(
    socket: Socket,
    early: &[u8],
    host: Option<&str>,
    upstream: UpstreamId,
    guest: &Guest<'_>,
) -> Result<Conversation, Refusal> {
    if guest.rules.scheme.carries_xmpp() {
        let routes = &guest.rules.routes;
        guest.ledger.enter(Phase::Passed);
        guest.ledger.names(routes.domain(host), host);
    }
    let told = Told {
        authority: host,
        ..Told::default()
    };
    match guest.dial(upstream, told, early).await {
        Ok(dialed) => {
            let front = (Endpoint::plain(socket), None);
            Ok(Conversation::join(front, dialed, guest))
        }
        Err(error) => Err(refused(&socket, &error, guest).await),
    }
}

async fn refused(socket: &Socket, error: &DialError, guest: &Guest<'_>) -> Refusal {
    let (id, client, listener) = (guest.id, guest.source, &guest.rules.name);
    tracing::debug!(id, %client, %listener, "session ended: no backend: {error}");
    linger(socket).await;
    Refusal::NO_BACKEND
}
