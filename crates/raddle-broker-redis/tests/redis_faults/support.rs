//! Helpers of these tests.

use std::{sync::Arc, time::Duration};

use raddle_broker::{AttemptId, Broker, ClaimRequest, Completion, Error, NewTask, conformance};
use raddle_broker_connect::connect;
use raddle_model::{CapSet, ExitStatus, TaskSpec, Tid, worker::WorkerInfo};

/// The limit for any wait.
pub(crate) const SOON: Duration = Duration::from_secs(60);

pub(crate) async fn open(url: &str) -> Result<Arc<dyn Broker>, Error> {
    connect(&url.parse().expect("a URL as documented")).await
}

/// The error of opening a URL.
pub(crate) async fn open_error(url: &str) -> Error {
    match tokio::time::timeout(SOON, open(url))
        .await
        .expect("it is refused in time")
    {
        Ok(_) => panic!("{url} was opened"),
        Err(error) => error,
    }
}

pub(crate) fn task(name: &str) -> NewTask {
    NewTask::new(TaskSpec {
        name: Some(name.into()),
        ..TaskSpec::command(["true"])
    })
}

pub(crate) fn info() -> WorkerInfo {
    conformance::info("worker")
}

pub(crate) fn request(owner: Tid, max: u32) -> ClaimRequest {
    let queues = vec!["default".into()];
    ClaimRequest {
        owner,
        caps: CapSet::new(),
        queues,
        only: None,
        max,
        wait: SOON,
    }
}

pub(crate) fn success(attempt_id: AttemptId) -> Completion {
    conformance::completion(attempt_id, ExitStatus::Code { code: 0 })
}
