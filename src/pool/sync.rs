//! The primitives the depot is built on. `tests/loom.rs` compiles `depot.rs` over loom's instead.

pub(super) use std::sync::atomic::{AtomicUsize, Ordering};
pub(super) use std::sync::{Mutex, MutexGuard};
