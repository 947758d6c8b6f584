//! Why a stream is refused, in the words of RFC 6120 section 4.9.

use super::words::{CLOSE, escape};
use super::{STREAM_ERRORS, STREAMS};

/// A stream error condition (RFC 6120 section 4.9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Condition {
    /// XML that cannot be processed, for no other reason named here.
    BadFormat,
    /// A prefix that is not declared.
    BadNamespacePrefix,
    /// Nothing was sent for too long.
    ConnectionTimeout,
    /// The domain is not served here.
    HostUnknown,
    /// `to` is missing or no domain.
    ImproperAddressing,
    /// We cannot, and it is our fault.
    InternalServerError,
    /// The stream's namespace or its content namespace is none that is served.
    InvalidNamespace,
    /// Something was asked before what must come first.
    NotAuthorized,
    /// Not XML.
    NotWellFormed,
    /// Against a local rule, such as a bound on size.
    PolicyViolation,
    /// The server behind cannot be reached.
    RemoteConnectionFailed,
    /// Too much at once.
    ResourceConstraint,
    /// XML that RFC 6120 section 11.1 forbids: comments, instructions, a DTD, entities.
    RestrictedXml,
    /// Another host is to be asked.
    SeeOtherHost,
    /// We are about to stop.
    SystemShutdown,
    /// Not UTF-8.
    UnsupportedEncoding,
    /// A version of XMPP that is not spoken here.
    UnsupportedVersion,
}

impl Condition {
    /// The element's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BadFormat => "bad-format",
            Self::BadNamespacePrefix => "bad-namespace-prefix",
            Self::ConnectionTimeout => "connection-timeout",
            Self::HostUnknown => "host-unknown",
            Self::ImproperAddressing => "improper-addressing",
            Self::InternalServerError => "internal-server-error",
            Self::InvalidNamespace => "invalid-namespace",
            Self::NotAuthorized => "not-authorized",
            Self::NotWellFormed => "not-well-formed",
            Self::PolicyViolation => "policy-violation",
            Self::RemoteConnectionFailed => "remote-connection-failed",
            Self::ResourceConstraint => "resource-constraint",
            Self::RestrictedXml => "restricted-xml",
            Self::SeeOtherHost => "see-other-host",
            Self::SystemShutdown => "system-shutdown",
            Self::UnsupportedEncoding => "unsupported-encoding",
            Self::UnsupportedVersion => "unsupported-version",
        }
    }
}

impl std::fmt::Display for Condition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::error::Error for Condition {}

/// A stream error and the end of the stream (RFC 6120 section 4.9.2).
///
/// `text` is for people. `see_other_host` is the `HOST` or `HOST:PORT` of [`Condition::SeeOtherHost`]. The error element
/// declares its own prefix; the closing tag is right where the header's prefix is `stream`, as ours and that of every
/// server in use.
pub fn stream_error(
    condition: Condition,
    text: Option<&str>,
    see_other_host: Option<&str>,
) -> String {
    let name = condition.name();
    let mut error =
        format!("<stream:error xmlns:stream='{STREAMS}'><{name} xmlns='{STREAM_ERRORS}'");
    match see_other_host {
        Some(host) => {
            error.push('>');
            escape(host, &mut error);
            error.push_str("</");
            error.push_str(name);
            error.push('>');
        }
        None => error.push_str("/>"),
    }
    if let Some(text) = text {
        error.push_str("<text xmlns='");
        error.push_str(STREAM_ERRORS);
        error.push_str("' xml:lang='en'>");
        escape(text, &mut error);
        error.push_str("</text>");
    }
    error.push_str("</stream:error>");
    error.push_str(CLOSE);
    error
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::{Answer, Receiving, Role, header};
    use super::*;

    #[test]
    fn an_error_is_written_out() {
        assert_eq!(
            stream_error(Condition::HostUnknown, None, None),
            "<stream:error xmlns:stream='http://etherx.jabber.org/streams'>\
             <host-unknown xmlns='urn:ietf:params:xml:ns:xmpp-streams'/></stream:error></stream:stream>"
        );
        assert_eq!(
            stream_error(Condition::SeeOtherHost, Some("a < b"), Some("[::1]:5222")),
            "<stream:error xmlns:stream='http://etherx.jabber.org/streams'>\
             <see-other-host xmlns='urn:ietf:params:xml:ns:xmpp-streams'>[::1]:5222</see-other-host>\
             <text xmlns='urn:ietf:params:xml:ns:xmpp-streams' xml:lang='en'>a &lt; b</text>\
             </stream:error></stream:stream>"
        );
    }

    #[test]
    fn an_error_is_read_back() {
        let mut said = header(Role::Client, None, None, Some("1"), "en");
        said += &stream_error(Condition::PolicyViolation, Some("too <big>"), None);
        let mut input = said.as_bytes();
        let mut receiving = Receiving::new(1 << 10);
        assert_eq!(receiving.read(&mut input), Ok(Some(Answer::Header)));
        assert_eq!(
            receiving.read(&mut input),
            Ok(Some(Answer::Error {
                condition: "policy-violation".to_owned(),
                text: Some("too <big>".to_owned()),
            }))
        );
        assert_eq!(receiving.read(&mut input), Ok(Some(Answer::End)));
    }
}
