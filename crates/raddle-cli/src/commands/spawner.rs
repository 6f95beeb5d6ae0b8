//! `raddle spawner run`: a spawner in the foreground. Its workers are this program again, as
//! processes here or elsewhere (`docker.rs`, `kubernetes.rs`).

#[cfg(feature = "docker")]
mod docker;
#[cfg(feature = "kubernetes")]
mod kubernetes;
#[cfg(any(feature = "docker", feature = "kubernetes"))]
mod one_shot;
#[cfg(feature = "docker")]
mod seccomp;

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use raddle_broker::{AttemptId, WorkerTask};
use raddle_broker_connect::BrokerUrl;
use raddle_model::manager::SpawnPolicy;
use raddle_spawner::{
    Config, Launcher, LauncherKind, Options, ProcessLauncher, ProcessTemplate, Spawner,
    WARM_VARIABLE,
};
use raddle_telemetry::metrics::QueueExporter;
use raddle_worker::Shutdown;
use serde_json::json;

use super::{
    detach::{self, PROGRAM},
    start::{self, QUEUE_URL, START_ARGS},
};
use crate::{
    args::{Global, ManagerArgs, Once, SpawnerArgs, StartArgs},
    context::{AGENT, Context},
    error::{Failure, OrFail, Outcome},
    format::count,
    interrupt::Interrupts,
    metrics::{Instrumented, spawner_page},
    output,
    project::{Project, current_directory},
    spec, systemd,
};

/// The longest path of a Unix socket (`sun_path` without its NUL).
const MAX_SOCKET_PATH: usize = 107;
const SOCKET: &str = "raddle-spawner-";

pub(super) async fn run(global: &Global, args: &SpawnerArgs) -> Outcome {
    let (config, base) = read_config(args)?;
    let url = global.queue_url.as_deref().filter(|url| !url.is_empty());
    // Paths in a file are relative to its directory.
    let directory = if url.is_some() || config.queue_url.is_none() {
        current_directory()?
    } else {
        base.clone()
    };
    let context = Context::for_project(
        global,
        Project::find(url.or(config.queue_url.as_deref()), &directory)?,
    );
    let start = worker_args(args, &config, None);
    let launcher = match config.launcher {
        LauncherKind::Process => process_launcher(global, args, &context, &config, &start)?,
        #[cfg(feature = "docker")]
        LauncherKind::Docker => {
            if args.serve.is_some() {
                let reason = "--serve cannot be used with containers: their socket is in a separate directory, which is mounted in them";
                return Err(Failure::Usage(reason.into()));
            }
            let (containers, container_socket) =
                docker::container_launcher(global, &context.project, &config, &start, &base)?;
            let socket = container_socket.as_ref().map(docker::ContainerSocket::path);
            WorkerLauncher {
                socket,
                container_socket,
                launcher: Box::new(containers),
            }
        }
        #[cfg(feature = "kubernetes")]
        LauncherKind::Kubernetes => {
            let pods =
                kubernetes::pod_launcher(global, args, &context.project, &config, &start, &base)?;
            WorkerLauncher::new(None, pods)
        }
        other => {
            return Err(Failure::Usage(format!(
                "this program was built without the launcher '{other}'"
            )));
        }
    };
    run_spawner(&context, args, config, &start, launcher, None).await
}

/// The launcher of the workers, and their broker socket.
pub(super) struct WorkerLauncher {
    /// The socket that serves the broker to the workers.
    socket: Option<PathBuf>,
    #[cfg(feature = "docker")]
    container_socket: Option<docker::ContainerSocket>,
    launcher: Box<dyn Launcher>,
}

impl WorkerLauncher {
    fn new(socket: Option<PathBuf>, launcher: impl Launcher + 'static) -> Self {
        Self {
            socket,
            #[cfg(feature = "docker")]
            container_socket: None,
            launcher: Box::new(launcher),
        }
    }
}

pub(super) fn process_launcher(
    global: &Global,
    args: &SpawnerArgs,
    context: &Context,
    config: &Config,
    start: &StartArgs,
) -> Outcome<WorkerLauncher> {
    // Other processes reach the broker through the socket.
    if args.serve.is_none() {
        context.check_shared()?;
    }
    if config.worker_image.is_some() {
        context
            .note("worker_image is ignored by the launcher 'process'; set launcher = 'docker' to start containers");
    }
    let socket = socket_path(&context.project.url, args);
    let url = match &socket {
        // The socket is the only way to a broker in memory.
        Some(path) if context.project.url == BrokerUrl::Memory => BrokerUrl::Unix(path.clone()),
        _ => context.project.url.clone(),
    };
    let template = process_template(global, &url, start, socket.as_deref())?;
    // Once for all workers: their processes are in the same cgroup.
    let _ = raddle_runner::cgroup::prepare();
    Ok(WorkerLauncher::new(socket, ProcessLauncher::new(template)))
}

