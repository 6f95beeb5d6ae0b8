//! Connections of workers that are not trusted: in a container, whoever is at the socket may be the task and not its worker. So each is given
//! what a one-shot worker needs for itself, and nothing else: [`ContainerClient::admit`] names the calls, and for whom they may be made. A call that is new to the
//! broker is refused until it is named there.
//!
//! Nobody proves who he is: containers of a spawner are the same user. Who finds the id of another one-shot worker of the same queues can speak
//! for that. Lists, where such ids could be read, are no calls for guests.

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
use raddle_broker::{AttemptId, Broker, Call, Error, Reply, Result, TaskFilter};

/// Whom a socket is for that serves guests alone: one-shot workers of these queues, with no more than these capabilities. Everybody who comes is
/// one, also the user who serves: that may be the one that the containers have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContainerClients {
    /// The user that they are, if that is another than the one who serves: then the socket is that user's, which only root can make it.
    pub uid: Option<u32>,
    /// What they may offer. What else they do is left out.
    pub caps: CapSet,
    /// The queues that they may serve.
    pub queues: Vec<String>,
}

/// A connection of one.
#[derive(Debug)]
pub(super) struct ContainerClient {
    guests: Arc<ContainerClients>,
    /// The worker it was last found to speak for, which need not be looked up again.
    worker: Mutex<Option<Tid>>,
}

/// What is leased for longer would stay with a worker that is gone. Workers ask for seconds.
const LONGEST_LEASE: Duration = Duration::from_secs(60);

impl ContainerClients {
    /// Workers that serve these queues, and offer no more than this.
    pub fn new(caps: CapSet, queues: Vec<String>) -> Self {
        Self {
            uid: None,
            caps,
            queues,
        }
    }

    /// They are another user.
    pub fn of_user(self, uid: Option<u32>) -> Self {
        Self { uid, ..self }
    }

    fn serve(&self, queues: &[String]) -> Result<()> {
        match queues.iter().find(|queue| !self.queues.contains(queue)) {
            Some(queue) => Err(refused(&format!(
                "the queue '{queue}' is not one of its workers'"
            ))),
            None => Ok(()),
        }
    }

    /// What they may offer of this. A container may have a handler that the spawner has not.
    fn offered(&self, caps: &CapSet) -> CapSet {
        let mut both = CapSet::new();
        for tag in caps
            .iter()
            .filter(|tag| self.caps.iter().any(|own| own == *tag))
        {
            both.insert(tag).expect("it is in a set already");
        }
        both
    }

    /// What a worker may register as.
    fn register(&self, info: &mut WorkerInfo) -> Result<()> {
        if info.kind != kind::ONE_SHOT || info.concurrency != 1 {
            return Err(refused("workers there are for one task each"));
        }
        if info.takes_calls() {
            return Err(refused("workers there take no calls"));
        }
        self.serve(&info.queues)?;
        info.capabilities = self.offered(&info.capabilities);
        Ok(())
    }

    fn may_be(&self, worker: &WorkerEntry) -> bool {
        worker.info.kind == kind::ONE_SHOT && self.serve(&worker.info.queues).is_ok()
    }

    fn may_see(&self, task: &TaskView) -> bool {
        !task.spec.is_service() && self.queues.contains(&task.spec.queue)
    }
}

impl ContainerClient {
    pub(super) fn new(guests: Arc<ContainerClients>) -> Self {
        Self {
            guests,
            worker: Mutex::default(),
        }
    }

    /// Does what was asked for, if it is for guests.
    pub(super) async fn perform(&self, broker: &dyn Broker, call: Call) -> Result<Reply> {
        let reply = self.admit(broker, call).await?.perform(broker).await?;
        if let Reply::RegisterWorker(worker) = reply {
            self.speaks_for(worker);
        }
        Ok(reply)
    }

    /// Whether this lease may be renewed.
    pub(super) async fn admit_beat(
        &self,
        broker: &dyn Broker,
        renewal: &RenewalRequest,
    ) -> Result<()> {
        check_lease(renewal.ttl)?;
        self.check_worker(broker, renewal.worker).await
    }

