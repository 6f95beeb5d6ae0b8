//! Firing schedules: waits for the broker's agenda, and takes what is due before others do.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use raddle_broker::{Agenda, Broker, Error, Result, ScheduleChange, ScheduleChanged, ScheduleView, Schedules, Submit};
use raddle_core::{
    ExponentialBackoff, Schedule, Tid,
    schedule::{Entry, Firing},
};
use tokio::{
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::sleep,
};

use super::zone::Zones;
use crate::Shutdown;

/// How long one wait for the agenda lasts before it is begun again. Nothing depends on it.
const WAIT: Duration = Duration::from_secs(3600);
/// When what is due cannot be fired here, before the next look: what else is due may be so much late then.
const PAUSE: Duration = Duration::from_millis(250);
/// After errors of the broker it doubles as long as they go on.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How many tasks are submitted in one step, and how large they may be together: others wait meanwhile.
const PORTION: usize = 100;
const PORTION_BYTES: usize = 8 << 20;

/// Fires schedules, and ends tasks that have expired.
pub struct Service {
    broker: Arc<dyn Schedules>,
    zones: Arc<Zones>,
    shown: watch::Sender<Snapshot>,
    /// Schedules that the broker refuses to fire, and what it has said of each.
    refused: BTreeMap<String, String>,
}

/// Looks at a service from outside. Clones look at the same one.
#[derive(Clone, Debug)]
pub struct Handle(watch::Receiver<Snapshot>);

/// What a service has done since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Due times that it has submitted a task for.
    pub fired: u64,
    /// Those that it left out because nobody was there for them, or because the broker would not have their tasks.
    pub missed: u64,
    /// How often another was faster.
    pub raced: u64,
    /// Tasks that it has ended because nobody had taken them in time.
    pub expired: u64,
}

/// A service at work, on the runtime that it was started on. It ends when this is dropped.
pub struct Running(JoinHandle<()>);

/// What came of one schedule that was due.
enum Outcome {
    Fired {
        schedule: String,
        due: Vec<Timestamp>,
        tids: Vec<Tid>,
        missed: u64,
    },
    /// Another was faster.
    Raced,
    /// The broker will not have what is to be submitted for it.
    Refused {
        schedule: String,
        error: Error,
        left: Left,
    },
    /// Nothing can be made of it here.
    Unable,
}

/// What became of due times whose tasks were refused.
enum Left {
    /// So many are left out.
    Out(u64),
    /// Another was faster.
    ToOthers,
    /// Not even that is had: it stays due.
    Due,
}

impl Service {
    /// For the schedules of this broker.
    pub fn new(broker: Arc<dyn Schedules>) -> Self {
        let shown = watch::Sender::new(Snapshot::default());
        Self { broker, zones: Arc::default(), shown, refused: BTreeMap::new() }
    }

    /// A look at it, also while it runs.
    pub fn handle(&self) -> Handle {
        Handle(self.shown.subscribe())
    }

