//! A directory of its own for each test, the program in it, and the certainty that nothing is left running.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::Write,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

/// No command of these tests takes longer unless something is wrong, also on a busy machine.
const DEADLINE: Duration = Duration::from_secs(150);
const LOOK: Duration = Duration::from_millis(5);
/// Marks every process of a world, whatever directory it goes to.
pub(crate) const MARK: &str = "WORLD";

/// A directory with the program in it.
pub(crate) struct World {
    dir: tempfile::TempDir,
}

/// A process that was started.
pub(crate) struct Started {
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
}

/// What became of a process.
#[derive(Debug)]
pub(crate) struct Ran {
    /// Its exit code; 128 and the signal if one ended it.
    pub(crate) code: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl World {
    pub(crate) fn new() -> Self {
        // The name must not look like a process title: some tests look for those.
        Self {
            dir: tempfile::Builder::new().prefix("world.").tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A file of this world with this content.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    /// Runs the program to its end.
    pub(crate) fn raddle<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ran {
        self.start(args).finish()
    }

    /// Runs the program with this on its standard input.
    pub(crate) fn raddle_with_input(&self, args: &[&str], input: &[u8]) -> Ran {
        let mut command = self.command(env!("CARGO_BIN_EXE_raddle"));
        command.args(args).stdin(Stdio::piped());
        let mut started = self.spawn(command);
        let mut stdin = started.child.stdin.take().unwrap();
        // A program that does not want it may have closed it.
        let _ = stdin.write_all(input);
        drop(stdin);
        started.finish()
    }

    /// Starts the program.
    pub(crate) fn start<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Started {
        let mut command = self.command(env!("CARGO_BIN_EXE_raddle"));
        command.args(args);
        self.spawn(command)
    }

    /// Starts the program in a process group of its own, as a shell does at a terminal.
    pub(crate) fn start_group<S: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = S>,
    ) -> Started {
        let mut command = self.command(env!("CARGO_BIN_EXE_raddle"));
        command.args(args).process_group(0);
        self.spawn(command)
    }

    /// Runs a script in which `raddle` is the program.
    pub(crate) fn bash(&self, script: &str) -> Ran {
        self.start_bash(script).finish()
    }

    /// Starts such a script.
    pub(crate) fn start_bash(&self, script: &str) -> Started {
        let path = self.file("script.sh", script);
        let mut command = self.command("bash");
        command.arg(path);
        self.spawn(command)
    }

    /// Runs a script in namespaces of its own: it sees no processes but its own, and may mount what it likes.
    pub(crate) fn bash_apart(&self, script: &str) -> Ran {
        self.start_bash_apart(script).finish()
    }

    /// Starts such a script. Lines can be typed to it.
    pub(crate) fn start_bash_apart(&self, script: &str) -> Started {
        let path = self.file("script.sh", script);
        let mut command = self.command("unshare");
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command
            .args([
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "bash",
            ])
            .arg(path);
        command.stdin(Stdio::piped());
        self.spawn(command)
    }

    /// The ids on the lines of a submission.
    pub(crate) fn submit(&self, args: &[&str]) -> String {
        self.raddle([&["submit"], args].concat())
            .ok()
            .text()
            .trim()
            .to_owned()
    }

    /// Starts a worker in the background, and returns its id.
    pub(crate) fn worker(&self, args: &[&str]) -> String {
        self.raddle([&["worker", "start"], args].concat())
            .ok()
            .text()
            .trim()
            .to_owned()
    }

    /// The workers that are alive.
    pub(crate) fn workers(&self) -> Value {
        self.list(&["worker", "list"])
    }

    /// What a command lists; nothing, as long as no command has created the broker.
    pub(crate) fn list(&self, command: &[&str]) -> Value {
        let ran = self.raddle([command, &["--json"]].concat());
        if ran.code == 2 && ran.stderr.contains("no broker at") {
            Value::Array(Vec::new())
        } else {
            ran.ok().json()
        }
    }

    /// The workers of spawners among them.
    pub(crate) fn one_shots(&self) -> Vec<Value> {
        let workers = self.workers();
        workers
            .as_array()
            .unwrap()
            .iter()
            .filter(|worker| worker["type"] == "one-shot")
            .cloned()
            .collect()
    }

    /// What a file of this world holds.
    #[track_caller]
    pub(crate) fn read(&self, file: impl AsRef<Path>) -> String {
        fs::read_to_string(self.path().join(file)).unwrap()
    }

    /// The same without blanks around it.
    #[track_caller]
    pub(crate) fn trimmed(&self, file: &str) -> String {
        self.read(file).trim().to_owned()
    }

    /// The lines of a file of this world; none, if it is not there.
    pub(crate) fn lines(&self, file: &str) -> Vec<String> {
        fs::read_to_string(self.path().join(file))
            .unwrap_or_default()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// The record of a task.
    pub(crate) fn task(&self, tid: &str) -> Value {
        self.raddle(["task", "status", "--json", tid]).ok().json()
    }

    /// Waits until a task is in this state.
    pub(crate) fn until_state(&self, tid: &str, state: &str) {
        until(&format!("task {tid} is {state}"), || {
            self.task(tid)["state"] == state
        });
    }

    pub(crate) fn command(&self, program: &str) -> Command {
        let bin = Path::new(env!("CARGO_BIN_EXE_raddle")).parent().unwrap();
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let mut command = Command::new(program);
        command
            .current_dir(self.path())
            .env_clear()
            .env("PATH", path)
            .env(MARK, self.path())
            .stdin(Stdio::null());
        // Pools are those of a user, and other tests have theirs.
        command.env("XDG_RUNTIME_DIR", self.path());
        command
    }

    pub(crate) fn spawn(&self, mut command: Command) -> Started {
        // Files, because a pipe that a lost process holds open would never end.
        let output = tempfile::tempdir().unwrap().keep();
        let (stdout, stderr) = (output.join("out"), output.join("err"));
        command
            .stdout(File::create(&stdout).unwrap())
            .stderr(File::create(&stderr).unwrap());
        let child = command.spawn().unwrap();
        Started {
            child,
            stdout,
            stderr,
        }
    }

    /// The processes of this world.
    pub(crate) fn processes(&self) -> Vec<(i32, String)> {
        let of_dir = |entry: fs::DirEntry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let proc = entry.path();
            let is_zombie = fs::read_to_string(proc.join("stat"))
                .ok()?
                .rsplit(')')
                .next()?
                .starts_with(" Z");
            let cmdline =
                String::from_utf8_lossy(&fs::read(proc.join("cmdline")).ok()?).replace('\0', " ");
            let environ = fs::read(proc.join("environ")).unwrap_or_default();
            let is_here =
                fs::read_link(proc.join("cwd")).is_ok_and(|cwd| cwd.starts_with(self.path()));
            let dir = self.path().to_str()?;
            let refers = cmdline.contains(dir) || String::from_utf8_lossy(&environ).contains(dir);
            (!is_zombie && (is_here || refers)).then_some((pid, cmdline))
        };
        fs::read_dir("/proc")
            .unwrap()
            .filter_map(Result::ok)
            .filter_map(of_dir)
            .collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self
            .start(["worker", "stop", "--all", "--kill", "--quiet"])
            .wait(Duration::from_secs(20));
        let begun = Instant::now();
        while !self.processes().is_empty() && begun.elapsed() < Duration::from_secs(5) {
            thread::sleep(LOOK);
        }
        let left = self.processes();
        for (pid, _) in &left {
            kill(*pid, libc::SIGKILL);
        }
        if !thread::panicking() {
            assert!(left.is_empty(), "processes are left: {left:?}");
        }
    }
}

impl Started {
    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: i32) {
        kill(self.child.id() as i32, signal);
    }

    /// Ctrl-C: the terminal interrupts all who are in the group that the program was started in.
    pub(crate) fn ctrl_c(&self) {
        assert_eq!(
            kill(-(self.child.id() as i32), libc::SIGINT),
            0,
            "it leads a group"
        );
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives it a line on its standard input, which ends when somebody waits for its end.
    pub(crate) fn types(&mut self, line: &str) {
        writeln!(self.child.stdin.as_ref().unwrap(), "{line}").unwrap();
    }

    /// What it has written to its standard output so far.
    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.stdout).unwrap()).into_owned()
    }

    /// What it has written to its standard error so far.
    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.stderr).unwrap()).into_owned()
    }

    /// The id that it says first, as text.
    pub(crate) fn tid(&self) -> String {
        until("it has said its id", || self.stdout().trim().len() == 19);
        self.stdout().trim().to_owned()
    }

    /// Asks it to stop, and waits for its end.
    pub(crate) fn stop(self) -> Ran {
        self.signal(libc::SIGTERM);
        self.finish()
    }

    /// Waits for its end.
    pub(crate) fn finish(self) -> Ran {
        let said = (self.stdout.clone(), self.stderr.clone());
        self.wait(DEADLINE)
            .unwrap_or_else(|| panic!("it did not end in time; see {said:?}"))
    }

    fn wait(mut self, patience: Duration) -> Option<Ran> {
        drop(self.child.stdin.take());
        let begun = Instant::now();
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if begun.elapsed() > patience => {
                    self.child.kill().unwrap();
                    self.child.wait().unwrap();
                    return None;
                }
                None => thread::sleep(LOOK),
            }
        };
        let code = status
            .code()
            .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        let ran = Ran {
            code,
            stdout: fs::read(&self.stdout).unwrap(),
            stderr: self.stderr(),
        };
        let _ = fs::remove_dir_all(self.stdout.parent().unwrap());
        Some(ran)
    }
}

