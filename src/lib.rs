#![doc = include_str!("ARCHITECTURE.md")]

pub mod cli;
pub mod config;
pub mod control;
pub mod endpoint;
pub mod handler;
pub mod metrics;
pub mod pool;
pub mod relay;
pub mod route;
pub mod sys;
pub mod tls;
pub mod upstream;
pub mod wire;
pub mod worker;
