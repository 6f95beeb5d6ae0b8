//! One attempt of a task: spawn, limits, process title, output capture, staged stop and exit classification.
//!
//! The attempt's command is a child of a *runner*, a small re-exec'd process of ours with one thread and one `poll` loop. A
//! worker keeps one runner per slot and gives it one attempt after another; the only process started per task is the
//! command itself. The runner wears the task's title, enforces its limits and its timeout, forwards its output, and leaves no
//! process behind, however the attempt ends. It dies with its worker.
//!
//! The worker's side is [`Runner`]; the runner's side starts in [`runner_main_if_asked`], which every program that uses
//! this crate calls first thing in `main`:
//!
//! ```no_run
//! # async fn example(request: raddle_runner::Request) -> Result<(), Box<dyn std::error::Error>> {
//! use raddle_runner::{Notice, Runner, RunnerOptions};
//!
//! raddle_runner::runner_main_if_asked(None);
//! let mut runner = Runner::spawn(&RunnerOptions::default()).await?;
//! runner.start(&request).await?;
//! loop {
//!     match runner.next().await? {
//!         Notice::Done(done) => break println!("{}", done.exit),
//!         notice => println!("{notice:?}"),
//!     }
//! }
//! # Ok(()) }
//! ```
//!
//! This crate knows nothing of queues, brokers or retries.

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
pub use runner::{FunctionCall, NOBODY, capped, runner_main_if_asked};
pub use runner_cleanup::{
    SUSPEND, become_subreaper, children, end_runners, end_what_runs, interrupt, is_ignored,
    kill_group, reap_orphans, setsid_self, signal_usr2, stop_self, terminate,
};
pub use sigterm::is_terminated;
pub use sys::{
    close_on_exec, deny_inspection, survive_file_limit, unblock_signals, wake_when_parent_dies,
};
pub use tree::{TreeUsage, consumption, parent_of, place, process_start_time};
