//! The end of attempts, and of tasks.

use jiff::Timestamp;
use raddle_core::{Control, EventKind, Exit, Report, Span, Spec, State, Tid, Word, spec::Reserved};

use super::{Fixture, Handle, support::*};
use crate::{
    Error, Result,
    request::{Chain, Fence, Finish, Started, Stream, TaskFilter, Verdict},
};

/// Submits one task and begins its first attempt.
async fn running(broker: &Handle, spec: Spec) -> Result<(Tid, Fence)> {
    let owner = worker(broker).await?;
    let tid = submit(broker, spec).await?;
    let fence = begin(broker, owner).await?;
    assert_eq!(fence, Fence { tid, attempt: 1, owner });
    Ok((tid, fence))
}

fn is_again(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Again(_))
}

/// Result, state and event in one step.
pub async fn success_completes(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, fence) = running(broker, spec("task")).await?;
    let report = Report { value: Some(serde_json::json!({ "sum": 3 })), ..report(success()) };
    let owner = view(broker, tid).await?.worker;
    let finish = Finish { fence, report: report.clone(), stdout: b"out".to_vec(), stderr: Vec::new() };
    assert_eq!(broker.finish(vec![finish]).await?, [Verdict::Done(State::Completed)]);
    let task = view(&store.reopen().await, tid).await?;
    assert_eq!((task.state, task.attempt, task.worker), (State::Completed, 1, owner));
    assert!(!task.dead && task.finished_at.is_some());
    assert_eq!(task.report, Some(report));
    let events = broker.events(Some(0), Some(tid), 10, AT_ONCE).await?;
    let last = events.last().expect("it was created, at least");
    assert_eq!((last.event, last.attempt, last.worker, &last.detail), (EventKind::Completed, 1, owner, &None));
    assert_eq!(events.len(), 4);
    Ok(())
}

/// A worker may say that it began and ended in one go.
pub async fn an_attempt_that_ran_is_logged_as_running(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    end(broker, take(broker, owner).await?, failure()).await?;
    let steps = [EventKind::Created, EventKind::Spawning, EventKind::Running, EventKind::Failed];
    assert_eq!(kinds(broker, tid).await?, steps);
    Ok(())
}

/// Nothing completes that did not run.
pub async fn a_success_that_was_never_started_is_logged_as_running(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    let mut finish = finish(take(broker, owner).await?, success());
    finish.report.started_at = None;
    broker.finish(vec![finish]).await?;
    let steps = [EventKind::Created, EventKind::Spawning, EventKind::Running, EventKind::Completed];
    assert_eq!(kinds(broker, tid).await?, steps);
    Ok(())
}

/// A program that is not there never ran.
pub async fn an_attempt_that_never_ran_is_not_logged_as_running(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    let mut finish = finish(take(broker, owner).await?, Exit::NotFound { message: "nosuch: not found".into() });
    finish.report.started_at = None;
    assert_eq!(broker.finish(vec![finish]).await?, [Verdict::Done(State::Failed)]);
    assert_eq!(kinds(broker, tid).await?, [EventKind::Created, EventKind::Spawning, EventKind::Failed]);
    assert_eq!(last_detail(broker, tid).await?.as_deref(), Some("nosuch: not found"));
    Ok(())
}

/// In the words of the exit.
pub async fn a_failure_says_why(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, fence) = running(broker, spec("task")).await?;
    assert_eq!(end(broker, fence, failure()).await?, Verdict::Done(State::Failed));
    assert_eq!(last_detail(broker, tid).await?, Some(failure().to_string()));
    Ok(())
}

/// As often as the spec allows.
pub async fn a_failed_attempt_is_followed_by_another(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, fence) = running(broker, retrying(2, Span::default())).await?;
    let owner = view(broker, tid).await?.worker.expect("it is claimed");
    assert!(is_again(end(broker, fence, failure()).await?));
    let task = view(broker, tid).await?;
    assert_eq!((task.state, task.attempt, task.failures, task.losses), (State::Created, 1, 1, 0));
    assert!(task.report.is_none() && task.pid.is_none());
    assert_eq!(kinds(broker, tid).await?.last(), Some(&EventKind::Retrying));
    assert_eq!(last_detail(broker, tid).await?, Some(failure().to_string()));
    let second = begin(broker, owner).await?;
    assert_eq!(second, Fence { tid, attempt: 2, owner });
    assert_eq!(end(broker, second, success()).await?, Verdict::Done(State::Completed));
    assert_eq!(view(broker, tid).await?.failures, 1);
    Ok(())
}

/// The verdict says until when.
pub async fn the_next_attempt_waits_for_its_pause(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, fence) = running(broker, retrying(2, Span::secs(3600))).await?;
    let owner = view(broker, tid).await?.worker.expect("it is claimed");
    let verdict = end(broker, fence, failure()).await?;
    let Verdict::Again(at) = verdict else { panic!("one more attempt is left: {verdict:?}") };
    assert!(at > Timestamp::now());
    assert_eq!(view(broker, tid).await?.run_at, Some(at));
    assert_eq!(broker.summary().await?.delayed, 1);
    assert!(claim(broker, owner, 1).await?.is_empty());
    Ok(())
}

