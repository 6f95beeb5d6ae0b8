//! Paused queues: they take tasks, and none can be claimed from them.

use super::{Redis, connection::Certainty, script, value::arg};
use raddle_broker::{Result, engine::check_queue};

impl Redis {
    /// Pauses or resumes a queue, and returns whether that changed anything.
    pub(super) async fn set_paused(&self, queue: String, paused: bool) -> Result<bool> {
        let queue = check_queue(queue)?;
        let args = vec![arg(queue), arg(if paused { "paused" } else { "" })];
        self.link()
            .change(&script::PAUSE_QUEUE, args, Certainty::Durable)
            .await
    }
}
