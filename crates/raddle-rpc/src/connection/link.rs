//! The client's side of a link: many calls over one connection.

use std::{
    collections::{HashMap, VecDeque},
    fs::File,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use raddle_discovery::encoding;
use raddle_wire::{
    Message,
    frame::{Frame, MAX_HEAD},
    v1::{self, answer, request},
};
use tokio::{
    io::unix::AsyncFd,
    sync::Notify,
    task::AbortHandle,
    time::{Instant, sleep},
};
use tonic::Code;

use super::{
    CallEvent,
    liveness_probe::{LivenessProbe, ProbeObservation, ProbeStep},
};
use crate::{
    RpcError,
    link::{
        CREDIT_STEP, CREDIT_WINDOW, FEW_CALLS, FlushMode, LinkClosed, LinkReader, LinkSocket,
        LinkWriter, ReadAmount, item_weight,
    },
};

/// How long `read` may take to receive what the worker sent before it closed the link.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// When the probe timer fires this late, this process itself was stopped or starved.
const STALL: Duration = Duration::from_secs(1);

/// A link to a worker. It ends when it is dropped or when the worker closes it.
pub(crate) struct LinkConnection {
    shared: Arc<LinkState>,
    /// The task that probes whether the worker is alive.
    watch: AbortHandle,
}

struct LinkState {
    writer: Arc<LinkWriter>,
    calls: Mutex<LinkCalls>,
    next_id: AtomicU64,
    /// Set by `read`, cleared by `watch`: data has arrived.
    has_received: AtomicBool,
    /// Wakes `watch` when there is a call where there was none.
    call_started: Notify,
}

#[derive(Default)]
struct LinkCalls {
    open: HashMap<u64, Arc<CallSlot>>,
    closure: Option<LinkClosure>,
}

/// Why and how the link ended.
struct LinkClosure {
    reason: String,
    end: LinkEnd,
}

/// How a link ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkEnd {
    /// The worker announced the end: it has answered every call that it accepted.
    Graceful,
    /// As `Graceful`, to make room for other connections: refused calls may be sent again at once.
    Evicted,
    /// The connection broke.
    Broken,
    /// Closed by the probe because the worker did not respond. A new connection may get no response
    /// either.
    Unresponsive,
}

impl LinkEnd {
    /// Whether every accepted call was answered.
    fn is_graceful(self) -> bool {
        matches!(self, Self::Graceful | Self::Evicted)
    }
}

/// Receives the events of one call.
#[derive(Default)]
struct CallSlot {
    events: Mutex<CallEvents>,
    reader: AtomicWaker,
}

/// Events that have arrived and were not read yet.
#[derive(Default)]
struct CallEvents {
    queue: VecDeque<CallEvent>,
    /// Their weight against the credit window.
    weight: u32,
}

/// One call over a link. Dropping it before its end cancels it.
pub(crate) struct LinkCall {
    id: u64,
    slot: Arc<CallSlot>,
    link: Arc<LinkState>,
    /// Weight of the items read since credit was last granted.
    read_weight: u32,
    is_finished: bool,
}

impl LinkConnection {
    /// Takes over a connection on which both sides have exchanged the greeting.
    pub(crate) fn new(socket: LinkSocket) -> io::Result<Self> {
        let socket = Arc::new(socket);
        let writer = LinkWriter::new(Arc::clone(&socket));
        let shared = Arc::new(LinkState {
            writer,
            calls: Mutex::default(),
            next_id: AtomicU64::new(1),
            has_received: AtomicBool::new(false),
            call_started: Notify::new(),
        });
        let readable = socket.readable()?;
        let watch = tokio::spawn(watch(Arc::clone(&shared), Arc::clone(&socket))).abort_handle();
        // Both tasks end with the connection, which ends when this link closes its writer or when
        // the worker closes its end.
        tokio::spawn(read(socket, readable, Arc::clone(&shared)));
        tokio::spawn(write(Arc::clone(&shared)));
        Ok(Self { shared, watch })
    }

    /// How the link has ended. `None` while calls can still be made.
    pub(super) fn end(&self) -> Option<LinkEnd> {
        self.shared
            .calls()
            .closure
            .as_ref()
            .map(|closure| closure.end)
    }

