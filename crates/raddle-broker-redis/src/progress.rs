//! Progress of running attempts: one key per task, deleted with its record or when it expires.
//! Readers check that it belongs to the current attempt.

use raddle_model::{Progress, TaskView};

use super::Redis;
use raddle_broker::{AttemptId, Result};

/// Progress expires after this time without an update.
const KEPT_SECONDS: u64 = 7 * 86_400;

impl Redis {
    pub(super) async fn store_progress(
        &self,
        attempt_id: AttemptId,
        progress: &Progress,
    ) -> Result<()> {
        let text = serde_json::to_string(progress).expect("a number and a text serialize");
        let mut set = redis::cmd("SET");
        set.arg(self.link().keys.progress(attempt_id.tid))
            .arg(format!(
                "{}:{} {text}",
                attempt_id.attempt, attempt_id.owner
            ));
        self.link().read(set.arg("EX").arg(KEPT_SECONDS)).await
    }

    /// Adds progress to the views of running tasks.
    pub(super) async fn show_progress(&self, tasks: &mut [TaskView]) -> Result<()> {
        let mut running: Vec<_> = tasks
            .iter_mut()
            .filter(|task| task.claimed_at.is_some())
            .collect();
        if running.is_empty() {
            return Ok(());
        }
        let mut get = redis::cmd("MGET");
        running
            .iter()
            .for_each(|task| _ = get.arg(self.link().keys.progress(task.tid)));
        let stored: Vec<Option<String>> = self.link().read(&get).await?;
        for (task, stored) in running.iter_mut().zip(stored) {
            let of_attempt = stored.as_deref().and_then(|stored| stored.split_once(' '));
            let now = task.worker.map(|owner| format!("{}:{owner}", task.attempt));
            let latest = of_attempt.filter(|(attempt, _)| Some(*attempt) == now.as_deref());
            task.progress = latest.and_then(|(_, text)| serde_json::from_str(text).ok());
        }
        Ok(())
    }
}
