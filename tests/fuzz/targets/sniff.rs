//! First bytes of a connection: no panic, no second thoughts, decided in time.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vestibule::wire::sniff::{SNIFF_MAX, Sniff, sniff};

fuzz_target!(|bytes: &[u8]| {
    let whole = sniff(bytes);
    for end in 0..bytes.len().min(2 * SNIFF_MAX) {
        let prefix = sniff(&bytes[..end]);
        assert!(prefix == Sniff::NeedMore || prefix == whole);
    }
    assert!(whole != Sniff::NeedMore || bytes.len() < SNIFF_MAX);
});
