//! How many tasks a worker could claim, without claiming any. It moves nothing, and so counts what is overdue where it stands.

use std::time::Duration;

use super::{
    Redis, Topic,
    keys::Part,
    value::{list, number, text},
};
use crate::{Result, WaitingRequest};

impl Redis {
    pub(super) async fn waiting_for(&self, request: WaitingRequest) -> Result<u64> {
        // Whatever makes a task ready is an event, but for its time.
        let mut wait = self.core.bell.wait(Topic::Log, request.wait).await;
        loop {
            let (waiting, again_in) = self.count_waiting(&request).await?;
            if waiting > 0 || !wait.again(again_in).await {
                return Ok(waiting);
            }
        }
    }

    async fn count_waiting(&self, request: &WaitingRequest) -> Result<(u64, Option<Duration>)> {
        let keys = &self.core.keys;
        let mut pipe = redis::pipe();
        pipe.cmd("TIME").cmd("SMEMBERS").arg(keys.of("parts"));
        let mut answers = self.link().pipe(pipe).await?.into_iter().map(list);
        let time: Vec<u64> = answers.next().unwrap_or_default().into_iter().map(text).flat_map(|n| n.parse()).collect();
        let now = time.first().unwrap_or(&0) * 1_000_000 + time.get(1).unwrap_or(&0);
        let fits = |part: &str| {
            Part::parse(part)
                .is_some_and(|part| request.queues.contains(&part.queue) && part.needs.is_subset(&request.caps))
        };
        let parts = answers.next().unwrap_or_default().into_iter().map(text).filter(|part| fits(part));
        let mut pipe = redis::pipe();
        let delayed = keys.of("delayed");
        pipe.cmd("ZRANGEBYSCORE").arg(delayed).arg("-inf").arg(now).arg("LIMIT").arg(0).arg(request.max);
        pipe.cmd("ZRANGEBYSCORE").arg(delayed).arg(format!("({now}")).arg("+inf").arg("WITHSCORES");
        pipe.arg("LIMIT").arg(0).arg(1);
        for part in parts {
            pipe.cmd("ZLEXCOUNT").arg(keys.of("line")).arg(format!("[{part} ")).arg(format!("({part}!"));
        }
        let mut answers = self.link().pipe(pipe).await?.into_iter();
        // An id of 19 digits, a blank, and the partition.
        let overdue = list(answers.next().unwrap_or_default()).into_iter().map(text);
        let overdue = overdue.filter(|member| member.get(20..).is_some_and(fits)).count() as u64;
        let next = list(answers.next().unwrap_or_default()).into_iter().nth(1);
        let next = next.and_then(|score| text(score).parse::<f64>().ok());
        let again_in = next.map(|at| Duration::from_micros((at as u64).saturating_sub(now)));
        Ok(((overdue + answers.map(number).sum::<u64>()).min(request.max.into()), again_in))
    }
}
