//! The command that the tasks of the campaign run: this program again, as a small process.

use std::{
    env,
    fs::File,
    io::{self, Write},
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use raddle_model::Tid;

use crate::{
    plan::Class,
    side_file::{self, Line, Mark, SIDE_FILE},
};

/// The variable that holds the campaign's directory. It also identifies the processes of the
/// campaign.
pub(crate) const MARKER: &str = "RADDLE_CHAOS";
/// The prefix of the names of chained tasks. The parent's id and attempt follow.
pub(crate) const CHAINED: &str = "chained-";
/// The last attempt that a flaky task fails.
const FLAKY_UNTIL: u32 = 2;
/// How long a task blocks the loop of its host: longer than that may be.
const BLOCKED: Duration = Duration::from_millis(3_500);
const TICK: Duration = Duration::from_millis(50);
/// The lifetime of an orphan process: long enough to be found, and bounded if it is not.
const ORPHAN_LIFETIME: Duration = Duration::from_secs(300);

/// `task CLASS [orphan]`. With `-` the class is read from standard input, which is how a message
/// arrives.
pub(crate) fn main(class: &str, is_orphan: bool) -> ExitCode {
    match Task::new(class).and_then(|task| {
        if is_orphan {
            task.run_orphan()
        } else {
            task.run()
        }
    }) {
        Ok(code) => code,
        Err(message) => {
            eprintln!("chaos task: {message}");
            ExitCode::from(99)
        }
    }
}

pub(crate) struct Task {
    tid: Tid,
    attempt: u32,
    class: Class,
    file: File,
}

impl Task {
    fn new(class: &str) -> Result<Self, String> {
        let class = match class {
            "-" => io::read_to_string(io::stdin())
                .map_err(|e| format!("cannot read the message: {e}"))?,
            class => class.to_owned(),
        };
        let class = Class::from_name(class.trim()).ok_or("unknown class")?;
        let tid = variable("RADDLE_TID")?
            .parse()
            .map_err(|_| "RADDLE_TID is not an id")?;
        let attempt = variable("RADDLE_ATTEMPT")?
            .parse()
            .map_err(|_| "RADDLE_ATTEMPT is not a number")?;
        let file = open_side_file()?;
        Ok(Self {
            tid,
            attempt,
            class,
            file,
        })
    }

    /// A task that a host runs.
    pub(crate) fn in_host(class: &str, tid: Tid, attempt: u32) -> Result<Self, String> {
        Ok(Self {
            tid,
            attempt,
            class: Class::from_name(class).ok_or("unknown class")?,
            file: open_side_file()?,
        })
    }

    /// Runs in a host. Returns whether it succeeds.
    pub(crate) fn run_in_host(mut self) -> Result<bool, String> {
        self.write_line(Mark::BeginInHost)?;
        let share = self.share();
        match self.class {
            Class::Short => self.tick_for(Duration::from_millis(100 + share % 1_400))?,
            Class::Slow => self.tick_for(Duration::from_millis(4_000 + share % 3_000))?,
            Class::Blocks => self.tick_for(BLOCKED)?,
            Class::Flaky if self.attempt <= FLAKY_UNTIL => {
                self.write_line(Mark::Fail)?;
                return Ok(false);
            }
            Class::Crashes => {
                self.write_line(Mark::Fail)?;
                std::process::abort();
            }
            _ => {}
        }
        self.write_line(Mark::End)?;
        Ok(true)
    }

    /// Which tasks take long depends on their ids, so it differs between runs of one seed; the
    /// faults do not.
    fn share(&self) -> u64 {
        self.tid.as_u64().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
    }

    fn run(mut self) -> Result<ExitCode, String> {
        self.write_line(Mark::Begin)?;
        let share = self.share();
        match self.class {
            // The last two are for hosts.
            Class::Quick | Class::Chained | Class::Blocks | Class::Crashes => {}
            Class::Short => self.tick_for(Duration::from_millis(100 + share % 1_400))?,
            Class::Slow => self.tick_for(Duration::from_millis(4_000 + share % 3_000))?,
            Class::SmallOutput | Class::LargeOutput => {
                let mut out = io::stdout().lock();
                out.write_all(&output(self.class, self.tid))
                    .and_then(|()| out.flush())
                    .map_err(|e| e.to_string())?;
            }
            Class::Chains => {
                if let Err(error) = self.chain() {
                    eprintln!("chaos task: cannot chain a task: {error}");
                    self.write_line(Mark::Fail)?;
                    return Ok(ExitCode::from(7));
                }
                // Long enough for a kill between the chaining and the end.
                self.tick_for(Duration::from_millis(50 + share % 400))?;
            }
            Class::Flaky if self.attempt > FLAKY_UNTIL => {}
            Class::Flaky | Class::AlwaysFails => {
                self.write_line(Mark::Fail)?;
                return Ok(ExitCode::from(7));
            }
            Class::LeavesOrphan => {
                let this = env::current_exe().map_err(|e| e.to_string())?;
                let mut orphan = Command::new(this);
                orphan
                    .args(["task", self.class.name(), "orphan"])
                    .stdin(Stdio::null());
                orphan
                    .spawn()
                    .map_err(|e| format!("cannot start an orphan process: {e}"))?;
                self.tick_for(Duration::from_millis(50 + share % 150))?;
            }
        }
        self.write_line(Mark::End)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Chains a task whose name holds the id and attempt of its parent.
    fn chain(&self) -> Result<(), String> {
        let directory = PathBuf::from(variable(MARKER)?).join("bin");
        let name = format!("{CHAINED}{}-{}", self.tid, self.attempt);
        let retry = "--retry 60 --backoff constant --retry-base 0.05".split(' ');
        let mut raddle = Command::new(directory.join("raddle"));
        raddle
            .args(["submit", "--chain", "--quiet", "--name", &name])
            .args(retry)
            .arg("--");
        raddle
            .arg(directory.join("chaos"))
            .args(["task", Class::Chained.name()])
            .stdin(Stdio::null());
        let status = raddle.status().map_err(|e| e.to_string())?;
        if status.success() {
            Ok(())
        } else {
            Err(status.to_string())
        }
    }

    /// Runs the orphan process, in its own session, where no signal to the attempt's process group
    /// reaches it.
    fn run_orphan(mut self) -> Result<ExitCode, String> {
        let _ = rustix::process::setsid();
        let until = Instant::now() + ORPHAN_LIFETIME;
        while Instant::now() < until {
            self.write_line(Mark::Orphan)?;
            thread::sleep(2 * TICK);
        }
        Ok(ExitCode::SUCCESS)
    }

    fn tick_for(&mut self, time: Duration) -> Result<(), String> {
        let until = Instant::now() + time;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            thread::sleep(left.min(TICK));
            self.write_line(Mark::TriggerTask)?;
        }
        Ok(())
    }

    fn write_line(&mut self, mark: Mark) -> Result<(), String> {
        let (pid, ppid) = (std::process::id(), std::os::unix::process::parent_id());
        let Self {
            tid,
            attempt,
            class,
            ..
        } = *self;
        let line = Line {
            tid,
            attempt,
            class,
            mark,
            pid,
            ppid,
            at: side_file::now(),
        };
        line.append(&mut self.file)
            .map_err(|e| format!("cannot write to the side file: {e}"))
    }
}

/// The standard output of a task of this class.
pub(crate) fn output(class: Class, tid: Tid) -> Vec<u8> {
    let lines = match class {
        Class::SmallOutput => 100,
        Class::LargeOutput => 5_000,
        _ => 0,
    };
    (0..lines)
        .flat_map(|n| format!("{tid} {n}\n").into_bytes())
        .collect()
}

fn open_side_file() -> Result<File, String> {
    let path = PathBuf::from(variable(MARKER)?).join(SIDE_FILE);
    File::options()
        .append(true)
        .create(true)
        .open(path)
        .map_err(|e| format!("cannot open the side file: {e}"))
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|_| format!("{name} is not set"))
}
