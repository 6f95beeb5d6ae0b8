//! Schedules.

use std::{collections::BTreeSet, time::Duration};

use jiff::{Timestamp, tz::TimeZone};
use raddle_model::{
    HumanDuration, Schedule, TaskSpec, Tid,
    schedule::{FireOutcome, MissedPolicy, ScheduleEntry},
};
use tokio::task::JoinSet;

use super::{Fixture, Handle, support::*};
use crate::{
    Error, NewTask, Result, ScheduleChange, ScheduleChangeOutcome, ScheduleView, Submitted,
    TaskFilter,
};

const EVERY: Duration = Duration::from_secs(60);
const UTC: TimeZone = TimeZone::UTC;

fn entry(name: &str, every: Duration, next: Timestamp) -> ScheduleEntry {
    let schedule = Schedule::every(name, every)
        .missed(MissedPolicy::All)
        .task(TaskSpec::command(["true"]));
    let schedule = schedule.expect("cases write valid schedules");
    ScheduleEntry {
        next: Some(next),
        ..ScheduleEntry::new(schedule, &UTC, next)
    }
}

/// A change without tasks, which may be made at any time.
fn change(entry: &ScheduleEntry, seen: Option<Tid>) -> ScheduleChange {
    let (name, entry) = (entry.schedule.name.clone(), Some(entry.clone()));
    ScheduleChange {
        name,
        expected: seen,
        entry,
        tasks: Vec::new(),
        due: None,
    }
}

/// Applies a change without a concurrent one.
async fn make(broker: &Handle, change: ScheduleChange) -> Result<Tid> {
    match broker.change_schedule(change).await? {
        ScheduleChangeOutcome::Applied { version, .. } => Ok(version),
        other => panic!("no other caller has changed it: {other:?}"),
    }
}

async fn stored(broker: &Handle, name: &str) -> Result<ScheduleView> {
    Ok(broker.schedule(name).await?.expect("it is there"))
}

/// Returns the change that fires a schedule as it was read, if something is due.
fn firing(view: &ScheduleView, now: Timestamp) -> Option<ScheduleChange> {
    let FireOutcome { entry, due, .. } = view.entry.fire(&UTC, now, 10)?;
    let tasks = due
        .iter()
        .map(|due| NewTask::new(view.entry.schedule.task_for(*due)))
        .collect();
    Some(ScheduleChange {
        tasks,
        due: view.entry.due(),
        ..change(&entry, Some(view.version))
    })
}

fn now() -> Timestamp {
    Timestamp::now()
}

/// By its name, for all handles.
pub async fn a_schedule_is_kept_as_it_was_given(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    assert_eq!(
        (broker.schedules(None).await?, broker.schedule("b").await?),
        (vec![], None)
    );
    let (a, b) = (
        entry("a", EVERY, now() + EVERY),
        entry("b", EVERY, now() + EVERY),
    );
    let version = make(broker, change(&b, None)).await?;
    make(broker, change(&a, None)).await?;
    let other = store.reopen().await;
    assert_eq!(
        stored(&other, "b").await?,
        ScheduleView {
            version,
            task: None,
            entry: b.clone()
        }
    );
    let all = other.schedules(None).await?;
    assert_eq!(
        all.iter().map(|view| &view.entry).collect::<Vec<_>>(),
        [&a, &b]
    );
    Ok(())
}

/// And from nothing else.
pub async fn a_change_is_made_from_what_was_seen(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let a = entry("a", EVERY, now() + EVERY);
    let first = make(broker, change(&a, None)).await?;
    assert_eq!(
        broker.change_schedule(change(&a, None)).await?,
        ScheduleChangeOutcome::Conflict,
        "it is there already"
    );
    let second = make(broker, change(&a.paused().expect("it is not"), Some(first))).await?;
    assert!(second > first);
    assert_eq!(
        broker.change_schedule(change(&a, Some(first))).await?,
        ScheduleChangeOutcome::Conflict
    );
    assert!(stored(broker, "a").await?.entry.paused);
    let removal = |seen| ScheduleChange {
        entry: None,
        ..change(&a, Some(seen))
    };
    assert_eq!(
        broker.change_schedule(removal(first)).await?,
        ScheduleChangeOutcome::Conflict
    );
    make(broker, removal(second)).await?;
    assert_eq!(broker.schedule("a").await?, None);
    assert_eq!(
        broker.change_schedule(removal(second)).await?,
        ScheduleChangeOutcome::Conflict
    );
    make(broker, change(&a, None)).await?;
    Ok(())
}

