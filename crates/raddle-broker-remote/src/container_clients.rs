//! Connections from containers, which are not trusted: the peer may be the task and not its worker.
//! A connection is granted what one one-shot worker needs for itself: [`ContainerClient::admit`]
//! lists the calls and their conditions. A new broker method is refused until it is listed there.
//!
//! Peers are not authenticated: all containers of a spawner run as the same user. A peer that
//! learns the id of another one-shot worker of the same queues can act for it. Lists that contain
//! such ids are refused.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use raddle_model::{
    CapSet, QueueName, TaskView, Tid,
    queue_name::TaskQueue,
    worker::{WorkerEntry, WorkerInfo, kind},
};

use super::protocol::RenewalRequest;
use raddle_broker::{AttemptId, Broker, Call, Error, Reply, Result, TaskFilter, WorkerTask};

/// The restrictions of a socket for container workers: one-shot workers of these queues, with no
/// more than these capabilities. They apply to every peer, even to the serving user, which may be
/// the user of the containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContainerClients {
    /// The user of the containers, if another than the serving one. The socket then belongs to that
    /// user, which only root can arrange.
    pub uid: Option<u32>,
    /// The capabilities that they may offer; others are removed.
    pub caps: CapSet,
    /// The queues that they may serve.
    pub queues: Vec<String>,
}

/// One connection of a container worker.
#[derive(Debug)]
pub(super) struct ContainerClient {
    container_clients: Arc<ContainerClients>,
    /// The worker that was last checked, to save lookups.
    worker: Mutex<Option<Tid>>,
}

/// The longest lease, because tasks of a dead worker stay leased for that long. Workers use
/// seconds.
const LONGEST_LEASE: Duration = Duration::from_secs(60);

impl ContainerClients {
    /// Restricts clients to these capabilities and queues.
    pub fn new(caps: CapSet, queues: Vec<String>) -> Self {
        Self {
            uid: None,
            caps,
            queues,
        }
    }

    /// Sets the user of the containers.
    pub fn with_uid(self, uid: Option<u32>) -> Self {
        Self { uid, ..self }
    }

    fn check_queues(&self, queues: &[String]) -> Result<()> {
        match queues.iter().find(|queue| !self.queues.contains(queue)) {
            Some(queue) => Err(refused(&format!(
                "the queue '{queue}' is not served by its workers"
            ))),
            None => Ok(()),
        }
    }

    /// The offered capabilities that are allowed. A container may have a handler that the spawner
    /// does not have.
    fn allowed_capabilities(&self, caps: &CapSet) -> CapSet {
        let mut both = CapSet::new();
        for tag in caps
            .iter()
            .filter(|tag| self.caps.iter().any(|own| own == *tag))
        {
            both.insert(tag).expect("it is a valid capability");
        }
        both
    }

    /// Checks and restricts a registration.
    fn register(&self, info: &mut WorkerInfo) -> Result<()> {
        if info.kind != kind::ONE_SHOT || info.concurrency != 1 {
            return Err(refused("only one-shot workers may register"));
        }
        if info.takes_calls() {
            return Err(refused("workers that take calls may not register"));
        }
        self.check_queues(&info.queues)?;
        info.capabilities = self.allowed_capabilities(&info.capabilities);
        Ok(())
    }

    fn is_container_worker(&self, worker: &WorkerEntry) -> bool {
        worker.info.kind == kind::ONE_SHOT && self.check_queues(&worker.info.queues).is_ok()
    }

    fn may_see(&self, task: &TaskView) -> bool {
        !task.spec.is_service() && self.queues.contains(&task.spec.queue)
    }
}

impl ContainerClient {
    pub(super) fn new(container_clients: Arc<ContainerClients>) -> Self {
        Self {
            container_clients,
            worker: Mutex::default(),
        }
    }

    /// Performs a call if it is allowed.
    pub(super) async fn perform(&self, broker: &dyn Broker, call: Call) -> Result<Reply> {
        let reply = self.admit(broker, call).await?.perform(broker).await?;
        if let Reply::RegisterWorker(worker) = reply {
            self.set_checked_worker(worker);
        }
        Ok(reply)
    }

    /// Checks a renewal.
    pub(super) async fn admit_renewal(
        &self,
        broker: &dyn Broker,
        renewal: &RenewalRequest,
    ) -> Result<()> {
        check_lease(renewal.ttl)?;
        self.check_worker(broker, renewal.worker).await
    }

