//! The output of attempts: bytes with ranges, all attempts in order, and streams that follow.

use std::{ops::Range, time::Duration};

use axum::{
    Extension,
    body::{Body, Bytes},
    extract::{Path, State},
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{ACCEPT, ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_RANGE, CONTENT_TYPE, RANGE},
    },
    response::{
        IntoResponse, Response,
        sse::{Event, Sse},
    },
};
use futures_util::stream;
use raddle_broker::{OutputStream, TaskCursor};
use raddle_model::Tid;
use raddle_view::{find::get_task, task::output_length};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    extract::{Params, TaskPath},
    sse::{self, Guard},
};
use crate::{
    auth::Caller,
    problem::{Problem, Result},
    state::AppState,
};

/// How many bytes are read at once.
const CHUNK: u32 = 256 * 1024;

/// Whether to follow.
#[derive(Deserialize)]
pub(super) struct FollowParams {
    #[serde(default)]
    follow: Option<u8>,
}

#[derive(Deserialize)]
pub(super) struct OutputPath {
    attempt: u32,
    stream: OutputStream,
}

/// The bytes of one stream of one attempt.
pub(super) async fn output(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    TaskPath(tid): TaskPath,
    Path(OutputPath { attempt, stream }): Path<OutputPath>,
    Params(params): Params<FollowParams>,
    headers: HeaderMap,
) -> Result<Response> {
    let task = get_task(state.broker(), tid).await?;
    if attempt == 0 || attempt > task.attempt {
        let why = format!(
            "task {tid} has had {} attempts, and no attempt {attempt}",
            task.attempt
        );
        return Err(Problem::not_found(why).with_tid(tid));
    }
    if params.follow == Some(1) {
        return follow_stream(state, caller, tid, attempt, stream, &headers);
    }
    let length = output_length(state.broker(), tid, attempt, stream).await?;
    let asked = headers.get(RANGE).and_then(|range| range.to_str().ok());
    let (status, range) = match asked.map(|range| parse_range(range, length)) {
        None | Some(RangeRequest::Ignored) => (StatusCode::OK, 0..length),
        Some(RangeRequest::Part(range)) => (StatusCode::PARTIAL_CONTENT, range),
        Some(RangeRequest::Unsatisfiable) => {
            let problem = Problem::new(
                StatusCode::RANGE_NOT_SATISFIABLE,
                format!("the output has {length} bytes so far"),
            );
            let shown = [(CONTENT_RANGE, format!("bytes */{length}"))];
            return Ok((shown, problem).into_response());
        }
    };
    let name = format!("{tid}-{attempt}-{}.txt", stream_name(stream));
    let mut response =
        (status, bytes_of(state, tid, attempt, stream, range.clone())).into_response();
    let added = response.headers_mut();
    let fixed = HeaderValue::from_static;
    added.insert(CONTENT_TYPE, fixed("text/plain; charset=utf-8"));
    added.insert(ACCEPT_RANGES, fixed("bytes"));
    let value = |text: String| HeaderValue::from_str(&text).expect("digits and letters");
    added.insert(
        CONTENT_DISPOSITION,
        value(format!("attachment; filename=\"{name}\"")),
    );
    if status == StatusCode::PARTIAL_CONTENT {
        let (first, last) = (range.start, range.end - 1);
        added.insert(
            CONTENT_RANGE,
            value(format!("bytes {first}-{last}/{length}")),
        );
    }
    Ok(response)
}

fn stream_name(stream: OutputStream) -> &'static str {
    match stream {
        OutputStream::Stdout => "stdout",
        OutputStream::Stderr => "stderr",
    }
}

/// A body that reads as fast as the client does.
fn bytes_of(
    state: AppState,
    tid: Tid,
    attempt: u32,
    stream: OutputStream,
    range: Range<u64>,
) -> Body {
    let next = move |(state, range): (AppState, Range<u64>)| async move {
        let left = u32::try_from(range.end - range.start).unwrap_or(u32::MAX);
        if left == 0 {
            return None;
        }
        let read = state
            .broker()
            .read_output(tid, attempt, stream, range.start, left.min(CHUNK))
            .await;
        match read {
            // It was purged meanwhile.
            Ok(bytes) if bytes.is_empty() => None,
            Ok(bytes) => {
                let begin = range.start + bytes.len() as u64;
                Some((Ok(Bytes::from(bytes)), (state, begin..range.end)))
            }
            Err(error) => Some((Err(error), (state, range.end..range.end))),
        }
    };
    Body::from_stream(stream::unfold((state, range), next))
}

