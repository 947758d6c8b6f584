//! The `vestibule` program.

fn main() {}
