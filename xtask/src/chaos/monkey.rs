//! Who breaks things: carries out the blows of the plan, and writes down what it did to whom.

use std::{
    fs::File,
    io::Write,
    time::{Duration, Instant},
};

use crate::{
    fleet::Fleet,
    ledger,
    plan::{Blow, What},
    procs::{self, Grip},
};

/// How long a worker is left alone after one of its runners was killed.
///
/// When a runner is killed, its worker ends what the command had started. Worker and runner killed at the same moment is the one
/// case in which something may survive, and it is documented: it would be found each time, and would hide others.
const REPRIEVE: Duration = Duration::from_millis(500);

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
        Self { stopped: Vec::new(), log, deeds: Vec::new(), missed: 0 }
    }

    /// Carries out one blow. If the one whose turn it is cannot be hit now, it is the next one's.
    pub(crate) fn strike(&mut self, blow: Blow, fleet: &mut Fleet<'_>, far: Option<&mut (dyn Far + '_)>) {
        match (blow.what, far) {
            (What::KillServer(down), Some(far)) => {
                far.kill_server(down);
                return self.note(blow.what, 0, Vec::new());
            }
            (What::Net(trouble, time), Some(far)) => {
                far.trouble(trouble, time);
                return self.note(blow.what, 0, Vec::new());
            }
            _ => {}
        }
        let count = fleet.places.len();
        let hit = (0..count).map(|i| (blow.worker + i) % count).any(|index| self.hit(blow, index, fleet));
        self.missed += u32::from(!hit);
    }

    /// Hits the worker at this place, if it can be hit.
    fn hit(&mut self, blow: Blow, index: usize, fleet: &mut Fleet<'_>) -> bool {
        let place = &fleet.places[index];
        // One that leaves can still be killed while it is at it.
        let leaving = place.leaving().filter(|_| blow.what == What::KillWorker);
        let Some(pid) = place.pid().or(leaving) else { return false };
        let now = Instant::now();
        let is_stopped = place.stopped_until.is_some();
        let is_spared = place.runner_hit.is_some_and(|at| now.duration_since(at) < REPRIEVE);
        let runners = procs::children_of_program(pid, &fleet.site.raddle);
        let chosen = || {
            let runner = *runners.get(blow.slot % runners.len().max(1))?;
            Grip::new(runner, pid)
        };
        match blow.what {
            What::KillWorker if !is_spared => {
                // Written down before it is done: a moment that is too early makes nobody look quicker.
                self.note(blow.what, pid, runners);
                fleet.signal_worker(index, libc::SIGKILL);
                true
            }
            What::KillRunner if !is_stopped => chosen().is_some_and(|runner| {
                self.note(blow.what, pid, vec![runner.pid]);
                fleet.places[index].runner_hit = Some(now);
                runner.signal(libc::SIGKILL).is_ok()
            }),
            What::KillCommand => chosen().is_some_and(|runner| {
                let command = procs::children(runner.pid).into_iter().find_map(|pid| Grip::new(pid, runner.pid));
                command.is_some_and(|command| {
                    self.note(blow.what, pid, vec![runner.pid]);
                    command.signal(libc::SIGKILL).is_ok()
                })
            }),
            What::StopWorker(time) if !is_spared && !is_stopped => {
                self.note(blow.what, pid, runners);
                fleet.signal_worker(index, libc::SIGSTOP);
                fleet.places[index].stopped_until = Some(now + time);
                self.stopped.push(Stopped { until: now + time, place: Some((index, pid)), runner: None });
                true
            }
            What::StopRunner(time) => chosen().is_some_and(|runner| {
                self.note(blow.what, pid, vec![runner.pid]);
                let is_hit = runner.signal(libc::SIGSTOP).is_ok();
                self.stopped.push(Stopped { until: now + time, place: None, runner: Some(runner) });
                is_hit
            }),
            What::StopBoth(time) if !is_spared && !is_stopped => chosen().is_some_and(|runner| {
                self.note(What::StopRunner(time), pid, vec![runner.pid]);
                self.note(What::StopWorker(time), pid, runners.clone());
                // The runner first: if it sees its worker stopped, it does its duty.
                let is_hit = runner.signal(libc::SIGSTOP).is_ok();
                fleet.signal_worker(index, libc::SIGSTOP);
                fleet.places[index].stopped_until = Some(now + time);
                self.stopped.push(Stopped { until: now + time, place: Some((index, pid)), runner: Some(runner) });
                is_hit
            }),
            What::Drain | What::GiveBack if !is_stopped && !is_spared => {
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
        let deed = Deed { what, at: ledger::now(), wall: ledger::wall(), worker, runners };
        let _ = writeln!(self.log, "{} {} {what:?} worker {worker} runners {:?}", deed.at, deed.wall, deed.runners);
        self.deeds.push(deed);
    }
}
