//! Removing what nobody asked to keep any longer.

use raddle_core::Tid;

use super::{
    Redis,
    link::Sure,
    script,
    value::{arg, list, micros, number, text, tids},
};
use crate::{Fence, Purged, Result, Stream};

/// How many tasks go at once, so that nobody waits long for it.
const AT_ONCE: u32 = 500;

impl Redis {
    pub(super) async fn purge_expired(&self) -> Result<Purged> {
        let mut pipe = redis::pipe();
        pipe.cmd("TIME");
        let now = self.link().pipe(pipe).await?.pop().map_or(0, micros) / 1000;
        let mut pipe = redis::pipe();
        pipe.cmd("ZRANGEBYSCORE")
            .arg(self.core.keys.of("expiry"))
            .arg("-inf")
            .arg(now)
            .arg("LIMIT")
            .arg(0)
            .arg(AT_ONCE);
        let expired: Vec<Tid> = self.link().pipe(pipe).await?.pop().map_or(Vec::new(), tids);
        if expired.is_empty() {
            return Ok(Purged { tasks: 0 });
        }
        let tasks = self.snapshots(&expired).await?;
        let (mut keys, mut args) = (Vec::new(), Vec::new());
        for tid in expired {
            let attempts = tasks.get(&tid).and_then(|task| task.done.as_ref()).map_or(0, |done| done.tally.attempt);
            args.extend([arg(tid), arg(attempts)]);
            for attempt in 1..=attempts {
                keys.extend(Stream::BOTH.map(|stream| self.core.keys.output(Fence { tid, attempt }, stream)));
            }
        }
        let removed = self.link().change(&script::PURGE, keys, args, Sure::Done).await?;
        Ok(Purged { tasks: list(removed).into_iter().next().map_or(0, number) })
    }

    /// Removes what calls were answered so long ago that none of them can be under way.
    pub(super) async fn forget_answers(&self) {
        let mut cursor = "0".to_owned();
        loop {
            match self.link().look(&script::FORGET, Vec::new(), vec![arg(&cursor)]).await.map(text) {
                Ok(next) if next != "0" => cursor = next,
                Ok(_) => return,
                Err(error) => return tracing::debug!(%error, "old answers were not removed"),
            }
        }
    }
}
