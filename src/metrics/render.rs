//! Prometheus text exposition (format 0.0.4), written by hand.
//!
//! An [`Exposition`] gathers samples family by family and keeps the rules that a scraper insists on:
//! each family stands once with its help and type before its samples, label values and help are
//! escaped. The order is that of first mention, so two scrapes of the same state are equal bytes.

use super::durations::Durations;
use super::names::Metric;
use super::quote;
use std::fmt::Write;

/// The value of the `Content-Type` header that goes with the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A scrape under construction.
///
/// ```
/// use vestibule::metrics::{names, render::Exposition};
///
/// let mut page = Exposition::new();
/// page.family(&names::CONNECTIONS_TOTAL).sample(&[("listener", "tls-8443")], 7u64);
/// assert!(page.finish().ends_with("vestibule_connections_total{listener=\"tls-8443\"} 7\n"));
/// ```
#[derive(Debug, Default)]
pub struct Exposition {
    families: Vec<(&'static str, String)>,
}

impl Exposition {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens the family of `metric`, or opens it again if it was mentioned before: its samples
    /// stay together whatever the order of the calls.
    pub fn family<'a>(&'a mut self, metric: &'a Metric) -> Family<'a> {
        // A scrape has some thirty families; a look through them costs less than hashing.
        let place = match self
            .families
            .iter()
            .position(|(name, _)| *name == metric.name)
        {
            Some(place) => place,
            None => {
                let mut text = String::new();
                let _ = write!(text, "# HELP {} ", metric.name);
                quote::help(&mut text, metric.help);
                let _ = writeln!(text, "\n# TYPE {} {}", metric.name, metric.kind.as_str());
                self.families.push((metric.name, text));
                self.families.len() - 1
            }
        };
        Family {
            metric,
            text: &mut self.families[place].1,
        }
    }

    /// The whole text.
    pub fn finish(self) -> String {
        let mut page =
            String::with_capacity(self.families.iter().map(|(_, text)| text.len()).sum());
        for (_, text) in &self.families {
            page.push_str(text);
        }
        page
    }
}

/// One metric of an [`Exposition`], to which samples are added.
#[derive(Debug)]
pub struct Family<'a> {
    metric: &'a Metric,
    text: &'a mut String,
}

impl Family<'_> {
    /// Adds one sample. `labels` are pairs of name and value, named as the metric declares them.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Into<Value>) -> &mut Self {
        self.line("", labels, None, value.into());
        self
    }

    /// Adds the samples of a histogram: how many values lay in each bucket, the upper bounds of all but the last, which has
    /// none, and the sum of all values.
    pub fn histogram(
        &mut self,
        labels: &[(&str, &str)],
        bounds: impl IntoIterator<Item = f64>,
        buckets: &[u64],
        sum: f64,
    ) -> &mut Self {
        let mut count = 0;
        let bounds = bounds.into_iter().chain([f64::INFINITY]);
        for (bucket, bound) in buckets.iter().zip(bounds) {
            count += bucket;
            self.line("_bucket", labels, Some(bound), count.into());
        }
        self.line("_sum", labels, None, sum.into());
        self.line("_count", labels, None, count.into());
        self
    }

    /// The same, of all workers together. `bounds_us` are those that they were made with.
    pub fn durations<'a>(
        &mut self,
        labels: &[(&str, &str)],
        bounds_us: &[u64],
        all: impl Iterator<Item = &'a Durations>,
    ) -> &mut Self {
        let mut buckets = vec![0; bounds_us.len() + 1];
        let mut sum_us = 0;
        for durations in all {
            for (sum, count) in buckets.iter_mut().zip(durations.buckets()) {
                *sum += count;
            }
            sum_us += durations.sum_us();
        }
        let bounds = bounds_us.iter().map(|bound| *bound as f64 / 1e6);
        self.histogram(labels, bounds, &buckets, sum_us as f64 / 1e6)
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], le: Option<f64>, value: Value) {
        debug_assert!(
            labels.iter().map(|(name, _)| name).eq(self.metric.labels),
            "{} has the labels {:?}",
            self.metric.name,
            self.metric.labels
        );
        self.text.push_str(self.metric.name);
        self.text.push_str(suffix);
        let mut before = '{';
        for (name, value) in labels {
            let _ = write!(self.text, "{before}{name}=\"");
            quote::label(self.text, value);
            self.text.push('"');
            before = ',';
        }
        if let Some(bound) = le {
            let _ = write!(self.text, "{before}le=\"");
            self.number(Value::Float(bound));
            self.text.push('"');
            before = ',';
        }
        self.text.push_str(if before == '{' { " " } else { "} " });
        self.number(value);
        self.text.push('\n');
    }

    fn number(&mut self, value: Value) {
        match value {
            Value::Float(f) if f.is_nan() => self.text.push_str("NaN"),
            Value::Float(f) if f.is_infinite() => {
                self.text.push_str(if f > 0.0 { "+Inf" } else { "-Inf" });
            }
            Value::Float(f) => {
                let _ = write!(self.text, "{f}");
            }
            Value::Signed(n) => {
                let _ = write!(self.text, "{n}");
            }
            Value::Unsigned(n) => {
                let _ = write!(self.text, "{n}");
            }
        }
    }
}

