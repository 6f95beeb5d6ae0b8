//! A message of `raddle.spawn.requests` or `worker.<type>.requests`: what is requested of a
//! manager. It is untrusted until it is parsed here.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::spawn_policy::SpawnRefusal;
use crate::{
    HumanDuration, Limits, TaskSpec,
    spec::{ParseSpecError, parse::read_json, table},
};

/// A parsed spawn request.
#[derive(Clone, Debug, PartialEq)]
pub struct SpawnMessage {
    /// The requested task.
    pub request: SpawnRequest,
    /// Wait for a manager that lists the task, if none does now.
    pub wait: bool,
    /// 0 to 9; higher is served first.
    pub priority: Option<u8>,
    /// Timeout of an attempt.
    pub timeout: Option<HumanDuration>,
    /// Resource limits of the task.
    pub limits: Limits,
}

/// The requested task.
#[derive(Clone, Debug, PartialEq)]
pub enum SpawnRequest {
    /// A task that the manager's registry lists, with parameters.
    Task(String, Map<String, Value>),
    /// A complete task spec.
    Spec(Box<TaskSpec>),
}

/// The message before validation.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMessage {
    task: Option<String>,
    params: Option<Map<String, Value>>,
    spec: Option<Value>,
    #[serde(default)]
    wait: bool,
    priority: Option<u8>,
    timeout: Option<HumanDuration>,
    #[serde(default, deserialize_with = "table::only")]
    limits: Limits,
}

impl SpawnMessage {
    /// Parses and validates a message.
    pub fn parse(text: &str) -> Result<Self, SpawnRefusal> {
        let RawMessage {
            task,
            params,
            spec,
            wait,
            priority,
            timeout,
            limits,
        } = read_json(text).map_err(refuse_unparsable)?;
        let malformed = |path: &str, reason: &str| SpawnRefusal::Malformed {
            path: path.into(),
            reason: reason.into(),
        };
        let request = match (task, spec) {
            (Some(task), None) => SpawnRequest::Task(task, params.unwrap_or_default()),
            (None, Some(spec)) => {
                let extra = [
                    ("params", params.is_some()),
                    ("wait", wait),
                    ("priority", priority.is_some()),
                ];
                let extra = extra.into_iter().chain([
                    ("timeout", timeout.is_some()),
                    ("limits", !limits.is_empty()),
                ]);
                if let Some((key, _)) = extra.into_iter().find(|(_, is_there)| *is_there) {
                    return Err(malformed(
                        key,
                        "means nothing beside 'spec': the spec says it itself",
                    ));
                }
                SpawnRequest::Spec(Box::new(
                    TaskSpec::from_value(spec).map_err(|error| refuse_invalid_spec(&error))?,
                ))
            }
            (Some(_), Some(_)) => {
                return Err(malformed("spec", "and 'task' exclude each other: give one"));
            }
            (None, None) => return Err(malformed(".", "names neither 'task' nor 'spec'")),
        };
        if priority.is_some_and(|priority| priority > 9) {
            return Err(malformed("priority", "must be 0 to 9"));
        }
        if timeout.is_some_and(|timeout| timeout.0.is_zero()) {
            return Err(malformed("timeout", "must be longer than zero"));
        }
        Ok(Self {
            request,
            wait,
            priority,
            timeout,
            limits,
        })
    }
}

fn refuse_unparsable(error: ParseSpecError) -> SpawnRefusal {
    match error {
        ParseSpecError::Json { source, .. } if source.is_syntax() || source.is_eof() => {
            SpawnRefusal::NotJson(source.to_string())
        }
        ParseSpecError::Json { path, source } => SpawnRefusal::Malformed {
            path,
            reason: source.to_string(),
        },
        other => SpawnRefusal::Malformed {
            path: ".".into(),
            reason: other.to_string(),
        },
    }
}

fn refuse_invalid_spec(error: &ParseSpecError) -> SpawnRefusal {
    let (path, reason) = match error {
        ParseSpecError::Json { path, source } => (path.clone(), source.to_string()),
        ParseSpecError::Invalid(invalid) => (invalid.path.to_string(), invalid.reason.clone()),
        other => (".".into(), other.to_string()),
    };
    SpawnRefusal::Malformed {
        path: format!("spec.{path}"),
        reason,
    }
}
