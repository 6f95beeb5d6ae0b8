//! The life of hosts: start, replacement, and what a host that dies means for its attempts.

use std::{cmp::Reverse, collections::HashSet, time::Duration};

use raddle_model::{
    ExitStatus, ExponentialBackoff,
    host::{CancelReason, HostHello, PROTOCOL, Ping, StopHost, ToHost},
    reply::LogLevel,
};

use super::{
    core::{
        Host, HostEffect, HostEvent, HostId, PING_EVERY, Phase, Placement, PoolCore, Purpose,
        Suspicion, Timer,
    },
    side::SideMessage,
};
use crate::host::HostProgram;

/// Between two tries to start a host.
const BACKOFF: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_millis(250), Duration::from_secs(30));
/// The signal of a kill from outside, and of the kernel when memory runs out.
pub(super) const SIGKILL: i32 = 9;

impl PoolCore {
    /// Starts hosts that are missing, and stops those that are not needed any more.
    pub(super) fn adjust_hosts(&mut self, now: Duration) {
        if self.closing {
            return;
        }
        self.give_up_waiting();
        if now >= self.spawn_at {
            let count = |of: Purpose, hosts: &Self| {
                let is_of = |host: &&Host| {
                    host.purpose == of
                        && !host.retiring
                        && matches!(host.phase, Phase::Starting | Phase::Ready)
                };
                hosts.hosts.values().filter(is_of).count()
            };
            let most = self.options.count as usize;
            let suspects = self.alone.len()
                + self
                    .hosts
                    .values()
                    .filter(|host| host.purpose == Purpose::Alone && !host.running.is_empty())
                    .count();
            let fresh = self.fresh.len()
                + self
                    .hosts
                    .values()
                    .filter(|host| host.purpose == Purpose::Fresh && host.begun > 0)
                    .count();
            for (purpose, wanted) in [
                (
                    Purpose::Shared,
                    if self.options.is_fresh { 0 } else { most },
                ),
                (Purpose::Alone, suspects.min(most)),
                (Purpose::Fresh, fresh.min(most)),
            ] {
                for _ in count(purpose, self)..wanted {
                    self.spawn(purpose, now);
                }
            }
        }
        // A host that is old enough goes when its successor is there.
        let ready = |host: &&Host| {
            host.purpose == Purpose::Shared && host.phase == Phase::Ready && !host.retiring
        };
        let successors = self.hosts.values().filter(ready).count();
        let mut spare = (self.options.count as usize).saturating_sub(successors);
        let mut idle = Vec::new();
        for (id, host) in &mut self.hosts {
            if host.phase == Phase::Ready && host.retiring && host.purpose == Purpose::Shared {
                if spare > 0 {
                    spare -= 1;
                } else {
                    host.phase = Phase::Draining;
                }
            }
            let is_spent = match host.purpose {
                Purpose::Shared => false,
                Purpose::Alone => self.alone.is_empty(),
                Purpose::Fresh => host.begun > 0 || self.fresh.is_empty(),
            };
            if host.running.is_empty()
                && (host.phase == Phase::Draining || (host.phase == Phase::Ready && is_spent))
            {
                idle.push(*id);
            }
        }
        for id in idle {
            self.stop_host(id, now);
        }
    }

    /// Returns attempts to the queue that no host can be started for.
    fn give_up_waiting(&mut self) {
        if self.start_failure().is_none() {
            return;
        }
        let waiting: Vec<usize> = [&mut self.waiting, &mut self.alone, &mut self.fresh]
            .into_iter()
            .flat_map(|queue| queue.drain(..))
            .collect();
        for slot in waiting {
            let message = format!("no host can be started for it: {}", self.last_failure);
            self.end(slot, ExitStatus::ResourceExhausted { message }, None, false);
        }
    }

