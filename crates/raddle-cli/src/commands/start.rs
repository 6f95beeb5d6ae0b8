//! `raddle worker start`: in the foreground, or as a process of its own in the background.

use std::{
    ffi::OsString,
    fs::OpenOptions,
    io::Write,
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
    sync::Arc,
};

use raddle_broker::{Url, agent::Serving};
use raddle_core::{manager::Charter, spec::Isolation};
use raddle_fabric::{
    Options, Shutdown, Worker,
    group::Member,
    handler::Plugins,
    routine::Routines,
    spawner::{SPAWNER_VARIABLE, WARM_VARIABLE, worker_words},
    worker::EndReason,
};

use super::detach::{Invocation, announce, detach, leave_session, tell_of};
use crate::{
    args::{Global, Intake, StartArgs},
    context::Context,
    error::{Failure, Outcome},
    interrupt::Interrupts,
    metrics::{Watched, worker_page},
    output,
};

/// What the manager may spawn whose worker this is, as JSON.
const CHARTER: &str = "RADDLE_INTERNAL_CHARTER";
/// Where tasks look for their broker.
pub(super) const QUEUE_URL: &str = "QUEUE_URL";
/// The exit code of a worker for one task that failed itself: its task waits to be taken back.
const UNCAUGHT: u8 = 1;

/// Does the deed of a worker for one task. A panic is its failure, and leaves by the code for that; what it has is taken back from it.
pub(super) fn or_uncaught(deed: impl FnOnce() -> Outcome) -> Outcome {
    // Nothing that could have been left half-done is looked at afterwards: the process ends.
    panic::catch_unwind(AssertUnwindSafe(deed)).unwrap_or(Ok(UNCAUGHT))
}

/// Starts a worker in the background and prints its id.
pub(super) fn detached(context: &Context, args: &StartArgs, global: &Global) -> Outcome {
    let (tid, pid) = detach(invocation(context, args, global)?, "worker")?;
    tell_of(context, tid, pid, &serve_at(args)?)
}

pub(super) fn invocation(context: &Context, args: &StartArgs, global: &Global) -> Outcome<Invocation> {
    let (mut words, mut env) = (worker_words(&args.name, &args.queues).map(OsString::from).to_vec(), Vec::new());
    let mut say = |more: &[&str]| words.extend(more.iter().map(OsString::from));
    let (words_of_url, secret) = url_words(context);
    words_of_url.iter().for_each(|word| say(&[word]));
    env.extend(secret.map(|url| (QUEUE_URL.into(), url.into())));
    if let Some(charter) = &args.charter {
        let text = serde_json::to_string(&**charter).map_err(|e| Failure::Raddle(format!("a registry: {e}")))?;
        env.push((CHARTER.into(), text.into()));
    }
    if args.once {
        say(&["--once"]);
    }
    if let Some(max_uptime) = args.max_uptime {
        say(&["--max-uptime", &max_uptime.0.as_secs_f64().to_string()]);
    }
    if let Some(concurrency) = args.concurrency {
        say(&["--concurrency", &concurrency.to_string()]);
    }
    if let Some(caps) = &args.caps {
        say(&["--caps", &caps.to_string()]);
    }
    if let Some(idle_exit) = args.idle_exit {
        say(&["--idle-exit", &idle_exit.0.as_secs_f64().to_string()]);
    }
    if let Some(least) = args.min_isolation {
        say(&["--min-isolation", least.as_str()]);
    }
    if let Some(image) = &args.task_image {
        say(&["--task-image", image]);
    }
    if let Some(plugins) = &args.plugins {
        say(&["--plugins", &plugins.join(",")]);
    }
    args.metrics.words().iter().for_each(|word| say(&[word]));
    say(&["--log-format", args.log.log_format.as_str()]);
    if global.quiet {
        say(&["--quiet"]);
    }
    (0..global.verbose).for_each(|_| say(&["--verbose"]));
    if let Some(path) = serve_at(args)? {
        words.extend(["--serve".into(), path.into()]);
    }
    if let Some(folder) = &args.handlers {
        words.extend(["--handlers".into(), folder.into()]);
    }
    Ok(Invocation { args: words, env })
}

