//! Building the `ExecRequest` for a claimed task.

use std::collections::BTreeMap;

use raddle_broker::{AttemptId, LeasedTask};
use raddle_model::{
    AttemptInput, ExitStatus, Limits, Target, TaskSpec, Trace,
    attempt_input::{ATTEMPT_VARIABLE, FENCING_TOKEN_VARIABLE, TID_VARIABLE, WORKER_VARIABLE},
    frame,
    manager::SpawnRefusal,
    trace::{TRACEPARENT, TRACESTATE},
};
use raddle_runner::{ExecRequest, ExecTarget, HANDLER, OutputChannel, SandboxConfig};

use super::{
    Options,
    isolation::{self, ResolvedIsolation},
    slot::SlotContext,
};
use raddle_client::handler::function_name;
use raddle_container::task::{ContainerParams, SUPERVISOR_ARGUMENT};

use crate::plugins::HandlerKind;

/// Limit of open files per process in a container when the spec sets none; the same as in a
/// sandbox.
const MAX_FDS: u64 = 1024;

/// Builds the request for the runner, and names the channel of the reply for targets that reply.
/// The error is the end of an attempt that cannot start.
pub(super) fn build_exec_request(
    context: &SlotContext,
    claim: LeasedTask,
) -> Result<(ExecRequest, Option<OutputChannel>), ExitStatus> {
    let LeasedTask {
        attempt_id,
        spec,
        fencing_token,
    } = claim;
    let options = &context.options;
    let spec = match &options.spawn_policy {
        Some(spawn_policy) => spawn_policy
            .resolve(spec)
            .map_err(|refusal| rejected(attempt_id, &refusal))?,
        None => spec,
    };
    let resolved =
        isolation::resolve_isolation(&spec, options.min_isolation, options.task_image.is_some())?;
    let is_isolated = resolved != ResolvedIsolation::Process;
    // The worker's variables are only for tasks that run without isolation: others are not trusted.
    let mut env_map = if is_isolated {
        BTreeMap::new()
    } else {
        options.env.clone()
    };
    // Always set: the worker's own environment may carry a trace that is not the task's.
    let Trace { parent, state } = spec.trace(attempt_id.tid, attempt_id.attempt);
    env_map.insert(TRACEPARENT.into(), parent.to_string());
    if state.is_some() || (!is_isolated && std::env::var_os(TRACESTATE).is_some()) {
        env_map.insert(
            TRACESTATE.into(),
            state.map_or_else(String::new, |state| state.to_string()),
        );
    }
    env_map.extend(spec.env.clone());
    let mut env: Vec<(String, String)> = env_map.into_iter().collect();
    env.push((TID_VARIABLE.into(), attempt_id.tid.to_string()));
    env.push((ATTEMPT_VARIABLE.into(), attempt_id.attempt.to_string()));
    env.push((WORKER_VARIABLE.into(), attempt_id.owner.to_string()));
    env.push((FENCING_TOKEN_VARIABLE.into(), fencing_token.to_string()));
    let (sandbox, cwd) = match resolved {
        ResolvedIsolation::Process => (None, spec.cwd.clone()),
        ResolvedIsolation::Sandbox(sandbox) => (Some(sandbox), spec.cwd.clone()),
        ResolvedIsolation::RaisedSandbox(sandbox) => (Some(sandbox), None),
        ResolvedIsolation::Container { is_in_host_network } => {
            let image = options.task_image.clone().unwrap_or_default();
            return build_container_request(
                options,
                attempt_id,
                spec,
                env,
                image,
                is_in_host_network,
            );
        }
    };
    let mut request = ExecRequest {
        tid: attempt_id.tid,
        attempt: attempt_id.attempt,
        name: spec.display_name().to_owned(),
        program: ExecTarget::Command(Vec::new()),
        env,
        cwd,
        stdin: None,
        timeout: options.time_limits.timeout_of(&spec),
        limits: isolation::effective_limits(&spec, options.min_isolation),
        grace: options.grace,
        timeout_grace: options.time_limits.overtime.unwrap_or(options.grace),
        sandbox,
    };
    let channel = match spec.target {
        Target::Command(argv) => {
            request.program = ExecTarget::Command(argv);
            request.stdin = spec.stdin.map(String::into_bytes);
            return Ok((request, None));
        }
        Target::Routine(ref name) => {
            request.program = ExecTarget::Function(name.clone());
            OutputChannel::Reply
        }
        Target::Handler(_) => match options.plugins.select(&spec, &options.caps) {
            Ok((name, HandlerKind::Function)) => {
                request.program = ExecTarget::Function(function_name(name));
                OutputChannel::Reply
            }
            Ok((_, HandlerKind::Command { argv, directory })) => {
                let (mut argv, directory) =
                    (argv.clone(), directory.to_string_lossy().into_owned());
                match &mut request.sandbox {
                    Some(sandbox) => use_handler_directory(&mut argv, directory, sandbox),
                    None => drop(request.cwd.get_or_insert(directory)),
                }
                request.program = ExecTarget::Command(argv);
                OutputChannel::Stdout
            }
            Ok((name, HandlerKind::Host { .. })) => {
                return Err(ExitStatus::NoHandler {
                    message: format!(
                        "the handler '{name}' runs in a host, which this worker does not keep, or which is not isolated enough"
                    ),
                });
            }
            Err(message) => {
                context.log_release(&message);
                return Err(ExitStatus::NoHandler { message });
            }
        },
        _ => return Err(spawn_failed("this worker cannot run such a target".into())),
    };
    let input = AttemptInput::new(attempt_id.tid, attempt_id.attempt, spec);
    request.stdin =
        Some(serde_json::to_vec(&input).map_err(|error| spawn_failed(error.to_string()))?);
    Ok((request, Some(channel)))
}

