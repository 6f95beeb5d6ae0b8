//! Firing schedules: waits for the broker's agenda, and takes what is due before others do.

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

/// How long one wait for the agenda lasts before it is begun again. Nothing depends on it.
const WAIT: Duration = Duration::from_secs(3600);
/// When what is due cannot be fired here, before the next look: what else is due may be so much late then.
const PAUSE: Duration = Duration::from_millis(250);
/// After errors of the broker it doubles as long as they go on.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How many tasks are submitted in one step, and how large they may be together: others wait meanwhile.
const PORTION: usize = 100;
const PORTION_BYTES: usize = 8 << 20;

/// Fires schedules and ends tasks that have expired, on the runtime that it was started on, until it is dropped. Dropping it loses nothing: a due time is
/// fired with the step that takes it, or not at all.
pub struct RunningScheduler(JoinHandle<()>);

struct ScheduleService {
    broker: Arc<dyn Schedules>,
    /// Schedules that the broker refuses to fire, and what it has said of each.
    refused: BTreeMap<String, String>,
}

/// What came of one schedule that was due.
enum FireResult {
    /// This service, or another that was faster, has submitted its tasks.
    Fired,
    /// The broker refuses its tasks. Its due times are left out, or, where the broker refuses even that, it stays due.
    Refused { error: Error, is_left_out: bool },
    /// Nothing can be made of it here.
    Unable,
}

impl RunningScheduler {
    /// Fires the schedules of this broker from now on.
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

    /// Fires what is due until the broker is closed. No other error ends it: one schedule, or one hour of trouble, must not be the end of all others.
    async fn run(mut self) {
        let mut failures = 0;
        loop {
            let done = match self.broker.due_items(WAIT).await {
                Ok(due_items) => self.attend(due_items).await,
                Err(error) => Err(error),
            };
            let pause = match done {
                Ok(moved) => {
                    failures = 0;
                    if moved { Duration::ZERO } else { PAUSE }
                }
                Err(error @ Error::Closed) => {
                    tracing::warn!(%error, "schedules are not fired from here any more");
                    return;
                }
                Err(error) => {
                    failures += 1;
                    let longer = ExponentialBackoff::new(2 * PAUSE, LONGEST_PAUSE).pause(failures);
                    if error.is_retryable() {
                        tracing::warn!(%error, "schedules cannot be looked at");
                    } else {
                        let again_in = longer.as_secs_f64();
                        tracing::error!(%error, again_in, "nothing is fired from here, and that will not pass by itself");
                    }
                    longer
                }
            };
            sleep(pause).await;
        }
    }

    /// Does what is on the agenda. Returns whether anything came of it.
    async fn attend(&mut self, due_items: DueItems) -> Result<bool> {
        let DueItems { now, due, expired } = due_items;
        let mut moved = due.is_empty() || expired > 0;
        // Together, so that they are written together. They end with this if it is dropped.
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
        // One that panics has come to nothing.
        while let Some(fired) = firing.join_next().await {
            match fired {
                Ok((schedule, Ok(outcome))) => moved |= self.note(schedule, outcome),
                Ok((_, Err(error))) => failure = Some(error),
                Err(_) => {}
            }
        }
        if expired > 0 {
            tracing::info!(tasks = expired, "tasks expired before a worker took them");
        }
        match failure {
            Some(error) if !moved => Err(error),
            Some(error) => {
                tracing::warn!(%error, "a schedule could not be fired");
                Ok(moved)
            }
            None => Ok(moved),
        }
    }

    fn note(&mut self, schedule: String, outcome: FireResult) -> bool {
        match outcome {
            FireResult::Fired => {
                self.refused.remove(&schedule);
                true
            }
            FireResult::Refused { error, is_left_out } => {
                // It is tried each time that it is due: the schedule may be fixed, or removed. That is logged once.
                let why = error.to_string();
                if self.refused.get(&schedule) != Some(&why) {
                    tracing::error!(
                        schedule,
                        why,
                        "a schedule cannot be fired: write it anew, or remove it"
                    );
                    self.refused.insert(schedule, why);
                }
                is_left_out
            }
            FireResult::Unable => false,
        }
    }
}

