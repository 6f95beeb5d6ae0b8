//! From a claimed task to what a runner is asked to do.

use std::collections::BTreeMap;

use raddle_broker::{Claim, Fence};
use raddle_core::{
    Exit, Job, Limits, Spec, Target, Trace, frame,
    job::{ATTEMPT_VARIABLE, FENCING_TOKEN_VARIABLE, TID_VARIABLE, WORKER_VARIABLE},
    manager::Refusal,
    trace::{TRACEPARENT, TRACESTATE},
};
use raddle_exec::{HANDLER, Program, Request, Sandbox, Stream};

use super::{
    Options,
    apart::{self, Place},
    slot::SlotContext,
};
use crate::{
    contained::{Charge, LEASH},
    handler::Way,
};

/// The open files of each process in a container, as in a sandbox, where the task does not say.
const MAX_FDS: u64 = 1024;

/// What to run, and what it answers on if it is one that answers. The error says how the attempt ends without having begun.
pub(super) fn of(context: &SlotContext, claim: Claim) -> Result<(Request, Option<Stream>), Exit> {
    let Claim { fence, spec, fencing_token } = claim;
    let options = &context.options;
    let spec = match &options.charter {
        Some(charter) => charter.resolve(spec).map_err(|refusal| refused(fence, &refusal))?,
        None => spec,
    };
    let place = apart::of(&spec, options.min_isolation, options.task_image.is_some())?;
    let is_apart = place != Place::Open;
    // What the worker has for its tasks is not for those that it does not trust.
    let mut vars = if is_apart { BTreeMap::new() } else { options.env.clone() };
    // Set also where nobody named a trace: the worker's own environment may have one, which is not the task's.
    let Trace { parent, state } = spec.trace(fence.tid, fence.attempt);
    vars.insert(TRACEPARENT.into(), parent.to_string());
    if state.is_some() || (!is_apart && std::env::var_os(TRACESTATE).is_some()) {
        vars.insert(TRACESTATE.into(), state.map_or_else(String::new, |state| state.to_string()));
    }
    vars.extend(spec.env.clone());
    let mut env: Vec<(String, String)> = vars.into_iter().collect();
    env.push((TID_VARIABLE.into(), fence.tid.to_string()));
    env.push((ATTEMPT_VARIABLE.into(), fence.attempt.to_string()));
    env.push((WORKER_VARIABLE.into(), fence.owner.to_string()));
    env.push((FENCING_TOKEN_VARIABLE.into(), fencing_token.to_string()));
    let (sandbox, cwd) = match place {
        Place::Open => (None, spec.cwd.clone()),
        Place::Asked(sandbox) => (Some(sandbox), spec.cwd.clone()),
        Place::Raised(sandbox) => (Some(sandbox), None),
        Place::Contained { is_in_host_network } => {
            let image = options.task_image.clone().unwrap_or_default();
            return contained(options, fence, spec, env, image, is_in_host_network);
        }
    };
    let mut request = Request {
        tid: fence.tid,
        attempt: fence.attempt,
        name: spec.display_name().to_owned(),
        program: Program::Command(Vec::new()),
        env,
        cwd,
        stdin: None,
        timeout: options.bound.of(&spec),
        limits: apart::limits(&spec, options.min_isolation),
        grace: options.grace,
        overtime: options.bound.overtime.unwrap_or(options.grace),
        sandbox,
    };
    let answers = match spec.target {
        Target::Command(argv) => {
            request.program = Program::Command(argv);
            request.stdin = spec.stdin.map(String::into_bytes);
            return Ok((request, None));
        }
        Target::Routine(ref name) => {
            request.program = Program::Function(name.clone());
            Stream::Reply
        }
        Target::Handler(_) => match options.plugins.pick(&spec, &options.caps) {
            Ok((name, Way::Function)) => {
                request.program = Program::Function(crate::handler::function_name(name));
                Stream::Reply
            }
            Ok((_, Way::Command { argv, folder })) => {
                let (mut argv, folder) = (argv.clone(), folder.to_string_lossy().into_owned());
                match &mut request.sandbox {
                    Some(sandbox) => move_in(&mut argv, folder, sandbox),
                    None => drop(request.cwd.get_or_insert(folder)),
                }
                request.program = Program::Command(argv);
                Stream::Stdout
            }
            Err(message) => {
                context.log_return(&message);
                return Err(Exit::Unfit { message });
            }
        },
        _ => return Err(failed("this worker cannot run such a target".into())),
    };
    let job = Job::new(fence.tid, fence.attempt, spec);
    request.stdin = Some(serde_json::to_vec(&job).map_err(|error| failed(error.to_string()))?);
    Ok((request, Some(answers)))
}

/// What to run where a container is to be kept: a leash, which is told the rest.
fn contained(
    options: &Options,
    fence: Fence,
    spec: Spec,
    env: Vec<(String, String)>,
    image: String,
    is_in_host_network: bool,
) -> Result<(Request, Option<Stream>), Exit> {
    let (name, limits) = (spec.display_name().to_owned(), apart::limits(&spec, options.min_isolation));
    let timeout = options.bound.of(&spec);
    let Target::Command(argv) = spec.target else { return Err(failed("only commands run in containers".into())) };
    let request = Request {
        tid: fence.tid,
        attempt: fence.attempt,
        name,
        program: Program::Command(argv),
        env,
        cwd: None,
        stdin: spec.stdin.map(String::into_bytes),
        timeout,
        limits: Limits { max_fds: limits.max_fds.or(Some(MAX_FDS)), ..limits },
        grace: options.grace,
        overtime: options.bound.overtime.unwrap_or(options.grace),
        sandbox: None,
    };
    let charge = Charge { request, image, is_in_host_network };
    let stdin = Some(frame::encode(&charge));
    let program = Program::Keeper(vec![LEASH.into()]);
    // The limits are the container's.
    let request = Request { program, env: Vec::new(), stdin, limits: Limits::default(), ..charge.request };
    Ok((request, None))
}

/// Has a sandbox show the folder of a handler, and its program called by its name there.
fn move_in(argv: &mut [String], folder: String, sandbox: &mut Sandbox) {
    if let Some(program) = argv.first_mut()
        && let Some(name) = program.strip_prefix(&folder).and_then(|rest| rest.strip_prefix('/'))
    {
        *program = format!("{HANDLER}/{name}");
    }
    sandbox.folder = Some(folder);
}

/// The end of a request that its manager does not do.
fn refused(fence: Fence, refusal: &Refusal) -> Exit {
    tracing::warn!(tid = %fence.tid, %refusal, "a request was refused");
    Exit::Refused { message: refusal.to_string() }
}

fn failed(message: String) -> Exit {
    Exit::SpawnFailed { message }
}
