//! Redis as a campaign has it: a server that is killed and comes back, behind a proxy that makes the way to it bad.

use std::{
    collections::VecDeque,
    fs, mem,
    ops::Range,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use crate::{
    ledger,
    monkey::Far,
    plan::Trouble,
    proxy::Proxy,
    server::{self, Server},
    site::Site,
    task::MARKER,
};

/// How far back the length of the log is known.
const KNOWN: Duration = Duration::from_secs(2);

pub(crate) struct Redis {
    // Dropped in this order: the proxy before what is behind it.
    proxy: Proxy,
    server: Server,
    /// Follows the server, where that loses its last writes.
    replica: Option<Server>,
    /// How long the log of the server was, and when: on the clock of this process, and since the epoch.
    lengths: VecDeque<(Instant, u64, u64)>,
    /// When the replica, which follows no more, takes the place of the server; and since when it is behind.
    takes_over: Option<(Instant, u64)>,
    /// What was written in these times, in nanoseconds since the epoch, is forgotten.
    pub(crate) forgotten: Vec<Range<u64>>,
    /// When the server is started again.
    back_at: Option<Instant>,
    /// When the way is good again.
    good_at: Option<Instant>,
}

impl Redis {
    /// Starts both, and points the site to the proxy.
    pub(crate) fn start(site: &mut Site, loses_writes: bool) -> Result<Self, String> {
        let directory = |name: &str| {
            let directory = site.file(name);
            fs::create_dir(&directory)
                .map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
            Ok::<_, String>(directory)
        };
        let (leash, parent, marker) = (
            site.chaos.clone(),
            std::process::id().to_string(),
            site.path().to_owned(),
        );
        let make = move || {
            let mut command = Command::new(&leash);
            command
                .args(["leash", &parent])
                .arg(PathBuf::from("redis-server"))
                .env(MARKER, &marker);
            command
        };
        let server = Server::start(directory("redis")?, make.clone())?;
        let replica = match loses_writes {
            true => Some(Server::start(directory("replica")?, make)?),
            false => None,
        };
        let proxy = Proxy::start(server.address())
            .map_err(|error| format!("cannot start the proxy: {error}"))?;
        site.url = format!("redis://{}/0?namespace=chaos", proxy.address());
        let redis = Self {
            proxy,
            server,
            replica,
            lengths: VecDeque::new(),
            takes_over: None,
            forgotten: Vec::new(),
            back_at: None,
            good_at: None,
        };
        redis.follow()?;
        Ok(redis)
    }

    /// Has the replica follow the server.
    fn follow(&self) -> Result<(), String> {
        let Some(replica) = &self.replica else {
            return Ok(());
        };
        let command = format!("REPLICAOF 127.0.0.1 {}\r\n", self.server.address().port());
        server::ask(replica.address(), &command)
            .map(drop)
            .map_err(|error| format!("no replica: {error}"))
    }

    /// Lets the replica take the place of the server, which forgets all and follows it.
    fn swap(&mut self) -> Result<(), String> {
        let Some(replica) = &mut self.replica else {
            return Ok(());
        };
        mem::swap(&mut self.server, replica);
        // The old server starts again below, also if it was down: `tick` must not start the new one twice.
        self.back_at = None;
        replica.kill();
        self.proxy.lead_to(self.server.address());
        self.lengths.clear();
        replica.clear();
        replica
            .launch()
            .map_err(|error| format!("cannot start a replica again: {error}"))?;
        replica.wait_until_ready()?;
        self.follow()
    }

    /// Ends troubles whose time is over, or all. When all, waits until the server answers.
    pub(crate) fn tick(&mut self, all: bool) -> Result<(), String> {
        let now = Instant::now();
        if self.good_at.is_some_and(|at| all || at <= now) {
            self.good_at = None;
            self.proxy.set(None);
        }
        if self.back_at.is_some_and(|at| all || at <= now) {
            self.back_at = None;
            self.server
                .launch()
                .map_err(|error| format!("cannot start redis-server again: {error}"))?;
        }
        if let Some((at, since)) = self.takes_over
            && (all || at <= now)
        {
            self.takes_over = None;
            self.forgotten.push(since..ledger::wall());
            self.swap()?;
        }
        if self.replica.is_some()
            && let Some(length) = self.server.log_size()
        {
            self.lengths.push_back((now, ledger::wall(), length));
            while self
                .lengths
                .front()
                .is_some_and(|(at, ..)| now - *at > KNOWN)
            {
                self.lengths.pop_front();
            }
        }
        if all {
            self.server.wait_until_ready()
        } else {
            Ok(())
        }
    }

    /// The processes of it.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.server
            .pid()
            .into_iter()
            .chain(self.replica.as_ref().and_then(Server::pid))
            .collect()
    }

    pub(crate) fn hits(&self) -> u64 {
        self.proxy.hits()
    }
}

impl Far for Redis {
    fn kill_server(&mut self, down: Duration) {
        self.server.kill();
        self.back_at = Some(Instant::now() + down);
    }

    fn lose_power(&mut self, lost: Duration, down: Duration) -> bool {
        // The server is away, or about to be replaced: it cannot lose power.
        if self.back_at.is_some() || self.takes_over.is_some() {
            return false;
        }
        let now = Instant::now();
        let Some((_, since, length)) = self
            .lengths
            .iter()
            .rev()
            .find(|(at, ..)| now - *at >= lost)
            .copied()
        else {
            return false;
        };
        self.server.kill();
        let is_cut = self.server.cut_log(length).is_ok();
        self.forgotten.push(since..ledger::wall());
        self.lengths.clear();
        self.back_at = Some(now + down);
        is_cut
    }

    fn fail_over(&mut self, lag: Duration) -> bool {
        let Some(replica) = &self.replica else {
            return false;
        };
        let follows = server::ask(replica.address(), "INFO replication\r\n");
        let is_ready = self.back_at.is_none() && self.takes_over.is_none();
        if !is_ready || !follows.is_ok_and(|info| info.contains("master_link_status:up")) {
            return false;
        }
        let since = ledger::wall();
        if server::ask(replica.address(), "REPLICAOF NO ONE\r\n").is_err() {
            return false;
        }
        self.takes_over = Some((Instant::now() + lag, since));
        true
    }

    fn trouble(&mut self, trouble: Trouble, time: Duration) {
        self.proxy.set(Some(trouble));
        self.good_at = Some(Instant::now() + time);
    }
}
