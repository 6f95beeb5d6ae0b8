//! The conformance suite on other kinds of servers: one of the oldest version that will do, and a cluster. All cases share it, each in a
//! namespace of its own.

#[expect(
    dead_code,
    reason = "the suite asks less of a server than the faults do"
)]
mod redis_server;

use std::{
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use raddle_broker::conformance::{Fixture, Handle, run_all};
use raddle_broker_connect::{BrokerUrl, connect};
use redis_server::{Server, cluster::Cluster};

/// A namespace on a server that others use as well.
struct Namespace {
    url: BrokerUrl,
    broker: Handle,
}

#[async_trait]
impl Fixture for Namespace {
    fn broker(&self) -> &Handle {
        &self.broker
    }

    async fn reopen(&self) -> Handle {
        connect(&self.url).await.expect("the server is there")
    }
}

/// A namespace of its own at one of these ports, one after the other.
async fn make(ports: Vec<u16>) -> Namespace {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let url = format!(
        "redis://127.0.0.1:{}/0?namespace=case-{n}",
        ports[n % ports.len()]
    );
    let url: BrokerUrl = url.parse().expect("a URL as documented");
    let broker = connect(&url).await.expect("the server can be used");
    Namespace { url, broker }
}

#[test]
fn the_oldest_version_will_do() {
    let program = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../target/servers/redis-6.2/redis-server"
    );
    assert!(
        Path::new(program).exists(),
        "{program} is missing: 'cargo xtask test' gets it"
    );
    let server = Server::of(program, &["--appendonly", "yes"]);
    assert!(
        server
            .ask(&["INFO", "server"])
            .contains("redis_version:6.2.")
    );
    run_all(
        raddle_broker::conformance!(list make(Vec<u16>)),
        &vec![server.port],
    );
}

/// Two of three namespaces are at another node than the one that is asked first.
#[test]
fn a_cluster_will_do() {
    let cluster = Cluster::start();
    let ports = cluster.nodes.iter().map(|node| node.port).collect();
    run_all(raddle_broker::conformance!(list make(Vec<u16>)), &ports);
}
