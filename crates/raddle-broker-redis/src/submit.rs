//! Submission.

use std::time::Duration;

use raddle_model::{Target, TaskSpec, Tid, time::unix_nanos, worker::WorkerInfo};

use super::{
    Redis,
    connection::Certainty,
    name::name_of,
    reclaim::reclaim,
    record::{key_of, millis, stored},
    schema::Partition,
    script,
    value::arg,
};
use raddle_broker::{
    AttemptId, Error, LeasedTask, NewTask, Result, SubmitAndClaim, SubmitAndClaimOutcome,
    Submitted, engine::serialize_spec,
};

/// The retention of a worker's own task record.
const WORKER_KEPT: Duration = Duration::from_secs(86_400);
/// Largest microsecond timestamp that Lua scripts represent exactly (numbers are doubles).
const FARTHEST_MICROS: u64 = 1 << 52;

/// The purpose of a submission.
enum Mode {
    Plain,
    /// The resubmitted task, and whether it must be a dead letter.
    Again(Tid, bool),
    /// The ephemeral worker that claims the only task.
    Own(Box<WorkerInfo>, Duration),
}

/// The reply of the script.
struct SubmitReply {
    submitted: Vec<Submitted>,
    owner: Option<Tid>,
    claimed: Option<Tid>,
    fencing_token: u64,
}

impl Redis {
    pub(super) async fn submit_batch(&self, batch: Vec<NewTask>) -> Result<Vec<Submitted>> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self
            .store(&batch, Mode::Plain)
            .await?
            .ok_or(Error::Closed)?
            .submitted)
    }

    pub(super) async fn submit_again(&self, old: Tid, task: NewTask, dead: bool) -> Result<Tid> {
        let stored = self
            .store(&[task], Mode::Again(old, dead))
            .await?
            .ok_or(Error::NotDead(old))?;
        stored
            .submitted
            .first()
            .ok_or(Error::Closed)?
            .into_resubmitted(old)
    }

    pub(super) async fn submit_and_claim_for(
        &self,
        request: SubmitAndClaim,
    ) -> Result<SubmitAndClaimOutcome> {
        let SubmitAndClaim {
            task,
            worker,
            lease,
        } = request;
        // Reclaim now: where only short-lived workers run, no worker stays to do it.
        reclaim(self.link()).await?;
        let spec = task.spec.clone();
        let mode = Mode::Own(Box::new(worker.clone()), lease);
        let stored = self.store(&[task], mode).await?.ok_or(Error::Closed)?;
        let SubmitReply { fencing_token, .. } = stored;
        let claimed = stored.claimed.zip(stored.owner);
        let claim = claimed.map(|(tid, owner)| LeasedTask {
            attempt_id: AttemptId {
                tid,
                attempt: 1,
                owner,
            },
            spec,
            fencing_token,
        });
        let claim = self
            .core
            .end_expired(claim.into_iter().collect())
            .await?
            .pop();
        // If the task had expired, it was ended, and its worker removed.
        let owner = stored
            .owner
            .filter(|_| stored.claimed.is_none() || claim.is_some());
        if let Some(owner) = owner {
            self.store_worker_hash(owner, &worker).await;
        }
        let submitted = *stored.submitted.first().ok_or(Error::Closed)?;
        Ok(SubmitAndClaimOutcome {
            submitted,
            worker: owner,
            claim,
        })
    }

    /// Stores tasks. `None` if the resubmitted task is no dead letter.
    async fn store(&self, tasks: &[NewTask], mode: Mode) -> Result<Option<SubmitReply>> {
        let mut args = vec![pack(tasks)?];
        args.extend(mode.args());
        let answer: Option<(Vec<String>, String, String, String)> = self
            .link()
            .change(&script::SUBMIT, args, Certainty::Durable)
            .await?;
        let Some((tids, owner, claimed, token)) = answer else {
            return Ok(None);
        };
        let submitted = self.submitted(tids)?;
        let fencing_token = token.parse().unwrap_or_default();
        Ok(Some(SubmitReply {
            submitted,
            owner: owner.parse().ok(),
            claimed: claimed.parse().ok(),
            fencing_token,
        }))
    }

    /// Parses the ids that scripts return for submitted tasks.
    pub(super) fn submitted(&self, tids: Vec<String>) -> Result<Vec<Submitted>> {
        let submitted = |text: String| match text.strip_prefix('=') {
            Some(holder) => holder.parse().map(Submitted::Existing),
            None => text.parse().map(Submitted::New),
        };
        let odd = |_| Error::Server {
            place: self.link().target.place(),
            reason: "a submission has no reply".into(),
        };
        tids.into_iter()
            .map(|text| submitted(text).map_err(odd))
            .collect()
    }
}

