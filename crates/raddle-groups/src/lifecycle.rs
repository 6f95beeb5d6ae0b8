//! A manager's life: registered, at work, gone.

use std::{collections::BTreeMap, ffi::OsString, path::Path, sync::Arc, time::Duration};

use raddle_broker::Broker;
use raddle_broker_connect::{BrokerUrl, connect};
use raddle_model::{
    CapSet, Tid, WorkerEntry,
    worker::{WorkerInfo, kind},
};
use raddle_supervisor::GroupCounts;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::JoinSet,
};

use super::{
    GroupConfigError, Process,
    backlog::log_outdated,
    check::{check, check_streams},
    desired_state::{check_slugs, declare},
    invocation::is_shared,
    offers::unoffered_routine,
    service::GroupService,
    trigger,
};
use raddle_client::schedule;
use raddle_spawner::ProcessTemplate;
use raddle_worker::{
    Shutdown,
    registration::{LEASE, Registration, deregister, is_staying},
    scheduler, wait_for_space,
    worker::{is_local, this_host},
};

/// This very program.
const PROGRAM: &str = "/proc/self/exe";

/// How a manager behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its name, for lists and titles.
    pub name: String,
    /// The processes that it keeps.
    pub processes: Vec<Process>,
    /// The file that has them, or the program.
    pub file: Option<String>,
    /// Where the tasks are kept.
    pub url: BrokerUrl,
    /// The program that they are, which understands `worker start`, what it is called, and what is in its environment.
    pub program: ProcessTemplate,
    /// Said after everything else.
    pub words: Vec<OsString>,
    /// How long others wait after its last sign of life before they take it for gone.
    pub lease: Duration,
    /// Whether each SIGTERM and SIGINT to this process is a request to stop.
    pub signals: bool,
}

/// A registered manager, not running yet.
pub struct Manager {
    broker: Arc<dyn Broker>,
    options: Options,
    line: Registration,
    shown: watch::Sender<GroupSnapshot>,
}

/// Makes a manager, piece by piece.
///
/// Its processes are this program again, so that it has to have `#[raddle::main]`.
#[derive(Clone, Debug)]
pub struct Builder {
    name: String,
    processes: Vec<Process>,
    url: Option<String>,
    signals: bool,
}

/// Looks at a manager from outside. Clones look at the same one.
#[derive(Clone, Debug)]
pub struct GroupHandle(watch::Receiver<GroupSnapshot>);

/// What there is at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupSnapshot {
    /// The processes of each group.
    pub groups: BTreeMap<String, GroupCounts>,
    /// How many were started since it began.
    pub started: u64,
    /// What it is doing, as in its title.
    pub status: &'static str,
    /// Whether every process that there is to be is ready.
    pub is_up: bool,
}

/// How a manager's life went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupEnd {
    /// How many processes it started.
    pub started: u64,
    /// How many of them ended in its stop only after a SIGKILL, to them or to what they ran.
    pub killed: u64,
}

/// Why there is no manager.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManagerError {
    /// Its groups cannot be run.
    #[error(transparent)]
    Mistake(#[from] GroupConfigError),
    /// The broker refused something, or is not there.
    #[error(transparent)]
    Broker(#[from] raddle_broker::Error),
    /// Nobody could be told of processes that are stopped.
    #[error("cannot listen for signals: {0}")]
    Signals(#[source] std::io::Error),
    /// What is not a broker's URL.
    #[error(transparent)]
    Url(#[from] raddle_broker_connect::ParseBrokerUrlError),
    /// Processes cannot share what is in the memory of one.
    #[error("mem:// is for one process, and groups are many: use sqlite:PATH or redis://…")]
    Memory,
    /// Another file has a worker of the same name, and a manager.
    #[error(
        "the slug '{slug}' is that of process.{process} in {file}, which the manager {manager} keeps: \
         give this one another slug, or stop that manager with 'raddle task stop {manager}'"
    )]
    SlugTaken {
        /// The worker.
        slug: String,
        /// The process that hosts it there.
        process: String,
        /// The other file.
        file: String,
        /// Its manager.
        manager: Tid,
    },
    /// Another manager of this name has some of its workers.
    #[error(
        "the manager {manager} of the name '{name}' keeps these groups: stop it with 'raddle down', or give this one another name with --name \
         to have as many processes again"
    )]
    Kept {
        /// The name of both.
        name: String,
        /// The other one.
        manager: Tid,
    },
    /// A trigger could not be stored.
    #[error("the trigger of '{slug}' cannot be stored: {source}")]
    Trigger {
        /// The worker.
        slug: String,
        /// Why not.
        source: schedule::Error,
    },
}

impl ManagerError {
    fn is_out_of_space(&self) -> bool {
        match self {
            Self::Broker(error)
            | Self::Trigger {
                source: schedule::Error::Broker(error),
                ..
            } => error.is_out_of_space(),
            _ => false,
        }
    }
}

