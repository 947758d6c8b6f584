//! Frames of HTTP/2 that bring nothing, and how many of them are too many.
//!
//! A [`Frames`] reads the nine bytes in front of each frame (RFC 9113 section 4.1) and counts. Whether frames are right is
//! for who understands them; here one learns that a peer keeps us busy for nothing (RFC 9113 section 10.5), when to close,
//! and where in the stream of frames that can be said.

/// Follows one direction of a connection of HTTP/2, in pieces of any size.
///
/// Every frame that carries no part of a request takes from an allowance, which grows again with time:
///
/// | frames | at once | in a second |
/// |---|---|---|
/// | SETTINGS, PING, PRIORITY and PRIORITY_UPDATE, GOAWAY, DATA without data or an end, frames of unknown types | 200 | 50, and one for each HEADERS |
/// | RST_STREAM | 100 | 20 |
/// | WINDOW_UPDATE | 1,000 | 100, and one for each 512 bytes of DATA that went the other way |
/// | CONTINUATION | 64 in a block of headers | |
///
/// A browser that leaves a page resets all its streams at once, and hardly again a second later. HEADERS give back
/// because some browsers send a priority with each request. A client returns window as it takes data, at worst twice
/// (stream and connection) for each frame of 1 KiB; so it is data that pays for it, and a rate would do wrong to either
/// the fast or the small. What a client has saved up has a bound as well.
///
/// Of what the *server* sends only RST_STREAM is counted: the server is our own, and when it resets stream after stream,
/// it was the client that made it do so.
#[derive(Clone, Copy, Debug)]
pub struct Frames {
    side: Side,
    /// Bytes of the preface or of a payload that are still to come.
    skip: u32,
    /// The header that is being read, and its bytes so far.
    header: [u8; HEADER_LEN],
    have: u8,
    /// Whether a block of headers has begun and not ended, and how many CONTINUATION frames it has.
    block: bool,
    continuations: u8,
    /// Highest stream that HEADERS came for.
    last_stream: u32,
    /// DATA payload in this direction, in bytes.
    data: u64,
    /// DATA payload in the other direction that has been paid for.
    credited: u64,
    idle: Allowance,
    resets: Allowance,
    windows: Allowance,
    /// When allowances have grown last.
    grown_ms: Option<u64>,
    flood: Option<Flood>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

/// More than allowed of one kind of frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("too many frames of one kind: {}", self.name())]
pub enum Flood {
    /// CONTINUATION (CVE-2024-27316).
    Continuation,
    /// DATA that neither brings data nor ends a stream (CVE-2019-9518).
    EmptyData,
    /// GOAWAY.
    Goaway,
    /// PING (CVE-2019-9512).
    Ping,
    /// PRIORITY (CVE-2019-9513), or PRIORITY_UPDATE (RFC 9218 section 7.1).
    Priority,
    /// RST_STREAM, by the client (CVE-2023-44487) or by a server that was made to (CVE-2025-8671).
    Reset,
    /// SETTINGS (CVE-2019-9515).
    Settings,
    /// Frames of a type that is unknown here.
    Unknown,
    /// WINDOW_UPDATE.
    WindowUpdate,
}

impl Flood {
    /// One word, for logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Continuation => "continuation",
            Self::EmptyData => "empty_data",
            Self::Goaway => "goaway",
            Self::Ping => "ping",
            Self::Priority => "priority",
            Self::Reset => "reset",
            Self::Settings => "settings",
            Self::Unknown => "unknown",
            Self::WindowUpdate => "window_update",
        }
    }
}

impl Frames {
    /// What a client sends, its preface first, which is not compared (RFC 9113 section 3.4).
    pub const fn client() -> Self {
        Self::new(Side::Client, PREFACE_LEN)
    }

    /// What a server sends.
    pub const fn server() -> Self {
        Self::new(Side::Server, 0)
    }

