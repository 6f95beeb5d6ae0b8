//! Many calls over one connection: the client's side.

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
        FEW, FlushMode, HALF, LinkClosed, LinkReader, LinkSocket, LinkWriter, ReadAmount, WINDOW,
        cost,
    },
};

/// How long it may take to hear what a worker has said that hears nothing more.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// When a look at a worker is so late, the delay is this process's own.
const STOOD_STILL: Duration = Duration::from_secs(1);

/// A link to a worker. It ends when it is dropped, or the worker does.
pub(crate) struct LinkConnection {
    shared: Arc<LinkState>,
    /// Sees to it that the worker is there.
    watch: AbortHandle,
}

struct LinkState {
    outbox: Arc<LinkWriter>,
    calls: Mutex<LinkCalls>,
    next: AtomicU64,
    /// Something was heard since this was last looked at.
    is_heard: AtomicBool,
    /// Tells that there is a call where there was none.
    called: Notify,
}

#[derive(Default)]
struct LinkCalls {
    open: HashMap<u64, Arc<CallSlot>>,
    lost: Option<LinkLost>,
}

/// That there is no link any more.
struct LinkLost {
    reason: String,
    how: LinkEnd,
}

/// How a link ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkEnd {
    /// The worker has said that it does: it has answered all that it took.
    InGoodOrder,
    /// The same, for other callers to have room: calls that it refuses were not taken, and may be sent again.
    ForOthers,
    /// It has broken.
    Broken,
    /// It was given up because nothing was heard any more: whoever connects may not hear anything either.
    Cut,
}

impl LinkEnd {
    /// Whether all that was taken has been answered.
    fn is_in_good_order(self) -> bool {
        matches!(self, Self::InGoodOrder | Self::ForOthers)
    }
}

/// Where the answers of one call arrive.
#[derive(Default)]
struct CallSlot {
    steps: Mutex<CallEvents>,
    reader: AtomicWaker,
}

/// What has arrived and was not taken.
#[derive(Default)]
struct CallEvents {
    queue: VecDeque<CallEvent>,
    /// What it counts.
    cost: u32,
}

/// One call over a link. When it is dropped before its end, it is cancelled.
pub(crate) struct LinkCall {
    id: u64,
    slot: Arc<CallSlot>,
    link: Arc<LinkState>,
    /// Items that were taken since credit was given.
    taken: u32,
    is_over: bool,
}

impl LinkConnection {
    /// Over a connection on which both sides have greeted each other.
    pub(crate) fn new(socket: LinkSocket) -> io::Result<Self> {
        let socket = Arc::new(socket);
        let outbox = LinkWriter::new(Arc::clone(&socket));
        let shared = Arc::new(LinkState {
            outbox: Arc::clone(&outbox),
            calls: Mutex::default(),
            next: AtomicU64::new(1),
            is_heard: AtomicBool::new(false),
            called: Notify::new(),
        });
        let readable = socket.readable()?;
        let watch = tokio::spawn(watch(Arc::clone(&shared), Arc::clone(&socket))).abort_handle();
        // They end with the connection, which ends with the outbox that the link closes, or with the worker.
        tokio::spawn(read(socket, readable, Arc::clone(&shared)));
        tokio::spawn(write(Arc::clone(&shared)));
        Ok(Self { shared, watch })
    }

    /// How it has ended. `None` while calls can still be made.
    pub(super) fn lost(&self) -> Option<LinkEnd> {
        self.shared.calls().lost.as_ref().map(|lost| lost.how)
    }

    /// Sends a call. An error means that it was not sent.
    pub(crate) fn call(&self, mut call: v1::Call) -> Result<LinkCall, RpcError> {
        let shared = &self.shared;
        let arguments = std::mem::take(&mut call.arguments);
        let id = shared.next.fetch_add(1, Ordering::Relaxed);
        let request = v1::Request {
            id,
            what: Some(request::What::Call(call)),
        };
        if request.encoded_len() > MAX_HEAD {
            let message = format!("what travels with the call has more than {MAX_HEAD} bytes");
            return Err(RpcError::refused(Code::InvalidArgument, message));
        }
        let slot = Arc::new(CallSlot::default());
        let open = {
            let mut calls = shared.calls();
            if let Some(LinkLost { reason, .. }) = &calls.lost {
                return Err(RpcError::refused(Code::Unavailable, reason.clone()));
            }
            calls.open.insert(id, Arc::clone(&slot));
            calls.open.len()
        };
        if open == 1 {
            shared.called.notify_one();
        }
        if shared
            .outbox
            .push(id, &request, arguments, haste(open))
            .is_err()
        {
            shared.calls().open.remove(&id);
            return Err(RpcError::refused(Code::Unavailable, "the link is closed"));
        }
        Ok(LinkCall {
            id,
            slot,
            link: Arc::clone(shared),
            taken: 0,
            is_over: false,
        })
    }
}

