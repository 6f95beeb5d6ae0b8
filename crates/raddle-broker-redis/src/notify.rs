//! How handles wake each other: one channel for each topic, which the scripts publish to.

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

/// How long a wait stands back until its channel is open. After that it goes by the safety interval.
const OPENING: Duration = Duration::from_secs(2);

/// The channels that this handle listens to, each from the first wait for it.
pub(super) struct Notifier {
    target: Arc<ServerTarget>,
    keys: Arc<Keys>,
    /// One for each topic.
    rung: [OnceCell<watch::Receiver<u64>>; 3],
}

/// A wait for something that may be there when its topic rings.
pub(super) struct TopicWait {
    rung: Option<watch::Receiver<u64>>,
    deadline: Instant,
}

impl Notifier {
    pub(super) fn new(target: Arc<ServerTarget>, keys: Arc<Keys>) -> Self {
        Self {
            target,
            keys,
            rung: Default::default(),
        }
    }

    /// A wait for `topic`, which listens from now on.
    pub(super) async fn wait(&self, topic: Topic, wait: Duration) -> TopicWait {
        let deadline = Instant::now() + wait.min(FOREVER);
        // Who does not want to wait should not cost a connection.
        if wait.is_zero() {
            return TopicWait {
                rung: None,
                deadline,
            };
        }
        let mut rung = self.rung[topic as usize]
            .get_or_init(async || self.listen(topic))
            .await
            .clone();
        let _ = timeout(OPENING.min(wait), rung.wait_for(|rings| *rings > 0)).await;
        rung.mark_unchanged();
        TopicWait {
            rung: Some(rung),
            deadline,
        }
    }

    /// Starts the task that listens to one channel. It ends with the last receiver: when the handle is dropped.
    fn listen(&self, topic: Topic) -> watch::Receiver<u64> {
        let (ring, rung) = watch::channel(0);
        let (target, channel) = (Arc::clone(&self.target), self.keys.bell(topic));
        tokio::spawn(async move {
            tokio::select! {
                () = ring.closed() => {}
                () = listen(&target, &channel, || ring.send_modify(|rings| *rings += 1)) => {}
            }
        });
        rung
    }
}

/// Listens to a channel, over as many connections as it takes. Calls `ring` for each message, and when it begins to listen: what rang
/// while nobody listened is made up for by looking once.
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
    /// Returns when it is worth looking again, with `true`, or when the wait is over, with `false`. `again_in` is when something may
    /// be there without anybody ringing.
    pub(super) async fn again(&mut self, again_in: Option<Duration>) -> bool {
        let now = Instant::now();
        let Some(rung) = self.rung.as_mut().filter(|_| now < self.deadline) else {
            return false;
        };
        let pause = again_in
            .unwrap_or(SAFETY_INTERVAL)
            .clamp(Duration::from_millis(1), SAFETY_INTERVAL);
        let _ = timeout(pause.min(self.deadline - now), rung.changed()).await;
        true
    }
}
