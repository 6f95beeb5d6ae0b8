//! Many calls over one stream: the client's side.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use futures_util::{StreamExt, task::AtomicWaker};
use raddle_wire::{
    Message,
    v1::{self, answer, request, worker_client::WorkerClient},
};
use tonic::{Code, Status, Streaming, transport::Channel};

use super::{
    Step,
    outbox::{Outbox, Weigh},
};
use crate::RpcError;

/// So much may be on its way before the client has taken any of it. A small item counts as one.
pub(crate) const WINDOW: u32 = 256;

/// What an item of so many bytes counts.
pub(crate) fn cost(bytes: usize) -> u32 {
    1 + (bytes / (16 * 1024)).min(WINDOW as usize - 1) as u32
}

/// A link to a worker. It ends when it is dropped, or the worker does.
pub(crate) struct Link(Arc<Shared>);

struct Shared {
    outbox: Arc<Outbox<v1::Request>>,
    calls: Mutex<Calls>,
    next: AtomicU64,
}

#[derive(Default)]
struct Calls {
    open: HashMap<u64, Arc<Slot>>,
    /// Why there is no link any more.
    lost: Option<String>,
}

/// Where the answers of one call arrive.
#[derive(Default)]
struct Slot {
    steps: Mutex<VecDeque<Step>>,
    reader: AtomicWaker,
}

/// One call over a link. When it is dropped before its end, it is cancelled.
pub(crate) struct LinkCall {
    id: u64,
    slot: Arc<Slot>,
    link: Arc<Shared>,
    /// Items that were taken since credit was given.
    taken: u32,
    is_over: bool,
}

impl Link {
    /// Opens one.
    pub(crate) async fn open(mut grpc: WorkerClient<Channel>) -> Result<Self, Status> {
        let (outbox, batches) = Outbox::new();
        let requests = batches.map(|requests| v1::Requests { requests });
        let replies = grpc.link(requests).await?.into_inner();
        let shared = Arc::new(Shared { outbox, calls: Mutex::default(), next: AtomicU64::new(1) });
        // It ends with the stream, which ends with the outbox that the link closes, or with the worker.
        tokio::spawn(read(replies, Arc::clone(&shared)));
        Ok(Self(shared))
    }

    /// Whether calls can still be made.
    pub(crate) fn is_open(&self) -> bool {
        self.0.calls().lost.is_none()
    }

    /// Sends a call. An error means that it was not sent.
    pub(crate) fn call(&self, call: v1::Call) -> Result<LinkCall, RpcError> {
        let (id, slot) = (self.0.next.fetch_add(1, Ordering::Relaxed), Arc::new(Slot::default()));
        {
            let mut calls = self.0.calls();
            if let Some(reason) = &calls.lost {
                return Err(RpcError::refused(Code::Unavailable, reason.clone()));
            }
            calls.open.insert(id, Arc::clone(&slot));
        }
        let sent = self.0.outbox.push(v1::Request { id, what: Some(request::What::Call(call)) });
        if sent.is_err() {
            self.0.calls().open.remove(&id);
            return Err(RpcError::refused(Code::Unavailable, "the link is closed"));
        }
        Ok(LinkCall { id, slot, link: Arc::clone(&self.0), taken: 0, is_over: false })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.0.outbox.close();
    }
}

impl Shared {
    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing will be heard any more. A worker that has closed the link in good order has answered all that it took.
    fn lose(&self, reason: &str, in_good_order: bool) {
        let unsent: Vec<u64> = self.outbox.abandon().into_iter().map(|request| request.id).collect();
        let open = {
            let mut calls = self.calls();
            calls.lost.get_or_insert_with(|| reason.to_owned());
            std::mem::take(&mut calls.open)
        };
        for (id, slot) in open {
            // What was not even sent has not begun.
            let error = if in_good_order || unsent.contains(&id) {
                RpcError::refused(Code::Unavailable, reason)
            } else {
                RpcError::lost(reason)
            };
            slot.put(Step::Refused(error));
        }
    }
}

impl Slot {
    fn put(&self, step: Step) {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).push_back(step);
        self.reader.wake();
    }
}

impl LinkCall {
    pub(crate) fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        self.slot.reader.register(cx.waker());
        let step = self.slot.steps.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let Some(step) = step else { return Poll::Pending };
        match &step {
            Step::Taken => {}
            Step::Item(item) => {
                self.taken += cost(item.len());
                if self.taken >= WINDOW / 2 {
                    let credit = std::mem::take(&mut self.taken);
                    let _ =
                        self.link.outbox.push(v1::Request { id: self.id, what: Some(request::What::Credit(credit)) });
                }
            }
            Step::Result(_) | Step::End | Step::Exception(_) | Step::Refused(_) => self.is_over = true,
        }
        Poll::Ready(step)
    }
}

impl Drop for LinkCall {
    fn drop(&mut self) {
        // Answers end the entry too; who is first does not matter.
        let was_open = self.link.calls().open.remove(&self.id).is_some();
        if was_open && !self.is_over {
            let cancel = request::What::Cancel(v1::Cancel {});
            let _ = self.link.outbox.push(v1::Request { id: self.id, what: Some(cancel) });
        }
    }
}

async fn read(mut replies: Streaming<v1::Replies>, link: Arc<Shared>) {
    let ending = Ending(link);
    loop {
        match replies.message().await {
            Ok(Some(v1::Replies { answers })) => answers.into_iter().for_each(|answer| deliver(answer, &ending.0)),
            Ok(None) => return ending.0.lose("the worker is stopping", true),
            Err(status) => return ending.0.lose(&format!("the worker is gone ({})", status.message()), false),
        }
    }
}

/// Tells all calls that nothing more is heard, also when the runtime ends that has read for them.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.lose("the link is gone", false);
    }
}

fn deliver(answer: v1::Answer, link: &Shared) {
    let v1::Answer { id, what } = answer;
    let step = match what {
        Some(answer::What::Ack(_)) => Step::Taken,
        Some(answer::What::Item(item)) => Step::Item(item),
        Some(answer::What::Result(result)) => Step::Result(result),
        Some(answer::What::End(_)) => Step::End,
        Some(answer::What::Exception(exception)) => Step::Exception(exception),
        Some(answer::What::Refusal(v1::Refusal { code, message })) => {
            Step::Refused(RpcError::refused(Code::from_i32(code), message))
        }
        // Of a later version, which has promised not to need an answer.
        None => return,
    };
    let slot = {
        let mut calls = link.calls();
        if step.is_last() { calls.open.remove(&id) } else { calls.open.get(&id).cloned() }
    };
    // A call that was cancelled meanwhile is not there.
    if let Some(slot) = slot {
        slot.put(step);
    }
}

impl Weigh for v1::Request {
    fn weight(&self) -> usize {
        self.encoded_len()
    }
}

impl Weigh for v1::Answer {
    fn weight(&self) -> usize {
        self.encoded_len()
    }
}
