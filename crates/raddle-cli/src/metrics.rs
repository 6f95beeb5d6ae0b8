//! Serves metrics, and sends spans.

use std::sync::Arc;

use raddle_broker::Broker;
use raddle_spawner::{SpawnerHandle, metrics::show_spawner};
use raddle_telemetry::metrics::{MeteredBroker, Metrics, MetricsPage, QueueExporter};
#[cfg(feature = "otlp")]
use raddle_telemetry::otlp;
use raddle_web::{Address, Router, Server, Serving};

use crate::{
    args::MetricsArgs,
    error::{Failure, OrFail, Outcome},
};

const PUBLIC: &str = "--metrics-public";

/// The metrics server and the span exporter of a worker or spawner.
pub(crate) struct Instrumented {
    server: Option<Server>,
    serving: Option<Serving>,
    /// Absent where neither metrics nor spans are asked for: nothing is counted then.
    pub(crate) book: Option<Arc<Metrics>>,
    #[cfg(feature = "otlp")]
    spans: Option<otlp::SpanSender>,
}

impl Instrumented {
    /// Binds the addresses that the flags name. `service` is the `service.name` of spans.
    pub(crate) async fn start(args: &MetricsArgs, service: &str) -> Outcome<Self> {
        let server = match args.metrics_addr {
            Some(address) => Some(bind(address, args.metrics_public).await?),
            None => None,
        };
        #[cfg(feature = "otlp")]
        let (spans, recorder) = {
            let host = rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned();
            let resource = otlp::OtlpResource {
                service: format!("raddle-{service}"),
                host,
            };
            let spans = args
                .sends_spans()
                .then(|| otlp::SpanSender::start(args.otlp_endpoint.as_deref(), resource));
            let spans = spans.transpose().or_usage_at("cannot send spans")?;
            let recorder = spans.as_ref().map(otlp::SpanSender::recorder);
            (spans, recorder)
        };
        #[cfg(not(feature = "otlp"))]
        let recorder = {
            let _ = service;
            None
        };
        let is_instrumented = server.is_some() || recorder.is_some();
        Ok(Self {
            server,
            serving: None,
            book: is_instrumented.then(|| Arc::new(Metrics::new(recorder))),
            #[cfg(feature = "otlp")]
            spans,
        })
    }

    /// The URL of the metrics, if they are served.
    pub(crate) fn url(&self) -> Option<String> {
        self.server.as_ref().map(Server::url)
    }

    /// Wraps the broker in a `MeteredBroker`, if metrics or spans are asked for.
    pub(crate) fn observed(&self, broker: Arc<dyn Broker>) -> Arc<dyn Broker> {
        match &self.book {
            Some(book) => Arc::new(MeteredBroker::new(broker, Arc::clone(book))),
            None => broker,
        }
    }

    /// Starts to serve the page, if metrics are asked for.
    pub(crate) fn show(&mut self, page: impl FnOnce(Arc<Metrics>) -> Router) {
        if let (Some(server), Some(book)) = (self.server.take(), &self.book) {
            self.serving = Some(server.serve(page(Arc::clone(book))));
        }
    }

    /// Sends the spans that are left, and stops.
    pub(crate) async fn close(self) {
        drop(self.serving);
        #[cfg(feature = "otlp")]
        if let Some(spans) = self.spans {
            spans.close().await;
        }
    }
}

/// Binds an address. One beyond loopback needs `is_public`.
pub(crate) async fn bind(address: Address, is_public: bool) -> Outcome<Server> {
    let address = address.allowed(is_public, PUBLIC).or_usage()?;
    let server = Server::bind(address).await;
    server.map_err(|e| Failure::Usage(format!("{e}: give another address with --metrics-addr")))
}

/// The metrics of a worker.
pub(crate) fn worker_page(book: Arc<Metrics>) -> Router {
    raddle_web::metrics(move || {
        let mut page = MetricsPage::default();
        book.show(&mut page);
        std::future::ready(page.into_text())
    })
}

/// The metrics of a spawner, and of its broker.
pub(crate) fn spawner_page(
    spawner: SpawnerHandle,
    book: Arc<Metrics>,
    queue: QueueExporter,
) -> Router {
    queue_page(queue, move |page| {
        show_spawner(page, &spawner.snapshot(), &book)
    })
}

/// The metrics of a broker, after those that `first` adds.
pub(crate) fn queue_page(
    queue: QueueExporter,
    first: impl Fn(&mut MetricsPage) + Clone + Send + Sync + 'static,
) -> Router {
    let queue = Arc::new(queue);
    raddle_web::metrics(move || {
        let (queue, mut page) = (Arc::clone(&queue), MetricsPage::default());
        first(&mut page);
        async move {
            queue.show(&mut page).await;
            page.into_text()
        }
    })
}
