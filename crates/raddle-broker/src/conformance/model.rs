//! Any sequence of operations, against a model that is too simple to be wrong.

use std::collections::BTreeMap;

use proptest::{prelude::*, sample::Index, strategy::ValueTree, test_runner::TestRunner};
use raddle_model::{
    ControlCommand, ControlMessage, ExitStatus, HumanDuration, TaskEventKind, TaskSpec, TaskState,
    TaskView, Tid, spec::ReservedPolicy,
};

use super::{Fixture, Handle, support::*};
use crate::{
    AttemptId, AttemptStarted, ChainRequest, ClaimRequest, CompletionOutcome, Error, QueueSummary,
    Result, TaskFilter,
};

/// How many sequences are tried.
const SEQUENCES: u32 = 12;
const LENGTH: usize = 60;
/// The queues of the tasks.
const QUEUES: [&str; 2] = ["default", "mail"];

/// Something that can be done. An index picks one of the tasks there are.
#[derive(Clone, Debug)]
enum Step {
    Submit {
        priority: u8,
        queue: &'static str,
        attempts: u32,
        on_stop: ReservedPolicy,
    },
    Claim {
        max: u32,
    },
    Start(Index),
    Chain(Index, u8),
    Finish(Index, ExitStatus),
    Release(Index),
    Tell(Index, ControlCommand),
    Resubmit(Index),
    /// The worker leaves and another comes.
    Change,
    Reclaim,
}

/// The state in which the model expects a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Waits { held: bool },
    Active { attempt: u32, running: bool },
    Over(TaskState),
}

struct Model {
    tasks: BTreeMap<Tid, Known>,
    attempts: BTreeMap<Tid, u32>,
    /// How many tasks the present attempts have chained.
    chained: BTreeMap<Tid, u64>,
    stale: u64,
    worker: Tid,
}

