//! What a manager makes of what it is asked for. The one place for it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    Ceiling, PRIME, Registry, Request, WORKER, Wish,
    ceiling::within,
    template::{Misfit, listed},
};
use crate::{Spec, Target};

/// What a manager may spawn, and within which limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Charter {
    /// The type of the manager.
    pub kind: String,
    /// What can be asked for by name.
    pub registry: Registry,
    /// What no task of it is above.
    pub ceiling: Ceiling,
    /// How another manager is started, where it may.
    pub herald: Herald,
}

/// How a manager is started: the words before those that say which one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Herald {
    /// The program and its first words.
    pub argv: Vec<String>,
    /// What is in its environment.
    pub env: BTreeMap<String, String>,
    /// The file with its registry, where the request names none: the one that this manager has read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<String>,
}

/// Why a manager does not do what it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The message is no JSON.
    #[error("not JSON ({0}): write {{\"task\": NAME, \"params\": {{…}}}}")]
    NotJson(String),
    /// A key of it is wrong.
    #[error("at '{path}': {reason}")]
    Malformed {
        /// The key.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// It does not list the task.
    #[error(
        "unknown task '{task}': {}{}",
        listed(&format!("worker-{kind} lists"), known),
        if kind == PRIME {
            ", and no manager that lives had it: make one with 'raddle worker spawn', or ask with \"wait\": true"
        } else {
            ""
        }
    )]
    Unknown {
        /// What was asked for.
        task: String,
        /// The type of the manager.
        kind: String,
        /// What it lists.
        known: Vec<String>,
    },
    /// The parameters are not those that the task takes.
    #[error("task '{task}' {misfit}")]
    Misfit {
        /// What was asked for.
        task: String,
        /// What is wrong with the parameters.
        misfit: Misfit,
    },
    /// More is asked for than the manager may give, or than the task may be given.
    #[error("{what} {asked} is above the limit of {whose}, which is {most}: ask for {most} or less")]
    Above {
        /// Which limit.
        what: &'static str,
        /// What was asked for.
        asked: String,
        /// What is allowed.
        most: String,
        /// Who says so: the manager, or the task of its registry.
        whose: String,
    },
    /// It runs what its registry lists, and this was spelled out.
    #[error("worker-{kind} spawns what its registry lists, and nothing else: ask it for a task by its name")]
    Unlisted {
        /// The type of the manager.
        kind: String,
    },
    /// What would be spawned is no task.
    #[error(transparent)]
    Invalid(#[from] crate::spec::InvalidSpec),
}

impl Charter {
    /// Whether this is the prime.
    pub fn is_prime(&self) -> bool {
        self.kind == PRIME
    }

    /// What is run for a task that one of the manager's workers has taken.
    pub fn resolve(&self, spec: Spec) -> Result<Spec, Refusal> {
        let Target::Request(text) = &spec.target else { return self.spelled_out(spec) };
        let Request { wish, timeout, limits, .. } = Request::parse(text)?;
        let (task, params) = match wish {
            Wish::Task(task, params) => (task, params),
            Wish::Spec(_) => return Err(Refusal::Unlisted { kind: self.kind.clone() }),
        };
        if task == WORKER && self.is_prime() {
            return self.manager(spec, params);
        }
        let Some(template) = self.registry.tasks.get(&task) else {
            let known = self.registry.names().map(Into::into).collect();
            return Err(Refusal::Unknown { task, kind: self.kind.clone(), known });
        };
        // Whoever wrote the registry has the say: who asks may want less than a template allows, and not more.
        let listed = (&template.limits, template.timeout);
        let (limits, timeout) = within((&limits, timeout), listed, &format!("task '{task}' of its registry"))?;
        let (limits, timeout) = self.ceiling.bound(&limits, timeout)?;
        let (argv, stdin) = template.fill(&params).map_err(|misfit| Refusal::Misfit { task, misfit })?;
        let resolved = Spec {
            target: Target::Command(argv),
            stdin,
            timeout,
            limits,
            env: template.env.clone(),
            cwd: template.cwd.clone(),
            isolation: template.isolation,
            ..spec
        };
        resolved.validate()?;
        Ok(resolved)
    }

    /// A task that names no template. The prime runs it; any other manager does not.
    fn spelled_out(&self, spec: Spec) -> Result<Spec, Refusal> {
        if !self.is_prime() {
            return Err(Refusal::Unlisted { kind: self.kind.clone() });
        }
        let (limits, timeout) = self.ceiling.bound(&spec.limits, spec.timeout)?;
        Ok(Spec { limits, timeout, ..spec })
    }

    /// The command that is another manager. What it may is within what this one may.
    fn manager(&self, spec: Spec, params: Map<String, Value>) -> Result<Spec, Refusal> {
        let Manager { kind, registry, limits, name } = Manager::read(params)?;
        let limits = self.ceiling.below(&limits)?;
        let mut argv = self.herald.argv.clone();
        argv.extend(["--type".into(), kind]);
        match registry.or_else(|| self.herald.registry.clone()) {
            Some(path) => argv.extend(["--registry".into(), path]),
            None => argv.push("--no-registry".into()),
        }
        argv.extend(name.into_iter().flat_map(|name| ["--name".into(), name]));
        if !limits.is_empty() {
            argv.extend(["--limits".into(), limits.to_string()]);
        }
        let resolved = Spec { target: Target::Command(argv), env: self.herald.env.clone(), ..spec };
        resolved.validate()?;
        Ok(resolved)
    }
}

/// The parameters of the task `worker`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Manager {
    #[serde(rename = "type")]
    kind: String,
    registry: Option<String>,
    #[serde(default)]
    limits: Ceiling,
    name: Option<String>,
}

impl Manager {
    fn read(params: Map<String, Value>) -> Result<Self, Refusal> {
        let malformed = |path: &str, reason: String| Refusal::Malformed { path: format!("params.{path}"), reason };
        let read: Self = serde_path_to_error::deserialize(Value::Object(params))
            .map_err(|error| malformed(&error.path().to_string(), error.into_inner().to_string()))?;
        super::parse_type(&read.kind).map_err(|error| malformed("type", error.to_string()))?;
        read.limits.validate().map_err(|error| malformed("limits", error.reason))?;
        if read.registry.as_ref().is_some_and(|path| !path.starts_with('/')) {
            return Err(malformed("registry", "has to be a whole path: the prime has a folder of its own".into()));
        }
        Ok(read)
    }
}
