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
    keys::{Part, stream_id},
    link::{Backoff, Sure},
    reader::Woken,
    record::Stored,
    script,
    value::{arg, list, maybe, number, text, tid},
};
use crate::{Claim, ClaimRequest, Error, Fence, Release, Result};

/// What a look for tasks found.
enum Found {
    Claims(Vec<Claim>),
    /// Nothing, and when something may be due.
    Nothing(Option<Duration>),
    /// There are partitions that this handle does not know of.
    NewParts,
}

impl Redis {
    /// Claims on a task of its own: whoever stops waiting for claims that are made already gives them back that way.
    pub(super) async fn claim_for(&self, request: ClaimRequest) -> Result<Vec<Claim>> {
        let (give, mut given) = oneshot::channel();
        let core = Arc::clone(&self.core);
        tokio::spawn(async move {
            let mut give = give;
            let owner = request.owner;
            let outcome = core.claim(request, &mut give).await;
            if let Err(Ok(claims)) = give.send(outcome) {
                core.give_back(claims).await;
                tracing::debug!(%owner, "a claim was given up");
            }
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
    ) -> Result<Vec<Claim>> {
        let deadline = Instant::now() + request.wait.min(FOR_EVER);
        if let Some(tid) = request.only {
            return self.claim_only(&request, tid, deadline, caller).await;
        }
        let options = &self.link.target.address.options;
        let mut backoff = Backoff::new(options, options.give_up_after);
        loop {
            let parts = self.parts_for(&request);
            let again_in = match self.look(&request, &parts).await? {
                Found::NewParts => {
                    self.refresh_parts().await?;
                    continue;
                }
                Found::Claims(claims) => return Ok(claims),
                Found::Nothing(again_in) => again_in,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || caller.is_closed() {
                return Ok(Vec::new());
            }
            let wait = again_in.unwrap_or(SAFETY_INTERVAL).clamp(Duration::from_millis(1), SAFETY_INTERVAL).min(left);
            match self.block(request.owner, &parts, wait, caller.closed()).await {
                Ok(Woken::Up) => backoff = Backoff::new(options, options.give_up_after),
                Ok(Woken::Unwanted(stream)) => {
                    if let Some(stream) = stream {
                        self.pass_on(&stream).await;
                    }
                    return Ok(Vec::new());
                }
                Err(Fault::Final(error)) => return Err(*error),
                Err(Fault::Away(reason)) => {
                    if !backoff.pause().await {
                        return Err(Error::Unreachable { place: self.link.target.place(), reason });
                    }
                }
            }
        }
    }

    /// Claims one task, whatever its queue and needs.
    async fn claim_only(
        &self,
        request: &ClaimRequest,
        tid: Tid,
        deadline: Instant,
        caller: &mut oneshot::Sender<Result<Vec<Claim>>>,
    ) -> Result<Vec<Claim>> {
        // Whatever makes a task ready is an event, but for its time.
        let left = deadline.saturating_duration_since(Instant::now());
        let mut wait = self.bell.wait(super::Topic::Log, left).await;
        loop {
            let part = snapshots(&self.link, &[tid]).await?.remove(&tid).and_then(|task| task.record.part);
            let parts: Vec<Part> = part.as_deref().and_then(Part::parse).into_iter().collect();
            let again_in = match self.look(request, &parts).await? {
                Found::Claims(claims) => return Ok(claims),
                Found::Nothing(again_in) => again_in,
                Found::NewParts => None,
            };
            let again = tokio::select! {
                again = wait.again(again_in) => again,
                () = caller.closed() => false,
            };
            if !again {
                return Ok(Vec::new());
            }
        }
    }

    /// Takes what is there now.
    async fn look(&self, request: &ClaimRequest, parts: &[Part]) -> Result<Found> {
        let keys = parts.iter().flat_map(|part| self.keys.part(&part.name)).collect();
        let known = self.parts.lock().expect("no holder panics").len();
        let mut args = vec![arg(request.owner), arg(request.max), arg(known)];
        args.push(request.only.map_or(Vec::new(), arg));
        args.push(request.only.map_or(Vec::new(), |tid| arg(stream_id(tid.as_u64()))));
        args.extend(parts.iter().map(|part| part.name.clone().into_bytes()));
        let mut answer = list(self.link.change(&script::CLAIM, keys, args, Sure::Done).await?).into_iter();
        match answer.next().map(text).as_deref() {
            Some("ok") => self.claims(answer).await,
            Some("again") => {
                let answer = self.fetch_specs(answer).await?;
                self.claims(answer.into_iter()).await
            }
            Some("none") => {
                let due = answer.next().and_then(maybe).filter(|text| !text.is_empty());
                Ok(Found::Nothing(due.and_then(|text| text.parse().ok()).map(Duration::from_micros)))
            }
            Some("parts") => Ok(Found::NewParts),
            _ => Err(Error::NotFound(request.owner)),
        }
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

    async fn claims(&self, mut answer: impl Iterator<Item = Value>) -> Result<Found> {
        let (mut claims, mut unreadable) = (Vec::new(), Vec::new());
        while let (Some(id), Some(attempt), Some(stored)) = (answer.next(), answer.next(), answer.next()) {
            let Some(tid) = tid(id) else { continue };
            let fence = Fence { tid, attempt: number(attempt) as u32 };
            let stored = text(stored);
            match Stored::parse(tid, &stored).and_then(|stored| stored.spec(tid)) {
                Ok(spec) => claims.push(Claim { fence, spec }),
                // A record that nobody can read must not stand in the way of those behind it.
                Err(error) => unreadable.push((fence, error)),
            }
        }
        for (fence, error) in &unreadable {
            self.fail(*fence, error).await?;
        }
        Ok(if claims.is_empty() { Found::Nothing(Some(Duration::ZERO)) } else { Found::Claims(claims) })
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

    async fn give_back(&self, claims: Vec<Claim>) {
        let back = claims
            .into_iter()
            .map(|claim| Release { fence: claim.fence, reason: "its claimer stopped waiting".into() })
            .collect();
        if let Err(error) = release(&self.link, back).await {
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
