//! `spawner.toml`, and what flags and environment say instead. Values only: nothing is opened here.

use std::{fmt, time::Duration};

use raddle_core::{
    CapSet, QueueName, Span,
    spec::{DEFAULT_QUEUE, Isolation},
};
use serde::{Deserialize, Deserializer, de};

use super::{
    allowance::{Allowance, AllowanceLayer},
    cluster::{Cluster, ClusterLayer},
};
use crate::worker::minimum;

/// What one source says of a spawner: a file, or flags and environment. What it leaves open is for the next to say.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// Where the tasks are kept.
    pub queue_url: Option<String>,
    /// What the workers offer.
    pub caps: Option<Vec<String>>,
    /// The queues they serve.
    pub queues: Option<Vec<String>>,
    /// How many to have ahead of demand.
    pub warm_pool: Option<WarmPool>,
    /// How many may be starting at a time.
    pub max_parallel: Option<u32>,
    /// How many there may be in all.
    pub max_workers: Option<u32>,
    /// How long nothing is looked at when nothing happens, at most.
    pub poll_ms: Option<u64>,
    /// After how long without a task the workers leave.
    pub idle_timeout: Option<Span>,
    /// How many tasks of one find an idle worker, with a pool that sizes itself.
    pub hit_target: Option<f64>,
    /// How workers are started.
    pub launcher: Option<Launch>,
    /// The image of workers in containers.
    pub worker_image: Option<String>,
    /// What such a container may use.
    pub container: Option<AllowanceLayer>,
    /// How far the workers keep every task apart, at least.
    pub min_isolation: Option<String>,
    /// What a Kubernetes cluster is asked for.
    pub kubernetes: Option<ClusterLayer>,
    /// The image of containers that the workers run tasks in.
    pub task_image: Option<String>,
}

/// How many workers to have ahead of demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmPool {
    /// So many.
    Fixed(u32),
    /// As many as it takes.
    Auto,
}

/// How workers are started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launch {
    /// As processes of this machine.
    #[default]
    Process,
    /// As containers of a Docker engine.
    Docker,
    /// As pods of a Kubernetes cluster.
    Kubernetes,
}

/// What a spawner is to be like.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Where the tasks are kept, if it says so.
    pub queue_url: Option<String>,
    /// What the workers offer.
    pub caps: CapSet,
    /// The queues they serve.
    pub queues: Vec<String>,
    /// How many to have ahead of demand.
    pub warm_pool: WarmPool,
    /// How many may be starting at a time.
    pub max_parallel: u32,
    /// How many there may be in all.
    pub max_workers: u32,
    /// How long nothing is looked at when nothing happens, at most.
    pub poll: Duration,
    /// After how long without a task the workers leave.
    pub idle_timeout: Duration,
    /// How many tasks of one find an idle worker, with a pool that sizes itself.
    pub hit_target: f64,
    /// The image of container launchers.
    pub worker_image: Option<String>,
    /// What a container may use.
    pub container: Allowance,
    /// What a Kubernetes cluster is asked for.
    pub kubernetes: Cluster,
    /// How workers are started.
    pub launcher: Launch,
    /// How far the workers keep every task apart, at least.
    pub min_isolation: Isolation,
    /// The image of containers that the workers run tasks in.
    pub task_image: Option<String>,
}

/// Why this is no spawner.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at '{path}': {reason}")]
pub struct ConfigError {
    /// The key, as `spawner.warm_pool`.
    path: String,
    /// What is wrong with it, and what to do.
    reason: String,
}

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    spawner: Layer,
}

const WARM_POOL: u32 = 2;
const MAX_PARALLEL: u32 = 50;
/// Workers for each core, unless the ceiling is stated: tasks wait as often as they compute.
const WORKERS_PER_CORE: u32 = 4;
const POLL: u64 = 1000;
const IDLE_TIMEOUT: Span = Span::secs(600);
const HIT_TARGET: f64 = 0.99;
/// More than one machine has ever room for: beyond it a number is a mistake.
const MOST_WORKERS: u32 = 10_000;

