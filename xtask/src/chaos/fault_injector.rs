//! `FaultInjector`: carries out the planned faults and records what it did to which process.

use std::{
    fs::File,
    io::Write,
    time::{Duration, Instant},
};

use crate::{
    fleet::{Fleet, Role},
    managers,
    plan::{FaultKind, PlannedFault},
    processes::{self, PidHandle},
    side_file,
};

/// A fault that was injected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InjectedFault {
    pub(crate) kind: FaultKind,
    /// Nanoseconds of `CLOCK_MONOTONIC`, the clock of the side file.
    pub(crate) at: u64,
    /// Nanoseconds since the epoch, for the broker's log.
    pub(crate) wall: u64,
    /// The pid of the worker that was hit.
    pub(crate) worker: u32,
    /// The runners of that worker that were hit, or all runners that it had.
    pub(crate) runners: Vec<u32>,
}

/// A stopped process that gets `SIGCONT` at `until`.
struct Stopped {
    until: Instant,
    member: Option<(usize, u32)>,
    runner: Option<PidHandle>,
}

/// Faults of an engine with a server.
pub(crate) trait ServerFaults {
    /// Kills the server, and starts it again after `down`.
    fn kill_server(&mut self, down: Duration);
    fn set_network_fault(&mut self, fault: crate::plan::NetworkFault, time: Duration);
    /// Kills the server, removes its last writes from its log, and starts it again. Returns whether
    /// that was possible.
    fn lose_last_writes(&mut self, lost: Duration, down: Duration) -> bool;
    /// Replaces the server with a replica that lags by `lag`. Returns whether that was possible.
    fn fail_over(&mut self, lag: Duration) -> bool;
}

pub(crate) struct FaultInjector {
    stopped: Vec<Stopped>,
    /// A text log of the injected faults, for people.
    log: File,
    pub(crate) injected_faults: Vec<InjectedFault>,
    /// Planned faults that found no process to hit.
    pub(crate) missed: u32,
}

impl FaultInjector {
    pub(crate) fn new(log: File) -> Self {
        Self {
            stopped: Vec::new(),
            log,
            injected_faults: Vec::new(),
            missed: 0,
        }
    }

