//! Tasks in.

use std::{collections::BTreeSet, time::Duration};

use raddle_core::{Spec, Target, Tid, moment::unix_nanos, worker::WorkerInfo};
use redis::Value;

use super::{
    Redis,
    keys::Part,
    link::Sure,
    reclaim::reclaim,
    record::{key_of, millis, stored},
    script,
    value::{arg, list, number, text, tid},
};
use crate::{Claim, Error, Fence, Own, OwnRequest, Registry, Result, Submit, Submitted};

/// How long the record of a worker that has left is kept.
const WORKER_KEPT: Duration = Duration::from_secs(86_400);
/// Beyond this a time is not exact in a script. Nobody lives to see it.
const FARTHEST_MICROS: u64 = 1 << 52;

/// What a batch is submitted for.
enum Mode {
    Plain,
    /// The task that is submitted once more, and whether it has to be a dead letter.
    Again(Tid, bool),
    /// The worker that is to run the only task.
    Own(Box<WorkerInfo>, Duration),
}

/// What the script answered.
struct Stored {
    submitted: Vec<Submitted>,
    owner: Option<Tid>,
    claimed: Option<Tid>,
}

/// A task as the scripts store it: partition, when it is due, the same in nanoseconds, unique key, spec, when it expires.
type Packed = (String, String, String, String, String, String);

impl Redis {
    pub(super) async fn submit_batch(&self, batch: Vec<Submit>) -> Result<Vec<Submitted>> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.store(&batch, Mode::Plain).await?.ok_or(Error::Closed)?.submitted)
    }

    pub(super) async fn submit_again(&self, old: Tid, task: Submit, dead: bool) -> Result<Tid> {
        let stored = self.store(&[task], Mode::Again(old, dead)).await?.ok_or(Error::NotDead(old))?;
        stored.submitted.first().ok_or(Error::Closed)?.again(old)
    }

    pub(super) async fn submit_for(&self, request: OwnRequest) -> Result<Own> {
        let OwnRequest { task, worker, lease, yields } = request;
        // Where nobody stays, those that are gone have nobody else to find them.
        reclaim(self.link()).await?;
        let left_to_others = yields && self.workers().await?.iter().any(|entry| entry.would_take(&task.spec));
        let spec = task.spec.clone();
        let mode = if left_to_others { Mode::Plain } else { Mode::Own(Box::new(worker.clone()), lease) };
        let stored = self.store(&[task], mode).await?.ok_or(Error::Closed)?;
        let claim = stored.claimed.map(|tid| Claim { fence: Fence { tid, attempt: 1 }, spec });
        let claim = self.core.fresh(claim.into_iter().collect()).await?.pop();
        if let Some(owner) = stored.owner {
            self.show_worker(owner, &worker).await;
        }
        let submitted = *stored.submitted.first().ok_or(Error::Closed)?;
        Ok(Own { submitted, worker: stored.owner, claim })
    }

    /// Stores tasks. `None` if the old one is no dead letter.
    async fn store(&self, tasks: &[Submit], mode: Mode) -> Result<Option<Stored>> {
        let (keys, packed) = self.submission(tasks)?;
        let mut args = vec![packed];
        args.extend(mode.args());
        let answer = list(self.link().change(&script::SUBMIT, keys, args, Sure::Durable).await?);
        if answer.is_empty() {
            return Ok(None);
        }
        let mut answer = answer.into_iter();
        let submitted = self.submitted(&mut answer).await?;
        let mut next = || answer.next().and_then(tid);
        Ok(Some(Stored { submitted, owner: next(), claimed: next() }))
    }

    /// Tasks, as the scripts take them: the streams of their partitions, and all of them in one argument.
    pub(super) fn submission(&self, tasks: &[Submit]) -> Result<(Vec<String>, Vec<u8>)> {
        let tasks: Vec<Packed> = tasks.iter().map(pack).collect::<Result<_>>()?;
        let parts: BTreeSet<&str> = tasks.iter().map(|(part, ..)| part.as_str()).collect();
        let streams = parts.into_iter().map(|part| self.core.keys.ready(part)).collect();
        Ok((streams, rmp_serde::to_vec(&tasks).expect("texts are writable to memory")))
    }

    /// What the scripts answered when they had stored tasks: how many partitions are new, and the ids.
    pub(super) async fn submitted(&self, answer: &mut impl Iterator<Item = Value>) -> Result<Vec<Submitted>> {
        if answer.next().map(number) > Some(0) {
            self.tell_of_parts().await;
        }
        let tids = list(answer.next().unwrap_or_default()).into_iter().map(text);
        let submitted = |text: String| match text.strip_prefix('=') {
            Some(holder) => holder.parse().map(Submitted::Existing),
            None => text.parse().map(Submitted::New),
        };
        let odd =
            |_| Error::Server { place: self.link().target.place(), reason: "a submission was not answered".into() };
        tids.map(|text| submitted(text).map_err(odd)).collect()
    }

    /// Lets all workers look at the partitions anew: they wait on those they know of.
    pub(super) async fn tell_of_parts(&self) {
        let tell = async || -> Result<()> {
            let mut pipe = redis::pipe();
            pipe.cmd("HKEYS").arg(self.core.keys.of("workers"));
            let workers = self.link().pipe(pipe).await?.pop().unwrap_or_default();
            let streams: Vec<String> =
                list(workers).into_iter().map(|worker| self.core.keys.wake(&text(worker))).collect();
            self.core.wake(&streams).await;
            Ok(())
        };
        // Workers look by themselves within the safety interval.
        if let Err(error) = tell().await {
            tracing::debug!(%error, "workers were not told of a new partition");
        }
    }
}

