//! The header that every TLS record starts with (RFC 8446 section 5.1, RFC 5246 section 6.2.1).

/// Length of a record header.
pub const HEADER_LEN: usize = 5;
/// Most payload bytes of a record in the clear.
pub const PLAIN_MAX: usize = 16_384;
/// Most payload bytes of a protected TLS 1.3 record (RFC 8446 section 5.2).
pub const TLS13_PAYLOAD_MAX: usize = PLAIN_MAX + 256;
/// Most payload bytes of a protected TLS 1.2 record (RFC 5246 section 6.2.3).
pub const TLS12_PAYLOAD_MAX: usize = PLAIN_MAX + 2_048;

/// What a record carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ContentType {
    /// TLS 1.2 key switch; in TLS 1.3 a dummy during the handshake.
    ChangeCipherSpec = 20,
    /// Two bytes: level and description.
    Alert = 21,
    /// Handshake messages, perhaps parts of them.
    Handshake = 22,
    /// Anything, encrypted.
    ApplicationData = 23,
}

impl ContentType {
    /// The type with this number, if TLS knows it.
    pub const fn from_u8(byte: u8) -> Option<Self> {
        Some(match byte {
            20 => Self::ChangeCipherSpec,
            21 => Self::Alert,
            22 => Self::Handshake,
            23 => Self::ApplicationData,
            _ => return None,
        })
    }
}

/// The five bytes in front of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// First byte, as it came.
    pub content_type: u8,
    /// Second byte; 3 in every version that is served.
    pub major: u8,
    /// Third byte.
    pub minor: u8,
    /// Bytes of payload that follow the header.
    pub payload: usize,
}

impl Header {
    /// The header at the start of `bytes`; `None` if fewer than five are there.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let &[content_type, major, minor, high, low, ..] = bytes else {
            return None;
        };
        Some(Self {
            content_type,
            major,
            minor,
            payload: usize::from(u16::from_be_bytes([high, low])),
        })
    }

    /// The five bytes of a header that says 3.3, as TLS 1.2 and 1.3 write it.
    #[inline]
    pub const fn bytes(content_type: ContentType, payload: usize) -> [u8; HEADER_LEN] {
        let [high, low] = (payload as u16).to_be_bytes();
        [content_type as u8, 3, 3, high, low]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_is_read_as_written() {
        let bytes = Header::bytes(ContentType::ApplicationData, 16_640);
        assert_eq!(bytes, [23, 3, 3, 0x41, 0]);
        let header = Header {
            content_type: 23,
            major: 3,
            minor: 3,
            payload: 16_640,
        };
        assert_eq!(Header::parse(&bytes), Some(header));
        assert_eq!(Header::parse(&bytes[..4]), None);
    }
}