/// What a `Range` header asks for.
#[derive(Debug, PartialEq, Eq)]
enum RangeRequest {
    Part(Range<u64>),
    Unsatisfiable,
    /// Another unit, several ranges, or no range at all: the answer is everything.
    Ignored,
}

fn parse_range(header: &str, length: u64) -> RangeRequest {
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse().unwrap_or(u64::MAX))
    };
    let Some((from, to)) = header
        .strip_prefix("bytes=")
        .and_then(|it| it.split_once('-'))
    else {
        return RangeRequest::Ignored;
    };
    let range = match (number(from), number(to)) {
        (Some(from), None) if to.is_empty() => from..length,
        (Some(from), Some(to)) if from <= to => from..length.min(to.saturating_add(1)),
        (None, Some(last)) if from.is_empty() => length.saturating_sub(last)..length,
        _ => return RangeRequest::Ignored,
    };
    if range.start < range.end {
        RangeRequest::Part(range)
    } else {
        RangeRequest::Unsatisfiable
    }
}

/// Follows one stream of one attempt from `Last-Event-ID` on. The id of an event is
/// `attempt:offset`, where the next byte is.
fn follow_stream(
    state: AppState,
    caller: Caller,
    tid: Tid,
    attempt: u32,
    stream: OutputStream,
    headers: &HeaderMap,
) -> Result<Response> {
    let offset = sse::last_event_id(headers)
        .and_then(|id| id.rsplit_once(':'))
        .and_then(|(_, offset)| offset.parse().ok())
        .unwrap_or(0);
    let guard = Guard::new(&state, caller)?;
    let next = move |(mut guard, offset, is_over): (Guard, u64, bool)| async move {
        if is_over {
            return None;
        }
        loop {
            let broker = guard.state().broker();
            let task = get_task(broker, tid).await.ok()?;
            let bytes = broker
                .read_output(tid, attempt, stream, offset, CHUNK)
                .await
                .ok()?;
            let has_ended = task.state.is_terminal() || task.attempt > attempt;
            if !bytes.is_empty() {
                // A character that is cut in two is sent with the next piece.
                let cut = if has_ended {
                    bytes.len()
                } else {
                    whole_characters(&bytes)
                };
                let end = offset + cut as u64;
                let data =
                    json!({ "offset": offset, "text": String::from_utf8_lossy(&bytes[..cut]) });
                if cut > 0 {
                    let event = Event::default()
                        .id(format!("{attempt}:{end}"))
                        .data(data.to_string());
                    return Some((Ok::<_, sse::Never>(event), (guard, end, false)));
                }
            } else if has_ended {
                let event = Event::default().event("end").data("{}");
                return Some((Ok(event), (guard, offset, true)));
            }
            let (stdout, stderr) = match stream {
                OutputStream::Stdout => (offset + bytes.len() as u64, u64::MAX >> 1),
                OutputStream::Stderr => (u64::MAX >> 1, offset + bytes.len() as u64),
            };
            let cursor = TaskCursor {
                event: guard.state().broker().last_event().await.ok()?,
                attempt,
                stdout,
                stderr,
            };
            guard
                .wait(async |state, wait| state.broker().follow(tid, cursor, wait).await.ok())
                .await?;
        }
    };
    Ok(sse::response(Sse::new(stream::unfold(
        (guard, offset, false),
        next,
    ))))
}

/// How many bytes end with a whole character.
fn whole_characters(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        // No end after the error: the last character is not complete.
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        _ => bytes.len(),
    }
}

