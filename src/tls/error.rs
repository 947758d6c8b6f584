//! What can go wrong with TLS, and whose fault it is.

use super::alert::Alert;

/// An end of a TLS connection that nobody wished for. All but [`TlsError::KeyExhausted`] and
/// [`TlsError::Internal`] are the peer's doing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A record failed authentication: corruption, or somebody in between.
    #[error("a record failed authentication")]
    BadRecord,
    /// A record is longer than the protocol allows.
    #[error("a record is too long")]
    RecordOverflow,
    /// A record or message that has no place here.
    #[error("unexpected: {0}")]
    UnexpectedMessage(&'static str),
    /// A message that cannot be parsed.
    #[error("cannot be parsed: {0}")]
    Decode(&'static str),
    /// A field of a message is out of range.
    #[error("illegal: {0}")]
    Illegal(&'static str),
    /// A record says another version.
    #[error("a record of another protocol version")]
    RecordVersion,
    /// The peer ended the connection with a fatal alert.
    #[error("the peer sent the fatal alert {0}")]
    AlertReceived(u8),
    /// What came is not TLS at all.
    #[error("not TLS: {0}")]
    NotTls(&'static str),
    /// The client knows no version that is served.
    #[error("the client knows nothing newer than TLS 1.1")]
    OldVersion,
    /// No certificate covers the name asked for, and the listener is strict about it.
    #[error("no certificate for the server name asked for")]
    UnknownName,
    /// The handshake failed; rustls says why and has written the alert.
    #[error("handshake: {0}")]
    Handshake(rustls::Error),
    /// A handshake with more bytes than any honest one has.
    #[error("the handshake is too long")]
    HandshakeTooLong,
    /// A key has protected as many records as it may, and this version has no way to another.
    #[error("the key has reached its limit of use")]
    KeyExhausted,
    /// Something that cannot be; a fault of ours.
    #[error("internal: {0}")]
    Internal(&'static str),
}

impl TlsError {
    /// The alert that tells the peer, if one is due. For [`TlsError::Handshake`] rustls has written its own.
    pub fn alert(&self) -> Option<Alert> {
        Some(match self {
            Self::BadRecord => Alert::BAD_RECORD_MAC,
            Self::RecordOverflow => Alert::RECORD_OVERFLOW,
            Self::UnexpectedMessage(_) | Self::NotTls(_) => Alert::UNEXPECTED_MESSAGE,
            Self::Decode(_) => Alert::DECODE_ERROR,
            Self::Illegal(_) => Alert::ILLEGAL_PARAMETER,
            Self::RecordVersion | Self::OldVersion => Alert::PROTOCOL_VERSION,
            Self::UnknownName => Alert::UNRECOGNIZED_NAME,
            Self::HandshakeTooLong => Alert::HANDSHAKE_FAILURE,
            Self::KeyExhausted | Self::Internal(_) => Alert::INTERNAL_ERROR,
            Self::AlertReceived(_) | Self::Handshake(_) => return None,
        })
    }

    /// One word for the metric label `reason`.
    pub fn reason(&self) -> &'static str {
        use rustls::{Error, PeerIncompatible as P};
        match self {
            Self::BadRecord => "bad_record_mac",
            Self::RecordOverflow => "record_overflow",
            Self::UnexpectedMessage(_) => "unexpected_message",
            Self::Decode(_) => "decode_error",
            Self::Illegal(_) => "illegal_parameter",
            Self::RecordVersion => "record_version",
            Self::AlertReceived(_) => "alert_received",
            Self::NotTls(_) => "not_tls",
            Self::OldVersion => "no_common_version",
            Self::UnknownName => "unknown_name",
            Self::HandshakeTooLong => "too_long",
            Self::KeyExhausted => "key_exhausted",
            Self::Internal(_) => "internal",
            Self::Handshake(error) => match error {
                Error::PeerIncompatible(P::NoCipherSuitesInCommon) => "no_common_suite",
                Error::PeerIncompatible(P::NoKxGroupsInCommon) => "no_common_group",
                Error::PeerIncompatible(P::NoSignatureSchemesInCommon) => "no_common_signature",
                // rustls has no variant for it in TLS 1.3.
                Error::General(text) if text == "incompatible signing key" => "no_common_signature",
                Error::PeerIncompatible(
                    P::Tls12NotOffered
                    | P::Tls12NotOfferedOrEnabled
                    | P::Tls13RequiredForQuic
                    | P::SupportedVersionsExtensionRequired
                    | P::ServerTlsVersionIsDisabledByOurConfig
                    | P::ServerDoesNotSupportTls12Or13,
                ) => "no_common_version",
                Error::PeerIncompatible(_) => "incompatible",
                Error::NoApplicationProtocol => "no_common_alpn",
                Error::AlertReceived(_) => "alert_received",
                Error::InvalidMessage(_) => "decode_error",
                Error::PeerMisbehaved(_) => "misbehaved",
                Error::InvalidCertificate(_) => "bad_certificate",
                Error::DecryptError => "bad_record_mac",
                Error::PeerSentOversizedRecord => "record_overflow",
                _ => "other",
            },
        }
    }
}
