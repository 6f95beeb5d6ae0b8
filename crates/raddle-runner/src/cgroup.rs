//! cgroup v2: one cgroup per attempt, if part of the hierarchy is delegated to this process.
//!
//! If not, as on hosts with cgroup v1, this module does nothing, and limits are sampled instead.
//! Functions take the root of the hierarchy as a parameter, so that tests can use a plain
//! directory.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use raddle_model::Limits;
use thiserror::Error;

/// Child cgroup that a worker moves itself to: only a cgroup without processes can delegate
/// controllers.
const LEAF: &str = "raddle-leaf";
/// Prefix of the names of all cgroups of Raddle.
const PREFIX: &str = "raddle-";
const PERIOD_US: u64 = 100_000;
/// Attempts to create a cgroup whose name another process of Raddle creates or sweeps at the same
/// time.
const TRIES: u32 = 5;

/// Resources that can be limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Controllers {
    /// `memory.max`
    pub memory: bool,
    /// `pids.max`
    pub pids: bool,
    /// `cpu.max`
    pub cpu: bool,
}

/// A cgroup in which this process may create cgroups.
#[derive(Clone, Debug)]
pub struct CgroupDelegation {
    dir: PathBuf,
    controllers: Controllers,
}

/// The cgroup of one attempt. It is killed and removed on drop.
#[derive(Debug)]
pub(crate) struct AttemptCgroup {
    dir: PathBuf,
    /// Locked while the cgroup is in use, because it is empty before the first process joins. The
    /// kernel releases the lock of a runner that is killed.
    _lock: File,
    procs: File,
    controllers: Controllers,
}

/// Why no cgroups can be created below that of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum CgroupUnavailable {
    #[error("the cgroup offers no memory, pids or cpu controller")]
    NoControllers,
    #[error("the cgroup is not delegated to this user")]
    NotDelegated,
    #[error("other processes share the cgroup")]
    Shared,
}

impl Controllers {
    fn parse(text: &str) -> Self {
        let has = |name| text.split_ascii_whitespace().any(|word| word == name);
        Self {
            memory: has("memory"),
            pids: has("pids"),
            cpu: has("cpu"),
        }
    }

    /// Whether any controller is available.
    pub fn any(self) -> bool {
        self.memory || self.pids || self.cpu
    }
}

impl CgroupDelegation {
    /// The delegation of this process. `None` if nothing is delegated.
    pub fn find() -> Option<Self> {
        Self::locate(&own_group()?)
    }

    /// The delegation at `own`, the cgroup of this process.
    pub(crate) fn locate(own: &Path) -> Option<Self> {
        let dir = if own.ends_with(LEAF) {
            own.parent()?
        } else {
            own
        };
        let controllers =
            Controllers::parse(&fs::read_to_string(dir.join("cgroup.subtree_control")).ok()?);
        (controllers.any() && is_writable(dir)).then(|| Self {
            dir: dir.into(),
            controllers,
        })
    }

    /// Controllers that can be used.
    pub fn controllers(&self) -> Controllers {
        self.controllers
    }

    /// Creates a cgroup with these limits.
    pub(crate) fn create_group(&self, name: &str, limits: &Limits) -> io::Result<AttemptCgroup> {
        let dir = self.dir.join(name);
        let lock = create_locked(&dir)?;
        let set_limits = || {
            if let Some(mb) = limits.memory_mb.filter(|_| self.controllers.memory) {
                write(&dir, "memory.max", &mb.saturating_mul(1 << 20).to_string())?;
                // The file is missing without swap accounting.
                let _ = write(&dir, "memory.swap.max", "0");
                write(&dir, "memory.oom.group", "1")?;
            }
            if let Some(procs) = limits.max_procs.filter(|_| self.controllers.pids) {
                write(&dir, "pids.max", &procs.to_string())?;
            }
            if let Some(percent) = limits.cpu_percent.filter(|_| self.controllers.cpu) {
                let quota = (u64::from(percent) * PERIOD_US / 100).max(1000);
                write(&dir, "cpu.max", &format!("{quota} {PERIOD_US}"))?;
            }
            OpenOptions::new()
                .write(true)
                .open(dir.join("cgroup.procs"))
        };
        match set_limits() {
            Ok(procs) => Ok(AttemptCgroup {
                procs,
                controllers: self.controllers,
                dir,
                _lock: lock,
            }),
            Err(error) => {
                let _ = fs::remove_dir(&dir);
                Err(error)
            }
        }
    }

