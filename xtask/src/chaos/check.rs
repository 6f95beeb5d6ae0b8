//! `check`: compares the side file, the broker and the injected faults. Pure.
//!
//! The broker alone proves nothing: its log is checked against the side file, and both against the
//! injected faults.

mod violation;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::Range,
    time::Duration,
};

use raddle_model::{TaskEvent, TaskEventKind, Tid};

pub(crate) use violation::Violation;

use crate::{
    broker::TaskCounts,
    fault_injector::InjectedFault,
    managers::TRIGGER_INTERVAL,
    plan::{Class, FaultKind},
    processes::Survivor,
    side_file::{Line, Mark},
};

/// The size of the groups of a submit that are stored whole or not at all.
const GROUP: usize = 1000;
/// How long after the end of its task a process may have been seen: the log uses another clock than
/// the side file.
const CLOCK_SLACK: u64 = 500_000_000;
/// How long before its reclaim an attempt's lease was renewed last: the lease (3 s) and the margin
/// (1 s).
const RENEWAL: u64 = 4_000_000_000;

/// A task without retries is given up at its third loss, so its log has two reclaims.
const LOSSES: usize = 2;

/// All observations of a campaign.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    pub(crate) lines: Vec<Line>,
    pub(crate) batches: Vec<Submitted>,
    /// The chained tasks.
    pub(crate) follow_ups: Vec<FollowUp>,
    /// The tasks that messages became.
    pub(crate) messages: Vec<MessageTask>,
    /// The tasks that the trigger submitted.
    pub(crate) trigger_tasks: Vec<TriggerTask>,
    /// The tasks that spawned managers were asked for.
    pub(crate) registry_tasks: Vec<Tid>,
    /// The broker's event log, in its order.
    pub(crate) events: Vec<TaskEvent>,
    pub(crate) task_counts: TaskCounts,
    pub(crate) injected_faults: Vec<InjectedFault>,
    pub(crate) survivors: Vec<Survivor>,
    /// Unexpected exits and hangs of processes.
    pub(crate) process_errors: Vec<String>,
    /// Sampled tasks whose stored output differs from what they wrote.
    pub(crate) mismatched_outputs: Vec<Tid>,
    /// Periods whose writes the server lost, in nanoseconds since the epoch.
    pub(crate) forgotten: Vec<Range<u64>>,
    /// `CLOCK_REALTIME` minus `CLOCK_MONOTONIC`, in nanoseconds.
    pub(crate) clock_offset: u64,
}

/// A chained task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FollowUp {
    pub(crate) tid: Tid,
    pub(crate) parent: Tid,
    /// The attempt of the parent.
    pub(crate) attempt: u32,
}

/// A task that was made from a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageTask {
    pub(crate) tid: Tid,
    pub(crate) message: Tid,
}

/// A task that the trigger submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TriggerTask {
    pub(crate) tid: Tid,
    /// The due time in nanoseconds since the epoch.
    pub(crate) due: u64,
}

/// One submitter process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Submitted {
    pub(crate) index: usize,
    pub(crate) planned: usize,
    /// Whether it was a `run`, which prints no id.
    pub(crate) is_run: bool,
    /// Whether it wrote messages; it then printed their ids.
    pub(crate) is_messages: bool,
    /// Whether it exited with 0.
    pub(crate) succeeded: bool,
    /// The ids that it printed.
    pub(crate) accepted: Vec<Tid>,
    /// The tasks that the broker has of it. Queried only where it failed or was a `run`.
    pub(crate) stored: Vec<Tid>,
}

