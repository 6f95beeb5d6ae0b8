//! `EngineProject`: a project on an engine, with the benchmark's program as its workers.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use raddle_broker::{Broker, NewTask, Summary, TaskCursor};
use raddle_broker_connect::connect;
use raddle_model::{Target, TaskEventKind, TaskSpec, TaskState, TaskView, Tid, worker::kind};
use serde_json::Value;

use super::{Engine, p50};
use crate::{
    project_dir::{ProjectDir, Worker, beside},
    redis::Server,
};

pub(super) struct EngineProject {
    pub(super) broker: Arc<dyn Broker>,
    pub(super) url: String,
    pub(super) server: Option<Server>,
    pub(super) dir: ProjectDir,
}

/// The claim of a task by a worker. Ids are times, those of events too.
pub(super) struct ClaimEvent {
    worker: Tid,
    at: Tid,
}

impl ClaimEvent {
    /// Whether the worker was registered at this time and was waiting for a task.
    pub(super) fn waited_at(&self, moment: Tid) -> bool {
        self.worker < moment && moment < self.at
    }
}

/// The number of events per read.
const EVENTS: u32 = 1000;
/// The limit for any wait.
const DEADLINE: Duration = Duration::from_secs(180);
const GROUP: usize = 100;

/// The program with routines, which is built beside this one.
pub(super) fn app() -> PathBuf {
    beside("raddle-bench-app")
}

pub(super) fn call(routine: &str) -> NewTask {
    NewTask::new(TaskSpec::new(Target::Routine(routine.into())))
}

impl EngineProject {
    pub(super) fn new(engine: Engine) -> Self {
        let dir = ProjectDir::new();
        let server = (engine == Engine::Redis).then(|| Server::start(&dir));
        let url = match &server {
            Some(server) => server.url(),
            None => format!("sqlite:{}", dir.path().join("work.db").display()),
        };
        let broker = dir
            .wait(connect(&url.parse().expect("a URL")))
            .expect("the engine takes tasks");
        Self {
            broker,
            url,
            server,
            dir,
        }
    }

