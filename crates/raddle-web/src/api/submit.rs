//! Submits tasks, all or none, and once for each key.
//!
//! A key is claimed by a message in a queue of its own shard, and is used up by the transaction
//! that stores the tasks with a record of them. So requests with one key store their tasks once, in
//! whatever process of whatever machine they arrive, and also if that process is killed.

use std::time::Duration;

use axum::{
    Extension, Json,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use data_encoding::HEXLOWER;
use jiff::Timestamp;
use raddle_broker::{
    Message, MessageTransaction, NewMessage, NewTask, PeekRequest, Submitted, queues::WEB_QUEUES,
};
use raddle_model::{QueueName, TaskSpec, Tid};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::extract::Body;
use crate::{
    audit::AuditNote,
    auth::Caller,
    problem::{Problem, Result},
    state::AppState,
};

/// The most tasks of one request.
const MAX_TASKS: usize = 1000;
/// How long a key is remembered.
const REMEMBERED_FOR: Duration = Duration::from_hours(24);
/// How long a request with a key may take before another may take its place.
const CLAIMED_FOR: Duration = Duration::from_mins(2);
/// The most keys of a shard that are read.
const MAX_KEYS: u32 = 10_000;

/// A message about a key: a claim, or a record of the tasks once they are stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct KeyRecord {
    key: String,
    /// The SHA-256 of the request.
    body: String,
    at: Timestamp,
    /// How many tasks were stored; `None` while the request is under way. Their ids follow from
    /// `batch_key`.
    #[serde(default)]
    tids: Option<Vec<Tid>>,
}

pub(super) async fn submit(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Body(body): Body<Value>,
) -> Result<Response> {
    let tasks = parse_specs(body.clone())?;
    let count = tasks.len() as u64;
    let key = headers.get("idempotency-key");
    let (submitted, is_replay) = match key.map(|key| key.to_str()) {
        None => (state.broker().submit(tasks).await?, false),
        Some(Ok(key)) if (1..=200).contains(&key.len()) => {
            submit_once(&state, &caller, key, &body, tasks).await?
        }
        Some(_) => {
            let why = "an Idempotency-Key has 1 to 200 printable characters";
            return Err(Problem::bad_request(why));
        }
    };
    let records: Vec<Value> = submitted.iter().map(submitted_record).collect();
    let note = AuditNote {
        selection: Some(
            submitted
                .iter()
                .take(10)
                .map(|one| one.tid().to_string())
                .collect::<Vec<_>>()
                .join(" "),
        ),
        count: Some(count),
        reason: None,
    };
    let replayed = is_replay.then_some([("idempotency-replayed", "true")]);
    let reply = (StatusCode::CREATED, Json(json!({ "items": records })));
    Ok(match replayed {
        Some(header) => (Extension(note), header, reply).into_response(),
        None => (Extension(note), reply).into_response(),
    })
}

/// A stored task, as `raddle submit --json` prints it.
fn submitted_record(submitted: &Submitted) -> Value {
    let tid = submitted.tid();
    let existing = matches!(submitted, Submitted::Existing(_));
    json!({ "tid": tid, "short": tid.short().to_string(), "existing": existing })
}

/// The tasks of a request: one spec, or `{"tasks": [spec, …]}`.
pub(crate) fn parse_specs(body: Value) -> Result<Vec<NewTask>> {
    let specs = match body {
        Value::Object(mut fields) if fields.len() == 1 && fields.contains_key("tasks") => {
            match fields.remove("tasks") {
                Some(Value::Array(specs)) => specs,
                _ => return Err(Problem::bad_request("'tasks' must be an array of specs")),
            }
        }
        spec => vec![spec],
    };
    if specs.is_empty() || specs.len() > MAX_TASKS {
        let why = format!("give 1 to {MAX_TASKS} tasks, not {}", specs.len());
        return Err(Problem::bad_request(why));
    }
    let parse = |(place, spec): (usize, Value)| {
        let spec = TaskSpec::from_value(spec).map_err(|error| {
            let why = format!("task {} cannot be submitted, {error}", place + 1);
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, why)
        })?;
        Ok(NewTask::new(spec))
    };
    specs.into_iter().enumerate().map(parse).collect()
}

