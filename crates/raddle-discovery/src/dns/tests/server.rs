//! A real name server on a local port.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    path::PathBuf,
    process::{Child, Command},
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// `dnsmasq` with its own records and without upstream servers. It is killed on drop.
pub(super) struct Server {
    home: TempDir,
    port: u16,
    process: Option<Child>,
}

impl Server {
    /// Starts a server with these lines of configuration.
    pub(super) fn start(records: &str) -> Self {
        let mut server = Self {
            home: tempfile::tempdir().unwrap(),
            port: free_port(),
            process: None,
        };
        server.change(records);
        server
    }

    pub(super) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Restarts the server with other records. It is unavailable for a moment.
    pub(super) fn change(&mut self, records: &str) {
        self.stop();
        let common = "no-resolv\nno-hosts\nno-daemon\nbind-interfaces\nlisten-address=127.0.0.1\nno-negcache\nlocal=/test/\n";
        let hosts = format!(
            "addn-hosts={}\nport={}\n",
            self.hosts().display(),
            self.port
        );
        // Otherwise dnsmasq changes its user when started as root.
        let user = if rustix::process::geteuid().is_root() {
            "user=root\n"
        } else {
            ""
        };
        let conf = self.home.path().join("conf");
        fs::write(
            &conf,
            [
                common,
                &hosts,
                user,
                records,
                "\nhost-record=ready.test,127.0.0.9\n",
            ]
            .concat(),
        )
        .unwrap();
        if !self.hosts().exists() {
            fs::write(self.hosts(), "").unwrap();
        }
        let log = fs::File::create(self.home.path().join("log")).unwrap();
        let mut command = Command::new("dnsmasq");
        command
            .arg(format!("--conf-file={}", conf.display()))
            .arg("--pid-file")
            .stderr(log);
        self.process = Some(
            command
                .spawn()
                .expect("dnsmasq is installed: `cargo xtask test` does it"),
        );
        self.wait_until_it_answers();
    }

    /// Sets additional hosts without a restart: lines of `address name`.
    pub(super) fn reload(&self, hosts: &str) {
        fs::write(self.hosts(), hosts).unwrap();
        let process = self.process.as_ref().unwrap();
        let pid = rustix::process::Pid::from_child(process);
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    }

    pub(super) fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    fn hosts(&self) -> PathBuf {
        self.home.path().join("hosts")
    }

    fn wait_until_it_answers(&mut self) {
        let query = b"\0\x01\x01\0\0\x01\0\0\0\0\0\0\x05ready\x04test\0\0\x01\0\x01";
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.connect(self.address()).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        // Until the server listens, `send` and `recv` fail with ECONNREFUSED.
        while socket.send(query).is_err() || socket.recv(&mut [0; 512]).is_err() {
            let ended = self.process.as_mut().unwrap().try_wait().unwrap();
            let log = fs::read_to_string(self.home.path().join("log")).unwrap();
            assert!(ended.is_none(), "dnsmasq has ended: {log}");
            assert!(Instant::now() < deadline, "dnsmasq does not respond: {log}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A port that is free for UDP and TCP.
pub(super) fn free_port() -> u16 {
    for _ in 0..100 {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = socket.local_addr().unwrap().port();
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free");
}
