//! The scheduler: waits for due schedules and expired tasks, and fires schedules before others do.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use raddle_broker::{
    Broker, DueItems, Error, NewTask, Result, ScheduleChange, ScheduleChangeOutcome, ScheduleView,
    Schedules,
};
use raddle_model::{ExponentialBackoff, Schedule, schedule::ScheduleEntry};
use tokio::{
    task::{JoinHandle, JoinSet},
    time::sleep,
};

use raddle_client::schedule::zone;

/// Longest single wait for due items. It is repeated, so nothing depends on the length.
const WAIT: Duration = Duration::from_secs(3600);
/// Pause if nothing that is due could be fired. Other due items are late by up to this.
const PAUSE: Duration = Duration::from_millis(250);
/// Longest pause after broker errors. It doubles up to this.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// Most tasks in one transaction, and most bytes: other writers wait for it.
const BATCH: usize = 100;
const BATCH_BYTES: usize = 8 << 20;

/// Fires schedules and expires tasks, on the current runtime, until it is dropped. Dropping it
/// loses nothing: firing is one transaction.
pub struct RunningScheduler(JoinHandle<()>);

struct ScheduleService {
    broker: Arc<dyn Schedules>,
    /// Schedules that the broker refuses to fire, and its last error for each.
    refused: BTreeMap<String, String>,
}

/// The outcome for one due schedule.
enum FireResult {
    /// Its tasks were submitted, here or by a faster scheduler.
    Fired,
    /// The broker refuses its tasks. Its due times are skipped. If the broker refuses that too, it
    /// stays due.
    Refused { error: Error, is_skipped: bool },
    /// This program cannot fire it.
    Unable,
}

impl RunningScheduler {
    /// Starts to fire the schedules of a broker.
    pub fn start(broker: Arc<dyn Broker>) -> Self {
        Self(tokio::spawn(ScheduleService::new(broker).run()))
    }
}

impl Drop for RunningScheduler {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ScheduleService {
    fn new(broker: Arc<dyn Schedules>) -> Self {
        Self {
            broker,
            refused: BTreeMap::new(),
        }
    }

    /// Runs until the broker is closed. Other errors do not end it, so that one bad schedule or an
    /// outage does not stop all schedules.
    async fn run(mut self) {
        let mut failures = 0;
        loop {
            let done = match self.broker.due_items(WAIT).await {
                Ok(due_items) => self.handle_due_items(due_items).await,
                Err(error) => Err(error),
            };
            let pause = match done {
                Ok(changed) => {
                    failures = 0;
                    if changed { Duration::ZERO } else { PAUSE }
                }
                Err(error @ Error::Closed) => {
                    tracing::warn!(%error, "the scheduler stops");
                    return;
                }
                Err(error) => {
                    failures += 1;
                    let longer = ExponentialBackoff::new(2 * PAUSE, MAX_PAUSE).pause(failures);
                    if error.is_retryable() {
                        tracing::warn!(%error, "schedules cannot be read: retrying");
                    } else {
                        let again_in = longer.as_secs_f64();
                        tracing::error!(%error, again_in, "schedules cannot be fired, and retries will not help");
                    }
                    longer
                }
            };
            sleep(pause).await;
        }
    }

    /// Handles due items. Returns whether anything changed.
    async fn handle_due_items(&mut self, due_items: DueItems) -> Result<bool> {
        let DueItems { now, due, expired } = due_items;
        let mut changed = due.is_empty() || expired > 0;
        // Concurrently, so that the engine can batch the writes. Dropping the set aborts them.
        let mut firing = JoinSet::new();
        for view in due {
            let broker = Arc::clone(&self.broker);
            firing.spawn(async move {
                (
                    view.entry.schedule.name.clone(),
                    fire(&*broker, view, now).await,
                )
            });
        }
        let mut failure = None;
        // A panic counts as no change.
        while let Some(fired) = firing.join_next().await {
            match fired {
                Ok((schedule, Ok(outcome))) => changed |= self.record_outcome(schedule, outcome),
                Ok((_, Err(error))) => failure = Some(error),
                Err(_) => {}
            }
        }
        if expired > 0 {
            tracing::info!(tasks = expired, "tasks expired before a worker took them");
        }
        match failure {
            Some(error) if !changed => Err(error),
            Some(error) => {
                tracing::warn!(%error, "a schedule could not be fired");
                Ok(changed)
            }
            None => Ok(changed),
        }
    }