/// Packs tasks into one argument for the scripts.
pub(super) fn pack(tasks: &[NewTask]) -> Result<Vec<u8>> {
    let tasks: Vec<Vec<String>> = tasks.iter().map(pack_one).collect::<Result<_>>()?;
    Ok(rmp_serde::to_vec(&tasks).expect("texts are writable to memory"))
}

impl Mode {
    fn args(self) -> Vec<Vec<u8>> {
        match self {
            Self::Plain => vec![Vec::new()],
            Self::Again(old, dead) => {
                vec![
                    arg("resubmit"),
                    arg(old),
                    arg(if dead { "dead" } else { "" }),
                ]
            }
            Self::Own(worker, lease) => {
                let [info, lease] = ephemeral_worker_args(&worker, lease);
                vec![arg("ephemeral"), info, lease]
            }
        }
    }
}

/// When a task expires, as scripts expect it.
fn lifetime(spec: &TaskSpec) -> String {
    match (spec.lifetime, spec.run_before) {
        (Some(lifetime), _) => span_micros(lifetime.0).to_string(),
        (None, Some(at)) => format!("@{}", micros_from(unix_nanos(at))),
        (None, None) => "-".into(),
    }
}

/// A time in nanoseconds since the epoch, rounded up to microseconds.
pub(super) fn micros_from(nanos: i64) -> i64 {
    (nanos.saturating_add(999) / 1000).clamp(0, FARTHEST_MICROS as i64)
}

fn span_micros(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1000))
        .unwrap_or(u64::MAX)
        .min(FARTHEST_MICROS)
}

/// A task as `submit` in `lua/tasks.lua` expects it: partition, spec and name, and the rest if
/// there is any.
fn pack_one(task: &NewTask) -> Result<Vec<String>> {
    let NewTask { spec, parent } = task;
    let (key, (due, due_nanos), lifetime) = (key_of(spec), due(spec), lifetime(spec));
    let mut packed = vec![
        Partition::name_of(spec),
        stored(
            spec,
            *parent,
            false,
            spec.result_ttl().0,
            &serialize_spec(spec)?,
        ),
        name_of(spec),
    ];
    if !key.is_empty() || !due.is_empty() || lifetime != "-" || spec.batch.is_some() {
        packed.extend([key, due, due_nanos, lifetime]);
        packed.extend(spec.batch.clone());
    }
    Ok(packed)
}

/// The arguments that register a worker.
pub(super) fn worker_args(worker: &WorkerInfo, lease: Duration) -> [Vec<u8>; 5] {
    let spec = TaskSpec {
        name: Some(worker.name.clone()),
        ..TaskSpec::new(Target::Service(worker.kind.clone()))
    };
    let json = serde_json::to_string(&spec).expect("a spec has only string keys");
    let text = stored(&spec, worker.parent, true, WORKER_KEPT, &json).into_bytes();
    [
        text,
        info_arg(worker),
        arg(worker.pid),
        arg(millis(lease)),
        arg(millis(WORKER_KEPT)),
    ]
}

/// The arguments that register an ephemeral worker.
pub(super) fn ephemeral_worker_args(worker: &WorkerInfo, lease: Duration) -> [Vec<u8>; 2] {
    [info_arg(worker), arg(millis(lease))]
}

/// The arguments that register the process of an attempt as a worker.
pub(super) fn attempt_worker_args(
    AttemptId {
        tid,
        attempt,
        owner,
    }: AttemptId,
    worker: &WorkerInfo,
    lease: Duration,
) -> Vec<Vec<u8>> {
    vec![
        arg(tid),
        arg(attempt),
        arg(owner),
        info_arg(worker),
        arg(millis(lease)),
    ]
}

fn info_arg(worker: &WorkerInfo) -> Vec<u8> {
    serde_json::to_vec(worker).expect("worker info has only string keys")
}

/// When a task may start, as scripts expect it: by the server's clock.
fn due(spec: &TaskSpec) -> (String, String) {
    match (spec.delay, spec.run_at) {
        (Some(delay), _) => (span_micros(delay.0).to_string(), String::new()),
        (None, Some(at)) => {
            let nanos = unix_nanos(at);
            let micros = (nanos.saturating_add(999) / 1000).min(FARTHEST_MICROS as i64);
            (format!("@{micros}"), nanos.to_string())
        }
        (None, None) => (String::new(), String::new()),
    }
}
