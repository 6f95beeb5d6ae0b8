//! Tasks that stand aside until the attempt that chained them has succeeded.
//!
//! They are fields of one hash, `chained`: what there is of each attempt's, and what came with each call, packed as `submit` in `lua/common.lua` takes it.

use raddle_model::{TaskSpec, TaskView, Tid};

use super::{Redis, connection::Certainty, record::unreadable, script, submit::pack, value::arg};
use raddle_broker::{ChainRequest, Error, NewTask, Result, engine::ChainTotals};

/// What there is of one attempt's: "calls tasks bytes offset".
#[derive(Default)]
struct Chained {
    calls: u64,
    account: ChainTotals,
}

impl Redis {
    /// Lets tasks follow an attempt. What there was of it is read, what there is then is decided, and stored if nothing has changed.
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
            // As durable as a submission, where the URL asks for more than one copy: a server that took over without it would let the attempt
            // end well, and nothing would follow.
            let answer: String = self
                .link()
                .change(&script::CHAIN, args, Certainty::Durable)
                .await?;
            match answer.as_str() {
                "ok" => return Ok(now.account.tasks),
                "missing" => return Err(Error::NotFound(attempt_id.tid)),
                "stale" => return Err(Error::Superseded(attempt_id)),
                // The attempt chains from several places at once.
                _ => {}
            }
        }
    }

    /// What there is of the present attempts of these tasks, as it is written.
    async fn chained(&self, tids: &[Tid]) -> Result<Vec<Option<String>>> {
        let mut command = redis::cmd("HMGET");
        command.arg(self.core.keys.of("chained"));
        tids.iter().for_each(|tid| _ = command.arg(tid.to_string()));
        self.link().read(&command).await
    }

    /// Says how many tasks they have chained of those that are known to have chained any.
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
        parse().ok_or_else(|| unreadable(tid, "what it has chained is not as it was written"))
    }
}