impl Options {
    /// A manager of these processes, each of which is this program.
    pub fn new(url: BrokerUrl, processes: Vec<Process>) -> Self {
        let program = ProcessTemplate {
            program: PROGRAM.into(),
            args: vec!["raddle".into()],
            env: Vec::new(),
        };
        let (name, words) = (kind::GROUP.into(), Vec::new());
        Self {
            name,
            processes,
            file: None,
            url,
            program,
            words,
            lease: LEASE,
            signals: false,
        }
    }

    fn info(&self) -> WorkerInfo {
        let mut slugs = CapSet::new();
        for worker in self.processes.iter().flat_map(|process| &process.workers) {
            // Every slug is a tag.
            let _ = slugs.insert(&worker.slug);
        }
        WorkerInfo {
            capabilities: slugs,
            pid: std::process::id(),
            born: raddle_runner::process_start_time(std::process::id()),
            host: this_host(),
            place: raddle_runner::pid_scope().map(Into::into),
            ..WorkerInfo::new(&self.name, kind::GROUP)
        }
    }
}

impl Manager {
    /// Begins to describe one.
    pub fn builder() -> Builder {
        Builder {
            name: kind::GROUP.into(),
            processes: Vec::new(),
            url: None,
            signals: true,
        }
    }

    /// Enters a manager into the broker's registry. It is refused with [`ManagerError::Kept`] while another of its name has one of its workers.
    pub async fn register(broker: Arc<dyn Broker>, options: Options) -> Result<Self, ManagerError> {
        check(&options.processes)?;
        if !is_shared(&options.url) {
            return Err(ManagerError::Memory);
        }
        check_streams(&options.processes, &options.url)?;
        if options.program.program == Path::new(PROGRAM)
            && let Some(mistake) = unoffered_routine(&options.processes, &broker.workers().await?)
        {
            return Err(mistake.into());
        }
        check_alone(&*broker, &options, None).await?;
        wait_for_space(ManagerError::is_out_of_space, || {
            announce(&*broker, &options, None)
        })
        .await?;
        let line = Registration::register(&broker, options.info(), options.lease).await?;
        let confirm = || confirm(&*broker, &options, line.tid);
        if let Err(error) = wait_for_space(ManagerError::is_out_of_space, confirm).await {
            deregister(&broker, line.tid, Some(error.to_string())).await;
            return Err(error);
        }
        if let Err(error) = log_outdated(&*broker, &options.processes).await {
            tracing::warn!(%error, "what waits for its workers could not be looked at");
        }
        let shown = watch::Sender::new(GroupSnapshot::default());
        Ok(Self {
            broker,
            options,
            line,
            shown,
        })
    }

    /// The manager's own id.
    pub fn tid(&self) -> Tid {
        self.line.tid
    }

    /// A look at it, also while it runs.
    pub fn handle(&self) -> GroupHandle {
        GroupHandle(self.shown.subscribe())
    }

    /// Keeps its processes until it is asked to stop, by `shutdown`, or by a signal as [`Builder::signals`] says. Then they are stopped, in stages; each further request goes to the next.
    pub async fn run(self, shutdown: Shutdown) -> Result<GroupEnd, ManagerError> {
        let Self {
            broker,
            options,
            line,
            shown,
        } = self;
        let suspended = signal(SignalKind::child()).map_err(ManagerError::Signals)?;
        // It ends with this manager.
        let mut signals = JoinSet::new();
        if options.signals {
            signals.spawn(stop_on_signals(shutdown.clone()).map_err(ManagerError::Signals)?);
        }
        // It ends with this manager. Its processes fire nothing.
        let _scheduling = scheduler::RunningScheduler::start(Arc::clone(&broker));
        let mut service =
            GroupService::new(&broker, options.clone(), line, suspended, shown, &shutdown);
        let (mut failed, mut kept) = (None, None);
        let end = loop {
            match service.run().await {
                Ok(true) => break failed.map_or(Ok(()), Err),
                // Others may take it for gone. Its processes have leases of their own.
                Ok(false) => {
                    match Registration::register_again(
                        &broker,
                        &options.info(),
                        options.lease,
                        Duration::MAX,
                        &shutdown,
                    )
                    .await
                    {
                        Ok(Some(line)) => {
                            tracing::warn!(was = %service.tid(), now = %line.tid, "the lease was lost; registered anew");
                            service.line = line;
                            match confirm(&*broker, &options, service.tid()).await {
                                Ok(()) => {}
                                // It was taken for gone, and replaced.
                                Err(error @ ManagerError::Kept { .. }) => {
                                    tracing::error!(%error, "another manager has taken its place: it stops");
                                    kept = Some(error);
                                    service.give_up();
                                }
                                Err(error) => {
                                    tracing::error!(%error, "what its workers and triggers are cannot be said anew");
                                }
                            }
                        }
                        // It is to stop, and its processes with it.
                        Ok(None) => service.line.lost = false,
                        // A server that is away comes back, unless the URL says for how long that is believed.
                        Err(error @ raddle_broker::Error::Unreachable { .. })
                            if !gives_up(&options.url) =>
                        {
                            tracing::error!(%error, "the broker is away: it is tried again until it is there");
                        }
                        // Its processes may be more patient, and have something to finish: they are stopped in stages, as by anybody.
                        Err(error) => {
                            tracing::error!(%error, "it cannot register anew, and stops");
                            failed = Some(error);
                            service.give_up();
                        }
                    }
                }
                Err(error) => break Err(error),
            }
        };
        let (started, killed, tid) = (service.started(), service.killed(), service.tid());
        service.close().await;
        deregister(&broker, tid, end.as_ref().err().map(ToString::to_string)).await;
        end?;
        kept.map_or(Ok(GroupEnd { started, killed }), Err)
    }
}

