//! Counts of tasks. Waiting tasks are scanned for their kinds in portions, so that the server
//! serves other requests in between.

use jiff::Timestamp;
use raddle_model::{TaskState, Tid};

use crate::{
    Redis,
    schema::Partition,
    script,
    value::{Time, arg, at_nanos, micros},
};
use raddle_broker::{Result, Summary, SummaryDetail};

/// The number of tasks scanned by one request.
const PORTION: usize = 500;

/// A task that could be claimed, and when it became due if it was delayed.
type Claimable = (Tid, Option<Timestamp>);

impl Redis {
    pub(crate) async fn count_all(&self, detail: SummaryDetail) -> Result<Summary> {
        if let Some(batch) = &detail.batch {
            return self.batch_states(batch).await;
        }
        let (mut summary, now) = self.counts().await?;
        if detail.batches {
            self.count_batches(&mut summary).await?;
        }
        if detail.messages {
            summary.messages = self.queue_sizes().await?;
        }
        self.find_oldest_ready(&mut summary).await?;
        if !detail.finished {
            summary.states.retain(|state, _| !state.is_terminal());
        }
        if detail.kinds {
            self.count_kinds(&mut summary, now).await?;
        }
        Ok(summary)
    }

    /// The tasks of a batch by state.
    async fn batch_states(&self, name: &str) -> Result<Summary> {
        let (mut summary, mut last) = (Summary::default(), String::new());
        loop {
            let mut reply: Vec<String> = self
                .link()
                .run_idempotent(
                    &script::COUNT_BATCH,
                    vec![arg(name), arg(&last), arg(PORTION)],
                )
                .await?;
            for pair in reply.get(1..).unwrap_or_default().chunks_exact(2) {
                if let (Some(state), Ok(tasks)) = (
                    pair[0].parse().ok().and_then(TaskState::from_u8),
                    pair[1].parse::<u64>(),
                ) {
                    *summary.states.entry(state).or_default() += tasks;
                }
            }
            match reply.first_mut() {
                Some(next) if !next.is_empty() => last = std::mem::take(next),
                _ => return Ok(summary),
            }
        }
    }

    /// Lists batches: each lookup skips all members of the batch before.
    async fn count_batches(&self, summary: &mut Summary) -> Result<()> {
        let key = self.core.keys.named("batches");
        let mut from = "-".to_owned();
        loop {
            let mut range = redis::cmd("ZRANGEBYLEX");
            range
                .arg(key)
                .arg(&from)
                .arg("+")
                .arg("LIMIT")
                .arg(0)
                .arg(1);
            let first: Vec<String> = self.link().read(&range).await?;
            let Some((name, tid)) = first.first().and_then(|member| member.split_once(' ')) else {
                return Ok(());
            };
            let mut count = redis::cmd("ZLEXCOUNT");
            count
                .arg(key)
                .arg(format!("[{name} "))
                .arg(format!("({name}!"));
            let tasks: u64 = self.link().read(&count).await?;
            if let Ok(tid) = tid.parse() {
                summary.add_batch(name.to_owned(), tasks, tid);
            }
            from = format!("[{name}!");
        }
    }

    async fn count_kinds(&self, summary: &mut Summary, now: i64) -> Result<()> {
        let mut from = "-".to_owned();
        loop {
            let line = self.ready_tasks(&from).await?;
            let tids = line
                .iter()
                .filter_map(|entry| entry.rsplit(' ').next()?.parse().ok());
            self.add(summary, tids.map(|tid| (tid, None)).collect())
                .await?;
            match line.last() {
                Some(last) if line.len() == PORTION => from = format!("({last}"),
                _ => break,
            }
        }
        for portion in self.overdue(now).await?.chunks(PORTION) {
            self.add(summary, portion.to_vec()).await?;
        }
        Ok(())
    }

