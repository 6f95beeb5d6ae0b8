//! The plan of a campaign: batches to submit and faults to inject, with their times and targets. A
//! pure function of the seed.

use std::time::Duration;

use crate::{
    options::{Engine, Options},
    rng::Rng,
};

/// The behaviour of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    /// Ends at once.
    Quick,
    /// Takes up to a second and a half.
    Short,
    /// Takes longer than a lease.
    Slow,
    /// Writes some output.
    SmallOutput,
    /// Writes more output than the broker keeps in a row.
    LargeOutput,
    /// Fails in its first attempts.
    Flaky,
    /// Always fails.
    AlwaysFails,
    /// Leaves a detached process behind.
    LeavesOrphan,
    /// Chains one task, and runs on for a while.
    Chains,
    /// Was chained. Ends at once.
    Chained,
    /// Blocks the loop of its host for longer than that may be.
    Blocks,
    /// Crashes the process that it runs in.
    Crashes,
}

impl Class {
    pub(crate) const ALL: [Self; 12] = [
        Self::Quick,
        Self::Short,
        Self::Slow,
        Self::SmallOutput,
        Self::LargeOutput,
        Self::Flaky,
        Self::AlwaysFails,
        Self::LeavesOrphan,
        Self::Chains,
        Self::Chained,
        Self::Blocks,
        Self::Crashes,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Short => "short",
            Self::Slow => "slow",
            Self::SmallOutput => "small-output",
            Self::LargeOutput => "large-output",
            Self::Flaky => "flaky",
            Self::AlwaysFails => "always-fails",
            Self::LeavesOrphan => "orphan",
            Self::Chains => "chains",
            Self::Chained => "chained",
            Self::Blocks => "blocks",
            Self::Crashes => "crashes",
        }
    }

    /// Whether tasks of this class fail in each attempt.
    pub(crate) fn always_fails(self) -> bool {
        matches!(self, Self::AlwaysFails | Self::Crashes)
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }
}

/// The work of one submitter process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) at: Duration,
    pub(crate) method: SubmitMethod,
    /// How long after its start the submitter is killed.
    pub(crate) killed_after: Option<Duration>,
}

impl Batch {
    /// Whether the submitter is expected to end and to print the ids of its tasks. For others the
    /// broker is queried.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.killed_after.is_none() && !matches!(self.method, SubmitMethod::Inline(_))
    }
}

/// How tasks are submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SubmitMethod {
    /// `submit --each-line`.
    Lines(Vec<Class>),
    /// `submit --array`, of quick tasks.
    Array(u32),
    /// `submit --file`, with a list of specs.
    File(Vec<Class>),
    /// `submit --file`, with specs of a routine that workers with hosts run.
    Hosted(Vec<Class>),
    /// `run` on a queue that no worker serves, so that `run` executes the task itself.
    Inline(Class),
    /// `queue write raddle.spawn.requests`: the root manager is asked for these specs.
    SpawnSpecs(Vec<Class>),
    /// The same, for tasks that the registry of a spawned manager lists.
    RegistryTasks(Vec<Class>),
    /// `queue write` to the source of a group: each message becomes a task.
    Messages(Vec<Class>),
}

impl SubmitMethod {
    /// The number of tasks.
    pub(crate) fn tasks(&self) -> usize {
        match self {
            Self::Lines(classes)
            | Self::File(classes)
            | Self::Hosted(classes)
            | Self::SpawnSpecs(classes)
            | Self::RegistryTasks(classes)
            | Self::Messages(classes) => classes.len(),
            Self::Array(count) => *count as usize,
            Self::Inline(_) => 1,
        }
    }
}

/// A fault at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlannedFault {
    pub(crate) at: Duration,
    /// The target by index: a process of the fleet, and one of its runners or group processes.
    pub(crate) worker: usize,
    pub(crate) slot: usize,
    pub(crate) kind: FaultKind,
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    KillWorker,
    KillRunner,
    /// A worker and one of its runners at once, so that neither can clean up after the other.
    KillBoth,
    /// The command below a runner.
    KillCommand,
    /// A host of a worker.
    KillHost,
    /// `SIGSTOP` to a host, for about as long as its loop may be blocked.
    StopHost(Duration),
    /// A spawned manager or a group manager.
    KillManager,
    /// A process of a group.
    KillGroupProcess,
    /// `SIGSTOP` for longer than the lease, then `SIGCONT`.
    StopWorker(Duration),
    StopRunner(Duration),
    StopBoth(Duration),
    /// `SIGTERM`: the worker finishes its tasks and exits.
    Drain,
    /// `SIGTERM` twice: the worker gives its tasks back and exits.
    StopNow,
    /// Kills the server of the engine, which is restarted after this time.
    KillServer(Duration),
    /// Disturbs the network to the server for this time.
    Net(NetworkFault, Duration),
    /// Kills the server, which loses the writes of the last `lost`.
    LoseLastWrites {
        lost: Duration,
        down: Duration,
    },
    /// A replica that lags by `lag` replaces the server.
    Failover {
        lag: Duration,
    },
}

