//! The end of a task as JSON and as an exit code.

use std::time::Duration;

use jiff::Timestamp;
use raddle_broker::{Broker, OutputStream};
use raddle_model::{AttemptReport, ExitStatus, TaskEventKind, TaskSpec, TaskState, TaskView, Tid};
use serde_json::{Map, Value, json};

use crate::{
    context::Context,
    error::{INTERRUPTED, KILLED, Outcome, RADDLE, TASK_FAILED, TIMED_OUT},
    format, output,
};

/// How much of each stream goes into JSON. `raddle logs` prints all of it.
const MAX_TEXT: usize = 16 * 1024 * 1024;
const AT_ONCE: u32 = 256 * 1024;
const EVENTS_AT_ONCE: u32 = 1000;
/// Used where no event says more.
pub(crate) const OUTPUT_LOST: &str = "some of its output could not be kept";

/// The exit code of `run` and `result`.
pub(crate) fn exit_code(state: TaskState, report: Option<&AttemptReport>) -> u8 {
    match state {
        TaskState::Timeout => TIMED_OUT,
        TaskState::Cancelled if report.is_some_and(|report| report.exit == ExitStatus::Expired) => {
            TIMED_OUT
        }
        TaskState::Cancelled => INTERRUPTED,
        TaskState::Killed => KILLED,
        _ => match report {
            // A code that does not fit into a byte must not turn a failure into a success.
            Some(report) => u8::try_from(report.exit.shell_code()).unwrap_or(TASK_FAILED),
            None => RADDLE,
        },
    }
}

/// A sentence about the end of a task, where its exit code does not say enough.
pub(crate) fn remark(tid: Tid, spec: &TaskSpec, report: Option<&AttemptReport>) -> Option<String> {
    match &report?.exit {
        ExitStatus::Code { .. } => None,
        ExitStatus::Timeout => {
            let limit = spec.timeout.map(|t| format!(" of {t}")).unwrap_or_default();
            Some(format!("task {tid} ran past its timeout{limit}"))
        }
        ExitStatus::NotFound { message }
        | ExitStatus::NotExecutable { message }
        | ExitStatus::SpawnFailed { message } => Some(message.clone()),
        exit => Some(format!("task {tid}: {exit}")),
    }
}

/// A task as JSON: the record, with derived fields.
pub(crate) fn task_json(task: &TaskView) -> Map<String, Value> {
    let Ok(Value::Object(mut fields)) = serde_json::to_value(task) else {
        unreachable!("a task serializes as an object");
    };
    // Every task has the same keys; unknown values are null.
    for key in [
        "run_at",
        "parent",
        "worker",
        "pid",
        "claimed_at",
        "finished_at",
        "report",
    ] {
        fields.entry(key).or_insert(Value::Null);
    }
    fields.insert("short".into(), task.tid.short().to_string().into());
    fields.insert("name".into(), task.spec.display_name().into());
    fields.insert(
        "exit_code".into(),
        task.report
            .as_ref()
            .map(|report| exit_code(task.state, Some(report)))
            .into(),
    );
    let took = format::took(task, Timestamp::now()).map(|took| took.as_secs_f64());
    fields.insert("duration_seconds".into(), took.into());
    fields
}

/// A finished task as JSON, with the output of its last attempt.
pub(crate) async fn result_json(broker: &dyn Broker, task: &TaskView) -> Outcome<Value> {
    let mut fields = task_json(task);
    for (stream, name) in [
        (OutputStream::Stdout, "stdout"),
        (OutputStream::Stderr, "stderr"),
    ] {
        let (bytes, whole) = read(broker, task, stream).await?;
        fields.insert(name.into(), String::from_utf8_lossy(&bytes).into());
        fields.insert(format!("{name}_complete"), whole.into());
    }
    fields.insert(
        "error".into(),
        json!(remark(task.tid, &task.spec, task.report.as_ref())),
    );
    Ok(fields.into())
}

/// The return value of a routine or handler. `null`, from a routine without a value, is left out.
pub(crate) fn returned(report: Option<&AttemptReport>) -> Option<&Value> {
    report?.value.as_ref().filter(|value| !value.is_null())
}

