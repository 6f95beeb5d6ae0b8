//! The metrics server and the span exporter of a service.

use std::sync::Arc;

use raddle_broker::Broker;
use raddle_spawner::{SpawnerHandle, metrics::show_spawner};
use raddle_telemetry::metrics::{MeteredBroker, Metrics, MetricsPage, QueueExporter};
#[cfg(feature = "otlp")]
use raddle_telemetry::otlp;
use raddle_web::{Address, Readiness, Router, Server, Serving};

use crate::{
    args::MetricsArgs,
    error::{Failure, OrFail, Outcome},
};

const PUBLIC: &str = "--metrics-public";

/// The metrics server and the span exporter of a worker or spawner.
pub(crate) struct Instrumented {
    server: Option<Server>,
    serving: Option<Serving>,
    /// `None` if neither metrics nor spans are wanted: then nothing is counted.
    pub(crate) metrics: Option<Arc<Metrics>>,
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
            metrics: is_instrumented.then(|| Arc::new(Metrics::new(recorder))),
            #[cfg(feature = "otlp")]
            spans,
        })
    }

    /// The URL of the metrics, if they are served.
    pub(crate) fn url(&self) -> Option<String> {
        self.server.as_ref().map(Server::url)
    }

    /// Wraps the broker in a `MeteredBroker`, if metrics or spans are wanted.
    pub(crate) fn meter_broker(&self, broker: Arc<dyn Broker>) -> Arc<dyn Broker> {
        match &self.metrics {
            Some(metrics) => Arc::new(MeteredBroker::new(broker, Arc::clone(metrics))),
            None => broker,
        }
    }

    /// Serves the page, if metrics are wanted.
    pub(crate) fn serve_page(&mut self, page: impl FnOnce(Arc<Metrics>) -> Router) {
        if let (Some(server), Some(metrics)) = (self.server.take(), &self.metrics) {
            self.serving = Some(server.serve(page(Arc::clone(metrics))));
        }
    }

    /// Stops the server and sends the remaining spans.
    pub(crate) async fn close(self) {
        drop(self.serving);
        #[cfg(feature = "otlp")]
        if let Some(spans) = self.spans {
            spans.close().await;
        }
    }
}

/// Binds an address. An address beyond loopback needs `is_public`.
pub(crate) async fn bind(address: Address, is_public: bool) -> Outcome<Server> {
    let address = address.allowed(is_public, PUBLIC).or_usage()?;
    let server = Server::bind(address).await;
    server.map_err(|e| Failure::Usage(format!("{e}: give another address with --metrics-addr")))
}

/// The metrics of a worker.
pub(crate) fn worker_page(metrics: Arc<Metrics>) -> Router {
    raddle_web::metrics(move || {
        let mut page = MetricsPage::default();
        metrics.show(&mut page);
        std::future::ready(page.into_text())
    })
    .merge(health())
}

/// The metrics of a spawner, and of its broker.
pub(crate) fn spawner_page(
    spawner: SpawnerHandle,
    metrics: Arc<Metrics>,
    queue: QueueExporter,
) -> Router {
    queue_page(queue, move |page| {
        show_spawner(page, &spawner.snapshot(), &metrics)
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
    .merge(health())
}

/// Health and readiness of a service that serves its metrics only once it has started.
fn health() -> Router {
    raddle_web::health(|| Readiness::Ready("ready".into()))
}