    /// Injects one fault. If the planned process cannot be hit now, the next one is.
    pub(crate) fn inject(
        &mut self,
        planned: PlannedFault,
        fleet: &mut Fleet<'_>,
        server: Option<&mut (dyn ServerFaults + '_)>,
    ) {
        match (planned.kind, server) {
            (FaultKind::KillServer(down), Some(server)) => {
                server.kill_server(down);
                return self.record(planned.kind, 0, Vec::new());
            }
            (FaultKind::Net(network_fault, time), Some(server)) => {
                server.set_network_fault(network_fault, time);
                return self.record(planned.kind, 0, Vec::new());
            }
            (FaultKind::LoseLastWrites { lost, down }, Some(server)) => {
                return match server.lose_last_writes(lost, down) {
                    true => self.record(planned.kind, 0, Vec::new()),
                    false => self.missed += 1,
                };
            }
            (FaultKind::Failover { lag }, Some(server)) => {
                return match server.fail_over(lag) {
                    true => self.record(planned.kind, 0, Vec::new()),
                    false => self.missed += 1,
                };
            }
            (FaultKind::KillManager, _) => {
                let inject_at = self.kill_spawned_manager(planned, fleet)
                    || self.kill_group_manager(planned, fleet);
                return self.missed += u32::from(!inject_at);
            }
            _ => {}
        }
        let count = fleet.members.len();
        let inject_at = (0..count)
            .map(|i| (planned.worker + i) % count)
            .any(|index| self.inject_at(planned, index, fleet));
        self.missed += u32::from(!inject_at);
    }

    /// Hits the worker at this index of the fleet, if that is possible now.
    fn inject_at(&mut self, planned: PlannedFault, index: usize, fleet: &mut Fleet<'_>) -> bool {
        let member = &fleet.members[index];
        // A worker that is stopping can still be killed.
        let leaving = member
            .leaving()
            .filter(|_| planned.kind == FaultKind::KillWorker);
        let Some(pid) = member.pid().or(leaving) else {
            return false;
        };
        let now = Instant::now();
        let (is_stopped, role) = (member.stopped_until.is_some(), member.role);
        if member.role == Role::Groups
            && !matches!(planned.kind, FaultKind::Drain | FaultKind::StopNow)
        {
            return !is_stopped && self.inject_into_group(planned, index, pid, fleet);
        }
        let runners = processes::children_of_program(pid, &fleet.dir.raddle);
        let chosen = || {
            let runner = *runners.get(planned.slot % runners.len().max(1))?;
            PidHandle::new(runner, pid)
        };
        match planned.kind {
            FaultKind::KillWorker => {
                // Recorded before the kill: an early timestamp makes no reclaim look quicker than
                // it was.
                self.record(planned.kind, pid, runners);
                fleet.signal_worker(index, libc::SIGKILL);
                true
            }
            FaultKind::KillRunner if !is_stopped => chosen().is_some_and(|runner| {
                self.record(planned.kind, pid, vec![runner.pid]);
                runner.signal(libc::SIGKILL).is_ok()
            }),
            FaultKind::KillBoth => chosen().is_some_and(|runner| {
                self.record(FaultKind::KillWorker, pid, runners.clone());
                let is_signalled = runner.signal(libc::SIGSTOP).is_ok();
                fleet.signal_worker(index, libc::SIGSTOP);
                let _ = runner.signal(libc::SIGKILL);
                fleet.signal_worker(index, libc::SIGKILL);
                is_signalled
            }),
            FaultKind::KillCommand => chosen().is_some_and(|runner| {
                let command = processes::children(runner.pid)
                    .into_iter()
                    .find_map(|pid| PidHandle::new(pid, runner.pid));
                command.is_some_and(|command| {
                    self.record(planned.kind, pid, vec![runner.pid]);
                    command.signal(libc::SIGKILL).is_ok()
                })
            }),
            FaultKind::KillHost | FaultKind::StopHost(_) if role != Role::Hosts => false,
            FaultKind::KillHost | FaultKind::StopHost(_) => chosen().is_some_and(|runner| {
                let host = processes::children(runner.pid)
                    .into_iter()
                    .find_map(|pid| PidHandle::new(pid, runner.pid));
                host.is_some_and(|host| {
                    self.record(planned.kind, pid, vec![runner.pid]);
                    match planned.kind {
                        FaultKind::StopHost(time) => {
                            let is_signalled = host.signal(libc::SIGSTOP).is_ok();
                            self.stopped.push(Stopped {
                                until: now + time,
                                member: None,
                                runner: Some(host),
                            });
                            is_signalled
                        }
                        _ => host.signal(libc::SIGKILL).is_ok(),
                    }
                })
            }),
            FaultKind::StopWorker(time) if !is_stopped => {
                // Workers that a root manager spawned outlive it, but their leases expire while it
                // is stopped.
                let is_root_manager = fleet.members[index].role == Role::RootManager;
                let descendants = if is_root_manager {
                    processes::descendants_of_program(pid, &fleet.dir.raddle)
                } else {
                    runners
                };
                self.record(planned.kind, pid, descendants);
                fleet.signal_worker(index, libc::SIGSTOP);
                fleet.members[index].stopped_until = Some(now + time);
                self.stopped.push(Stopped {
                    until: now + time,
                    member: Some((index, pid)),
                    runner: None,
                });
                true
            }
            FaultKind::StopRunner(time) => chosen().is_some_and(|runner| {
                self.record(planned.kind, pid, vec![runner.pid]);
                let is_signalled = runner.signal(libc::SIGSTOP).is_ok();
                self.stopped.push(Stopped {
                    until: now + time,
                    member: None,
                    runner: Some(runner),
                });
                is_signalled
            }),
            FaultKind::StopBoth(time) if !is_stopped => chosen().is_some_and(|runner| {
                self.record(FaultKind::StopRunner(time), pid, vec![runner.pid]);
                self.record(FaultKind::StopWorker(time), pid, runners.clone());
                // The runner first: a runner that finds its worker stopped would stop its command.
                let is_signalled = runner.signal(libc::SIGSTOP).is_ok();
                fleet.signal_worker(index, libc::SIGSTOP);
                fleet.members[index].stopped_until = Some(now + time);
                self.stopped.push(Stopped {
                    until: now + time,
                    member: Some((index, pid)),
                    runner: Some(runner),
                });
                is_signalled
            }),
            FaultKind::Drain | FaultKind::StopNow if !is_stopped => {
                self.record(planned.kind, pid, runners);
                fleet.signal_worker(index, libc::SIGTERM);
                if planned.kind == FaultKind::StopNow {
                    // Two pending SIGTERMs are merged, so the second is sent after the first was
                    // handled.
                    std::thread::sleep(Duration::from_millis(20));
                    fleet.signal_worker(index, libc::SIGTERM);
                }
                true
            }
            _ => false,
        }
    }

    /// Kills a manager that a root manager spawned. The manager's runner ends its processes.
    fn kill_spawned_manager(&mut self, planned: PlannedFault, fleet: &Fleet<'_>) -> bool {
        let managers = managers::find_spawned(fleet.dir);
        let Some((pid, parent)) = managers.get(planned.slot % managers.len().max(1)).copied()
        else {
            return false;
        };
        let Some(manager) = PidHandle::new(pid, parent) else {
            return false;
        };
        self.record(
            planned.kind,
            pid,
            processes::descendants_of_program(pid, &fleet.dir.raddle),
        );
        manager.signal(libc::SIGKILL).is_ok()
    }

    /// Kills a group manager, where no root manager has spawned a manager.
    fn kill_group_manager(&mut self, planned: PlannedFault, fleet: &mut Fleet<'_>) -> bool {
        let planned = PlannedFault {
            kind: FaultKind::KillWorker,
            ..planned
        };
        (0..fleet.members.len()).any(|index| {
            fleet.members[index].role == Role::Groups && self.inject_at(planned, index, fleet)
        })
    }

    /// Hits a group manager or one of its processes. Those are workers themselves, with runners
    /// below them.
    fn inject_into_group(
        &mut self,
        planned: PlannedFault,
        index: usize,
        pid: u32,
        fleet: &mut Fleet<'_>,
    ) -> bool {
        let now = Instant::now();
        let raddle = &fleet.dir.raddle;
        let pick = |parent: u32| {
            let descendants_of_program = processes::children_of_program(parent, raddle);
            PidHandle::new(
                *descendants_of_program.get(planned.slot % descendants_of_program.len().max(1))?,
                parent,
            )
        };
        match planned.kind {
            FaultKind::KillWorker => {
                // The group processes notice it, finish their tasks and exit.
                self.record(FaultKind::KillManager, pid, Vec::new());
                fleet.signal_worker(index, libc::SIGKILL);
                true
            }
            FaultKind::StopWorker(time) => {
                self.record(planned.kind, pid, Vec::new());
                fleet.signal_worker(index, libc::SIGSTOP);
                fleet.members[index].stopped_until = Some(now + time);
                self.stopped.push(Stopped {
                    until: now + time,
                    member: Some((index, pid)),
                    runner: None,
                });
                true
            }
            FaultKind::KillRunner | FaultKind::KillGroupProcess => {
                pick(pid).is_some_and(|process| {
                    self.record(
                        FaultKind::KillGroupProcess,
                        process.pid,
                        processes::children_of_program(process.pid, raddle),
                    );
                    process.signal(libc::SIGKILL).is_ok()
                })
            }
            FaultKind::KillCommand => pick(pid)
                .and_then(|process| Some((pick(process.pid)?, process)))
                .is_some_and(|(runner, process)| {
                    self.record(FaultKind::KillRunner, process.pid, vec![runner.pid]);
                    runner.signal(libc::SIGKILL).is_ok()
                }),
            FaultKind::StopRunner(time) | FaultKind::StopBoth(time) => {
                pick(pid).is_some_and(|process| {
                    let runner = pick(process.pid)
                        .filter(|_| matches!(planned.kind, FaultKind::StopBoth(_)));
                    if let Some(runner) = runner {
                        self.record(FaultKind::StopRunner(time), process.pid, vec![runner.pid]);
                        let _ = runner.signal(libc::SIGSTOP);
                        self.stopped.push(Stopped {
                            until: now + time,
                            member: None,
                            runner: Some(runner),
                        });
                    }
                    self.record(
                        FaultKind::StopWorker(time),
                        process.pid,
                        processes::children_of_program(process.pid, raddle),
                    );
                    let is_signalled = process.signal(libc::SIGSTOP).is_ok();
                    self.stopped.push(Stopped {
                        until: now + time,
                        member: None,
                        runner: Some(process),
                    });
                    is_signalled
                })
            }
            _ => false,
        }
    }

    /// Continues the processes whose time is over, or all.
    pub(crate) fn tick(&mut self, fleet: &mut Fleet<'_>, all: bool) {
        let now = Instant::now();
        for stopped in std::mem::take(&mut self.stopped) {
            if !all && stopped.until > now {
                self.stopped.push(stopped);
                continue;
            }
            if let Some((index, pid)) = stopped.member
                && let Some(member) = fleet.members.get_mut(index)
                // It may have been killed and replaced meanwhile.
                && member.pid() == Some(pid)
            {
                member.stopped_until = None;
                fleet.signal_worker(index, libc::SIGCONT);
            }
            if let Some(runner) = stopped.runner {
                let _ = runner.signal(libc::SIGCONT);
            }
        }
    }

    fn record(&mut self, kind: FaultKind, worker: u32, runners: Vec<u32>) {
        let injected = InjectedFault {
            kind,
            at: side_file::now(),
            wall: side_file::wall(),
            worker,
            runners,
        };
        let _ = writeln!(
            self.log,
            "{} {} {kind:?} worker {worker} runners {:?}",
            injected.at, injected.wall, injected.runners
        );
        self.injected_faults.push(injected);
    }
}
