//! From what tasks said of themselves and what the broker says to a verdict. Pure.
//!
//! Nothing the broker says is believed by itself: its log is held against the side file, and both against what was done.

mod fault;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::Range,
    time::Duration,
};

use raddle_model::{TaskEvent, TaskEventKind, Tid};

pub(crate) use fault::Fault;

use crate::{
    broker::Census,
    hierarchy::EVERY,
    ledger::{Line, Mark},
    monkey::Deed,
    plan::{Class, What},
    procs::Survivor,
};

/// Of each such group of a submit, all or none are stored.
const GROUP: usize = 1000;
/// How long after the end of its task a process may still have been seen: the log's clock is not that of the side file.
const CLOCK_SLACK: u64 = 500_000_000;
/// How long before it was taken an attempt's lease must have been renewed: the lease (3 s) and the time until others look (1 s).
const RENEWAL: u64 = 4_000_000_000;

/// A task that is not to be tried again is given up when it is lost for the third time.
const LOSSES: usize = 2;

/// What is known after a campaign.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    pub(crate) lines: Vec<Line>,
    pub(crate) batches: Vec<Submitted>,
    /// What follows tasks that have chained something.
    pub(crate) follow_ups: Vec<FollowUp>,
    /// What messages have become.
    pub(crate) letters: Vec<Letter>,
    /// What a trigger has fired.
    pub(crate) ticks: Vec<Tick>,
    /// What was asked of managers that the prime has spawned.
    pub(crate) chores: Vec<Tid>,
    /// The broker's log, in its order.
    pub(crate) events: Vec<TaskEvent>,
    pub(crate) census: Census,
    pub(crate) deeds: Vec<Deed>,
    pub(crate) survivors: Vec<Survivor>,
    /// What happened to processes that should not have.
    pub(crate) remarks: Vec<String>,
    /// Tasks whose output was looked at and is not what they wrote.
    pub(crate) garbled: Vec<Tid>,
    /// When the server wrote what it has forgotten, in nanoseconds since the epoch.
    pub(crate) forgotten: Vec<Range<u64>>,
    /// What `CLOCK_MONOTONIC` is behind the time of day.
    pub(crate) clock_offset: u64,
}

/// A task that was chained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FollowUp {
    pub(crate) tid: Tid,
    pub(crate) parent: Tid,
    /// The attempt of that.
    pub(crate) attempt: u32,
}

/// A task that was a message before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Letter {
    pub(crate) tid: Tid,
    pub(crate) message: Tid,
}

/// A task that was fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tick {
    pub(crate) tid: Tid,
    /// Nanoseconds since the epoch.
    pub(crate) due: u64,
}

/// One process that submitted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Submitted {
    pub(crate) index: usize,
    pub(crate) planned: usize,
    /// It was a `run`, which prints no id.
    pub(crate) is_run: bool,
    /// It wrote messages, and what it printed are their ids.
    pub(crate) is_letters: bool,
    /// It ended and said that all is well.
    pub(crate) is_whole: bool,
    /// What it printed.
    pub(crate) accepted: Vec<Tid>,
    /// What the broker has of it, looked up where it did not end well and where it was a `run`.
    pub(crate) stored: Vec<Tid>,
}

/// What was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    /// Tasks whose id was printed.
    pub(crate) accepted: usize,
    /// Tasks that are stored though their submitter was killed before it could say so, and those of `run`.
    pub(crate) unannounced: usize,
    /// Tasks that follow others, as they should.
    pub(crate) followed: usize,
    /// Messages that have become one task each, as they should.
    pub(crate) letters: usize,
    /// Due times that were fired, each once.
    pub(crate) ticks: usize,
    /// Tasks that were given up because their manager was killed each time, which is documented.
    pub(crate) given_up: usize,
    pub(crate) completed: usize,
    pub(crate) failed: usize,
    pub(crate) killed: usize,
    /// Attempts that began.
    pub(crate) attempts: usize,
    /// Tasks of which more attempts began than their own failures explain.
    pub(crate) ran_again: usize,
    /// Tasks of which more than one attempt came to its good end.
    pub(crate) ended_again: usize,
    pub(crate) stale_refused: u64,
    /// Tasks that were submitted in a moment that the server has forgotten, which is documented.
    pub(crate) forgotten: usize,
    /// Attempts that ran beside another because the server had forgotten a claim, which is documented.
    pub(crate) overlaps: usize,
    /// From the kill of a worker until the broker took the task back, with the server there all the time.
    pub(crate) taken_back: Vec<Duration>,
    /// The same where the server or the way to it was out of order meanwhile: then nobody can take anything back.
    pub(crate) taken_back_after_outage: Vec<Duration>,
    /// From the kill of a worker until the next attempt began.
    pub(crate) running_again: Vec<Duration>,
    /// Attempts that were taken from a worker to which nothing was done, but the server or the way to it was out of order when its
    /// lease should have been renewed.
    pub(crate) taken_from_the_cut_off: usize,
    /// Attempts that were taken from a worker to which nothing was done: its lease ran out for another reason, such as a lock whose
    /// holder was stopped.
    pub(crate) taken_from_the_unhurt: Vec<(Tid, u32)>,
}

