//! Tests of DNS discovery, with a real name server and with forged answers.

mod hostile;
mod real;
mod server;

use std::net::SocketAddr;

use super::*;
use crate::{DiscoveryEvent, testing::soon};

/// Polling interval of the tests.
const INTERVAL: Duration = Duration::from_millis(20);

fn discovery(name: &str, server: SocketAddr) -> DnsDiscovery {
    DnsDiscovery::new(name)
        .unwrap()
        .name_servers([server])
        .poll_interval(INTERVAL)
}

async fn subscribe(discovery: &DnsDiscovery) -> Subscription {
    soon(discovery.subscribe(None)).await.unwrap()
}

/// Formats an event: `+` for an addition, `~` for an update, `-` for a drop.
fn format_event(event: DiscoveryEvent) -> String {
    match event {
        DiscoveryEvent::Added(worker) => format!("+{}", worker.address),
        DiscoveryEvent::Updated(worker) => format!("~{}", worker.address),
        DiscoveryEvent::Dropped(worker) => format!("-{}", worker.address),
    }
}

fn ready(subscription: &mut Subscription) -> Vec<String> {
    crate::testing::ready(subscription)
        .into_iter()
        .map(format_event)
        .collect()
}

async fn next(subscription: &mut Subscription) -> String {
    format_event(crate::testing::next(subscription).await)
}

/// Checks that there is no event during several lookups.
async fn expect_no_event(subscription: &mut Subscription) {
    let event = tokio::time::timeout(INTERVAL * 10, subscription.next()).await;
    assert!(event.is_err(), "{event:?}");
}

#[test]
fn invalid_names_are_refused_with_a_hint() {
    for (name, advice) in [
        ("workers", "use host:port"),
        ("10.0.0.1:7", "this is an address"),
        ("_x._tcp.y:7", "no port"),
    ] {
        let error = DnsDiscovery::new(name).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::InvalidInput);
        let message = error.to_string();
        assert!(
            message.starts_with(&format!("invalid DNS name '{name}': "))
                && message.contains(advice),
            "{message}"
        );
    }
}

#[test]
fn settings_apply_to_each_worker() {
    let discovery = DnsDiscovery::new("workers:7070")
        .unwrap()
        .tags(["gpu"])
        .extra("zone", "b")
        .secure();
    let [one, two] = ["10.0.0.1:7070", "[fd00::1]:7070"]
        .map(|address| discovery.0.worker(address.parse().unwrap()));
    assert_eq!(
        (one.address.as_str(), two.address.as_str()),
        ("10.0.0.1:7070", "[fd00::1]:7070")
    );
    assert_eq!(
        (one.uid, one.pid),
        (crate::WorkerUid::from_address("10.0.0.1:7070"), 0)
    );
    assert!(
        one.secure
            && one.tags.contains("gpu")
            && one.extra["zone"] == "b"
            && one.validate().is_ok()
    );
    assert_ne!(one.uid, two.uid);
    // A changed copy does not change the original.
    let other = discovery.clone().tags(["other"]);
    assert_eq!(
        (
            discovery.0.tags.len(),
            other.0.tags.first().unwrap().as_str()
        ),
        (1, "other")
    );
}
