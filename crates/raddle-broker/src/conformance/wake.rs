//! A change through one handle wakes callers that wait on another.
//!
//! How fast that is, is measured as the best of a few rounds. A lost wake-up that a slow timer
//! makes good misses every one of them; a machine that is busy with something else for a moment
//! does not.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use raddle_model::{
    ControlCommand, ControlMessage, HumanDuration, QueueName, TaskSpec, worker::Heartbeat,
};

use super::{Fixture, Handle, support::*};
use crate::{ClaimRequest, OutputStream, PeekRequest, Result, TaskCursor};

const ROUNDS: u32 = 4;
const FAST: Duration = Duration::from_millis(200);
/// Enough for a waiter to have gone to sleep. If it has not, the round says nothing, but does not
/// fail.
const SETTLE: Duration = Duration::from_millis(40);

/// Lets `waiter` wait, then makes `change`, until a waiter is woken fast enough.
async fn woken<W, C>(mut waiter: impl FnMut() -> W, mut change: impl FnMut() -> C) -> Result<()>
where
    W: Future<Output = Result<bool>> + Send + 'static,
    C: Future<Output = Result<()>>,
{
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let waiting = tokio::spawn(waiter());
        tokio::time::sleep(SETTLE).await;
        change().await?;
        let began = Instant::now();
        assert!(
            waiting.await.expect("waiting does not panic")?,
            "there was something to be found"
        );
        took.push(began.elapsed());
        if began.elapsed() < FAST {
            return Ok(());
        }
    }
    panic!("woken after {took:?}")
}

/// A claim on another handle that waits for a task, and gives back whether it got one.
fn claimer(
    other: &Handle,
    owner: raddle_model::Tid,
) -> impl Future<Output = Result<bool>> + Send + 'static {
    let other = other.clone();
    async move {
        Ok(!other
            .claim(ClaimRequest {
                wait: SOON,
                ..request(owner)
            })
            .await?
            .is_empty())
    }
}

/// The most basic promise of a queue.
pub async fn a_submission_wakes_a_claim(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let owner = worker(&other).await?;
    woken(
        || claimer(&other, owner),
        async || submit(broker, spec("task")).await.map(drop),
    )
    .await
}

/// Given back, it is there for others.
pub async fn a_release_wakes_a_claim(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let (giver, owner) = (worker(broker).await?, worker(&other).await?);
    submit_all(broker, vec![spec("task"); ROUNDS as usize]).await?;
    let fences: Vec<_> = claim(broker, giver, ROUNDS)
        .await?
        .iter()
        .map(|claim| claim.attempt_id)
        .collect();
    let mut fences = fences.into_iter();
    woken(
        || claimer(&other, owner),
        || {
            let attempt_id = fences.next().expect("one for each round");
            async move { release(broker, attempt_id).await.map(drop) }
        },
    )
    .await
}

/// A failed attempt, too.
pub async fn a_retry_wakes_a_claim(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let (giver, owner) = (worker(broker).await?, worker(&other).await?);
    submit_all(
        broker,
        vec![retrying(2, HumanDuration::default()); ROUNDS as usize],
    )
    .await?;
    let fences: Vec<_> = claim(broker, giver, ROUNDS)
        .await?
        .iter()
        .map(|claim| claim.attempt_id)
        .collect();
    let mut fences = fences.into_iter();
    woken(
        || claimer(&other, owner),
        || {
            let attempt_id = fences.next().expect("one for each round");
            async move { end(broker, attempt_id, failure()).await.map(drop) }
        },
    )
    .await
}

/// No longer held back.
pub async fn a_resumed_task_wakes_a_claim(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let owner = worker(&other).await?;
    let tids = submit_all(broker, vec![spec("task"); ROUNDS as usize]).await?;
    for tid in &tids {
        broker
            .control(*tid, ControlMessage::new(ControlCommand::Pause))
            .await?;
    }
    let mut tids = tids.into_iter();
    woken(
        || claimer(&other, owner),
        || {
            let tid = tids.next().expect("one for each round");
            async move {
                broker
                    .control(tid, ControlMessage::new(ControlCommand::Resume))
                    .await
                    .map(drop)
            }
        },
    )
    .await
}

/// Its tasks go to the next worker.
pub async fn a_worker_that_leaves_wakes_a_claim(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let owner = worker(&other).await?;
    submit_all(broker, vec![spec("task"); ROUNDS as usize]).await?;
    let mut leaving = Vec::new();
    for _ in 0..ROUNDS {
        let leaver = worker(broker).await?;
        take(broker, leaver).await?;
        leaving.push(leaver);
    }
    let mut leaving = leaving.into_iter();
    woken(
        || claimer(&other, owner),
        || {
            let leaver = leaving.next().expect("one for each round");
            async move { broker.deregister(leaver, None).await }
        },
    )
    .await
}