/// How this program is told where the work is kept: by words, or by a variable. A password must not stand among the arguments, where everybody on the
/// machine can read it.
pub(super) fn url_words(context: &Context) -> (Vec<String>, Option<String>) {
    match context.project.url.secret() {
        Some(url) => (Vec::new(), Some(url.to_owned())),
        None => (vec!["--queue-url".into(), context.project.url.to_string()], None),
    }
}

/// Whom a worker tells its id, and that it has its task.
enum Listener {
    /// People, or whoever has started it in the background.
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

    /// Says a line to a spawner. One that is gone need not be told.
    fn say(&self, line: &str) {
        match self {
            Self::Starter => {}
            Self::Spawner => drop(output::line(line)),
            Self::Reader(path) => {
                // The file is there before the worker is. Where it is not, nobody reads it.
                let file = OpenOptions::new().append(true).open(path);
                if let Err(error) = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes())) {
                    output::complain(&format!("what this worker does cannot be noted in {}: {error}", path.display()));
                }
            }
        }
    }
}

/// Works in this process until it is told to stop.
pub(super) async fn foreground(context: &Context, args: &StartArgs) -> Outcome {
    let listener = Listener::of_environment();
    let is_once = args.intake().map_err(Failure::Usage)? == Intake::Once;
    let is_detached = leave_session();
    let mut member = Member::of_environment().map_err(|error| Failure::Raddle(error.to_string()))?;
    let mut early = None;
    if let Some(member) = &member {
        let interrupts = early.insert(Interrupts::catch()?);
        let started = member.startup(interrupts.next()).await;
        if !started.map_err(|error| Failure::Raddle(error.to_string()))? {
            // Nothing has begun that would have to end.
            return Ok(0);
        }
    }
    let broker = context.broker_of_worker().await?;
    let mut interrupts = early.map_or_else(Interrupts::catch, Ok)?;
    let serve = serve_at(args)?;
    // Before the worker is there: one that cannot serve as it should has not started.
    let serving = match &serve {
        Some(path) => Some(Serving::start(path, Arc::clone(&broker)).await?),
        None => None,
    };
    let mut watched = Watched::start(&args.metrics, "worker").await?;
    let url = watched.url();
    watched.show(worker_page);
    let broker = watched.observed(broker);
    let options = options(context, args, serve.as_deref())?;
    let options = if let Some(member) = &member { member.bind(options) } else { options };
    let worker = Worker::register(broker, options).await?;
    let tid = worker.tid();
    match &listener {
        Listener::Starter => announce(context, tid, is_detached, &serve, url.as_deref())?,
        Listener::Spawner | Listener::Reader(_) => listener.say(&tid.to_string()),
    }
    let shutdown = Shutdown::new();
    let mut begun = worker.begun();
    let mut tells = true;
    let mut mourning = member.as_mut().map(|member| Box::pin(member.mourn(shutdown.clone())));
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
            () = turning(&mut member) => {}
            () = lasting(&mut mourning) => {}
            () = interrupts.next() => {
                context.note("stopping: what runs may end; once more to give it back, and again to kill it");
                shutdown.request();
            }
        }
    };
    watched.close().await;
    // Last of all: what the worker ran may have asked it until its end.
    if let Some(serving) = serving {
        serving.stop().await;
    }
    if let Some(member) = &member
        && let Err(error) = member.shutdown().await
    {
        output::complain(&error.to_string());
    }
    let ended = match ended {
        // Whoever started it for one task is told by its code alone; the task is taken back from it.
        Err(error) if is_once => {
            Failure::from(error).print();
            return Ok(UNCAUGHT);
        }
        ended => ended?,
    };
    let why = match ended.reason {
        EndReason::Idle => "nothing was left to do",
        EndReason::Stopped => "it was told to stop",
        EndReason::Aged => "it was old enough",
        EndReason::LeaseLost => "its lease was lost, and with that its task",
        _ => "its task is over",
    };
    context.note(format!("worker {tid} ran {} and left: {why}", crate::format::count(ended.tasks, "task")));
    Ok(if ended.reason == EndReason::LeaseLost { UNCAUGHT } else { 0 })
}

