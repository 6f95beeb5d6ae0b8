//! The lifecycle of a manager: registration, run and end; its builder and its handle.

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

/// Path of this program.
const PROGRAM: &str = "/proc/self/exe";

/// The configuration of a manager.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its name, for lists and titles.
    pub name: String,
    /// The processes that it keeps.
    pub processes: Vec<Process>,
    /// The file, or the program, that declares them.
    pub file: Option<String>,
    /// Where the tasks are kept.
    pub url: BrokerUrl,
    /// The program of its processes, with arguments and environment. It must understand `worker
    /// start`.
    pub program: ProcessTemplate,
    /// Further arguments, after all others.
    pub words: Vec<OsString>,
    /// After how long without a renewal its registration expires.
    pub lease: Duration,
    /// Whether each SIGTERM and SIGINT to this process is a request to stop.
    pub signals: bool,
}

/// A registered manager that does not run yet.
pub struct Manager {
    broker: Arc<dyn Broker>,
    options: Options,
    registration: Registration,
    snapshot_sender: watch::Sender<GroupSnapshot>,
}

/// Builds a manager.
///
/// Its processes run this program again, so the program must have `#[raddle::main]`.
#[derive(Clone, Debug)]
pub struct Builder {
    name: String,
    processes: Vec<Process>,
    url: Option<String>,
    signals: bool,
}

/// Observes a manager. Clones observe the same one.
#[derive(Clone, Debug)]
pub struct GroupHandle(watch::Receiver<GroupSnapshot>);

/// The processes of a manager at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupSnapshot {
    /// The processes of each group.
    pub groups: BTreeMap<String, GroupCounts>,
    /// How many processes it has started so far.
    pub started: u64,
    /// Its status, as in its title.
    pub status: &'static str,
    /// Whether all desired processes are ready.
    pub is_up: bool,
}

/// The result of a manager's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupEnd {
    /// How many processes it started.
    pub started: u64,
    /// How many processes, during its stop, needed a SIGKILL to them or to their tasks.
    pub killed: u64,
}

