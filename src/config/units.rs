//! Sizes and durations as people write them.
//!
//! SIZE is bytes or a number with a unit (`4KiB`, `16MiB`; `4KB` is 4,000), DURATION a number with
//! a unit (`10s`, `5m`, `1h 30m`), where `0` is never. What [`size_text`] and [`duration_text`]
//! write, [`size`] and [`duration`] read back to the same value.

use std::time::Duration;

use bytesize::ByteSize;

use super::error::Reason;

/// Reads a SIZE, in bytes.
pub fn size(text: &str) -> Result<usize, Reason> {
    text.trim()
        .parse::<ByteSize>()
        .ok()
        // Beyond 2^64 `bytesize` saturates: a size nobody means.
        .filter(|size| size.as_u64() < u64::MAX)
        .and_then(|size| usize::try_from(size.as_u64()).ok())
        .ok_or_else(|| {
            Reason::new(
                format!("{text:?} is not a size"),
                "write bytes (65536) or a number with a unit (64KiB, 16MiB)",
            )
        })
}

/// Reads a DURATION; `0` needs no unit.
pub fn duration(text: &str) -> Result<Duration, Reason> {
    let trimmed = text.trim();
    if !trimmed.is_empty() && trimmed.bytes().all(|byte| byte == b'0') {
        return Ok(Duration::ZERO);
    }
    humantime::parse_duration(trimmed).map_err(|_| {
        if trimmed.parse::<f64>().is_ok() {
            Reason::new(
                format!("{text:?} has no unit"),
                format!("write {trimmed}s, {trimmed}m, or 0 for never"),
            )
        } else {
            Reason::new(
                format!("{text:?} is not a duration"),
                "write a number with a unit (500ms, 10s, 5m, 1h 30m), or 0 for never",
            )
        }
    })
}

/// Writes a size in the largest binary unit that holds it exactly.
pub fn size_text(bytes: usize) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes > 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// Writes a duration as people do: in one unit where a number below 1000 holds it exactly (`75s`,
/// `2m`), else in several (`1h 2m 3s`); zero is `0`.
pub fn duration_text(duration: Duration) -> String {
    const UNITS: [(u64, &str); 5] = [
        (86_400_000_000, "d"),
        (3_600_000_000, "h"),
        (60_000_000, "m"),
        (1_000_000, "s"),
        (1_000, "ms"),
    ];
    if duration.is_zero() {
        return "0".to_owned();
    }
    let whole = duration.as_nanos().is_multiple_of(1_000);
    if let (true, Ok(micros)) = (whole, u64::try_from(duration.as_micros())) {
        for (unit, name) in UNITS {
            if micros.is_multiple_of(unit) && micros / unit < 1_000 {
                return format!("{}{name}", micros / unit);
            }
        }
    }
    humantime::format_duration(duration).to_string()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_are_written_as_people_write_them() {
        for (duration, text) in [
            (Duration::ZERO, "0"),
            (Duration::from_millis(500), "500ms"),
            (Duration::from_secs(75), "75s"),
            (Duration::from_secs(120), "2m"),
            (Duration::from_secs(5_400), "90m"),
            (Duration::from_secs(86_400 * 30), "30d"),
            (Duration::from_millis(3_723_004), "1h 2m 3s 4ms"),
        ] {
            assert_eq!(duration_text(duration), text);
        }
    }

    #[test]
    fn size_reads_bytes_and_units() {
        for (text, bytes) in [
            ("0", 0),
            ("65536", 65_536),
            ("4KiB", 4_096),
            ("4 KiB", 4_096),
            ("4kib", 4_096),
            ("4KB", 4_000),
            ("16MiB", 16 << 20),
            ("1.5GiB", 3 << 29),
            (" 8MiB ", 8 << 20),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn size_refuses_what_is_none_and_says_what_is() {
        for text in [
            "",
            "lots",
            "-1",
            "4 apples",
            "1e9",
            "99999999999GiB",
            "KiB",
            "0x10",
        ] {
            assert_eq!(
                size(text).unwrap_err().to_string(),
                format!(
                    "{text:?} is not a size; write bytes (65536) or a number with a unit (64KiB, 16MiB)"
                )
            );
        }
    }

    #[test]
    fn duration_reads_units_and_zero() {
        for (text, millis) in [
            ("0", 0),
            ("00", 0),
            ("0s", 0),
            ("10s", 10_000),
            ("500ms", 500),
            ("5m", 300_000),
            ("1h 30m", 5_400_000),
            ("1h30m", 5_400_000),
            (" 2m ", 120_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn duration_refuses_what_is_none_and_says_what_is() {
        assert_eq!(
            duration("10").unwrap_err().to_string(),
            "\"10\" has no unit; write 10s, 10m, or 0 for never"
        );
        for text in ["", "soon", "-1s", "10 parsecs", "99999999999999999999s"] {
            assert_eq!(
                duration(text).unwrap_err().to_string(),
                format!(
                    "{text:?} is not a duration; write a number with a unit (500ms, 10s, 5m, 1h 30m), or 0 for never"
                )
            );
        }
    }

    #[test]
    fn size_text_is_short_and_exact() {
        for (bytes, text) in [
            (0, "0"),
            (1000, "1000"),
            (1024, "1KiB"),
            (1536, "1536"),
            (65_536, "64KiB"),
            (1 << 30, "1GiB"),
        ] {
            assert_eq!(size_text(bytes), text);
        }
    }

    proptest! {
        #[test]
        fn texts_read_back_to_the_same_value(bytes in 0..usize::MAX, nanos in 0..u64::MAX) {
            prop_assert_eq!(size(&size_text(bytes)), Ok(bytes));
            let time = Duration::from_nanos(nanos);
            prop_assert_eq!(duration(&duration_text(time)), Ok(time));
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = size(&text);
            let _ = duration(&text);
        }
    }
}
