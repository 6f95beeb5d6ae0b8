//! Turns a request into the task that a manager spawns, or refuses it. No other module decides
//! this.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    PRIME, ResourceLimits, SpawnMessage, SpawnRequest, TaskRegistry, WORKER,
    resource_limits::narrow_limits,
    template::{ParamError, format_list},
};
use crate::{Target, TaskSpec};

/// The tasks that a manager may spawn, and their limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpawnPolicy {
    /// The type of the manager.
    pub kind: String,
    /// Tasks that can be requested by name.
    pub registry: TaskRegistry,
    /// Upper bounds for the tasks that it spawns.
    pub ceiling: ResourceLimits,
    /// How it starts another manager, where it may.
    pub manager_command: ManagerLaunchCommand,
}

/// Command that starts a manager, without the arguments that say which one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagerLaunchCommand {
    /// The program and its leading arguments.
    pub argv: Vec<String>,
    /// Environment of the command.
    pub env: BTreeMap<String, String>,
    /// Path of the registry file, for requests that name none: the file that this manager has read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<String>,
}

/// Why a manager refuses a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnRefusal {
    /// The message is not JSON.
    #[error("not JSON ({0}): write {{\"task\": NAME, \"params\": {{…}}}}")]
    NotJson(String),
    /// A key of the message is invalid.
    #[error("at '{path}': {reason}")]
    Malformed {
        /// The key.
        path: String,
        /// Why its value is invalid.
        reason: String,
    },
    /// The manager's registry does not list the task.
    #[error(
        "unknown task '{task}': {}{}",
        format_list(&format!("worker-{kind} lists"), known),
        if kind == PRIME {
            ", and no live manager lists it: start one with 'raddle worker spawn', or set \"wait\": true"
        } else {
            ""
        }
    )]
    Unknown {
        /// The requested task.
        task: String,
        /// The type of the manager.
        kind: String,
        /// Tasks that the manager lists.
        known: Vec<String>,
    },
    /// The parameters do not match those of the task.
    #[error("task '{task}' {error}")]
    InvalidParams {
        /// The requested task.
        task: String,
        /// Why the parameters do not match.
        error: ParamError,
    },
    /// The request exceeds the limits of the manager or of the task's template.
    #[error(
        "{what} {asked} is above the limit of {whose}, which is {most}: ask for {most} or less"
    )]
    Above {
        /// Name of the limit.
        what: &'static str,
        /// The requested value.
        asked: String,
        /// The allowed value.
        most: String,
        /// Owner of the limit: the manager, or a task of its registry.
        whose: String,
    },
    /// The manager spawns only tasks of its registry, and the request holds a complete spec.
    #[error(
        "worker-{kind} spawns what its registry lists, and nothing else: ask it for a task by its name"
    )]
    Unlisted {
        /// The type of the manager.
        kind: String,
    },
    /// The resulting task spec is invalid.
    #[error(transparent)]
    Invalid(#[from] crate::spec::InvalidSpec),
}

impl SpawnPolicy {
    /// Returns whether this is the root manager.
    pub fn is_prime(&self) -> bool {
        self.kind == PRIME
    }

    /// Returns the spec to run for a task that one of the manager's workers has claimed.
    pub fn resolve(&self, spec: TaskSpec) -> Result<TaskSpec, SpawnRefusal> {
        let Target::Request(text) = &spec.target else {
            return self.resolve_full_spec(spec);
        };
        let SpawnMessage {
            request,
            timeout,
            limits,
            ..
        } = SpawnMessage::parse(text)?;
        let (task, params) = match request {
            SpawnRequest::Task(task, params) => (task, params),
            SpawnRequest::Spec(_) => {
                return Err(SpawnRefusal::Unlisted {
                    kind: self.kind.clone(),
                });
            }
        };
        if task == WORKER && self.is_prime() {
            return self.build_manager_command(spec, params);
        }
        let Some(template) = self.registry.tasks.get(&task) else {
            let known = self.registry.names().map(Into::into).collect();
            return Err(SpawnRefusal::Unknown {
                task,
                kind: self.kind.clone(),
                known,
            });
        };
        // The registry's author decides: a request may lower the limits of a template, not raise
        // them.
        let template_limits = (&template.limits, template.timeout);
        let (limits, timeout) = narrow_limits(
            (&limits, timeout),
            template_limits,
            &format!("task '{task}' of its registry"),
        )?;
        let (limits, timeout) = self.ceiling.apply_to_task(&limits, timeout)?;
        let (argv, stdin) = template
            .fill(&params)
            .map_err(|error| SpawnRefusal::InvalidParams { task, error })?;
        let resolved = TaskSpec {
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

    /// Resolves a task that is not a request. Only the root manager runs it.
    fn resolve_full_spec(&self, spec: TaskSpec) -> Result<TaskSpec, SpawnRefusal> {
        if !self.is_prime() {
            return Err(SpawnRefusal::Unlisted {
                kind: self.kind.clone(),
            });
        }
        let (limits, timeout) = self.ceiling.apply_to_task(&spec.limits, spec.timeout)?;
        Ok(TaskSpec {
            limits,
            timeout,
            ..spec
        })
    }

    /// Builds the command that starts another manager. The limits of that manager stay within this
    /// one's.
    fn build_manager_command(
        &self,
        spec: TaskSpec,
        params: Map<String, Value>,
    ) -> Result<TaskSpec, SpawnRefusal> {
        let ManagerParams {
            kind,
            registry,
            limits,
            name,
        } = ManagerParams::parse(params)?;
        let limits = self.ceiling.narrow_for_manager(&limits)?;
        let mut argv = self.manager_command.argv.clone();
        argv.extend(["--type".into(), kind]);
        match registry.or_else(|| self.manager_command.registry.clone()) {
            Some(path) => argv.extend(["--registry".into(), path]),
            None => argv.push("--no-registry".into()),
        }
        argv.extend(name.into_iter().flat_map(|name| ["--name".into(), name]));
        if !limits.is_empty() {
            argv.extend(["--limits".into(), limits.to_string()]);
        }
        let resolved = TaskSpec {
            target: Target::Command(argv),
            env: self.manager_command.env.clone(),
            ..spec
        };
        resolved.validate()?;
        Ok(resolved)
    }
}

/// Parameters of the task `worker`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ManagerParams {
    #[serde(rename = "type")]
    kind: String,
    registry: Option<String>,
    #[serde(default)]
    limits: ResourceLimits,
    name: Option<String>,
}

impl ManagerParams {
    fn parse(params: Map<String, Value>) -> Result<Self, SpawnRefusal> {
        let malformed = |path: &str, reason: String| SpawnRefusal::Malformed {
            path: format!("params.{path}"),
            reason,
        };
        let parsed: Self =
            serde_path_to_error::deserialize(Value::Object(params)).map_err(|error| {
                malformed(&error.path().to_string(), error.into_inner().to_string())
            })?;
        super::parse_type(&parsed.kind).map_err(|error| malformed("type", error.to_string()))?;
        parsed
            .limits
            .validate()
            .map_err(|error| malformed("limits", error.reason))?;
        if parsed
            .registry
            .as_ref()
            .is_some_and(|path| !path.starts_with('/'))
        {
            return Err(malformed(
                "registry",
                "must be an absolute path: the root manager runs in another directory".into(),
            ));
        }
        Ok(parsed)
    }
}
