//! The launcher: starting containers, taking charge of what another has left, passing orders on.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    thread,
};

use async_trait::async_trait;
use bollard::{
    models::{ContainerCreateBody, ContainerSummary, ContainerSummaryStateEnum},
    query_parameters::ListContainersOptionsBuilder,
};
use raddle_model::{Tid, worker::WorkerInfo};
use tokio::sync::{OnceCell, Semaphore, mpsc};

use raddle_container::{ContainerLimits, LaunchError};

use super::{BindMount, DockerEngine, WorkerClass, hardened_host_config, watch};
use crate::{
    class::{CLASS, SPAWNER},
    launcher::{BroadcastCommand, LaunchId, Launcher, SPAWNER_VARIABLE, WorkerEvent},
};

/// What containers are made from. Nothing secret is in any of it but in `env`.
#[derive(Clone, Debug)]
pub struct ContainerTemplate {
    /// The image, whose entrypoint is a program that says on its standard output first its worker's id and then, when it has its task,
    /// anything else, a line each.
    pub image: String,
    /// What they have in common.
    pub class: WorkerClass,
    /// The arguments of the program.
    pub args: Vec<String>,
    /// Its environment.
    pub env: Vec<(String, String)>,
    /// What else the containers are labelled with.
    pub labels: BTreeMap<String, String>,
    /// Who it is run by: user and group, neither of them root.
    pub user: (u32, u32),
    /// What a container may use.
    pub allowance: ContainerLimits,
    /// A seccomp profile, instead of the engine's own.
    pub seccomp: Option<String>,
    /// The directories that it sees.
    pub mounts: Vec<BindMount>,
    /// Whether the worker puts its task into a sandbox, inside the container.
    pub nests: bool,
}

/// Starts containers.
pub struct DockerLauncher {
    yard: Arc<DockerState>,
    /// Those that are there, and the way to the task that looks after each.
    orders: HashMap<LaunchId, mpsc::UnboundedSender<BroadcastCommand>>,
    news: mpsc::UnboundedReceiver<(LaunchId, WorkerEvent)>,
}

/// What all that look after containers share.
pub(super) struct DockerState {
    pub(super) engine: DockerEngine,
    pub(super) model: ContainerTemplate,
    /// An engine starts no more at a time than it has processors for; one after the other they are sooner ready.
    pub(super) turns: Semaphore,
    /// Whether the engine was found to be one that workers can be entrusted to.
    pub(super) checked: OnceCell<()>,
    pub(super) tell: mpsc::UnboundedSender<(LaunchId, WorkerEvent)>,
}

/// Where a worker is when it starts, and what it may write to.
const DIRECTORY: &str = "/tmp";
/// How long, in seconds, a container may be there before it is started.
const STARTED_WITHIN: i64 = 60;

impl ContainerTemplate {
    /// A container of this name, for this spawner.
    pub(super) fn body(&self, name: &str, spawner: Tid) -> ContainerCreateBody {
        let mut labels: HashMap<String, String> = self.labels.clone().into_iter().collect();
        labels.insert(CLASS.into(), self.class.as_str().into());
        labels.insert(SPAWNER.into(), spawner.to_string());
        let (user, group) = self.user;
        let mut host = hardened_host_config(&self.allowance, &self.mounts, self.seccomp.as_deref());
        if self.nests {
            // The kernel lets a namespace mount its own `/proc` only where nothing in the one around it is covered. Without root and
            // capabilities, file permissions protect what the engine covers otherwise.
            (host.masked_paths, host.readonly_paths) = (Some(Vec::new()), Some(Vec::new()));
        }
        let env = self
            .env
            .iter()
            .cloned()
            .chain([(SPAWNER_VARIABLE.to_owned(), spawner.to_string())]);
        ContainerCreateBody {
            hostname: Some(name.into()),
            user: Some(format!("{user}:{group}")),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            env: Some(env.map(|(key, value)| format!("{key}={value}")).collect()),
            cmd: Some(self.args.clone()),
            image: Some(self.image.clone()),
            working_dir: Some(DIRECTORY.into()),
            labels: Some(labels),
            host_config: Some(host),
            ..ContainerCreateBody::default()
        }
    }
}

impl DockerLauncher {
    /// A launcher that has started nothing yet.
    pub fn new(engine: DockerEngine, model: ContainerTemplate) -> Self {
        // At most a few for each container, so the channel needs no bound.
        let (tell, news) = mpsc::unbounded_channel();
        let turns =
            Semaphore::new(thread::available_parallelism().map_or(2, |cores| cores.get().max(2)));
        let yard = DockerState {
            engine,
            model,
            turns,
            checked: OnceCell::new(),
            tell,
        };
        Self {
            yard: Arc::new(yard),
            orders: HashMap::new(),
            news,
        }
    }

