//! Sends spans to a collector, some at a time.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use opentelemetry::KeyValue;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};

use super::{
    SetUpError,
    collector::connect,
    sink::{Counts, Sink},
};
use crate::metrics::Recorder;

/// Sends spans until it is closed.
pub struct Exporter {
    sink: Arc<Sink>,
    /// Dropped, it stops.
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// Who tells.
#[derive(Clone, Debug)]
pub struct Resource {
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

impl Exporter {
    /// Starts to send, to this collector or to that of the environment.
    pub fn start(endpoint: Option<&str>, resource: Resource) -> Result<Self, SetUpError> {
        let (mut exporter, endpoint) = connect(endpoint)?;
        exporter.set_resource(&resource.into());
        let (sink, queue, counts) = Sink::new();
        let (stop, stopped) = oneshot::channel();
        let sender = Sender { exporter, endpoint, queue, counts, stopped: Some(stopped), fails: false };
        Ok(Self { sink: Arc::new(sink), stop, task: tokio::spawn(sender.run()) })
    }

    /// Takes attempts of tasks, for as long as it is not closed.
    pub fn recorder(&self) -> Arc<dyn Recorder> {
        Arc::clone(&self.sink) as Arc<dyn Recorder>
    }

    /// Sends what is left, as far as that takes no time to speak of.
    pub async fn close(self) {
        let Self { stop, mut task, .. } = self;
        drop(stop);
        if timeout(LAST_TRY, &mut task).await.is_err() {
            task.abort();
        }
    }
}

impl From<Resource> for opentelemetry_sdk::Resource {
    /// With what the environment says of the service, which comes first.
    fn from(resource: Resource) -> Self {
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
    queue: mpsc::Receiver<SpanData>,
    counts: Arc<Counts>,
    /// Resolves when nothing more is taken.
    stopped: Option<oneshot::Receiver<()>>,
    fails: bool,
}

impl Sender {
    async fn run(mut self) {
        while let Some(first) = self.next().await {
            let mut batch = vec![first];
            let until = Instant::now() + LINGER;
            while batch.len() < BATCH
                && let Ok(Some(span)) = timeout_at(until, self.next()).await
            {
                batch.push(span);
            }
            self.send(batch).await;
        }
    }

    /// The next span, or nothing when there will be none. Cancel-safe.
    async fn next(&mut self) -> Option<SpanData> {
        if let Some(stopped) = &mut self.stopped {
            tokio::select! {
                biased;
                span = self.queue.recv() => return span,
                _ = stopped => {}
            }
            self.stopped = None;
            self.queue.close();
        }
        self.queue.recv().await
    }

    async fn send(&mut self, batch: Vec<SpanData>) {
        let (endpoint, count) = (&self.endpoint, batch.len() as u64);
        match self.exporter.export(batch).await {
            Ok(()) => {
                self.counts.exported.fetch_add(count, Ordering::Relaxed);
                if std::mem::take(&mut self.fails) {
                    tracing::info!(%endpoint, "spans are delivered again");
                }
            }
            Err(error) => {
                self.counts.dropped.fetch_add(count, Ordering::Relaxed);
                // Logged once until it succeeds again; the metric says how many are lost.
                if !std::mem::replace(&mut self.fails, true) {
                    tracing::warn!(%endpoint, %error, "spans cannot be delivered, and are dropped");
                }
            }
        }
    }
}