#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) figures: Figures,
    pub(crate) faults: Vec<Fault>,
}

pub(crate) fn check(evidence: &Evidence) -> Verdict {
    let mut histories = histories(evidence);
    let all = histories.len();
    let is_forgotten = |tid: Tid| {
        evidence
            .forgotten
            .iter()
            .any(|time| time.contains(&tid.as_u64()))
    };
    histories.retain(|tid, history| history.is_stored() || !is_forgotten(*tid));
    let mut verdict = Verdict {
        figures: Figures::default(),
        faults: Vec::new(),
    };
    let (figures, faults) = (&mut verdict.figures, &mut verdict.faults);
    figures.forgotten = all - histories.len();
    for (tid, history) in &histories {
        history.check_end(*tid, figures, faults);
        history.check_log(*tid, faults);
        history.check_attempts(*tid, figures, faults);
        history.check_kin(*tid, evidence.clock_offset, faults);
    }
    let others = evidence.follow_ups.len() + evidence.letters.len() + evidence.ticks.len();
    figures.unannounced = histories.len().saturating_sub(figures.accepted + others);
    check_chains(evidence, &histories, figures, faults);
    check_letters(evidence, figures, faults);
    check_ticks(&evidence.ticks, figures, faults);
    let runners_killed = evidence
        .deeds
        .iter()
        .filter(|deed| deed.what == What::KillRunner)
        .count();
    if figures.killed > runners_killed {
        let text = format!(
            "{} tasks are 'killed', and only {runners_killed} runners were",
            figures.killed
        );
        faults.push(Fault::Process(text));
    }
    figures.stale_refused = evidence.census.stale_writes;
    reclaims(evidence, &histories, figures);
    taken_from_others(evidence, &histories, figures);
    if !evidence.forgotten.is_empty() {
        let is_overlap =
            |fault: &mut Fault| matches!(fault, Fault::Overlap(..) | Fault::BegunTwice(..));
        figures.overlaps = faults.extract_if(.., is_overlap).count();
    } else {
        faults.extend(evidence.batches.iter().filter_map(torn));
    }
    faults.extend(miscounted(&evidence.census, figures, &histories));
    faults.extend(evidence.garbled.iter().map(|tid| Fault::Garbled(*tid)));
    faults.extend(evidence.survivors.iter().cloned().map(Fault::Survivor));
    faults.extend(evidence.remarks.iter().cloned().map(Fault::Process));
    verdict
}

/// All that is known of one task.
#[derive(Default)]
struct History<'a> {
    is_accepted: bool,
    is_chore: bool,
    attempts: BTreeMap<u32, Attempt>,
    events: Vec<&'a TaskEvent>,
    class: Option<Class>,
}

/// What one attempt said.
#[derive(Default)]
struct Attempt {
    /// When it began, and under which runner.
    begun: Option<(u64, u32)>,
    begins: u32,
    /// When it, or what it left behind, was seen last.
    last: u64,
    last_kin: Option<u64>,
    has_ended: bool,
    has_failed: bool,
}

