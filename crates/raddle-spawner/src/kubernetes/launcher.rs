//! `KubernetesLauncher`: what is known of each pod, and the events about it.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    future::pending,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use raddle_container::{ExitKind, LaunchError, LaunchFailure};
use raddle_model::{Tid, WorkerEntry, worker::WorkerInfo};
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{
    access::ClusterAccess,
    api::{Api, WatchEvent},
    create::{create, remove},
    pod::{Pod, PodExit, PodPhase, TerminationMessage},
    template::PodTemplate,
    watch,
};
use crate::{
    class::CLASS,
    launcher::{BroadcastCommand, LaunchId, Launcher, WorkerEvent},
    worker_table::is_busy,
};

/// Starts workers in pods.
pub struct KubernetesLauncher {
    state: Arc<PodState>,
    pods: HashMap<LaunchId, PodRecord>,
    /// All ids of this spawner.
    own_ids: HashSet<Tid>,
    events: mpsc::UnboundedReceiver<PodEvent>,
    worker_events: VecDeque<(LaunchId, WorkerEvent)>,
    /// Watches the pods. It ends with the launcher.
    _watching: JoinSet<()>,
}

/// The state that all tasks about pods share.
pub(super) struct PodState {
    pub(super) api: Api,
    pub(super) template: PodTemplate,
    /// Limits parallel calls: the server has other clients, and throttles busy ones.
    pub(super) call_permits: Semaphore,
    /// One event per change of a pod, handled at once: the channel needs no bound.
    events_tx: mpsc::UnboundedSender<PodEvent>,
}

/// An event of the cluster.
#[derive(Debug)]
pub(super) enum PodEvent {
    /// A pod was created.
    Created { id: LaunchId, at: Instant },
    /// It could not be created.
    NotCreated { id: LaunchId, error: LaunchError },
    /// All pods at some time after `requested_at`.
    Listed {
        pods: Vec<Pod>,
        requested_at: Instant,
    },
    /// A pod has changed.
    Changed(WatchEvent),
    /// A pod that is over was deleted, so its end can be reported.
    Deleted { id: LaunchId, event: WorkerEvent },
}

#[derive(Debug, Default)]
struct PodRecord {
    /// When it was launched here. `None`: it was adopted.
    launched_at: Option<Instant>,
    /// When it was certain to exist.
    created_at: Option<Instant>,
    runs_since: Option<Instant>,
    /// The event that it waits for.
    why: Option<String>,
    is_ready: bool,
    has_begun: bool,
    /// The grace period of its deletion, if that was requested.
    asked: Option<GracePeriod>,
    /// It is over, and is being deleted.
    is_over: bool,
}

/// Grace period of a deletion in seconds. `None` uses the one of the spec, so that the worker can
/// finish its task.
type GracePeriod = Option<u32>;

const MAX_PARALLEL_CALLS: usize = 8;
/// How long the worker of a running pod may take to register. After that the pod is deleted.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Grace period for releasing a task, on the second stop request and when the spawner exits.
const RELEASE_GRACE: u32 = 20;
const RELEASE_GRACE_AT_EXIT: u32 = 3;
/// Shortest grace period with which a node confirms that nothing runs any more.
const SHORTEST_GRACE: u32 = 1;
/// Grace period of a pod that does not run.
const NO_GRACE: u32 = 0;

impl KubernetesLauncher {
    /// A launcher without workers, which watches the pods of its class.
    pub fn new(access: ClusterAccess, template: PodTemplate) -> Self {
        let (events_tx, events) = mpsc::unbounded_channel();
        let api = Api::new(access, (CLASS, template.class.as_str()));
        let state = Arc::new(PodState {
            api,
            template,
            call_permits: Semaphore::new(MAX_PARALLEL_CALLS),
            events_tx,
        });
        let mut watching = JoinSet::new();
        watching.spawn(watch::watch_pods(Arc::clone(&state)));
        Self {
            state,
            pods: HashMap::new(),
            own_ids: HashSet::new(),
            events,
            worker_events: VecDeque::new(),
            _watching: watching,
        }
    }

