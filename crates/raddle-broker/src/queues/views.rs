//! Records of the broker as messages.

use std::time::Duration;

use raddle_model::{
    QueueName, TaskState, TaskView, Tid,
    queue_name::{ManagerQueue, SystemQueue, TaskQueue},
    spec::ReservedPolicy,
};
use serde::Serialize;
use serde_json::json;

use super::{pages, requests};
use crate::{Broker, Message, OutputStream, PeekRequest, Result, TaskFilter};

/// The most bytes of standard output that a result shows. `read_output` returns all of it.
const MAX_STDOUT: u32 = 1024 * 1024;

/// Tasks that a queue shows, each as one message.
pub(super) struct Shown {
    pub(super) filter: TaskFilter,
    pub(super) message: fn(&TaskView) -> Message,
}

/// The tasks that a queue shows, if any.
pub(super) fn tasks_in(queue: &QueueName) -> Vec<Shown> {
    match queue {
        QueueName::System(SystemQueue::TidMappings) => vec![Shown {
            filter: unfinished(),
            message: mapping,
        }],
        QueueName::System(SystemQueue::Dead) => {
            let filter = TaskFilter {
                dead: true,
                ..TaskFilter::default()
            };
            vec![Shown {
                filter,
                message: |task| message(task.tid, task),
            }]
        }
        queue => match queue.desk() {
            Some((kind, ManagerQueue::Requests)) => requests::waiting(kind),
            _ => Vec::new(),
        },
    }
}

/// The contents of a queue after the id `after`: records and stored messages, by id.
pub(super) async fn read_contents(
    broker: &dyn Broker,
    queue: &QueueName,
    after: u64,
    max: u32,
) -> Result<Vec<Message>> {
    let mut seen = match queue {
        QueueName::System(SystemQueue::Log) => {
            let events = broker
                .events(Some(after), None, max, Duration::ZERO)
                .await?;
            events
                .iter()
                .map(|event| message(event.id, event))
                .collect()
        }
        // One record per live worker, with its status.
        QueueName::System(SystemQueue::Registry | SystemQueue::Status) => broker
            .workers()
            .await?
            .iter()
            .map(|entry| message(entry.tid, entry))
            .collect(),
        QueueName::System(SystemQueue::TidMappings | SystemQueue::Dead) => {
            tasks(broker, queue).await?
        }
        QueueName::Task(tid, port) => task_message(broker, *tid, *port)
            .await?
            .into_iter()
            .collect(),
        queue => match queue.desk() {
            Some((_, ManagerQueue::Requests)) => tasks(broker, queue).await?,
            Some((kind, ManagerQueue::Results)) => {
                return requests::results(broker, kind, after, max).await;
            }
            Some((kind, ManagerQueue::Status)) => {
                let workers = broker.workers().await?;
                let managers = workers
                    .iter()
                    .filter(|entry| super::is_manager(entry, kind));
                managers.map(|entry| message(entry.tid, entry)).collect()
            }
            _ => Vec::new(),
        },
    };
    seen.retain(|message| message.id.as_u64() > after);
    if !super::is_view(queue) {
        seen.extend(stored(broker, queue, after, max).await?);
    }
    seen.sort_by_key(|message| message.id);
    seen.truncate(max as usize);
    Ok(seen)
}

/// Stored messages only.
pub(super) async fn stored(
    broker: &dyn Broker,
    queue: &QueueName,
    after: u64,
    max: u32,
) -> Result<Vec<Message>> {
    broker
        .peek(PeekRequest {
            queue: queue.clone(),
            after,
            max,
            wait: Duration::ZERO,
        })
        .await
}

/// The task's own message, if it is in this queue now. Its id is the task's, from request to
/// result.
pub(super) async fn task_message(
    broker: &dyn Broker,
    tid: Tid,
    port: TaskQueue,
) -> Result<Option<Message>> {
    let Some(task) = broker
        .task(tid)
        .await?
        .filter(|task| queues_of(task).any(|p| p == port))
    else {
        return Ok(None);
    };
    let body = match port {
        TaskQueue::Inbox => json!({ "tid": tid, "spec": task.spec }).to_string(),
        TaskQueue::Reserved => {
            json!({ "tid": tid, "spec": task.spec, "attempt": task.attempt, "worker": task.worker })
                .to_string()
        }
        _ => result(broker, &task).await?,
    };
    Ok(Some(Message { id: tid, body }))
}

/// The queues of a task that hold its own message.
pub(super) fn queues_of(task: &TaskView) -> impl Iterator<Item = TaskQueue> + use<> {
    let over = task.state.is_terminal();
    let waits = task.state == TaskState::Created;
    let kept = task.dead
        || (task.state == TaskState::Cancelled && task.spec.on_stop == ReservedPolicy::Keep);
    let ports = [
        (waits, TaskQueue::Inbox),
        (!waits && (!over || kept), TaskQueue::Reserved),
        (over, TaskQueue::Outbox),
    ];
    ports
        .into_iter()
        .filter(|(holds, _)| *holds)
        .map(|(_, port)| port)
}

/// Matches unfinished tasks.
pub(super) fn unfinished() -> TaskFilter {
    let states = vec![TaskState::Created, TaskState::Spawning, TaskState::Running];
    TaskFilter {
        states,
        services: true,
        ..TaskFilter::default()
    }
}

async fn result(broker: &dyn Broker, task: &TaskView) -> Result<String> {
    let stdout = broker
        .read_output(task.tid, task.attempt, OutputStream::Stdout, 0, MAX_STDOUT)
        .await?;
    Ok(json!({
        "tid": task.tid,
        "state": task.state,
        "exit_code": task.report.as_ref().map(|report| report.exit.shell_code()),
        "report": task.report,
        "stdout": String::from_utf8_lossy(&stdout),
    })
    .to_string())
}

/// The tasks that a queue shows, as messages.
async fn tasks(broker: &dyn Broker, queue: &QueueName) -> Result<Vec<Message>> {
    let mut seen = Vec::new();
    for Shown { filter, message } in tasks_in(queue) {
        pages::each(broker, filter, |task| seen.push(message(&task))).await?;
    }
    Ok(seen)
}

fn mapping(task: &TaskView) -> Message {
    let (tid, name) = (task.tid, task.spec.display_name());
    message(
        tid,
        &json!({ "short": tid.short().to_string(), "full": tid, "name": name, "pid": task.pid }),
    )
}

fn message(id: Tid, record: &impl Serialize) -> Message {
    Message {
        id,
        body: serde_json::to_string(record).expect("records have string keys and finite numbers"),
    }
}
