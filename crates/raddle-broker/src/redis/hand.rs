//! Tasks that are handed to a worker that waits. One that is submitted alone, while nothing else waits in its queue, is claimed for the worker
//! by the submission itself, and comes over a channel of the handle that the worker waits with.
//!
//! A message can be lost, with its connection or with the process. So each look of a worker that waits also brings what was handed to it
//! since it began to wait: it may come both ways, and counts the first time.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use raddle_core::Tid;
use tokio::{
    sync::{OnceCell, oneshot, watch},
    time::timeout,
};

use super::{
    Core,
    bell::{Heard, OPENING, listen},
    claim::read_claim,
    keys::Keys,
    link::random,
};
use crate::{Claim, Fence};

/// How many of the last tasks are known to have come. A task comes by a look only until it begins, so few are ever asked about.
const KNOWN: usize = 4096;

/// What reaches the workers that wait with one handle.
pub(super) struct Hand {
    channel: String,
    is_open: OnceCell<watch::Receiver<bool>>,
    desk: Mutex<Desk>,
    /// Whether, when this handle last submitted something, somebody waited for tasks.
    somebody_waits: AtomicBool,
}

#[derive(Default)]
struct Desk {
    seats: HashMap<u64, (Tid, oneshot::Sender<Claim>)>,
    next_seat: u64,
    /// What has come.
    come: HashSet<Fence>,
    /// The same, the latest last.
    in_order: VecDeque<Fence>,
    /// The last id that there was when workers began to wait that could not ask at the end whether something was handed to them.
    unsettled: HashMap<Tid, Tid>,
}

/// A worker's place while it waits.
pub(super) struct Seat<'h> {
    hand: &'h Hand,
    owner: Tid,
    number: u64,
    handed: oneshot::Receiver<Claim>,
    come: Option<Claim>,
}

impl Hand {
    pub(super) fn new(keys: &Keys) -> Self {
        let (channel, somebody_waits) = (keys.hand(random()), AtomicBool::new(true));
        Self { channel, is_open: OnceCell::new(), desk: Mutex::default(), somebody_waits }
    }

    /// Whether a task that is submitted alone may find a worker that waits.
    pub(super) fn is_worth_trying(&self) -> bool {
        self.somebody_waits.load(Ordering::Relaxed)
    }

    /// Notes whether somebody waits for tasks.
    pub(super) fn somebody_waits(&self, somebody_waits: bool) {
        self.somebody_waits.store(somebody_waits, Ordering::Relaxed);
    }

    /// The channel, if it is listened to.
    pub(super) fn open_channel(&self) -> Option<&str> {
        self.is_open.get().filter(|is_open| *is_open.borrow()).map(|_| self.channel.as_str())
    }

    /// Listens to the channel, from the first call on. Returns whether it is open within this time.
    pub(super) async fn listen(&self, core: &Arc<Core>, within: Duration) -> bool {
        let mut is_open = self.is_open.get_or_init(async || hear(core, self.channel.clone())).await.clone();
        matches!(timeout(OPENING.min(within), is_open.wait_for(|is_open| *is_open)).await, Ok(Ok(_)))
    }

