//! What a container may use: the table `[spawner.container]`. Values only.

use std::path::PathBuf;

use serde::{Deserialize, Deserializer, de};

/// What one source says of it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowanceLayer {
    /// Memory, in MiB. Swap is none.
    pub memory_mb: Option<u64>,
    /// Processors, of which a part will do.
    pub cpus: Option<f64>,
    /// Processes and threads.
    pub pids: Option<u32>,
    /// What fits into `/tmp`, in MiB: the one place that can be written. It counts as memory.
    pub tmp_mb: Option<u64>,
    /// GPUs.
    pub gpus: Option<Gpus>,
    /// The networks it is in, by name. Without any it has none.
    pub networks: Option<Vec<String>>,
    /// A file with a seccomp profile, instead of the engine's own.
    pub seccomp: Option<PathBuf>,
}

/// What a container may use.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Allowance {
    /// Memory, in MiB. Swap is none.
    pub memory_mb: u64,
    /// Processors, of which a part will do.
    pub cpus: f64,
    /// Processes and threads.
    pub pids: u32,
    /// What fits into `/tmp`, in MiB.
    pub tmp_mb: u64,
    /// GPUs.
    pub gpus: Option<Gpus>,
    /// The networks it is in, by name.
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

const MEMORY_MB: u64 = 1024;
const CPUS: f64 = 1.0;
const PIDS: u32 = 256;
const TMP_MB: u64 = 64;
/// A worker alone takes a few; less than this it cannot begin in.
const LEAST_MEMORY_MB: u64 = 16;
const LEAST_PIDS: u32 = 8;
/// More than any machine has: beyond it a number is a mistake.
const MOST_MB: u64 = 64 << 20;
const MOST_CPUS: f64 = 4096.0;
const MOST_PIDS: u32 = 4 << 20;
/// As Docker names what it does without.
const UNCONFINED: &str = "unconfined";

impl AllowanceLayer {
    /// All of it, checked. The error is the key and what is wrong with it.
    pub(super) fn settle(self) -> Result<Allowance, (&'static str, String)> {
        let networks = self.networks.unwrap_or_default();
        if let Some(wrong) = networks.iter().find(|name| !is_network(name)) {
            return Err(("networks", format!("'{wrong}' is not the name of a network: 'docker network ls' has them")));
        }
        if self.seccomp.as_ref().is_some_and(|path| path.as_os_str() == UNCONFINED) {
            return Err(("seccomp", "workers are not run without a filter: leave it out for the engine's own".into()));
        }
        Ok(Allowance {
            memory_mb: within("memory_mb", self.memory_mb.unwrap_or(MEMORY_MB), LEAST_MEMORY_MB, MOST_MB)?,
            cpus: within("cpus", self.cpus.unwrap_or(CPUS), 0.01, MOST_CPUS)?,
            pids: within("pids", self.pids.unwrap_or(PIDS), LEAST_PIDS, MOST_PIDS)?,
            tmp_mb: within("tmp_mb", self.tmp_mb.unwrap_or(TMP_MB), 1, MOST_MB)?,
            gpus: self.gpus,
            networks,
            seccomp: self.seccomp,
        })
    }
}

impl Default for Allowance {
    fn default() -> Self {
        AllowanceLayer::default().settle().expect("what holds without a file is right")
    }
}

fn within<T: PartialOrd + std::fmt::Display>(
    key: &'static str,
    value: T,
    least: T,
    most: T,
) -> Result<T, (&'static str, String)> {
    // Written so that what cannot be compared is out of bounds too.
    if value >= least && value <= most {
        return Ok(value);
    }
    Err((key, format!("{value} is not between {least} and {most}")))
}

/// What the engine takes for the name of a network, and not for the network of another container.
fn is_network(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(is_plain)
}

impl<'de> Deserialize<'de> for Gpus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Gpus;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number of GPUs, or \"all\"")
            }

            fn visit_i64<E: de::Error>(self, count: i64) -> Result<Gpus, E> {
                let wrong = || E::invalid_value(de::Unexpected::Signed(count), &self);
                u32::try_from(count).ok().filter(|count| *count > 0).map(Gpus::Count).ok_or_else(wrong)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Gpus, E> {
                if text == "all" { Ok(Gpus::All) } else { Err(E::invalid_value(de::Unexpected::Str(text), &self)) }
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}