/// The counters of the report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    /// Tasks whose id was printed.
    pub(crate) accepted: usize,
    /// Tasks that are stored though their submitter was killed before it printed them, and tasks of
    /// `run`.
    pub(crate) unacknowledged: usize,
    /// Tasks whose chained task is right.
    pub(crate) followed: usize,
    /// Messages that became one task each.
    pub(crate) messages: usize,
    /// Due times that were fired.
    pub(crate) trigger_tasks: usize,
    /// Tasks that were given up because their manager was killed each time, as documented.
    pub(crate) given_up: usize,
    pub(crate) completed: usize,
    pub(crate) failed: usize,
    pub(crate) killed: usize,
    /// Attempts that began.
    pub(crate) attempts: usize,
    /// Runs of attempts in hosts, and those that followed the death of a host.
    pub(crate) host_runs: usize,
    pub(crate) host_reruns: usize,
    /// Tasks with more attempts than their own failures explain.
    pub(crate) reran: usize,
    /// Tasks of which more than one attempt succeeded.
    pub(crate) completed_twice: usize,
    pub(crate) stale_refused: u64,
    /// Tasks that were submitted in a period whose writes the server lost, as documented.
    pub(crate) forgotten: usize,
    /// Attempts that ran beside another because the server lost a claim, as documented.
    pub(crate) overlaps: usize,
    /// From the kill of a worker to the reclaim, with the server reachable all the time.
    pub(crate) reclaim_times: Vec<Duration>,
    /// The same for kills during an outage of the server or network, when no worker can reclaim.
    pub(crate) reclaim_times_with_outage: Vec<Duration>,
    /// From the kill of a worker to the start of the next attempt.
    pub(crate) rerun_times: Vec<Duration>,
    /// Attempts that were reclaimed from a worker without an injected fault, while an outage of the
    /// server or network prevented the renewal of its lease.
    pub(crate) reclaimed_when_disconnected: usize,
    /// Attempts that were reclaimed from a worker without an injected fault: its lease expired for
    /// another reason, such as a lock whose holder was stopped.
    pub(crate) reclaimed_from_healthy: Vec<(Tid, u32)>,
}

#[derive(Debug)]
pub(crate) struct CheckResult {
    pub(crate) figures: Figures,
    pub(crate) violations: Vec<Violation>,
}

pub(crate) fn check(evidence: &Evidence) -> CheckResult {
    let mut histories = histories(evidence);
    let all = histories.len();
    let is_forgotten = |tid: Tid| {
        evidence
            .forgotten
            .iter()
            .any(|time| time.contains(&tid.as_u64()))
    };
    histories.retain(|tid, history| history.is_stored() || !is_forgotten(*tid));
    let mut verdict = CheckResult {
        figures: Figures::default(),
        violations: Vec::new(),
    };
    let (figures, violations) = (&mut verdict.figures, &mut verdict.violations);
    figures.forgotten = all - histories.len();
    for (tid, history) in &histories {
        history.check_end(*tid, figures, violations);
        history.check_log(*tid, violations);
        history.check_attempts(*tid, figures, violations);
        history.check_orphans(*tid, evidence.clock_offset, violations);
    }
    let others = evidence.follow_ups.len() + evidence.messages.len() + evidence.trigger_tasks.len();
    figures.unacknowledged = histories.len().saturating_sub(figures.accepted + others);
    check_chains(evidence, &histories, figures, violations);
    check_messages(evidence, figures, violations);
    check_trigger_tasks(&evidence.trigger_tasks, figures, violations);
    let runners_killed = evidence
        .injected_faults
        .iter()
        .filter(|injected| injected.kind == FaultKind::KillRunner)
        .count();
    if figures.killed > runners_killed {
        let text = format!(
            "{} tasks are 'killed', and only {runners_killed} runners were",
            figures.killed
        );
        violations.push(Violation::Process(text));
    }
    figures.stale_refused = evidence.task_counts.stale_writes;
    measure_reclaims(evidence, &histories, figures);
    count_reclaims_from_healthy(evidence, &histories, figures);
    if !evidence.forgotten.is_empty() {
        let is_overlap = |violation: &mut Violation| {
            matches!(
                violation,
                Violation::Overlap(..) | Violation::BegunTwice(..)
            )
        };
        figures.overlaps = violations.extract_if(.., is_overlap).count();
    } else {
        violations.extend(evidence.batches.iter().filter_map(check_submit_is_atomic));
    }
    violations.extend(compare_counts(&evidence.task_counts, figures, &histories));
    violations.extend(
        evidence
            .mismatched_outputs
            .iter()
            .map(|tid| Violation::OutputMismatch(*tid)),
    );
    violations.extend(evidence.survivors.iter().cloned().map(Violation::Survivor));
    violations.extend(
        evidence
            .process_errors
            .iter()
            .cloned()
            .map(Violation::Process),
    );
    verdict
}

/// All observations of one task.
#[derive(Default)]
struct History<'a> {
    is_accepted: bool,
    is_registry_task: bool,
    attempts: BTreeMap<u32, Attempt>,
    events: Vec<&'a TaskEvent>,
    class: Option<Class>,
}

