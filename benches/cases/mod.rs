//! What is measured, whatever measures it: named steps of the data path, each with the bytes it begins with.
//!
//! `times` and `instructions` share these. A case is made once; for each round it is asked for its [`Case::input`],
//! which is not measured, then [`Case::run`] with it, which is. Inputs may be made ahead; they are run in order.
//!
//! Nothing here measures the kernel: the socket cases cost their system calls as well in [`relay`], in the others a copy
//! into a buffer and one out of it stand for the calls, on both sides of a comparison.

mod parse;
mod pool;
mod records;
mod relay;

/// One step that can be repeated.
pub(crate) trait Case {
    /// What the next round begins with: bytes from a socket, mostly.
    fn input(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// The round.
    fn run(&mut self, input: &[u8]);
}

/// A case by its name, `group/what/…`, and how to make it.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) make: Box<dyn Fn() -> Box<dyn Case>>,
}

impl Entry {
    fn new<C: Case + 'static>(name: impl Into<String>, make: impl Fn() -> C + 'static) -> Self {
        Self {
            name: name.into(),
            make: Box::new(move || Box::new(make())),
        }
    }
}

/// All of them, in the order of a report.
pub(crate) fn all() -> Vec<Entry> {
    let groups = [
        records::entries(),
        pool::entries(),
        relay::entries(),
        parse::entries(),
    ];
    groups.into_iter().flatten().collect()
}
