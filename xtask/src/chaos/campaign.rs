//! One campaign, from its first process to its result.

use std::{
    fs::File,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{
    broker,
    campaign_dir::CampaignDir,
    check::{self, Evidence, Submitted},
    fault_injector::{FaultInjector, ServerFaults},
    fleet::{ACKNOWLEDGED, Fleet, UNACKNOWLEDGED},
    managers,
    options::{Engine, Options},
    plan::{Class, Plan, SubmitMethod},
    processes,
    redis::Redis,
    report::{self, CampaignStats},
    side_file::{self, Mark, SIDE_FILE},
    task,
};

/// The interval at which processes are supervised: faults are injected at most so much late.
const TICK_INTERVAL: Duration = Duration::from_millis(5);
/// The interval at which the broker is queried for unfinished tasks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Without progress for so long, the remaining tasks count as lost. Longer than a lease and a
/// reclaim.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// The limit for the whole wait.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1_800);
const SUBMIT_TIMEOUT: Duration = Duration::from_secs(180);
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// How long the processes of a runner that was killed last may take to disappear.
const EXIT_GRACE: Duration = Duration::from_secs(3);
/// The number of tasks whose stored output is compared.
const OUTPUT_SAMPLES: usize = 20;
/// Set by `SIGINT`, `SIGTERM` and `SIGHUP`.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Why a campaign has no result.
pub(crate) enum CampaignError {
    Interrupted,
    /// An error of the environment, or one that keeps the system under test from starting.
    Failed(String),
}

impl From<String> for CampaignError {
    fn from(message: String) -> Self {
        Self::Failed(message)
    }
}

impl From<std::io::Error> for CampaignError {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Runs a campaign and prints its table. Returns whether no violation was found.
pub(crate) fn run(options: &Options) -> Result<bool, CampaignError> {
    catch_signals();
    processes::adopt_orphans();
    let plan = Plan::new(options);
    let mut dir = CampaignDir::new(options)?;
    let redis = match options.engine {
        Engine::Sqlite => None,
        Engine::Redis => Some(Redis::start(&mut dir, options.losses > 0)?),
    };
    let dir = dir;
    // If the engine cannot be used at all, this first command reports the reason.
    broker::run_raddle(
        &dir,
        &["queue", "write", "chaos", &format!("seed {}", options.seed)],
    )?;
    let fault_injector = FaultInjector::new(File::create(dir.file("faults.log"))?);
    managers::write_files(&dir)?;
    let mut campaign = Campaign {
        options,
        fleet: Fleet::new(&dir, options),
        fault_injector,
        redis,
    };
    let begun = Instant::now();
    campaign.inject_faults(&plan)?;
    let injecting = begun.elapsed();
    campaign.wait_until_settled(&plan)?;
    let settling = begun.elapsed() - injecting;
    let evidence = campaign.collect_evidence(&dir, &plan)?;
    let Campaign {
        fleet,
        fault_injector,
        redis,
        ..
    } = &campaign;
    let stats = CampaignStats {
        injecting,
        settling,
        submitters_killed: fleet.submitters_killed,
        missed: fault_injector.missed,
        connections_hit: redis.as_ref().map_or(0, Redis::affected_connections),
        refused: fleet
            .submitter_exits
            .iter()
            .filter(|one| !one.was_killed && one.code != Some(0))
            .count(),
    };
    let result = check::check(&evidence);
    report::print(options, &stats, &evidence.injected_faults, &result);
    Ok(result.violations.is_empty())
}

struct Campaign<'a> {
    options: &'a Options,
    fleet: Fleet<'a>,
    fault_injector: FaultInjector,
    redis: Option<Redis>,
}

impl Campaign<'_> {
    fn inject_faults(&mut self, plan: &Plan) -> Result<(), CampaignError> {
        let begun = Instant::now();
        let (mut batches, mut planned_faults) = (0, 0);
        let mut reported_at = begun;
        let report_interval =
            (self.options.duration / 10).clamp(Duration::from_secs(15), Duration::from_secs(120));
        while begun.elapsed() < self.options.duration || batches < plan.batches.len() {
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
            while let Some(planned) = plan
                .planned_faults
                .get(planned_faults)
                .filter(|planned| planned.at <= elapsed)
            {
                let server = self
                    .redis
                    .as_mut()
                    .map(|redis| redis as &mut dyn ServerFaults);
                self.fault_injector
                    .inject(*planned, &mut self.fleet, server);
                planned_faults += 1;
            }
            self.tick()?;
            if reported_at.elapsed() > report_interval {
                reported_at = Instant::now();
                println!(
                    "{:>5.0} s: {batches} batches, {planned_faults} faults",
                    elapsed.as_secs_f64()
                );
            }
            if elapsed > self.options.duration + SUBMIT_TIMEOUT {
                return Err(CampaignError::Failed("the submitters do not end".into()));
            }
        }
        Ok(())
    }

    /// Stops injecting, and waits until all tasks are done or none makes progress.
    fn wait_until_settled(&mut self, plan: &Plan) -> Result<(), CampaignError> {
        self.fault_injector.tick(&mut self.fleet, true);
        if let Some(redis) = &mut self.redis {
            redis.tick(true)?;
        }
        let deadline = Instant::now() + SUBMIT_TIMEOUT;
        while self.fleet.is_submitting() && Instant::now() < deadline {
            self.tick()?;
        }
        self.fleet.serve_all();
        let mut is_trigger_running = self.options.groups > 0;
        println!("settling: {} submitters have ended", plan.batches.len());
        let begun = Instant::now();
        let (mut fewest, mut progressed_at, mut checked_at) = (u64::MAX, begun, begun);
        while begun.elapsed() < SETTLE_TIMEOUT && progressed_at.elapsed() < STALL_TIMEOUT {
            self.tick()?;
            if checked_at.elapsed() < CHECK_INTERVAL {
                continue;
            }
            checked_at = Instant::now();
            if is_trigger_running {
                // An engine that has just recovered may need several tries.
                is_trigger_running = broker::pause_trigger(self.fleet.dir).is_err();
                continue;
            }
            let unfinished = match broker::count_unsettled(self.fleet.dir) {
                Ok(unfinished) => unfinished,
                Err(_) if progressed_at.elapsed() < STALL_TIMEOUT / 2 => continue,
                Err(error) => return Err(error),
            };
            if unfinished == 0 {
                return Ok(());
            }
            if unfinished < fewest {
                (fewest, progressed_at) = (unfinished, checked_at);
            }
        }
        println!("settling: given up, {fewest} tasks are not finished");
        Ok(())
    }

    fn tick(&mut self) -> Result<(), CampaignError> {
        if is_interrupted() {
            return Err(CampaignError::Interrupted);
        }
        self.fault_injector.tick(&mut self.fleet, false);
        if let Some(redis) = &mut self.redis {
            redis.tick(false)?;
            self.fleet.external_children = redis.pids();
        }
        self.fleet.tick()?;
        thread::sleep(TICK_INTERVAL);
        Ok(())
    }

    /// Stops the fleet, looks for processes that are left, and reads what the broker has stored.
    fn collect_evidence(
        &mut self,
        dir: &CampaignDir,
        plan: &Plan,
    ) -> Result<Evidence, CampaignError> {
        self.fleet.stop_all(STOP_TIMEOUT)?;
        let servers = self.redis.as_ref().map(Redis::pids).unwrap_or_default();
        let deadline = Instant::now() + EXIT_GRACE;
        let survivors = loop {
            let mut left = processes::list_campaign_processes(dir.path());
            left.retain(|one| !servers.contains(&one.pid));
            if left.is_empty() || Instant::now() > deadline || is_interrupted() {
                break left;
            }
            thread::sleep(TICK_INTERVAL);
        };
        let lines = side_file::read(&dir.file(SIDE_FILE))?;
        let events = broker::events(dir)?;
        let mut stored = broker::stored(dir, UNACKNOWLEDGED)?;
        let mut batches = Vec::new();
        for one in &self.fleet.submitter_exits {
            let batch = &plan.batches[one.batch];
            let is_run = matches!(batch.method, SubmitMethod::Inline(_));
            let is_messages = matches!(batch.method, SubmitMethod::Messages(_));
            let is_registry_tasks = matches!(batch.method, SubmitMethod::RegistryTasks(_));
            let succeeded = one.code == Some(0);
            let accepted = if is_run {
                Vec::new()
            } else {
                self.fleet.accepted(one.batch)?
            };
            let mut stored = stored.remove(&one.batch).unwrap_or_default();
            if !succeeded && batch.is_acknowledged() && !is_messages && !is_registry_tasks {
                // It was meant to succeed and was refused.
                let more = broker::stored(dir, &format!("{ACKNOWLEDGED}{}-", one.batch))?;
                stored.extend(more.into_values().flatten());
            }
            // The broker cannot be queried for these by name, so a refused batch cannot be checked.
            if !succeeded && (is_messages || is_registry_tasks) {
                continue;
            }
            let planned = batch.method.tasks();
            batches.push(Submitted {
                index: one.batch,
                planned,
                is_run,
                is_messages,
                succeeded,
                accepted,
                stored,
            });
        }
        let written = lines.iter().filter(|line| line.mark == Mark::End);
        let written =
            written.filter(|line| matches!(line.class, Class::SmallOutput | Class::LargeOutput));
        let mut mismatched_outputs = Vec::new();
        // The latest outputs, because they have gone through most faults.
        for line in written.rev().take(OUTPUT_SAMPLES) {
            let final_event = events
                .iter()
                .rev()
                .find(|event| event.tid == line.tid && event.event.is_terminal());
            if final_event.is_some_and(|end| end.attempt == line.attempt)
                && broker::output(dir, line.tid, line.attempt)?.as_bytes()
                    != task::output(line.class, line.tid)
            {
                mismatched_outputs.push(line.tid);
            }
        }
        Ok(Evidence {
            lines,
            batches,
            events,
            follow_ups: broker::follow_ups(dir)?,
            messages: broker::messages(dir)?,
            trigger_tasks: broker::trigger_tasks(dir)?,
            registry_tasks: broker::registry_tasks(dir)?,
            task_counts: broker::task_counts(dir)?,
            injected_faults: std::mem::take(&mut self.fault_injector.injected_faults),
            survivors,
            process_errors: std::mem::take(&mut self.fleet.process_errors),
            forgotten: self
                .redis
                .as_ref()
                .map(|redis| redis.forgotten.clone())
                .unwrap_or_default(),
            mismatched_outputs,
            clock_offset: side_file::wall() - side_file::now(),
        })
    }
}

/// Whether a signal asked this program to end. Long waits check it.
pub(crate) fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

fn catch_signals() {
    extern "C" fn interrupt(_: libc::c_int) {
        INTERRUPTED.store(true, Ordering::Relaxed);
    }
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
        unsafe {
            libc::signal(
                signal,
                interrupt as extern "C" fn(libc::c_int) as libc::sighandler_t,
            )
        };
    }
}