    const fn new(side: Side, skip: u32) -> Self {
        Self {
            side,
            skip,
            header: [0; HEADER_LEN],
            have: 0,
            block: false,
            continuations: 0,
            last_stream: 0,
            data: 0,
            credited: 0,
            idle: Allowance::IDLE,
            resets: Allowance::RESETS,
            windows: Allowance::WINDOWS,
            grown_ms: None,
            flood: None,
        }
    }

    /// Goes on by these bytes, at a time in milliseconds since any moment, which must not go back.
    ///
    /// # Errors
    /// With the first frame that is too many, and from then on always. What a client sends is not followed any more then; what
    /// a server sends is, since it leaves nevertheless, and a last frame must not stand within another.
    pub fn look(&mut self, bytes: &[u8], now_ms: u64) -> Result<(), Flood> {
        if let (Side::Client, Some(flood)) = (self.side, self.flood) {
            return Err(flood);
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.skip > 0 {
                let here = rest.len().min(self.skip as usize);
                self.skip -= here as u32;
                rest = &rest[here..];
                continue;
            }
            let have = usize::from(self.have);
            let here = rest.len().min(HEADER_LEN - have);
            self.header[have..have + here].copy_from_slice(&rest[..here]);
            self.have += here as u8;
            rest = &rest[here..];
            if usize::from(self.have) == HEADER_LEN {
                self.have = 0;
                if let Err(flood) = self.frame(now_ms) {
                    self.flood.get_or_insert(flood);
                    if self.side == Side::Client {
                        break;
                    }
                }
            }
        }
        self.flood.map_or(Ok(()), Err)
    }

    /// So much DATA has gone the other way in all: [`Frames::data`] of the server's direction.
    ///
    /// To be told to a client's direction before it looks at bytes, or fast downloads will be taken for floods.
    pub fn credit(&mut self, data: u64) {
        let frames = data.saturating_sub(self.credited) / WINDOW_UPDATE_DATA;
        self.credited += frames * WINDOW_UPDATE_DATA;
        self.windows.earn(frames.saturating_mul(1000));
    }

    /// Bytes of DATA payload that were announced in this direction.
    pub fn data(&self) -> u64 {
        self.data
    }

    /// Whether the next byte begins a frame, and any frame may stand there (RFC 9113 section 4.3).
    pub fn at_boundary(&self) -> bool {
        self.skip == 0 && self.have == 0 && !self.block
    }

    /// Highest stream that HEADERS came for; 0 at first.
    pub fn last_stream(&self) -> u32 {
        self.last_stream
    }

    /// A whole header was read.
    fn frame(&mut self, now_ms: u64) -> Result<(), Flood> {
        let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = self.header;
        let length = u32::from_be_bytes([0, l0, l1, l2]);
        let stream = u32::from_be_bytes([s0, s1, s2, s3]) & STREAM_MASK;
        self.skip = length;
        let idle = match kind {
            DATA => {
                self.data += u64::from(length);
                let padding_alone = flags & PADDED != 0 && length == 1;
                if (length > 0 && !padding_alone) || flags & END_STREAM != 0 {
                    return Ok(());
                }
                Flood::EmptyData
            }
            HEADERS | PUSH_PROMISE => {
                if kind == HEADERS {
                    self.last_stream = self.last_stream.max(stream);
                    self.idle.earn(1000);
                }
                self.block = flags & END_HEADERS == 0;
                self.continuations = 0;
                return Ok(());
            }
            CONTINUATION => {
                if self.continuations == CONTINUATIONS_MAX {
                    return Err(Flood::Continuation);
                }
                self.continuations += 1;
                self.block &= flags & END_HEADERS == 0;
                return Ok(());
            }
            RST_STREAM => {
                self.grow(now_ms);
                return self.resets.spend(Flood::Reset);
            }
            WINDOW_UPDATE => Flood::WindowUpdate,
            PRIORITY | PRIORITY_UPDATE => Flood::Priority,
            SETTINGS => Flood::Settings,
            PING => Flood::Ping,
            GOAWAY => Flood::Goaway,
            _ => Flood::Unknown,
        };
        if self.side == Side::Server {
            return Ok(());
        }
        self.grow(now_ms);
        match idle {
            Flood::WindowUpdate => self.windows.spend(idle),
            _ => self.idle.spend(idle),
        }
    }

