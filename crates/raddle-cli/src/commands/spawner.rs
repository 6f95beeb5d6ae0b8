//! `raddle spawner run`: a spawner in the foreground, whose workers are this program again: processes here, or elsewhere (`docker.rs`, `kubernetes.rs`).

#[cfg(feature = "docker")]
mod docker;
#[cfg(feature = "kubernetes")]
mod kubernetes;
#[cfg(any(feature = "docker", feature = "kubernetes"))]
mod one_shot;
#[cfg(feature = "docker")]
mod seccomp;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use raddle_broker::Url;
use raddle_core::{Span, job::TID_VARIABLE, manager::Charter, tid::TidArg};
use raddle_fabric::{
    Shutdown,
    metrics::Exporter,
    spawner::{Config, Launch, Launcher, Layer, Options, Processes, Spawner, Template, WARM_VARIABLE},
};
use serde_json::json;

use super::{
    block_on,
    detach::{self, Invocation, PROGRAM},
    start,
};
use crate::{
    args::{Global, MetricsArgs, SpawnerArgs, StartArgs},
    context::{AGENT, Context},
    error::{Failure, Outcome},
    format::count,
    interrupt::Interrupts,
    metrics::{Watched, spawner_page},
    output,
    project::Project,
    systemd,
};

/// The longest name of a socket.
const LONGEST_SOCKET: usize = 107;
const SOCKET: &str = "raddle-spawner-";

pub(super) fn run(global: &Global, args: &SpawnerArgs) -> Outcome {
    let (config, base) = configure(args)?;
    let asked = global.queue_url.as_deref().filter(|url| !url.is_empty());
    let here = || std::env::current_dir().map_err(|e| Failure::Usage(format!("cannot tell the current folder ({e})")));
    // What a file says counts from its own folder.
    let from = if asked.is_some() || config.queue_url.is_none() { here()? } else { base.clone() };
    let context = Context::of(global, Project::find(asked.or(config.queue_url.as_deref()), &from)?);
    let start = worker_args(args, &config, None);
    let launching = match config.launcher {
        Launch::Process => processes(global, args, &context, &config, start)?,
        #[cfg(feature = "docker")]
        Launch::Docker => containers(global, args, &context, &config, start, &base)?,
        #[cfg(feature = "kubernetes")]
        Launch::Kubernetes => {
            let plan = kubernetes::Plan::new(global, args, &context.project, &config, &start, &base)?;
            Launching { start, socket: None, means: Means::Pods(Box::new(plan)) }
        }
        other => return Err(Failure::Usage(format!("this program was built without the launcher '{other}'"))),
    };
    let post = Post { kind: None, parent: None, noun: "spawner" };
    block_on(keep(&context, args, config, launching, post))
}

/// What it is in the registry, besides its name.
pub(super) struct Post {
    /// The type of a manager; a spawner has none.
    pub(super) kind: Option<String>,
    /// The task that it belongs to.
    pub(super) parent: Option<TidArg>,
    /// What people call it.
    pub(super) noun: &'static str,
}

/// How workers come to be.
pub(super) struct Launching {
    /// What they are like.
    start: StartArgs,
    socket: Option<PathBuf>,
    means: Means,
}

/// What they are started by.
enum Means {
    Template(Template),
    #[cfg(feature = "docker")]
    Containers(Box<docker::Plan>),
    #[cfg(feature = "kubernetes")]
    Pods(Box<kubernetes::Plan>),
}

pub(super) fn processes(
    global: &Global,
    args: &SpawnerArgs,
    context: &Context,
    config: &Config,
    start: StartArgs,
) -> Outcome<Launching> {
    if context.project.url == Url::Memory && args.serve.is_none() {
        return Err(Failure::memory());
    }
    if config.worker_image.is_some() {
        context
            .note("worker_image is not used: the launcher 'process' starts this program; 'docker' starts containers");
    }
    let socket = socket(&context.project.url, args)?;
    let project = through(&context.project, socket.as_deref());
    let template = template(global, &project, &start, socket.as_deref())?;
    // Once for all: what is started is in the same group.
    let _ = raddle_exec::cgroup::prepare();
    Ok(Launching { start, socket, means: Means::Template(template) })
}

