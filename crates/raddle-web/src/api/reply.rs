//! Bodies of answers: lists, and records without what the caller may not see.

use axum::Json;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::auth::{Caller, Right};

/// How many items a list has, unless the request says otherwise.
const DEFAULT_LIMIT: u32 = 50;
/// The most items of a list.
pub(crate) const MAX_LIMIT: u32 = 1000;
/// What stands for a value that the caller may not see.
const HIDDEN: &str = "…";

/// A part of a list.
#[derive(Debug, Serialize)]
pub(crate) struct Page {
    pub(crate) items: Vec<Value>,
    /// The cursor of the next part; `None` if this is the last.
    pub(crate) next: Option<String>,
    /// The id of the last event before the list was read.
    pub(crate) as_of: String,
    /// How many records were looked at.
    pub(crate) looked_at: u64,
    /// Whether all records were looked at.
    pub(crate) complete: bool,
}

impl Page {
    /// A list that is complete.
    pub(crate) fn whole<T: Serialize>(items: impl IntoIterator<Item = T>, as_of: u64) -> Self {
        let items: Vec<Value> = items.into_iter().map(|item| json!(item)).collect();
        Self {
            looked_at: items.len() as u64,
            items,
            next: None,
            as_of: as_of.to_string(),
            complete: true,
        }
    }

    /// Keeps only the named fields of each item.
    pub(crate) fn trimmed(mut self, fields: Option<&str>) -> Json<Self> {
        if let Some(fields) = fields {
            let names: Vec<&str> = fields.split(',').map(str::trim).collect();
            for item in &mut self.items {
                if let Value::Object(fields) = item {
                    fields.retain(|name, _| names.contains(&name.as_str()));
                }
            }
        }
        Json(self)
    }
}

/// The number of items that a request asks for.
pub(crate) fn limit(asked: Option<u32>) -> u32 {
    asked.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT)
}

/// A record of a task as this caller may see it: without arguments, input, environment and results
/// for those who may not see data. The keys stay.
pub(crate) fn visible_task(caller: &Caller, mut record: Map<String, Value>) -> Map<String, Value> {
    if caller.may(Right::SeeData) {
        return record;
    }
    if let Some(Value::Object(spec)) = record.get_mut("spec") {
        hide_spec(spec);
    }
    if let Some(Value::Object(report)) = record.get_mut("report") {
        hide(report, "value");
    }
    for name in ["stdout", "stderr"] {
        hide(&mut record, name);
    }
    record
}

/// Hides the data of a spec.
pub(crate) fn hide_spec(spec: &mut Map<String, Value>) {
    for name in ["args", "kwargs", "stdin", "metadata"] {
        hide(spec, name);
    }
    if let Some(Value::Object(env)) = spec.get_mut("env") {
        env.values_mut().for_each(|value| *value = HIDDEN.into());
    }
    // The name of the program says what runs, its arguments what on.
    if let Some(Value::Object(target)) = spec.get_mut("target") {
        target.values_mut().for_each(hide_arguments);
        hide(target, "request");
    }
    for name in ["command", "request"] {
        spec.get_mut(name).into_iter().for_each(hide_arguments);
    }
    hide(spec, "request");
}

fn hide_arguments(words: &mut Value) {
    if let Value::Array(words) = words
        && words.len() > 1
    {
        words.truncate(1);
        words.push(HIDDEN.into());
    }
}

fn hide(record: &mut Map<String, Value>, name: &str) {
    if let Some(value) = record.get_mut(name).filter(|value| !value.is_null()) {
        *value = HIDDEN.into();
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use raddle_model::{TaskSpec, TaskView, Tid};
    use raddle_view::task::task_record;

    use super::*;

    #[test]
    fn hides_every_value_of_a_spec() {
        let spec = TaskSpec {
            name: Some("shown".into()),
            stdin: Some("secret".into()),
            args: vec!["secret".into()],
            kwargs: [("k".to_owned(), Value::from("secret"))]
                .into_iter()
                .collect(),
            env: [("K".to_owned(), "secret".to_owned())].into(),
            metadata: [("k".to_owned(), Value::from("secret"))]
                .into_iter()
                .collect(),
            ..TaskSpec::command(["curl", "secret"])
        };
        let tid = Tid::from_u64(1_837_025_672_140_161_024).unwrap();
        let mut record = task_record(&TaskView::new(tid, spec, Timestamp::UNIX_EPOCH));
        let Some(Value::Object(spec)) = record.get_mut("spec") else {
            panic!("{record:?}");
        };
        hide_spec(spec);
        let text = serde_json::to_string(&record).unwrap();
        assert!(!text.contains("secret"), "{text}");
        assert!(text.contains("curl") && text.contains("shown"), "{text}");
        assert!(text.contains(r#""tid":"1837025672140161024""#), "{text}");
    }
}
