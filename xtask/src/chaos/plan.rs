//! What will be submitted and what will be broken, when, and whose turn it is. Pure: the same seed gives the same plan.

use std::time::Duration;

use crate::{
    dice::Dice,
    options::{Engine, Options},
};

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    /// Ends at once.
    Quick,
    /// Takes up to a second and a half.
    Nap,
    /// Takes longer than a lease.
    Slow,
    /// Writes some output.
    Prints,
    /// Writes more than the broker keeps in a row.
    Pours,
    /// Fails at first.
    Flaky,
    /// Fails always.
    Broken,
    /// Leaves a process behind that detaches itself and would live on.
    Family,
    /// Chains one task, and takes a while before it ends.
    Chains,
    /// Was chained. Ends at once.
    Follows,
}

impl Class {
    pub(crate) const ALL: [Self; 10] = [
        Self::Quick,
        Self::Nap,
        Self::Slow,
        Self::Prints,
        Self::Pours,
        Self::Flaky,
        Self::Broken,
        Self::Family,
        Self::Chains,
        Self::Follows,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Nap => "nap",
            Self::Slow => "slow",
            Self::Prints => "prints",
            Self::Pours => "pours",
            Self::Flaky => "flaky",
            Self::Broken => "broken",
            Self::Family => "family",
            Self::Chains => "chains",
            Self::Follows => "follows",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }
}

/// One process that submits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) at: Duration,
    pub(crate) how: How,
    /// How long after its start it is killed.
    pub(crate) killed_after: Option<Duration>,
}

impl Batch {
    /// Whether it is meant to come to its end and to print the ids of its tasks. Of the others the broker has to be asked what it has.
    pub(crate) fn is_announced(&self) -> bool {
        self.killed_after.is_none() && !matches!(self.how, How::Inline(_))
    }
}

/// In which way tasks are submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// `submit --each-line`.
    Lines(Vec<Class>),
    /// `submit --array`, of quick ones.
    Array(u32),
    /// `submit --file`, a list of specs.
    File(Vec<Class>),
    /// `run` in a queue that no worker serves, so that it runs the task itself.
    Inline(Class),
    /// `queue write raddle.spawn.requests`: the prime is asked for them.
    Asked(Vec<Class>),
    /// The same, for what a manager lists that the prime has spawned.
    Chores(Vec<Class>),
    /// `queue write` to the source of a group: each message is a task for that.
    Letters(Vec<Class>),
}

impl How {
    /// How many tasks that makes.
    pub(crate) fn tasks(&self) -> usize {
        match self {
            Self::Lines(classes)
            | Self::File(classes)
            | Self::Asked(classes)
            | Self::Chores(classes)
            | Self::Letters(classes) => classes.len(),
            Self::Array(count) => *count as usize,
            Self::Inline(_) => 1,
        }
    }
}

/// One thing that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blow {
    pub(crate) at: Duration,
    /// Whose turn it is, by index: a worker's or manager's place in the fleet, and one of its runners, or of a group's processes.
    pub(crate) worker: usize,
    pub(crate) slot: usize,
    pub(crate) what: What,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    KillWorker,
    KillRunner,
    /// A worker and one of its runners at the same moment, so that neither can see to what the other leaves.
    KillBoth,
    /// The command itself, below its runner.
    KillCommand,
    /// A manager: one that the prime has spawned, or that of groups.
    KillManager,
    /// A process of a group.
    KillMember,
    /// SIGSTOP past the lease, then SIGCONT.
    StopWorker(Duration),
    StopRunner(Duration),
    StopBoth(Duration),
    /// SIGTERM: it lets what it runs end, and leaves.
    Drain,
    /// SIGTERM twice: it gives back what it runs, and leaves.
    GiveBack,
    /// The server of the engine, which is started again after so long.
    KillServer(Duration),
    /// The way to the server, for so long.
    Net(Trouble, Duration),
    /// The server is killed, and loses what it wrote in the last moments.
    LosePower {
        lost: Duration,
        down: Duration,
    },
    /// A replica that is behind by so much takes the place of the server.
    FailOver {
        lag: Duration,
    },
}

#[cfg(test)]
impl What {
    /// Whether it is a kill with -9.
    pub(crate) fn is_kill(self) -> bool {
        matches!(
            self,
            Self::KillWorker
                | Self::KillRunner
                | Self::KillBoth
                | Self::KillCommand
                | Self::KillManager
                | Self::KillMember
                | Self::KillServer(_)
        )
    }
}

