//! XMPP streams, as far as a door must understand them (RFC 6120).
//!
//! [`Initiating`] reads what the initiating entity sends and [`Receiving`] what the server answers, both until SASL
//! success: they parse, with a bound on everything. [`Depth`] and [`Meter`] follow an authenticated stream by
//! its brackets alone, cheaply enough for every message. [`header`] and its siblings are the few words that
//! we say ourselves. Stanzas, JIDs beyond a domain, and XML outside RFC 6120 section 11 are not understood here.

mod depth;
mod error;
mod events;
mod initiating;
mod receiving;
mod words;

pub use depth::{Depth, Meter};
pub use error::{Condition, stream_error};
pub use initiating::{Caps, Header, Initiating, Kind, Request};
pub use receiving::{Answer, Features, Malformed, Receiving, Starttls};
pub use words::{CLOSE, FAILURE, PROCEED, STARTTLS, features_starttls, header};

/// Who opens a stream, by its content namespace (RFC 6120 section 4.8.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// A client: `jabber:client`.
    Client,
    /// Another server: `jabber:server`.
    Server,
}

impl Role {
    /// The content namespace.
    pub const fn namespace(self) -> &'static str {
        match self {
            Self::Client => CLIENT,
            Self::Server => SERVER,
        }
    }
}

/// Namespace of the stream itself, its features and its errors (RFC 6120 section 4.8.1).
pub const STREAMS: &str = "http://etherx.jabber.org/streams";
/// Content namespace of client streams.
pub const CLIENT: &str = "jabber:client";
/// Content namespace of server streams.
pub const SERVER: &str = "jabber:server";
/// Namespace of STARTTLS (RFC 6120 section 5).
pub const TLS: &str = "urn:ietf:params:xml:ns:xmpp-tls";
/// Namespace of SASL (RFC 6120 section 6).
pub const SASL: &str = "urn:ietf:params:xml:ns:xmpp-sasl";
/// Namespace of SASL2 (XEP-0388).
pub const SASL2: &str = "urn:xmpp:sasl:2";
/// Namespace of Server Dialback (XEP-0220).
pub const DIALBACK: &str = "jabber:server:dialback";
/// Namespace of stream compression (XEP-0138), the protocol and not the feature.
pub const COMPRESS: &str = "http://jabber.org/protocol/compress";
/// Namespace of stream error conditions (RFC 6120 section 4.9.2).
pub const STREAM_ERRORS: &str = "urn:ietf:params:xml:ns:xmpp-streams";
/// Namespace of stream limits (XEP-0478).
pub const LIMITS: &str = "urn:xmpp:stream-limits:0";

/// White space as XML has it (XML 1.0 section 2.3).
const fn is_white(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}
