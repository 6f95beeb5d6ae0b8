//! What is asked of a manager: one message of `raddle.spawn.requests` or `worker.<type>.requests`. It is hostile until it is read here.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::charter::Refusal;
use crate::{
    Limits, Span, Spec,
    spec::{ParseSpecError, parse::read_json, table},
};

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// What is asked for.
    pub wish: Wish,
    /// To wait for a manager that has such a task, where none does.
    pub wait: bool,
    /// 0 to 9; higher is served first.
    pub priority: Option<u8>,
    /// How long it may take.
    pub timeout: Option<Span>,
    /// What it may use.
    pub limits: Limits,
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum Wish {
    /// A task that the manager lists, with these parameters.
    Task(String, Map<String, Value>),
    /// A task that is spelled out.
    Spec(Box<Spec>),
}

/// The message, word for word.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    task: Option<String>,
    params: Option<Map<String, Value>>,
    spec: Option<Value>,
    #[serde(default)]
    wait: bool,
    priority: Option<u8>,
    timeout: Option<Span>,
    #[serde(default, deserialize_with = "table::only")]
    limits: Limits,
}

impl Request {
    /// Reads a message.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let Message { task, params, spec, wait, priority, timeout, limits } = read_json(text).map_err(unread)?;
        let malformed = |path: &str, reason: &str| Refusal::Malformed { path: path.into(), reason: reason.into() };
        let wish = match (task, spec) {
            (Some(task), None) => Wish::Task(task, params.unwrap_or_default()),
            (None, Some(spec)) => {
                let extra = [("params", params.is_some()), ("wait", wait), ("priority", priority.is_some())];
                let extra = extra.into_iter().chain([("timeout", timeout.is_some()), ("limits", !limits.is_empty())]);
                if let Some((key, _)) = extra.into_iter().find(|(_, is_there)| *is_there) {
                    return Err(malformed(key, "means nothing beside 'spec': the spec says it itself"));
                }
                Wish::Spec(Box::new(Spec::from_value(spec).map_err(|error| within_spec(&error))?))
            }
            (Some(_), Some(_)) => return Err(malformed("spec", "and 'task' exclude each other: give one")),
            (None, None) => return Err(malformed(".", "names neither 'task' nor 'spec'")),
        };
        if priority.is_some_and(|priority| priority > 9) {
            return Err(malformed("priority", "must be 0 to 9"));
        }
        if timeout.is_some_and(|timeout| timeout.0.is_zero()) {
            return Err(malformed("timeout", "must be longer than zero"));
        }
        Ok(Self { wish, wait, priority, timeout, limits })
    }
}

fn unread(error: ParseSpecError) -> Refusal {
    match error {
        ParseSpecError::Json { source, .. } if source.is_syntax() || source.is_eof() => {
            Refusal::NotJson(source.to_string())
        }
        ParseSpecError::Json { path, source } => Refusal::Malformed { path, reason: source.to_string() },
        other => Refusal::Malformed { path: ".".into(), reason: other.to_string() },
    }
}

fn within_spec(error: &ParseSpecError) -> Refusal {
    let (path, reason) = match error {
        ParseSpecError::Json { path, source } => (path.clone(), source.to_string()),
        ParseSpecError::Invalid(invalid) => (invalid.path.to_string(), invalid.reason.clone()),
        other => (".".into(), other.to_string()),
    };
    Refusal::Malformed { path: format!("spec.{path}"), reason }
}
