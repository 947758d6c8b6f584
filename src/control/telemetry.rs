//! Log lines: where they go, and how often one may repeat itself.
//!
//! Every line passes through [`Lines`] to a thread of its own, so that a full pipe or a slow disk never stops a worker. A
//! call site that warns again and again is cut off after a few lines, and [`Telemetry::tell_suppressed`] says how many
//! followed: a flood of bad clients costs a counter each, not a line each.

use crate::config;
use crate::metrics::access;
use crate::metrics::lines::Lines;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// Warnings and errors that one call site may print in a [`WINDOW`].
const LINES_PER_WINDOW: u64 = 10;

/// For how long lines of one call site are counted together.
const WINDOW: Duration = Duration::from_secs(10);

/// Most characters of a message that are remembered to say what was suppressed.
const SAMPLE_CHARS: usize = 120;

/// Target of the line that tells of suppressed ones; it is never suppressed itself.
const OWN_TARGET: &str = "vestibule::log";

/// The log's running parts. Dropping it writes out what waits, for about a second at most: keep it
/// until the end of the process.
#[derive(Debug)]
pub struct Telemetry {
    limiter: Arc<Limiter>,
    lines: Arc<Lines>,
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        // The subscriber is there to the end of the process, and has them as well.
        self.lines.finish();
    }
}

impl Telemetry {
    /// Makes `log` the destination of all log lines of this process, on standard error. Text is
    /// coloured only on a terminal, and not when `NO_COLOR` is set. Panics are told by the same way: who panics must not
    /// wait for the reader of standard error either.
    ///
    /// # Errors
    /// When the level is not a level or filter, or when a destination was set before.
    pub fn install(log: &config::Log) -> Result<Self, TelemetryError> {
        let colour = io::stderr().is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let filter = level_filter(&log.level)?;
        let (telemetry, subscriber) = build(filter, log.format, colour, io::stderr())?;
        subscriber.try_init().map_err(|_| TelemetryError::Twice)?;
        std::panic::set_hook(Box::new(|panic| {
            let thread = std::thread::current();
            let thread = thread.name();
            let backtrace = Backtrace::capture();
            let backtrace = (backtrace.status() == BacktraceStatus::Captured).then_some(backtrace);
            let backtrace = backtrace.as_ref().map(tracing::field::display);
            tracing::error!(thread, backtrace, "{panic}");
        }));
        Ok(telemetry)
    }

    /// Lines lost so far because nobody took them, or not in time.
    pub fn lines_dropped(&self) -> u64 {
        self.lines.lost()
    }

    /// Repeated lines counted instead of printed so far.
    pub fn lines_suppressed(&self) -> u64 {
        let sites = self.limiter.known();
        sites.map(|site| site.suppressed.load(Relaxed)).sum()
    }

    /// Prints one line for each call site that was cut off since the last call. To be called from time
    /// to time (see [`Self::watch`]) and once at the end.
    pub fn tell_suppressed(&self) {
        for (site, count) in self.limiter.take_suppressed() {
            tracing::warn!(
                target: OWN_TARGET,
                count,
                site = %site.place,
                "{count} similar lines suppressed: {}",
                site.sample
            );
        }
    }

    /// Calls [`Self::tell_suppressed`] once a window, for ever. For the control thread.
    pub async fn watch(&self) {
        let mut tick = tokio::time::interval(WINDOW);
        loop {
            tick.tick().await;
            self.tell_suppressed();
        }
    }
}

/// Opens the access log that `log` asks for; `None` if it asks for none.
///
/// # Errors
/// When the file cannot be opened for appending; the message names it.
pub fn open_access_log(log: &config::Log) -> io::Result<Option<access::AccessLog>> {
    let form = match log.format {
        config::LogFormat::Json => access::Form::Json,
        config::LogFormat::Text => access::Form::Text,
    };
    match &log.access {
        config::AccessLog::Off => Ok(None),
        config::AccessLog::Stdout => access::AccessLog::to_stdout(form).map(Some),
        config::AccessLog::File(path) => match access::AccessLog::to_file(path, form) {
            Ok(log) => Ok(Some(log)),
            // The caller names the flag.
            Err(error) => Err(io::Error::new(
                error.kind(),
                format!(
                    "cannot open {}: {}; {ACCESS_LOG_WAY_OUT}",
                    path.display(),
                    plain(&error)
                ),
            )),
        },
    }
}

const ACCESS_LOG_WAY_OUT: &str =
    "name a file in a folder that this process may write to, or - for standard output";

/// What the system says, without its number.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((text, _)) => text.to_owned(),
        None => text,
    }
}

