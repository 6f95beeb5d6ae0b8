//! `Config`: `spawner.toml`, overridden by flags and environment. Values only: nothing is opened
//! here.

use std::{fmt, path::PathBuf, str::FromStr};

use raddle_model::{
    CapSet, HumanDuration, QueueName,
    spec::{DEFAULT_QUEUE, Isolation},
};
use serde::{Deserialize, Deserializer, de};

use raddle_container::ContainerLimits;

use super::cluster::ClusterConfig;

/// Settings of a spawner: the table `[spawner]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Config {
    /// The broker, if the file names it.
    pub queue_url: Option<String>,
    /// Capabilities of the workers.
    #[serde(deserialize_with = "deserialize_caps")]
    pub caps: CapSet,
    /// Queues that they serve.
    pub queues: Vec<String>,
    /// Idle workers to keep ahead of demand.
    #[serde(deserialize_with = "number_or_word")]
    pub warm_pool: WarmPool,
    /// Most workers at a time, whether starting, idle or busy.
    pub max_parallel: Option<u32>,
    /// The same: the lower of both counts. [`check`](Self::check) sets it.
    pub max_workers: Option<u32>,
    /// Longest pause between two checks when nothing happens.
    pub poll_ms: u64,
    /// Idle time after which workers exit.
    pub idle_timeout: HumanDuration,
    /// Age after which a worker takes no new task and exits.
    pub max_uptime: Option<HumanDuration>,
    /// Ratio of tasks that should find an idle worker, for an automatic warm pool.
    pub hit_target: f64,
    /// How workers are started.
    pub launcher: LauncherKind,
    /// Image of workers in containers and pods.
    pub worker_image: Option<String>,
    /// Limits of such a container.
    pub container: ContainerLimits,
    /// Settings for a Kubernetes cluster.
    pub kubernetes: ClusterConfig,
    /// Minimum isolation of tasks.
    pub min_isolation: Isolation,
    /// Image for tasks in containers.
    pub task_image: Option<String>,
    /// Handler directory of the workers.
    pub handlers: Option<PathBuf>,
    /// Use only these handlers.
    pub plugins: Option<Vec<String>>,
}

/// How many idle workers to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmPool {
    /// This many.
    Fixed(u32),
    /// As many as `hit_target` needs.
    Auto,
}

/// How workers are started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum LauncherKind {
    /// As processes of this machine.
    #[default]
    Process,
    /// As containers of a Docker engine.
    Docker,
    /// As pods of a Kubernetes cluster.
    Kubernetes,
}

/// An invalid setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at '{path}': {reason}")]
pub struct ConfigError {
    /// The key, such as `spawner.warm_pool`.
    path: String,
    /// The invalid key and the fix.
    reason: String,
}

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SpawnerFile {
    #[serde(default)]
    spawner: Config,
}

/// Default workers per core: tasks wait as often as they compute.
const WORKERS_PER_CORE: u32 = 4;
/// More workers than any machine can run, so a larger number is a mistake.
const MAX_WORKERS: u32 = 10_000;

impl Default for Config {
    fn default() -> Self {
        Self {
            queue_url: None,
            caps: CapSet::new(),
            queues: vec![DEFAULT_QUEUE.into()],
            warm_pool: WarmPool::Fixed(2),
            max_parallel: None,
            max_workers: None,
            poll_ms: 1000,
            idle_timeout: HumanDuration::secs(600),
            max_uptime: None,
            hit_target: 0.99,
            launcher: LauncherKind::Process,
            worker_image: None,
            container: ContainerLimits::default(),
            kubernetes: ClusterConfig::default(),
            min_isolation: Isolation::Process,
            task_image: None,
            handlers: None,
            plugins: None,
        }
    }
}

