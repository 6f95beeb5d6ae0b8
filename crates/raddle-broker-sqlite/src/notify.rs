//! How processes on one database wake each other, and queue for the write lock.
//!
//! The shared page holds a counter per topic, and one of all rings; to ring is to count up and wake whoever waits on that word in
//! the kernel (a futex on a shared mapping). A waiter that looked before the ring sees that the counter has moved, so no wake-up is lost, and
//! one that nobody waits for costs next to nothing. The same file carries the write lock: `flock` puts waiters to sleep and is let go by the
//! kernel when its holder is killed.

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use rustix::{fs::FlockOperation, io::Errno, thread::futex};
use tokio::sync::watch;

use super::shared_state::{SharedState, TOPICS};

/// What can be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topic {
    /// A task may be ready to be claimed.
    Ready = 0,
    /// A control message was written.
    Control = 1,
    /// An event or output was written.
    Log = 2,
    /// A stored message was written.
    Queue = 3,
}

/// Topics that a transaction has touched.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Topics(u8);

pub(super) struct Notifier {
    /// `flock` belongs to the open file, which the threads of a handle share: among themselves they queue here.
    gate: Mutex<()>,
    page: Arc<SharedState>,
    closed: Arc<AtomicBool>,
    /// What the listening thread passes rings on to; it is started when something is first waited for.
    topics: Mutex<Option<[watch::Receiver<u32>; TOPICS]>>,
}

/// The write lock; let go when dropped.
pub(super) struct WriteLock<'a> {
    bell: &'a Notifier,
    _gate: MutexGuard<'a, ()>,
}

impl Notifier {
    pub(super) fn new(page: Arc<SharedState>) -> Self {
        Self {
            gate: Mutex::new(()),
            page,
            closed: Arc::default(),
            topics: Mutex::default(),
        }
    }

    /// Wakes everybody who waits for one of `topics`, in this process and in others.
    pub(super) fn ring(&self, topics: Topics) {
        if topics.0 == 0 {
            return;
        }
        let page = self.page.head();
        for topic in (0..TOPICS).filter(|topic| topics.0 & (1 << topic) != 0) {
            page.counters[topic].fetch_add(1, Ordering::Release);
        }
        page.rings.fetch_add(1, Ordering::Release);
        let _ = futex::wake(&page.rings, futex::Flags::empty(), u32::MAX >> 1);
    }

    /// Something whose `changed` returns at the first ring of `topic` from now on. `None` where the system gives no thread to listen on.
    pub(super) fn listen(&self, topic: Topic) -> Option<watch::Receiver<u32>> {
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        if topics.is_none() {
            let listening = self.start_listening();
            *topics = listening
                .inspect_err(|error| tracing::warn!(%error, "the system gives no thread"))
                .ok();
        }
        let mut receiver = topics.as_ref()?[topic as usize].clone();
        // Rings that the thread has not passed on yet show as a change later: that costs one look too many, and loses none.
        receiver.mark_unchanged();
        Some(receiver)
    }

    fn start_listening(&self) -> io::Result<[watch::Receiver<u32>; TOPICS]> {
        let counters = &self.page.head().counters;
        let channels = [0, 1, 2, 3]
            .map(|topic: usize| watch::channel(counters[topic].load(Ordering::Acquire)));
        let receivers = [0, 1, 2, 3].map(|topic: usize| channels[topic].1.clone());
        let senders = channels.map(|(sender, _)| sender);
        let (page, closed) = (Arc::clone(&self.page), Arc::clone(&self.closed));
        thread::Builder::new()
            .name("bell".into())
            .stack_size(64 * 1024)
            .spawn(move || pass_on(&page, &closed, &senders))?;
        Ok(receivers)
    }

    /// Waits for the right to write, however long it takes. Kernel queues are fair, and a holder that is killed lets go.
    pub(super) fn lock(&self) -> io::Result<WriteLock<'_>> {
        let gate = self.close();
        while let Err(error) = rustix::fs::flock(self.page.file(), FlockOperation::LockExclusive) {
            if error != Errno::INTR {
                return Err(error.into());
            }
        }
        self.page
            .head()
            .holder
            .store(std::process::id(), Ordering::Relaxed);
        Ok(WriteLock {
            bell: self,
            _gate: gate,
        })
    }

    /// Keeps the threads of this process from the write lock, which none of them holds by then.
    pub(super) fn close(&self) -> MutexGuard<'_, ()> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process that holds the write lock, if one does.
    pub(super) fn holder(&self) -> Option<u32> {
        Some(self.page.head().holder.load(Ordering::Relaxed)).filter(|pid| *pid != 0)
    }
}

impl Drop for WriteLock<'_> {
    fn drop(&mut self) {
        self.bell.page.head().holder.store(0, Ordering::Relaxed);
        let _ = rustix::fs::flock(self.bell.page.file(), FlockOperation::Unlock);
    }
}

/// The listening thread: from the shared counters to channels of this process.
fn pass_on(page: &SharedState, closed: &AtomicBool, topics: &[watch::Sender<u32>; TOPICS]) {
    loop {
        let page = page.head();
        // Read first: a close that comes after this is a ring, and ends the wait below.
        let rings = page.rings.load(Ordering::Acquire);
        if closed.load(Ordering::Acquire) {
            return;
        }
        for (topic, counter) in topics.iter().zip(&page.counters) {
            let current = counter.load(Ordering::Acquire);
            topic.send_if_modified(|seen| std::mem::replace(seen, current) != current);
        }
        // Returns at once when somebody has rung since.
        let _ = futex::wait(&page.rings, futex::Flags::empty(), rings, None);
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        // Wakes the listening thread of this process; those of others see that no topic has moved, and sleep on.
        let page = self.page.head();
        page.rings.fetch_add(1, Ordering::Release);
        let _ = futex::wake(&page.rings, futex::Flags::empty(), u32::MAX >> 1);
    }
}

impl Topics {
    pub(super) fn add(&mut self, topic: Topic) {
        self.0 |= 1 << topic as u8;
    }
}

impl From<Topic> for Topics {
    fn from(topic: Topic) -> Self {
        Self(1 << topic as u8)
    }
}
