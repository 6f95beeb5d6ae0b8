//! The launcher: what is known of each pod, and what is told of it.

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
    pod::{Pod, PodExit, PodFate, TerminationMessage},
    template::PodTemplate,
    watch,
};
use crate::{
    class::CLASS,
    launcher::{BroadcastCommand, LaunchId, Launcher, WorkerEvent},
    worker_table::is_busy,
};

/// Starts pods.
pub struct KubernetesLauncher {
    yard: Arc<PodState>,
    members: HashMap<LaunchId, PodRecord>,
    /// The spawners that we are, or were.
    ours: HashSet<Tid>,
    events: mpsc::UnboundedReceiver<PodEvent>,
    news: VecDeque<(LaunchId, WorkerEvent)>,
    /// Follows what pods there are. It ends with the launcher.
    _watching: JoinSet<()>,
}

/// What all that deal with pods share.
pub(super) struct PodState {
    pub(super) api: Api,
    pub(super) model: PodTemplate,
    /// Few at a time: the server has other clients, and throttles who asks for much at once.
    pub(super) turns: Semaphore,
    /// As many as pods change, and they are dealt with at once: the channel needs no bound.
    tell: mpsc::UnboundedSender<PodEvent>,
}

/// What happens.
#[derive(Debug)]
pub(super) enum PodEvent {
    /// A pod was made.
    Created { id: LaunchId, at: Instant },
    /// It was not, and will not be.
    NotCreated { id: LaunchId, error: LaunchError },
    /// These are all there were at a moment after this.
    Listed { pods: Vec<Pod>, asked_at: Instant },
    /// Something has happened to one.
    Changed(WatchEvent),
    /// What was over is removed, and can be told.
    Cleared { id: LaunchId, news: WorkerEvent },
}

#[derive(Debug, Default)]
struct PodRecord {
    /// When it was launched here. Without that, another spawner has left it.
    launched_at: Option<Instant>,
    /// When it was certain that it was there.
    created_at: Option<Instant>,
    runs_since: Option<Instant>,
    /// What it waits for.
    why: Option<String>,
    is_ready: bool,
    has_begun: bool,
    /// How it was asked to leave, if it was.
    asked: Option<GracePeriod>,
    /// It is over, and being removed.
    is_over: bool,
}

/// How many seconds a pod may take to leave. `None` is as long as its spec says, for its worker to finish what it runs.
type GracePeriod = Option<u32>;

const AT_A_TIME: usize = 8;
/// How long the worker of a pod that runs may take to be registered. What is no worker, and does not end either, is not kept.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long a worker may take to give back what it runs, when it is told a second time, and when the spawner will not wait any more.
const GIVE_BACK: u32 = 20;
const GIVE_BACK_NOW: u32 = 3;
/// The least for which a node is waited for to say that nothing runs any more.
const AT_ONCE: u32 = 1;
/// For what does not run.
const IS_OVER: u32 = 0;

impl KubernetesLauncher {
    /// A launcher that has started nothing yet, and follows what pods of its class there are.
    pub fn new(access: ClusterAccess, model: PodTemplate) -> Self {
        let (tell, events) = mpsc::unbounded_channel();
        let api = Api::new(access, (CLASS, model.class.as_str()));
        let yard = Arc::new(PodState {
            api,
            model,
            turns: Semaphore::new(AT_A_TIME),
            tell,
        });
        let mut watching = JoinSet::new();
        watching.spawn(watch::follow(Arc::clone(&yard)));
        Self {
            yard,
            members: HashMap::new(),
            ours: HashSet::new(),
            events,
            news: VecDeque::new(),
            _watching: watching,
        }
    }

    // -- what happens

    fn heed(&mut self, event: PodEvent) {
        match event {
            PodEvent::Created { id, at } => {
                if let Some(member) = self.members.get_mut(&id) {
                    member.created_at = Some(at);
                    if let Some(grace) = member.asked {
                        self.yard.dismiss(&id, grace);
                    }
                }
            }
            PodEvent::NotCreated { id, error } => self.leave(&id, WorkerEvent::Failed(error)),
            PodEvent::Listed { pods, asked_at } => self.listed(pods, asked_at),
            PodEvent::Changed(WatchEvent::Added(pod) | WatchEvent::Modified(pod)) => {
                self.seen(&pod)
            }
            PodEvent::Changed(WatchEvent::Deleted(pod)) => self.removed(&pod),
            PodEvent::Changed(WatchEvent::Bookmark(_) | WatchEvent::Error(_)) => {}
            PodEvent::Cleared { id, news } => self.leave(&id, news),
        }
    }

