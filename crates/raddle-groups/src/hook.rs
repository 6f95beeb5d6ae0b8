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
const OVERTIME: Duration = Duration::from_millis(100);

/// A hook. `of` is the manager of the process.
pub(super) struct Hook<'a> {
    pub(super) name: &'static str,
    pub(super) argv: &'a [String],
    pub(super) of: Tid,
    /// Its timeout. `None`: no limit.
    pub(super) within: Option<Duration>,
}

impl Hook<'_> {
    /// Runs the hook to its end, or until `never_mind` finishes, and returns the output of that. In
    /// either case no process of the hook is left.
    pub(super) async fn run<T>(
        &self,
        never_mind: impl Future<Output = T>,
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
            minded = never_mind => Ok(Some(minded)),
            done = self.attend(&mut runner) => done.map_err(|gone| self.failed(gone.to_string())).and_then(|done| self.judge(&done)),
        };
        runner.close().await;
        ended
    }

    async fn attend(&self, runner: &mut Runner) -> Result<Box<ExecResult>, RunnerLost> {
        let request = ExecRequest {
            timeout: self.within,
            grace: OVERTIME,
            timeout_grace: OVERTIME,
            ..ExecRequest::command(self.of, self.name, self.argv)
        };
        runner.start(&request).await?;
        loop {
            match runner.next().await? {
                RunnerEvent::Output { bytes, .. } => tell(&bytes),
                RunnerEvent::Done(done) => {
                    tell(&done.stdout);
                    tell(&done.stderr);
                    return Ok(done);
                }
                _ => {}
            }
        }
    }

    fn judge<T>(&self, done: &ExecResult) -> Result<Option<T>, GroupProcessError> {
        match &done.exit {
            exit if exit.is_success() => Ok(None),
            ExitStatus::Timeout => Err(self.failed(format!(
                "timed out after {:?}, and was killed",
                self.within.unwrap_or_default()
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
fn tell(bytes: &[u8]) {
    // Stderr may be closed.
    let _ = io::stderr().write_all(bytes);
}
