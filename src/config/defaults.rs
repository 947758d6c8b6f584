//! What holds where nothing is said, and the bounds of what may be said, each with its reason.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::ProxyTlv;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// More threads than any machine this runs on has CPUs is a slip of the pen.
pub const WORKERS: RangeInclusive<u32> = 1..=1024;

/// One read. 64 KiB takes four full TLS records with one system call, which gets most of what
/// larger reads could save.
pub const BUFFER_SIZE: usize = 64 * KIB;
/// Below 1 KiB the system calls cost more than the bytes; above 1 MiB one connection would hold
/// what many could use.
pub const BUFFER_SIZES: RangeInclusive<usize> = KIB..=MIB;

/// The share of the memory limit that is the pool's default bound: an eighth. Idle connections hold
/// no buffer, so the rest is theirs (a few KiB each) and the kernel's socket buffers'.
pub const POOL_SHARE: u64 = 8;
/// The default bound never falls below this, where the memory limit is small or unknown.
pub const POOL_MIN: usize = 8 * MIB;
/// The default bound never rises above this: more than a gigabyte in flight at once is a backend or
/// a network that stands still, and back pressure is the better answer.
pub const POOL_MAX: usize = GIB;
/// Least number of record-sized buffers a worker must be able to hold at once. A busy connection
/// has two (one a direction), so sixteen let eight connections move together on each worker before
/// any has to wait.
pub const POOL_RECORDS_PER_WORKER: usize = 16;
/// Room for one TLS record: 16,384 bytes, 2,048 of overhead that a peer may add, header, tag,
/// rounded to whole pages.
pub const RECORD_BUFFER: usize = 20 * KIB;
/// Nobody has this much; a larger bound would be none.
pub const POOL_LIMIT: u64 = 1 << 40;

/// The least bound of a pool for `workers` threads: [`POOL_RECORDS_PER_WORKER`] records each, and
/// never less than one full buffer a direction.
pub fn pool_floor(workers: usize, buffer_size: usize) -> usize {
    let records = POOL_RECORDS_PER_WORKER * RECORD_BUFFER;
    workers.saturating_mul(records.max(2 * buffer_size))
}

/// The kernel itself takes no socket buffer below some 2 KiB, and none at or above 2 GiB.
pub const SOCKET_BUFFERS: RangeInclusive<usize> = 2 * KIB..=GIB;

/// What may wait in the kernel that the path has no room for. Without a bound the kernel takes what its send buffer can grow to, some
/// 4 MiB for each client that has stopped reading; this is more than a path needs between two rounds of the event loop.
pub const NOTSENT_LOWAT: usize = 128 * KIB;

/// Keepalive: the first probe comes before the idle timers of most NATs and cloud balancers (a few
/// minutes) forget a silent connection, and seldom enough for a phone's battery.
pub const KEEPALIVE: Duration = Duration::from_secs(75);
/// The pause between probes is a sixth and the kernel counts whole seconds, up to 32,767 of them.
pub const KEEPALIVES: RangeInclusive<Duration> = Duration::from_secs(6)..=HOUR.saturating_mul(9);
/// TCP_USER_TIMEOUT: a client that vanished with bytes in flight is dropped after this, not after
/// the kernel's quarter of an hour. Linux lets it end keepalive too: with one probe unanswered, a
/// connection dies as soon as this much time has passed since the last answer. So it must outlast
/// the last of the three probes (75 s + 2 x 12 s), or one lost packet would cost a silent client
/// its connection.
pub const USER_TIMEOUT: Duration = Duration::from_secs(100);
/// Under a second one lost packet on a slow path would end a connection.
pub const USER_TIMEOUTS: RangeInclusive<Duration> = SECOND..=DAY;

/// Accept queue: a thundering herd after a restart fits; the kernel lowers it to
/// `net.core.somaxconn`.
pub const BACKLOG: u32 = 1024;
/// What listen(2) may be told.
pub const BACKLOGS: RangeInclusive<u32> = 1..=65_535;
/// The kernel's own ceiling on open files of a process is about 2^30, two a connection.
pub const CONNECTIONS: RangeInclusive<u32> = 1..=500_000_000;

/// First byte: XMPP clients speak first, so one that connects and says nothing is not one.
pub const FIRST_BYTE: Duration = Duration::from_secs(10);
/// Before STARTTLS: two round trips and a slow phone.
pub const STARTTLS: Duration = Duration::from_secs(30);
/// Until authenticated: a person may be typing a password; servers allow two minutes and more.
pub const AUTHENTICATION: Duration = MINUTE.saturating_mul(2);
/// Handshake: a slow phone on a bad network needs a few seconds; an idle socket gets no more.
pub const HANDSHAKE: Duration = Duration::from_secs(10);
/// Connect: backends are near; what has not answered by then is down and the next is tried.
pub const CONNECT: Duration = Duration::from_secs(5);
/// Idle: never. Chat connections are silent for hours; keepalive finds the dead ones.
pub const IDLE: Duration = Duration::ZERO;
/// Half closed: time to send what is left after one side has ended, not to stay for ever.
pub const HALF_CLOSED: Duration = MINUTE.saturating_mul(2);
/// Stall: only counts while others wait for a buffer.
pub const STALL: Duration = Duration::from_secs(5);
/// Drain: container runtimes wait 10 s to 30 s before they kill; set theirs above this.
pub const DRAIN: Duration = Duration::from_secs(30);
/// Any deadline but zero. More than a month is for ever, and `0` says that.
pub const DEADLINES: RangeInclusive<Duration> = Duration::from_millis(1)..=DAY.saturating_mul(30);
/// The stall deadline cannot be never: a few clients that do not read could then hold the whole
/// pool.
pub const STALLS: RangeInclusive<Duration> = Duration::from_millis(100)..=HOUR;