    /// Nothing more is told of it.
    fn leave(&mut self, id: &LaunchId, news: WorkerEvent) {
        if self.members.remove(id).is_some() {
            self.news.push_back((id.clone(), news));
        }
    }

    fn listed(&mut self, pods: Vec<Pod>, asked_at: Instant) {
        let there: HashSet<&str> = pods.iter().map(|pod| pod.metadata.name.as_str()).collect();
        let is_missing = |id: &LaunchId, member: &PodRecord| {
            !member.is_over
                && member.created_at.is_some_and(|at| at < asked_at)
                && !there.contains(id.as_str())
        };
        let missing = self
            .members
            .iter()
            .filter(|(id, member)| is_missing(id, member));
        let missing: Vec<(LaunchId, ExitKind)> = missing
            .map(|(id, member)| (id.clone(), member.left(ExitKind::Unknown)))
            .collect();
        for (id, gone) in missing {
            self.leave(&id, WorkerEvent::Gone(gone));
        }
        pods.iter().for_each(|pod| self.seen(pod));
    }

    fn seen(&mut self, pod: &Pod) {
        let id = LaunchId::named(&pod.metadata.name);
        let Some(member) = self.members.get_mut(&id) else {
            if pod
                .spawner()
                .is_some_and(|spawner| self.ours.contains(&spawner))
                && !pod.is_leaving()
            {
                // Its launch was given up when no answer came, and it was made all the same.
                self.yard.dismiss(&id, None);
            }
            return;
        };
        if member.is_over {
            return;
        }
        match pod.fate() {
            PodFate::Waits(why) => member.waits(&id, why),
            PodFate::Runs => drop(member.runs_since.get_or_insert_with(Instant::now)),
            PodFate::Stuck(error) => {
                let error = member
                    .why
                    .as_ref()
                    .map_or(error.clone(), |why| error.with(why));
                self.clear(&id, WorkerEvent::Failed(error), AT_ONCE);
            }
            PodFate::Over(over) => {
                let gone = self.hear(&id, over);
                self.clear(&id, WorkerEvent::Gone(gone), IS_OVER);
            }
        }
    }

    fn removed(&mut self, pod: &Pod) {
        let id = LaunchId::named(&pod.metadata.name);
        let Some(member) = self.members.get(&id).filter(|member| !member.is_over) else {
            return;
        };
        let gone = match pod.fate() {
            PodFate::Over(over) => self.hear(&id, over),
            _ => member.left(ExitKind::Unknown),
        };
        self.leave(&id, WorkerEvent::Gone(gone));
    }

    /// What its worker has left word of, as far as it was not seen already. Returns how it ended.
    fn hear(&mut self, id: &LaunchId, PodExit { gone, word }: PodExit) -> ExitKind {
        let Some(member) = self.members.get_mut(id) else {
            return gone;
        };
        match word {
            TerminationMessage::Worked { tid, begun } => self
                .news
                .extend(member.is_at(tid, begun).map(|news| (id.clone(), news))),
            TerminationMessage::Else(said) if !said.is_empty() => {
                tracing::warn!(worker = %id, said, "what a pod said last");
            }
            TerminationMessage::Else(_) => {}
        }
        member.left(gone)
    }

    /// Removes what is over before that is told: a spawner that leaves then leaves nothing behind.
    fn clear(&mut self, id: &LaunchId, news: WorkerEvent, grace: u32) {
        let Some(member) = self.members.get_mut(id) else {
            return;
        };
        member.is_over = true;
        let (yard, id) = (Arc::clone(&self.yard), id.clone());
        // It ends when the pod is removed, or with the process.
        tokio::spawn(async move {
            remove(&yard, &id, Some(grace)).await;
            yard.tell(PodEvent::Cleared { id, news });
        });
    }

