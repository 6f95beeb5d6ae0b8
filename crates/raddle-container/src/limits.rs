//! What a container may use: the table `[spawner.container]`. Values only.

use std::{fmt, path::PathBuf, str::FromStr};

use serde::{Deserialize, Deserializer, de};

/// What a container may use.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ContainerLimits {
    /// Memory, in MiB. Swap is none.
    pub memory_mb: u64,
    /// Processors, of which a part will do.
    pub cpus: f64,
    /// Processes and threads.
    pub pids: u32,
    /// What fits into `/tmp`, in MiB: the one place that can be written. It counts as memory.
    pub tmp_mb: u64,
    /// GPUs.
    #[serde(deserialize_with = "gpus")]
    pub gpus: Option<Gpus>,
    /// The networks it is in, by name. Without any it has none.
    pub networks: Vec<String>,
    /// A file with a seccomp profile, instead of the engine's own.
    pub seccomp: Option<PathBuf>,
}

/// How many GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gpus {
    /// So many.
    Count(u32),
    /// All there are.
    All,
}

/// A worker alone takes a few; less than this it cannot begin in.
const LEAST_MEMORY_MB: u64 = 16;
const LEAST_PIDS: u32 = 8;
/// More than any machine has: beyond it a number is a mistake.
const MOST_MB: u64 = 64 << 20;
const MOST_CPUS: f64 = 4096.0;
const MOST_PIDS: u32 = 4 << 20;
/// As Docker names what it does without.
const UNCONFINED: &str = "unconfined";

/// A limit that no container can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidLimit {
    /// Its key in `spawner.toml`.
    pub key: &'static str,
    /// What is wrong with it.
    pub reason: String,
}

impl ContainerLimits {
    /// Checks the limits.
    pub fn check(&self) -> Result<(), InvalidLimit> {
        if let Some(wrong) = self.networks.iter().find(|name| !is_network(name)) {
            let reason =
                format!("'{wrong}' is not the name of a network: 'docker network ls' has them");
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
            let reason = "workers are not run without a filter: leave it out for the engine's own";
            return Err(InvalidLimit {
                key: "container.seccomp",
                reason: reason.into(),
            });
        }
        within(
            "container.memory_mb",
            self.memory_mb,
            LEAST_MEMORY_MB,
            MOST_MB,
        )?;
        within("container.cpus", self.cpus, 0.01, MOST_CPUS)?;
        within("container.pids", self.pids, LEAST_PIDS, MOST_PIDS)?;
        within("container.tmp_mb", self.tmp_mb, 1, MOST_MB)
    }
}

fn within<T: PartialOrd + fmt::Display>(
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

/// What the engine takes for the name of a network, and not for the network of another container.
fn is_network(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(is_plain)
}

fn gpus<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Gpus>, D::Error> {
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