/// Reads the configuration of file, flags and environment. Returns it with the directory of the
/// file.
fn read_config(args: &SpawnerArgs) -> Outcome<(Config, PathBuf)> {
    let mut config = Config::default();
    let mut base = PathBuf::new();
    let mut prefix = String::new();
    if let Some(path) = &args.config {
        prefix = format!("{}: ", path.display());
        let text = fs::read_to_string(path).or_usage_at(path.display())?;
        config = Config::from_toml(&text).or_usage_at(path.display())?;
        let path = std::path::absolute(path).or_usage_at(path.display())?;
        base = path.parent().unwrap_or(Path::new("/")).into();
        config.handlers = config.handlers.map(|directory| base.join(directory));
    }
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    args.override_config(&mut config);
    Ok((
        config
            .check(cores)
            .map_err(|error| Failure::Usage(format!("{prefix}{error}")))?,
        base,
    ))
}

/// Runs a spawner or a manager.
pub(super) async fn run_spawner(
    context: &Context,
    args: &SpawnerArgs,
    config: Config,
    start: &StartArgs,
    launcher: WorkerLauncher,
    manager: Option<&ManagerArgs>,
) -> Outcome {
    let noun = if manager.is_some() {
        "manager"
    } else {
        "spawner"
    };
    let worker = start::options(context, start)?;
    #[cfg(feature = "docker")]
    let _cleanup = worker.task_image.clone().map(|image| {
        // Once for all workers. The task ends by itself or with the process.
        tokio::spawn(async move { raddle_container::task::prepare_engine(&image).await })
    });
    let mut instrumented = Instrumented::start(&args.metrics, noun).await?;
    let mut interrupts = Interrupts::install()?;
    let shutdown = Shutdown::new();
    let Some(broker) = interrupts
        .start_unless_interrupted(&shutdown, context.open_for_service())
        .await
    else {
        return Ok(0);
    };
    let broker = instrumented.meter_broker(broker?);
    #[cfg(feature = "docker")]
    let container_socket = launcher.container_socket;
    #[cfg(feature = "docker")]
    if let Some(container_socket) = &container_socket {
        container_socket.open()?;
    }
    let task = match manager {
        Some(manager) if manager.spawned => {
            WorkerTask::Attempt(spec::current_attempt().ok_or_else(not_a_task)?)
        }
        _ => WorkerTask::New,
    };
    let parent = match (manager.and_then(|manager| manager.parent), task) {
        (Some(arg), _) => Some(crate::tid::find_task(&*broker, arg).await?.tid),
        (None, WorkerTask::Attempt(AttemptId { tid, .. })) => {
            crate::tid::get_task(&*broker, tid).await?.parent
        }
        (None, _) => spec::current_task(),
    };
    let defaults = Options::new(config, worker.clone());
    let options = Options {
        name: args.name.clone(),
        kind: manager.map_or_else(|| defaults.kind.clone(), |manager| manager.kind.clone()),
        parent,
        task,
        socket: launcher.socket.clone(),
        #[cfg(feature = "docker")]
        container_clients: container_socket
            .as_ref()
            .map(|container_socket| container_socket.clients(&worker)),
        metrics: instrumented.metrics.clone(),
        ..defaults
    };
    let metrics_url = instrumented.url();
    let registering = Spawner::register(Arc::clone(&broker), options, launcher.launcher);
    let Some(spawner) = interrupts
        .start_unless_interrupted(&shutdown, registering)
        .await
    else {
        #[cfg(feature = "docker")]
        if let Some(container_socket) = container_socket {
            container_socket.close();
        }
        return Ok(0);
    };
    let spawner = spawner?;
    let tid = spawner.tid();
    let handle = spawner.handle();
    instrumented.serve_page(|metrics| spawner_page(handle, metrics, QueueExporter::new(broker)));
    if manager.is_some() {
        detach::announce(context, tid, None, metrics_url.as_deref())?;
    } else if context.json {
        let url = launcher
            .socket
            .map(|path| BrokerUrl::Unix(path).to_string());
        output::print_json(
            &json!({ "tid": tid, "pid": std::process::id(), "serves": url, "metrics": metrics_url }),
        )?;
    } else {
        if let Some(url) = metrics_url {
            context.note(format!("metrics are at {url}"));
        }
        output::print_line(tid.to_string())?;
    }
    systemd::notify_ready(&format!("{} {tid}", args.name));
    let mut running = Box::pin(spawner.run(shutdown.clone()));
    // In this loop: a stalled loop must not report that it is alive.
    let mut watchdog = systemd::Watchdog::from_environment();
    let ended = loop {
        tokio::select! {
            ended = &mut running => break ended,
            () = watchdog.due() => systemd::notify_alive(),
            () = interrupts.next() => {
                systemd::notify_stopping();
                context.note("stopping: tasks may finish; interrupt again to return them to their queues, a third time to kill them");
                shutdown.request();
            }
        }
    };
    instrumented.close().await;
    #[cfg(feature = "docker")]
    if let Some(container_socket) = container_socket {
        container_socket.close();
    }
    let ended = ended?;
    context.note(format!(
        "{noun} {tid} launched {} and exited",
        count(ended.launched, "worker")
    ));
    Ok(0)
}

