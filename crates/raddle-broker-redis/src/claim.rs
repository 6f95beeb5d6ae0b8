//! Claims.

use std::{cmp::Reverse, mem, sync::Arc, time::Duration};

use raddle_model::{ExitStatus, TaskState, Tid};
use tokio::{sync::oneshot, time::Instant};

use super::{
    FOREVER, Redis, RedisCore, SAFETY_INTERVAL,
    apply::{apply, snapshots},
    change::Draft,
    complete::release,
    connection::{Certainty, ReconnectBackoff},
    failure::Fault,
    record::{StoredSpec, TaskLocation},
    schema::Partition,
    script,
    value::{arg, tids},
};
use raddle_broker::{AttemptId, ClaimRequest, Error, LeasedTask, Release, Result};

/// The result of running the claim script.
enum ClaimAttempt {
    Claims(Vec<LeasedTask>),
    /// No task, and when the next becomes due.
    Nothing(Option<Duration>),
    /// The caller does not know all partitions; nothing was claimed.
    NewPartitions,
}

/// Claims that were not delivered to the caller yet. Dropping them releases them.
struct ClaimOffer {
    core: Arc<RedisCore>,
    claims: Vec<LeasedTask>,
}

type ClaimCaller = oneshot::Sender<Result<ClaimOffer>>;

impl Drop for ClaimOffer {
    fn drop(&mut self) {
        let claims = mem::take(&mut self.claims);
        if !claims.is_empty() {
            let core = Arc::clone(&self.core);
            tokio::spawn(async move { core.give_back(claims).await });
        }
    }
}

impl Redis {
    /// Claims in a task of its own, so that a claim completions even if its caller stops waiting.
    pub(super) async fn claim_detached(&self, request: ClaimRequest) -> Result<Vec<LeasedTask>> {
        let (mut caller, offered) = oneshot::channel();
        let core = Arc::clone(&self.core);
        tokio::spawn(async move {
            let claims = core.claim(&request, &mut caller).await;
            let _ = caller.send(claims.map(|claims| ClaimOffer { core, claims }));
        });
        offered
            .await
            .unwrap_or(Err(Error::Closed))
            .map(|mut offer| mem::take(&mut offer.claims))
    }
}

