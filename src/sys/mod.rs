//! The operating system: sockets and limits. The only module that may hold unsafe code.

pub mod socket;