/// Reports why a manager cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManagerError {
    /// Its groups cannot be run.
    #[error(transparent)]
    Mistake(#[from] GroupConfigError),
    /// The broker failed or cannot be reached.
    #[error(transparent)]
    Broker(#[from] raddle_broker::Error),
    /// The SIGCHLD or stop-signal handlers cannot be installed.
    #[error("cannot listen for signals: {0}")]
    Signals(#[source] std::io::Error),
    /// The broker's URL is invalid.
    #[error(transparent)]
    Url(#[from] raddle_broker_connect::ParseBrokerUrlError),
    /// The broker `mem://` exists in one process only.
    #[error("mem:// is for one process, and a group has several: use sqlite:PATH or redis://…")]
    Memory,
    /// A manager of another file keeps a worker with the same slug.
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
    /// Another manager of this name keeps some of the same workers.
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
        /// The cause.
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
    /// The options of a manager whose processes run this program.
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
            // Cannot fail: every slug is a valid tag.
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
    /// Creates a builder.
    pub fn builder() -> Builder {
        Builder {
            name: kind::GROUP.into(),
            processes: Vec::new(),
            url: None,
            signals: true,
        }
    }

    /// Adds a manager to the broker's registry. Fails with [`ManagerError::Kept`] while another
    /// manager of its name keeps one of its workers.
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
            declare_all(&*broker, &options, None)
        })
        .await?;
        let registration = Registration::register(&broker, options.info(), options.lease).await?;
        let confirm = || confirm(&*broker, &options, registration.tid);
        if let Err(error) = wait_for_space(ManagerError::is_out_of_space, confirm).await {
            deregister(&broker, registration.tid, Some(error.to_string())).await;
            return Err(error);
        }
        if let Err(error) = log_outdated(&*broker, &options.processes).await {
            tracing::warn!(%error, "the tasks that wait for its workers cannot be inspected");
        }
        let snapshot_sender = watch::Sender::new(GroupSnapshot::default());
        Ok(Self {
            broker,
            options,
            registration,
            snapshot_sender,
        })
    }

    /// The task id of the manager.
    pub fn tid(&self) -> Tid {
        self.registration.tid
    }

    /// A handle that observes the manager, also while it runs.
    pub fn handle(&self) -> GroupHandle {
        GroupHandle(self.snapshot_sender.subscribe())
    }

    /// Keeps its processes alive until `shutdown`, or a signal as [`Builder::signals`] says, asks
    /// it to stop. Then it stops them in stages; each further request starts the next stage.
    pub async fn run(self, shutdown: Shutdown) -> Result<GroupEnd, ManagerError> {
        let Self {
            broker,
            options,
            registration,
            snapshot_sender,
        } = self;
        let sigchld = signal(SignalKind::child()).map_err(ManagerError::Signals)?;
        // Aborted when this function returns.
        let mut signals = JoinSet::new();
        if options.signals {
            signals.spawn(stop_on_signals(shutdown.clone()).map_err(ManagerError::Signals)?);
        }
        // Ends with this manager. Its processes do not fire schedules.
        let _scheduling = scheduler::RunningScheduler::start(Arc::clone(&broker));
        let mut service = GroupService::new(
            &broker,
            options.clone(),
            registration,
            sigchld,
            snapshot_sender,
            &shutdown,
        );
        let (mut failed, mut kept) = (None, None);
        let end = loop {
            match service.run().await {
                Ok(true) => break failed.map_or(Ok(()), Err),
                // The lease is lost: others may count this manager as gone. Its processes have
                // leases of their own.
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
                        Ok(Some(registration)) => {
                            tracing::warn!(was = %service.tid(), now = %registration.tid, "the lease was lost; registered again");
                            service.registration = registration;
                            match confirm(&*broker, &options, service.tid()).await {
                                Ok(()) => {}
                                // Its registration expired, and another manager has replaced it.
                                Err(error @ ManagerError::Kept { .. }) => {
                                    tracing::error!(%error, "another manager has replaced this one: stopping");
                                    kept = Some(error);
                                    service.give_up();
                                }
                                Err(error) => {
                                    tracing::error!(%error, "its workers and triggers cannot be declared again");
                                }
                            }
                        }
                        // A stop was requested: `service` stops its processes without a lease.
                        Ok(None) => service.registration.lost = false,
                        // Keep trying: the server may come back. Only a URL with `give_up_after`
                        // limits the wait.
                        Err(error @ raddle_broker::Error::Unreachable { .. })
                            if !gives_up(&options.url) =>
                        {
                            tracing::error!(%error, "the broker is unreachable: retrying until it answers");
                        }
                        // Its processes may wait for the broker longer, and have tasks to finish,
                        // so they are stopped in stages as usual.
                        Err(error) => {
                            tracing::error!(%error, "cannot register again: stopping");
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

/// Requests a stop with each SIGTERM and SIGINT, for ever.
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

/// Whether a URL limits how long to wait for an unreachable server.
fn gives_up(url: &BrokerUrl) -> bool {
    url.secret()
        .is_some_and(|url| url.contains("give_up_after="))
}

/// Declares the workers and triggers of a manager. `manager` is its id, if it is registered.
async fn declare_all(
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
    // Checks the slugs first, so that no trigger replaces that of another file.
    check_slugs(broker, processes, file.as_deref(), manager).await?;
    trigger::declare(broker, name, processes).await?;
    declare(broker, processes, file.as_deref(), manager).await
}

/// Refuses a second manager of the same name for the same workers, which would double the number of
/// processes. Of managers that register at the same time the first one stays. `manager` is the id
/// of this one, if it is registered.
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

/// Declares workers and triggers again after registration: a `forget` that ran just before it has
/// not seen this manager in the registry.
async fn confirm(broker: &dyn Broker, options: &Options, manager: Tid) -> Result<(), ManagerError> {
    check_alone(broker, options, Some(manager)).await?;
    declare_all(broker, options, Some(manager)).await?;
    trigger::retire(broker, &options.name, &options.processes).await
}

impl Builder {
    /// Sets its name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Adds a process.
    pub fn process(mut self, process: Process) -> Self {
        self.processes.push(process);
        self
    }

    /// Sets the URL of the broker.
    pub fn queue_url(mut self, url: impl Into<String>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// Whether each SIGTERM and SIGINT to this process requests a stop while the manager runs. The
    /// default is `true`; a program that handles signals itself sets `false`.
    pub fn signals(mut self, signals: bool) -> Self {
        self.signals = signals;
        self
    }

    /// Connects to the broker, and registers the manager.
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
    /// The current state.
    pub fn snapshot(&self) -> GroupSnapshot {
        self.0.borrow().clone()
    }

    /// Waits for a change. Returns `false` when the manager is gone.
    pub async fn changed(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }

    /// Whether all desired processes are ready.
    pub fn is_up(&self) -> bool {
        self.0.borrow().is_up
    }
}