    fn spawn(&mut self, purpose: Purpose, now: Duration) {
        self.last_host += 1;
        let id = self.last_host;
        // By up to a fifth earlier, so that hosts that were started together are not replaced
        // together.
        let jitter = |whole: u64| whole - whole / 5 * (id.wrapping_mul(0x9e37_79b9) % 101) / 100;
        self.hosts.insert(
            id,
            Host {
                purpose,
                phase: Phase::Starting,
                pid: None,
                greeted: false,
                running: HashSet::new(),
                plain: 0,
                begun: 0,
                most_tasks: self.options.max_tasks.map(|most| jitter(most).max(1)),
                retiring: false,
                concurrency: self.options.concurrency as usize,
                threads: self.options.threads as usize,
                culprit: None,
                fault: None,
                pings: 0,
                pongs: 0,
                unanswered_since: None,
                blocked_reported: false,
                ping_is_due: false,
            },
        );
        self.timers.push(Reverse((
            now + self.options.startup_timeout,
            Timer::Startup(id),
        )));
        if let Some(age) = self.options.max_age.filter(|_| purpose == Purpose::Shared) {
            let age = Duration::from_millis(jitter(age.as_millis() as u64));
            self.timers.push(Reverse((now + age, Timer::Retire(id))));
        }
        self.effects.push(HostEffect::Spawn(id));
    }

    pub(super) fn greeted(&mut self, id: HostId, hello: &HostHello) {
        let missing = self
            .options
            .routines
            .keys()
            .find(|name| self.options.handler.is_none() && !hello.routines.contains_key(*name));
        let Some(host) = self.hosts.get_mut(&id) else {
            return;
        };
        let fault = if hello.protocol != PROTOCOL {
            format!(
                "it speaks version {} of the host protocol, and this worker version {PROTOCOL}",
                hello.protocol
            )
        } else if std::mem::replace(&mut host.greeted, true) {
            "it said hello twice".into()
        } else if let Some(name) = missing {
            format!(
                "it has no routine '{name}', which other hosts of the program have: restart the worker"
            )
        } else {
            let limit = |own: &mut usize, theirs: Option<u32>| {
                *own = (*own).min(theirs.unwrap_or(u32::MAX).max(1) as usize);
            };
            limit(&mut host.concurrency, hello.concurrency);
            limit(&mut host.threads, hello.threads);
            return;
        };
        self.fault(id, fault);
    }

    pub(super) fn ready(&mut self, id: HostId, now: Duration) {
        let Some(host) = self.hosts.get_mut(&id) else {
            return;
        };
        if !host.greeted {
            return self.fault(id, "it was ready before it said hello".into());
        }
        if host.phase == Phase::Starting {
            host.phase = Phase::Ready;
            self.start_failures = 0;
            if self.closing {
                self.stop_host(id, now);
            }
        }
    }

    pub(super) fn pong(&mut self, id: HostId, n: u64) {
        if let Some(host) = self.hosts.get_mut(&id) {
            host.pongs = host.pongs.max(n.min(host.pings));
            if host.pongs == host.pings {
                host.unanswered_since = None;
                host.blocked_reported = false;
            }
        }
    }

    /// Kills a host that does something wrong.
    pub(super) fn fault(&mut self, id: HostId, reason: String) {
        let Some(host) = self.hosts.get_mut(&id) else {
            return;
        };
        // A host that shuts down closes its connection.
        if matches!(host.phase, Phase::Stopping | Phase::Killed) {
            return;
        }
        host.fault.get_or_insert(reason);
        self.kill_host(id);
    }

    fn kill_host(&mut self, id: HostId) {
        if let Some(host) = self.hosts.get_mut(&id)
            && host.phase != Phase::Killed
        {
            // A host that was not ready yet is one that failed to start: `exited` sees that by the
            // flag.
            host.retiring |= host.phase != Phase::Starting;
            host.phase = Phase::Killed;
            self.effects.push(HostEffect::Kill(id));
        }
    }

    fn stop_host(&mut self, id: HostId, now: Duration) {
        if let Some(host) = self.hosts.get_mut(&id)
            && !matches!(host.phase, Phase::Stopping | Phase::Killed)
        {
            host.phase = Phase::Stopping;
            host.retiring = true;
            let within = self.options.shutdown_timeout;
            let timeout_ms = within.as_millis() as u64;
            self.send(id, &ToHost::Stop(StopHost { timeout_ms }));
            self.timers
                .push(Reverse((now + within, Timer::Shutdown(id))));
        }
    }

    pub(super) fn measured(&mut self, id: HostId, bytes: u64) {
        let most = self.options.max_rss_bytes;
        if let Some(host) = self.hosts.get_mut(&id)
            && most.is_some_and(|most| bytes > most)
            && !host.retiring
        {
            host.retiring = true;
            self.effects.push(HostEffect::Info(format!(
                "a host of '{}' uses {} MB and is replaced",
                self.options.name,
                bytes >> 20
            )));
        }
    }

