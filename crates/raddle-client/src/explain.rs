//! Why a task is not running, for `raddle task explain` and for programs that wait for the task.

use std::{
    convert::Infallible,
    mem::{Discriminant, discriminant},
    time::Duration,
};

use jiff::Timestamp;
use raddle_broker::{Broker, Result, SummaryDetail, WaitingRequest};
use raddle_model::{
    QueueName, TaskEventKind, TaskState, TaskView, Tid, WorkerEntry,
    manager::PRIME,
    queue_name::ManagerQueue,
    spec::{DEFAULT_QUEUE, DOCKER, Isolation, SANDBOX},
    worker::WorkerStatus,
};
use serde::Serialize;
use tokio::time::sleep;

use crate::text::{count, printable, time};

/// Why a task is not running, with text for people.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The reason.
    pub reason: WaitReason,
    /// The reason as text.
    pub text: String,
    /// The fix.
    pub hint: Option<String>,
}

impl Explanation {
    /// The reason without its details, for comparison.
    pub fn kind(&self) -> Discriminant<WaitReason> {
        discriminant(&self.reason)
    }

    /// Whether no live worker offers what the task needs. `raddle run` needs no worker for a
    /// command.
    pub fn is_unserved(&self) -> bool {
        use WaitReason::{NoManager, NoTaskImage, NoWorkerForQueue, NotInThisVersion};
        matches!(
            self.reason,
            NotInThisVersion { .. } | NoTaskImage | NoManager { .. } | NoWorkerForQueue { .. }
        )
    }

    /// One line of text about the task.
    pub fn line(&self, task: &TaskView) -> String {
        let hint = self
            .hint
            .as_ref()
            .map(|hint| format!("; {hint}"))
            .unwrap_or_default();
        format!("{} {}{hint}", title(task), self.text)
    }
}

/// A task, as lines about it begin.
pub fn title(task: &TaskView) -> String {
    format!(
        "task {} ({})",
        task.tid,
        printable(task.spec.display_name())
    )
}

/// Explains why a task is not running.
pub async fn explain_task(broker: &dyn Broker, task: &TaskView) -> Result<Explanation> {
    let workers = broker.workers().await?;
    let ahead = match task.state {
        TaskState::Created => broker.count_waiting(WaitingRequest::ahead_of(task)).await?,
        _ => 0,
    };
    let released_because = match task.run_at {
        Some(_) => release_reason(broker, task.tid).await?,
        None => None,
    };
    let mut reason = WaitReason::find(task, &workers, ahead, Timestamp::now(), released_because);
    if reason.is_in_queue() && is_queue_paused(broker, &task.spec.queue).await? {
        reason = WaitReason::QueuePaused {
            queue: task.spec.queue.clone(),
        };
    }
    let entry = workers.iter().find(|worker| worker.tid == task.tid);
    let (text, hint) = reason.text(task, entry);
    Ok(Explanation { reason, text, hint })
}

async fn is_queue_paused(broker: &dyn Broker, queue: &str) -> Result<bool> {
    let summary = broker.summarize(SummaryDetail::default()).await?;
    let queue = summary.queues.get(queue);
    Ok(queue.is_some_and(|queue| queue.is_paused))
}

/// Why the workers do not claim a task that is ready, with `ahead` tasks before it. It asks no
/// broker, so that one list of workers can explain many tasks.
pub fn explain_ready_task(task: &TaskView, workers: &[WorkerEntry], ahead: u64) -> Explanation {
    let reason = WaitReason::find_for_waiting(task, workers, ahead);
    let (text, hint) = reason.text(task, None);
    Explanation { reason, text, hint }
}

/// When a program first checks why its task waits. Most waits are over by then, without a query.
const FIRST_CHECK: Duration = Duration::from_millis(100);
/// How long a program waits for a task that does not run before it prints the reason.
pub const EXPLAIN_AFTER: Duration = Duration::from_secs(2);

/// The reasons that a program has printed. Each is printed once, even if the program waits for many
/// tasks.
#[derive(Debug, Default)]
pub struct PrintedReasons(Vec<Discriminant<WaitReason>>);

