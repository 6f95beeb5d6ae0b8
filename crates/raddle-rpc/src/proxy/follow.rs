//! Following a discovery, for as long as there is a proxy.

use std::sync::Weak;

use futures_util::FutureExt;
use raddle_discovery::{DiscoveryEvent, Subscription};
use tokio::time::{Instant, sleep_until};

use super::{ProxyInner, endpoint_set::EndpointSet};
use crate::balancer::BalancerContext;

/// Follows a discovery.
pub(super) struct DiscoveryFollower {
    subscription: Subscription,
    /// There will be no more to hear.
    is_over: bool,
    returns: EndpointSet,
    context: BalancerContext,
}

impl DiscoveryFollower {
    pub(super) fn new(subscription: Subscription, context: BalancerContext) -> Self {
        Self {
            subscription,
            is_over: false,
            returns: EndpointSet::default(),
            context,
        }
    }

    /// Hears what is there already, without waiting.
    pub(super) fn catch_up(&mut self, proxy: &ProxyInner) {
        while let Some(Some(event)) = self.subscription.next().now_or_never() {
            self.hear(proxy, event);
        }
    }

    /// Hears all that follows. Does not keep the proxy alive, and is ended with it.
    pub(super) async fn run(mut self, proxy: Weak<ProxyInner>) {
        let mut changes = self.context.subscribe_changes();
        loop {
            match proxy.upgrade() {
                Some(proxy) => self.bring_back(&proxy),
                None => return,
            }
            let due = self.returns.due();
            let event = tokio::select! {
                event = self.subscription.next(), if !self.is_over => {
                    self.is_over = event.is_none();
                    event
                }
                // Who tells of changes is part of the context.
                _ = changes.changed() => None,
                () = until(due) => None,
            };
            if let (Some(proxy), Some(event)) = (proxy.upgrade(), event) {
                self.hear(&proxy, event);
            }
        }
    }

    fn hear(&mut self, proxy: &ProxyInner, event: DiscoveryEvent) {
        match event {
            // What is protected is not for those who cannot prove who they are, and the other way round.
            DiscoveryEvent::Added(worker) | DiscoveryEvent::Updated(worker)
                if proxy.is_for_us(&worker) =>
            {
                self.returns.hear(worker.clone(), Instant::now());
                proxy.put_worker(worker);
            }
            DiscoveryEvent::Added(worker)
            | DiscoveryEvent::Updated(worker)
            | DiscoveryEvent::Dropped(worker) => {
                self.returns.forget(worker.uid);
                proxy.context.forget_worker(worker.uid);
            }
        }
    }

    /// Puts those back whose time has come.
    fn bring_back(&mut self, proxy: &ProxyInner) {
        let (now, called) = (Instant::now(), self.context.workers());
        self.returns.look(
            &called.iter().map(|entry| entry.metadata.uid).collect(),
            now,
        );
        for worker in self.returns.back(now) {
            tracing::debug!(worker = %worker.uid, address = worker.address, "is said to be there, and is tried again");
            proxy.put_worker(worker);
        }
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}
