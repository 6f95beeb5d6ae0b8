//! `raddle worker start`: runs a worker in the foreground or in the background.

use std::{fs::OpenOptions, io::Write, path::PathBuf, sync::Arc};

use raddle_broker_connect::BrokerUrl;
use raddle_broker_remote::ServedBroker;
use raddle_client::routine::Routines;
use raddle_groups::GroupProcess;
use raddle_model::spec::Isolation;
use raddle_spawner::{SPAWNER_VARIABLE, WARM_VARIABLE};
use raddle_worker::{
    Options, Shutdown, Worker, host::report_start_failure, plugins::Plugins,
    worker::WorkerEndReason,
};
use tokio::task::JoinSet;

use super::detach::{announce, detach, is_background};
use super::hosts::hosts;
use crate::{
    args::StartArgs,
    context::Context,
    error::{Failure, OrFail, Outcome},
    interrupt::{Interrupts, wait_if_some},
    metrics::{Instrumented, worker_page},
    output,
};

/// The settings of a spawner's worker, as JSON. Workers remove variables with this prefix from the
/// environment of tasks.
pub(super) const START_ARGS: &str = "RADDLE_INTERNAL_START";
/// The variable in which tasks find their broker.
pub(super) const QUEUE_URL: &str = "QUEUE_URL";
/// The exit code of a one-shot worker that failed itself: its task is reclaimed.
pub(super) const WORKER_FAILED: u8 = 1;

/// The settings of the worker: from its spawner, if it has one, otherwise from flags and
/// environment.
pub(super) fn resolve_args(args: StartArgs) -> Outcome<StartArgs> {
    if let Ok(text) = std::env::var(START_ARGS) {
        return serde_json::from_str(&text)
            .or_usage_at(format_args!("{START_ARGS} cannot be parsed"));
    }
    args.check().or_usage()?;
    // The container exits with its process 1, so process 1 must not detach.
    let no_detach = args.no_detach || std::process::id() == 1;
    Ok(StartArgs { no_detach, ..args })
}

/// Runs a worker in this process, or starts one in the background and prints its id.
pub(super) async fn start(context: &Context, args: &StartArgs) -> Outcome {
    if args.no_detach || is_background() {
        return run_worker(context, args).await;
    }
    // Other processes reach the broker through the socket.
    if args.serve.is_none() {
        context.check_shared()?;
    }
    detach(context, "worker", args.serve.as_deref()).await
}

/// How to pass the URL of the broker to a child process: as arguments, or as a variable if it has a
/// password, because every user can read arguments.
pub(super) fn url_args(url: &BrokerUrl) -> (Vec<String>, Option<String>) {
    match url.secret() {
        Some(url) => (Vec::new(), Some(url.to_owned())),
        None => (vec!["--queue-url".into(), url.to_string()], None),
    }
}

/// The receiver of the id of the worker, and of the notice that its first task has begun.
enum StartReceiver {
    /// The user, or the process that started the worker in the background.
    User,
    /// A spawner, on standard output.
    SpawnerPipe,
    /// A spawner, in a file that it reads when the worker has exited.
    SpawnerFile(PathBuf),
}

impl StartReceiver {
    fn from_environment() -> Self {
        match std::env::var_os(WARM_VARIABLE).map(PathBuf::from) {
            None => Self::User,
            Some(path) if path.is_absolute() => Self::SpawnerFile(path),
            Some(_) => Self::SpawnerPipe,
        }
    }

    /// Writes a line for a spawner, which may have exited.
    fn write_line(&self, line: &str) {
        match self {
            Self::User => {}
            Self::SpawnerPipe => drop(output::print_line(line)),
            Self::SpawnerFile(path) => {
                // The spawner creates the file before the worker starts. Without the file there is
                // no reader.
                let file = OpenOptions::new().append(true).open(path);
                if let Err(error) =
                    file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()))
                {
                    output::eprint(&format!(
                        "cannot report to the spawner in {}: {error}",
                        path.display()
                    ));
                }
            }
        }
    }
}