/// Asks to stop with each SIGTERM and SIGINT, for ever.
fn stop_on_signals(shutdown: Shutdown) -> std::io::Result<impl Future<Output = ()>> {
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    Ok(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            shutdown.request();
        }
    })
}

/// Whether a URL says after how long a server that is away is taken for gone.
fn gives_up(url: &BrokerUrl) -> bool {
    url.secret()
        .is_some_and(|url| url.contains("give_up_after="))
}

/// Says what its workers and triggers are. `manager` is its id, if it is registered.
async fn announce(
    broker: &dyn Broker,
    options: &Options,
    manager: Option<Tid>,
) -> Result<(), ManagerError> {
    let Options {
        name,
        processes,
        file,
        ..
    } = options;
    // Before a trigger takes the place of another file's.
    check_slugs(broker, processes, file.as_deref(), manager).await?;
    trigger::declare(broker, name, processes).await?;
    declare(broker, processes, file.as_deref(), manager).await
}

/// Refuses a second manager of the same name for the same workers: there would be twice as many processes. Of those that register at the same time the
/// first stays: `manager` is its id, if it is registered.
async fn check_alone(
    broker: &dyn Broker,
    options: &Options,
    manager: Option<Tid>,
) -> Result<(), ManagerError> {
    let info = options.info();
    let is_itself = |entry: &WorkerEntry| entry.info.pid == info.pid && is_local(&entry.info);
    let keeps = |entry: &&WorkerEntry| {
        entry.info.kind == kind::GROUP
            && entry.info.name == info.name
            && entry
                .info
                .capabilities
                .iter()
                .any(|slug| info.capabilities.iter().any(|own| own == slug))
            && manager.is_none_or(|manager| entry.tid < manager)
            && !is_itself(entry)
            && is_staying(entry)
    };
    match broker.workers().await?.iter().find(keeps) {
        Some(other) => Err(ManagerError::Kept {
            name: info.name,
            manager: other.tid,
        }),
        None => Ok(()),
    }
}

/// Says so again, now that it is registered: who forgot them a moment ago has not seen that somebody has them.
async fn confirm(broker: &dyn Broker, options: &Options, manager: Tid) -> Result<(), ManagerError> {
    check_alone(broker, options, Some(manager)).await?;
    announce(broker, options, Some(manager)).await?;
    trigger::retire(broker, &options.name, &options.processes).await
}

impl Builder {
    /// Calls it so.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Keeps this process, too.
    pub fn process(mut self, process: Process) -> Self {
        self.processes.push(process);
        self
    }

    /// Keeps its tasks there.
    pub fn queue_url(mut self, url: impl Into<String>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// Whether each SIGTERM and SIGINT to this process is a request to stop, while the manager runs. They are, unless this says otherwise: for a program
    /// that sees to signals itself.
    pub fn signals(mut self, signals: bool) -> Self {
        self.signals = signals;
        self
    }

    /// Opens the broker, and enters the manager into its registry.
    pub async fn register(self) -> Result<Manager, ManagerError> {
        let url = self
            .url
            .or_else(|| std::env::var("QUEUE_URL").ok())
            .unwrap_or_default();
        let program = std::env::current_exe()
            .ok()
            .map(|path| path.display().to_string());
        let options = Options {
            name: self.name,
            file: program,
            signals: self.signals,
            ..Options::new(url.parse()?, self.processes)
        };
        check(&options.processes)?;
        if !is_shared(&options.url) {
            return Err(ManagerError::Memory);
        }
        Manager::register(connect(&options.url).await?, options).await
    }
}

impl GroupHandle {
    /// What there is now.
    pub fn snapshot(&self) -> GroupSnapshot {
        self.0.borrow().clone()
    }

    /// Returns when something has changed, or the manager is gone, with `false`.
    pub async fn changed(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }

    /// Whether every process that there is to be is ready.
    pub fn is_up(&self) -> bool {
        self.0.borrow().is_up
    }
}
