//! `ProjectDir`: a fresh directory on a real disk, with a broker, for the release binary.

use std::{
    fs,
    future::Future,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, OnceLock},
};

use raddle_broker::Broker;
use raddle_broker_connect::{BrokerUrl, connect};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

/// A fresh project directory.
pub(crate) struct ProjectDir {
    directory: TempDir,
    runtime: Runtime,
}

impl ProjectDir {
    /// Created below the build directory: `/tmp` may be in memory, where fsync costs nothing.
    pub(crate) fn new() -> Self {
        let directory = TempDir::new_in(base()).expect("the build directory can be written");
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime can be made");
        Self { directory, runtime }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The broker that commands in this directory use.
    pub(crate) fn broker(&self) -> Arc<dyn Broker> {
        let path = self.path().join(".raddle").join("raddle.db");
        self.wait(connect(&BrokerUrl::Sqlite(path)))
            .expect("a new database can be made")
    }

    pub(crate) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// `raddle` with these arguments in this directory.
    pub(crate) fn raddle(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command
            .args(args)
            .current_dir(self.path())
            .stdin(Stdio::null());
        for variable in [
            "QUEUE_URL",
            "WORKER_CAPS",
            "WORKER_CONCURRENCY",
            "WORKER_IDLE_EXIT",
            "RADDLE_TID",
        ] {
            command.env_remove(variable);
        }
        command
    }

    /// Starts a worker in the foreground and waits until it is registered.
    pub(crate) fn worker(&self, args: &[&str]) -> Worker {
        let mut all = vec!["worker", "start", "--no-detach"];
        all.extend(args);
        Worker::start(self.raddle(&all).stderr(Stdio::null()))
    }
}

impl Worker {
    /// Starts a worker, or another command that prints an id on its standard output when it is
    /// ready.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("the release binary starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it was piped");
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("the worker prints its id");
        assert!(
            line.trim().len() >= 19,
            "the worker prints its id, and not {line:?}"
        );
        Self { child }
    }
}

/// A worker process, stopped when dropped.
pub(crate) struct Worker {
    child: Child,
}

impl Worker {
    /// Sends `SIGTERM` and waits. Returns whether the worker exited with success.
    pub(crate) fn stop(mut self) -> bool {
        self.end()
    }

    /// Sends `SIGKILL` and waits.
    pub(crate) fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn end(&mut self) -> bool {
        let pid = i32::try_from(self.child.id()).expect("a pid fits");
        // SAFETY: the child was not waited for, so the pid is its own.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        self.child.wait().is_ok_and(|status| status.success())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.end();
        }
    }
}

/// The directory for all projects. With the attribute `T` (top directory) ext4 places each project
/// in another block group: where a build has just removed thousands of files, ext4 scans their
/// inodes at every creation, for about a minute, at a quarter of a millisecond per file.
fn base() -> PathBuf {
    let base = beside("bench");
    fs::create_dir_all(&base).expect("the build directory can be written");
    // File systems without that attribute do not have the problem.
    let _ = Command::new("chattr")
        .arg("+T")
        .arg(&base)
        .stderr(Stdio::null())
        .status();
    base
}

/// A file beside this program, where `cargo xtask bench` has built it.
pub(crate) fn beside(name: &str) -> PathBuf {
    std::env::current_exe()
        .expect("the system knows this program")
        .with_file_name(name)
}

/// The release binary, installed: a copy of the built file. The page cache holds a file that a
/// linker wrote in single pages, and one that was copied or unpacked, as every installed program
/// is, in large folios, which take a third of the time to map.
pub(crate) fn binary() -> PathBuf {
    static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
    let install = || {
        let installed = base().join("raddle");
        // Not overwritten: a process may be executing it.
        let _ = fs::remove_file(&installed);
        fs::copy(beside("raddle"), &installed).expect("the release binary can be copied");
        installed
    };
    INSTALLED.get_or_init(install).clone()
}
