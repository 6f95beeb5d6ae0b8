//! The queues of managers. A request that is written is a task from then on, under the id that its writer is told; what waits, and what became of it,
//! is what the broker knows of such tasks.

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

/// How many events of the log are looked at in one go.
const PAGE: u32 = 1000;

/// Submits what is asked of the managers of a type, all or none, and returns the ids of the requests. They are children of `parent`, or else of those that they
/// are left to.
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

/// Submits what is written to the inbox of a task, if that is a live worker which takes requests, and returns the ids.
pub(super) async fn ask_worker(
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

/// What waits for the managers of a type.
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

/// What became of requests after the id `after`: those to the managers of a type, or all of them for the prime, which is above all others.
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
        let telling: Vec<&TaskEvent> = events.iter().filter(|event| tells(event.event)).collect();
        let among = Some(telling.iter().map(|event| event.tid).collect());
        let tasks = broker
            .tasks(TaskFilter {
                among,
                services: true,
                ..TaskFilter::default()
            })
            .await?;
        let tasks: HashMap<Tid, TaskView> =
            tasks.into_iter().map(|task| (task.tid, task)).collect();
        let told = telling.iter().filter_map(|event| {
            let task = tasks
                .get(&event.tid)
                .filter(|task| is_asked_of(task, kind))?;
            Some(Message {
                id: event.id,
                body: result(task, event).to_string(),
            })
        });
        found.extend(told);
    }
    found.truncate(max as usize);
    Ok(found)
}

/// Whether a requester is told of it.
fn tells(event: TaskEventKind) -> bool {
    event == TaskEventKind::Running || event.is_terminal()
}

fn is_asked_of(task: &TaskView, kind: &str) -> bool {
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
