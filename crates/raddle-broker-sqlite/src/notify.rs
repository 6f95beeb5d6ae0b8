//! Notification between processes, and the queue for the write lock.
//!
//! The shared mapping holds a counter per topic and one for all. To notify, a process increments
//! the counters and wakes the futex on the common one. A waiter that read the counter before sees
//! that it has moved, so no wake-up is lost, and a notification without waiters costs almost
//! nothing. The same file carries the write lock: `flock` makes waiters sleep, and the kernel
//! releases it when the holder is killed.

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

/// Something to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topic {
    /// A task may be ready to claim.
    Ready = 0,
    /// A control message was stored.
    Control = 1,
    /// An event or output was written.
    Log = 2,
    /// A message was stored.
    Queue = 3,
}

/// The topics that a transaction affects.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Topics(u8);

pub(super) struct Notifier {
    /// `flock` belongs to the open file description, which the threads of a handle share, so they
    /// queue here first.
    local_lock: Mutex<()>,
    page: Arc<SharedState>,
    closed: Arc<AtomicBool>,
    /// Fed by the listener thread, which starts with the first wait.
    topics: Mutex<Option<[watch::Receiver<u32>; TOPICS]>>,
}

/// The write lock; released on drop.
pub(super) struct WriteLock<'a> {
    notifier: &'a Notifier,
    _local: MutexGuard<'a, ()>,
}

impl Notifier {
    pub(super) fn new(page: Arc<SharedState>) -> Self {
        Self {
            local_lock: Mutex::new(()),
            page,
            closed: Arc::default(),
            topics: Mutex::default(),
        }
    }

    /// Wakes all waiters for `topics`, in all processes.
    pub(super) fn notify(&self, topics: Topics) {
        if topics.0 == 0 {
            return;
        }
        let page = self.page.head();
        for topic in (0..TOPICS).filter(|topic| topics.0 & (1 << topic) != 0) {
            page.counters[topic].fetch_add(1, Ordering::Release);
        }
        page.notifications.fetch_add(1, Ordering::Release);
        let _ = futex::wake(&page.notifications, futex::Flags::empty(), u32::MAX >> 1);
    }

    /// A receiver that changes with the next notification of `topic`. `None` if no listener thread
    /// can be started.
    pub(super) fn subscribe(&self, topic: Topic) -> Option<watch::Receiver<u32>> {
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        if topics.is_none() {
            let listening = self.start_listening();
            *topics = listening
                .inspect_err(|error| tracing::warn!(%error, "cannot start the notification thread, so waits poll"))
                .ok();
        }
        let mut receiver = topics.as_ref()?[topic as usize].clone();
        // Notifications that the listener thread has not forwarded yet show as a change: one check
        // too many, but none is lost.
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
            .name("notify".into())
            .stack_size(64 * 1024)
            .spawn(move || forward_notifications(&page, &closed, &senders))?;
        Ok(receivers)
    }

    /// Waits for the write lock without a limit. `flock` queues are fair, and the kernel releases
    /// the lock of a killed holder.
    pub(super) fn lock(&self) -> io::Result<WriteLock<'_>> {
        let local_lock = self.block_local_writers();
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
            notifier: self,
            _local: local_lock,
        })
    }

    /// Keeps the threads of this process from taking the write lock. None of them holds it when
    /// this returns.
    pub(super) fn block_local_writers(&self) -> MutexGuard<'_, ()> {
        self.local_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The process that holds the write lock, if any.
    pub(super) fn holder(&self) -> Option<u32> {
        Some(self.page.head().holder.load(Ordering::Relaxed)).filter(|pid| *pid != 0)
    }
}

impl Drop for WriteLock<'_> {
    fn drop(&mut self) {
        self.notifier.page.head().holder.store(0, Ordering::Relaxed);
        let _ = rustix::fs::flock(self.notifier.page.file(), FlockOperation::Unlock);
    }
}

/// The listener thread: forwards changes of the shared counters to the channels of this process.
fn forward_notifications(
    page: &SharedState,
    closed: &AtomicBool,
    topics: &[watch::Sender<u32>; TOPICS],
) {
    loop {
        let page = page.head();
        // Read first: `Drop` increments this counter after it sets `closed`, so the wait below
        // returns.
        let notifications = page.notifications.load(Ordering::Acquire);
        if closed.load(Ordering::Acquire) {
            return;
        }
        for (topic, counter) in topics.iter().zip(&page.counters) {
            let current = counter.load(Ordering::Acquire);
            topic.send_if_modified(|seen| std::mem::replace(seen, current) != current);
        }
        // Returns at once if a notification came since.
        let _ = futex::wait(
            &page.notifications,
            futex::Flags::empty(),
            notifications,
            None,
        );
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        // Wakes the listener thread of this process. Those of others see no changed topic and sleep
        // again.
        let page = self.page.head();
        page.notifications.fetch_add(1, Ordering::Release);
        let _ = futex::wake(&page.notifications, futex::Flags::empty(), u32::MAX >> 1);
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
