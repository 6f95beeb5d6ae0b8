//! Hooks: commands that a group process runs before its first task and after its last. They run in
//! a runner, like tasks, so no process is left when they end, time out or are cancelled.

use std::{
    io::{self, Write},
    time::Duration,
};

use raddle_model::{ExitStatus, Tid};
use raddle_runner::{ExecRequest, ExecResult, Runner, RunnerEvent, RunnerLost, RunnerOptions};

use super::GroupProcessError;

/// Time between SIGTERM and SIGKILL after a timeout.
const STOP_GRACE: Duration = Duration::from_millis(100);

/// A hook. `manager` is the manager of the process.
pub(super) struct Hook<'a> {
    pub(super) name: &'static str,
    pub(super) argv: &'a [String],
    pub(super) manager: Tid,
    /// Its timeout. `None`: no limit.
    pub(super) timeout: Option<Duration>,
}

impl Hook<'_> {
    /// Runs the hook to its end, or until `cancel` finishes, and returns the output of that. In
    /// either case no process of the hook is left.
    pub(super) async fn run<T>(
        &self,
        cancel: impl Future<Output = T>,
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
            cancelled = cancel => Ok(Some(cancelled)),
            done = self.run_command(&mut runner) => done.map_err(|lost| self.failed(lost.to_string())).and_then(|done| self.check_result(&done)),
        };
        runner.close().await;
        ended
    }

    async fn run_command(&self, runner: &mut Runner) -> Result<Box<ExecResult>, RunnerLost> {
        let request = ExecRequest {
            timeout: self.timeout,
            grace: STOP_GRACE,
            timeout_grace: STOP_GRACE,
            ..ExecRequest::command(self.manager, self.name, self.argv)
        };
        runner.start(&request).await?;
        loop {
            match runner.next().await? {
                RunnerEvent::Output { bytes, .. } => write_stderr(&bytes),
                RunnerEvent::Done(done) => {
                    write_stderr(&done.stdout);
                    write_stderr(&done.stderr);
                    return Ok(done);
                }
                _ => {}
            }
        }
    }

    fn check_result<T>(&self, done: &ExecResult) -> Result<Option<T>, GroupProcessError> {
        match &done.exit {
            exit if exit.is_success() => Ok(None),
            ExitStatus::Timeout => Err(self.failed(format!(
                "timed out after {:?}, and was killed",
                self.timeout.unwrap_or_default()
            ))),
            exit => Err(self.failed(format!("failed: {exit}"))),
        }
    }

    fn failed(&self, how: String) -> GroupProcessError {
        GroupProcessError::Hook {
            hook: self.argv.join(" "),
            how,
        }
    }
}

/// Forwards output to stderr, which is the log of the process. Its stdout is for the manager.
fn write_stderr(bytes: &[u8]) {
    // Stderr may be closed.
    let _ = io::stderr().write_all(bytes);
}
