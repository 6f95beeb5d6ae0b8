//! `Fleet`: the processes of a campaign. Workers and managers are restarted when they end;
//! submitters run once.

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
    campaign_dir::CampaignDir,
    managers,
    options::Options,
    plan::{Batch, SubmitMethod},
    processes, side_file,
    specs::{self, HOSTED_QUEUE},
};

/// Prefixes of task names: see [`name_prefix`].
pub(crate) const ACKNOWLEDGED: &str = "b";
pub(crate) const UNACKNOWLEDGED: &str = "u";
/// The number of submitters that run at the same time.
const SUBMITTERS: usize = 8;
/// No submitter takes this long, even while the holder of a lock is stopped.
const SUBMITTER_LIFE: Duration = Duration::from_secs(120);
const CONCURRENCY: &str = "3";
/// Arguments of a root manager. Its tasks, and the managers that it spawned, count against the
/// limit.
const ROOT_MANAGER_ARGS: [&str; 4] = ["manager", "serve", "--limits", "max_tasks=5"];
/// Arguments of a worker with hosts, without the program of the hosts.
const WORKER_WITH_HOSTS_ARGS: [&str; 11] = [
    "worker",
    "start",
    "--no-detach",
    "--queues",
    HOSTED_QUEUE,
    "--hosts",
    "2",
    "--host-threads",
    "10",
    "--host-blocked-timeout",
    "2s",
];
/// How long no spawned manager may exist before one is requested.
const MANAGER_ABSENT: Duration = Duration::from_secs(1);
/// How long a requested manager may take to start before it is requested again.
const MANAGER_START: Duration = Duration::from_secs(6);
/// How often the fleet looks for a spawned manager.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The kind of a process of the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Worker,
    RootManager,
    Groups,
    /// A worker with hosts.
    Hosts,
}

/// A worker or manager that the fleet keeps running.
pub(crate) struct FleetProcess {
    pub(crate) role: Role,
    pub(crate) state: State,
    /// When it gets `SIGCONT`, if it is stopped.
    pub(crate) stopped_until: Option<Instant>,
}

pub(crate) enum State {
    Up {
        child: Child,
        /// The `SIGKILL` or `SIGTERM` that was sent to it.
        ending: Option<i32>,
    },
    Down {
        until: Instant,
    },
}

impl FleetProcess {
    /// The pid of a process that runs and was not asked to stop.
    pub(crate) fn pid(&self) -> Option<u32> {
        match &self.state {
            State::Up {
                child,
                ending: None,
            } => Some(child.id()),
            _ => None,
        }
    }

    /// The pid of a process that received `SIGTERM` and is stopping.
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

/// The end of a submitter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SubmitterExit {
    pub(crate) batch: usize,
    /// Whether the campaign killed it before it ended by itself.
    pub(crate) was_killed: bool,
    pub(crate) code: Option<i32>,
}

pub(crate) struct Fleet<'a> {
    pub(crate) dir: &'a CampaignDir,
    pub(crate) members: Vec<FleetProcess>,
    submitters: Vec<Submitter>,
    pub(crate) submitter_exits: Vec<SubmitterExit>,
    /// Unexpected exits and hangs of processes.
    pub(crate) process_errors: Vec<String>,
    /// Submitters that were killed before they ended.
    pub(crate) submitters_killed: u32,
    /// Children of this process that another component waits for.
    pub(crate) external_children: Vec<u32>,
    queues: &'static str,
    manager_request: Option<ManagerRequest>,
    last_reap: Instant,
}

/// Keeps one manager alive that a root manager spawned.
struct ManagerRequest {
    /// The process that writes the request.
    child: Option<Child>,
    checked_at: Instant,
    /// The last time that a manager existed or was requested.
    since: Instant,
    retry_after: Duration,
}

