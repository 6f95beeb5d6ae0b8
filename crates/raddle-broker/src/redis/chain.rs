//! Tasks that stand aside until the attempt that chained them has succeeded.
//!
//! They are fields of one hash, `chained`: what there is of each attempt's, and what came with each call, packed as `submit` in `lua/common.lua` takes it.
//! What there is names the partitions, so that whoever ends the attempt can declare their streams.

use std::{collections::BTreeSet, fmt};

use raddle_core::{TaskView, Tid};

use super::{
    Redis,
    keys::Part,
    link::Sure,
    record::unreadable,
    script,
    value::{arg, list, maybe, number, text},
};
use crate::{Chain, Error, Result, Submit, chain::Account};

/// What there is of one attempt's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chained {
    calls: u64,
    account: Account,
    pub(super) parts: BTreeSet<String>,
}

impl Redis {
    /// Lets tasks follow an attempt. What there was of it is read, what there is then is decided, and stored if nothing has changed.
    pub(super) async fn chain_tasks(&self, chain: &Chain) -> Result<u64> {
        let Chain { fence, told, .. } = *chain;
        let sizes: Vec<usize> = chain.written()?.iter().map(String::len).collect();
        loop {
            let before = self.chained(&[fence.tid]).await?.pop().flatten();
            let mut now =
                before.as_deref().map(|text| Chained::parse(fence.tid, text)).transpose()?.unwrap_or_default();
            let known = now.account.add(fence, told, &sizes)?;
            now.calls += 1;
            let tasks: Vec<Submit> = chain.submissions().skip(known).collect();
            now.parts.extend(tasks.iter().map(|task| Part::name_of(&task.spec)));
            let (keys, packed) = self.submission(&tasks)?;
            let mut args = vec![arg(fence.tid), arg(fence.attempt), before.unwrap_or_default().into_bytes()];
            args.extend([arg(&now), arg(now.calls), packed]);
            // As durable as a submission, where the URL asks for more than one copy: a server that took over without it would let the attempt
            // end well, and nothing would follow.
            let answer = list(self.link().change(&script::CHAIN, keys, args, Sure::Durable).await?);
            let mut answer = answer.into_iter();
            match answer.next().map(text).as_deref() {
                Some("ok") => {
                    if answer.next().map(number) > Some(0) {
                        self.tell_of_parts().await;
                    }
                    return Ok(now.account.tasks);
                }
                Some("missing") => return Err(Error::NotFound(fence.tid)),
                Some("stale") => return Err(Chain::superseded(fence)),
                // The attempt has more than one hand.
                _ => {}
            }
        }
    }

    /// What there is of the present attempts of these tasks, as it is written.
    pub(super) async fn chained(&self, tids: &[Tid]) -> Result<Vec<Option<String>>> {
        let mut pipe = redis::pipe();
        let command = pipe.cmd("HMGET").arg(self.core.keys.of("chained"));
        tids.iter().for_each(|tid| _ = command.arg(tid.to_string()));
        let found = self.link().pipe(pipe).await?.pop().unwrap_or_default();
        Ok(list(found).into_iter().map(maybe).collect())
    }

    /// Says how many tasks they have chained of those that are known to have chained any.
    pub(super) async fn show_chained(&self, tasks: &mut [TaskView]) -> Result<()> {
        let mut chaining: Vec<_> = tasks.iter_mut().filter(|task| task.chained > 0).collect();
        if chaining.is_empty() {
            return Ok(());
        }
        let tids: Vec<Tid> = chaining.iter().map(|task| task.tid).collect();
        for (task, chained) in chaining.iter_mut().zip(self.chained(&tids).await?) {
            let chained = chained.map(|text| Chained::parse(task.tid, &text)).transpose()?;
            // The attempt may have ended meanwhile.
            task.chained = chained.map_or(0, |chained| chained.account.tasks);
        }
        Ok(())
    }
}

impl Chained {
    pub(super) fn parse(tid: Tid, text: &str) -> Result<Self> {
        let parse = || {
            let mut lines = text.split('\n');
            let (calls, account) = lines.next()?.split_once(' ')?;
            let (calls, account) = (calls.parse().ok()?, account.parse().ok()?);
            Some(Self { calls, account, parts: lines.map(Into::into).collect() })
        };
        parse().ok_or_else(|| unreadable(tid, "what it has chained is not as it was written"))
    }

    /// How many tasks there are.
    pub(super) fn tasks(&self) -> u64 {
        self.account.tasks
    }
}

impl fmt::Display for Chained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.calls, self.account)?;
        self.parts.iter().try_for_each(|part| write!(f, "\n{part}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_there_is_is_read_as_it_was_written() {
        let tid = Tid::from_u64(1_763_248_964_000_000_000).unwrap();
        let parts = ["5|default|".to_owned(), "9|mail|a,b".to_owned()].into();
        let account: Account = "3 700 1".parse().unwrap();
        for chained in [Chained::default(), Chained { calls: 2, account, parts }] {
            assert_eq!(Chained::parse(tid, &chained.to_string()).unwrap(), chained);
        }
        assert!(Chained::parse(tid, "7").is_err());
    }
}