/// The renewal of another worker reclaims it.
pub async fn a_reclaimed_task_wakes_a_claim(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let owner = worker(&other).await?;
    let lost = mortal(broker).await?;
    submit(broker, spec("task")).await?;
    begin(broker, lost).await?;
    let waiting = tokio::spawn(claimer(&other, owner));
    outlive(broker, lost).await?;
    let mut renewer = broker.lease_renewer(owner, TTL);
    renewer.renew(Heartbeat::default())?;
    let began = Instant::now();
    assert!(waiting.await.expect("waiting does not panic")?);
    // One round only, as each costs a lease: still well below any timer that could stand in for the
    // wake-up.
    assert!(began.elapsed() < 4 * FAST, "{:?}", began.elapsed());
    Ok(())
}

/// A worker that waits for a later due time is woken for the earlier one.
pub async fn a_nearer_time_wakes_a_claim(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let owner = worker(&other).await?;
    let due_in = |delay| TaskSpec {
        delay: Some(delay),
        ..spec("later")
    };
    submit(broker, due_in(HumanDuration::secs(3600))).await?;
    woken(
        || claimer(&other, owner),
        async || {
            submit(broker, due_in(HumanDuration::millis(20)))
                .await
                .map(drop)
        },
    )
    .await
}

/// A batch is for all who wait, not for the first of them.
pub async fn a_batch_wakes_all_waiting_workers(store: &dyn Fixture) -> Result<()> {
    const WAITERS: usize = 9;
    let broker = store.broker();
    let mut owners = Vec::new();
    for _ in 0..WAITERS {
        owners.push((store.reopen().await, worker(broker).await?));
    }
    let all = || {
        let waiters: Vec<_> = owners
            .iter()
            .map(|(other, owner)| tokio::spawn(claimer(other, *owner)))
            .collect();
        async move {
            let mut got = true;
            for waiter in waiters {
                got &= waiter.await.expect("waiting does not panic")?;
            }
            Ok(got)
        }
    };
    woken(all, async || {
        submit_all(broker, vec![spec("task"); WAITERS])
            .await
            .map(drop)
    })
    .await
}

/// The time that one waited for is not forgotten when it goes to work.
pub async fn a_busy_worker_hands_a_due_time_to_another(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (one, two) = (store.reopen().await, store.reopen().await);
    let (first, second) = (worker(&one).await?, worker(&two).await?);
    let soon = Duration::from_millis(300);
    let both = || {
        let waiters = [
            tokio::spawn(claimer(&one, first)),
            tokio::spawn(claimer(&two, second)),
        ];
        async move {
            let [first, second] = waiters;
            Ok(first.await.expect("waiting does not panic")?
                && second.await.expect("waiting does not panic")?)
        }
    };
    let change = async || {
        submit(
            broker,
            TaskSpec {
                delay: Some(HumanDuration(soon)),
                ..spec("later")
            },
        )
        .await?;
        let due = Instant::now() + soon;
        // Let the worker that was woken for the due time read it.
        tokio::time::sleep(SETTLE).await;
        submit(broker, spec("now")).await?;
        tokio::time::sleep(due - Instant::now()).await;
        Ok(())
    };
    woken(both, change).await
}

/// It has to be obeyed now.
pub async fn a_command_wakes_its_worker(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let owner = worker(&other).await?;
    let tid = submit(broker, spec("task")).await?;
    begin(&other, owner).await?;
    let recv_commands = || {
        let other = other.clone();
        async move { Ok(!other.recv_commands(owner, SOON).await?.is_empty()) }
    };
    woken(recv_commands, async || {
        broker
            .control(tid, ControlMessage::new(ControlCommand::Ping))
            .await
            .map(drop)
    })
    .await
}

fn log_reader(
    other: &Handle,
    after: u64,
    tid: Option<raddle_model::Tid>,
) -> impl Future<Output = Result<bool>> + Send + 'static {
    let other = other.clone();
    async move { Ok(!other.events(Some(after), tid, 10, SOON).await?.is_empty()) }
}

/// Submission is an event like any other.
pub async fn an_event_wakes_readers_of_the_log(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let last = std::cell::Cell::new(submit(broker, spec("first")).await?);
    woken(
        || log_reader(&other, last.get().as_u64(), None),
        async || {
            last.set(submit(broker, spec("next")).await?);
            Ok(())
        },
    )
    .await
}