#[cfg(test)]
impl FaultKind {
    /// Whether it is a kill with -9.
    pub(crate) fn is_kill(self) -> bool {
        matches!(
            self,
            Self::KillWorker
                | Self::KillRunner
                | Self::KillBoth
                | Self::KillCommand
                | Self::KillHost
                | Self::KillManager
                | Self::KillGroupProcess
                | Self::KillServer(_)
        )
    }
}

/// A fault of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NetworkFault {
    /// Every reply is delayed.
    Latency(Duration),
    /// Connections are reset, open and new ones.
    Reset,
    /// Connections are accepted and never answered.
    HalfOpen,
    /// The request reaches the server, and the connection is cut before the reply.
    CutReply,
}

/// The whole plan, sorted by time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) batches: Vec<Batch>,
    pub(crate) planned_faults: Vec<PlannedFault>,
}

const SECOND: u64 = 1000;
/// Longer than a lease (3 s) and the margin before a reclaim (1 s).
const STOP_MILLIS: std::ops::Range<u64> = 3_500..6_500;
/// Around the time after which a blocked host is replaced.
const STOP_HOST_MILLIS: std::ops::Range<u64> = 500..5_000;
/// Submission ends before fault injection does, so that the last tasks are hit too.
const SUBMIT_SHARE: f64 = 0.85;
/// One in so many kills hits a submitter.
const SUBMITTER_SHARE: u32 = 6;
/// The most requests or messages that one process writes: each is an argument of its command line.
const MAX_REQUESTS: usize = 200;
/// The most tasks per batch for managers and groups, which have few processes.
const MAX_SMALL_BATCH: usize = 40;

impl Plan {
    pub(crate) fn new(options: &Options) -> Self {
        let mut rng = Rng::new(options.seed);
        let killed_submitters = options.kills / SUBMITTER_SHARE;
        let mut batches = batches(&mut rng, options, killed_submitters);
        batches.sort_by_key(|batch| batch.at);
        let mut planned_faults =
            planned_faults(&mut rng, options, options.kills - killed_submitters);
        planned_faults.sort_by_key(|planned| planned.at);
        Self {
            batches,
            planned_faults,
        }
    }
}

/// Batches for all tasks, and additional batches whose submitters are killed.
fn batches(rng: &mut Rng, options: &Options, killed_submitters: u32) -> Vec<Batch> {
    let duration = options.duration.mul_f64(SUBMIT_SHARE);
    let mut left = options.tasks as usize;
    let mut batches = Vec::new();
    // Every plan has some batches for managers and groups, enough that a server that is down cannot
    // refuse all.
    let [messages, registry_tasks] = [options.groups > 0, options.managers > 0];
    let all = [
        (options.hosts > 0).then_some(SubmitKind::Hosted),
        messages.then_some(SubmitKind::Messages),
        registry_tasks.then_some(SubmitKind::RegistryTasks),
    ];
    let mut always = [all; 3].into_iter().flatten().flatten();
    while left > 0 {
        let method = match always.next() {
            Some(form) => form.build(rng, (MAX_SMALL_BATCH / 2).min(left)),
            None => method(rng, left, options),
        };
        left -= method.tasks();
        batches.push(Batch {
            at: rng.moment(duration),
            method,
            killed_after: None,
        });
    }
    for _ in 0..killed_submitters {
        // Every third killed submitter is a `run`, which is submitter, worker and reader at once.
        let (method, life) = if rng.within(0..3) == 0 {
            let class = rng.pick(&[
                (4, Class::Short),
                (2, Class::LeavesOrphan),
                (1, Class::Slow),
            ]);
            (SubmitMethod::Inline(class), rng.millis(0..1_500))
        } else {
            let size = if rng.within(0..3) == 0 {
                rng.within(1_001..2_500)
            } else {
                rng.within(1..300)
            } as usize;
            (SubmitMethod::Lines(classes(rng, size)), rng.millis(0..60))
        };
        batches.push(Batch {
            at: rng.moment(duration),
            method,
            killed_after: Some(life),
        });
    }
    batches
}