impl Ran {
    /// It went well.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        self.code(0)
    }

    /// It left with this code.
    #[track_caller]
    pub(crate) fn code(self, code: i32) -> Self {
        assert_eq!(
            self.code,
            code,
            "{self:?} {}",
            String::from_utf8_lossy(&self.stdout)
        );
        self
    }

    /// It said this on its standard error.
    #[track_caller]
    pub(crate) fn says(self, text: &str) -> Self {
        assert!(
            self.stderr.contains(text),
            "'{text}' is not in: {}",
            self.stderr
        );
        self
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }

    pub(crate) fn lines(&self) -> Vec<&str> {
        self.text().lines().collect()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

/// Says that a test is left out because something is missing here. In continuous integration nothing is.
#[track_caller]
pub(crate) fn skip(what: &str) {
    raddle_testnet::skip(&format!(
        "there is no {what}: 'cargo xtask test' installs what tests need"
    ));
}

/// Sends a signal to a process, or to a group if the number is negative. Returns what `kill` does.
pub(crate) fn kill(pid: i32, signal: i32) -> i32 {
    // SAFETY: kill has no memory effects.
    unsafe { libc::kill(pid, signal) }
}

/// Waits until something holds.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < DEADLINE, "in vain: {what}");
        thread::sleep(LOOK * 2);
    }
}
