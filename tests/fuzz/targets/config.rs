//! A settings file: no panic, and every fault says where and what to do.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vestibule::config::file::File;

fuzz_target!(|text: &str| {
    let faults = match File::parse(text) {
        Err(error) => error,
        // A folder of certificates is looked at on the disk: not here.
        Ok(_) if text.contains("cert_dir") => return,
        Ok(file) => match file.resolve() {
            Err(error) => error,
            Ok(_) => return,
        },
    };
    assert!(!faults.0.is_empty());
    for fault in &faults.0 {
        assert!(!fault.key.is_empty() || fault.line.is_some(), "{fault:?}");
        assert!(
            !fault.problem.is_empty() && !fault.way_out.is_empty(),
            "{fault:?}"
        );
    }
    let _ = faults.to_string();
});