    /// Checks a call and restricts its arguments. Calls that are not listed here are refused: a
    /// worker does not need them for itself and its one task.
    async fn admit(&self, broker: &dyn Broker, mut call: Call) -> Result<Call> {
        match &mut call {
            Call::UpdateAttempts { batch } => {
                self.check_attempts(
                    broker,
                    batch.iter().map(|update| update.attempt_id).collect(),
                )
                .await?
            }
            Call::Complete { batch } => {
                self.check_attempts(
                    broker,
                    batch
                        .iter()
                        .map(|completion| completion.attempt_id)
                        .collect(),
                )
                .await?
            }
            Call::Release { batch } => {
                self.check_attempts(
                    broker,
                    batch.iter().map(|release| release.attempt_id).collect(),
                )
                .await?
            }
            Call::RegisterWorker {
                info,
                ttl,
                task: WorkerTask::New,
            } => {
                check_lease(*ttl)?;
                self.container_clients.register(info)?;
            }
            // Not with `only`: that claims a task whatever its queue is.
            Call::Claim { request } if request.only.is_none() => {
                self.container_clients.check_queues(&request.queues)?;
                self.check_worker(broker, request.owner).await?;
                request.caps = self.container_clients.allowed_capabilities(&request.caps);
                request.max = request.max.min(1);
            }
            Call::RecvCommands { owner: worker, .. } | Call::Deregister { worker, .. } => {
                self.check_worker(broker, *worker).await?;
            }
            // Replies to control commands, for the worker or its task.
            Call::Put {
                queue: QueueName::Task(of, TaskQueue::CtrlOut),
                ..
            } => match broker.task(*of).await? {
                Some(task) if !task.spec.is_service() => self.check_owner(broker, &task).await?,
                _ if self.is_known(broker, *of).await? == Some(true) => {}
                _ => return Err(foreign()),
            },
            // The worker's own tasks, to compare them with what the broker assigns to it.
            Call::FindTasks {
                filter:
                    TaskFilter {
                        worker: Some(worker),
                        states,
                        ..
                    },
            } => {
                let is_active = !states.is_empty() && states.iter().all(|state| state.is_active());
                if !is_active || self.is_known(broker, *worker).await? != Some(true) {
                    return Err(foreign());
                }
            }
            Call::FindTasks { filter } if filter.is_single_task() => {
                let tasks = broker.tasks(filter.clone()).await?;
                if !tasks
                    .iter()
                    .all(|task| self.container_clients.may_see(task))
                {
                    return Err(refused("the task is in another queue"));
                }
            }
            Call::Chain { .. } => {
                return Err(refused(
                    "its tasks cannot submit tasks, and so cannot chain them",
                ));
            }
            _ => return Err(refused("a worker does not need this call for its task")),
        }
        Ok(call)
    }

    /// Checks that calls may be made for this worker. For an unknown worker they may: the broker
    /// replies that it is unknown.
    async fn check_worker(&self, broker: &dyn Broker, worker: Tid) -> Result<()> {
        self.is_known(broker, worker)
            .await?
            .map_or(
                Ok(()),
                |is_one| if is_one { Ok(()) } else { Err(foreign()) },
            )
    }

    /// Whether the worker is a container worker; `None` if it does not exist.
    async fn is_known(&self, broker: &dyn Broker, worker: Tid) -> Result<Option<bool>> {
        if *self.worker.lock().unwrap_or_else(PoisonError::into_inner) == Some(worker) {
            return Ok(Some(true));
        }
        let found = broker
            .workers()
            .await?
            .into_iter()
            .find(|entry| entry.tid == worker);
        let is_one = found.map(|entry| self.container_clients.is_container_worker(&entry));
        if is_one == Some(true) {
            self.set_checked_worker(worker);
        }
        Ok(is_one)
    }

    fn set_checked_worker(&self, worker: Tid) {
        *self.worker.lock().unwrap_or_else(PoisonError::into_inner) = Some(worker);
    }

    /// Checks that these attempts belong to container workers. The broker refuses writes for
    /// attempts of other owners.
    async fn check_attempts(&self, broker: &dyn Broker, attempt_ids: Vec<AttemptId>) -> Result<()> {
        for attempt_id in attempt_ids {
            if attempt_id.tid == attempt_id.owner {
                return Err(foreign());
            }
            match self.is_known(broker, attempt_id.owner).await? {
                Some(true) => {}
                Some(false) => return Err(foreign()),
                // The worker is gone. The broker refuses the write, unless the task still belongs
                // to that worker.
                None => match broker.task(attempt_id.tid).await? {
                    Some(task)
                        if task.state.is_active() && task.worker == Some(attempt_id.owner) =>
                    {
                        return Err(foreign());
                    }
                    _ => {}
                },
            }
        }
        Ok(())
    }

    /// Checks that a container worker has the task, or had it last.
    async fn check_owner(&self, broker: &dyn Broker, task: &TaskView) -> Result<()> {
        match task.worker {
            Some(worker) if self.is_known(broker, worker).await? == Some(true) => Ok(()),
            _ => Err(foreign()),
        }
    }
}

fn check_lease(ttl: Duration) -> Result<()> {
    if ttl <= LONGEST_LEASE {
        return Ok(());
    }
    Err(refused(&format!(
        "a lease is limited to {} s there",
        LONGEST_LEASE.as_secs()
    )))
}

fn foreign() -> Error {
    refused("the worker or the task does not belong to its containers")
}

fn refused(why: &str) -> Error {
    let reason = format!("it serves only what workers in containers need: {why}");
    Error::AgentRefused {
        path: "this socket".into(),
        reason,
    }
}
