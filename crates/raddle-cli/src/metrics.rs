//! Pages of metrics, and where they are shown; and where spans are sent.

use std::sync::Arc;

use raddle_broker::Broker;
#[cfg(feature = "otlp")]
use raddle_fabric::otlp;
use raddle_fabric::{
    metrics::{Book, Exporter, Observed, Page, show_spawner},
    spawner::Handle,
};
use raddle_web::{Address, Router, Server, Serving};

use crate::{
    args::MetricsArgs,
    error::{Failure, OrFail, Outcome},
};

const PUBLIC: &str = "--metrics-public";

/// Who looks at a worker or a spawner, and by what means.
pub(crate) struct Watched {
    server: Option<Server>,
    serving: Option<Serving>,
    /// Account is kept only where somebody looks.
    pub(crate) book: Option<Arc<Book>>,
    #[cfg(feature = "otlp")]
    spans: Option<otlp::Exporter>,
}

impl Watched {
    /// Takes the addresses that were asked for. `service` is what spans say of who tells them.
    pub(crate) async fn start(args: &MetricsArgs, service: &str) -> Outcome<Self> {
        let server = match args.metrics_addr {
            Some(address) => Some(bind(address, args.metrics_public).await?),
            None => None,
        };
        #[cfg(feature = "otlp")]
        let (spans, recorder) = {
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            let resource = otlp::Resource { service: format!("raddle-{service}"), host };
            let spans = args.sends_spans().then(|| otlp::Exporter::start(args.otlp_endpoint.as_deref(), resource));
            let spans = spans.transpose().or_usage_at("cannot send spans")?;
            let recorder = spans.as_ref().map(otlp::Exporter::recorder);
            (spans, recorder)
        };
        #[cfg(not(feature = "otlp"))]
        let recorder = {
            let _ = service;
            None
        };
        let is_watched = server.is_some() || recorder.is_some();
        Ok(Self {
            server,
            serving: None,
            book: is_watched.then(|| Arc::new(Book::new(recorder))),
            #[cfg(feature = "otlp")]
            spans,
        })
    }

    /// Where the metrics are, if they are shown.
    pub(crate) fn url(&self) -> Option<String> {
        self.server.as_ref().map(Server::url)
    }

    /// The broker, with account kept of what passes through it if anybody looks.
    pub(crate) fn observed(&self, broker: Arc<dyn Broker>) -> Arc<dyn Broker> {
        match &self.book {
            Some(book) => Arc::new(Observed::new(broker, Arc::clone(book))),
            None => broker,
        }
    }

    /// Begins to show a page, if one is shown.
    pub(crate) fn show(&mut self, page: impl FnOnce(Arc<Book>) -> Router) {
        if let (Some(server), Some(book)) = (self.server.take(), &self.book) {
            self.serving = Some(server.serve(page(Arc::clone(book))));
        }
    }

    /// Tells what is left to tell.
    pub(crate) async fn close(self) {
        drop(self.serving);
        #[cfg(feature = "otlp")]
        if let Some(spans) = self.spans {
            spans.close().await;
        }
    }
}

/// Takes an address. One that other machines reach has to be `public`.
pub(crate) async fn bind(address: Address, is_public: bool) -> Outcome<Server> {
    let address = address.allowed(is_public, PUBLIC).or_usage()?;
    let server = Server::bind(address).await;
    server.map_err(|e| Failure::Usage(format!("{e}: give another address with --metrics-addr")))
}

/// The metrics of a worker.
pub(crate) fn worker_page(book: Arc<Book>) -> Router {
    raddle_web::metrics(move || {
        let mut page = Page::default();
        book.show(&mut page);
        std::future::ready(page.into_text())
    })
}

/// The metrics of a spawner, and of its broker.
pub(crate) fn spawner_page(spawner: Handle, book: Arc<Book>, queue: Exporter) -> Router {
    queue_page(queue, move |page| show_spawner(page, &spawner.snapshot(), &book))
}

/// The metrics of a broker, after those that `first` adds.
pub(crate) fn queue_page(queue: Exporter, first: impl Fn(&mut Page) + Clone + Send + Sync + 'static) -> Router {
    let queue = Arc::new(queue);
    raddle_web::metrics(move || {
        let (queue, mut page) = (Arc::clone(&queue), Page::default());
        first(&mut page);
        async move {
            queue.show(&mut page).await;
            page.into_text()
        }
    })
}
