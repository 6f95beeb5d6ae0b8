//! Running a function, in the process that was forked for it.

use std::{
    fs::File,
    future::Future,
    panic::{self, AssertUnwindSafe, PanicHookInfo},
    sync::{Mutex, PoisonError},
};

use raddle_model::{
    AttemptInput, ReplyLine,
    reply::ReportedError,
    routine::{RoutineFn, RoutineInput, gather, has_lifecycle_hooks, run_shutdown, run_startup},
};
use serde_json::Value;

use super::{Routines, context};
use crate::handler;

/// The exit code of a process whose function has failed. Why it did is in the answer.
const FAILED: i32 = 1;

/// Where the last panic happened. It is only known while it is being reported.
static PANICKED_AT: Mutex<Option<String>> = Mutex::new(None);

/// Calls the function of this program that `name` names, with the job in `input`: a [`raddle_runner::FunctionCall`].
pub fn call(name: &str, input: Vec<u8>, reply: File) -> i32 {
    context::open(reply);
    panic::set_hook(Box::new(note_place));
    let outcome = match panic::catch_unwind(AssertUnwindSafe(|| run(name, &input))) {
        Ok(outcome) => outcome,
        Err(thrown) => Err(ReportedError {
            message: said(&*thrown),
            panicked_at: Some(place()),
            permanent: false,
            value: None,
        }),
    };
    let code = if outcome.is_ok() { 0 } else { FAILED };
    match context::say(&outcome.map_or_else(ReplyLine::Error, ReplyLine::Result)) {
        Ok(()) => code,
        // Nobody listens any more: the worker is gone, and with it who wanted to know.
        Err(_) => FAILED,
    }
}

fn run(name: &str, input: &[u8]) -> Result<Value, ReportedError> {
    let job: AttemptInput = serde_json::from_slice(input)
        .map_err(|error| cannot(format!("the task is unreadable: {error}")))?;
    let routines = Routines::of_this_program().map_err(|clash| cannot(clash.to_string()))?;
    if let Some(routine) = routines.get(name) {
        let given = RoutineInput::Job(Box::new(job));
        if has_lifecycle_hooks() {
            return run_with_hooks(&routine.run, given);
        }
        return match routine.run {
            RoutineFn::Plain(function) => Ok(function(given)?.into_json()?),
            // Called in the runtime: what makes a stream may make timers for it.
            RoutineFn::Async(function) => wait(async { Ok(function(given)?.await?.into_json()?) }),
            RoutineFn::Stream(function) => wait(async { Ok(gather(function(given)?).await?) }),
        };
    }
    let handler =
        handler::of_this_program().find(|handler| handler::function_name(&handler.name()) == name);
    let handler = handler.ok_or_else(|| cannot(format!("this program has no '{name}'")))?;
    wait(handler.handle(job, handler::HandlerContext))
}

/// Runs a function between the program's start-up and shutdown functions, as a host does.
fn run_with_hooks(run: &RoutineFn, given: RoutineInput<'_>) -> Result<Value, ReportedError> {
    let runtime = runtime()?;
    runtime
        .block_on(run_startup())
        .map_err(|error| cannot(error.to_string()))?;
    let outcome = match run {
        RoutineFn::Plain(function) => function(given)
            .and_then(|output| output.into_json())
            .map_err(ReportedError::from),
        RoutineFn::Async(function) => {
            runtime.block_on(async { Ok(function(given)?.await?.into_json()?) })
        }
        RoutineFn::Stream(function) => {
            runtime.block_on(async { Ok(gather(function(given)?).await?) })
        }
    };
    for failure in runtime.block_on(run_shutdown()) {
        eprintln!("{failure}");
    }
    outcome
}

fn wait(
    running: impl Future<Output = Result<Value, ReportedError>>,
) -> Result<Value, ReportedError> {
    // One thread: a second would cost every short function its start. Whoever needs more can have them.
    runtime()?.block_on(running)
}

fn runtime() -> Result<tokio::runtime::Runtime, ReportedError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.map_err(|error| cannot(format!("no runtime: {error}")))
}

fn cannot(message: String) -> ReportedError {
    ReportedError {
        message,
        panicked_at: None,
        permanent: false,
        value: None,
    }
}

fn note_place(info: &PanicHookInfo<'_>) {
    // For the task's log, with a backtrace if that was asked for.
    eprintln!("{info}");
    let backtrace = std::backtrace::Backtrace::capture();
    if backtrace.status() == std::backtrace::BacktraceStatus::Captured {
        eprintln!("{backtrace}");
    }
    let place = info.location().map(ToString::to_string);
    *PANICKED_AT.lock().unwrap_or_else(PoisonError::into_inner) = place;
}

fn place() -> String {
    let place = PANICKED_AT
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    place.unwrap_or_else(|| "an unknown place".into())
}

fn said(thrown: &(dyn std::any::Any + Send)) -> String {
    let text = thrown.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| thrown.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a word".into())
}
