//! Redis as a campaign has it: a server that is killed and comes back, behind a proxy that makes the way to it bad.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use crate::{monkey::Far, plan::Trouble, proxy::Proxy, server::Server, site::Site, task::MARKER};

pub(crate) struct Redis {
    // Dropped in this order: the proxy before what is behind it.
    proxy: Proxy,
    server: Server,
    /// When the server is started again.
    back_at: Option<Instant>,
    /// When the way is good again.
    good_at: Option<Instant>,
}

impl Redis {
    /// Starts both, and points the site to the proxy.
    pub(crate) fn start(site: &mut Site) -> Result<Self, String> {
        let folder = site.file("redis");
        fs::create_dir(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        let (leash, parent, marker) = (site.chaos.clone(), std::process::id().to_string(), site.path().to_owned());
        let make = move || {
            let mut command = Command::new(&leash);
            command.args(["leash", &parent]).arg(PathBuf::from("redis-server")).env(MARKER, &marker);
            command
        };
        let server = Server::start(folder, make)?;
        let proxy = Proxy::start(server.address()).map_err(|error| format!("cannot start the proxy: {error}"))?;
        site.url = format!("redis://{}/0?namespace=chaos", proxy.address());
        Ok(Self { proxy, server, back_at: None, good_at: None })
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
            self.server.launch().map_err(|error| format!("cannot start redis-server again: {error}"))?;
        }
        if all { self.server.wait_until_ready() } else { Ok(()) }
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.server.pid()
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

    fn trouble(&mut self, trouble: Trouble, time: Duration) {
        self.proxy.set(Some(trouble));
        self.good_at = Some(Instant::now() + time);
    }
}
