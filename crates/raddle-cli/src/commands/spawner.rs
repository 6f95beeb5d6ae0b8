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
    start::{self, QUEUE_URL, START},
};
use crate::{
    args::{Global, ManagerArgs, Once, SpawnerArgs, StartArgs},
    context::{AGENT, Context},
    error::{Failure, OrFail, Outcome},
    format::count,
    interrupt::Interrupts,
    metrics::{Instrumented, spawner_page},
    output,
    project::{Project, here},
    spec, systemd,
};

/// The longest path of a Unix socket.
const LONGEST_SOCKET: usize = 107;
const SOCKET: &str = "raddle-spawner-";

pub(super) async fn run(global: &Global, args: &SpawnerArgs) -> Outcome {
    let (config, base) = configure(args)?;
    let asked = global.queue_url.as_deref().filter(|url| !url.is_empty());
    // Paths in a file are relative to its directory.
    let from = if asked.is_some() || config.queue_url.is_none() {
        here()?
    } else {
        base.clone()
    };
    let context = Context::of(
        global,
        Project::find(asked.or(config.queue_url.as_deref()), &from)?,
    );
    let start = worker_args(args, &config, None);
    let launching = match config.launcher {
        LauncherKind::Process => processes(global, args, &context, &config, &start)?,
        #[cfg(feature = "docker")]
        LauncherKind::Docker => {
            if args.serve.is_some() {
                let reason = "--serve is not for containers: they see the directory of the socket, which is one of its own";
                return Err(Failure::Usage(reason.into()));
            }
            let (containers, hatch) =
                docker::containers(global, &context.project, &config, &start, &base)?;
            let socket = hatch.as_ref().map(docker::ContainerSocket::socket);
            WorkerLauncher {
                socket,
                hatch,
                launcher: Box::new(containers),
            }
        }
        #[cfg(feature = "kubernetes")]
        LauncherKind::Kubernetes => {
            let pods = kubernetes::pods(global, args, &context.project, &config, &start, &base)?;
            WorkerLauncher::new(None, pods)
        }
        other => {
            return Err(Failure::Usage(format!(
                "this program was built without the launcher '{other}'"
            )));
        }
    };
    keep(&context, args, config, &start, launching, None).await
}

/// The launcher of the workers, and their broker socket.
pub(super) struct WorkerLauncher {
    /// The socket that serves the broker to the workers.
    socket: Option<PathBuf>,
    #[cfg(feature = "docker")]
    hatch: Option<docker::ContainerSocket>,
    launcher: Box<dyn Launcher>,
}

impl WorkerLauncher {
    fn new(socket: Option<PathBuf>, launcher: impl Launcher + 'static) -> Self {
        Self {
            socket,
            #[cfg(feature = "docker")]
            hatch: None,
            launcher: Box::new(launcher),
        }
    }
}

pub(super) fn processes(
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
            .note("worker_image is not used: the launcher 'process' starts this program; 'docker' starts containers");
    }
    let socket = socket(&context.project.url, args);
    let url = match &socket {
        // The socket is the only way to a broker in memory.
        Some(path) if context.project.url == BrokerUrl::Memory => BrokerUrl::Unix(path.clone()),
        _ => context.project.url.clone(),
    };
    let template = template(global, &url, start, socket.as_deref())?;
    // Once for all: started processes are in the same cgroup.
    let _ = raddle_runner::cgroup::prepare();
    Ok(WorkerLauncher::new(socket, ProcessLauncher::new(template)))
}

/// The configuration of file, flags and environment, and the directory of the file.
fn configure(args: &SpawnerArgs) -> Outcome<(Config, PathBuf)> {
    let mut config = Config::default();
    let mut base = PathBuf::new();
    let mut named = String::new();
    if let Some(path) = &args.config {
        named = format!("{}: ", path.display());
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
            .map_err(|error| Failure::Usage(format!("{named}{error}")))?,
        base,
    ))
}

