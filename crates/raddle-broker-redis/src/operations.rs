//! Operations on many tasks.
//!
//! A portion is read and decided here. One script then applies it and stores how far the operation
//! has come, if neither the operation nor one of the tasks has changed since. So any process may
//! advance an operation at any time.

use std::collections::HashSet;

use async_trait::async_trait;
use jiff::Timestamp;
use raddle_model::{ControlCommand, ControlMessage, TaskView, Tid};
use serde::Serialize;

use super::{
    Redis,
    change::{Change, Draft, Snapshot},
    connection::Certainty,
    log,
    query::{has_wanted_state, view},
    reclaim::TAKEOVER_MARGIN,
    record::{StoredSpec, key_of, stored},
    schema::Partition,
    script,
    submit::pack,
    value::{arg, tids},
};
use raddle_broker::{
    Error, NewTask, Operations, Result, TaskFilter,
    engine::serialize_spec,
    operations::{
        NewOperation, OperationAction, OperationState, OperationStep, OperationView, changes_state,
    },
};

/// The most tasks that one script looks at, which blocks the server meanwhile.
const AT_ONCE: u32 = 200;
/// The most retries of a portion before something must be wrong.
const TRIES: usize = 1000;
/// Precedes a request that was not advanced yet.
const NEW: &str = "new\n";

/// A step as `advance_operation.lua` expects it.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum TaskStep {
    /// Changes a waiting task.
    Change(Box<Change>),
    /// Sends a command to a task that a worker has.
    Command {
        tid: String,
        from: String,
        body: String,
    },
    /// Submits a finished task again.
    Retry {
        tid: String,
        done: String,
        key: String,
        /// The packed task, by its index in the arguments.
        task: usize,
    },
    /// Deletes a finished task.
    Delete { tid: String, done: String },
}

/// The steps of one script.
#[derive(Default)]
struct Portion {
    steps: Vec<TaskStep>,
    packed: Vec<Vec<u8>>,
    /// The unique keys of the tasks to submit.
    keys: HashSet<String>,
}

#[async_trait]
impl Operations for Redis {
    async fn start_operation(&self, operation: NewOperation) -> Result<Tid> {
        operation.validate()?;
        let request = serde_json::to_vec(&operation).expect("a request has only string keys");
        let id: String = self
            .link()
            .change(&script::START_OPERATION, vec![request], Certainty::Durable)
            .await?;
        id.parse().map_err(|_| Error::Closed)
    }

    async fn operations(&self, id: Option<Tid>, max: u32) -> Result<Vec<OperationView>> {
        if let Some(id) = id {
            let found = self.read_operation(id).await;
            return match found {
                Ok((_, operation)) => Ok(vec![operation]),
                Err(Error::NoOperation(_)) => Ok(Vec::new()),
                Err(error) => Err(error),
            };
        }
        let key = self.core.keys.named("operations");
        let ids: Vec<String> = self.link().read(redis::cmd("HKEYS").arg(key)).await?;
        let mut ids = tids(ids);
        ids.sort_unstable_by(|a, b| b.cmp(a));
        ids.truncate(max as usize);
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut get = redis::cmd("HMGET");
        get.arg(key);
        ids.iter().for_each(|id| _ = get.arg(id.to_string()));
        let stored: Vec<Option<String>> = self.link().read(&get).await?;
        ids.iter()
            .zip(stored)
            .filter_map(|(id, stored)| Some(parse(*id, &stored?)))
            .collect()
    }

    async fn advance_operation(&self, id: Tid, max: u32) -> Result<OperationView> {
        let mut looked_at = 0;
        loop {
            let most = max.saturating_sub(looked_at).min(AT_ONCE);
            let (operation, count) = self.advance_once(id, most).await?;
            looked_at = looked_at.saturating_add(count);
            if operation.state != OperationState::Running || looked_at >= max {
                return Ok(operation);
            }
        }
    }

    async fn cancel_operation(&self, id: Tid) -> Result<OperationView> {
        for _ in 0..TRIES {
            let (before, mut operation) = self.read_operation(id).await?;
            if operation.state != OperationState::Running {
                return Ok(operation);
            }
            operation.state = OperationState::Cancelled;
            operation.updated_at = Timestamp::now();
            if self
                .store_operation(&before, &operation, Portion::default())
                .await?
            {
                return Ok(operation);
            }
        }
        Err(self.keeps_changing(id))
    }
}