#[cfg(feature = "docker")]
fn containers(
    global: &Global,
    args: &SpawnerArgs,
    context: &Context,
    config: &Config,
    start: StartArgs,
    base: &Path,
) -> Outcome<Launching> {
    if args.serve.is_some() {
        let reason = "--serve is not for containers: they see the folder of the socket, which is one of its own";
        return Err(Failure::Usage(reason.into()));
    }
    let plan = docker::Plan::new(global, &context.project, config, &start, base)?;
    let socket = plan.hatch.as_ref().map(docker::Hatch::socket);
    Ok(Launching { start, socket, means: Means::Containers(Box::new(plan)) })
}

/// The broker as its workers name it.
fn through(project: &Project, socket: Option<&Path>) -> Project {
    match (&project.url, socket) {
        // There is no other way to it.
        (Url::Memory, Some(path)) => Project { url: Url::Unix(path.into()), source: project.source.clone() },
        _ => project.clone(),
    }
}

/// What file, flags and environment say together, and the folder of the file.
fn configure(args: &SpawnerArgs) -> Outcome<(Config, PathBuf)> {
    let mut file = Layer::default();
    let mut base = PathBuf::new();
    let mut named = String::new();
    if let Some(path) = &args.config {
        named = format!("{}: ", path.display());
        let wrong = |reason: String| Failure::Usage(format!("{}: {reason}", path.display()));
        let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        file = Layer::from_toml(&text).map_err(|error| wrong(error.to_string()))?;
        let path = std::path::absolute(path).map_err(|error| wrong(error.to_string()))?;
        base = path.parent().unwrap_or(Path::new("/")).into();
    }
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let config = args.layer().over(file).settle(cores);
    Ok((config.map_err(|error| Failure::Usage(format!("{named}{error}")))?, base))
}

pub(super) async fn keep(
    context: &Context,
    args: &SpawnerArgs,
    config: Config,
    launching: Launching,
    post: Post,
) -> Outcome {
    let is_detached = detach::leave_session();
    let Launching { start, socket, means } = launching;
    let worker = start::options(context, &start, None)?;
    #[cfg(feature = "docker")]
    let _looking = worker.task_image.clone().map(|image| {
        // Once for all its workers. It ends by itself, or with the process.
        tokio::spawn(async move { raddle_fabric::contained::look_around(&image).await })
    });
    let mut watched = Watched::start(&args.metrics, post.noun).await?;
    let broker = watched.observed(context.broker_of_worker().await?);
    #[cfg(feature = "docker")]
    let mut hatch = None;
    let launcher: Box<dyn Launcher> = match means {
        Means::Template(template) => Box::new(Processes::new(template)),
        #[cfg(feature = "docker")]
        Means::Containers(mut plan) => {
            hatch = plan.hatch.take();
            if let Some(hatch) = &hatch {
                hatch.open()?;
            }
            Box::new(plan.launcher())
        }
        #[cfg(feature = "kubernetes")]
        Means::Pods(plan) => Box::new(plan.launcher()),
    };
    let parent = match post.parent {
        Some(arg) => Some(crate::tid::find(&*broker, arg).await?.tid),
        None => std::env::var(TID_VARIABLE).ok().and_then(|tid| tid.parse().ok()),
    };
    let usual = Options::new(config, worker.clone());
    let options = Options {
        name: args.name.clone(),
        kind: post.kind.clone().unwrap_or_else(|| usual.kind.clone()),
        parent,
        socket: socket.clone(),
        #[cfg(feature = "docker")]
        guests: hatch.as_ref().map(|hatch| hatch.guests(&worker)),
        book: watched.book.clone(),
        ..usual
    };
    let mut interrupts = Interrupts::catch()?;
    let metrics_url = watched.url();
    let spawner = Spawner::register(Arc::clone(&broker), options, launcher).await?;
    let tid = spawner.tid();
    let handle = spawner.handle();
    watched.show(|book| spawner_page(handle, book, Exporter::new(broker)));
    if post.kind.is_some() {
        detach::announce(context, tid, is_detached, &None, metrics_url.as_deref())?;
    } else if context.json {
        let url = socket.map(|path| Url::Unix(path).to_string());
        output::json(&json!({ "tid": tid, "pid": std::process::id(), "serves": url, "metrics": metrics_url }))?;
    } else {
        if let Some(url) = metrics_url {
            context.note(format!("metrics are at {url}"));
        }
        output::line(tid.to_string())?;
    }
    systemd::ready(&format!("{} {tid}", args.name));
    let shutdown = Shutdown::new();
    let mut keeping = Box::pin(spawner.run(shutdown.clone()));
    // On the thread of the loop itself: one that stands still does not say that it lives.
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
    context.note(format!("{} {tid} launched {} and left", post.noun, count(ended.launched, "worker")));
    Ok(0)
}

