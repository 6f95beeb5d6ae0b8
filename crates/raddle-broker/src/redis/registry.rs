//! The workers that live on the server.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use async_trait::async_trait;
use raddle_core::{
    Tid, WorkerEntry,
    worker::{Beat, WorkerInfo, WorkerStatus},
};

use super::{
    Core, Redis,
    group::{Group, Shared},
    keys::Keys,
    link::{Link, Sure},
    reclaim::{Leaving, TAKEOVER_MARGIN, reclaim, take_from},
    record::{millis, unreadable},
    script,
    submit::{own_args, worker_args},
    target::Target,
    value::{arg, at_nanos, list, maybe, micros, number, text, tid},
};
use crate::{Error, Heart, Leases, Pulse, Registry, Result};

/// How long what operators see of a worker outlives its last beat.
const SHOWN_SECONDS: u64 = 15;

/// How many workers one script enters at most.
const ENTERED_AT_ONCE: usize = 64;

/// Keeps one worker alive, on a connection of its own.
struct Pacemaker {
    target: Arc<Target>,
    keys: Arc<Keys>,
    worker: Tid,
    ttl: Duration,
    /// Started with the first beat: a worker that lives shorter than that need not pay for it.
    thread: Option<Chest>,
}

/// The thread that beats: it has its own runtime, so that a beat can be asked for from anywhere.
struct Chest {
    beats: mpsc::Sender<(Beat, mpsc::Sender<Result<Pulse>>)>,
}

#[async_trait]
impl Registry for Redis {
    async fn enter(&self, info: WorkerInfo, ttl: Duration, own: bool) -> Result<Tid> {
        if own {
            return Group::ask(&self.core, Entrant(own_args(&info, ttl))).await?.ok_or(Error::Closed);
        }
        // Where workers come and go, those that are gone must not have to wait for one that stays.
        reclaim(self.link()).await?;
        let args = worker_args(&info, ttl).to_vec();
        let answer = self.link().change(&script::REGISTER, Vec::new(), args, Sure::Done).await?;
        let worker = list(answer).into_iter().next().and_then(tid).ok_or(Error::Closed)?;
        self.show_worker(worker, &info).await;
        Ok(worker)
    }

    async fn deregister(&self, worker: Tid, failure: Option<String>) -> Result<()> {
        // First what matters least: once the worker is seen to have left, it has nothing more to do.
        let mut pipe = redis::pipe();
        pipe.cmd("DEL").arg(self.core.keys.worker(worker));
        self.link().pipe(pipe).await?;
        take_from(self.link(), worker, &Leaving::Left(failure)).await.map(drop)
    }

    async fn workers(&self) -> Result<Vec<WorkerEntry>> {
        let keys = &self.core.keys;
        let mut pipe = redis::pipe();
        pipe.atomic().cmd("TIME");
        pipe.cmd("ZRANGE").arg(keys.of("lease")).arg(0).arg(-1).arg("WITHSCORES");
        pipe.cmd("HGETALL").arg(keys.of("workers")).cmd("HGETALL").arg(keys.of("beats"));
        let [time, leases, infos, beats] =
            <[_; 4]>::try_from(self.link().pipe(pipe).await?).map_err(|_| Error::Closed)?;
        let now = micros(time) / 1000 - TAKEOVER_MARGIN.as_millis() as i64;
        let pairs = |value| {
            let items: Vec<String> = list(value).into_iter().map(text).collect();
            let pairs = items.chunks_exact(2).filter_map(|pair| Some((pair[0].parse::<Tid>().ok()?, pair[1].clone())));
            pairs.collect::<std::collections::BTreeMap<Tid, String>>()
        };
        let (leases, infos, beats) = (pairs(leases), pairs(infos), pairs(beats));
        let alive = leases.iter().filter(|(_, until)| until.parse::<f64>().is_ok_and(|until| until >= now as f64));
        alive
            .filter_map(|(tid, _)| infos.get(tid).map(|info| entry(*tid, info, beats.get(tid).map(String::as_str))))
            .collect()
    }
}

impl Leases for Redis {
    fn heart(&self, worker: Tid, ttl: Duration) -> Box<dyn Heart> {
        let (target, keys) = (Arc::clone(&self.link().target), Arc::clone(&self.core.keys));
        Box::new(Pacemaker { target, keys, worker, ttl, thread: None })
    }
}

/// A worker that is there for one task alone, as the script takes it.
pub(super) struct Entrant([Vec<u8>; 2]);

impl Shared for Entrant {
    type Answer = Option<Tid>;

    const MOST: usize = ENTERED_AT_ONCE;

    fn weight(&self) -> usize {
        1
    }