/// Runs `work`, which waits for a task, and meanwhile prints why the task does not run.
pub async fn explain_while<T>(
    broker: &dyn Broker,
    tid: Tid,
    printed: &mut PrintedReasons,
    print: impl Fn(String),
    work: impl Future<Output = T>,
) -> T {
    let waits = |task: &TaskView| {
        task.state == TaskState::Created || (task.paused && !task.state.is_terminal())
    };
    tokio::select! {
        biased;
        done = work => done,
        never = announce_wait(broker, tid, printed, waits, print) => match never {},
    }
}

/// Prints why a task does not run, each reason once. `waits` decides whether the task needs an
/// explanation.
pub async fn announce_wait(
    broker: &dyn Broker,
    tid: Tid,
    PrintedReasons(printed): &mut PrintedReasons,
    waits: impl Fn(&TaskView) -> bool,
    print: impl Fn(String),
) -> Infallible {
    let (mut last, mut is_first) = (None, true);
    sleep(FIRST_CHECK).await;
    loop {
        let mut found = None;
        // `work` reports broker errors itself.
        if let Ok(Some(task)) = broker.task(tid).await
            && waits(&task)
            && let Ok(explanation) = explain_task(broker, &task).await
        {
            let kind = explanation.kind();
            found = Some(kind);
            // After a first attempt the task may just be between two attempts.
            let lasts = !is_first && (task.attempt == 0 || found == last);
            if (lasts || explanation.is_unserved()) && !printed.contains(&kind) {
                print(explanation.line(&task));
                printed.push(kind);
            }
        }
        (last, is_first) = (found, false);
        sleep(EXPLAIN_AFTER).await;
    }
}

/// The reason of the last event, if that is a release by a worker.
async fn release_reason(broker: &dyn Broker, tid: Tid) -> Result<Option<String>> {
    let (mut after, mut last) = (0, None);
    loop {
        let events = broker
            .events(Some(after), Some(tid), 1000, Duration::ZERO)
            .await?;
        let Some(newest) = events.last() else {
            return Ok(last);
        };
        after = newest.id.as_u64();
        last = newest
            .detail
            .clone()
            .filter(|_| newest.event == TaskEventKind::Released);
    }
}

/// Why a task is not running, or that it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
#[non_exhaustive]
#[expect(missing_docs, reason = "the variants describe their fields")]
pub enum WaitReason {
    /// The task is a worker.
    Worker {
        status: WorkerStatus,
        busy: u32,
        slots: u32,
    },
    /// The task was a worker, which is gone.
    WorkerGone,
    /// The task is finished.
    Finished,
    /// The task is running.
    Running {
        worker: Option<Tid>,
        pid: Option<u32>,
        worker_alive: bool,
        /// Whether it shares its process with other tasks.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        shared: bool,
    },
    /// The task was paused.
    Paused,
    /// Its queue was paused.
    QueuePaused { queue: String },
    /// Its delay is not over.
    Delayed {
        until: Timestamp,
        /// Why the last worker released it.
        #[serde(skip_serializing_if = "Option::is_none")]
        because: Option<String>,
    },
    /// It needs a routine or handler that no live worker has.
    NotInThisVersion { needs: Vec<String> },
    /// It needs a container, and no live worker has an image.
    NoTaskImage,
    /// It is a request for a manager of this type, and no such manager is alive.
    NoManager { kind: String },
    /// No worker is alive.
    NoWorker,
    /// No live worker serves its queue.
    NoWorkerForQueue { queue: String },
    /// All workers of its queue lack capabilities. `missing` is the shortest list.
    MissingCapabilities { missing: Vec<String> },
    /// The workers that could take it claim nothing at present.
    WorkersNotTaking { statuses: Vec<WorkerStatus> },
    /// A spawner launches a worker for it and for `ahead` tasks before it.
    Launched { ahead: u64 },
    /// A spawner cannot launch a worker for it.
    NotLaunched { spawners: Vec<Tid> },
    /// `ahead` tasks run first, on `able` workers.
    Behind { ahead: u64, able: u64, busy: bool },
    /// It runs next.
    Next { able: u64, busy: bool },
}

impl WaitReason {
    /// Whether the task could be claimed, as far as the task itself is concerned.
    fn is_in_queue(&self) -> bool {
        !matches!(
            self,
            Self::Worker { .. }
                | Self::WorkerGone
                | Self::Finished
                | Self::Running { .. }
                | Self::Paused
                | Self::Delayed { .. }
        )
    }

