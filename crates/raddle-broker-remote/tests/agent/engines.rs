//! The conformance suite over the socket. An engine is one line here.

use std::sync::Arc;

use async_trait::async_trait;
use raddle_broker::conformance::{Fixture, Handle, run_all};

use crate::{
    redis_server::Server,
    support::{Engine, Served, remote},
};

/// A served broker, as two clients have it.
struct OverSocket {
    served: Served,
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
    let served = Served::start(engine);
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

/// A server is shared, each case with an agent and a namespace of its own: to start one for each case would take longer than the case.
#[test]
fn redis() {
    let server = Arc::new(Server::start());
    run_all(
        raddle_broker::conformance!(list before(Arc<Server>)),
        &server,
    );
}

async fn before(server: Arc<Server>) -> OverSocket {
    let served = Served::before(server);
    let broker = remote(served.path()).await;
    OverSocket { served, broker }
}
