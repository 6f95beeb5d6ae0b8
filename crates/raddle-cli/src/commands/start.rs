//! `raddle worker start`: a worker in the foreground or in the background.

use std::{fs::OpenOptions, io::Write, path::PathBuf, sync::Arc};

use raddle_broker_connect::BrokerUrl;
use raddle_broker_remote::ServedBroker;
use raddle_client::routine::Routines;
use raddle_groups::GroupProcess;
use raddle_model::spec::Isolation;
use raddle_spawner::{SPAWNER_VARIABLE, WARM_VARIABLE};
use raddle_worker::{Options, Shutdown, Worker, plugins::Plugins, worker::WorkerEndReason};
use tokio::task::JoinSet;

use super::detach::{announce, detach, is_background};
use super::hosts::hosts;
use crate::{
    args::StartArgs,
    context::Context,
    error::{Failure, OrFail, Outcome},
    interrupt::{Interrupts, if_any},
    metrics::{Instrumented, worker_page},
    output,
};

/// The settings of a spawner's worker, as JSON. Workers remove variables with this prefix from the
/// environment of tasks.
pub(super) const START: &str = "RADDLE_INTERNAL_START";
/// The variable in which tasks find their broker.
pub(super) const QUEUE_URL: &str = "QUEUE_URL";
/// The exit code of a one-shot worker that failed itself: its task is reclaimed.
pub(super) const UNCAUGHT: u8 = 1;

/// The settings of the worker: those of its spawner, if it has one, otherwise those of flags and
/// environment.
pub(super) fn resolve_args(args: StartArgs) -> Outcome<StartArgs> {
    if let Ok(text) = std::env::var(START) {
        return serde_json::from_str(&text).or_usage_at(format_args!("{START} cannot be read"));
    }
    args.check().or_usage()?;
    // A container ends with its process 1, and a worker in the background with the container.
    let no_detach = args.no_detach || std::process::id() == 1;
    Ok(StartArgs { no_detach, ..args })
}

/// Runs a worker in this process, or starts one in the background and prints its id.
pub(super) async fn start(context: &Context, args: &StartArgs) -> Outcome {
    if args.no_detach || is_background() {
        return foreground(context, args).await;
    }
    // Other processes reach the broker through the socket.
    if args.serve.is_none() {
        context.check_shared()?;
    }
    detach(context, "worker", args.serve.as_deref()).await
}

/// Passes the broker's URL to another process of this program: as arguments, or as a variable if it
/// has a password, because every user can read arguments.
pub(super) fn url_words(url: &BrokerUrl) -> (Vec<String>, Option<String>) {
    match url.secret() {
        Some(url) => (Vec::new(), Some(url.to_owned())),
        None => (vec!["--queue-url".into(), url.to_string()], None),
    }
}

/// The receiver of the worker's id, and of the report that it has its task.
enum Listener {
    /// The user, or the process that started it in the background.
    Starter,
    /// A spawner, on standard output.
    Spawner,
    /// A spawner, in a file that it reads when the worker has ended.
    Reader(PathBuf),
}

impl Listener {
    fn of_environment() -> Self {
        match std::env::var_os(WARM_VARIABLE).map(PathBuf::from) {
            None => Self::Starter,
            Some(path) if path.is_absolute() => Self::Reader(path),
            Some(_) => Self::Spawner,
        }
    }

    /// Writes a line for a spawner. A spawner that is gone need not get it.
    fn say(&self, line: &str) {
        match self {
            Self::Starter => {}
            Self::Spawner => drop(output::line(line)),
            Self::Reader(path) => {
                // The spawner creates the file before the worker starts; otherwise no process reads
                // it.
                let file = OpenOptions::new().append(true).open(path);
                if let Err(error) =
                    file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()))
                {
                    output::eprint(&format!(
                        "what this worker does cannot be noted in {}: {error}",
                        path.display()
                    ));
                }
            }
        }
    }
}

