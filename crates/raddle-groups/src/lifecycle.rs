//! The lifecycle of a manager: register, run, deregister; and its builder.

use std::{collections::BTreeMap, ffi::OsString, path::Path, sync::Arc, time::Duration};

use raddle_broker::{Broker, WorkerTask};
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
    offers::{check_hosts, find_unoffered_routine},
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

/// This program.
const PROGRAM: &str = "/proc/self/exe";

/// How a manager behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name in lists and titles.
    pub name: String,
    /// Its processes.
    pub processes: Vec<Process>,
    /// The file or program that declares them.
    pub file: Option<String>,
    /// The broker.
    pub url: BrokerUrl,
    /// The program of its processes, which must understand `worker start`.
    pub program: ProcessTemplate,
    /// Further arguments.
    pub extra_args: Vec<OsString>,
    /// Length of its lease.
    pub lease: Duration,
    /// Whether SIGTERM and SIGINT to this process are stop requests.
    pub signals: bool,
}

/// A registered manager that does not run yet.
pub struct Manager {
    broker: Arc<dyn Broker>,
    options: Options,
    registration: Registration,
    snapshot_tx: watch::Sender<GroupSnapshot>,
}

/// Builds a manager.
///
/// Its processes are this program again, so it needs `#[raddle::main]`.
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

/// The current numbers of a manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupSnapshot {
    /// The processes of each group.
    pub groups: BTreeMap<String, GroupCounts>,
    /// Processes started so far.
    pub started: u64,
    /// Its status, as in its title.
    pub status: &'static str,
    /// Whether all wanted processes are ready.
    pub is_up: bool,
}

/// How a manager ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupEnd {
    /// Processes that it started.
    pub started: u64,
    /// Processes that needed a SIGKILL in its stop, for themselves or for their attempts.
    pub killed: u64,
}

