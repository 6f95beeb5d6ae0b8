//! The hosts of a worker, from its flags.

use std::thread;

use raddle_client::routine::Routines;
use raddle_model::{HumanDuration, Limits, spec::Isolation};
use raddle_worker::{
    host::{HostOptions, HostProgram, probe},
    plugins::Plugins,
};

use crate::{
    args::{HostArgs, StartArgs},
    error::{Failure, Outcome},
    python,
};

/// The hosts that a worker keeps. A worker for one task has none: each of its tasks is fresh.
pub(super) async fn hosts(
    args: &StartArgs,
    routines: &Routines,
    plugins: &Plugins,
) -> Outcome<Vec<HostOptions>> {
    let flags = &args.hosts;
    let argv = host_command(flags);
    let is_requested = flags.hosts.is_some_and(|hosts| hosts > 0) || !argv.is_empty();
    if args.takes_one_task() {
        return if is_requested {
            Err(Failure::Usage(
                "a worker that takes one task runs it in a fresh process: leave out --host, --python and --hosts".into(),
            ))
        } else {
            Ok(Vec::new())
        };
    }
    if flags.hosts == Some(0) && !argv.is_empty() {
        return Err(Failure::Usage(
            "--hosts 0 leaves no host for --host or --python".into(),
        ));
    }
    let mut all = Vec::new();
    let isolation = args.min_isolation.unwrap_or_default();
    if isolation == Isolation::Shared && flags.hosts != Some(0) {
        let own = host_options(args, &args.name, HostProgram::Own);
        all.extend(own.with_routines_of(routines));
    }
    for (handler, argv, directory) in plugins.hosts(&args.caps.clone().unwrap_or_default()) {
        if isolation > Isolation::Process || flags.hosts == Some(0) {
            continue;
        }
        all.push(HostOptions {
            handler: Some(handler.to_owned()),
            directory: Some(directory.to_string_lossy().into_owned()),
            is_fresh: isolation > Isolation::Shared,
            ..host_options(args, handler, HostProgram::Command(argv.to_vec()))
        });
    }
    if !argv.is_empty() {
        if isolation > Isolation::Process {
            return Err(Failure::Usage(format!(
                "a host does not run in a sandbox: leave out --host or --python, or --min-isolation {isolation}"
            )));
        }
        let named = flags.python.as_deref().or(argv.first().map(String::as_str));
        let named = named.unwrap_or("host");
        let name = named.rsplit('/').next().unwrap_or(named).to_owned();
        let mut hosts = host_options(args, &name, HostProgram::Command(argv.clone()));
        hosts.is_fresh = isolation > Isolation::Shared;
        let shown = flags.python.clone().unwrap_or_else(|| argv.join(" "));
        let hello = probe(&hosts).await.map_err(|reason| {
            Failure::Usage(format!("the host '{shown}' does not start: {reason}"))
        })?;
        hosts.routines = hello
            .routines
            .iter()
            .map(|(name, routine)| (name.clone(), routine.kind))
            .collect();
        if hosts.routines.is_empty() {
            return Err(Failure::Usage(format!(
                "the host '{shown}' has no routines"
            )));
        }
        // More slots than a host takes would hold tasks that wait for nothing.
        hosts.concurrency = hosts
            .concurrency
            .min(hello.concurrency.unwrap_or(u32::MAX).max(1));
        hosts.threads = hosts.threads.min(hello.threads.unwrap_or(u32::MAX).max(1));
        let has = |name: &String| routines.get(name).is_some();
        if let Some(name) = hosts.routines.keys().find(|name| has(name)) {
            return Err(Failure::Usage(format!(
                "this program and the host '{shown}' both have a routine '{name}': rename one of them"
            )));
        }
        all.push(hosts);
    }
    Ok(all)
}

/// The command of the host that the flags name; empty if they name none.
fn host_command(flags: &HostArgs) -> Vec<String> {
    match &flags.python {
        Some(app) => python::host_command(app, flags.reload),
        None => flags.host.clone(),
    }
}

fn host_options(args: &StartArgs, name: &str, program: HostProgram) -> HostOptions {
    let flags = &args.hosts;
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let count = flags
        .hosts
        .unwrap_or_else(|| cores.min(args.concurrency.unwrap_or(cores)))
        .max(1);
    // An explicit --concurrency applies to hosts, too.
    let share = args
        .concurrency
        .map(|concurrency| concurrency.div_ceil(count));
    let defaults = HostOptions::new(name, program, count);
    let time = |span: HumanDuration| span.0;
    HostOptions {
        concurrency: flags
            .host_concurrency
            .or(share)
            .unwrap_or(defaults.concurrency),
        threads: flags
            .host_threads
            .or(share)
            .unwrap_or_else(|| (cores / count).max(1)),
        max_tasks: flags.host_max_tasks,
        max_age: flags.host_max_age.map(time),
        max_rss_bytes: flags.host_max_rss.map(|mb| mb << 20),
        limits: Limits {
            memory_mb: flags.host_memory,
            cpu_percent: flags.host_cpu,
            ..Limits::default()
        },
        blocked_timeout: flags
            .host_blocked_timeout
            .map_or(defaults.blocked_timeout, time),
        startup_timeout: flags
            .host_startup_timeout
            .map_or(defaults.startup_timeout, time),
        shutdown_timeout: flags
            .host_shutdown_timeout
            .map_or(defaults.shutdown_timeout, time),
        ..defaults
    }
}
