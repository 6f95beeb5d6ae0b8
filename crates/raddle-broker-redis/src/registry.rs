//! The registry of workers.

use std::{collections::HashMap, time::Duration};

use async_trait::async_trait;
use raddle_model::{
    Tid, WorkerEntry,
    worker::{Heartbeat, WorkerInfo},
};

use super::{
    Redis,
    connection::{Certainty, ServerConnection},
    reclaim::{TAKEOVER_MARGIN, WorkerLossCause, claimed_by, reclaim, take_tasks_from},
    record::unreadable,
    script,
    submit::{attempt_worker_args, ephemeral_worker_args, worker_args},
    value::{Time, at_nanos, micros},
};
use raddle_broker::{Error, Registry, Result, WorkerTask};

/// How long a worker's hash for operators outlives its last heartbeat.
const SHOWN_SECONDS: u64 = 15;

#[async_trait]
impl Registry for Redis {
    async fn register_worker(
        &self,
        info: WorkerInfo,
        ttl: Duration,
        task: WorkerTask,
    ) -> Result<Tid> {
        let (script, args) = match task {
            WorkerTask::New => {
                // Reclaim now: where only short-lived workers run, no worker stays to do it.
                reclaim(self.link()).await?;
                (&script::REGISTER, worker_args(&info, ttl).to_vec())
            }
            WorkerTask::Ephemeral => (
                &script::REGISTER_EPHEMERAL,
                ephemeral_worker_args(&info, ttl).to_vec(),
            ),
            WorkerTask::Attempt(attempt_id) => (
                &script::REGISTER_ATTEMPT,
                attempt_worker_args(attempt_id, &info, ttl),
            ),
        };
        let reply: String = self.link().change(script, args, Certainty::Done).await?;
        let worker = match (reply.as_str(), task) {
            ("stale", WorkerTask::Attempt(attempt_id)) => {
                return Err(Error::Superseded(attempt_id));
            }
            (tid, _) => tid.parse().map_err(|_| Error::Closed)?,
        };
        match task {
            WorkerTask::New => {}
            WorkerTask::Ephemeral => return Ok(worker),
            // Its worker ended the processes of the earlier attempt before this one began.
            WorkerTask::Attempt(_) => {
                take_tasks_from(self.link(), worker, &WorkerLossCause::Restarted).await?;
            }
        }
        self.store_worker_hash(worker, &info).await;
        Ok(worker)
    }

    async fn deregister(&self, worker: Tid, failure: Option<String>) -> Result<()> {
        take_tasks_from(self.link(), worker, &WorkerLossCause::Left(failure))
            .await
            .map(drop)
    }

    async fn workers(&self) -> Result<Vec<WorkerEntry>> {
        let keys = &self.core.keys;
        let mut pipe = redis::pipe();
        pipe.atomic().cmd("TIME");
        pipe.cmd("ZRANGE")
            .arg(keys.named("leases"))
            .arg(0)
            .arg(-1)
            .arg("WITHSCORES");
        pipe.cmd("HGETALL")
            .arg(keys.named("workers"))
            .cmd("HGETALL")
            .arg(keys.named("heartbeats"));
        let (time, leases, infos, beats): (
            Time,
            Vec<(String, f64)>,
            HashMap<String, String>,
            HashMap<String, String>,
        ) = self.link().query(&pipe).await?;
        let now = (micros(time) / 1000 - TAKEOVER_MARGIN.as_millis() as i64) as f64;
        let alive = leases.into_iter().filter(|(_, until)| *until >= now);
        let mut entries: Vec<WorkerEntry> = alive
            .filter_map(|(tid, _)| {
                Some(entry(tid.parse().ok()?, infos.get(&tid)?, beats.get(&tid)))
            })
            .collect::<Result<_>>()?;
        entries.sort_by_key(|entry| entry.tid);
        Ok(entries)
    }
}

impl Redis {
    /// Stores a worker's hash for operators with `redis-cli`. Raddle does not read it.
    pub(super) async fn store_worker_hash(&self, worker: Tid, info: &WorkerInfo) {
        let shown = show(self.link(), worker, Some(info), Heartbeat::default()).await;
        if let Err(error) = shown {
            tracing::debug!(%error, "cannot store the worker's hash for operators");
        }
    }
}

/// Writes the hash `worker:<tid>`: `info` if given, the last heartbeat, and its time.
pub(super) async fn show(
    link: &ServerConnection,
    worker: Tid,
    info: Option<&WorkerInfo>,
    heartbeat: Heartbeat,
) -> Result<()> {
    let tasks = if heartbeat.busy > 0 {
        claimed_by(link, worker).await?
    } else {
        Vec::new()
    };
    let tasks: Vec<String> = tasks.iter().map(ToString::to_string).collect();
    let key = link.keys.worker(worker);
    let mut pipe = redis::pipe();
    pipe.cmd("HSET")
        .arg(&key)
        .arg("status")
        .arg(heartbeat.status.as_str())
        .arg("busy")
        .arg(heartbeat.busy);
    pipe.arg("task")
        .arg(tasks.join(","))
        .arg("time")
        .arg(jiff::Timestamp::now().to_string());
    if let Some(info) = info {
        pipe.arg("name")
            .arg(&info.name)
            .arg("type")
            .arg(&info.kind)
            .arg("host")
            .arg(&info.host)
            .arg("pid");
        pipe.arg(info.pid)
            .arg("caps")
            .arg(info.capabilities.to_string())
            .arg("queues")
            .arg(info.queues.join(","));
    }
    pipe.cmd("EXPIRE").arg(&key).arg(SHOWN_SECONDS);
    pipe.cmd("HEXISTS")
        .arg(&key)
        .arg("host")
        .cmd("HGET")
        .arg(link.keys.named("workers"))
        .arg(worker.to_string());
    let (_, _, is_whole, stored): (u32, u32, bool, Option<String>) = link.query(&pipe).await?;
    // The hash expires while the worker cannot reach the server; then write all of it.
    if let Some(stored) = stored.filter(|_| !is_whole) {
        let info: WorkerInfo =
            serde_json::from_str(&stored).map_err(|error| unreadable(worker, error))?;
        Box::pin(show(link, worker, Some(&info), heartbeat)).await?;
    }
    Ok(())
}

fn entry(tid: Tid, info: &str, heartbeat: Option<&String>) -> Result<WorkerEntry> {
    let info: WorkerInfo = serde_json::from_str(info).map_err(|e| unreadable(tid, e))?;
    let heartbeat: Heartbeat = heartbeat
        .map(|heartbeat| serde_json::from_str(heartbeat))
        .transpose()
        .map_err(|e| unreadable(tid, e))?
        .unwrap_or_default();
    Ok(WorkerEntry::new(
        tid,
        info,
        heartbeat,
        at_nanos(tid.as_i64()),
    ))
}