    /// Sends a call. An error means that the call was not sent.
    pub(crate) fn call(&self, mut call: v1::Call) -> Result<LinkCall, RpcError> {
        let shared = &self.shared;
        let arguments = std::mem::take(&mut call.arguments);
        let id = shared.next_id.fetch_add(1, Ordering::Relaxed);
        let request = v1::Request {
            id,
            what: Some(request::What::Call(call)),
        };
        if request.encoded_len() > MAX_HEAD {
            let message = format!("the call's metadata and context exceed {MAX_HEAD} bytes");
            return Err(RpcError::refused(Code::InvalidArgument, message));
        }
        let slot = Arc::new(CallSlot::default());
        let open = {
            let mut calls = shared.calls();
            if let Some(LinkClosure { reason, .. }) = &calls.closure {
                return Err(RpcError::refused(Code::Unavailable, reason.clone()));
            }
            calls.open.insert(id, Arc::clone(&slot));
            calls.open.len()
        };
        if open == 1 {
            shared.call_started.notify_one();
        }
        if shared
            .writer
            .push(id, &request, arguments, flush_mode(open))
            .is_err()
        {
            shared.calls().open.remove(&id);
            return Err(RpcError::refused(Code::Unavailable, "the link is closed"));
        }
        Ok(LinkCall {
            id,
            slot,
            link: Arc::clone(shared),
            read_weight: 0,
            is_finished: false,
        })
    }
}

/// With many calls in flight, messages are gathered into one write.
fn flush_mode(open: usize) -> FlushMode {
    if open <= FEW_CALLS {
        FlushMode::Now
    } else {
        FlushMode::Deferred
    }
}

impl Drop for LinkConnection {
    fn drop(&mut self) {
        self.watch.abort();
        self.shared.writer.close(None::<&v1::Request>);
    }
}

impl LinkState {
    fn calls(&self) -> MutexGuard<'_, LinkCalls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request that is not a call.
    fn send_request(
        &self,
        id: u64,
        what: request::What,
        mode: FlushMode,
    ) -> Result<(), LinkClosed> {
        self.writer.push(
            id,
            &v1::Request {
                id,
                what: Some(what),
            },
            Bytes::new(),
            mode,
        )
    }

    /// Ends the link and all its calls.
    fn close_calls(&self, reason: &str, end: LinkEnd) {
        // Set the reason before the writer refuses messages: a caller that is refused has to find
        // out why, and whether to send again.
        let open = {
            let mut calls = self.calls();
            calls.closure.get_or_insert_with(|| LinkClosure {
                reason: reason.to_owned(),
                end,
            });
            std::mem::take(&mut calls.open)
        };
        let unsent = self.writer.abandon();
        for (id, slot) in open {
            // A call that was not sent completely has not begun.
            let error = if end.is_graceful() || unsent.contains(&id) {
                RpcError::refused(Code::Unavailable, reason)
            } else {
                RpcError::lost(reason)
            };
            slot.push(CallEvent::Failed(error));
        }
    }
}

impl CallSlot {
    /// Queues an event. Returns whether it fits: a worker must not send more than its credit
    /// allows.
    fn push(&self, event: CallEvent) -> bool {
        let mut events = self.events();
        events.weight += weight(&event);
        let has_room = events.weight <= CREDIT_WINDOW + EXTRA_EVENTS;
        events.queue.push_back(event);
        drop(events);
        self.reader.wake();
        has_room
    }

    fn pop(&self) -> Option<CallEvent> {
        let mut events = self.events();
        let event = events.queue.pop_front()?;
        events.weight -= weight(&event);
        Some(event)
    }

