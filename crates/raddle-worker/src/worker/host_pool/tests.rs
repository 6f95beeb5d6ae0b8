//! `PoolCore` without I/O or a clock.

use std::{collections::BTreeMap, time::Duration};

use raddle_broker::{AttemptId, LeasedTask};
use raddle_model::{
    ExitStatus, Target, TaskSpec, TidClock,
    host::{
        AttemptRef, FromHost, HostDecoder, HostHello, HostRoutine, PROTOCOL, Ping, RoutineKind,
        ToHost,
    },
};
use raddle_runner::RunnerCommand;

use super::core::{Grace, HostEffect, HostEvent, HostId, PoolCore};
use crate::host::{HostOptions, HostProgram};

const SECOND: Duration = Duration::from_secs(1);

/// A pool, what it has done, and the time.
struct Pool {
    core: PoolCore,
    now: Duration,
    effects: Vec<HostEffect>,
    clock: TidClock,
}

impl Pool {
    fn new(change: impl FnOnce(&mut HostOptions)) -> Self {
        let mut options = HostOptions::new("test", HostProgram::Own, 1);
        options.routines = BTreeMap::from([
            ("nap".into(), RoutineKind::Async),
            ("plain".into(), RoutineKind::Plain),
        ]);
        change(&mut options);
        let grace = Grace {
            stop: 5 * SECOND,
            overtime: 2 * SECOND,
        };
        let mut pool = Self {
            core: PoolCore::new(options, grace),
            now: Duration::ZERO,
            effects: Vec::new(),
            clock: TidClock::resume(0),
        };
        pool.on(HostEvent::Time);
        pool
    }

    fn on(&mut self, event: HostEvent) {
        self.core.on(event, self.now);
        self.effects.extend(self.core.take_effects());
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        self.on(HostEvent::Time);
    }

    fn run(&mut self, slot: usize, routine: &str) {
        let tid = self.clock.next(1);
        let claim = Box::new(LeasedTask {
            attempt_id: AttemptId {
                tid,
                attempt: 1,
                owner: tid,
            },
            spec: TaskSpec::new(Target::Routine(routine.into())),
            fencing_token: 1,
        });
        self.on(HostEvent::Run { slot, claim });
    }

    fn say(&mut self, host: HostId, message: FromHost) {
        self.on(HostEvent::Messages {
            host,
            messages: vec![(message, None)],
        });
    }

    fn ready(&mut self, host: HostId) {
        let hello = HostHello {
            protocol: PROTOCOL,
            language: String::new(),
            routines: ["nap", "plain"]
                .map(|name| (name.to_owned(), HostRoutine::default()))
                .into(),
            concurrency: None,
            threads: None,
            encodings: Vec::new(),
        };
        self.say(host, FromHost::Hello(hello));
        self.say(host, FromHost::Ready {});
    }

    fn die(&mut self, host: HostId, signal: i32) {
        self.on(HostEvent::Exited {
            host,
            exit: ExitStatus::Signal { signal },
        });
    }