fn histories(evidence: &Evidence) -> BTreeMap<Tid, History<'_>> {
    let mut histories: BTreeMap<Tid, History<'_>> = BTreeMap::new();
    for batch in evidence.batches.iter().filter(|batch| !batch.is_letters) {
        for tid in &batch.stored {
            histories.entry(*tid).or_default();
        }
        batch
            .accepted
            .iter()
            .for_each(|tid| histories.entry(*tid).or_default().is_accepted = true);
    }
    let follow_ups = evidence.follow_ups.iter().map(|follow_up| follow_up.tid);
    let letters = evidence.letters.iter().map(|letter| letter.tid);
    for tid in follow_ups
        .chain(letters)
        .chain(evidence.ticks.iter().map(|tick| tick.tid))
    {
        histories.entry(tid).or_default();
    }
    evidence
        .chores
        .iter()
        .for_each(|tid| histories.entry(*tid).or_default().is_chore = true);
    for line in &evidence.lines {
        let history = histories.entry(line.tid).or_default();
        history.class = Some(line.class);
        let attempt = history.attempts.entry(line.attempt).or_default();
        attempt.last = attempt.last.max(line.at);
        match line.what {
            Mark::Begin => {
                attempt.begins += 1;
                attempt.begun.get_or_insert((line.at, line.ppid));
            }
            Mark::Kin => attempt.last_kin = Some(line.at.max(attempt.last_kin.unwrap_or(0))),
            Mark::End => attempt.has_ended = true,
            Mark::Fail => attempt.has_failed = true,
            Mark::Tick => {}
        }
    }
    for event in &evidence.events {
        // Workers are tasks too, and not ours.
        if let Some(history) = histories.get_mut(&event.tid) {
            history.events.push(event);
        }
    }
    histories
}

impl History<'_> {
    /// Whether this attempt ran in a moment that the server has forgotten.
    fn ran_in(&self, attempt: u32, evidence: &Evidence) -> bool {
        let times = self
            .attempts
            .get(&attempt)
            .and_then(|attempt| Some((attempt.begun?.0, attempt.last)));
        let Some((begun, last)) =
            times.map(|(a, b)| (a + evidence.clock_offset, b + evidence.clock_offset))
        else {
            return false;
        };
        evidence
            .forgotten
            .iter()
            .any(|time| time.start <= last && begun <= time.end)
    }

    fn is_stored(&self) -> bool {
        self.events
            .iter()
            .any(|event| event.event == TaskEventKind::Created)
    }

    fn end(&self) -> Option<&TaskEvent> {
        self.events
            .iter()
            .find(|event| event.event.is_terminal())
            .copied()
    }

    /// It was stored, it is over, and in the way it should be.
    fn check_end(&self, tid: Tid, figures: &mut Figures, faults: &mut Vec<Fault>) {
        figures.accepted += usize::from(self.is_accepted);
        if !self.is_stored() {
            faults.push(Fault::NotStored(tid));
            return;
        }
        let Some(end) = self.end() else {
            faults.push(Fault::NotFinished(tid));
            return;
        };
        match end.event {
            TaskEventKind::Completed => {
                figures.completed += 1;
                if !self
                    .attempts
                    .get(&end.attempt)
                    .is_some_and(|attempt| attempt.has_ended)
                {
                    faults.push(Fault::NeverRan(tid, end.attempt));
                }
            }
            TaskEventKind::Failed => figures.failed += 1,
            TaskEventKind::Killed => figures.killed += 1,
            _ => {}
        }
        let is_right = match end.event {
            TaskEventKind::Completed => self.class != Some(Class::Broken),
            // One that always fails, and none else: all others may fail and be lost many times over.
            TaskEventKind::Failed if self.class == Some(Class::Broken) => true,
            TaskEventKind::Failed if self.is_chore && self.losses() >= LOSSES => {
                figures.given_up += 1;
                true
            }
            // Somebody killed its runner.
            TaskEventKind::Killed => true,
            _ => false,
        };
        if !is_right {
            faults.push(Fault::WrongEnd(tid, end.event));
        }
    }

    /// How often it went on after it was lost with its worker.
    fn losses(&self) -> usize {
        self.events
            .iter()
            .filter(|event| event.event == TaskEventKind::Reclaimed)
            .count()
    }

    /// The log of a task has one end and nothing after it, and every entry is of what was then the latest attempt.
    fn check_log(&self, tid: Tid, faults: &mut Vec<Fault>) {
        let (mut latest, mut is_over) = (0, false);
        for event in &self.events {
            match event.event {
                TaskEventKind::Created
                | TaskEventKind::StaleWrite
                | TaskEventKind::ControlIgnored => continue,
                _ if is_over => {
                    faults.push(Fault::SecondEnd(tid));
                    return;
                }
                TaskEventKind::Spawning if event.attempt > latest => latest = event.attempt,
                TaskEventKind::Spawning => {
                    faults.push(Fault::StaleWrite(tid, event.event, event.attempt))
                }
                // Its number tells which attempt wrote it: an older one was fenced off when the latest was claimed.
                kind if event.attempt != latest => {
                    faults.push(Fault::StaleWrite(tid, kind, event.attempt))
                }
                kind => is_over = kind.is_terminal(),
            }
        }
    }

    /// No two attempts at once, and none twice.
    fn check_attempts(&self, tid: Tid, figures: &mut Figures, faults: &mut Vec<Fault>) {
        let begun = self
            .attempts
            .values()
            .filter(|attempt| attempt.begun.is_some())
            .count();
        let failed = self
            .attempts
            .values()
            .filter(|attempt| attempt.has_failed)
            .count();
        figures.attempts += begun;
        // One more than have failed, unless it fails always.
        let due = failed + usize::from(self.class != Some(Class::Broken));
        figures.ran_again += usize::from(begun > due);
        figures.ended_again += usize::from(
            self.attempts
                .values()
                .filter(|attempt| attempt.has_ended)
                .count()
                > 1,
        );
        // The one before that was seen last.
        let mut before: Option<(u32, &Attempt)> = None;
        for (number, attempt) in &self.attempts {
            if attempt.begins > 1 {
                faults.push(Fault::BegunTwice(tid, *number));
            }
            if let (Some((earlier, last)), Some((begun, _))) = (before, attempt.begun)
                && last.last > begun
            {
                faults.push(Fault::Overlap(
                    tid,
                    earlier,
                    *number,
                    Duration::from_nanos(last.last - begun),
                ));
            }
            if before.is_none_or(|(_, last)| last.last < attempt.last) {
                before = Some((*number, attempt));
            }
        }
    }

    /// Nothing of the last attempt is seen after the end of the task.
    fn check_kin(&self, tid: Tid, clock_offset: u64, faults: &mut Vec<Fault>) {
        let Some(end) = self.end() else { return };
        let over = end.at.as_nanosecond() as u64 - clock_offset + CLOCK_SLACK;
        // Where two attempts had the number, what is seen may be of the one that did not end the task.
        let only = self
            .attempts
            .get(&end.attempt)
            .filter(|attempt| attempt.begins == 1);
        let kin = only.and_then(|attempt| attempt.last_kin);
        if let Some(kin) = kin.filter(|kin| *kin > over) {
            faults.push(Fault::Outlived(tid, Duration::from_nanos(kin - over)));
        }
    }
}

