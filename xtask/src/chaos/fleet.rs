//! The processes of a campaign: workers and managers, which are started again when they end, and submitters, which come and go.

use std::{
    fs::{self, File},
    io,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use raddle_model::Tid;
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::{
    campaign::is_interrupted,
    hierarchy, ledger,
    options::Options,
    plan::{Batch, Class, How},
    procs,
    site::Site,
};

/// What names begin with: see [`name`].
pub(crate) const ANNOUNCED: &str = "b";
pub(crate) const UNANNOUNCED: &str = "u";
/// How many processes submit at the same time.
const SUBMITTERS: usize = 8;
/// No submitter needs this long, not even while the holder of a lock is stopped.
const SUBMITTER_LIFE: Duration = Duration::from_secs(120);
const CONCURRENCY: &str = "3";
/// A prime. It has no more at a time than a worker has, and the managers that it has spawned.
const PRIME: [&str; 4] = ["manager", "serve", "--limits", "max_tasks=5"];
/// How long there is no manager that the prime has spawned before it is asked for one.
const UNMANAGED: Duration = Duration::from_secs(1);
/// How long it may take until there is one. It is asked for again then.
const ASKING: Duration = Duration::from_secs(6);
/// How often it is looked for.
const LOOK: Duration = Duration::from_millis(250);

/// What stands at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Worker,
    Prime,
    Groups,
}

/// A worker's place in the fleet.
pub(crate) struct Place {
    pub(crate) role: Role,
    pub(crate) state: State,
    /// When it is continued, if it is stopped.
    pub(crate) stopped_until: Option<Instant>,
}

pub(crate) enum State {
    Up {
        child: Child,
        /// The signal with which it was killed or told to leave.
        ending: Option<i32>,
    },
    Down {
        until: Instant,
    },
}

impl Place {
    /// The pid of a worker that is there and has not been told to leave.
    pub(crate) fn pid(&self) -> Option<u32> {
        match &self.state {
            State::Up {
                child,
                ending: None,
            } => Some(child.id()),
            _ => None,
        }
    }

    /// The pid of a worker that has been told to leave, and is at it.
    pub(crate) fn leaving(&self) -> Option<u32> {
        match &self.state {
            State::Up {
                child,
                ending: Some(libc::SIGTERM),
            } => Some(child.id()),
            _ => None,
        }
    }
}

struct Submitter {
    child: Child,
    batch: usize,
    kill_at: Option<Instant>,
    deadline: Instant,
    was_killed: bool,
}

/// How a submitter ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) batch: usize,
    /// Killed by us, in time.
    pub(crate) was_killed: bool,
    pub(crate) code: Option<i32>,
}

pub(crate) struct Fleet<'a> {
    pub(crate) site: &'a Site,
    pub(crate) places: Vec<Place>,
    submitters: Vec<Submitter>,
    pub(crate) ended: Vec<Ended>,
    /// What should not have happened to processes.
    pub(crate) remarks: Vec<String>,
    /// Submitters that were killed while they were at it.
    pub(crate) submitters_killed: u32,
    /// A child of this process that somebody else waits for.
    pub(crate) foreign: Vec<u32>,
    queues: &'static str,
    asking: Option<Asking>,
    last_reap: Instant,
}

/// What is done so that there is a manager that the prime has spawned.
struct Asking {
    /// Who asks for one.
    child: Option<Child>,
    looked: Instant,
    /// When one was there last, or was asked for.
    since: Instant,
    patience: Duration,
}

impl<'a> Fleet<'a> {
    pub(crate) fn new(site: &'a Site, options: &Options) -> Self {
        let now = Instant::now();
        let place = |role| Place {
            role,
            state: State::Down { until: now },
            stopped_until: None,
        };
        let of = |role, count| (0..count).map(move |_| place(role));
        let asking = Asking {
            child: None,
            looked: now,
            since: now,
            patience: UNMANAGED,
        };
        Self {
            site,
            places: of(Role::Worker, options.workers)
                .chain(of(Role::Prime, options.managers))
                .chain(of(Role::Groups, options.groups))
                .collect(),
            submitters: Vec::new(),
            ended: Vec::new(),
            remarks: Vec::new(),
            submitters_killed: 0,
            foreign: Vec::new(),
            queues: "default",
            asking: (options.managers > 0).then_some(asking),
            last_reap: now,
        }
    }