/// And only then.
pub async fn an_event_wakes_readers_of_its_task(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let owner = worker(broker).await?;
    let tids = submit_all(broker, vec![spec("task"); ROUNDS as usize]).await?;
    let mut tids = tids.into_iter();
    woken(
        || {
            let tid = tids.next().expect("one for each round");
            log_reader(&other, tid.as_u64(), Some(tid))
        },
        async || take(broker, owner).await.map(drop),
    )
    .await
}

/// As it is written.
pub async fn output_wakes_followers(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let owner = worker(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    let attempt_id = begin(broker, owner).await?;
    let seen = broker
        .follow(tid, TaskCursor::default(), SOON)
        .await?
        .cursor;
    let read = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let follow = || {
        let (other, read) = (other.clone(), read.clone());
        async move {
            let stdout = read.load(std::sync::atomic::Ordering::Relaxed);
            let progress = other
                .follow(
                    tid,
                    TaskCursor {
                        attempt: 1,
                        stdout,
                        ..seen
                    },
                    SOON,
                )
                .await?;
            read.store(progress.cursor.stdout, std::sync::atomic::Ordering::Relaxed);
            Ok(!progress.output.is_empty())
        }
    };
    woken(follow, async || {
        broker
            .append_output(attempt_id, OutputStream::Stdout, b"line\n".to_vec())
            .await
    })
    .await
}

/// The one thing that a caller of `run` waits for.
pub async fn the_end_wakes_followers(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let owner = worker(broker).await?;
    submit_all(broker, vec![spec("task"); ROUNDS as usize]).await?;
    let fences: Vec<_> = claim(broker, owner, ROUNDS)
        .await?
        .iter()
        .map(|claim| claim.attempt_id)
        .collect();
    let mut cursors = Vec::new();
    for attempt_id in &fences {
        cursors.push((
            attempt_id.tid,
            broker
                .follow(attempt_id.tid, TaskCursor::default(), SOON)
                .await?
                .cursor,
        ));
    }
    let (mut fences, mut cursors) = (fences.into_iter(), cursors.into_iter());
    woken(
        || {
            let (other, (tid, cursor)) =
                (other.clone(), cursors.next().expect("one for each round"));
            async move { Ok(other.follow(tid, cursor, SOON).await?.done.is_some()) }
        },
        || {
            let attempt_id = fences.next().expect("one for each round");
            async move { end(broker, attempt_id, success()).await.map(drop) }
        },
    )
    .await
}

fn taker(other: &Handle, queue: QueueName) -> impl Future<Output = Result<bool>> + Send + 'static {
    let other = other.clone();
    async move { Ok(!other.take(queue.clone(), 1, SOON).await?.is_empty()) }
}

/// The oldest waits no longer than the youngest.
pub async fn a_message_wakes_takers(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let put = async || broker.put(free("jobs"), vec!["x".into()]).await.map(drop);
    woken(|| taker(&other, free("jobs")), put).await
}

fn onlooker(
    other: &Handle,
    queue: QueueName,
    after: u64,
) -> impl Future<Output = Result<bool>> + Send + 'static {
    let other = other.clone();
    async move {
        Ok(!other
            .peek(PeekRequest {
                queue,
                after,
                max: 10,
                wait: SOON,
            })
            .await?
            .is_empty())
    }
}

/// Readers that take nothing are woken too.
pub async fn a_message_wakes_watchers(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let last = std::cell::Cell::new(0);
    woken(
        || onlooker(&other, free("jobs"), last.get()),
        async || {
            last.set(broker.put(free("jobs"), vec!["x".into()]).await?[0].as_u64());
            Ok(())
        },
    )
    .await
}

/// Wherever it comes from.
pub async fn a_moved_message_wakes_takers(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    broker
        .put(free("from"), vec!["x".into(); ROUNDS as usize])
        .await?;
    let shift = async || {
        broker
            .move_messages(free("from"), free("jobs"), 1)
            .await
            .map(drop)
    };
    woken(|| taker(&other, free("jobs")), shift).await
}

/// Control queues can be watched like others.
pub async fn a_command_wakes_watchers(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let owner = worker(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    begin(broker, owner).await?;
    let last = std::cell::Cell::new(0);
    woken(
        || onlooker(&other, ctrl_in(tid), last.get()),
        async || {
            last.set(broker.put(ctrl_in(tid), vec!["PING".into()]).await?[0].as_u64());
            Ok(())
        },
    )
    .await
}
