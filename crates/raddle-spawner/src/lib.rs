//! The warm spawner: keeps one-shot workers ahead of demand, so that a fresh process for each task does not mean a slow start.
//!
//! ```text
//!            waiting                  launch                claim, run, finish
//! broker ───────────► service ─────────────────► launcher ──────► one-shot worker (× N)
//!    ▲                  │ ▲   plan, auto, core       │                  │
//!    │ agent socket     │ └───────── news ◄──────────┘                  │
//!    └──────────────────┴───────────────────────────────────────────────┘
//! ```
//!
//! | file | what |
//! | --- | --- |
//! | `config.rs`, `allowance.rs`, `cluster.rs` | `spawner.toml`, flags and environment; what a container may use, and a cluster is asked for |
//! | `plan.rs` | how many workers are wanted |
//! | `auto.rs` | how large a warm pool has to be |
//! | `roster.rs` | the workers that are known |
//! | `launcher.rs`, `process.rs` | starting workers: the trait; as processes of this program |
//! | `class.rs`, `docker/`, `kubernetes/` | which workers elsewhere belong together; starting them as containers, or as pods |
//! | `said.rs` | what a worker says on its standard output |
//! | `service.rs`, `launching.rs`, `stopping.rs` | the loop; having as many workers as are wanted; control words, and passing a stop on |
//! | `life.rs`, `selves.rs` | registered, at work, gone; the ids of one that had to register anew |
//!
//! `config`, `plan`, `auto`, `roster` and `selves` are pure, and so is what decides who of those that are wanted is started, held back and stopped: that is
//! [`raddle_supervisor`], as for groups and pools, and this tells it how many there are to be. A spawner is itself a task: it has an id, an entry in the registry, control queues and a title. Its workers
//! outlive it, and other spawners count those as their own that it has left.

mod auto;
#[cfg(any(feature = "docker", feature = "kubernetes"))]
mod class;
mod cluster;
mod config;
#[cfg(feature = "docker")]
pub mod docker;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
mod launcher;
mod launching;
mod lifecycle;
pub mod metrics;
mod plan;
pub mod process;
mod readiness;
mod service;
mod spawner_ids;
mod stopping;
mod worker_table;

#[cfg(any(feature = "docker", feature = "kubernetes"))]
pub use class::WorkerClass;
pub use cluster::ClusterConfig;
pub use config::{Config, ConfigError, LauncherKind, WarmPool};
pub use launcher::{
    BroadcastCommand, LaunchFailureCounts, LaunchId, Launcher, SPAWNER_VARIABLE, WARM_VARIABLE,
    WorkerEvent, worker_words,
};
pub use lifecycle::{Options, Spawner, SpawnerEnd, SpawnerHandle, SpawnerSnapshot};
pub use process::{ProcessLauncher, ProcessTemplate};
pub use raddle_container::{ContainerLimits, ExitKind, Gpus, LaunchError, LaunchFailure};