/// Every task that has chained something is followed once, by what the attempt that ended it has chained; one that has not succeeded by nothing.
fn check_chains(
    evidence: &Evidence,
    histories: &BTreeMap<Tid, History<'_>>,
    figures: &mut Figures,
    faults: &mut Vec<Fault>,
) {
    let mut followed: BTreeMap<Tid, Vec<u32>> = BTreeMap::new();
    for follow_up in &evidence.follow_ups {
        followed
            .entry(follow_up.parent)
            .or_default()
            .push(follow_up.attempt);
    }
    for (tid, history) in histories
        .iter()
        .filter(|(_, history)| history.class == Some(Class::Chains))
    {
        let by = followed.remove(tid).unwrap_or_default();
        let success = history
            .end()
            .filter(|end| end.event == TaskEventKind::Completed)
            .map(|end| end.attempt);
        match (success, &by[..]) {
            (Some(attempt), [only]) if attempt == *only => figures.followed += 1,
            (None, []) => {}
            // What it chained is a submission, and was forgotten like one.
            (Some(attempt), []) if history.ran_in(attempt, evidence) => figures.forgotten += 1,
            (Some(_), []) => faults.push(Fault::Unfollowed(*tid)),
            _ => faults.push(Fault::Misfollowed(*tid, success, by)),
        }
    }
    faults.extend(
        followed
            .into_iter()
            .map(|(tid, by)| Fault::Misfollowed(tid, None, by)),
    );
}