    /// Has a container looked after, until it is gone.
    fn look_after(&mut self, id: &LaunchId, origin: watch::ContainerOrigin) {
        let (order, orders) = mpsc::unbounded_channel();
        self.orders.insert(id.clone(), order);
        // It ends with its container, or stays behind with one that outlives this.
        tokio::spawn(watch::look_after(
            Arc::clone(&self.yard),
            id.clone(),
            origin,
            orders,
        ));
    }
}

#[async_trait]
impl Launcher for DockerLauncher {
    async fn launch(&mut self, spawner: Tid) -> Result<LaunchId, LaunchError> {
        let id = self.yard.model.class.new_id();
        self.look_after(&id, watch::ContainerOrigin::New(spawner));
        Ok(id)
    }

    fn recognise(&self, info: &WorkerInfo) -> Option<LaunchId> {
        self.yard
            .model
            .class
            .has(&info.host)
            .then(|| LaunchId::named(&info.host))
    }

    async fn inherit(&mut self, alive: &[Tid]) -> Result<Vec<LaunchId>, LaunchError> {
        let DockerState { engine, model, .. } = &*self.yard;
        let options = ListContainersOptionsBuilder::default().all(true);
        let options = options
            .filters(&HashMap::from([("label", vec![CLASS])]))
            .build();
        let listed = async { engine.client()?.list_containers(Some(options)).await };
        let listed = listed
            .await
            .map_err(|error| engine.launch_error(&error, &model.image))?;
        let now = jiff::Timestamp::now().as_second();
        for name in listed
            .iter()
            .filter_map(|found| stranded(found, &model.class, alive, now))
        {
            tracing::info!(
                container = name,
                "removed a container that was made and never started"
            );
            if let Err(error) = engine.remove(name).await {
                // It is in nobody's way.
                tracing::warn!(container = name, %error, "a container that was never started is left behind");
            }
        }
        let left = listed
            .into_iter()
            .filter_map(|found| FoundContainer::of(&found, &model.class));
        let left: Vec<FoundContainer> = left
            .filter(|left| !self.orders.contains_key(&left.id) && !left.is_of(alive))
            .collect();
        let mut taken = Vec::new();
        for FoundContainer { id, runs, .. } in left {
            if runs {
                self.look_after(&id, watch::ContainerOrigin::Left);
                taken.push(id);
                continue;
            }
            // Made and never started, or ended while nobody was there.
            tracing::info!(container = %id, "removed a container that another spawner has left");
            let removed = self.yard.engine.remove(id.as_str()).await;
            removed.map_err(|error| {
                self.yard
                    .engine
                    .launch_error(&error, &self.yard.model.image)
            })?;
        }
        Ok(taken)
    }

    async fn next(&mut self) -> (LaunchId, WorkerEvent) {
        let (id, news) = self.news.recv().await.expect("the other end is ours");
        if let WorkerEvent::Gone(_) | WorkerEvent::Failed(_) = news {
            self.orders.remove(&id);
        }
        (id, news)
    }

    fn tell(&mut self, what: BroadcastCommand) {
        for orders in self.orders.values() {
            // Refused only by one that is gone.
            let _ = orders.send(what);
        }
    }

    fn discard(&mut self, id: &LaunchId) {
        if let Some(orders) = self.orders.get(id) {
            let _ = orders.send(BroadcastCommand::Kill);
        }
    }
}

/// A container that was found.
struct FoundContainer {
    id: LaunchId,
    spawner: Option<Tid>,
    runs: bool,
}

impl FoundContainer {
    /// `None` if it is none of ours: labels can be put on anything.
    fn of(found: &ContainerSummary, class: &WorkerClass) -> Option<Self> {
        let name = found
            .names
            .as_ref()?
            .iter()
            .find_map(|name| name.strip_prefix('/').filter(|name| class.has(name)))?;
        let spawner = found
            .labels
            .as_ref()
            .and_then(|labels| labels.get(SPAWNER)?.parse().ok());
        let over = [
            ContainerSummaryStateEnum::CREATED,
            ContainerSummaryStateEnum::EXITED,
            ContainerSummaryStateEnum::DEAD,
        ];
        let runs = found.state.is_none_or(|state| !over.contains(&state));
        Some(Self {
            id: LaunchId::named(name),
            spawner,
            runs,
        })
    }

    fn is_of(&self, spawners: &[Tid]) -> bool {
        self.spawner
            .is_some_and(|spawner| spawners.contains(&spawner))
    }
}