/// The arguments of the workers.
pub(super) fn worker_args(
    args: &SpawnerArgs,
    config: &Config,
    spawn_policy: Option<SpawnPolicy>,
) -> StartArgs {
    StartArgs {
        no_detach: true,
        once: Once::Always,
        caps: Some(config.caps.clone()),
        queues: config.queues.clone(),
        idle_exit: Some(config.idle_timeout),
        max_uptime: config.max_uptime,
        handlers: config.handlers.clone(),
        plugins: config.plugins.clone(),
        min_isolation: Some(config.min_isolation),
        task_image: config.task_image.clone(),
        log: args.log,
        name: "worker".into(),
        spawn_policy,
        ..StartArgs::default()
    }
}

/// The command that starts a worker process.
fn process_template(
    global: &Global,
    url: &BrokerUrl,
    start: &StartArgs,
    socket: Option<&Path>,
) -> Outcome<ProcessTemplate> {
    let (url_args, secret) = start::url_args(url);
    let mut args = ["raddle", "worker", "start"].map(String::from).to_vec();
    args.extend(global.quiet.then(|| "--quiet".into()));
    args.extend((0..global.verbose).map(|_| "--verbose".into()));
    args.extend(url_args);
    let start = serde_json::to_string(start).or_raddle_at("a registry")?;
    let mut env: Vec<(OsString, OsString)> = vec![
        (WARM_VARIABLE.into(), "1".into()),
        (START_ARGS.into(), start.into()),
    ];
    env.extend(secret.map(|url| (QUEUE_URL.into(), url.into())));
    if let Some(path) = socket.filter(|path| *url != BrokerUrl::Unix((*path).into())) {
        env.push((AGENT.into(), path.into()));
    }
    Ok(ProcessTemplate {
        program: PROGRAM.into(),
        args: args.into_iter().map(Into::into).collect(),
        env,
    })
}

/// The path of the socket that serves the broker: beside the database, or in the temporary
/// directory. A broker that is already behind a socket needs no second one, unless metrics are
/// counted here.
fn socket_path(url: &BrokerUrl, args: &SpawnerArgs) -> Option<PathBuf> {
    if args.serve.is_some() || matches!(url, BrokerUrl::Unix(_)) && !args.metrics.is_instrumented()
    {
        return args.serve.clone();
    }
    let path = path_beside_database(url, &format!("{SOCKET}{}.sock", std::process::id()), "");
    if let Some(directory) = path.parent() {
        remove_stale_sockets(directory);
    }
    Some(path)
}

/// A path beside the database. In the temporary directory if there is no database, or if the path
/// of a socket `inside` would be too long.
fn path_beside_database(url: &BrokerUrl, name: &str, inside: &str) -> PathBuf {
    let directory = match url {
        BrokerUrl::Sqlite(path) => path.parent(),
        _ => None,
    };
    let path = directory.map(|directory| directory.join(name));
    path.filter(|path| path.join(inside).as_os_str().len() <= MAX_SOCKET_PATH)
        .unwrap_or_else(|| std::env::temp_dir().join(name))
}

/// Removes the sockets of spawners that were killed.
fn remove_stale_sockets(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| {
            name.strip_prefix(SOCKET)?
                .strip_suffix(".sock")?
                .parse::<u32>()
                .ok()
        });
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // Files of other users cannot be removed.
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn not_a_task() -> Failure {
    Failure::Usage(
        "--spawned works only inside a task: RADDLE_TID, RADDLE_ATTEMPT and RADDLE_WORKER are not set"
            .into(),
    )
}
