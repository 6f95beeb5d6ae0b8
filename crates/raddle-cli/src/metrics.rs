//! Pages of metrics, and where they are shown.

use std::{future::Future, pin::Pin, sync::Arc};

use raddle_fabric::{
    metrics::{Book, Exporter, Page, show_spawner},
    spawner::Handle,
};
use raddle_web::{Server, Source};

use crate::{
    args::MetricsArgs,
    error::{Failure, Outcome},
};

const PUBLIC: &str = "--metrics-public";

/// What a worker shows.
pub(crate) struct WorkerPage {
    pub(crate) book: Arc<Book>,
}

/// What a spawner shows.
pub(crate) struct SpawnerPage {
    pub(crate) spawner: Handle,
    pub(crate) book: Arc<Book>,
    pub(crate) queue: Exporter,
}

/// What a broker shows.
pub(crate) struct QueuePage {
    pub(crate) queue: Exporter,
}

/// Takes the address that was asked for, if one was.
pub(crate) async fn bind(args: &MetricsArgs) -> Outcome<Option<Server>> {
    let Some(address) = args.metrics_addr else { return Ok(None) };
    let address = address.allowed(args.metrics_public, PUBLIC).map_err(|e| Failure::Usage(e.to_string()))?;
    let server = Server::bind(address).await;
    server.map(Some).map_err(|e| Failure::Usage(format!("{e}: give another address with --metrics-addr")))
}

type Text<'a> = Pin<Box<dyn Future<Output = String> + Send + 'a>>;

impl Source for WorkerPage {
    fn page(&self) -> Text<'_> {
        let mut page = Page::default();
        self.book.show(&mut page);
        Box::pin(std::future::ready(page.into_text()))
    }
}

impl Source for SpawnerPage {
    fn page(&self) -> Text<'_> {
        Box::pin(async {
            let mut page = Page::default();
            show_spawner(&mut page, &self.spawner.snapshot(), &self.book);
            self.queue.show(&mut page).await;
            page.into_text()
        })
    }
}

impl Source for QueuePage {
    fn page(&self) -> Text<'_> {
        Box::pin(async {
            let mut page = Page::default();
            self.queue.show(&mut page).await;
            page.into_text()
        })
    }
}
