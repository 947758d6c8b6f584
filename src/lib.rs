//! Vestibule: the TLS front door of chat services.

pub mod config;
pub mod sys;
