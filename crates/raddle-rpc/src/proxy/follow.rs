//! Keeps a proxy's workers up to date with a discovery.

use std::sync::Weak;

use futures_util::FutureExt;
use raddle_discovery::{DiscoveryEvent, Subscription};
use tokio::time::{Instant, sleep_until};

use super::{ProxyInner, readmission::Readmission};
use crate::balancer::BalancerContext;

/// Keeps a proxy's workers up to date with a discovery.
pub(super) struct DiscoveryFollower {
    subscription: Subscription,
    /// The subscription has ended.
    is_finished: bool,
    readmission: Readmission,
    context: BalancerContext,
}

impl DiscoveryFollower {
    pub(super) fn new(subscription: Subscription, context: BalancerContext) -> Self {
        Self {
            subscription,
            is_finished: false,
            readmission: Readmission::default(),
            context,
        }
    }

    /// Applies the events that are available without waiting.
    pub(super) fn catch_up(&mut self, proxy: &ProxyInner) {
        while let Some(Some(event)) = self.subscription.next().now_or_never() {
            self.apply_event(proxy, event);
        }
    }

    /// Applies events until the proxy is dropped; does not keep the proxy alive.
    pub(super) async fn run(mut self, proxy: Weak<ProxyInner>) {
        let mut changes = self.context.subscribe_changes();
        loop {
            match proxy.upgrade() {
                Some(proxy) => self.readmit_workers(&proxy),
                None => return,
            }
            let due = self.readmission.next_due();
            let event = tokio::select! {
                event = self.subscription.next(), if !self.is_finished => {
                    self.is_finished = event.is_none();
                    event
                }
                // The sender is part of the context, so the channel cannot close.
                _ = changes.changed() => None,
                () = sleep_until_due(due) => None,
            };
            if let (Some(proxy), Some(event)) = (proxy.upgrade(), event) {
                self.apply_event(&proxy, event);
            }
        }
    }

    fn apply_event(&mut self, proxy: &ProxyInner, event: DiscoveryEvent) {
        match event {
            // Use TLS workers only with credentials, and plain ones only without.
            DiscoveryEvent::Added(worker) | DiscoveryEvent::Updated(worker)
                if proxy.accepts(&worker) =>
            {
                self.readmission
                    .record_listed(worker.clone(), Instant::now());
                proxy.put_worker(worker);
            }
            DiscoveryEvent::Added(worker)
            | DiscoveryEvent::Updated(worker)
            | DiscoveryEvent::Dropped(worker) => {
                self.readmission.forget(worker.uid);
                proxy.context.forget_worker(worker.uid);
            }
        }
    }

    /// Adds the removed workers whose backoff is over.
    fn readmit_workers(&mut self, proxy: &ProxyInner) {
        let (now, active) = (Instant::now(), self.context.workers());
        self.readmission.record_active(
            &active.iter().map(|entry| entry.metadata.uid).collect(),
            now,
        );
        for worker in self.readmission.take_due(now) {
            tracing::debug!(worker = %worker.uid, address = worker.address, "trying a removed worker again");
            proxy.put_worker(worker);
        }
    }
}

async fn sleep_until_due(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}