    /// Whether a ready task waits until an operator does something.
    pub fn is_stuck(&self) -> bool {
        matches!(
            self,
            Self::NotInThisVersion { .. }
                | Self::NoTaskImage
                | Self::NoManager { .. }
                | Self::NoWorker
                | Self::NoWorkerForQueue { .. }
                | Self::MissingCapabilities { .. }
                | Self::WorkersNotTaking { .. }
                | Self::NotLaunched { .. }
                | Self::QueuePaused { .. }
        )
    }

    fn find(
        task: &TaskView,
        workers: &[WorkerEntry],
        ahead: u64,
        now: Timestamp,
        because: Option<String>,
    ) -> Self {
        if task.spec.is_service() {
            let entry = workers.iter().find(|worker| worker.tid == task.tid);
            return entry.map_or(Self::WorkerGone, |entry| Self::Worker {
                status: entry.status,
                busy: busy_slots(entry),
                slots: entry.info.concurrency,
            });
        }
        if task.state.is_terminal() {
            return Self::Finished;
        }
        if task.paused {
            return Self::Paused;
        }
        if task.state != TaskState::Created {
            let worker = workers
                .iter()
                .find(|worker| Some(worker.tid) == task.worker);
            let has_hosts = worker.is_some_and(|worker| worker.info.shared > 0);
            return Self::Running {
                worker: task.worker,
                pid: task.pid,
                worker_alive: worker.is_some(),
                shared: has_hosts && task.spec.isolation() == Isolation::Shared,
            };
        }
        if let Some(until) = task.run_at.filter(|at| *at > now) {
            return Self::Delayed { until, because };
        }
        Self::find_for_waiting(task, workers, ahead)
    }

    fn find_for_waiting(task: &TaskView, workers: &[WorkerEntry], ahead: u64) -> Self {
        let needs = task.spec.needs();
        if let Ok(queue) = task.spec.queue.parse::<QueueName>()
            && let Some((kind, ManagerQueue::Requests)) = queue.desk()
            && !workers
                .iter()
                .any(|worker| worker.info.is_manager() && worker.info.can_take(&task.spec))
        {
            return Self::NoManager { kind: kind.into() };
        }
        let given = |tag: &&str| {
            workers
                .iter()
                .any(|worker| worker.info.capabilities.iter().any(|cap| cap == *tag))
        };
        // Every worker can make a sandbox: if none offers it, no worker is alive.
        let never = needs
            .implied()
            .filter(|tag| ![SANDBOX, DOCKER].contains(tag) && !given(tag));
        let never: Vec<String> = never.map(str::to_owned).collect();
        if !never.is_empty() {
            return Self::NotInThisVersion { needs: never };
        }
        if needs.implied().any(|tag| tag == DOCKER && !given(&tag)) {
            return Self::NoTaskImage;
        }
        // Workers for one task serve no queue.
        let resident: Vec<_> = workers
            .iter()
            .filter(|worker| !worker.info.queues.is_empty())
            .collect();
        if resident.is_empty() {
            return Self::NoWorker;
        }
        let serving: Vec<_> = resident
            .into_iter()
            .filter(|worker| worker.info.serves(&task.spec.queue))
            .collect();
        if serving.is_empty() {
            return Self::NoWorkerForQueue {
                queue: task.spec.queue.clone(),
            };
        }
        let lacks = |worker: &&WorkerEntry| -> Vec<String> {
            needs
                .missing_from(&worker.info.capabilities)
                .map(str::to_owned)
                .collect()
        };
        let able: Vec<_> = serving
            .iter()
            .filter(|worker| lacks(worker).is_empty())
            .collect();
        if able.is_empty() {
            let nearest = serving.iter().map(lacks).min_by_key(Vec::len);
            return Self::MissingCapabilities {
                missing: nearest.unwrap_or_default(),
            };
        }
        let active = able
            .iter()
            .map(|worker| **worker)
            .filter(|worker| worker.status.takes());
        let taking: Vec<&WorkerEntry> = active.collect();
        if taking.is_empty() {
            return Self::WorkersNotTaking {
                statuses: able.iter().map(|worker| worker.status).collect(),
            };
        }
        let (spawners, taking): (Vec<&WorkerEntry>, Vec<_>) = taking
            .into_iter()
            .partition(|worker| worker.info.launches());
        let busy = taking.iter().all(|worker| worker.load >= 1.0);
        if busy && !spawners.is_empty() {
            let backs_off = |worker: &&WorkerEntry| worker.status == WorkerStatus::BackingOff;
            return match spawners.iter().all(backs_off) && taking.is_empty() {
                true => Self::NotLaunched {
                    spawners: spawners.iter().map(|spawner| spawner.tid).collect(),
                },
                false => Self::Launched { ahead },
            };
        }
        let able = taking.len() as u64;
        if ahead > 0 {
            Self::Behind { ahead, able, busy }
        } else {
            Self::Next { able, busy }
        }
    }

