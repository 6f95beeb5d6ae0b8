//! Tasks out.

use std::{cmp::Reverse, sync::Arc, time::Duration};

use raddle_core::{Exit, State, Tid};
use redis::Value;
use tokio::{sync::oneshot, time::Instant};

use super::{
    Core, FOR_EVER, Redis, SAFETY_INTERVAL,
    apply::{apply, snapshots},
    change::Draft,
    fault::Fault,
    finish::release,
    group::{Group, Shared},
    keys::Part,
    link::{Backoff, Sure},
    reader::Woken,
    record::{Place, Stored},
    script,
    value::{arg, list, maybe, number, text, tid},
};
use crate::{Claim, ClaimRequest, Error, Fence, Release, Result};

/// What a look for tasks brought.
struct Look {
    found: Found,
    /// The streams by which others are to be woken, once the caller has what is his.
    wakes: Vec<String>,
}

enum Found {
    /// Tasks, and whether more were waiting.
    Claims(Vec<Claim>, bool),
    /// Nothing, and when something may be due.
    Nothing(Option<Duration>),
    /// The caller knows of other partitions than there are, and nothing was looked for.
    NewParts,
}

/// How many tasks one script gives to several workers at most: nobody else is served meanwhile.
const TAKEN_AT_ONCE: usize = 64;

/// What came of waiting for tasks.
#[derive(Default)]
struct Outcome {
    claims: Vec<Claim>,
    wakes: Vec<String>,
}

impl Redis {
    /// Claims on a task of its own: whoever stops waiting for claims that are made already gives them back that way.
    pub(super) async fn claim_for(&self, request: ClaimRequest) -> Result<Vec<Claim>> {
        let (give, mut given) = oneshot::channel();
        let (core, owner) = (Arc::clone(&self.core), request.owner);
        tokio::spawn(async move {
            let mut give = give;
            let (outcome, wakes) = match core.claim(request, &mut give).await {
                Ok(outcome) => (Ok(outcome.claims), outcome.wakes),
                Err(error) => (Err(error), Vec::new()),
            };
            if let Err(Ok(claims)) = give.send(outcome) {
                core.give_back(claims).await;
                tracing::debug!(%owner, "a claim was given up");
            }
            core.wake(&wakes).await;
        });
        // Dropped between the answer and the next poll, the channel still has what was sent.
        struct Undelivered<'a>(&'a mut oneshot::Receiver<Result<Vec<Claim>>>, Arc<Core>);
        impl Drop for Undelivered<'_> {
            fn drop(&mut self) {
                self.0.close();
                if let Ok(Ok(claims)) = self.0.try_recv()
                    && !claims.is_empty()
                {
                    let core = Arc::clone(&self.1);
                    tokio::spawn(async move { core.give_back(claims).await });
                }
            }
        }
        let waiting = Undelivered(&mut given, Arc::clone(&self.core));
        let answer = (&mut *waiting.0).await;
        answer.unwrap_or(Err(Error::Closed))
    }
}

impl Core {
    async fn claim(
        self: &Arc<Self>,
        request: ClaimRequest,
        caller: &mut oneshot::Sender<Result<Vec<Claim>>>,
    ) -> Result<Outcome> {
        let deadline = Instant::now() + request.wait.min(FOR_EVER);
        if request.only.is_some() {
            return self.claim_only(&request, deadline, caller).await;
        }
        let options = &self.link.target.address.options;
        let mut backoff = Backoff::new(options, options.give_up_after);
        let mut woken_by = None;
        loop {
            let parts = self.parts_for(&request);
            let Look { found, mut wakes } = self.look(&request, &parts).await?;
            let again_in = match found {
                Found::Claims(claims, more) => {
                    // A batch wakes a few, and each of them one more, until all are taken.
                    wakes.extend(woken_by.filter(|_| more));
                    return Ok(Outcome { claims, wakes });
                }
                Found::NewParts => {
                    self.refresh_parts().await?;
                    continue;
                }
                Found::Nothing(again_in) => again_in,
            };
            woken_by = None;
            self.wake(&wakes).await;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || caller.is_closed() {
                return Ok(Outcome::default());
            }
            let wait = again_in.unwrap_or(SAFETY_INTERVAL).clamp(Duration::from_millis(1), SAFETY_INTERVAL).min(left);
            match self.block(request.owner, &parts, wait, caller.closed()).await {
                Ok(Woken::Ended) => return Ok(Outcome::default()),
                Ok(Woken::By(stream)) => {
                    backoff = Backoff::new(options, options.give_up_after);
                    woken_by = stream;
                }
                Err(Fault::Final(error)) => return Err(*error),
                Err(fault) => {
                    if !backoff.pause().await {
                        return Err(self.link.give_up(fault));
                    }
                }
            }
        }
    }