    /// Sees to what has ended and what is due.
    pub(crate) fn tick(&mut self) -> io::Result<()> {
        let now = Instant::now();
        for index in 0..self.places.len() {
            self.tend(index, now)?;
        }
        self.tend_submitters(now)?;
        self.tend_managers(now)?;
        if now.duration_since(self.last_reap) > Duration::from_millis(200) {
            self.last_reap = now;
            self.reap_orphans();
        }
        Ok(())
    }

    fn tend(&mut self, index: usize, now: Instant) -> io::Result<()> {
        let place = &mut self.places[index];
        match &mut place.state {
            State::Up { child, ending } => {
                if let Some(status) = child.try_wait()? {
                    // Without a server a worker is told to say so and to leave.
                    let log = fs::read_to_string(self.site.file(format!("worker-{index}.log")))
                        .unwrap_or_default();
                    let has_said_why = log
                        .lines()
                        .next_back()
                        .is_some_and(|line| line.contains("cannot reach"));
                    if ending.is_none() && !has_said_why {
                        self.remarks.push(format!(
                            "worker {index} (pid {}) left by itself: {status}",
                            child.id()
                        ));
                    }
                    place.stopped_until = None;
                    // Not at once: for a while the fleet is smaller, as it is when a machine starts one again.
                    place.state = State::Down {
                        until: now + Duration::from_millis(100 + 150 * index as u64),
                    };
                }
            }
            State::Down { until } if *until <= now => {
                let child = self.start_worker(index)?;
                self.places[index].state = State::Up {
                    child,
                    ending: None,
                };
            }
            State::Down { .. } => {}
        }
        Ok(())
    }

    /// Whatever has become of the manager that the prime has spawned, and of the request for it, there is to be one.
    fn tend_managers(&mut self, now: Instant) -> io::Result<()> {
        let Some(asking) = &mut self.asking else {
            return Ok(());
        };
        if let Some(status) = asking
            .child
            .as_mut()
            .map(Child::try_wait)
            .transpose()?
            .flatten()
        {
            asking.child = None;
            if !status.success() {
                // The server was away.
                (asking.since, asking.patience) = (now, UNMANAGED);
            }
        }
        if now.duration_since(asking.looked) < LOOK {
            return Ok(());
        }
        asking.looked = now;
        if !hierarchy::managers(self.site).is_empty() {
            (asking.since, asking.patience) = (now, UNMANAGED);
        } else if asking.child.is_none() && now.duration_since(asking.since) > asking.patience {
            (asking.since, asking.patience) = (now, ASKING);
            let log = File::options()
                .append(true)
                .create(true)
                .open(self.site.file("asking.log"))?;
            let mut ask = self.site.raddle(&[
                "queue",
                "write",
                "raddle.spawn.requests",
                &hierarchy::wanted(self.site),
            ]);
            asking.child = Some(ask.stdout(log.try_clone()?).stderr(log).spawn()?);
        }
        Ok(())
    }

    fn start_worker(&self, index: usize) -> io::Result<Child> {
        let log = File::options()
            .append(true)
            .create(true)
            .open(self.site.file(format!("worker-{index}.log")))?;
        let worker = [
            "worker",
            "start",
            "--no-detach",
            "--concurrency",
            CONCURRENCY,
            "--queues",
            self.queues,
        ];
        let args = match self.places[index].role {
            Role::Worker => &worker[..],
            Role::Prime => &PRIME,
            Role::Groups => &hierarchy::UP,
        };
        self.site
            .raddle(args)
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
    }

    /// Sends a signal to a worker. One that ends it makes room for the next.
    pub(crate) fn signal_worker(&mut self, index: usize, signal: i32) {
        if let State::Up { child, ending } = &mut self.places[index].state {
            if matches!(signal, libc::SIGKILL | libc::SIGTERM) {
                *ending = Some(signal);
            }
            // The child was not waited for, so the pid is its own.
            procs::kill(child.id(), signal);
        }
    }

