//! Who is asked: a live manager that lists the task, the least loaded first. A pure decision.

use super::{PRIME, Refusal, Request, WORKER, Wish, name_of};
use crate::{
    CapSet, Retry, Span, Spec, Target, Tid, WorkerEntry,
    queue_name::{WAITING, requests},
    spec::{ANY_HANDLER, handler_tag, is_label, routine_tag},
    worker::WorkerInfo,
};

/// A request, as it is submitted.
#[derive(Clone, Debug, PartialEq)]
pub struct Errand {
    /// The task that it is.
    pub spec: Spec,
    /// The manager that it is left to, if one lives.
    pub parent: Option<Tid>,
}

/// How often a manager that dies is started again.
const RESTARTS: u32 = 1000;
const LONGEST_PAUSE: Span = Span::secs(30);

/// The managers among those that are alive, the least loaded first. Those that take nothing at present are left out.
pub fn managers(workers: &[WorkerEntry]) -> Vec<&WorkerEntry> {
    let mut managers: Vec<_> = workers.iter().filter(|entry| entry.info.is_manager() && entry.status.takes()).collect();
    managers.sort_by(|a, b| a.load.total_cmp(&b.load).then(a.tid.cmp(&b.tid)));
    managers
}

/// The task that a message to the managers of a type is, whatever it says: what is wrong with it is told by who takes it.
pub fn admit(kind: &str, text: String, workers: &[WorkerEntry]) -> Errand {
    let managers = managers(workers);
    let serving =
        |queue: &str| managers.iter().find(|entry| entry.info.requests() == Some(queue)).map(|entry| entry.tid);
    let own = requests(kind);
    let left_to = |spec: Spec| Errand { parent: serving(&spec.queue), spec };
    let bare = |name: &str, text: String| Spec {
        name: Some(name.into()),
        queue: own.clone(),
        ..Spec::new(Target::Request(text))
    };
    let Ok(Request { wish, wait, priority, .. }) = Request::parse(&text) else {
        return left_to(bare("request", text));
    };
    let task = match wish {
        Wish::Spec(spec) if kind == PRIME => return left_to(Spec { queue: own, ..*spec }),
        Wish::Spec(_) => return left_to(bare("request", text)),
        Wish::Task(task, params) => (task, params),
    };
    let (task, params) = task;
    let mut spec = bare(if is_label(&task) { &task } else { "request" }, text);
    spec.priority = priority.unwrap_or(spec.priority);
    if kind != PRIME {
        return left_to(spec);
    }
    if task == WORKER {
        let of = params.get("type").and_then(|kind| kind.as_str()).filter(|kind| super::parse_type(kind).is_ok());
        spec.name = of.map(name_of).or(spec.name);
        // It is kept alive: whatever ends it but a stop on request, it begins again.
        spec.retry = Retry { attempts: RESTARTS, max: LONGEST_PAUSE, ..Retry::default() };
        return left_to(spec);
    }
    let Ok(needs) = CapSet::from_people(&task) else { return left_to(spec) };
    let listing = managers.iter().find(|entry| !needs.is_empty() && needs.is_subset(&entry.info.capabilities));
    match listing.and_then(|entry| Some((entry.tid, entry.info.requests()?))) {
        Some((tid, queue)) => {
            // Whoever takes it has to list it: the one that is meant may be gone by then.
            Errand { spec: Spec { queue: queue.into(), requires: needs, ..spec }, parent: Some(tid) }
        }
        None if wait => Errand { spec: Spec { queue: WAITING.into(), requires: needs, ..spec }, parent: None },
        None => left_to(spec),
    }
}

/// The task that a message to the inbox of a worker is. It waits in the first queue that the worker serves, where others may take it as well.
pub fn admit_to_worker(worker: &WorkerInfo, text: &str) -> Result<Spec, Refusal> {
    let Request { wish, priority, timeout, limits, .. } = Request::parse(text)?;
    let asked = match wish {
        Wish::Spec(spec) => *spec,
        Wish::Task(task, params) => {
            let spec = offered(worker, &task)?;
            Spec { name: is_label(&task).then_some(task), kwargs: params, timeout, limits, ..spec }
        }
    };
    let queue = worker.queues.first().cloned().unwrap_or_else(|| asked.queue.clone());
    let spec = Spec { queue, priority: priority.unwrap_or(asked.priority), ..asked };
    spec.validate()?;
    Ok(spec)
}

/// The routine or handler of a worker that is asked for by its name, or by a capability that its handlers provide.
fn offered(worker: &WorkerInfo, task: &str) -> Result<Spec, Refusal> {
    let has = |tag: &str| worker.capabilities.iter().any(|offered| offered == tag);
    if has(&routine_tag(task)) {
        return Ok(Spec::new(Target::Routine(task.into())));
    }
    if has(&handler_tag(task)) {
        return Ok(Spec::new(Target::Handler(task.into())));
    }
    match CapSet::from_people(task) {
        Ok(requires) if has(task) && has(&handler_tag(ANY_HANDLER)) => {
            Ok(Spec { requires, ..Spec::new(Target::Handler(ANY_HANDLER.into())) })
        }
        _ => {
            let named = |tag: &str| {
                let name = tag.strip_prefix("@routine:").or_else(|| tag.strip_prefix("@handler:"))?;
                (name != ANY_HANDLER).then(|| name.to_owned())
            };
            let known = worker.capabilities.iter().filter_map(named).collect();
            Err(Refusal::Unknown { task: task.into(), kind: worker.kind.clone(), known })
        }
    }
}
