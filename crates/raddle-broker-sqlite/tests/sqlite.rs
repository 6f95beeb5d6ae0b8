//! The conformance suite on the SQLite engine.

use std::{path::PathBuf, sync::Arc};

use async_trait::async_trait;
use raddle_broker::conformance::{Fixture, Handle};
use raddle_broker_sqlite::Sqlite;

/// A database in a fresh directory.
struct OnDisk {
    path: PathBuf,
    broker: Handle,
    _directory: tempfile::TempDir,
}

#[async_trait]
impl Fixture for OnDisk {
    fn broker(&self) -> &Handle {
        &self.broker
    }

    async fn reopen(&self) -> Handle {
        Arc::new(
            Sqlite::open(&self.path)
                .await
                .expect("the database is there"),
        )
    }
}

async fn make() -> OnDisk {
    let directory = tempfile::tempdir().expect("there is room for a temporary directory");
    let path = directory.path().join("broker.db");
    let broker = Arc::new(
        Sqlite::open(&path)
            .await
            .expect("a new database can be made"),
    );
    OnDisk {
        path,
        broker,
        _directory: directory,
    }
}

raddle_broker::conformance!(make);