/// Fires one schedule as it was seen.
async fn fire(broker: &dyn Schedules, view: ScheduleView, now: Timestamp) -> Result<FireResult> {
    let ScheduleView { version, entry, .. } = view;
    let schedule = &entry.schedule;
    let Some(zone) = zone(schedule.zone()) else {
        tracing::warn!(
            schedule = schedule.name,
            zone = schedule.zone(),
            "a schedule is in a time zone that is not known here"
        );
        return Ok(FireResult::Unable);
    };
    let Some(firing) = entry.fire(&zone, now, portion(schedule)) else {
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
                tracing::info!(schedule = schedule.name, %due, tid = %stored.tid(), "fired");
            }
            if firing.missed > 0 {
                let missed = firing.missed;
                tracing::warn!(
                    schedule = schedule.name,
                    missed,
                    "due times were missed, and are left out"
                );
            }
            Ok(FireResult::Fired)
        }
        Ok(ScheduleChangeOutcome::Conflict | ScheduleChangeOutcome::NotDue) => {
            Ok(FireResult::Fired)
        }
        // Its own fault. If it stayed due, all others would have to wait.
        Err(error) if error.is_callers() => {
            match broker
                .change_schedule(change(&entry.refused(&firing), Vec::new()))
                .await
            {
                Err(again) if !again.is_callers() => Err(again),
                left_out => Ok(FireResult::Refused {
                    error,
                    is_left_out: left_out.is_ok(),
                }),
            }
        }
        Err(error) => Err(error),
    }
}

/// How many tasks of a schedule are submitted in one step.
fn portion(schedule: &Schedule) -> usize {
    let size = serde_json::to_string(&schedule.task).map_or(PORTION_BYTES, |text| text.len());
    (PORTION_BYTES / size.max(1)).clamp(1, PORTION)
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

    /// A broker that never has what is submitted for the schedule `bad`, has no change at all of the schedule `worse`, and fails for good with the first
    /// change that it could make.
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

    /// Adds schedules that are due so often.
    async fn frail(schedules: &[(&str, Duration)], failures: Vec<Error>) -> Arc<FailingBroker> {
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

    /// Fires until this holds of a schedule.
    async fn fire_until(
        frail: &Arc<FailingBroker>,
        name: &str,
        holds: impl Fn(&ScheduleEntry) -> bool,
    ) -> ScheduleEntry {
        let service = ScheduleService::new(Arc::clone(frail) as Arc<dyn Schedules>);
        let running = RunningScheduler(tokio::spawn(service.run()));
        let held = async {
            loop {
                let entry = frail.schedule(name).await.unwrap().unwrap().entry;
                if holds(&entry) {
                    break entry;
                }
                assert!(!running.0.is_finished(), "it has ended");
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(DEADLINE, held).await.unwrap()
    }

    #[tokio::test]
    async fn no_error_but_the_end_of_its_broker_is_the_end_of_scheduling() {
        let corrupt = Error::Corrupt {
            path: "raddle.db".into(),
            found: "nonsense".into(),
        };
        assert!(!corrupt.is_retryable() && !corrupt.is_callers());
        let often = [
            ("bad", Duration::from_millis(10)),
            ("good", Duration::from_millis(50)),
        ];
        let frail = frail(
            &[&often[..], &[("worse", Duration::from_millis(10))]].concat(),
            vec![corrupt],
        )
        .await;
        fire_until(&frail, "good", |entry| entry.fired >= 2).await;
    }

    #[tokio::test]
    async fn what_is_refused_is_left_out_and_due_again_at_its_next_time() {
        let every = Duration::from_millis(100);
        let frail = frail(&[("bad", every)], Vec::new()).await;
        let first = frail.schedule("bad").await.unwrap().unwrap().entry;
        let entry = fire_until(&frail, "bad", |entry| entry.missed >= 3).await;
        assert_eq!((entry.fired, entry.last), (0, None));
        assert!(
            entry.missed >= 3 && entry.next >= first.next.map(|next| next + 3 * every),
            "{entry:?}"
        );
    }
}
