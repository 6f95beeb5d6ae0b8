//! Helpers of the cases.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use raddle_model::{
    AttemptReport, CapSet, ExitStatus, HumanDuration, QueueName, RetryPolicy, TaskEventKind,
    TaskSpec, TaskView, Tid,
    queue_name::TaskQueue,
    worker::{Heartbeat, WorkerInfo},
};

use super::Handle;
use crate::{
    AttemptId, AttemptStarted, ClaimRequest, Completion, CompletionOutcome, Error, LeaseStatus,
    LeasedTask, NewTask, Release, Result, SummaryDetail,
};

/// Not to wait.
pub(super) const AT_ONCE: Duration = Duration::ZERO;
/// A deadline for what has to happen.
pub(super) const SOON: Duration = Duration::from_secs(60);
/// The lease of a worker that is to live through its case.
pub(super) const TTL: Duration = Duration::from_secs(120);
/// The lease of a worker that is to die in its case.
pub(super) const SHORT_TTL: Duration = Duration::from_millis(300);
/// After the end of a lease, engines may leave the worker time to give up by itself before others
/// take over.
const TAKEOVER: Duration = Duration::from_millis(300);

/// Options of a summary that counts waiting tasks by kind.
pub(super) const KINDS: SummaryDetail = SummaryDetail {
    finished: false,
    kinds: true,
    messages: false,
    batches: false,
    batch: None,
};

/// How many messages each queue holds.
pub(super) async fn queue_sizes(broker: &Handle) -> Result<BTreeMap<QueueName, u64>> {
    Ok(broker
        .summarize(SummaryDetail {
            messages: true,
            ..SummaryDetail::default()
        })
        .await?
        .messages)
}

/// A task that needs nothing.
pub(super) fn spec(name: &str) -> TaskSpec {
    TaskSpec {
        name: Some(name.into()),
        ..TaskSpec::command(["true"])
    }
}

/// A task that may fail `attempts` times, with `base` between attempts.
pub(super) fn retrying(attempts: u32, base: HumanDuration) -> TaskSpec {
    let retry = RetryPolicy {
        attempts,
        base,
        jitter: 0.0,
        ..RetryPolicy::default()
    };
    TaskSpec {
        retry,
        ..spec("retrying")
    }
}

pub(super) fn caps(text: &str) -> CapSet {
    text.parse().expect("cases name valid capabilities")
}

pub(super) fn free(name: &str) -> QueueName {
    name.parse().expect("cases name valid queues")
}

pub(super) fn ctrl_in(tid: Tid) -> QueueName {
    QueueName::Task(tid, TaskQueue::CtrlIn)
}

pub(super) fn ctrl_out(tid: Tid) -> QueueName {
    QueueName::Task(tid, TaskQueue::CtrlOut)
}

pub(super) async fn submit(broker: &Handle, spec: TaskSpec) -> Result<Tid> {
    Ok(submit_all(broker, vec![spec]).await?[0])
}

pub(super) async fn submit_all(broker: &Handle, specs: Vec<TaskSpec>) -> Result<Vec<Tid>> {
    let stored = broker
        .submit(specs.into_iter().map(NewTask::new).collect())
        .await?;
    Ok(stored.into_iter().map(|stored| stored.tid()).collect())
}

/// Returns the registry info of a worker.
pub fn info(name: &str) -> WorkerInfo {
    WorkerInfo {
        queues: vec!["default".into()],
        concurrency: 4,
        pid: std::process::id(),
        host: "here".into(),
        ..WorkerInfo::new(name, "resident")
    }
}

/// Registers a worker that lives through the case.
pub(super) async fn worker(broker: &Handle) -> Result<Tid> {
    broker.register(info("worker"), TTL).await
}

/// Registers a worker whose lease holds until [`outlive`] has it run out, however long that takes:
/// a lease that is short from the start could end too soon.
pub(super) async fn mortal(broker: &Handle) -> Result<Tid> {
    loop {
        let worker = broker.register(info("mortal"), SHORT_TTL).await?;
        if matches!(renew(broker, worker, TTL)?, LeaseStatus::Alive(_)) {
            return Ok(worker);
        }
    }
}

/// Lets the lease of a mortal worker run out, so far that others may take over.
pub(super) async fn outlive(broker: &Handle, worker: Tid) -> Result<()> {
    renew(broker, worker, SHORT_TTL)?;
    pass_lease().await;
    Ok(())
}

/// Lets the time of a short lease pass.
pub(super) async fn pass_lease() {
    tokio::time::sleep(SHORT_TTL + TAKEOVER).await;
}

