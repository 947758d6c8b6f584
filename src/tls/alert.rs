//! Alerts (RFC 8446 section 6, RFC 5246 section 7.2).

/// How an alert ends things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Level {
    /// The connection may go on.
    Warning = 1,
    /// It may not.
    Fatal = 2,
}

/// An alert's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alert(pub u8);

impl Alert {
    /// No more bytes will follow in this direction.
    pub const CLOSE_NOTIFY: Self = Self(0);
    /// A message that has no place here.
    pub const UNEXPECTED_MESSAGE: Self = Self(10);
    /// A record failed authentication.
    pub const BAD_RECORD_MAC: Self = Self(20);
    /// A record is too long.
    pub const RECORD_OVERFLOW: Self = Self(22);
    /// No common parameters.
    pub const HANDSHAKE_FAILURE: Self = Self(40);
    /// A field is out of range.
    pub const ILLEGAL_PARAMETER: Self = Self(47);
    /// A message cannot be parsed.
    pub const DECODE_ERROR: Self = Self(50);
    /// The version is not served.
    pub const PROTOCOL_VERSION: Self = Self(70);
    /// Our fault.
    pub const INTERNAL_ERROR: Self = Self(80);
    /// The peer's user cancelled; a close_notify follows.
    pub const USER_CANCELED: Self = Self(90);
    /// TLS 1.2: no new handshake on this connection.
    pub const NO_RENEGOTIATION: Self = Self(100);
    /// No certificate for the name that was asked for.
    pub const UNRECOGNIZED_NAME: Self = Self(112);

    /// The alert's two bytes.
    pub const fn bytes(self, level: Level) -> [u8; 2] {
        [level as u8, self.0]
    }

    /// A whole record with this alert in the clear, as it is sent before there are keys.
    pub const fn plain_record(self, level: Level) -> [u8; 7] {
        [21, 3, 3, 0, 2, level as u8, self.0]
    }
}