/// Nothing is stored of what could not be fired.
pub async fn names_and_tasks_are_checked(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let a = entry("a", EVERY, now() + EVERY);
    let mut odd = a.clone();
    odd.schedule.name = "no blanks".into();
    let mut wrong = a.clone();
    wrong.schedule.task.priority = 10;
    let bad_task = ScheduleChange {
        tasks: vec![NewTask::new(TaskSpec::command([""]))],
        ..change(&a, None)
    };
    let renamed = ScheduleChange {
        name: "b".into(),
        ..change(&a, None)
    };
    for refused in [change(&odd, None), change(&wrong, None), bad_task, renamed] {
        let error = broker
            .change_schedule(refused)
            .await
            .expect_err("it cannot be fired");
        assert!(matches!(error, Error::Invalid(_)), "{error}");
    }
    assert_eq!(broker.schedules(None).await?, []);
    Ok(())
}

/// One step: who comes second has submitted nothing.
pub async fn tasks_come_with_the_change_or_not_at_all(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let due = now() - 3 * EVERY;
    let version = make(broker, change(&entry("a", EVERY, due), None)).await?;
    let view = stored(broker, "a").await?;
    let fire = firing(&view, now()).expect("it is due");
    assert_eq!(fire.tasks.len(), 4);
    let ScheduleChangeOutcome::Applied {
        version: next,
        submitted,
    } = broker.change_schedule(fire.clone()).await?
    else {
        panic!("no other caller fires it");
    };
    assert!(next > version);
    let tids: Vec<Tid> = submitted.iter().map(|stored| stored.tid()).collect();
    assert!(tids.is_sorted_by(|a, b| a < b) && tids.len() == 4);
    let after = stored(broker, "a").await?;
    assert_eq!(
        (after.version, after.task, after.entry.fired),
        (next, tids.last().copied(), 4)
    );
    // The same once more, as by another who had seen the same.
    assert_eq!(
        store.reopen().await.change_schedule(fire).await?,
        ScheduleChangeOutcome::Conflict
    );
    assert_eq!(broker.tasks(TaskFilter::default()).await?.len(), 4);
    let dues: BTreeSet<String> = {
        let tasks = broker.tasks(TaskFilter::default()).await?;
        tasks
            .iter()
            .map(|task| task.spec.metadata["due"].to_string())
            .collect()
    };
    assert_eq!(dues.len(), 4);
    // A change without tasks leaves the last one where it was.
    make(
        broker,
        change(&after.entry.paused().expect("it is not"), Some(next)),
    )
    .await?;
    assert_eq!(stored(broker, "a").await?.task, tids.last().copied());
    Ok(())
}

/// The due time is fired all the same.
pub async fn a_task_whose_key_is_taken_is_not_submitted_twice(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let mut a = entry("a", EVERY, now() - 2 * EVERY);
    a.schedule.task.unique_key = Some("one at a time".into());
    make(broker, change(&a, None)).await?;
    let fire = firing(&stored(broker, "a").await?, now()).expect("it is due");
    let ScheduleChangeOutcome::Applied { submitted, .. } = broker.change_schedule(fire).await?
    else {
        panic!("no other caller fires it");
    };
    let [
        Submitted::New(first),
        Submitted::Existing(second),
        Submitted::Existing(third),
    ] = submitted[..]
    else {
        panic!("{submitted:?}");
    };
    assert_eq!((first, first), (second, third));
    assert_eq!(stored(broker, "a").await?.task, Some(first));
    Ok(())
}