    // -- events

    fn handle_event(&mut self, event: PodEvent) {
        match event {
            PodEvent::Created { id, at } => {
                if let Some(record) = self.pods.get_mut(&id) {
                    record.created_at = Some(at);
                    if let Some(grace) = record.asked {
                        self.state.delete_in_background(&id, grace);
                    }
                }
            }
            PodEvent::NotCreated { id, error } => self.report_end(&id, WorkerEvent::Failed(error)),
            PodEvent::Listed { pods, requested_at } => self.handle_list(pods, requested_at),
            PodEvent::Changed(WatchEvent::Added(pod) | WatchEvent::Modified(pod)) => {
                self.handle_pod(&pod)
            }
            PodEvent::Changed(WatchEvent::Deleted(pod)) => self.handle_deleted(&pod),
            PodEvent::Changed(WatchEvent::Bookmark(_) | WatchEvent::Error(_)) => {}
            PodEvent::Deleted { id, event } => self.report_end(&id, event),
        }
    }

    /// Reports the last event of a worker, and forgets it.
    fn report_end(&mut self, id: &LaunchId, event: WorkerEvent) {
        if self.pods.remove(id).is_some() {
            self.worker_events.push_back((id.clone(), event));
        }
    }

    fn handle_list(&mut self, pods: Vec<Pod>, requested_at: Instant) {
        let there: HashSet<&str> = pods.iter().map(|pod| pod.metadata.name.as_str()).collect();
        let is_missing = |id: &LaunchId, record: &PodRecord| {
            !record.is_over
                && record.created_at.is_some_and(|at| at < requested_at)
                && !there.contains(id.as_str())
        };
        let missing = self
            .pods
            .iter()
            .filter(|(id, record)| is_missing(id, record));
        let missing: Vec<(LaunchId, ExitKind)> = missing
            .map(|(id, record)| (id.clone(), record.exit_kind(ExitKind::Unknown)))
            .collect();
        for (id, gone) in missing {
            self.report_end(&id, WorkerEvent::Exited(gone));
        }
        pods.iter().for_each(|pod| self.handle_pod(pod));
    }

    fn handle_pod(&mut self, pod: &Pod) {
        let id = LaunchId::named(&pod.metadata.name);
        let Some(record) = self.pods.get_mut(&id) else {
            if pod
                .spawner()
                .is_some_and(|spawner| self.own_ids.contains(&spawner))
                && !pod.is_leaving()
            {
                // Its creation timed out here, but has succeeded.
                self.state.delete_in_background(&id, None);
            }
            return;
        };
        if record.is_over {
            return;
        }
        match pod.phase() {
            PodPhase::Waiting(why) => record.log_wait(&id, why),
            PodPhase::Running => drop(record.runs_since.get_or_insert_with(Instant::now)),
            PodPhase::Failed(error) => {
                let error = record
                    .why
                    .as_ref()
                    .map_or(error.clone(), |why| error.with(why));
                self.delete_finished(&id, WorkerEvent::Failed(error), SHORTEST_GRACE);
            }
            PodPhase::Ended(over) => {
                let gone = self.read_exit(&id, over);
                self.delete_finished(&id, WorkerEvent::Exited(gone), NO_GRACE);
            }
        }
    }

    fn handle_deleted(&mut self, pod: &Pod) {
        let id = LaunchId::named(&pod.metadata.name);
        let Some(record) = self.pods.get(&id).filter(|record| !record.is_over) else {
            return;
        };
        let gone = match pod.phase() {
            PodPhase::Ended(over) => self.read_exit(&id, over),
            _ => record.exit_kind(ExitKind::Unknown),
        };
        self.report_end(&id, WorkerEvent::Exited(gone));
    }

