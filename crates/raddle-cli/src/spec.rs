//! Specs from flags and files.

use std::{
    env, fs,
    hash::{BuildHasher, Hasher, RandomState},
    io::{self, Read},
    path::{Path, PathBuf},
    str::FromStr,
};

use raddle_broker::{AttemptId, NewTask};
use raddle_model::{
    Target, TaskSpec, Tid, Trace,
    attempt_input::{ATTEMPT_VARIABLE, TID_VARIABLE, WORKER_VARIABLE},
    spec::{Isolation, MAX_SPEC_BYTES, Mount, NetworkPolicy},
};
use rustix::fs::FileType;
use serde_json::Value;

use crate::{
    args::{SpecArgs, TargetArgs},
    error::{Failure, OrFail, Outcome},
    project::current_directory,
};

/// The placeholder for the line or number of a task in a command.
const PLACEHOLDER: &str = "{}";
/// The path of the `--out` directory inside a sandbox.
const OUT: &str = "/out";
/// The variable with the line or number of a task.
pub(crate) const ITEM: &str = "RADDLE_ITEM";

/// Makes a spec from the words of a command line: a command, or arguments of a routine or handler.
pub(crate) fn from_words(target: &TargetArgs, words: &[String]) -> TaskSpec {
    let target = match (&target.routine, &target.handler) {
        (Some(name), _) => Target::Routine(name.clone()),
        (None, Some(name)) => Target::Handler(name.clone()),
        (None, None) => return TaskSpec::command(words.iter().cloned()),
    };
    let argument =
        |word: &String| serde_json::from_str(word).unwrap_or_else(|_| Value::String(word.clone()));
    TaskSpec {
        args: words.iter().map(argument).collect(),
        ..TaskSpec::new(target)
    }
}

/// Applies the flags, adds the trace context of our environment unless the spec has one, and
/// validates the spec.
pub(crate) fn complete_spec(spec: TaskSpec, flags: &SpecArgs) -> Outcome<TaskSpec> {
    let mut spec = apply_flags(spec, flags)?;
    // A malformed trace context is ignored, as the W3C standard says.
    if spec.traceparent.is_none()
        && let Some(Trace { parent, state }) = raddle_client::routine::trace()
    {
        (spec.traceparent, spec.tracestate) = (Some(parent), state);
    }
    spec.validate()
        .map_err(|e| Failure::Usage(format!("the task cannot be submitted, {e}")))?;
    Ok(spec)
}

/// Applies the flags to `spec`.
pub(crate) fn apply_flags(mut spec: TaskSpec, flags: &SpecArgs) -> Outcome<TaskSpec> {
    fn set<T: Clone>(key: &mut T, flag: &Option<T>) {
        if let Some(value) = flag {
            key.clone_from(value);
        }
    }
    fn set_option<T: Clone>(key: &mut Option<T>, flag: &Option<T>) {
        if flag.is_some() {
            key.clone_from(flag);
        }
    }
    set_option(&mut spec.name, &flags.name);
    set_option(&mut spec.timeout, &flags.timeout);
    set_option(&mut spec.limits.memory_mb, &flags.memory);
    set_option(&mut spec.limits.cpu_percent, &flags.cpu);
    set_option(&mut spec.limits.max_fds, &flags.max_fds);
    set_option(&mut spec.limits.max_procs, &flags.max_procs);
    spec.env.extend(flags.env.iter().cloned());
    let directory = flags.cwd.clone().or(spec.cwd.take().map(PathBuf::from));
    set_option(&mut spec.isolation, &flags.isolation);
    spec.isolation_fallback |= flags.isolation_fallback;
    set(&mut spec.network, &flags.network);
    if flags.network == Some(NetworkPolicy::None) && spec.isolation() <= Isolation::Process {
        // Validation cannot refuse the default of a spec, but a user who writes the flag relies on
        // it.
        return Err(Failure::Usage(
            "'network': means nothing without the isolation 'sandbox'".into(),
        ));
    }
    spec.mounts.extend(resolve_mounts(flags)?);
    // Routines, handlers and sandboxes have their own working directory, unless the user names one.
    let has_default =
        !matches!(spec.target, Target::Command(_)) || spec.isolation() > Isolation::Process;
    let needs_directory = !has_default || directory.is_some();
    spec.cwd = needs_directory
        .then(|| working_directory(directory))
        .transpose()?;
    if flags.stdin {
        spec.stdin = Some(read_text(io::stdin().lock(), "standard input")?);
    }
    // The flag counts retries, the spec counts attempts.
    set(
        &mut spec.retry.attempts,
        &flags.retry.map(|retries| retries.saturating_add(1)),
    );
    set(&mut spec.retry.backoff, &flags.backoff);
    set(&mut spec.retry.base, &flags.retry_base);
    set(&mut spec.retry.max, &flags.retry_max);
    set(&mut spec.priority, &flags.priority);
    set(&mut spec.requires, &flags.requires);
    set(&mut spec.queue, &flags.queue);
    if flags.delay.is_some() || flags.run_at.is_some() {
        (spec.delay, spec.run_at) = (flags.delay, flags.run_at);
    }
    if flags.lifetime.is_some() || flags.run_before.is_some() {
        (spec.lifetime, spec.run_before) = (flags.lifetime, flags.run_before);
    }
    set_option(&mut spec.unique_key, &flags.unique_key);
    set_option(&mut spec.kind, &flags.kind);
    set_option(&mut spec.batch, &flags.batch);
    set_option(&mut spec.result_ttl, &flags.result_ttl);
    if flags.traceparent.is_some() {
        (spec.traceparent, spec.tracestate) = (flags.traceparent, flags.tracestate.clone());
    }
    set(&mut spec.on_stop, &flags.on_stop);
    set(&mut spec.on_error, &flags.on_error);
    spec.metadata.extend(
        flags
            .meta
            .iter()
            .map(|(key, value)| (key.clone(), Value::String(value.clone()))),
    );
    Ok(spec)
}

