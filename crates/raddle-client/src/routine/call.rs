//! Calling a routine or handler, in the process that was forked for it.

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

/// Exit code of a process whose function failed. The reply has the reason.
const FAILED: i32 = 1;

/// Location of the last panic. Only the panic hook gets it.
static PANIC_LOCATION: Mutex<Option<String>> = Mutex::new(None);

/// Calls the function `name` of this program with `input`, a serialised
/// [`raddle_runner::FunctionCall`], and writes the reply. Returns the exit code.
pub fn call_function(name: &str, input: Vec<u8>, reply: File) -> i32 {
    context::open_reply(reply);
    panic::set_hook(Box::new(record_panic));
    let outcome = match panic::catch_unwind(AssertUnwindSafe(|| run_function(name, &input))) {
        Ok(outcome) => outcome,
        Err(payload) => Err(ReportedError {
            message: panic_message(&*payload),
            panicked_at: Some(take_panic_location()),
            permanent: false,
            value: None,
        }),
    };
    let code = if outcome.is_ok() { 0 } else { FAILED };
    match context::write_line(&outcome.map_or_else(ReplyLine::Error, ReplyLine::Result)) {
        Ok(()) => code,
        // The worker is gone, so there is no reader for the reply.
        Err(_) => FAILED,
    }
}

fn run_function(name: &str, input: &[u8]) -> Result<Value, ReportedError> {
    let job: AttemptInput = serde_json::from_slice(input)
        .map_err(|error| plain_error(format!("the task is unreadable: {error}")))?;
    let routines = Routines::of_this_program().map_err(|clash| plain_error(clash.to_string()))?;
    if let Some(routine) = routines.get(name) {
        let input = RoutineInput::Job(Box::new(job));
        if has_lifecycle_hooks() {
            return run_with_hooks(&routine.run, input);
        }
        return match routine.run {
            RoutineFn::Plain(function) => Ok(function(input)?.into_json()?),
            // Called inside the runtime, because the constructor of a stream may create timers.
            RoutineFn::Async(function) => {
                block_on(async { Ok(function(input)?.await?.into_json()?) })
            }
            RoutineFn::Stream(function) => block_on(async { Ok(gather(function(input)?).await?) }),
        };
    }
    let handler =
        handler::of_this_program().find(|handler| handler::function_name(&handler.name()) == name);
    let handler = handler.ok_or_else(|| plain_error(format!("this program has no '{name}'")))?;
    block_on(handler.handle(job, handler::HandlerContext))
}

/// Runs a function between the program's start-up and shutdown functions, as a host does.
fn run_with_hooks(run: &RoutineFn, input: RoutineInput<'_>) -> Result<Value, ReportedError> {
    let runtime = runtime()?;
    runtime
        .block_on(run_startup())
        .map_err(|error| plain_error(error.to_string()))?;
    let outcome = match run {
        RoutineFn::Plain(function) => function(input)
            .and_then(|output| output.into_json())
            .map_err(ReportedError::from),
        RoutineFn::Async(function) => {
            runtime.block_on(async { Ok(function(input)?.await?.into_json()?) })
        }
        RoutineFn::Stream(function) => {
            runtime.block_on(async { Ok(gather(function(input)?).await?) })
        }
    };
    for failure in runtime.block_on(run_shutdown()) {
        eprintln!("{failure}");
    }
    outcome
}

fn block_on(
    running: impl Future<Output = Result<Value, ReportedError>>,
) -> Result<Value, ReportedError> {
    // One thread: a second one would cost every short function its start. A function that needs
    // more can start its own runtime.
    runtime()?.block_on(running)
}

fn runtime() -> Result<tokio::runtime::Runtime, ReportedError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.map_err(|error| plain_error(format!("no runtime: {error}")))
}

fn plain_error(message: String) -> ReportedError {
    ReportedError {
        message,
        panicked_at: None,
        permanent: false,
        value: None,
    }
}

fn record_panic(info: &PanicHookInfo<'_>) {
    // For the task's log, with a backtrace if RUST_BACKTRACE is set.
    eprintln!("{info}");
    let backtrace = std::backtrace::Backtrace::capture();
    if backtrace.status() == std::backtrace::BacktraceStatus::Captured {
        eprintln!("{backtrace}");
    }
    let location = info.location().map(ToString::to_string);
    *PANIC_LOCATION
        .lock()
        .unwrap_or_else(PoisonError::into_inner) = location;
}

fn take_panic_location() -> String {
    let location = PANIC_LOCATION
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    location.unwrap_or_else(|| "an unknown location".into())
}

fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "the panic payload is not a string".into())
}
