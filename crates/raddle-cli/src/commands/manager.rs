//! `raddle manager` and `raddle worker spawn`. A manager is a spawner whose workers run only what
//! its `SpawnPolicy` allows.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use jiff::Timestamp;
use raddle_broker::{Broker, queues};
use raddle_model::{
    CapSet, Tid, WorkerEntry,
    manager::{ManagerLaunchCommand, PRIME, SpawnPolicy, TaskRegistry, name_of},
    tid::TidArg,
};
use raddle_spawner::{Config, WarmPool};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{
    detach::{self, PROGRAM},
    spawner,
    start::{self, QUEUE_URL},
    stop::stop_workers,
    workers::render,
};
use crate::{
    args::{Global, ManagerArgs, ManagerStopArgs, SpawnArgs, SpawnerArgs, StopArgs},
    context::Context,
    error::{Failure, OrFail, Outcome},
    format, table, tid as tids,
};

/// How many tasks a manager runs at a time without an explicit limit, spawned managers included.
const MAX_TASKS: u32 = 256;
/// The pause between two reads of the registry.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Runs a manager in this process.
pub(super) async fn serve(context: &Context, args: &ManagerArgs, global: &Global) -> Outcome {
    let spawn_policy = SpawnPolicy {
        kind: args.kind.clone(),
        registry: registry(args)?,
        ceiling: args.limits.clone(),
        manager_command: manager_command(context, args)?,
    };
    let max_workers = args.limits.max_tasks.unwrap_or(MAX_TASKS);
    let spawner = spawner_args(args, max_workers);
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let mut config = Config::default();
    spawner.override_config(&mut config);
    let config = config.check(cores).or_usage()?;
    let workers = spawner::worker_args(&spawner, &config, Some(spawn_policy));
    let launching = spawner::process_launcher(global, &spawner, context, &config, &workers)?;
    Box::pin(spawner::run_spawner(
        context,
        &spawner,
        config,
        &workers,
        launching,
        Some(args),
    ))
    .await
}

/// Reads the registry of tasks.
fn registry(args: &ManagerArgs) -> Outcome<TaskRegistry> {
    match &args.registry {
        Some(path) => read_registry(path),
        None if args.kind == PRIME || args.no_registry => Ok(TaskRegistry::default()),
        None => Err(Failure::Usage(format!(
            "a manager of the type '{}' needs a registry: name the file with --registry",
            args.kind
        ))),
    }
}

fn read_registry(path: &Path) -> Outcome<TaskRegistry> {
    let named = path.display();
    let text = fs::read_to_string(path).or_usage_at(&named)?;
    let registry = TaskRegistry::from_toml(&text);
    let registry = registry
        .map_err(|error| Failure::Usage(format!("{named}:{}: {}", error.line, error.reason)))?;
    if registry.is_empty() {
        return Err(Failure::Usage(format!(
            "{named}: lists no task: write a table [task.NAME] with a command"
        )));
    }
    Ok(registry)
}

/// The command that starts another manager.
fn manager_command(context: &Context, args: &ManagerArgs) -> Outcome<ManagerLaunchCommand> {
    let (url, secret) = start::url_args(&context.project.url);
    let argv = [PROGRAM, "manager", "serve", "--spawned"]
        .map(String::from)
        .into_iter()
        .chain(url)
        .collect();
    let env = secret
        .map(|url| (QUEUE_URL.to_owned(), url))
        .into_iter()
        .collect();
    let absolute = |path: &PathBuf| std::path::absolute(path).or_usage_at(path.display());
    let registry = args.registry.as_ref().map(absolute).transpose()?;
    // A path that is not UTF-8 cannot be part of a request.
    let registry = registry.and_then(|path| path.into_os_string().into_string().ok());
    Ok(ManagerLaunchCommand {
        argv,
        env,
        registry,
    })
}

/// The arguments of the spawner that a manager is.
fn spawner_args(args: &ManagerArgs, max_workers: u32) -> SpawnerArgs {
    SpawnerArgs {
        warm_pool: Some(WarmPool::Fixed(args.warm_pool.min(max_workers))),
        caps: Some(CapSet::new()),
        max_workers: Some(max_workers),
        metrics: args.metrics.clone(),
        log: args.log,
        name: args.name.clone().unwrap_or_else(|| name_of(&args.kind)),
        ..SpawnerArgs::default()
    }
}

