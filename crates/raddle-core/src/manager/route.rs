//! Who is asked: a live manager that lists the task, the least loaded first. A pure decision.

use super::{PRIME, Request, WORKER, Wish, name_of};
use crate::{
    CapSet, Retry, Span, Spec, Target, Tid, WorkerEntry,
    queue_name::{WAITING, requests},
    spec::is_label,
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