    /// Claims one task, whatever its queue and needs.
    async fn claim_only(
        self: &Arc<Self>,
        request: &ClaimRequest,
        deadline: Instant,
        caller: &mut oneshot::Sender<Result<Vec<Claim>>>,
    ) -> Result<Outcome> {
        // Whatever makes a task ready is an event, but for its time.
        let left = deadline.saturating_duration_since(Instant::now());
        let mut wait = self.bell.wait(super::Topic::Log, left).await;
        loop {
            let Look { found, wakes } = self.look(request, &[]).await?;
            let again_in = match found {
                Found::Claims(claims, _) => return Ok(Outcome { claims, wakes }),
                Found::Nothing(again_in) => again_in,
                Found::NewParts => None,
            };
            self.wake(&wakes).await;
            let again = tokio::select! {
                again = wait.again(again_in) => again,
                () = caller.closed() => false,
            };
            if !again {
                return Ok(Outcome::default());
            }
        }
    }

    /// Takes what is there now.
    async fn look(self: &Arc<Self>, request: &ClaimRequest, parts: &[Part]) -> Result<Look> {
        let parts = parts.iter().map(|part| part.name.clone()).collect();
        let ask = Ask { owner: request.owner, max: request.max, only: request.only, parts };
        self.read_look(request, Group::ask(self, ask).await?).await
    }

    async fn read_look(&self, request: &ClaimRequest, answer: Value) -> Result<Look> {
        let mut answer = list(answer).into_iter();
        let word = answer.next().map(text);
        let wakes = answer.next().map_or(Vec::new(), list).into_iter();
        let wakes = wakes.map(|part| self.keys.ready(&text(part))).collect();
        let mut rest = || answer.next().and_then(maybe).filter(|text| !text.is_empty());
        let found = match word.as_deref() {
            Some("ok") => {
                let more = rest().is_some();
                self.found(answer, more).await?
            }
            Some("again") => {
                let more = rest().is_some();
                let answer = self.fetch_specs(answer).await?;
                self.found(answer.into_iter(), more).await?
            }
            Some("none") => Found::Nothing(rest().and_then(|text| text.parse().ok()).map(Duration::from_micros)),
            Some("parts") => Found::NewParts,
            _ => return Err(Error::NotFound(request.owner)),
        };
        Ok(Look { found, wakes })
    }

    /// Adds the specs to an answer that was remembered without them.
    async fn fetch_specs(&self, answer: impl Iterator<Item = Value>) -> Result<Vec<Value>> {
        let pairs: Vec<Value> = answer.collect();
        let mut pipe = redis::pipe();
        for pair in pairs.chunks_exact(2) {
            pipe.cmd("HGET").arg(self.keys.of("spec")).arg(text(pair[0].clone()));
        }
        let specs = self.link.pipe(pipe).await?;
        let filled = pairs.chunks_exact(2).zip(specs).flat_map(|(pair, spec)| [pair[0].clone(), pair[1].clone(), spec]);
        Ok(filled.collect())
    }

    async fn found(&self, answer: impl Iterator<Item = Value>, more: bool) -> Result<Found> {
        let claims = self.readable(answer).await?;
        Ok(if claims.is_empty() { Found::Nothing(Some(Duration::ZERO)) } else { Found::Claims(claims, more) })
    }

    /// The tasks of an answer. A record that nobody can read must not stand in the way of those behind it, and fails.
    async fn readable(&self, mut answer: impl Iterator<Item = Value>) -> Result<Vec<Claim>> {
        let (mut claims, mut unreadable) = (Vec::new(), Vec::new());
        while let (Some(id), Some(attempt), Some(stored)) = (answer.next(), answer.next(), answer.next()) {
            let Some(tid) = tid(id) else { continue };
            let fence = Fence { tid, attempt: number(attempt) as u32 };
            match read_claim(fence, &text(stored)) {
                Ok(claim) => claims.push(claim),
                Err(error) => unreadable.push((fence, error)),
            }
        }
        for (fence, error) in &unreadable {
            self.fail(*fence, error).await?;
        }
        self.fresh(claims).await
    }