/// Runs a manager in this process, or starts one in the background and prints its id.
pub(super) async fn start(context: &Context, args: &ManagerArgs, global: &Global) -> Outcome {
    if detach::is_background() {
        return serve(context, args, global).await;
    }
    // Report mistakes here, where the user reads them.
    registry(args)?;
    detach::detach(context, "manager", None).await
}

/// Has a live root manager spawn a manager, or starts one in the background.
pub(super) async fn spawn(context: &Context, args: &SpawnArgs, global: &Global) -> Outcome {
    read_registry(&args.registry)?;
    if args.kind == PRIME {
        return Err(Failure::Usage(
            "the root manager cannot be spawned: start it with 'raddle manager start'".into(),
        ));
    }
    if !detach::is_background() {
        if spawn_by_root_manager(context, args).await? {
            return Ok(0);
        }
        context.note("no root manager is alive: starting the manager directly");
    }
    let args = ManagerArgs {
        kind: args.kind.clone(),
        registry: Some(args.registry.clone()),
        limits: args.limits.clone(),
        parent: args.parent,
        warm_pool: 2,
        name: args.name.clone(),
        ..ManagerArgs::default()
    };
    start(context, &args, global).await
}

/// Requests a manager from a live root manager, and waits until it is registered.
async fn spawn_by_root_manager(context: &Context, args: &SpawnArgs) -> Outcome<bool> {
    let broker = context.open_broker().await?;
    let workers = broker.workers().await?;
    let primes: Vec<&WorkerEntry> = managers(&workers)
        .filter(|entry| entry.info.kind == PRIME)
        .collect();
    let parent = match args.parent {
        Some(arg) => {
            let tid = tids::resolve(&*broker, arg).await?;
            if !primes.iter().any(|entry| entry.tid == tid) {
                let reason = "is not a live root manager, and only a root manager spawns managers";
                return Err(Failure::Usage(format!(
                    "task {tid} {reason}: see 'raddle manager list'"
                )));
            }
            Some(tid)
        }
        None if primes.is_empty() => return Ok(false),
        None => None,
    };
    let registry = std::path::absolute(&args.registry).or_usage_at(args.registry.display())?;
    let mut params = json!({ "type": args.kind, "registry": registry, "limits": args.limits });
    if let Some(name) = &args.name {
        params["name"] = name.as_str().into();
    }
    let request = json!({ "task": "worker", "params": params }).to_string();
    let request = *queues::submit_requests(&*broker, PRIME, vec![request], parent)
        .await?
        .first()
        .ok_or_else(missing_request_id)?;
    let deadline = Instant::now() + args.timeout.0;
    loop {
        let workers = broker.workers().await?;
        if let Some(made) = managers(&workers).find(|entry| entry.tid == request) {
            let record = json!({ "tid": made.tid, "pid": made.info.pid });
            context.show(&record, || format!("{}\n", made.tid))?;
            return Ok(true);
        }
        let task = tids::get_task(&*broker, request).await?;
        if task.state.is_terminal() || task.failures > 0 {
            let why = task
                .report
                .map_or_else(String::new, |report| format!(" ({})", report.exit));
            let hint = format!("see 'raddle logs {request}'");
            if !task.state.is_terminal() {
                let _ = broker
                    .control(
                        request,
                        raddle_model::ControlMessage::new(raddle_model::ControlCommand::Stop),
                    )
                    .await;
            }
            return Err(Failure::Raddle(format!(
                "the manager could not be started{why}: {hint}"
            )));
        }
        if Instant::now() >= deadline {
            return Err(Failure::TimedOut(format!(
                "request {request} for the manager still waits: see 'raddle task explain {request}'"
            )));
        }
        sleep(POLL_INTERVAL).await;
    }
}

fn missing_request_id() -> Failure {
    Failure::Raddle("the broker returned no id for the request".into())
}

/// The live managers.
fn managers(workers: &[WorkerEntry]) -> impl Iterator<Item = &WorkerEntry> {
    workers.iter().filter(|entry| entry.info.is_manager())
}