/// Builds the request for a task in a container: the runner starts a container supervisor, which
/// gets the real request on its stdin.
fn build_container_request(
    options: &Options,
    attempt_id: AttemptId,
    spec: TaskSpec,
    env: Vec<(String, String)>,
    image: String,
    is_in_host_network: bool,
) -> Result<(ExecRequest, Option<OutputChannel>), ExitStatus> {
    let (name, limits) = (
        spec.display_name().to_owned(),
        isolation::effective_limits(&spec, options.min_isolation),
    );
    let timeout = options.time_limits.timeout_of(&spec);
    let Target::Command(argv) = spec.target else {
        return Err(spawn_failed("only commands run in containers".into()));
    };
    let request = ExecRequest {
        tid: attempt_id.tid,
        attempt: attempt_id.attempt,
        name,
        program: ExecTarget::Command(argv),
        env,
        cwd: None,
        stdin: spec.stdin.map(String::into_bytes),
        timeout,
        limits: Limits {
            max_fds: limits.max_fds.or(Some(MAX_FDS)),
            ..limits
        },
        grace: options.grace,
        timeout_grace: options.time_limits.overtime.unwrap_or(options.grace),
        sandbox: None,
    };
    let params = ContainerParams {
        request,
        image,
        is_in_host_network,
    };
    let stdin = Some(frame::encode(&params));
    let program = ExecTarget::ContainerSupervisor(vec![SUPERVISOR_ARGUMENT.into()]);
    // The limits apply to the container, not to its supervisor.
    let request = ExecRequest {
        program,
        env: Vec::new(),
        stdin,
        limits: Limits::default(),
        ..params.request
    };
    Ok((request, None))
}

/// Mounts the handler's directory in the sandbox, and names the program by its path there.
fn use_handler_directory(argv: &mut [String], directory: String, sandbox: &mut SandboxConfig) {
    if let Some(program) = argv.first_mut()
        && let Some(name) = program
            .strip_prefix(&directory)
            .and_then(|rest| rest.strip_prefix('/'))
    {
        *program = format!("{HANDLER}/{name}");
    }
    sandbox.directory = Some(directory);
}

/// The end of a spawn request that the manager's policy refuses.
fn rejected(attempt_id: AttemptId, refusal: &SpawnRefusal) -> ExitStatus {
    tracing::warn!(tid = %attempt_id.tid, %refusal, "a request was refused");
    ExitStatus::Rejected {
        message: refusal.to_string(),
    }
}

fn spawn_failed(message: String) -> ExitStatus {
    ExitStatus::SpawnFailed { message }
}
