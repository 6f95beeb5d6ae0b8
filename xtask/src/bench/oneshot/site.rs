//! A project with an engine, and the program that works on it.

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
    bed::{Bed, Worker, beside},
    redis::Server,
};

pub(super) struct Site {
    pub(super) broker: Arc<dyn Broker>,
    url: String,
    _server: Option<Server>,
    pub(super) bed: Bed,
}

/// What a worker claimed when. Ids are times, those of events too.
pub(super) struct Claimed {
    worker: Tid,
    at: Tid,
}

impl Claimed {
    /// Whether the worker was there at this moment, and waited for a task.
    pub(super) fn waited_at(&self, moment: Tid) -> bool {
        self.worker < moment && moment < self.at
    }
}

/// How many events are read at a time.
const EVENTS: u32 = 1000;
/// How long anything may take.
const DEADLINE: Duration = Duration::from_secs(180);
const GROUP: usize = 100;

/// The program with routines, built beside this one.
pub(super) fn app() -> PathBuf {
    beside("raddle-bench-app")
}

pub(super) fn call(routine: &str) -> NewTask {
    NewTask::new(TaskSpec::new(Target::Routine(routine.into())))
}

impl Site {
    pub(super) fn new(engine: Engine) -> Self {
        let bed = Bed::new();
        let server = (engine == Engine::Redis).then(|| Server::start(&bed));
        let url = match &server {
            Some(server) => server.url(),
            None => format!("sqlite:{}", bed.path().join("work.db").display()),
        };
        let broker = bed
            .wait(connect(&url.parse().expect("a URL")))
            .expect("the engine takes tasks");
        Self {
            broker,
            url,
            _server: server,
            bed,
        }
    }

    fn command(&self, words: &[&str], flags: &[&str]) -> Command {
        let mut command = Command::new(app());
        command
            .args(words)
            .args(flags)
            .args(["--queue-url", &self.url, "--quiet"]);
        command.current_dir(self.bed.path()).stdin(Stdio::null());
        command
    }

    pub(super) fn spawner(&self, flags: &[&str]) -> Worker {
        Worker::start(&mut self.command(&["spawner", "run"], flags))
    }

    pub(super) fn worker(&self, flags: &[&str]) -> Worker {
        Worker::start(&mut self.command(&["worker", "start", "--no-detach"], flags))
    }

    /// The processes of the workers that wait or run.
    pub(super) fn workers(&self) -> Vec<u32> {
        let workers = self
            .bed
            .wait(self.broker.workers())
            .expect("the broker answers");
        workers
            .iter()
            .filter(|entry| entry.info.kind == kind::ONE_SHOT)
            .map(|entry| entry.info.pid)
            .collect()
    }

    pub(super) fn until_warm(&self, workers: usize) {
        let began = Instant::now();
        while self.workers().len() < workers {
            assert!(began.elapsed() < DEADLINE, "the pool gets warm");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Submits so many tasks that do nothing.
    pub(super) fn submit(&self, tasks: usize) -> Vec<Tid> {
        let mut tids = Vec::new();
        self.bed.wait(async {
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

    /// Submits so many, and waits until all are completed: for the last, and then for those that overtook each other. Looking is not free on
    /// two cores, and what it costs is ours.
    pub(super) fn run_all(&self, tasks: usize) -> Vec<Tid> {
        let tids = self.submit(tasks);
        self.until_completed(tasks);
        tids
    }

    /// What every worker has claimed, as far as the log goes back.
    pub(super) fn claims(&self) -> Vec<Claimed> {
        let (mut claims, mut after) = (Vec::new(), 0);
        loop {
            let read = self
                .broker
                .events(Some(after), None, EVENTS, Duration::ZERO);
            let events = self.bed.wait(read).expect("the broker answers");
            let Some(last) = events.last() else {
                return claims;
            };
            after = last.id.as_u64();
            let spawning = events
                .iter()
                .filter(|event| event.event == TaskEventKind::Spawning);
            claims.extend(spawning.filter_map(|event| {
                Some(Claimed {
                    worker: event.worker?,
                    at: event.id,
                })
            }));
        }
    }

    /// Waits until so many tasks are completed.
    pub(super) fn until_completed(&self, tasks: usize) {
        let began = Instant::now();
        while self.summary().states.get(&TaskState::Completed) < Some(&(tasks as u64)) {
            assert!(began.elapsed() < DEADLINE, "the tasks are finished in time");
            // Seldom enough that the looks cost nothing: what is waited for takes seconds.
            thread::sleep(Duration::from_millis(10));
        }
    }

    async fn ended(&self, tid: Tid) {
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

    /// From the call of submit to the first instruction of the function: the median, in microseconds.
    pub(super) fn submit_to_code(&self, samples: usize) -> f64 {
        // Long enough for the pool to be full again.
        self.submit_to_code_after(samples, || thread::sleep(Duration::from_millis(15)))
    }

    /// The same, with something to be done before each.
    pub(super) fn submit_to_code_after(&self, samples: usize, before: impl Fn()) -> f64 {
        let mut times = Vec::new();
        // The first few are not counted: connections are made with them.
        for n in 0..samples + 5 {
            before();
            let asked_at = clock();
            let tid = self.bed.wait(async {
                let stored = self
                    .broker
                    .submit(vec![call("when")])
                    .await
                    .expect("a task can be submitted");
                self.ended(stored[0].tid()).await;
                stored[0].tid()
            });
            let began_at = self
                .task(tid)
                .report
                .and_then(|report| report.value)
                .as_ref()
                .and_then(Value::as_u64);
            let began_at = began_at.expect("the function says when it ran");
            if n >= 5 {
                times.push(Duration::from_nanos(began_at.saturating_sub(asked_at)));
            }
        }
        p50(&times)
    }

    pub(super) fn task(&self, tid: Tid) -> TaskView {
        self.bed
            .wait(self.broker.task(tid))
            .expect("the broker answers")
            .expect("the task is kept")
    }

    pub(super) fn summary(&self) -> Summary {
        self.bed
            .wait(self.broker.summary())
            .expect("the broker answers")
    }

    /// No process that works in this directory is left.
    pub(super) fn assert_nobody_is_left(&self) {
        assert_eq!(self.workers(), [0; 0]);
        let here = self
            .bed
            .path()
            .canonicalize()
            .expect("the directory is there");
        for process in fs::read_dir("/proc").expect("there is /proc").flatten() {
            let is_here = fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd == here);
            let is_app = fs::read_link(process.path().join("exe")).is_ok_and(|exe| exe == app());
            assert!(!(is_here && is_app), "{:?} is left", process.file_name());
        }
    }
}

/// The machine's clock, which the functions read too.
fn clock() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