impl Config {
    /// Reads a `spawner.toml`.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let invalid = |path: String, error: &toml::de::Error| ConfigError {
            path,
            reason: error.message().trim_end().into(),
        };
        let reader =
            toml::Deserializer::parse(text).map_err(|error| invalid(".".into(), &error))?;
        let SpawnerFile { spawner } =
            serde_path_to_error::deserialize(reader).map_err(|error| {
                let path = error.path().to_string();
                invalid(path, &error.into_inner())
            })?;
        Ok(spawner)
    }

    /// Checks the settings, and sets the default limit for a machine with this many cores.
    pub fn check(mut self, cores: u32) -> Result<Self, ConfigError> {
        trim_all(&mut self.queues);
        trim_all(self.plugins.as_deref_mut().unwrap_or_default());
        if self.queues.is_empty() {
            return Err(error_at(
                "queues",
                "no queue is named: leave it out for the default",
            ));
        }
        for queue in &self.queues {
            queue
                .parse::<QueueName>()
                .map_err(|error| error_at("queues", error))?;
        }
        let default = cores.max(1).saturating_mul(WORKERS_PER_CORE);
        let ceiling = match self.warm_pool {
            // A fixed pool is intended, even if no limit is set.
            WarmPool::Fixed(size) => default.max(size.saturating_add(cores)),
            WarmPool::Auto => default,
        };
        for (key, stated) in [
            ("max_parallel", self.max_parallel),
            ("max_workers", self.max_workers),
        ] {
            check_range(key, stated.unwrap_or(1), 1, MAX_WORKERS)?;
        }
        let stated = [self.max_parallel, self.max_workers]
            .into_iter()
            .flatten()
            .min();
        let max_workers = *self
            .max_workers
            .insert(stated.unwrap_or(ceiling.min(MAX_WORKERS)));
        if let WarmPool::Fixed(size) = self.warm_pool
            && size > max_workers
        {
            let reason = format!(
                "{size} workers cannot be kept with a limit of {max_workers}: raise max_parallel, or lower this"
            );
            return Err(error_at("warm_pool", reason));
        }
        check_range("poll_ms", self.poll_ms, 10, 3_600_000)?;
        if !(self.hit_target > 0.0 && self.hit_target < 1.0) {
            let reason = format!("{} is not between 0 and 1: 0.99 is usual", self.hit_target);
            return Err(error_at("hit_target", reason));
        }
        if self.idle_timeout.0.is_zero() {
            return Err(error_at(
                "idle_timeout",
                "workers that exit at once are not warm: give a time",
            ));
        }
        if self.max_uptime.is_some_and(|uptime| uptime.0.is_zero()) {
            return Err(error_at(
                "max_uptime",
                "workers that are too old at once take no task: give a time",
            ));
        }
        let is_named = |image: &String| !image.trim().is_empty();
        self.worker_image = self.worker_image.filter(is_named);
        self.task_image = self.task_image.filter(is_named);
        if self.launcher != LauncherKind::Process && self.worker_image.is_none() {
            let reason = "the launcher starts containers, and no image is named for them: 'cargo xtask image' builds one";
            return Err(error_at("worker_image", reason));
        }
        if self.task_image.is_some() && self.launcher != LauncherKind::Process {
            let reason =
                "workers in containers have no engine to run tasks in: use the launcher 'process'";
            return Err(error_at("task_image", reason));
        }
        if self.task_image.is_none() && self.min_isolation == Isolation::Docker {
            let reason =
                "'docker' runs every task in a container: name an image for them with task_image";
            return Err(error_at("min_isolation", reason));
        }
        self.container
            .check()
            .map_err(|invalid| error_at(invalid.key, invalid.reason))?;
        self.kubernetes.check()?;
        Ok(self)
    }

    /// Most workers at a time.
    pub fn max_workers(&self) -> u32 {
        self.max_workers.unwrap_or(MAX_WORKERS)
    }
}

fn trim_all(items: &mut [String]) {
    items
        .iter_mut()
        .for_each(|item| *item = item.trim().to_owned());
}

pub(super) fn error_at(key: &str, reason: impl fmt::Display) -> ConfigError {
    ConfigError {
        path: format!("spawner.{key}"),
        reason: reason.to_string(),
    }
}

pub(super) fn check_range<T: PartialOrd + fmt::Display>(
    key: &str,
    value: T,
    least: T,
    most: T,
) -> Result<(), ConfigError> {
    // NaN is out of range too.
    if value >= least && value <= most {
        return Ok(());
    }
    Err(error_at(
        key,
        format!("{value} is not between {least} and {most}"),
    ))
}

fn deserialize_caps<'de, D: Deserializer<'de>>(deserializer: D) -> Result<CapSet, D::Error> {
    CapSet::from_people(&Vec::<String>::deserialize(deserializer)?.join(","))
        .map_err(de::Error::custom)
}