impl<'a> Fleet<'a> {
    pub(crate) fn new(dir: &'a CampaignDir, options: &Options) -> Self {
        let now = Instant::now();
        let member = |role| FleetProcess {
            role,
            state: State::Down { until: now },
            stopped_until: None,
        };
        let with_role = |role, count| (0..count).map(move |_| member(role));
        let manager_request = ManagerRequest {
            child: None,
            checked_at: now,
            since: now,
            retry_after: MANAGER_ABSENT,
        };
        Self {
            dir,
            members: with_role(Role::Worker, options.workers)
                .chain(with_role(Role::RootManager, options.managers))
                .chain(with_role(Role::Groups, options.groups))
                .chain(with_role(Role::Hosts, options.hosts))
                .collect(),
            submitters: Vec::new(),
            submitter_exits: Vec::new(),
            process_errors: Vec::new(),
            submitters_killed: 0,
            external_children: Vec::new(),
            queues: "default",
            manager_request: (options.managers > 0).then_some(manager_request),
            last_reap: now,
        }
    }

    /// Reaps ended processes, and starts and kills those that are due.
    pub(crate) fn tick(&mut self) -> io::Result<()> {
        let now = Instant::now();
        for index in 0..self.members.len() {
            self.supervise_process(index, now)?;
        }
        self.supervise_submitters(now)?;
        self.ensure_spawned_manager(now)?;
        if now.duration_since(self.last_reap) > Duration::from_millis(200) {
            self.last_reap = now;
            self.reap_orphans();
        }
        Ok(())
    }

    fn supervise_process(&mut self, index: usize, now: Instant) -> io::Result<()> {
        let member = &mut self.members[index];
        match &mut member.state {
            State::Up { child, ending } => {
                if let Some(status) = child.try_wait()? {
                    // A worker that cannot reach its server logs that and exits, which is expected.
                    let log = fs::read_to_string(self.dir.file(format!("worker-{index}.log")))
                        .unwrap_or_default();
                    let is_reported = log
                        .lines()
                        .next_back()
                        .is_some_and(|line| line.contains("cannot reach"));
                    if ending.is_none() && !is_reported {
                        self.process_errors.push(format!(
                            "worker {index} (pid {}) exited unexpectedly: {status}",
                            child.id()
                        ));
                    }
                    member.stopped_until = None;
                    // Restart after a pause, as a service manager does; the fleet is smaller for
                    // that time.
                    member.state = State::Down {
                        until: now + Duration::from_millis(100 + 150 * index as u64),
                    };
                }
            }
            State::Down { until } if *until <= now => {
                let child = self.start_worker(index)?;
                self.members[index].state = State::Up {
                    child,
                    ending: None,
                };
            }
            State::Down { .. } => {}
        }
        Ok(())
    }

    /// Requests a spawned manager when there is none, whatever happened to the last one and to its
    /// request.
    fn ensure_spawned_manager(&mut self, now: Instant) -> io::Result<()> {
        let Some(manager_request) = &mut self.manager_request else {
            return Ok(());
        };
        if let Some(status) = manager_request
            .child
            .as_mut()
            .map(Child::try_wait)
            .transpose()?
            .flatten()
        {
            manager_request.child = None;
            if !status.success() {
                // The server was not reachable.
                (manager_request.since, manager_request.retry_after) = (now, MANAGER_ABSENT);
            }
        }
        if now.duration_since(manager_request.checked_at) < CHECK_INTERVAL {
            return Ok(());
        }
        manager_request.checked_at = now;
        if !managers::find_spawned(self.dir).is_empty() {
            (manager_request.since, manager_request.retry_after) = (now, MANAGER_ABSENT);
        } else if manager_request.child.is_none()
            && now.duration_since(manager_request.since) > manager_request.retry_after
        {
            (manager_request.since, manager_request.retry_after) = (now, MANAGER_START);
            let log = File::options()
                .append(true)
                .create(true)
                .open(self.dir.file("manager-request.log"))?;
            let mut request = self.dir.raddle(&[
                "queue",
                "write",
                "raddle.spawn.requests",
                &managers::manager_request(self.dir),
            ]);
            manager_request.child = Some(request.stdout(log.try_clone()?).stderr(log).spawn()?);
        }
        Ok(())
    }

