//! How long the steps of the data path take: `cargo bench --bench times`, with a part of a name behind `--` for some of them.
//!
//! Times depend on the machine and on who else uses it; what CI compares is `instructions`.

#![allow(clippy::expect_used, reason = "a benchmark that cannot run ends there")]

mod cases;

use std::cell::RefCell;

fn main() {
    divan::main();
}

fn names() -> Vec<String> {
    cases::all().into_iter().map(|entry| entry.name).collect()
}

#[divan::bench(args = names())]
fn step(bencher: divan::Bencher<'_, '_>, name: &String) {
    let mut entries = cases::all().into_iter();
    let entry = entries.find(|entry| entry.name == *name).expect("listed");
    let case = RefCell::new((entry.make)());
    bencher
        .with_inputs(|| case.borrow_mut().input())
        .bench_local_refs(|input| case.borrow_mut().run(input));
}
