//! What users do. Each scenario is a command, and says what its figures mean.

pub mod bulk;
pub mod chat;
pub mod echo;
pub mod handshake;
pub mod http;
pub mod idle;