    /// Stops the hosts with the worker. Running attempts were asked to end before.
    pub(super) fn close(&mut self, now: Duration) {
        self.closing = true;
        let ids: Vec<HostId> = self.hosts.keys().copied().collect();
        for id in ids {
            let is_starting = self
                .hosts
                .get(&id)
                .is_some_and(|host| host.phase == Phase::Starting);
            if is_starting {
                self.kill_host(id);
            } else {
                self.stop_host(id, now);
            }
        }
    }

    /// Acts on timers that are due.
    pub(super) fn tick(&mut self, now: Duration) {
        while let Some(Reverse((at, timer))) = self.timers.peek().copied()
            && at <= now
        {
            self.timers.pop();
            match timer {
                Timer::Timeout { slot, run } => {
                    if self.host_of_run(slot, run).is_some() {
                        let grace = self.grace.overtime;
                        let reason = CancelReason::Timeout;
                        self.ask_to_end(slot, ExitStatus::Timeout, reason, grace, now);
                    }
                }
                Timer::Force { slot, run } => {
                    if self.host_of_run(slot, run).is_some() {
                        self.force(slot, now);
                    }
                }
                Timer::KillFor { slot, run } => {
                    if let Some(host) = self.host_of_run(slot, run) {
                        self.kill_for(slot, host);
                    }
                }
                Timer::Startup(id) => {
                    if self
                        .hosts
                        .get(&id)
                        .is_some_and(|host| host.phase == Phase::Starting)
                    {
                        let within = self.options.startup_timeout;
                        self.fault(id, format!("it was not ready within {within:?}"));
                    }
                }
                Timer::Shutdown(id) => self.kill_host(id),
                Timer::Retire(id) => {
                    if let Some(host) = self.hosts.get_mut(&id) {
                        host.retiring = true;
                    }
                }
                Timer::Ping(id) => self.ping(id, now),
                Timer::Spawn => {}
            }
        }
        for host in self.hosts.values_mut() {
            let is_spent = host.most_tasks.is_some_and(|most| host.begun >= most);
            host.retiring |= is_spent && host.purpose == Purpose::Shared;
        }
    }

    fn kill_for(&mut self, slot: usize, id: HostId) {
        if let Some(host) = self.hosts.get_mut(&id) {
            host.culprit = Some(slot);
            let name = &self.options.name;
            self.effects.push(HostEffect::Warn(format!(
                "a host of '{name}' is killed: an attempt in it did not end when it had to"
            )));
            self.kill_host(id);
        }
    }

    fn ping(&mut self, id: HostId, now: Duration) {
        let Some(host) = self.hosts.get_mut(&id) else {
            return;
        };
        host.ping_is_due = false;
        // An attempt in a fresh process blocks no other.
        let is_alone = host.purpose == Purpose::Fresh;
        if is_alone
            || host.running.is_empty()
            || matches!(host.phase, Phase::Killed | Phase::Stopping)
        {
            return;
        }
        let blocked = host.unanswered_since.map(|since| now.saturating_sub(since));
        if blocked.is_some_and(|blocked| blocked >= self.options.blocked_timeout) {
            let within = self.options.blocked_timeout;
            return self.fault(id, format!("its event loop was blocked for {within:?}"));
        }
        if blocked.is_some_and(|blocked| blocked >= 2 * PING_EVERY)
            && !std::mem::replace(&mut host.blocked_reported, true)
        {
            self.effects.push(HostEffect::ReportStack(id));
        }
        if blocked.is_none() {
            host.pings += 1;
            host.unanswered_since = Some(now);
            let n = host.pings;
            self.send(id, &ToHost::Ping(Ping { n }));
            if self.options.max_rss_bytes.is_some() {
                self.effects.push(HostEffect::Measure(id));
            }
        }
        if let Some(host) = self.hosts.get_mut(&id) {
            host.ping_is_due = true;
            self.timers
                .push(Reverse((now + PING_EVERY, Timer::Ping(id))));
        }
    }