    fn command(&self, words: &[&str], flags: &[&str]) -> Command {
        let mut command = Command::new(app());
        command
            .args(words)
            .args(flags)
            .args(["--queue-url", &self.url, "--quiet"]);
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    pub(super) fn spawner(&self, flags: &[&str]) -> Worker {
        Worker::start(&mut self.command(&["spawner", "run"], flags))
    }

    pub(super) fn worker(&self, flags: &[&str]) -> Worker {
        Worker::start(&mut self.command(&["worker", "start", "--no-detach"], flags))
    }

    /// The pids of the one-shot workers.
    pub(super) fn workers(&self) -> Vec<u32> {
        let workers = self
            .dir
            .wait(self.broker.workers())
            .expect("the broker answers");
        workers
            .iter()
            .filter(|entry| entry.info.kind == kind::ONE_SHOT)
            .map(|entry| entry.info.pid)
            .collect()
    }

    pub(super) fn wait_until_warm(&self, workers: usize) {
        let began = Instant::now();
        while self.workers().len() < workers {
            assert!(began.elapsed() < DEADLINE, "the pool is not warm in time");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Submits this many tasks that exit at once.
    pub(super) fn submit(&self, tasks: usize) -> Vec<Tid> {
        let mut tids = Vec::new();
        self.dir.wait(async {
            while tids.len() < tasks {
                let batch = (0..GROUP.min(tasks - tids.len()))
                    .map(|_| call("nothing"))
                    .collect();
                let stored = self
                    .broker
                    .submit(batch)
                    .await
                    .expect("tasks can be submitted");
                tids.extend(stored.into_iter().map(|stored| stored.tid()));
            }
        });
        tids
    }

    /// Submits this many tasks and waits until all are completed.
    pub(super) fn run_all(&self, tasks: usize) -> Vec<Tid> {
        let tids = self.submit(tasks);
        self.wait_until_completed(tasks);
        tids
    }

    /// All claims in the event log.
    pub(super) fn claims(&self) -> Vec<ClaimEvent> {
        let (mut claims, mut after) = (Vec::new(), 0);
        loop {
            let read = self
                .broker
                .events(Some(after), None, EVENTS, Duration::ZERO);
            let events = self.dir.wait(read).expect("the broker answers");
            let Some(last) = events.last() else {
                return claims;
            };
            after = last.id.as_u64();
            let spawning = events
                .iter()
                .filter(|event| event.event == TaskEventKind::Spawning);
            claims.extend(spawning.filter_map(|event| {
                Some(ClaimEvent {
                    worker: event.worker?,
                    at: event.id,
                })
            }));
        }
    }

    /// Waits until this many tasks are completed.
    pub(super) fn wait_until_completed(&self, tasks: usize) {
        let began = Instant::now();
        while self.summary().states.get(&TaskState::Completed) < Some(&(tasks as u64)) {
            assert!(began.elapsed() < DEADLINE, "the tasks are finished in time");
            // Polled rarely enough to cost nothing: the wait takes seconds.
            thread::sleep(Duration::from_millis(10));
        }
    }

    async fn wait_until_done(&self, tid: Tid) {
        let began = Instant::now();
        let mut cursor = TaskCursor::default();
        loop {
            let progress = self
                .broker
                .follow(tid, cursor, DEADLINE)
                .await
                .expect("the broker answers");
            if progress.done.is_some() {
                return;
            }
            assert!(began.elapsed() < DEADLINE, "a task is finished in time");
            cursor = progress.cursor;
        }
    }

    /// The median time from the call of submit to the first instruction of a routine that returns
    /// the time, in microseconds.
    pub(super) fn submit_to_code(&self, routine: &str, samples: usize) -> f64 {
        // Long enough for the pool to fill up again.
        self.submit_to_code_after(routine, samples, || {
            thread::sleep(Duration::from_millis(15))
        })
    }

    /// The same, with an action before each submit.
    pub(super) fn submit_to_code_after(
        &self,
        routine: &str,
        samples: usize,
        before: impl Fn(),
    ) -> f64 {
        let mut times = Vec::new();
        // The first five are a warm-up that opens connections.
        for n in 0..samples + 5 {
            before();
            let submitted_at = clock();
            let tid = self.dir.wait(async {
                let stored = self
                    .broker
                    .submit(vec![call(routine)])
                    .await
                    .expect("a task can be submitted");
                self.wait_until_done(stored[0].tid()).await;
                stored[0].tid()
            });
            let ran_at = self
                .task(tid)
                .report
                .and_then(|report| report.value)
                .as_ref()
                .and_then(Value::as_u64);
            let ran_at = ran_at.expect("the function returns its start time");
            if n >= 5 {
                times.push(Duration::from_nanos(ran_at.saturating_sub(submitted_at)));
            }
        }
        p50(&times)
    }

    pub(super) fn task(&self, tid: Tid) -> TaskView {
        self.dir
            .wait(self.broker.task(tid))
            .expect("the broker answers")
            .expect("the task is kept")
    }

    pub(super) fn summary(&self) -> Summary {
        self.dir
            .wait(self.broker.summary())
            .expect("the broker answers")
    }

    /// Asserts that no worker process runs in this directory.
    pub(super) fn assert_no_process_left(&self) {
        assert_eq!(self.workers(), [0; 0]);
        let directory = self
            .dir
            .path()
            .canonicalize()
            .expect("the directory is there");
        for process in fs::read_dir("/proc").expect("there is /proc").flatten() {
            let is_in_directory =
                fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd == directory);
            let is_app = fs::read_link(process.path().join("exe")).is_ok_and(|exe| exe == app());
            assert!(
                !(is_in_directory && is_app),
                "{:?} is left",
                process.file_name()
            );
        }
    }
}

/// `CLOCK_MONOTONIC`, which the functions read too.
pub(super) fn clock() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
