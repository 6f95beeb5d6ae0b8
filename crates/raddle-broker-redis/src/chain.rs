//! Tasks that running attempts have chained.
//!
//! They are fields of the hash `chained`: the totals of each attempt, and the tasks of each call,
//! packed as `submit` in `lua/tasks.lua` expects them.

use raddle_model::{TaskSpec, TaskView, Tid};

use super::{Redis, connection::Certainty, record::unreadable, script, submit::pack, value::arg};
use raddle_broker::{ChainRequest, Error, NewTask, Result, engine::ChainTotals};

/// The totals of an attempt: "calls tasks bytes forwarded".
#[derive(Default)]
struct Chained {
    calls: u64,
    account: ChainTotals,
}

impl Redis {
    /// Chains tasks to an attempt: reads the totals, decides, and stores if nothing has changed
    /// meanwhile.
    pub(super) async fn chain_tasks(&self, chain: &ChainRequest) -> Result<u64> {
        let ChainRequest {
            attempt_id, offset, ..
        } = *chain;
        let sizes: Vec<usize> = chain.serialize_specs()?.iter().map(String::len).collect();
        loop {
            let before = self.chained(&[attempt_id.tid]).await?.pop().flatten();
            let mut now = before
                .as_deref()
                .map(|text| Chained::parse(attempt_id.tid, text))
                .transpose()?
                .unwrap_or_default();
            let known = now.account.add(attempt_id, offset, &sizes)?;
            now.calls += 1;
            let task = |spec: &TaskSpec| NewTask {
                spec: spec.clone(),
                parent: Some(attempt_id.tid),
            };
            let tasks: Vec<NewTask> = chain.tasks[known..].iter().map(task).collect();
            let mut args = vec![
                arg(attempt_id.tid),
                arg(attempt_id.attempt),
                arg(attempt_id.owner),
                before.unwrap_or_default().into_bytes(),
            ];
            args.extend([
                arg(format!("{} {}", now.calls, now.account)),
                arg(now.calls),
                pack(&tasks)?,
            ]);
            // As durable as a submission if the URL asks for replicas: a replica that took over
            // without the tasks would let the attempt succeed without them.
            let answer: String = self
                .link()
                .change(&script::CHAIN, args, Certainty::Durable)
                .await?;
            match answer.as_str() {
                "ok" => return Ok(now.account.tasks),
                "missing" => return Err(Error::NotFound(attempt_id.tid)),
                "stale" => return Err(Error::Superseded(attempt_id)),
                // The attempt chains from several connections at once.
                _ => {}
            }
        }
    }

    /// The stored totals of the current attempts of these tasks.
    async fn chained(&self, tids: &[Tid]) -> Result<Vec<Option<String>>> {
        let mut command = redis::cmd("HMGET");
        command.arg(self.core.keys.named("chained"));
        tids.iter().for_each(|tid| _ = command.arg(tid.to_string()));
        self.link().read(&command).await
    }

    /// Adds the number of chained tasks to the views of tasks that have chained any.
    pub(super) async fn show_chained(&self, tasks: &mut [TaskView]) -> Result<()> {
        let mut chaining: Vec<_> = tasks.iter_mut().filter(|task| task.chained > 0).collect();
        if chaining.is_empty() {
            return Ok(());
        }
        let tids: Vec<Tid> = chaining.iter().map(|task| task.tid).collect();
        for (task, chained) in chaining.iter_mut().zip(self.chained(&tids).await?) {
            let chained = chained
                .map(|text| Chained::parse(task.tid, &text))
                .transpose()?;
            // The attempt may have ended meanwhile.
            task.chained = chained.map_or(0, |chained| chained.account.tasks);
        }
        Ok(())
    }
}

impl Chained {
    fn parse(tid: Tid, text: &str) -> Result<Self> {
        let parse = || {
            let (calls, account) = text.split_once(' ')?;
            Some(Self {
                calls: calls.parse().ok()?,
                account: account.parse().ok()?,
            })
        };
        parse().ok_or_else(|| unreadable(tid, "the totals of its chained tasks cannot be parsed"))
    }
}
