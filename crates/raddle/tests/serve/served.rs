//! A program that serves, and what it says and leaves.

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

use crate::{CALLEE, until};

/// A program that serves. It is ended with this.
pub(crate) struct Served {
    child: Mutex<Child>,
    pid: u32,
    directory: tempfile::TempDir,
    /// What it has said.
    pub(crate) said: Value,
    pool: String,
}

/// A program that is to serve, with a directory of its own for pools.
pub(crate) struct World(pub(crate) tempfile::TempDir);

impl World {
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

    /// What it says to its end.
    pub(crate) fn refuses(&self, args: &[&str], code: i32) -> String {
        let ran = self.command(args).output().unwrap();
        let said = String::from_utf8(ran.stderr).unwrap();
        assert_eq!(ran.status.code(), Some(code), "{said}");
        assert!(ran.stdout.is_empty());
        said
    }
}

impl Served {
    /// Starts it, and waits until it says that it serves.
    pub(crate) async fn start(args: &[&str]) -> Self {
        let world = World::new();
        let command = world.command(&[&["--json"], args].concat());
        Self::started(world, command).await
    }

    pub(crate) async fn started(world: World, mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = child.stdout.take().unwrap();
        let line = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            BufReader::new(output).read_line(&mut line).unwrap();
            line
        });
        let line = tokio::time::timeout(Duration::from_secs(30), line)
            .await
            .expect("it serves in time")
            .unwrap();
        let said: Value =
            serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: '{line}'"));
        let pool = said["pool"].as_str().unwrap().to_owned();
        Self {
            pid: child.id(),
            child: Mutex::new(child),
            directory: world.0,
            said,
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

    /// A pool that has its workers and no others.
    pub(crate) fn pool(&self) -> PoolBuilder {
        WorkerPool::builder().discovery(self.discovery())
    }

    /// Its workers, as they are published.
    pub(crate) fn workers(&self) -> Vec<WorkerMetadata> {
        self.discovery().snapshot()
    }

    /// How its own title begins, as far as all do.
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

    /// It ends with this code, and leaves nothing.
    pub(crate) async fn ends(&self, code: i32) {
        let workers: Vec<u32> = self.workers().iter().map(|worker| worker.pid).collect();
        until("it has ended", async || self.is_over()).await;
        assert_eq!(self.exit_code(), Some(code));
        assert!(
            workers.iter().all(|pid| !is_alive(*pid)),
            "its workers are gone when it is"
        );
        assert!(self.workers().is_empty());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap();
        let _ = child.kill();
        let _ = child.wait();
        let began = Instant::now();
        // What it has left goes with it.
        while !self.workers().is_empty() && began.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if !std::thread::panicking() {
            assert!(self.workers().is_empty(), "workers are left");
        }
    }
}

/// Whether a process is there, and not just waiting to be reaped.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

pub(crate) fn signal(pid: u32, signal: i32) {
    // SAFETY: a process that the test has started, or one of its workers; the signal has no memory effects here.
    unsafe { libc::kill(pid as i32, signal) };
}

/// What a page says: its status, and its text.
pub(crate) fn page(metrics: &str, path: &str) -> (u16, String) {
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
