//! Taking back what belongs to workers that are gone.

use std::time::{Duration, Instant};

use raddle_core::{
    Control, EventKind, Exit, Spec, State, Word,
    settle::{LOSSES_ALLOWED, UNCHARGED_ATTEMPTS},
    spec::Reserved,
    worker::Beat,
};

use super::{Fixture, support::*};
use crate::{
    Result,
    request::{Chain, Delivery, Fence, Pulse, Reclaimed, Release, Verdict},
};

/// Its worker cannot have died of it.
pub async fn what_had_not_begun_goes_back_uncharged(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = mortal(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    let fence = take(broker, owner).await?;
    assert!(broker.reclaim().await?.is_empty(), "the lease holds");
    outlive(broker, owner).await?;
    let taken = store.reopen().await.reclaim().await?;
    assert!(matches!(taken[..], [Reclaimed { fence: f, verdict: Verdict::Again(_) }] if f == fence), "{taken:?}");
    let task = view(broker, tid).await?;
    assert_eq!((task.state, task.attempt, task.losses), (State::Created, 1, 0));
    assert_eq!(kinds(broker, tid).await?.last(), Some(&EventKind::Reclaimed));
    let other = worker(broker).await?;
    assert_eq!(take(broker, other).await?, Fence { tid, attempt: 2, owner: other });
    Ok(())
}

/// It may have been the cause.
pub async fn what_had_begun_counts_as_lost(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = mortal(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    begin(broker, owner).await?;
    outlive(broker, owner).await?;
    assert_eq!(broker.reclaim().await?.len(), 1);
    let task = view(broker, tid).await?;
    assert_eq!((task.state, task.attempt, task.failures, task.losses), (State::Created, 1, 0, 1));
    assert!(task.run_at.is_none(), "a loss costs no pause");
    let events = broker.events(Some(0), Some(tid), 10, AT_ONCE).await?;
    let last = events.last().expect("there are events");
    assert_eq!((last.event, last.attempt, last.worker), (EventKind::Reclaimed, 1, Some(owner)));
    assert_eq!(last.detail, Some(format!("worker {owner} is gone")));
    Ok(())
}

/// After as many losses as are allowed, with the reason.
pub async fn a_task_that_kills_its_workers_is_dead_lettered(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let tid = submit(broker, spec("poison")).await?;
    let mut owner = None;
    for attempt in 1..=LOSSES_ALLOWED {
        let victim = mortal(broker).await?;
        owner = Some(victim);
        assert_eq!(begin(broker, victim).await?, Fence { tid, attempt, owner: victim });
        outlive(broker, victim).await?;
        let taken = broker.reclaim().await?;
        assert_eq!(matches!(taken[0].verdict, Verdict::Done(State::Failed)), attempt == LOSSES_ALLOWED, "{taken:?}");
    }
    let task = view(broker, tid).await?;
    assert_eq!((task.state, task.dead, task.losses), (State::Failed, true, LOSSES_ALLOWED));
    let message = format!("worker {} is gone", owner.expect("there were victims"));
    assert_eq!(task.report.map(|report| report.exit), Some(Exit::Lost { message: message.clone() }));
    assert_eq!(kinds(broker, tid).await?.last(), Some(&EventKind::Failed));
    assert_eq!(last_detail(broker, tid).await?, Some(message));
    Ok(())
}

/// One that takes its worker along before that can say that it runs looks innocent each time.
pub async fn a_task_that_never_gets_to_begin_is_not_believed_for_ever(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let tid = submit(broker, spec("sudden")).await?;
    let owner = worker(broker).await?;
    for _ in 0..UNCHARGED_ATTEMPTS {
        let fence = take(broker, owner).await?;
        broker.release(vec![Release { fence, reason: "to spend attempts".into() }]).await?;
    }
    for losses in 1..=LOSSES_ALLOWED {
        let victim = mortal(broker).await?;
        take(broker, victim).await?;
        outlive(broker, victim).await?;
        broker.reclaim().await?;
        assert_eq!(view(broker, tid).await?.losses, losses);
    }
    assert_eq!(view(broker, tid).await?.state, State::Failed);
    Ok(())
}

/// Workers are tasks.
pub async fn the_worker_itself_has_failed(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = mortal(broker).await?;
    outlive(broker, owner).await?;
    assert!(broker.reclaim().await?.is_empty(), "it had nothing");
    assert!(broker.workers().await?.is_empty());
    let task = view(broker, owner).await?;
    assert_eq!((task.state, task.dead), (State::Failed, false));
    let exit = task.report.map(|report| report.exit);
    assert_eq!(exit, Some(Exit::Lost { message: format!("worker {owner} is gone") }));
    Ok(())
}

/// Whoever else looks, and however long it takes.
pub async fn a_long_task_on_a_live_worker_is_never_taken(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let ttl = Duration::from_millis(1500);
    let owner = broker.register(info("busy"), ttl).await?;
    let tid = submit(broker, spec("long")).await?;
    let fence = begin(broker, owner).await?;
    let heart = broker.heart(owner, ttl);
    let until = Instant::now() + 2 * ttl;
    let beating = std::thread::spawn(move || beat_until(heart, until));
    while Instant::now() < until {
        assert!(other.reclaim().await?.is_empty());
        tokio::time::sleep(ttl / 8).await;
    }
    beating.join().expect("the worker was never taken for dead");
    assert_eq!(view(broker, tid).await?.losses, 0);
    assert_eq!(end(broker, fence, success()).await?, Verdict::Done(State::Completed));
    Ok(())
}

/// As a worker does it: a beat that did not come through is followed by the next.
fn beat_until(mut heart: Box<dyn crate::Heart>, until: Instant) {
    while Instant::now() < until {
        match heart.beat(Beat::default()) {
            Ok(pulse) => assert_eq!(pulse, Pulse::Alive(Vec::new())),
            Err(error) => assert!(error.is_retryable(), "the engine takes beats: {error:?}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The attempt that came after it is the one that counts.
pub async fn a_late_finish_is_refused_counted_and_logged(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = mortal(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    let lost = begin(broker, owner).await?;
    outlive(broker, owner).await?;
    broker.reclaim().await?;
    let other = worker(broker).await?;
    let second = begin(broker, other).await?;
    assert_eq!(end(broker, lost, failure()).await?, Verdict::Stale);
    let summary = broker.summary().await?;
    assert_eq!((summary.reclaims, summary.stale_writes, summary.states[&State::Running]), (1, 1, 1));
    assert_eq!(kinds(broker, tid).await?.last(), Some(&EventKind::StaleWrite));
    assert_eq!(end(broker, second, success()).await?, Verdict::Done(State::Completed));
    Ok(())
}

/// The worker has to stop what it runs; its tasks are back already.
pub async fn a_late_beat_has_expired(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = mortal(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    begin(broker, owner).await?;
    outlive(broker, owner).await?;
    let mut heart = broker.heart(owner, TTL);
    let beats = std::thread::spawn(move || [heart.beat(Beat::default()), heart.beat(Beat::default())]);
    for pulse in beats.join().expect("a late beat is no reason to panic") {
        assert_eq!(pulse?, Pulse::Expired);
    }
    let task = view(broker, tid).await?;
    assert_eq!((task.state, task.losses), (State::Created, 1));
    assert!(broker.workers().await?.is_empty());
    assert_eq!(view(broker, owner).await?.state, State::Failed);
    Ok(())
}

/// Nobody else is needed for it.
pub async fn a_beat_takes_back_from_others(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (owner, other) = (mortal(broker).await?, worker(broker).await?);
    submit(broker, spec("task")).await?;
    let fence = begin(broker, owner).await?;
    outlive(broker, owner).await?;
    let handle = store.reopen().await;
    let (mut heart, mut taken) = (handle.heart(other, TTL), Vec::new());
    // A beat says what is taken as far as it knows by then: one that has no time to wait for it says nothing.
    while taken.is_empty() && view(broker, fence.tid).await?.state != State::Created {
        let beat = std::thread::scope(|scope| scope.spawn(|| heart.beat(Beat::default())).join());
        match beat.expect("a beat does not panic")? {
            Pulse::Alive(more) => taken.extend(more),
            pulse => panic!("its lease is long: {pulse:?}"),
        }
    }
    assert!(taken.iter().all(|taken| taken.fence == fence), "{taken:?}");
    assert_eq!(view(broker, fence.tid).await?.state, State::Created);
    Ok(())
}

/// However many look at once.
pub async fn each_task_is_taken_back_once(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let owner = mortal(broker).await?;
    let tids = submit_all(broker, vec![spec("task"); 40]).await?;
    let claimed = claim(broker, owner, 40).await?;
    assert_eq!(claimed.len(), 40);
    outlive(broker, owner).await?;
    let (a, b, c) = tokio::join!(broker.reclaim(), other.reclaim(), broker.reclaim());
    let mut taken: Vec<_> = [a?, b?, c?].concat().iter().map(|taken| taken.fence.tid).collect();
    taken.sort();
    assert_eq!(taken, tids);
    Ok(())
}

/// A word that its worker did not live to obey.
pub async fn words_to_a_lost_attempt_hold_for_the_task(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = mortal(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    begin(broker, owner).await?;
    broker.control(tid, Control::new(Word::Stop)).await?;
    outlive(broker, owner).await?;
    let taken = broker.reclaim().await?;
    assert_eq!(taken[0].verdict, Verdict::Done(State::Cancelled));
    assert_eq!(view(broker, tid).await?.state, State::Cancelled);
    assert!(bodies(broker, &ctrl_in(tid)).await?.is_empty());
    Ok(())
}

/// A word that its worker has heard, and did not live to obey either: whoever sent it was told that it is.
pub async fn words_that_a_lost_worker_has_heard_hold_for_the_task(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let stop = Control::new(Word::Stop);
    let again = Control { requeue: true, ..stop.clone() };
    let (kill, pause) = (Control::new(Word::Kill), Control::new(Word::Pause));
    let cases = [
        (Reserved::Clear, vec![stop.clone()], State::Cancelled),
        (Reserved::Clear, vec![stop.clone(), pause.clone()], State::Cancelled),
        (Reserved::Requeue, vec![stop.clone(), kill, stop.clone(), again.clone()], State::Killed),
        (Reserved::Requeue, vec![stop], State::Created),
        (Reserved::Clear, vec![again, pause], State::Created),
    ];
    let owner = mortal(broker).await?;
    let mut told = Vec::new();
    for (on_stop, words, end) in cases {
        let tid = submit(broker, Spec { on_stop, ..spec("task") }).await?;
        let fence = begin(broker, owner).await?;
        broker.chain(Chain { fence, tasks: vec![spec("never")], told: None }).await?;
        for word in &words {
            broker.control(tid, word.clone()).await?;
            let heard = broker.controls(owner, SOON).await?;
            assert_eq!(heard, [Delivery { tid, body: word.to_text() }]);
        }
        broker.paused(fence, false).await?;
        told.push((tid, words, end));
    }
    outlive(broker, owner).await?;
    assert_eq!(store.reopen().await.reclaim().await?.len(), told.len());
    for (tid, words, end) in told {
        let task = view(broker, tid).await?;
        assert_eq!((task.state, task.attempt, task.paused), (end, 1, false), "{words:?}");
        assert!(bodies(broker, &ctrl_out(tid)).await?.is_empty(), "{words:?}");
    }
    assert_eq!(broker.summary().await?.ready.values().sum::<u64>(), 2, "nothing has followed what did not succeed");
    // It held for that attempt: the next is nobody's to be stopped.
    let other = worker(broker).await?;
    let fence = begin(broker, other).await?;
    assert!(matches!(release(broker, fence).await?, Verdict::Again(_)));
    Ok(())
}
