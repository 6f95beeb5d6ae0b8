//! Triggers: schedules that are in a file. Each is marked with the name of the manager that has the file, so that it goes when the file has it no
//! longer, and so that no manager touches what a person has written.

use raddle_broker::{Broker, ScheduleView};
use raddle_model::Schedule;

use super::{GroupWorker, ManagerError, Process, desired_state::DesiredStates};
use raddle_client::schedule;

/// Stores the triggers of a file. That of a worker which is off is paused: it may be new, and have nobody who would run what it makes.
pub(super) async fn declare(
    broker: &dyn Broker,
    name: &str,
    processes: &[Process],
) -> Result<(), ManagerError> {
    let known = DesiredStates::read(broker).await?;
    for process in processes {
        for worker in &process.workers {
            if let Some(trigger) = worker.schedule() {
                let paused = known.get(&worker.slug).is_some_and(|standing| !standing.on);
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

/// Removes the triggers that a manager of this name had in its file before.
pub(super) async fn retire(
    broker: &dyn Broker,
    name: &str,
    processes: &[Process],
) -> Result<(), ManagerError> {
    for slug in former(broker.schedules(None).await?, name, processes) {
        let removed = schedule::remove_owned(broker, &slug, name).await;
        if removed.map_err(|source| ManagerError::Trigger {
            slug: slug.clone(),
            source,
        })? {
            tracing::info!(slug, "a trigger was removed that is in the file no longer");
        }
    }
    Ok(())
}

/// The schedules that a manager of this name has stored, and that are none of these workers' any more.
fn former(stored: Vec<ScheduleView>, name: &str, processes: &[Process]) -> Vec<String> {
    let has = |worker: &GroupWorker, slug: &str| worker.slug == slug && worker.trigger.is_some();
    let is_kept = |slug: &str| {
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
        .filter(|slug| !is_kept(slug))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use raddle_broker_sqlite::Sqlite;
    use raddle_model::TaskSpec;

    use super::{super::desired_state, *};
    use raddle_client::schedule::{Error, put};

    use crate::turn;

    fn file(slugs: &[&str]) -> Vec<Process> {
        let worker =
            |slug: &&str| GroupWorker::command(*slug, ["true"]).every(Duration::from_secs(60));
        vec![slugs.iter().fold(Process::new("clock"), |process, slug| {
            process.worker(worker(slug))
        })]
    }

    /// As a manager does it that begins.
    async fn settle(
        broker: &Sqlite,
        name: &str,
        processes: &[Process],
    ) -> Result<(), ManagerError> {
        declare(broker, name, processes).await?;
        retire(broker, name, processes).await
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
    async fn what_a_file_has_no_longer_goes_and_nothing_else() {
        let broker = Sqlite::in_memory().await.unwrap();
        let by_hand = Schedule::every("hand", Duration::from_secs(60))
            .task(TaskSpec::command(["true"]))
            .unwrap();
        put(&broker, by_hand, false).await.unwrap();
        settle(&broker, "group", &file(&["a", "b"])).await.unwrap();
        settle(&broker, "other", &file(&["c"])).await.unwrap();
        assert_eq!(names(&broker).await, ["a", "b", "c", "hand"]);
        settle(&broker, "group", &file(&["b"])).await.unwrap();
        assert_eq!(names(&broker).await, ["b", "c", "hand"]);
        settle(
            &broker,
            "group",
            &[Process::new("p").worker(GroupWorker::new("b"))],
        )
        .await
        .unwrap();
        assert_eq!(
            names(&broker).await,
            ["c", "hand"],
            "a worker whose trigger was taken out is like one that was"
        );
    }

    #[tokio::test]
    async fn what_was_written_by_hand_is_left_alone() {
        let broker = Sqlite::in_memory().await.unwrap();
        let by_hand = || {
            Schedule::every("a", Duration::from_secs(7))
                .task(TaskSpec::command(["true"]))
                .unwrap()
        };
        put(&broker, by_hand(), false).await.unwrap();
        let refused = settle(&broker, "group", &file(&["a"])).await.unwrap_err();
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
        settle(&broker, "group", &file(&["b"])).await.unwrap();
        assert_eq!(names(&broker).await, ["a", "b"]);
        // Who replaces one of a file by hand has it for himself.
        settle(&broker, "group", &file(&["b", "c"])).await.unwrap();
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
        settle(&broker, "group", &file(&["b"])).await.unwrap();
        assert_eq!(names(&broker).await, ["a", "b", "c"]);
    }

    #[tokio::test]
    async fn the_trigger_of_a_worker_that_is_off_begins_paused() {
        use raddle_broker::Queries;
        let broker = Sqlite::in_memory().await.unwrap();
        let without = [Process::new("clock").worker(GroupWorker::command("a", ["true"]))];
        desired_state::declare(&broker, &without, None, None)
            .await
            .unwrap();
        turn(&broker, "a", false).await.unwrap();
        settle(&broker, "group", &file(&["a"])).await.unwrap();
        desired_state::declare(&broker, &file(&["a"]), None, None)
            .await
            .unwrap();
        let is_paused = async || broker.schedule("a").await.unwrap().unwrap().entry.paused;
        assert!(is_paused().await);
        turn(&broker, "a", true).await.unwrap();
        assert!(!is_paused().await);
        settle(&broker, "group", &file(&["a"])).await.unwrap();
        assert!(!is_paused().await, "to say it again changes nothing");
    }
}
