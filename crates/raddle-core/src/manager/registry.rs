//! The file that says what a manager may spawn: `tasks.toml`.
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
    template::{Piece, Template, is_param, parse},
};
use crate::{Spec, caps::CapSet};

/// What a manager may spawn, by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Registry {
    pub(super) tasks: BTreeMap<String, Template>,
}

/// Why a text is no registry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct RegistryError {
    /// Where, counted from 1. Of what is wrong with a task as a whole, where that begins.
    pub line: usize,
    /// What is wrong there, and what to do.
    pub reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    task: BTreeMap<String, Spanned<Template>>,
}

impl Registry {
    /// Reads what a file says.
    pub fn from_toml(text: &str) -> Result<Self, RegistryError> {
        let at = |span: Range<usize>, reason: String| {
            let before = text.as_bytes().get(..span.start).unwrap_or_default();
            RegistryError { line: 1 + before.iter().filter(|byte| **byte == b'\n').count(), reason }
        };
        let File { task } =
            toml::from_str(text).map_err(|error| at(error.span().unwrap_or(0..0), error.message().to_owned()))?;
        let mut tasks = BTreeMap::new();
        for (name, template) in task {
            let wrong = |reason| at(template.span(), format!("task '{name}': {reason}"));
            check(&name, template.get_ref()).map_err(wrong)?;
            tasks.insert(name, template.into_inner());
        }
        Ok(Self { tasks })
    }

    /// The names of what can be asked for.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tasks.keys().map(String::as_str)
    }

    /// Whether nothing can be asked for.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }
}

/// Refuses what no task could be.
fn check(name: &str, template: &Template) -> Result<(), String> {
    // It is a capability of the manager, too.
    if CapSet::from_people(name).is_err() || name.contains([',', ' ']) || name.is_empty() {
        return Err("its name is none: use letters, digits and . _ - : (at most 64)".into());
    }
    if name == WORKER {
        return Err("is what managers themselves are asked for by: give it another name".into());
    }
    for (param, declared) in &template.params {
        if !is_param(param) {
            return Err(format!("parameter '{param}' has no good name: use letters, digits and _"));
        }
        declared.check().map_err(|reason| format!("parameter '{param}' {reason}"))?;
    }
    let mut used = BTreeSet::new();
    for (number, text) in template.command.iter().chain(&template.stdin).enumerate() {
        for piece in parse(text).map_err(|reason| format!("'{text}' {reason}"))? {
            let Piece::Param(param) = piece else { continue };
            if number == 0 {
                return Err("the program itself cannot be a parameter: who asks would run what they like".into());
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
        return Err(format!("parameter '{idle}' is used nowhere: write {{{idle}}} in command or stdin, or remove it"));
    }
    let spec = Spec {
        timeout: template.timeout,
        limits: template.limits.clone(),
        env: template.env.clone(),
        cwd: template.cwd.clone(),
        isolation: template.isolation,
        ..Spec::command(template.command.clone())
    };
    spec.validate().map_err(|error| error.to_string())
}