/// Stops managers.
pub(super) async fn stop(context: &Context, args: &ManagerStopArgs) -> Outcome {
    let broker = context.open_existing().await?;
    let workers = broker.workers().await?;
    let selected: Vec<Tid> = if args.all {
        managers(&workers).map(|entry| entry.tid).collect()
    } else {
        let prime = [PRIME.to_owned()];
        let which = if args.which.is_empty() {
            &prime[..]
        } else {
            &args.which
        };
        let mut selected = Vec::new();
        for which in which {
            selected.extend(
                find_managers(&*broker, &workers, which)
                    .await?
                    .iter()
                    .map(|entry| entry.tid),
            );
        }
        selected
    };
    if selected.is_empty() {
        context.note("no manager is alive");
    }
    let stop = StopArgs {
        tids: Vec::new(),
        all: args.all,
        kill: args.kill,
        timeout: args.timeout,
    };
    stop_workers(context, &*broker, selected, &stop).await
}

/// Finds managers by type or by id.
async fn find_managers<'a>(
    broker: &dyn Broker,
    workers: &'a [WorkerEntry],
    which: &str,
) -> Outcome<Vec<&'a WorkerEntry>> {
    let found: Vec<_> = match which.parse::<TidArg>() {
        Ok(arg) => {
            let tid = tids::resolve(broker, arg).await?;
            managers(workers).filter(|entry| entry.tid == tid).collect()
        }
        Err(_) => managers(workers)
            .filter(|entry| entry.info.kind == which)
            .collect(),
    };
    if found.is_empty() {
        let reason = "see 'raddle manager list', or start one with 'raddle manager start'";
        return Err(Failure::Usage(format!(
            "no manager '{which}' is alive: {reason}"
        )));
    }
    Ok(found)
}

/// Lists live managers.
pub(super) async fn list(context: &Context) -> Outcome {
    let workers = context.open_existing().await?.workers().await?;
    let managers: Vec<&WorkerEntry> = managers(&workers).collect();
    let columns = |entry: &WorkerEntry| {
        [
            format!("{:.2}", entry.load),
            entry.spawned_count.to_string(),
            request_queue(entry),
            task_names(entry),
        ]
    };
    context.show(&managers, || {
        render(
            ["LOAD", "SPAWNED", "QUEUE", "TASKS"],
            managers.iter().map(|entry| (*entry, columns(entry))),
        )
    })
}

/// The queue that takes its requests.
fn request_queue(entry: &WorkerEntry) -> String {
    entry.queue.clone().unwrap_or_else(|| "-".into())
}

/// The names of the tasks that it spawns.
fn task_names(entry: &WorkerEntry) -> String {
    let names: Vec<&str> = entry
        .info
        .capabilities
        .iter()
        .filter(|tag| !tag.starts_with('@'))
        .collect();
    names.join(",")
}

/// Shows the state of managers.
pub(super) async fn status(context: &Context, which: Option<&str>) -> Outcome {
    let broker = context.open_existing().await?;
    let workers = broker.workers().await?;
    let shown: Vec<&WorkerEntry> = match which {
        Some(which) => find_managers(&*broker, &workers, which).await?,
        None => managers(&workers).collect(),
    };
    if shown.is_empty() && !context.json {
        context.note("no manager is alive");
    }
    context.show(&shown, || {
        shown
            .iter()
            .map(|entry| describe(entry))
            .collect::<Vec<_>>()
            .join("\n")
    })
}

fn describe(entry: &WorkerEntry) -> String {
    let WorkerEntry {
        tid,
        info,
        status,
        load,
        spawned_count,
        started_at,
        ..
    } = entry;
    let busy = (load * f64::from(info.max_workers)).round();
    table::labelled(&[
        ("manager", format!("{tid} {}", info.name)),
        ("type", info.kind.clone()),
        ("status", status.as_str().into()),
        ("load", format!("{busy:.0} of {} tasks", info.max_workers)),
        ("spawned", format::count(*spawned_count, "task")),
        ("age", format::age(*started_at, Timestamp::now())),
        ("process", format!("{} on {}", info.pid, info.host)),
        (
            "parent",
            info.parent
                .map_or_else(|| "-".into(), |tid| tid.to_string()),
        ),
        ("requests", request_queue(entry)),
        ("tasks", task_names(entry)),
    ])
}