    /// A place for a worker that waits.
    pub(super) fn sit(&self, owner: Tid) -> Seat<'_> {
        let (give, handed) = oneshot::channel();
        let mut desk = self.desk();
        desk.next_seat += 1;
        let number = desk.next_seat;
        desk.seats.insert(number, (owner, give));
        Seat { hand: self, owner, number, handed, come: None }
    }

    /// Those of the tasks that have not come before.
    pub(super) fn news(&self, claims: Vec<Claim>) -> Vec<Claim> {
        let mut desk = self.desk();
        claims.into_iter().filter(|claim| desk.is_news(claim.fence)).collect()
    }

    /// Remembers that a worker that waited since then may have been handed something that it does not know of.
    pub(super) fn leave_unsettled(&self, owner: Tid, since: Tid) {
        self.desk().leave_unsettled(owner, since);
    }

    /// Takes back that these have come: a later look may bring them again.
    pub(super) fn forget(&self, owner: Tid, claims: &[Claim]) {
        let mut desk = self.desk();
        for Claim { fence, .. } in claims {
            desk.come.remove(fence);
            if let Some(before) = Tid::from_u64(fence.tid.as_u64() - 1) {
                desk.leave_unsettled(owner, before);
            }
        }
    }

    /// Since when a worker may have been handed something that it does not know of.
    pub(super) fn take_unsettled(&self, owner: Tid) -> Option<Tid> {
        self.desk().unsettled.remove(&owner)
    }

    /// Passes a task on, and gives it back if the worker does not wait any more.
    fn pass_on(&self, owner: Tid, claim: Claim) -> Option<Claim> {
        let mut desk = self.desk();
        if !desk.is_news(claim.fence) {
            return None;
        }
        // Of two, the one that has come to stay.
        let number = desk.seats.iter().filter(|(_, (sits, _))| *sits == owner).map(|(number, _)| *number).max();
        match number.and_then(|number| desk.seats.remove(&number)) {
            Some((_, give)) => give.send(claim).err(),
            None => Some(claim),
        }
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Desk {
    fn is_news(&mut self, fence: Fence) -> bool {
        let is_news = self.come.insert(fence);
        if is_news {
            self.in_order.push_back(fence);
            if self.in_order.len() > KNOWN
                && let Some(oldest) = self.in_order.pop_front()
            {
                self.come.remove(&oldest);
            }
        }
        is_news
    }

    fn leave_unsettled(&mut self, owner: Tid, since: Tid) {
        let earliest = self.unsettled.entry(owner).or_insert(since);
        *earliest = since.min(*earliest);
    }
}

impl Seat<'_> {
    /// Waits until a task is handed over.
    pub(super) async fn wait(&mut self) {
        if self.come.is_none() {
            match (&mut self.handed).await {
                Ok(claim) => self.come = Some(claim),
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// Whether a task was handed over.
    pub(super) fn has_come(&mut self) -> bool {
        if self.come.is_none() {
            self.come = self.handed.try_recv().ok();
        }
        self.come.is_some()
    }

    /// Whether the worker has no other claim under way.
    pub(super) fn is_alone(&self) -> bool {
        let desk = self.hand.desk();
        !desk.seats.iter().any(|(number, (owner, _))| *number != self.number && *owner == self.owner)
    }

    /// Leaves, with what was handed over.
    pub(super) fn leave(mut self) -> Option<Claim> {
        // Nothing is handed over to a seat that is not there: what is found now is all.
        self.hand.desk().seats.remove(&self.number);
        self.has_come();
        self.come.take()
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.hand.desk().seats.remove(&self.number);
    }
}

/// Starts the task that listens to the channel. It ends with the handle.
fn hear(core: &Arc<Core>, channel: String) -> watch::Receiver<bool> {
    let (open, is_open) = watch::channel(false);
    let (core, target) = (Arc::downgrade(core), Arc::clone(&core.link.target));
    tokio::spawn(async move {
        let take = |heard| match heard {
            Heard::Open => _ = open.send_replace(true),
            Heard::Cut => _ = open.send_replace(false),
            Heard::Message(message) => {
                if let Some(core) = core.upgrade() {
                    core.take_message(&message);
                }
            }
        };
        tokio::select! {
            () = open.closed() => {}
            () = listen(&target, &channel, take) => {}
        }
    });
    is_open
}

impl Core {
    /// "worker task attempt spec"
    fn take_message(self: &Arc<Self>, message: &redis::Msg) {
        let payload = String::from_utf8_lossy(message.get_payload_bytes());
        let mut words = payload.splitn(4, ' ');
        let (Some(owner), Some(tid), Some(attempt), Some(stored)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return;
        };
        let (Ok(owner), Ok(tid), Ok(attempt)) = (owner.parse::<Tid>(), tid.parse::<Tid>(), attempt.parse::<u32>())
        else {
            return;
        };
        let fence = Fence { tid, attempt };
        let core = Arc::clone(self);
        match read_claim(fence, stored) {
            Ok(claim) => {
                if let Some(claim) = self.hand.pass_on(owner, claim) {
                    tokio::spawn(async move { core.give_back(owner, vec![claim]).await });
                }
            }
            // A look brings it too, if this fails.
            Err(error) => _ = tokio::spawn(async move { core.fail(fence, &error).await }),
        }
    }
}
