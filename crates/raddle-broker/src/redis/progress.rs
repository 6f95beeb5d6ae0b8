//! How far running attempts have come: a key for each, which goes by itself. Whether it is the latest attempt's shows when it is read.

use raddle_core::{Progress, TaskView};

use super::{Redis, value::maybe};
use crate::{Fence, Result};

/// Attempts that say nothing for longer have their progress forgotten.
const KEPT_SECONDS: u64 = 7 * 86_400;

impl Redis {
    pub(super) async fn note_progress(&self, fence: Fence, progress: &Progress) -> Result<()> {
        let text = serde_json::to_string(progress).expect("a number and a text serialize");
        let mut pipe = redis::pipe();
        let key = self.link().keys.progress(fence.tid);
        pipe.cmd("SET").arg(key).arg(format!("{} {text}", fence.attempt)).arg("EX").arg(KEPT_SECONDS);
        self.link().pipe(pipe).await.map(drop)
    }

    /// Adds their progress to those that run.
    pub(super) async fn show_progress(&self, tasks: &mut [TaskView]) -> Result<()> {
        let mut running: Vec<_> = tasks.iter_mut().filter(|task| task.claimed_at.is_some()).collect();
        if running.is_empty() {
            return Ok(());
        }
        let mut pipe = redis::pipe();
        running.iter().for_each(|task| _ = pipe.cmd("GET").arg(self.link().keys.progress(task.tid)));
        let told = self.link().pipe(pipe).await?;
        for (task, told) in running.iter_mut().zip(told) {
            let told = maybe(told);
            let of_attempt = told.as_deref().and_then(|told| told.split_once(' '));
            let latest = of_attempt.filter(|(attempt, _)| *attempt == task.attempt.to_string());
            task.progress = latest.and_then(|(_, text)| serde_json::from_str(text).ok());
        }
        Ok(())
    }
}