    /// Reports what the termination message adds, and returns how the worker ended.
    fn read_exit(&mut self, id: &LaunchId, PodExit { exit, message }: PodExit) -> ExitKind {
        let Some(record) = self.pods.get_mut(id) else {
            return exit;
        };
        match message {
            TerminationMessage::Worker { tid, begun } => self.worker_events.extend(
                record
                    .record_worker(tid, begun)
                    .map(|event| (id.clone(), event)),
            ),
            TerminationMessage::Other(said) if !said.is_empty() => {
                tracing::warn!(worker = %id, said, "last message of a pod");
            }
            TerminationMessage::Other(_) => {}
        }
        record.exit_kind(exit)
    }

    /// Deletes a finished pod before its end is reported, so that a spawner that exits leaves no
    /// pods.
    fn delete_finished(&mut self, id: &LaunchId, event: WorkerEvent, grace: u32) {
        let Some(record) = self.pods.get_mut(id) else {
            return;
        };
        record.is_over = true;
        let (state, id) = (Arc::clone(&self.state), id.clone());
        // Ends when the pod is deleted, or with the process.
        tokio::spawn(async move {
            remove(&state, &id, Some(grace)).await;
            state.send_event(PodEvent::Deleted { id, event });
        });
    }

    // -- deadlines

    fn next_deadline(&self) -> Option<Instant> {
        self.pods
            .values()
            .filter_map(|record| record.start_deadline(&self.state.template))
            .min()
    }

    fn fail_late(
        &mut self,
        now: Instant,
        deadline: fn(&PodRecord, &PodTemplate) -> Option<Instant>,
    ) {
        let template = &self.state.template;
        let late = self
            .pods
            .iter()
            .filter(|(_, record)| deadline(record, template).is_some_and(|by| by <= now));
        let late: Vec<(LaunchId, LaunchError)> = late
            .map(|(id, record)| (id.clone(), record.timeout_error(template)))
            .collect();
        for (id, error) in late {
            self.delete_finished(&id, WorkerEvent::Failed(error), SHORTEST_GRACE);
        }
    }
}

impl PodState {
    pub(super) fn send_event(&self, event: PodEvent) {
        // Fails only if the launcher is gone.
        let _ = self.events_tx.send(event);
    }

    fn delete_in_background(self: &Arc<Self>, id: &LaunchId, grace: GracePeriod) {
        let (state, id) = (Arc::clone(self), id.clone());
        // Ends when the server has accepted it, or with the process.
        tokio::spawn(async move { remove(&state, &id, grace).await });
    }
}

impl PodRecord {
    /// Records the worker's id and whether it has a task, and returns new events.
    fn record_worker(
        &mut self,
        tid: Tid,
        begun: bool,
    ) -> impl Iterator<Item = WorkerEvent> + use<> {
        let ready =
            (!std::mem::replace(&mut self.is_ready, true)).then_some(WorkerEvent::Ready(tid));
        let begun = (begun && !std::mem::replace(&mut self.has_begun, true))
            .then_some(WorkerEvent::TaskClaimed);
        [ready, begun].into_iter().flatten()
    }

    /// Whether a deletion would not stop it in time: a worker handles SIGTERM only when it is
    /// ready, and a node sends it once.
    fn ignores_sigterm(&self) -> bool {
        self.runs_since.is_some() && !self.is_ready && self.asked == Some(None)
    }

    fn log_wait(&mut self, pod: &LaunchId, why: Option<String>) {
        if let Some(why) = why
            && self.why.as_ref() != Some(&why)
        {
            tracing::warn!(%pod, why, "a pod is waiting");
            self.why = Some(why);
        }
    }

    /// How it ended, as reported. A worker that was stopped before it was ready has ended as
    /// requested.
    fn exit_kind(&self, exit: ExitKind) -> ExitKind {
        if self.asked.is_some() && !self.is_ready {
            ExitKind::Code(0)
        } else {
            exit
        }
    }

