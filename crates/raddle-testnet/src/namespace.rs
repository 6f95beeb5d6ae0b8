//! `Namespace`: a network namespace, and a process that keeps it.

use std::{
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader},
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// Script of the process that keeps a namespace. It waits for end of file on its input, which comes
/// at the latest when the test's process ends, and then kills all processes in the namespace, which
/// frees the namespace. Duplicate address detection is off, so that addresses can be used at once.
const KEEPER: &str = r#"
echo "$0" > /proc/sys/kernel/hostname
for conf in all default; do echo 0 > /proc/sys/net/ipv6/conf/$conf/accept_dad; done
echo kept
read -r _
for again in 1 2 3 4 5 6 7 8 9; do
    left=no
    for process in /proc/[0-9]*; do
        pid=${process#/proc/}
        [ "$pid" != $$ ] && [ "$process/ns/net" -ef /proc/$$/ns/net ] && kill -KILL "$pid" && left=yes
    done
    [ $left = yes ] || break
    sleep 0.02
done 2>/dev/null
"#;
/// Maximum time until all processes of a namespace are gone.
const KILL_TIMEOUT: Duration = Duration::from_secs(60);

/// A network namespace with its own host name. Dropping it kills all its processes.
pub(crate) struct Namespace {
    keeper: Child,
}

impl Namespace {
    /// Creates a namespace with this host name.
    pub(crate) fn new(name: &str) -> Self {
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "--uts", "--", "sh", "-c", KEEPER, name]);
        // Its own process group: it must survive a kill of the test's group in order to clean up.
        unshare
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut keeper = unshare.spawn().expect("unshare runs");
        let mut kept = String::new();
        let read_result = keeper
            .stdout
            .take()
            .map(|read_result| BufReader::new(read_result).read_line(&mut kept));
        let namespace = Self { keeper };
        assert!(
            matches!(read_result, Some(Ok(_))) && kept == "kept\n",
            "a network namespace cannot be made: is this root?"
        );
        namespace.ip("link set lo up");
        namespace
    }

    /// The process that keeps the namespace.
    pub(crate) fn keeper(&self) -> u32 {
        self.keeper.id()
    }

    /// Creates a command that runs in the namespace. The spawned process is the program itself, not
    /// its parent.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["--net", "--uts", "--target"])
            .arg(self.keeper().to_string())
            .arg("--")
            .arg(program);
        command
    }

    /// Runs `ip` in the namespace with these words.
    pub(crate) fn ip(&self, words: &str) {
        self.run("ip", words);
    }

    /// Runs a program in the namespace, and panics if it fails.
    pub(crate) fn run(&self, program: &str, words: &str) {
        let output = self
            .command(program)
            .args(words.split_whitespace())
            .output()
            .expect("nsenter runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{program} {words}: {} {errors}",
            output.status
        );
    }

    /// Processes in the namespace, except the keeper.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let namespace_id = |pid: u32| {
            let link = PathBuf::from(format!("/proc/{pid}/ns/net"));
            fs::metadata(link).map(|meta| (meta.dev(), meta.ino())).ok()
        };
        let Some(own_id) = namespace_id(self.keeper()) else {
            return Vec::new();
        };
        let all = fs::read_dir("/proc").expect("/proc is mounted").flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        // Zombies have no namespace any more.
        pids.filter(|pid| *pid != self.keeper() && namespace_id(*pid) == Some(own_id))
            .collect()
    }

    /// Kills all processes in the namespace, and waits until they are gone.
    pub(crate) fn kill(&self) {
        let deadline = Instant::now() + KILL_TIMEOUT;
        loop {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "processes cannot be killed: {left:?}"
            );
            for pid in left
                .iter()
                .filter_map(|pid| Pid::from_raw(i32::try_from(*pid).ok()?))
            {
                // It may have exited by itself.
                let _ = kill_process(pid, Signal::KILL);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // At end of file the keeper kills the processes and exits, as it does when a test is
        // killed.
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}