    /// The call as it may be made. What is not named here is nothing that a worker needs for itself and the one task that it has, and so not for a client
    /// which may be the task.
    async fn admit(&self, broker: &dyn Broker, mut call: Call) -> Result<Call> {
        match &mut call {
            Call::UpdateAttempts { batch } => {
                self.check_all(broker, batch.iter().map(|note| note.attempt_id).collect())
                    .await?
            }
            Call::Complete { batch } => {
                self.check_all(
                    broker,
                    batch.iter().map(|finish| finish.attempt_id).collect(),
                )
                .await?
            }
            Call::Release { batch } => {
                self.check_all(
                    broker,
                    batch.iter().map(|release| release.attempt_id).collect(),
                )
                .await?
            }
            Call::RegisterWorker {
                info,
                ttl,
                ephemeral: false,
            } => {
                check_lease(*ttl)?;
                self.guests.register(info)?;
            }
            // By name, a task is given out whatever its queue is.
            Call::Claim { request } if request.only.is_none() => {
                self.guests.serve(&request.queues)?;
                self.check_worker(broker, request.owner).await?;
                request.caps = self.guests.offered(&request.caps);
                request.max = request.max.min(1);
            }
            Call::RecvCommands { owner: worker, .. } | Call::Deregister { worker, .. } => {
                self.check_worker(broker, *worker).await?;
            }
            // Answers to control words, for the worker or for its task.
            Call::Put {
                queue: QueueName::Task(of, TaskQueue::CtrlOut),
                ..
            } => match broker.task(*of).await? {
                Some(task) if !task.spec.is_service() => self.check_owner(broker, &task).await?,
                _ if self.is_known(broker, *of).await? == Some(true) => {}
                _ => return Err(foreign()),
            },
            // To compare what it holds with what the broker assigns to it.
            Call::Tasks {
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
            Call::Tasks { filter } if filter.is_single_task() => {
                let tasks = broker.tasks(filter.clone()).await?;
                if !tasks.iter().all(|task| self.guests.may_see(task)) {
                    return Err(refused("the task is in another queue"));
                }
            }
            Call::Chain { .. } => {
                return Err(refused(
                    "a task there can submit nothing, and so chain nothing",
                ));
            }
            _ => return Err(refused("this is nothing that a worker needs for its task")),
        }
        Ok(call)
    }

    /// Whether calls may be made for this worker. For one that is not there they may: it is told so by the broker.
    async fn check_worker(&self, broker: &dyn Broker, worker: Tid) -> Result<()> {
        self.is_known(broker, worker)
            .await?
            .map_or(
                Ok(()),
                |is_one| if is_one { Ok(()) } else { Err(foreign()) },
            )
    }

    /// Whether the worker is one of theirs, if it is there.
    async fn is_known(&self, broker: &dyn Broker, worker: Tid) -> Result<Option<bool>> {
        if *self.worker.lock().unwrap_or_else(PoisonError::into_inner) == Some(worker) {
            return Ok(Some(true));
        }
        let found = broker
            .workers()
            .await?
            .into_iter()
            .find(|entry| entry.tid == worker);
        let is_one = found.map(|entry| self.guests.may_be(&entry));
        if is_one == Some(true) {
            self.speaks_for(worker);
        }
        Ok(is_one)
    }

    fn speaks_for(&self, worker: Tid) {
        *self.worker.lock().unwrap_or_else(PoisonError::into_inner) = Some(worker);
    }

    /// Whether these attempts are of workers that it may speak for. Of an attempt that another worker has, the broker takes no word.
    async fn check_all(&self, broker: &dyn Broker, fences: Vec<AttemptId>) -> Result<()> {
        for attempt_id in fences {
            if attempt_id.tid == attempt_id.owner {
                return Err(foreign());
            }
            match self.is_known(broker, attempt_id.owner).await? {
                Some(true) => {}
                Some(false) => return Err(foreign()),
                // One that is not there any more. The broker refuses the write, unless it still has the task as that worker's.
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

    /// Whether one of their workers has the task, or had it last.
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
        "a lease there is for {} s at most",
        LONGEST_LEASE.as_secs()
    )))
}

fn foreign() -> Error {
    refused("the worker, or the task, is not one of theirs")
}

fn refused(why: &str) -> Error {
    let reason =
        format!("it serves workers in containers, with what they need for themselves: {why}");
    Error::AgentRefused {
        path: "this socket".into(),
        reason,
    }
}