/// Runs a spawner, or a manager.
pub(super) async fn keep(
    context: &Context,
    args: &SpawnerArgs,
    config: Config,
    start: &StartArgs,
    launching: WorkerLauncher,
    manager: Option<&ManagerArgs>,
) -> Outcome {
    let noun = if manager.is_some() {
        "manager"
    } else {
        "spawner"
    };
    let worker = start::options(context, start)?;
    #[cfg(feature = "docker")]
    let _looking = worker.task_image.clone().map(|image| {
        // Once for all workers. The task ends by itself, or with the process.
        tokio::spawn(async move { raddle_container::task::look_around(&image).await })
    });
    let mut watched = Instrumented::start(&args.metrics, noun).await?;
    let mut interrupts = Interrupts::catch()?;
    let shutdown = Shutdown::new();
    let Some(broker) = interrupts
        .start(&shutdown, context.broker_of_service())
        .await
    else {
        return Ok(0);
    };
    let broker = watched.observed(broker?);
    #[cfg(feature = "docker")]
    let hatch = launching.hatch;
    #[cfg(feature = "docker")]
    if let Some(hatch) = &hatch {
        hatch.open()?;
    }
    let parent = match manager.and_then(|manager| manager.parent) {
        Some(arg) => Some(crate::tid::find_task(&*broker, arg).await?.tid),
        None => spec::own_task(),
    };
    let usual = Options::new(config, worker.clone());
    let options = Options {
        name: args.name.clone(),
        kind: manager.map_or_else(|| usual.kind.clone(), |manager| manager.kind.clone()),
        parent,
        socket: launching.socket.clone(),
        #[cfg(feature = "docker")]
        guests: hatch.as_ref().map(|hatch| hatch.guests(&worker)),
        book: watched.book.clone(),
        ..usual
    };
    let metrics_url = watched.url();
    let registering = Spawner::register(Arc::clone(&broker), options, launching.launcher);
    let Some(spawner) = interrupts.start(&shutdown, registering).await else {
        #[cfg(feature = "docker")]
        if let Some(hatch) = hatch {
            hatch.close();
        }
        return Ok(0);
    };
    let spawner = spawner?;
    let tid = spawner.tid();
    let handle = spawner.handle();
    watched.show(|book| spawner_page(handle, book, QueueExporter::new(broker)));
    if manager.is_some() {
        detach::announce(context, tid, None, metrics_url.as_deref())?;
    } else if context.json {
        let url = launching
            .socket
            .map(|path| BrokerUrl::Unix(path).to_string());
        output::json(
            &json!({ "tid": tid, "pid": std::process::id(), "serves": url, "metrics": metrics_url }),
        )?;
    } else {
        if let Some(url) = metrics_url {
            context.note(format!("metrics are at {url}"));
        }
        output::line(tid.to_string())?;
    }
    systemd::ready(&format!("{} {tid}", args.name));
    let mut keeping = Box::pin(spawner.run(shutdown.clone()));
    // On the thread of the loop: a stalled loop must not report that it is alive.
    let mut watchdog = systemd::Watchdog::of_environment();
    let ended = loop {
        tokio::select! {
            ended = &mut keeping => break ended,
            () = watchdog.due() => systemd::alive(),
            () = interrupts.next() => {
                systemd::stopping();
                context.note("stopping: what the workers run may end; once more to give it back, and again to kill it");
                shutdown.request();
            }
        }
    };
    watched.close().await;
    #[cfg(feature = "docker")]
    if let Some(hatch) = hatch {
        hatch.close();
    }
    let ended = ended?;
    context.note(format!(
        "{noun} {tid} launched {} and left",
        count(ended.launched, "worker")
    ));
    Ok(0)
}

/// The arguments of its workers.
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
fn template(
    global: &Global,
    url: &BrokerUrl,
    start: &StartArgs,
    socket: Option<&Path>,
) -> Outcome<ProcessTemplate> {
    let (url_words, secret) = start::url_words(url);
    let mut args = ["raddle", "worker", "start"].map(String::from).to_vec();
    args.extend(global.quiet.then(|| "--quiet".into()));
    args.extend((0..global.verbose).map(|_| "--verbose".into()));
    args.extend(url_words);
    let start = serde_json::to_string(start).or_raddle_at("a registry")?;
    let mut env: Vec<(OsString, OsString)> = vec![
        (WARM_VARIABLE.into(), "1".into()),
        (START.into(), start.into()),
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

/// The socket that serves the broker: beside the database, or in the temporary directory. A broker
/// that is served already needs no second server, unless metrics are counted here.
fn socket(url: &BrokerUrl, args: &SpawnerArgs) -> Option<PathBuf> {
    if args.serve.is_some() || matches!(url, BrokerUrl::Unix(_)) && !args.metrics.is_instrumented()
    {
        return args.serve.clone();
    }
    let path = beside(url, &format!("{SOCKET}{}.sock", std::process::id()), "");
    if let Some(directory) = path.parent() {
        sweep(directory);
    }
    Some(path)
}

/// A path beside the database, or in the temporary directory where there is none or where a socket
/// `inside` would have too long a path.
fn beside(url: &BrokerUrl, name: &str, inside: &str) -> PathBuf {
    let directory = match url {
        BrokerUrl::Sqlite(path) => path.parent(),
        _ => None,
    };
    let path = directory.map(|directory| directory.join(name));
    path.filter(|path| path.join(inside).as_os_str().len() <= LONGEST_SOCKET)
        .unwrap_or_else(|| std::env::temp_dir().join(name))
}

/// Removes the sockets of spawners that were killed.
fn sweep(directory: &Path) {
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
