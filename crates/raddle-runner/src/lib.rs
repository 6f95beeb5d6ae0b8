//! One attempt of a task: spawn, limits, process title, output capture, staged stop and exit
//! classification.
//!
//! The attempt's command is a child of a *runner*: a small re-exec'd process of ours with one
//! thread and one `poll` loop. A worker keeps one runner per slot and reuses it for one attempt
//! after another, so the command is the only process that is started per task. The runner carries
//! the task's process title, enforces its limits and timeout, forwards its output, and kills every
//! process of the attempt when the attempt ends. The runner exits when its worker exits.
//!
//! [`Runner`] is the worker's side. The runner's side starts in [`runner_main_if_requested`], which
//! every program that uses this crate must call first in `main`:
//!
//! ```no_run
//! # async fn example(request: raddle_runner::ExecRequest) -> Result<(), Box<dyn std::error::Error>> {
//! use raddle_runner::{Runner, RunnerEvent, RunnerOptions};
//!
//! raddle_runner::runner_main_if_requested(None);
//! let mut runner = Runner::spawn(&RunnerOptions::default()).await?;
//! runner.start(&request).await?;
//! loop {
//!     match runner.next().await? {
//!         RunnerEvent::Done(done) => break println!("{}", done.exit),
//!         event => println!("{event:?}"),
//!     }
//! }
//! # Ok(()) }
//! ```
//!
//! This crate must not know about queues, brokers or retries.

pub mod cgroup;
pub mod container;
mod handle;
mod lease_deadline;
mod message;
pub mod orphan_processes;
pub mod probe;
mod progress_page;
mod runner;
mod runner_cleanup;
mod shared_page;
mod sigterm;
mod sys;
mod tree;

pub use handle::{Runner, RunnerLost, RunnerOptions};
pub use lease_deadline::LeaseDeadlinePage;
pub use message::{
    ExecRequest, ExecResult, ExecTarget, HANDLER, MAX_FROM_RUNNER, OutputChannel, RunnerCommand,
    RunnerEvent, SandboxConfig, ToRunner,
};
pub use progress_page::ProgressPage;
pub use raddle_process::{check_descriptors, log, title};
pub use runner::{FunctionCall, OVERFLOW_UID, cap_limits, runner_main_if_requested};
pub use runner_cleanup::{
    SUSPEND, become_subreaper, children, interrupt, is_ignored, kill_attempts_of_worker,
    kill_group, kill_runners_of_worker, reap_orphans, setsid_self, signal_usr2, stop_self,
    terminate,
};
pub use sigterm::is_sigterm_received;
pub use sys::{
    close_on_exec, deny_inspection, survive_file_limit, unblock_signals, wake_when_parent_dies,
};
pub use tree::{TreeUsage, parent_of, pid_scope, process_start_time, tree_usage};
