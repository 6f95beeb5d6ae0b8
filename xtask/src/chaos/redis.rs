//! `Redis`: a server that is killed and restarted, behind a proxy that injects network faults.

use std::{
    collections::VecDeque,
    fs, mem,
    ops::Range,
    path::PathBuf,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use crate::{
    campaign_dir::CampaignDir,
    fault_injector::ServerFaults,
    plan::NetworkFault,
    proxy::Proxy,
    server::{self, Server},
    side_file,
    task::MARKER,
};

/// For how long sizes of the append-only file are remembered.
const HISTORY: Duration = Duration::from_secs(2);
/// How often its size is read.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);
/// How long a replica may take to catch up before it stops replicating.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) struct Redis {
    // Dropped in this order: the proxy before the server behind it.
    proxy: Proxy,
    server: Server,
    /// A replica of the server, for failovers that lose writes.
    replica: Option<Server>,
    /// Sizes of the append-only file, with the time on the monotonic clock and in nanoseconds since
    /// the epoch.
    aof_sizes: VecDeque<(Instant, u64, u64)>,
    /// When the replica, which has stopped replicating, replaces the server; and since when it
    /// lags.
    promotion: Option<(Instant, u64)>,
    /// Periods, in nanoseconds since the epoch, whose writes are lost.
    pub(crate) forgotten: Vec<Range<u64>>,
    /// When the server is restarted.
    restart_at: Option<Instant>,
    /// When the network fault ends.
    network_restored_at: Option<Instant>,
}

impl Redis {
    /// Starts the server and the proxy, and sets the URL of `dir` to the proxy.
    pub(crate) fn start(dir: &mut CampaignDir, loses_writes: bool) -> Result<Self, String> {
        let directory = |name: &str| {
            let directory = dir.file(name);
            fs::create_dir(&directory)
                .map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
            Ok::<_, String>(directory)
        };
        let (chaos, parent, marker) = (
            dir.chaos.clone(),
            std::process::id().to_string(),
            dir.path().to_owned(),
        );
        let command = move || {
            let mut command = Command::new(&chaos);
            command
                .args(["exec-with-parent", &parent])
                .arg(PathBuf::from("redis-server"))
                .env(MARKER, &marker);
            command
        };
        let server = Server::start(directory("redis")?, command.clone())?;
        let replica = match loses_writes {
            true => Some(Server::start(directory("replica")?, command)?),
            false => None,
        };
        let proxy = Proxy::start(server.address())
            .map_err(|error| format!("cannot start the proxy: {error}"))?;
        dir.url = format!("redis://{}/0?namespace=chaos", proxy.address());
        let redis = Self {
            proxy,
            server,
            replica,
            aof_sizes: VecDeque::new(),
            promotion: None,
            forgotten: Vec::new(),
            restart_at: None,
            network_restored_at: None,
        };
        redis.start_replication()?;
        Ok(redis)
    }

    /// Makes the replica replicate the server.
    fn start_replication(&self) -> Result<(), String> {
        let Some(replica) = &self.replica else {
            return Ok(());
        };
        let command = format!("REPLICAOF 127.0.0.1 {}\r\n", self.server.address().port());
        server::send_command(replica.address(), &command)
            .map(drop)
            .map_err(|error| format!("cannot start the replication: {error}"))
    }

    /// Replaces the server with the replica. The old server loses its data and becomes the replica.
    fn promote_replica(&mut self) -> Result<(), String> {
        let Some(replica) = &mut self.replica else {
            return Ok(());
        };
        mem::swap(&mut self.server, replica);
        // The old server is restarted below, also if it was down: `tick` must not start the new one
        // twice.
        self.restart_at = None;
        replica.kill();
        self.proxy.set_upstream(self.server.address());
        self.aof_sizes.clear();
        replica.clear();
        replica
            .launch()
            .map_err(|error| format!("cannot start a replica again: {error}"))?;
        replica.wait_until_ready()?;
        self.start_replication()
    }