    /// A host is gone. Its attempts end, run again, or run again alone.
    pub(super) fn exited(&mut self, id: HostId, exit: &ExitStatus, now: Duration) {
        let Some(mut host) = self.hosts.remove(&id) else {
            return;
        };
        // A host that leaves before it has done anything would be started again and again.
        let never_ready = host.begun == 0 && host.phase != Phase::Stopping;
        let how = host.fault.clone().unwrap_or_else(|| exit.to_string());
        if never_ready && !self.closing {
            self.start_failures += 1;
            self.last_failure.clone_from(&how);
            let pause = BACKOFF.pause(self.start_failures);
            self.spawn_at = now + pause;
            self.timers.push(Reverse((self.spawn_at, Timer::Spawn)));
            self.effects.push(HostEffect::Warn(format!(
                "a host of '{}' did not start: {how}; the next try is in {pause:?}",
                self.options.name
            )));
        }
        let mut victims: Vec<usize> = host.running.drain().collect();
        // In the order in which they came.
        victims.sort_by_key(|slot| match self.attempts.get(slot).map(|at| at.place) {
            Some(Placement::Host { run, .. }) => run,
            _ => 0,
        });
        let is_expected = matches!(host.phase, Phase::Stopping) || host.culprit.is_some();
        if !is_expected && !never_ready && !self.closing {
            self.effects.push(HostEffect::Warn(format!(
                "a host of '{}' died with {} attempts: {how}",
                self.options.name,
                victims.len()
            )));
        }
        let others = victims.len().saturating_sub(1);
        for slot in victims.into_iter().rev() {
            self.survive(slot, &host, exit, &how, others);
        }
    }

    /// Decides what follows for an attempt whose host is gone.
    fn survive(&mut self, slot: usize, host: &Host, exit: &ExitStatus, how: &str, others: usize) {
        let acked = matches!(
            self.attempts.get(&slot).map(|attempt| attempt.place),
            Some(Placement::Host { acked: true, .. })
        );
        // The host is no longer in the table, so that only the run is forgotten.
        let started = self.leave_host(slot);
        let Some(attempt) = self.attempts.get_mut(&slot) else {
            return;
        };
        let attempt_id = attempt.claim.attempt_id;
        if let Some(ending) = attempt.ending.clone() {
            return self.end(slot, ending, None, true);
        }
        if *exit == ExitStatus::LeaseExpired || self.closing {
            return self.end(slot, ExitStatus::LeaseExpired, None, true);
        }
        self.effects
            .push(HostEffect::Side(attempt_id, SideMessage::Restart));
        let is_from_outside = host.fault.is_none()
            && (*exit == ExitStatus::Signal { signal: SIGKILL } || *exit == ExitStatus::Killed);
        if host.culprit.is_some() || !acked || started.is_none() {
            return self.queue(slot, true);
        }
        if is_from_outside && host.purpose == Purpose::Shared && attempt.kills == 0 {
            attempt.kills += 1;
            self.note(slot, format!("its host was killed ({how}): it runs again"));
            return self.queue(slot, true);
        }
        match (host.purpose, &self.options.program) {
            (Purpose::Shared, _) => {
                attempt.suspicion = Suspicion::Alone;
                self.note(
                    slot,
                    format!(
                        "its host died ({how}) while {others} others ran in it: it runs again alone"
                    ),
                );
                self.queue(slot, true);
            }
            (Purpose::Alone, program) => {
                attempt.suspicion = Suspicion::Fresh;
                let program = program.clone();
                self.remember_poison(attempt_id.tid);
                self.note(
                    slot,
                    format!("its host died ({how}) while it was alone in it: it runs again in a fresh process"),
                );
                self.queue(slot, false);
                debug_assert!(program == HostProgram::Own || !self.fresh.is_empty());
            }
            (Purpose::Fresh, _) => {
                let exit = match exit {
                    ExitStatus::Code { code } => ExitStatus::ProtocolError {
                        message: format!("its host exited with code {code} before it answered"),
                    },
                    _ if host.fault.is_some() => ExitStatus::ProtocolError {
                        message: how.to_owned(),
                    },
                    other => other.clone(),
                };
                self.end(slot, exit, None, false);
            }
        }
    }

    /// Writes to the log of an attempt's task.
    fn note(&mut self, slot: usize, message: String) {
        if let Some(attempt) = self.attempts.get(&slot) {
            self.effects.push(HostEffect::Side(
                attempt.claim.attempt_id,
                SideMessage::Log(LogLevel::Warn, message),
            ));
        }
    }
}

impl HostEvent {
    /// A host that could not be started.
    pub(super) fn not_spawned(host: HostId, reason: &std::io::Error) -> Self {
        Self::Exited {
            host,
            exit: ExitStatus::ResourceExhausted {
                message: format!("no process could be started: {reason}"),
            },
        }
    }
}