/// Whether [`open_access_log`] would succeed, found out without opening or making the file.
pub fn try_access_log(log: &config::Log) -> Option<config::Fault> {
    use rustix::fs::{Access, access};
    let config::AccessLog::File(path) = &log.access else {
        return None;
    };
    let tried = if path.is_dir() {
        Err(io::ErrorKind::IsADirectory.into())
    } else if path.exists() {
        access(path, Access::WRITE_OK).map_err(io::Error::from)
    } else {
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        access(folder, Access::WRITE_OK | Access::EXEC_OK).map_err(io::Error::from)
    };
    let error = tried.err()?;
    Some(config::Fault::new(
        format!("--access-log {}", path.display()),
        format!("cannot be opened: {}", plain(&error)),
        ACCESS_LOG_WAY_OUT,
    ))
}

/// Why logging could not be set up.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TelemetryError {
    /// The level is not one of the five, nor a filter.
    #[error(
        "--log-level {given:?}: {problem}; use error, warn, info, debug, trace, or a filter such as \
         \"info,vestibule::tls=debug\""
    )]
    Level {
        /// As given.
        given: String,
        /// What is wrong with it.
        problem: String,
    },
    /// [`Telemetry::install`] was called twice in one process.
    #[error("logging was set up already")]
    Twice,
    /// There is no thread to write it.
    #[error("the log has no thread: {0}")]
    Thread(String),
}

/// Reads a level or a filter. A lone unknown word is refused, where `EnvFilter` would take it for the
/// name of a module and print nothing at all.
fn level_filter(level: &str) -> Result<EnvFilter, TelemetryError> {
    let refuse = |problem: String| TelemetryError::Level {
        given: level.to_owned(),
        problem,
    };
    for directive in level.split(',').map(str::trim) {
        let bare = directive.bytes().all(|b| b.is_ascii_alphanumeric());
        if directive.is_empty() || (bare && directive.parse::<LevelFilter>().is_err()) {
            return Err(refuse(format!("{directive:?} is not a level")));
        }
    }
    let filter = EnvFilter::builder()
        .parse(level)
        .map_err(|error| refuse(error.to_string()))?;
    Ok(quieted(filter, level))
}

/// Crates that tell each frame and each poll at level debug, thousands of lines for a page load.
const CHATTY: &[&str] = &[
    "h2",
    "hyper",
    "hyper_util",
    "tokio_tungstenite",
    "tungstenite",
];

/// Keeps a bare level above info from them: it asks about this program. A filter that names one gets what it asks for.
fn quieted(mut filter: EnvFilter, level: &str) -> EnvFilter {
    let directives = || level.split(',').map(str::trim);
    let bare = directives().filter_map(|directive| directive.parse::<LevelFilter>().ok());
    if bare.max().is_none_or(|level| level <= LevelFilter::INFO) {
        return filter;
    }
    let target = |directive: &str| {
        let end = directive.find(['=', '[', ':']);
        directive[..end.unwrap_or(directive.len())].to_owned()
    };
    for name in CHATTY {
        let named = directives().any(|directive| target(directive) == *name);
        if !named && let Ok(directive) = format!("{name}=info").parse() {
            filter = filter.add_directive(directive);
        }
    }
    filter
}

/// The subscriber apart from its installation, so that tests can have one of their own.
fn build<W: io::Write + Send + 'static>(
    filter: EnvFilter,
    format: config::LogFormat,
    colour: bool,
    target: W,
) -> Result<(Telemetry, impl Subscriber + Send + Sync), TelemetryError> {
    // Nobody is left to be told, but the metric.
    let started = Lines::start("log", Box::new(target), |_| {});
    let queue = Arc::new(started.map_err(|error| TelemetryError::Thread(error.to_string()))?);
    let limiter = Arc::new(Limiter::default());
    let telemetry = Telemetry {
        limiter: Arc::clone(&limiter),
        lines: Arc::clone(&queue),
    };
    // The level stands in front: an event that it refuses reaches neither the limit nor the format.
    let lines = tracing_subscriber::registry().with(lines(format, colour, Queue(queue)));
    Ok((telemetry, lines.with(Limit(limiter)).with(filter)))
}

/// The layer that formats lines.
fn lines<S>(
    format: config::LogFormat,
    colour: bool,
    queue: Queue,
) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let layer = tracing_subscriber::fmt::layer().with_writer(queue);
    match format {
        config::LogFormat::Json => layer.json().boxed(),
        config::LogFormat::Text => layer.with_ansi(colour).boxed(),
    }
}

