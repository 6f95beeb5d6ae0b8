//! Commands that a group process runs before its first task and after its last. A runner runs them,
//! as it runs tasks, so that no process of theirs is left when they end, time out or are cancelled.

use std::{
    io::{self, Write},
    time::Duration,
};

use raddle_model::{ExitStatus, Tid};
use raddle_runner::{ExecRequest, ExecResult, Runner, RunnerEvent, RunnerLost, RunnerOptions};

use super::GroupProcessError;

/// Time between SIGTERM and SIGKILL after a timeout. Short, because the caller has already waited
/// for the whole timeout.
const KILL_DELAY: Duration = Duration::from_millis(100);

/// A hook of the process that the manager with the task id `manager` has started.
pub(super) struct Hook<'a> {
    pub(super) name: &'static str,
    pub(super) argv: &'a [String],
    pub(super) manager: Tid,
    /// The timeout; `None` until `run` is cancelled.
    pub(super) timeout: Option<Duration>,
}

impl Hook<'_> {
    /// Runs the command until it ends, and returns `None`; or until `cancelled` is ready, and
    /// returns its output. No process of the command is left in either case.
    pub(super) async fn run<T>(
        &self,
        cancelled: impl Future<Output = T>,
    ) -> Result<Option<T>, GroupProcessError> {
        if self.argv.is_empty() {
            return Ok(None);
        }
        let options = RunnerOptions {
            title_idle: format!("raddle-{}", self.name),
            ..RunnerOptions::default()
        };
        let mut runner = Runner::spawn(&options).await?;
        let ended = tokio::select! {
            biased;
            output = cancelled => Ok(Some(output)),
            done = self.run_command(&mut runner) => done.map_err(|lost| self.hook_error(lost.to_string())).and_then(|done| self.check_result(&done)),
        };
        runner.close().await;
        ended
    }

    async fn run_command(&self, runner: &mut Runner) -> Result<Box<ExecResult>, RunnerLost> {
        let request = ExecRequest {
            timeout: self.timeout,
            grace: KILL_DELAY,
            timeout_grace: KILL_DELAY,
            ..ExecRequest::command(self.manager, self.name, self.argv)
        };
        runner.start(&request).await?;
        loop {
            match runner.next().await? {
                RunnerEvent::Output { bytes, .. } => forward_output(&bytes),
                RunnerEvent::Done(done) => {
                    forward_output(&done.stdout);
                    forward_output(&done.stderr);
                    return Ok(done);
                }
                _ => {}
            }
        }
    }

    fn check_result<T>(&self, done: &ExecResult) -> Result<Option<T>, GroupProcessError> {
        match &done.exit {
            exit if exit.is_success() => Ok(None),
            ExitStatus::Timeout => Err(self.hook_error(format!(
                "timed out after {:?}, and was killed",
                self.timeout.unwrap_or_default()
            ))),
            exit => Err(self.hook_error(format!("failed: {exit}"))),
        }
    }

    fn hook_error(&self, how: String) -> GroupProcessError {
        GroupProcessError::Hook {
            hook: self.argv.join(" "),
            how,
        }
    }
}

/// Copies output of a hook to standard error, the log. Standard output is reserved for the manager.
fn forward_output(bytes: &[u8]) {
    // A closed standard error is no reason to fail.
    let _ = io::stderr().write_all(bytes);
}