    fn group(core: &Core) -> &Group<Self> {
        &core.entering
    }

    async fn send(core: &Core, parts: &[&Self]) -> Result<Vec<Option<Tid>>> {
        let args = parts.iter().flat_map(|part| part.0.clone()).collect();
        let answer = core.link.change(&script::REGISTER_OWN, Vec::new(), args, Sure::Done).await?;
        Ok(list(answer).into_iter().map(tid).collect())
    }
}

impl Redis {
    /// Lets operators see a worker with `redis-cli`. Nothing depends on it.
    pub(super) async fn show_worker(&self, worker: Tid, info: &WorkerInfo) {
        let key = self.core.keys.worker(worker);
        let mut pipe = redis::pipe();
        pipe.cmd("HSET").arg(&key).arg("name").arg(&info.name).arg("type").arg(&info.kind);
        pipe.arg("host").arg(&info.host).arg("pid").arg(info.pid).arg("caps").arg(info.capabilities.to_string());
        pipe.arg("queues").arg(info.queues.join(",")).arg("status").arg(WorkerStatus::Active.as_str());
        pipe.cmd("EXPIRE").arg(&key).arg(SHOWN_SECONDS);
        if let Err(error) = self.link().pipe(pipe).await {
            tracing::debug!(%error, "a worker is not shown to operators");
        }
    }
}

fn entry(tid: Tid, info: &str, beat: Option<&str>) -> Result<WorkerEntry> {
    let info: WorkerInfo = serde_json::from_str(info).map_err(|e| unreadable(tid, e))?;
    let beat: Beat = beat.map(serde_json::from_str).transpose().map_err(|e| unreadable(tid, e))?.unwrap_or_default();
    Ok(WorkerEntry::new(tid, info, beat, at_nanos(tid.as_i64())))
}

impl Heart for Pacemaker {
    fn beat(&mut self, beat: Beat) -> Result<Pulse> {
        let chest = match &self.thread {
            Some(chest) => chest,
            None => self.thread.insert(self.start()?),
        };
        let (reply, answer) = mpsc::channel();
        chest.beats.send((beat, reply)).map_err(|_| Error::Closed)?;
        // The thread gives up before this by itself.
        answer.recv_timeout(2 * self.ttl + Duration::from_secs(20)).unwrap_or(Err(Error::Closed))
    }
}

impl Pacemaker {
    /// How long a beat is tried. The next one comes soon.
    fn patience(&self) -> Duration {
        self.ttl / 8
    }

    fn start(&self) -> Result<Chest> {
        let (beats, asked) = mpsc::channel::<(Beat, mpsc::Sender<Result<Pulse>>)>();
        let link = Link::lazy(Arc::clone(&self.target), Arc::clone(&self.keys), self.patience(), self.ttl / 4);
        let (worker, ttl) = (self.worker, self.ttl);
        let no_thread = |error: std::io::Error| Error::Server {
            place: self.target.place(),
            reason: format!("no thread to renew the lease on: {error}"),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
        thread::Builder::new()
            .name("heart".into())
            .spawn(move || {
                while let Ok((beat, reply)) = asked.recv() {
                    let _ = reply.send(runtime.block_on(renew(&link, worker, ttl, beat)));
                }
            })
            .map_err(no_thread)?;
        Ok(Chest { beats })
    }
}

async fn renew(link: &Link, worker: Tid, ttl: Duration, beat: Beat) -> Result<Pulse> {
    let told = serde_json::to_vec(&beat).expect("a beat has only string keys");
    let args = vec![arg(worker), arg(millis(ttl)), told, arg(TAKEOVER_MARGIN.as_millis())];
    let answer = match link.look(&script::BEAT, Vec::new(), args).await {
        Err(Error::Unreachable { down: true, .. }) => return Ok(Pulse::Down),
        answer => answer?,
    };
    let mut answer = list(answer).into_iter();
    let alive = answer.next().and_then(maybe).as_deref() == Some("alive");
    let gone = answer.next().map_or(0, number);
    let reclaimed = if gone > 0 { reclaim(link).await? } else { Vec::new() };
    if !alive {
        return Ok(Pulse::Expired);
    }
    let key = link.keys.worker(worker);
    let mut pipe = redis::pipe();
    pipe.cmd("HSET").arg(&key).arg("status").arg(beat.status.as_str()).arg("busy").arg(beat.busy);
    pipe.cmd("EXPIRE").arg(&key).arg(SHOWN_SECONDS);
    if let Err(error) = link.pipe(pipe).await {
        tracing::debug!(%error, "a worker is not shown to operators");
    }
    Ok(Pulse::Alive(reclaimed))
}
