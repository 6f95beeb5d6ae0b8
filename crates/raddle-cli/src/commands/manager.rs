//! `raddle manager` and `raddle worker spawn`: a manager is a spawner whose workers do what is asked of it, and nothing else.

use std::{fs, path::Path, sync::Arc, thread, time::Duration};

use jiff::Timestamp;
use raddle_broker::{Broker, Url, queues};
use raddle_core::{
    Tid, WorkerEntry,
    manager::{Charter, Herald, PRIME, Registry, name_of},
    tid::TidArg,
};
use raddle_fabric::spawner::WarmPool;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{
    block_on,
    detach::{self, Invocation, PROGRAM},
    spawner::{self, Post},
    start::{self, QUEUE_URL},
    stop::stop_these,
};
use crate::{
    args::{Global, ManagerArgs, ManagerStopArgs, SpawnArgs, SpawnerArgs, StopArgs},
    context::Context,
    error::{Failure, Outcome},
    format, output,
    table::Table,
    tid as tids,
};

/// How many tasks a manager has at a time, where nothing limits it: those that it has spawned managers with count.
const MAX_TASKS: u32 = 256;
/// How long to pause before another look at the registry.
const LOOK: Duration = Duration::from_millis(50);

/// Is a manager, in this process.
pub(super) fn serve(global: &Global, args: &ManagerArgs) -> Outcome {
    let context = Context::new(global)?;
    if context.project.url == Url::Memory {
        return Err(Failure::memory());
    }
    let charter = Arc::new(Charter {
        kind: args.kind.clone(),
        registry: registry(args)?,
        ceiling: args.limits.clone(),
        herald: herald(&context),
    });
    let max_workers = args.limits.max_tasks.unwrap_or(MAX_TASKS);
    let spawner = spawner_args(args, max_workers);
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let config = spawner.layer().settle(cores).map_err(|error| Failure::Usage(error.to_string()))?;
    let workers = spawner::worker_args(&spawner, &config, Some(charter));
    let launching = spawner::processes(global, &spawner, &context, &config, workers)?;
    let post = Post { kind: Some(args.kind.clone()), parent: args.parent, noun: "manager" };
    block_on(spawner::keep(&context, &spawner, config, launching, post))
}

/// What it may spawn.
fn registry(args: &ManagerArgs) -> Outcome<Registry> {
    match &args.registry {
        Some(path) => read_registry(path),
        None if args.kind == PRIME => Ok(Registry::default()),
        None => Err(Failure::Usage(format!(
            "a manager of the type '{}' spawns what its registry lists: name the file with --registry",
            args.kind
        ))),
    }
}

fn read_registry(path: &Path) -> Outcome<Registry> {
    let named = path.display();
    let text = fs::read_to_string(path).map_err(|error| Failure::Usage(format!("{named}: {error}")))?;
    let registry = Registry::from_toml(&text);
    let registry = registry.map_err(|error| Failure::Usage(format!("{named}:{}: {}", error.line, error.reason)))?;
    if registry.is_empty() {
        return Err(Failure::Usage(format!("{named}: lists no task: write a table [task.NAME] with a command")));
    }
    Ok(registry)
}

/// How this program is told to be another manager.
fn herald(context: &Context) -> Herald {
    let (url, secret) = start::url_words(context);
    let argv = [PROGRAM, "manager", "serve"].map(String::from).into_iter().chain(url).collect();
    Herald { argv, env: secret.map(|url| (QUEUE_URL.to_owned(), url)).into_iter().collect() }
}

/// A manager as the spawner that it is.
fn spawner_args(args: &ManagerArgs, max_workers: u32) -> SpawnerArgs {
    SpawnerArgs {
        config: None,
        warm_pool: Some(WarmPool::Fixed(args.warm_pool.min(max_workers))),
        caps: Some(Vec::new()),
        queues: None,
        max_parallel: None,
        max_workers: Some(max_workers),
        poll_ms: None,
        idle_timeout: None,
        hit_target: None,
        launcher: None,
        worker_image: None,
        min_isolation: None,
        task_image: None,
        handlers: None,
        plugins: None,
        serve: None,
        metrics: args.metrics.clone(),
        log: args.log,
        name: args.name.clone().unwrap_or_else(|| name_of(&args.kind)),
    }
}

/// Starts a manager in the background and prints its id.
pub(super) fn start(context: &Context, args: &ManagerArgs, global: &Global) -> Outcome {
    // Said here, where somebody reads it at once.
    registry(args)?;
    let (tid, pid) = detach::detach(invocation(context, args, global)?, "manager")?;
    detach::tell_of(context, tid, pid, &None)
}

