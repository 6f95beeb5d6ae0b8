//! Triggers: schedules that a file declares. Each is stored with the name of its manager as owner.
//! So it is removed when the file no longer has it, and no manager changes a schedule that a person
//! has written.

use raddle_broker::{Broker, ScheduleView};
use raddle_model::Schedule;

use super::{GroupWorker, ManagerError, Process, desired_state::DesiredStates};
use raddle_client::schedule;

/// Stores the triggers of a file. The trigger of a worker that is off is paused: it may be new, and
/// no process would run its tasks.
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

/// Removes the triggers that a manager of this name owns and that its file no longer has.
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
            tracing::info!(slug, "removed a trigger that is no longer in the file");
        }
    }
    Ok(())
}

/// The schedules that a manager of this name owns and that belong to none of these workers.
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

    /// Declares and retires triggers, as a manager does at its start.
    async fn declare_and_retire(
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
    async fn removes_only_the_triggers_that_left_the_file() {
        let broker = Sqlite::in_memory().await.unwrap();
        let by_hand = Schedule::every("hand", Duration::from_secs(60))
            .task(TaskSpec::command(["true"]))
            .unwrap();
        put(&broker, by_hand, false).await.unwrap();
        declare_and_retire(&broker, "group", &file(&["a", "b"]))
            .await
            .unwrap();
        declare_and_retire(&broker, "other", &file(&["c"]))
            .await
            .unwrap();
        assert_eq!(names(&broker).await, ["a", "b", "c", "hand"]);
        declare_and_retire(&broker, "group", &file(&["b"]))
            .await
            .unwrap();
        assert_eq!(names(&broker).await, ["b", "c", "hand"]);
        declare_and_retire(
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
    async fn keeps_schedules_that_a_person_wrote() {
        let broker = Sqlite::in_memory().await.unwrap();
        let by_hand = || {
            Schedule::every("a", Duration::from_secs(7))
                .task(TaskSpec::command(["true"]))
                .unwrap()
        };
        put(&broker, by_hand(), false).await.unwrap();
        let refused = declare_and_retire(&broker, "group", &file(&["a"]))
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
        declare_and_retire(&broker, "group", &file(&["b"]))
            .await
            .unwrap();
        assert_eq!(names(&broker).await, ["a", "b"]);
        // A person who replaces a trigger of a file becomes its owner.
        declare_and_retire(&broker, "group", &file(&["b", "c"]))
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
        declare_and_retire(&broker, "group", &file(&["b"]))
            .await
            .unwrap();
        assert_eq!(names(&broker).await, ["a", "b", "c"]);
    }

    #[tokio::test]
    async fn pauses_the_trigger_of_a_worker_that_is_off() {
        use raddle_broker::Queries;
        let broker = Sqlite::in_memory().await.unwrap();
        let without = [Process::new("clock").worker(GroupWorker::command("a", ["true"]))];
        desired_state::declare(&broker, &without, None, None)
            .await
            .unwrap();
        turn(&broker, "a", false).await.unwrap();
        declare_and_retire(&broker, "group", &file(&["a"]))
            .await
            .unwrap();
        desired_state::declare(&broker, &file(&["a"]), None, None)
            .await
            .unwrap();
        let is_paused = async || broker.schedule("a").await.unwrap().unwrap().entry.paused;
        assert!(is_paused().await);
        turn(&broker, "a", true).await.unwrap();
        assert!(!is_paused().await);
        declare_and_retire(&broker, "group", &file(&["a"]))
            .await
            .unwrap();
        assert!(!is_paused().await, "a second declaration changes nothing");
    }
}