    /// When it must run. Adopted pods are checked by the registry instead.
    fn start_deadline(&self, template: &PodTemplate) -> Option<Instant> {
        let waits = self.created_at.is_some() && self.runs_since.is_none() && !self.is_over;
        self.launched_at
            .filter(|_| waits)
            .map(|at| at + template.start_within)
    }

    /// When it must be registered. This is checked only when the registry is read, which it is not
    /// while the broker is away.
    fn ready_deadline(&self, _: &PodTemplate) -> Option<Instant> {
        let is_awaited = self.launched_at.is_some() && !self.is_ready && !self.is_over;
        self.runs_since
            .filter(|_| is_awaited)
            .map(|since| since + READY_TIMEOUT)
    }

    fn timeout_error(&self, template: &PodTemplate) -> LaunchError {
        if self.runs_since.is_some() {
            let (image, secs) = (&template.image, READY_TIMEOUT.as_secs());
            let reason = format!(
                "a pod of the image '{image}' registered no worker within {secs} s: check that its entrypoint is this program, and that it reaches the broker"
            );
            return LaunchError::new(LaunchFailure::Image, reason);
        }
        let secs = template.start_within.as_secs();
        let why = self.why.as_deref().unwrap_or("its node has not started it");
        LaunchError::new(
            LaunchFailure::ResourcesExhausted,
            format!("a pod did not run within {secs} s: {why}"),
        )
    }
}

#[async_trait]
impl Launcher for KubernetesLauncher {
    async fn launch(&mut self, spawner: Tid) -> Result<LaunchId, LaunchError> {
        let id = self.state.template.class.new_id();
        self.own_ids.insert(spawner);
        let record = PodRecord {
            launched_at: Some(Instant::now()),
            ..PodRecord::default()
        };
        self.pods.insert(id.clone(), record);
        // Ends when the pod is created, or cannot be.
        tokio::spawn(create(Arc::clone(&self.state), id.clone(), spawner));
        Ok(id)
    }

    fn recognise(&self, info: &WorkerInfo) -> Option<LaunchId> {
        self.state
            .template
            .class
            .matches(&info.host)
            .then(|| LaunchId::named(&info.host))
    }

    fn observe_registry(&mut self, registry: &[WorkerEntry]) {
        for entry in registry {
            let id = LaunchId::named(&entry.info.host);
            let Some(record) = self.pods.get_mut(&id) else {
                continue;
            };
            let ignored_sigterm = record.ignores_sigterm();
            self.worker_events.extend(
                record
                    .record_worker(entry.tid, is_busy(entry))
                    .map(|event| (id.clone(), event)),
            );
            if let Some(grace) = record.asked.filter(|_| ignored_sigterm) {
                self.state.delete_in_background(&id, grace);
            }
        }
        self.fail_late(Instant::now(), PodRecord::ready_deadline);
    }

    async fn adopt(&mut self, alive: &[Tid]) -> Result<Vec<LaunchId>, LaunchError> {
        let listing = self
            .state
            .api
            .list()
            .await
            .map_err(|fault| LaunchError::from(&fault))?;
        let mut taken = Vec::new();
        for pod in listing.pods {
            let id = LaunchId::named(&pod.metadata.name);
            let is_alive =
                |spawner: Tid| alive.contains(&spawner) || self.own_ids.contains(&spawner);
            // Anyone can set labels.
            let is_ours = self.state.template.class.matches(id.as_str());
            if !is_ours || self.pods.contains_key(&id) || pod.spawner().is_some_and(is_alive) {
                continue;
            }
            if let PodPhase::Failed(_) | PodPhase::Ended(_) = pod.phase() {
                // It ended unwatched, so there is nothing to report.
                tracing::info!(pod = %id, "deleted a pod of a dead spawner");
                self.state.delete_in_background(&id, Some(NO_GRACE));
                continue;
            }
            let record = PodRecord {
                created_at: Some(Instant::now()),
                ..PodRecord::default()
            };
            self.pods.insert(id.clone(), record);
            self.handle_pod(&pod);
            taken.push(id);
        }
        Ok(taken)
    }