/// How this program is told to be a manager in the foreground.
fn invocation(context: &Context, args: &ManagerArgs, global: &Global) -> Outcome<Invocation> {
    let (url, secret) = start::url_words(context);
    let mut words: Vec<String> = ["manager", "serve", "--type", &args.kind].map(String::from).into();
    words.extend(url);
    words.extend(["--limits".into(), args.limits.to_string(), "--warm-pool".into(), args.warm_pool.to_string()]);
    words.extend(args.name.iter().flat_map(|name| ["--name".into(), name.clone()]));
    words.extend(args.parent.iter().flat_map(|tid| ["--parent".into(), written(tid)]));
    words.extend(args.metrics.words());
    words.extend(["--log-format".into(), args.log.log_format.as_str().into()]);
    if global.quiet {
        words.push("--quiet".into());
    }
    words.extend((0..global.verbose).map(|_| "--verbose".to_owned()));
    let mut words: Vec<std::ffi::OsString> = words.into_iter().map(Into::into).collect();
    if let Some(path) = &args.registry {
        words.extend(["--registry".into(), whole(path)?.into_os_string()]);
    }
    Ok(Invocation { args: words, env: secret.into_iter().map(|url| (QUEUE_URL.into(), url.into())).collect() })
}

fn written(tid: &TidArg) -> String {
    match tid {
        TidArg::Full(tid) => tid.to_string(),
        TidArg::Short(short) => short.to_string(),
    }
}

fn whole(path: &Path) -> Outcome<std::path::PathBuf> {
    std::path::absolute(path).map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))
}

/// Has a manager made: by a prime that lives, or else by itself.
pub(super) fn spawn(context: &Context, args: &SpawnArgs, global: &Global) -> Outcome {
    read_registry(&args.registry)?;
    if args.kind == PRIME {
        return Err(Failure::Usage("a prime is not spawned: start it with 'raddle manager start'".into()));
    }
    let mut is_made = false;
    let code = block_on(async {
        is_made = asked(context, args).await?;
        Ok(0)
    })?;
    if is_made {
        return Ok(code);
    }
    context.note("no prime is alive: the manager stands by itself");
    let args = ManagerArgs {
        kind: args.kind.clone(),
        registry: Some(args.registry.clone()),
        limits: args.limits.clone(),
        parent: args.parent,
        warm_pool: 2,
        metrics: Default::default(),
        log: Default::default(),
        name: args.name.clone(),
    };
    start(context, &args, global)
}

/// Asks a prime for a manager, if one lives, and waits until that is there.
async fn asked(context: &Context, args: &SpawnArgs) -> Outcome<bool> {
    let broker = context.onlooker().await?;
    let workers = broker.workers().await?;
    let primes: Vec<&WorkerEntry> = managers(&workers).filter(|entry| entry.info.kind == PRIME).collect();
    let parent = match args.parent {
        Some(arg) => {
            let tid = tids::resolve(&*broker, arg).await?;
            if !primes.iter().any(|entry| entry.tid == tid) {
                let reason = "is no prime that lives, and only a prime spawns managers";
                return Err(Failure::Usage(format!("task {tid} {reason}: see 'raddle manager list'")));
            }
            Some(tid)
        }
        None if primes.is_empty() => return Ok(false),
        None => None,
    };
    let mut params = json!({ "type": args.kind, "registry": whole(&args.registry)?, "limits": args.limits });
    if let Some(name) = &args.name {
        params["name"] = name.as_str().into();
    }
    let request = json!({ "task": "worker", "params": params }).to_string();
    let request = *queues::ask(&*broker, PRIME, vec![request], parent).await?.first().ok_or_else(gone)?;
    let deadline = Instant::now() + args.timeout.0;
    loop {
        let workers = broker.workers().await?;
        if let Some(made) = managers(&workers).find(|entry| entry.info.parent == Some(request)) {
            if context.json {
                output::json(&json!({ "tid": made.tid, "pid": made.info.pid, "request": request }))?;
            } else {
                output::line(made.tid.to_string())?;
            }
            return Ok(true);
        }
        let task = tids::view(&*broker, request).await?;
        if task.state.is_terminal() || task.failures > 0 {
            let why = task.report.map_or_else(String::new, |report| format!(" ({})", report.exit));
            let look = format!("see 'raddle logs {request}'");
            if !task.state.is_terminal() {
                let _ = broker.control(request, raddle_core::Control::new(raddle_core::Word::Stop)).await;
            }
            return Err(Failure::Raddle(format!("the manager could not be started{why}: {look}")));
        }
        if Instant::now() >= deadline {
            return Err(Failure::TimedOut(format!(
                "request {request} for the manager waits: see 'raddle task explain {request}'"
            )));
        }
        sleep(LOOK).await;
    }
}

fn gone() -> Failure {
    Failure::Raddle("the broker has not said under which id the request is stored".into())
}

