//! The actions of forms. Each answer leads back to a page, which says what was done.

use std::time::Duration;

use axum::{
    extract::{Extension, Request, State},
    http::StatusCode,
    response::Response,
};
use futures_util::{StreamExt, stream};
use raddle_broker::{NewTask, queues};
use raddle_client::{schedule, text::count};
use raddle_model::{ControlCommand, ControlMessage, QueueName, TaskSpec, Tid};
use raddle_view::control::{CommandOutcome, send_command};

use super::{
    context::{Context, encode, parse_query},
    frame::see_other,
    tasks::VERBS,
};
use crate::{
    api::{
        control::retry_task,
        messages::{resolve_queue, right_to_write},
    },
    audit::AuditNote,
    auth::{Caller, Right},
    problem::{Problem, Result},
    state::AppState,
};

/// The longest form. A spec is the longest field.
const MAX_FORM: usize = 4 << 20;
/// How long a page waits for the reply of a worker. The page shows what comes later.
const WITHIN: Duration = Duration::from_secs(3);
/// How many tasks are acted on at once.
const AT_ONCE: usize = 64;
/// The most tasks that one form may select.
const MAX_SELECTED: usize = 1_000;

/// A form that was sent.
struct Sent {
    cx: Context,
    fields: Vec<(String, String)>,
}

impl Sent {
    async fn read(state: AppState, caller: Caller, request: Request) -> Result<Self> {
        let bytes = axum::body::to_bytes(request.into_body(), MAX_FORM)
            .await
            .map_err(|_| Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "the form is too long"))?;
        let text = std::str::from_utf8(&bytes)
            .map_err(|_| Problem::bad_request("the form is not valid UTF-8"))?;
        Ok(Self {
            cx: Context::new(state, caller, "/")?,
            fields: parse_query(text),
        })
    }

    fn get(&self, name: &str) -> &str {
        let found = self.fields.iter().find(|(key, _)| key == name);
        found.map_or("", |(_, value)| value.trim())
    }

    fn tids(&self) -> Vec<Tid> {
        let tids = self.fields.iter().filter(|(key, _)| key == "tid");
        tids.filter_map(|(_, value)| value.parse().ok())
            .take(MAX_SELECTED)
            .collect()
    }

    /// The page to go back to: one of ours.
    fn back<'a>(&'a self, otherwise: &'a str) -> &'a str {
        let back = self.get("back");
        let is_local = back.starts_with('/')
            && !back.starts_with("//")
            && back
                .bytes()
                .all(|byte| (b'!'..=b'~').contains(&byte) && byte != b'\\');
        if is_local { back } else { otherwise }
    }

    /// Leads to a page that says what was done.
    fn done(&self, to: &str, said: &str, note: AuditNote) -> Response {
        let mut response = see_other(&self.cx, to, said);
        response.extensions_mut().insert(note);
        response
    }

    /// Leads back with what failed.
    fn failed(&self, to: &str, problem: &Problem) -> Response {
        let hint = problem
            .hint
            .as_ref()
            .map(|hint| format!(": {hint}"))
            .unwrap_or_default();
        see_other(&self.cx, to, &format!("!{}{hint}", problem.detail))
    }
}

/// Does something to one task, and says what it did.
async fn act(cx: &Context, verb: &str, tid: Tid) -> Result<String> {
    let broker = cx.broker();
    let command = match verb {
        "retry" => {
            let new = retry_task(&cx.state, tid).await?;
            return Ok(format!("submitted again as {new}"));
        }
        "delete" => {
            return match broker.delete(vec![tid]).await? {
                0 => Err(Problem::new(
                    StatusCode::CONFLICT,
                    format!("task {tid} is not finished"),
                )),
                _ => Ok("deleted".into()),
            };
        }
        "stop" => ControlCommand::Stop,
        "kill" => ControlCommand::Kill,
        "pause" => ControlCommand::Pause,
        "resume" => ControlCommand::Resume,
        _ => return Err(Problem::bad_request("choose an action")),
    };
    let message = ControlMessage::new(command);
    Ok(match send_command(broker, tid, message, WITHIN).await? {
        CommandOutcome::NoReply(unanswered) => unanswered.describe(tid, command),
        _ => format!("{verb}: done"),
    })
}