/// Terminal exactly once, no task lost, counts that add up.
pub async fn any_sequence_of_operations_keeps_the_promises(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let mut runner = TestRunner::new(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let sequences = prop::collection::vec(step(), 1..LENGTH);
    for _ in 0..SEQUENCES {
        let sequence = sequences
            .new_tree(&mut runner)
            .expect("steps are made without rejecting any")
            .current();
        let told = format!("{sequence:?}");
        let outcome = tokio::spawn(run(broker.clone(), sequence)).await;
        outcome.unwrap_or_else(|panic| panic!("{panic}\nin the sequence {told}"))?;
    }
    Ok(())
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<Index>;
    let exits = prop_oneof![
        3 => Just(success()),
        3 => Just(failure()),
        1 => Just(ExitStatus::Timeout),
        1 => Just(ExitStatus::Cancelled),
        1 => Just(ExitStatus::Killed),
        2 => Just(ExitStatus::WorkerLost { message: "runner gone".into() }),
    ];
    let words = prop::sample::select(vec![
        ControlCommand::Stop,
        ControlCommand::Kill,
        ControlCommand::Pause,
        ControlCommand::Resume,
        ControlCommand::Ping,
    ]);
    let on_stop = prop::sample::select(vec![ReservedPolicy::Clear, ReservedPolicy::Requeue]);
    prop_oneof![
        4 => (0..10u8, prop::sample::select(&QUEUES[..]), 1..4u32, on_stop)
            .prop_map(|(priority, queue, attempts, on_stop)| Step::Submit { priority, queue, attempts, on_stop }),
        5 => (1..4u32).prop_map(|max| Step::Claim { max }),
        3 => index().prop_map(Step::Start),
        3 => (index(), 1..4u8).prop_map(|(index, tasks)| Step::Chain(index, tasks)),
        5 => (index(), exits).prop_map(|(index, exit)| Step::Finish(index, exit)),
        2 => index().prop_map(Step::Release),
        4 => (index(), words).prop_map(|(index, word)| Step::Tell(index, word)),
        1 => index().prop_map(Step::Resubmit),
        1 => Just(Step::Change),
        1 => Just(Step::Reclaim),
    ]
}

/// Runs one sequence, and then everything that is left to its end.
async fn run(broker: Handle, sequence: Vec<Step>) -> Result<()> {
    let (stale, begun) = (
        broker.summary().await?.stale_writes,
        broker.last_event().await?,
    );
    let (tasks, attempts, chained) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let mut model = Model {
        tasks,
        attempts,
        chained,
        stale,
        worker: worker(&broker).await?,
    };
    for step in sequence {
        model.take(&broker, step).await?;
        model.compare(&broker).await?;
    }
    model.wind_up(&broker).await?;
    model.compare(&broker).await?;
    for (tid, known) in &model.tasks {
        assert!(matches!(known, Known::Over(_)), "{tid} is lost: {known:?}");
        let terminal = kinds(&broker, *tid)
            .await?
            .into_iter()
            .filter(|kind| kind.is_terminal())
            .count();
        assert_eq!(terminal, 1, "{tid} has one end");
    }
    broker.deregister(model.worker, None).await?;
    every_step_was_lawful(&broker, begun).await
}

/// As the log tells it: each task and each worker has begun with `created`, all that came after is
/// in the table of legal steps, and they stand where that leads.
async fn every_step_was_lawful(broker: &Handle, begun: u64) -> Result<()> {
    let mut stands: BTreeMap<Tid, (TaskState, u32)> = BTreeMap::new();
    let mut after = begun;
    loop {
        let events = broker.events(Some(after), None, 1000, AT_ONCE).await?;
        let Some(last) = events.last() else { break };
        after = last.id.as_u64();
        for event in events {
            let Some(next) = state_after(event.event) else {
                continue;
            };
            let before = stands.insert(event.tid, (next, event.attempt));
            let Some((state, attempt)) = before else {
                assert_eq!(
                    (next, event.attempt),
                    (TaskState::Created, 0),
                    "{} begins with {event:?}",
                    event.tid
                );
                continue;
            };
            // A worker is a task without a claim: it runs as soon as it is registered.
            let enters = event.worker == Some(event.tid)
                && (state, next) == (TaskState::Created, TaskState::Running);
            assert!(
                state.may_become(next) || enters,
                "{} went from {state} to {next}: {event:?}",
                event.tid
            );
            let begins = next == TaskState::Spawning || enters;
            assert_eq!(
                event.attempt,
                attempt + u32::from(begins),
                "{} was {state} before {event:?}",
                event.tid
            );
        }
    }
    for (tid, (state, _)) in stands {
        assert_eq!(
            view(broker, tid).await?.state,
            state,
            "{tid} stands elsewhere than the log says"
        );
    }
    Ok(())
}

/// Where a task stands after an event, if that was a step.
fn state_after(event: TaskEventKind) -> Option<TaskState> {
    use TaskEventKind::*;
    match event {
        // Over with this attempt, and not with the task.
        Retrying | Released | Reclaimed => Some(TaskState::Created),
        Paused | Resumed | StaleWrite | ControlIgnored | OutputLost => None,
        step => Some(
            TaskState::ALL
                .into_iter()
                .find(|state| TaskEventKind::from(*state) == step)
                .expect("an event that is known"),
        ),
    }
}

impl Model {
    async fn take(&mut self, broker: &Handle, step: Step) -> Result<()> {
        match step {
            Step::Submit {
                priority,
                queue,
                attempts,
                on_stop,
            } => {
                let tid = submit(
                    broker,
                    TaskSpec {
                        priority,
                        queue: queue.into(),
                        on_stop,
                        ..retrying(attempts, HumanDuration::default())
                    },
                )
                .await?;
                self.add(tid);
            }
            Step::Claim { max } => {
                let ready = self
                    .tasks
                    .values()
                    .filter(|known| **known == Known::Waits { held: false })
                    .count();
                let claims = broker
                    .claim(ClaimRequest {
                        max,
                        queues: QUEUES.map(str::to_owned).into(),
                        ..request(self.worker)
                    })
                    .await?;
                assert_eq!(
                    claims.len(),
                    ready.min(max as usize),
                    "all that is ready is given"
                );
                for attempt_id in claims.into_iter().map(|claim| claim.attempt_id) {
                    let attempts = self.attempts.entry(attempt_id.tid).or_default();
                    *attempts += 1;
                    assert_eq!(
                        attempt_id.attempt, *attempts,
                        "attempts are counted one by one"
                    );
                    let before = self.tasks.insert(
                        attempt_id.tid,
                        Known::Active {
                            attempt: *attempts,
                            running: false,
                        },
                    );
                    assert_eq!(before, Some(Known::Waits { held: false }));
                }
            }
            Step::Start(index) => {
                let Some((attempt_id, known)) = self.pick(index) else {
                    return Ok(());
                };
                broker
                    .mark_started(vec![AttemptStarted {
                        attempt_id,
                        pid: None,
                    }])
                    .await?;
                if let Known::Active { attempt, .. } = known {
                    self.tasks.insert(
                        attempt_id.tid,
                        Known::Active {
                            attempt,
                            running: true,
                        },
                    );
                }
            }
            Step::Chain(index, tasks) => {
                let Some((attempt_id, known)) = self.pick(index) else {
                    return Ok(());
                };
                let tasks = vec![spec("chained"); usize::from(tasks)];
                let count = tasks.len() as u64;
                match (
                    broker
                        .chain(ChainRequest {
                            attempt_id,
                            tasks,
                            offset: None,
                        })
                        .await,
                    known,
                ) {
                    (Ok(all), Known::Active { .. }) => {
                        let chained = self.chained.entry(attempt_id.tid).or_default();
                        *chained += count;
                        assert_eq!(all, *chained);
                    }
                    (Err(Error::Superseded { .. }), Known::Waits { .. } | Known::Over(_)) => {
                        self.stale += 1
                    }
                    (outcome, known) => panic!("{outcome:?} for a task that is {known:?}"),
                }
            }
            Step::Finish(index, exit) => {
                let Some((attempt_id, known)) = self.pick(index) else {
                    return Ok(());
                };
                let is_success = exit == success();
                let outcome = end(broker, attempt_id, exit).await?;
                let chained = self
                    .chained
                    .get(&attempt_id.tid)
                    .copied()
                    .unwrap_or_default();
                self.judge(broker, attempt_id, known, outcome).await?;
                if is_success && outcome != CompletionOutcome::Stale {
                    self.learn_of_children(broker, attempt_id.tid, chained)
                        .await?;
                }
            }
            Step::Release(index) => {
                let Some((attempt_id, known)) = self.pick(index) else {
                    return Ok(());
                };
                let outcome = release(broker, attempt_id).await?;
                self.judge(broker, attempt_id, known, outcome).await?;
            }
            Step::Tell(index, word) => {
                let Some((attempt_id, known)) = self.pick(index) else {
                    return Ok(());
                };
                let told = broker
                    .control(attempt_id.tid, ControlMessage::new(word))
                    .await;
                match known {
                    Known::Over(state) => assert!(
                        matches!(told, Err(Error::Finished(_, s)) if s == state),
                        "{told:?}"
                    ),
                    Known::Waits { .. } => self.learn(broker, attempt_id.tid).await?,
                    Known::Active { .. } => _ = told?,
                }
            }
            Step::Resubmit(index) => {
                let Some((attempt_id, known)) = self.pick(index) else {
                    return Ok(());
                };
                match (broker.resubmit(attempt_id.tid, false).await, known) {
                    (Ok(tid), Known::Over(_)) => self.add(tid),
                    (Err(Error::Unfinished(..)), Known::Waits { .. } | Known::Active { .. }) => {}
                    (outcome, known) => panic!("{outcome:?} for a task that is {known:?}"),
                }
            }
            Step::Change => {
                broker.deregister(self.worker, None).await?;
                self.worker = worker(broker).await?;
                for tid in self.tasks.clone().into_keys() {
                    if matches!(self.tasks[&tid], Known::Active { .. }) {
                        self.learn(broker, tid).await?;
                        assert!(
                            !matches!(self.tasks[&tid], Known::Active { .. }),
                            "{tid} went back"
                        );
                        self.chained.remove(&tid);
                    }
                }
            }
            Step::Reclaim => assert!(broker.reclaim().await?.is_empty(), "everybody is alive"),
        }
        Ok(())
    }

    fn add(&mut self, tid: Tid) {
        assert!(self.tasks.keys().all(|other| *other < tid), "ids increase");
        self.tasks.insert(tid, Known::Waits { held: false });
    }

    fn pick(&self, index: Index) -> Option<(AttemptId, Known)> {
        let tids: Vec<_> = self.tasks.keys().copied().collect();
        let tid = *tids.get(index.index(tids.len().max(1)))?;
        let attempt = self.attempts.get(&tid).copied().unwrap_or_default();
        Some((
            AttemptId {
                tid,
                attempt,
                owner: self.worker,
            },
            self.tasks[&tid],
        ))
    }

    /// A verdict on an attempt must fit what was known of it.
    async fn judge(
        &mut self,
        broker: &Handle,
        attempt_id: AttemptId,
        known: Known,
        outcome: CompletionOutcome,
    ) -> Result<()> {
        let was_active = matches!(known, Known::Active { .. });
        self.chained.remove(&attempt_id.tid);
        assert_eq!(
            outcome != CompletionOutcome::Stale,
            was_active,
            "{outcome:?} for a task that is {known:?}"
        );
        match outcome {
            CompletionOutcome::Finished(state) => {
                _ = self.tasks.insert(attempt_id.tid, Known::Over(state))
            }
            CompletionOutcome::Retry(_) => {
                self.learn(broker, attempt_id.tid).await?;
                assert!(
                    matches!(self.tasks[&attempt_id.tid], Known::Waits { .. }),
                    "{:?}",
                    self.tasks[&attempt_id.tid]
                );
            }
            CompletionOutcome::Stale => self.stale += 1,
        }
        Ok(())
    }

    /// Asserts that exactly the chained tasks of a successful attempt were submitted.
    async fn learn_of_children(
        &mut self,
        broker: &Handle,
        parent: Tid,
        chained: u64,
    ) -> Result<()> {
        let mut children = broker.tasks(TaskFilter::default()).await?;
        children.retain(|task| task.parent == Some(parent));
        assert_eq!(
            children.len() as u64,
            chained,
            "{parent} is followed by what it has chained"
        );
        children.iter().rev().for_each(|child| self.add(child.tid));
        Ok(())
    }

    /// Takes over from the engine what a control word has led to. That it is lawful is checked by
    /// what follows.
    async fn learn(&mut self, broker: &Handle, tid: Tid) -> Result<()> {
        let task = view(broker, tid).await?;
        let known = match task.state {
            TaskState::Created => Known::Waits { held: task.paused },
            TaskState::Spawning | TaskState::Running => Known::Active {
                attempt: task.attempt,
                running: task.state == TaskState::Running,
            },
            state => Known::Over(state),
        };
        let before = self.tasks.insert(tid, known);
        assert!(
            !matches!(before, Some(Known::Over(_))),
            "{tid} was over already"
        );
        Ok(())
    }

    async fn compare(&self, broker: &Handle) -> Result<()> {
        for (tid, known) in &self.tasks {
            let task = view(broker, *tid).await?;
            let seen = match task.state {
                TaskState::Created => Known::Waits { held: task.paused },
                TaskState::Spawning | TaskState::Running => Known::Active {
                    attempt: task.attempt,
                    running: task.state == TaskState::Running,
                },
                state => Known::Over(state),
            };
            assert_eq!(seen, *known, "{tid}");
            assert_eq!(
                task.chained,
                self.chained.get(tid).copied().unwrap_or_default(),
                "{tid}"
            );
        }
        let summary = broker.summary().await?;
        let stored = broker.tasks(TaskFilter::default()).await?;
        let mut recount = BTreeMap::<TaskState, u64>::new();
        let mut queues = BTreeMap::<String, QueueSummary>::new();
        for task in &stored {
            *recount.entry(task.state).or_default() += 1;
            recount_in_queue(queues.entry(task.spec.queue.clone()).or_default(), task);
        }
        assert_eq!(summary.states, recount, "the counters equal a recount");
        assert_eq!(
            summary.queues, queues,
            "the counters of queues equal a recount"
        );
        assert_eq!(summary.stale_writes, self.stale);
        let count = |fits: fn(&Known) -> bool| {
            self.tasks.values().filter(|known| fits(known)).count() as u64
        };
        assert_eq!(
            summary.ready.values().sum::<u64>(),
            count(|known| *known == Known::Waits { held: false })
        );
        assert_eq!(
            summary.paused,
            count(|known| *known == Known::Waits { held: true })
        );
        assert_eq!(
            summary.dead,
            stored.iter().filter(|task| task.dead).count() as u64
        );
        Ok(())
    }

    /// Lets everything that is not over come to its end.
    async fn wind_up(&mut self, broker: &Handle) -> Result<()> {
        self.take(broker, Step::Change).await?;
        for (tid, known) in self.tasks.clone() {
            if known == (Known::Waits { held: true }) {
                broker
                    .control(tid, ControlMessage::new(ControlCommand::Resume))
                    .await?;
                self.tasks.insert(tid, Known::Waits { held: false });
            }
        }
        for claim in broker
            .claim(ClaimRequest {
                max: u32::MAX,
                queues: QUEUES.map(str::to_owned).into(),
                ..request(self.worker)
            })
            .await?
        {
            assert_eq!(
                end(broker, claim.attempt_id, success()).await?,
                CompletionOutcome::Finished(TaskState::Completed)
            );
            self.tasks
                .insert(claim.attempt_id.tid, Known::Over(TaskState::Completed));
        }
        Ok(())
    }
}

/// Counts one task.
fn recount_in_queue(queue: &mut QueueSummary, task: &TaskView) {
    match task.state {
        TaskState::Created if task.paused => queue.paused += 1,
        TaskState::Created if task.run_at.is_some() => queue.delayed += 1,
        TaskState::Created => {
            queue.ready += 1;
            let oldest = queue.oldest_ready.get_or_insert(task.created_at);
            *oldest = task.created_at.min(*oldest);
        }
        TaskState::Spawning => queue.spawning += 1,
        TaskState::Running => queue.running += 1,
        state => {
            *queue.finished.entry(state).or_default() += 1;
            queue.dead += u64::from(task.dead);
        }
    }
}
