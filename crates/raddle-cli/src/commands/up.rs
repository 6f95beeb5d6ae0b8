//! `raddle up` and `raddle down`: managers of groups. The processes run this program.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use raddle_broker::Broker;
use raddle_client::schedule;
use raddle_groups::{
    self as group, GroupEnd, GroupFileError, GroupHandle, GroupManagerRef, GroupSnapshot, Manager,
    ManagerError, Options, Process, metrics::show_group,
};
use raddle_model::HumanDuration;
use raddle_telemetry::metrics::{MetricsPage, QueueExporter};
use raddle_web::Server;
use raddle_worker::Shutdown;
use serde_json::json;
use tokio::time::{Instant, interval_at, sleep};

use super::{detach, stop::stop_workers};
use crate::{
    args::{DownArgs, Global, StopArgs, UpArgs},
    context::Context,
    error::{Failure, Outcome},
    file_trust,
    follow::EXPLAIN_AFTER,
    format::count,
    interrupt::Interrupts,
    metrics,
    project::{FILE, Project, current_directory},
    python, systemd,
};

/// How often a standby manager checks whether the active manager is dead.
const STANDBY_POLL: Duration = Duration::from_millis(500);

pub(super) async fn up(global: &Global, args: &UpArgs) -> Outcome {
    let (source, processes, context) = match &args.python {
        Some(app) => open_python(global, app)?,
        None => {
            let (path, processes, context) = open(global, args.file.as_deref())?;
            (path.display().to_string(), processes, context)
        }
    };
    context.check_shared()?;
    if args.detach && !detach::is_background() {
        return detach::detach(&context, "manager", None).await;
    }
    run_manager(&context, global, args, &source, processes).await
}

/// Stops the managers that run workers of a file.
pub(super) async fn down(global: &Global, args: &DownArgs) -> Outcome {
    let (_, processes, context) = open(global, args.file.as_deref())?;
    let broker = context.open_existing().await?;
    let slugs: BTreeSet<&str> = processes
        .iter()
        .flat_map(|process| &process.workers)
        .map(|worker| worker.slug.as_str())
        .collect();
    let mut managers = BTreeSet::new();
    for view in group::list(&*broker)
        .await?
        .iter()
        .filter(|view| slugs.contains(view.slug.as_str()))
    {
        let is_selected = |manager: &&GroupManagerRef| {
            args.name.as_ref().is_none_or(|name| manager.name == *name)
        };
        managers.extend(
            view.managers
                .iter()
                .filter(is_selected)
                .map(|manager| manager.tid),
        );
    }
    if managers.is_empty() {
        context.note("no manager runs these groups");
    }
    let timeout = args
        .timeout
        .unwrap_or_else(|| HumanDuration(group::service_manager::stop_grace_period(&processes)));
    let stop = StopArgs {
        tids: Vec::new(),
        all: false,
        kill: args.kill,
        timeout,
    };
    stop_workers(&context, &*broker, managers.into_iter().collect(), &stop).await
}

/// Reads the file with the groups, and finds their broker.
fn open(global: &Global, file: Option<&Path>) -> Outcome<(PathBuf, Vec<Process>, Context)> {
    let here = current_directory()?;
    let path = match file {
        Some(path) => here.join(path),
        None => find_file(&here).ok_or_else(|| {
            Failure::Usage(format!(
                "there is no {FILE} in this or a parent directory: write one, or name it with -f"
            ))
        })?,
    };
    let processes = read_groups(&path)?;
    let url = global.queue_url.as_deref().filter(|url| !url.is_empty());
    let of_file = if url.is_some() {
        None
    } else {
        Project::from_file(path.clone())?
    };
    let project = of_file.map_or_else(|| Project::find(url, &here), Ok)?;
    Ok((path, processes, Context::for_project(global, project)))
}

/// Reads the groups that a Python app declares, and finds their broker.
fn open_python(global: &Global, app: &str) -> Outcome<(String, Vec<Process>, Context)> {
    let text = python::groups(app).map_err(|reason| {
        Failure::Usage(format!("the groups of '{app}' cannot be read: {reason}"))
    })?;
    let processes = group::parse(&text)
        .map_err(|mistake| Failure::Usage(format!("the groups of '{app}': {}", mistake.error)))?;
    let url = global.queue_url.as_deref().filter(|url| !url.is_empty());
    let project = Project::find(url, &current_directory()?)?;
    Ok((
        app.to_owned(),
        processes,
        Context::for_project(global, project),
    ))
}