/// How its workers are started.
pub(super) fn worker_args(args: &SpawnerArgs, config: &Config, charter: Option<Arc<Charter>>) -> StartArgs {
    StartArgs {
        no_detach: true,
        once: true,
        concurrency: None,
        caps: Some(config.caps.clone()),
        queues: config.queues.clone(),
        idle_exit: Some(Span(config.idle_timeout)),
        max_uptime: None,
        serve: None,
        handlers: args.handlers.as_ref().map(|folder| std::path::absolute(folder).unwrap_or_else(|_| folder.clone())),
        plugins: args.plugins.clone(),
        min_isolation: Some(config.min_isolation),
        task_image: config.task_image.clone(),
        metrics: MetricsArgs::default(),
        log: args.log,
        name: "worker".into(),
        charter,
    }
}

fn template(global: &Global, project: &Project, start: &StartArgs, socket: Option<&Path>) -> Outcome<Template> {
    let context = Context::of(global, project.clone());
    let Invocation { mut args, mut env } = start::invocation(&context, start, global)?;
    args.insert(0, "raddle".into());
    env.push((WARM_VARIABLE.into(), "1".into()));
    if let Some(path) = socket.filter(|path| project.url != Url::Unix(path.into())) {
        env.push((AGENT.into(), path.into()));
    }
    Ok(Template { program: PROGRAM.into(), args, env })
}

/// Where to serve the broker: beside the database, or else among temporary files. One that is served already needs no second agent, unless
/// account is to be kept of what the workers do: that passes through here.
fn socket(url: &Url, args: &SpawnerArgs) -> Outcome<Option<PathBuf>> {
    if let Some(path) = &args.serve {
        let absolute = std::path::absolute(path);
        return absolute.map(Some).map_err(|e| Failure::Usage(format!("cannot serve at '{}': {e}", path.display())));
    }
    let name = format!("{SOCKET}{}.sock", std::process::id());
    let folder = match url {
        Url::Unix(_) if !args.metrics.is_watched() => return Ok(None),
        Url::Sqlite(path) => path.parent().map(Path::to_path_buf).unwrap_or_default(),
        _ => std::env::temp_dir(),
    };
    let path = folder.join(&name);
    let path = if path.as_os_str().len() > LONGEST_SOCKET { std::env::temp_dir().join(name) } else { path };
    if let Some(folder) = path.parent() {
        sweep(folder);
    }
    Ok(Some(path))
}

/// Removes the sockets of spawners that were killed: nobody else knows their names.
fn sweep(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(SOCKET)?.strip_suffix(".sock")?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // Another user's cannot be removed, and is not ours to remove.
            let _ = fs::remove_file(entry.path());
        }
    }
}