impl RedisCore {
    async fn claim(
        &self,
        request: &ClaimRequest,
        caller: &mut ClaimCaller,
    ) -> Result<Vec<LeasedTask>> {
        let deadline = Instant::now() + request.wait.min(FOREVER);
        if request.only.is_some() {
            return self.claim_only(request, caller).await;
        }
        let options = &self.link.target.address.options;
        let mut backoff = ReconnectBackoff::new(options, FOREVER);
        let (mut wait, mut has_warned) = (None, false);
        loop {
            // The error for which this worker can never wait for tasks, if any.
            let mut refusal = None;
            let partitions = self.partitions_for(request);
            let call = self
                .link
                .call(&script::CLAIM, self.claim_args(request, &partitions));
            let answer = match wait {
                None => self.link.send_call(&call, Certainty::Done).await,
                Some(wait) => {
                    match self
                        .block(
                            request.owner,
                            &partitions,
                            wait,
                            call.command(),
                            caller.closed(),
                        )
                        .await
                    {
                        Ok(answer) => {
                            backoff = ReconnectBackoff::new(options, FOREVER);
                            has_warned = false;
                            Ok(answer)
                        }
                        // The claim may have been performed, even behind a refused `BLPOP`: ask for
                        // its stored reply.
                        Err(fault) => {
                            if let Fault::Final(error) = fault {
                                refusal = Some(error);
                            } else {
                                if !has_warned {
                                    tracing::warn!(%fault, "waiting for tasks was interrupted, trying again");
                                    has_warned = true;
                                }
                                tokio::select! {
                                    _ = backoff.pause() => {}
                                    () = tokio::time::sleep_until(deadline) => {}
                                    () = caller.closed() => {}
                                }
                            }
                            self.link.send_call(&call, Certainty::Done).await
                        }
                    }
                }
            };
            let again_in = match (
                self.found(request, self.link.end(&call, answer)?).await?,
                refusal,
            ) {
                (ClaimAttempt::Claims(claims), _) => return Ok(claims),
                (_, Some(error)) => return Err(*error),
                (ClaimAttempt::NewPartitions, None) => {
                    self.refresh_partitions().await?;
                    wait = None;
                    continue;
                }
                (ClaimAttempt::Nothing(again_in), None) => again_in,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || caller.is_closed() {
                return Ok(Vec::new());
            }
            let again_in = again_in
                .unwrap_or(SAFETY_INTERVAL)
                .clamp(Duration::from_millis(1), SAFETY_INTERVAL);
            wait = Some(again_in.min(left));
        }
    }

    /// Claims one task, whatever its queue and needs.
    async fn claim_only(
        &self,
        request: &ClaimRequest,
        caller: &mut ClaimCaller,
    ) -> Result<Vec<LeasedTask>> {
        // Everything that makes a task ready is an event, except the due time of a delayed task.
        let mut wait = self.notifier.wait(super::Topic::Log, request.wait).await;
        loop {
            let answer = self
                .link
                .change(
                    &script::CLAIM,
                    self.claim_args(request, &[]),
                    Certainty::Done,
                )
                .await?;
            let again_in = match self.found(request, answer).await? {
                ClaimAttempt::Claims(claims) => return Ok(claims),
                ClaimAttempt::Nothing(again_in) => again_in,
                ClaimAttempt::NewPartitions => None,
            };
            let again = tokio::select! {
                again = wait.next(again_in) => again,
                () = caller.closed() => false,
            };
            if !again {
                return Ok(Vec::new());
            }
        }
    }

    fn claim_args(&self, request: &ClaimRequest, partitions: &[Partition]) -> Vec<Vec<u8>> {
        let known = self.partitions.lock().expect("no holder panics").len();
        let only = request.only.map_or(Vec::new(), arg);
        let mut args = vec![arg(request.owner), arg(request.max), arg(known), only];
        args.extend(partitions.iter().map(|partition| arg(&partition.name)));
        args
    }

    /// Evaluates the reply of the claim script.
    async fn found(&self, request: &ClaimRequest, answer: Vec<Vec<u8>>) -> Result<ClaimAttempt> {
        let answer: Vec<String> = answer
            .iter()
            .map(|text| String::from_utf8_lossy(text).into_owned())
            .collect();
        let Some((word, rest)) = answer.split_first() else {
            return Err(Error::NotFound(request.owner));
        };
        let claims = match word.as_str() {
            "ok" => rest
                .chunks_exact(4)
                .map(|task| (&task[..3], task[3].clone()))
                .collect(),
            // A stored reply has no specs.
            "stored" => {
                let tasks = snapshots(&self.link, &tids(rest.iter().step_by(3).cloned())).await?;
                // The worker may have released a task since: it knew nothing of it.
                let stored = |task: &[String]| {
                    let (tid, attempt) = (task[0].parse().ok()?, task[1].parse().ok()?);
                    let attempt_id = AttemptId {
                        tid,
                        attempt,
                        owner: request.owner,
                    };
                    Some(
                        tasks
                            .get(&tid)
                            .filter(|task| task.is_current_attempt(attempt_id))?
                            .stored
                            .clone(),
                    )
                };
                rest.chunks_exact(3)
                    .filter_map(|task| Some((task, stored(task)?)))
                    .collect()
            }
            "none" => {
                return Ok(ClaimAttempt::Nothing(
                    rest.first()
                        .and_then(|due| due.parse().ok())
                        .map(Duration::from_micros),
                ));
            }
            "partitions" => return Ok(ClaimAttempt::NewPartitions),
            _ => return Err(Error::NotFound(request.owner)),
        };
        let claims = self.parse_claims(request.owner, claims).await?;
        Ok(if claims.is_empty() {
            ClaimAttempt::Nothing(Some(Duration::ZERO))
        } else {
            ClaimAttempt::Claims(claims)
        })
    }

    /// Parses claimed tasks: id, attempt, fencing token, and spec. A task with an unreadable spec
    /// fails, so that it does not block those behind it.
    async fn parse_claims(
        &self,
        owner: Tid,
        tasks: Vec<(&[String], String)>,
    ) -> Result<Vec<LeasedTask>> {
        let mut claims = Vec::new();
        for (numbers, stored) in tasks {
            let [tid, attempt, token] = numbers else {
                continue;
            };
            let (Ok(tid), Ok(attempt), Ok(fencing_token)) =
                (tid.parse(), attempt.parse(), token.parse())
            else {
                continue;
            };
            let attempt_id = AttemptId {
                tid,
                attempt,
                owner,
            };
            match StoredSpec::parse(tid, &stored).and_then(|stored| stored.spec(tid)) {
                Ok(spec) => claims.push(LeasedTask {
                    attempt_id,
                    spec,
                    fencing_token,
                }),
                Err(error) => self.fail(attempt_id, &error).await?,
            }
        }
        self.end_expired(claims).await
    }

    /// Ends those claims that have expired, and returns the others.
    pub(super) async fn end_expired(&self, mut claims: Vec<LeasedTask>) -> Result<Vec<LeasedTask>> {
        let expiring: Vec<Tid> = claims
            .iter()
            .filter(|claim| claim.spec.expires())
            .map(|claim| claim.attempt_id.tid)
            .collect();
        if expiring.is_empty() {
            return Ok(claims);
        }
        // By the server's clock.
        let tasks = snapshots(&self.link, &expiring).await?;
        let has_expired = |claim: &LeasedTask| {
            let Some(task) = tasks
                .get(&claim.attempt_id.tid)
                .filter(|task| task.is_current_attempt(claim.attempt_id))
            else {
                return false;
            };
            claim.spec.has_expired(
                task.tid,
                task.record.counters,
                task.now.saturating_mul(1000),
            )
        };
        let expired: Vec<LeasedTask> = claims.extract_if(.., |claim| has_expired(claim)).collect();
        let mut drafts = Vec::new();
        for task in expired
            .iter()
            .filter_map(|claim| tasks.get(&claim.attempt_id.tid))
        {
            let mut draft = Draft::new(task);
            draft.end_attempt(task.report(ExitStatus::Expired));
            drafts.push(draft);
        }
        apply(&self.link, &drafts, Certainty::Done).await?;
        Ok(claims)
    }

    async fn fail(&self, attempt_id: AttemptId, error: &Error) -> Result<()> {
        if let Some(task) = snapshots(&self.link, &[attempt_id.tid])
            .await?
            .remove(&attempt_id.tid)
            && task.is_current_attempt(attempt_id)
        {
            let mut draft = Draft::new(&task);
            let report = task.report(ExitStatus::SpawnFailed {
                message: error.to_string(),
            });
            draft.finish(TaskState::Failed, false, report, task.record.owner);
            apply(&self.link, &[draft], Certainty::Done).await?;
        }
        Ok(())
    }

    /// Releases claims that have not started.
    async fn give_back(&self, claims: Vec<LeasedTask>) {
        let give_back = async || -> Result<()> {
            let tids: Vec<Tid> = claims.iter().map(|claim| claim.attempt_id.tid).collect();
            let tasks = snapshots(&self.link, &tids).await?;
            let is_unbegun = |attempt_id: &AttemptId| {
                tasks.get(&attempt_id.tid).is_some_and(|task| {
                    task.is_current_attempt(*attempt_id)
                        && task.record.location == TaskLocation::Spawning
                })
            };
            let fences = claims
                .iter()
                .map(|claim| claim.attempt_id)
                .filter(is_unbegun);
            let back = fences.map(|attempt_id| Release {
                attempt_id,
                reason: "its claimer stopped waiting".into(),
            });
            release(&self.link, back.collect()).await.map(drop)
        };
        if let Err(error) = give_back().await {
            tracing::warn!(%error, "cannot release claims whose caller is gone: they are reclaimed when the worker's lease expires");
        }
    }

    /// The partitions that a request may claim from, highest priority first.
    fn partitions_for(&self, request: &ClaimRequest) -> Vec<Partition> {
        let known = Arc::clone(&self.partitions.lock().expect("no holder panics"));
        let fits = |partition: &&Partition| {
            request.queues.contains(&partition.queue) && partition.needs.is_subset(&request.caps)
        };
        known.iter().filter(fits).cloned().collect()
    }

    async fn refresh_partitions(&self) -> Result<()> {
        let names: Vec<String> = self
            .link
            .read(redis::cmd("SMEMBERS").arg(self.keys.named("partitions")))
            .await?;
        // An unreadable one counts too, and serves no worker.
        let parse = |name: String| {
            Partition::parse(&name).unwrap_or(Partition {
                name,
                priority: 0,
                queue: String::new(),
                needs: Default::default(),
            })
        };
        let mut partitions: Vec<Partition> = names.into_iter().map(parse).collect();
        partitions.sort_by_key(|partition| Reverse(partition.priority));
        *self.partitions.lock().expect("no holder panics") = Arc::new(partitions);
        Ok(())
    }
}
