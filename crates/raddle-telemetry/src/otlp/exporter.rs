//! Sends spans to a collector, some at a time.

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

use super::{SetUpError, collector::connect, sink::Sink};
use crate::metrics::AttemptRecorder;

/// Sends spans until it is closed.
pub struct SpanSender {
    sink: Arc<Sink>,
    task: JoinHandle<()>,
}

/// Who tells.
#[derive(Clone, Debug)]
pub struct OtlpResource {
    /// What kind of service, and what it is called.
    pub service: String,
    /// The machine.
    pub host: String,
}

/// How many are sent at once.
const BATCH: usize = 512;
/// How long the first of them waits for others.
const LINGER: Duration = Duration::from_secs(1);
/// How long the last ones may take when the process ends.
const LAST_TRY: Duration = Duration::from_secs(2);

impl SpanSender {
    /// Starts to send, to this collector or to that of the environment.
    pub fn start(endpoint: Option<&str>, resource: OtlpResource) -> Result<Self, SetUpError> {
        let (mut exporter, endpoint) = connect(endpoint)?;
        exporter.set_resource(&resource.into());
        let (sink, queue) = Sink::new();
        let sender = Sender {
            exporter,
            endpoint,
            queue,
            sink: Arc::clone(&sink),
            fails: false,
        };
        Ok(Self {
            sink,
            task: tokio::spawn(sender.run()),
        })
    }

    /// Takes attempts of tasks, for as long as it is not closed.
    pub fn recorder(&self) -> Arc<dyn AttemptRecorder> {
        Arc::clone(&self.sink) as Arc<dyn AttemptRecorder>
    }

    /// Sends what is left, as far as that takes no time to speak of.
    pub async fn close(self) {
        let Self { sink, mut task } = self;
        let last = async {
            // Refused only if the task is gone.
            let _ = sink.room.send(None).await;
            let _ = (&mut task).await;
        };
        if timeout(LAST_TRY, last).await.is_err() {
            task.abort();
        }
    }
}

impl From<OtlpResource> for opentelemetry_sdk::Resource {
    /// With what the environment says of the service, which comes first.
    fn from(resource: OtlpResource) -> Self {
        let builder = Self::builder().with_attribute(KeyValue::new("host.name", resource.host));
        match std::env::var("OTEL_SERVICE_NAME") {
            Ok(name) if !name.is_empty() => builder.build(),
            _ => builder.with_service_name(resource.service).build(),
        }
    }
}

/// The task that sends.
struct Sender {
    exporter: SpanExporter,
    endpoint: String,
    queue: mpsc::Receiver<Option<SpanData>>,
    sink: Arc<Sink>,
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
                self.sink.exported.fetch_add(count, Ordering::Relaxed);
                if std::mem::take(&mut self.fails) {
                    tracing::info!(%endpoint, "spans are delivered again");
                }
            }
            Err(error) => {
                self.sink.dropped.fetch_add(count, Ordering::Relaxed);
                // Logged once until it succeeds again; the metric says how many are lost.
                if !std::mem::replace(&mut self.fails, true) {
                    tracing::warn!(%endpoint, %error, "spans cannot be delivered, and are dropped");
                }
            }
        }
    }
}