    /// Whether another submitter may be started.
    pub(crate) fn has_room(&self) -> bool {
        self.submitters.len() < SUBMITTERS
    }

    pub(crate) fn is_submitting(&self) -> bool {
        !self.submitters.is_empty()
    }

    /// Starts the process that submits a batch.
    pub(crate) fn submit(&mut self, index: usize, batch: &Batch) -> io::Result<()> {
        let name = format!("{}{{}}", name(index, batch));
        let task = [
            self.site.chaos.display().to_string(),
            "task".into(),
            "{}".into(),
        ];
        let retry = "--retry 60 --backoff constant --retry-base 0.05"
            .split(' ')
            .map(str::to_owned);
        let input = self.site.file(format!("batch-{index}.in"));
        let shown = input.display().to_string();
        let mut args: Vec<String> = Vec::new();
        match &batch.how {
            How::Lines(classes) => {
                fs::write(
                    &input,
                    classes
                        .iter()
                        .map(|class| format!("{}\n", class.name()))
                        .collect::<String>(),
                )?;
                args.extend([
                    "submit".into(),
                    "--each-line".into(),
                    shown,
                    "--name".into(),
                    name,
                ]);
                args.extend(retry.chain(["--".into()]).chain(task));
            }
            How::Array(count) => {
                args.extend([
                    "submit".into(),
                    "--array".into(),
                    format!("1-{count}"),
                    "--name".into(),
                    name,
                ]);
                args.extend(
                    retry
                        .chain(["--".into()])
                        .chain(task.map(|word| word.replace("{}", "quick"))),
                );
            }
            How::File(classes) => {
                fs::write(&input, specs(&name, classes, &task[0]))?;
                args.extend(["submit".into(), "--file".into(), shown]);
            }
            How::Asked(classes) => {
                args.extend([
                    "queue".into(),
                    "write".into(),
                    "raddle.spawn.requests".into(),
                ]);
                let specs = classes.iter().map(|class| spec(&name, *class, &task[0]));
                args.extend(specs.map(|spec| serde_json::json!({ "spec": spec }).to_string()));
            }
            How::Chores(classes) => {
                args.extend([
                    "queue".into(),
                    "write".into(),
                    "raddle.spawn.requests".into(),
                ]);
                args.extend(classes.iter().map(|class| hierarchy::chore(*class)));
            }
            How::Letters(classes) => {
                args.extend(["queue".into(), "write".into(), hierarchy::LETTERS.into()]);
                args.extend(classes.iter().map(|class| class.name().to_owned()));
            }
            How::Inline(class) => {
                let name = name.replace("{}", class.name());
                args.extend(["run".into(), "--name".into(), name]);
                args.extend(
                    retry
                        .chain(["--".into()])
                        .chain(task.map(|word| word.replace("{}", class.name()))),
                );
            }
        }
        let out = File::create(self.site.file(format!("batch-{index}.out")))?;
        let err = File::create(self.site.file(format!("batch-{index}.err")))?;
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let child = self
            .site
            .raddle(&args)
            .stdout(out)
            .stderr(err)
            .stdin(Stdio::null())
            .spawn()?;
        let now = Instant::now();
        self.submitters.push(Submitter {
            child,
            batch: index,
            kill_at: batch.killed_after.map(|life| now + life),
            deadline: now + SUBMITTER_LIFE,
            was_killed: false,
        });
        Ok(())
    }

    fn tend_submitters(&mut self, now: Instant) -> io::Result<()> {
        let mut still = Vec::new();
        for mut one in std::mem::take(&mut self.submitters) {
            match one.child.try_wait()? {
                Some(status) => {
                    use std::os::unix::process::ExitStatusExt;
                    let was_killed = one.was_killed && status.signal() == Some(libc::SIGKILL);
                    self.submitters_killed += u32::from(was_killed);
                    self.ended.push(Ended {
                        batch: one.batch,
                        was_killed,
                        code: status.code(),
                    });
                    continue;
                }
                None if one.was_killed => {}
                None if one.kill_at.is_some_and(|at| at <= now) => {
                    one.was_killed = true;
                    one.child.kill()?;
                }
                None if one.deadline <= now => {
                    self.remarks.push(format!(
                        "the submitter of batch {} hung and was killed",
                        one.batch
                    ));
                    one.was_killed = true;
                    one.child.kill()?;
                }
                None => {}
            }
            still.push(one);
        }
        self.submitters = still;
        Ok(())
    }

