//! Commands that a process of a group runs before its first task and after its last. They are run as tasks are: by a runner, which leaves nothing
//! of them behind, whether they end, take too long, or nobody waits for them any more.

use std::{
    io::{self, Write},
    time::Duration,
};

use raddle_model::{ExitStatus, Tid};
use raddle_runner::{ExecRequest, ExecResult, Runner, RunnerEvent, RunnerLost, RunnerOptions};

use super::GroupProcessError;

/// Between SIGTERM and SIGKILL, for one that takes too long: whoever waits for it has waited.
const OVERTIME: Duration = Duration::from_millis(100);

/// A hook of the process that the manager `of` has started.
pub(super) struct Hook<'a> {
    pub(super) name: &'static str,
    pub(super) argv: &'a [String],
    pub(super) of: Tid,
    /// How long it may take; without it, for as long as somebody waits.
    pub(super) within: Option<Duration>,
}

impl Hook<'_> {
    /// Runs it to its end, or until `never_mind` is over: then this is `None`. In either case nothing of it is left.
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
                "was not over after {:?}, and was killed",
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

/// Passes on what it says, to where its process logs: standard output is for the manager alone.
fn tell(bytes: &[u8]) {
    // One that nobody hears need not be heard.
    let _ = io::stderr().write_all(bytes);
}