    /// Removes the cgroups of runners that were killed. A cgroup that still has processes stays,
    /// because the kernel refuses to remove it.
    fn sweep(&self) {
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let is_ours = name
                .to_str()
                .is_some_and(|name| name.starts_with(PREFIX) && name != LEAF);
            // Locked until it is removed: otherwise another runner could take it in between and
            // continue in a removed cgroup.
            if is_ours
                && let Ok(lock) = File::open(entry.path())
                && lock.try_lock().is_ok()
            {
                let _ = fs::remove_dir(entry.path());
            }
        }
    }
}

/// Removes the cgroups of killed runners in the delegation of this process.
pub(crate) fn sweep() {
    if let Some(delegation) = CgroupDelegation::find() {
        delegation.sweep();
    }
}

/// Creates a cgroup, or takes one that was left, and locks it.
fn create_locked(dir: &Path) -> io::Result<File> {
    for _ in 0..TRIES {
        match fs::create_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
        match File::open(dir) {
            // A sweep may have run before the lock was taken: the directory is then gone, or about
            // to be removed.
            Ok(lock) if lock.try_lock().is_ok() && dir.exists() => return Ok(lock),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => thread::sleep(Duration::from_millis(1)),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

impl AttemptCgroup {
    pub(crate) fn controllers(&self) -> Controllers {
        self.controllers
    }

    /// A process that writes `0` to this file joins the cgroup.
    pub(crate) fn procs(&self) -> &File {
        &self.procs
    }

    /// Whether a fork failed because of `pids.max`.
    pub(crate) fn has_refused_a_fork(&self) -> bool {
        count_events(&self.dir.join("pids.events"), "max") > 0
    }

    /// Whether the kernel has killed a process of the cgroup because of its memory limit.
    pub(crate) fn has_killed_for_memory(&self) -> bool {
        count_events(&self.dir.join("memory.events"), "oom_kill") > 0
    }

    /// Peak memory of the cgroup in bytes.
    pub(crate) fn peak_memory(&self) -> Option<u64> {
        fs::read_to_string(self.dir.join("memory.peak"))
            .ok()?
            .trim()
            .parse()
            .ok()
    }
}

/// Reads the count of an event from an event file.
pub(crate) fn count_events(file: &Path, name: &str) -> u64 {
    let events = fs::read_to_string(file).unwrap_or_default();
    let mut words = events.lines().filter_map(|line| line.split_once(' '));
    words
        .find(|(key, _)| *key == name)
        .and_then(|(_, count)| count.trim().parse().ok())
        .unwrap_or(0)
}

impl Drop for AttemptCgroup {
    fn drop(&mut self) {
        let _ = write(&self.dir, "cgroup.kill", "1");
        // A process leaves its cgroup a moment after it exits.
        for _ in 0..20 {
            match fs::remove_dir(&self.dir) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    thread::sleep(Duration::from_millis(1))
                }
                _ => return,
            }
        }
    }
}

/// Prepares the cgroup of this process to hold one cgroup per attempt, if it is delegated and holds
/// no other process. A worker calls this once, before it starts runners, and continues without
/// cgroups on failure.
pub fn prepare() -> io::Result<Controllers> {
    let own = own_group().ok_or_else(|| io::Error::other("no cgroup v2 hierarchy is mounted"))?;
    let prepared = prepare_at(&own, std::process::id());
    // Empty cgroups of workers that were killed together with their runners.
    sweep();
    prepared
}

fn prepare_at(own: &Path, worker: u32) -> io::Result<Controllers> {
    if let Some(ready) = CgroupDelegation::locate(own) {
        return Ok(ready.controllers);
    }
    let controllers = survey(own, worker).map_err(io::Error::other)?;
    let leaf = own.join(LEAF);
    fs::create_dir_all(&leaf)?;
    write(&leaf, "cgroup.procs", &worker.to_string())?;
    let Controllers { memory, pids, cpu } = controllers;
    let wanted = [("+memory", memory), ("+pids", pids), ("+cpu", cpu)];
    let wanted: Vec<_> = wanted
        .iter()
        .filter(|(_, offered)| *offered)
        .map(|(name, _)| *name)
        .collect();
    write(own, "cgroup.subtree_control", &wanted.join(" "))?;
    Ok(controllers)
}

/// Controllers that would be available below `own`, which is not prepared, if `worker` moved to a
/// child cgroup. Changes nothing.
pub(crate) fn survey(own: &Path, worker: u32) -> Result<Controllers, CgroupUnavailable> {
    let read = |file| fs::read_to_string(own.join(file)).unwrap_or_default();
    let controllers = Controllers::parse(&read("cgroup.controllers"));
    if !controllers.any() {
        return Err(CgroupUnavailable::NoControllers);
    }
    if !is_writable(own)
        || OpenOptions::new()
            .write(true)
            .open(own.join("cgroup.subtree_control"))
            .is_err()
    {
        return Err(CgroupUnavailable::NotDelegated);
    }
    // The kernel shows a process of another pid namespace as 0.
    let is_alone = read("cgroup.procs")
        .lines()
        .all(|line| line.trim().parse() == Ok(worker));
    if is_alone {
        Ok(controllers)
    } else {
        Err(CgroupUnavailable::Shared)
    }
}

/// Directory of the v2 cgroup of this process.
pub(crate) fn own_group() -> Option<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    find_own_group(&groups, &mounts)
}