/// Every message that was accepted is one task, and no more.
fn check_letters(evidence: &Evidence, figures: &mut Figures, faults: &mut Vec<Fault>) {
    let mut made: HashMap<Tid, usize> = HashMap::new();
    evidence
        .letters
        .iter()
        .for_each(|letter| *made.entry(letter.message).or_default() += 1);
    let written = evidence
        .batches
        .iter()
        .filter(|batch| batch.is_letters)
        .flat_map(|batch| &batch.accepted);
    faults.extend(
        written
            .filter(|message| !made.contains_key(message))
            .map(|message| Fault::Unread(*message)),
    );
    for (message, tasks) in made {
        match tasks {
            1 => figures.letters += 1,
            _ => faults.push(Fault::ReadTwice(message, tasks)),
        }
    }
}

/// Every due time was fired once: those that were missed are made up for.
fn check_ticks(ticks: &[Tick], figures: &mut Figures, faults: &mut Vec<Fault>) {
    let mut dues: Vec<u64> = ticks.iter().map(|tick| tick.due).collect();
    dues.sort_unstable();
    figures.ticks = dues.len();
    for pair in dues.windows(2) {
        let gap = Duration::from_nanos(pair[1] - pair[0]);
        if gap.is_zero() {
            faults.push(Fault::FiredTwice(pair[0]));
        } else if gap != EVERY {
            faults.push(Fault::NotFired(pair[0], gap));
        }
    }
}

/// When which worker was stopped.
fn worker_stops(deeds: &[Deed]) -> Vec<(u32, Range<u64>)> {
    let stop = |deed: &Deed| match deed.what {
        What::StopWorker(time) => Some((deed.worker, deed.at..deed.at + time.as_nanos() as u64)),
        _ => None,
    };
    deeds.iter().filter_map(stop).collect()
}

/// When the server was away, or the way to it was out of order.
fn outages(deeds: &[Deed]) -> Vec<Range<u64>> {
    let outage = |deed: &Deed| match deed.what {
        What::KillServer(time)
        | What::Net(_, time)
        | What::LosePower { down: time, .. }
        | What::FailOver { lag: time } => Some(deed.at..deed.at + time.as_nanos() as u64),
        _ => None,
    };
    deeds.iter().filter_map(outage).collect()
}

/// How long what ran on killed workers took to be taken back, and to run again.
fn reclaims(evidence: &Evidence, histories: &BTreeMap<Tid, History<'_>>, figures: &mut Figures) {
    let mut by_runner: HashMap<u32, Vec<(u64, Tid, u32)>> = HashMap::new();
    for line in evidence
        .lines
        .iter()
        .filter(|line| line.what == Mark::Begin)
    {
        by_runner
            .entry(line.ppid)
            .or_default()
            .push((line.at, line.tid, line.attempt));
    }
    let outages = outages(&evidence.deeds);
    // One that was stopped at the time had been missed before it was killed.
    let stops = worker_stops(&evidence.deeds);
    let is_awake = |deed: &&Deed| {
        !stops
            .iter()
            .any(|(pid, stop)| *pid == deed.worker && stop.contains(&deed.at))
    };
    let is_kill = |deed: &&Deed| matches!(deed.what, What::KillWorker | What::KillMember);
    for deed in evidence.deeds.iter().filter(is_kill).filter(is_awake) {
        for runner in &deed.runners {
            // What a runner began last before its worker was killed.
            let begun = by_runner.get(runner).into_iter().flatten();
            let Some((_, tid, attempt)) = begun.filter(|(at, ..)| *at < deed.at).max() else {
                continue;
            };
            let Some(history) = histories.get(tid) else {
                continue;
            };
            let reclaimed = history
                .events
                .iter()
                .find(|event| event.event == TaskEventKind::Reclaimed && event.attempt == *attempt);
            // Not there if it had ended, and was recorded.
            let Some(reclaimed) = reclaimed else { continue };
            let took = (reclaimed.at.as_nanosecond() as u64).saturating_sub(deed.wall);
            let is_cut_off = outages
                .iter()
                .any(|outage| outage.start < deed.at + took && deed.at < outage.end);
            let taken = if is_cut_off {
                &mut figures.taken_back_after_outage
            } else {
                &mut figures.taken_back
            };
            taken.push(Duration::from_nanos(took));
            let next = history
                .attempts
                .range(attempt + 1..)
                .find_map(|(_, next)| next.begun);
            figures
                .running_again
                .extend(next.map(|(at, _)| Duration::from_nanos(at.saturating_sub(deed.at))));
        }
    }
    for times in [
        &mut figures.taken_back,
        &mut figures.taken_back_after_outage,
        &mut figures.running_again,
    ] {
        times.sort_unstable();
    }
}