/// Renews a lease for `ttl` from now, on a plain thread as workers do, with as many tries as it
/// takes.
pub(super) fn renew(broker: &Handle, worker: Tid, ttl: Duration) -> Result<LeaseStatus> {
    let mut renewer = broker.lease_renewer(worker, ttl);
    let heartbeat = move || {
        loop {
            match renewer.renew(Heartbeat::default()) {
                Err(error) if error.is_retryable() => {}
                renewed => return renewed,
            }
        }
    };
    std::thread::spawn(heartbeat)
        .join()
        .expect("a beat does not panic")
}

/// A request for one task that needs nothing, at once.
pub(super) fn request(owner: Tid) -> ClaimRequest {
    ClaimRequest {
        owner,
        caps: CapSet::new(),
        queues: vec!["default".into()],
        only: None,
        max: 1,
        wait: AT_ONCE,
    }
}

/// Takes up to `max` tasks that are ready now.
pub(super) async fn claim(broker: &Handle, owner: Tid, max: u32) -> Result<Vec<LeasedTask>> {
    broker
        .claim(ClaimRequest {
            max,
            ..request(owner)
        })
        .await
}

/// The names of up to `max` tasks that are ready now, in the order in which they are given.
pub(super) async fn claim_names(broker: &Handle, request: ClaimRequest) -> Result<Vec<String>> {
    let claims = broker.claim(request).await?;
    Ok(claims
        .iter()
        .map(|claim| claim.spec.display_name().into())
        .collect())
}

/// Takes the one task that is there or comes soon.
pub(super) async fn take(broker: &Handle, owner: Tid) -> Result<AttemptId> {
    let claims = broker
        .claim(ClaimRequest {
            wait: SOON,
            ..request(owner)
        })
        .await?;
    Ok(claims
        .first()
        .expect("a task is there to be claimed")
        .attempt_id)
}

/// Takes the one task that is there or comes soon, and begins it.
pub(super) async fn begin(broker: &Handle, owner: Tid) -> Result<AttemptId> {
    let attempt_id = take(broker, owner).await?;
    broker
        .mark_started(vec![AttemptStarted {
            attempt_id,
            pid: Some(4711),
        }])
        .await?;
    Ok(attempt_id)
}

/// The account of an attempt that ran.
pub(super) fn report(exit: ExitStatus) -> AttemptReport {
    let now = Timestamp::now();
    AttemptReport {
        started_at: Some(now),
        ..AttemptReport::bare(exit, now)
    }
}

/// The end of an attempt that ran and wrote nothing.
pub fn completion(attempt_id: AttemptId, exit: ExitStatus) -> Completion {
    Completion {
        attempt_id,
        report: report(exit),
        stdout: Vec::new(),
        stderr: Vec::new(),
    }
}

/// Ends one attempt.
pub(super) async fn end(
    broker: &Handle,
    attempt_id: AttemptId,
    exit: ExitStatus,
) -> Result<CompletionOutcome> {
    Ok(broker.complete(vec![completion(attempt_id, exit)]).await?[0])
}

/// Gives one attempt back.
pub(super) async fn release(broker: &Handle, attempt_id: AttemptId) -> Result<CompletionOutcome> {
    Ok(broker
        .release(vec![Release {
            attempt_id,
            reason: "no time".into(),
        }])
        .await?[0])
}

pub(super) fn success() -> ExitStatus {
    ExitStatus::Code { code: 0 }
}

pub(super) fn failure() -> ExitStatus {
    ExitStatus::Code { code: 3 }
}

/// A task that is known to be there.
pub(super) async fn view(broker: &Handle, tid: Tid) -> Result<TaskView> {
    broker.task(tid).await?.ok_or(Error::NotFound(tid))
}

/// Returns the kinds of the events of a task, in order.
pub(super) async fn kinds(broker: &Handle, tid: Tid) -> Result<Vec<TaskEventKind>> {
    let events = broker.events(Some(0), Some(tid), 1000, AT_ONCE).await?;
    Ok(events.iter().map(|event| event.event).collect())
}

/// The detail of the last thing that happened to a task.
pub(super) async fn last_detail(broker: &Handle, tid: Tid) -> Result<Option<String>> {
    let events = broker.events(Some(0), Some(tid), 1000, AT_ONCE).await?;
    Ok(events.last().and_then(|event| event.detail.clone()))
}

/// The texts that a queue holds.
pub(super) async fn bodies(broker: &Handle, queue: &QueueName) -> Result<Vec<String>> {
    let seen = broker
        .peek(crate::PeekRequest {
            queue: queue.clone(),
            after: 0,
            max: 1000,
            wait: AT_ONCE,
        })
        .await?;
    Ok(seen.into_iter().map(|message| message.body).collect())
}
