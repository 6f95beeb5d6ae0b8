//! Tasks in.

use std::{collections::HashMap, time::Duration};

use raddle_core::{Spec, Target, Tid, moment::unix_nanos, worker::WorkerInfo};
use redis::Value;

use super::{
    Redis,
    keys::{Part, from_stream_id},
    link::Sure,
    reclaim::reclaim,
    record::{key_of, millis, stored},
    script::{self, Script},
    value::{arg, list, number, text, tid},
};
use crate::{Claim, Error, Fence, Own, OwnRequest, Registry, Result, Submit, Submitted};

/// How long the record of a worker that has left is kept.
const WORKER_KEPT: Duration = Duration::from_secs(86_400);
/// What is longer stands in line: a server closes channels that hold too much.
const HANDED_BYTES: usize = 64 * 1024;
/// Beyond this a time is not exact in a script. Nobody lives to see it.
const FARTHEST_MICROS: u64 = 1 << 52;

/// A batch of tasks, written out as the script takes them.
struct Batch {
    parts: Vec<String>,
    args: Vec<Vec<u8>>,
    /// How many arguments each task has.
    each: usize,
}

/// What a batch is submitted for.
pub(super) enum Mode {
    Plain,
    /// The task that is submitted once more, and whether it has to be a dead letter.
    Again(Tid, bool),
    /// The worker that is to run the only task.
    Own(Box<WorkerInfo>, Duration),
}

/// What the script answered.
pub(super) struct Stored {
    pub(super) submitted: Vec<Submitted>,
    owner: Option<Tid>,
    claimed: Option<Tid>,
}

