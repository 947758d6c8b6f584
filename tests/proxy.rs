//! The program as its users meet it: started with flags, spoken to over TCP, judged by what arrives, by
//! alerts and by its metrics.
//!
//! One binary with a module for each topic. `support` has the cast; where the behaviour is that of any TLS
//! proxy, a test runs against a naive one too (`support::oracle`).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    unreachable_pub,
    dead_code,
    reason = "tests; support is used by several modules, each a part of it"
)]

mod support;

mod proxy {
    mod backends;
    mod bytes;
    mod close;
    mod counters;
    mod drain;
    mod flow;
    mod guard;
    mod handshake;
    mod hellos;
    mod http_deadlines;
    mod http_forward;
    mod http_framing;
    mod http_ledger;
    mod http_routes;
    mod http_two;
    mod http_websocket;
    mod ledger;
    mod limits;
    mod logs;
    mod passthrough;
    mod pool;
    mod probe;
    mod proxy_protocol;
    mod records;
    mod starttls;
    mod starve;
    mod streams;
}
