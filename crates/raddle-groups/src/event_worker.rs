//! `EventWorker`: a worker of a group as a type whose value lives as long as its process.

use std::{any::type_name, future::Future, marker::PhantomData, pin::Pin, sync::Arc};

use raddle_model::{
    AttemptInput,
    routine::{
        RoutineFailure, RoutineFuture, RoutineInput, RoutineOutput, State, StateValue, set_state,
        state, take_state,
    },
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Mutex;

use super::GroupWorker;

/// An error of an event worker: any error.
pub type EventError = Box<dyn std::error::Error + Send + Sync>;

/// A worker of a group with state: [`startup`](Self::startup) makes its value once in each process,
/// [`handle`](Self::handle) runs for each event, and [`shutdown`](Self::shutdown) consumes the
/// value. `raddle::event_worker!(Mail);` registers it, and [`Process::hosting`](super::Process::hosting)
/// makes a process run it.
pub trait EventWorker: Sized + Send + Sync + 'static {
    /// What an event is read as: the object or the list that its message is, or its only value. An
    /// event without a message is `null`.
    type Event: DeserializeOwned + Send;

    /// Its slug, sources, timeout and the rest, without a command or routine.
    fn settings() -> GroupWorker;

    /// Makes the value, before the first event.
    fn startup() -> impl Future<Output = Result<Self, EventError>> + Send;

    /// Handles one event. At a cancellation the future is dropped, unless it looks at
    /// `raddle::cancelled()`.
    fn handle(&self, event: Self::Event) -> impl Future<Output = Result<(), EventError>> + Send;

    /// Closes what the value holds, after the last event.
    fn shutdown(self) -> impl Future<Output = Result<(), EventError>> + Send {
        std::future::ready(Ok(()))
    }
}

/// The state of a process that was not started for events of `W`.
struct NotServed<W>(PhantomData<fn() -> W>);

/// An event worker that is registered with the program. `raddle::event_worker!` implements it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not registered as an event worker",
    note = "write `raddle::event_worker!({Self});` beside its `impl EventWorker`"
)]
pub trait RegisteredEventWorker: EventWorker {
    /// The name of the routine that handles its events.
    const ROUTINE: &'static str;
}

/// Handles an event, as a routine of the program.
pub fn handle_event<W: EventWorker>(
    input: RoutineInput<'_>,
) -> Result<RoutineFuture, RoutineFailure> {
    let RoutineInput::Job(job) = input else {
        let reason = "events are tasks: write a message to a source, or submit one";
        return Err(RoutineFailure::Unfit(reason.into()));
    };
    let event = serde_json::from_value(event_of(*job)).map_err(|error| {
        RoutineFailure::Unfit(format!(
            "the event is no {}: {error}",
            type_name::<W::Event>()
        ))
    })?;
    Ok(Box::pin(async move {
        let handled = match started::<W>().await {
            Ok(worker) => worker.handle(event).await,
            Err(error) => Err(error),
        };
        match handled {
            Ok(()) => Ok(RoutineOutput::Json(Value::Null)),
            Err(error) => Err(RoutineFailure::Failed {
                message: with_causes(&*error),
                value: None,
            }),
        }
    }))
}

/// The value of a worker. A process that was not started for its slug makes it now.
async fn started<W: EventWorker>() -> Result<State<W>, EventError> {
    static STARTING: Mutex<()> = Mutex::const_new(());
    if let Some(worker) = state::<W>() {
        return Ok(worker);
    }
    let _one_at_a_time = STARTING.lock().await;
    match state::<W>() {
        Some(worker) => Ok(worker),
        None => Ok(set_state(W::startup().await?)),
    }
}

/// Makes the value of a worker, if this process is a host for its events.
pub fn start_up<W: EventWorker>() -> Pin<Box<dyn Future<Output = Result<StateValue, String>> + Send>>
{
    Box::pin(async {
        if !is_served(&W::settings().slug) {
            return Ok(Arc::new(NotServed::<W>(PhantomData)) as StateValue);
        }
        let worker = W::startup().await.map_err(|error| with_causes(&*error))?;
        Ok(Arc::new(worker) as StateValue)
    })
}

/// Shuts a worker down, if it was started.
pub fn shut_down<W: EventWorker>() -> Pin<Box<dyn Future<Output = Result<(), String>> + Send>> {
    Box::pin(async {
        let Some(worker) = take_state::<W>() else {
            return Ok(());
        };
        let worker =
            Arc::try_unwrap(worker).map_err(|_| "an event is still being handled".to_owned())?;
        worker
            .shutdown()
            .await
            .map_err(|error| with_causes(&*error))
    })
}

/// Whether this process is a host of a worker that serves this queue.
fn is_served(slug: &str) -> bool {
    std::env::var(raddle_worker::host::QUEUES_VARIABLE)
        .is_ok_and(|queues| queues.split(',').any(|queue| queue == slug))
}

/// The arguments of a task as the event that they were made from.
fn event_of(job: AttemptInput) -> Value {
    let (mut args, kwargs) = (job.spec.args.clone(), job.spec.kwargs.clone());
    match args.len() {
        0 if kwargs.is_empty() => Value::Null,
        0 => Value::Object(kwargs),
        1 => args.remove(0),
        _ => Value::Array(args),
    }
}

fn with_causes(error: &(dyn std::error::Error + Send + Sync + 'static)) -> String {
    use std::fmt::Write;
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use raddle_model::{Target, TaskSpec, Tid};
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_what_its_message_was() {
        let event = |args: Vec<Value>, kwargs: Value| {
            let mut spec = TaskSpec::new(Target::Routine("mail".into()));
            spec.args = args;
            spec.kwargs = kwargs.as_object().cloned().unwrap_or_default();
            let tid = Tid::from_u64(1_794_785_197_224_973_287).unwrap();
            event_of(AttemptInput::new(tid, 1, spec))
        };
        assert_eq!(event(vec![], Value::Null), Value::Null);
        assert_eq!(event(vec![], json!({"item": 1})), json!({"item": 1}));
        assert_eq!(event(vec![json!("loom")], Value::Null), json!("loom"));
        assert_eq!(event(vec![json!(1), json!(2)], Value::Null), json!([1, 2]));
    }
}