    async fn next_event(&mut self) -> (LaunchId, WorkerEvent) {
        loop {
            if let Some(event) = self.worker_events.pop_front() {
                return event;
            }
            let deadline = self.next_deadline();
            let late = async {
                match deadline {
                    Some(at) => sleep_until(at).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                event = self.events.recv() => self.handle_event(event.expect("the other end is own_ids")),
                () = late => self.fail_late(Instant::now(), PodRecord::start_deadline),
            }
        }
    }

    fn broadcast(&mut self, command: BroadcastCommand) {
        for (id, record) in self.pods.iter_mut().filter(|(_, record)| !record.is_over) {
            let grace = match command {
                // A node sends one SIGTERM, and another when the grace period is shortened.
                BroadcastCommand::Stop if record.asked.is_none() && record.runs_since.is_some() => {
                    None
                }
                BroadcastCommand::Stop => Some(RELEASE_GRACE),
                BroadcastCommand::Release => Some(RELEASE_GRACE_AT_EXIT),
                BroadcastCommand::Kill => Some(SHORTEST_GRACE),
            };
            record.asked = Some(grace);
            // A pod that does not exist yet is deleted when it does, one that cannot handle SIGTERM
            // when it can.
            if record.created_at.is_some() && !record.ignores_sigterm() {
                self.state.delete_in_background(id, grace);
            }
        }
    }

    fn discard(&mut self, id: &LaunchId) {
        if let Some(record) = self.pods.get_mut(id).filter(|record| !record.is_over) {
            record.asked = Some(Some(SHORTEST_GRACE));
            self.state.delete_in_background(id, Some(SHORTEST_GRACE));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use jiff::Timestamp;
    use raddle_model::worker::WorkerStatus;
    use serde_json::json;

    use super::{
        super::{super::ClusterConfig, template::tests::sample_template},
        *,
    };

    /// A launcher whose API server does not exist.
    fn pods() -> KubernetesLauncher {
        let cluster = ClusterConfig {
            server: Some("http://127.0.0.1:9".into()),
            ..ClusterConfig::default()
        };
        KubernetesLauncher::new(
            ClusterAccess::find(&cluster, Path::new("/")).unwrap(),
            sample_template(),
        )
    }

    fn tid(number: u64) -> Tid {
        Tid::from_u64(1_700_000_000_000_000_000 + number).unwrap()
    }

    fn entry(host: &str, load: f64) -> WorkerEntry {
        let info = WorkerInfo {
            capabilities: "cpu".parse().unwrap(),
            queues: vec!["default".into()],
            concurrency: 1,
            pid: 1,
            host: host.into(),
            ..WorkerInfo::new("worker", "one-shot")
        };
        let (status, started_at) = (WorkerStatus::Active, Timestamp::UNIX_EPOCH);
        WorkerEntry {
            tid: tid(7),
            info,
            status,
            load,
            spawned_count: 0,
            started_at,
            queue: None,
        }
    }

    fn ended(name: &str, message: &str) -> Pod {
        let state = json!({ "terminated": { "exitCode": 0, "message": message } });
        let status = json!({ "phase": "Succeeded", "containerStatuses": [{ "name": "worker", "state": state }] });
        serde_json::from_value(json!({ "metadata": { "name": name }, "status": status })).unwrap()
    }

    #[tokio::test]
    async fn a_pod_missing_from_a_list_is_gone_if_it_existed_before() {
        let mut pods = pods();
        let (old, new) = (
            pods.launch(tid(1)).await.unwrap(),
            pods.launch(tid(1)).await.unwrap(),
        );
        let unmade = pods.launch(tid(1)).await.unwrap();
        let requested_at = Instant::now() + Duration::from_secs(1);
        pods.handle_event(PodEvent::Created {
            id: old.clone(),
            at: requested_at - Duration::from_millis(1),
        });
        pods.handle_event(PodEvent::Created {
            id: new.clone(),
            at: requested_at + Duration::from_millis(1),
        });
        pods.handle_event(PodEvent::Listed {
            pods: Vec::new(),
            requested_at,
        });
        assert_eq!(
            pods.worker_events,
            [(old, WorkerEvent::Exited(ExitKind::Unknown))]
        );
        assert!(pods.pods.contains_key(&new) && pods.pods.contains_key(&unmade));
    }

    #[tokio::test(start_paused = true)]
    async fn gives_up_a_running_pod_that_does_not_register() {
        let mut pods = pods();
        let (one, two) = (
            pods.launch(tid(1)).await.unwrap(),
            pods.launch(tid(1)).await.unwrap(),
        );
        for id in [&one, &two] {
            pods.handle_event(PodEvent::Created {
                id: id.clone(),
                at: Instant::now(),
            });
            let state = json!({ "running": {} });
            let status = json!({ "phase": "Running", "containerStatuses": [{ "name": "worker", "state": state }] });
            let pod = json!({ "metadata": { "name": id.as_str() }, "status": status });
            pods.handle_event(PodEvent::Changed(WatchEvent::Modified(
                serde_json::from_value(pod).unwrap(),
            )));
        }
        assert_eq!(pods.next_deadline(), None, "the registry was not read");
        tokio::time::advance(READY_TIMEOUT).await;
        pods.observe_registry(&[entry(one.as_str(), 0.0)]);
        assert!(!pods.pods[&one].is_over && pods.pods[&two].is_over);
    }

    #[tokio::test]
    async fn stops_a_running_pod_when_it_can_handle_the_signal() {
        let mut pods = pods();
        let (runs, waits) = (
            pods.launch(tid(1)).await.unwrap(),
            pods.launch(tid(1)).await.unwrap(),
        );
        pods.pods.get_mut(&runs).unwrap().runs_since = Some(Instant::now());
        pods.broadcast(BroadcastCommand::Stop);
        assert!(pods.pods[&runs].ignores_sigterm() && !pods.pods[&waits].ignores_sigterm());
        assert!(
            pods.pods[&waits].asked == Some(Some(RELEASE_GRACE)),
            "it has no task yet"
        );
        pods.observe_registry(&[entry(runs.as_str(), 1.0)]);
        assert!(!pods.pods[&runs].ignores_sigterm());
        assert!(pods.pods[&runs].asked == Some(None), "it has one");
    }

    #[tokio::test]
    async fn reports_registry_and_termination_message_once() {
        let mut pods = pods();
        let (one, two) = (
            pods.launch(tid(1)).await.unwrap(),
            pods.launch(tid(1)).await.unwrap(),
        );
        assert_eq!(
            pods.recognise(&entry(one.as_str(), 0.0).info),
            Some(one.clone())
        );
        for load in [0.0, 0.0, 1.0, 1.0] {
            pods.observe_registry(&[entry(one.as_str(), load), entry("elsewhere", load)]);
        }
        pods.handle_event(PodEvent::Changed(WatchEvent::Deleted(ended(
            one.as_str(),
            &format!("{}\nbegun\n", tid(7)),
        ))));
        // It started and ended between two reads.
        pods.handle_event(PodEvent::Changed(WatchEvent::Deleted(ended(
            two.as_str(),
            &format!("{}\nbegun\n", tid(8)),
        ))));
        let expected = [
            (one.clone(), WorkerEvent::Ready(tid(7))),
            (one.clone(), WorkerEvent::TaskClaimed),
            (one, WorkerEvent::Exited(ExitKind::Code(0))),
            (two.clone(), WorkerEvent::Ready(tid(8))),
            (two.clone(), WorkerEvent::TaskClaimed),
            (two, WorkerEvent::Exited(ExitKind::Code(0))),
        ];
        assert_eq!(pods.worker_events, expected);
        assert!(pods.pods.is_empty());
    }
}