    /// Those of some claims that have not expired. The others are ended: nobody is given them.
    pub(super) async fn fresh(&self, mut claims: Vec<Claim>) -> Result<Vec<Claim>> {
        let expiring: Vec<Tid> =
            claims.iter().filter(|claim| claim.spec.expires()).map(|claim| claim.fence.tid).collect();
        if expiring.is_empty() {
            return Ok(claims);
        }
        // By the server's clock.
        let tasks = snapshots(&self.link, &expiring).await?;
        let has_expired = |claim: &Claim| {
            let Some(task) = tasks.get(&claim.fence.tid).filter(|task| task.is_latest(claim.fence)) else {
                return false;
            };
            claim.spec.has_expired(task.tid, task.record.tally, task.now.saturating_mul(1000))
        };
        let expired: Vec<Claim> = claims.extract_if(.., |claim| has_expired(claim)).collect();
        let mut drafts = Vec::new();
        for task in expired.iter().filter_map(|claim| tasks.get(&claim.fence.tid)) {
            let mut draft = Draft::new(task);
            draft.settle(task.report(Exit::Expired));
            drafts.push(draft);
        }
        apply(&self.link, &drafts, Sure::Done).await?;
        Ok(claims)
    }

    async fn fail(&self, fence: Fence, error: &Error) -> Result<()> {
        if let Some(task) = snapshots(&self.link, &[fence.tid]).await?.remove(&fence.tid)
            && task.is_latest(fence)
        {
            let mut draft = Draft::new(&task);
            let report = task.report(Exit::SpawnFailed { message: error.to_string() });
            draft.finish(State::Failed, false, report, task.record.owner);
            apply(&self.link, &[draft], Sure::Done).await?;
        }
        Ok(())
    }

    /// Gives back what nobody has begun.
    async fn give_back(&self, claims: Vec<Claim>) {
        if claims.is_empty() {
            return;
        }
        let give_back = async || -> Result<()> {
            let tids: Vec<Tid> = claims.iter().map(|claim| claim.fence.tid).collect();
            let tasks = snapshots(&self.link, &tids).await?;
            let is_unbegun = |fence: &Fence| {
                tasks.get(&fence.tid).is_some_and(|task| task.is_latest(*fence) && task.record.place == Place::Spawning)
            };
            let fences = claims.iter().map(|claim| claim.fence).filter(is_unbegun);
            let back = fences.map(|fence| Release { fence, reason: "its claimer stopped waiting".into() });
            release(&self.link, back.collect()).await.map(drop)
        };
        if let Err(error) = give_back().await {
            tracing::warn!(%error, "claims that nobody waits for were not given back: they come back with the worker's lease");
        }
    }

    /// The partitions that a request may take from, the most urgent first.
    fn parts_for(&self, request: &ClaimRequest) -> Vec<Part> {
        let known = Arc::clone(&self.parts.lock().expect("no holder panics"));
        let fits = |part: &&Part| request.queues.contains(&part.queue) && part.needs.is_subset(&request.caps);
        known.iter().filter(fits).cloned().collect()
    }

    async fn refresh_parts(&self) -> Result<()> {
        let mut pipe = redis::pipe();
        pipe.cmd("SMEMBERS").arg(self.keys.of("parts"));
        let names = self.link.pipe(pipe).await?.pop().unwrap_or_default();
        // One that cannot be read is counted all the same, and serves no worker.
        let parse = |name: String| {
            Part::parse(&name).unwrap_or(Part { name, priority: 0, queue: String::new(), needs: Default::default() })
        };
        let mut parts: Vec<Part> = list(names).into_iter().map(text).map(parse).collect();
        parts.sort_by_key(|part| Reverse(part.priority));
        *self.parts.lock().expect("no holder panics") = Arc::new(parts);
        Ok(())
    }
}

/// A look for tasks, as the script takes it.
pub(super) struct Ask {
    owner: Tid,
    max: u32,
    /// The only task that is wanted.
    only: Option<Tid>,
    /// The partitions that the worker serves, the most urgent first.
    parts: Vec<String>,
}

impl Shared for Ask {
    type Answer = Value;

    const MOST: usize = TAKEN_AT_ONCE;

    fn weight(&self) -> usize {
        self.max as usize
    }

    fn goes_with(&self, other: &Self) -> bool {
        self.only.is_none() && other.only.is_none() && self.max == other.max && self.parts == other.parts
    }

    fn group(core: &Core) -> &Group<Self> {
        &core.claiming
    }

    async fn send(core: &Core, parts: &[&Self]) -> Result<Vec<Value>> {
        let Some(Self { max, only, parts: served, .. }) = parts.first() else { return Ok(Vec::new()) };
        let known = core.parts.lock().expect("no holder panics").len();
        let mut args = vec![arg(max), arg(known), only.map_or(Vec::new(), arg), arg(served.len())];
        args.extend(served.iter().map(arg));
        args.extend(parts.iter().map(|part| arg(part.owner)));
        Ok(list(core.link.change(&script::CLAIM, Vec::new(), args, Sure::Done).await?))
    }
}

/// A claim, as it is stored.
fn read_claim(fence: Fence, stored: &str) -> Result<Claim> {
    let spec = Stored::parse(fence.tid, stored)?.spec(fence.tid)?;
    Ok(Claim { fence, spec })
}
