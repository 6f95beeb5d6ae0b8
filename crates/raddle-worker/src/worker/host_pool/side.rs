//! Messages of running attempts in hosts: log lines, progress, and chained tasks.
//!
//! Most attempts say nothing, and their ends pass this by. The others get a task that writes in
//! order, so that what an attempt chains is stored before its end.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use raddle_broker::{AttemptId, Broker, ChainRequest, Completion};
use raddle_model::{ExitStatus, Progress, TaskSpec, Trace, reply::LogLevel};
use raddle_runner::OutputChannel;
use serde_json::Value;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout, timeout_at},
};

use super::super::{
    attempt_tracing,
    chaining::{self, store_chain_in_time},
    event::WorkerLoopEvent,
    output_forwarding::{OUTPUT_TIMEOUT, store_output},
};

/// Something that an attempt has said, or that is said of it.
#[derive(Debug)]
pub(super) enum SideMessage {
    Progress(Progress),
    Log(LogLevel, String),
    /// Output of a host that runs one attempt at a time.
    Output(OutputChannel, Vec<u8>),
    /// A task that follows, and the trace that it belongs to.
    Chain(Value, Trace),
    /// It begins again.
    Restart,
}

enum Entry {
    Said(SideMessage),
    End {
        slot: usize,
        finish: Box<Completion>,
        killed: bool,
    },
}

struct SideSender {
    entries: mpsc::UnboundedSender<Entry>,
    /// How many messages wait. An attempt that says more than the broker can take loses lines.
    waiting: Arc<AtomicUsize>,
    lost: u64,
}

/// The attempts that have said something.
pub(super) struct Sides {
    broker: Arc<dyn Broker>,
    events: mpsc::UnboundedSender<WorkerLoopEvent>,
    open: HashMap<AttemptId, SideSender>,
}

/// How often at most the progress of an attempt is written.
const REPORT_EVERY: Duration = Duration::from_millis(200);
/// How many messages of one attempt may wait.
const MOST_WAITING: usize = 4096;

impl Sides {
    pub(super) fn new(
        broker: Arc<dyn Broker>,
        events: mpsc::UnboundedSender<WorkerLoopEvent>,
    ) -> Self {
        Self {
            broker,
            events,
            open: HashMap::new(),
        }
    }

    pub(super) fn say(&mut self, attempt_id: AttemptId, message: SideMessage) {
        if matches!(message, SideMessage::Restart) && !self.open.contains_key(&attempt_id) {
            return;
        }
        let Self {
            broker,
            events,
            open,
        } = self;
        let side = open.entry(attempt_id).or_insert_with(|| {
            let (entries, queue) = mpsc::unbounded_channel();
            let waiting = Arc::default();
            let writer = SideWriter {
                broker: Arc::clone(broker),
                events: events.clone(),
                attempt_id,
                waiting: Arc::clone(&waiting),
                chained: 0,
                logged: 0,
                refusal: None,
                progress: None,
            };
            tokio::spawn(writer.run(queue));
            SideSender {
                entries,
                waiting,
                lost: 0,
            }
        });
        let may_be_lost = !matches!(message, SideMessage::Chain(..) | SideMessage::Restart);
        if may_be_lost && side.waiting.load(Ordering::Relaxed) >= MOST_WAITING {
            if side.lost == 0 {
                attempt_tracing::log!(
                    warn,
                    attempt_id,
                    "an attempt says more than can be stored: lines are dropped"
                );
            }
            side.lost += 1;
            return;
        }
        side.waiting.fetch_add(1, Ordering::Relaxed);
        let _ = side.entries.send(Entry::Said(message));
    }

    /// Ends an attempt, behind what it has said.
    pub(super) fn end(&mut self, slot: usize, finish: Box<Completion>, killed: bool) {
        match self.open.remove(&finish.attempt_id) {
            Some(side) => {
                let _ = side.entries.send(Entry::End {
                    slot,
                    finish,
                    killed,
                });
            }
            None => {
                let _ = self.events.send(WorkerLoopEvent::AttemptEnded {
                    slot,
                    finish,
                    killed,
                });
            }
        }
    }

    /// Forgets an attempt that continues elsewhere. Its earlier messages are still written.
    pub(super) fn forget_attempt(&mut self, attempt_id: AttemptId) {
        self.open.remove(&attempt_id);
    }
}

