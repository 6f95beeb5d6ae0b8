//! A spawner's life: registered, at work, gone.

use std::{path::PathBuf, sync::Arc, time::Duration};

use raddle_broker::{Broker, Result};
use raddle_broker_remote as remote;
use raddle_broker_remote::{ContainerClients, ServedBroker};
use raddle_model::{
    Tid,
    worker::{WorkerInfo, kind},
};
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
};

use super::{Config, LaunchFailureCounts, Launcher, service::SpawnerService, spawner_ids};
use raddle_telemetry::metrics::{LogCounter, Metrics, SpawnerIds};
use raddle_worker::{
    Shutdown,
    registration::{LEASE, Registration, deregister},
    scheduler, worker,
};

/// How a spawner behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its name, for lists and titles.
    pub name: String,
    /// What sort of worker it is. One whose workers have a [`SpawnPolicy`](raddle_model::manager::Charter) is a manager, and this its type.
    pub kind: String,
    /// The task that has started it, if one has.
    pub parent: Option<Tid>,
    /// What it keeps, and how.
    pub config: Config,
    /// What its workers say of themselves.
    pub worker: worker::Options,
    /// Where it serves the broker to its workers, if it does.
    pub socket: Option<PathBuf>,
    /// What its workers may do there, if they are not trusted.
    pub guests: Option<ContainerClients>,
    /// Where account is kept of how they end, and of what they do, if anybody wants to know. What workers do that are served at `socket` is seen by the
    /// broker it is given, if that is an [`MeteredBroker`](raddle_telemetry::metrics::MeteredBroker). What others do is read from the event log.
    pub book: Option<Arc<Metrics>>,
    /// How long others wait after its last sign of life before they take it for gone.
    pub lease: Duration,
}

/// A registered spawner, not running yet.
pub struct Spawner {
    broker: Arc<dyn Broker>,
    options: Options,
    launcher: Box<dyn Launcher>,
    line: Registration,
    shown: watch::Sender<SpawnerSnapshot>,
    serving: Option<ServedBroker>,
}

/// Looks at a spawner from outside. Clones look at the same one.
#[derive(Clone, Debug)]
pub struct SpawnerHandle(watch::Receiver<SpawnerSnapshot>);

/// What there is at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpawnerSnapshot {
    /// Tasks that its workers could claim, when it last looked.
    pub pending: u64,
    /// Workers that are starting.
    pub starting: u32,
    /// Workers that wait for a task.
    pub idle: u32,
    /// Workers that have one.
    pub busy: u32,
    /// How many it wants to have idle.
    pub warm_pool: u32,
    /// Workers launched since it began.
    pub launched: u64,
    /// Workers that died before they were ready.
    pub stillborn: u64,
    /// What was in the way of launches.
    pub obstacles: LaunchFailureCounts,
    /// Whether launches are held back because of that.
    pub braking: bool,
}

/// How a spawner's life went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpawnerEnd {
    /// How many workers it launched.
    pub launched: u64,
}

impl Options {
    /// A spawner like this, which serves nobody yet.
    pub fn new(config: Config, worker: worker::Options) -> Self {
        let (name, kind) = (kind::SPAWNER.into(), kind::SPAWNER.into());
        Self {
            name,
            kind,
            parent: None,
            config,
            worker,
            socket: None,
            guests: None,
            book: None,
            lease: LEASE,
        }
    }

    /// What its workers take can be left to it. It runs nothing itself.
    fn info(&self) -> WorkerInfo {
        WorkerInfo {
            name: self.name.clone(),
            kind: self.kind.clone(),
            concurrency: 0,
            max_workers: self.config.max_workers(),
            parent: self.parent,
            ..self.worker.worker_info()
        }
    }
}

