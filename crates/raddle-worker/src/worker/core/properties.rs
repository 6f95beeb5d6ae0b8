//! Property tests of `WorkerCore`: invariants under random event sequences.

use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;
use raddle_model::ControlCommand;
use raddle_runner::RunnerCommand;

use super::{super::stopping::KILL_TIMEOUT, tests::*, *};

/// A random step of the core's environment. Numbers choose among what is possible at that point.
#[derive(Clone, Debug)]
enum Turn {
    /// Time passes, up to the core's next timer.
    Wait(u8),
    Claimed(u8),
    Fails(u8),
    Ends(u8, u8),
    Settles(u8, u8),
    Refused(u8),
    Unwritten(u8),
    Told(u8, u8),
    Asked,
    /// The broker has forgotten a claim, or assigns an attempt that the worker does not hold.
    Audited(u8),
    LeaseLost,
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let number = any::<u8>;
    let turn = prop_oneof![
        6 => number().prop_map(Turn::Wait),
        8 => number().prop_map(Turn::Claimed),
        1 => number().prop_map(Turn::Fails),
        8 => (number(), number()).prop_map(|(a, b)| Turn::Ends(a, b)),
        8 => (number(), number()).prop_map(|(a, b)| Turn::Settles(a, b)),
        1 => number().prop_map(Turn::Refused),
        1 => number().prop_map(Turn::Unwritten),
        4 => (number(), number()).prop_map(|(a, b)| Turn::Told(a, b)),
        2 => number().prop_map(Turn::Audited),
        1 => Just(Turn::Asked),
        1 => Just(Turn::LeaseLost),
    ];
    proptest::collection::vec(turn, 0..120)
}

fn policies() -> impl Strategy<Value = Options> {
    let idle_exit = prop_oneof![3 => Just(None), 1 => Just(Some(Duration::ZERO)), 1 => Just(Some(at_millis(700)))];
    let max_tasks = prop_oneof![3 => Just(None), 1 => (1..6u64).prop_map(Some)];
    let retire_at =
        prop_oneof![3 => Just(None), 1 => (0..3000u64).prop_map(|millis| Some(at_millis(millis)))];
    (1..4u32, any::<bool>(), idle_exit, max_tasks, retire_at).prop_map(
        |(slots, only, idle_exit, max_tasks, max_uptime)| match only {
            true => Options {
                concurrency: 1,
                only: Some(tid(10)),
                idle_exit: None,
                ..options()
            },
            false => Options {
                concurrency: slots,
                idle_exit,
                max_tasks,
                max_uptime,
                ..options()
            },
        },
    )
}

/// The environment of a core. It keeps the guarantees of the service, the slots and the
/// `CompletionBatcher`.
struct Around {
    core: WorkerCore,
    now: Duration,
    asked: u32,
    claiming: Option<u32>,
    attempts: BTreeMap<u64, u32>,
    /// How each claim ended.
    fates: BTreeMap<AttemptId, Vec<String>>,
    slots: Vec<Option<AttemptId>>,
    /// Slots that got a STOP or KILL.
    ordered: Vec<bool>,
    attempts_started: u64,
    unrecorded: Vec<AttemptId>,
    hasty: bool,
    /// Attempts of task 0 that the broker has assigned without the core knowing.
    unheard: u32,
    end: Option<Result<LoopEnd>>,
}

impl Around {
    fn new(options: Options) -> Self {
        let slots = options.slots();
        let mut around = Self {
            core: idle(options),
            now: Duration::ZERO,
            asked: 0,
            claiming: None,
            attempts: BTreeMap::new(),
            fates: BTreeMap::new(),
            slots: vec![None; slots],
            ordered: vec![false; slots],
            attempts_started: 0,
            unrecorded: Vec::new(),
            hasty: false,
            unheard: 0,
            end: None,
        };
        around.happens(WorkerLoopEvent::StopRequested(0));
        around
    }