    fn record_outcome(&mut self, schedule: String, outcome: FireResult) -> bool {
        match outcome {
            FireResult::Fired => {
                self.refused.remove(&schedule);
                true
            }
            FireResult::Refused { error, is_skipped } => {
                // It is tried at each due time, because it may be fixed or removed, but logged
                // once.
                let why = error.to_string();
                if self.refused.get(&schedule) != Some(&why) {
                    tracing::error!(
                        schedule,
                        why,
                        "a schedule cannot be fired: correct it, or remove it with 'raddle schedule remove'"
                    );
                    self.refused.insert(schedule, why);
                }
                is_skipped
            }
            FireResult::Unable => false,
        }
    }
}

/// Fires one schedule, if it has not changed since it was read.
async fn fire(broker: &dyn Schedules, view: ScheduleView, now: Timestamp) -> Result<FireResult> {
    let ScheduleView { version, entry, .. } = view;
    let schedule = &entry.schedule;
    let Some(zone) = zone(schedule.zone()) else {
        tracing::warn!(
            schedule = schedule.name,
            zone = schedule.zone(),
            "the time zone of a schedule is unknown on this machine"
        );
        return Ok(FireResult::Unable);
    };
    let Some(firing) = entry.fire(&zone, now, batch_size(schedule)) else {
        return Ok(FireResult::Unable);
    };
    let change = |next: &ScheduleEntry, tasks| ScheduleChange {
        name: schedule.name.clone(),
        expected: Some(version),
        entry: Some(next.clone()),
        tasks,
        due: entry.due(),
    };
    let tasks = firing
        .due
        .iter()
        .map(|due| NewTask::new(schedule.task_for(*due)))
        .collect();
    match broker.change_schedule(change(&firing.entry, tasks)).await {
        Ok(ScheduleChangeOutcome::Applied { submitted, .. }) => {
            for (due, stored) in firing.due.iter().zip(&submitted) {
                tracing::info!(schedule = schedule.name, %due, tid = %stored.tid(), "fired a schedule");
            }
            if firing.missed > 0 {
                let missed = firing.missed;
                tracing::warn!(
                    schedule = schedule.name,
                    missed,
                    "skipped missed due times of a schedule"
                );
            }
            Ok(FireResult::Fired)
        }
        Ok(ScheduleChangeOutcome::Conflict | ScheduleChangeOutcome::NotDue) => {
            Ok(FireResult::Fired)
        }
        // The schedule itself is at fault. If it stayed due, all others would wait for it.
        Err(error) if error.is_callers() => {
            match broker
                .change_schedule(change(&entry.refused(&firing), Vec::new()))
                .await
            {
                Err(again) if !again.is_callers() => Err(again),
                skipped => Ok(FireResult::Refused {
                    error,
                    is_skipped: skipped.is_ok(),
                }),
            }
        }
        Err(error) => Err(error),
    }
}

/// How many tasks of a schedule fit into one transaction.
fn batch_size(schedule: &Schedule) -> usize {
    let size = serde_json::to_string(&schedule.task).map_or(BATCH_BYTES, |text| text.len());
    (BATCH_BYTES / size.max(1)).clamp(1, BATCH)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use raddle_broker::{Call, CallHandler, Queries, Reply};
    use raddle_broker_sqlite::Sqlite;
    use raddle_model::{TaskSpec, spec::InvalidSpec};
    use tokio::time::timeout;

    use super::*;
    use raddle_client::schedule::put;

    const DEADLINE: Duration = Duration::from_secs(60);

    /// A broker that refuses all tasks of the schedule `bad` and every change of `worse`, and fails
    /// the first other change.
    struct FailingBroker {
        memory: Arc<Sqlite>,
        failures: Mutex<Vec<Error>>,
    }

    #[async_trait]
    impl CallHandler for FailingBroker {
        async fn call(&self, call: Call) -> Result<Reply> {
            if let Call::ChangeSchedule { change } = &call {
                if change.name == "worse" || change.name == "bad" && !change.tasks.is_empty() {
                    return Err(InvalidSpec {
                        path: ".".into(),
                        reason: "it is too large".into(),
                    }
                    .into());
                }
                if let Some(failure) = self.failures.lock().unwrap().pop() {
                    return Err(failure);
                }
            }
            call.perform(&*self.memory).await
        }
    }

    /// Makes such a broker, with schedules at these intervals.
    async fn failing_broker(
        schedules: &[(&str, Duration)],
        failures: Vec<Error>,
    ) -> Arc<FailingBroker> {
        let memory = Arc::new(Sqlite::in_memory().await.unwrap());
        for (name, every) in schedules {
            let schedule = Schedule::every(*name, *every)
                .task(TaskSpec::command(["true"]))
                .unwrap();
            put(&*memory, schedule, false).await.unwrap();
        }
        Arc::new(FailingBroker {
            memory,
            failures: Mutex::new(failures),
        })
    }

    /// Fires schedules until this holds for one.
    async fn fire_until(
        failing_broker: &Arc<FailingBroker>,
        name: &str,
        holds: impl Fn(&ScheduleEntry) -> bool,
    ) -> ScheduleEntry {
        let service = ScheduleService::new(Arc::clone(failing_broker) as Arc<dyn Schedules>);
        let running = RunningScheduler(tokio::spawn(service.run()));
        let held = async {
            loop {
                let entry = failing_broker.schedule(name).await.unwrap().unwrap().entry;
                if holds(&entry) {
                    break entry;
                }
                assert!(!running.0.is_finished(), "the scheduler has ended");
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(DEADLINE, held).await.unwrap()
    }

    #[tokio::test]
    async fn only_a_closed_broker_ends_the_scheduler() {
        let corrupt = Error::Corrupt {
            path: "raddle.db".into(),
            found: "nonsense".into(),
        };
        assert!(!corrupt.is_retryable() && !corrupt.is_callers());
        let often = [
            ("bad", Duration::from_millis(10)),
            ("good", Duration::from_millis(50)),
        ];
        let failing_broker = failing_broker(
            &[&often[..], &[("worse", Duration::from_millis(10))]].concat(),
            vec![corrupt],
        )
        .await;
        fire_until(&failing_broker, "good", |entry| entry.fired >= 2).await;
    }

    #[tokio::test]
    async fn skips_refused_due_times_and_tries_the_next_ones() {
        let every = Duration::from_millis(100);
        let failing_broker = failing_broker(&[("bad", every)], Vec::new()).await;
        let first = failing_broker.schedule("bad").await.unwrap().unwrap().entry;
        let entry = fire_until(&failing_broker, "bad", |entry| entry.missed >= 3).await;
        assert_eq!((entry.fired, entry.last), (0, None));
        assert!(
            entry.missed >= 3 && entry.next >= first.next.map(|next| next + 3 * every),
            "{entry:?}"
        );
    }
}