/// Where formatted events go.
struct Queue(Arc<Lines>);

impl<'a> MakeWriter<'a> for Queue {
    type Writer = OneLine<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        OneLine(&self.0)
    }
}

/// Keeps an event on one line whatever its message holds, so that a text a stranger chose cannot pass for
/// a line of ours. Other control characters are escaped by the formatter already.
struct OneLine<'a>(&'a Lines);

impl io::Write for OneLine<'_> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        // The formatter hands over an event as a whole, its line break last.
        let body = event.strip_suffix(b"\n").unwrap_or(event);
        if !body.iter().any(|b| matches!(b, b'\n' | b'\r')) {
            self.0.put(event);
            return Ok(event.len());
        }
        let mut line = Vec::with_capacity(event.len() + 8);
        for &b in body {
            match b {
                b'\n' => line.extend(b"\\n"),
                b'\r' => line.extend(b"\\r"),
                b => line.push(b),
            }
        }
        line.push(b'\n');
        self.0.put(&line);
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Most call sites that are told apart, several times as many as the source has.
const SITES: usize = 256;

/// Counts the warnings and errors of each call site and lets the first few of a window through.
///
/// Call sites are places in the program, so there are as many as the source has and never more. An
/// event that no level asks for does not come here at all, and one below WARN passes without a look. Workers share this, so
/// it has no lock: a flood that all of them take part in costs each a few loads and one addition.
#[derive(Debug)]
struct Limiter {
    start: Instant,
    /// Hashed by address; the next free place where two collide.
    sites: [OnceLock<Site>; SITES],
}

impl Default for Limiter {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            sites: [const { OnceLock::new() }; SITES],
        }
    }
}

impl Limiter {
    fn admits(&self, event: &Event<'_>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::WARN || metadata.target() == OWN_TARGET {
            return true;
        }
        let window = self.start.elapsed().as_secs() / WINDOW.as_secs();
        self.site(event).is_none_or(|site| site.admits(window))
    }

    /// None if there is no room left, which the source does not let happen.
    fn site(&self, event: &Event<'_>) -> Option<&Site> {
        let address = std::ptr::from_ref(event.metadata()).addr();
        let (before, from) = self.sites.split_at(address / 16 % SITES);
        let sites = from.iter().chain(before);
        let mut sites = sites.map(|site| site.get_or_init(|| Site::new(address, event)));
        sites.find(|site| site.address == address)
    }

    /// The call sites that have warned.
    fn known(&self) -> impl Iterator<Item = &Site> {
        self.sites.iter().filter_map(OnceLock::get)
    }

    /// The call sites cut off since the last call, with the lines that each lost.
    fn take_suppressed(&self) -> Vec<(&Site, u64)> {
        let mut cut: Vec<_> = self
            .known()
            .map(|site| (site, site.untold()))
            .filter(|(_, count)| *count > 0)
            .collect();
        cut.sort_by(|(a, _), (b, _)| a.place.cmp(&b.place));
        cut
    }
}

/// One call site that warned at least once.
#[derive(Debug)]
struct Site {
    /// Of what is known about it at compile time.
    address: usize,
    /// Where in the source.
    place: String,
    /// The beginning of its first message.
    sample: String,
    window: AtomicU64,
    /// In the window.
    admitted: AtomicU64,
    suppressed: AtomicU64,
    /// How many of those have been told.
    told: AtomicU64,
}

impl Site {
    fn new(address: usize, event: &Event<'_>) -> Self {
        let metadata = event.metadata();
        let mut place = metadata.target().to_owned();
        if let (Some(file), Some(line)) = (metadata.file(), metadata.line()) {
            let _ = write!(place, " ({file}:{line})");
        }
        let mut sample = Sample(String::new());
        event.record(&mut sample);
        Self::called(address, place, sample.0)
    }

    fn called(address: usize, place: String, sample: String) -> Self {
        Self {
            address,
            place,
            sample,
            window: AtomicU64::new(0),
            admitted: AtomicU64::new(0),
            suppressed: AtomicU64::new(0),
            told: AtomicU64::new(0),
        }
    }

    /// Whether one more line is let through in this window. Two threads that roll the window over at
    /// the same moment may let a few lines more through; none is lost from the count.
    fn admits(&self, window: u64) -> bool {
        if self.window.load(Relaxed) != window {
            self.window.store(window, Relaxed);
            self.admitted.store(0, Relaxed);
        }
        // Looked at first, so that a flood does not write here.
        let full = self.admitted.load(Relaxed) >= LINES_PER_WINDOW;
        let admitted = !full && self.admitted.fetch_add(1, Relaxed) < LINES_PER_WINDOW;
        if !admitted {
            self.suppressed.fetch_add(1, Relaxed);
        }
        admitted
    }