/// Deserialises a number or a text like a flag.
pub(super) fn number_or_word<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    let text = match toml::Value::deserialize(deserializer)? {
        toml::Value::String(text) => text,
        other => other.to_string(),
    };
    text.parse().map_err(de::Error::custom)
}

/// Parses a flag or variable: a number, or `auto`.
impl FromStr for WarmPool {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "auto" => Ok(Self::Auto),
            number => number
                .parse()
                .map(Self::Fixed)
                .map_err(|_| format!("'{text}' is neither a number nor 'auto'")),
        }
    }
}

impl FromStr for LauncherKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "process" => Ok(Self::Process),
            "docker" => Ok(Self::Docker),
            "kubernetes" => Ok(Self::Kubernetes),
            _ => Err(format!(
                "there is no launcher '{text}': use 'process' for workers on this machine, 'docker' for containers, 'kubernetes' for pods"
            )),
        }
    }
}

impl fmt::Display for LauncherKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Process => "process",
            Self::Docker => "docker",
            Self::Kubernetes => "kubernetes",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::from_toml(text)
            .and_then(|config| config.check(2))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn parses_the_documented_file() {
        let config = parse(
            r#"
            [spawner]
            queue_url   = "redis://broker:6379/0"
            caps        = ["cpu","docker"]
            warm_pool   = 2          # keep two idle workers ahead
            max_parallel = 50        # max workers spawned at once
            poll_ms     = 1000
            worker_image= "ghcr.io/swarmauri/peagen-worker:latest"
            "#,
        )
        .unwrap();
        assert_eq!(config.queue_url.as_deref(), Some("redis://broker:6379/0"));
        assert_eq!(
            (config.caps.to_string().as_str(), &config.queues[..]),
            ("cpu,docker", &["default".to_owned()][..])
        );
        assert_eq!(
            (config.warm_pool, config.max_workers()),
            (WarmPool::Fixed(2), 50)
        );
        assert_eq!(
            (config.poll_ms, config.idle_timeout),
            (1000, HumanDuration::secs(600))
        );
        let rest = parse(
            "[spawner]\nwarm_pool='auto'\nhit_target=0.999\nidle_timeout='5m'\nmax_workers=3\nlauncher='process'\nmin_isolation='sandbox'",
        );
        let rest = rest.unwrap();
        assert_eq!(
            (rest.warm_pool, rest.max_workers(), rest.idle_timeout),
            (WarmPool::Auto, 3, HumanDuration::secs(300))
        );
        assert_eq!(rest.min_isolation, Isolation::Sandbox);
        assert_eq!(parse("").unwrap(), parse("[spawner]").unwrap());
        let handlers =
            parse("[spawner]\nhandlers='there'\nplugins=['A', ' B']\nmax_uptime='1h'").unwrap();
        assert_eq!(
            (handlers.handlers, handlers.max_uptime),
            (Some("there".into()), Some(HumanDuration::secs(3600)))
        );
        assert_eq!(handlers.plugins, Some(vec!["A".into(), "B".into()]));
    }

    #[test]
    fn the_lower_limit_counts() {
        let most = |lines: &str| parse(&format!("[spawner]\n{lines}")).unwrap().max_workers();
        assert_eq!(most(""), 8, "four per core");
        assert_eq!((most("max_parallel = 3"), most("max_workers = 3")), (3, 3));
        assert_eq!(
            (
                most("max_parallel = 3\nmax_workers = 9"),
                most("max_parallel = 9\nmax_workers = 3")
            ),
            (3, 3)
        );
    }

    #[test]
    fn names_the_key_and_the_fix_of_invalid_settings() {
        for (line, key, words) in [
            ("warm_poll = 2", "spawner.warm_poll", "unknown field"),
            (
                "warm_pool = -1",
                "spawner.warm_pool",
                "neither a number nor 'auto'",
            ),
            (
                "warm_pool = 'many'",
                "spawner.warm_pool",
                "neither a number nor 'auto'",
            ),
            (
                "warm_pool = 2.5",
                "spawner.warm_pool",
                "neither a number nor 'auto'",
            ),
            (
                "warm_pool = 9\nmax_workers = 8",
                "spawner.warm_pool",
                "raise max_parallel, or lower this",
            ),
            (
                "warm_pool = 9\nmax_parallel = 8",
                "spawner.warm_pool",
                "raise max_parallel, or lower this",
            ),
            ("max_workers = 0", "spawner.max_workers", "between 1 and"),
            ("max_parallel = 0", "spawner.max_parallel", "between 1 and"),
            ("max_parallel = '5'", "spawner.max_parallel", "expected u32"),
            ("poll_ms = 1", "spawner.poll_ms", "between 10 and"),
            ("caps = ['gpu!']", "spawner.caps", "use letters"),
            ("caps = ['@x']", "spawner.caps", "cannot be asked for"),
            ("caps = 'cpu'", "spawner.caps", "expected a sequence"),
            ("queues = ['a b']", "spawner.queues", "a b"),
            ("queues = []", "spawner.queues", "no queue"),
            ("hit_target = 1.0", "spawner.hit_target", "between 0 and 1"),
            ("idle_timeout = 0", "spawner.idle_timeout", "give a time"),
            ("max_uptime = 0", "spawner.max_uptime", "give a time"),
            (
                "idle_timeout = 'soon'",
                "spawner.idle_timeout",
                "not a duration",
            ),
            (
                "min_isolation = 'vm'",
                "spawner.min_isolation",
                "unknown variant `vm`",
            ),
            (
                "min_isolation = 'docker'",
                "spawner.min_isolation",
                "task_image",
            ),
            (
                "launcher = 'docker'\nworker_image = 'x'\ntask_image = 'x'",
                "spawner.task_image",
                "launcher 'process'",
            ),
            (
                "launcher = 'rocket'",
                "spawner.launcher",
                "unknown variant `rocket`",
            ),
            (
                "launcher = 'docker'",
                "spawner.worker_image",
                "no image is named",
            ),
            (
                "launcher = 'docker'\nworker_image = ' '",
                "spawner.worker_image",
                "no image is named",
            ),
            (
                "[spawner.container]\nmemory = 3",
                "spawner.container.memory",
                "unknown field",
            ),
            (
                "[spawner.container]\nmemory_mb = 1",
                "spawner.container.memory_mb",
                "between 16 and",
            ),
            (
                "[spawner.container]\ncpus = 0",
                "spawner.container.cpus",
                "between 0.01 and",
            ),
            (
                "[spawner.container]\ncpus = nan",
                "spawner.container.cpus",
                "between 0.01 and",
            ),
            (
                "[spawner.container]\npids = 2",
                "spawner.container.pids",
                "between 8 and",
            ),
            (
                "[spawner.container]\ngpus = 0",
                "spawner.container.gpus",
                "neither a number of GPUs nor 'all'",
            ),
            (
                "[spawner.container]\nnetworks = ['a b']",
                "spawner.container.networks",
                "'a b' is no name of a network",
            ),
            (
                "[spawner.container]\nnetworks = ['container:x']",
                "spawner.container.networks",
                "no name of a network",
            ),
            (
                "[spawner.container]\nseccomp = 'unconfined'",
                "spawner.container.seccomp",
                "must have a filter",
            ),
            (
                "launcher = 'kubernetes'",
                "spawner.worker_image",
                "no image is named",
            ),
            (
                "[spawner.kubernetes]\nnamespaces = 'a'",
                "spawner.kubernetes.namespaces",
                "unknown field",
            ),
            (
                "[spawner.kubernetes]\nnamespace = 'a/b'",
                "spawner.kubernetes.namespace",
                "no name of a namespace",
            ),
            (
                "[spawner.kubernetes]\nqueue_secret = 'redis://:x@y'",
                "spawner.kubernetes.queue_secret",
                "give its name",
            ),
            (
                "[spawner.kubernetes]\nqueue_secret_key = ''",
                "spawner.kubernetes.queue_secret_key",
                "no key",
            ),
            (
                "[spawner.kubernetes]\nstart_within = 0",
                "spawner.kubernetes.start_within",
                "between a second and a week",
            ),
            (
                "[spawner.kubernetes]\ngrace = '169h'",
                "spawner.kubernetes.grace",
                "between a second and a week",
            ),
        ] {
            let error = parse(&format!("[spawner]\n{line}")).unwrap_err();
            assert!(
                error.contains(&format!("'{key}'")) && error.contains(words),
                "{line}: {error}"
            );
        }
        assert!(parse("[spawner").is_err());
        assert!(parse("[spawnr]").unwrap_err().contains("spawnr"));
    }

    proptest::proptest! {
        #[test]
        fn the_parser_never_panics(text: String) {
            let _ = parse(&text);
        }
    }
}