/// The name of a container of another class that nobody will start: it was made a while ago, by a spawner that is gone. The next of its own class
/// may never come. One that serves another broker is not among those that are `alive`, and so the time has to tell: between making
/// and starting a container is a moment.
fn stranded<'a>(
    found: &'a ContainerSummary,
    own: &WorkerClass,
    alive: &[Tid],
    now: i64,
) -> Option<&'a str> {
    let labels = found.labels.as_ref()?;
    let class = WorkerClass::named(labels.get(CLASS)?).filter(|class| class != own)?;
    let spawner: Tid = labels.get(SPAWNER)?.parse().ok()?;
    let is_old = found
        .created
        .is_some_and(|at| now.saturating_sub(at) > STARTED_WITHIN);
    if found.state != Some(ContainerSummaryStateEnum::CREATED)
        || alive.contains(&spawner)
        || !is_old
    {
        return None;
    }
    found
        .names
        .as_ref()?
        .iter()
        .find_map(|name| name.strip_prefix('/').filter(|name| class.has(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> ContainerTemplate {
        ContainerTemplate {
            image: "raddle".into(),
            class: WorkerClass::new("sqlite:/a", &"cpu".parse().unwrap(), &["default".into()]),
            args: vec!["worker".into(), "start".into()],
            env: vec![("QUEUE_URL".into(), "redis://:hidden@broker".into())],
            labels: BTreeMap::from([("raddle.caps".into(), "cpu".into())]),
            user: (65532, 65532),
            allowance: ContainerLimits::default(),
            seccomp: None,
            mounts: Vec::new(),
            nests: false,
        }
    }

    #[test]
    fn a_secret_is_in_the_environment_alone() {
        let spawner: Tid = "1794800817069096960".parse().unwrap();
        let body = model().body("raddle-x-1", spawner);
        let env = [
            "QUEUE_URL=redis://:hidden@broker".to_owned(),
            format!("{SPAWNER_VARIABLE}={spawner}"),
        ];
        assert_eq!(body.env.as_deref(), Some(&env[..]));
        assert_eq!(
            (body.user.as_deref(), body.hostname.as_deref()),
            (Some("65532:65532"), Some("raddle-x-1"))
        );
        assert_eq!(body.labels.as_ref().unwrap()[SPAWNER], spawner.to_string());
        assert!(!format!("{:?}", ContainerCreateBody { env: None, ..body }).contains("hidden"));
    }

    #[test]
    fn the_engine_covers_parts_of_proc_unless_a_sandbox_needs_its_own() {
        let spawner: Tid = "1794800817069096960".parse().unwrap();
        let covered = |nests| {
            let host = ContainerTemplate { nests, ..model() }
                .body("raddle-x-1", spawner)
                .host_config
                .unwrap();
            (host.masked_paths, host.readonly_paths)
        };
        assert_eq!(covered(false), (None, None), "the engine's own");
        assert_eq!(covered(true), (Some(Vec::new()), Some(Vec::new())));
    }

    #[test]
    fn what_was_left_is_known_by_its_name_and_label() {
        let (class, tid) = (model().class, "1794800817069096960");
        let found = |name: &str, state| ContainerSummary {
            names: Some(vec![format!("/{name}")]),
            labels: Some(HashMap::from([(SPAWNER.into(), tid.into())])),
            state: Some(state),
            ..ContainerSummary::default()
        };
        let id = class.new_id();
        let name = id.as_str();
        let running =
            FoundContainer::of(&found(name, ContainerSummaryStateEnum::RUNNING), &class).unwrap();
        assert!(running.runs && running.is_of(&[tid.parse().unwrap()]) && !running.is_of(&[]));
        assert!(
            !FoundContainer::of(&found(name, ContainerSummaryStateEnum::CREATED), &class)
                .unwrap()
                .runs
        );
        assert!(
            FoundContainer::of(
                &found("postgres", ContainerSummaryStateEnum::RUNNING),
                &class
            )
            .is_none()
        );
    }

    #[test]
    fn what_was_never_started_is_removed_whatever_its_class_is() {
        let (own, other) = (
            model().class,
            WorkerClass::new("sqlite:/b", &"cpu".parse().unwrap(), &["default".into()]),
        );
        let (tid, now) = ("1794800817069096960", 1_800_000_000);
        let found = |class: &WorkerClass, name: &str, age: i64| ContainerSummary {
            names: Some(vec![format!("/{name}")]),
            labels: Some(HashMap::from([
                (SPAWNER.into(), tid.into()),
                (CLASS.into(), class.as_str().into()),
            ])),
            state: Some(ContainerSummaryStateEnum::CREATED),
            created: Some(now - age),
            ..ContainerSummary::default()
        };
        let id = other.new_id();
        let name = id.as_str();
        let old = found(&other, name, 61);
        assert_eq!(stranded(&old, &own, &[], now), Some(name));
        assert_eq!(
            stranded(&old, &own, &[tid.parse().unwrap()], now),
            None,
            "its spawner may start it"
        );
        assert_eq!(
            stranded(&old, &other, &[], now),
            None,
            "those of our own are looked after elsewhere"
        );
        let running = ContainerSummary {
            state: Some(ContainerSummaryStateEnum::RUNNING),
            ..old.clone()
        };
        let foreign = ContainerSummary {
            labels: None,
            ..old
        };
        for left in [
            running,
            foreign,
            found(&other, name, 60),
            found(&other, name, -9),
            found(&other, "db", 61),
        ] {
            assert_eq!(stranded(&left, &own, &[], now), None, "{left:?}");
        }
    }
}