/// Which attempts were taken from a worker to which nothing was done.
fn taken_from_others(
    evidence: &Evidence,
    histories: &BTreeMap<Tid, History<'_>>,
    figures: &mut Figures,
) {
    let hurts_worker = |what| {
        let kills = matches!(
            what,
            What::KillWorker | What::KillMember | What::KillManager
        );
        kills || matches!(what, What::StopWorker(_) | What::Drain | What::GiveBack)
    };
    let hurts: Vec<&Deed> = evidence
        .deeds
        .iter()
        .filter(|deed| hurts_worker(deed.what))
        .collect();
    let hurt: HashSet<u32> = hurts
        .iter()
        .flat_map(|deed| deed.runners.iter().copied())
        .collect();
    // A runner that was killed before is not among those that its worker had when that was hurt, though its result may still have been
    // on the way.
    let of_runner = evidence
        .deeds
        .iter()
        .flat_map(|deed| deed.runners.iter().map(|runner| (*runner, deed.worker)));
    let of_runner: HashMap<u32, u32> = of_runner.collect();
    let is_hurt = |(begun, runner): (u64, u32), taken: u64| {
        let lies_between = |deed: &&&Deed| deed.at > begun && deed.wall < taken;
        let mut between = hurts.iter().filter(lies_between);
        hurt.contains(&runner) || between.any(|deed| of_runner.get(&runner) == Some(&deed.worker))
    };
    // A `run` that was killed was its own worker.
    let runs: HashSet<Tid> = evidence
        .batches
        .iter()
        .filter(|batch| batch.is_run)
        .flat_map(|batch| batch.stored.iter().copied())
        .collect();
    let taken = evidence
        .events
        .iter()
        .filter(|event| event.event == TaskEventKind::Reclaimed && !runs.contains(&event.tid));
    let begun = |event: &TaskEvent| {
        histories
            .get(&event.tid)?
            .attempts
            .get(&event.attempt)?
            .begun
    };
    let outages = outages(&evidence.deeds);
    for event in taken {
        let at = event.at.as_nanosecond() as u64;
        if begun(event).is_none_or(|begun| is_hurt(begun, at)) {
            continue;
        }
        let at = at - evidence.clock_offset;
        if outages
            .iter()
            .any(|outage| outage.start < at && at.saturating_sub(RENEWAL) < outage.end)
        {
            figures.taken_from_the_cut_off += 1;
        } else {
            figures
                .taken_from_the_unhurt
                .push((event.tid, event.attempt));
        }
    }
}

/// Whether a submit was stored in part.
fn torn(batch: &Submitted) -> Option<Fault> {
    let fault = |stored| {
        Some(Fault::Torn {
            batch: batch.index,
            planned: batch.planned,
            stored,
        })
    };
    if batch.is_whole {
        let known = if batch.is_run {
            batch.stored.len()
        } else {
            batch.accepted.len()
        };
        return if known == batch.planned {
            None
        } else {
            fault(known)
        };
    }
    let stored = batch.stored.len();
    if stored == batch.planned || stored.is_multiple_of(GROUP) && stored < batch.planned {
        None
    } else {
        fault(stored)
    }
}

/// Whether the broker counts other tasks than its log shows of ours.
fn miscounted(
    census: &Census,
    figures: &Figures,
    histories: &BTreeMap<Tid, History<'_>>,
) -> Vec<Fault> {
    let counts = [
        ("tasks", census.total(), histories.len()),
        ("completed tasks", census.completed, figures.completed),
        ("failed tasks", census.failed, figures.failed),
        ("killed tasks", census.killed, figures.killed),
    ];
    let differ = counts
        .into_iter()
        .filter(|(_, counted, known)| *counted != *known as u64);
    differ
        .map(|(what, counted, known)| {
            Fault::Miscounted(format!(
                "the broker counts {counted} {what}, there are {known}"
            ))
        })
        .collect()
}

#[cfg(test)]
mod tests;