impl Layer {
    /// Reads a `spawner.toml`.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let wrong = |path: String, error: &toml::de::Error| error_at(path, error.message().trim_end());
        let reader = toml::Deserializer::parse(text).map_err(|error| wrong(".".into(), &error))?;
        let File { spawner } = serde_path_to_error::deserialize(reader).map_err(|error| {
            let path = error.path().to_string();
            wrong(path, &error.into_inner())
        })?;
        Ok(spawner)
    }

    /// This, and where it says nothing what `below` says.
    pub fn over(self, below: Self) -> Self {
        Self {
            queue_url: self.queue_url.or(below.queue_url),
            caps: self.caps.or(below.caps),
            queues: self.queues.or(below.queues),
            warm_pool: self.warm_pool.or(below.warm_pool),
            max_parallel: self.max_parallel.or(below.max_parallel),
            max_workers: self.max_workers.or(below.max_workers),
            poll_ms: self.poll_ms.or(below.poll_ms),
            idle_timeout: self.idle_timeout.or(below.idle_timeout),
            hit_target: self.hit_target.or(below.hit_target),
            launcher: self.launcher.or(below.launcher),
            worker_image: self.worker_image.or(below.worker_image),
            container: self.container.or(below.container),
            min_isolation: self.min_isolation.or(below.min_isolation),
            kubernetes: self.kubernetes.or(below.kubernetes),
            task_image: self.task_image.or(below.task_image),
        }
    }

    /// All of it, checked, on a machine with so many cores.
    pub fn settle(self, cores: u32) -> Result<Config, ConfigError> {
        let mut caps = CapSet::new();
        for tag in self.caps.iter().flatten() {
            let wrong = |reason: &dyn fmt::Display| error_at("spawner.caps", reason);
            // One by one: in a list a comma is no separator.
            if tag.contains(',') || tag.trim().is_empty() {
                return Err(wrong(&format_args!("'{tag}' is not a capability: give each as a text of its own")));
            }
            let one = CapSet::from_people(tag).map_err(|error| wrong(&error))?;
            one.iter().try_for_each(|tag| caps.insert(tag)).map_err(|error| wrong(&error))?;
        }
        let queues = self.queues.unwrap_or_else(|| vec![DEFAULT_QUEUE.into()]);
        if queues.is_empty() {
            return Err(error_at("spawner.queues", "no queue is named: leave it out for the default"));
        }
        for queue in &queues {
            queue.parse::<QueueName>().map_err(|error| error_at("spawner.queues", error))?;
        }
        let warm_pool = self.warm_pool.unwrap_or(WarmPool::Fixed(WARM_POOL));
        let usual = cores.max(1).saturating_mul(WORKERS_PER_CORE);
        let ceiling = match warm_pool {
            // A pool that is stated is meant, also where nobody has stated a ceiling.
            WarmPool::Fixed(size) => usual.max(size.saturating_add(cores)),
            WarmPool::Auto => usual,
        };
        let max_workers =
            within("max_workers", self.max_workers.unwrap_or(ceiling.min(MOST_WORKERS)), 1, MOST_WORKERS)?;
        if let WarmPool::Fixed(size) = warm_pool
            && size > max_workers
        {
            let reason =
                format!("{size} workers cannot be kept where max_workers is {max_workers}: raise that, or lower this");
            return Err(error_at("spawner.warm_pool", reason));
        }
        let hit_target = self.hit_target.unwrap_or(HIT_TARGET);
        if !(hit_target > 0.0 && hit_target < 1.0) {
            return Err(error_at("spawner.hit_target", format!("{hit_target} is not between 0 and 1: 0.99 is usual")));
        }
        let least = self.min_isolation.as_deref().map_or(Ok(Isolation::Process), minimum);
        let idle_timeout = self.idle_timeout.unwrap_or(IDLE_TIMEOUT).0;
        if idle_timeout.is_zero() {
            return Err(error_at("spawner.idle_timeout", "workers that leave at once are not warm: give a time"));
        }
        let launcher = self.launcher.unwrap_or_default();
        let worker_image = self.worker_image.filter(|image| !image.trim().is_empty());
        if launcher != Launch::Process && worker_image.is_none() {
            let reason =
                "the launcher starts containers, and no image is named for them: 'cargo xtask image' builds one";
            return Err(error_at("spawner.worker_image", reason));
        }
        let least = least.map_err(|error| error_at("spawner.min_isolation", error))?;
        let task_image = self.task_image.filter(|image| !image.trim().is_empty());
        if task_image.is_some() && launcher != Launch::Process {
            let reason = "workers in containers have no engine to run tasks in: use the launcher 'process'";
            return Err(error_at("spawner.task_image", reason));
        }
        if task_image.is_none() && least == Isolation::Docker {
            let reason = "'docker' runs every task in a container: name an image for them with task_image";
            return Err(error_at("spawner.min_isolation", reason));
        }
        let container = self.container.unwrap_or_default().settle();
        let container = container.map_err(|(key, reason)| error_at(format!("spawner.container.{key}"), reason))?;
        let kubernetes = self.kubernetes.unwrap_or_default().settle();
        let kubernetes = kubernetes.map_err(|(key, reason)| error_at(format!("spawner.kubernetes.{key}"), reason))?;
        Ok(Config {
            queue_url: self.queue_url,
            caps,
            queues,
            warm_pool,
            max_parallel: within("max_parallel", self.max_parallel.unwrap_or(MAX_PARALLEL), 1, MOST_WORKERS)?,
            max_workers,
            poll: Duration::from_millis(within("poll_ms", self.poll_ms.unwrap_or(POLL), 10, 3_600_000)?),
            idle_timeout,
            hit_target,
            launcher,
            worker_image,
            container,
            kubernetes,
            min_isolation: least,
            task_image,
        })
    }
}

