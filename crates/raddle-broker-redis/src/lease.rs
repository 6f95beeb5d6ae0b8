//! Leases of workers.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use raddle_broker::{Error, LeaseRenewer, LeaseStatus, Leases, Result};
use raddle_model::{Tid, worker::Heartbeat};

use super::{
    Redis,
    connection::ServerConnection,
    reclaim::{TAKEOVER_MARGIN, reclaim},
    record::millis,
    registry::show,
    schema::Keys,
    script,
    target::ServerTarget,
    value::arg,
};

/// Renews one worker's lease, over a connection of its own.
struct RedisLeaseRenewer {
    target: Arc<ServerTarget>,
    keys: Arc<Keys>,
    worker: Tid,
    ttl: Duration,
    /// Started with the first renewal: a worker that lives shorter need not pay for it.
    thread: Option<RenewerThread>,
}

/// Sends heartbeats to the renewal thread. The thread has its own runtime, so that a renewal works
/// from any thread.
type RenewerThread = mpsc::Sender<(Heartbeat, mpsc::Sender<Result<LeaseStatus>>)>;

impl Leases for Redis {
    fn lease_renewer(&self, worker: Tid, ttl: Duration) -> Box<dyn LeaseRenewer> {
        let (target, keys) = (Arc::clone(&self.link().target), Arc::clone(&self.core.keys));
        Box::new(RedisLeaseRenewer {
            target,
            keys,
            worker,
            ttl,
            thread: None,
        })
    }
}

impl LeaseRenewer for RedisLeaseRenewer {
    fn renew(&mut self, heartbeat: Heartbeat) -> Result<LeaseStatus> {
        let beats = match &self.thread {
            Some(beats) => beats,
            None => self.thread.insert(self.start()?),
        };
        let (reply, answer) = mpsc::channel();
        beats.send((heartbeat, reply)).map_err(|_| Error::Closed)?;
        // The thread itself times out before this.
        answer
            .recv_timeout(2 * self.ttl + Duration::from_secs(20))
            .unwrap_or(Err(Error::Closed))
    }
}

impl RedisLeaseRenewer {
    /// How long one renewal is tried. The next one follows soon.
    fn patience(&self) -> Duration {
        self.ttl / 8
    }

    fn start(&self) -> Result<RenewerThread> {
        let (beats, asked) = mpsc::channel::<(Heartbeat, mpsc::Sender<Result<LeaseStatus>>)>();
        let link = ServerConnection::lazy(
            Arc::clone(&self.target),
            Arc::clone(&self.keys),
            self.patience(),
            self.ttl / 4,
        );
        let (worker, ttl) = (self.worker, self.ttl);
        let no_thread = |error: std::io::Error| Error::Server {
            place: self.target.place(),
            reason: format!("cannot start a thread to renew the lease: {error}"),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(no_thread)?;
        thread::Builder::new()
            .name("lease-renewal".into())
            .spawn(move || {
                while let Ok((heartbeat, reply)) = asked.recv() {
                    let _ = reply.send(runtime.block_on(renew(&link, worker, ttl, heartbeat)));
                }
            })
            .map_err(no_thread)?;
        Ok(beats)
    }
}

async fn renew(
    link: &ServerConnection,
    worker: Tid,
    ttl: Duration,
    heartbeat: Heartbeat,
) -> Result<LeaseStatus> {
    let stored = serde_json::to_vec(&heartbeat).expect("a heartbeat has only string keys");
    let args = vec![
        arg(worker),
        arg(millis(ttl)),
        stored,
        arg(TAKEOVER_MARGIN.as_millis()),
    ];
    let (state, gone): (String, u64) = match link.run_idempotent(&script::RENEW_LEASE, args).await {
        Err(Error::Unreachable { down: true, .. }) => return Ok(LeaseStatus::Down),
        answer => answer?,
    };
    let reclaimed = if gone > 0 {
        reclaim(link).await?
    } else {
        Vec::new()
    };
    if state != "alive" {
        return Ok(LeaseStatus::Expired);
    }
    if let Err(error) = show(link, worker, None, heartbeat).await {
        tracing::debug!(%error, "cannot store the worker's hash for operators");
    }
    Ok(LeaseStatus::Alive(reclaimed))
}