    // -- what does not happen

    fn next_deadline(&self) -> Option<Instant> {
        self.members
            .values()
            .filter_map(|member| member.runs_by(&self.yard.model))
            .min()
    }

    fn give_up(&mut self, now: Instant, deadline: fn(&PodRecord, &PodTemplate) -> Option<Instant>) {
        let model = &self.yard.model;
        let late = self
            .members
            .iter()
            .filter(|(_, member)| deadline(member, model).is_some_and(|by| by <= now));
        let late: Vec<(LaunchId, LaunchError)> = late
            .map(|(id, member)| (id.clone(), member.too_late(model)))
            .collect();
        for (id, error) in late {
            self.clear(&id, WorkerEvent::Failed(error), AT_ONCE);
        }
    }
}

impl PodState {
    pub(super) fn tell(&self, event: PodEvent) {
        // Refused only when the launcher is gone.
        let _ = self.tell.send(event);
    }

    fn dismiss(self: &Arc<Self>, id: &LaunchId, grace: GracePeriod) {
        let (yard, id) = (Arc::clone(self), id.clone());
        // It ends when the server has taken note, or with the process.
        tokio::spawn(async move { remove(&yard, &id, grace).await });
    }
}

impl PodRecord {
    /// Its worker is known by this id, and has a task or not. Returns what of that is new.
    fn is_at(&mut self, tid: Tid, begun: bool) -> impl Iterator<Item = WorkerEvent> + use<> {
        let ready =
            (!std::mem::replace(&mut self.is_ready, true)).then_some(WorkerEvent::Ready(tid));
        let begun =
            (begun && !std::mem::replace(&mut self.has_begun, true)).then_some(WorkerEvent::Begun);
        [ready, begun].into_iter().flatten()
    }

    /// Whether it would not feel that it is asked to leave in time: a worker feels no SIGTERM before it is ready, and a node sends but one.
    fn is_deaf(&self) -> bool {
        self.runs_since.is_some() && !self.is_ready && self.asked == Some(None)
    }

    fn waits(&mut self, pod: &LaunchId, why: Option<String>) {
        if let Some(why) = why
            && self.why.as_ref() != Some(&why)
        {
            tracing::warn!(%pod, why, "a pod waits");
            self.why = Some(why);
        }
    }

    /// How it ended, as it is told: one that was asked to leave before it was a worker has done so.
    fn left(&self, gone: ExitKind) -> ExitKind {
        if self.asked.is_some() && !self.is_ready {
            ExitKind::Code(0)
        } else {
            gone
        }
    }

    /// By when it has to run. What another has left is watched by the registry.
    fn runs_by(&self, model: &PodTemplate) -> Option<Instant> {
        let waits = self.created_at.is_some() && self.runs_since.is_none() && !self.is_over;
        self.launched_at
            .filter(|_| waits)
            .map(|at| at + model.start_within)
    }

    /// By when the registry has to show it. That counts only when somebody looks: nobody does while the broker is away.
    fn ready_by(&self, _: &PodTemplate) -> Option<Instant> {
        let is_awaited = self.launched_at.is_some() && !self.is_ready && !self.is_over;
        self.runs_since
            .filter(|_| is_awaited)
            .map(|since| since + READY_WITHIN)
    }

    fn too_late(&self, model: &PodTemplate) -> LaunchError {
        if self.runs_since.is_some() {
            let (image, secs) = (&model.image, READY_WITHIN.as_secs());
            let reason = format!(
                "a pod of the image '{image}' was no worker within {secs} s: is its entrypoint this program, and does it reach the broker?"
            );
            return LaunchError::new(LaunchFailure::Image, reason);
        }
        let secs = model.start_within.as_secs();
        let why = self.why.as_deref().unwrap_or("its node has not begun");
        LaunchError::new(
            LaunchFailure::ResourcesExhausted,
            format!("a pod did not run within {secs} s: {why}"),
        )
    }
}