/// A sample's number. Whole numbers are written exactly, however large.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// Any number.
    Float(f64),
    /// A whole number.
    Signed(i64),
    /// A whole number from zero.
    Unsigned(u64),
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Signed(value)
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Unsigned(value)
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::Unsigned(value as u64)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Unsigned(value.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::names;

    #[test]
    fn a_family_states_help_and_type_before_its_samples() {
        let mut page = Exposition::new();
        page.family(&names::CONNECTIONS)
            .sample(&[("listener", "a")], 3i64)
            .sample(&[("listener", "b")], -1i64);
        page.family(&names::READY).sample(&[], true);
        assert_eq!(
            page.finish(),
            "# HELP vestibule_connections Connections held now.\n\
             # TYPE vestibule_connections gauge\n\
             vestibule_connections{listener=\"a\"} 3\n\
             vestibule_connections{listener=\"b\"} -1\n\
             # HELP vestibule_ready 1 while new connections are accepted, 0 while starting or draining.\n\
             # TYPE vestibule_ready gauge\n\
             vestibule_ready 1\n"
        );
    }

    #[test]
    fn a_family_mentioned_twice_stands_once_with_all_its_samples() {
        let mut page = Exposition::new();
        page.family(&names::CONNECTIONS)
            .sample(&[("listener", "a")], 1u64);
        page.family(&names::READY).sample(&[], false);
        page.family(&names::CONNECTIONS)
            .sample(&[("listener", "b")], 2u64);
        let text = page.finish();
        assert_eq!(
            text.matches("# TYPE vestibule_connections gauge").count(),
            1
        );
        let of = |needle: &str| text.find(needle).unwrap_or(usize::MAX);
        assert!(of("{listener=\"b\"} 2") < of("vestibule_ready"));
    }

    #[test]
    fn label_values_and_help_are_escaped() {
        const ODD: Metric = Metric {
            name: "vestibule_odd",
            kind: names::Kind::Gauge,
            labels: &["name"],
            help: "a \\ and\na line",
        };
        let mut page = Exposition::new();
        page.family(&ODD).sample(&[("name", "q\" b\\ n\n é")], 0u64);
        assert_eq!(
            page.finish(),
            "# HELP vestibule_odd a \\\\ and\\na line\n\
             # TYPE vestibule_odd gauge\n\
             vestibule_odd{name=\"q\\\" b\\\\ n\\n é\"} 0\n"
        );
    }

    #[test]
    fn buckets_of_a_histogram_include_those_below() {
        const TIMES: Metric = Metric {
            name: "vestibule_times_seconds",
            kind: names::Kind::Histogram,
            labels: &["listener"],
            help: "x",
        };
        let mut page = Exposition::new();
        page.family(&TIMES)
            .histogram(&[("listener", "a")], [0.001, 2.5], &[3, 0, 2], 70.25);
        let text = page.finish();
        let samples: Vec<_> = text.lines().skip(1).collect();
        assert_eq!(
            samples,
            [
                "# TYPE vestibule_times_seconds histogram",
                "vestibule_times_seconds_bucket{listener=\"a\",le=\"0.001\"} 3",
                "vestibule_times_seconds_bucket{listener=\"a\",le=\"2.5\"} 3",
                "vestibule_times_seconds_bucket{listener=\"a\",le=\"+Inf\"} 5",
                "vestibule_times_seconds_sum{listener=\"a\"} 70.25",
                "vestibule_times_seconds_count{listener=\"a\"} 5",
            ]
        );
    }

    #[test]
    fn numbers_are_written_as_the_format_wants_them() {
        const ANY: Metric = Metric {
            name: "vestibule_any",
            kind: names::Kind::Gauge,
            labels: &[],
            help: "x",
        };
        let written = |value: Value| {
            let mut page = Exposition::new();
            page.family(&ANY).sample(&[], value);
            page.finish()
                .rsplit(' ')
                .next()
                .unwrap_or("")
                .trim_end()
                .to_owned()
        };
        assert_eq!(written(u64::MAX.into()), "18446744073709551615");
        assert_eq!(written(i64::MIN.into()), "-9223372036854775808");
        assert_eq!(written(1_764_534_387.25.into()), "1764534387.25");
        assert_eq!(written(f64::INFINITY.into()), "+Inf");
        assert_eq!(written(f64::NEG_INFINITY.into()), "-Inf");
        assert_eq!(written(f64::NAN.into()), "NaN");
    }
}
