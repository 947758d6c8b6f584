//! How many instructions the steps of the data path take, counted by callgrind and compared with what they took before.
//!
//!     cargo bench --bench instructions                  compares with benches/instructions.txt
//!     cargo bench --bench instructions -- --accept      makes what is counted now that file
//!
//! A count is the same on a busy machine and on a quiet one, so it can tell in CI what a time cannot. It knows nothing of
//! caches, nor of what the kernel does. Exit code 1: a step takes more than its tolerance above the file.

#![allow(clippy::expect_used, reason = "a benchmark that cannot run ends there")]

mod cases;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs, io};

use cases::Case;

/// Rounds before the counted ones: until buffers are made and branches of the first time are behind.
const WARM_UP: usize = 20;
/// Rounds counted.
const ROUNDS: usize = 50;
/// How far above the file a step may be, in percent: another build of the same compiler stays below it.
const TOLERANCE: f64 = 4.0;
/// The same where the kernel decides how often a socket is asked.
const TOLERANCE_SOCKETS: f64 = 10.0;
/// Set for the process that callgrind watches.
const WATCHED: &str = "VESTIBULE_BENCH_WATCHED";

fn main() -> ExitCode {
    if env::var_os(WATCHED).is_some() {
        run_all();
        return ExitCode::SUCCESS;
    }
    let accept = env::args().any(|arg| arg == "--accept");
    match count().and_then(|counts| report(&counts, accept)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("instructions: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Callgrind counts in here alone, and writes down the sum each time that it is left.
#[inline(never)]
fn measured(case: &mut dyn Case, inputs: &[Vec<u8>]) {
    for input in inputs {
        case.run(black_box(input));
    }
}

/// What the watched process does: each case once, in order.
fn run_all() {
    for entry in cases::all() {
        let mut case = (entry.make)();
        for _ in 0..WARM_UP {
            let input = case.input();
            case.run(&input);
        }
        let inputs: Vec<_> = (0..ROUNDS).map(|_| case.input()).collect();
        measured(black_box(&mut *case), &inputs);
    }
}

/// Instructions per round of each case, in order.
fn count() -> io::Result<Vec<(String, u64)>> {
    let folder = env::temp_dir().join(format!("vestibule-instructions-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let counts = count_in(&folder);
    fs::remove_dir_all(&folder)?;
    counts
}

fn count_in(folder: &Path) -> io::Result<Vec<(String, u64)>> {
    eprintln!("counting instructions, a few seconds");
    let out = folder.join("part");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no"])
        // Callgrind heeds the first of two options with the same pattern, so they differ.
        .arg("--toggle-collect=*::measured*")
        .arg("--dump-after=instructions::measured*")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(env::current_exe()?)
        .env(WATCHED, "1")
        .output()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                io::Error::other("valgrind is missing: apt-get install valgrind")
            }
            _ => error,
        })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("{}\n{said}", output.status)));
    }
    let mut counts = Vec::new();
    for (n, entry) in cases::all().into_iter().enumerate() {
        let part = fs::read_to_string(folder.join(format!("part.{}", n + 1)))?;
        let total = part
            .lines()
            .find_map(|line| line.strip_prefix("totals: "))
            .and_then(|total| total.trim().parse::<u64>().ok())
            .filter(|total| *total > 0)
            .ok_or_else(|| io::Error::other(format!("nothing was counted for {}", entry.name)))?;
        counts.push((entry.name, total / ROUNDS as u64));
    }
    Ok(counts)
}

/// Where the counts lie that CI compares with.
fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/instructions.txt")
}

fn report(counts: &[(String, u64)], accept: bool) -> io::Result<ExitCode> {
    let before = before()?;
    let (mut worse, mut better, mut unknown) = (0, 0, 0);
    println!("{:<34} {:>9} {:>9} {:>8}", "step", "file", "now", "change");
    for (name, now) in counts {
        let Some(was) = before.get(name) else {
            unknown += 1;
            println!("{name:<34} {:>9} {now:>9}      new", "");
            continue;
        };
        let change = (*now as f64 / *was as f64 - 1.0) * 100.0;
        let tolerance = if name.starts_with("relay/") {
            TOLERANCE_SOCKETS
        } else {
            TOLERANCE
        };
        let verdict = if change > tolerance {
            worse += 1;
            "  WORSE"
        } else if change < -tolerance {
            better += 1;
            "  better"
        } else {
            ""
        };
        println!("{name:<34} {was:>9} {now:>9} {change:>+7.1}%{verdict}");
    }
    if accept {
        return write(counts).map(|()| ExitCode::SUCCESS);
    }
    println!(
        "{} steps, {worse} worse, {better} better, {unknown} new",
        counts.len()
    );
    let gone = before
        .keys()
        .any(|name| counts.iter().all(|(n, _)| n != name));
    if worse + unknown > 0 || gone {
        println!(
            "if this is meant: cargo bench --bench instructions -- --accept, and commit benches/instructions.txt"
        );
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn before() -> io::Result<BTreeMap<String, u64>> {
    let text = match fs::read_to_string(file()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        read => read?,
    };
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pair = |line: &str| {
        let (name, count) = line.split_once(' ')?;
        Some((name.to_owned(), count.trim().parse().ok()?))
    };
    lines
        .map(|line| pair(line).ok_or_else(|| io::Error::other(format!("no count: {line}"))))
        .collect()
}

fn write(counts: &[(String, u64)]) -> io::Result<()> {
    let mut text = String::from("# Instructions per round; see benches/README.md.\n");
    for (name, count) in counts {
        text.push_str(&format!("{name:<34} {count:>9}\n"));
    }
    fs::write(file(), text)?;
    println!("written: {}", file().display());
    Ok(())
}