    /// The text after the task's name, and a hint. `entry` is the registration of the task itself,
    /// if it is a live worker.
    fn text(&self, task: &TaskView, entry: Option<&WorkerEntry>) -> (String, Option<String>) {
        let tid = task.tid;
        let (text, hint) = match self {
            Self::Worker { .. } | Self::WorkerGone => {
                (describe_worker(task, entry), advise_on_worker(tid, entry))
            }
            Self::Finished => {
                let how = task
                    .report
                    .as_ref()
                    .map(|report| format!(": {}", report.exit))
                    .unwrap_or_default();
                let hint = match task.state {
                    TaskState::Completed => format!("see 'raddle result {tid}'"),
                    _ => format!(
                        "see 'raddle logs {tid}', or run it again with 'raddle task retry {tid}'"
                    ),
                };
                (format!("is finished, {}{how}", task.state), hint)
            }
            Self::Running {
                worker,
                pid,
                worker_alive,
                shared,
            } => {
                let on = worker
                    .map(|worker| format!(" on worker {worker}"))
                    .unwrap_or_default();
                let pid = pid
                    .map(|pid| {
                        let how = if *shared {
                            " in the shared process"
                        } else {
                            " as process"
                        };
                        format!("{how} {pid}")
                    })
                    .unwrap_or_default();
                let gone = if *worker_alive { "" } else { ", which is gone" };
                let chained = match task.chained {
                    0 => String::new(),
                    chained => format!(", and has chained {}", count(chained, "task")),
                };
                let hint = format!(
                    "any live worker takes it back within seconds; without one, 'raddle task recover {tid}'"
                );
                return (
                    format!("is {}{on}{gone}{pid}{chained}", task.state),
                    (!worker_alive).then_some(hint),
                );
            }
            Self::Paused => (
                format!("is {} and paused", task.state),
                format!("resume it with 'raddle task resume {tid}'"),
            ),
            Self::QueuePaused { queue } => (
                format!("waits: its queue '{queue}' is paused"),
                format!("resume it with 'raddle queue resume {queue}'"),
            ),
            Self::Delayed { until, because } => {
                let back = because
                    .as_ref()
                    .map(|why| format!("was released ({why}), and "))
                    .unwrap_or_default();
                return (format!("{back}is delayed until {}", time(*until)), None);
            }
            Self::NotInThisVersion { needs } => (
                format!(
                    "waits: it needs {}, and no live worker has that",
                    needs.join(" and ")
                ),
                format!(
                    "start a worker that has it: the program with the function, as 'PROGRAM worker start', or one with \
                     '--handlers' or '--plugins'; or remove the task with 'raddle task kill {tid}'"
                ),
            ),
            Self::NoTaskImage => (
                "waits: it is to run in a container, and no live worker has an image for that"
                    .into(),
                "start one with 'raddle worker start --task-image IMAGE'".into(),
            ),
            Self::NoManager { kind } => {
                let text = match task.spec.requires.is_empty() {
                    true => format!("waits: no worker-{kind} is alive"),
                    false => format!(
                        "waits: no manager that is alive lists {}",
                        task.spec.requires
                    ),
                };
                let hint = match kind == PRIME && task.spec.requires.is_empty() {
                    true => "start it with 'raddle manager start'",
                    false => "start one with 'raddle worker spawn --type TYPE --registry FILE'",
                };
                (text, hint.into())
            }
            Self::NoWorker => {
                let queue = &task.spec.queue;
                let queues = if queue == DEFAULT_QUEUE {
                    String::new()
                } else {
                    format!(" --queues {queue}")
                };
                (
                    "waits: no worker is alive".into(),
                    format!("start one with 'raddle worker start{queues}'"),
                )
            }
            Self::NoWorkerForQueue { queue } => (
                format!("waits: no live worker serves the queue '{queue}'"),
                format!("start one with 'raddle worker start --queues {queue}'"),
            ),
            Self::MissingCapabilities { missing } => {
                let caps: Vec<&str> = task.spec.requires.iter().collect();
                (
                    format!(
                        "waits: no live worker has all it needs; the nearest lacks {}",
                        missing.join(", ")
                    ),
                    format!(
                        "start one with 'raddle worker start --caps {}'",
                        caps.join(",")
                    ),
                )
            }
            Self::WorkersNotTaking { statuses } => {
                let statuses: Vec<&str> = statuses.iter().map(|status| status.as_str()).collect();
                (
                    format!(
                        "waits: the workers that could take it are {}",
                        statuses.join(", ")
                    ),
                    "resume one with 'raddle task resume', or start another".into(),
                )
            }
            Self::NotLaunched { spawners } => {
                let tids: Vec<String> = spawners.iter().map(ToString::to_string).collect();
                (
                    "waits: the spawner that would launch a worker for it cannot, and tries again"
                        .into(),
                    format!(
                        "see the log of {}, and raddle_spawner_launch_failures_total in its metrics",
                        tids.join(", ")
                    ),
                )
            }
            Self::Launched { ahead: 0 } => {
                return ("is next: a spawner launches a worker for it".into(), None);
            }
            Self::Launched { ahead } => {
                let others = count(*ahead, "other");
                return (
                    format!("waits behind {others}: a spawner launches workers for them"),
                    None,
                );
            }
            Self::Behind { ahead, able, busy } => {
                let busy = if *busy {
                    format!(": {}", all_busy(*able))
                } else {
                    String::new()
                };
                return (
                    format!("waits behind {}{busy}", count(*ahead, "other")),
                    None,
                );
            }
            Self::Next { able, busy: true } => {
                return (format!("is next: {}", all_busy(*able)), None);
            }
            Self::Next { busy: false, .. } => {
                return ("is next: a worker is about to take it".into(), None);
            }
        };
        (text, Some(hint))
    }
}