/// What is wrong with the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Every reply is late by so much.
    Latency(Duration),
    /// Connections are reset, those that exist and those that come.
    Reset,
    /// Connections are accepted, and nothing is ever answered.
    HalfOpen,
    /// The request reaches the server, and the connection is cut before its reply.
    CutReply,
}

/// All of it, in the order of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) batches: Vec<Batch>,
    pub(crate) blows: Vec<Blow>,
}

const SECOND: u64 = 1000;
/// Longer than a lease (3 s) and the time until others take over (1 s).
const PAST_THE_LEASE: std::ops::Range<u64> = 3_500..6_500;
/// Submission ends before breaking does, so that what came last is broken too.
const SUBMIT_SHARE: f64 = 0.85;
/// One kill in so many is a submitter's.
const SUBMITTER_SHARE: u32 = 6;
/// So many requests or messages are written by one process, at most: each is a word of one command line.
const ASKED_AT_ONCE: usize = 200;
/// So many for those who have few processes.
const FOR_FEW_AT_ONCE: usize = 40;

impl Plan {
    pub(crate) fn new(options: &Options) -> Self {
        let mut dice = Dice::new(options.seed);
        let doomed = options.kills / SUBMITTER_SHARE;
        let mut batches = batches(&mut dice, options, doomed);
        batches.sort_by_key(|batch| batch.at);
        let mut blows = blows(&mut dice, options, options.kills - doomed);
        blows.sort_by_key(|blow| blow.at);
        Self { batches, blows }
    }
}

/// Batches for all tasks that are asked for, and more of which each is killed.
fn batches(dice: &mut Dice, options: &Options, doomed: u32) -> Vec<Batch> {
    let span = options.span.mul_f64(SUBMIT_SHARE);
    let mut left = options.tasks as usize;
    let mut batches = Vec::new();
    // However the dice fall, some are for those who stand above the workers: often enough that not all are refused by a server that is away.
    let [letters, chores] = [options.groups > 0, options.managers > 0];
    let both = [
        letters.then_some(Form::Letters),
        chores.then_some(Form::Chores),
    ];
    let mut always = [both; 3].into_iter().flatten().flatten();
    while left > 0 {
        let how = match always.next() {
            Some(form) => form.of(dice, (FOR_FEW_AT_ONCE / 2).min(left)),
            None => how(dice, left, options),
        };
        left -= how.tasks();
        batches.push(Batch {
            at: dice.moment(span),
            how,
            killed_after: None,
        });
    }
    for _ in 0..doomed {
        // Every third is a run: that one is submitter, worker and reader at once.
        let (how, life) = if dice.within(0..3) == 0 {
            let class = dice.pick(&[(4, Class::Nap), (2, Class::Family), (1, Class::Slow)]);
            (How::Inline(class), dice.millis(0..1_500))
        } else {
            let size = if dice.within(0..3) == 0 {
                dice.within(1_001..2_500)
            } else {
                dice.within(1..300)
            } as usize;
            (How::Lines(classes(dice, size)), dice.millis(0..60))
        };
        batches.push(Batch {
            at: dice.moment(span),
            how,
            killed_after: Some(life),
        });
    }
    batches
}

/// What [`How`] is chosen by.
#[derive(Clone, Copy)]
enum Form {
    Lines,
    Array,
    File,
    Inline,
    Asked,
    Chores,
    Letters,
}

impl Form {
    /// So many tasks, or as many as this form has at most.
    fn of(self, dice: &mut Dice, size: usize) -> How {
        match self {
            Self::Lines => How::Lines(classes(dice, size)),
            Self::Array => How::Array(size as u32),
            Self::Asked => How::Asked(classes(dice, size.min(ASKED_AT_ONCE))),
            Self::Chores => {
                // They have one try: what fails by itself is left out.
                let mix = [
                    (6, Class::Quick),
                    (3, Class::Nap),
                    (1, Class::Prints),
                    (1, Class::Family),
                ];
                How::Chores(
                    (0..size.min(FOR_FEW_AT_ONCE))
                        .map(|_| dice.pick(&mix))
                        .collect(),
                )
            }
            Self::Letters => How::Letters(classes(dice, size.min(FOR_FEW_AT_ONCE))),
            Self::File => {
                let mut classes = classes(dice, size);
                classes
                    .iter_mut()
                    .filter(|_| dice.within(0..10) == 0)
                    .for_each(|class| *class = Class::Broken);
                How::File(classes)
            }
            Self::Inline => How::Inline(dice.pick(&[
                (5, Class::Quick),
                (3, Class::Nap),
                (1, Class::Family),
                (1, Class::Chains),
            ])),
        }
    }
}