struct SideWriter {
    broker: Arc<dyn Broker>,
    events: mpsc::UnboundedSender<WorkerLoopEvent>,
    attempt_id: AttemptId,
    waiting: Arc<AtomicUsize>,
    /// How many tasks this run has chained.
    chained: u64,
    /// How many bytes of it are in the task's log.
    logged: u64,
    refusal: Option<ExitStatus>,
    progress: Option<Progress>,
}

impl SideWriter {
    async fn run(mut self, mut queue: mpsc::UnboundedReceiver<Entry>) {
        let mut report_at = Instant::now();
        loop {
            // The last report of a burst is written when its time has come.
            let received = match self.progress {
                Some(_) => timeout_at(report_at, queue.recv()).await,
                None => Ok(queue.recv().await),
            };
            let Ok(entry) = received else {
                self.report_progress().await;
                report_at = Instant::now() + REPORT_EVERY;
                continue;
            };
            let Some(entry) = entry else { return };
            let mut log = Vec::new();
            let mut end = None;
            let mut next = Some(entry);
            while let Some(entry) = next.take() {
                match entry {
                    Entry::Said(message) => {
                        self.waiting.fetch_sub(1, Ordering::Relaxed);
                        self.take(message, &mut log).await;
                    }
                    Entry::End {
                        slot,
                        finish,
                        killed,
                    } => {
                        end = Some((slot, finish, killed));
                        break;
                    }
                }
                next = (log.len() < 64 * 1024)
                    .then(|| queue.try_recv().ok())
                    .flatten();
            }
            self.store(OutputChannel::Stderr, log).await;
            if let Some((slot, mut finish, killed)) = end {
                if let Some(refusal) = self.refusal.take()
                    && finish.report.exit.is_success()
                {
                    (finish.report.exit, finish.report.value) = (refusal, None);
                }
                finish.report.stderr_bytes = self.logged;
                let _ = self.events.send(WorkerLoopEvent::AttemptEnded {
                    slot,
                    finish,
                    killed,
                });
                return;
            }
            if self.progress.is_some() && report_at <= Instant::now() {
                self.report_progress().await;
                report_at = Instant::now() + REPORT_EVERY;
            }
        }
    }

    async fn report_progress(&mut self) {
        if let Some(progress) = self.progress.take() {
            let reporting = self.broker.report_progress(self.attempt_id, progress);
            let _ = timeout(OUTPUT_TIMEOUT, reporting).await;
        }
    }

    async fn take(&mut self, message: SideMessage, log: &mut Vec<u8>) {
        match message {
            SideMessage::Progress(progress) => self.progress = Some(progress),
            SideMessage::Log(level, message) => {
                let level = match level {
                    LogLevel::Debug => "debug: ",
                    LogLevel::Info => "",
                    LogLevel::Warn => "warning: ",
                    LogLevel::Error => "error: ",
                };
                log.extend_from_slice(level.as_bytes());
                log.extend_from_slice(message.as_bytes());
                log.push(b'\n');
            }
            SideMessage::Output(stream, bytes) => self.store(stream, bytes).await,
            SideMessage::Chain(spec, trace) => self.chain(spec, trace).await,
            SideMessage::Restart => (self.chained, self.refusal, self.progress) = (0, None, None),
        }
    }

    async fn store(&mut self, stream: OutputChannel, bytes: Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        self.logged += bytes.len() as u64;
        let storing = store_output(&*self.broker, self.attempt_id, stream, bytes);
        if timeout(OUTPUT_TIMEOUT, storing).await.is_err() {
            attempt_tracing::log!(error, self.attempt_id, "output could not be stored in time");
        }
    }

    async fn chain(&mut self, spec: Value, trace: Trace) {
        if self.refusal.is_some() {
            return;
        }
        let spec = match TaskSpec::from_value(spec) {
            Ok(spec) => spec,
            Err(error) => {
                self.refusal = Some(ExitStatus::ProtocolError {
                    message: format!("it chained an invalid task, {error}"),
                });
                return;
            }
        };
        let spec = if spec.traceparent.is_some() {
            spec
        } else {
            TaskSpec {
                traceparent: Some(trace.parent),
                tracestate: trace.state,
                ..spec
            }
        };
        let request = ChainRequest {
            attempt_id: self.attempt_id,
            tasks: vec![spec],
            offset: Some(self.chained),
        };
        match store_chain_in_time(&*self.broker, request).await {
            Some(Ok(())) => self.chained += 1,
            Some(Err(refusal)) => self.refusal = Some(refusal),
            None => self.refusal = Some(chaining::chain_timed_out()),
        }
    }
}