    /// Lets allowances grow with the time that has passed.
    fn grow(&mut self, now_ms: u64) {
        let passed = now_ms.saturating_sub(self.grown_ms.unwrap_or(now_ms));
        self.grown_ms = Some(now_ms);
        if passed > 0 {
            for allowance in [&mut self.idle, &mut self.resets, &mut self.windows] {
                allowance.earn(passed.saturating_mul(allowance.per_second));
            }
        }
    }
}

/// Frames that may still come, in thousandths.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    left: u64,
    most: u64,
    /// Frames in a second, which are thousandths in a millisecond.
    per_second: u64,
}

impl Allowance {
    const IDLE: Self = Self::new(200, 200, 50);
    const RESETS: Self = Self::new(100, 100, 20);
    /// What is saved up is enough for data of 32 MiB, more than browsers have on the way.
    const WINDOWS: Self = Self::new(1_000, 1 << 16, 100);

    const fn new(at_first: u64, most: u64, per_second: u64) -> Self {
        Self {
            left: at_first * 1000,
            most: most * 1000,
            per_second,
        }
    }

    fn earn(&mut self, thousandths: u64) {
        self.left = self.left.saturating_add(thousandths).min(self.most);
    }

    fn spend(&mut self, flood: Flood) -> Result<(), Flood> {
        self.left = self.left.checked_sub(1000).ok_or(flood)?;
        Ok(())
    }
}

/// A GOAWAY frame (RFC 9113 section 6.8), with ENHANCE_YOUR_CALM as its code or NO_ERROR.
///
/// `last_stream` is the highest one that was or may still be answered.
pub const fn goaway(last_stream: u32, enhance_your_calm: bool) -> [u8; GOAWAY_LEN] {
    let [s0, s1, s2, s3] = (last_stream & STREAM_MASK).to_be_bytes();
    let code = if enhance_your_calm { 0x0b } else { 0 };
    [
        0, 0, 8, GOAWAY, 0, 0, 0, 0, 0, s0, s1, s2, s3, 0, 0, 0, code,
    ]
}

/// Length of a GOAWAY frame without debug data.
pub const GOAWAY_LEN: usize = HEADER_LEN + 8;

const PREFACE_LEN: u32 = 24;
const HEADER_LEN: usize = 9;
/// The bit in front of a stream's number is reserved.
const STREAM_MASK: u32 = u32::MAX >> 1;

// Types (RFC 9113 section 6; RFC 9218 section 7.1).
const DATA: u8 = 0x00;
const HEADERS: u8 = 0x01;
const PRIORITY: u8 = 0x02;
const RST_STREAM: u8 = 0x03;
const SETTINGS: u8 = 0x04;
const PUSH_PROMISE: u8 = 0x05;
const PING: u8 = 0x06;
const GOAWAY: u8 = 0x07;
const WINDOW_UPDATE: u8 = 0x08;
const CONTINUATION: u8 = 0x09;
const PRIORITY_UPDATE: u8 = 0x10;

const END_STREAM: u8 = 0x01;
const END_HEADERS: u8 = 0x04;
const PADDED: u8 = 0x08;

