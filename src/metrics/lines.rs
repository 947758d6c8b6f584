//! Lines on their way to whoever reads a log, and who may be slow, stopped or gone.
//!
//! A worker puts a line into a bounded queue and goes on; a thread of the log's own writes it. What finds the queue full, or
//! the target unwilling, is lost and counted.

use std::convert::Infallible;
use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Lines that may wait: 2 MiB as they usually are.
pub const QUEUE_LINES: usize = 8192;

/// For how long the end of the process waits for what is still in the queue.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How often it is tried then to get a word into a full queue.
const RETRY: Duration = Duration::from_millis(10);

/// Where lines go.
pub type Target = Box<dyn Write + Send>;

/// The queue. Shared by all who write; dropping it writes out what waits, for [`LAST_WORDS`] at most.
pub struct Lines {
    /// `None` is the last one.
    queue: SyncSender<Option<Box<[u8]>>>,
    lost: Arc<AtomicU64>,
    next: Next,
    /// Says nothing but that the thread has ended.
    ended: Mutex<Receiver<Infallible>>,
}

/// A target to be taken up at the next line.
type Next = Arc<Mutex<Option<Target>>>;

impl Lines {
    /// Starts the thread. `told` is asked to tell people when the target begins to refuse lines.
    ///
    /// # Errors
    /// When the system has no thread.
    pub fn start(
        name: &str,
        target: Target,
        told: impl Fn(&io::Error) + Send + 'static,
    ) -> io::Result<Self> {
        let (queue, lines) = sync_channel::<Option<Box<[u8]>>>(QUEUE_LINES);
        let (alive, ended) = channel();
        let lost = Arc::new(AtomicU64::new(0));
        let next = Next::default();
        let mut writer = Writer {
            target,
            told,
            lost: Arc::clone(&lost),
            next: Arc::clone(&next),
            failing: false,
            torn: false,
        };
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                while let Ok(Some(line)) = lines.recv() {
                    writer.line(&line);
                }
                // In this order: once the end is told, no line is taken any more.
                drop(lines);
                drop(alive);
            })?;
        Ok(Self {
            queue,
            lost,
            next,
            ended: Mutex::new(ended),
        })
    }

    /// Queues a line, which has its line break. Never waits.
    pub fn put(&self, line: &[u8]) {
        if self.queue.try_send(Some(line.into())).is_err() {
            self.lost.fetch_add(1, Relaxed);
        }
    }

    /// From the next line on, those that wait included, they go to this target.
    pub fn turn_to(&self, target: Target) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(target);
    }

    /// Lines lost so far.
    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }

    /// Writes out what waits, unless that takes too long. What is put afterwards is lost.
    pub fn finish(&self) {
        let deadline = Instant::now() + LAST_WORDS;
        // Full: whoever reads is slow, or has stopped for good.
        while let Err(std::sync::mpsc::TrySendError::Full(_)) = self.queue.try_send(None) {
            if Instant::now() >= deadline {
                return;
            }
            thread::sleep(RETRY);
        }
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = ended.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines")
            .field("lost", &self.lost())
            .finish_non_exhaustive()
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.finish();
    }
}

/// What the thread has.
struct Writer<T> {
    target: Target,
    told: T,
    lost: Arc<AtomicU64>,
    next: Next,
    /// The last line was refused.
    failing: bool,
    /// The target has a part of a line that was refused.
    torn: bool,
}

impl<T: Fn(&io::Error)> Writer<T> {
    fn line(&mut self, line: &[u8]) {
        let next = self
            .next
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(next) = next {
            (self.target, self.torn) = (next, false);
        }
        let result = self.try_line(line);
        if let Err(error) = &result {
            self.lost.fetch_add(1, Relaxed);
            if !self.failing {
                (self.told)(error);
            }
        }
        self.failing = result.is_err();
    }

    fn try_line(&mut self, line: &[u8]) -> io::Result<()> {
        if self.torn {
            self.target.write_all(b"\n")?;
            self.torn = false;
        }
        let mut rest = line;
        while !rest.is_empty() {
            match self.target.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => rest = &rest[n.min(rest.len())..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.torn = rest.len() < line.len();
                    return Err(error);
                }
            }
        }
        self.target.flush()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn quiet(_: &io::Error) {}

    /// A disk with so much room.
    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<(Vec<u8>, usize)>>);

    impl Disk {
        fn grow(&self, room: usize) {
            self.0.lock().unwrap().1 += room;
        }

        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().0.clone()).unwrap()
        }
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let (text, room) = &mut *self.0.lock().unwrap();
            let n = bytes.len().min(*room);
            if n == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            *room -= n;
            text.extend(&bytes[..n]);
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_tears_no_other_line_and_is_told_once() {
        let disk = Disk::default();
        let (tell, told) = mpsc::channel();
        let lost = Arc::new(AtomicU64::new(0));
        let mut writer = Writer {
            target: Box::new(disk.clone()),
            told: move |error: &io::Error| tell.send(error.kind()).unwrap(),
            lost: Arc::clone(&lost),
            next: Next::default(),
            failing: false,
            torn: false,
        };
        disk.grow(6);
        for line in ["one\n", "two\n", "three\n"] {
            writer.line(line.as_bytes());
        }
        assert_eq!(lost.load(Relaxed), 2);
        disk.grow(100);
        writer.line(b"four\n");
        assert_eq!(disk.text(), "one\ntw\nfour\n");
        assert_eq!(lost.load(Relaxed), 2);
        drop(writer);
        assert_eq!(
            told.iter().collect::<Vec<_>>(),
            [io::ErrorKind::StorageFull]
        );
    }

    /// Takes nothing until the test lets go of the other end.
    struct Stalled(mpsc::Receiver<()>);

    impl Write for Stalled {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_queue_drops_and_counts_instead_of_waiting() {
        let (release, stalled) = mpsc::channel();
        let lines = Lines::start("test", Box::new(Stalled(stalled)), quiet).unwrap();
        for _ in 0..QUEUE_LINES + 10 {
            lines.put(b"line\n");
        }
        // One line may be in the writer's hands beside those that wait.
        assert!((9..=10).contains(&lines.lost()), "{}", lines.lost());
        let before = Instant::now();
        lines.finish();
        let took = before.elapsed();
        assert!(took >= LAST_WORDS && took < LAST_WORDS * 3, "{took:?}");
        drop(release);
        drop(lines);
    }

    #[test]
    fn what_waits_is_written_at_the_end_and_what_comes_later_is_lost() {
        let disk = Disk::default();
        disk.grow(1 << 20);
        let lines = Lines::start("test", Box::new(disk.clone()), quiet).unwrap();
        for _ in 0..1000 {
            lines.put(b"line\n");
        }
        lines.finish();
        assert_eq!(disk.text(), "line\n".repeat(1000));
        lines.put(b"late\n");
        assert_eq!(lines.lost(), 1);
        lines.finish();
    }
}
