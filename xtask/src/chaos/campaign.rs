//! One campaign, from its first process to its verdict.

use std::{
    fs::File,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{
    broker,
    check::{self, Evidence, Submitted},
    fleet::{ANNOUNCED, Fleet, UNANNOUNCED},
    hierarchy,
    ledger::{self, Mark, SIDE_FILE},
    monkey::{Far, Monkey},
    options::{Engine, Options},
    plan::{Class, How, Plan},
    procs,
    redis::Redis,
    report::{self, Effort},
    site::Site,
    task,
};

/// How often processes are looked after: blows are late by so much at most.
const BEAT: Duration = Duration::from_millis(5);
/// How often the broker is asked whether all is done.
const LOOK: Duration = Duration::from_secs(1);
/// How long nothing may be finished before the rest counts as lost. Longer than a lease and all that follows from it.
const STALL: Duration = Duration::from_secs(60);
/// How long settling may take in all.
const SETTLE: Duration = Duration::from_secs(1_800);
const SUBMIT_END: Duration = Duration::from_secs(180);
const LEAVE: Duration = Duration::from_secs(20);
/// A runner that is killed at the very end needs a moment to be missed.
const LAST_BREATH: Duration = Duration::from_secs(3);
/// Of how many tasks the output is looked at.
const OUTPUTS: usize = 20;

/// Set when somebody wants an end.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Why a campaign came to no verdict.
pub(crate) enum Broken {
    Interrupted,
    /// Something that has nothing to do with the system under test, or keeps it from starting at all.
    Failed(String),
}

impl From<String> for Broken {
    fn from(message: String) -> Self {
        Self::Failed(message)
    }
}

impl From<std::io::Error> for Broken {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Runs a campaign and prints its table. Returns whether all was well.
pub(crate) fn run(options: &Options) -> Result<bool, Broken> {
    catch_signals();
    procs::adopt_orphans();
    let plan = Plan::new(options);
    let mut site = Site::new(options)?;
    let redis = match options.engine {
        Engine::Sqlite => None,
        Engine::Redis => Some(Redis::start(&mut site, options.losses > 0)?),
    };
    let site = site;
    // Where the engine cannot be used at all, its own message is the best there is.
    broker::ask(
        &site,
        &["queue", "write", "chaos", &format!("seed {}", options.seed)],
    )?;
    let monkey = Monkey::new(File::create(site.file("deeds.log"))?);
    hierarchy::write_files(&site)?;
    let mut campaign = Campaign {
        options,
        fleet: Fleet::new(&site, options),
        monkey,
        redis,
    };
    let begun = Instant::now();
    campaign.break_things(&plan)?;
    let breaking = begun.elapsed();
    campaign.settle(&plan)?;
    let settling = begun.elapsed() - breaking;
    let evidence = campaign.gather(&site, &plan)?;
    let Campaign {
        fleet,
        monkey,
        redis,
        ..
    } = &campaign;
    let effort = Effort {
        breaking,
        settling,
        submitters_killed: fleet.submitters_killed,
        missed: monkey.missed,
        connections_hit: redis.as_ref().map_or(0, Redis::hits),
        refused: fleet
            .ended
            .iter()
            .filter(|one| !one.was_killed && one.code != Some(0))
            .count(),
    };
    let verdict = check::check(&evidence);
    report::print(options, &effort, &evidence.deeds, &verdict);
    Ok(verdict.faults.is_empty())
}

struct Campaign<'a> {
    options: &'a Options,
    fleet: Fleet<'a>,
    monkey: Monkey,
    redis: Option<Redis>,
}

impl Campaign<'_> {
    fn break_things(&mut self, plan: &Plan) -> Result<(), Broken> {
        let begun = Instant::now();
        let (mut batches, mut blows) = (0, 0);
        let mut said = begun;
        let pause =
            (self.options.span / 10).clamp(Duration::from_secs(15), Duration::from_secs(120));
        while begun.elapsed() < self.options.span || batches < plan.batches.len() {
            let elapsed = begun.elapsed();
            while let Some(batch) = plan
                .batches
                .get(batches)
                .filter(|batch| batch.at <= elapsed)
                && self.fleet.has_room()
            {
                self.fleet.submit(batches, batch)?;
                batches += 1;
            }
            while let Some(blow) = plan.blows.get(blows).filter(|blow| blow.at <= elapsed) {
                let far = self.redis.as_mut().map(|redis| redis as &mut dyn Far);
                self.monkey.strike(*blow, &mut self.fleet, far);
                blows += 1;
            }
            self.tick()?;
            if said.elapsed() > pause {
                said = Instant::now();
                println!(
                    "{:>5.0} s: {batches} batches, {blows} blows",
                    elapsed.as_secs_f64()
                );
            }
            if elapsed > self.options.span + SUBMIT_END {
                return Err(Broken::Failed(
                    "the submitters do not come to an end".into(),
                ));
            }
        }
        Ok(())
    }

    /// Breaks nothing more, and waits until all is done or nothing moves.
    fn settle(&mut self, plan: &Plan) -> Result<(), Broken> {
        self.monkey.tick(&mut self.fleet, true);
        if let Some(redis) = &mut self.redis {
            redis.tick(true)?;
        }
        let deadline = Instant::now() + SUBMIT_END;
        while self.fleet.is_submitting() && Instant::now() < deadline {
            self.tick()?;
        }
        self.fleet.serve_all();
        let mut is_ticking = self.options.groups > 0;
        println!("settling: {} processes have submitted", plan.batches.len());
        let begun = Instant::now();
        let (mut least, mut moved, mut looked) = (u64::MAX, begun, begun);
        while begun.elapsed() < SETTLE && moved.elapsed() < STALL {
            self.tick()?;
            if looked.elapsed() < LOOK {
                continue;
            }
            looked = Instant::now();
            if is_ticking {
                // An engine that was broken a moment ago may need another.
                is_ticking = broker::stop_clock(self.fleet.site).is_err();
                continue;
            }
            let unfinished = match broker::unsettled(self.fleet.site) {
                Ok(unfinished) => unfinished,
                Err(_) if moved.elapsed() < STALL / 2 => continue,
                Err(broken) => return Err(broken),
            };
            if unfinished == 0 {
                return Ok(());
            }
            if unfinished < least {
                (least, moved) = (unfinished, looked);
            }
        }
        println!("settling: given up, {least} tasks are not over");
        Ok(())
    }

    fn tick(&mut self) -> Result<(), Broken> {
        if is_interrupted() {
            return Err(Broken::Interrupted);
        }
        self.monkey.tick(&mut self.fleet, false);
        if let Some(redis) = &mut self.redis {
            redis.tick(false)?;
            self.fleet.foreign = redis.pids();
        }
        self.fleet.tick()?;
        thread::sleep(BEAT);
        Ok(())
    }

    /// Ends the fleet, looks who is left, and asks what the broker knows.
    fn gather(&mut self, site: &Site, plan: &Plan) -> Result<Evidence, Broken> {
        self.fleet.disband(LEAVE)?;
        let servers = self.redis.as_ref().map(Redis::pids).unwrap_or_default();
        let deadline = Instant::now() + LAST_BREATH;
        let survivors = loop {
            let mut left = procs::of_campaign(site.path());
            left.retain(|one| !servers.contains(&one.pid));
            if left.is_empty() || Instant::now() > deadline || is_interrupted() {
                break left;
            }
            thread::sleep(BEAT);
        };
        let lines = ledger::read(&site.file(SIDE_FILE))?;
        let events = broker::events(site)?;
        let mut stored = broker::stored(site, UNANNOUNCED)?;
        let mut batches = Vec::new();
        for one in &self.fleet.ended {
            let batch = &plan.batches[one.batch];
            let is_run = matches!(batch.how, How::Inline(_));
            let is_letters = matches!(batch.how, How::Letters(_));
            let is_chores = matches!(batch.how, How::Chores(_));
            let is_whole = one.code == Some(0);
            let accepted = if is_run {
                Vec::new()
            } else {
                self.fleet.accepted(one.batch)?
            };
            let mut stored = stored.remove(&one.batch).unwrap_or_default();
            if !is_whole && batch.is_announced() && !is_letters && !is_chores {
                // Refused, which nobody had planned.
                let more = broker::stored(site, &format!("{ANNOUNCED}{}-", one.batch))?;
                stored.extend(more.into_values().flatten());
            }
            // Of those the broker knows no names: what was stored of one that was refused is not to be told.
            if !is_whole && (is_letters || is_chores) {
                continue;
            }
            let planned = batch.how.tasks();
            batches.push(Submitted {
                index: one.batch,
                planned,
                is_run,
                is_letters,
                is_whole,
                accepted,
                stored,
            });
        }
        let written = lines.iter().filter(|line| line.what == Mark::End);
        let written = written.filter(|line| matches!(line.class, Class::Prints | Class::Pours));
        let mut garbled = Vec::new();
        // The latest, as those have seen most.
        for line in written.rev().take(OUTPUTS) {
            let is_kept = events
                .iter()
                .rev()
                .find(|event| event.tid == line.tid && event.event.is_terminal());
            if is_kept.is_some_and(|end| end.attempt == line.attempt)
                && broker::output(site, line.tid, line.attempt)?.as_bytes()
                    != task::output(line.class, line.tid)
            {
                garbled.push(line.tid);
            }
        }
        Ok(Evidence {
            lines,
            batches,
            events,
            follow_ups: broker::follow_ups(site)?,
            letters: broker::letters(site)?,
            ticks: broker::ticks(site)?,
            chores: broker::chores(site)?,
            census: broker::census(site)?,
            deeds: std::mem::take(&mut self.monkey.deeds),
            survivors,
            remarks: std::mem::take(&mut self.fleet.remarks),
            forgotten: self
                .redis
                .as_ref()
                .map(|redis| redis.forgotten.clone())
                .unwrap_or_default(),
            garbled,
            clock_offset: ledger::wall() - ledger::now(),
        })
    }
}

/// Whether somebody wants an end. What takes long has to ask.
pub(crate) fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

fn catch_signals() {
    extern "C" fn interrupt(_: libc::c_int) {
        INTERRUPTED.store(true, Ordering::Relaxed);
    }
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which is allowed in one.
        unsafe {
            libc::signal(
                signal,
                interrupt as extern "C" fn(libc::c_int) as libc::sighandler_t,
            )
        };
    }
}
