//! A directory for each test, with the program, and a check that no process is left at its end.

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

/// The longest time that a command may take, also on a loaded machine.
const DEADLINE: Duration = Duration::from_secs(150);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The variable that marks every process of a world, whatever its working directory.
pub(crate) const MARK: &str = "WORLD";

/// A directory in which the program runs.
pub(crate) struct World {
    dir: tempfile::TempDir,
}

/// A command that runs.
pub(crate) struct RunningCommand {
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
}

/// The exit code and the output of a command.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    /// The exit code, or 128 plus the signal that killed the process.
    pub(crate) code: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl World {
    pub(crate) fn new() -> Self {
        // The name must not look like a process title: some tests search for titles.
        Self {
            dir: tempfile::Builder::new().prefix("world.").tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Writes a file.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    /// Runs the program until it exits.
    pub(crate) fn raddle<S: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = S>,
    ) -> CommandOutput {
        self.start(args).finish()
    }

    /// Runs the program with this standard input.
    pub(crate) fn raddle_with_input(&self, args: &[&str], input: &[u8]) -> CommandOutput {
        let mut command = self.command(env!("CARGO_BIN_EXE_raddle"));
        command.args(args).stdin(Stdio::piped());
        let mut started = self.spawn(command);
        let mut stdin = started.child.stdin.take().unwrap();
        // The program may have closed its standard input.
        let _ = stdin.write_all(input);
        drop(stdin);
        started.finish()
    }

    /// Starts the program.
    pub(crate) fn start<S: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = S>,
    ) -> RunningCommand {
        let mut command = self.command(env!("CARGO_BIN_EXE_raddle"));
        command.args(args);
        self.spawn(command)
    }

    /// Starts the program in its own process group, like a shell at a terminal.
    pub(crate) fn start_group<S: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = S>,
    ) -> RunningCommand {
        let mut command = self.command(env!("CARGO_BIN_EXE_raddle"));
        command.args(args).process_group(0);
        self.spawn(command)
    }

    /// Runs a script in which `raddle` is the program.
    pub(crate) fn bash(&self, script: &str) -> CommandOutput {
        self.start_bash(script).finish()
    }

    /// Starts a script in which `raddle` is the program.
    pub(crate) fn start_bash(&self, script: &str) -> RunningCommand {
        let path = self.file("script.sh", script);
        let mut command = self.command("bash");
        command.arg(path);
        self.spawn(command)
    }

    /// Runs a script in new PID and mount namespaces, in which it may mount.
    pub(crate) fn bash_in_namespaces(&self, script: &str) -> CommandOutput {
        self.start_bash_in_namespaces(script).finish()
    }

    /// Starts a script in new PID and mount namespaces. It reads lines from `type_line`.
    pub(crate) fn start_bash_in_namespaces(&self, script: &str) -> RunningCommand {
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

    /// Submits a task, and returns its id.
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

    /// The live workers.
    pub(crate) fn workers(&self) -> Value {
        self.list(&["worker", "list"])
    }

    /// The JSON list of a command; empty if there is no broker.
    pub(crate) fn list(&self, command: &[&str]) -> Value {
        let ran = self.raddle([command, &["--json"]].concat());
        if ran.code == 2 && ran.stderr.contains("no broker at") {
            Value::Array(Vec::new())
        } else {
            ran.ok().json()
        }
    }

    /// The live one-shot workers.
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

    /// Reads a file.
    #[track_caller]
    pub(crate) fn read(&self, file: impl AsRef<Path>) -> String {
        fs::read_to_string(self.path().join(file)).unwrap()
    }

    /// Reads a file, without surrounding white space.
    #[track_caller]
    pub(crate) fn read_trimmed(&self, file: &str) -> String {
        self.read(file).trim().to_owned()
    }

    /// The lines of a file; none if it does not exist.
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
    pub(crate) fn wait_for_state(&self, tid: &str, state: &str) {
        wait_until(&format!("task {tid} is {state}"), || {
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
        // Local pools are in this directory; other tests have their own.
        command.env("XDG_RUNTIME_DIR", self.path());
        command
    }

    pub(crate) fn spawn(&self, mut command: Command) -> RunningCommand {
        // Files, because a pipe that an orphan holds open would never end.
        let output = tempfile::tempdir().unwrap().keep();
        let (stdout, stderr) = (output.join("out"), output.join("err"));
        command
            .stdout(File::create(&stdout).unwrap())
            .stderr(File::create(&stderr).unwrap());
        let child = command.spawn().unwrap();
        RunningCommand {
            child,
            stdout,
            stderr,
        }
    }

    /// The processes of this world.
    pub(crate) fn processes(&self) -> Vec<(i32, String)> {
        let process_of_world = |entry: fs::DirEntry| {
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
            let is_in_directory =
                fs::read_link(proc.join("cwd")).is_ok_and(|cwd| cwd.starts_with(self.path()));
            let dir = self.path().to_str()?;
            let refers = cmdline.contains(dir) || String::from_utf8_lossy(&environ).contains(dir);
            (!is_zombie && (is_in_directory || refers)).then_some((pid, cmdline))
        };
        fs::read_dir("/proc")
            .unwrap()
            .filter_map(Result::ok)
            .filter_map(process_of_world)
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
            thread::sleep(POLL_INTERVAL);
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

impl RunningCommand {
    /// Sends a signal to the command.
    pub(crate) fn signal(&self, signal: i32) {
        kill(self.child.id() as i32, signal);
    }

    /// Sends SIGINT to the process group of the command, like Ctrl-C at a terminal.
    pub(crate) fn ctrl_c(&self) {
        assert_eq!(
            kill(-(self.child.id() as i32), libc::SIGINT),
            0,
            "the command leads a process group"
        );
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes a line to its standard input, which `finish` closes.
    pub(crate) fn type_line(&mut self, line: &str) {
        writeln!(self.child.stdin.as_ref().unwrap(), "{line}").unwrap();
    }

    /// Its standard output so far.
    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.stdout).unwrap()).into_owned()
    }

    /// Its standard error so far.
    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.stderr).unwrap()).into_owned()
    }

    /// The id that it prints first.
    pub(crate) fn tid(&self) -> String {
        wait_until("the id is printed", || self.stdout().trim().len() == 19);
        self.stdout().trim().to_owned()
    }

    /// Sends SIGTERM, and waits for its exit.
    pub(crate) fn stop(self) -> CommandOutput {
        self.signal(libc::SIGTERM);
        self.finish()
    }

    /// Waits for its exit.
    pub(crate) fn finish(self) -> CommandOutput {
        let files = (self.stdout.clone(), self.stderr.clone());
        self.wait(DEADLINE)
            .unwrap_or_else(|| panic!("the command did not exit in time; see {files:?}"))
    }

    fn wait(mut self, timeout: Duration) -> Option<CommandOutput> {
        drop(self.child.stdin.take());
        let begun = Instant::now();
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if begun.elapsed() > timeout => {
                    self.child.kill().unwrap();
                    self.child.wait().unwrap();
                    return None;
                }
                None => thread::sleep(POLL_INTERVAL),
            }
        };
        let code = status
            .code()
            .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        let ran = CommandOutput {
            code,
            stdout: fs::read(&self.stdout).unwrap(),
            stderr: self.stderr(),
        };
        let _ = fs::remove_dir_all(self.stdout.parent().unwrap());
        Some(ran)
    }
}

impl CommandOutput {
    /// Asserts that it succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        self.code(0)
    }

    /// Asserts this exit code.
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

    /// Asserts that its standard error contains this text.
    #[track_caller]
    pub(crate) fn stderr_contains(self, text: &str) -> Self {
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

/// Reports that a test is skipped because a tool is missing, which is a failure in continuous
/// integration.
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

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < DEADLINE, "timed out: {what}");
        thread::sleep(POLL_INTERVAL * 2);
    }
}
