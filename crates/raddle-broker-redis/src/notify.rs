//! Notification of handles: one channel per topic, to which the scripts publish.

use std::{sync::Arc, time::Duration};

use redis::PushKind;
use tokio::{
    sync::{OnceCell, mpsc, watch},
    time::{Instant, timeout},
};

use super::{
    FOREVER, SAFETY_INTERVAL, connection::ReconnectBackoff, schema::Keys, schema::Topic,
    target::ServerTarget,
};

/// How long a wait is delayed until its subscription is active. Then it relies on the safety
/// interval.
const OPENING: Duration = Duration::from_secs(2);

/// The subscriptions of a handle, each from the first wait on.
pub(super) struct Notifier {
    target: Arc<ServerTarget>,
    keys: Arc<Keys>,
    /// One per topic.
    changes: [OnceCell<watch::Receiver<u64>>; 3],
}

/// Waits for notifications of a topic.
pub(super) struct TopicWait {
    changes: Option<watch::Receiver<u64>>,
    deadline: Instant,
}

impl Notifier {
    pub(super) fn new(target: Arc<ServerTarget>, keys: Arc<Keys>) -> Self {
        Self {
            target,
            keys,
            changes: Default::default(),
        }
    }

    /// Subscribes to `topic` from now on.
    pub(super) async fn wait(&self, topic: Topic, wait: Duration) -> TopicWait {
        let deadline = Instant::now() + wait.min(FOREVER);
        // A call that does not wait must not open a connection.
        if wait.is_zero() {
            return TopicWait {
                changes: None,
                deadline,
            };
        }
        let mut changes = self.changes[topic as usize]
            .get_or_init(async || self.listen(topic))
            .await
            .clone();
        let _ = timeout(OPENING.min(wait), changes.wait_for(|rings| *rings > 0)).await;
        changes.mark_unchanged();
        TopicWait {
            changes: Some(changes),
            deadline,
        }
    }

    /// Starts the task that subscribes to one channel. It ends with the last receiver, when the
    /// handle is dropped.
    fn listen(&self, topic: Topic) -> watch::Receiver<u64> {
        let (ring, changes) = watch::channel(0);
        let (target, channel) = (Arc::clone(&self.target), self.keys.channel(topic));
        tokio::spawn(async move {
            tokio::select! {
                () = ring.closed() => {}
                () = listen(&target, &channel, || ring.send_modify(|rings| *rings += 1)) => {}
            }
        });
        changes
    }
}

/// Subscribes to a channel, and again after each lost connection. Calls `notify` for each message
/// and after each subscription, because messages may have been missed before.
async fn listen(target: &ServerTarget, channel: &str, mut ring: impl FnMut()) {
    let mut backoff = ReconnectBackoff::new(&target.address.options, FOREVER);
    loop {
        let (hear, mut heard) = mpsc::unbounded_channel();
        if let Ok(mut connection) = target.subscriber(hear).await
            && connection.subscribe(channel).await.is_ok()
        {
            ring();
            while let Some(push) = heard.recv().await
                && push.kind != PushKind::Disconnection
            {
                if push.kind == PushKind::Message {
                    ring();
                }
            }
            backoff = ReconnectBackoff::new(&target.address.options, FOREVER);
        }
        backoff.pause().await;
    }
}

impl TopicWait {
    /// Waits until it is worth checking again and returns `true`, or `false` when the wait is over.
    /// `again_in` is when something becomes available without a notification.
    pub(super) async fn next(&mut self, again_in: Option<Duration>) -> bool {
        let now = Instant::now();
        let Some(changes) = self.changes.as_mut().filter(|_| now < self.deadline) else {
            return false;
        };
        let pause = again_in
            .unwrap_or(SAFETY_INTERVAL)
            .clamp(Duration::from_millis(1), SAFETY_INTERVAL);
        let _ = timeout(pause.min(self.deadline - now), changes.changed()).await;
        true
    }
}
