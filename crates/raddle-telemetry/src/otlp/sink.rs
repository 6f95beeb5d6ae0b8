//! Spans on their way to the exporter: as many as there is room for.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use opentelemetry_sdk::trace::SpanData;
use tokio::sync::mpsc;

use super::span::span;
use crate::metrics::{AttemptRecorder, AttemptSpan, MetricsPage};

/// Takes spans, and never waits.
#[derive(Debug)]
pub(super) struct Sink {
    /// Spans, or that there will be no more.
    pub(super) room: mpsc::Sender<Option<SpanData>>,
    /// What became of them.
    pub(super) exported: AtomicU64,
    pub(super) dropped: AtomicU64,
}

/// More than a collector that answers is ever behind.
const ROOM: usize = 4096;

impl Sink {
    pub(super) fn new() -> (Arc<Self>, mpsc::Receiver<Option<SpanData>>) {
        let (room, queue) = mpsc::channel(ROOM);
        (
            Arc::new(Self {
                room,
                exported: AtomicU64::new(0),
                dropped: AtomicU64::new(0),
            }),
            queue,
        )
    }
}

impl AttemptRecorder for Sink {
    /// Passes a span on, or drops it where there is no room. One of a trace that nobody records is neither.
    fn record(&self, attempt: AttemptSpan) {
        if attempt.own.is_sampled() && self.room.try_send(Some(span(attempt))).is_err() {
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
        let mut own = TaskSpec::command(["true"])
            .trace(Tid::from_u64(1_700_000_000_000_000_000).unwrap(), 1)
            .parent;
        own.flags = flags;
        AttemptSpan {
            own,
            within: None,
            name: "x".into(),
            began: 0,
            ended: 1,
            attributes: Vec::new(),
            failure: None,
        }
    }

    #[test]
    fn what_there_is_no_room_for_is_dropped_and_counted() {
        let (sink, mut queue) = Sink::new();
        (0..ROOM + 10).for_each(|_| sink.record(attempt(1)));
        assert_eq!(sink.dropped.load(Ordering::Relaxed), 10);
        sink.record(attempt(0));
        assert_eq!(
            sink.dropped.load(Ordering::Relaxed),
            10,
            "nobody records that trace"
        );
        assert!(queue.try_recv().is_ok());
        sink.record(attempt(1));
        drop(queue);
        sink.record(attempt(1));
        assert_eq!(sink.dropped.load(Ordering::Relaxed), 11);
        let mut page = MetricsPage::default();
        sink.show(&mut page);
        assert!(page.into_text().contains("raddle_spans_dropped_total 11\n"));
    }
}
