//! Why a message of HTTP/1.1 is refused.

/// A message that could be read in more than one way, or is larger than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}")]
pub struct Violation {
    /// What is wrong.
    pub kind: Fault,
    /// Bytes of this input before the head, chunk line or trailers at fault: these may still be passed on, and nothing else.
    pub before: usize,
}

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// CR without LF.
    BareCr,
    /// LF without CR.
    BareLf,
    /// Many empty lines before a request line.
    BlankLines,
    /// Something else than CRLF behind the data of a chunk.
    ChunkEnd,
    /// A chunk line that is too long, or a control character in its extension.
    ChunkExtension,
    /// A chunk size that is no hexadecimal number of 1 to 15 digits.
    ChunkSize,
    /// CONNECT, which asks for a forward proxy.
    Connect,
    /// A Content-Length that is no decimal number of 1 to 18 digits.
    ContentLength,
    /// Content-Length in an interim answer (RFC 9110 section 8.6).
    ContentLengthForbidden,
    /// More than one Content-Length line, even with the same number.
    ContentLengthRepeated,
    /// A control character in a value.
    Control,
    /// A header line without a name.
    EmptyName,
    /// Bytes from a backend that was asked nothing, or that had answered.
    ExtraBytes,
    /// A head or trailers with too many bytes.
    HeadTooLarge,
    /// A byte in a header's name that no name can have, or a line without a colon.
    HeaderName,
    /// A Host that is no host name or address with or without a port.
    Host,
    /// A Host that is not the target's authority.
    HostMismatch,
    /// No Host in HTTP/1.1.
    HostMissing,
    /// More than one Host line.
    HostRepeated,
    /// Many interim answers before a final one.
    Interim,
    /// Content-Length and Transfer-Encoding.
    LengthAndEncoding,
    /// A line that begins with white space (RFC 9112 section 5.2).
    ObsFold,
    /// A request line of another form than method, target and version with one space between.
    RequestLine,
    /// A request line that is too long.
    RequestLineTooLong,
    /// White space between a header's name and its colon (RFC 9112 section 5.1).
    SpaceBeforeColon,
    /// A status line of another form than version, three digits and a reason.
    StatusLine,
    /// A target in none of the forms that are for us, or with a byte that no target can have.
    Target,
    /// Too many header lines.
    TooManyHeaders,
    /// A trailer that would change the message's framing or routing.
    Trailer,
    /// A Transfer-Encoding that is not exactly `chunked`.
    TransferEncoding,
    /// Transfer-Encoding in HTTP/1.0, or in an answer that has no body (RFC 9112 section 6.1).
    TransferEncodingForbidden,
    /// More than one Transfer-Encoding line.
    TransferEncodingRepeated,
    /// 101 to a request that did not ask for an upgrade.
    UnaskedUpgrade,
    /// `_` in a header's name, which many backends take for `-`.
    Underscore,
    /// A request with an Upgrade header and a body: backends differ in which protocol that body belongs to.
    UpgradeWithBody,
    /// Another version than HTTP/1.0 and HTTP/1.1.
    Version,
}

impl Fault {
    /// One word, for logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BareCr => "bare_cr",
            Self::BareLf => "bare_lf",
            Self::BlankLines => "blank_lines",
            Self::ChunkEnd => "chunk_end",
            Self::ChunkExtension => "chunk_extension",
            Self::ChunkSize => "chunk_size",
            Self::Connect => "connect",
            Self::ContentLength => "content_length",
            Self::ContentLengthForbidden => "content_length_forbidden",
            Self::ContentLengthRepeated => "content_length_repeated",
            Self::Control => "control",
            Self::EmptyName => "empty_name",
            Self::ExtraBytes => "extra_bytes",
            Self::HeadTooLarge => "head_too_large",
            Self::HeaderName => "header_name",
            Self::Host => "host",
            Self::HostMismatch => "host_mismatch",
            Self::HostMissing => "host_missing",
            Self::HostRepeated => "host_repeated",
            Self::Interim => "interim",
            Self::LengthAndEncoding => "length_and_encoding",
            Self::ObsFold => "obs_fold",
            Self::RequestLine => "request_line",
            Self::RequestLineTooLong => "request_line_too_long",
            Self::SpaceBeforeColon => "space_before_colon",
            Self::StatusLine => "status_line",
            Self::Target => "target",
            Self::TooManyHeaders => "too_many_headers",
            Self::Trailer => "trailer",
            Self::TransferEncoding => "transfer_encoding",
            Self::TransferEncodingForbidden => "transfer_encoding_forbidden",
            Self::TransferEncodingRepeated => "transfer_encoding_repeated",
            Self::UnaskedUpgrade => "unasked_upgrade",
            Self::Underscore => "underscore",
            Self::UpgradeWithBody => "upgrade_with_body",
            Self::Version => "version",
        }
    }

    /// The status that tells a client about its request. What is wrong with an answer is 502 to it, whatever this says.
    pub const fn status(self) -> u16 {
        match self {
            Self::Connect => 405,
            Self::RequestLineTooLong => 414,
            Self::HeadTooLarge | Self::TooManyHeaders => 431,
            Self::TransferEncoding => 501,
            Self::ExtraBytes | Self::Interim | Self::StatusLine | Self::UnaskedUpgrade => 502,
            Self::Version => 505,
            _ => 400,
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
