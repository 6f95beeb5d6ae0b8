//! Requests about tasks.

use std::time::Duration;

use raddle_broker::{Broker, DeliveryOutcome, Error, NewTask, OutputStream, Submitted};
use raddle_client::{
    explain::{PrintedReasons, explain_while},
    wait::until_finished,
};
use raddle_model::{ControlMessage, Target, TaskSpec, TaskState, TaskView, Tid, tid::TidArg};
use serde_json::{Value, json, value::RawValue};
use tokio::time::timeout;

use crate::{
    Failure,
    connection::{Replier, Success},
};

/// How much of the standard error of a failed routine its result shows.
const MAX_TAIL: u32 = 4096;
/// How much of the output of a command its result holds. All of it is in its logs.
const MAX_OUTPUT: u32 = 1024 * 1024;

/// Reads a spec.
pub(crate) fn parse_task(spec: &RawValue, parent: Option<Tid>) -> Result<NewTask, Failure> {
    let spec = TaskSpec::from_json(spec.get())?;
    Ok(NewTask { spec, parent })
}

pub(crate) async fn submit(
    broker: &dyn Broker,
    specs: Vec<Box<RawValue>>,
    parent: Option<Tid>,
) -> Result<Success, Failure> {
    let tasks = specs
        .iter()
        .map(|spec| parse_task(spec, parent))
        .collect::<Result<_, _>>()?;
    let stored = broker.submit(tasks).await?;
    let stored: Vec<Value> = stored
        .iter()
        .map(|one| json!([one.tid(), matches!(one, Submitted::Existing(_))]))
        .collect();
    Ok((Value::Array(stored), None))
}

/// The task with this id, or with these last ten digits.
pub(crate) async fn find(broker: &dyn Broker, tid: &str) -> Result<Tid, Failure> {
    match tid.parse()? {
        TidArg::Full(tid) => Ok(tid),
        TidArg::Short(short) => match broker.resolve_short_id(short).await?[..] {
            [tid] => Ok(tid),
            [] => Err(Failure::new(
                "not_found",
                &format!("no task ends in {short}: 'raddle task list' shows those there are"),
            )),
            _ => Err(Failure::invalid(format!(
                "several tasks end in {short}: give all 19 digits"
            ))),
        },
    }
}

pub(crate) async fn result(
    broker: &dyn Broker,
    tid: &str,
    timeout_ms: Option<u64>,
    replier: &Replier,
) -> Result<Success, Failure> {
    let tid = find(broker, tid).await?;
    let mut printed = PrintedReasons::default();
    let finished = explain_while(
        broker,
        tid,
        &mut printed,
        |line| replier.note(&line),
        until_finished(broker, tid),
    );
    let task = match timeout_ms {
        None => finished.await?,
        Some(limit) => match timeout(Duration::from_millis(limit), finished).await {
            Ok(finished) => finished?,
            Err(_) => {
                let state = broker.task(tid).await?.map(|task| task.state);
                let state = state.map_or_else(String::new, |state| format!(": it is {state}"));
                let text = format!("task {tid} did not end in time{state}");
                return Err(Failure::new("timed_out", &text));
            }
        },
    };
    describe_end(broker, task).await
}

/// The end of a task: how it ended, its output if it was a command or has failed, and its value as
/// the payload.
pub(crate) async fn describe_end(
    broker: &dyn Broker,
    mut task: TaskView,
) -> Result<Success, Failure> {
    let value = task.report.as_mut().and_then(|report| report.value.take());
    let is_command = matches!(task.spec.target, Target::Command(_));
    let (stdout, stderr) = match (is_command, task.state) {
        (true, _) => (MAX_OUTPUT, MAX_OUTPUT),
        (false, TaskState::Completed) => (0, 0),
        (false, _) => (0, MAX_TAIL),
    };
    let exit = task.report.as_ref().map(|report| &report.exit);
    let head = json!({
        "tid": task.tid,
        "state": task.state,
        "attempts": task.attempt,
        "dead": task.dead,
        "exit": exit,
        "exit_code": exit.map(|exit| exit.shell_code()),
        "message": exit.map(ToString::to_string),
        "stdout": read_tail(broker, &task, OutputStream::Stdout, stdout).await,
        "stderr": read_tail(broker, &task, OutputStream::Stderr, stderr).await,
    });
    let payload = value.map(|value| serde_json::to_vec(&value).unwrap_or_default());
    Ok((head, payload))
}

/// The end of what the last attempt has written to a stream, up to `max` bytes.
async fn read_tail(
    broker: &dyn Broker,
    task: &TaskView,
    stream: OutputStream,
    max: u32,
) -> Option<String> {
    let report = task.report.as_ref().filter(|_| max > 0)?;
    let length = match stream {
        OutputStream::Stdout => report.stdout_bytes,
        OutputStream::Stderr => report.stderr_bytes,
    };
    let (mut bytes, mut offset) = (Vec::new(), length.saturating_sub(max.into()));
    // The result matters more than its output.
    while let Ok(read) = broker
        .read_output(task.tid, task.attempt, stream, offset, max)
        .await
        && !read.is_empty()
        && bytes.len() < max as usize
    {
        offset += read.len() as u64;
        bytes.extend(read);
    }
    (!bytes.is_empty()).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

pub(crate) async fn status(broker: &dyn Broker, tid: &str) -> Result<Success, Failure> {
    let tid = find(broker, tid).await?;
    let task = broker.task(tid).await?.ok_or(Error::NotFound(tid))?;
    let view = serde_json::to_value(&task).map_err(Failure::invalid)?;
    Ok((view, None))
}

pub(crate) async fn control(
    broker: &dyn Broker,
    tid: &str,
    message: ControlMessage,
) -> Result<Success, Failure> {
    let tid = find(broker, tid).await?;
    let state = match broker.control(tid, message).await? {
        DeliveryOutcome::Applied(state) => Some(state),
        DeliveryOutcome::Sent => None,
    };
    Ok((json!({ "state": state }), None))
}

pub(crate) async fn retry(broker: &dyn Broker, tid: &str) -> Result<Success, Failure> {
    let tid = find(broker, tid).await?;
    Ok((json!(broker.resubmit(tid, false).await?), None))
}