/// Many are sent together.
fn haste(open: usize) -> FlushMode {
    if open <= FEW {
        FlushMode::Now
    } else {
        FlushMode::Soon
    }
}

impl Drop for LinkConnection {
    fn drop(&mut self) {
        self.watch.abort();
        self.shared.outbox.close(None::<&v1::Request>);
    }
}

impl LinkState {
    fn calls(&self) -> MutexGuard<'_, LinkCalls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says something that is no call.
    fn say(&self, id: u64, what: request::What, haste: FlushMode) -> Result<(), LinkClosed> {
        self.outbox.push(
            id,
            &v1::Request {
                id,
                what: Some(what),
            },
            Bytes::new(),
            haste,
        )
    }

    /// Nothing will be heard any more.
    fn lose(&self, reason: &str, how: LinkEnd) {
        // Before nothing more is taken: whoever finds that shall find out why, and may have to come again.
        let open = {
            let mut calls = self.calls();
            calls.lost.get_or_insert_with(|| LinkLost {
                reason: reason.to_owned(),
                how,
            });
            std::mem::take(&mut calls.open)
        };
        let unsent = self.outbox.abandon();
        for (id, slot) in open {
            // What was not even sent has not begun.
            let error = if how.is_in_good_order() || unsent.contains(&id) {
                RpcError::refused(Code::Unavailable, reason)
            } else {
                RpcError::lost(reason)
            };
            slot.put(CallEvent::Refused(error));
        }
    }
}

impl CallSlot {
    /// Returns whether there is room for it: a worker sends no more than it was given credit for.
    fn put(&self, step: CallEvent) -> bool {
        let mut steps = self.steps();
        steps.cost += weight(&step);
        let has_room = steps.cost <= WINDOW + BESIDE;
        steps.queue.push_back(step);
        drop(steps);
        self.reader.wake();
        has_room
    }

    fn take(&self) -> Option<CallEvent> {
        let mut steps = self.steps();
        let step = steps.queue.pop_front()?;
        steps.cost -= weight(&step);
        Some(step)
    }