    fn start_worker(&self, index: usize) -> io::Result<Child> {
        let log = File::options()
            .append(true)
            .create(true)
            .open(self.dir.file(format!("worker-{index}.log")))?;
        let worker = [
            "worker",
            "start",
            "--no-detach",
            "--concurrency",
            CONCURRENCY,
            "--queues",
            self.queues,
        ];
        let chaos = self.dir.chaos.display().to_string();
        let hosts = [&WORKER_WITH_HOSTS_ARGS[..], &["--host", &chaos, "host"]].concat();
        let args = match self.members[index].role {
            Role::Worker => &worker[..],
            Role::Hosts => &hosts,
            Role::RootManager => &ROOT_MANAGER_ARGS,
            Role::Groups => &managers::GROUP_MANAGER_ARGS,
        };
        self.dir
            .raddle(args)
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
    }

    /// Sends a signal to a worker. After `SIGKILL` or `SIGTERM` the fleet starts another in its
    /// place.
    pub(crate) fn signal_worker(&mut self, index: usize, signal: i32) {
        if let State::Up { child, ending } = &mut self.members[index].state {
            if matches!(signal, libc::SIGKILL | libc::SIGTERM) {
                *ending = Some(signal);
            }
            // The child was not waited for, so the pid is still its own.
            processes::kill(child.id(), signal);
        }
    }

    /// Whether another submitter may start.
    pub(crate) fn has_room(&self) -> bool {
        self.submitters.len() < SUBMITTERS
    }

    pub(crate) fn is_submitting(&self) -> bool {
        !self.submitters.is_empty()
    }

