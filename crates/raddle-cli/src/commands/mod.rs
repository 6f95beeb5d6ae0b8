//! A file for each command, with a folder where that has parts. Each asks the libraries and shows what they say. `detach.rs` is what those share that
//! can start in the background.

#[cfg(feature = "tls")]
mod cert;
mod completions;
mod control;
mod detach;
mod doctor;
mod explain;
mod group;
mod inspect;
mod list;
mod logs;
mod manager;
mod metrics;
mod orphans;
#[cfg(feature = "pool")]
mod pool;
mod queue;
mod recover;
mod result;
mod retry;
mod run;
mod schedule;
mod spawner;
mod start;
mod status;
mod stop;
mod submit;
mod tree;
mod up;
mod wait;
mod workers;

use raddle_broker::Url;
use raddle_core::Word;

#[cfg(feature = "pool")]
use crate::args::PoolCommand;
use crate::{
    args::{
        Cli, Command, Intake, LogArgs, LogFormat, ManagerCommand, MetricsCommand, ScheduleCommand, SpawnerCommand,
        TaskCommand, WorkerCommand,
    },
    context::Context,
    error::{Failure, Outcome},
    logging, panic,
};

/// What those log that go on for long, unless something else is asked for.
const LEVEL: &str = "warn";

/// Does what was asked for; returns the exit code.
pub(crate) fn execute(cli: Cli) -> Outcome {
    let Cli { global, command } = cli;
    let (stays, log) = match &command {
        Command::Worker(WorkerCommand::Start(args)) => (args.no_detach, args.log),
        Command::Spawner(SpawnerCommand::Run(args)) => (true, args.log),
        Command::Manager(ManagerCommand::Serve(args)) => (true, args.log),
        Command::Schedule(ScheduleCommand::Run(args)) => (true, args.log),
        Command::Up(args) => (true, args.log),
        Command::Metrics(MetricsCommand::Serve(args)) => (true, args.log),
        #[cfg(feature = "pool")]
        Command::Pool(PoolCommand::Serve(args)) => (true, args.log),
        _ => (false, LogArgs::default()),
    };
    // Who starts a worker in the background speaks to people; the worker does not.
    let format = if stays { log.log_format } else { LogFormat::Text };
    let level = match &command {
        _ if stays => Some(LEVEL),
        // A full disk, for one, keeps a task from its end.
        Command::Run(_) => Some("error"),
        _ => None,
    };
    logging::start(&global, level, format);
    if let Command::Completions { shell } = command {
        return completions::completions(shell, global.json);
    }
    if let Command::Spawner(SpawnerCommand::Run(args)) = &command {
        return spawner::run(&global, args);
    }
    if let Command::Manager(ManagerCommand::Serve(args)) = &command {
        return manager::serve(&global, args);
    }
    if let Command::Up(args) = &command {
        return up::up(&global, args);
    }
    // Pools need no broker, so that none is looked for.
    #[cfg(feature = "pool")]
    if let Command::Pool(command) = &command {
        return block_on(pool::pool(&global, command));
    }
    // Nor do certificates.
    #[cfg(feature = "tls")]
    if let Command::Cert(command) = &command {
        return cert::cert(&global, command);
    }
    let context = Context::new(&global)?;
    if context.project.url == Url::Memory && !is_self_contained(&command) {
        return Err(Failure::memory());
    }
    if let Command::Worker(WorkerCommand::Start(args)) = &command
        && !args.no_detach
    {
        return start::detached(&context, args, &global);
    }
    if let Command::Manager(ManagerCommand::Start(args)) = &command {
        return manager::start(&context, args, &global);
    }
    if let Command::Worker(WorkerCommand::Spawn(args)) = &command {
        return manager::spawn(&context, args, &global);
    }
    match command {
        Command::Worker(WorkerCommand::Start(args)) if args.intake() == Ok(Intake::Once) => {
            start::or_uncaught(|| block_on(start::foreground(&context, &args)))
        }
        command => block_on(perform(&context, command)),
    }
}