    fn steps(&self) -> MutexGuard<'_, CallEvents> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What counts beside items: that a call was taken, and that it is over, or lost.
const BESIDE: u32 = 3;

fn weight(step: &CallEvent) -> u32 {
    match step {
        CallEvent::Item(item) => cost(item.len()),
        _ => 1,
    }
}

impl LinkCall {
    pub(crate) fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<CallEvent> {
        self.slot.reader.register(cx.waker());
        let Some(step) = self.slot.take() else {
            return Poll::Pending;
        };
        match &step {
            CallEvent::Taken => {}
            CallEvent::Item(item) => {
                self.taken += cost(item.len());
                if self.taken >= HALF {
                    let credit = std::mem::take(&mut self.taken);
                    let _ = self
                        .link
                        .say(self.id, request::What::Credit(credit), FlushMode::Soon);
                }
            }
            CallEvent::Result(_)
            | CallEvent::End
            | CallEvent::Exception(_)
            | CallEvent::Refused(_) => self.is_over = true,
        }
        Poll::Ready(step)
    }
}

impl Drop for LinkCall {
    fn drop(&mut self) {
        // Answers end the entry too; who is first does not matter.
        let was_open = self.link.calls().open.remove(&self.id).is_some();
        if was_open && !self.is_over && !self.link.outbox.withdraw(self.id) {
            let _ = self.link.say(
                self.id,
                request::What::Cancel(v1::Cancel {}),
                FlushMode::Soon,
            );
        }
    }
}

async fn read(socket: Arc<LinkSocket>, readable: AsyncFd<File>, link: Arc<LinkState>) {
    let ending = EndNotifier(link);
    let (link, mut inbox, mut leaves) = (&ending.0, LinkReader::new(), None);
    let reason = loop {
        let mut ready = match readable.readable().await {
            Ok(ready) => ready,
            Err(error) => break error.to_string(),
        };
        let read = inbox.read(&socket, |frame| {
            leaves = deliver(frame, link)?.or(leaves);
            Ok(())
        });
        link.is_heard.store(true, Ordering::Relaxed);
        if let Some(how) = leaves {
            let reason = if how == LinkEnd::ForOthers {
                "the worker has too many callers"
            } else {
                "the worker is stopping"
            };
            return link.lose(reason, how);
        }
        match read {
            Ok(ReadAmount::Some) => {}
            Ok(ReadAmount::All) => ready.clear_ready(),
            Ok(ReadAmount::Last) => break "it has hung up".to_owned(),
            Err(error) => break error.to_string(),
        }
    };
    link.lose(&format!("the worker is gone ({reason})"), LinkEnd::Broken);
}

async fn write(link: Arc<LinkState>) {
    // Whether a worker is still there is found out by others.
    if let Err(error) = Arc::clone(&link.outbox).write(Duration::MAX).await {
        // Whoever reads sees the end, too, and what was said before it: that the worker has left in good order, perhaps.
        sleep(LAST_WORDS).await;
        link.lose(&format!("the worker is gone ({error})"), LinkEnd::Broken);
    }
}

/// Looks after a worker, as long as somebody waits for it to say something: one that is silent is asked whether it is there.
async fn watch(link: Arc<LinkState>, socket: Arc<LinkSocket>) {
    let mut pulse = LivenessProbe::new(socket.is_far);
    loop {
        let looked = Instant::now();
        sleep(pulse.pause()).await;
        // This process was stopped, or had no processor. What the worker has said meanwhile is not read yet.
        let stood_still = looked.elapsed() > pulse.pause() + STOOD_STILL;
        // Before the worker is asked: its answer may come at once, and counts for the next look.
        let is_heard = link.is_heard.swap(false, Ordering::Relaxed);
        if !is_heard && link.calls().open.is_empty() {
            // No call waits for the worker. A call that came since has left its permit.
            link.called.notified().await;
            pulse = LivenessProbe::new(socket.is_far);
            continue;
        }
        let has_moved = link.outbox.has_moved() || stood_still;
        // Only where it counts: it is asked of the system.
        let acknowledged = if is_heard {
            None
        } else {
            socket.acknowledged()
        };
        match pulse.look(ProbeObservation {
            now: Instant::now(),
            is_heard,
            has_moved,
            acknowledged,
        }) {
            ProbeStep::Wait => {}
            ProbeStep::Ask => {
                let _ = link.say(0, request::What::Ping(v1::Ping {}), FlushMode::Now);
                // That it was asked is no sign of life.
                link.outbox.has_moved();
            }
            ProbeStep::Cut => {
                return link.lose("the worker's machine does not answer", LinkEnd::Cut);
            }
            ProbeStep::Still => return link.lose("the worker does not answer", LinkEnd::Cut),
        }
    }
}

/// Tells all calls that nothing more is heard, also when the runtime ends that has read for them.
struct EndNotifier(Arc<LinkState>);

impl Drop for EndNotifier {
    fn drop(&mut self) {
        self.0.lose("the link is gone", LinkEnd::Broken);
    }
}

/// Passes on what a frame is about. Returns how the link ends, if that is what it says.
fn deliver(frame: Frame, link: &LinkState) -> io::Result<Option<LinkEnd>> {
    let Frame { head, body } = frame;
    let v1::Answer { id, what } = v1::Answer::decode(head)?;
    let step = match what {
        Some(answer::What::Ack(_)) => CallEvent::Taken,
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
            let reads = encoding::of_numbers(&encodings);
            CallEvent::Refused(RpcError {
                reads,
                ..RpcError::refused(Code::from_i32(code), message)
            })
        }
        Some(answer::What::Leave(v1::Leave { crowded })) => {
            return Ok(Some(if crowded {
                LinkEnd::ForOthers
            } else {
                LinkEnd::InGoodOrder
            }));
        }
        // Or of a later version, which has promised not to need an answer.
        Some(answer::What::Pong(_)) | None => return Ok(None),
    };
    let slot = {
        let mut calls = link.calls();
        if step.is_last() {
            calls.open.remove(&id)
        } else {
            calls.open.get(&id).cloned()
        }
    };
    // A call that was cancelled meanwhile is not there.
    if slot.is_some_and(|slot| !slot.put(step)) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "more was sent than there is room for",
        ));
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
