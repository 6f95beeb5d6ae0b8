//! Helpers of these tests.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use raddle_broker::{Completion, NewTask, Queries, TaskFilter, Tasks, conformance};
use raddle_broker_sqlite::Sqlite;
use raddle_model::{ExitStatus, TaskSpec, Tid};

pub(crate) use crate::common::{SOON, TTL, request, wait_until};

/// A fresh directory, and the path of a database in it.
pub(crate) fn temp_database() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("broker.db");
    (directory, path)
}

pub(crate) async fn open(path: &Path) -> Sqlite {
    Sqlite::open(path).await.unwrap()
}

pub(crate) fn spec(name: &str) -> TaskSpec {
    TaskSpec {
        name: Some(name.into()),
        ..TaskSpec::command(["true"])
    }
}

pub(crate) async fn submit(
    broker: &Sqlite,
    specs: Vec<TaskSpec>,
) -> raddle_broker::Result<Vec<Tid>> {
    let stored = broker
        .submit(specs.into_iter().map(NewTask::new).collect())
        .await?;
    Ok(stored.into_iter().map(|stored| stored.tid()).collect())
}

pub(crate) async fn worker(broker: &Sqlite, ttl: Duration) -> Tid {
    broker
        .register(conformance::info("worker"), ttl)
        .await
        .unwrap()
}

pub(crate) fn success(attempt_id: raddle_broker::AttemptId) -> Completion {
    conformance::completion(attempt_id, ExitStatus::Code { code: 0 })
}

/// All tasks, the oldest first.
pub(crate) async fn stored(broker: &Sqlite) -> Vec<(Tid, String)> {
    let mut tasks = broker.tasks(TaskFilter::default()).await.unwrap();
    tasks.reverse();
    tasks
        .into_iter()
        .map(|task| (task.tid, task.spec.display_name().to_string()))
        .collect()
}

/// Asserts that all health checks pass.
pub(crate) async fn assert_sound(broker: &Sqlite) {
    let bad: Vec<_> = broker
        .health()
        .await
        .unwrap()
        .checks
        .into_iter()
        .filter(|check| !check.ok && check.name != "stale workers")
        .collect();
    assert!(bad.is_empty(), "{bad:?}");
}

/// A file beside a database.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