    /// From now on workers serve every queue. Those that do not are told to leave.
    pub(crate) fn serve_all(&mut self) {
        self.queues = "default,inline";
        (0..self.places.len()).for_each(|index| self.signal_worker(index, libc::SIGTERM));
    }

    /// Tells all workers to leave, and waits. Those that do not in time are killed, and remarked upon.
    pub(crate) fn disband(&mut self, patience: Duration) -> io::Result<()> {
        if let Some(mut child) = self.asking.take().and_then(|asking| asking.child) {
            child.kill()?;
            child.wait()?;
        }
        (0..self.places.len()).for_each(|index| self.signal_worker(index, libc::SIGTERM));
        let deadline = Instant::now() + patience;
        for (index, place) in self.places.iter_mut().enumerate() {
            let State::Up { child, .. } = &mut place.state else {
                continue;
            };
            while child.try_wait()?.is_none() {
                if Instant::now() > deadline || is_interrupted() {
                    self.remarks.push(format!(
                        "worker {index} (pid {}) did not leave when told to",
                        child.id()
                    ));
                    child.kill()?;
                    child.wait()?;
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        self.places.clear();
        self.reap_orphans();
        Ok(())
    }

    /// What the killed leave behind comes to this process; the dead among it must not fill the table of processes.
    fn reap_orphans(&self) {
        let up = self.places.iter().filter_map(|place| match &place.state {
            State::Up { child, .. } => Some(child.id()),
            State::Down { .. } => None,
        });
        let asking = self
            .asking
            .iter()
            .filter_map(|asking| asking.child.as_ref())
            .map(Child::id);
        let submitters = self.submitters.iter().map(|one| one.child.id());
        let own: Vec<u32> = up
            .chain(submitters)
            .chain(asking)
            .chain(self.foreign.iter().copied())
            .collect();
        for pid in procs::children(std::process::id())
            .into_iter()
            .filter(|pid| !own.contains(pid))
        {
            let _ = waitpid(Pid::from_raw(pid as i32), WaitOptions::NOHANG);
        }
    }

    /// The ids that the submitter of a batch has printed.
    pub(crate) fn accepted(&self, batch: usize) -> io::Result<Vec<Tid>> {
        Ok(ledger::accepted(&fs::read_to_string(
            self.site.file(format!("batch-{batch}.out")),
        )?))
    }
}

impl Drop for Fleet<'_> {
    fn drop(&mut self) {
        let up = self
            .places
            .iter_mut()
            .filter_map(|place| match &mut place.state {
                State::Up { child, .. } => Some(child),
                State::Down { .. } => None,
            });
        let asking = self
            .asking
            .iter_mut()
            .filter_map(|asking| asking.child.as_mut());
        for child in up
            .chain(self.submitters.iter_mut().map(|one| &mut one.child))
            .chain(asking)
        {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What the names of a batch's tasks begin with.
///
/// Those that are not announced have names of their own, so that the broker can be asked for all of them at once.
fn name(index: usize, batch: &Batch) -> String {
    format!(
        "{}{index}-",
        if batch.is_announced() {
            ANNOUNCED
        } else {
            UNANNOUNCED
        }
    )
}

/// Specs as JSON.
fn specs(name: &str, classes: &[Class], program: &str) -> String {
    serde_json::Value::Array(
        classes
            .iter()
            .map(|class| spec(name, *class, program))
            .collect(),
    )
    .to_string()
}

/// One that fails always is given up after the second time.
fn spec(name: &str, class: Class, program: &str) -> serde_json::Value {
    let attempts = if class == Class::Broken { 2 } else { 60 };
    serde_json::json!({
        "name": name.replace("{}", class.name()),
        "target": { "command": [program, "task", class.name()] },
        "retry": { "attempts": attempts, "backoff": "constant", "base": "50ms" },
    })
}
