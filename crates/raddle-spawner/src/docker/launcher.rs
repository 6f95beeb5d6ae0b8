//! `DockerLauncher`: starting containers, adopting those of dead spawners, forwarding commands.

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

/// How containers are created. Only `env` may contain secrets.
#[derive(Clone, Debug)]
pub struct ContainerTemplate {
    /// The image. Its entrypoint must be this program, which reports on stdout: first its worker
    /// id, then any line when it has a task.
    pub image: String,
    /// Their class.
    pub class: WorkerClass,
    /// The arguments of the program.
    pub args: Vec<String>,
    /// Its environment.
    pub env: Vec<(String, String)>,
    /// Further labels.
    pub labels: BTreeMap<String, String>,
    /// User and group, neither of them root.
    pub user: (u32, u32),
    /// Limits of a container.
    pub limits: ContainerLimits,
    /// A seccomp profile that replaces the engine's default.
    pub seccomp: Option<String>,
    /// Directories that it sees.
    pub mounts: Vec<BindMount>,
    /// Whether the worker puts its task into a sandbox inside the container.
    pub has_sandbox: bool,
}

/// Starts workers in containers.
pub struct DockerLauncher {
    state: Arc<DockerState>,
    /// The channel to the task that watches each container.
    commands: HashMap<LaunchId, mpsc::UnboundedSender<BroadcastCommand>>,
    event: mpsc::UnboundedReceiver<(LaunchId, WorkerEvent)>,
}

/// The state that all container watches share.
pub(super) struct DockerState {
    pub(super) engine: DockerEngine,
    pub(super) template: ContainerTemplate,
    /// Limits parallel starts: an engine uses one core per start, and a queue makes each ready
    /// sooner.
    pub(super) start_permits: Semaphore,
    /// Whether the engine was checked for a seccomp filter.
    pub(super) checked: OnceCell<()>,
    pub(super) events_tx: mpsc::UnboundedSender<(LaunchId, WorkerEvent)>,
}

/// Working directory of a worker, and the only one that it can write to.
const DIRECTORY: &str = "/tmp";
/// How long, in seconds, a container may exist before it is started.
const MAX_UNSTARTED_SECS: i64 = 60;

