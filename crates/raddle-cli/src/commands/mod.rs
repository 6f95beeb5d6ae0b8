//! One file per command. Each calls the libraries and prints the result. `detach.rs` starts
//! commands in the background.

mod batch;
#[cfg(feature = "tls")]
mod cert;
mod companion;
mod completions;
mod control;
mod delete;
mod detach;
mod doctor;
mod each;
mod failures;
mod group;
mod hosts;
mod inspect;
mod list;
mod logs;
mod manager;
mod metrics;
mod operation;
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
mod task_explain;
mod tree;
mod up;
mod wait;
mod web;
mod workers;

use raddle_model::ControlCommand;

pub(crate) use self::detach::is_background;

#[cfg(feature = "pool")]
use crate::args::PoolCommand;
use crate::{
    args::{
        Cli, Command, Global, LogArgs, ManagerCommand, MetricsCommand, PythonCommand,
        ScheduleCommand, SpawnerCommand, TaskCommand, WorkerCommand,
    },
    context::Context,
    error::{OrFail, Outcome, RADDLE},
    logging, panic, python,
};

/// The default log level of services.
const LEVEL: &str = "warn";

/// Runs the command and returns the exit code.
pub(crate) fn execute(cli: Cli) -> Outcome {
    let Cli {
        global,
        mut command,
    } = cli;
    if let Command::Worker(WorkerCommand::Start(args)) = command {
        command = Command::Worker(WorkerCommand::Start(Box::new(start::resolve_args(*args)?)));
    }
    let service = service_log(&command);
    let level = match &command {
        // Errors such as a full disk can delay the end of a task.
        Command::Run(_) => Some("error"),
        _ => service.map(|_| LEVEL),
    };
    logging::start(&global, level, service.unwrap_or_default().log_format);
    panic::exit_on_panic(match &command {
        Command::Worker(WorkerCommand::Start(args)) if args.takes_one_task() => {
            start::WORKER_FAILED
        }
        _ => RADDLE,
    });
    raddle_runner::survive_file_limit();
    if detach::is_background() {
        // Fails only for a session leader, which needs no new session.
        let _ = raddle_runner::setsid_self();
    }
    raddle_runner::check_descriptors().or_raddle_at("cannot start")?;
    // One thread is enough: blocking work runs on threads of the libraries.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .or_raddle_at("cannot start")?;
    runtime.block_on(Box::pin(perform(&global, command)))
}

/// The log of a command that runs until it is stopped. A command that starts a worker in the
/// background is no service; the worker is.
fn service_log(command: &Command) -> Option<LogArgs> {
    let is_background = detach::is_background();
    Some(match command {
        Command::Worker(WorkerCommand::Start(args)) if args.no_detach || is_background => args.log,
        Command::Worker(WorkerCommand::Spawn(_)) if is_background => LogArgs::default(),
        Command::Manager(ManagerCommand::Start(args)) if is_background => args.log,
        Command::Spawner(SpawnerCommand::Run(args)) => args.log,
        Command::Manager(ManagerCommand::Serve(args)) => args.log,
        Command::Schedule(ScheduleCommand::Run(args)) => args.log,
        Command::Up(args) if !args.detach || is_background => args.log,
        Command::Metrics(MetricsCommand::Serve(args)) => args.log,
        Command::Web(args) if args.command.is_none() && (!args.serve.detach || is_background) => {
            args.serve.log
        }
        Command::Companion { .. } => LogArgs::default(),
        #[cfg(feature = "pool")]
        Command::Pool(PoolCommand::Serve(args)) => args.log,
        _ => return None,
    })
}

