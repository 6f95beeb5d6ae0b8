//! The warm spawner: keeps one-shot workers ready ahead of demand, so that a fresh process for each
//! task does not mean a slow start.
//!
//! ```text
//!            waiting                  launch                claim, run, finish
//! broker ───────────► service ─────────────────► launcher ──────► one-shot worker (× N)
//!    ▲                  │ ▲  plan, auto, supervisor  │                  │
//!    │ agent socket     │ └─────── events ◄──────────┘                  │
//!    └──────────────────┴───────────────────────────────────────────────┘
//! ```
//!
//! | file | what |
//! | --- | --- |
//! | `config.rs`, `cluster.rs` | `spawner.toml`, flags and environment; its Kubernetes table |
//! | `plan.rs` | how many workers are wanted |
//! | `auto.rs` | the size of an automatic warm pool |
//! | `worker_table.rs` | the known workers |
//! | `launcher.rs`, `process.rs` | the launcher trait; workers as processes of this program |
//! | `class.rs`, `docker/`, `kubernetes/` | which containers and pods belong together; workers as containers or pods |
//! | `readiness.rs` | what a worker reports on its stdout |
//! | `service.rs`, `launching.rs`, `stopping.rs` | the loop; launching workers; control commands and stopping |
//! | `lifecycle.rs`, `spawner_ids.rs` | register, run, deregister; the earlier ids of a spawner |
//!
//! `config`, `plan`, `auto`, `worker_table` and `spawner_ids` are pure. [`raddle_supervisor`]
//! decides which worker is started, held back and stopped, as for groups and pools; the spawner
//! tells it how many are wanted. A spawner is itself a task: it has an id, a registration, control
//! queues and a title. Its workers outlive it, and another spawner adopts them.

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
    WorkerEvent, worker_args,
};
pub use lifecycle::{Options, Spawner, SpawnerEnd, SpawnerHandle, SpawnerSnapshot};
pub use process::{ProcessLauncher, ProcessTemplate};
pub use raddle_container::{ContainerLimits, ExitKind, Gpus, LaunchError, LaunchFailure};
