//! The conformance suite over the socket, with one line per engine.

use std::sync::Arc;

use async_trait::async_trait;
use raddle_broker::conformance::{Fixture, Handle, run_all};

use crate::{
    redis_server::Server,
    support::{Engine, ServedBroker, remote},
};

/// A served broker with two clients.
struct OverSocket {
    served: ServedBroker,
    broker: Handle,
}

#[async_trait]
impl Fixture for OverSocket {
    fn broker(&self) -> &Handle {
        &self.broker
    }

    async fn reopen(&self) -> Handle {
        remote(self.served.path()).await
    }
}

async fn serve(engine: Engine) -> OverSocket {
    let served = ServedBroker::start(engine);
    let broker = remote(served.path()).await;
    OverSocket { served, broker }
}

macro_rules! over_socket {
    ($($name:ident: $engine:expr;)*) => {$(
        mod $name {
            use super::*;

            async fn make() -> OverSocket {
                serve($engine).await
            }

            raddle_broker::conformance!(make);
        }
    )*};
}

over_socket! {
    memory: Engine::Memory;
    sqlite: Engine::Sqlite;
}

/// The Redis server is shared, because starting one takes longer than a case. Each case has its own
/// namespace and broker server.
#[test]
fn redis() {
    let server = Arc::new(Server::start());
    run_all(
        raddle_broker::conformance!(list before(Arc<Server>)),
        &server,
    );
}

async fn before(server: Arc<Server>) -> OverSocket {
    let served = ServedBroker::before(server);
    let broker = remote(served.path()).await;
    OverSocket { served, broker }
}