/// All observations of one attempt.
#[derive(Default)]
struct Attempt {
    /// When it began, and the pid of its runner.
    begun: Option<(u64, u32)>,
    begins: u32,
    /// Its runs in hosts.
    runs: Vec<HostRun>,
    /// The last time that the attempt, or a process that it left behind, was seen.
    last: u64,
    last_orphan: Option<u64>,
    has_ended: bool,
    has_failed: bool,
}

/// One run of an attempt in a host: the pid of the host, when the run began and was last seen.
#[derive(Clone, Copy)]
struct HostRun {
    host: u32,
    begun: u64,
    last: u64,
}

fn histories(evidence: &Evidence) -> BTreeMap<Tid, History<'_>> {
    let mut histories: BTreeMap<Tid, History<'_>> = BTreeMap::new();
    for batch in evidence.batches.iter().filter(|batch| !batch.is_messages) {
        for tid in &batch.stored {
            histories.entry(*tid).or_default();
        }
        batch
            .accepted
            .iter()
            .for_each(|tid| histories.entry(*tid).or_default().is_accepted = true);
    }
    let follow_ups = evidence.follow_ups.iter().map(|follow_up| follow_up.tid);
    let messages = evidence.messages.iter().map(|letter| letter.tid);
    for tid in follow_ups
        .chain(messages)
        .chain(evidence.trigger_tasks.iter().map(|tick| tick.tid))
    {
        histories.entry(tid).or_default();
    }
    evidence
        .registry_tasks
        .iter()
        .for_each(|tid| histories.entry(*tid).or_default().is_registry_task = true);
    for line in &evidence.lines {
        let history = histories.entry(line.tid).or_default();
        history.class = Some(line.class);
        let attempt = history.attempts.entry(line.attempt).or_default();
        attempt.last = attempt.last.max(line.at);
        if let Some(run) = attempt.runs.iter_mut().rfind(|run| run.host == line.pid) {
            run.last = run.last.max(line.at);
        }
        match line.mark {
            Mark::Begin => {
                attempt.begins += 1;
                attempt.begun.get_or_insert((line.at, line.ppid));
            }
            Mark::BeginInHost => {
                // Faults hit the runner of the last host.
                attempt.begun = Some((line.at, line.ppid));
                attempt.begins = 1;
                attempt.runs.push(HostRun {
                    host: line.pid,
                    begun: line.at,
                    last: line.at,
                });
            }
            Mark::Orphan => {
                attempt.last_orphan = Some(line.at.max(attempt.last_orphan.unwrap_or(0)))
            }
            Mark::End => attempt.has_ended = true,
            Mark::Fail => attempt.has_failed = true,
            Mark::TriggerTask => {}
        }
    }
    for event in &evidence.events {
        // Workers are tasks too, and do not count.
        if let Some(history) = histories.get_mut(&event.tid) {
            history.events.push(event);
        }
    }
    histories
}

