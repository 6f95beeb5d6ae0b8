//! A call of a routine as a task: described, then submitted.

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

/// A task that will run a routine and give back a `T`.
#[must_use = "a task that is not submitted never runs"]
pub struct RoutineTask<T> {
    spec: TaskSpec,
    /// An argument that cannot be written down.
    refused: Option<String>,
    result: PhantomData<fn() -> T>,
}

impl<T> RoutineTask<T> {
    /// A task for the routine of this name.
    pub fn new(routine: &str) -> Self {
        Self {
            spec: TaskSpec::new(Target::Routine(routine.into())),
            refused: None,
            result: PhantomData,
        }
    }

    /// Adds an argument, which the routine calls `name`.
    pub fn argument(mut self, name: &str, value: &impl Serialize) -> Self {
        match serde_json::to_value(value) {
            Ok(value) => self.spec.args.push(value),
            Err(error) => {
                self.spec.args.push(Value::Null);
                self.refused.get_or_insert(format!(
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

    /// How often it may be tried.
    pub fn retry(self, attempts: u32) -> Self {
        self.with(|spec| spec.retry.attempts = attempts)
    }

    /// The queue it waits in.
    pub fn queue(self, queue: impl Into<String>) -> Self {
        self.with(|spec| spec.queue = queue.into())
    }

    /// From 0 to 9; higher runs first.
    pub fn priority(self, priority: u8) -> Self {
        self.with(|spec| spec.priority = priority)
    }

    /// How long one attempt may take.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|spec| spec.timeout = Some(HumanDuration(timeout)))
    }

    /// How long to wait before the first attempt.
    pub fn delay(self, delay: Duration) -> Self {
        self.with(|spec| spec.delay = Some(HumanDuration(delay)))
    }

    /// How long it may wait for a worker. After that it expires, and is never run.
    pub fn lifetime(self, lifetime: Duration) -> Self {
        self.with(|spec| spec.lifetime = Some(HumanDuration(lifetime)))
    }

    /// What a worker must offer.
    pub fn requires(self, caps: CapSet) -> Self {
        self.with(|spec| spec.requires = caps)
    }

    /// While a task with this key is not finished, submitting another gives the first.
    pub fn unique_key(self, key: impl Into<String>) -> Self {
        self.with(|spec| spec.unique_key = Some(key.into()))
    }

    /// The trace it belongs to. Else it is that of the process that submits it, if it has one.
    pub fn trace(self, trace: Trace) -> Self {
        self.with(|spec| (spec.traceparent, spec.tracestate) = (Some(trace.parent), trace.state))
    }

    /// Changes anything else.
    pub fn with(mut self, change: impl FnOnce(&mut TaskSpec)) -> Self {
        change(&mut self.spec);
        self
    }

    /// What it is to do.
    pub fn spec(&self) -> &TaskSpec {
        &self.spec
    }

    /// Has it submitted again and again. A schedule of this name that says something else is replaced; one that says the same goes on as it is,
    /// so that a program may say this whenever it starts.
    ///
    /// ```no_run
    /// # use std::{sync::Arc, time::Duration};
    /// # use raddle_broker::Broker;
    /// # use raddle_model::{Schedule, schedule::MissedPolicy};
    /// # use raddle_worker::{routine::RoutineTask, schedule::Error};
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

    /// Lets it follow the task that this process runs: it is submitted if that succeeds, in the same step. See [`chain`](super::chain()).
    pub fn chain(self) -> Result<(), ChainError> {
        chain(self.checked()?)
    }

    /// The spec, unless an argument could not be written down.
    fn checked(self) -> Result<TaskSpec, InvalidSpec> {
        match self.refused {
            Some(reason) => Err(InvalidSpec {
                path: "args".into(),
                reason,
            }),
            None => Ok(self.spec),
        }
    }

    /// Stores it. When this returns, the task will run.
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