/// One thread: everything that blocks has threads of its own in the libraries.
fn block_on(deed: impl Future<Output = Outcome>) -> Outcome {
    panic::ends_the_process();
    raddle_exec::survive_file_limit();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::Raddle(format!("cannot start: {e}")))?;
    runtime.block_on(Box::pin(deed))
}

/// Whether a command neither looks for what another process has made nor leaves anything to one.
fn is_self_contained(command: &Command) -> bool {
    match command {
        Command::Run(args) => !args.no_wait,
        Command::Doctor(_) | Command::Completions { .. } => true,
        // Others can reach what it serves. One in the foreground that serves nobody is for trying things out.
        Command::Worker(WorkerCommand::Start(args)) => args.serve.is_some() || args.no_detach,
        _ => false,
    }
}

async fn perform(context: &Context, command: Command) -> Outcome {
    match command {
        Command::Run(args) => run::run(context, &args).await,
        Command::Submit(args) => submit::submit(context, &args).await,
        Command::Result(args) => result::result(context, &args).await,
        Command::Logs(args) => logs::logs(context, &args).await,
        Command::Status(args) => status::status(context, &args).await,
        Command::Wait(args) => wait::wait(context, &args).await,
        Command::Tid(args) => inspect::tid(context, args.tid).await,
        Command::Task(command) => task(context, command).await,
        Command::Queue(command) => queue::queue(context, command).await,
        Command::Schedule(command) => schedule::schedule(context, command).await,
        Command::Worker(WorkerCommand::Start(args)) => start::foreground(context, &args).await,
        Command::Worker(WorkerCommand::List) => workers::list(context).await,
        Command::Worker(WorkerCommand::Stop(args)) => stop::stop(context, &args).await,
        Command::Manager(ManagerCommand::Stop(args)) => manager::stop(context, &args).await,
        Command::Manager(ManagerCommand::List) => manager::list(context).await,
        Command::Manager(ManagerCommand::Status { which }) => manager::status(context, which.as_deref()).await,
        Command::Manager(_) | Command::Worker(WorkerCommand::Spawn(_)) => {
            unreachable!("done while there is one thread")
        }
        Command::Metrics(MetricsCommand::Serve(args)) => metrics::serve(context, &args).await,
        Command::RequeueOrphans => orphans::requeue(context).await,
        Command::Doctor(args) => doctor::doctor(context, &args).await,
        #[cfg(feature = "pool")]
        Command::Pool(_) => unreachable!("done before a broker is looked for"),
        #[cfg(feature = "tls")]
        Command::Cert(_) => unreachable!("done before a broker is looked for"),
        Command::Group(command) => group::group(context, command).await,
        Command::Up(_) | Command::Spawner(_) | Command::Completions { .. } => {
            unreachable!("done before a broker is looked for")
        }
    }
}

async fn task(context: &Context, command: TaskCommand) -> Outcome {
    match command {
        TaskCommand::List(args) => list::list(context, args).await,
        TaskCommand::Status { tid } => inspect::status(context, tid).await,
        TaskCommand::Stop(words) => control::control(context, &words, Word::Stop).await,
        TaskCommand::Kill(words) => control::control(context, &words, Word::Kill).await,
        TaskCommand::Pause(words) => control::control(context, &words, Word::Pause).await,
        TaskCommand::Resume(words) => control::control(context, &words, Word::Resume).await,
        TaskCommand::Ping(words) => control::control(context, &words, Word::Ping).await,
        TaskCommand::Retry(args) => retry::retry(context, &args).await,
        TaskCommand::Recover { tid, timeout } => recover::recover(context, tid, timeout.0).await,
        TaskCommand::Tree { tid } => tree::tree(context, tid).await,
        TaskCommand::Explain { tid } => explain::explain(context, tid).await,
    }
}