/// All attempts in order: bytes, or records, one to a line; with `follow`, as a stream of events.
pub(super) async fn logs(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    TaskPath(tid): TaskPath,
    Params(params): Params<FollowParams>,
    headers: HeaderMap,
) -> Result<Response> {
    get_task(state.broker(), tid).await?;
    if params.follow == Some(1) || sse::is_asked_for(&headers) {
        return follow_logs(state, caller, tid, &headers);
    }
    let is_plain = headers
        .get(ACCEPT)
        .is_some_and(|accept| accept.as_bytes().starts_with(b"text/plain"));
    let kind = if is_plain {
        "text/plain; charset=utf-8"
    } else {
        "application/x-ndjson"
    };
    let next = move |(state, cursor): (AppState, Option<TaskCursor>)| async move {
        let update = match state.broker().follow(tid, cursor?, Duration::ZERO).await {
            Ok(update) => update,
            Err(error) => return Some((Err(error), (state, None))),
        };
        if update.output.is_empty() && (update.events.is_empty() || update.done.is_some()) {
            return None;
        }
        let mut piece = Vec::new();
        for chunk in update.output {
            if is_plain {
                piece.extend(chunk.bytes);
            } else {
                piece.extend(
                    log_record(chunk.attempt, chunk.stream, &chunk.bytes)
                        .to_string()
                        .into_bytes(),
                );
                piece.push(b'\n');
            }
        }
        let next = update.done.is_none().then_some(update.cursor);
        Some((Ok(Bytes::from(piece)), (state, next)))
    };
    let body = Body::from_stream(stream::unfold((state, Some(TaskCursor::default())), next));
    Ok(([(CONTENT_TYPE, kind)], body).into_response())
}

/// A piece of output, as `raddle logs --json` prints it.
fn log_record(attempt: u32, stream: OutputStream, bytes: &[u8]) -> Value {
    let text = String::from_utf8_lossy(bytes);
    json!({ "attempt": attempt, "stream": stream, "text": text })
}

fn follow_logs(state: AppState, caller: Caller, tid: Tid, headers: &HeaderMap) -> Result<Response> {
    let cursor = sse::last_event_id(headers)
        .and_then(parse_cursor)
        .unwrap_or_default();
    let guard = Guard::new(&state, caller)?;
    let next = move |(mut guard, cursor): (Guard, Option<TaskCursor>)| async move {
        let cursor = cursor?;
        let update = guard
            .wait(async |state, wait| state.broker().follow(tid, cursor, wait).await.ok())
            .await?;
        let lines: Vec<Value> = update
            .output
            .iter()
            .map(|chunk| log_record(chunk.attempt, chunk.stream, &chunk.bytes))
            .collect();
        let TaskCursor {
            event,
            attempt,
            stdout,
            stderr,
        } = update.cursor;
        let data = json!({ "output": lines, "events": update.events, "done": update.done });
        let event = Event::default()
            .id(format!("{event}:{attempt}:{stdout}:{stderr}"))
            .data(data.to_string());
        let next = update.done.is_none().then_some(update.cursor);
        Some((Ok::<_, sse::Never>(event), (guard, next)))
    };
    Ok(sse::response(Sse::new(stream::unfold(
        (guard, Some(cursor)),
        next,
    ))))
}

fn parse_cursor(id: &str) -> Option<TaskCursor> {
    let mut parts = id.split(':');
    let cursor = TaskCursor {
        event: parts.next()?.parse().ok()?,
        attempt: parts.next()?.parse().ok()?,
        stdout: parts.next()?.parse().ok()?,
        stderr: parts.next()?.parse().ok()?,
    };
    parts.next().is_none().then_some(cursor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_one_range() {
        use RangeRequest::{Ignored, Part, Unsatisfiable};
        for (header, expected) in [
            ("bytes=0-9", Part(0..10)),
            ("bytes=5-", Part(5..100)),
            ("bytes=-10", Part(90..100)),
            ("bytes=-1000", Part(0..100)),
            ("bytes=0-18446744073709551615", Part(0..100)),
            ("bytes=99999999999999999999999-", Unsatisfiable),
            ("bytes=100-", Unsatisfiable),
            ("bytes=-0", Unsatisfiable),
            ("bytes=9-5", Ignored),
            ("bytes=0-1,5-6", Ignored),
            ("bytes=-", Ignored),
            ("bytes=a-b", Ignored),
            ("lines=0-1", Ignored),
        ] {
            assert_eq!(parse_range(header, 100), expected, "{header}");
        }
        assert_eq!(parse_range("bytes=0-", 0), Unsatisfiable);
    }

    #[test]
    fn cuts_between_characters() {
        assert_eq!(whole_characters("aé".as_bytes()), 3);
        assert_eq!(whole_characters(&"aé".as_bytes()[..2]), 1);
        assert_eq!(whole_characters(b"a\xff\xfe"), 3, "not text at all");
    }
}
