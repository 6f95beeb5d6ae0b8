//! The queues of managers. A request becomes a task at once, under the id that its writer gets. The
//! request and result queues are views of such tasks.

use std::{collections::HashMap, time::Duration};

use raddle_model::{
    ExitStatus, QueueName, Target, TaskEvent, TaskEventKind, TaskState, TaskView, Tid,
    manager::{PRIME, RoutedRequest, SpawnRefusal, admit, admit_to_worker},
    queue_name::{ManagerQueue, WAITING, requests},
    spec::InvalidSpec,
};
use serde_json::{Value, json};

use super::views::Shown;
use crate::{Broker, Error, Message, NewTask, Result, TaskFilter};

/// The number of events read at once.
const PAGE: u32 = 1000;

/// Submits requests to the managers of a type, all or none, and returns their ids. They are
/// children of `parent`, or of the manager that takes them.
pub async fn submit_requests(
    broker: &dyn Broker,
    kind: &str,
    bodies: Vec<String>,
    parent: Option<Tid>,
) -> Result<Vec<Tid>> {
    let workers = broker.workers().await?;
    let submit = |body| {
        let RoutedRequest {
            spec,
            parent: left_to,
        } = admit(kind, body, &workers);
        NewTask {
            spec,
            parent: parent.or(left_to),
        }
    };
    let submitted = broker
        .submit(bodies.into_iter().map(submit).collect())
        .await?;
    Ok(submitted.into_iter().map(|one| one.tid()).collect())
}

/// Submits messages to the inbox of a task as requests, if it is a live worker that takes requests.
/// Returns the ids.
pub(super) async fn submit_to_worker(
    broker: &dyn Broker,
    tid: Tid,
    bodies: &[String],
) -> Result<Option<Vec<Tid>>> {
    let workers = broker.workers().await?;
    let Some(worker) = workers
        .iter()
        .find(|entry| entry.tid == tid && entry.info.takes_requests())
    else {
        return Ok(None);
    };
    if let Some((_, kind)) = worker.info.desk() {
        return submit_requests(broker, &kind, bodies.to_vec(), None)
            .await
            .map(Some);
    }
    let submit = |body: &String| {
        let spec = admit_to_worker(&worker.info, body).map_err(refused)?;
        Ok(NewTask { spec, parent: None })
    };
    let submitted = broker
        .submit(bodies.iter().map(submit).collect::<Result<_>>()?)
        .await?;
    Ok(Some(submitted.into_iter().map(|one| one.tid()).collect()))
}

fn refused(refusal: SpawnRefusal) -> Error {
    let (path, reason) = match refusal {
        SpawnRefusal::Malformed { path, reason } => (path, reason),
        SpawnRefusal::Invalid(invalid) => return invalid.into(),
        other => (".".into(), other.to_string()),
    };
    InvalidSpec {
        path: path.into(),
        reason,
    }
    .into()
}

/// The requests that wait for the managers of a type.
pub(super) fn waiting(kind: &str) -> Vec<Shown> {
    let mut queues = vec![requests(kind)];
    if kind == PRIME {
        queues.push(WAITING.into());
    }
    let filter = |queue| TaskFilter {
        states: vec![TaskState::Created],
        queue: Some(queue),
        ..TaskFilter::default()
    };
    queues
        .into_iter()
        .map(|queue| Shown {
            filter: filter(queue),
            message: request,
        })
        .collect()
}

/// A request as it was written.
fn request(task: &TaskView) -> Message {
    let body = match &task.spec.target {
        Target::Request(text) => text.clone(),
        _ => json!({ "spec": task.spec }).to_string(),
    };
    Message { id: task.tid, body }
}

/// Results of requests after the id `after`: of requests to the managers of a type, or of all
/// requests for the root manager.
pub(super) async fn results(
    broker: &dyn Broker,
    kind: &str,
    after: u64,
    max: u32,
) -> Result<Vec<Message>> {
    let (mut found, mut after) = (Vec::new(), after);
    while found.len() < max as usize {
        let events = broker
            .events(Some(after), None, PAGE, Duration::ZERO)
            .await?;
        let Some(last) = events.last() else { break };
        after = last.id.as_u64();
        let reported: Vec<&TaskEvent> = events
            .iter()
            .filter(|event| is_reported(event.event))
            .collect();
        let among = Some(reported.iter().map(|event| event.tid).collect());
        let tasks = broker
            .tasks(TaskFilter {
                among,
                services: true,
                ..TaskFilter::default()
            })
            .await?;
        let tasks: HashMap<Tid, TaskView> =
            tasks.into_iter().map(|task| (task.tid, task)).collect();
        let results = reported.iter().filter_map(|event| {
            let task = tasks
                .get(&event.tid)
                .filter(|task| is_request_to(task, kind))?;
            Some(Message {
                id: event.id,
                body: result(task, event).to_string(),
            })
        });
        found.extend(results);
    }
    found.truncate(max as usize);
    Ok(found)
}

/// Whether the event is reported to the requester.
fn is_reported(event: TaskEventKind) -> bool {
    event == TaskEventKind::Running || event.is_terminal()
}

fn is_request_to(task: &TaskView, kind: &str) -> bool {
    let queue = task.spec.queue.parse::<QueueName>();
    queue.is_ok_and(|queue| match queue.desk() {
        Some((of, ManagerQueue::Requests)) => kind == PRIME || of == kind,
        _ => false,
    })
}

fn result(task: &TaskView, event: &TaskEvent) -> Value {
    let exit = task
        .report
        .as_ref()
        .map(|report| &report.exit)
        .filter(|_| event.event.is_terminal());
    let refused = matches!(exit, Some(ExitStatus::Rejected { .. }));
    let status = match event.event {
        TaskEventKind::Running => "spawned",
        _ if refused => "refused",
        end => end.as_str(),
    };
    let mut result = json!({
        "tid": task.tid,
        "task": task.spec.display_name(),
        "status": status,
        "parent_tid": task.parent,
        "attempt": event.attempt,
    });
    if let Some(exit) = exit {
        result["exit_code"] = exit.shell_code().into();
        if !exit.is_success() {
            result["error"] = exit.to_string().into();
        }
    }
    result
}