impl Redis {
    /// Applies one portion. Returns the operation, and how many tasks this call has looked at.
    async fn advance_once(&self, id: Tid, most: u32) -> Result<(OperationView, u32)> {
        for _ in 0..TRIES {
            let (before, mut operation) = self.read_operation(id).await?;
            if operation.state != OperationState::Running || most == 0 {
                return Ok((operation, 0));
            }
            let filter = operation.filter(most);
            let page = self.find(&filter).await?;
            // With its query in the fields, as it was found.
            let filter = filter.resolve(Timestamp::now()).unwrap_or_default();
            let mut portion = Portion::default();
            let ids: Vec<Tid> = page.tasks.iter().map(|task| task.tid).collect();
            let tasks = self.snapshots(&ids).await?;
            for tid in ids {
                let step = match tasks.get(&tid) {
                    Some(task) => self.decide(&operation, &filter, task, &mut portion).await?,
                    None => OperationStep::Changed,
                };
                operation.count(step);
            }
            operation.advance(page.looked_at, page.next, Timestamp::now());
            if self.store_operation(&before, &operation, portion).await? {
                let looked_at = u32::try_from(page.looked_at).unwrap_or(most);
                return Ok((operation, looked_at));
            }
        }
        Err(self.keeps_changing(id))
    }

    /// Decides about one task.
    async fn decide(
        &self,
        operation: &OperationView,
        filter: &TaskFilter,
        task: &Snapshot,
        portion: &mut Portion,
    ) -> Result<OperationStep> {
        let as_of = operation.request.as_of;
        let shown = match view(task) {
            Ok(shown) => shown,
            Err(error) => return Ok(OperationStep::Refused(error.to_string())),
        };
        let is_selected = has_wanted_state(filter, task) && filter.matches(&shown);
        if !is_selected || self.has_changed(task, as_of).await? {
            return Ok(OperationStep::Changed);
        }
        let refused = match &operation.request.action {
            OperationAction::Retry => self.retry(task, shown, portion).await?,
            OperationAction::Stop => end(task, ControlCommand::Stop, portion),
            OperationAction::Kill => end(task, ControlCommand::Kill, portion),
            OperationAction::Delete => delete(task, portion),
            OperationAction::Move { queue } => move_to(task, shown, queue, portion),
            _ => Err("this version does not know the action".into()),
        };
        Ok(refused.map_or_else(OperationStep::Refused, |()| OperationStep::Done))
    }

    /// Whether the state of a task has changed after an event.
    async fn has_changed(&self, task: &Snapshot, as_of: Tid) -> Result<bool> {
        let events = task
            .done
            .as_ref()
            .map_or(&task.record.events, |done| &done.events);
        if events
            .entries
            .last()
            .is_none_or(|last| *last <= as_of.as_u64())
        {
            return Ok(false);
        }
        let mut after = as_of.as_u64();
        loop {
            let range = log::of_one(self.link(), task.tid, after).await?;
            if range.events.iter().any(|event| changes_state(event.event)) {
                return Ok(true);
            }
            if !range.more {
                return Ok(false);
            }
            after = range.scanned;
        }
    }