fn find_own_group(groups: &str, mounts: &str) -> Option<PathBuf> {
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        // The mount may show only a part of the hierarchy, as in a container.
        let below = Path::new(path).strip_prefix(root).ok()?;
        kind.starts_with("cgroup2 ")
            .then(|| Path::new(point).join(below))
    })
}

fn is_writable(dir: &Path) -> bool {
    OpenOptions::new()
        .write(true)
        .open(dir.join("cgroup.procs"))
        .is_ok()
}

fn write(dir: &Path, file: &str, value: &str) -> io::Result<()> {
    // Do not create the file: a missing one is a feature that the kernel does not have.
    io::Write::write_all(
        &mut OpenOptions::new().write(true).open(dir.join(file))?,
        value.as_bytes(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fake(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (file, content) in files {
            fs::create_dir_all(root.path().join(file).parent().unwrap()).unwrap();
            fs::write(root.path().join(file), content).unwrap();
        }
        root
    }

    #[test]
    fn finds_the_cgroup_in_every_layout() {
        let unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        let hybrid = "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      32 23 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let container = "33 23 0:29 /pod/a /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(
            find_own_group("0::/user/x\n", unified),
            Some("/sys/fs/cgroup/user/x".into())
        );
        assert_eq!(
            find_own_group("4:memory:/m\n0::/\n", hybrid),
            Some("/sys/fs/cgroup/unified/".into())
        );
        assert_eq!(
            find_own_group("0::/pod/a/b\n", container),
            Some("/sys/fs/cgroup/b".into())
        );
        assert_eq!(find_own_group("4:memory:/m\n", hybrid), None);
        assert_eq!(
            find_own_group(
                "0::/\n",
                "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
            ),
            None
        );
    }

    #[test]
    fn writes_limits_in_kernel_units() {
        let root = fake(&[
            ("cgroup.subtree_control", "cpu memory\n"),
            ("cgroup.procs", ""),
        ]);
        let delegation = CgroupDelegation::locate(root.path()).unwrap();
        assert_eq!(
            delegation.controllers(),
            Controllers {
                memory: true,
                pids: false,
                cpu: true
            }
        );
        let limits = Limits {
            memory_mb: Some(2),
            cpu_percent: Some(150),
            max_procs: Some(5),
            max_fds: None,
        };
        for file in [
            "memory.max",
            "memory.swap.max",
            "memory.oom.group",
            "cpu.max",
            "pids.max",
            "cgroup.procs",
        ] {
            fs::create_dir_all(root.path().join("t")).unwrap();
            fs::write(root.path().join("t").join(file), "").unwrap();
        }
        let group = delegation.create_group("t", &limits).unwrap();
        let read = |file: &str| fs::read_to_string(root.path().join("t").join(file)).unwrap();
        assert_eq!(
            (read("memory.max"), read("cpu.max")),
            ("2097152".into(), "150000 100000".into())
        );
        assert_eq!(
            (read("memory.swap.max"), read("pids.max")),
            ("0".into(), String::new())
        );
        fs::write(
            root.path().join("t/memory.events"),
            "low 0\noom 1\noom_kill 2\n",
        )
        .unwrap();
        fs::write(root.path().join("t/memory.peak"), "123\n").unwrap();
        assert!(group.has_killed_for_memory() && !group.has_refused_a_fork());
        assert_eq!(group.peak_memory(), Some(123));
    }

    #[test]
    fn removes_a_cgroup_whose_limits_cannot_be_set() {
        let root = fake(&[
            ("cgroup.subtree_control", "memory pids\n"),
            ("cgroup.procs", ""),
        ]);
        let delegation = CgroupDelegation::locate(root.path()).unwrap();
        let limits = Limits {
            memory_mb: Some(1),
            ..Limits::default()
        };
        assert!(delegation.create_group("t", &limits).is_err());
        assert!(!root.path().join("t").exists());
    }

    #[test]
    fn sweeps_cgroups_of_killed_runners_only() {
        let root = fake(&[
            ("cgroup.subtree_control", "memory\n"),
            ("cgroup.procs", ""),
            ("raddle-7-1/child/x", ""),
        ]);
        let delegation = CgroupDelegation::locate(root.path()).unwrap();
        for left in ["raddle-5-1", "raddle-5-2", LEAF, "unrelated"] {
            fs::create_dir(root.path().join(left)).unwrap();
        }
        // In a plain directory, an entry keeps it from being removed as processes do in a cgroup.
        let fresh = create_locked(&root.path().join("raddle-6-1")).unwrap();
        delegation.sweep();
        let mut there: Vec<_> = fs::read_dir(root.path())
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        there.retain(|name| root.path().join(name).is_dir());
        there.sort();
        assert_eq!(
            there,
            ["raddle-6-1", "raddle-7-1", LEAF, "unrelated"],
            "in use, and not removable"
        );
        assert!(
            create_locked(&root.path().join("raddle-6-1")).is_err(),
            "another has it"
        );
        // Its runner is killed, and an attempt of that name runs again.
        drop(fresh);
        drop(create_locked(&root.path().join("raddle-6-1")).unwrap());
        delegation.sweep();
        assert!(!root.path().join("raddle-6-1").exists());
    }

    #[test]
    fn finds_no_delegation_without_controllers() {
        let root = fake(&[
            ("cgroup.subtree_control", "hugetlb\n"),
            ("cgroup.procs", ""),
        ]);
        assert!(CgroupDelegation::locate(root.path()).is_none());
        assert!(CgroupDelegation::locate(Path::new("/no/such/group")).is_none());
    }

    #[test]
    fn prepares_only_a_cgroup_without_other_processes() {
        let files = [
            ("cgroup.controllers", "cpu pids"),
            ("cgroup.subtree_control", ""),
            ("raddle-leaf/cgroup.procs", ""),
        ];
        let root = fake(&[&files[..], &[("cgroup.procs", "42\n")]].concat());
        assert!(prepare_at(root.path(), 41).is_err());
        let ready = Controllers {
            memory: false,
            pids: true,
            cpu: true,
        };
        assert_eq!(prepare_at(root.path(), 42).unwrap(), ready);
        assert_eq!(
            fs::read_to_string(root.path().join("cgroup.subtree_control")).unwrap(),
            "+pids +cpu"
        );
        assert_eq!(
            fs::read_to_string(root.path().join("raddle-leaf/cgroup.procs")).unwrap(),
            "42"
        );
    }

    #[test]
    fn distinguishes_why_no_cgroup_is_available() {
        let offered = ("cgroup.controllers", "memory pids cpu");
        let seen = |files: &[(&str, &str)]| survey(fake(files).path(), 42);
        let (switch, procs) = (("cgroup.subtree_control", ""), ("cgroup.procs", "42\n"));
        assert_eq!(
            seen(&[("cgroup.controllers", "hugetlb"), switch, procs]),
            Err(CgroupUnavailable::NoControllers)
        );
        // Missing files cannot be written either, even by root.
        assert_eq!(
            seen(&[offered, switch]),
            Err(CgroupUnavailable::NotDelegated)
        );
        assert_eq!(
            seen(&[offered, procs]),
            Err(CgroupUnavailable::NotDelegated)
        );
        assert_eq!(
            seen(&[offered, switch, ("cgroup.procs", "42\n50\n")]),
            Err(CgroupUnavailable::Shared)
        );
        assert_eq!(
            seen(&[offered, switch, ("cgroup.procs", "42\n0\n")]),
            Err(CgroupUnavailable::Shared)
        );
        let controllers = Controllers {
            memory: true,
            pids: true,
            cpu: true,
        };
        assert_eq!(seen(&[offered, switch, procs]), Ok(controllers));
    }
}
