//! What processes used: CPU time and memory, from `/proc`.

use std::collections::{HashMap, HashSet};
use std::fs;

/// Seconds of a clock tick in `/proc`: USER_HZ is 100 on Linux.
const TICK: f64 = 0.01;

/// Some processes and everything below them, looked up anew at each sample. The CPU time of children that were
/// waited for stays in their parent's, so a worker that ends loses nothing.
#[derive(Clone, Default)]
pub struct Processes {
    roots: Vec<u32>,
}

/// The whole machine, in seconds of CPU.
#[derive(Clone, Copy, Default)]
pub struct Machine {
    pub busy: f64,
    pub steal: f64,
}

struct Stat {
    parent: u32,
    cpu: f64,
}

/// `/proc/PID/stat`; proc(5).
fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; what follows it is numbers.
    let fields: Vec<&str> = text.get(text.rfind(')')? + 2..)?.split(' ').collect();
    let number = |at: usize| {
        fields
            .get(at)
            .and_then(|v| v.parse::<u64>().ok())
            .unwrap_or(0)
    };
    Some(Stat {
        parent: number(1) as u32,
        cpu: (number(11) + number(12) + number(13) + number(14)) as f64 * TICK,
    })
}

impl Processes {
    pub fn new(roots: impl IntoIterator<Item = u32>) -> Self {
        Self {
            roots: roots.into_iter().collect(),
        }
    }

    fn all(&self) -> Vec<u32> {
        if self.roots.is_empty() {
            return Vec::new();
        }
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = entry.file_name().to_str().and_then(|s| s.parse().ok());
            if let Some((pid, stat)) = pid.and_then(|pid| Some((pid, stat(pid)?))) {
                children.entry(stat.parent).or_default().push(pid);
            }
        }
        let (mut seen, mut todo) = (HashSet::new(), self.roots.clone());
        while let Some(pid) = todo.pop() {
            if seen.insert(pid) {
                todo.extend(children.get(&pid).into_iter().flatten());
            }
        }
        seen.into_iter().collect()
    }

    /// Seconds of CPU, in user and kernel mode, since they were started.
    pub fn cpu(&self) -> f64 {
        self.all().into_iter().filter_map(stat).map(|s| s.cpu).sum()
    }

    /// Proportional set size in KiB: what several processes share is counted once.
    pub fn pss(&self) -> u64 {
        let one = |pid| {
            let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
            let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        self.all().into_iter().filter_map(one).sum()
    }
}

pub fn machine() -> Machine {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = text.lines().next().unwrap_or("");
    let seconds: Vec<f64> = first
        .split_whitespace()
        .skip(1)
        .map(|v| v.parse::<f64>().unwrap_or(0.0) * TICK)
        .collect();
    let field = |at: usize| seconds.get(at).copied().unwrap_or(0.0);
    // user, nice, system, irq, softirq
    Machine {
        busy: field(0) + field(1) + field(2) + field(5) + field(6),
        steal: field(7),
    }
}