impl Redis {
    pub(super) async fn submit_batch(&self, batch: Vec<Submit>) -> Result<Vec<Submitted>> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        if let [task] = &batch[..]
            && is_plain(task)
            && !task.spec.expires()
            && !self.link().target.address.options.wants_copies()
            && self.core.hand.is_worth_trying()
            && let Some(tid) = self.hand_over(task).await?
        {
            return Ok(vec![Submitted::New(tid)]);
        }
        Ok(self.store(batch, Mode::Plain).await?.submitted)
    }

    /// Stores a task by giving it to a worker that waits for it, if there is one. Not for who wants copies of it before it is stored.
    async fn hand_over(&self, task: &Submit) -> Result<Option<Tid>> {
        let spec = task_arg(task)?;
        if spec.len() > HANDED_BYTES {
            return Ok(None);
        }
        let args = vec![Part::name_of(&task.spec).into_bytes(), spec];
        let answer = self.link().change(&script::HAND, Vec::new(), args, Sure::Done).await?;
        let handed = tid(answer);
        self.core.hand.somebody_waits(handed.is_some());
        Ok(handed)
    }

    pub(super) async fn submit_again(&self, old: Tid, task: Submit, dead: bool) -> Result<Tid> {
        let answer = self.send(&[task], Mode::Again(old, dead)).await?;
        if answer.is_empty() {
            return Err(Error::NotDead(old));
        }
        let stored = self.stored(answer, 1).await?;
        stored.submitted.first().ok_or(Error::Closed)?.again(old)
    }

    pub(super) async fn submit_for(&self, request: OwnRequest) -> Result<Own> {
        let OwnRequest { task, worker, lease, yields } = request;
        // Where nobody stays, those that are gone have nobody else to find them.
        reclaim(self.link()).await?;
        let left_to_others = yields && self.workers().await?.iter().any(|entry| entry.would_take(&task.spec));
        let spec = task.spec.clone();
        let mode = if left_to_others { Mode::Plain } else { Mode::Own(Box::new(worker.clone()), lease) };
        let stored = self.store(vec![task], mode).await?;
        let claim = stored.claimed.map(|tid| Claim { fence: Fence { tid, attempt: 1 }, spec });
        let claim = self.core.fresh(claim.into_iter().collect()).await?.pop();
        if let Some(owner) = stored.owner {
            self.show_worker(owner, &worker).await;
        }
        let submitted = *stored.submitted.first().ok_or(Error::Closed)?;
        Ok(Own { submitted, worker: stored.owner, claim })
    }

    async fn store(&self, tasks: Vec<Submit>, mode: Mode) -> Result<Stored> {
        self.stored(self.send(&tasks, mode).await?, tasks.len()).await
    }

    async fn send(&self, tasks: &[Submit], mode: Mode) -> Result<Vec<Value>> {
        let (keys, mut args) = self.submission(tasks, mode)?;
        let script: &Script = match tasks.iter().any(|task| task.spec.expires()) {
            true => {
                args.push(lifetimes(tasks));
                &script::SUBMIT_EXPIRING
            }
            false => &script::SUBMIT,
        };
        Ok(list(self.link().change(script, keys, args, Sure::Durable).await?))
    }

    /// Tasks, as the scripts take them: keys and arguments.
    pub(super) fn submission(&self, tasks: &[Submit], mode: Mode) -> Result<(Vec<String>, Vec<Vec<u8>>)> {
        let batch = Batch::new(tasks)?;
        let keys = batch.parts.iter().map(|part| self.core.keys.ready(part)).collect();
        let mut args = vec![arg(batch.parts.len())];
        args.extend(batch.parts.into_iter().map(String::into_bytes));
        args.extend([arg(tasks.len()), arg(batch.each)]);
        args.extend(batch.args);
        args.extend(mode.args());
        Ok((keys, args))
    }

    /// What the scripts answered when they had stored `tasks` of them.
    pub(super) async fn stored(&self, answer: Vec<Value>, tasks: usize) -> Result<Stored> {
        let odd =
            || Error::Server { place: self.link().target.place(), reason: "a submission was not answered".into() };
        let [first, existing, fresh, owner, claimed, idle] = <[_; 6]>::try_from(answer).map_err(|_| odd())?;
        self.core.hand.somebody_waits(number(idle) > 0);
        let fresh: Vec<String> = list(fresh).into_iter().map(text).collect();
        if !fresh.is_empty() {
            self.tell_of_parts().await;
        }
        let mut others: HashMap<usize, Tid> = HashMap::new();
        let mut existing = list(existing).into_iter();
        while let (Some(index), Some(holder)) = (existing.next(), existing.next()) {
            others.extend(tid(holder).map(|holder| (number(index) as usize, holder)));
        }
        let mut next = from_stream_id(&text(first)).unwrap_or(0);
        let mut submitted = Vec::with_capacity(tasks);
        for index in 1..=tasks {
            submitted.push(match others.get(&index) {
                Some(holder) => Submitted::Existing(*holder),
                None => {
                    let tid = Tid::from_u64(next).ok_or_else(odd)?;
                    next += 1;
                    Submitted::New(tid)
                }
            });
        }
        Ok(Stored { submitted, owner: tid(owner), claimed: tid(claimed) })
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

impl Batch {
    fn new(tasks: &[Submit]) -> Result<Self> {
        let mut parts: Vec<String> = Vec::new();
        let mut known: HashMap<String, usize> = HashMap::new();
        let mut number_of = |spec| {
            *known.entry(Part::name_of(spec)).or_insert_with_key(|name| {
                parts.push(name.clone());
                parts.len()
            })
        };
        let numbers: Vec<usize> = tasks.iter().map(|task| number_of(&task.spec)).collect();
        // Most tasks have nothing but a spec, and most batches go to one partition: what they need not say costs no time.
        let each = match tasks.iter().all(is_plain) {
            true if parts.len() == 1 => 1,
            true => 2,
            false => 5,
        };
        let mut args = Vec::with_capacity(tasks.len() * each);
        for (task, number) in tasks.iter().zip(numbers) {
            let spec = &task.spec;
            if each > 1 {
                args.push(arg(number));
            }
            if each == 5 {
                let (due, due_nanos) = due(spec);
                args.extend([due.into_bytes(), due_nanos.into_bytes(), key_of(spec).into_bytes()]);
            }
            args.push(task_arg(task)?);
        }
        Ok(Self { parts, args, each })
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

/// Whether there is nothing to say of a task but its spec.
fn is_plain(Submit { spec, .. }: &Submit) -> bool {
    spec.delay.is_none() && spec.run_at.is_none() && spec.unique_key.is_none()
}

/// When tasks expire, as the scripts take it: on the server's clock.
pub(super) fn lifetimes(tasks: &[Submit]) -> Vec<u8> {
    tasks.iter().map(lifetime).collect::<Vec<_>>().join(" ").into_bytes()
}

/// When a task expires, as the scripts take it.
pub(super) fn lifetime(Submit { spec, .. }: &Submit) -> String {
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
pub(super) fn task_text(task: &Submit) -> Result<String> {
    let Submit { spec, parent } = task;
    Ok(stored(spec, *parent, false, spec.result_ttl().0, &task.written()?))
}

fn task_arg(task: &Submit) -> Result<Vec<u8>> {
    Ok(task_text(task)?.into_bytes())
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
pub(super) fn due(spec: &Spec) -> (String, String) {
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
