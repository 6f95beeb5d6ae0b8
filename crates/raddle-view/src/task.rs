//! A task as a record, with the output of its last attempt.

use std::time::Duration;

use jiff::Timestamp;
use raddle_broker::{Broker, OutputStream};
use raddle_model::{
    AttemptReport, ExitStatus, TaskEventKind, TaskSpec, TaskState, TaskView, Tid,
    next_step::LOSSES_ALLOWED, spec::ReservedPolicy,
};
use serde_json::{Map, Value, json};

use crate::{Error, Result, exit_code};

/// How much of each stream goes into a record. `raddle logs` prints all of it.
const MAX_TEXT: usize = 16 * 1024 * 1024;
/// How many bytes of output are read at once.
const OUTPUT_CHUNK: u32 = 256 * 1024;
/// How many events are read at once.
const EVENTS_AT_ONCE: u32 = 1000;
/// The text for lost output where no event has details.
pub const OUTPUT_LOST: &str = "some of its output could not be kept";

/// A sentence about the end of a task, where its exit code does not say enough.
pub fn exit_remark(tid: Tid, spec: &TaskSpec, report: Option<&AttemptReport>) -> Option<String> {
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

/// A task as JSON: the stored record, with derived fields.
pub fn task_record(task: &TaskView) -> Map<String, Value> {
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
            .map(|report| exit_code::of_task(task.state, Some(report)))
            .into(),
    );
    let duration = task
        .run_time(Timestamp::now())
        .map(|time| time.as_secs_f64());
    fields.insert("duration_seconds".into(), duration.into());
    fields
}

/// A finished task as JSON, with the output of its last attempt.
pub async fn result_record(broker: &dyn Broker, task: &TaskView) -> Result<Value> {
    let mut fields = task_record(task);
    for (stream, name) in [
        (OutputStream::Stdout, "stdout"),
        (OutputStream::Stderr, "stderr"),
    ] {
        let (bytes, is_complete) = read_output(broker, task, stream).await?;
        fields.insert(name.into(), String::from_utf8_lossy(&bytes).into());
        fields.insert(format!("{name}_complete"), is_complete.into());
    }
    fields.insert(
        "error".into(),
        json!(exit_remark(task.tid, &task.spec, task.report.as_ref())),
    );
    Ok(fields.into())
}

/// When a task expires, if it waits and has not been run.
pub fn expiry(task: &TaskView) -> Option<Timestamp> {
    let waits = task.state == TaskState::Created && task.failures + task.losses == 0;
    let at = task.spec.expires_at(task.tid).filter(|_| waits)?;
    Timestamp::from_nanosecond(at.into()).ok()
}

/// How many failures, and how many lost workers, a task may have. `None` if it is run again without
/// limit.
pub fn attempt_limits(task: &TaskView) -> Option<(u32, u32)> {
    let attempts = task.spec.retry.attempts;
    match task.spec.on_error {
        ReservedPolicy::Requeue => None,
        _ => Some((attempts, attempts.max(LOSSES_ALLOWED))),
    }
}

/// The return value of a routine or handler. `null`, from a routine without a value, is left out.
pub fn return_value(report: Option<&AttemptReport>) -> Option<&Value> {
    report?.value.as_ref().filter(|value| !value.is_null())
}

/// Which output of a task's last attempt was not kept, and why.
///
/// It reads the log only when the last byte of a stream is missing: the log has no index by task,
/// and may be long.
pub async fn lost_output(broker: &dyn Broker, task: &TaskView) -> Result<Vec<String>> {
    let (tid, attempt) = (task.tid, task.attempt);
    for stream in OutputStream::BOTH {
        let written = bytes_written(task, stream);
        if written > 0
            && broker
                .read_output(tid, attempt, stream, written - 1, 1)
                .await?
                .is_empty()
        {
            let logged = logged_output_losses(broker, tid, attempt).await?;
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
pub async fn logged_output_losses(
    broker: &dyn Broker,
    tid: Tid,
    attempt: u32,
) -> Result<Vec<String>> {
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

/// Passes the output of an attempt to `write`, piece by piece.
pub async fn copy_output<E: From<Error>>(
    broker: &dyn Broker,
    tid: Tid,
    attempt: u32,
    stream: OutputStream,
    mut write: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut offset = 0;
    loop {
        let bytes = broker
            .read_output(tid, attempt, stream, offset, OUTPUT_CHUNK)
            .await
            .map_err(Error::from)?;
        if bytes.is_empty() {
            return Ok(());
        }
        offset += bytes.len() as u64;
        write(&bytes)?;
    }
}

/// How many bytes of a stream are stored. The broker keeps no length, so this looks for the end:
/// some sixty reads of one byte at most.
pub async fn output_length(
    broker: &dyn Broker,
    tid: Tid,
    attempt: u32,
    stream: OutputStream,
) -> Result<u64> {
    let has_byte = async |offset| -> Result<bool> {
        let byte = broker.read_output(tid, attempt, stream, offset, 1).await?;
        Ok(!byte.is_empty())
    };
    let (mut stored, mut step) = (0, 1);
    while has_byte(stored + step - 1).await? {
        stored += step;
        step *= 2;
    }
    // The end is less than `step` bytes after `stored`.
    while step > 1 {
        step /= 2;
        if has_byte(stored + step - 1).await? {
            stored += step;
        }
    }
    Ok(stored)
}

/// How many bytes a task's last attempt wrote to a stream, if it has ended.
fn bytes_written(task: &TaskView, stream: OutputStream) -> u64 {
    task.report.as_ref().map_or(0, |report| match stream {
        OutputStream::Stdout => report.stdout_bytes,
        OutputStream::Stderr => report.stderr_bytes,
    })
}

/// Reads one output stream of the last attempt. Returns whether it is complete.
async fn read_output(
    broker: &dyn Broker,
    task: &TaskView,
    stream: OutputStream,
) -> Result<(Vec<u8>, bool)> {
    let mut text = Vec::new();
    while text.len() < MAX_TEXT {
        let offset = text.len() as u64;
        let bytes = broker
            .read_output(task.tid, task.attempt, stream, offset, OUTPUT_CHUNK)
            .await?;
        if bytes.is_empty() {
            break;
        }
        text.extend(bytes);
    }
    // Output that the broker had no room for is missing, too.
    let is_complete = text.len() as u64 >= bytes_written(task, stream);
    Ok((text, is_complete))
}
