//! Counts of tasks that a worker could claim. Nothing is moved, so overdue tasks are counted in
//! `delayed`.

use std::time::Duration;

use raddle_model::Tid;
use redis::Value;

use crate::{
    Redis, Topic,
    schema::Partition,
    value::{Time, micros},
};
use raddle_broker::{Result, WaitingRequest};

impl Redis {
    pub(crate) async fn wait_for_waiting(&self, request: WaitingRequest) -> Result<u64> {
        // Everything that makes a task ready is an event, except the due time of a delayed task.
        let mut wait = self.core.notifier.wait(Topic::Log, request.wait).await;
        loop {
            let (waiting, again_in) = self.count_waiting(&request).await?;
            if waiting > 0 || !wait.next(again_in).await {
                return Ok(waiting);
            }
        }
    }

    async fn count_waiting(&self, request: &WaitingRequest) -> Result<(u64, Option<Duration>)> {
        let keys = &self.core.keys;
        let mut pipe = redis::pipe();
        pipe.cmd("TIME");
        for name in ["partitions", "paused_queues"] {
            pipe.cmd("SMEMBERS").arg(keys.named(name));
        }
        let (time, partitions, paused): (Time, Vec<String>, Vec<String>) =
            self.link().query(&pipe).await?;
        let now = micros(time);
        let fitting = |partition: &str| {
            let is_early = |partition: &Partition| {
                request
                    .before
                    .is_none_or(|(priority, _)| partition.priority >= priority)
            };
            let fits = |partition: &Partition| {
                request.queues.contains(&partition.queue)
                    && !paused.contains(&partition.queue)
                    && partition.needs.is_subset(&request.caps)
            };
            Partition::parse(partition).filter(is_early).filter(fits)
        };
        // Among tasks of the same priority only the older ones are claimed first.
        let last = |partition: &Partition| {
            request
                .before
                .and_then(|(priority, tid)| (partition.priority == priority).then_some(tid))
        };
        let mut pipe = redis::pipe();
        let delayed = keys.named("delayed");
        pipe.cmd("ZRANGEBYSCORE")
            .arg(delayed)
            .arg("-inf")
            .arg(now)
            .arg("LIMIT")
            .arg(0)
            .arg(request.max);
        pipe.cmd("ZRANGEBYSCORE")
            .arg(delayed)
            .arg(format!("({now}"))
            .arg("+inf")
            .arg("WITHSCORES");
        pipe.arg("LIMIT").arg(0).arg(1);
        for partition in partitions.iter().filter_map(|partition| fitting(partition)) {
            let name = &partition.name;
            let end = last(&partition)
                .map_or_else(|| format!("({name}!"), |tid| format!("({name} {tid}"));
            pipe.cmd("ZLEXCOUNT")
                .arg(keys.named("ready"))
                .arg(format!("[{name} "))
                .arg(end);
        }
        let answers: Vec<Value> = self.link().query(&pipe).await?;
        let mut answers = answers.into_iter();
        let mut next = || answers.next().unwrap_or_default();
        // A member is an id of 19 digits, a space, and the partition.
        let (overdue, due): (Vec<String>, Vec<(String, f64)>) =
            (self.link().parse(next())?, self.link().parse(next())?);
        let counts = |member: &&String| {
            let overdue = member
                .get(..19)
                .and_then(|tid| tid.parse::<Tid>().ok())
                .zip(member.get(20..).and_then(fitting));
            overdue.is_some_and(|(tid, partition)| last(&partition).is_none_or(|last| tid < last))
        };
        let overdue = overdue.iter().filter(counts).count() as u64;
        let again_in = due
            .first()
            .map(|(_, at)| Duration::from_micros((*at as i64 - now).unsigned_abs()));
        let ready: Vec<u64> = self.link().parse(Value::Array(answers.collect()))?;
        Ok((
            (overdue + ready.iter().sum::<u64>()).min(request.max.into()),
            again_in,
        ))
    }
}