/// Request: a head is some hundred bytes and comes at once.
pub const REQUEST: Duration = Duration::from_secs(10);
/// Request body: the time over which a slow upload is looked at.
pub const REQUEST_BODY: Duration = Duration::from_secs(30);
/// Answer: BOSH holds a request for a minute, some servers for two (XEP-0124 section 7.2).
pub const ANSWER: Duration = Duration::from_secs(150);
/// Upgrade: the backend has only to say yes or no.
pub const UPGRADE: Duration = Duration::from_secs(30);
/// Write: a peer that takes nothing for this long, or leaves half a record, has gone, or pretends to be slow.
pub const WRITE: Duration = MINUTE;
/// Keep alive: browsers open a new connection after a minute or two.
pub const KEEP_ALIVE: Duration = Duration::from_secs(75);

/// Head: cookies and tokens fit; browsers and servers stop at 8 to 16 KiB.
pub const HEAD_SIZE: usize = 16 * KIB;
/// A head must fit; more than this is a body in the wrong place.
pub const HEAD_SIZES: RangeInclusive<usize> = 2 * KIB..=256 * KIB;
/// Header fields of a head. Other numbers cost hyper an allocation a request.
pub const HEADERS: u16 = 100;
/// Browsers send some twenty.
pub const HEADERS_RANGE: RangeInclusive<u16> = 16..=1000;
/// Cap on a body, where there is one: stanzas over BOSH have some KiB, and more than a TiB is nobody's upload.
pub const BODY_SIZES: RangeInclusive<u64> = KIB as u64..=1 << 40;
/// Bodies: slower than any phone in a tunnel, faster than who only wants to keep a place.
pub const BODY_RATE: u32 = 256;
/// A rate above this would shut out phones.
pub const BODY_RATES: RangeInclusive<usize> = 1..=MIB;
/// Streams at once: what browsers use; each may hold a request at a backend.
pub const STREAMS: u32 = 100;
/// What a client may be told.
pub const STREAMS_RANGE: RangeInclusive<u32> = 1..=10_000;
/// Silent connections to one backend, for each worker: what a burst of requests needs at once, so that the next one need not connect
/// anew.
pub const IDLE_BACKENDS: usize = 256;
/// What a worker may be told to keep.
pub const IDLE_BACKENDS_RANGE: RangeInclusive<usize> = 0..=10_000;
/// A silent connection to a backend: shorter than servers' own limits, some of which are 5 s (Node) to 75 s.
pub const IDLE_BACKEND: Duration = Duration::from_secs(4);
/// Age of a connection to a backend: a change behind a name is taken up in time. Its range is that of deadlines.
pub const BACKEND_AGE: Duration = MINUTE.saturating_mul(10);

/// Port that plain HTTP is sent to.
pub const HTTPS_PORT: u16 = 443;
/// ALPN of HTTP, most wanted first.
pub const HTTPS_ALPN: [&str; 3] = ["h2", "http/1.1", "http/1.0"];

/// Log level.
pub const LOG_LEVEL: &str = "info";
/// ALPN of XMPP clients over Direct TLS (XEP-0368).
pub const XMPPS_ALPN: &str = "xmpp-client";
/// ALPN of XMPP servers over Direct TLS (XEP-0368).
pub const XMPPS_SERVER_ALPN: &str = "xmpp-server";

/// Guard, one element: SASL messages and features' answers have some hundred bytes, long certificates in EXTERNAL
/// some thousand.
pub const GUARD_ELEMENT_SIZE: usize = 8 * KIB;
/// What a guard's element may be told to have.
pub const GUARD_ELEMENT_SIZES: RangeInclusive<usize> = KIB..=MIB;
/// Guard, in all: every mechanism in use fits several times over.
pub const GUARD_BYTES: usize = 64 * KIB;
/// What a guard may be told to let through in all.
pub const GUARD_BYTES_RANGE: RangeInclusive<usize> = 4 * KIB..=16 * MIB;
/// Guard, elements: a login has some ten, SASL2 with its inline requests some twenty.
pub const GUARD_ELEMENTS: u32 = 32;
/// What a guard may be told to let through.
pub const GUARD_ELEMENTS_RANGE: RangeInclusive<u32> = 4..=10_000;
/// Guard, depth: a registration form has five levels.
pub const GUARD_DEPTH: u32 = 8;
/// What a guard may be told to let through.
pub const GUARD_DEPTHS: RangeInclusive<u32> = 3..=100;
/// Cap on an authenticated client's elements, where there is one. Servers take 256 KiB.
pub const ELEMENT_SIZES: RangeInclusive<usize> = 10_000..=GIB;

/// What a PROXY header of version 2 tells: all that servers' logs can use. A checksum over a loopback or a data centre's
/// network finds nothing that TCP's has not, and bindings are an experiment.
pub const PROXY_TLVS: [ProxyTlv; 4] = [
    ProxyTlv::Alpn,
    ProxyTlv::Authority,
    ProxyTlv::UniqueId,
    ProxyTlv::Ssl,
];