    fn events(&self) -> MutexGuard<'_, CallEvents> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Weight of the events beside items: accepted, and two for the end.
const EXTRA_EVENTS: u32 = 3;

fn weight(event: &CallEvent) -> u32 {
    match event {
        CallEvent::Item(item) => item_weight(item.len()),
        _ => 1,
    }
}

impl LinkCall {
    pub(crate) fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<CallEvent> {
        self.slot.reader.register(cx.waker());
        let Some(event) = self.slot.pop() else {
            return Poll::Pending;
        };
        match &event {
            CallEvent::Accepted => {}
            CallEvent::Item(item) => {
                self.read_weight += item_weight(item.len());
                if self.read_weight >= CREDIT_STEP {
                    let credit = std::mem::take(&mut self.read_weight);
                    let _ = self.link.send_request(
                        self.id,
                        request::What::Credit(credit),
                        FlushMode::Deferred,
                    );
                }
            }
            CallEvent::Result(_)
            | CallEvent::End
            | CallEvent::Exception(_)
            | CallEvent::Failed(_) => self.is_finished = true,
        }
        Poll::Ready(event)
    }
}

impl Drop for LinkCall {
    fn drop(&mut self) {
        // `deliver` removes the entry too; the order of the two does not matter.
        let was_open = self.link.calls().open.remove(&self.id).is_some();
        if was_open && !self.is_finished && !self.link.writer.withdraw(self.id) {
            let _ = self.link.send_request(
                self.id,
                request::What::Cancel(v1::Cancel {}),
                FlushMode::Deferred,
            );
        }
    }
}

async fn read(socket: Arc<LinkSocket>, readable: AsyncFd<File>, link: Arc<LinkState>) {
    let guard = EndNotifier(link);
    let (link, mut reader, mut end) = (&guard.0, LinkReader::new(), None);
    let reason = loop {
        let mut ready = match readable.readable().await {
            Ok(ready) => ready,
            Err(error) => break error.to_string(),
        };
        let read = reader.read(&socket, |frame| {
            end = deliver(frame, link)?.or(end);
            Ok(())
        });
        link.has_received.store(true, Ordering::Relaxed);
        if let Some(end) = end {
            let reason = if end == LinkEnd::Evicted {
                "the worker has too many connections"
            } else {
                "the worker is stopping"
            };
            return link.close_calls(reason, end);
        }
        match read {
            Ok(ReadAmount::Some) => {}
            Ok(ReadAmount::All) => ready.clear_ready(),
            Ok(ReadAmount::Last) => break "it closed the connection".to_owned(),
            Err(error) => break error.to_string(),
        }
    };
    link.close_calls(&format!("the connection broke ({reason})"), LinkEnd::Broken);
}

async fn write(link: Arc<LinkState>) {
    // No timeout: `watch` decides whether the worker is still alive.
    if let Err(error) = Arc::clone(&link.writer).write(Duration::MAX).await {
        // `read` sees the end too, after what the worker sent before, such as a `Leave`: give
        // `read` time to receive that.
        sleep(DRAIN_TIME).await;
        link.close_calls(&format!("the connection broke ({error})"), LinkEnd::Broken);
    }
}

/// Probes the worker while calls wait for it: a silent worker gets a ping.
async fn watch(link: Arc<LinkState>, socket: Arc<LinkSocket>) {
    let mut probe = LivenessProbe::new(socket.is_remote);
    loop {
        let started = Instant::now();
        sleep(probe.interval()).await;
        // This process was stopped or had no CPU time: what the worker sent meanwhile is not read
        // yet.
        let was_stalled = started.elapsed() > probe.interval() + STALL;
        // Read the flag before sending a ping: a fast answer counts for the next round.
        let has_received = link.has_received.swap(false, Ordering::Relaxed);
        if !has_received && link.calls().open.is_empty() {
            // No call waits. `notify_one` stores a permit, so a call that came since is not missed.
            link.call_started.notified().await;
            probe = LivenessProbe::new(socket.is_remote);
            continue;
        }
        let has_moved = link.writer.has_moved() || was_stalled;
        // This costs a system call, so make it only when the worker is silent.
        let acknowledged = if has_received {
            None
        } else {
            socket.acknowledged()
        };
        match probe.next_step(ProbeObservation {
            now: Instant::now(),
            has_received,
            has_moved,
            acknowledged,
        }) {
            ProbeStep::Wait => {}
            ProbeStep::Ping => {
                let _ = link.send_request(0, request::What::Ping(v1::Ping {}), FlushMode::Now);
                // The ping itself does not count as traffic.
                link.writer.has_moved();
            }
            ProbeStep::Unreachable => {
                return link.close_calls(
                    "the worker's machine does not respond",
                    LinkEnd::Unresponsive,
                );
            }
            ProbeStep::Hung => {
                return link.close_calls("the worker does not respond", LinkEnd::Unresponsive);
            }
        }
    }
}

/// Ends all calls of the link when `read` ends, also when its runtime shuts down.
struct EndNotifier(Arc<LinkState>);

impl Drop for EndNotifier {
    fn drop(&mut self) {
        self.0
            .close_calls("the runtime of the link was shut down", LinkEnd::Broken);
    }
}

/// Passes a frame to its call. Returns how the link ends, if the frame announces that.
fn deliver(frame: Frame, link: &LinkState) -> io::Result<Option<LinkEnd>> {
    let Frame { head, body } = frame;
    let v1::Answer { id, what } = v1::Answer::decode(head)?;
    let event = match what {
        Some(answer::What::Ack(_)) => CallEvent::Accepted,
        Some(answer::What::Item(_)) => CallEvent::Item(body),
        Some(answer::What::Result(_)) => CallEvent::Result(body),
        Some(answer::What::End(_)) => CallEvent::End,
        Some(answer::What::Exception(exception)) => CallEvent::Exception(v1::Exception {
            value: body,
            ..exception
        }),
        Some(answer::What::Refusal(v1::Refusal {
            code,
            message,
            encodings,
        })) => {
            let encodings = encoding::from_numbers(&encodings);
            CallEvent::Failed(RpcError {
                encodings,
                ..RpcError::refused(Code::from_i32(code), message)
            })
        }
        Some(answer::What::Leave(v1::Leave { crowded })) => {
            return Ok(Some(if crowded {
                LinkEnd::Evicted
            } else {
                LinkEnd::Graceful
            }));
        }
        // `None`: from a later version, which must not need an answer.
        Some(answer::What::Pong(_)) | None => return Ok(None),
    };
    let slot = {
        let mut calls = link.calls();
        if event.is_last() {
            calls.open.remove(&id)
        } else {
            calls.open.get(&id).cloned()
        }
    };
    // The slot is missing if the call was cancelled meanwhile.
    if slot.is_some_and(|slot| !slot.push(event)) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the worker sent more items than its credit allows",
        ));
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