    /// Ends the faults whose time is over, or all. With `all`, waits until the server answers.
    pub(crate) fn tick(&mut self, all: bool) -> Result<(), String> {
        let now = Instant::now();
        if self.network_restored_at.is_some_and(|at| all || at <= now) {
            self.network_restored_at = None;
            self.proxy.set(None);
        }
        if self.restart_at.is_some_and(|at| all || at <= now) {
            self.restart_at = None;
            self.server
                .launch()
                .map_err(|error| format!("cannot start redis-server again: {error}"))?;
        }
        if let Some((at, since)) = self.promotion
            && (all || at <= now)
        {
            self.promotion = None;
            self.forgotten.push(since..side_file::wall());
            self.promote_replica()?;
        }
        let since = side_file::wall();
        // The server writes the file before it replies, so this size has all commands that it had
        // executed at `since`.
        if self.replica.is_some()
            && self
                .aof_sizes
                .back()
                .is_none_or(|(at, ..)| now - *at >= SAMPLE_INTERVAL)
            && self.restart_at.is_none()
            && server::send_command(self.server.address(), "PING\r\n").is_ok()
            && let Some(size) = self.server.aof_size()
        {
            self.aof_sizes.push_back((now, since, size));
            while self
                .aof_sizes
                .front()
                .is_some_and(|(at, ..)| now - *at > HISTORY)
            {
                self.aof_sizes.pop_front();
            }
        }
        if all {
            self.server.wait_until_ready()
        } else {
            Ok(())
        }
    }

    /// The pids of the servers.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.server
            .pid()
            .into_iter()
            .chain(self.replica.as_ref().and_then(Server::pid))
            .collect()
    }

    pub(crate) fn affected_connections(&self) -> u64 {
        self.proxy.affected_connections()
    }
}

impl ServerFaults for Redis {
    fn kill_server(&mut self, down: Duration) {
        self.server.kill();
        self.restart_at = Some(Instant::now() + down);
    }

    fn lose_last_writes(&mut self, lost: Duration, down: Duration) -> bool {
        // The server is down or about to be replaced, so it cannot lose power.
        if self.restart_at.is_some() || self.promotion.is_some() {
            return false;
        }
        let now = Instant::now();
        let Some((_, since, size)) = self
            .aof_sizes
            .iter()
            .rev()
            .find(|(at, ..)| now - *at >= lost)
            .copied()
        else {
            return false;
        };
        self.server.kill();
        let is_truncated = self.server.truncate_aof(size).is_ok();
        self.forgotten.push(since..side_file::wall());
        self.aof_sizes.clear();
        self.restart_at = Some(now + down);
        is_truncated
    }

    fn fail_over(&mut self, lag: Duration) -> bool {
        let Some(replica) = &self.replica else {
            return false;
        };
        let info = server::send_command(replica.address(), "INFO replication\r\n");
        let is_ready = self.restart_at.is_none() && self.promotion.is_none();
        if !is_ready || !info.is_ok_and(|info| info.contains("master_link_status:up")) {
            return false;
        }
        let since = side_file::wall();
        // The replica must have what was written before `since`: a loaded machine delays it.
        let has_caught_up = server::replication_offset(self.server.address())
            .is_some_and(|written| wait_for_offset(replica, written));
        if !has_caught_up
            || server::send_command(replica.address(), "REPLICAOF NO ONE\r\n").is_err()
        {
            return false;
        }
        self.promotion = Some((Instant::now() + lag, since));
        true
    }

    fn set_network_fault(&mut self, fault: NetworkFault, time: Duration) {
        self.proxy.set(Some(fault));
        self.network_restored_at = Some(Instant::now() + time);
    }
}

/// Waits until a replica has applied the replication stream up to an offset.
fn wait_for_offset(replica: &Server, offset: u64) -> bool {
    let deadline = Instant::now() + CATCH_UP_TIMEOUT;
    while server::replication_offset(replica.address()).is_none_or(|applied| applied < offset) {
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(2));
    }
    true
}
