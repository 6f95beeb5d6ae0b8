//! The conformance suite on the Redis engine: each case on its own server. The second handle has
//! its own connections.

#[expect(dead_code, reason = "other tests use more of it")]
mod redis_server;

use std::sync::Arc;

use async_trait::async_trait;
use raddle_broker::conformance::{Fixture, Handle};
use raddle_broker_connect::{BrokerUrl, connect};
use redis_server::Server;

/// A namespace on a server.
struct OnServer {
    url: BrokerUrl,
    broker: Handle,
    _server: Arc<Server>,
}

#[async_trait]
impl Fixture for OnServer {
    fn broker(&self) -> &Handle {
        &self.broker
    }

    async fn reopen(&self) -> Handle {
        connect(&self.url).await.expect("the server is there")
    }
}

async fn make() -> OnServer {
    let server = Arc::new(Server::start());
    let url: BrokerUrl = server
        .url("conformance")
        .parse()
        .expect("a URL as documented");
    let broker = connect(&url).await.expect("a new server can be used");
    OnServer {
        url,
        broker,
        _server: server,
    }
}

raddle_broker::conformance!(make);