impl ContainerTemplate {
    /// The configuration of a container with this name, for this spawner.
    pub(super) fn create_body(&self, name: &str, spawner: Tid) -> ContainerCreateBody {
        let mut labels: HashMap<String, String> = self.labels.clone().into_iter().collect();
        labels.insert(CLASS.into(), self.class.as_str().into());
        labels.insert(SPAWNER.into(), spawner.to_string());
        let (user, group) = self.user;
        let mut host = hardened_host_config(&self.limits, &self.mounts, self.seccomp.as_deref());
        if self.has_sandbox {
            // The kernel allows a user namespace to mount `/proc` only if nothing in the outer
            // `/proc` is masked. Without root and capabilities, file permissions protect what the
            // engine masks otherwise.
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
    /// A launcher without workers.
    pub fn new(engine: DockerEngine, template: ContainerTemplate) -> Self {
        // A few events per container, so the channel needs no bound.
        let (events_tx, event) = mpsc::unbounded_channel();
        let start_permits =
            Semaphore::new(thread::available_parallelism().map_or(2, |cores| cores.get().max(2)));
        let state = DockerState {
            engine,
            template,
            start_permits,
            checked: OnceCell::new(),
            events_tx,
        };
        Self {
            state: Arc::new(state),
            commands: HashMap::new(),
            event,
        }
    }

    /// Watches a container until it is gone.
    fn watch_container(&mut self, id: &LaunchId, origin: watch::ContainerOrigin) {
        let (commands_tx, commands) = mpsc::unbounded_channel();
        self.commands.insert(id.clone(), commands_tx);
        // Ends with its container, or outlives this launcher together with it.
        tokio::spawn(watch::watch_container(
            Arc::clone(&self.state),
            id.clone(),
            origin,
            commands,
        ));
    }
}

#[async_trait]
impl Launcher for DockerLauncher {
    async fn launch(&mut self, spawner: Tid) -> Result<LaunchId, LaunchError> {
        let id = self.state.template.class.new_id();
        self.watch_container(&id, watch::ContainerOrigin::New(spawner));
        Ok(id)
    }

    fn recognise(&self, info: &WorkerInfo) -> Option<LaunchId> {
        self.state
            .template
            .class
            .matches(&info.host)
            .then(|| LaunchId::named(&info.host))
    }

    async fn adopt(&mut self, alive: &[Tid]) -> Result<Vec<LaunchId>, LaunchError> {
        let DockerState {
            engine, template, ..
        } = &*self.state;
        let options = ListContainersOptionsBuilder::default().all(true);
        let options = options
            .filters(&HashMap::from([("label", vec![CLASS])]))
            .build();
        let listed = async { engine.client()?.list_containers(Some(options)).await };
        let listed = listed
            .await
            .map_err(|error| engine.launch_error(&error, &template.image))?;
        let now = jiff::Timestamp::now().as_second();
        for name in listed
            .iter()
            .filter_map(|found| never_started(found, &template.class, alive, now))
        {
            tracing::info!(
                container = name,
                "removed a container that was created and never started"
            );
            if let Err(error) = engine.remove(name).await {
                // It does no harm.
                tracing::warn!(container = name, %error, "could not remove a container that was never started");
            }
        }
        let left = listed
            .into_iter()
            .filter_map(|found| FoundContainer::parse(&found, &template.class));
        let left: Vec<FoundContainer> = left
            .filter(|left| !self.commands.contains_key(&left.id) && !left.belongs_to(alive))
            .collect();
        let mut taken = Vec::new();
        for FoundContainer { id, is_running, .. } in left {
            if is_running {
                self.watch_container(&id, watch::ContainerOrigin::Adopted);
                taken.push(id);
                continue;
            }
            // Created and never started, or ended unwatched.
            tracing::info!(container = %id, "removed a container of a dead spawner");
            let removed = self.state.engine.remove(id.as_str()).await;
            removed.map_err(|error| {
                self.state
                    .engine
                    .launch_error(&error, &self.state.template.image)
            })?;
        }
        Ok(taken)
    }

    async fn next_event(&mut self) -> (LaunchId, WorkerEvent) {
        let (id, event) = self.event.recv().await.expect("the other end is ours");
        if let WorkerEvent::Exited(_) | WorkerEvent::Failed(_) = event {
            self.commands.remove(&id);
        }
        (id, event)
    }

    fn broadcast(&mut self, command: BroadcastCommand) {
        for commands in self.commands.values() {
            // Fails only if the container is gone.
            let _ = commands.send(command);
        }
    }

    fn discard(&mut self, id: &LaunchId) {
        if let Some(commands) = self.commands.get(id) {
            let _ = commands.send(BroadcastCommand::Kill);
        }
    }
}

/// A container of this class.
struct FoundContainer {
    id: LaunchId,
    spawner: Option<Tid>,
    is_running: bool,
}

impl FoundContainer {
    /// `None` if it is not ours: anyone can set labels.
    fn parse(found: &ContainerSummary, class: &WorkerClass) -> Option<Self> {
        let name = found
            .names
            .as_ref()?
            .iter()
            .find_map(|name| name.strip_prefix('/').filter(|name| class.matches(name)))?;
        let spawner = found
            .labels
            .as_ref()
            .and_then(|labels| labels.get(SPAWNER)?.parse().ok());
        let over = [
            ContainerSummaryStateEnum::CREATED,
            ContainerSummaryStateEnum::EXITED,
            ContainerSummaryStateEnum::DEAD,
        ];
        let is_running = found.state.is_none_or(|state| !over.contains(&state));
        Some(Self {
            id: LaunchId::named(name),
            spawner,
            is_running,
        })
    }

    fn belongs_to(&self, spawners: &[Tid]) -> bool {
        self.spawner
            .is_some_and(|spawner| spawners.contains(&spawner))
    }
}

/// The name of a container of another class that will never be started: a dead spawner created it a
/// while ago, and its own class may have no spawner any more. Spawners of other brokers are not in
/// `alive`, so the age decides: between creating and starting a container there is only a moment.
fn never_started<'a>(
    found: &'a ContainerSummary,
    own: &WorkerClass,
    alive: &[Tid],
    now: i64,
) -> Option<&'a str> {
    let labels = found.labels.as_ref()?;
    let class = WorkerClass::parse(labels.get(CLASS)?).filter(|class| class != own)?;
    let spawner: Tid = labels.get(SPAWNER)?.parse().ok()?;
    let is_old = found
        .created
        .is_some_and(|at| now.saturating_sub(at) > MAX_UNSTARTED_SECS);
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
        .find_map(|name| name.strip_prefix('/').filter(|name| class.matches(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template() -> ContainerTemplate {
        ContainerTemplate {
            image: "raddle".into(),
            class: WorkerClass::new("sqlite:/a", &"cpu".parse().unwrap(), &["default".into()]),
            args: vec!["worker".into(), "start".into()],
            env: vec![("QUEUE_URL".into(), "redis://:hidden@broker".into())],
            labels: BTreeMap::from([("raddle.caps".into(), "cpu".into())]),
            user: (65532, 65532),
            limits: ContainerLimits::default(),
            seccomp: None,
            mounts: Vec::new(),
            has_sandbox: false,
        }
    }

    #[test]
    fn only_the_environment_contains_the_secret() {
        let spawner: Tid = "1794800817069096960".parse().unwrap();
        let body = template().create_body("raddle-x-1", spawner);
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
    fn unmasks_proc_only_for_sandboxes() {
        let spawner: Tid = "1794800817069096960".parse().unwrap();
        let covered = |has_sandbox| {
            let host = ContainerTemplate {
                has_sandbox,
                ..template()
            }
            .create_body("raddle-x-1", spawner)
            .host_config
            .unwrap();
            (host.masked_paths, host.readonly_paths)
        };
        assert_eq!(covered(false), (None, None), "the engine's defaults");
        assert_eq!(covered(true), (Some(Vec::new()), Some(Vec::new())));
    }

    #[test]
    fn recognises_containers_by_name_and_label() {
        let (class, tid) = (template().class, "1794800817069096960");
        let found = |name: &str, state| ContainerSummary {
            names: Some(vec![format!("/{name}")]),
            labels: Some(HashMap::from([(SPAWNER.into(), tid.into())])),
            state: Some(state),
            ..ContainerSummary::default()
        };
        let id = class.new_id();
        let name = id.as_str();
        let running =
            FoundContainer::parse(&found(name, ContainerSummaryStateEnum::RUNNING), &class)
                .unwrap();
        assert!(
            running.is_running
                && running.belongs_to(&[tid.parse().unwrap()])
                && !running.belongs_to(&[])
        );
        assert!(
            !FoundContainer::parse(&found(name, ContainerSummaryStateEnum::CREATED), &class)
                .unwrap()
                .is_running
        );
        assert!(
            FoundContainer::parse(
                &found("postgres", ContainerSummaryStateEnum::RUNNING),
                &class
            )
            .is_none()
        );
    }

    #[test]
    fn removes_containers_that_were_never_started() {
        let (own, other) = (
            template().class,
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
        assert_eq!(never_started(&old, &own, &[], now), Some(name));
        assert_eq!(
            never_started(&old, &own, &[tid.parse().unwrap()], now),
            None,
            "its spawner may start it"
        );
        assert_eq!(
            never_started(&old, &other, &[], now),
            None,
            "its own class is handled elsewhere"
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
            assert_eq!(never_started(&left, &own, &[], now), None, "{left:?}");
        }
    }
}
