//! Tasks out.

use std::{cmp::Reverse, sync::Arc, time::Duration};

use raddle_core::{Exit, State};
use redis::Value;
use tokio::{sync::oneshot, time::Instant};

use super::{
    Core, FOR_EVER, Redis, SAFETY_INTERVAL,
    apply::{apply, snapshots},
    change::Draft,
    fault::Fault,
    finish::release,
    keys::Part,
    link::{Backoff, Sure},
    reader::Woken,
    record::Stored,
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
    /// Tasks that were handed over while the worker waited, and the server's time in microseconds.
    Handed(Vec<Claim>, u64),
    /// Nothing, when something may be due, and the server's time.
    Nothing(Option<Duration>, Option<u64>),
    /// Nothing, and there are partitions that this handle does not know of.
    NewParts,
}

/// How a worker waits for tasks.
struct Stay {
    /// The channel by which it is reached; nothing if it does not wait.
    channel: String,
    /// Since when it waits, by the server's time in microseconds.
    since: Option<u64>,
    /// How many tasks it takes.
    max: u32,
}

/// The channel of a worker that waits and has none.
const UNREACHABLE: &str = "-";

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
        let core = Arc::clone(&self.core);
        tokio::spawn(async move {
            let mut give = give;
            let owner = request.owner;
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
        let since = self.hand.take_unsettled(request.owner);
        let mut stay = Stay { channel: String::new(), since, max: request.max };
        if !request.wait.is_zero() {
            stay.channel = self.hand.channel(self, request.wait).await.unwrap_or(UNREACHABLE).to_owned();
        }
        let outcome = self.claim_or_wait(&request, deadline, &mut stay, caller).await;
        if let (Err(_), Some(since)) = (&outcome, stay.since) {
            self.hand.leave_unsettled(request.owner, since);
        }
        outcome
    }

    async fn claim_or_wait(
        self: &Arc<Self>,
        request: &ClaimRequest,
        deadline: Instant,
        stay: &mut Stay,
        caller: &mut oneshot::Sender<Result<Vec<Claim>>>,
    ) -> Result<Outcome> {
        let options = &self.link.target.address.options;
        let mut backoff = Backoff::new(options, options.give_up_after);
        let (mut woken_by, mut seat) = (None, self.hand.sit(request.owner));
        loop {
            let mut look = self.look(request, stay).await?;
            let again_in = match look.found {
                Found::Claims(claims, more) => {
                    // A batch wakes a few, and each of them one more, until all are taken.
                    look.wakes.extend(woken_by.filter(|_| more));
                    self.give_back(seat.leave().into_iter().collect()).await;
                    return Ok(Outcome { claims, wakes: look.wakes });
                }
                Found::Handed(claims, now) => {
                    stay.since = Some(now);
                    let claims = self.hand.news(claims);
                    if claims.is_empty() {
                        // They have come over the channel.
                        Some(Duration::ZERO)
                    } else {
                        return Ok(Outcome { claims, wakes: look.wakes });
                    }
                }
                Found::NewParts => {
                    self.wake(&look.wakes).await;
                    self.refresh_parts().await?;
                    continue;
                }
                Found::Nothing(again_in, now) => {
                    stay.since = stay.since.or(now);
                    again_in
                }
            };
            self.wake(&look.wakes).await;
            let left = deadline.saturating_duration_since(Instant::now());
            if stay.channel.is_empty() {
                return Ok(Outcome { claims: seat.leave().into_iter().collect(), wakes: Vec::new() });
            }
            if left.is_zero() || caller.is_closed() {
                // One more look, to take nothing: it says that nothing is to be handed over any more, and brings what was.
                (stay.channel, stay.max) = (String::new(), 0);
                continue;
            }
            let wait = again_in.unwrap_or(SAFETY_INTERVAL).clamp(Duration::from_millis(1), SAFETY_INTERVAL).min(left);
            let parts = self.parts_for(request);
            let ended = async {
                tokio::select! {
                    claim = seat.handed() => Some(claim),
                    () = caller.closed() => None,
                }
            };
            match self.block(request.owner, &parts, wait, ended).await {
                Ok(Woken::Ended(Some(claim))) => return Ok(Outcome { claims: vec![claim], wakes: Vec::new() }),
                Ok(Woken::Ended(None)) => {}
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
        &self,
        request: &ClaimRequest,
        deadline: Instant,
        caller: &mut oneshot::Sender<Result<Vec<Claim>>>,
    ) -> Result<Outcome> {
        // Whatever makes a task ready is an event, but for its time.
        let left = deadline.saturating_duration_since(Instant::now());
        let mut wait = self.bell.wait(super::Topic::Log, left).await;
        let stay = Stay { channel: String::new(), since: None, max: request.max };
        loop {
            let Look { found, wakes } = self.look(request, &stay).await?;
            let again_in = match found {
                Found::Claims(claims, _) | Found::Handed(claims, _) => return Ok(Outcome { claims, wakes }),
                Found::Nothing(again_in, _) => again_in,
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
    async fn look(&self, request: &ClaimRequest, stay: &Stay) -> Result<Look> {
        let answer = self.link.change(&script::CLAIM, Vec::new(), self.claim_args(request, stay), Sure::Done).await?;
        self.read_look(request, answer).await
    }

    /// A request, written out as the script takes it.
    fn claim_args(&self, request: &ClaimRequest, stay: &Stay) -> Vec<Vec<u8>> {
        let known = self.parts.lock().expect("no holder panics").len();
        let only = request.only.map_or(Vec::new(), arg);
        let queues = lines(request.queues.iter().map(String::as_str));
        let since = stay.since.map_or(Vec::new(), arg);
        let caps = lines(request.caps.iter());
        vec![arg(request.owner), arg(stay.max), arg(known), only, queues, caps, arg(&stay.channel), since]
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
            Some("given") => {
                let now = answer.next().map_or(0, number);
                Found::Handed(self.readable(answer).await?, now)
            }
            Some("again") => {
                let more = rest().is_some();
                let answer = self.fetch_specs(answer).await?;
                self.found(answer.into_iter(), more).await?
            }
            Some("none") => {
                let micros = |text: Option<String>| text.and_then(|text| text.parse().ok());
                let again_in = micros(rest()).map(Duration::from_micros);
                Found::Nothing(again_in, micros(rest()))
            }
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
        Ok(if claims.is_empty() { Found::Nothing(Some(Duration::ZERO), None) } else { Found::Claims(claims, more) })
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
        Ok(claims)
    }

    pub(super) async fn fail(&self, fence: Fence, error: &Error) -> Result<()> {
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

    pub(super) async fn give_back(&self, claims: Vec<Claim>) {
        if claims.is_empty() {
            return;
        }
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

/// A claim, as it is stored.
pub(super) fn read_claim(fence: Fence, stored: &str) -> Result<Claim> {
    let spec = Stored::parse(fence.tid, stored)?.spec(fence.tid)?;
    Ok(Claim { fence, spec })
}

/// Words as the script finds one among them: each between line ends.
fn lines<'a>(words: impl Iterator<Item = &'a str>) -> Vec<u8> {
    words.fold(vec![b'\n'], |mut lines, word| {
        lines.extend_from_slice(word.as_bytes());
        lines.push(b'\n');
        lines
    })
}
