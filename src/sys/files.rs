//! The limit on open files, which decides how many connections there can be.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit on open files to the hard one, and returns what is in force then. `u64::MAX`: none.
pub fn raise_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // May be forbidden; then the soft limit stays, and counts.
    let _ = setrlimit(Resource::Nofile, raised);
    self::limit()
}

/// The soft limit on open files. `u64::MAX`: none.
pub fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Descriptors open now; zero where /proc is not to be had.
pub fn open() -> usize {
    // The listing itself has one open.
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1))
}