/// How many slots are in use.
pub fn busy_slots(entry: &WorkerEntry) -> u32 {
    // `load` is a multiple of 1 / concurrency, so rounding restores the number.
    (entry.load * f64::from(entry.info.concurrency)).round() as u32
}

/// Describes a worker. `entry` is its registration, if it is alive.
pub fn describe_worker(task: &TaskView, entry: Option<&WorkerEntry>) -> String {
    match entry {
        Some(entry) => {
            let slots = count(entry.info.concurrency.into(), "slot");
            format!(
                "is a worker, alive and {}, with {} of {slots} busy",
                entry.status.as_str(),
                busy_slots(entry)
            )
        }
        None if task.state.is_terminal() => format!("is a worker that is gone, {}", task.state),
        None => "is a worker that is gone, without a final state".into(),
    }
}

/// Suggests what to do with a worker.
pub fn advise_on_worker(tid: Tid, entry: Option<&WorkerEntry>) -> String {
    match entry.map(|entry| entry.status) {
        Some(WorkerStatus::Paused) => {
            format!(
                "resume it with 'raddle task resume {tid}', or stop it with 'raddle worker stop {tid}'"
            )
        }
        Some(WorkerStatus::Draining) => {
            format!(
                "it exits when its tasks are done; 'raddle worker stop --kill {tid}' ends it now"
            )
        }
        Some(_) => format!(
            "'raddle task tree {tid}' shows what it runs, 'raddle worker stop {tid}' stops it"
        ),
        None => {
            "start another with 'raddle worker start': it also reclaims tasks of this one".into()
        }
    }
}

