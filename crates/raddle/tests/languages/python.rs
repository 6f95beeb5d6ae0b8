//! `Python`: an environment for workers and callers in Python.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::{ExitStatus, Output, Stdio},
    time::Duration,
};

use raddle::pool::connection::ControlConnection;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

/// How long Python may take to start or exit.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A directory for workers and callers, with generated gRPC stubs.
pub(crate) struct Python {
    directory: TempDir,
}

/// A Python worker. Dropping it kills the process.
pub(crate) struct Worker {
    process: Child,
    pub(crate) address: String,
}

impl Python {
    /// Generates Python code from the `.proto`, as the example documents.
    pub(crate) async fn new() -> Self {
        let python = Self {
            directory: tempfile::tempdir().unwrap(),
        };
        let stubs = python.stubs();
        std::fs::create_dir(&stubs).unwrap();
        let mut compile = python.command(["-m", "grpc_tools.protoc"]);
        compile
            .arg("-I")
            .arg(workspace().join("crates/raddle-wire/proto"));
        for out in ["--python_out", "--grpc_python_out"] {
            compile.arg(format!("{out}={}", stubs.display()));
        }
        let compiled = timeout(TIMEOUT, compile.arg("raddle/v1/worker.proto").output())
            .await
            .unwrap()
            .unwrap();
        assert!(
            compiled.status.success(),
            "{}",
            String::from_utf8_lossy(&compiled.stderr)
        );
        python
    }

    /// The directory in which workers publish themselves.
    pub(crate) fn workers(&self) -> PathBuf {
        self.directory.path().join("workers")
    }

    /// A path for a file of the test.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn stubs(&self) -> PathBuf {
        self.directory.path().join("stubs")
    }

    fn command<const N: usize>(&self, arguments: [&str; N]) -> Command {
        let mut command = Command::new("python3");
        let path = [packages(), self.stubs()].map(PathBuf::into_os_string);
        command
            .args(arguments)
            .env("PYTHONPATH", path.join(&OsString::from(":")));
        command
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Starts the example worker, and returns when it serves.
    pub(crate) async fn worker(&self, options: &[&str]) -> Worker {
        let mut command = self.command([]);
        command
            .arg(example("worker.py"))
            .arg(self.workers())
            .args(options)
            .stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let line = timeout(TIMEOUT, lines.next_line())
            .await
            .expect("the worker starts in time")
            .unwrap();
        let line = line.expect("the worker serves");
        let address = line
            .strip_prefix("serving at ")
            .unwrap_or_else(|| panic!("{line}"))
            .to_owned();
        Worker { process, address }
    }

    /// The output of the example worker with invalid options.
    pub(crate) async fn run_worker_refused(&self, options: &[&str]) -> Output {
        let mut command = self.command([]);
        let starting = command
            .arg(example("worker.py"))
            .arg(self.workers())
            .args(options)
            .output();
        timeout(TIMEOUT, starting)
            .await
            .expect("the process ends in time")
            .unwrap()
    }

    /// Calls with the example client.
    pub(crate) async fn call(&self, arguments: &[&str]) -> Output {
        let mut command = self.command([]);
        let calling = command.arg(example("client.py")).args(arguments).output();
        timeout(TIMEOUT, calling)
            .await
            .expect("the process ends in time")
            .unwrap()
    }
}

impl Worker {
    pub(crate) fn pid(&self) -> u32 {
        self.process.id().unwrap()
    }

    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: plain integers; the test has started this process and not waited for it.
        let sent = unsafe { libc::kill(self.pid() as i32, signal) };
        assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
    }

    /// A control connection.
    pub(crate) fn control(&self) -> ControlConnection {
        ControlConnection::new(&self.address).unwrap()
    }

    /// The number of calls in flight.
    pub(crate) async fn in_flight(&self) -> u64 {
        self.control().info().await.unwrap().in_flight
    }

    /// Waits until this many calls are in flight.
    pub(crate) async fn wait_for_in_flight(&self, calls: u64) {
        let waiting = async {
            while self.in_flight().await != calls {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(10), waiting)
            .await
            .expect("the calls arrive in time");
    }

    /// Waits for the end of the process.
    pub(crate) async fn wait(mut self) -> ExitStatus {
        timeout(TIMEOUT, self.process.wait())
            .await
            .expect("the process ends in time")
            .unwrap()
    }
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn example(file: &str) -> PathBuf {
    workspace().join("examples/python-worker").join(file)
}

/// The packages that `cargo xtask test` installs.
fn packages() -> PathBuf {
    let directory = workspace().join("target/servers/python-worker");
    let installed = std::fs::read(directory.join("installed.txt")).unwrap_or_default();
    let required = std::fs::read(example("requirements.txt")).unwrap();
    assert!(
        installed.ends_with(&required),
        "`cargo xtask test` installs what is missing at {}",
        directory.display()
    );
    directory
}
