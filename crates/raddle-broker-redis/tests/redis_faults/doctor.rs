//! Health checks for `raddle doctor` on each kind of server.

use raddle_broker::{EngineHealth, HealthCheck};

use super::{redis_server::Server, support::*};

async fn health(server: &Server) -> EngineHealth {
    // With a new connection, because a server is inspected when it is connected to.
    open(&server.url("x"))
        .await
        .unwrap()
        .health()
        .await
        .unwrap()
}

fn check<'h>(health: &'h EngineHealth, name: &str) -> &'h HealthCheck {
    health
        .checks
        .iter()
        .find(|check| check.name == name)
        .unwrap_or_else(|| panic!("no {name}: {health:?}"))
}

#[tokio::test]
async fn reports_the_loss_window_of_each_persistence_mode() {
    let server = Server::start();
    let set = |name: &str, value: &str| {
        assert!(
            server
                .command(&["CONFIG", "SET", name, value])
                .starts_with("+OK")
        )
    };
    for (fsync, window) in [
        ("always", "nothing that was accepted is lost in a power cut"),
        (
            "everysec",
            "a crash of the server loses nothing, a power cut about one second",
        ),
        (
            "no",
            "a crash of the server loses nothing, a power cut up to half a minute",
        ),
    ] {
        set("appendfsync", fsync);
        let health = health(&server).await;
        assert!(
            health.durability.contains(window),
            "{fsync}: {}",
            health.durability
        );
        assert!(
            health.durability.ends_with("there is no replica"),
            "{}",
            health.durability
        );
        let persistence = check(&health, "persistence");
        assert!(
            persistence.ok && persistence.detail == format!("appendonly yes, appendfsync {fsync}")
        );
    }
    set("appendonly", "no");
    for (save, window) in [
        (
            "3600 1",
            "a crash or a power cut loses what came after the last one",
        ),
        ("", "nothing is on disk: all tasks are lost with the server"),
    ] {
        set("save", save);
        let health = health(&server).await;
        assert!(
            health.durability.contains(window),
            "{save}: {}",
            health.durability
        );
        let persistence = check(&health, "persistence");
        assert!(
            !persistence.ok
                && persistence
                    .fix
                    .as_ref()
                    .unwrap()
                    .contains("CONFIG SET appendonly yes")
        );
    }
}

#[tokio::test]
async fn replicas_and_memory_are_reported() {
    let server = Server::start();
    let alone = health(&server).await;
    assert_eq!(
        check(&alone, "replication").detail,
        "role master, 0 replicas"
    );
    assert!(
        check(&alone, "memory").ok
            && check(&alone, "memory")
                .detail
                .contains("no limit, policy noeviction")
    );
    let _replica = server.replica();
    server.command(&["CONFIG", "SET", "maxmemory", "1mb"]);
    let health = health_when_full(&server).await;
    assert_eq!(
        check(&health, "replication").detail,
        "role master, 1 replicas"
    );
    assert!(health.durability.contains(
        "a failover can lose the last submissions and results unless ?wait_replicas= is set"
    ));
    let memory = check(&health, "memory");
    assert!(
        !memory.ok
            && memory
                .fix
                .as_ref()
                .unwrap()
                .contains("CONFIG SET maxmemory"),
        "{memory:?}"
    );
}

async fn health_when_full(server: &Server) -> EngineHealth {
    let health = health(server).await;
    assert!(
        check(&health, "persistence").ok,
        "a full server answers health checks"
    );
    health
}