/// The choice among [`SubmitMethod`]s.
#[derive(Clone, Copy)]
enum SubmitKind {
    Lines,
    Array,
    File,
    Inline,
    SpawnSpecs,
    RegistryTasks,
    Messages,
    Hosted,
}

impl SubmitKind {
    /// Makes a batch of this size, or of the maximum of this kind.
    fn build(self, rng: &mut Rng, size: usize) -> SubmitMethod {
        match self {
            Self::Lines => SubmitMethod::Lines(classes(rng, size)),
            Self::Array => SubmitMethod::Array(size as u32),
            Self::SpawnSpecs => SubmitMethod::SpawnSpecs(classes(rng, size.min(MAX_REQUESTS))),
            Self::RegistryTasks => {
                // These tasks get one attempt, so classes that fail by themselves are left out.
                let weights = [
                    (6, Class::Quick),
                    (3, Class::Short),
                    (1, Class::SmallOutput),
                    (1, Class::LeavesOrphan),
                ];
                SubmitMethod::RegistryTasks(
                    (0..size.min(MAX_SMALL_BATCH))
                        .map(|_| rng.pick(&weights))
                        .collect(),
                )
            }
            Self::Hosted => {
                let weights = [
                    (600, Class::Quick),
                    (250, Class::Short),
                    (20, Class::Slow),
                    (60, Class::Flaky),
                    (4, Class::Blocks),
                    (4, Class::Crashes),
                ];
                SubmitMethod::Hosted((0..size).map(|_| rng.pick(&weights)).collect())
            }
            Self::Messages => SubmitMethod::Messages(classes(rng, size.min(MAX_SMALL_BATCH))),
            Self::File => {
                let mut classes = classes(rng, size);
                classes
                    .iter_mut()
                    .filter(|_| rng.within(0..10) == 0)
                    .for_each(|class| *class = Class::AlwaysFails);
                SubmitMethod::File(classes)
            }
            Self::Inline => SubmitMethod::Inline(rng.pick(&[
                (5, Class::Quick),
                (3, Class::Short),
                (1, Class::LeavesOrphan),
                (1, Class::Chains),
            ])),
        }
    }
}

fn method(rng: &mut Rng, left: usize, options: &Options) -> SubmitMethod {
    // Some batches exceed 1000 tasks, where a submit takes several transactions. Small campaigns
    // use small batches to have many.
    let max_size = u64::from(options.tasks / 40).clamp(20, 400);
    let size = match rng.within(0..20) {
        0 => rng.within(1_001..2_200),
        1..8 => rng.within(1..20),
        _ => rng.within(max_size / 20..max_size),
    };
    let [spawn_specs, registry_tasks] = if options.managers > 0 { [4, 3] } else { [0, 0] };
    let messages = if options.groups > 0 { 5 } else { 0 };
    let kinds = [
        (6, SubmitKind::Lines),
        (5, SubmitKind::Array),
        (3, SubmitKind::File),
        (2, SubmitKind::Inline),
        (spawn_specs, SubmitKind::SpawnSpecs),
        (registry_tasks, SubmitKind::RegistryTasks),
        (messages, SubmitKind::Messages),
        (if options.hosts > 0 { 6 } else { 0 }, SubmitKind::Hosted),
    ];
    rng.pick(&kinds).build(rng, (size as usize).min(left))
}

fn classes(rng: &mut Rng, count: usize) -> Vec<Class> {
    let weights = [
        (740, Class::Quick),
        (80, Class::Short),
        (4, Class::Slow),
        (50, Class::SmallOutput),
        (6, Class::LargeOutput),
        (50, Class::Flaky),
        (30, Class::LeavesOrphan),
        (40, Class::Chains),
    ];
    (0..count).map(|_| rng.pick(&weights)).collect()
}

