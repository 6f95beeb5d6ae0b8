//! A Redis server for the campaign: on a free port, with an fsync for every write, killed and
//! restarted.

use std::{
    fs::File,
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command},
    time::{Duration, Instant},
};

/// How long a server may take until it answers, including the load of its data.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const IO_TIMEOUT: Duration = Duration::from_secs(2);

/// The server. Dropping it kills the process.
pub(crate) struct Server {
    command: Box<dyn Fn() -> Command>,
    directory: PathBuf,
    address: SocketAddr,
    child: Option<Child>,
}

impl Server {
    /// Starts a server with its data in this directory. `command` returns the bare command,
    /// `redis-server`.
    pub(crate) fn start(
        directory: PathBuf,
        command: impl Fn() -> Command + 'static,
    ) -> Result<Self, String> {
        let address = free_port().map_err(|error| format!("no free port: {error}"))?;
        let mut server = Self {
            command: Box::new(command),
            directory,
            address,
            child: None,
        };
        server
            .launch()
            .map_err(|error| format!("cannot start redis-server: {error}"))?;
        server.wait_until_ready()?;
        Ok(server)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Kills the server with `SIGKILL`.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts the server with the data on its disk. Does not wait until it is ready.
    pub(crate) fn launch(&mut self) -> io::Result<()> {
        let log = File::options()
            .append(true)
            .create(true)
            .open(self.directory.join("redis.log"))?;
        let mut command = (self.command)();
        // `appendfsync always` syncs before the reply, so that a kill loses no acknowledged write.
        command.args([
            "--bind",
            "127.0.0.1",
            "--port",
            &self.address.port().to_string(),
        ]);
        command.args([
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
            "--save",
            "",
            "--daemonize",
            "no",
        ]);
        // Without rewrites the append-only file only grows, so it can be truncated.
        command.args([
            "--auto-aof-rewrite-percentage",
            "0",
            "--repl-diskless-sync-delay",
            "0",
        ]);
        command
            .args(["--maxmemory-policy", "noeviction", "--dir"])
            .arg(&self.directory);
        self.child = Some(command.stdout(log.try_clone()?).stderr(log).spawn()?);
        Ok(())
    }

    /// The size of the append-only file.
    pub(crate) fn aof_size(&self) -> Option<u64> {
        Some(self.log()?.metadata().ok()?.len())
    }

    /// Truncates the append-only file to this size. The server must not run.
    pub(crate) fn truncate_aof(&self, size: u64) -> io::Result<()> {
        let log = self.log().ok_or(io::ErrorKind::NotFound)?;
        File::options().write(true).open(log)?.set_len(size)
    }

    /// Removes all data. The server must not run.
    pub(crate) fn clear(&self) {
        let _ = std::fs::remove_dir_all(self.directory.join("appendonlydir"));
    }

    /// The append-only file that is written: the one with the highest number.
    fn log(&self) -> Option<PathBuf> {
        let files = self
            .directory
            .join("appendonlydir")
            .read_dir()
            .ok()?
            .flatten()
            .map(|entry| entry.path());
        files
            .filter(|path| path.to_string_lossy().ends_with(".incr.aof"))
            .max()
    }

    /// Waits until the server answers a PING.
    pub(crate) fn wait_until_ready(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if send_command(self.address, "PING\r\n")
                .is_ok_and(|answer| answer.starts_with("+PONG"))
            {
                return Ok(());
            }
            let has_ended = |child: &mut Child| child.try_wait().ok().flatten();
            if let Some(status) = self.child.as_mut().and_then(has_ended) {
                let log =
                    std::fs::read_to_string(self.directory.join("redis.log")).unwrap_or_default();
                let last = log.lines().last().unwrap_or_default();
                return Err(format!("redis-server ended: {status}; {last}"));
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "redis-server does not answer within {START_TIMEOUT:?}"
                ));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends a command on a new connection, and returns the beginning of the reply.
pub(crate) fn send_command(address: SocketAddr, command: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, IO_TIMEOUT)?;
    stream.set_read_timeout(Some(IO_TIMEOUT))?;
    stream.set_write_timeout(Some(IO_TIMEOUT))?;
    stream.write_all(command.as_bytes())?;
    let mut answer = [0; 2048];
    match stream.read(&mut answer)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => Ok(String::from_utf8_lossy(&answer[..count]).into_owned()),
    }
}

/// The offset of the replication stream that a server has written, or a replica applied.
pub(crate) fn replication_offset(address: SocketAddr) -> Option<u64> {
    let info = send_command(address, "INFO replication\r\n").ok()?;
    let offset = |name| {
        let line = info.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    };
    offset("slave_repl_offset:").or_else(|| offset("master_repl_offset:"))
}

fn free_port() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledged_writes_survive_a_kill() {
        let directory = tempfile::tempdir().unwrap();
        let mut server =
            Server::start(directory.path().to_owned(), || Command::new("redis-server")).unwrap();
        let first = server.pid().unwrap();
        for n in 0..50 {
            assert_eq!(
                send_command(server.address(), &format!("SET k{n} {n}\r\n")).unwrap(),
                "+OK\r\n"
            );
        }
        server.kill();
        assert!(send_command(server.address(), "PING\r\n").is_err());
        server.launch().unwrap();
        server.wait_until_ready().unwrap();
        assert_ne!(server.pid().unwrap(), first);
        assert_eq!(
            send_command(server.address(), "DBSIZE\r\n").unwrap(),
            ":50\r\n"
        );
        let pid = server.pid().unwrap();
        drop(server);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn reports_why_a_server_cannot_start() {
        let directory = tempfile::tempdir().unwrap();
        let error = Server::start(directory.path().to_owned(), || Command::new("false"))
            .err()
            .unwrap();
        assert!(error.contains("redis-server ended"), "{error}");
    }
}
