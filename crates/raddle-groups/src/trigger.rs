//! Triggers: schedules that a file declares. Each is owned by the name of the file's manager, so
//! that it is removed with its declaration, and managers do not touch schedules of other owners.

use raddle_broker::{Broker, ScheduleView};
use raddle_model::Schedule;

use super::{GroupWorker, ManagerError, Process, desired_state::DesiredStates};
use raddle_client::schedule;

/// Stores the triggers of a file. The trigger of a worker that is off is paused: no process would
/// run its tasks.
pub(super) async fn declare(
    broker: &dyn Broker,
    name: &str,
    processes: &[Process],
) -> Result<(), ManagerError> {
    let known = DesiredStates::read(broker).await?;
    for process in processes {
        for worker in &process.workers {
            if let Some(trigger) = worker.schedule() {
                let paused = known.get(&worker.slug).is_some_and(|state| !state.on);
                let trigger = Schedule { paused, ..trigger };
                let put = schedule::put_owned(broker, trigger, name).await;
                put.map_err(|source| ManagerError::Trigger {
                    slug: worker.slug.clone(),
                    source,
                })?;
            }
        }
    }
    Ok(())
}

/// Removes triggers that a manager of this name had declared before.
pub(super) async fn remove_undeclared(
    broker: &dyn Broker,
    name: &str,
    processes: &[Process],
) -> Result<(), ManagerError> {
    for slug in undeclared(broker.schedules(None).await?, name, processes) {
        let removed = schedule::remove_owned(broker, &slug, name).await;
        if removed.map_err(|source| ManagerError::Trigger {
            slug: slug.clone(),
            source,
        })? {
            tracing::info!(slug, "removed a trigger that the file no longer declares");
        }
    }
    Ok(())
}

/// Schedules of this owner that no worker declares any more.
fn undeclared(stored: Vec<ScheduleView>, name: &str, processes: &[Process]) -> Vec<String> {
    let has = |worker: &GroupWorker, slug: &str| worker.slug == slug && worker.trigger.is_some();
    let is_declared = |slug: &str| {
        processes
            .iter()
            .any(|process| process.workers.iter().any(|worker| has(worker, slug)))
    };
    let of_name = stored
        .into_iter()
        .map(|view| view.entry)
        .filter(|entry| entry.owner.as_deref() == Some(name));
    of_name
        .map(|entry| entry.schedule.name)
        .filter(|slug| !is_declared(slug))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use raddle_broker_sqlite::Sqlite;
    use raddle_model::TaskSpec;

    use super::{super::desired_state, *};
    use raddle_client::schedule::{Error, put};

    use crate::set_worker_on;

    fn file(slugs: &[&str]) -> Vec<Process> {
        let worker =
            |slug: &&str| GroupWorker::command(*slug, ["true"]).every(Duration::from_secs(60));
        vec![slugs.iter().fold(Process::new("clock"), |process, slug| {
            process.worker(worker(slug))
        })]
    }

    /// Declares triggers like a starting manager.
    async fn declare_triggers(
        broker: &Sqlite,
        name: &str,
        processes: &[Process],
    ) -> Result<(), ManagerError> {
        declare(broker, name, processes).await?;
        remove_undeclared(broker, name, processes).await
    }

    async fn names(broker: &Sqlite) -> Vec<String> {
        use raddle_broker::Schedules;
        broker
            .schedules(None)
            .await
            .unwrap()
            .into_iter()
            .map(|view| view.entry.schedule.name)
            .collect()
    }

    #[tokio::test]
    async fn removes_only_triggers_that_the_file_no_longer_declares() {
        let broker = Sqlite::in_memory().await.unwrap();
        let by_hand = Schedule::every("hand", Duration::from_secs(60))
            .task(TaskSpec::command(["true"]))
            .unwrap();
        put(&broker, by_hand, false).await.unwrap();
        declare_triggers(&broker, "group", &file(&["a", "b"]))
            .await
            .unwrap();
        declare_triggers(&broker, "other", &file(&["c"]))
            .await
            .unwrap();
        assert_eq!(names(&broker).await, ["a", "b", "c", "hand"]);
        declare_triggers(&broker, "group", &file(&["b"]))
            .await
            .unwrap();
        assert_eq!(names(&broker).await, ["b", "c", "hand"]);
        declare_triggers(
            &broker,
            "group",
            &[Process::new("p").worker(GroupWorker::new("b"))],
        )
        .await
        .unwrap();
        assert_eq!(
            names(&broker).await,
            ["c", "hand"],
            "a worker without its trigger counts as removed"
        );
    }

    #[tokio::test]
    async fn leaves_schedules_of_other_owners_alone() {
        let broker = Sqlite::in_memory().await.unwrap();
        let by_hand = || {
            Schedule::every("a", Duration::from_secs(7))
                .task(TaskSpec::command(["true"]))
                .unwrap()
        };
        put(&broker, by_hand(), false).await.unwrap();
        let refused = declare_triggers(&broker, "group", &file(&["a"]))
            .await
            .unwrap_err();
        assert!(
            matches!(
                refused,
                ManagerError::Trigger {
                    source: Error::NotOwned(_),
                    ..
                }
            ),
            "{refused}"
        );
        declare_triggers(&broker, "group", &file(&["b"]))
            .await
            .unwrap();
        assert_eq!(names(&broker).await, ["a", "b"]);
        // Replacing a trigger by hand removes its owner.
        declare_triggers(&broker, "group", &file(&["b", "c"]))
            .await
            .unwrap();
        put(
            &broker,
            Schedule {
                name: "c".into(),
                ..by_hand()
            },
            true,
        )
        .await
        .unwrap();
        declare_triggers(&broker, "group", &file(&["b"]))
            .await
            .unwrap();
        assert_eq!(names(&broker).await, ["a", "b", "c"]);
    }

    #[tokio::test]
    async fn the_trigger_of_a_worker_that_is_off_starts_paused() {
        use raddle_broker::Queries;
        let broker = Sqlite::in_memory().await.unwrap();
        let without = [Process::new("clock").worker(GroupWorker::command("a", ["true"]))];
        desired_state::declare(&broker, &without, None, None)
            .await
            .unwrap();
        set_worker_on(&broker, "a", false).await.unwrap();
        declare_triggers(&broker, "group", &file(&["a"]))
            .await
            .unwrap();
        desired_state::declare(&broker, &file(&["a"]), None, None)
            .await
            .unwrap();
        let is_paused = async || broker.schedule("a").await.unwrap().unwrap().entry.paused;
        assert!(is_paused().await);
        set_worker_on(&broker, "a", true).await.unwrap();
        assert!(!is_paused().await);
        declare_triggers(&broker, "group", &file(&["a"]))
            .await
            .unwrap();
        assert!(!is_paused().await, "declaring it again changes nothing");
    }
}
