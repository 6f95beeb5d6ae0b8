//! What is to be sent over a link, gathered until it can be: whatever has come together by then goes in one message.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use futures_core::Stream;
use futures_util::task::AtomicWaker;

/// A message is ended at this size, so that a large one does not hold up all others.
const BATCH: usize = 128 * 1024;

/// Knows about how many bytes it is.
pub(crate) trait Weigh {
    /// As sent.
    fn weight(&self) -> usize;
}

/// Where things wait to be sent. What bounds it is what bounds those who put something there: permits of callers, credit of items.
pub(crate) struct Outbox<T> {
    state: Mutex<State<T>>,
    reader: AtomicWaker,
}

struct State<T> {
    waiting: VecDeque<T>,
    is_closed: bool,
}

/// The sender's end: all that waits, again and again, until the outbox is closed and empty.
pub(crate) struct Batches<T>(Arc<Outbox<T>>);

impl<T> Outbox<T> {
    pub(crate) fn new() -> (Arc<Self>, Batches<T>) {
        let state = Mutex::new(State { waiting: VecDeque::new(), is_closed: false });
        let outbox = Arc::new(Self { state, reader: AtomicWaker::new() });
        (Arc::clone(&outbox), Batches(outbox))
    }

    /// Gives it back if nothing is sent any more.
    pub(crate) fn push(&self, what: T) -> Result<(), T> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(what);
        }
        state.waiting.push_back(what);
        let is_first = state.waiting.len() == 1;
        drop(state);
        if is_first {
            self.reader.wake();
        }
        Ok(())
    }

    /// Lets what waits be sent, and takes nothing more.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.reader.wake();
    }

    /// Takes nothing more, and gives back what was not sent.
    pub(crate) fn abandon(&self) -> VecDeque<T> {
        let mut state = self.lock();
        state.is_closed = true;
        let unsent = std::mem::take(&mut state.waiting);
        drop(state);
        // Whoever sends is to end as well.
        self.reader.wake();
        unsent
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Weigh> Stream for Batches<T> {
    type Item = Vec<T>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Vec<T>>> {
        let outbox = &self.0;
        // Registered before it is looked at: who puts something there after the look finds somebody to wake.
        outbox.reader.register(cx.waker());
        let mut state = outbox.lock();
        if state.waiting.is_empty() {
            return if state.is_closed { Poll::Ready(None) } else { Poll::Pending };
        }
        let (mut batch, mut weight) = (Vec::with_capacity(state.waiting.len().min(64)), 0);
        while weight < BATCH
            && let Some(next) = state.waiting.pop_front()
        {
            weight += next.weight();
            batch.push(next);
        }
        Poll::Ready(Some(batch))
    }
}

impl<T> Drop for Batches<T> {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, StreamExt};

    use super::*;

    impl Weigh for usize {
        fn weight(&self) -> usize {
            *self
        }
    }

    #[tokio::test]
    async fn what_has_come_together_goes_together_but_not_too_much_of_it() {
        let (outbox, mut batches) = Outbox::new();
        assert!(batches.next().now_or_never().is_none());
        for weight in [1, 2, BATCH, 3] {
            outbox.push(weight).unwrap();
        }
        assert_eq!(batches.next().await, Some(vec![1, 2, BATCH]));
        assert_eq!(batches.next().await, Some(vec![3]));
        let waits = tokio::spawn(async move { (batches.next().await, batches.next().await) });
        tokio::task::yield_now().await;
        outbox.push(4).unwrap();
        outbox.close();
        assert_eq!(outbox.push(5), Err(5));
        assert_eq!(waits.await.unwrap(), (Some(vec![4]), None));
    }

    #[test]
    fn what_nobody_will_send_is_given_back() {
        let (outbox, batches) = Outbox::new();
        outbox.push(1).unwrap();
        drop(batches);
        assert_eq!(outbox.push(2), Err(2));
        assert_eq!(outbox.abandon(), [1]);
    }
}