fn error_at(path: impl Into<String>, reason: impl fmt::Display) -> ConfigError {
    ConfigError { path: path.into(), reason: reason.to_string() }
}

fn within<T: PartialOrd + fmt::Display>(key: &str, value: T, least: T, most: T) -> Result<T, ConfigError> {
    if value < least || value > most {
        return Err(error_at(format!("spawner.{key}"), format!("{value} is not between {least} and {most}")));
    }
    Ok(value)
}

/// The text of a flag or a variable: a number, or `auto`.
impl std::str::FromStr for WarmPool {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "auto" => Ok(Self::Auto),
            number => number.parse().map(Self::Fixed).map_err(|_| format!("'{text}' is neither a number nor 'auto'")),
        }
    }
}

impl<'de> Deserialize<'de> for WarmPool {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = WarmPool;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of workers, or \"auto\"")
            }

            fn visit_i64<E: de::Error>(self, size: i64) -> Result<WarmPool, E> {
                u32::try_from(size)
                    .map(WarmPool::Fixed)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(size), &self))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<WarmPool, E> {
                if text == "auto" {
                    Ok(WarmPool::Auto)
                } else {
                    Err(E::invalid_value(de::Unexpected::Str(text), &self))
                }
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl std::str::FromStr for Launch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "process" => Ok(Self::Process),
            "docker" => Ok(Self::Docker),
            "kubernetes" => Ok(Self::Kubernetes),
            _ => Err(format!(
                "there is no launcher '{text}': 'process' starts workers on this machine, 'docker' in containers, 'kubernetes' in pods"
            )),
        }
    }
}

impl fmt::Display for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Process => "process",
            Self::Docker => "docker",
            Self::Kubernetes => "kubernetes",
        })
    }
}