/// By the broker's clock, whatever that of who fires says.
pub async fn nothing_is_fired_before_its_time(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let a = entry("a", EVERY, now() + EVERY);
    let version = make(broker, change(&a, None)).await?;
    let early =
        firing(&stored(broker, "a").await?, now() + 2 * EVERY).expect("by that clock it is due");
    assert_eq!(
        broker.change_schedule(early).await?,
        ScheduleChangeOutcome::NotDue
    );
    assert_eq!(stored(broker, "a").await?.version, version);
    assert_eq!(broker.tasks(TaskFilter::default()).await?, []);
    Ok(())
}

/// In the order in which it is.
pub async fn due_items_list_due_schedules(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let began = now();
    let empty = broker.due_items(AT_ONCE).await?;
    assert!(empty.due.is_empty() && empty.expired == 0);
    assert!(empty.now.duration_since(began).abs() < jiff::SignedDuration::from_secs(5));
    for (name, ago) in [("late", 30), ("later", 10), ("latest", 20)] {
        make(
            broker,
            change(&entry(name, EVERY, began - Duration::from_secs(ago)), None),
        )
        .await?;
    }
    make(
        broker,
        change(&entry("not-yet", EVERY, began + EVERY), None),
    )
    .await?;
    let due_items = broker.due_items(SOON).await?;
    let names: Vec<&str> = due_items
        .due
        .iter()
        .map(|view| view.entry.schedule.name.as_str())
        .collect();
    assert_eq!(
        names,
        ["late", "latest", "later"],
        "the first that was due comes first"
    );
    for view in due_items.due {
        make(broker, firing(&view, now()).expect("it is due")).await?;
    }
    assert!(broker.due_items(AT_ONCE).await?.due.is_empty());
    Ok(())
}

/// No longer than that.
pub async fn waits_for_the_next_due_schedule(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let due = now() + Duration::from_millis(300);
    make(broker, change(&entry("a", EVERY, due), None)).await?;
    assert!(broker.due_items(AT_ONCE).await?.due.is_empty());
    let due_items = broker.due_items(SOON).await?;
    assert_eq!(due_items.due.len(), 1);
    let late = now().duration_since(due);
    assert!(
        due_items.now >= due && late < jiff::SignedDuration::from_secs(1),
        "{late:?}"
    );
    Ok(())
}

/// Through another handle.
pub async fn a_change_wakes_schedulers(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    // Best of a few rounds: a busy machine may be slow once, a lost wake-up is slow every time.
    let mut fastest = Duration::MAX;
    for round in 0..3 {
        let other = store.reopen().await;
        let waiting = tokio::spawn(async move { other.due_items(SOON).await });
        tokio::time::sleep(Duration::from_millis(300)).await;
        let began = std::time::Instant::now();
        let name = format!("round-{round}");
        make(broker, change(&entry(&name, EVERY, now()), None)).await?;
        let due_items = waiting.await.expect("it does not panic")?;
        fastest = fastest.min(began.elapsed());
        assert_eq!(due_items.due.len(), 1);
        make(broker, firing(&due_items.due[0], now()).expect("it is due")).await?;
    }
    assert!(fastest < Duration::from_millis(500), "{fastest:?}");
    Ok(())
}

/// If it expires sooner than all others.
pub async fn an_expiring_task_wakes_schedulers(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let mut fastest = Duration::MAX;
    for _ in 0..3 {
        let other = store.reopen().await;
        let waiting = tokio::spawn(async move { other.due_items(SOON).await });
        tokio::time::sleep(Duration::from_millis(300)).await;
        let began = std::time::Instant::now();
        submit(
            broker,
            TaskSpec {
                lifetime: Some(HumanDuration::millis(50)),
                ..spec("task")
            },
        )
        .await?;
        let due_items = waiting.await.expect("it does not panic")?;
        fastest = fastest.min(began.elapsed());
        assert_eq!(due_items.expired, 1);
    }
    assert!(fastest < Duration::from_millis(600), "{fastest:?}");
    Ok(())
}