async fn perform(global: &Global, command: Command) -> Outcome {
    // Only commands that need no other process can use a broker in memory.
    let context = || Context::new(global);
    let shared = || Context::shared(global);
    match command {
        Command::Run(args) => run::run(&context()?, &args).await,
        Command::Submit(args) => submit::submit(&shared()?, &args).await,
        Command::Result(args) => result::result(&shared()?, &args).await,
        Command::Logs(args) => logs::logs(&shared()?, &args).await,
        Command::Status { watch } => status::status(&shared()?, watch).await,
        Command::Wait(args) => wait::wait(&shared()?, &args).await,
        Command::Tid { tid } => inspect::tid(&shared()?, tid).await,
        Command::Task(command) => task(&shared()?, command).await,
        Command::Failures(args) => failures::failures(&shared()?, &args).await,
        Command::Batch(command) => batch::execute(&shared()?, command).await,
        Command::Queue(command) => queue::queue(&shared()?, command).await,
        Command::Operation(command) => operation::operation(&shared()?, command).await,
        Command::Schedule(command) => schedule::schedule(&shared()?, command).await,
        Command::Worker(WorkerCommand::Start(args)) => start::start(&context()?, &args).await,
        Command::Worker(WorkerCommand::List) => workers::list(&shared()?).await,
        Command::Worker(WorkerCommand::Stop(args)) => stop::stop(&shared()?, &args).await,
        Command::Worker(WorkerCommand::Spawn(args)) => {
            manager::spawn(&shared()?, &args, global).await
        }
        Command::Manager(ManagerCommand::Start(args)) => {
            manager::start(&shared()?, &args, global).await
        }
        Command::Manager(ManagerCommand::Serve(args)) => {
            manager::serve(&shared()?, &args, global).await
        }
        Command::Manager(ManagerCommand::Stop(args)) => manager::stop(&shared()?, &args).await,
        Command::Manager(ManagerCommand::List) => manager::list(&shared()?).await,
        Command::Manager(ManagerCommand::Status { which }) => {
            manager::status(&shared()?, which.as_deref()).await
        }
        Command::Metrics(MetricsCommand::Serve(args)) => metrics::serve(&shared()?, &args).await,
        Command::Web(args) => web::web(&shared()?, *args).await,
        Command::RequeueOrphans => orphans::requeue(&shared()?).await,
        Command::Doctor { file } => doctor::doctor(&context()?, file.as_deref()).await,
        Command::Group(command) => group::group(&shared()?, command).await,
        Command::Up(args) => up::up(global, &args).await,
        Command::Down(args) => up::down(global, &args).await,
        Command::Spawner(SpawnerCommand::Run(args)) => spawner::run(global, &args).await,
        #[cfg(feature = "pool")]
        Command::Pool(command) => pool::pool(global, &command).await,
        #[cfg(feature = "tls")]
        Command::Cert(command) => cert::cert(global, &command),
        Command::Container => unreachable!("`args::parse` replaces it by a worker or a spawner"),
        Command::Companion { fd, listen } => companion::companion(global, fd, listen).await,
        Command::Python(PythonCommand::Check { app }) => python::check(global, &app),
        Command::Completions { shell } => completions::completions(shell, global.json),
    }
}

async fn task(context: &Context, command: TaskCommand) -> Outcome {
    match command {
        TaskCommand::List(args) => list::list(context, args).await,
        TaskCommand::Status { tid } => inspect::status(context, tid).await,
        TaskCommand::Stop(words) => control::control(context, &words, ControlCommand::Stop).await,
        TaskCommand::Kill(words) => control::control(context, &words, ControlCommand::Kill).await,
        TaskCommand::Pause(words) => control::control(context, &words, ControlCommand::Pause).await,
        TaskCommand::Resume(words) => {
            control::control(context, &words, ControlCommand::Resume).await
        }
        TaskCommand::Ping(words) => control::control(context, &words, ControlCommand::Ping).await,
        TaskCommand::Retry(args) => retry::retry(context, &args).await,
        TaskCommand::Delete(args) => delete::delete(context, &args).await,
        TaskCommand::Clean(args) => delete::clean(context, &args).await,
        TaskCommand::Recover {
            tid,
            timeout,
            force,
        } => recover::recover(context, tid, timeout.0, force).await,
        TaskCommand::Tree { tid } => tree::tree(context, tid).await,
        TaskCommand::Explain { tid } => task_explain::explain(context, tid).await,
    }
}