impl<'de> Deserialize<'de> for Launch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, String> {
        Layer::from_toml(text).and_then(|layer| layer.settle(2)).map_err(|error| error.to_string())
    }

    #[test]
    fn the_file_of_the_documentation_is_understood() {
        let config = read(
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
        assert_eq!((config.caps.to_string().as_str(), config.queues), ("cpu,docker", vec!["default".to_owned()]));
        assert_eq!((config.warm_pool, config.max_parallel, config.max_workers), (WarmPool::Fixed(2), 50, 8));
        assert_eq!((config.poll, config.idle_timeout), (Duration::from_secs(1), Duration::from_secs(600)));
        let rest = read(
            "[spawner]\nwarm_pool='auto'\nhit_target=0.999\nidle_timeout='5m'\nmax_workers=3\nlauncher='process'\nmin_isolation='sandbox'",
        );
        let rest = rest.unwrap();
        assert_eq!((rest.warm_pool, rest.max_workers, rest.idle_timeout.as_secs()), (WarmPool::Auto, 3, 300));
        assert_eq!(rest.min_isolation, Isolation::Sandbox);
        assert_eq!(read("").unwrap(), read("[spawner]").unwrap());
    }

    #[test]
    fn the_upper_layer_wins() {
        let file = Layer::from_toml("[spawner]\nwarm_pool = 5\ncaps = ['a']").unwrap();
        let flags = Layer { warm_pool: Some(WarmPool::Auto), ..Layer::default() };
        let config = flags.over(file).settle(1).unwrap();
        assert_eq!((config.warm_pool, config.caps.to_string().as_str()), (WarmPool::Auto, "a"));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_key_and_what_to_do() {
        for (line, key, words) in [
            ("warm_poll = 2", "spawner.warm_poll", "unknown field"),
            ("warm_pool = -1", "spawner.warm_pool", "a number of workers, or \"auto\""),
            ("warm_pool = 'many'", "spawner.warm_pool", "a number of workers, or \"auto\""),
            ("warm_pool = 2.5", "spawner.warm_pool", "a number of workers"),
            ("warm_pool = 9\nmax_workers = 8", "spawner.warm_pool", "raise that, or lower this"),
            ("max_workers = 0", "spawner.max_workers", "between 1 and"),
            ("max_parallel = 0", "spawner.max_parallel", "between 1 and"),
            ("max_parallel = '5'", "spawner.max_parallel", "expected u32"),
            ("poll_ms = 1", "spawner.poll_ms", "between 10 and"),
            ("caps = ['gpu!']", "spawner.caps", "use letters"),
            ("caps = ['a,b']", "spawner.caps", "each as a text of its own"),
            ("caps = ['@x']", "spawner.caps", "cannot be asked for"),
            ("caps = 'cpu'", "spawner.caps", "expected a sequence"),
            ("queues = ['a b']", "spawner.queues", "a b"),
            ("queues = []", "spawner.queues", "no queue"),
            ("hit_target = 1.0", "spawner.hit_target", "between 0 and 1"),
            ("idle_timeout = 0", "spawner.idle_timeout", "give a time"),
            ("idle_timeout = 'soon'", "spawner.idle_timeout", "not a duration"),
            ("min_isolation = 'vm'", "spawner.min_isolation", "say 'process', 'sandbox' or 'docker'"),
            ("min_isolation = 'docker'", "spawner.min_isolation", "task_image"),
            ("launcher = 'docker'\nworker_image = 'x'\ntask_image = 'x'", "spawner.task_image", "launcher 'process'"),
            ("launcher = 'rocket'", "spawner.launcher", "no launcher 'rocket'"),
            ("launcher = 'docker'", "spawner.worker_image", "no image is named"),
            ("launcher = 'docker'\nworker_image = ' '", "spawner.worker_image", "no image is named"),
            ("[spawner.container]\nmemory = 3", "spawner.container.memory", "unknown field"),
            ("[spawner.container]\nmemory_mb = 1", "spawner.container.memory_mb", "between 16 and"),
            ("[spawner.container]\ncpus = 0", "spawner.container.cpus", "between 0.01 and"),
            ("[spawner.container]\ncpus = nan", "spawner.container.cpus", "between 0.01 and"),
            ("[spawner.container]\npids = 2", "spawner.container.pids", "between 8 and"),
            ("[spawner.container]\ngpus = 0", "spawner.container.gpus", "a number of GPUs, or \"all\""),
            (
                "[spawner.container]\nnetworks = ['a b']",
                "spawner.container.networks",
                "'a b' is not the name of a network",
            ),
            (
                "[spawner.container]\nnetworks = ['container:x']",
                "spawner.container.networks",
                "not the name of a network",
            ),
            ("[spawner.container]\nseccomp = 'unconfined'", "spawner.container.seccomp", "without a filter"),
            ("launcher = 'kubernetes'", "spawner.worker_image", "no image is named"),
            ("[spawner.kubernetes]\nnamespaces = 'a'", "spawner.kubernetes.namespaces", "unknown field"),
            ("[spawner.kubernetes]\nnamespace = 'a/b'", "spawner.kubernetes.namespace", "not the name of a namespace"),
            ("[spawner.kubernetes]\nqueue_secret = 'redis://:x@y'", "spawner.kubernetes.queue_secret", "give its name"),
            ("[spawner.kubernetes]\nqueue_secret_key = ''", "spawner.kubernetes.queue_secret_key", "not the key"),
            (
                "[spawner.kubernetes]\nstart_within = 0",
                "spawner.kubernetes.start_within",
                "between a second and a week",
            ),
            ("[spawner.kubernetes]\ngrace = '169h'", "spawner.kubernetes.grace", "between a second and a week"),
        ] {
            let error = read(&format!("[spawner]\n{line}")).unwrap_err();
            assert!(error.contains(&format!("'{key}'")) && error.contains(words), "{line}: {error}");
        }
        assert!(read("[spawner").is_err());
        assert!(read("[spawnr]").unwrap_err().contains("spawnr"));
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text: String) {
            let _ = read(&text);
        }
    }
}