impl Spawner {
    /// Enters a spawner into the broker's registry, and begins to serve its workers.
    pub async fn register(
        broker: Arc<dyn Broker>,
        options: Options,
        launcher: Box<dyn Launcher>,
    ) -> Result<Self> {
        let serving = match &options.socket {
            Some(path) => {
                let serving =
                    remote::Options::default().with_container_clients(options.guests.clone());
                Some(ServedBroker::start_with(path, Arc::clone(&broker), serving).await?)
            }
            None => None,
        };
        let line = Registration::register(&broker, options.info(), options.lease).await?;
        let shown = watch::Sender::new(SpawnerSnapshot::default());
        Ok(Self {
            broker,
            options,
            launcher,
            line,
            shown,
            serving,
        })
    }

    /// The spawner's own id.
    pub fn tid(&self) -> Tid {
        self.line.tid
    }

    /// A look at it, also while it runs.
    pub fn handle(&self) -> SpawnerHandle {
        SpawnerHandle(self.shown.subscribe())
    }

    /// Keeps workers until it is asked to stop. Then they finish what they run, and it waits for those it has launched.
    pub async fn run(self, shutdown: Shutdown) -> Result<SpawnerEnd> {
        let Self {
            broker,
            options,
            launcher,
            line,
            shown,
            serving,
        } = self;
        // It ends with this spawner. Its workers are there for one task each, and fire nothing.
        let _scheduling = scheduler::RunningScheduler::start(Arc::clone(&broker));
        let mut service = SpawnerService::new(
            Arc::clone(&broker),
            options.clone(),
            launcher,
            line,
            shown,
            &shutdown,
        );
        let ids = SpawnerIds::new(service.tid());
        let counting = LogCounterTask::start(&broker, &options, service.tid(), &ids);
        let mut former = Vec::new();
        let end = loop {
            match service.run().await {
                Ok(true) => break Ok(()),
                // The lease was lost: others may take it for gone. Its workers have leases of their own.
                Ok(false) => {
                    former.push(service.tid());
                    let info = spawner_ids::continued(options.info(), &former);
                    match Registration::register_again(
                        &broker,
                        &info,
                        options.lease,
                        Duration::MAX,
                        &shutdown,
                    )
                    .await
                    {
                        Ok(Some(line)) => {
                            tracing::warn!(was = %service.tid(), now = %line.tid, "the lease was lost; registered anew");
                            ids.add(line.tid);
                            service.resume(line);
                        }
                        Ok(None) => break Ok(()),
                        Err(error) => break Err(error),
                    }
                }
                Err(error) => break Err(error),
            }
        };
        let (launched, tid) = (service.launched(), service.tid());
        service.close().await;
        if let Some(counting) = counting {
            counting.stop().await;
        }
        let failure = end.as_ref().err().map(ToString::to_string);
        deregister(&broker, tid, failure).await;
        // Last of all: its workers may have asked it until now. Those that it has not waited for go on without.
        if let Some(serving) = serving {
            serving.stop().await;
        }
        end.map(|()| SpawnerEnd { launched })
    }
}

/// The task that counts what workers do that reach the broker themselves.
struct LogCounterTask {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl LogCounterTask {
    fn start(
        broker: &Arc<dyn Broker>,
        options: &Options,
        tid: Tid,
        ids: &SpawnerIds,
    ) -> Option<Self> {
        let book = options.book.clone().filter(|_| options.socket.is_none())?;
        let (stop, stopped) = oneshot::channel();
        let counter = LogCounter::new(Arc::clone(broker), book, tid, ids.clone());
        Some(Self {
            stop,
            task: tokio::spawn(counter.run(stopped)),
        })
    }

    async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

impl SpawnerHandle {
    /// What there is now.
    pub fn snapshot(&self) -> SpawnerSnapshot {
        *self.0.borrow()
    }

    /// Returns when something has changed, or the spawner is gone, with `false`.
    pub async fn changed(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}

impl SpawnerSnapshot {
    /// All workers there are.
    pub fn live(&self) -> u32 {
        self.starting + self.idle + self.busy
    }
}