    /// Takes what was done so far: hosts that were started, runs that were sent with their hosts,
    /// and ends by slot.
    fn take(&mut self) -> Done {
        let mut done = Done::default();
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                HostEffect::Spawn(host) => done.spawned.push(host),
                HostEffect::Kill(host) => done.killed.push(host),
                HostEffect::Fresh { slot, .. } => done.fresh.push(slot),
                HostEffect::Ended { slot, finish, .. } => {
                    done.ended.push((slot, finish.report.exit));
                }
                HostEffect::Send(host, bytes) => {
                    let mut decoder = HostDecoder::default();
                    decoder.buffer().extend(bytes);
                    while let Some((message, _)) = decoder.next_message().unwrap() {
                        match message {
                            ToHost::Start(start) => done.started.push((host, start.id)),
                            ToHost::Cancel(cancel) => {
                                done.cancelled.push((cancel.id, cancel.force))
                            }
                            ToHost::Stop(_) => done.stopped.push(host),
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        done
    }
}

#[derive(Default)]
struct Done {
    spawned: Vec<HostId>,
    killed: Vec<HostId>,
    stopped: Vec<HostId>,
    started: Vec<(HostId, u64)>,
    cancelled: Vec<(u64, bool)>,
    fresh: Vec<usize>,
    ended: Vec<(usize, ExitStatus)>,
}

const OK: ExitStatus = ExitStatus::Code { code: 0 };

#[test]
fn attempts_wait_for_room_and_end_with_their_answer() {
    let mut pool = Pool::new(|options| options.concurrency = 2);
    for slot in 0..3 {
        pool.run(slot, "nap");
    }
    assert_eq!(pool.take().spawned, [1]);
    pool.ready(1);
    assert_eq!(pool.take().started, [(1, 1), (1, 2)]);
    pool.say(1, FromHost::Ack(AttemptRef { id: 1 }));
    pool.say(1, FromHost::Result(AttemptRef { id: 1 }));
    let done = pool.take();
    assert_eq!(done.ended, [(0, OK)]);
    assert_eq!(done.started, [(1, 3)]);
    pool.run(7, "plain");
    assert_eq!(pool.take().started, [(1, 4)], "threads are counted apart");
}

#[test]
fn a_crash_leads_from_alone_to_a_fresh_process() {
    let mut pool = Pool::new(|_| {});
    pool.ready(1);
    for slot in 0..3 {
        pool.run(slot, "nap");
    }
    // The third had not begun.
    for id in [1, 2] {
        pool.say(1, FromHost::Ack(AttemptRef { id }));
    }
    pool.take();
    pool.die(1, 11);
    let done = pool.take();
    assert!(done.ended.is_empty());
    assert_eq!(
        done.spawned,
        [2, 3],
        "another for all, and one for suspects"
    );
    pool.ready(2);
    assert_eq!(
        pool.take().started,
        [(2, 4)],
        "the innocent one runs with others"
    );
    pool.ready(3);
    assert_eq!(
        pool.take().started,
        [(3, 5)],
        "suspects run one after the other"
    );
    pool.say(3, FromHost::Ack(AttemptRef { id: 5 }));
    pool.say(3, FromHost::Result(AttemptRef { id: 5 }));
    let done = pool.take();
    assert_eq!(
        (done.ended.as_slice(), done.started.as_slice()),
        (&[(0, OK)][..], &[(3, 6)][..])
    );
    pool.say(3, FromHost::Ack(AttemptRef { id: 6 }));
    pool.die(3, 11);
    assert_eq!(pool.take().fresh, [1]);
}

#[test]
fn a_first_kill_from_outside_makes_no_attempt_a_suspect() {
    let mut pool = Pool::new(|_| {});
    pool.ready(1);
    pool.run(0, "nap");
    pool.say(1, FromHost::Ack(AttemptRef { id: 1 }));
    pool.take();
    pool.die(1, 9);
    assert_eq!(pool.take().spawned, [2]);
    pool.ready(2);
    assert_eq!(pool.take().started, [(2, 2)]);
    pool.say(2, FromHost::Ack(AttemptRef { id: 2 }));
    pool.die(2, 9);
    assert_eq!(pool.take().spawned, [3, 4], "the second time it runs alone");
}

#[test]
fn an_attempt_that_does_not_end_is_the_only_one_that_pays_for_its_host() {
    let mut pool = Pool::new(|_| {});
    pool.ready(1);
    pool.core.set_timeout(0, Some(SECOND));
    for slot in 0..2 {
        pool.run(slot, "nap");
    }
    for id in [1, 2] {
        pool.say(1, FromHost::Ack(AttemptRef { id }));
    }
    pool.take();
    pool.wait(SECOND);
    assert_eq!(pool.take().cancelled, [(1, false)]);
    pool.wait(2 * SECOND);
    assert_eq!(pool.take().cancelled, [(1, true)]);
    pool.wait(SECOND);
    assert_eq!(pool.take().killed, [1]);
    pool.die(1, 9);
    let done = pool.take();
    assert_eq!(done.ended, [(0, ExitStatus::Timeout)]);
    pool.ready(2);
    assert_eq!(pool.take().started, [(2, 3)], "the other runs again");
}

#[test]
fn a_stop_ends_an_attempt_that_waits_at_once() {
    let mut pool = Pool::new(|_| {});
    pool.run(0, "nap");
    pool.on(HostEvent::Order {
        slot: 0,
        order: RunnerCommand::Stop,
    });
    assert_eq!(pool.take().ended, [(0, ExitStatus::Cancelled)]);
}

#[test]
fn a_host_that_answers_for_an_unknown_run_is_killed() {
    let mut pool = Pool::new(|_| {});
    pool.ready(1);
    pool.say(1, FromHost::Result(AttemptRef { id: 9 }));
    let done = pool.take();
    assert_eq!(done.killed, [1]);
}

#[test]
fn a_retired_host_works_until_its_successor_is_ready() {
    let mut pool = Pool::new(|options| options.max_tasks = Some(5));
    pool.ready(1);
    let mut runs = 0;
    while pool.take().spawned != [2] || runs == 0 {
        runs += 1;
        assert!(runs <= 6, "it is never replaced");
        pool.run(0, "nap");
        pool.say(1, FromHost::Result(AttemptRef { id: runs }));
    }
    pool.run(0, "nap");
    assert_eq!(pool.take().started.len(), 1, "the old one still works");
    pool.ready(2);
    assert!(
        pool.take().stopped.is_empty(),
        "not while it runs something"
    );
    pool.say(1, FromHost::Result(AttemptRef { id: runs + 1 }));
    assert_eq!(pool.take().stopped, [1]);
    pool.run(0, "nap");
    assert_eq!(pool.take().started, [(2, runs + 2)]);
}

#[test]
fn tasks_go_back_while_no_host_can_be_started() {
    let mut pool = Pool::new(|_| {});
    pool.run(0, "nap");
    pool.take();
    pool.die(1, 6);
    let done = pool.take();
    assert!(
        matches!(&done.ended[..], [(0, ExitStatus::ResourceExhausted { message })] if message.contains("signal 6")),
        "{:?}",
        done.ended
    );
    assert!(done.spawned.is_empty(), "not at once");
    pool.wait(SECOND);
    assert_eq!(pool.take().spawned, [2]);
}

#[test]
fn a_blocked_loop_is_replaced_and_an_idle_host_is_left_alone() {
    let mut pool = Pool::new(|options| options.blocked_timeout = 3 * SECOND);
    pool.ready(1);
    assert_eq!(
        pool.core.wake_at(),
        Some(60 * SECOND),
        "only the limit of its start"
    );
    pool.run(0, "nap");
    pool.say(1, FromHost::Ack(AttemptRef { id: 1 }));
    pool.wait(SECOND);
    pool.say(1, FromHost::Pong(Ping { n: 1 }));
    for _ in 0..3 {
        pool.wait(SECOND);
        assert!(pool.take().killed.is_empty());
    }
    pool.wait(SECOND);
    assert_eq!(pool.take().killed, [1]);
}

#[test]
fn a_host_that_breaks_the_order_of_messages_is_killed() {
    let hello = || {
        FromHost::Hello(HostHello {
            protocol: PROTOCOL,
            language: String::new(),
            routines: ["nap", "plain"]
                .map(|name| (name.to_owned(), HostRoutine::default()))
                .into(),
            concurrency: None,
            threads: None,
            encodings: Vec::new(),
        })
    };
    for messages in [
        vec![FromHost::Ready {}],
        vec![hello(), hello()],
        vec![hello(), FromHost::Ack(AttemptRef { id: 1 })],
        vec![hello(), FromHost::Result(AttemptRef { id: 1 })],
        vec![
            hello(),
            FromHost::Ready {},
            FromHost::Item(AttemptRef { id: 1 }),
        ],
    ] {
        let mut pool = Pool::new(|_| {});
        let shown = format!("{messages:?}");
        for message in messages {
            pool.say(1, message);
        }
        assert_eq!(pool.take().killed, [1], "{shown}");
    }
}

#[test]
fn a_host_without_a_routine_of_the_others_is_killed() {
    let mut pool = Pool::new(|_| {});
    let hello = HostHello {
        protocol: PROTOCOL,
        language: String::new(),
        routines: [("nap".to_owned(), HostRoutine::default())].into(),
        concurrency: None,
        threads: None,
        encodings: Vec::new(),
    };
    pool.say(1, FromHost::Hello(hello));
    assert_eq!(pool.take().killed, [1]);
}

#[test]
fn a_failed_start_is_known_until_a_host_is_ready() {
    let mut pool = Pool::new(|_| {});
    assert_eq!(pool.core.start_failure(), None);
    pool.die(1, 6);
    assert!(pool.core.start_failure().unwrap().contains("signal 6"));
    pool.wait(SECOND);
    pool.ready(2);
    assert_eq!(pool.core.start_failure(), None);
}

#[test]
fn an_old_host_is_replaced() {
    let mut pool = Pool::new(|options| options.max_age = Some(100 * SECOND));
    pool.ready(1);
    pool.wait(79 * SECOND);
    assert_eq!(pool.take().spawned, [1], "not before a fifth of its age");
    pool.wait(21 * SECOND);
    assert_eq!(pool.take().spawned, [2]);
    pool.ready(2);
    assert_eq!(pool.take().stopped, [1]);
}
