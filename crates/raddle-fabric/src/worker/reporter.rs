//! How far an attempt has come, on its way to the broker: the last word of it, and no more often than anybody could read.

use std::{sync::Arc, time::Duration};

use raddle_broker::{Broker, Fence};
use raddle_core::Progress;
use tokio::{sync::watch, task::JoinHandle, time::sleep};

use super::hand;

/// At most so often.
const EVERY: Duration = Duration::from_millis(200);

type Word = Option<(Fence, Progress)>;

/// Passes on what a slot's attempts say of their progress. It ends with the slot.
pub(super) struct Reporter {
    tell: watch::Sender<Word>,
    task: JoinHandle<()>,
}

impl Reporter {
    pub(super) fn start(broker: Arc<dyn Broker>) -> Self {
        let (tell, told) = watch::channel(None);
        Self { tell, task: tokio::spawn(pass_on(broker, told)) }
    }

    pub(super) fn tell(&self, fence: Fence, progress: Progress) {
        self.tell.send_replace(Some((fence, progress)));
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass_on(broker: Arc<dyn Broker>, mut told: watch::Receiver<Word>) {
    while told.changed().await.is_ok() {
        let word = told.borrow_and_update().clone();
        if let Some((fence, progress)) = word
            && let Err(error) = broker.progress(fence, progress).await
        {
            // The next word will do as well.
            hand::log!(debug, fence, %error, "progress was not kept");
        }
        sleep(EVERY).await;
    }
}