/// Reads a spec from a file, or several from a JSON array. `-` is JSON from standard input.
pub(crate) fn read_file(path: &Path) -> Outcome<Vec<TaskSpec>> {
    let from_stdin = path == Path::new("-");
    let shown = if from_stdin {
        "standard input".into()
    } else {
        path.display().to_string()
    };
    let text = if from_stdin {
        read_text(io::stdin().lock(), &shown)?
    } else {
        let file = fs::File::open(path).or_usage_at(format_args!("cannot read {shown}"))?;
        read_text(file, &shown)?
    };
    let wrong = |e: &dyn std::fmt::Display| Failure::Usage(format!("{shown} is not a spec, {e}"));
    if path
        .extension()
        .is_some_and(|extension| extension == "toml")
    {
        return Ok(vec![TaskSpec::from_toml(&text).map_err(|e| wrong(&e))?]);
    }
    if !text.trim_start().starts_with('[') {
        return Ok(vec![TaskSpec::from_json(&text).map_err(|e| wrong(&e))?]);
    }
    let several: Vec<&serde_json::value::RawValue> =
        serde_json::from_str(&text).map_err(|e| wrong(&e))?;
    let nth = |(i, one): (usize, &&serde_json::value::RawValue)| {
        TaskSpec::from_json(one.get())
            .map_err(|e| wrong(&format!("in number {} of the array {e}", i + 1)))
    };
    if several.is_empty() {
        return Err(Failure::Usage(format!(
            "{shown} has no spec: its array is empty"
        )));
    }
    several.iter().enumerate().map(nth).collect()
}

/// Makes the spec for one line or number.
pub(crate) fn fill_template(template: &TaskSpec, item: &str) -> Outcome<TaskSpec> {
    let mut spec = template.clone();
    if let Target::Command(argv) = &mut spec.target {
        for arg in argv.iter_mut().filter(|arg| arg.contains(PLACEHOLDER)) {
            *arg = arg.replace(PLACEHOLDER, item);
        }
    }
    for text in [&mut spec.name, &mut spec.unique_key].into_iter().flatten() {
        *text = text.replace(PLACEHOLDER, item);
    }
    spec.env.insert(ITEM.into(), item.into());
    spec.validate().map_err(|e| {
        Failure::Usage(format!(
            "cannot make a task from '{}', {e}",
            item.escape_debug()
        ))
    })?;
    Ok(spec)
}

/// Makes a name for a batch. It is random because several machines may use one broker.
pub(crate) fn new_batch() -> String {
    let random = RandomState::new().build_hasher().finish();
    format!("b-{:010x}", random >> 24)
}

/// A new task, whose parent is the task that this process belongs to.
pub(crate) fn new_task(spec: TaskSpec) -> NewTask {
    NewTask {
        spec,
        parent: current_task(),
    }
}

/// The task that this process belongs to.
pub(crate) fn current_task() -> Option<Tid> {
    parse_variable(TID_VARIABLE)
}

/// The attempt that this process belongs to.
pub(crate) fn current_attempt() -> Option<AttemptId> {
    Some(AttemptId {
        tid: current_task()?,
        attempt: parse_variable(ATTEMPT_VARIABLE)?,
        owner: parse_variable(WORKER_VARIABLE)?,
    })
}

fn parse_variable<T: FromStr>(variable: &str) -> Option<T> {
    env::var(variable).ok()?.parse().ok()
}

