//! Routing of requests: a live manager that lists the task, the least loaded first. A pure
//! decision.

use super::{PRIME, SpawnMessage, SpawnRefusal, SpawnRequest, WORKER, name_of};
use crate::{
    CapSet, HumanDuration, RetryPolicy, Target, TaskSpec, Tid, WorkerEntry,
    queue_name::{WAITING, requests},
    spec::{ANY_HANDLER, handler_tag, is_label, routine_tag},
    worker::WorkerInfo,
};

/// A request, ready to be submitted.
#[derive(Clone, Debug, PartialEq)]
pub struct RoutedRequest {
    /// The task that represents the request.
    pub spec: TaskSpec,
    /// The manager that will receive it, if one is alive.
    pub parent: Option<Tid>,
}

/// How often a manager that dies is restarted.
const RESTARTS: u32 = 1000;
const LONGEST_PAUSE: HumanDuration = HumanDuration::secs(30);

/// Returns the live managers that accept tasks, the least loaded first.
pub fn managers(workers: &[WorkerEntry]) -> Vec<&WorkerEntry> {
    let mut managers: Vec<_> = workers
        .iter()
        .filter(|entry| entry.info.is_manager() && entry.status.takes())
        .collect();
    managers.sort_by(|a, b| a.load.total_cmp(&b.load).then(a.tid.cmp(&b.tid)));
    managers
}

/// Turns a message to the managers of a type into a task, whatever it says. The worker that takes
/// the task reports what is wrong with the message.
pub fn admit(kind: &str, text: String, workers: &[WorkerEntry]) -> RoutedRequest {
    let managers = managers(workers);
    let serving = |queue: &str| {
        managers
            .iter()
            .find(|entry| entry.info.requests() == Some(queue))
            .map(|entry| entry.tid)
    };
    let type_queue = requests(kind);
    let route_to_queue_owner = |spec: TaskSpec| RoutedRequest {
        parent: serving(&spec.queue),
        spec,
    };
    let request_spec = |name: &str, text: String| TaskSpec {
        name: Some(name.into()),
        queue: type_queue.clone(),
        ..TaskSpec::new(Target::Request(text))
    };
    let Ok(SpawnMessage {
        request,
        wait,
        priority,
        ..
    }) = SpawnMessage::parse(&text)
    else {
        return route_to_queue_owner(request_spec("request", text));
    };
    let task = match request {
        SpawnRequest::Spec(spec) if kind == PRIME => {
            return route_to_queue_owner(TaskSpec {
                queue: type_queue,
                ..*spec
            });
        }
        SpawnRequest::Spec(_) => return route_to_queue_owner(request_spec("request", text)),
        SpawnRequest::Task(task, params) => (task, params),
    };
    let (task, params) = task;
    let mut spec = request_spec(if is_label(&task) { &task } else { "request" }, text);
    spec.priority = priority.unwrap_or(spec.priority);
    if kind != PRIME {
        return route_to_queue_owner(spec);
    }
    if task == WORKER {
        let manager_type = params
            .get("type")
            .and_then(|kind| kind.as_str())
            .filter(|kind| super::parse_type(kind).is_ok());
        spec.name = manager_type.map(name_of).or(spec.name);
        // Keep the manager alive: restart it after every exit but a requested stop.
        spec.retry = RetryPolicy {
            attempts: RESTARTS,
            max: LONGEST_PAUSE,
            ..RetryPolicy::default()
        };
        return route_to_queue_owner(spec);
    }
    let Ok(needs) = CapSet::from_people(&task) else {
        return route_to_queue_owner(spec);
    };
    let listing = managers
        .iter()
        .find(|entry| !needs.is_empty() && needs.is_subset(&entry.info.capabilities));
    match listing.and_then(|entry| Some((entry.tid, entry.info.requests()?))) {
        Some((tid, queue)) => {
            // The claiming manager must list the task: the chosen manager may be gone by then.
            RoutedRequest {
                spec: TaskSpec {
                    queue: queue.into(),
                    requires: needs,
                    ..spec
                },
                parent: Some(tid),
            }
        }
        None if wait => RoutedRequest {
            spec: TaskSpec {
                queue: WAITING.into(),
                requires: needs,
                ..spec
            },
            parent: None,
        },
        None => route_to_queue_owner(spec),
    }
}

/// Turns a message to a worker's inbox into a task. The task waits in the first queue that the
/// worker serves, where other workers may claim it as well.
pub fn admit_to_worker(worker: &WorkerInfo, text: &str) -> Result<TaskSpec, SpawnRefusal> {
    let SpawnMessage {
        request,
        priority,
        timeout,
        limits,
        ..
    } = SpawnMessage::parse(text)?;
    let asked = match request {
        SpawnRequest::Spec(spec) => *spec,
        SpawnRequest::Task(task, params) => {
            let spec = find_worker_target(worker, &task)?;
            TaskSpec {
                name: is_label(&task).then_some(task),
                kwargs: params,
                timeout,
                limits,
                ..spec
            }
        }
    };
    let queue = worker
        .queues
        .first()
        .cloned()
        .unwrap_or_else(|| asked.queue.clone());
    let spec = TaskSpec {
        queue,
        priority: priority.unwrap_or(asked.priority),
        ..asked
    };
    spec.validate()?;
    Ok(spec)
}

/// Finds the routine or handler of a worker by its name, or by a capability that the worker's
/// handlers provide.
fn find_worker_target(worker: &WorkerInfo, task: &str) -> Result<TaskSpec, SpawnRefusal> {
    let has = |tag: &str| worker.capabilities.iter().any(|offered| offered == tag);
    if has(&routine_tag(task)) {
        return Ok(TaskSpec::new(Target::Routine(task.into())));
    }
    if has(&handler_tag(task)) {
        return Ok(TaskSpec::new(Target::Handler(task.into())));
    }
    match CapSet::from_people(task) {
        Ok(requires) if has(task) && has(&handler_tag(ANY_HANDLER)) => Ok(TaskSpec {
            requires,
            ..TaskSpec::new(Target::Handler(ANY_HANDLER.into()))
        }),
        _ => {
            let named = |tag: &str| {
                let name = tag
                    .strip_prefix("@routine:")
                    .or_else(|| tag.strip_prefix("@handler:"))?;
                (name != ANY_HANDLER).then(|| name.to_owned())
            };
            let known = worker.capabilities.iter().filter_map(named).collect();
            Err(SpawnRefusal::Unknown {
                task: task.into(),
                kind: worker.kind.clone(),
                known,
            })
        }
    }
}