    async fn retry(
        &self,
        task: &Snapshot,
        shown: TaskView,
        portion: &mut Portion,
    ) -> Result<Result<(), String>> {
        let (tid, dead) = (task.tid, shown.dead);
        let again = match NewTask::resubmit(shown, dead) {
            Ok(again) => again,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let key = key_of(&again.spec);
        if !key.is_empty() {
            let mut get = redis::cmd("HGET");
            get.arg(self.core.keys.named("unique_keys")).arg(&key);
            let holder: Option<String> = self.link().read(&get).await?;
            if let Some(holder) = holder.and_then(|holder| holder.parse().ok()) {
                return Ok(Err(Error::KeyTaken { tid, holder }.to_string()));
            }
            if !portion.keys.insert(key.clone()) {
                let taken = format!(
                    "task {tid} has the unique key of a newer task that is submitted again"
                );
                return Ok(Err(taken));
            }
        }
        let packed = match pack(&[again]) {
            Ok(packed) => packed,
            Err(error) => return Ok(Err(error.to_string())),
        };
        portion.packed.push(packed);
        portion.steps.push(TaskStep::Retry {
            tid: tid.to_string(),
            done: task.raw_done.clone(),
            key,
            task: portion.packed.len(),
        });
        Ok(Ok(()))
    }

    async fn read_operation(&self, id: Tid) -> Result<(String, OperationView)> {
        let mut get = redis::cmd("HGET");
        get.arg(self.core.keys.named("operations"))
            .arg(id.to_string());
        let stored: Option<String> = self.link().read(&get).await?;
        let stored = stored.ok_or(Error::NoOperation(id))?;
        let operation = parse(id, &stored)?;
        Ok((stored, operation))
    }

    /// Applies a portion and stores the operation; `false` if something has changed since it was
    /// read.
    async fn store_operation(
        &self,
        before: &str,
        operation: &OperationView,
        portion: Portion,
    ) -> Result<bool> {
        let json = |value: Result<Vec<u8>, _>| value.expect("steps have only string keys");
        let mut args = vec![
            arg(self.link().max_output()),
            arg(TAKEOVER_MARGIN.as_millis()),
            json(serde_json::to_vec(&portion.steps)),
            arg(operation.id),
            arg(before),
            json(serde_json::to_vec(operation)),
        ];
        args.extend(portion.packed);
        let answer: String = self
            .link()
            .change(&script::ADVANCE_OPERATION, args, Certainty::Durable)
            .await?;
        Ok(answer == "ok")
    }

    fn keeps_changing(&self, id: Tid) -> Error {
        Error::Server {
            place: self.link().target.place(),
            reason: format!("operation {id} keeps changing"),
        }
    }
}

/// Stops or kills a task that is not finished: here if it waits, or by a command to its worker.
fn end(task: &Snapshot, command: ControlCommand, portion: &mut Portion) -> Result<(), String> {
    let message = ControlMessage::new(command);
    if let Some(state) = task.end() {
        return Err(Error::Finished(task.tid, state).to_string());
    }
    portion.steps.push(if task.record.is_active() {
        TaskStep::Command {
            tid: task.tid.to_string(),
            from: task.raw.clone(),
            body: message.to_text(),
        }
    } else {
        let mut draft = Draft::new(task);
        draft.apply_command(&message);
        TaskStep::Change(Box::new(draft.change(&mut Vec::new())))
    });
    Ok(())
}

fn delete(task: &Snapshot, portion: &mut Portion) -> Result<(), String> {
    let tid = task.tid;
    if task.end().is_none() {
        let state = task.state();
        return Err(format!(
            "task {tid} is {state}: it cannot be deleted before its end"
        ));
    }
    portion.steps.push(TaskStep::Delete {
        tid: tid.to_string(),
        done: task.raw_done.clone(),
    });
    Ok(())
}

fn move_to(
    task: &Snapshot,
    shown: TaskView,
    queue: &str,
    portion: &mut Portion,
) -> Result<(), String> {
    let tid = task.tid;
    if task.end().is_some() || task.record.is_active() {
        return Err(Error::NotWaiting(tid, task.state()).to_string());
    }
    let mut spec = shown.spec;
    if spec.queue == queue {
        return Ok(());
    }
    queue.clone_into(&mut spec.queue);
    let header = StoredSpec::parse(tid, &task.stored).map_err(|error| error.to_string())?;
    let json = serialize_spec(&spec).map_err(|error| error.to_string())?;
    let ttl = std::time::Duration::from_millis(header.ttl);
    let text = stored(&spec, header.parent, false, ttl, &json);
    let mut draft = Draft::new(task);
    draft.move_to(Partition::name_of(&spec), text);
    portion
        .steps
        .push(TaskStep::Change(Box::new(draft.change(&mut Vec::new()))));
    Ok(())
}

/// Parses a stored operation.
fn parse(id: Tid, stored: &str) -> Result<OperationView> {
    let unreadable = |error: serde_json::Error| Error::Record {
        tid: id,
        reason: format!("the operation cannot be parsed: {error}"),
    };
    match stored.strip_prefix(NEW) {
        Some(request) => Ok(OperationView::new(
            id,
            serde_json::from_str(request).map_err(unreadable)?,
        )),
        None => serde_json::from_str(stored).map_err(unreadable),
    }
}
