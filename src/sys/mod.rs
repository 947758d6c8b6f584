//! What the operating system knows and can do: the only floor that asks it directly.

pub mod limits;