impl History<'_> {
    /// Whether this attempt ran in a period whose writes the server lost.
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

    /// Checks that the task was stored and reached a right final state.
    fn check_end(&self, tid: Tid, figures: &mut Figures, violations: &mut Vec<Violation>) {
        figures.accepted += usize::from(self.is_accepted);
        if !self.is_stored() {
            violations.push(Violation::NotStored(tid));
            return;
        }
        let Some(end) = self.end() else {
            violations.push(Violation::NotFinished(tid));
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
                    violations.push(Violation::NeverRan(tid, end.attempt));
                }
            }
            TaskEventKind::Failed => figures.failed += 1,
            TaskEventKind::Killed => figures.killed += 1,
            _ => {}
        }
        let is_right = match end.event {
            TaskEventKind::Completed => !self.class.is_some_and(Class::always_fails),
            // Only tasks that always fail may fail: the others have attempts enough for all
            // failures and losses.
            TaskEventKind::Failed if self.class.is_some_and(Class::always_fails) => true,
            TaskEventKind::Failed if self.is_registry_task && self.losses() >= LOSSES => {
                figures.given_up += 1;
                true
            }
            // Its runner was killed.
            TaskEventKind::Killed => true,
            _ => false,
        };
        if !is_right {
            violations.push(Violation::WrongEnd(tid, end.event));
        }
    }

    /// How often it was reclaimed.
    fn losses(&self) -> usize {
        self.events
            .iter()
            .filter(|event| event.event == TaskEventKind::Reclaimed)
            .count()
    }

    /// Checks that the log has one final state, no event after it, and only events of the latest
    /// attempt.
    fn check_log(&self, tid: Tid, violations: &mut Vec<Violation>) {
        let (mut latest, mut is_over) = (0, false);
        for event in &self.events {
            match event.event {
                TaskEventKind::Created
                | TaskEventKind::StaleWrite
                | TaskEventKind::ControlIgnored => continue,
                _ if is_over => {
                    violations.push(Violation::EventAfterEnd(tid));
                    return;
                }
                TaskEventKind::Spawning if event.attempt > latest => latest = event.attempt,
                TaskEventKind::Spawning => {
                    violations.push(Violation::StaleWrite(tid, event.event, event.attempt))
                }
                // The number names the attempt that wrote the event. Older ones are fenced off once
                // the latest is claimed.
                kind if event.attempt != latest => {
                    violations.push(Violation::StaleWrite(tid, kind, event.attempt))
                }
                kind => is_over = kind.is_terminal(),
            }
        }
    }

    /// Checks that no two attempts overlap and that none began twice.
    fn check_attempts(&self, tid: Tid, figures: &mut Figures, violations: &mut Vec<Violation>) {
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
        // One more than have failed, unless the task always fails.
        let always_fails = self.class.is_some_and(Class::always_fails);
        let due = failed + usize::from(!always_fails);
        figures.reran += usize::from(begun > due);
        figures.completed_twice += usize::from(
            self.attempts
                .values()
                .filter(|attempt| attempt.has_ended)
                .count()
                > 1,
        );
        // Of the attempts so far, the one that was seen last.
        let mut before: Option<(u32, &Attempt)> = None;
        for (number, attempt) in &self.attempts {
            if attempt.begins > 1 {
                violations.push(Violation::BegunTwice(tid, *number));
            }
            for pair in attempt.runs.windows(2) {
                if pair[0].last > pair[1].begun {
                    let time = Duration::from_nanos(pair[0].last - pair[1].begun);
                    violations.push(Violation::Overlap(tid, *number, *number, time));
                }
            }
            figures.host_runs += attempt.runs.len();
            figures.host_reruns += attempt.runs.len().saturating_sub(1);
            let first_run = attempt.runs.first().map(|run| run.begun);
            let begun = first_run.or_else(|| attempt.begun.map(|(at, _)| at));
            if let (Some((earlier, last)), Some(begun)) = (before, begun)
                && last.last > begun
            {
                violations.push(Violation::Overlap(
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

    /// Checks that no process of the last attempt was seen after the end of the task.
    fn check_orphans(&self, tid: Tid, clock_offset: u64, violations: &mut Vec<Violation>) {
        let Some(end) = self.end() else { return };
        let over = end.at.as_nanosecond() as u64 - clock_offset + CLOCK_SLACK;
        // If two attempts had the number, the process may belong to the one that did not end the
        // task.
        let only = self
            .attempts
            .get(&end.attempt)
            .filter(|attempt| attempt.begins == 1);
        let orphan = only.and_then(|attempt| attempt.last_orphan);
        if let Some(orphan) = orphan.filter(|orphan| *orphan > over) {
            violations.push(Violation::OrphanAfterEnd(
                tid,
                Duration::from_nanos(orphan - over),
            ));
        }
    }
}

/// Checks that each task that chained one has exactly the chained task of the attempt that ended
/// it, and no task without success has one.
fn check_chains(
    evidence: &Evidence,
    histories: &BTreeMap<Tid, History<'_>>,
    figures: &mut Figures,
    violations: &mut Vec<Violation>,
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
            // The chained task was a write, and was lost like one.
            (Some(attempt), []) if history.ran_in(attempt, evidence) => figures.forgotten += 1,
            (Some(_), []) => violations.push(Violation::MissingFollowUp(*tid)),
            _ => violations.push(Violation::WrongFollowUp(*tid, success, by)),
        }
    }
    violations.extend(
        followed
            .into_iter()
            .map(|(tid, by)| Violation::WrongFollowUp(tid, None, by)),
    );
}

/// Checks that every accepted message became exactly one task.
fn check_messages(evidence: &Evidence, figures: &mut Figures, violations: &mut Vec<Violation>) {
    let mut parse_tasks: HashMap<Tid, usize> = HashMap::new();
    evidence
        .messages
        .iter()
        .for_each(|letter| *parse_tasks.entry(letter.message).or_default() += 1);
    let written = evidence
        .batches
        .iter()
        .filter(|batch| batch.is_messages)
        .flat_map(|batch| &batch.accepted);
    violations.extend(
        written
            .filter(|message| !parse_tasks.contains_key(message))
            .map(|message| Violation::MessageLost(*message)),
    );
    for (message, tasks) in parse_tasks {
        match tasks {
            1 => figures.messages += 1,
            _ => violations.push(Violation::MessageDuplicated(message, tasks)),
        }
    }
}

/// Checks that every due time was fired once: missed ones are caught up.
fn check_trigger_tasks(
    trigger_tasks: &[TriggerTask],
    figures: &mut Figures,
    violations: &mut Vec<Violation>,
) {
    let mut dues: Vec<u64> = trigger_tasks.iter().map(|tick| tick.due).collect();
    dues.sort_unstable();
    figures.trigger_tasks = dues.len();
    for pair in dues.windows(2) {
        let gap = Duration::from_nanos(pair[1] - pair[0]);
        if gap.is_zero() {
            violations.push(Violation::FiredTwice(pair[0]));
        } else if gap != TRIGGER_INTERVAL {
            violations.push(Violation::NotFired(pair[0], gap));
        }
    }
}

/// The periods in which workers were stopped.
fn worker_stops(injected_faults: &[InjectedFault]) -> Vec<(u32, Range<u64>)> {
    let stop = |injected: &InjectedFault| match injected.kind {
        FaultKind::StopWorker(time) => Some((
            injected.worker,
            injected.at..injected.at + time.as_nanos() as u64,
        )),
        _ => None,
    };
    injected_faults.iter().filter_map(stop).collect()
}

/// The periods in which the server or network was down.
fn outages(injected_faults: &[InjectedFault]) -> Vec<Range<u64>> {
    let outage = |injected: &InjectedFault| match injected.kind {
        FaultKind::KillServer(time)
        | FaultKind::Net(_, time)
        | FaultKind::LoseLastWrites { down: time, .. }
        | FaultKind::Failover { lag: time } => {
            Some(injected.at..injected.at + time.as_nanos() as u64)
        }
        _ => None,
    };
    injected_faults.iter().filter_map(outage).collect()
}

/// Measures the time from the kill of a worker to the reclaim of its attempts, and to their next
/// start.
fn measure_reclaims(
    evidence: &Evidence,
    histories: &BTreeMap<Tid, History<'_>>,
    figures: &mut Figures,
) {
    let mut by_runner: HashMap<u32, Vec<(u64, Tid, u32)>> = HashMap::new();
    for line in evidence
        .lines
        .iter()
        .filter(|line| matches!(line.mark, Mark::Begin | Mark::BeginInHost))
    {
        by_runner
            .entry(line.ppid)
            .or_default()
            .push((line.at, line.tid, line.attempt));
    }
    let outages = outages(&evidence.injected_faults);
    // A worker that was stopped when it was killed had lost its lease before.
    let stops = worker_stops(&evidence.injected_faults);
    let is_awake = |injected: &&InjectedFault| {
        !stops
            .iter()
            .any(|(pid, stop)| *pid == injected.worker && stop.contains(&injected.at))
    };
    let is_kill = |injected: &&InjectedFault| {
        matches!(
            injected.kind,
            FaultKind::KillWorker | FaultKind::KillGroupProcess
        )
    };
    for injected in evidence
        .injected_faults
        .iter()
        .filter(is_kill)
        .filter(is_awake)
    {
        for runner in &injected.runners {
            // The attempt that the runner began last before its worker was killed.
            let begun = by_runner.get(runner).into_iter().flatten();
            let Some((_, tid, attempt)) = begun.filter(|(at, ..)| *at < injected.at).max() else {
                continue;
            };
            let Some(history) = histories.get(tid) else {
                continue;
            };
            let reclaimed = history
                .events
                .iter()
                .find(|event| event.event == TaskEventKind::Reclaimed && event.attempt == *attempt);
            // No event if the attempt had ended and was recorded.
            let Some(reclaimed) = reclaimed else { continue };
            let took = (reclaimed.at.as_nanosecond() as u64).saturating_sub(injected.wall);
            let is_cut_off = outages
                .iter()
                .any(|outage| outage.start < injected.at + took && injected.at < outage.end);
            let taken = if is_cut_off {
                &mut figures.reclaim_times_with_outage
            } else {
                &mut figures.reclaim_times
            };
            taken.push(Duration::from_nanos(took));
            let next = history
                .attempts
                .range(attempt + 1..)
                .find_map(|(_, next)| next.begun);
            figures
                .rerun_times
                .extend(next.map(|(at, _)| Duration::from_nanos(at.saturating_sub(injected.at))));
        }
    }
    for times in [
        &mut figures.reclaim_times,
        &mut figures.reclaim_times_with_outage,
        &mut figures.rerun_times,
    ] {
        times.sort_unstable();
    }
}

/// Counts the attempts that were reclaimed from workers without an injected fault.
fn count_reclaims_from_healthy(
    evidence: &Evidence,
    histories: &BTreeMap<Tid, History<'_>>,
    figures: &mut Figures,
) {
    let hurts_worker = |kind| {
        let kills = matches!(
            kind,
            FaultKind::KillWorker | FaultKind::KillGroupProcess | FaultKind::KillManager
        );
        kills
            || matches!(
                kind,
                FaultKind::StopWorker(_) | FaultKind::Drain | FaultKind::StopNow
            )
    };
    let hurts: Vec<&InjectedFault> = evidence
        .injected_faults
        .iter()
        .filter(|injected| hurts_worker(injected.kind))
        .collect();
    let hurt: HashSet<u32> = hurts
        .iter()
        .flat_map(|injected| injected.runners.iter().copied())
        .collect();
    // A runner that was killed earlier is not in the list of its worker's runners at the later
    // fault, though its result may still have been on its way.
    let of_runner = evidence.injected_faults.iter().flat_map(|injected| {
        injected
            .runners
            .iter()
            .map(|runner| (*runner, injected.worker))
    });
    let of_runner: HashMap<u32, u32> = of_runner.collect();
    let is_hurt = |(begun, runner): (u64, u32), taken: u64| {
        let lies_between =
            |injected: &&&InjectedFault| injected.at > begun && injected.wall < taken;
        let mut between = hurts.iter().filter(lies_between);
        hurt.contains(&runner)
            || between.any(|injected| of_runner.get(&runner) == Some(&injected.worker))
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
    let outages = outages(&evidence.injected_faults);
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
            figures.reclaimed_when_disconnected += 1;
        } else {
            figures
                .reclaimed_from_healthy
                .push((event.tid, event.attempt));
        }
    }
}

/// Returns a violation if a submit was stored in part.
fn check_submit_is_atomic(batch: &Submitted) -> Option<Violation> {
    let violation = |stored| {
        Some(Violation::PartialSubmit {
            batch: batch.index,
            planned: batch.planned,
            stored,
        })
    };
    if batch.succeeded {
        let known = if batch.is_run {
            batch.stored.len()
        } else {
            batch.accepted.len()
        };
        return if known == batch.planned {
            None
        } else {
            violation(known)
        };
    }
    let stored = batch.stored.len();
    if stored == batch.planned || stored.is_multiple_of(GROUP) && stored < batch.planned {
        None
    } else {
        violation(stored)
    }
}

/// Compares the broker's counters with its log.
fn compare_counts(
    task_counts: &TaskCounts,
    figures: &Figures,
    histories: &BTreeMap<Tid, History<'_>>,
) -> Vec<Violation> {
    let counts = [
        ("tasks", task_counts.total(), histories.len()),
        ("completed tasks", task_counts.completed, figures.completed),
        ("failed tasks", task_counts.failed, figures.failed),
        ("killed tasks", task_counts.killed, figures.killed),
    ];
    let differ = counts
        .into_iter()
        .filter(|(_, counted, known)| *counted != *known as u64);
    differ
        .map(|(kind, counted, known)| {
            Violation::CountMismatch(format!(
                "the broker counts {counted} {kind}, its log has {known}"
            ))
        })
        .collect()
}

#[cfg(test)]
mod tests;
