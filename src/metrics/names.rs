//! Every metric once: its name, its kind, its labels and what it means.
//!
//! Names begin with `vestibule_`, use base units (seconds, bytes) and end in `_total` when they only
//! grow. Labels have few values, all known at start; a client, a name asked for or any other text that
//! a stranger chooses is never a label.

/// How a value behaves over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows while the process lives.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts how often a value was how large, in buckets.
    Histogram,
}

impl Kind {
    /// The word that the text exposition uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// What is known about a metric before anything is counted.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    /// Name, unique.
    pub name: &'static str,
    /// How its value behaves.
    pub kind: Kind,
    /// Names of its labels, in the order in which samples give them.
    pub labels: &'static [&'static str],
    /// One line for people.
    pub help: &'static str,
}

/// Declares each metric as a constant and all of them as [`ALL`], so that none can be left out of it.
macro_rules! metrics {
    ($($constant:ident: $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(
            #[doc = concat!("`", $name, "`: ", $help)]
            pub const $constant: Metric = Metric {
                name: $name,
                kind: Kind::$kind,
                labels: &[$($label),*],
                help: $help,
            };
        )*

        /// Every metric, in the order in which they are shown.
        pub const ALL: &[&Metric] = &[$(&$constant),*];
    };
}

metrics! {
    // The process.
    BUILD_INFO: Gauge "vestibule_build_info" ["version"]
        "Always 1; the label says which version runs.";
    START_TIME_SECONDS: Gauge "vestibule_start_time_seconds" []
        "When the process started, in seconds since the Unix epoch.";
    READY: Gauge "vestibule_ready" []
        "1 while new connections are accepted, 0 while starting or draining.";
    WORKERS: Gauge "vestibule_workers" []
        "Worker threads.";
    OPEN_FILES: Gauge "vestibule_open_files" []
        "Open file descriptors.";
    MAX_OPEN_FILES: Gauge "vestibule_max_open_files" []
        "Most file descriptors that the process may open.";

    // Connections of clients.
    CONNECTIONS_TOTAL: Counter "vestibule_connections_total" ["listener"]
        "Connections accepted.";
    CONNECTIONS: Gauge "vestibule_connections" ["listener"]
        "Connections held now.";
    REFUSED_TOTAL: Counter "vestibule_refused_total" ["listener", "reason"]
        "Connections closed at once because a limit was reached.";
    ACCEPT_ERRORS_TOTAL: Counter "vestibule_accept_errors_total" ["listener", "reason"]
        "Times that accepting a connection failed.";
    SESSIONS_ENDED_TOTAL: Counter "vestibule_sessions_ended_total" ["listener", "outcome"]
        "Connections that ended, by how they ended.";
    BYTES_TOTAL: Counter "vestibule_bytes_total" ["listener", "direction"]
        "Payload bytes moved; up is from client to backend.";

    // TLS with clients.
    HANDSHAKES_TOTAL: Counter "vestibule_handshakes_total" ["listener", "version", "kind"]
        "TLS handshakes completed; kind is full or resumed.";
    HANDSHAKE_DURATION_SECONDS: Histogram "vestibule_handshake_duration_seconds" ["listener"]
        "TLS handshakes completed, by how long they took from accept, or from our proceed of STARTTLS, to the client's Finished.";
    HANDSHAKE_FAILURES_TOTAL: Counter "vestibule_handshake_failures_total" ["listener", "reason"]
        "TLS handshakes that failed.";
    RECORD_ERRORS_TOTAL: Counter "vestibule_record_errors_total" ["listener", "reason"]
        "Connections ended after the handshake because the client broke TLS.";
    KEY_UPDATES_TOTAL: Counter "vestibule_key_updates_total" ["listener", "direction"]
        "TLS 1.3 key updates; up is the client's sending key, down is ours.";
    CERTIFICATE_EXPIRY_SECONDS: Gauge "vestibule_certificate_expiry_seconds" ["name"]
        "When a certificate expires, in seconds since the Unix epoch.";

    // XMPP streams.
    XMPP_STREAMS: Gauge "vestibule_xmpp_streams" ["listener", "domain", "phase"]
        "XMPP streams now, by phase: opening, handshake, authentication, established, passed.";
    XMPP_STREAMS_ENDED_TOTAL: Counter "vestibule_xmpp_streams_ended_total" ["listener", "domain", "phase", "reason"]
        "XMPP streams that ended, by the phase they were in and the reason; only combinations that occurred.";

    // Requests of HTTP.
    HTTP_REQUESTS_TOTAL: Counter "vestibule_http_requests_total" ["listener", "route", "code"]
        "HTTP requests, by the route they took and the class of the answer; only combinations that occurred.";
    HTTP_REQUEST_DURATION_SECONDS: Histogram "vestibule_http_request_duration_seconds" ["listener", "kind"]
        "From the head of a request that went to a backend to the first byte of its answer; kind is request or long_poll.";
    HTTP_OPEN: Gauge "vestibule_http_open" ["listener", "kind"]
        "HTTP requests that have not ended, and WebSockets.";
    HTTP_UPGRADES_TOTAL: Counter "vestibule_http_upgrades_total" ["listener", "version", "outcome"]
        "Requests for a WebSocket, by version of HTTP: switched, refused by the backend, or failed.";
    HTTP_REFUSED_TOTAL: Counter "vestibule_http_refused_total" ["listener", "reason"]
        "HTTP requests and connections that got an answer of our own, or none; only reasons that occurred.";
    HTTP_CUT_SHORT_TOTAL: Counter "vestibule_http_cut_short_total" ["listener", "side"]
        "HTTP requests whose answer did not come to its end, by the side that ended it.";
    HTTP_BACKEND_RESPONSES_TOTAL: Counter "vestibule_http_backend_responses_total" ["upstream", "backend", "code"]
        "Answers of HTTP backends, by their class; only combinations that occurred.";

    // Backends.
    DIALS_TOTAL: Counter "vestibule_dials_total" ["upstream", "backend", "outcome"]
        "Attempts to connect to a backend.";
    BACKEND_CONNECTIONS: Gauge "vestibule_backend_connections" ["upstream", "backend"]
        "Connections to a backend held now.";

    // The buffer pool.
    POOL_ENABLED: Gauge "vestibule_pool_enabled" []
        "1 with the shared buffer pool, 0 with a fresh allocation each time (--no-buffer-pool).";
    POOL_LIMIT_BYTES: Gauge "vestibule_pool_limit_bytes" []
        "Most bytes that all buffers together may take.";
    POOL_BYTES: Gauge "vestibule_pool_bytes" []
        "Bytes allocated for buffers, leased or free.";
    POOL_LEASED_BYTES: Gauge "vestibule_pool_leased_bytes" []
        "Bytes of buffers in use now.";
    POOL_WAITS_TOTAL: Counter "vestibule_pool_waits_total" []
        "Times that a read had to wait for a buffer.";
    POOL_WAITING: Gauge "vestibule_pool_waiting" []
        "Reads that wait for a buffer now.";
    POOL_ALLOCATIONS_TOTAL: Counter "vestibule_pool_allocations_total" []
        "Buffers taken from the allocator.";

    // The control plane.
    RELOADS_TOTAL: Counter "vestibule_reloads_total" ["outcome"]
        "Reloads asked for, by outcome.";
    LOG_LINES_DROPPED_TOTAL: Counter "vestibule_log_lines_dropped_total" []
        "Log and access lines lost because their reader was too slow or gone, or the disk refused them.";
    LOG_LINES_SUPPRESSED_TOTAL: Counter "vestibule_log_lines_suppressed_total" []
        "Repeated warnings and errors that were counted instead of printed.";
}

/// Values of the label `reason` of handshakes that failed. The last one stands for what is not in the list.
pub const HANDSHAKE_FAILURES: &[&str] = &[
    "alert_received",
    "bad_certificate",
    "bad_record_mac",
    "client_gone",
    "closed",
    "decode_error",
    "illegal_parameter",
    "incompatible",
    "internal",
    "key_exhausted",
    "misbehaved",
    "no_common_alpn",
    "no_common_group",
    "no_common_signature",
    "no_common_suite",
    "no_common_version",
    "not_tls",
    "record_overflow",
    "record_version",
    "silent",
    "timeout",
    "too_long",
    "unexpected_message",
    "unknown_name",
    "other",
];

/// Values of the label `reason` of connections that ended because the client broke TLS after the handshake.
pub const RECORD_ERRORS: &[&str] = &[
    "alert_received",
    "bad_record_mac",
    "decode_error",
    "illegal_parameter",
    "key_exhausted",
    "record_overflow",
    "record_version",
    "unexpected_message",
    "other",
];

/// Values of the label `outcome` of sessions that ended.
pub const OUTCOMES: &[&str] = &[
    "backend_gone",
    "backend_tls_error",
    "backend_truncated",
    "client_gone",
    "authentication_timeout",
    "client_tls_error",
    "closed",
    "drained",
    "half_closed_timeout",
    "handshake_failed",
    "idle_timeout",
    "no_backend",
    "opening_failed",
    "panicked",
    "refused",
    "stalled",
    "truncated",
    "other",
];

/// Values of the label `phase` of XMPP streams, in their order.
pub const PHASES: &[&str] = &[
    "opening",
    "handshake",
    "authentication",
    "established",
    "passed",
];

/// Values of the label `reason` of XMPP streams that ended: how a session ended, why its handshake failed, or the
/// condition of the stream error that we sent (RFC 6120 section 4.9.3).
pub const STREAM_REASONS: &[&str] = &[
    "authentication_timeout",
    "backend_gone",
    "backend_tls_error",
    "backend_truncated",
    "client_gone",
    "client_tls_error",
    "closed",
    "drained",
    "first_byte_timeout",
    "half_closed_timeout",
    "handshake_failed",
    "http",
    "idle_timeout",
    "injection",
    "no_backend",
    "no_certificate",
    "panicked",
    "silent",
    "stalled",
    "timeout",
    "truncated",
    "bad-format",
    "bad-namespace-prefix",
    "connection-timeout",
    "host-unknown",
    "improper-addressing",
    "internal-server-error",
    "invalid-namespace",
    "invalid-xml",
    "not-authorized",
    "not-well-formed",
    "policy-violation",
    "remote-connection-failed",
    "resource-constraint",
    "restricted-xml",
    "unsupported-encoding",
    "unsupported-version",
    "other",
];

/// Values of the label `outcome` of attempts to connect to a backend.
pub const DIALS: &[&str] = &[
    "ok",
    "no_address",
    "no_resources",
    "refused",
    "timeout",
    "tls_error",
    "error",
];

/// Values of the label `reason` of connections that were refused.
pub const REFUSALS: &[&str] = &[
    "max_connections",
    "max_connections_per_ip",
    "no_address",
    "no_worker",
    "other",
];

/// Values of the label `reason` of errors of accept(2).
pub const ACCEPT_ERRORS: &[&str] = &[
    "aborted",
    "memory",
    "process_files",
    "system_files",
    "other",
];

/// Values of the label `code` of answers of HTTP: the class of their status. The first stands for a request that ended without
/// an answer.
pub const CODES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// Value of the label `route` of requests that took none, as in the access log.
pub const NO_ROUTE: &str = "-";

/// Values of the label `kind` of the durations of requests.
pub const WAITS: [&str; 2] = ["request", "long_poll"];

/// Values of the label `kind` of what is open of HTTP.
pub const HTTP_KINDS: [&str; 2] = ["requests", "tunnels"];

/// Values of the label `version` of requests for a WebSocket.
pub const UPGRADE_VERSIONS: [&str; 2] = ["1.1", "2"];

/// Values of the label `outcome` of requests for a WebSocket.
pub const UPGRADES: [&str; 3] = ["switched", "refused", "failed"];

/// Values of the label `side` of answers that did not come to their end.
pub const SIDES: [&str; 2] = ["backend", "client"];

/// Values of the label `reason` of requests that were refused: problems of one request, what is wrong with the framing of
/// HTTP/1.1, and floods of HTTP/2. The last one stands for what is not in the list.
pub const HTTP_REFUSED: &[&str] = &[
    "answer_timeout",
    "backend_gone",
    "bad_answer",
    "bad_request",
    "bare_cr",
    "bare_lf",
    "blank_lines",
    "body_size",
    "chunk_end",
    "chunk_extension",
    "chunk_size",
    "connect",
    "content_length",
    "content_length_forbidden",
    "content_length_repeated",
    "continuation",
    "control",
    "empty_data",
    "empty_name",
    "extra_bytes",
    "goaway",
    "head_too_large",
    "header_name",
    "headers",
    "host",
    "host_mismatch",
    "host_missing",
    "host_repeated",
    "interim",
    "length_and_encoding",
    "misdirected",
    "no_backend",
    "no_route",
    "obs_fold",
    "ping",
    "priority",
    "request_body_timeout",
    "request_line",
    "request_line_too_long",
    "request_timeout",
    "reset",
    "settings",
    "space_before_colon",
    "status_line",
    "target",
    "too_many_headers",
    "trailer",
    "transfer_encoding",
    "transfer_encoding_forbidden",
    "transfer_encoding_repeated",
    "unasked_upgrade",
    "underscore",
    "unknown",
    "upgrade_timeout",
    "upgrade_with_body",
    "version",
    "websocket_version",
    "window_update",
    "other",
];

/// Bounds of the buckets of requests' durations, in microseconds. The last is the longest that a backend may take by default.
pub const DURATIONS_US: [u64; 17] = [
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    90_000_000,
    150_000_000,
];

/// Bounds of the buckets of handshakes, in microseconds: from a resumption next door to the longest that one may take by
/// default.
pub const HANDSHAKES_US: [u64; 13] = [
    1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000,
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_prefixed() {
        let mut seen = HashSet::new();
        for metric in ALL {
            assert!(seen.insert(metric.name), "{} is named twice", metric.name);
            let rest = metric.name.strip_prefix("vestibule_").unwrap_or("");
            assert!(!rest.is_empty(), "{} lacks the prefix", metric.name);
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(metric.name.chars().all(plain), "{}", metric.name);
        }
    }

    #[test]
    fn counters_and_only_counters_end_in_total() {
        for metric in ALL {
            let total = metric.name.ends_with("_total");
            assert_eq!(total, metric.kind == Kind::Counter, "{}", metric.name);
        }
    }

    #[test]
    fn units_are_base_units() {
        const DERIVED: &[&str] = &[
            "ms",
            "millis",
            "milliseconds",
            "us",
            "micros",
            "minutes",
            "hours",
            "days",
            "kb",
            "kib",
            "mb",
            "mib",
            "kilobytes",
            "megabytes",
            "bits",
            "percent",
        ];
        for metric in ALL {
            for word in metric.name.split('_') {
                assert!(!DERIVED.contains(&word), "{}: {word}", metric.name);
            }
        }
    }

    #[test]
    fn each_metric_is_explained_in_one_line() {
        for metric in ALL {
            assert!(metric.help.ends_with('.'), "{}", metric.name);
            assert!(!metric.help.contains('\n'), "{}", metric.name);
        }
    }

    #[test]
    fn labels_are_distinct_and_never_a_client() {
        for metric in ALL {
            let distinct: HashSet<_> = metric.labels.iter().collect();
            assert_eq!(distinct.len(), metric.labels.len(), "{}", metric.name);
            for label in metric.labels {
                assert!(
                    !["client", "addr", "ip", "sni", "le"].contains(label),
                    "{}",
                    metric.name
                );
            }
        }
    }
}