    /// Lines suppressed since the last call.
    fn untold(&self) -> u64 {
        let suppressed = self.suppressed.load(Relaxed);
        suppressed.saturating_sub(self.told.swap(suppressed, Relaxed))
    }
}

/// Takes the message out of an event, cut to [`SAMPLE_CHARS`] and without line breaks.
struct Sample(String);

impl Visit for Sample {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            let whole = format!("{value:?}");
            self.0 = whole
                .chars()
                .filter(|c| !c.is_control())
                .take(SAMPLE_CHARS)
                .collect();
        }
    }
}

/// [`Limiter`] as a layer in front of the one that prints.
///
/// It is a whole layer rather than the filter of one: a filter that refuses an event after its call site
/// was enabled leaves the registry's per-layer state behind for the next event.
struct Limit(Arc<Limiter>);

impl<S: Subscriber> Layer<S> for Limit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        self.0.admits(event)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Keeps what is written to it.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What `work` logs at `level`, one line each.
    fn logged(
        level: &str,
        format: config::LogFormat,
        work: impl FnOnce(&Telemetry),
    ) -> Vec<String> {
        let kept = Kept::default();
        let filter = level_filter(level).unwrap();
        let (telemetry, subscriber) = build(filter, format, false, kept.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, || work(&telemetry));
        drop(telemetry);
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_repeated_warning_is_cut_off_and_counted() {
        let lines = logged("info", config::LogFormat::Text, |telemetry| {
            for n in 0..25 {
                tracing::warn!(n, "backend is away");
            }
            assert_eq!(telemetry.lines_suppressed(), 15);
            telemetry.tell_suppressed();
            telemetry.tell_suppressed();
            assert_eq!(telemetry.lines_suppressed(), 15);
        });
        assert_eq!(lines.len(), 11, "{lines:#?}");
        let told = &lines[10];
        assert!(
            told.contains("15 similar lines suppressed: backend is away"),
            "{told}"
        );
        assert!(told.contains("vestibule::control::telemetry"), "{told}");
    }

    #[test]
    fn call_sites_are_limited_apart_and_information_is_not() {
        let lines = logged("info", config::LogFormat::Text, |_| {
            for _ in 0..25 {
                tracing::warn!("one");
                tracing::error!("two");
                tracing::info!("three");
            }
        });
        let count = |word: &str| lines.iter().filter(|line| line.ends_with(word)).count();
        assert_eq!((count("one"), count("two"), count("three")), (10, 10, 25));
    }

    #[test]
    fn a_new_window_admits_again_and_keeps_the_count() {
        let site = Site::called(0, String::new(), String::new());
        let admitted = |window| (0..12).filter(|_| site.admits(window)).count();
        assert_eq!(admitted(0), 10);
        assert_eq!(admitted(1), 10);
        assert_eq!(admitted(1), 0);
        assert_eq!(admitted(7), 10);
        assert_eq!(site.untold(), 2 + 2 + 12 + 2);
        assert_eq!((admitted(7), site.untold(), site.untold()), (0, 12, 0));
        assert_eq!(site.suppressed.load(Relaxed), 30);
    }

    #[test]
    fn arguments_of_a_line_that_is_not_printed_are_not_built() {
        /// Counts how often it is built.
        struct Costly(std::cell::Cell<u32>);
        impl fmt::Display for Costly {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.set(self.0.get() + 1);
                f.write_str("costly")
            }
        }
        impl fmt::Debug for Costly {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
        let costly = Costly(std::cell::Cell::new(0));
        let built = |level: &str| {
            costly.0.set(0);
            let lines = logged(level, config::LogFormat::Text, |_| {
                let made = || format!("{costly}");
                tracing::trace!(%costly, ?costly, "{costly} {costly:?}");
                tracing::debug!(%costly, ?costly, made = made(), "{costly} {costly:?}");
            });
            (lines.len(), costly.0.get())
        };
        assert_eq!(built("info"), (0, 0));
        assert_eq!(built("info,vestibule::tls=debug"), (0, 0));
        assert_eq!(built("debug"), (1, 5));

        // One that is suppressed is not built either, but for the sample that is taken of the first.
        costly.0.set(0);
        let lines = logged("info", config::LogFormat::Text, |_| {
            for _ in 0..1000 {
                tracing::warn!(%costly, "{costly:?}");
            }
        });
        assert_eq!(lines.len(), 10);
        assert_eq!(costly.0.get(), 2 * 10 + 1);
    }

    #[test]
    fn json_lines_are_objects_with_the_fields() {
        let lines = logged("debug", config::LogFormat::Json, |_| {
            tracing::debug!(listener = "tls-8443", "hello \"there\"");
        });
        assert_eq!(lines.len(), 1);
        assert!(lines[0].starts_with("{\"timestamp\":\"20"), "{}", lines[0]);
        assert!(
            lines[0].contains("\"message\":\"hello \\\"there\\\"\""),
            "{}",
            lines[0]
        );
        assert!(
            lines[0].contains("\"listener\":\"tls-8443\""),
            "{}",
            lines[0]
        );
    }

    #[test]
    fn a_message_forges_neither_a_line_nor_a_terminal_command() {
        let lines = logged("info", config::LogFormat::Text, |_| {
            let name = "x\r\n2026-11-30T20:00:00Z  WARN forged \u{1b}[2J";
            tracing::info!("{name}");
        });
        assert_eq!(lines.len(), 1, "{lines:#?}");
        assert!(lines[0].contains(r"x\r\n2026"), "{:?}", lines[0]);
        assert!(!lines[0].contains('\u{1b}'), "{:?}", lines[0]);
    }

    #[test]
    fn levels_and_filters_are_understood_and_other_words_refused() {
        for good in ["error", "warn", "info", "debug", "trace", "off", "INFO"] {
            assert!(level_filter(good).is_ok(), "{good}");
        }
        assert!(level_filter("info,vestibule::tls=debug").is_ok());
        for bad in ["verbose", "info,loud", "", "vestibule=loud"] {
            let error = level_filter(bad).map(|_| ()).unwrap_err().to_string();
            assert!(error.starts_with("--log-level"), "{error}");
        }
    }

    #[test]
    fn a_bare_level_is_not_for_chatty_crates_and_a_name_is() {
        let told = |level: &str| {
            let lines = logged(level, config::LogFormat::Text, |_| {
                tracing::debug!("ours");
                tracing::debug!(target: "h2::codec::framed_read", "frame");
                tracing::info!(target: "h2::codec", "important");
                tracing::trace!(target: "hyper_util::rt", "poll");
            });
            let words = ["ours", "frame", "important", "poll"];
            let told = |word: &&str| lines.iter().any(|line| line.ends_with(word));
            words.into_iter().filter(told).collect::<Vec<_>>().join(" ")
        };
        for (level, expected) in [
            ("info", "important"),
            ("warn", ""),
            ("debug", "ours important"),
            ("trace", "ours important"),
            ("debug,h2=debug", "ours frame important"),
            ("trace,h2::codec=warn,hyper_util=trace", "ours poll"),
            ("h2=debug", "frame important"),
            ("trace,hyper=trace", "ours important"),
            ("warn,vestibule=debug", "ours"),
        ] {
            assert_eq!(told(level), expected, "{level}");
        }
    }

    #[test]
    fn an_access_log_in_a_missing_folder_is_a_fault() {
        let log = config::Log {
            level: "info".into(),
            format: config::LogFormat::Text,
            access: config::AccessLog::File("/nowhere/access.log".into()),
        };
        let error = open_access_log(&log).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(
            error.to_string(),
            "cannot open /nowhere/access.log: No such file or directory; name a file in a folder \
             that this process may write to, or - for standard output"
        );
    }

    #[test]
    fn an_access_log_is_tried_without_making_it() {
        let folder = std::env::temp_dir().join(format!("vestibule-try-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let way_out =
            "name a file in a folder that this process may write to, or - for standard output";
        for (path, problem) in [
            (folder.join("access.log"), None),
            (
                folder.join("none/access.log"),
                Some("cannot be opened: No such file or directory"),
            ),
            (folder.clone(), Some("cannot be opened: is a directory")),
        ] {
            let log = config::Log {
                level: "info".into(),
                format: config::LogFormat::Text,
                access: config::AccessLog::File(path.clone()),
            };
            let told = try_access_log(&log).map(|fault| fault.to_string());
            let path = path.display();
            let expected = problem.map(|text| format!("--access-log {path}: {text}; {way_out}"));
            assert_eq!(told, expected);
        }
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        std::fs::remove_dir(&folder).unwrap();
    }

    #[test]
    fn the_access_log_is_off_unless_asked_for() {
        let log = config::Log {
            level: "info".into(),
            format: config::LogFormat::Json,
            access: config::AccessLog::Off,
        };
        assert!(open_access_log(&log).unwrap().is_none());
    }
}
