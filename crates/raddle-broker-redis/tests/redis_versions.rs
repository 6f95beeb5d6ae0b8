//! The conformance suite on the oldest supported version and on a cluster. All cases share it, each
//! in its own namespace.

#[expect(dead_code, reason = "other tests use more of it")]
mod redis_server;

use std::{
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use raddle_broker::conformance::{Fixture, Handle, run_all};
use raddle_broker_connect::{BrokerUrl, connect};
use redis_server::{Server, cluster::Cluster};

/// A namespace on a shared server.
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

/// A fresh namespace on one of these ports, in turn.
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
fn conforms_on_redis_6_2() {
    let program = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../target/servers/redis-6.2/redis-server"
    );
    assert!(
        Path::new(program).exists(),
        "{program} is missing: run 'cargo xtask test'"
    );
    let server = Server::with_program(program, &["--appendonly", "yes"]);
    assert!(
        server
            .command(&["INFO", "server"])
            .contains("redis_version:6.2.")
    );
    run_all(
        raddle_broker::conformance!(list make(Vec<u16>)),
        &vec![server.port],
    );
}

/// Two of three namespaces are on another node than the one in the URL.
#[test]
fn conforms_on_a_cluster() {
    let cluster = Cluster::start();
    let ports = cluster.nodes.iter().map(|node| node.port).collect();
    run_all(raddle_broker::conformance!(list make(Vec<u16>)), &ports);
}