fn how(dice: &mut Dice, left: usize, options: &Options) -> How {
    // Some cross the thousand, where a submit becomes several steps. In a small campaign most are small, so that they are many.
    let most = u64::from(options.tasks / 40).clamp(20, 400);
    let size = match dice.within(0..20) {
        0 => dice.within(1_001..2_200),
        1..8 => dice.within(1..20),
        _ => dice.within(most / 20..most),
    };
    let [asked, chores] = if options.managers > 0 { [4, 3] } else { [0, 0] };
    let letters = if options.groups > 0 { 5 } else { 0 };
    let forms = [
        (6, Form::Lines),
        (5, Form::Array),
        (3, Form::File),
        (2, Form::Inline),
        (asked, Form::Asked),
        (chores, Form::Chores),
        (letters, Form::Letters),
    ];
    dice.pick(&forms).of(dice, (size as usize).min(left))
}

fn classes(dice: &mut Dice, count: usize) -> Vec<Class> {
    let mix = [
        (740, Class::Quick),
        (80, Class::Nap),
        (4, Class::Slow),
        (50, Class::Prints),
        (6, Class::Pours),
        (50, Class::Flaky),
        (30, Class::Family),
        (40, Class::Chains),
    ];
    (0..count).map(|_| dice.pick(&mix)).collect()
}

fn blows(dice: &mut Dice, options: &Options, kills: u32) -> Vec<Blow> {
    #[derive(Clone, Copy)]
    enum Sort {
        Worker,
        Runner,
        Both,
        Command,
        Manager,
        Member,
        Server,
    }
    #[derive(Clone, Copy)]
    enum Gentle {
        StopWorker,
        StopRunner,
        StopBoth,
        Drain,
        GiveBack,
        Net,
    }
    let is_redis = options.engine == Engine::Redis;
    let sorts = [
        (60, Sort::Worker),
        (20, Sort::Runner),
        (12, Sort::Both),
        (12, Sort::Command),
        (if options.managers > 0 { 10 } else { 0 }, Sort::Manager),
        (if options.groups > 0 { 10 } else { 0 }, Sort::Member),
        (if is_redis { 8 } else { 0 }, Sort::Server),
    ];
    let gentles = [
        (30, Gentle::StopWorker),
        (10, Gentle::StopRunner),
        (10, Gentle::StopBoth),
        (15, Gentle::Drain),
        (15, Gentle::GiveBack),
        (if is_redis { 60 } else { 0 }, Gentle::Net),
    ];
    let killed = (0..kills).map(|_| true);
    // What is not a kill comes on top, one for every three.
    let rest = (0..kills / 3).map(|_| false);
    let at = |dice: &mut Dice, what| {
        let worker = dice.within(0..options.places() as u64) as usize;
        let slot = dice.within(0..SECOND) as usize;
        Blow {
            at: dice.moment(options.span),
            worker,
            slot,
            what,
        }
    };
    let mut blows: Vec<Blow> = killed
        .chain(rest)
        .map(|is_kill| {
            let what = if is_kill {
                match dice.pick(&sorts) {
                    Sort::Worker => What::KillWorker,
                    Sort::Runner => What::KillRunner,
                    Sort::Both => What::KillBoth,
                    Sort::Command => What::KillCommand,
                    Sort::Manager => What::KillManager,
                    Sort::Member => What::KillMember,
                    Sort::Server => What::KillServer(dice.millis(0..2 * SECOND)),
                }
            } else {
                match dice.pick(&gentles) {
                    Gentle::StopWorker => What::StopWorker(dice.millis(PAST_THE_LEASE)),
                    Gentle::StopRunner => What::StopRunner(dice.millis(PAST_THE_LEASE)),
                    Gentle::StopBoth => What::StopBoth(dice.millis(PAST_THE_LEASE)),
                    Gentle::Drain => What::Drain,
                    Gentle::GiveBack => What::GiveBack,
                    Gentle::Net => What::Net(trouble(dice), dice.millis(200..3 * SECOND)),
                }
            };
            at(dice, what)
        })
        .collect();
    for loss in 0..options.losses {
        let (lost, down) = (dice.millis(50..SECOND), dice.millis(0..SECOND));
        let what = if loss % 2 == 0 {
            What::LosePower { lost, down }
        } else {
            What::FailOver { lag: lost }
        };
        blows.push(at(dice, what));
    }
    blows
}

