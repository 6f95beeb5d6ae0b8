//! `SpanSender`: exports spans in batches.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use opentelemetry::KeyValue;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};

use super::{SetUpError, collector::build_exporter, span_queue::SpanQueue};
use crate::metrics::AttemptRecorder;

/// Exports spans until it is closed.
pub struct SpanSender {
    span_queue: Arc<SpanQueue>,
    task: JoinHandle<()>,
}

/// The process that sends spans.
#[derive(Clone, Debug)]
pub struct OtlpResource {
    /// Kind and name of the service.
    pub service: String,
    /// The machine.
    pub host: String,
}

/// Most spans in a batch.
const BATCH: usize = 512;
/// How long a batch waits for more spans.
const LINGER: Duration = Duration::from_secs(1);
/// How long the last export may take when the process exits.
const LAST_TRY: Duration = Duration::from_secs(2);

impl SpanSender {
    /// Starts exporting to this collector, or to the one that the environment names.
    pub fn start(endpoint: Option<&str>, resource: OtlpResource) -> Result<Self, SetUpError> {
        let (mut exporter, endpoint) = build_exporter(endpoint)?;
        exporter.set_resource(&resource.into());
        let (span_queue, queue) = SpanQueue::new();
        let sender = Sender {
            exporter,
            endpoint,
            queue,
            span_queue: Arc::clone(&span_queue),
            fails: false,
        };
        Ok(Self {
            span_queue,
            task: tokio::spawn(sender.run()),
        })
    }

    /// The recorder whose attempts are exported.
    pub fn recorder(&self) -> Arc<dyn AttemptRecorder> {
        Arc::clone(&self.span_queue) as Arc<dyn AttemptRecorder>
    }

    /// Exports the remaining spans, within `LAST_TRY`.
    pub async fn close(self) {
        let Self {
            span_queue,
            mut task,
        } = self;
        let last = async {
            // Fails only if the task is gone.
            let _ = span_queue.sender.send(None).await;
            let _ = (&mut task).await;
        };
        if timeout(LAST_TRY, last).await.is_err() {
            task.abort();
        }
    }
}

impl From<OtlpResource> for opentelemetry_sdk::Resource {
    /// `OTEL_SERVICE_NAME` overrides the service name.
    fn from(resource: OtlpResource) -> Self {
        let builder = Self::builder().with_attribute(KeyValue::new("host.name", resource.host));
        match std::env::var("OTEL_SERVICE_NAME") {
            Ok(name) if !name.is_empty() => builder.build(),
            _ => builder.with_service_name(resource.service).build(),
        }
    }
}

/// The tokio task that exports.
struct Sender {
    exporter: SpanExporter,
    endpoint: String,
    queue: mpsc::Receiver<Option<SpanData>>,
    span_queue: Arc<SpanQueue>,
    fails: bool,
}

impl Sender {
    async fn run(mut self) {
        let mut is_open = true;
        while is_open && let Some(Some(first)) = self.queue.recv().await {
            let mut batch = vec![first];
            let until = Instant::now() + LINGER;
            while batch.len() < BATCH
                && is_open
                && let Ok(next) = timeout_at(until, self.queue.recv()).await
            {
                let next = next.flatten();
                is_open = next.is_some();
                batch.extend(next);
            }
            self.send(batch).await;
        }
    }

    async fn send(&mut self, batch: Vec<SpanData>) {
        let (endpoint, count) = (&self.endpoint, batch.len() as u64);
        match self.exporter.export(batch).await {
            Ok(()) => {
                self.span_queue.exported.fetch_add(count, Ordering::Relaxed);
                if std::mem::take(&mut self.fails) {
                    tracing::info!(%endpoint, "spans are exported again");
                }
            }
            Err(error) => {
                self.span_queue.dropped.fetch_add(count, Ordering::Relaxed);
                // Logged once per outage. The metric counts the lost spans.
                if !std::mem::replace(&mut self.fails, true) {
                    tracing::warn!(%endpoint, %error, "spans cannot be exported, and are dropped");
                }
            }
        }
    }
}
