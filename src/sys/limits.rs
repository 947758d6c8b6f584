//! How much of the machine this process may use: memory and CPUs.
//!
//! A container sees the memory and the cores of its host but is killed or throttled at its own
//! limits, so defaults that follow the machine must ask the control groups, not only
//! `/proc/meminfo`. Only files are read and nothing fails: what cannot be read is no limit.

use std::fs;
use std::path::{Path, PathBuf};

/// Where version 1 and version 2 control groups are mounted by custom.
const CGROUP_ROOT: &str = "sys/fs/cgroup";

/// Taken where even `/proc/meminfo` cannot be read: cautious, yet enough to run.
const MEMORY_UNKNOWN: u64 = 512 << 20;

/// Bytes of memory that this process may use.
///
/// The least of the machine's memory (`MemTotal`) and every memory limit of the control groups it
/// lives in, version 2 (`memory.max`) or 1 (`memory.limit_in_bytes`), parents included.
pub fn memory() -> u64 {
    memory_seen_from(Path::new("/"))
}

/// CPUs that this process may use, at least one.
///
/// The standard library counts the CPUs of the affinity mask (`sched_getaffinity`) and lowers that
/// to the quota of the control groups, version 1 and 2, rounded down: a quota of 2.5 CPUs is 2.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// [`memory`] as read below `root`, which is `/` outside tests.
fn memory_seen_from(root: &Path) -> u64 {
    let read = |path: &Path| fs::read_to_string(path).ok();
    let total = read(&root.join("proc/meminfo")).and_then(|text| mem_total(&text));
    let groups = read(&root.join("proc/self/cgroup")).unwrap_or_default();
    limit_files(&groups)
        .iter()
        .filter_map(|file| read(&root.join(CGROUP_ROOT).join(file)))
        .filter_map(|text| limit(&text))
        .chain(total)
        .min()
        .unwrap_or(MEMORY_UNKNOWN)
}

/// The files, below the mount point, that may limit a process with this `/proc/self/cgroup`.
///
/// Each group is followed up to its root. That finds the limits of the parents, and also the own
/// limit in a container whose mount begins at its own group while `/proc/self/cgroup` tells the
/// path on the host.
fn limit_files(proc_self_cgroup: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in proc_self_cgroup.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_id), Some(controllers), Some(group)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let (mount, name) = if controllers.is_empty() {
            (Path::new(""), "memory.max")
        } else if controllers.split(',').any(|one| one == "memory") {
            (Path::new("memory"), "memory.limit_in_bytes")
        } else {
            continue;
        };
        let group = Path::new(group.trim_start_matches('/'));
        files.extend(group.ancestors().map(|dir| mount.join(dir).join(name)));
    }
    files
}

/// A limit as a group's file tells it: bytes, or `max` for none. Zero would forbid all; it is not
/// believed.
fn limit(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|&bytes| bytes > 0)
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn mem_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:        4026532 kB\nMemFree:          205044 kB\n";

    /// A tree of files as a process would see it; removed at the end.
    struct Machine(PathBuf);

    impl Machine {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("limits-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn mem_total_is_read_in_bytes() {
        assert_eq!(mem_total(MEMINFO), Some(4_026_532 * 1024));
        assert_eq!(mem_total("MemFree: 1 kB\n"), None);
        assert_eq!(mem_total("MemTotal: lots\n"), None);
        assert_eq!(mem_total("MemTotal: 18446744073709551615 kB\n"), None);
    }

    #[test]
    fn limit_reads_bytes_and_takes_max_for_none() {
        assert_eq!(limit("268435456\n"), Some(268_435_456));
        assert_eq!(limit("max\n"), None);
        assert_eq!(limit("0\n"), None);
        assert_eq!(limit(""), None);
    }

    #[test]
    fn limit_files_follow_the_group_up_to_the_root() {
        let paths = |text| -> Vec<String> {
            let files = limit_files(text);
            files.iter().map(|f| f.display().to_string()).collect()
        };
        assert_eq!(paths("0::/\n"), ["memory.max"]);
        assert_eq!(
            paths("0::/system.slice/vestibule.service\n"),
            [
                "system.slice/vestibule.service/memory.max",
                "system.slice/memory.max",
                "memory.max"
            ]
        );
        assert_eq!(
            paths("12:cpuset:/docker/ab\n5:hugetlb,memory:/docker/ab\n1:name=systemd:/docker/ab\n"),
            [
                "memory/docker/ab/memory.limit_in_bytes",
                "memory/docker/memory.limit_in_bytes",
                "memory/memory.limit_in_bytes"
            ]
        );
        assert!(paths("nonsense\n\n3:cpu\n").is_empty());
    }

    #[test]
    fn memory_is_the_least_of_machine_group_and_parent() {
        let machine = Machine::new(
            "v2",
            &[
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "0::/pod/app\n"),
                ("sys/fs/cgroup/pod/app/memory.max", "max\n"),
                ("sys/fs/cgroup/pod/memory.max", "134217728\n"),
            ],
        );
        assert_eq!(memory_seen_from(&machine.0), 134_217_728);
    }

    #[test]
    fn memory_reads_a_version_1_group_mounted_at_its_own_root() {
        let machine = Machine::new(
            "v1",
            &[
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "4:memory:/docker/ab\n0::/docker/ab\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "67108864\n"),
            ],
        );
        assert_eq!(memory_seen_from(&machine.0), 67_108_864);
    }

    #[test]
    fn memory_of_an_unlimited_group_is_the_machines() {
        let machine = Machine::new(
            "unlimited",
            &[
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "4:memory:/\n"),
                (
                    "sys/fs/cgroup/memory/memory.limit_in_bytes",
                    "9223372036854771712\n",
                ),
            ],
        );
        assert_eq!(memory_seen_from(&machine.0), 4_026_532 * 1024);
    }

    #[test]
    fn memory_and_cpus_are_known_everywhere() {
        assert_eq!(memory_seen_from(Path::new("/nonexistent")), MEMORY_UNKNOWN);
        assert!(memory() > 0);
        assert!(cpus() > 0);
    }
}