#[async_trait]
impl Launcher for KubernetesLauncher {
    async fn launch(&mut self, spawner: Tid) -> Result<LaunchId, LaunchError> {
        let id = self.yard.model.class.new_id();
        self.ours.insert(spawner);
        let member = PodRecord {
            launched_at: Some(Instant::now()),
            ..PodRecord::default()
        };
        self.members.insert(id.clone(), member);
        // It ends when the pod is made, or cannot be.
        tokio::spawn(create(Arc::clone(&self.yard), id.clone(), spawner));
        Ok(id)
    }

    fn recognise(&self, info: &WorkerInfo) -> Option<LaunchId> {
        self.yard
            .model
            .class
            .has(&info.host)
            .then(|| LaunchId::named(&info.host))
    }

    fn look_at(&mut self, registry: &[WorkerEntry]) {
        for entry in registry {
            let id = LaunchId::named(&entry.info.host);
            let Some(member) = self.members.get_mut(&id) else {
                continue;
            };
            let was_deaf = member.is_deaf();
            self.news.extend(
                member
                    .is_at(entry.tid, is_busy(entry))
                    .map(|news| (id.clone(), news)),
            );
            if let Some(grace) = member.asked.filter(|_| was_deaf) {
                self.yard.dismiss(&id, grace);
            }
        }
        self.give_up(Instant::now(), PodRecord::ready_by);
    }

    async fn inherit(&mut self, alive: &[Tid]) -> Result<Vec<LaunchId>, LaunchError> {
        let listing = self
            .yard
            .api
            .list()
            .await
            .map_err(|fault| LaunchError::from(&fault))?;
        let mut taken = Vec::new();
        for pod in listing.pods {
            let id = LaunchId::named(&pod.metadata.name);
            let is_alive = |spawner: Tid| alive.contains(&spawner) || self.ours.contains(&spawner);
            // Labels can be put on anything.
            let is_ours = self.yard.model.class.has(id.as_str());
            if !is_ours || self.members.contains_key(&id) || pod.spawner().is_some_and(is_alive) {
                continue;
            }
            if let PodFate::Stuck(_) | PodFate::Over(_) = pod.fate() {
                // It ended while nobody was there: nobody waits to be told.
                tracing::info!(pod = %id, "removed a pod that another spawner has left");
                self.yard.dismiss(&id, Some(IS_OVER));
                continue;
            }
            let member = PodRecord {
                created_at: Some(Instant::now()),
                ..PodRecord::default()
            };
            self.members.insert(id.clone(), member);
            self.seen(&pod);
            taken.push(id);
        }
        Ok(taken)
    }