/// Why a manager could not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManagerError {
    /// Its groups are invalid.
    #[error(transparent)]
    InvalidConfig(#[from] GroupConfigError),
    /// The broker failed.
    #[error(transparent)]
    Broker(#[from] raddle_broker::Error),
    /// Signal handlers could not be installed, so stopped processes would not be noticed.
    #[error("cannot handle signals: {0}")]
    Signals(#[source] std::io::Error),
    /// The broker URL is invalid.
    #[error(transparent)]
    Url(#[from] raddle_broker_connect::ParseBrokerUrlError),
    /// An in-memory broker cannot be shared by processes.
    #[error(
        "mem:// works within one process, and groups have several: use sqlite:PATH or redis://…"
    )]
    Memory,
    /// A manager of another file has a worker with the same slug.
    #[error(
        "the slug '{slug}' is that of process.{process} in {file}, which the manager {manager} keeps: \
         give this one another slug, or stop that manager with 'raddle task stop {manager}'"
    )]
    SlugTaken {
        /// The slug.
        slug: String,
        /// The process that hosts it there.
        process: String,
        /// The other file.
        file: String,
        /// Its manager.
        manager: Tid,
    },
    /// Another manager with this name has some of its workers.
    #[error(
        "manager {manager} with the name '{name}' runs these groups: stop it with 'raddle down', or give this one another name with --name \
         to have as many processes again"
    )]
    Kept {
        /// The name of both.
        name: String,
        /// The other manager.
        manager: Tid,
    },
    /// A trigger could not be stored.
    #[error("the trigger of '{slug}' cannot be stored: {source}")]
    Trigger {
        /// The worker.
        slug: String,
        /// The error.
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
    /// Options for processes that are this program.
    pub fn new(url: BrokerUrl, processes: Vec<Process>) -> Self {
        let program = ProcessTemplate {
            program: PROGRAM.into(),
            args: vec!["raddle".into()],
            env: Vec::new(),
        };
        let (name, extra_args) = (kind::GROUP.into(), Vec::new());
        Self {
            name,
            processes,
            file: None,
            url,
            program,
            extra_args,
            lease: LEASE,
            signals: false,
        }
    }

    fn info(&self) -> WorkerInfo {
        let mut slugs = CapSet::new();
        for worker in self.processes.iter().flat_map(|process| &process.workers) {
            // Slugs are valid labels.
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
    /// Starts to build a manager.
    pub fn builder() -> Builder {
        Builder {
            name: kind::GROUP.into(),
            processes: Vec::new(),
            url: None,
            signals: true,
        }
    }

    /// Registers a manager. Fails with [`ManagerError::Kept`] while another one with its name has
    /// one of its workers.
    pub async fn register(broker: Arc<dyn Broker>, options: Options) -> Result<Self, ManagerError> {
        check(&options.processes)?;
        if !is_shared(&options.url) {
            return Err(ManagerError::Memory);
        }
        check_streams(&options.processes, &options.url)?;
        if options.program.program == Path::new(PROGRAM)
            && let Some(error) =
                find_unoffered_routine(&options.processes, &broker.workers().await?)
        {
            return Err(error.into());
        }
        check_hosts(&options.processes).await?;
        check_no_other_manager(&*broker, &options, None).await?;
        wait_for_space(ManagerError::is_out_of_space, || {
            declare_all(&*broker, &options, None)
        })
        .await?;
        let registration =
            Registration::register(&broker, options.info(), options.lease, WorkerTask::New).await?;
        let confirm = || declare_registered(&*broker, &options, registration.tid);
        if let Err(error) = wait_for_space(ManagerError::is_out_of_space, confirm).await {
            deregister(&broker, registration.tid, Some(error.to_string())).await;
            return Err(error);
        }
        if let Err(error) = log_outdated(&*broker, &options.processes).await {
            tracing::warn!(%error, "waiting tasks could not be checked against the file");
        }
        let snapshot_tx = watch::Sender::new(GroupSnapshot::default());
        Ok(Self {
            broker,
            options,
            registration,
            snapshot_tx,
        })
    }

    /// The manager's id.
    pub fn tid(&self) -> Tid {
        self.registration.tid
    }

    /// A handle to observe it, also while it runs.
    pub fn handle(&self) -> GroupHandle {
        GroupHandle(self.snapshot_tx.subscribe())
    }

    /// Keeps its processes until SIGTERM or SIGINT, and then stops them in stages. A second signal
    /// cancels what runs, a third one kills it.
    pub async fn run_until_signal(mut self) -> Result<GroupEnd, ManagerError> {
        self.options.signals = true;
        self.run(Shutdown::new()).await
    }

    /// Keeps its processes until a stop is requested, by `shutdown` or by a signal, see
    /// [`Builder::signals`]. Then it stops them in stages. Each further request skips to the next
    /// stage.
    pub async fn run(self, shutdown: Shutdown) -> Result<GroupEnd, ManagerError> {
        let Self {
            broker,
            options,
            registration,
            snapshot_tx,
        } = self;
        let suspended = signal(SignalKind::child()).map_err(ManagerError::Signals)?;
        // Ends with this manager.
        let mut signals = JoinSet::new();
        if options.signals {
            signals.spawn(stop_on_signals(shutdown.clone()).map_err(ManagerError::Signals)?);
        }
        // Ends with this manager. Its processes fire no schedules.
        let _scheduling = scheduler::RunningScheduler::start(Arc::clone(&broker));
        let mut service = GroupService::new(
            &broker,
            options.clone(),
            registration,
            suspended,
            snapshot_tx,
            &shutdown,
        );
        let (mut failed, mut replaced_by) = (None, None);
        let end = loop {
            match service.run().await {
                Ok(true) => break failed.map_or(Ok(()), Err),
                // The processes have their own leases.
                Ok(false) => {
                    match Registration::register_again(
                        &broker,
                        &options.info(),
                        options.lease,
                        WorkerTask::New,
                        Duration::MAX,
                        &shutdown,
                    )
                    .await
                    {
                        Ok(Some(registration)) => {
                            tracing::warn!(was = %service.tid(), now = %registration.tid, "the lease was lost; registered again");
                            service.registration = registration;
                            match declare_registered(&*broker, &options, service.tid()).await {
                                Ok(()) => {}
                                // Another manager has replaced it.
                                Err(error @ ManagerError::Kept { .. }) => {
                                    tracing::error!(%error, "another manager has replaced this one: stopping");
                                    replaced_by = Some(error);
                                    service.stop();
                                }
                                Err(error) => {
                                    tracing::error!(%error, "its workers and triggers could not be declared again");
                                }
                            }
                        }
                        // A stop was requested.
                        Ok(None) => service.registration.lost = false,
                        // Wait for the server, unless the URL sets a limit.
                        Err(error @ raddle_broker::Error::Unreachable { .. })
                            if !has_give_up_limit(&options.url) =>
                        {
                            tracing::error!(%error, "the broker is unreachable: retrying");
                        }
                        // The processes may still finish their tasks, so stop them in stages.
                        Err(error) => {
                            tracing::error!(%error, "cannot register again: stopping");
                            failed = Some(error);
                            service.stop();
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
        replaced_by.map_or(Ok(GroupEnd { started, killed }), Err)
    }
}

/// Requests a stop for each SIGTERM and SIGINT, without end.
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

/// Whether the URL limits how long an unreachable server is waited for.
fn has_give_up_limit(url: &BrokerUrl) -> bool {
    url.secret()
        .is_some_and(|url| url.contains("give_up_after="))
}

/// Declares its workers and triggers. `manager` is its id, if it is registered.
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
    // First, so that its triggers do not replace those of another file.
    check_slugs(broker, processes, file.as_deref(), manager).await?;
    trigger::declare(broker, name, processes).await?;
    declare(broker, processes, file.as_deref(), manager).await
}

/// Refuses a second manager with the same name for the same workers, which would double the
/// processes. If two register at the same time, the first stays. `manager` is its id, if it is
/// registered.
async fn check_no_other_manager(
    broker: &dyn Broker,
    options: &Options,
    manager: Option<Tid>,
) -> Result<(), ManagerError> {
    let info = options.info();
    let is_itself = |entry: &WorkerEntry| entry.info.pid == info.pid && is_local(&entry.info);
    let is_other_manager = |entry: &&WorkerEntry| {
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
    match broker.workers().await?.iter().find(is_other_manager) {
        Some(other) => Err(ManagerError::Kept {
            name: info.name,
            manager: other.tid,
        }),
        None => Ok(()),
    }
}

/// Declares its workers again after registering: an operator may have forgotten them just before.
async fn declare_registered(
    broker: &dyn Broker,
    options: &Options,
    manager: Tid,
) -> Result<(), ManagerError> {
    check_no_other_manager(broker, options, Some(manager)).await?;
    declare_all(broker, options, Some(manager)).await?;
    trigger::remove_undeclared(broker, &options.name, &options.processes).await
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

    /// Sets the broker.
    pub fn queue_url(mut self, url: impl Into<String>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// Whether SIGTERM and SIGINT to this process are stop requests while the manager runs.
    /// Default: yes. Say no in a program that handles signals itself.
    pub fn signals(mut self, signals: bool) -> Self {
        self.signals = signals;
        self
    }

    /// Opens the broker and registers the manager.
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
    /// The current numbers.
    pub fn snapshot(&self) -> GroupSnapshot {
        self.0.borrow().clone()
    }

    /// Returns `true` when something has changed, `false` when the manager is gone.
    pub async fn changed(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }

    /// Whether all wanted processes are ready.
    pub fn is_up(&self) -> bool {
        self.0.borrow().is_up
    }
}