/// The mounts of the flags, with absolute host paths.
fn resolve_mounts(flags: &SpecArgs) -> Outcome<Vec<Mount>> {
    let out = flags.out.as_deref().map(|directory| {
        create_out_directory(directory)?;
        let host = directory
            .to_str()
            .ok_or_else(|| Failure::Usage("--out: the path is not UTF-8".into()))?;
        Ok(Mount {
            host: host.into(),
            path: OUT.into(),
            writable: true,
        })
    });
    let absolute = |mount: Mount| {
        Ok(Mount {
            host: working_directory(Some(mount.host.into()))?,
            ..mount
        })
    };
    flags
        .mount
        .iter()
        .cloned()
        .map(Ok)
        .chain(out)
        .map(|mount| mount.and_then(absolute))
        .collect()
}

/// Creates the `--out` directory if it does not exist. Under root the sandbox runs as another user,
/// which then owns the directory.
fn create_out_directory(directory: &Path) -> Outcome<()> {
    if directory.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(directory)
        .or_usage_at(format_args!("cannot create {}", directory.display()))?;
    if rustix::process::geteuid().is_root() {
        let uid = raddle_runner::OVERFLOW_UID;
        std::os::unix::fs::chown(directory, Some(uid), Some(uid))
            .or_raddle_at("cannot change the owner of --out")?;
    }
    Ok(())
}

/// The working directory of a task: that of its submitter, so that it does not depend on the
/// worker.
fn working_directory(requested: Option<PathBuf>) -> Outcome<String> {
    let current = current_directory()?;
    let directory = requested.map_or_else(|| current.clone(), |directory| current.join(directory));
    directory
        .into_os_string()
        .into_string()
        .map_err(|directory| {
            Failure::Usage(format!(
                "the path of the directory {} is not UTF-8: name another with --cwd",
                directory.display()
            ))
        })
}

/// Whether standard input is a pipe or a file. A terminal or a device, such as `/dev/null`, is not.
pub(crate) fn is_stdin_piped() -> bool {
    let Ok(found) = rustix::fs::fstat(rustix::stdio::stdin()) else {
        return false;
    };
    matches!(
        FileType::from_raw_mode(found.st_mode),
        FileType::Fifo | FileType::Socket | FileType::RegularFile
    )
}

/// Reads piped standard input to its end. `None` if it is empty.
pub(crate) fn read_piped_stdin() -> Outcome<Option<String>> {
    match read_text(io::stdin().lock(), "standard input") {
        Ok(text) => Ok(Some(text).filter(|text| !text.is_empty())),
        Err(Failure::Usage(message)) => Err(Failure::Usage(format!(
            "{message}, and run the command with '</dev/null'"
        ))),
        Err(failure) => Err(failure),
    }
}

fn read_text(source: impl Read, shown: &str) -> Outcome<String> {
    let mut bytes = Vec::new();
    source
        .take(MAX_SPEC_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .or_usage_at(format_args!("cannot read {shown}"))?;
    if bytes.len() > MAX_SPEC_BYTES {
        return Err(Failure::Usage(format!(
            "{shown} is larger than 16 MiB: let the task read a file instead"
        )));
    }
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Failure::Usage(format!(
            "{shown} is not UTF-8 text (from byte {at} on): let the task read a file instead"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_override_the_file() {
        let file = TaskSpec::from_json(
            r#"{"target":{"command":["a"]},"priority":1,"delay":5,"retry":{"attempts":9}}"#,
        );
        let flags = SpecArgs {
            retry: Some(2),
            run_at: Some(jiff::Timestamp::UNIX_EPOCH),
            cwd: Some("/x".into()),
            ..SpecArgs::default()
        };
        let spec = complete_spec(file.unwrap(), &flags).unwrap();
        assert_eq!(
            (spec.priority, spec.retry.attempts, spec.delay),
            (1, 3, None)
        );
        assert_eq!(spec.run_at, Some(jiff::Timestamp::UNIX_EPOCH));
        assert_eq!(spec.cwd.as_deref(), Some("/x"));
    }

    #[test]
    fn an_item_replaces_the_placeholder() {
        let mut template = TaskSpec::command(["render", "--frame={}", "{}/{}"]);
        template.name = Some("frame-{}".into());
        let spec = fill_template(&template, "7").unwrap();
        assert_eq!(
            spec.target,
            Target::Command(vec!["render".into(), "--frame=7".into(), "7/7".into()])
        );
        assert_eq!(
            (spec.name.as_deref(), spec.env[ITEM].as_str()),
            (Some("frame-7"), "7")
        );
        assert!(fill_template(&template, "a\0b").is_err());
    }
}