fn planned_faults(rng: &mut Rng, options: &Options, kills: u32) -> Vec<PlannedFault> {
    #[derive(Clone, Copy)]
    enum KillKind {
        Worker,
        Runner,
        Both,
        Command,
        Host,
        Manager,
        Member,
        Server,
    }
    #[derive(Clone, Copy)]
    enum NonKillKind {
        StopWorker,
        StopRunner,
        StopBoth,
        StopHost,
        Drain,
        StopNow,
        Net,
    }
    let is_redis = options.engine == Engine::Redis;
    let kill_kinds = [
        (60, KillKind::Worker),
        (20, KillKind::Runner),
        (12, KillKind::Both),
        (12, KillKind::Command),
        (if options.hosts > 0 { 30 } else { 0 }, KillKind::Host),
        (if options.managers > 0 { 10 } else { 0 }, KillKind::Manager),
        (if options.groups > 0 { 10 } else { 0 }, KillKind::Member),
        (if is_redis { 8 } else { 0 }, KillKind::Server),
    ];
    let non_kill_kinds = [
        (30, NonKillKind::StopWorker),
        (10, NonKillKind::StopRunner),
        (10, NonKillKind::StopBoth),
        (
            if options.hosts > 0 { 15 } else { 0 },
            NonKillKind::StopHost,
        ),
        (15, NonKillKind::Drain),
        (15, NonKillKind::StopNow),
        (if is_redis { 60 } else { 0 }, NonKillKind::Net),
    ];
    let killed = (0..kills).map(|_| true);
    // One other fault for every three kills.
    let rest = (0..kills / 3).map(|_| false);
    let at = |rng: &mut Rng, kind| {
        let worker = rng.within(0..options.process_count() as u64) as usize;
        let slot = rng.within(0..SECOND) as usize;
        PlannedFault {
            at: rng.moment(options.duration),
            worker,
            slot,
            kind,
        }
    };
    let mut planned_faults: Vec<PlannedFault> = killed
        .chain(rest)
        .map(|is_kill| {
            let kind = if is_kill {
                match rng.pick(&kill_kinds) {
                    KillKind::Worker => FaultKind::KillWorker,
                    KillKind::Runner => FaultKind::KillRunner,
                    KillKind::Both => FaultKind::KillBoth,
                    KillKind::Command => FaultKind::KillCommand,
                    KillKind::Host => FaultKind::KillHost,
                    KillKind::Manager => FaultKind::KillManager,
                    KillKind::Member => FaultKind::KillGroupProcess,
                    KillKind::Server => FaultKind::KillServer(rng.millis(0..2 * SECOND)),
                }
            } else {
                match rng.pick(&non_kill_kinds) {
                    NonKillKind::StopWorker => FaultKind::StopWorker(rng.millis(STOP_MILLIS)),
                    NonKillKind::StopRunner => FaultKind::StopRunner(rng.millis(STOP_MILLIS)),
                    NonKillKind::StopBoth => FaultKind::StopBoth(rng.millis(STOP_MILLIS)),
                    NonKillKind::StopHost => FaultKind::StopHost(rng.millis(STOP_HOST_MILLIS)),
                    NonKillKind::Drain => FaultKind::Drain,
                    NonKillKind::StopNow => FaultKind::StopNow,
                    NonKillKind::Net => {
                        FaultKind::Net(pick_network_fault(rng), rng.millis(200..3 * SECOND))
                    }
                }
            };
            at(rng, kind)
        })
        .collect();
    for loss in 0..options.losses {
        let (lost, down) = (rng.millis(50..SECOND), rng.millis(0..SECOND));
        let kind = if loss % 2 == 0 {
            FaultKind::LoseLastWrites { lost, down }
        } else {
            FaultKind::Failover { lag: lost }
        };
        planned_faults.push(at(rng, kind));
    }
    planned_faults
}