/// That is what `keep` means.
pub async fn used_up_attempts_end_in_the_dead_letter_queue(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, fence) = running(broker, retrying(2, Span::default())).await?;
    let owner = view(broker, tid).await?.worker.expect("it is claimed");
    end(broker, fence, failure()).await?;
    let second = begin(broker, owner).await?;
    assert_eq!(end(broker, second, failure()).await?, Verdict::Done(State::Failed));
    let task = view(broker, tid).await?;
    assert_eq!((task.dead, task.attempt, task.failures), (true, 2, 2));
    assert_eq!(broker.summary().await?.dead, 1);
    assert_eq!(task.report.map(|report| report.exit), Some(failure()));
    Ok(())
}

/// `clear` removes the message.
pub async fn clear_keeps_the_exhausted_out_of_the_dead_letter_queue(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, fence) = running(broker, Spec { on_error: Reserved::Clear, ..spec("task") }).await?;
    assert_eq!(end(broker, fence, failure()).await?, Verdict::Done(State::Failed));
    assert!(!view(broker, tid).await?.dead);
    assert_eq!(broker.summary().await?.dead, 0);
    Ok(())
}

/// `requeue` puts the message back.
pub async fn requeue_tries_the_exhausted_for_ever(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let spec = Spec { on_error: Reserved::Requeue, ..retrying(1, Span::default()) };
    let (tid, mut fence) = running(broker, spec).await?;
    let owner = view(broker, tid).await?.worker.expect("it is claimed");
    for attempt in 2..6 {
        assert!(is_again(end(broker, fence, failure()).await?));
        fence = begin(broker, owner).await?;
        assert_eq!(fence.attempt, attempt);
    }
    Ok(())
}

/// Not merely a failure.
pub async fn a_timeout_is_a_state_of_its_own(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, fence) = running(broker, spec("task")).await?;
    assert_eq!(end(broker, fence, Exit::Timeout).await?, Verdict::Done(State::Timeout));
    assert_eq!(kinds(broker, tid).await?.last(), Some(&EventKind::Timeout));
    assert!(view(broker, tid).await?.dead);
    Ok(())
}

/// Without trying again.
pub async fn a_stopped_attempt_cancels_its_task(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, fence) = running(broker, retrying(5, Span::default())).await?;
    assert_eq!(end(broker, fence, Exit::Cancelled).await?, Verdict::Done(State::Cancelled));
    let task = view(broker, tid).await?;
    assert_eq!((task.state, task.dead), (State::Cancelled, false));
    assert_eq!(kinds(broker, tid).await?.last(), Some(&EventKind::Cancelled));
    Ok(())
}

/// In one step, and without being charged.
pub async fn a_stopped_attempt_goes_back_when_the_spec_says_so(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, fence) = running(broker, Spec { on_stop: Reserved::Requeue, ..spec("task") }).await?;
    assert!(is_again(end(broker, fence, Exit::Cancelled).await?));
    let task = view(broker, tid).await?;
    assert_eq!((task.state, task.attempt, task.failures, task.losses), (State::Created, 1, 0, 0));
    assert_eq!(kinds(broker, tid).await?.last(), Some(&EventKind::Released));
    Ok(())
}

/// Whatever else the spec says.
pub async fn a_killed_attempt_kills_its_task(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, fence) = running(broker, Spec { on_stop: Reserved::Requeue, ..retrying(5, Span::default()) }).await?;
    assert_eq!(end(broker, fence, Exit::Killed).await?, Verdict::Done(State::Killed));
    assert_eq!(kinds(broker, tid).await?.last(), Some(&EventKind::Killed));
    Ok(())
}

/// Refused, counted and logged; the first one holds.
pub async fn a_second_finish_is_stale(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, fence) = running(broker, spec("task")).await?;
    end(broker, fence, success()).await?;
    assert_eq!(end(broker, fence, failure()).await?, Verdict::Stale);
    let task = view(broker, tid).await?;
    assert_eq!((task.state, task.report.map(|report| report.exit)), (State::Completed, Some(success())));
    assert_eq!(broker.summary().await?.stale_writes, 1);
    assert_eq!(kinds(broker, tid).await?.last(), Some(&EventKind::StaleWrite));
    Ok(())
}

/// The latest attempt goes on undisturbed.
pub async fn a_finish_of_an_earlier_attempt_is_stale(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, first) = running(broker, spec("task")).await?;
    let owner = view(broker, tid).await?.worker.expect("it is claimed");
    release(broker, first).await?;
    let second = begin(broker, owner).await?;
    assert_eq!(end(broker, first, failure()).await?, Verdict::Stale);
    let events = broker.events(Some(0), Some(tid), 100, AT_ONCE).await?;
    let stale = events.last().expect("there are events");
    assert_eq!((stale.event, stale.attempt), (EventKind::StaleWrite, 1));
    assert_eq!(view(broker, tid).await?.state, State::Running);
    assert_eq!(end(broker, second, success()).await?, Verdict::Done(State::Completed));
    Ok(())
}