pub(super) async fn on_tasks(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response> {
    let sent = Sent::read(state, caller, request).await?;
    let verb = sent.get("action");
    let Some((verb, label, right)) = VERBS.into_iter().find(|(known, ..)| *known == verb) else {
        return Err(Problem::bad_request("choose an action"));
    };
    sent.cx.caller.require(right)?;
    let (tids, back) = (sent.tids(), sent.back("/tasks"));
    let (mut done, mut said, mut problem) = (0, String::new(), None);
    let cx = &sent.cx;
    let results = stream::iter(tids.clone())
        .map(|tid| act(cx, verb, tid))
        .buffered(AT_ONCE);
    for result in results.collect::<Vec<_>>().await {
        match result {
            Ok(text) => (done, said) = (done + 1, text),
            Err(error) => problem = Some(error),
        }
    }
    let note = AuditNote {
        selection: Some(
            tids.iter()
                .take(20)
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(" "),
        ),
        count: Some(done),
        reason: None,
    };
    let text = match (&tids[..], &problem) {
        ([], _) => "!No task was selected".to_owned(),
        ([_], None) => format!("{label}: {said}"),
        (_, None) => format!("{label}: {}", count(done, "task")),
        ([_], Some(problem)) => return Ok(sent.failed(back, problem)),
        (_, Some(problem)) => format!(
            "!{label}: {done} of {}; {}",
            count(tids.len() as u64, "task"),
            problem.detail
        ),
    };
    // A deleted task has no page.
    let to = match verb == "delete" && back.starts_with("/tasks/") && done > 0 {
        true => "/tasks",
        false => back,
    };
    Ok(sent.done(to, &text, note))
}

pub(super) async fn on_worker(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response> {
    let sent = Sent::read(state, caller, request).await?;
    let verb = sent.get("action");
    if !["pause", "resume", "stop", "kill"].contains(&verb) {
        return Err(Problem::bad_request("choose an action"));
    }
    let tids = sent.tids();
    let [tid] = tids[..] else {
        return Err(Problem::bad_request("name one worker"));
    };
    let back = match verb {
        "pause" | "resume" => format!("/workers/{tid}"),
        _ => "/workers".into(),
    };
    let note = AuditNote {
        selection: Some(tid.to_string()),
        count: Some(1),
        reason: None,
    };
    Ok(match act(&sent.cx, verb, tid).await {
        Ok(said) => sent.done(&back, &format!("Worker: {said}"), note),
        Err(problem) => sent.failed(&back, &problem),
    })
}

pub(super) async fn on_queue(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response> {
    let sent = Sent::read(state, caller, request).await?;
    let queue = sent.get("queue");
    let (is_paused, said) = match sent.get("action") {
        "pause" => (true, "is paused"),
        "resume" => (false, "goes on"),
        _ => return Err(Problem::bad_request("choose an action")),
    };
    let back = format!("/queues/{}", encode(queue));
    let note = AuditNote {
        selection: Some(queue.into()),
        ..AuditNote::default()
    };
    let changed = sent
        .cx
        .broker()
        .set_queue_paused(queue.into(), is_paused)
        .await;
    Ok(match changed {
        Ok(_) => sent.done(&back, &format!("{queue} {said}"), note),
        Err(error) => sent.failed(&back, &error.into()),
    })
}

pub(super) async fn on_group(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response> {
    let sent = Sent::read(state, caller, request).await?;
    let (slug, broker) = (sent.get("slug"), sent.cx.broker());
    let back = format!("/groups/{}", encode(slug));
    let (result, said) = match sent.get("action") {
        verb @ ("on" | "off") => {
            let result = raddle_groups::set_worker_on(broker, slug, verb == "on").await;
            (result, format!("{slug} is turned {verb}"))
        }
        _ => {
            let replicas: u32 = sent
                .get("replicas")
                .parse()
                .ok()
                .filter(|n| *n <= 1_000)
                .ok_or_else(|| Problem::bad_request("replicas are a number from 0 to 1000"))?;
            let result = raddle_groups::scale(broker, slug, replicas).await;
            (
                result,
                format!("{slug} is to have {}", count(replicas.into(), "replica")),
            )
        }
    };
    let note = AuditNote {
        selection: Some(slug.into()),
        ..AuditNote::default()
    };
    Ok(match result {
        Ok(_) => sent.done(&back, &said, note),
        Err(error) => sent.failed(&back, &Problem::bad_request(error.to_string())),
    })
}

pub(super) async fn on_schedule(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response> {
    let sent = Sent::read(state, caller, request).await?;
    let (name, broker) = (sent.get("name"), sent.cx.broker());
    let mut back = format!("/schedules/{}", encode(name));
    let right = match sent.get("action") {
        "pause" | "resume" => Right::Control,
        "run-now" | "remove" => Right::Submit,
        _ => return Err(Problem::bad_request("choose an action")),
    };
    sent.cx.caller.require(right)?;
    let result = match sent.get("action") {
        "pause" => schedule::pause(broker, name)
            .await
            .map(|_| "is paused".into()),
        "resume" => schedule::resume(broker, name)
            .await
            .map(|_| "goes on".into()),
        "remove" => {
            back = "/schedules".into();
            schedule::remove(broker, name)
                .await
                .map(|()| "is removed".to_owned())
        }
        _ => schedule::run_now(broker, name)
            .await
            .map(|submitted| format!("has submitted {}", submitted.tid())),
    };
    let note = AuditNote {
        selection: Some(name.into()),
        ..AuditNote::default()
    };
    Ok(match result {
        Ok(said) => sent.done(&back, &format!("{name} {said}"), note),
        Err(error) => sent.failed(&back, &Problem::bad_request(error.to_string())),
    })
}

pub(super) async fn on_messages(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response> {
    let sent = Sent::read(state, caller, request).await?;
    let (state, caller) = (&sent.cx.state, &sent.cx.caller);
    let queue = resolve_queue(state, caller, sent.get("queue")).await?;
    let may_write = |queue: &QueueName| {
        right_to_write(queue).map_or(Ok(()), |right| caller.require(right).map(drop))
    };
    let broker = sent.cx.broker();
    let back = format!("/messages/{}", encode(&queue.to_string()));
    let result = match sent.get("to") {
        "" => {
            may_write(&queue)?;
            let body = sent.get("body").to_owned();
            let written = queues::write(broker, &queue, vec![body]).await;
            written.map(|written| format!("Wrote {}", count(written.len() as u64, "message")))
        }
        to => {
            let to = resolve_queue(state, caller, to).await?;
            may_write(&to)?;
            let moved = queues::move_messages(broker, &queue, &to, u32::MAX).await;
            moved.map(|moved| format!("Moved {} to {to}", count(moved, "message")))
        }
    };
    let note = AuditNote {
        selection: Some(queue.to_string()),
        ..AuditNote::default()
    };
    Ok(match result {
        Ok(said) => sent.done(&back, &said, note),
        Err(error) => sent.failed(&back, &error.into()),
    })
}

pub(super) async fn on_failures(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response> {
    let sent = Sent::read(state, caller, request).await?;
    let tids = sent
        .get("tids")
        .split(' ')
        .filter_map(|tid| tid.parse::<Tid>().ok());
    let (tids, mut done): (Vec<_>, _) = (tids.take(MAX_SELECTED).collect(), 0);
    for tid in &tids {
        // One that was submitted again meanwhile is no dead letter any more.
        done += u64::from(sent.cx.broker().resubmit(*tid, true).await.is_ok());
    }
    let note = AuditNote {
        count: Some(done),
        ..AuditNote::default()
    };
    Ok(sent.done(
        "/failures",
        &format!("Retry: {} of {}", done, count(tids.len() as u64, "task")),
        note,
    ))
}

pub(super) async fn purge(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response> {
    let sent = Sent::read(state, caller, request).await?;
    let purged = sent.cx.broker().purge().await?;
    let note = AuditNote {
        count: Some(purged),
        ..AuditNote::default()
    };
    Ok(sent.done(
        "/system",
        &format!("Deleted {}", count(purged, "record")),
        note,
    ))
}

pub(super) async fn submit(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response> {
    let sent = Sent::read(state, caller, request).await?;
    let text = sent.get("spec");
    let parsed = match text.starts_with('{') {
        true => TaskSpec::from_json(text),
        false => TaskSpec::from_toml(text),
    };
    let invalid = |error: String| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, error);
    let spec = parsed.map_err(|error| invalid(error.to_string()))?;
    let submitted = sent.cx.broker().submit(vec![NewTask::new(spec)]).await?;
    let Some(tid) = submitted.first().map(|it| it.tid()) else {
        return Err(invalid("the broker stored no task".into()));
    };
    let note = AuditNote {
        selection: Some(tid.to_string()),
        count: Some(1),
        ..AuditNote::default()
    };
    Ok(sent.done(&format!("/tasks/{tid}"), "Submitted", note))
}