    fn happens(&mut self, event: WorkerLoopEvent) {
        for effect in self.core.handle_event(event, self.now) {
            assert!(self.end.is_none(), "{effect:?} after the end");
            match effect {
                WorkerEffect::Claim { max, .. } => {
                    assert!(max > 0);
                    assert_eq!(self.claiming.replace(max), None, "two claims at a time");
                }
                WorkerEffect::CancelClaim => {
                    assert!(self.claiming.take().is_some(), "no claim was under way")
                }
                WorkerEffect::Run { slot, task } => {
                    assert!(
                        !self.core.paused && self.asked == 0 && !self.core.lease_lost,
                        "started an attempt while not taking tasks"
                    );
                    assert_eq!(
                        self.slots[slot].replace(task.attempt_id),
                        None,
                        "the slot is in use"
                    );
                    self.ordered[slot] = false;
                    self.attempts_started += 1;
                    let (max_tasks, retire_at) = (self.core.options.max_tasks, self.core.retire_at);
                    assert!(
                        max_tasks.is_none_or(|max| self.attempts_started <= max),
                        "started more than max_tasks attempts"
                    );
                    assert!(
                        retire_at.is_none_or(|at| self.now <= at),
                        "started after max_uptime"
                    );
                }
                WorkerEffect::SendCommand { slot, command } => {
                    assert!(self.slots[slot].is_some(), "a command to an empty slot");
                    self.ordered[slot] |=
                        matches!(command, RunnerCommand::Stop | RunnerCommand::Kill);
                }
                WorkerEffect::Write(PendingWrite::Started(_)) => {}
                WorkerEffect::Write(PendingWrite::Finish(finish)) => {
                    self.ends(finish.attempt_id, "finish", true)
                }
                WorkerEffect::Write(PendingWrite::FinishUnstarted { attempt_id, .. }) => {
                    self.ends(attempt_id, "unbegun", true)
                }
                WorkerEffect::Write(PendingWrite::Release(release)) => {
                    self.ends(release.attempt_id, "release", true)
                }
                WorkerEffect::Abandon(attempt_id) => self.ends(attempt_id, "forsaken", false),
                WorkerEffect::StartDeadline => assert!(
                    !std::mem::replace(&mut self.hasty, true),
                    "the deadline starts once"
                ),
                WorkerEffect::RunJob(_)
                | WorkerEffect::Purge
                | WorkerEffect::Audit { .. }
                | WorkerEffect::Warn { .. } => {}
                WorkerEffect::End(end) => self.end = Some(end),
            }
        }
    }

    fn ends(&mut self, attempt_id: AttemptId, how: &str, is_written: bool) {
        if attempt_id.tid == tid(0) {
            self.fates.entry(attempt_id).or_default();
        }
        self.fates
            .get_mut(&attempt_id)
            .expect("only what was claimed ends")
            .push(how.into());
        assert!(!self.slots.contains(&Some(attempt_id)), "it still runs");
        self.unrecorded.extend(is_written.then_some(attempt_id));
    }

    fn take(&mut self, turn: &Turn) {
        let pick = |number: u8, of: usize| (of > 0).then(|| usize::from(number) % of);
        match *turn {
            Turn::Wait(part) => {
                let Some(until) = self.core.wake_at() else {
                    return;
                };
                let until = until.max(self.now);
                self.now += (until - self.now) * u32::from(part % 4 + 1) / 4;
                if self.now >= until {
                    self.happens(WorkerLoopEvent::TimerFired);
                    let again = self.core.wake_at();
                    assert!(
                        self.end.is_some() || again.is_none_or(|again| again > self.now),
                        "it waits for {again:?}, which is past"
                    );
                }
            }
            Turn::Claimed(number) => {
                let Some(max) = self.claiming.take() else {
                    return;
                };
                let count = u32::from(number) % (max + 1);
                if count == 0 {
                    return self.happens(WorkerLoopEvent::Claimed(Ok(ClaimResult::Empty)));
                }
                let only = self.core.options.only;
                let numbers = (0..u64::from(count)).map(|n| {
                    if only.is_some() {
                        10
                    } else {
                        10 + (n + u64::from(number)) % 200
                    }
                });
                let claims: Vec<LeasedTask> = numbers
                    .map(|number| {
                        let attempt = self.attempts.entry(number).or_default();
                        *attempt += 1;
                        LeasedTask {
                            attempt_id: AttemptId {
                                attempt: *attempt,
                                ..attempt_id(number)
                            },
                            ..claim(number)
                        }
                    })
                    .collect();
                self.fates
                    .extend(claims.iter().map(|claim| (claim.attempt_id, Vec::new())));
                self.happens(WorkerLoopEvent::Claimed(Ok(ClaimResult::Tasks(claims))));
            }
            Turn::Fails(number) => {
                if self.claiming.take().is_some() {
                    let own = Error::NotFound(self.core.tid);
                    let errors = [gone(), full(), unreachable(), own, Error::Closed];
                    self.happens(WorkerLoopEvent::Claimed(Err(errors
                        [usize::from(number) % errors.len()]
                    .clone())));
                }
            }
            Turn::Ends(slot, how) => {
                let Some(slot) = pick(slot, self.slots.len()) else {
                    return;
                };
                let Some(attempt_id) = self.slots[slot].take() else {
                    return;
                };
                let ordered = std::mem::take(&mut self.ordered[slot]);
                let exit = match how % 4 {
                    1 if ordered => ExitStatus::Cancelled,
                    2 => ExitStatus::Killed,
                    3 => ExitStatus::ResourceExhausted {
                        message: "no more".into(),
                    },
                    _ => OK,
                };
                self.happens(WorkerLoopEvent::AttemptEnded {
                    slot,
                    finish: finish(attempt_id, exit),
                    killed: false,
                });
            }
            Turn::Refused(which) => {
                let Some(at) = pick(which, self.unrecorded.len()) else {
                    return;
                };
                let attempt_id = self.unrecorded.swap_remove(at);
                self.happens(WorkerLoopEvent::WriteRefused {
                    attempt_id,
                    error: Error::Closed,
                });
            }
            Turn::Settles(which, how) => {
                let Some(at) = pick(which, self.unrecorded.len()) else {
                    return;
                };
                let attempt_id = self.unrecorded.swap_remove(at);
                let verdicts = [DONE, AGAIN, Some(CompletionOutcome::Stale), None];
                self.happens(WorkerLoopEvent::Recorded {
                    attempt_id,
                    outcome: verdicts[usize::from(how) % 4],
                });
            }
            Turn::Unwritten(why) => {
                if !self.unrecorded.is_empty() && !self.hasty {
                    self.happens(WorkerLoopEvent::WriteFailed(
                        [gone(), full(), unreachable()][usize::from(why) % 3].clone(),
                    ));
                }
            }
            Turn::Told(whom, what) => {
                let words = [
                    ControlCommand::Stop,
                    ControlCommand::Kill,
                    ControlCommand::Pause,
                    ControlCommand::Resume,
                    ControlCommand::Ping,
                    ControlCommand::Status,
                ];
                let known: Vec<Tid> = self
                    .fates
                    .keys()
                    .map(|attempt_id| attempt_id.tid)
                    .chain([tid(1), tid(999)])
                    .collect();
                let whom = known[usize::from(whom) % known.len()];
                let word = words[usize::from(what) % words.len()];
                // Commands that end the worker are rare, because nothing else happens after one.
                if whom == tid(1)
                    && matches!(word, ControlCommand::Stop | ControlCommand::Kill)
                    && what < 200
                {
                    return;
                }
                self.asked += u32::from(
                    whom == tid(1) && matches!(word, ControlCommand::Stop | ControlCommand::Kill),
                );
                let message = ControlMessage {
                    requeue: what % 2 == 0,
                    ..ControlMessage::new(word)
                };
                self.happens(WorkerLoopEvent::Command { tid: whom, message });
            }
            Turn::Audited(which) => {
                let held = self.core.held_attempts();
                let mut assigned: HashSet<AttemptId> = held.iter().copied().collect();
                match pick(which, held.len() + 1) {
                    Some(0) | None => {
                        self.unheard += 1;
                        assigned.insert(AttemptId {
                            attempt: self.unheard,
                            ..attempt_id(0)
                        });
                        // Only an attempt that two audits in a row report is released.
                        self.happens(WorkerLoopEvent::Audited {
                            held: held.clone(),
                            assigned: assigned.clone(),
                        });
                        if self.end.is_none() {
                            self.happens(WorkerLoopEvent::Audited {
                                held: self.core.held_attempts(),
                                assigned,
                            });
                        }
                        return;
                    }
                    Some(at) => _ = assigned.remove(&held[at - 1]),
                }
                self.happens(WorkerLoopEvent::Audited { held, assigned });
            }
            Turn::Asked => {
                self.asked += 1;
                self.happens(WorkerLoopEvent::StopRequested(self.asked));
            }
            Turn::LeaseLost => self.happens(WorkerLoopEvent::LeaseLost),
        }
    }

