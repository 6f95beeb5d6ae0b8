//! `Machine`: a host that runs servers.

use std::{
    io::{BufRead, BufReader},
    os::unix::fs::DirBuilderExt,
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use raddle::pool::WorkerMetadata;
use raddle_testnet::{Host, Lan};
use serde_json::Value;

use crate::{PROGRAM, wait_until};

/// A host and its servers. Dropping it kills them without a shutdown.
pub(crate) struct Machine {
    pub(crate) host: Host,
    directory: tempfile::TempDir,
    serving: Vec<Child>,
}

impl Machine {
    pub(crate) fn new(lan: &Lan) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(directory.path().join("raddle"))
            .unwrap();
        Self {
            host: lan.host(),
            directory,
            serving: Vec::new(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.host.name()
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The test program, to run in this host.
    pub(crate) fn command(&self) -> Command {
        let mut command = self.host.command(PROGRAM);
        command
            .env("XDG_RUNTIME_DIR", self.path())
            .current_dir(self.path());
        command
    }

    /// Starts `pool serve` in this host, at a free port unless `--bind` is given. Returns the
    /// workers.
    pub(crate) fn serve(&mut self, args: &[&str]) -> Vec<WorkerMetadata> {
        let bind = format!("{}:0", self.host.ipv4());
        let mut command = self.command();
        command
            .args(["pool", "serve", "--json"])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        if !args.contains(&"--bind") {
            command.args(["--bind", &bind]);
        }
        if !args.contains(&"--credentials-ca") {
            command.arg("--insecure");
        }
        let mut child = command.spawn().unwrap();
        let line = first_line(&mut child);
        self.serving.push(child);
        let ready: Value =
            serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: '{line}'"));
        let worker = |worker: &Value| WorkerMetadata {
            uid: worker["uid"].as_str().unwrap().parse().unwrap(),
            address: worker["address"].as_str().unwrap().to_owned(),
            pid: worker["pid"].as_u64().unwrap() as u32,
            version: "1".into(),
            tags: [].into(),
            extra: [].into(),
            secure: worker["secure"].as_bool().unwrap(),
            encodings: [].into(),
        };
        ready["workers"]
            .as_array()
            .unwrap()
            .iter()
            .map(worker)
            .collect()
    }

    /// Stops the first server with `SIGINT`, and waits for its end.
    pub(crate) fn stop_first(&mut self) {
        let mut serving = self.serving.remove(0);
        // SAFETY: the child was not waited for, so the pid is its own; the signal has no memory
        // effects here.
        unsafe { libc::kill(serving.id() as i32, libc::SIGINT) };
        wait_until("the server exits", 20, || {
            serving.try_wait().unwrap().is_some()
        });
        assert_eq!(serving.wait().unwrap().code(), Some(0));
    }

    /// Cuts the power of the host.
    pub(crate) fn cut_power(self) {
        let Self {
            host,
            mut serving,
            directory: _directory,
        } = self;
        host.cut_power();
        serving.iter_mut().for_each(|child| drop(child.wait()));
    }
}

/// The first line that a server prints.
pub(crate) fn first_line(child: &mut Child) -> String {
    let (sender, receiver) = mpsc::channel();
    let ready = child.stdout.take().unwrap();
    // The thread ends with the line, or with the process.
    thread::spawn(move || {
        let mut line = String::new();
        let _ = BufReader::new(ready).read_line(&mut line);
        let _ = sender.send(line);
    });
    receiver
        .recv_timeout(Duration::from_secs(60))
        .expect("the server starts in time")
}
