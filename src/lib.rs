//! Vestibule: the TLS front door of chat services.

pub mod cli;
pub mod config;
pub mod sys;