    /// The counters that scripts maintain, and the server's time in microseconds.
    async fn counts(&self) -> Result<(Summary, i64)> {
        let keys = &self.core.keys;
        let mut pipe = redis::pipe();
        pipe.atomic()
            .cmd("TIME")
            .cmd("HGETALL")
            .arg(keys.named("counters"));
        pipe.cmd("SMEMBERS").arg(keys.named("paused_queues"));
        pipe.cmd("ZCARD").arg(keys.named("dead_letters"));
        for field in ["reclaims", "stale_writes"] {
            pipe.cmd("HGET").arg(keys.named("meta")).arg(field);
        }
        type Counts = (
            Time,
            Vec<(String, i64)>,
            Vec<String>,
            u64,
            Option<u64>,
            Option<u64>,
        );
        let (time, counts, paused, dead, reclaims, stale): Counts =
            self.link().query(&pipe).await?;
        let mut summary = Summary {
            dead,
            reclaims: reclaims.unwrap_or(0),
            stale_writes: stale.unwrap_or(0),
            ..Summary::default()
        };
        for (field, tasks) in &counts {
            let (Some((status, queue)), Ok(tasks @ 1..)) =
                (field.split_once('|'), u64::try_from(*tasks))
            else {
                continue;
            };
            let counts = summary.queues.entry(queue.to_owned()).or_default();
            let state = match status {
                "r" => {
                    counts.ready = tasks;
                    summary.ready.insert(queue.to_owned(), tasks);
                    continue;
                }
                "d" => {
                    counts.delayed = tasks;
                    summary.delayed += tasks;
                    continue;
                }
                "p" => {
                    counts.paused = tasks;
                    summary.paused += tasks;
                    continue;
                }
                "D" => {
                    counts.dead = tasks;
                    continue;
                }
                "s" => {
                    counts.spawning = tasks;
                    TaskState::Spawning
                }
                "x" => {
                    counts.running = tasks;
                    TaskState::Running
                }
                number => {
                    let Some(state) = number.parse().ok().and_then(TaskState::from_u8) else {
                        continue;
                    };
                    counts.finished.insert(state, tasks);
                    state
                }
            };
            *summary.states.entry(state).or_default() += tasks;
        }
        for queue in paused {
            summary.queues.entry(queue).or_default().is_paused = true;
        }
        summary.sum_created();
        Ok((summary, micros(time)))
    }

    /// Reads the first task of each partition of the queues that have ready tasks.
    async fn find_oldest_ready(&self, summary: &mut Summary) -> Result<()> {
        if summary.ready.is_empty() {
            return Ok(());
        }
        let keys = &self.core.keys;
        let names: Vec<String> = self
            .link()
            .read(redis::cmd("SMEMBERS").arg(keys.named("partitions")))
            .await?;
        let waiting: Vec<Partition> = names
            .iter()
            .filter_map(|name| Partition::parse(name))
            .filter(|partition| summary.ready.contains_key(&partition.queue))
            .collect();
        if waiting.is_empty() {
            return Ok(());
        }
        let mut pipe = redis::pipe();
        for Partition { name, .. } in &waiting {
            pipe.cmd("ZRANGEBYLEX")
                .arg(keys.named("ready"))
                .arg(format!("[{name} "))
                .arg(format!("({name}!"));
            pipe.arg("LIMIT").arg(0).arg(1);
        }
        let firsts: Vec<Vec<String>> = self.link().query(&pipe).await?;
        for (partition, first) in waiting.iter().zip(firsts) {
            let first = first.first().and_then(|member| member.rsplit(' ').next());
            let first = first.and_then(|tid| tid.parse::<Tid>().ok());
            let queue = summary.queues.get_mut(&partition.queue);
            if let (Some(queue), Some(first)) = (queue, first) {
                let submitted = at_nanos(first.as_i64());
                queue.oldest_ready =
                    Some(queue.oldest_ready.map_or(submitted, |at| at.min(submitted)));
            }
        }
        Ok(())
    }

    /// The next tasks that can be claimed: partition and id.
    async fn ready_tasks(&self, from: &str) -> Result<Vec<String>> {
        let mut range = redis::cmd("ZRANGEBYLEX");
        range
            .arg(self.core.keys.named("ready"))
            .arg(from)
            .arg("+")
            .arg("LIMIT")
            .arg(0)
            .arg(PORTION);
        self.link().read(&range).await
    }

    /// Delayed tasks that are due but not moved by a claim yet. They are few unless no worker
    /// claims.
    async fn overdue(&self, now: i64) -> Result<Vec<Claimable>> {
        let mut range = redis::cmd("ZRANGEBYSCORE");
        range
            .arg(self.core.keys.named("delayed"))
            .arg("-inf")
            .arg(now)
            .arg("WITHSCORES");
        let overdue: Vec<(String, f64)> = self.link().read(&range).await?;
        let claimable = |(member, due): (String, f64)| {
            Some((
                member.get(..19)?.parse().ok()?,
                Timestamp::from_microsecond(due as i64).ok(),
            ))
        };
        Ok(overdue.into_iter().filter_map(claimable).collect())
    }

    async fn add(&self, summary: &mut Summary, tasks: Vec<Claimable>) -> Result<()> {
        if tasks.is_empty() {
            return Ok(());
        }
        let mut get = redis::cmd("HMGET");
        get.arg(self.core.keys.named("specs"));
        for (tid, _) in &tasks {
            get.arg(tid.to_string());
        }
        let specs: Vec<Option<String>> = self.link().read(&get).await?;
        for ((tid, due), stored) in tasks.into_iter().zip(specs) {
            // A task that was purged meanwhile has no spec. The first line of a stored spec is its
            // header.
            if let Some((_, spec)) = stored.as_deref().and_then(|stored| stored.split_once('\n')) {
                summary.count_kind(tid, spec, due);
            }
        }
        Ok(())
    }
}