/// Submits tasks unless a request with this key has done so. Returns whether one has.
async fn submit_once(
    state: &AppState,
    caller: &Caller,
    key: &str,
    body: &Value,
    tasks: Vec<NewTask>,
) -> Result<(Vec<Submitted>, bool)> {
    // Keys of different callers are different keys.
    let key = sha256(&format!("{}\n{key}", caller.name));
    let body = sha256(&body.to_string());
    let queue = QueueName::Free(format!("{WEB_QUEUES}keys.{}", &key[..2]));
    let claim = KeyRecord {
        key: key.clone(),
        body: body.clone(),
        at: Timestamp::now(),
        tids: None,
    };
    let broker = state.broker();
    let text = |record: &KeyRecord| serde_json::to_string(record).expect("only string keys");
    let ids = broker.put(queue.clone(), vec![text(&claim)]).await?;
    let own = Message {
        id: ids[0],
        body: text(&claim),
    };
    let known = read_keys(state, &queue).await?;
    let others = known.iter().filter(|(message, record)| {
        record.key == key && message.id != own.id && (message.id < own.id || record.tids.is_some())
    });
    // The oldest claim wins, and a record of stored tasks is younger than the claim that it has
    // replaced.
    let first = others.map(|(_, record)| record).next().cloned();
    let take = |messages: Vec<Message>| MessageTransaction {
        queue: queue.clone(),
        messages,
        tasks: Vec::new(),
        new_messages: Vec::new(),
    };
    if let Some(first) = first {
        broker.apply_transaction(take(vec![own])).await?;
        return replay(first, &body).map(|submitted| (submitted, true));
    }
    // The ids are known only after the transaction, and the record of it has to be in it. The
    // first of two transactions stores the tasks with a marker, the second the ids: a request that
    // was killed in between is answered by its marker.
    let tasks_of = MessageTransaction {
        tasks,
        new_messages: vec![NewMessage {
            queue: queue.clone(),
            body: text(&KeyRecord {
                tids: Some(Vec::new()),
                ..claim.clone()
            }),
        }],
        ..take(vec![own.clone()])
    };
    let stored = match broker.apply_transaction(tasks_of).await {
        Ok(stored) => stored,
        Err(error) => {
            // Nothing is stored: the next request with this key must not wait for the claim.
            broker.apply_transaction(take(vec![own])).await?;
            return Err(error.into());
        }
    };
    let Some(submitted) = stored else {
        // It took longer than a claim holds.
        return Err(under_way());
    };
    let tids = submitted.iter().map(|one| one.tid()).collect();
    let is_marker = |(message, record): &&(Message, KeyRecord)| {
        record.key == key && record.tids.as_ref().is_some_and(Vec::is_empty) && message.id > ids[0]
    };
    let markers = read_keys(state, &queue).await?;
    if let Some((marker, _)) = markers.iter().find(is_marker) {
        let with_ids = MessageTransaction {
            new_messages: vec![NewMessage {
                queue: queue.clone(),
                body: text(&KeyRecord {
                    tids: Some(tids),
                    ..claim
                }),
            }],
            ..take(vec![marker.clone()])
        };
        broker.apply_transaction(with_ids).await?;
    }
    Ok((submitted, false))
}

/// The answer to a request whose key is known.
fn replay(first: KeyRecord, body: &str) -> Result<Vec<Submitted>> {
    if first.body != *body {
        let why = "another request has used this Idempotency-Key: choose another one";
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, why));
    }
    match first.tids {
        None => Err(under_way()),
        Some(tids) if tids.is_empty() => {
            let why = "a request with this Idempotency-Key has stored its tasks, and its server was killed before it could note their ids: see 'raddle task list'";
            Err(Problem::new(StatusCode::CONFLICT, why))
        }
        Some(tids) => Ok(tids.into_iter().map(Submitted::New).collect()),
    }
}

fn under_way() -> Problem {
    let why = "a request with this Idempotency-Key is under way: try again";
    Problem::new(StatusCode::CONFLICT, why)
}

/// The keys of a shard, without those that are too old, which are removed.
async fn read_keys(state: &AppState, queue: &QueueName) -> Result<Vec<(Message, KeyRecord)>> {
    let messages = state
        .broker()
        .peek(PeekRequest {
            queue: queue.clone(),
            after: 0,
            max: MAX_KEYS,
            wait: Duration::ZERO,
        })
        .await?;
    let now = Timestamp::now();
    let mut known = Vec::new();
    for message in messages {
        let record = serde_json::from_str::<KeyRecord>(&message.body).ok();
        let is_live = |record: &KeyRecord| {
            let kept = match record.tids {
                None => CLAIMED_FOR,
                Some(_) => REMEMBERED_FOR,
            };
            now < record.at + kept
        };
        match record.filter(is_live) {
            Some(record) => known.push((message, record)),
            None => {
                let removal = MessageTransaction {
                    queue: queue.clone(),
                    messages: vec![message],
                    tasks: Vec::new(),
                    new_messages: Vec::new(),
                };
                state.broker().apply_transaction(removal).await?;
            }
        }
    }
    Ok(known)
}

fn sha256(text: &str) -> String {
    HEXLOWER.encode(digest(&SHA256, text.as_bytes()).as_ref())
}
