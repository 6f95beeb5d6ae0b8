//! `ContainerLimits`: what a container may use, as in the table `[spawner.container]`.

use std::{fmt, path::PathBuf, str::FromStr};

use serde::{Deserialize, Deserializer, de};

/// The resources that a container may use.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ContainerLimits {
    /// Memory in MiB. There is no swap.
    pub memory_mb: u64,
    /// Processors; fractions are allowed.
    pub cpus: f64,
    /// Processes and threads.
    pub pids: u32,
    /// Size of `/tmp` in MiB, the only writable directory. It counts as memory.
    pub tmp_mb: u64,
    /// GPUs.
    #[serde(deserialize_with = "deserialize_gpus")]
    pub gpus: Option<Gpus>,
    /// Names of its networks. Without any it has none.
    pub networks: Vec<String>,
    /// A file with a seccomp profile that replaces the engine's default.
    pub seccomp: Option<PathBuf>,
}

/// A number of GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gpus {
    /// This many.
    Count(u32),
    /// All of them.
    All,
}

/// A worker cannot start with less.
const MIN_MEMORY_MB: u64 = 16;
const MIN_PIDS: u32 = 8;
/// More than any machine has, so a larger number is a mistake.
const MAX_MB: u64 = 64 << 20;
const MAX_CPUS: f64 = 4096.0;
const MAX_PIDS: u32 = 4 << 20;
/// Docker's word for no seccomp filter.
const UNCONFINED: &str = "unconfined";

/// A limit out of range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidLimit {
    /// Its key in `spawner.toml`.
    pub key: &'static str,
    /// The problem with it.
    pub reason: String,
}

impl ContainerLimits {
    /// Checks the limits.
    pub fn check(&self) -> Result<(), InvalidLimit> {
        if let Some(invalid) = self.networks.iter().find(|name| !is_network(name)) {
            let reason = format!("'{invalid}' is no name of a network: see 'docker network ls'");
            return Err(InvalidLimit {
                key: "container.networks",
                reason,
            });
        }
        if self
            .seccomp
            .as_ref()
            .is_some_and(|path| path.as_os_str() == UNCONFINED)
        {
            let reason = "workers must have a filter: leave this out for the engine's default";
            return Err(InvalidLimit {
                key: "container.seccomp",
                reason: reason.into(),
            });
        }
        check_range("container.memory_mb", self.memory_mb, MIN_MEMORY_MB, MAX_MB)?;
        check_range("container.cpus", self.cpus, 0.01, MAX_CPUS)?;
        check_range("container.pids", self.pids, MIN_PIDS, MAX_PIDS)?;
        check_range("container.tmp_mb", self.tmp_mb, 1, MAX_MB)
    }
}

fn check_range<T: PartialOrd + fmt::Display>(
    key: &'static str,
    value: T,
    least: T,
    most: T,
) -> Result<(), InvalidLimit> {
    // NaN is out of bounds too.
    if value >= least && value <= most {
        return Ok(());
    }
    Err(InvalidLimit {
        key,
        reason: format!("{value} is not between {least} and {most}"),
    })
}

impl Default for ContainerLimits {
    fn default() -> Self {
        Self {
            memory_mb: 1024,
            cpus: 1.0,
            pids: 256,
            tmp_mb: 64,
            gpus: None,
            networks: Vec::new(),
            seccomp: None,
        }
    }
}

/// Accepts names of networks, but not `container:NAME`, which means the network of a container.
fn is_network(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(is_plain)
}

fn deserialize_gpus<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Gpus>, D::Error> {
    let text = match toml::Value::deserialize(deserializer)? {
        toml::Value::String(text) => text,
        other => other.to_string(),
    };
    text.parse().map(Some).map_err(de::Error::custom)
}

impl FromStr for Gpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        let count = text.parse().ok().filter(|count| *count > 0);
        count
            .map(Self::Count)
            .ok_or_else(|| format!("'{text}' is neither a number of GPUs nor 'all'"))
    }
}