    /// Starts the process that submits a batch.
    pub(crate) fn submit(&mut self, index: usize, batch: &Batch) -> io::Result<()> {
        let name_prefix = format!("{}{{}}", name_prefix(index, batch));
        let task = [
            self.dir.chaos.display().to_string(),
            "task".into(),
            "{}".into(),
        ];
        let retry = "--retry 60 --backoff constant --retry-base 0.05"
            .split(' ')
            .map(str::to_owned);
        let input = self.dir.file(format!("batch-{index}.in"));
        let shown = input.display().to_string();
        let mut args: Vec<String> = Vec::new();
        match &batch.method {
            SubmitMethod::Lines(classes) => {
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
                    name_prefix,
                ]);
                args.extend(retry.chain(["--".into()]).chain(task));
            }
            SubmitMethod::Array(count) => {
                args.extend([
                    "submit".into(),
                    "--array".into(),
                    format!("1-{count}"),
                    "--name".into(),
                    name_prefix,
                ]);
                args.extend(
                    retry
                        .chain(["--".into()])
                        .chain(task.map(|word| word.replace("{}", "quick"))),
                );
            }
            SubmitMethod::File(classes) => {
                fs::write(&input, specs::of_commands(&name_prefix, classes, &task[0]))?;
                args.extend(["submit".into(), "--file".into(), shown]);
            }
            SubmitMethod::Hosted(classes) => {
                fs::write(&input, specs::of_hosts(&name_prefix, classes))?;
                args.extend(["submit".into(), "--file".into(), shown]);
            }
            SubmitMethod::SpawnSpecs(classes) => {
                args.extend([
                    "queue".into(),
                    "write".into(),
                    "raddle.spawn.requests".into(),
                ]);
                let specs = classes
                    .iter()
                    .map(|class| specs::of_command(&name_prefix, *class, &task[0]));
                args.extend(specs.map(|spec| serde_json::json!({ "spec": spec }).to_string()));
            }
            SubmitMethod::RegistryTasks(classes) => {
                args.extend([
                    "queue".into(),
                    "write".into(),
                    "raddle.spawn.requests".into(),
                ]);
                args.extend(classes.iter().map(|class| managers::task_request(*class)));
            }
            SubmitMethod::Messages(classes) => {
                args.extend([
                    "queue".into(),
                    "write".into(),
                    managers::MESSAGE_QUEUE.into(),
                ]);
                args.extend(classes.iter().map(|class| class.name().to_owned()));
            }
            SubmitMethod::Inline(class) => {
                let name_prefix = name_prefix.replace("{}", class.name());
                args.extend(["run".into(), "--name".into(), name_prefix]);
                args.extend(
                    retry
                        .chain(["--".into()])
                        .chain(task.map(|word| word.replace("{}", class.name()))),
                );
            }
        }
        let out = File::create(self.dir.file(format!("batch-{index}.out")))?;
        let err = File::create(self.dir.file(format!("batch-{index}.err")))?;
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let child = self
            .dir
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

    fn supervise_submitters(&mut self, now: Instant) -> io::Result<()> {
        let mut running = Vec::new();
        for mut one in std::mem::take(&mut self.submitters) {
            match one.child.try_wait()? {
                Some(status) => {
                    use std::os::unix::process::ExitStatusExt;
                    let was_killed = one.was_killed && status.signal() == Some(libc::SIGKILL);
                    self.submitters_killed += u32::from(was_killed);
                    self.submitter_exits.push(SubmitterExit {
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
                    self.process_errors.push(format!(
                        "the submitter of batch {} hung and was killed",
                        one.batch
                    ));
                    one.was_killed = true;
                    one.child.kill()?;
                }
                None => {}
            }
            running.push(one);
        }
        self.submitters = running;
        Ok(())
    }

    /// Makes workers serve every queue from now on. Those that run are stopped and restarted.
    pub(crate) fn serve_all(&mut self) {
        self.queues = "default,inline";
        (0..self.members.len()).for_each(|index| self.signal_worker(index, libc::SIGTERM));
    }

    /// Stops all workers and waits. Workers that do not stop in time are killed and recorded as
    /// errors.
    pub(crate) fn stop_all(&mut self, retry_after: Duration) -> io::Result<()> {
        if let Some(mut child) = self
            .manager_request
            .take()
            .and_then(|manager_request| manager_request.child)
        {
            child.kill()?;
            child.wait()?;
        }
        (0..self.members.len()).for_each(|index| self.signal_worker(index, libc::SIGTERM));
        let deadline = Instant::now() + retry_after;
        for (index, member) in self.members.iter_mut().enumerate() {
            let State::Up { child, .. } = &mut member.state else {
                continue;
            };
            while child.try_wait()?.is_none() {
                if Instant::now() > deadline || is_interrupted() {
                    self.process_errors.push(format!(
                        "worker {index} (pid {}) did not stop after SIGTERM",
                        child.id()
                    ));
                    child.kill()?;
                    child.wait()?;
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        self.members.clear();
        self.reap_orphans();
        Ok(())
    }

    /// Reaps orphans that this process, a subreaper, adopted: zombies must not fill the process
    /// table.
    fn reap_orphans(&self) {
        let up = self
            .members
            .iter()
            .filter_map(|member| match &member.state {
                State::Up { child, .. } => Some(child.id()),
                State::Down { .. } => None,
            });
        let manager_request = self
            .manager_request
            .iter()
            .filter_map(|manager_request| manager_request.child.as_ref())
            .map(Child::id);
        let submitters = self.submitters.iter().map(|one| one.child.id());
        let started: Vec<u32> = up
            .chain(submitters)
            .chain(manager_request)
            .chain(self.external_children.iter().copied())
            .collect();
        for pid in processes::children(std::process::id())
            .into_iter()
            .filter(|pid| !started.contains(pid))
        {
            let _ = waitpid(Pid::from_raw(pid as i32), WaitOptions::NOHANG);
        }
    }

    /// The ids that the submitter of a batch has printed.
    pub(crate) fn accepted(&self, batch: usize) -> io::Result<Vec<Tid>> {
        Ok(side_file::accepted(&fs::read_to_string(
            self.dir.file(format!("batch-{batch}.out")),
        )?))
    }
}

impl Drop for Fleet<'_> {
    fn drop(&mut self) {
        let up = self
            .members
            .iter_mut()
            .filter_map(|member| match &mut member.state {
                State::Up { child, .. } => Some(child),
                State::Down { .. } => None,
            });
        let manager_request = self
            .manager_request
            .iter_mut()
            .filter_map(|manager_request| manager_request.child.as_mut());
        for child in up
            .chain(self.submitters.iter_mut().map(|one| &mut one.child))
            .chain(manager_request)
        {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The prefix of the names of a batch's tasks.
///
/// Batches whose ids are not printed have their own prefix, so that one query finds all of them.
fn name_prefix(index: usize, batch: &Batch) -> String {
    format!(
        "{}{index}-",
        if batch.is_acknowledged() {
            ACKNOWLEDGED
        } else {
            UNACKNOWLEDGED
        }
    )
}