const CONTINUATIONS_MAX: u8 = 64;
/// DATA in bytes that pays for one WINDOW_UPDATE.
const WINDOW_UPDATE_DATA: u64 = 512;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        frame.extend_from_slice(&[kind, flags]);
        frame.extend_from_slice(&stream.to_be_bytes());
        frame.extend_from_slice(payload);
        frame
    }

    fn client() -> Frames {
        let mut frames = Frames::client();
        frames.look(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0).unwrap();
        frames
    }

    /// How many such frames pass at once, and then one each so many milliseconds later.
    fn passing(mut frames: Frames, frame: &[u8], every_ms: u64) -> (usize, Flood) {
        let mut now_ms = 5;
        for count in 0..100_000 {
            if let Err(flood) = frames.look(frame, now_ms) {
                assert_eq!(frames.look(&[], now_ms + 1_000_000), Err(flood));
                return (count, flood);
            }
            now_ms += every_ms;
        }
        (100_000, Flood::Unknown)
    }

    #[test]
    fn frames_that_bring_nothing_are_few() {
        for (frame, count, flood) in [
            (frame(SETTINGS, 0, 0, &[0; 6]), 200, Flood::Settings),
            (frame(SETTINGS, 1, 0, &[]), 200, Flood::Settings),
            (frame(PING, 0, 0, &[0; 8]), 200, Flood::Ping),
            (frame(PRIORITY, 0, 3, &[0; 5]), 200, Flood::Priority),
            (
                frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x03u=1"),
                200,
                Flood::Priority,
            ),
            (frame(GOAWAY, 0, 0, &[0; 8]), 200, Flood::Goaway),
            (frame(0xfa, 0, 0, &[]), 200, Flood::Unknown),
            (frame(DATA, 0, 1, &[]), 200, Flood::EmptyData),
            (frame(DATA, PADDED, 1, &[0]), 200, Flood::EmptyData),
            (frame(RST_STREAM, 0, 1, &[0; 4]), 100, Flood::Reset),
            (
                frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]),
                1000,
                Flood::WindowUpdate,
            ),
            (frame(CONTINUATION, 0, 1, b"x"), 64, Flood::Continuation),
        ] {
            assert_eq!(passing(client(), &frame, 0), (count, flood));
        }
    }

    #[test]
    fn frames_that_bring_something_are_not_counted() {
        for frame in [
            frame(DATA, 0, 1, b"x"),
            frame(DATA, PADDED, 1, b"\0x"),
            frame(DATA, END_STREAM, 1, &[]),
            frame(HEADERS, END_HEADERS, 1, b"x"),
        ] {
            assert_eq!(passing(client(), &frame, 0).0, 100_000);
        }
    }

    #[test]
    fn an_allowance_grows_with_time_and_no_further_than_it_was() {
        let ping = frame(PING, 0, 0, &[0; 8]);
        assert_eq!(passing(client(), &ping, 20).0, 100_000);
        // Of 25 in 250 ms, 12.5 come back.
        assert_eq!(passing(client(), &ping, 10), (399, Flood::Ping));
        let reset = frame(RST_STREAM, 0, 1, &[0; 4]);
        assert_eq!(passing(client(), &reset, 50).0, 100_000);
        assert!(passing(client(), &reset, 49).0 < 6_000);

        let mut frames = client();
        frames.look(&ping, 0).unwrap();
        frames.look(&ping, u64::MAX).unwrap();
        assert_eq!(passing(frames, &ping, 0).0, 199);
    }

    #[test]
    fn a_priority_with_each_request_is_no_flood() {
        let mut both = frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x03u=1");
        both.extend_from_slice(&frame(HEADERS, END_HEADERS, 3, b"x"));
        assert_eq!(passing(client(), &both, 0).0, 100_000);
    }

    #[test]
    fn data_pays_for_the_window_that_is_returned() {
        let mut update = frame(WINDOW_UPDATE, 0, 0, &[0, 0, 4, 0]);
        update.extend_from_slice(&frame(WINDOW_UPDATE, 0, 1, &[0, 0, 4, 0]));
        let (mut client, mut server) = (client(), Frames::server());
        for _ in 0..10_000 {
            server.look(&frame(DATA, 0, 1, &[0; 1024]), 0).unwrap();
            client.credit(server.data());
            client.look(&update, 0).unwrap();
        }
        assert_eq!(server.data(), 10_000 << 10);
        assert_eq!(passing(client, &update, 0), (500, Flood::WindowUpdate));
        // What has been paid is not paid again.
        client.credit(server.data());
        assert_eq!(passing(client, &update, 0).0, 500);
        client.credit(u64::MAX);
        assert_eq!(passing(client, &update, 0).0, 1 << 15);
    }

    #[test]
    fn a_server_answers_for_resets_alone() {
        let (count, flood) = passing(Frames::server(), &frame(RST_STREAM, 0, 1, &[0; 4]), 0);
        assert_eq!((count, flood), (100, Flood::Reset));
        for frame in [
            frame(PING, 1, 0, &[0; 8]),
            frame(SETTINGS, 1, 0, &[]),
            frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]),
        ] {
            assert_eq!(passing(Frames::server(), &frame, 0).0, 100_000);
        }
    }

    #[test]
    fn continuations_are_counted_in_each_block() {
        let mut frames = client();
        for _ in 0..3 {
            frames.look(&frame(HEADERS, 0, 1, b"x"), 0).unwrap();
            for _ in 0..63 {
                frames.look(&frame(CONTINUATION, 0, 1, b"x"), 0).unwrap();
                assert!(!frames.at_boundary());
            }
            frames
                .look(&frame(CONTINUATION, END_HEADERS, 1, b"x"), 0)
                .unwrap();
            assert!(frames.at_boundary());
        }
    }

    #[test]
    fn a_boundary_is_where_any_frame_may_stand() {
        let mut frames = Frames::client();
        assert!(!frames.at_boundary());
        frames.look(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0).unwrap();
        assert!(frames.at_boundary() && Frames::server().at_boundary());
        let data = frame(DATA, 0, 1, b"abc");
        for end in 1..data.len() {
            let mut frames = frames;
            frames.look(&data[..end], 0).unwrap();
            assert!(!frames.at_boundary(), "{end}");
            frames.look(&data[end..], 0).unwrap();
            assert!(frames.at_boundary());
        }
    }

    #[test]
    fn the_last_stream_is_the_highest_with_headers() {
        let mut frames = client();
        for (stream, last) in [(1, 1), (7, 7), (5, 7), (0x8000_0009, 9)] {
            frames
                .look(&frame(HEADERS, END_HEADERS, stream, b"x"), 0)
                .unwrap();
            frames.look(&frame(DATA, 0, stream + 100, b"x"), 0).unwrap();
            assert_eq!(frames.last_stream(), last);
        }
    }

    #[test]
    fn goaway_is_a_whole_frame() {
        let bytes = goaway(u32::MAX, true);
        assert_eq!(
            bytes.as_slice(),
            frame(GOAWAY, 0, 0, b"\x7f\xff\xff\xff\0\0\0\x0b")
        );
        assert_eq!(goaway(5, false)[9..], [0, 0, 0, 5, 0, 0, 0, 0]);
        let mut frames = Frames::server();
        frames.look(&bytes, 0).unwrap();
        assert!(frames.at_boundary());
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(
            list in prop::collection::vec((0u8..0x12, any::<u8>(), 0u32..9, 0usize..20), 0..300),
            size in 1usize..40,
        ) {
            let bytes: Vec<u8> = list
                .iter()
                .flat_map(|(kind, flags, stream, len)| frame(*kind, *flags, *stream, &vec![0; *len]))
                .collect();
            for begun in [client(), Frames::server()] {
                let (mut whole, mut pieces) = (begun, begun);
                let said = whole.look(&bytes, 9);
                let parts = bytes.chunks(size).map(|piece| pieces.look(piece, 9));
                let parts = parts.fold(Ok(()), Result::and);
                prop_assert_eq!(said, parts);
                prop_assert_eq!(whole.last_stream(), pieces.last_stream());
                if said.is_ok() {
                    prop_assert!(whole.at_boundary() == pieces.at_boundary());
                    prop_assert_eq!(whole.data(), pieces.data());
                }
            }
        }
    }
}
