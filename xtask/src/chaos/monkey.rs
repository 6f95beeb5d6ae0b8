//! Who breaks things: carries out the blows of the plan, and writes down what it did to whom.

use std::{
    fs::File,
    io::Write,
    time::{Duration, Instant},
};

use crate::{
    fleet::{Fleet, Role},
    hierarchy, ledger,
    plan::{Blow, What},
    procs::{self, Grip},
};

/// Something that was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Deed {
    pub(crate) what: What,
    /// Nanoseconds of the clock of the side file.
    pub(crate) at: u64,
    /// Nanoseconds since the epoch, for the broker's log.
    pub(crate) wall: u64,
    /// The worker it was done to.
    pub(crate) worker: u32,
    /// Of that worker, the runners that it was done to, or that it had.
    pub(crate) runners: Vec<u32>,
}

/// Those that are to be continued.
struct Stopped {
    until: Instant,
    place: Option<(usize, u32)>,
    runner: Option<Grip>,
}

/// What else can be hit, where an engine has a server.
pub(crate) trait Far {
    /// Kills the server; it is started again after so long.
    fn kill_server(&mut self, down: Duration);
    fn trouble(&mut self, trouble: crate::plan::Trouble, time: Duration);
    /// Kills the server, takes what it wrote lately from its log, and starts it again. Returns whether that could be done.
    fn lose_power(&mut self, lost: Duration, down: Duration) -> bool;
    /// Puts a replica in the place of the server that is behind by so much. Returns whether that could be done.
    fn fail_over(&mut self, lag: Duration) -> bool;
}

pub(crate) struct Monkey {
    stopped: Vec<Stopped>,
    /// For people: what was done, when, and to whom.
    log: File,
    pub(crate) deeds: Vec<Deed>,
    /// Blows that found nobody.
    pub(crate) missed: u32,
}

impl Monkey {
    pub(crate) fn new(log: File) -> Self {
        Self {
            stopped: Vec::new(),
            log,
            deeds: Vec::new(),
            missed: 0,
        }
    }

