//! The command that the campaign's tasks run: this program again, as small as a process can be.

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
    ledger::{self, Line, Mark, SIDE_FILE},
    plan::Class,
};

/// Names the campaign's directory to everything that it starts, and tells the campaign's processes from all others.
pub(crate) const MARKER: &str = "RADDLE_CHAOS";
/// What the names of tasks begin with that were chained: then follow who chained them, and in which attempt.
pub(crate) const CHAINED: &str = "follows-";
/// A flaky task fails up to this attempt.
const FLAKY_UNTIL: u32 = 2;
const TICK: Duration = Duration::from_millis(50);
/// How long what a task leaves behind would live: long enough to be found, not for ever if it is not.
const KIN_LIFE: Duration = Duration::from_secs(300);

/// `task CLASS [kin]`. With `-` the class is on its standard input, as a message is.
pub(crate) fn main(class: &str, is_kin: bool) -> ExitCode {
    match Task::new(class).and_then(|task| if is_kin { task.live_on() } else { task.run() }) {
        Ok(code) => code,
        Err(message) => {
            eprintln!("chaos task: {message}");
            ExitCode::from(99)
        }
    }
}

struct Task {
    tid: Tid,
    attempt: u32,
    class: Class,
    file: File,
}

impl Task {
    fn new(class: &str) -> Result<Self, String> {
        let class = match class {
            "-" => io::read_to_string(io::stdin()).map_err(|e| format!("no message: {e}"))?,
            class => class.to_owned(),
        };
        let class = Class::from_name(class.trim()).ok_or("there is no such class")?;
        let tid = variable("RADDLE_TID")?
            .parse()
            .map_err(|_| "RADDLE_TID is no id")?;
        let attempt = variable("RADDLE_ATTEMPT")?
            .parse()
            .map_err(|_| "RADDLE_ATTEMPT is no number")?;
        let path = PathBuf::from(variable(MARKER)?).join(SIDE_FILE);
        let file = File::options()
            .append(true)
            .create(true)
            .open(path)
            .map_err(|e| format!("no side file: {e}"))?;
        Ok(Self {
            tid,
            attempt,
            class,
            file,
        })
    }

    fn run(mut self) -> Result<ExitCode, String> {
        self.say(Mark::Begin)?;
        // Which tasks take long differs from run to run, with their ids; what is done to them does not.
        let share = self.tid.as_u64().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        match self.class {
            Class::Quick | Class::Follows => {}
            Class::Nap => self.tick_for(Duration::from_millis(100 + share % 1_400))?,
            Class::Slow => self.tick_for(Duration::from_millis(4_000 + share % 3_000))?,
            Class::Prints | Class::Pours => {
                let mut out = io::stdout().lock();
                out.write_all(&output(self.class, self.tid))
                    .and_then(|()| out.flush())
                    .map_err(|e| e.to_string())?;
            }
            Class::Chains => {
                if let Err(error) = self.chain() {
                    eprintln!("chaos task: nothing was chained: {error}");
                    self.say(Mark::Fail)?;
                    return Ok(ExitCode::from(7));
                }
                // Long enough to be killed in between.
                self.tick_for(Duration::from_millis(50 + share % 400))?;
            }
            Class::Flaky if self.attempt > FLAKY_UNTIL => {}
            Class::Flaky | Class::Broken => {
                self.say(Mark::Fail)?;
                return Ok(ExitCode::from(7));
            }
            Class::Family => {
                let this = env::current_exe().map_err(|e| e.to_string())?;
                let mut kin = Command::new(this);
                kin.args(["task", self.class.name(), "kin"])
                    .stdin(Stdio::null());
                kin.spawn().map_err(|e| format!("no kin: {e}"))?;
                self.tick_for(Duration::from_millis(50 + share % 150))?;
            }
        }
        self.say(Mark::End)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Chains a task whose name says who did, and in which attempt.
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
            .args(["task", Class::Follows.name()])
            .stdin(Stdio::null());
        let status = raddle.status().map_err(|e| e.to_string())?;
        if status.success() {
            Ok(())
        } else {
            Err(status.to_string())
        }
    }

    /// What stays behind: in a session of its own, where no signal to a process group reaches it.
    fn live_on(mut self) -> Result<ExitCode, String> {
        let _ = rustix::process::setsid();
        let until = Instant::now() + KIN_LIFE;
        while Instant::now() < until {
            self.say(Mark::Kin)?;
            thread::sleep(2 * TICK);
        }
        Ok(ExitCode::SUCCESS)
    }

    fn tick_for(&mut self, time: Duration) -> Result<(), String> {
        let until = Instant::now() + time;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            thread::sleep(left.min(TICK));
            self.say(Mark::Tick)?;
        }
        Ok(())
    }

    fn say(&mut self, what: Mark) -> Result<(), String> {
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
            what,
            pid,
            ppid,
            at: ledger::now(),
        };
        line.append(&mut self.file)
            .map_err(|e| format!("cannot write to the side file: {e}"))
    }
}

/// What a task of this class writes to its standard output.
pub(crate) fn output(class: Class, tid: Tid) -> Vec<u8> {
    let lines = match class {
        Class::Prints => 100,
        Class::Pours => 5_000,
        _ => 0,
    };
    (0..lines)
        .flat_map(|n| format!("{tid} {n}\n").into_bytes())
        .collect()
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|_| format!("{name} is not set"))
}