/// A server that forgets a claim gives its number to another worker. Only the owner tells the two attempts apart.
pub async fn a_write_of_another_worker_is_refused(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, fence) = running(broker, spec("task")).await?;
    let other = Fence { owner: worker(broker).await?, ..fence };
    assert_eq!(end(broker, other, success()).await?, Verdict::Stale);
    assert_eq!(end(broker, other, failure()).await?, Verdict::Stale);
    assert_eq!(release(broker, other).await?, Verdict::Stale);
    let chain = Chain { fence: other, tasks: vec![spec("chained")], told: None };
    assert!(matches!(broker.chain(chain).await, Err(Error::Superseded(refused)) if refused == other));
    assert_eq!(broker.summary().await?.stale_writes, 4);
    broker.paused(other, true).await?;
    broker.append_output(other, Stream::Stdout, b"forged".to_vec()).await?;
    assert!(broker.read_output(tid, fence.attempt, Stream::Stdout, 0, 100).await?.is_empty());
    let task = view(broker, tid).await?;
    assert_eq!((task.state, task.paused, task.worker), (State::Running, false, Some(fence.owner)));
    assert_eq!(end(broker, fence, success()).await?, Verdict::Done(State::Completed));
    Ok(())
}

/// It grows with each claim, whichever worker makes it.
pub async fn fencing_tokens_grow(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    submit_all(broker, vec![spec("a"), spec("b")]).await?;
    let mut last = 0;
    for _ in 0..3 {
        let owner = worker(broker).await?;
        for claim in claim(broker, owner, 2).await? {
            assert!(claim.fencing_token > last, "{claim:?} after {last}");
            last = claim.fencing_token;
            release(broker, claim.fence).await?;
        }
    }
    Ok(())
}

/// Its record may have been purged. There is nothing to log it for.
pub async fn a_finish_of_an_unknown_task_is_stale(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let unknown = Tid::from_u64(1_500_000_000_000_000_000).expect("in the range of ids");
    assert_eq!(end(broker, Fence { tid: unknown, attempt: 1, owner: unknown }, success()).await?, Verdict::Stale);
    assert_eq!(broker.summary().await?.stale_writes, 1);
    assert!(broker.events(Some(0), None, 10, AT_ONCE).await?.is_empty());
    Ok(())
}

/// Each with its own.
pub async fn verdicts_come_in_the_order_of_the_batch(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    submit_all(broker, vec![spec("a"), retrying(2, Span::default()), spec("c")]).await?;
    let fences: Vec<_> = claim(broker, owner, 3).await?.iter().map(|claim| claim.fence).collect();
    broker.started(fences.iter().map(|fence| Started { fence: *fence, pid: None }).collect()).await?;
    let late = Fence { attempt: 9, ..fences[0] };
    let batch = vec![
        finish(fences[0], success()),
        finish(late, success()),
        finish(fences[1], failure()),
        finish(fences[2], Exit::Timeout),
    ];
    let verdicts = broker.finish(batch).await?;
    assert_eq!(verdicts[..2], [Verdict::Done(State::Completed), Verdict::Stale]);
    assert!(is_again(verdicts[2]));
    assert_eq!(verdicts[3], Verdict::Done(State::Timeout));
    Ok(())
}

/// Nobody would ever read them.
pub async fn words_left_over_go_with_the_task(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, fence) = running(broker, spec("task")).await?;
    broker.control(tid, Control::new(Word::Stop)).await?;
    assert_eq!(bodies(broker, &ctrl_in(tid)).await?, ["STOP"]);
    assert_eq!(end(broker, fence, success()).await?, Verdict::Done(State::Completed));
    assert!(bodies(broker, &ctrl_in(tid)).await?.is_empty());
    Ok(())
}

/// Nothing that can be asked for changes it.
pub async fn a_terminal_state_is_final(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, fence) = running(broker, spec("task")).await?;
    let owner = view(broker, tid).await?.worker.expect("it is claimed");
    end(broker, fence, failure()).await?;
    let before = view(broker, tid).await?;
    assert_eq!(release(broker, fence).await?, Verdict::Stale);
    broker.started(vec![Started { fence, pid: Some(1) }]).await?;
    for word in [Word::Stop, Word::Kill, Word::Pause, Word::Resume, Word::Ping] {
        let refused = broker.control(tid, Control::new(word)).await;
        assert!(matches!(refused, Err(Error::Finished(_, State::Failed))), "{refused:?}");
    }
    broker.reclaim().await?;
    broker.deregister(owner, None).await?;
    assert_eq!(view(broker, tid).await?, before);
    let terminal = kinds(broker, tid).await?.into_iter().filter(|kind| kind.is_terminal()).count();
    assert_eq!(terminal, 1);
    assert_eq!(broker.tasks(TaskFilter::default()).await?.len(), 1);
    Ok(())
}
