//! From a claimed task to what a runner is asked to do.

use std::collections::BTreeMap;

use raddle_broker::Fence;
use raddle_core::{
    Exit, Job, Spec, Target, Trace,
    job::{ATTEMPT_VARIABLE, TID_VARIABLE},
    trace::{TRACEPARENT, TRACESTATE},
};
use raddle_exec::{HANDLER, Program, Request, Sandbox, Stream};

use super::{
    apart::{self, Place},
    slot::Equipment,
};
use crate::handler::Way;

/// What to run, and what it answers on if it is one that answers. The error says how the attempt ends without having begun.
pub(super) fn of(equipment: &Equipment, fence: Fence, spec: Spec) -> Result<(Request, Option<Stream>), Exit> {
    let (sandbox, cwd) = match apart::of(&spec, equipment.min_isolation)? {
        Place::Open => (None, spec.cwd.clone()),
        Place::Asked(sandbox) => (Some(sandbox), spec.cwd.clone()),
        Place::Raised(sandbox) => (Some(sandbox), None),
    };
    let sandboxed = sandbox.is_some();
    // What the worker has for its tasks is not for those that it does not trust.
    let mut vars = if sandboxed { BTreeMap::new() } else { equipment.env.clone() };
    // Set also where nobody named a trace: the worker's own environment may have one, which is not the task's.
    let Trace { parent, state } = spec.trace(fence.tid, fence.attempt);
    vars.insert(TRACEPARENT.into(), parent.to_string());
    if state.is_some() || (!sandboxed && std::env::var_os(TRACESTATE).is_some()) {
        vars.insert(TRACESTATE.into(), state.map_or_else(String::new, |state| state.to_string()));
    }
    vars.extend(spec.env.clone());
    let mut env: Vec<(String, String)> = vars.into_iter().collect();
    env.push((TID_VARIABLE.into(), fence.tid.to_string()));
    env.push((ATTEMPT_VARIABLE.into(), fence.attempt.to_string()));
    let mut request = Request {
        tid: fence.tid,
        attempt: fence.attempt,
        name: spec.display_name().to_owned(),
        program: Program::Command(Vec::new()),
        env,
        cwd,
        stdin: None,
        timeout: spec.timeout.map(|timeout| timeout.0),
        limits: apart::limits(&spec, equipment.min_isolation),
        grace: equipment.grace,
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
        Target::Handler(_) => match equipment.plugins.pick(&spec, &equipment.caps) {
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
            Err(none) => return Err(equipment.unfit(&none)),
        },
        _ => return Err(failed("this worker cannot run such a target".into())),
    };
    let job = Job::new(fence.tid, fence.attempt, spec);
    request.stdin = Some(serde_json::to_vec(&job).map_err(|error| failed(error.to_string()))?);
    Ok((request, Some(answers)))
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

fn failed(message: String) -> Exit {
    Exit::SpawnFailed { message }
}