fn trouble(dice: &mut Dice) -> Trouble {
    let late = dice.millis(20..600);
    dice.pick(&[
        (2, Trouble::Latency(late)),
        (3, Trouble::Reset),
        (2, Trouble::HalfOpen),
        (4, Trouble::CutReply),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(seed: u64, engine: Engine) -> Options {
        let span = Duration::from_secs(60);
        let (workers, managers, groups) = (3, 1, 1);
        let (losses, keep, raddle) = (0, false, None);
        Options {
            engine,
            tasks: 5_000,
            seed,
            span,
            kills: 60,
            losses,
            workers,
            managers,
            groups,
            keep,
            raddle,
        }
    }

    #[test]
    fn a_server_loses_its_last_writes_in_both_ways() {
        let plan = Plan::new(&Options {
            losses: 4,
            ..options(1, Engine::Redis)
        });
        let count =
            |is_it: fn(What) -> bool| plan.blows.iter().filter(|blow| is_it(blow.what)).count();
        assert_eq!(count(|what| matches!(what, What::LosePower { .. })), 2);
        assert_eq!(count(|what| matches!(what, What::FailOver { .. })), 2);
    }

    #[test]
    fn a_seed_gives_the_same_plan_again() {
        let plan = |seed| Plan::new(&options(seed, Engine::Redis));
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
    }

    #[test]
    fn as_much_is_planned_as_was_asked_for() {
        for seed in 0..20 {
            let plan = Plan::new(&options(seed, Engine::Sqlite));
            let spared = plan
                .batches
                .iter()
                .filter(|batch| batch.killed_after.is_none());
            assert_eq!(spared.map(|batch| batch.how.tasks()).sum::<usize>(), 5_000);
            let doomed = plan
                .batches
                .iter()
                .filter(|batch| batch.killed_after.is_some())
                .count();
            assert_eq!(
                doomed + plan.blows.iter().filter(|blow| blow.what.is_kill()).count(),
                60
            );
            assert!(
                plan.blows
                    .iter()
                    .all(|blow| blow.worker < 5 && blow.at <= Duration::from_secs(60))
            );
            assert!(plan.blows.is_sorted_by_key(|blow| blow.at));
        }
    }

    #[test]
    fn managers_are_asked_where_there_are_some() {
        let asks = |managers, groups, is_it: fn(&How) -> bool| {
            let options = Options {
                managers,
                groups,
                ..options(3, Engine::Sqlite)
            };
            Plan::new(&options)
                .batches
                .iter()
                .any(|batch| is_it(&batch.how))
        };
        let (spelled, chores) = (
            |how: &How| matches!(how, How::Asked(_)),
            |how: &How| matches!(how, How::Chores(_)),
        );
        assert!(asks(1, 0, spelled) && !asks(0, 1, spelled));
        assert!(asks(1, 0, chores) && !asks(0, 1, chores));
        let letters = |how: &How| matches!(how, How::Letters(_));
        assert!(asks(0, 1, letters) && !asks(1, 0, letters));
        let hits = |managers, groups, what| {
            let options = Options {
                managers,
                groups,
                ..options(3, Engine::Sqlite)
            };
            Plan::new(&options)
                .blows
                .iter()
                .any(|blow| blow.what == what)
        };
        assert!(hits(1, 0, What::KillManager) && !hits(0, 1, What::KillManager));
        assert!(hits(0, 1, What::KillMember) && !hits(1, 0, What::KillMember));
    }

    #[test]
    fn only_an_engine_with_a_server_has_one_killed() {
        let hits_server = |blow: &Blow| matches!(blow.what, What::KillServer(_) | What::Net(..));
        assert!(
            !Plan::new(&options(1, Engine::Sqlite))
                .blows
                .iter()
                .any(hits_server)
        );
        assert!(
            Plan::new(&options(1, Engine::Redis))
                .blows
                .iter()
                .any(hits_server)
        );
    }

    #[test]
    fn classes_are_found_by_their_name() {
        assert!(
            Class::ALL
                .into_iter()
                .all(|class| Class::from_name(class.name()) == Some(class))
        );
        assert_eq!(Class::from_name("kin"), None);
    }
}
