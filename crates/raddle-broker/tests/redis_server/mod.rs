//! A Redis server for one test: on a port and in a folder of its own, gone with the test.

use std::{
    fs::File,
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::Mutex,
    time::{Duration, Instant},
};

/// No server takes this long to start, unless it does not.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running server.
pub(crate) struct Server {
    pub(crate) port: u16,
    process: Mutex<Option<Child>>,
    folder: tempfile::TempDir,
    extra: Vec<String>,
}

impl Server {
    /// Starts a server that keeps everything in its log.
    pub(crate) fn start() -> Self {
        Self::with(&["--appendonly", "yes", "--appendfsync", "everysec"])
    }

    /// Starts a server with these arguments besides.
    pub(crate) fn with(extra: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("there is room for a temporary folder");
        let extra: Vec<String> = extra.iter().map(ToString::to_string).collect();
        // Between finding a free port and using it another process may take it.
        for _ in 0..5 {
            let port = free_port();
            if let Some(process) = launch(port, folder.path(), &extra) {
                return Self { port, process: Mutex::new(Some(process)), folder, extra };
            }
        }
        panic!("redis-server does not start: is the Debian package redis-server installed?")
    }

    /// Starts a sentinel with this configuration.
    pub(crate) fn sentinel(config: &std::path::Path) -> Self {
        let config = config.to_str().expect("temporary folders have plain names").to_owned();
        let folder = tempfile::tempdir().expect("there is room for a temporary folder");
        for _ in 0..5 {
            let port = free_port();
            let extra = [config.clone(), "--sentinel".into()];
            if let Some(process) = launch(port, folder.path(), &extra) {
                return Self { port, process: Mutex::new(Some(process)), folder, extra: extra.to_vec() };
            }
        }
        panic!("no sentinel starts: is the Debian package redis-server installed?")
    }

    /// The URL of a namespace on it.
    pub(crate) fn url(&self, namespace: &str) -> String {
        format!("redis://127.0.0.1:{}/0?namespace={namespace}&volatile=yes", self.port)
    }

    /// Kills the server as a power cut would, but for what the system has not written yet.
    pub(crate) fn kill(&self) {
        if let Some(mut process) = self.process.lock().expect("no holder panics").take() {
            process.kill().expect("a child can be killed");
            process.wait().expect("a child can be waited for");
        }
    }

    /// Starts it again on what it kept.
    pub(crate) fn restart(&self) {
        let process = launch(self.port, self.folder.path(), &self.extra).expect("the port is still free");
        *self.process.lock().expect("no holder panics") = Some(process);
    }

    /// What the server answers to one command.
    pub(crate) fn ask(&self, command: &[&str]) -> String {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        let mut text = format!("*{}\r\n", command.len());
        for part in command {
            text += &format!("${}\r\n{part}\r\n", part.len());
        }
        stream.write_all(text.as_bytes()).expect("the server reads");
        let mut answer = vec![0; 64 * 1024];
        let read = stream.read(&mut answer).expect("the server answers");
        String::from_utf8_lossy(&answer[..read]).trim_end().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.lock().ok().and_then(|mut process| process.take()) {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
    listener.local_addr().expect("it is bound").port()
}

fn launch(port: u16, folder: &std::path::Path, extra: &[String]) -> Option<Child> {
    let log = File::create(folder.join("server.log")).ok()?;
    // It dies with its test, even if that is killed.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "redis-server"]);
    // A configuration file has to come first.
    let (file, extra) = extra.split_at(usize::from(extra.first().is_some_and(|first| !first.starts_with('-'))));
    command.args(file).args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"]).arg(folder).args(extra);
    if file.is_empty() {
        command.args(["--save", ""]);
    }
    let mut process = command.stdin(Stdio::null()).stdout(log).stderr(Stdio::null()).spawn().ok()?;
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if process.try_wait().ok()?.is_some() {
            return None;
        }
        if is_up(port) {
            return Some(process);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = process.kill();
    let _ = process.wait();
    None
}

/// Whether it answers, be it with a refusal. While it loads its data it does not count as up.
fn is_up(port: u16) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"PING\r\n")?;
        let mut answer = [0; 64];
        let read = stream.read(&mut answer)?;
        Ok(read > 0 && !answer.starts_with(b"-LOADING"))
    };
    ask().unwrap_or(false)
}