    /// Lets everything that is under way end.
    fn conclude(&mut self) {
        for _ in 0..4 {
            (0..self.slots.len() as u8).for_each(|slot| self.unless_over(&Turn::Ends(slot, 1)));
            (0..self.unrecorded.len()).for_each(|_| self.unless_over(&Turn::Settles(0, 0)));
        }
    }

    fn unless_over(&mut self, turn: &Turn) {
        if self.end.is_none() {
            self.take(turn);
        }
    }
}

proptest! {
    #[test]
    fn every_claim_ends_once(policy in policies(), turns in turns()) {
        let mut around = Around::new(policy);
        turns.iter().for_each(|turn| around.unless_over(turn));
        around.unless_over(&Turn::Asked);
        around.conclude();
        prop_assert!(around.end.is_some(), "it was asked to stop, and nothing is left to do");
        // Only a kill that times out leaves attempts open, and `open` lists them.
        let out_of_time = around.core.exit_at.is_some_and(|by| by <= around.now);
        let left: Vec<AttemptId> = around.core.open_attempts().collect();
        prop_assert!(left.is_empty() || out_of_time, "{:?}", left);
        for (attempt_id, fates) in &around.fates {
            let expected = usize::from(!around.slots.contains(&Some(*attempt_id)));
            prop_assert_eq!(fates.len(), expected, "{:?}: {:?}", attempt_id, fates);
            prop_assert!(expected == 1 || left.contains(attempt_id));
        }
    }

    #[test]
    fn a_killed_worker_exits_without_any_answer(policy in policies(), turns in turns()) {
        let mut around = Around::new(policy);
        turns.iter().for_each(|turn| around.unless_over(turn));
        if around.end.is_none() {
            let killed_at = around.now;
            around.happens(command(tid(1), ControlCommand::Kill));
            prop_assert!(around.hasty);
            // No slot and no batcher answers any more: only the timers can end the worker.
            for _ in 0..4 {
                around.unless_over(&Turn::Wait(3));
            }
            prop_assert!(around.end.is_some());
            prop_assert!(around.now <= killed_at + KILL_TIMEOUT);
        }
        for fates in around.fates.values() {
            prop_assert!(fates.len() <= 1, "{:?}", fates);
        }
    }
}
