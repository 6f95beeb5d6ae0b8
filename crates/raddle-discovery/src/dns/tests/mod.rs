//! Names that are asked for: of a real server, of one that lies, and of none.

mod hostile;
mod real;
mod server;

use std::net::SocketAddr;

use super::*;
use crate::{DiscoveryEvent, testing::soon};

/// So often somebody asks here.
const OFTEN: Duration = Duration::from_millis(20);

fn discovery(name: &str, server: SocketAddr) -> DnsDiscovery {
    DnsDiscovery::new(name)
        .unwrap()
        .name_servers([server])
        .every(OFTEN)
}

async fn subscribe(discovery: &DnsDiscovery) -> Subscription {
    soon(discovery.subscribe(None)).await.unwrap()
}

/// What is heard: `+` for what is new, `-` for what is gone.
fn shown(event: DiscoveryEvent) -> String {
    match event {
        DiscoveryEvent::Added(worker) => format!("+{}", worker.address),
        DiscoveryEvent::Updated(worker) => format!("~{}", worker.address),
        DiscoveryEvent::Dropped(worker) => format!("-{}", worker.address),
    }
}

fn ready(subscription: &mut Subscription) -> Vec<String> {
    crate::testing::ready(subscription)
        .into_iter()
        .map(shown)
        .collect()
}

async fn next(subscription: &mut Subscription) -> String {
    shown(crate::testing::next(subscription).await)
}

/// Nothing is heard for a while in which it is asked several times.
async fn nothing(subscription: &mut Subscription) {
    let heard = tokio::time::timeout(OFTEN * 10, subscription.next()).await;
    assert!(heard.is_err(), "{heard:?}");
}

#[test]
fn what_is_no_name_is_refused_with_what_would_be_one() {
    for (name, advice) in [
        ("workers", "use host:port"),
        ("10.0.0.1:7", "this is an address"),
        ("_x._tcp.y:7", "no port"),
    ] {
        let error = DnsDiscovery::new(name).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::InvalidInput);
        let said = error.to_string();
        assert!(
            said.starts_with(&format!("'{name}' is no name of workers: ")) && said.contains(advice),
            "{said}"
        );
    }
}

#[test]
fn what_is_said_of_the_workers_is_said_of_each() {
    let discovery = DnsDiscovery::new("workers:7070")
        .unwrap()
        .tags(["gpu"])
        .extra("zone", "b")
        .secure();
    let [one, two] =
        ["10.0.0.1:7070", "[fd00::1]:7070"].map(|place| discovery.0.worker(place.parse().unwrap()));
    assert_eq!(
        (one.address.as_str(), two.address.as_str()),
        ("10.0.0.1:7070", "[fd00::1]:7070")
    );
    assert_eq!(
        (one.uid, one.pid),
        (crate::WorkerUid::of_address("10.0.0.1:7070"), 0)
    );
    assert!(
        one.secure && one.tags.contains("gpu") && one.extra["zone"] == "b" && one.check().is_ok()
    );
    assert_ne!(one.uid, two.uid);
    // Who is given another has his own.
    let other = discovery.clone().tags(["other"]);
    assert_eq!(
        (
            discovery.0.tags.len(),
            other.0.tags.first().unwrap().as_str()
        ),
        (1, "other")
    );
}