/// Finds the file in this directory or an ancestor.
pub(super) fn find_file(directory: &Path) -> Option<PathBuf> {
    directory
        .ancestors()
        .map(|ancestor| ancestor.join(FILE))
        .find(|path| path.is_file())
}

/// Reads the groups of a file. Errors name the line.
pub(super) fn read_groups(path: &Path) -> Outcome<Vec<Process>> {
    let wrong =
        |reason: &dyn std::fmt::Display| Failure::Usage(format!("{}:{reason}", path.display()));
    let text = file_trust::read(path)?.ok_or_else(|| wrong(&" there is no such file"))?;
    group::parse(&text).map_err(|mistake| wrong(&mistake))
}

async fn run_manager(
    context: &Context,
    global: &Global,
    args: &UpArgs,
    file: &str,
    processes: Vec<Process>,
) -> Outcome {
    let mut server = match args.metrics_addr {
        Some(address) => Some(metrics::bind(address, args.metrics_public).await?),
        None => None,
    };
    let mut interrupts = Interrupts::install()?;
    let shutdown = Shutdown::new();
    let Some(broker) = interrupts
        .start_unless_interrupted(&shutdown, context.open_for_service())
        .await
    else {
        return Ok(0);
    };
    let broker = broker?;
    let options = Options {
        name: args.name.clone(),
        file: Some(file.to_owned()),
        extra_args: process_args(global, args),
        ..Options::new(context.project.url.clone(), processes)
    };
    loop {
        let Some(manager) =
            register(context, &broker, &options, &shutdown, &mut interrupts).await?
        else {
            return Ok(0);
        };
        let (tid, url) = (manager.tid(), server.as_ref().map(Server::url));
        let handle = manager.handle();
        let shown = handle.clone();
        let _serving = server.take().map(|server| {
            let page = move |page: &mut MetricsPage| show_group(page, &shown.snapshot());
            server.serve(metrics::queue_page(
                QueueExporter::new(Arc::clone(&broker)),
                page,
            ))
        });
        if detach::is_background() {
            detach::announce(context, tid, None, url.as_deref())?;
        } else {
            let mut record = json!({ "tid": tid, "pid": std::process::id() });
            if let Some(url) = &url {
                record["metrics"] = url.as_str().into();
                context.note(format!("metrics are at {url}"));
            }
            context.show(&record, || format!("{tid}\n"))?;
        }
        let ended = match run_until_stopped(
            context,
            manager,
            handle,
            &options.processes,
            &shutdown,
            &mut interrupts,
        )
        .await
        {
            // Another manager has taken over while this one could not reach the broker.
            Err(error @ ManagerError::Kept { .. }) => {
                context.note(error.to_string());
                continue;
            }
            ended => ended.map_err(failure)?,
        };
        context.note(format!(
            "manager {tid} started {} and exited",
            count(ended.started, "process")
        ));
        if ended.killed == 0 {
            return Ok(0);
        }
        let processes = count(ended.killed, "process");
        context
            .note(format!("{processes} had to be killed (SIGKILL): see the log, and check the data that they were writing"));
        return Ok(group::EXIT_KILLED);
    }
}

/// Registers a manager. While another manager of its name runs the same workers, it waits, unless
/// it starts in the background. Returns `None` if it is interrupted.
async fn register(
    context: &Context,
    broker: &Arc<dyn Broker>,
    options: &Options,
    shutdown: &Shutdown,
    interrupts: &mut Interrupts,
) -> Outcome<Option<Manager>> {
    let mut is_waiting = false;
    loop {
        let registering = Box::pin(Manager::register(Arc::clone(broker), options.clone()));
        let Some(registered) = interrupts
            .start_unless_interrupted(shutdown, registering)
            .await
        else {
            return Ok(None);
        };
        match registered {
            Ok(manager) => return Ok(Some(manager)),
            Err(ManagerError::Kept { name, manager }) if !detach::is_background() => {
                if !std::mem::replace(&mut is_waiting, true) {
                    let instead = "this manager stands by, and replaces it when it exits";
                    context.note(format!(
                        "manager {manager} with the name '{name}' runs these groups: {instead}"
                    ));
                    systemd::notify_ready("standby");
                }
            }
            // The active manager cannot reach the broker either.
            Err(ManagerError::Broker(error)) if is_waiting && error.is_retryable() => {}
            Err(ManagerError::InvalidConfig(mistake)) => {
                let file = options.file.as_deref().unwrap_or_default();
                let text = fs::read_to_string(file).unwrap_or_default();
                return Err(Failure::Usage(format!(
                    "{file}:{}",
                    GroupFileError::locate(&text, mistake)
                )));
            }
            Err(error) => return Err(failure(error)),
        }
        tokio::select! {
            () = interrupts.next() => return Ok(None),
            () = shutdown.requested(1) => return Ok(None),
            () = sleep(STANDBY_POLL) => systemd::notify_alive(),
        }
    }
}

