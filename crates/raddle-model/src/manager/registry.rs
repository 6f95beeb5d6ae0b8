//! The registry file `tasks.toml`, which lists the tasks that a manager may spawn.
//!
//! ```toml
//! [task.grep]
//! command = ["grep", "-n", "--", "{pattern}", "{file}"]
//! timeout = "30s"
//! [task.grep.params]
//! pattern = "string"
//! file = { type = "string", default = "/etc/hosts" }
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::{
    WORKER,
    template::{TaskTemplate, TemplatePart, is_param_name, parse_argument},
};
use crate::{TaskSpec, caps::CapSet};

/// The tasks that a manager may spawn, by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskRegistry {
    pub(super) tasks: BTreeMap<String, TaskTemplate>,
}

/// The text is not a valid registry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct TaskRegistryError {
    /// Line number, counted from 1. An error about a task as a whole gives the line where the task
    /// begins.
    pub line: usize,
    /// The problem and its fix.
    pub reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TaskRegistryFile {
    #[serde(default)]
    task: BTreeMap<String, Spanned<TaskTemplate>>,
}

impl TaskRegistry {
    /// Parses the contents of a registry file.
    pub fn from_toml(text: &str) -> Result<Self, TaskRegistryError> {
        let error_at = |span: Range<usize>, reason: String| {
            let before = text.as_bytes().get(..span.start).unwrap_or_default();
            TaskRegistryError {
                line: 1 + before.iter().filter(|byte| **byte == b'\n').count(),
                reason,
            }
        };
        let TaskRegistryFile { task } = toml::from_str(text)
            .map_err(|error| error_at(error.span().unwrap_or(0..0), error.message().to_owned()))?;
        let mut tasks = BTreeMap::new();
        for (name, template) in task {
            let wrong = |reason| error_at(template.span(), format!("task '{name}': {reason}"));
            check_template(&name, template.get_ref()).map_err(wrong)?;
            tasks.insert(name, template.into_inner());
        }
        Ok(Self { tasks })
    }

    /// Returns the names of the tasks.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tasks.keys().map(String::as_str)
    }

    /// Returns whether the registry lists no tasks.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }
}

/// Refuses a template that cannot become a valid task.
fn check_template(name: &str, template: &TaskTemplate) -> Result<(), String> {
    // The name is also a capability of the manager.
    if CapSet::from_people(name).is_err() || name.contains([',', ' ']) || name.is_empty() {
        return Err("its name is invalid: use letters, digits and . _ - : (at most 64)".into());
    }
    if name == WORKER {
        return Err("is reserved for starting managers: choose another name".into());
    }
    for (param, declared) in &template.params {
        if !is_param_name(param) {
            return Err(format!(
                "parameter '{param}' has an invalid name: use letters, digits and _"
            ));
        }
        declared
            .check()
            .map_err(|reason| format!("parameter '{param}' {reason}"))?;
    }
    let mut used = BTreeSet::new();
    for (number, text) in template.command.iter().chain(&template.stdin).enumerate() {
        for part in parse_argument(text).map_err(|reason| format!("'{text}' {reason}"))? {
            let TemplatePart::Param(param) = part else {
                continue;
            };
            if number == 0 {
                return Err(
                    "the program itself cannot be a parameter: a request could run any program"
                        .into(),
                );
            }
            if !template.params.contains_key(&param) {
                return Err(format!(
                    "'{text}' has a place for '{param}', which is not among its params: declare it there"
                ));
            }
            used.insert(param);
        }
    }
    if template.command.first().is_none_or(String::is_empty) {
        return Err("command names no program: its first word is the program".into());
    }
    if let Some(idle) = template.params.keys().find(|param| !used.contains(*param)) {
        return Err(format!(
            "parameter '{idle}' is used nowhere: write {{{idle}}} in command or stdin, or remove it"
        ));
    }
    let spec = TaskSpec {
        timeout: template.timeout,
        limits: template.limits.clone(),
        env: template.env.clone(),
        cwd: template.cwd.clone(),
        isolation: template.isolation,
        ..TaskSpec::command(template.command.clone())
    };
    spec.validate().map_err(|error| error.to_string())
}