impl Mode {
    fn args(self) -> Vec<Vec<u8>> {
        match self {
            Self::Plain => vec![Vec::new()],
            Self::Again(old, dead) => vec![arg("again"), arg(old), arg(if dead { "dead" } else { "" })],
            Self::Own(worker, lease) => {
                let [info, lease] = own_args(&worker, lease);
                vec![arg("own"), info, lease]
            }
        }
    }
}

/// When a task expires, as the scripts take it.
fn lifetime(spec: &Spec) -> String {
    match (spec.lifetime, spec.run_before) {
        (Some(lifetime), _) => span_micros(lifetime.0).to_string(),
        (None, Some(at)) => format!("@{}", micros_from(unix_nanos(at))),
        (None, None) => "-".into(),
    }
}

/// The first microsecond that is not before a time in nanoseconds since the epoch.
pub(super) fn micros_from(nanos: i64) -> i64 {
    (nanos.saturating_add(999) / 1000).clamp(0, FARTHEST_MICROS as i64)
}

fn span_micros(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX).min(FARTHEST_MICROS)
}

/// A task, written out as the scripts store it.
fn pack(task: &Submit) -> Result<Packed> {
    let Submit { spec, parent } = task;
    let (due, due_nanos) = due(spec);
    let text = stored(spec, *parent, false, spec.result_ttl().0, &task.written()?);
    Ok((Part::name_of(spec), due, due_nanos, key_of(spec), text, lifetime(spec)))
}

/// A worker, written out as the scripts take it.
pub(super) fn worker_args(worker: &WorkerInfo, lease: Duration) -> [Vec<u8>; 5] {
    let spec = Spec { name: Some(worker.name.clone()), ..Spec::new(Target::Service(worker.kind.clone())) };
    let json = serde_json::to_string(&spec).expect("a spec has only string keys");
    let text = stored(&spec, worker.parent, true, WORKER_KEPT, &json).into_bytes();
    [text, info_arg(worker), arg(worker.pid), arg(millis(lease)), arg(millis(WORKER_KEPT))]
}

/// A worker that is there for one task alone, as the scripts take it.
pub(super) fn own_args(worker: &WorkerInfo, lease: Duration) -> [Vec<u8>; 2] {
    [info_arg(worker), arg(millis(lease))]
}

fn info_arg(worker: &WorkerInfo) -> Vec<u8> {
    serde_json::to_vec(worker).expect("worker info has only string keys")
}

/// When a task may begin, as the script takes it: on the server's clock.
fn due(spec: &Spec) -> (String, String) {
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