async fn run_until_stopped(
    context: &Context,
    manager: Manager,
    mut handle: GroupHandle,
    processes: &[Process],
    shutdown: &Shutdown,
    interrupts: &mut Interrupts,
) -> Result<GroupEnd, ManagerError> {
    let mut watchdog = systemd::Watchdog::from_environment();
    let mut running = Box::pin(manager.run(shutdown.clone()));
    let (mut is_up, mut reported) = (false, BTreeSet::new());
    let mut explain = interval_at(Instant::now() + EXPLAIN_AFTER, EXPLAIN_AFTER);
    loop {
        tokio::select! {
            ended = &mut running => return ended,
            () = interrupts.next() => {
                systemd::notify_stopping();
                context.note("stopping: tasks may finish; interrupt again to return them to their queues, a third time to kill them");
                shutdown.request();
            }
            () = watchdog.due() => systemd::notify_alive(),
            _ = explain.tick(), if !is_up => {
                for line in explain_missing(processes, &handle.snapshot()) {
                    if reported.insert(line.clone()) {
                        context.note(line);
                    }
                }
            }
            true = handle.changed(), if !is_up => {
                is_up = handle.is_up();
                if is_up {
                    let processes: usize = handle.snapshot().groups.values().map(|counts| counts.ready).sum();
                    let reported = format!("{} up", count(processes as u64, "process"));
                    context.note(&reported);
                    systemd::notify_ready(&reported);
                }
            }
        }
    }
}

/// Why not all processes are up, one line for each group.
fn explain_missing(processes: &[Process], snapshot: &GroupSnapshot) -> Vec<String> {
    let is_up = |name: &String| {
        snapshot
            .groups
            .get(name)
            .is_none_or(|counts| counts.ready >= counts.wanted)
    };
    let explain = |process: &Process| {
        let (name, counts) = (&process.name, snapshot.groups.get(&process.name)?);
        let awaited: Vec<&str> = process
            .after
            .iter()
            .filter(|before| !is_up(before))
            .map(String::as_str)
            .collect();
        Some(match counts {
            counts if counts.ready >= counts.wanted => return None,
            counts if counts.backing_off > 0 => {
                format!(
                    "'{name}' is not up: its processes exit right after their start; see their messages above"
                )
            }
            counts if counts.starting == 0 && !awaited.is_empty() => {
                format!(
                    "'{name}' is not up: it starts after {}, which is not up yet",
                    awaited.join(", ")
                )
            }
            counts if !process.startup.is_empty() && counts.starting > 0 => {
                format!(
                    "'{name}' is not up: its startup command '{}' has not ended yet",
                    process.startup.join(" ")
                )
            }
            counts => format!(
                "'{name}' is not up: {} of {} are ready",
                counts.ready, counts.wanted
            ),
        })
    };
    processes.iter().filter_map(explain).collect()
}

/// The arguments of all processes, besides those of their group.
fn process_args(global: &Global, args: &UpArgs) -> Vec<std::ffi::OsString> {
    let mut words: Vec<std::ffi::OsString> =
        vec!["--log-format".into(), args.log.log_format.as_str().into()];
    if let Some(directory) = &args.handlers {
        words.extend(["--handlers".into(), directory.into()]);
    }
    (0..global.verbose).for_each(|_| words.push("--verbose".into()));
    words
}

fn failure(error: ManagerError) -> Failure {
    match error {
        ManagerError::Broker(error) => error.into(),
        ManagerError::InvalidConfig(_)
        | ManagerError::Memory
        | ManagerError::SlugTaken { .. }
        | ManagerError::Kept { .. }
        | ManagerError::Url(_)
        | ManagerError::Trigger {
            source: schedule::Error::NotOwned(_),
            ..
        } => Failure::Usage(error.to_string()),
        other => Failure::Raddle(other.to_string()),
    }
}