    /// Carries out one blow. If the one whose turn it is cannot be hit now, it is the next one's.
    pub(crate) fn strike(
        &mut self,
        blow: Blow,
        fleet: &mut Fleet<'_>,
        far: Option<&mut (dyn Far + '_)>,
    ) {
        match (blow.what, far) {
            (What::KillServer(down), Some(far)) => {
                far.kill_server(down);
                return self.note(blow.what, 0, Vec::new());
            }
            (What::Net(trouble, time), Some(far)) => {
                far.trouble(trouble, time);
                return self.note(blow.what, 0, Vec::new());
            }
            (What::LosePower { lost, down }, Some(far)) => {
                return match far.lose_power(lost, down) {
                    true => self.note(blow.what, 0, Vec::new()),
                    false => self.missed += 1,
                };
            }
            (What::FailOver { lag }, Some(far)) => {
                return match far.fail_over(lag) {
                    true => self.note(blow.what, 0, Vec::new()),
                    false => self.missed += 1,
                };
            }
            (What::KillManager, _) => {
                let hit = self.hit_manager(blow, fleet) || self.hit_one_of_groups(blow, fleet);
                return self.missed += u32::from(!hit);
            }
            _ => {}
        }
        let count = fleet.places.len();
        let hit = (0..count)
            .map(|i| (blow.worker + i) % count)
            .any(|index| self.hit(blow, index, fleet));
        self.missed += u32::from(!hit);
    }

    /// Hits the worker at this place, if it can be hit.
    fn hit(&mut self, blow: Blow, index: usize, fleet: &mut Fleet<'_>) -> bool {
        let place = &fleet.places[index];
        // One that leaves can still be killed while it is at it.
        let leaving = place.leaving().filter(|_| blow.what == What::KillWorker);
        let Some(pid) = place.pid().or(leaving) else {
            return false;
        };
        let now = Instant::now();
        let is_stopped = place.stopped_until.is_some();
        if place.role == Role::Groups && !matches!(blow.what, What::Drain | What::GiveBack) {
            return !is_stopped && self.hit_groups(blow, index, pid, fleet);
        }
        let runners = procs::children_of_program(pid, &fleet.site.raddle);
        let chosen = || {
            let runner = *runners.get(blow.slot % runners.len().max(1))?;
            Grip::new(runner, pid)
        };
        match blow.what {
            What::KillWorker => {
                // Written down before it is done: a moment that is too early makes nobody look quicker.
                self.note(blow.what, pid, runners);
                fleet.signal_worker(index, libc::SIGKILL);
                true
            }
            What::KillRunner if !is_stopped => chosen().is_some_and(|runner| {
                self.note(blow.what, pid, vec![runner.pid]);
                runner.signal(libc::SIGKILL).is_ok()
            }),
            What::KillBoth => chosen().is_some_and(|runner| {
                self.note(What::KillWorker, pid, runners.clone());
                let is_hit = runner.signal(libc::SIGSTOP).is_ok();
                fleet.signal_worker(index, libc::SIGSTOP);
                let _ = runner.signal(libc::SIGKILL);
                fleet.signal_worker(index, libc::SIGKILL);
                is_hit
            }),
            What::KillCommand => chosen().is_some_and(|runner| {
                let command = procs::children(runner.pid)
                    .into_iter()
                    .find_map(|pid| Grip::new(pid, runner.pid));
                command.is_some_and(|command| {
                    self.note(blow.what, pid, vec![runner.pid]);
                    command.signal(libc::SIGKILL).is_ok()
                })
            }),
            What::StopWorker(time) if !is_stopped => {
                // Those whom a prime has spawned live on without it, but their leases run out while it stands still.
                let is_prime = fleet.places[index].role == Role::Prime;
                let hurt = if is_prime {
                    procs::below(pid, &fleet.site.raddle)
                } else {
                    runners
                };
                self.note(blow.what, pid, hurt);
                fleet.signal_worker(index, libc::SIGSTOP);
                fleet.places[index].stopped_until = Some(now + time);
                self.stopped.push(Stopped {
                    until: now + time,
                    place: Some((index, pid)),
                    runner: None,
                });
                true
            }
            What::StopRunner(time) => chosen().is_some_and(|runner| {
                self.note(blow.what, pid, vec![runner.pid]);
                let is_hit = runner.signal(libc::SIGSTOP).is_ok();
                self.stopped.push(Stopped {
                    until: now + time,
                    place: None,
                    runner: Some(runner),
                });
                is_hit
            }),
            What::StopBoth(time) if !is_stopped => chosen().is_some_and(|runner| {
                self.note(What::StopRunner(time), pid, vec![runner.pid]);
                self.note(What::StopWorker(time), pid, runners.clone());
                // The runner first: if it sees its worker stopped, it does its duty.
                let is_hit = runner.signal(libc::SIGSTOP).is_ok();
                fleet.signal_worker(index, libc::SIGSTOP);
                fleet.places[index].stopped_until = Some(now + time);
                self.stopped.push(Stopped {
                    until: now + time,
                    place: Some((index, pid)),
                    runner: Some(runner),
                });
                is_hit
            }),
            What::Drain | What::GiveBack if !is_stopped => {
                self.note(blow.what, pid, runners);
                fleet.signal_worker(index, libc::SIGTERM);
                if blow.what == What::GiveBack {
                    // Two signals at once are one; the second must come when the first has been taken.
                    std::thread::sleep(Duration::from_millis(20));
                    fleet.signal_worker(index, libc::SIGTERM);
                }
                true
            }
            _ => false,
        }
    }

    /// Kills a manager that the prime has spawned. Its runner ends what it has spawned itself.
    fn hit_manager(&mut self, blow: Blow, fleet: &Fleet<'_>) -> bool {
        let managers = hierarchy::managers(fleet.site);
        let Some((pid, parent)) = managers.get(blow.slot % managers.len().max(1)).copied() else {
            return false;
        };
        let Some(manager) = Grip::new(pid, parent) else {
            return false;
        };
        self.note(blow.what, pid, procs::below(pid, &fleet.site.raddle));
        manager.signal(libc::SIGKILL).is_ok()
    }

    /// Kills a manager of groups, where the prime has spawned none.
    fn hit_one_of_groups(&mut self, blow: Blow, fleet: &mut Fleet<'_>) -> bool {
        let blow = Blow {
            what: What::KillWorker,
            ..blow
        };
        (0..fleet.places.len())
            .any(|index| fleet.places[index].role == Role::Groups && self.hit(blow, index, fleet))
    }

    /// Hits a manager of groups, or one of its processes. Those are workers themselves, with runners below them.
    fn hit_groups(&mut self, blow: Blow, index: usize, pid: u32, fleet: &mut Fleet<'_>) -> bool {
        let now = Instant::now();
        let raddle = &fleet.site.raddle;
        let pick = |parent: u32| {
            let below = procs::children_of_program(parent, raddle);
            Grip::new(*below.get(blow.slot % below.len().max(1))?, parent)
        };
        match blow.what {
            What::KillWorker => {
                // Its processes see it, finish what they run, and leave.
                self.note(What::KillManager, pid, Vec::new());
                fleet.signal_worker(index, libc::SIGKILL);
                true
            }
            What::StopWorker(time) => {
                self.note(blow.what, pid, Vec::new());
                fleet.signal_worker(index, libc::SIGSTOP);
                fleet.places[index].stopped_until = Some(now + time);
                self.stopped.push(Stopped {
                    until: now + time,
                    place: Some((index, pid)),
                    runner: None,
                });
                true
            }
            What::KillRunner | What::KillMember => pick(pid).is_some_and(|member| {
                self.note(
                    What::KillMember,
                    member.pid,
                    procs::children_of_program(member.pid, raddle),
                );
                member.signal(libc::SIGKILL).is_ok()
            }),
            What::KillCommand => pick(pid)
                .and_then(|member| Some((pick(member.pid)?, member)))
                .is_some_and(|(runner, member)| {
                    self.note(What::KillRunner, member.pid, vec![runner.pid]);
                    runner.signal(libc::SIGKILL).is_ok()
                }),
            What::StopRunner(time) | What::StopBoth(time) => pick(pid).is_some_and(|member| {
                let runner = pick(member.pid).filter(|_| matches!(blow.what, What::StopBoth(_)));
                if let Some(runner) = runner {
                    self.note(What::StopRunner(time), member.pid, vec![runner.pid]);
                    let _ = runner.signal(libc::SIGSTOP);
                    self.stopped.push(Stopped {
                        until: now + time,
                        place: None,
                        runner: Some(runner),
                    });
                }
                self.note(
                    What::StopWorker(time),
                    member.pid,
                    procs::children_of_program(member.pid, raddle),
                );
                let is_hit = member.signal(libc::SIGSTOP).is_ok();
                self.stopped.push(Stopped {
                    until: now + time,
                    place: None,
                    runner: Some(member),
                });
                is_hit
            }),
            _ => false,
        }
    }

    /// Continues those whose time has come, or all.
    pub(crate) fn tick(&mut self, fleet: &mut Fleet<'_>, all: bool) {
        let now = Instant::now();
        for one in std::mem::take(&mut self.stopped) {
            if !all && one.until > now {
                self.stopped.push(one);
                continue;
            }
            if let Some((index, pid)) = one.place
                && let Some(place) = fleet.places.get_mut(index)
                // Killed meanwhile, and perhaps another is there by now.
                && place.pid() == Some(pid)
            {
                place.stopped_until = None;
                fleet.signal_worker(index, libc::SIGCONT);
            }
            if let Some(runner) = one.runner {
                let _ = runner.signal(libc::SIGCONT);
            }
        }
    }

    fn note(&mut self, what: What, worker: u32, runners: Vec<u32>) {
        let deed = Deed {
            what,
            at: ledger::now(),
            wall: ledger::wall(),
            worker,
            runners,
        };
        let _ = writeln!(
            self.log,
            "{} {} {what:?} worker {worker} runners {:?}",
            deed.at, deed.wall, deed.runners
        );
        self.deeds.push(deed);
    }
}
