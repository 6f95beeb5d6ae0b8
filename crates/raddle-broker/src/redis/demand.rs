//! What waits for workers, and what they have. Looked at in portions: the server does other things in between.

use jiff::Timestamp;
use raddle_core::Tid;

use super::{
    Redis,
    value::{list, maybe, micros, number, text},
};
use crate::{Demand, Result};

/// How many tasks are looked at in one go.
const PORTION: usize = 500;

/// A task that could be claimed, and when its time came if that was waited for.
type Claimable = (Tid, Option<Timestamp>);

impl Redis {
    pub(super) async fn look_at_demand(&self) -> Result<Demand> {
        let (mut demand, now) = self.counts().await?;
        let mut from = "-".to_owned();
        loop {
            let line = self.in_line(&from).await?;
            let tids = line.iter().filter_map(|entry| entry.rsplit(' ').next()?.parse().ok());
            self.add(&mut demand, tids.map(|tid| (tid, None)).collect()).await?;
            match line.last() {
                Some(last) if line.len() == PORTION => from = format!("({last}"),
                _ => break,
            }
        }
        for portion in self.overdue(now).await?.chunks(PORTION) {
            self.add(&mut demand, portion.to_vec()).await?;
        }
        Ok(demand)
    }

    /// What is counted already, and the server's time in microseconds.
    async fn counts(&self) -> Result<(Demand, i64)> {
        let keys = &self.core.keys;
        let mut pipe = redis::pipe();
        pipe.cmd("TIME");
        pipe.cmd("HGET").arg(keys.of("count")).arg("h").cmd("ZCARD").arg(keys.of("owned"));
        pipe.cmd("SCARD").arg(keys.of("dead"));
        for field in ["reclaims", "stale"] {
            pipe.cmd("HGET").arg(keys.of("meta")).arg(field);
        }
        let mut answers = self.link().pipe(pipe).await?.into_iter();
        let now = answers.next().map_or(0, micros);
        let mut next = || answers.next().map_or(0, number);
        let (paused, active, dead, reclaims, stale_writes) = (next(), next(), next(), next(), next());
        let mut pipe = redis::pipe();
        pipe.cmd("ZCOUNT").arg(keys.of("delayed")).arg(format!("({now}")).arg("+inf");
        let delayed = self.link().pipe(pipe).await?.pop().map_or(0, number);
        Ok((Demand { delayed, paused, active, dead, reclaims, stale_writes, ..Demand::default() }, now))
    }

    /// The next tasks that can be claimed: partition and id.
    async fn in_line(&self, from: &str) -> Result<Vec<String>> {
        let mut pipe = redis::pipe();
        pipe.cmd("ZRANGEBYLEX").arg(self.core.keys.of("line")).arg(from).arg("+").arg("LIMIT").arg(0).arg(PORTION);
        let members = self.link().pipe(pipe).await?.pop().unwrap_or_default();
        Ok(list(members).into_iter().map(text).collect())
    }

    /// Those whose time has come and that nobody has moved yet. Every claim moves them, so they are few unless nobody claims.
    async fn overdue(&self, now: i64) -> Result<Vec<Claimable>> {
        let mut pipe = redis::pipe();
        pipe.cmd("ZRANGEBYSCORE").arg(self.core.keys.of("delayed")).arg("-inf").arg(now).arg("WITHSCORES");
        let pairs = list(self.link().pipe(pipe).await?.pop().unwrap_or_default());
        let claimable = |pair: &[redis::Value]| {
            let tid = text(pair[0].clone()).get(..19)?.parse().ok()?;
            let due = text(pair[1].clone()).parse::<f64>().ok()?;
            Some((tid, Timestamp::from_microsecond(due as i64).ok()))
        };
        Ok(pairs.chunks_exact(2).filter_map(claimable).collect())
    }

    async fn add(&self, demand: &mut Demand, tasks: Vec<Claimable>) -> Result<()> {
        if tasks.is_empty() {
            return Ok(());
        }
        let mut pipe = redis::pipe();
        pipe.cmd("HMGET").arg(self.core.keys.of("spec"));
        for (tid, _) in &tasks {
            pipe.arg(tid.to_string());
        }
        let specs = list(self.link().pipe(pipe).await?.pop().unwrap_or_default());
        for ((tid, due), stored) in tasks.into_iter().zip(specs) {
            // One that was purged meanwhile has none. The first line is ours.
            if let Some((_, spec)) = maybe(stored).as_deref().and_then(|stored| stored.split_once('\n')) {
                demand.add_written(tid, spec, due);
            }
        }
        Ok(())
    }
}