/// Runs a worker in this process until it is stopped.
async fn run_worker(context: &Context, args: &StartArgs) -> Outcome {
    let receiver = StartReceiver::from_environment();
    let mut group_process =
        GroupProcess::from_env().map_err(|error| Failure::Raddle(error.to_string()))?;
    let mut early_interrupts = None;
    if let Some(group_process) = &group_process {
        let interrupts = early_interrupts.insert(Interrupts::install()?);
        let started = group_process.startup(interrupts.next()).await;
        if !started.map_err(|error| Failure::Raddle(error.to_string()))? {
            // Nothing has begun.
            return Ok(0);
        }
    }
    let mut interrupts = early_interrupts.map_or_else(Interrupts::install, Ok)?;
    let shutdown = Shutdown::new();
    // Watched from here on, because the start may wait for disk space.
    let mut parent_watch = JoinSet::new();
    if let Some(group_process) = &mut group_process {
        parent_watch.spawn(group_process.drain_on_parent_exit(shutdown.clone()));
    }
    let Some(broker) = interrupts
        .start_unless_interrupted(&shutdown, context.open_for_service())
        .await
    else {
        return Ok(0);
    };
    let broker = broker?;
    // Before the worker is registered: a worker that cannot serve has not started.
    let serving = match &args.serve {
        Some(path) => Some(ServedBroker::start(path, Arc::clone(&broker)).await?),
        None => None,
    };
    let mut instrumented = Instrumented::start(&args.metrics, "worker").await?;
    let url = instrumented.url();
    instrumented.serve_page(worker_page);
    let broker = instrumented.meter_broker(broker);
    let options = options(context, args)?;
    let options = match &group_process {
        // A process of a group has hosts if its file says so.
        Some(_) if args.hosts.hosts.is_none() => options,
        _ => {
            let plugins = Arc::clone(&options.plugins);
            let hosts = hosts(args, &routines_of_this_program()?, &plugins).await;
            if let (Some(group_process), Err(failure)) = (&group_process, &hosts) {
                let (owner, reason) = (group_process.manager(), failure.to_string());
                // The process exits with the reason in any case.
                let _ = report_start_failure(&*broker, owner, &args.queues, &reason).await;
            }
            options.hosting(hosts?)
        }
    };
    let options = if let Some(group_process) = &group_process {
        group_process.worker_options(options)
    } else {
        options
    };
    let Some(worker) = interrupts
        .start_unless_interrupted(&shutdown, Worker::register(broker, options))
        .await
    else {
        if let Some(serving) = serving {
            serving.stop().await;
        }
        return Ok(0);
    };
    let worker = worker?;
    let tid = worker.tid();
    match &receiver {
        StartReceiver::User => announce(context, tid, args.serve.as_deref(), url.as_deref())?,
        StartReceiver::SpawnerPipe | StartReceiver::SpawnerFile(_) => {
            receiver.write_line(&tid.to_string())
        }
    }
    let mut begun = worker.attempts_started();
    let mut is_first = true;
    let mut working = Box::pin(worker.run(shutdown.clone()));
    let ended = loop {
        tokio::select! {
            ended = &mut working => break ended,
            Ok(()) = begun.changed(), if is_first || group_process.is_some() => {
                if std::mem::take(&mut is_first) {
                    receiver.write_line("begun");
                }
                if let Some(group_process) = &group_process {
                    group_process.set_attempts_started(*begun.borrow_and_update());
                }
            }
            () = wait_if_some(group_process.as_mut().map(GroupProcess::run_heartbeat)) => {}
            () = interrupts.next() => {
                context.note("stopping: tasks may finish; interrupt again to return them to their queues, a third time to kill them");
                shutdown.request();
            }
        }
    };
    if let (Some(group_process), Ok(ended)) = (&group_process, &ended) {
        group_process.set_attempts_started(ended.tasks);
    }
    instrumented.close().await;
    // Last: tasks may call the broker until they end.
    if let Some(serving) = serving {
        serving.stop().await;
    }
    if let Some(group_process) = &group_process
        && let Err(error) = group_process.shutdown().await
    {
        output::eprint(&error.to_string());
    }
    let ended = match ended {
        // The exit code tells the spawner of a one-shot worker, which reclaims the task.
        Err(error) if args.takes_one_task() => {
            Failure::from(error).print(false);
            return Ok(WORKER_FAILED);
        }
        ended => ended?,
    };
    let why = match ended.reason {
        WorkerEndReason::Idle => "it was idle",
        WorkerEndReason::Stopped => "it was stopped",
        WorkerEndReason::Aged => "it has reached its maximum uptime",
        WorkerEndReason::LeaseLost => "it has lost its lease, and with it its task",
        _ => "its task has ended",
    };
    context.note(format!(
        "worker {tid} ran {} and exited: {why}",
        crate::format::count(ended.tasks, "task")
    ));
    Ok(match &group_process {
        _ if ended.reason == WorkerEndReason::LeaseLost => WORKER_FAILED,
        Some(group_process) => group_process.exit_code(&ended),
        None => 0,
    })
}

pub(super) fn options(context: &Context, args: &StartArgs) -> Outcome<Options> {
    let routines = routines_of_this_program()?;
    let plugins = Plugins::load(args.handlers.as_deref(), args.plugins.as_deref());
    let plugins = plugins.or_usage()?;
    let caps = args.caps.clone().unwrap_or_default();
    for offer in plugins.unusable(&caps) {
        let (name, provides) = (&offer.name, &offer.provides);
        context.note(format!(
            "handler '{name}' is not used: it provides {provides}, and the worker lacks some of these capabilities"
        ));
    }
    let kind = if args.takes_one_task() {
        Options::one_shot()
    } else {
        Options::resident()
    };
    let url = args
        .serve
        .clone()
        .map(|path| (QUEUE_URL.to_owned(), BrokerUrl::Unix(path).to_string()));
    let options = Options {
        name: args.name.clone(),
        concurrency: args.concurrency.unwrap_or(kind.concurrency),
        caps,
        queues: args.queues.clone(),
        idle_exit: args.idle_exit.map(|idle| idle.0),
        max_uptime: args.max_uptime.map(|uptime| uptime.0),
        env: url.into_iter().collect(),
        min_isolation: args.min_isolation.unwrap_or_default(),
        task_image: task_image(args)?,
        in_cgroup: context.is_spawned(),
        parent: std::env::var(SPAWNER_VARIABLE)
            .ok()
            .and_then(|spawner| spawner.parse().ok()),
        ..kind
    };
    let options = options.offering(&routines, plugins);
    Ok(match &args.spawn_policy {
        Some(policy) => options.with_spawn_policy(Arc::new(policy.clone())),
        None => options,
    })
}

fn routines_of_this_program() -> Outcome<Routines> {
    Routines::of_this_program().map_err(|clash| Failure::Raddle(clash.to_string()))
}

/// The image for tasks, if the worker can use one.
fn task_image(args: &StartArgs) -> Outcome<Option<String>> {
    let image = args
        .task_image
        .clone()
        .filter(|image| !image.trim().is_empty());
    match &image {
        Some(_) if !cfg!(feature = "docker") => {
            Err(Failure::Usage("this program was built without 'docker', and cannot run tasks in containers".into()))
        }
        None if args.min_isolation == Some(Isolation::Docker) => Err(Failure::Usage(
            "--min-isolation docker runs every task in a container: name their image with --task-image".into(),
        )),
        _ => Ok(image),
    }
}