    async fn next(&mut self) -> (LaunchId, WorkerEvent) {
        loop {
            if let Some(news) = self.news.pop_front() {
                return news;
            }
            let deadline = self.next_deadline();
            let late = async {
                match deadline {
                    Some(at) => sleep_until(at).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                event = self.events.recv() => self.heed(event.expect("the other end is ours")),
                () = late => self.give_up(Instant::now(), PodRecord::runs_by),
            }
        }
    }

    fn tell(&mut self, what: BroadcastCommand) {
        for (id, member) in self
            .members
            .iter_mut()
            .filter(|(_, member)| !member.is_over)
        {
            let grace = match what {
                // A node passes on one SIGTERM, and another when it is given less time.
                BroadcastCommand::Stop if member.asked.is_none() && member.runs_since.is_some() => {
                    None
                }
                BroadcastCommand::Stop => Some(GIVE_BACK),
                BroadcastCommand::GiveBack => Some(GIVE_BACK_NOW),
                BroadcastCommand::Kill => Some(AT_ONCE),
            };
            member.asked = Some(grace);
            // One that is not there yet is told when it is, and one that is deaf when it is not any more.
            if member.created_at.is_some() && !member.is_deaf() {
                self.yard.dismiss(id, grace);
            }
        }
    }

    fn discard(&mut self, id: &LaunchId) {
        if let Some(member) = self.members.get_mut(id).filter(|member| !member.is_over) {
            member.asked = Some(Some(AT_ONCE));
            self.yard.dismiss(id, Some(AT_ONCE));
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
        super::{super::ClusterConfig, template::tests::model},
        *,
    };

    /// A launcher whose API server is not there.
    fn pods() -> KubernetesLauncher {
        let cluster = ClusterConfig {
            server: Some("http://127.0.0.1:9".into()),
            ..ClusterConfig::default()
        };
        KubernetesLauncher::new(
            ClusterAccess::find(&cluster, Path::new("/")).unwrap(),
            model(),
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
    async fn what_a_list_lacks_is_gone_if_it_was_there_before_that_was_asked_for() {
        let mut pods = pods();
        let (old, new) = (
            pods.launch(tid(1)).await.unwrap(),
            pods.launch(tid(1)).await.unwrap(),
        );
        let unmade = pods.launch(tid(1)).await.unwrap();
        let asked_at = Instant::now() + Duration::from_secs(1);
        pods.heed(PodEvent::Created {
            id: old.clone(),
            at: asked_at - Duration::from_millis(1),
        });
        pods.heed(PodEvent::Created {
            id: new.clone(),
            at: asked_at + Duration::from_millis(1),
        });
        pods.heed(PodEvent::Listed {
            pods: Vec::new(),
            asked_at,
        });
        assert_eq!(pods.news, [(old, WorkerEvent::Gone(ExitKind::Unknown))]);
        assert!(pods.members.contains_key(&new) && pods.members.contains_key(&unmade));
    }

    #[tokio::test(start_paused = true)]
    async fn what_runs_and_is_no_worker_is_given_up_when_the_registry_does_not_show_it() {
        let mut pods = pods();
        let (one, two) = (
            pods.launch(tid(1)).await.unwrap(),
            pods.launch(tid(1)).await.unwrap(),
        );
        for id in [&one, &two] {
            pods.heed(PodEvent::Created {
                id: id.clone(),
                at: Instant::now(),
            });
            let state = json!({ "running": {} });
            let status = json!({ "phase": "Running", "containerStatuses": [{ "name": "worker", "state": state }] });
            let pod = json!({ "metadata": { "name": id.as_str() }, "status": status });
            pods.heed(PodEvent::Changed(WatchEvent::Modified(
                serde_json::from_value(pod).unwrap(),
            )));
        }
        assert_eq!(pods.next_deadline(), None, "nobody has looked");
        tokio::time::advance(READY_WITHIN).await;
        pods.look_at(&[entry(one.as_str(), 0.0)]);
        assert!(!pods.members[&one].is_over && pods.members[&two].is_over);
    }

    #[tokio::test]
    async fn one_that_runs_is_asked_to_leave_when_it_can_hear_it() {
        let mut pods = pods();
        let (runs, waits) = (
            pods.launch(tid(1)).await.unwrap(),
            pods.launch(tid(1)).await.unwrap(),
        );
        pods.members.get_mut(&runs).unwrap().runs_since = Some(Instant::now());
        pods.tell(BroadcastCommand::Stop);
        assert!(pods.members[&runs].is_deaf() && !pods.members[&waits].is_deaf());
        assert!(
            pods.members[&waits].asked == Some(Some(GIVE_BACK)),
            "it has no task yet"
        );
        pods.look_at(&[entry(runs.as_str(), 1.0)]);
        assert!(!pods.members[&runs].is_deaf());
        assert!(pods.members[&runs].asked == Some(None), "it has one");
    }

    #[tokio::test]
    async fn what_the_registry_shows_and_the_last_word_says_is_told_once() {
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
            pods.look_at(&[entry(one.as_str(), load), entry("elsewhere", load)]);
        }
        pods.heed(PodEvent::Changed(WatchEvent::Deleted(ended(
            one.as_str(),
            &format!("{}\nbegun\n", tid(7)),
        ))));
        // It came and went between two looks.
        pods.heed(PodEvent::Changed(WatchEvent::Deleted(ended(
            two.as_str(),
            &format!("{}\nbegun\n", tid(8)),
        ))));
        let expected = [
            (one.clone(), WorkerEvent::Ready(tid(7))),
            (one.clone(), WorkerEvent::Begun),
            (one, WorkerEvent::Gone(ExitKind::Code(0))),
            (two.clone(), WorkerEvent::Ready(tid(8))),
            (two.clone(), WorkerEvent::Begun),
            (two, WorkerEvent::Gone(ExitKind::Code(0))),
        ];
        assert_eq!(pods.news, expected);
        assert!(pods.members.is_empty());
    }
}
