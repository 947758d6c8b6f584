//! Vestibule.
pub mod config;
pub mod metrics;
pub mod pool;
pub mod sys;
pub mod wire;
pub mod tls;
pub mod endpoint;
pub mod relay;
