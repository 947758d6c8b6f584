//! Backend, load generator and a naive proxy for comparing proxies that terminate TLS.
//!
//! `tests/bench/run` starts a proxy and this program at both of its ends. Each scenario prints one line of
//! JSON with what the users saw (latencies, errors, what was lost) and what the proxy's processes used for it.

mod backend;
mod client;
mod frames;
mod load;
mod naive;
mod report;
mod scenarios;
mod usage;

use clap::Parser;

/// Backend and load generator for comparing proxies that terminate TLS
#[derive(Parser)]
enum Command {
    /// The servers behind the proxy: TCP echo on one port, HTTP and WebSocket on another
    Backend(backend::Args),
    /// The shortest proxy one would write with tokio-rustls, as a yardstick
    Naive(naive::Args),
    /// Silent connections: what does each cost, and what after a burst?
    Idle(scenarios::idle::Args),
    /// Chat rooms over WebSocket, each user saying something at intervals
    Chat(scenarios::chat::Args),
    /// A small message there and back, as fast as it goes or at a rate
    Echo(scenarios::echo::Args),
    /// GET requests on connections that are kept
    Http(scenarios::http::Args),
    /// Connections that end after their handshake
    Handshake(scenarios::handshake::Args),
    /// Gibibytes down, then up
    Bulk(scenarios::bulk::Args),
}

/// What goes wrong ends the run: there is nothing to compare then.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    match Command::parse() {
        Command::Backend(args) => backend::run(&args),
        Command::Naive(args) => naive::run(&args),
        Command::Idle(args) => scenarios::idle::run(&args),
        Command::Chat(args) => scenarios::chat::run(&args),
        Command::Echo(args) => scenarios::echo::run(&args),
        Command::Http(args) => scenarios::http::run(&args),
        Command::Handshake(args) => scenarios::handshake::run(&args),
        Command::Bulk(args) => scenarios::bulk::run(&args),
    }
}
