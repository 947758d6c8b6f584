//! What the operating system knows and can do: the only floor that asks it directly, and the only one that may hold
//! unsafe code.

pub mod files;
pub mod limits;
pub mod memory;
pub mod random;
pub mod socket;
