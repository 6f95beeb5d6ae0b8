//! `PoolServer`: a process of `pool serve`.

use std::{
    io::{BufRead, BufReader, Read},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Mutex,
    time::{Duration, Instant},
};

use raddle::{
    WorkerPool,
    discovery::LocalDiscovery,
    pool::{PoolBuilder, WorkerMetadata},
};
use serde_json::Value;

use crate::{CALLEE, wait_until};

/// A process of `pool serve`. Dropping it kills the process.
pub(crate) struct PoolServer {
    child: Mutex<Child>,
    pid: u32,
    directory: tempfile::TempDir,
    /// Its first line of output, as JSON.
    pub(crate) ready: Value,
    pool: String,
}

/// A directory for a server, with its own directory of pools.
pub(crate) struct ServerDir(pub(crate) tempfile::TempDir);

impl ServerDir {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(directory.path().join("raddle"))
            .unwrap();
        Self(directory)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(CALLEE);
        command
            .args(["pool", "serve"])
            .args(args)
            .env("XDG_RUNTIME_DIR", self.path())
            .env_remove("NOTIFY_SOCKET");
        command.current_dir(self.path()).stdin(Stdio::null());
        command
    }

    /// Runs a command that must fail with this code. Returns its error message.
    pub(crate) fn run_refused(&self, args: &[&str], code: i32) -> String {
        let output = self.command(args).output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{message}");
        assert!(output.stdout.is_empty());
        message
    }
}

impl PoolServer {
    /// Starts the server and waits until it serves.
    pub(crate) async fn start(args: &[&str]) -> Self {
        let world = ServerDir::new();
        let command = world.command(&[&["--json"], args].concat());
        Self::start_command(world, command).await
    }

    pub(crate) async fn start_command(world: ServerDir, mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = child.stdout.take().unwrap();
        let line = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            BufReader::new(output).read_line(&mut line).unwrap();
            line
        });
        let line = tokio::time::timeout(Duration::from_secs(30), line)
            .await
            .expect("the server starts in time")
            .unwrap();
        let ready: Value =
            serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: '{line}'"));
        let pool = ready["pool"].as_str().unwrap().to_owned();
        Self {
            pid: child.id(),
            child: Mutex::new(child),
            directory: world.0,
            ready,
            pool,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    fn pools(&self) -> PathBuf {
        self.path().join("raddle/pools")
    }

    pub(crate) fn discovery(&self) -> LocalDiscovery {
        LocalDiscovery::in_directory(self.pools(), &self.pool).unwrap()
    }

    /// A pool of its workers.
    pub(crate) fn pool(&self) -> PoolBuilder {
        WorkerPool::builder().discovery(self.discovery())
    }

    /// Its published workers.
    pub(crate) fn workers(&self) -> Vec<WorkerMetadata> {
        self.discovery().snapshot()
    }

    /// The constant beginning of its process title.
    pub(crate) fn title(&self) -> String {
        let cmdline = std::fs::read(format!("/proc/{}/cmdline", self.pid())).unwrap();
        String::from_utf8_lossy(&cmdline)
            .chars()
            .take_while(|c| !c.is_ascii_digit())
            .collect()
    }

    pub(crate) fn interrupt(&self) -> &Self {
        signal(self.pid(), libc::SIGINT);
        self
    }

    pub(crate) fn terminate(&self) -> &Self {
        signal(self.pid(), libc::SIGTERM);
        self
    }

    pub(crate) fn is_over(&self) -> bool {
        self.exit_code().is_some()
    }

    fn exit_code(&self) -> Option<i32> {
        self.child
            .lock()
            .unwrap()
            .try_wait()
            .unwrap()
            .map(|status| status.code().unwrap_or(-1))
    }

    /// Waits until it exits with this code, and checks that it leaves no worker and no entry.
    pub(crate) async fn assert_ends(&self, code: i32) {
        let workers: Vec<u32> = self.workers().iter().map(|worker| worker.pid).collect();
        wait_until("the server has exited", async || self.is_over()).await;
        assert_eq!(self.exit_code(), Some(code));
        assert!(
            workers.iter().all(|pid| !is_alive(*pid)),
            "workers end before the server"
        );
        assert!(self.workers().is_empty());
    }
}

impl Drop for PoolServer {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap();
        let _ = child.kill();
        let _ = child.wait();
        let began = Instant::now();
        // Its workers end with it.
        while !self.workers().is_empty() && began.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if !std::thread::panicking() {
            assert!(self.workers().is_empty(), "workers are left");
        }
    }
}

/// Whether a process runs and is not a zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

pub(crate) fn signal(pid: u32, signal: i32) {
    // SAFETY: the test has started this process or its parent; the signal has no memory effects
    // here.
    unsafe { libc::kill(pid as i32, signal) };
}

/// The status and body of an HTTP GET.
pub(crate) fn http_get(metrics: &str, path: &str) -> (u16, String) {
    let address = metrics
        .strip_prefix("http://")
        .unwrap()
        .split('/')
        .next()
        .unwrap();
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    std::io::Write::write_all(
        &mut stream,
        format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes(),
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    (
        head.split(' ').nth(1).unwrap().parse().unwrap(),
        text.to_owned(),
    )
}
