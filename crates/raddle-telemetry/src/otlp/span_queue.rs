//! `SpanQueue`: the bounded queue of spans to export.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use opentelemetry_sdk::trace::SpanData;
use tokio::sync::mpsc;

use super::span::to_span_data;
use crate::metrics::{AttemptRecorder, AttemptSpan, MetricsPage};

/// Queues spans without blocking.
#[derive(Debug)]
pub(super) struct SpanQueue {
    /// Spans, or `None` at the end.
    pub(super) sender: mpsc::Sender<Option<SpanData>>,
    /// Counters for the metrics.
    pub(super) exported: AtomicU64,
    pub(super) dropped: AtomicU64,
}

/// More spans than a healthy collector is ever behind.
const CAPACITY: usize = 4096;

impl SpanQueue {
    pub(super) fn new() -> (Arc<Self>, mpsc::Receiver<Option<SpanData>>) {
        let (sender, queue) = mpsc::channel(CAPACITY);
        (
            Arc::new(Self {
                sender,
                exported: AtomicU64::new(0),
                dropped: AtomicU64::new(0),
            }),
            queue,
        )
    }
}

impl AttemptRecorder for SpanQueue {
    /// Queues a span, or drops it if the queue is full. Spans of traces that are not sampled are
    /// skipped.
    fn record(&self, attempt: AttemptSpan) {
        if attempt.span.is_sampled() && self.sender.try_send(Some(to_span_data(attempt))).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn show(&self, page: &mut MetricsPage) {
        page.count(
            "raddle_spans_exported_total",
            "Spans that the collector has taken.",
            self.exported.load(Ordering::Relaxed),
        );
        page.count(
            "raddle_spans_dropped_total",
            "Spans that could not be delivered to the collector.",
            self.dropped.load(Ordering::Relaxed),
        );
    }
}

#[cfg(test)]
mod tests {
    use raddle_model::{TaskSpec, Tid};

    use super::*;

    fn attempt(flags: u8) -> AttemptSpan {
        let mut span = TaskSpec::command(["true"])
            .trace(Tid::from_u64(1_700_000_000_000_000_000).unwrap(), 1)
            .parent;
        span.flags = flags;
        AttemptSpan {
            span,
            parent: None,
            name: "x".into(),
            started: 0,
            ended: 1,
            attributes: Vec::new(),
            failure: None,
        }
    }

    #[test]
    fn drops_and_counts_spans_when_full() {
        let (span_queue, mut queue) = SpanQueue::new();
        (0..CAPACITY + 10).for_each(|_| span_queue.record(attempt(1)));
        assert_eq!(span_queue.dropped.load(Ordering::Relaxed), 10);
        span_queue.record(attempt(0));
        assert_eq!(
            span_queue.dropped.load(Ordering::Relaxed),
            10,
            "that trace is not sampled"
        );
        assert!(queue.try_recv().is_ok());
        span_queue.record(attempt(1));
        drop(queue);
        span_queue.record(attempt(1));
        assert_eq!(span_queue.dropped.load(Ordering::Relaxed), 11);
        let mut page = MetricsPage::default();
        span_queue.show(&mut page);
        assert!(page.into_text().contains("raddle_spans_dropped_total 11\n"));
    }
}