/// Prints the output of a task's last attempt, and its return value as one line of JSON.
pub(crate) async fn print(broker: &dyn Broker, task: &TaskView) -> Outcome<()> {
    for stream in OutputStream::BOTH {
        copy(broker, task.tid, task.attempt, stream, |bytes| {
            output::pass_on(stream, bytes)
        })
        .await?;
    }
    returned(task.report.as_ref()).map_or(Ok(()), output::json)
}

/// Prints to stderr which output of the last attempt was not kept.
pub(crate) async fn note_lost_output(
    context: &Context,
    broker: &dyn Broker,
    task: &TaskView,
) -> Outcome<()> {
    lost_output(broker, task)
        .await?
        .iter()
        .for_each(|lost| context.note(lost));
    Ok(())
}

/// Which output of a task's last attempt was not kept, and why.
///
/// It reads the log only when the last byte of a stream is missing: the log has no index by task,
/// and may be long.
pub(crate) async fn lost_output(broker: &dyn Broker, task: &TaskView) -> Outcome<Vec<String>> {
    let (tid, attempt) = (task.tid, task.attempt);
    for stream in OutputStream::BOTH {
        let written = bytes_written(task, stream);
        if written > 0
            && broker
                .read_output(tid, attempt, stream, written - 1, 1)
                .await?
                .is_empty()
        {
            let logged = logged_losses(broker, tid, attempt).await?;
            return Ok(if logged.is_empty() {
                vec![OUTPUT_LOST.into()]
            } else {
                logged
            });
        }
    }
    Ok(Vec::new())
}

/// The events about lost output of an attempt.
pub(crate) async fn logged_losses(
    broker: &dyn Broker,
    tid: Tid,
    attempt: u32,
) -> Outcome<Vec<String>> {
    let (mut losses, mut after) = (Vec::new(), tid.as_u64());
    loop {
        let events = broker
            .events(Some(after), Some(tid), EVENTS_AT_ONCE, Duration::ZERO)
            .await?;
        let Some(last) = events.last() else {
            return Ok(losses);
        };
        after = last.id.as_u64();
        let lost = events
            .into_iter()
            .filter(|it| it.event == TaskEventKind::OutputLost && it.attempt == attempt);
        losses.extend(lost.map(|event| event.detail.unwrap_or_else(|| OUTPUT_LOST.into())));
    }
}

/// How many bytes a task's last attempt wrote to a stream, if it has ended.
fn bytes_written(task: &TaskView, stream: OutputStream) -> u64 {
    task.report.as_ref().map_or(0, |report| match stream {
        OutputStream::Stdout => report.stdout_bytes,
        OutputStream::Stderr => report.stderr_bytes,
    })
}

/// Passes the output of an attempt to `write`, piece by piece.
pub(crate) async fn copy(
    broker: &dyn Broker,
    tid: Tid,
    attempt: u32,
    stream: OutputStream,
    mut write: impl FnMut(&[u8]) -> Outcome<()>,
) -> Outcome<()> {
    let mut offset = 0;
    loop {
        let bytes = broker
            .read_output(tid, attempt, stream, offset, AT_ONCE)
            .await?;
        if bytes.is_empty() {
            return Ok(());
        }
        offset += bytes.len() as u64;
        write(&bytes)?;
    }
}

/// Reads one output stream of the last attempt. Returns whether it is complete.
async fn read(
    broker: &dyn Broker,
    task: &TaskView,
    stream: OutputStream,
) -> Outcome<(Vec<u8>, bool)> {
    let mut text = Vec::new();
    while text.len() < MAX_TEXT {
        let bytes = broker
            .read_output(task.tid, task.attempt, stream, text.len() as u64, AT_ONCE)
            .await?;
        if bytes.is_empty() {
            break;
        }
        text.extend(bytes);
    }
    // Output that the broker had no room for is missing, too.
    let is_all = text.len() as u64 >= bytes_written(task, stream);
    Ok((text, is_all))
}
