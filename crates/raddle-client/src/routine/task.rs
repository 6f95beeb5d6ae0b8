//! `RoutineTask`: builds a task that calls a routine, and submits, chains or schedules it.

use std::{fmt, future::Future, marker::PhantomData, sync::Arc, time::Duration};

use raddle_broker::{Broker, Error, NewTask, Result};
use raddle_model::{
    CapSet, HumanDuration, Target, TaskSpec, Trace, schedule,
    spec::{InvalidSpec, Isolation},
};
use serde::Serialize;
use serde_json::Value;

use super::{ChainError, TaskHandle, chain};
use crate::schedule::PutOutcome;

/// A task that runs a routine with a result of type `T`.
#[must_use = "a task that is not submitted never runs"]
pub struct RoutineTask<T> {
    spec: TaskSpec,
    /// Why an argument could not be serialised.
    invalid_argument: Option<String>,
    result: PhantomData<fn() -> T>,
}

impl<T> RoutineTask<T> {
    /// A task for the routine of this name.
    pub fn new(routine: &str) -> Self {
        Self {
            spec: TaskSpec::new(Target::Routine(routine.into())),
            invalid_argument: None,
            result: PhantomData,
        }
    }

    /// Adds an argument. `name` is used in error messages.
    pub fn argument(mut self, name: &str, value: &impl Serialize) -> Self {
        match serde_json::to_value(value) {
            Ok(value) => self.spec.args.push(value),
            Err(error) => {
                self.spec.args.push(Value::Null);
                self.invalid_argument.get_or_insert(format!(
                    "the argument '{name}' cannot be written as JSON: {error}"
                ));
            }
        }
        self
    }

    /// Gives each attempt a process of its own, instead of a share in a host.
    pub fn in_own_process(self) -> Self {
        self.with(|spec| spec.isolation = Some(Isolation::Process))
    }

    /// The most attempts.
    pub fn retry(self, attempts: u32) -> Self {
        self.with(|spec| spec.retry.attempts = attempts)
    }

    /// The queue.
    pub fn queue(self, queue: impl Into<String>) -> Self {
        self.with(|spec| spec.queue = queue.into())
    }

    /// Priority from 0 to 9. Higher runs first.
    pub fn priority(self, priority: u8) -> Self {
        self.with(|spec| spec.priority = priority)
    }

    /// Timeout of one attempt.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|spec| spec.timeout = Some(HumanDuration(timeout)))
    }

    /// Delay before the first attempt.
    pub fn delay(self, delay: Duration) -> Self {
        self.with(|spec| spec.delay = Some(HumanDuration(delay)))
    }

    /// How long the task may wait for a worker before it expires.
    pub fn lifetime(self, lifetime: Duration) -> Self {
        self.with(|spec| spec.lifetime = Some(HumanDuration(lifetime)))
    }

    /// Capabilities that a worker must offer.
    pub fn requires(self, caps: CapSet) -> Self {
        self.with(|spec| spec.requires = caps)
    }

    /// While an unfinished task has this key, submitting returns that task.
    pub fn unique_key(self, key: impl Into<String>) -> Self {
        self.with(|spec| spec.unique_key = Some(key.into()))
    }

    /// The trace that the task belongs to. Default: the trace of the submitting process.
    pub fn trace(self, trace: Trace) -> Self {
        self.with(|spec| (spec.traceparent, spec.tracestate) = (Some(trace.parent), trace.state))
    }

    /// Changes any other field.
    pub fn with(mut self, change: impl FnOnce(&mut TaskSpec)) -> Self {
        change(&mut self.spec);
        self
    }

    /// The spec so far.
    pub fn spec(&self) -> &TaskSpec {
        &self.spec
    }

    /// Stores a schedule that submits the task repeatedly. A schedule of this name is replaced if
    /// it differs and kept if it is the same, so a program may call this at each start.
    ///
    /// ```no_run
    /// # use std::{sync::Arc, time::Duration};
    /// # use raddle_broker::Broker;
    /// # use raddle_model::{Schedule, schedule::MissedPolicy};
    /// # use raddle_client::{routine::RoutineTask, schedule::Error};
    /// # async fn nightly(broker: Arc<dyn Broker>, report: impl Fn(&str) -> RoutineTask<()>) -> Result<(), Error> {
    /// let when = Schedule::cron("nightly", "0 3 * * 1-5").timezone("Europe/Berlin").missed(MissedPolicy::Skip);
    /// report("everything").retry(3).schedule(&broker, when).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn schedule(
        self,
        broker: &Arc<dyn Broker>,
        when: schedule::NewSchedule,
    ) -> impl Future<Output = Result<PutOutcome, crate::schedule::Error>> + use<T> {
        let broker = Arc::clone(broker);
        async move {
            let spec = self.checked()?;
            crate::schedule::put(&*broker, when.task(spec)?, true).await
        }
    }

    /// Chains the task to the one that this process runs: it is submitted if that succeeds, in the
    /// same transaction. See [`chain`](super::chain()).
    pub fn chain(self) -> Result<(), ChainError> {
        chain(self.checked()?)
    }

    /// Returns the spec, or an error for an argument that could not be serialised.
    fn checked(self) -> Result<TaskSpec, InvalidSpec> {
        match self.invalid_argument {
            Some(reason) => Err(InvalidSpec {
                path: "args".into(),
                reason,
            }),
            None => Ok(self.spec),
        }
    }

    /// Submits the task. It is durable when this returns.
    pub fn submit(
        self,
        broker: &Arc<dyn Broker>,
    ) -> impl Future<Output = Result<TaskHandle<T>>> + use<T> {
        let broker = Arc::clone(broker);
        async move {
            let mut spec = self.checked().map_err(Error::Invalid)?;
            if let Some(Trace { parent, state }) = super::trace()
                && spec.traceparent.is_none()
            {
                (spec.traceparent, spec.tracestate) = (Some(parent), state);
            }
            let submitted = broker.submit(vec![NewTask::new(spec)]).await?;
            let tid = submitted
                .first()
                .map(|stored| stored.tid())
                .ok_or(Error::Closed)?;
            Ok(TaskHandle::new(broker, tid))
        }
    }
}

impl<T> fmt::Debug for RoutineTask<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("spec", &self.spec)
            .finish_non_exhaustive()
    }
}
