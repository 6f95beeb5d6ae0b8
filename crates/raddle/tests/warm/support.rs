//! A database, a worker of the test program on it, and what becomes of tasks.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

pub(crate) const APP: &str = env!("CARGO_BIN_EXE_raddle-test-warm");
/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

pub(crate) struct World {
    pub(crate) directory: tempfile::TempDir,
    url: String,
    worker: Option<Child>,
}

impl World {
    pub(crate) fn new(flags: &[&str]) -> Self {
        Self::with_env(flags, &[])
    }

    pub(crate) fn with_env(flags: &[&str], env: &[(&str, &str)]) -> Self {
        let mut world = Self::without_worker();
        world.start(flags, env);
        world
    }

    pub(crate) fn without_worker() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self {
            url: format!("sqlite:{}", directory.path().join("work.db").display()),
            directory,
            worker: None,
        }
    }

    /// Another worker on the database of a world.
    pub(crate) fn joining(of: &Self, flags: &[&str]) -> Self {
        let mut world = Self::without_worker();
        world.url.clone_from(&of.url);
        world.start(flags, &[]);
        world
    }

    pub(crate) fn start(&mut self, flags: &[&str], env: &[(&str, &str)]) {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.path("worker.log"))
            .unwrap();
        self.worker = Some(
            self.app()
                .args(["worker", "start", "--no-detach"])
                .args(flags)
                .envs(env.iter().copied())
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
                .unwrap(),
        );
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn app(&self) -> Command {
        let mut command = Command::new(APP);
        command
            .env("QUEUE_URL", &self.url)
            .current_dir(self.directory.path());
        command
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("worker.log")).unwrap_or_default()
    }

    /// Submits tasks, and returns their ids.
    pub(crate) fn submit(&self, routine: &str, count: usize, arguments: &[&str]) -> Vec<String> {
        let output = self
            .app()
            .args(["submit", routine, &count.to_string()])
            .args(arguments)
            .output()
            .unwrap();
        lines(&output)
    }

    /// Waits until all tasks are over. Returns what became of them.
    pub(crate) fn wait(&self) -> Vec<Value> {
        let output = self.app().arg("wait").output().unwrap();
        assert!(output.status.success(), "{output:?}\n{}", self.log());
        lines(&output)
            .iter()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Runs one task, and returns what became of it.
    pub(crate) fn run(&self, routine: &str, arguments: &[&str]) -> Value {
        let tid = self.submit(routine, 1, arguments).remove(0);
        let all = self.wait();
        all.into_iter()
            .find(|task| task["tid"] == tid.as_str())
            .unwrap()
    }

    pub(crate) fn wait_until_running(&self, tasks: usize) {
        eventually("they run", || {
            let running = self.app().arg("running").output().unwrap();
            (lines(&running) == [tasks.to_string()]).then_some(())
        });
    }

    pub(crate) fn control(&self, tid: &str, command: &str) {
        let sent = self.app().args(["control", tid, command]).output().unwrap();
        lines(&sent);
    }

    pub(crate) fn worker_pid(&self) -> u32 {
        self.worker.as_ref().unwrap().id()
    }

    /// The processes of hosts: those that were started as one below this worker.
    pub(crate) fn hosts(&self) -> Vec<u32> {
        descendants(self.worker_pid())
            .into_iter()
            .filter(|pid| command_line(*pid).contains("__host"))
            .collect()
    }

    /// The hosts of another program, by a word of their command line.
    pub(crate) fn hosts_of(&self, word: &str) -> Vec<u32> {
        let worker = self.worker_pid();
        descendants(worker)
            .into_iter()
            .filter(|pid| *pid != worker && command_line(*pid).contains(word))
            .collect()
    }

    pub(crate) fn wait_for_hosts(&self, count: usize) -> Vec<u32> {
        eventually("hosts", || {
            Some(self.hosts()).filter(|hosts| hosts.len() == count)
        })
    }

    /// Stops the worker, and proves that nothing of it is left.
    pub(crate) fn stop(&mut self) {
        let Some(mut worker) = self.worker.take() else {
            return;
        };
        let all = descendants(worker.id());
        signal(worker.id(), "TERM");
        let deadline = Instant::now() + PATIENCE;
        while worker.try_wait().unwrap().is_none() {
            assert!(
                Instant::now() < deadline,
                "the worker does not end\n{}",
                self.log()
            );
            thread::sleep(Duration::from_millis(10));
        }
        eventually("no process is left", || {
            all.iter().all(|pid| !is_alive(*pid)).then_some(())
        });
    }

    pub(crate) fn kill_worker(&mut self) {
        let mut worker = self.worker.take().unwrap();
        worker.kill().unwrap();
        worker.wait().unwrap();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(worker) = &mut self.worker {
            signal(worker.id(), "TERM");
            let deadline = Instant::now() + Duration::from_secs(10);
            while matches!(worker.try_wait(), Ok(None)) && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(10));
            }
            let _ = worker.kill();
            let _ = worker.wait();
        }
    }
}

pub(crate) fn lines(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(str::to_owned).collect()
}

pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "it never came to this: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill")
        .args([&format!("-{name}"), &pid.to_string()])
        .status();
    assert!(sent.unwrap().success(), "{name} to {pid}");
}

pub(crate) fn command_line(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !rest.trim_start().starts_with('Z') && !rest.is_empty())
}

pub(crate) fn parent(of: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{of}/stat")).unwrap();
    let fields = stat.rsplit(')').next().unwrap();
    fields.split_whitespace().nth(1).unwrap().parse().unwrap()
}

pub(crate) fn descendants(of: u32) -> BTreeSet<u32> {
    let mut parents = Vec::new();
    for entry in Path::new("/proc").read_dir().unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat
            .rsplit(')')
            .next()
            .and_then(|rest| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
        parents.extend(parent.map(|parent| (pid, parent)));
    }
    let mut found = BTreeSet::from([of]);
    loop {
        let more: Vec<u32> = parents
            .iter()
            .filter(|(pid, parent)| found.contains(parent) && !found.contains(pid))
            .map(|(pid, _)| *pid)
            .collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// The processes that ran tasks whose result begins with one.
pub(crate) fn pids(tasks: &[Value]) -> BTreeSet<u64> {
    tasks
        .iter()
        .map(|task| task["value"][0].as_u64().unwrap())
        .collect()
}

/// How many of these ended so.
pub(crate) fn count(tasks: &[Value], state: &str) -> usize {
    tasks.iter().filter(|task| task["state"] == state).count()
}