/// Runs a worker in this process until it is stopped.
async fn foreground(context: &Context, args: &StartArgs) -> Outcome {
    let listener = Listener::of_environment();
    let mut member =
        GroupProcess::of_environment().map_err(|error| Failure::Raddle(error.to_string()))?;
    let mut early = None;
    if let Some(member) = &member {
        let interrupts = early.insert(Interrupts::catch()?);
        let started = member.startup(interrupts.next()).await;
        if !started.map_err(|error| Failure::Raddle(error.to_string()))? {
            // Nothing has begun that would have to end.
            return Ok(0);
        }
    }
    let mut interrupts = early.map_or_else(Interrupts::catch, Ok)?;
    let shutdown = Shutdown::new();
    // From here on, because the start may wait for disk space. It ends with this function.
    let mut parent_watch = JoinSet::new();
    if let Some(member) = &mut member {
        parent_watch.spawn(member.mourn(shutdown.clone()));
    }
    let Some(broker) = interrupts
        .start(&shutdown, context.broker_of_service())
        .await
    else {
        return Ok(0);
    };
    let broker = broker?;
    // Before the worker exists: a worker that cannot serve has not started.
    let serving = match &args.serve {
        Some(path) => Some(ServedBroker::start(path, Arc::clone(&broker)).await?),
        None => None,
    };
    let mut watched = Instrumented::start(&args.metrics, "worker").await?;
    let url = watched.url();
    watched.show(worker_page);
    let broker = watched.observed(broker);
    let options = options(context, args)?;
    let options = match &member {
        // A process of a group has hosts if its file says so.
        Some(_) if args.hosts.hosts.is_none() => options,
        _ => {
            let plugins = Arc::clone(&options.plugins);
            options.hosting(hosts(args, &routines_of_this_program()?, &plugins).await?)
        }
    };
    let options = if let Some(member) = &member {
        member.bind(options)
    } else {
        options
    };
    let Some(worker) = interrupts
        .start(&shutdown, Worker::register(broker, options))
        .await
    else {
        if let Some(serving) = serving {
            serving.stop().await;
        }
        return Ok(0);
    };
    let worker = worker?;
    let tid = worker.tid();
    match &listener {
        Listener::Starter => announce(context, tid, args.serve.as_deref(), url.as_deref())?,
        Listener::Spawner | Listener::Reader(_) => listener.say(&tid.to_string()),
    }
    let mut begun = worker.attempts_started();
    let mut tells = true;
    let mut working = Box::pin(worker.run(shutdown.clone()));
    let ended = loop {
        tokio::select! {
            ended = &mut working => break ended,
            Ok(()) = begun.changed(), if tells || member.is_some() => {
                if std::mem::take(&mut tells) {
                    listener.say("begun");
                }
                if let Some(member) = &member {
                    member.begun(*begun.borrow_and_update());
                }
            }
            () = if_any(member.as_mut().map(GroupProcess::turn)) => {}
            () = interrupts.next() => {
                context.note("stopping: what runs may end; once more to give it back, and again to kill it");
                shutdown.request();
            }
        }
    };
    if let (Some(member), Ok(ended)) = (&member, &ended) {
        member.begun(ended.tasks);
    }
    watched.close().await;
    // Last: tasks may call the broker until their end.
    if let Some(serving) = serving {
        serving.stop().await;
    }
    if let Some(member) = &member
        && let Err(error) = member.shutdown().await
    {
        output::eprint(&error.to_string());
    }
    let ended = match ended {
        // The exit code tells the starter of a one-shot worker; the task is reclaimed.
        Err(error) if args.takes_one_task() => {
            Failure::from(error).print(false);
            return Ok(UNCAUGHT);
        }
        ended => ended?,
    };
    let why = match ended.reason {
        WorkerEndReason::Idle => "nothing was left to do",
        WorkerEndReason::Stopped => "it was told to stop",
        WorkerEndReason::Aged => "it was old enough",
        WorkerEndReason::LeaseLost => "its lease was lost, and with that its task",
        _ => "its task is over",
    };
    context.note(format!(
        "worker {tid} ran {} and left: {why}",
        crate::format::count(ended.tasks, "task")
    ));
    Ok(match &member {
        _ if ended.reason == WorkerEndReason::LeaseLost => UNCAUGHT,
        Some(member) => member.exit_code(&ended),
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
            "handler '{name}' will run nothing: it provides {provides}, and the worker does not offer all of it"
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
        in_cgroup: context.is_warm(),
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
            Err(Failure::Usage("this program was built without 'docker', and runs no tasks in containers".into()))
        }
        None if args.min_isolation == Some(Isolation::Docker) => Err(Failure::Usage(
            "--min-isolation docker runs every task in a container: name an image for them with --task-image".into(),
        )),
        _ => Ok(image),
    }
}