fn all_busy(able: u64) -> String {
    match able {
        1 => "the one able worker is busy".into(),
        able => format!("{able} able workers, all busy"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use raddle_model::{CapSet, TaskSpec, Tid, worker::WorkerInfo};

    use super::*;

    fn task() -> TaskView {
        let mut spec = TaskSpec::command(["true"]);
        spec.requires = "gpu,docker".parse().unwrap();
        TaskView::new(
            Tid::from_u64(1_800_000_000_000_000_000).unwrap(),
            spec,
            Timestamp::UNIX_EPOCH,
        )
    }

    fn worker(caps: &str, queues: &[&str], status: WorkerStatus) -> WorkerEntry {
        let capabilities: CapSet = caps.parse().unwrap();
        WorkerEntry {
            tid: Tid::from_u64(1_900_000_000_000_000_000).unwrap(),
            info: WorkerInfo {
                capabilities,
                queues: queues.iter().map(|q| (*q).to_owned()).collect(),
                concurrency: 1,
                pid: 1,
                host: "h".into(),
                ..WorkerInfo::new("w", "resident")
            },
            status,
            load: 0.0,
            spawned_count: 0,
            started_at: Timestamp::UNIX_EPOCH,
            queue: None,
        }
    }

    fn reason(task: &TaskView, workers: &[WorkerEntry], ahead: u64) -> WaitReason {
        WaitReason::find(task, workers, ahead, Timestamp::UNIX_EPOCH, None)
    }

    #[test]
    fn names_the_first_obstacle() {
        use WorkerStatus::{Active, Draining};
        let task = task();
        let inline = worker("", &[], Active);
        assert_eq!(reason(&task, &[], 0), WaitReason::NoWorker);
        assert_eq!(reason(&task, &[inline], 0), WaitReason::NoWorker);
        let elsewhere = worker("gpu,docker", &["other"], Active);
        let queue = "default".to_owned();
        assert_eq!(
            reason(&task, std::slice::from_ref(&elsewhere), 0),
            WaitReason::NoWorkerForQueue { queue }
        );
        let workers = [
            elsewhere,
            worker("", &["default"], Active),
            worker("gpu", &["default"], Active),
        ];
        assert_eq!(
            reason(&task, &workers, 0),
            WaitReason::MissingCapabilities {
                missing: vec!["docker".into()]
            }
        );
        let leaving = [worker("gpu,docker", &["default"], Draining)];
        assert_eq!(
            reason(&task, &leaving, 3),
            WaitReason::WorkersNotTaking {
                statuses: vec![Draining]
            }
        );
        let able = [worker("gpu,docker", &["default"], Active)];
        assert_eq!(
            reason(&task, &able, 3),
            WaitReason::Behind {
                ahead: 3,
                able: 1,
                busy: false
            }
        );
        assert_eq!(
            reason(&task, &able, 0),
            WaitReason::Next {
                able: 1,
                busy: false
            }
        );
    }

    #[test]
    fn counts_able_workers_that_are_busy() {
        use WorkerStatus::{Active, Draining};
        let task = task();
        let busy = |caps| WorkerEntry {
            load: 1.0,
            ..worker(caps, &["default"], Active)
        };
        let workers = [
            busy("gpu,docker"),
            busy("gpu,docker"),
            worker("gpu", &["default"], Active),
            worker("gpu,docker", &["default"], Draining),
        ];
        let text =
            |workers: &[WorkerEntry], ahead| reason(&task, workers, ahead).text(&task, None).0;
        assert_eq!(
            text(&workers, 3),
            "waits behind 3 others: 2 able workers, all busy"
        );
        assert_eq!(text(&workers, 0), "is next: 2 able workers, all busy");
        assert_eq!(
            text(&workers[1..], 1),
            "waits behind 1 other: the one able worker is busy"
        );
        let idle = worker("gpu,docker", &["default"], Active);
        assert_eq!(
            text(&[busy("gpu,docker"), idle], 3),
            "waits behind 3 others"
        );
    }

    #[test]
    fn a_spawner_launches_workers_for_waiting_tasks() {
        use WorkerStatus::{Active, Paused};
        let task = task();
        let spawner = |status| {
            let mut entry = worker("gpu,docker", &["default"], status);
            entry.info.concurrency = 0;
            entry
        };
        let text =
            |workers: &[WorkerEntry], ahead| reason(&task, workers, ahead).text(&task, None).0;
        assert_eq!(
            text(&[spawner(Active)], 0),
            "is next: a spawner launches a worker for it"
        );
        let busy = WorkerEntry {
            load: 1.0,
            ..worker("gpu,docker", &["default"], Active)
        };
        assert_eq!(
            text(&[spawner(Active), busy], 2),
            "waits behind 2 others: a spawner launches workers for them"
        );
        let idle = worker("gpu,docker", &["default"], Active);
        assert_eq!(
            text(&[spawner(Active), idle], 0),
            "is next: a worker is about to take it"
        );
        assert_eq!(
            reason(&task, &[spawner(Paused)], 0),
            WaitReason::WorkersNotTaking {
                statuses: vec![Paused]
            }
        );
        let stuck = spawner(WorkerStatus::BackingOff);
        let not_launched = WaitReason::NotLaunched {
            spawners: vec![stuck.tid],
        };
        assert_eq!(reason(&task, std::slice::from_ref(&stuck), 0), not_launched);
        assert_eq!(
            reason(&task, &[stuck, spawner(Active)], 0),
            WaitReason::Launched { ahead: 0 },
            "the other spawner can"
        );
    }

    #[test]
    fn names_a_missing_image_whether_or_not_workers_are_alive() {
        let mut task = task();
        task.spec.isolation = Some(raddle_model::spec::Isolation::Docker);
        let able = worker("gpu,docker", &["default"], WorkerStatus::Active);
        for workers in [&[][..], std::slice::from_ref(&able)] {
            let reason = reason(&task, workers, 0);
            assert_eq!(reason, WaitReason::NoTaskImage);
            let (text, hint) = reason.text(&task, None);
            assert!(
                text.contains("no live worker has an image")
                    && hint.unwrap().contains("--task-image")
            );
        }
        task.spec.isolation = Some(raddle_model::spec::Isolation::Sandbox);
        assert_eq!(reason(&task, &[], 0), WaitReason::NoWorker);
        task.spec.isolation = Some(raddle_model::spec::Isolation::Docker);
        let given = worker("gpu,docker,@docker", &["default"], WorkerStatus::Active);
        assert_eq!(
            reason(&task, &[given], 0),
            WaitReason::Next {
                able: 1,
                busy: false
            }
        );
    }

    #[test]
    fn a_request_waits_for_a_manager() {
        let mut task = task();
        task.spec = TaskSpec {
            queue: "raddle.spawn.requests".into(),
            ..TaskSpec::new(raddle_model::Target::Request("{}".into()))
        };
        let alone = reason(&task, &[], 0);
        let (text, hint) = alone.text(&task, None);
        assert_eq!(
            (&*text, &*hint.unwrap()),
            (
                "waits: no worker-prime is alive",
                "start it with 'raddle manager start'"
            )
        );
        let mut prime = worker("@request", &["raddle.spawn.requests"], WorkerStatus::Active);
        (prime.info.kind, prime.info.concurrency) = ("prime".into(), 0);
        assert_eq!(
            reason(&task, std::slice::from_ref(&prime), 0),
            WaitReason::Launched { ahead: 0 }
        );
        task.spec = TaskSpec {
            queue: "raddle.spawn.waiting".into(),
            requires: "awk".parse().unwrap(),
            ..task.spec
        };
        let patient = reason(&task, &[prime], 0);
        let (text, hint) = patient.text(&task, None);
        assert_eq!(text, "waits: no manager that is alive lists awk");
        assert!(hint.unwrap().contains("raddle worker spawn"));
    }

    #[test]
    fn distinguishes_workers_from_tasks() {
        let entry = worker("", &["default"], WorkerStatus::Active);
        let spec = TaskSpec::new(raddle_model::Target::Service("worker".into()));
        let task = TaskView {
            tid: entry.tid,
            spec,
            state: TaskState::Running,
            ..task()
        };
        let alive = reason(&task, std::slice::from_ref(&entry), 0);
        assert_eq!(
            alive,
            WaitReason::Worker {
                status: WorkerStatus::Active,
                busy: 0,
                slots: 1
            }
        );
        assert_eq!(
            alive.text(&task, Some(&entry)).0,
            "is a worker, alive and active, with 0 of 1 slot busy"
        );
        assert_eq!(reason(&task, &[], 0), WaitReason::WorkerGone);
    }

    #[test]
    fn states_of_the_task_come_before_missing_workers() {
        let until = Timestamp::UNIX_EPOCH + Duration::from_secs(60);
        let delayed = TaskView {
            run_at: Some(until),
            ..task()
        };
        assert_eq!(
            reason(&delayed, &[], 0),
            WaitReason::Delayed {
                until,
                because: None
            }
        );
        let paused = TaskView {
            paused: true,
            ..delayed
        };
        assert_eq!(reason(&paused, &[], 0), WaitReason::Paused);
        let running = TaskView {
            state: TaskState::Running,
            ..task()
        };
        assert!(matches!(
            reason(&running, &[], 0),
            WaitReason::Running {
                worker_alive: false,
                ..
            }
        ));
        let over = TaskView {
            state: TaskState::Failed,
            paused: true,
            ..task()
        };
        assert_eq!(reason(&over, &[], 0), WaitReason::Finished);
    }
}