/// Marks that this loop turns, where somebody looks for that.
async fn turning(member: &mut Option<Member>) {
    match member {
        Some(member) => member.turn().await,
        None => std::future::pending().await,
    }
}

/// Goes on with what there is, and else waits for ever.
async fn lasting(deed: &mut Option<impl Future<Output = ()> + Unpin>) {
    match deed {
        Some(deed) => deed.await,
        None => std::future::pending().await,
    }
}

/// Where to serve, wherever this process or another goes later.
fn serve_at(args: &StartArgs) -> Outcome<Option<PathBuf>> {
    let absolute = |path: &PathBuf| {
        std::path::absolute(path).map_err(|e| Failure::Usage(format!("cannot serve at '{}': {e}", path.display())))
    };
    args.serve.as_ref().map(absolute).transpose()
}

pub(super) fn options(context: &Context, args: &StartArgs, serve: Option<&Path>) -> Outcome<Options> {
    let routines = Routines::of_this_program().map_err(|clash| Failure::Raddle(clash.to_string()))?;
    let plugins = Plugins::load(args.handlers.as_deref(), args.plugins.as_deref());
    let plugins = plugins.map_err(|error| Failure::Usage(error.to_string()))?;
    let caps = args.caps.clone().unwrap_or_default();
    for offer in plugins.unusable(&caps) {
        let (name, provides) = (&offer.name, &offer.provides);
        context.note(format!(
            "handler '{name}' will run nothing: it provides {provides}, and the worker does not offer all of it"
        ));
    }
    let kind = match args.intake().map_err(Failure::Usage)? {
        Intake::Once => Options::one_shot(),
        Intake::AtATime(concurrency) => Options { concurrency, ..Options::resident() },
        Intake::ByCores => Options::resident(),
    };
    let url = serve.map(|path| (QUEUE_URL.to_owned(), Url::Unix(path.into()).to_string()));
    let options = Options {
        name: args.name.clone(),
        caps,
        queues: args.queues.clone(),
        idle_exit: args.idle_exit.map(|idle| idle.0),
        max_uptime: args.max_uptime.map(|uptime| uptime.0),
        env: url.into_iter().collect(),
        min_isolation: args.min_isolation.unwrap_or_default(),
        task_image: task_image(args)?,
        grouped: context.is_warm(),
        parent: std::env::var(SPAWNER_VARIABLE).ok().and_then(|spawner| spawner.parse().ok()),
        ..kind
    };
    let options = options.offering(&routines, plugins);
    Ok(match charter(args)? {
        Some(charter) => options.chartered(charter),
        None => options,
    })
}

/// What its manager may spawn, if it is the worker of one.
fn charter(args: &StartArgs) -> Outcome<Option<Arc<Charter>>> {
    if args.charter.is_some() {
        return Ok(args.charter.clone());
    }
    let Ok(text) = std::env::var(CHARTER) else { return Ok(None) };
    let read = serde_json::from_str(&text);
    read.map(|charter| Some(Arc::new(charter))).map_err(|e| Failure::Usage(format!("{CHARTER} cannot be read: {e}")))
}

/// What tasks are run in, if there is something for it.
fn task_image(args: &StartArgs) -> Outcome<Option<String>> {
    let image = args.task_image.clone().filter(|image| !image.trim().is_empty());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_failure_with_a_code_of_its_own() {
        assert_eq!(or_uncaught(|| panic!("out of order")).ok(), Some(1));
        assert_eq!(or_uncaught(|| Ok(0)).ok(), Some(0));
        assert!(or_uncaught(|| Err(Failure::Usage("so".into()))).is_err());
    }
}