    /// Fires what is due until it is asked to stop. Fails when the broker is closed, and after no other error: one schedule, or one hour of trouble,
    /// must not be the end of all others.
    pub async fn run(mut self, shutdown: Shutdown) -> Result<Snapshot> {
        let mut failures = 0;
        loop {
            let step = async {
                let agenda = self.broker.agenda(WAIT).await?;
                self.attend(agenda).await
            };
            // Dropping it loses nothing: a due time is fired with the step that takes it, or not at all.
            let done = tokio::select! {
                done = step => done,
                () = shutdown.asked(1) => break,
            };
            let pause = match done {
                Ok(true) => {
                    failures = 0;
                    continue;
                }
                Ok(false) => {
                    failures = 0;
                    PAUSE
                }
                Err(error @ Error::Closed) => return Err(error),
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
            tokio::select! {
                () = sleep(pause) => {}
                () = shutdown.asked(1) => break,
            }
        }
        Ok(*self.shown.borrow())
    }

    /// Does what is on the agenda. Returns whether anything came of it.
    async fn attend(&mut self, agenda: Agenda) -> Result<bool> {
        let Agenda { now, due, expired } = agenda;
        let mut moved = due.is_empty() && !expired;
        // Together, so that they are written together. They end with this if it is dropped.
        let mut firing = JoinSet::new();
        for view in due {
            firing.spawn(fire(Arc::clone(&self.broker), Arc::clone(&self.zones), view, now));
        }
        let mut failure = None;
        while let Some(outcome) = firing.join_next().await {
            match outcome.unwrap_or(Ok(Outcome::Unable)) {
                Ok(outcome) => moved |= self.note(outcome),
                Err(error) => failure = Some(error),
            }
        }
        if expired {
            let ended = self.broker.expire().await?;
            moved = true;
            self.shown.send_modify(|shown| shown.expired += ended);
            if ended > 0 {
                tracing::info!(tasks = ended, "tasks have expired that nobody had taken");
            }
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

    fn note(&mut self, outcome: Outcome) -> bool {
        match outcome {
            Outcome::Fired { schedule, due, tids, missed } => {
                self.refused.remove(&schedule);
                self.shown.send_modify(|shown| {
                    shown.fired += due.len() as u64;
                    shown.missed += missed;
                });
                for (due, tid) in due.iter().zip(&tids) {
                    tracing::info!(schedule, %due, %tid, "fired");
                }
                if missed > 0 {
                    tracing::warn!(schedule, missed, "due times were missed, and are left out");
                }
                true
            }
            Outcome::Raced => {
                self.shown.send_modify(|shown| shown.raced += 1);
                true
            }
            Outcome::Refused { schedule, error, left } => {
                // It is tried each time that it is due: somebody may mend it, or remove it. That is said once.
                let why = error.to_string();
                if self.refused.get(&schedule) != Some(&why) {
                    tracing::error!(schedule, why, "a schedule cannot be fired: write it anew, or remove it");
                    self.refused.insert(schedule, why);
                }
                if let Left::Out(missed) = left {
                    self.shown.send_modify(|shown| shown.missed += missed);
                }
                !matches!(left, Left::Due)
            }
            Outcome::Unable => false,
        }
    }
}

/// Fires one schedule as it was seen.
async fn fire(broker: Arc<dyn Schedules>, zones: Arc<Zones>, view: ScheduleView, now: Timestamp) -> Result<Outcome> {
    let ScheduleView { version, entry, .. } = view;
    let schedule = &entry.schedule;
    let Some(zone) = zones.get(schedule.zone()) else {
        tracing::warn!(
            schedule = schedule.name,
            zone = schedule.zone(),
            "a schedule is in a time zone that is not known here"
        );
        return Ok(Outcome::Unable);
    };
    let Some(firing) = entry.fire(&zone, now, portion(schedule)) else { return Ok(Outcome::Unable) };
    let change = |next: &Entry, tasks| ScheduleChange {
        name: schedule.name.clone(),
        seen: Some(version),
        entry: Some(next.clone()),
        tasks,
        due: entry.due(),
    };
    let tasks = firing.due.iter().map(|due| Submit::new(schedule.task_for(*due))).collect();
    let changed = match broker.change_schedule(change(&firing.entry, tasks)).await {
        // Its own fault, and nobody else's. If it stayed due, nobody could wait for the others any more.
        Err(error) if error.is_callers() => {
            let next = entry.refused(&firing);
            let left = match broker.change_schedule(change(&next, Vec::new())).await {
                Ok(ScheduleChanged::Made { .. }) => Left::Out(next.missed - entry.missed),
                Ok(ScheduleChanged::Raced | ScheduleChanged::Early) => Left::ToOthers,
                Err(again) if again.is_callers() => Left::Due,
                Err(failure) => return Err(failure),
            };
            return Ok(Outcome::Refused { schedule: schedule.name.clone(), error, left });
        }
        changed => changed?,
    };
    let Firing { due, missed, .. } = firing;
    Ok(match changed {
        ScheduleChanged::Made { submitted, .. } => Outcome::Fired {
            schedule: schedule.name.clone(),
            due,
            tids: submitted.iter().map(|stored| stored.tid()).collect(),
            missed,
        },
        ScheduleChanged::Raced | ScheduleChanged::Early => Outcome::Raced,
    })
}

/// How many tasks of a schedule are submitted in one step.
fn portion(schedule: &Schedule) -> usize {
    let size = serde_json::to_string(&schedule.task).map_or(PORTION_BYTES, |text| text.len());
    (PORTION_BYTES / size.max(1)).clamp(1, PORTION)
}

impl Handle {
    /// What it has done until now.
    pub fn snapshot(&self) -> Snapshot {
        *self.0.borrow()
    }

    /// Returns when it has done something more, or is gone, with `false`.
    pub async fn changed(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}

impl Running {
    /// Fires the schedules of this broker from now on.
    pub fn start(broker: Arc<dyn Broker>) -> Self {
        Self(tokio::spawn(async move {
            if let Err(error) = Service::new(broker).run(Shutdown::new()).await {
                // Whoever it belongs to finds out for itself that this is the end.
                tracing::warn!(%error, "schedules are not fired from here any more");
            }
        }))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use raddle_broker::{Call, Proxy, Queries, Reply, sqlite::Sqlite};
    use raddle_core::{Spec, spec::InvalidSpec};
    use tokio::time::timeout;

    use super::{super::put, *};

    const DEADLINE: Duration = Duration::from_secs(60);

    /// A broker that never has what is submitted for the schedule `bad`, has no change at all of the schedule `worse`, and fails for good with the first
    /// change that it could make.
    struct Frail {
        memory: Arc<Sqlite>,
        failures: Mutex<Vec<Error>>,
    }

    #[async_trait]
    impl Proxy for Frail {
        async fn call(&self, call: Call) -> Result<Reply> {
            if let Call::ChangeSchedule { change } = &call {
                if change.name == "worse" || change.name == "bad" && !change.tasks.is_empty() {
                    return Err(InvalidSpec { path: ".".into(), reason: "it is too large".into() }.into());
                }
                if let Some(failure) = self.failures.lock().unwrap().pop() {
                    return Err(failure);
                }
            }
            call.perform(&*self.memory).await
        }
    }

    /// Adds schedules that are due so often.
    async fn frail(schedules: &[(&str, Duration)], failures: Vec<Error>) -> Arc<Frail> {
        let memory = Arc::new(Sqlite::in_memory().await.unwrap());
        for (name, every) in schedules {
            let schedule = Schedule::every(*name, *every).task(Spec::command(["true"])).unwrap();
            put(&*memory, schedule, false).await.unwrap();
        }
        Arc::new(Frail { memory, failures: Mutex::new(failures) })
    }

    /// Fires until this holds, and then stops.
    async fn fire_until(frail: &Arc<Frail>, holds: impl Fn(Snapshot) -> bool) {
        let (service, shutdown) = (Service::new(Arc::clone(frail) as Arc<dyn Schedules>), Shutdown::new());
        let mut handle = service.handle();
        let running = tokio::spawn(service.run(shutdown.clone()));
        let goes_on = async {
            while !holds(handle.snapshot()) {
                assert!(handle.changed().await, "it has ended");
            }
        };
        timeout(DEADLINE, goes_on).await.unwrap();
        shutdown.request();
        timeout(DEADLINE, running).await.unwrap().unwrap().unwrap();
    }

    #[tokio::test]
    async fn no_error_but_the_end_of_its_broker_is_the_end_of_scheduling() {
        let corrupt = Error::Corrupt { path: "raddle.db".into(), found: "nonsense".into() };
        assert!(!corrupt.is_retryable() && !corrupt.is_callers());
        let often = [("bad", Duration::from_millis(10)), ("good", Duration::from_millis(50))];
        let frail = frail(&[&often[..], &[("worse", Duration::from_millis(10))]].concat(), vec![corrupt]).await;
        fire_until(&frail, |shown| shown.fired >= 2).await;
    }

    #[tokio::test]
    async fn what_is_refused_is_left_out_and_due_again_at_its_next_time() {
        let every = Duration::from_millis(100);
        let frail = frail(&[("bad", every)], Vec::new()).await;
        let first = frail.schedule("bad").await.unwrap().unwrap().entry;
        fire_until(&frail, |shown| shown.missed >= 3).await;
        let ScheduleView { entry, .. } = frail.schedule("bad").await.unwrap().unwrap();
        assert_eq!((entry.fired, entry.last), (0, None));
        assert!(entry.missed >= 3 && entry.next >= first.next.map(|next| next + 3 * every), "{entry:?}");
    }
}
