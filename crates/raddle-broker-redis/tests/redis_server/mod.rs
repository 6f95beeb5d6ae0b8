//! A Redis server for one test: on a free port, in a temporary directory, killed on drop.

pub(crate) mod cluster;

use std::{
    fs::File,
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::Mutex,
    time::{Duration, Instant},
};

/// The limit for a start and for a reply.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A running server.
pub(crate) struct Server {
    pub(crate) port: u16,
    process: Mutex<Option<Child>>,
    directory: tempfile::TempDir,
    program: String,
    extra: Vec<String>,
}

impl Server {
    /// Starts a server with an append-only file.
    pub(crate) fn start() -> Self {
        Self::with(&["--appendonly", "yes", "--appendfsync", "everysec"])
    }

    /// Starts a server with additional arguments.
    pub(crate) fn with(extra: &[&str]) -> Self {
        Self::with_program("redis-server", extra)
    }

    /// Starts another server program.
    pub(crate) fn with_program(program: &str, extra: &[&str]) -> Self {
        // On tmpfs if possible: a server that waits for a disk does not answer, and other load on
        // the disk is not under test.
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let directory = directory.expect("there is room for a temporary directory");
        let (program, extra) = (
            program.to_owned(),
            extra.iter().map(ToString::to_string).collect(),
        );
        let mut server = Self {
            port: 0,
            process: Mutex::default(),
            directory,
            program,
            extra,
        };
        // Another process may take the free port before the server does.
        for _ in 0..5 {
            server.port = free_port();
            if server.launch() {
                return server;
            }
        }
        panic!("redis-server does not start: is the Debian package redis-server installed?")
    }

    /// Starts a cluster node, which needs a second port: by default its port plus 10000.
    fn for_cluster(extra: &[&str]) -> Self {
        let bus = free_port().to_string();
        Self::with(&[extra, &["--cluster-port", &bus]].concat())
    }

    /// Starts a replica of this server.
    pub(crate) fn replica(&self) -> Self {
        // By default the server waits for more replicas.
        self.command(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
        let master = format!("127.0.0.1 {}", self.port);
        let replica = Self::with(&["--appendonly", "yes", "--replicaof", &master]);
        let is_linked = || {
            replica
                .command(&["INFO", "replication"])
                .contains("master_link_status:up")
        };
        wait_until("a replica has caught up", is_linked);
        replica
    }

    /// Sends a signal to the server.
    pub(crate) fn signal(&self, signal: &str) {
        let process = self.process.lock().expect("no holder panics");
        let pid = process.as_ref().expect("the server runs").id().to_string();
        let sent = Command::new("kill")
            .args(["-s", signal, &pid])
            .status()
            .expect("kill can be started");
        assert!(sent.success());
    }

    /// Starts a sentinel with this configuration.
    pub(crate) fn sentinel(config: &std::path::Path) -> Self {
        Self::with(&[
            config
                .to_str()
                .expect("temporary directories have plain names"),
            "--sentinel",
        ])
    }

    /// The directory of its files.
    pub(crate) fn directory(&self) -> &std::path::Path {
        self.directory.path()
    }

    /// The URL of a namespace.
    pub(crate) fn url(&self, namespace: &str) -> String {
        format!(
            "redis://127.0.0.1:{}/0?namespace={namespace}&volatile=yes",
            self.port
        )
    }

    /// Kills the server. Unlike a power cut this keeps what the kernel has not written yet.
    pub(crate) fn kill(&self) {
        if let Some(mut process) = self.process.lock().expect("no holder panics").take() {
            process.kill().expect("a child can be killed");
            process.wait().expect("a child can be waited for");
        }
    }

    /// The size of the append-only file.
    pub(crate) fn aof_size(&self) -> u64 {
        std::fs::metadata(self.log()).expect("there is a log").len()
    }

    /// Truncates the append-only file, as a power cut does. The server must not run.
    pub(crate) fn truncate_aof(&self, size: u64) {
        let log = File::options()
            .write(true)
            .open(self.log())
            .expect("there is a log");
        log.set_len(size).expect("a file can be cut");
    }

    fn log(&self) -> std::path::PathBuf {
        self.directory
            .path()
            .join("appendonlydir/appendonly.aof.1.incr.aof")
    }

    /// Starts the server again with its data.
    pub(crate) fn restart(&self) {
        assert!(self.launch(), "the port is still free");
    }

    /// Starts the process. Returns whether it is up.
    fn launch(&self) -> bool {
        let log = File::create(self.directory.path().join("server.log"))
            .expect("there is room for a log");
        // It dies with the test process, even if that is killed.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", &self.program]);
        // A configuration file must be the first argument.
        let has_file = self
            .extra
            .first()
            .is_some_and(|first| !first.starts_with('-'));
        let (file, extra) = self.extra.split_at(usize::from(has_file));
        command.args(file).args([
            "--port",
            &self.port.to_string(),
            "--bind",
            "127.0.0.1",
            "--dir",
        ]);
        command.arg(self.directory.path()).args(extra);
        if file.is_empty() {
            command.args(["--save", ""]);
        }
        let Ok(mut process) = command
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(Stdio::null())
            .spawn()
        else {
            return false;
        };
        let began = Instant::now();
        while began.elapsed() < TIMEOUT && matches!(process.try_wait(), Ok(None)) {
            if is_up(self.port) {
                *self.process.lock().expect("no holder panics") = Some(process);
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = process.kill();
        let _ = process.wait();
        false
    }

    /// Sends a command and returns the reply.
    pub(crate) fn command(&self, command: &[&str]) -> String {
        let mut stream =
            TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).expect("the server listens");
        stream
            .set_read_timeout(Some(TIMEOUT))
            .expect("a timeout can be set");
        let mut text = format!("*{}\r\n", command.len());
        for part in command {
            text += &format!("${}\r\n{part}\r\n", part.len());
        }
        stream.write_all(text.as_bytes()).expect("the server reads");
        let mut answer = vec![0; 64 * 1024];
        let read = stream.read(&mut answer).expect("the server answers");
        String::from_utf8_lossy(&answer[..read])
            .trim_end()
            .to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut process) = self
            .process
            .lock()
            .ok()
            .and_then(|mut process| process.take())
        {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Waits until the condition holds.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < TIMEOUT, "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
    listener.local_addr().expect("it is bound").port()
}

/// Whether it answers, with an error too. A server that loads its data does not count as up.
fn is_up(port: u16) -> bool {
    let command = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"PING\r\n")?;
        let mut answer = [0; 64];
        let read = stream.read(&mut answer)?;
        Ok(read > 0 && !answer.starts_with(b"-LOADING"))
    };
    command().unwrap_or(false)
}