/// Until it is resumed.
pub async fn a_paused_schedule_is_not_due(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let a = entry("a", EVERY, now() - EVERY)
        .paused()
        .expect("it is not");
    let version = make(broker, change(&a, None)).await?;
    assert!(broker.due_items(AT_ONCE).await?.due.is_empty());
    make(
        broker,
        change(
            &a.resumed(&UTC, now() - EVERY).expect("it is"),
            Some(version),
        ),
    )
    .await?;
    assert_eq!(broker.due_items(SOON).await?.due.len(), 1);
    Ok(())
}

/// A waiting claim is woken.
pub async fn fired_tasks_are_claimed_as_any_other(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let waiting = {
        let broker = broker.clone();
        tokio::spawn(async move { take(&broker, owner).await })
    };
    let mut a = entry("a", EVERY, now());
    a.schedule.lifetime = Some(HumanDuration(EVERY));
    a.schedule.jitter = Some(HumanDuration::millis(100));
    make(broker, change(&a, None)).await?;
    let view = stored(broker, "a").await?;
    make(broker, firing(&view, now()).expect("it is due")).await?;
    let attempt_id = waiting.await.expect("it does not panic")?;
    let task = view_of(broker, attempt_id.tid).await?;
    assert_eq!(task.name.as_deref(), Some("a"));
    assert!(task.run_before.is_some() && task.run_at.is_some());
    Ok(())
}

async fn view_of(broker: &Handle, tid: Tid) -> Result<TaskSpec> {
    Ok(view(broker, tid).await?.spec)
}

/// However many look at a due time, it is fired once, and none is left out.
pub async fn ten_contenders_fire_a_thousand_due_times_once(store: &dyn Fixture) -> Result<()> {
    const DUE: usize = 1000;
    let broker = store.broker();
    // Half of them are late already, and come in groups; the others one by one.
    let begins = now() - Duration::from_secs(5);
    make(
        broker,
        change(&entry("a", Duration::from_millis(10), begins), None),
    )
    .await?;
    let mut contenders: JoinSet<Result<u64>> = JoinSet::new();
    for n in 0..10 {
        let handle = if n % 2 == 0 {
            broker.clone()
        } else {
            store.reopen().await
        };
        contenders.spawn(async move {
            let mut mine = 0;
            while handle
                .schedule("a")
                .await?
                .is_some_and(|view| !view.entry.paused)
            {
                let due_items = handle.due_items(Duration::from_millis(500)).await?;
                let Some(fire) = due_items
                    .due
                    .first()
                    .and_then(|view| firing(view, due_items.now))
                else {
                    continue;
                };
                // The last one that counts ends it for all.
                let fire = match &fire.entry {
                    Some(entry) if entry.fired >= DUE as u64 => ScheduleChange {
                        entry: entry.paused(),
                        ..fire
                    },
                    _ => fire,
                };
                if let ScheduleChangeOutcome::Applied { submitted, .. } =
                    handle.change_schedule(fire).await?
                {
                    mine += submitted.len() as u64;
                }
            }
            Ok(mine)
        });
    }
    let mut fired = 0;
    while let Some(mine) = contenders.join_next().await {
        fired += mine.expect("contenders do not panic")?;
    }
    let view = stored(broker, "a").await?;
    assert!(
        fired >= DUE as u64 && view.entry.fired == fired,
        "{fired} {}",
        view.entry.fired
    );
    assert_eq!(view.entry.missed, 0);
    let tasks = broker
        .tasks(TaskFilter {
            limit: u32::MAX,
            ..TaskFilter::default()
        })
        .await?;
    let dues: BTreeSet<String> = tasks
        .iter()
        .map(|task| task.spec.metadata["due"].to_string())
        .collect();
    assert_eq!(
        (tasks.len() as u64, dues.len() as u64),
        (fired, fired),
        "one task for each due time"
    );
    let step = |n: u64| (begins + Duration::from_millis(10 * n)).to_string();
    assert!(
        (0..fired).all(|n| dues.contains(&serde_json::Value::from(step(n)).to_string())),
        "none is left out"
    );
    Ok(())
}