fn pick_network_fault(rng: &mut Rng) -> NetworkFault {
    let late = rng.millis(20..600);
    rng.pick(&[
        (2, NetworkFault::Latency(late)),
        (3, NetworkFault::Reset),
        (2, NetworkFault::HalfOpen),
        (4, NetworkFault::CutReply),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(seed: u64, engine: Engine) -> Options {
        let duration = Duration::from_secs(60);
        let (workers, managers, groups) = (3, 1, 1);
        let (losses, keep, raddle) = (0, false, None);
        Options {
            engine,
            tasks: 5_000,
            seed,
            duration,
            kills: 60,
            losses,
            workers,
            managers,
            groups,
            hosts: 1,
            keep,
            raddle,
        }
    }

    #[test]
    fn plans_both_ways_of_losing_writes() {
        let plan = Plan::new(&Options {
            losses: 4,
            ..options(1, Engine::Redis)
        });
        let count = |is_it: fn(FaultKind) -> bool| {
            plan.planned_faults
                .iter()
                .filter(|planned| is_it(planned.kind))
                .count()
        };
        assert_eq!(
            count(|kind| matches!(kind, FaultKind::LoseLastWrites { .. })),
            2
        );
        assert_eq!(count(|kind| matches!(kind, FaultKind::Failover { .. })), 2);
    }

    #[test]
    fn a_seed_repeats_its_plan() {
        let plan = |seed| Plan::new(&options(seed, Engine::Redis));
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
    }

    #[test]
    fn plans_the_requested_numbers_of_tasks_and_kills() {
        for seed in 0..20 {
            let plan = Plan::new(&options(seed, Engine::Sqlite));
            let others = plan
                .batches
                .iter()
                .filter(|batch| batch.killed_after.is_none());
            assert_eq!(
                others.map(|batch| batch.method.tasks()).sum::<usize>(),
                5_000
            );
            let killed_submitters = plan
                .batches
                .iter()
                .filter(|batch| batch.killed_after.is_some())
                .count();
            assert_eq!(
                killed_submitters
                    + plan
                        .planned_faults
                        .iter()
                        .filter(|planned| planned.kind.is_kill())
                        .count(),
                60
            );
            assert!(
                plan.planned_faults
                    .iter()
                    .all(|planned| planned.worker < 6 && planned.at <= Duration::from_secs(60))
            );
            assert!(plan.planned_faults.is_sorted_by_key(|planned| planned.at));
        }
    }

    #[test]
    fn plans_batches_and_faults_for_managers_and_groups_only_where_they_exist() {
        let has_batch = |managers, groups, is_it: fn(&SubmitMethod) -> bool| {
            let options = Options {
                managers,
                groups,
                ..options(3, Engine::Sqlite)
            };
            Plan::new(&options)
                .batches
                .iter()
                .any(|batch| is_it(&batch.method))
        };
        let (specs, registry_tasks) = (
            |method: &SubmitMethod| matches!(method, SubmitMethod::SpawnSpecs(_)),
            |method: &SubmitMethod| matches!(method, SubmitMethod::RegistryTasks(_)),
        );
        assert!(has_batch(1, 0, specs) && !has_batch(0, 1, specs));
        assert!(has_batch(1, 0, registry_tasks) && !has_batch(0, 1, registry_tasks));
        let messages = |method: &SubmitMethod| matches!(method, SubmitMethod::Messages(_));
        assert!(has_batch(0, 1, messages) && !has_batch(1, 0, messages));
        let hosted = |hosts| {
            let options = Options {
                hosts,
                ..options(3, Engine::Sqlite)
            };
            let plan = Plan::new(&options);
            let is_hosted = |batch: &Batch| matches!(batch.method, SubmitMethod::Hosted(_));
            let is_kill = |planned: &PlannedFault| planned.kind == FaultKind::KillHost;
            (
                plan.batches.iter().any(is_hosted),
                plan.planned_faults.iter().any(is_kill),
            )
        };
        assert_eq!((hosted(1), hosted(0)), ((true, true), (false, false)));
        let has_fault = |managers, groups, kind| {
            let options = Options {
                managers,
                groups,
                ..options(3, Engine::Sqlite)
            };
            Plan::new(&options)
                .planned_faults
                .iter()
                .any(|planned| planned.kind == kind)
        };
        assert!(
            has_fault(1, 0, FaultKind::KillManager) && !has_fault(0, 1, FaultKind::KillManager)
        );
        assert!(
            has_fault(0, 1, FaultKind::KillGroupProcess)
                && !has_fault(1, 0, FaultKind::KillGroupProcess)
        );
    }

    #[test]
    fn plans_server_faults_for_redis_only() {
        let hits_server = |planned: &PlannedFault| {
            matches!(planned.kind, FaultKind::KillServer(_) | FaultKind::Net(..))
        };
        assert!(
            !Plan::new(&options(1, Engine::Sqlite))
                .planned_faults
                .iter()
                .any(hits_server)
        );
        assert!(
            Plan::new(&options(1, Engine::Redis))
                .planned_faults
                .iter()
                .any(hits_server)
        );
    }

    #[test]
    fn finds_classes_by_name() {
        assert!(
            Class::ALL
                .into_iter()
                .all(|class| Class::from_name(class.name()) == Some(class))
        );
        assert_eq!(Class::from_name("unknown"), None);
    }
}
