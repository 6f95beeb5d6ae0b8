//! The conformance suite on the SQLite engine: with a thread of its own, and on the caller's. The second handle always has a thread.

use std::{path::PathBuf, sync::Arc};

use async_trait::async_trait;
use raddle_broker::{
    conformance::{Fixture, Handle},
    sqlite::Sqlite,
};

/// A database in a folder of its own.
struct OnDisk {
    path: PathBuf,
    broker: Handle,
    _folder: tempfile::TempDir,
}

#[async_trait]
impl Fixture for OnDisk {
    fn broker(&self) -> &Handle {
        &self.broker
    }

    async fn reopen(&self) -> Handle {
        Arc::new(Sqlite::open(&self.path).await.expect("the database is there"))
    }
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("there is room for a temporary folder");
    let path = folder.path().join("broker.db");
    (folder, path)
}

mod on_its_own_thread {
    use super::*;

    async fn make() -> OnDisk {
        let (folder, path) = place();
        let broker = Arc::new(Sqlite::open(&path).await.expect("a new database can be made"));
        OnDisk { path, broker, _folder: folder }
    }

    raddle_broker::conformance!(make);
}

mod on_the_callers_thread {
    use super::*;

    async fn make() -> OnDisk {
        let (folder, path) = place();
        let broker = Arc::new(Sqlite::open_here(&path).await.expect("a new database can be made"));
        OnDisk { path, broker, _folder: folder }
    }

    raddle_broker::conformance!(make);
}