/// The managers among those that are alive.
fn managers(workers: &[WorkerEntry]) -> impl Iterator<Item = &WorkerEntry> {
    workers.iter().filter(|entry| entry.info.is_manager())
}

/// Stops managers.
pub(super) async fn stop(context: &Context, args: &ManagerStopArgs) -> Outcome {
    let broker = context.onlooker().await?;
    let workers = broker.workers().await?;
    let meant: Vec<Tid> = if args.all {
        managers(&workers).map(|entry| entry.tid).collect()
    } else {
        let prime = [PRIME.to_owned()];
        let which = if args.which.is_empty() { &prime[..] } else { &args.which };
        let mut meant = Vec::new();
        for which in which {
            meant.extend(find(&*broker, &workers, which).await?.iter().map(|entry| entry.tid));
        }
        meant
    };
    if meant.is_empty() {
        context.note("no manager is alive");
    }
    let stop = StopArgs { tids: Vec::new(), all: args.all, kill: args.kill, timeout: args.timeout };
    stop_these(context, &*broker, meant, &stop).await
}

/// Those of a type, or the one with this id: its own, or that of the request for it.
async fn find<'a>(broker: &dyn Broker, workers: &'a [WorkerEntry], which: &str) -> Outcome<Vec<&'a WorkerEntry>> {
    let found: Vec<_> = match which.parse::<TidArg>() {
        Ok(arg) => {
            let tid = tids::resolve(broker, arg).await?;
            managers(workers).filter(|entry| entry.tid == tid || entry.info.parent == Some(tid)).collect()
        }
        Err(_) => managers(workers).filter(|entry| entry.info.kind == which).collect(),
    };
    if found.is_empty() {
        let reason = "'raddle manager list' shows those that are, and 'raddle manager start' starts one";
        return Err(Failure::Usage(format!("no manager '{which}' is alive: {reason}")));
    }
    Ok(found)
}

/// Lists the managers that are alive.
pub(super) async fn list(context: &Context) -> Outcome {
    let workers = context.onlooker().await?.workers().await?;
    if context.json {
        output::json(&managers(&workers).collect::<Vec<_>>())?;
        return Ok(0);
    }
    let now = Timestamp::now();
    let mut table =
        Table::new(&["TID", "NAME", "TYPE", "STATUS", "LOAD", "SPAWNED", "AGE", "PID", "HOST", "QUEUE", "TASKS"]);
    for entry in managers(&workers) {
        let WorkerEntry { tid, info, status, load, spawned_count, started_at, queue } = entry;
        table.row([
            tid.to_string(),
            info.name.clone(),
            info.kind.clone(),
            status.as_str().into(),
            format!("{load:.2}"),
            spawned_count.to_string(),
            format::age(*started_at, now),
            info.pid.to_string(),
            info.host.clone(),
            queue.clone(),
            tasks_of(entry),
        ]);
    }
    output::raw(table.render().as_bytes())?;
    Ok(0)
}

/// What it can be asked for by name.
fn tasks_of(entry: &WorkerEntry) -> String {
    let names: Vec<&str> = entry.info.capabilities.iter().filter(|tag| !tag.starts_with('@')).collect();
    names.join(",")
}

/// Shows what managers are doing.
pub(super) async fn status(context: &Context, which: Option<&str>) -> Outcome {
    let broker = context.onlooker().await?;
    let workers = broker.workers().await?;
    let shown: Vec<&WorkerEntry> = match which {
        Some(which) => find(&*broker, &workers, which).await?,
        None => managers(&workers).collect(),
    };
    if context.json {
        output::json(&shown)?;
        return Ok(0);
    }
    if shown.is_empty() {
        context.note("no manager is alive");
    }
    let now = Timestamp::now();
    for (i, entry) in shown.iter().enumerate() {
        let WorkerEntry { tid, info, status, load, spawned_count, started_at, queue } = entry;
        let busy = (load * f64::from(info.max_workers)).round();
        let lines = [
            ("manager", format!("{tid} {}", info.name)),
            ("type", info.kind.clone()),
            ("status", status.as_str().into()),
            ("load", format!("{busy:.0} of {} tasks", info.max_workers)),
            ("spawned", format::count(*spawned_count, "task")),
            ("age", format::age(*started_at, now)),
            ("process", format!("{} on {}", info.pid, info.host)),
            ("parent", info.parent.map_or_else(|| "-".into(), |tid| tid.to_string())),
            ("requests", queue.clone()),
            ("tasks", tasks_of(entry)),
        ];
        let text: String = lines.iter().map(|(label, value)| format!("{label:<11}{value}\n")).collect();
        output::raw(format!("{}{text}", if i == 0 { "" } else { "\n" }).as_bytes())?;
    }
    Ok(0)
}
