//! What is to be sent over a link.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use raddle_wire::{
    Message,
    frame::{self, PIECE},
};
use rustix::net::Shutdown;
use tokio::{
    sync::{Notify, watch},
    time::timeout,
};

use super::LinkSocket;

/// Larger bodies are sent from where they are. Smaller ones are copied together, which is cheaper.
const LARGE: usize = 64 * 1024;
/// Memory that is kept for what is to come.
const KEPT: usize = 256 * 1024;
/// With more than so much waiting it is full, until half of that has gone.
pub(crate) const FULL: usize = 4 * 1024 * 1024;

/// Where things wait to be sent. Nobody is kept from putting something there, but whoever may wait does so while it is full: who takes what the other side
/// asks for, and who has an item of many. So what the other side does not read is bounded, however much it asks for.
pub(crate) struct LinkWriter {
    socket: Arc<LinkSocket>,
    state: Mutex<WriterState>,
    /// Tells the writer that something was left for it to send.
    work: Notify,
    /// So much waits that nothing more should be asked for.
    is_full: watch::Sender<bool>,
}

#[derive(Default)]
struct WriterState {
    /// What is being sent, and how much of it was.
    now: Vec<u8>,
    sent: usize,
    /// A piece of a large body that comes right after it.
    piece: Bytes,
    /// What is sent next.
    next: Vec<u8>,
    /// Which frames these are, and where they end: what was not sent whole was not sent.
    now_ends: Vec<(u64, usize)>,
    next_ends: Vec<(u64, usize)>,
    large: VecDeque<LargeMessage>,
    /// The bytes of these that are not being sent yet.
    large_bytes: usize,
    /// The socket has not taken all of what it was given: what is encrypted may have been given to it, and not sent.
    is_held_back: bool,
    /// The other side has to read something first. The writer waits for that.
    is_stuck: bool,
    /// Something was sent since somebody has asked.
    has_moved: bool,
    ending: WriterEnd,
}

/// A message whose body is sent in pieces.
struct LargeMessage {
    id: u64,
    head: Option<Vec<u8>>,
    body: Bytes,
    whole: usize,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum WriterEnd {
    /// It goes on.
    #[default]
    No,
    /// When everything was sent.
    Soon,
    /// Nothing more is sent.
    Now,
}

/// Whether something can wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushMode {
    /// It is sent at once, if it can be.
    Now,
    /// It may wait for a moment, for others to be sent with it.
    Soon,
}

/// Nothing is sent any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkClosed;

impl LinkWriter {
    pub(crate) fn new(socket: Arc<LinkSocket>) -> Arc<Self> {
        Arc::new(Self {
            socket,
            state: Mutex::default(),
            work: Notify::new(),
            is_full: watch::Sender::new(false),
        })
    }

    /// Sends a message, now or soon.
    pub(crate) fn push(
        &self,
        id: u64,
        head: &impl Message,
        body: Bytes,
        haste: FlushMode,
    ) -> Result<(), LinkClosed> {
        let mut state = self.lock();
        if state.ending != WriterEnd::No {
            return Err(LinkClosed);
        }
        let was_empty = state.is_empty();
        // What belongs together stays in its order.
        if body.len() > LARGE || state.large.iter().any(|large| large.id == id) {
            let whole = body.len();
            state.large_bytes += whole;
            state.large.push_back(LargeMessage {
                id,
                head: Some(head.encode_to_vec()),
                body,
                whole,
            });
        } else {
            frame::put(&mut state.next, head, &body);
            let end = state.next.len();
            state.next_ends.push((id, end));
        }
        // Who waits for the other side, or has been told to, takes this along.
        let is_mine = !state.is_stuck && haste == FlushMode::Now;
        let is_left = if is_mine {
            !matches!(state.send(&self.socket), Ok(true))
        } else {
            was_empty
        };
        self.note_room(&state);
        drop(state);
        if is_left {
            self.work.notify_one();
        }
        Ok(())
    }

    /// Takes a large message back of which nothing was sent. Returns whether there was one: the other side will not hear of it.
    pub(crate) fn withdraw(&self, id: u64) -> bool {
        let mut state = self.lock();
        let place = state
            .large
            .iter()
            .position(|large| large.id == id && large.head.is_some());
        let withdrawn = place.and_then(|place| state.large.remove(place));
        state.large_bytes -= withdrawn.as_ref().map_or(0, |large| large.body.len());
        self.note_room(&state);
        drop(state);
        withdrawn.is_some()
    }

    /// Sends what is there, and then this, if it is anything, and takes nothing more.
    pub(crate) fn close(&self, last: Option<&impl Message>) {
        let mut state = self.lock();
        if state.ending == WriterEnd::No {
            state.ending = WriterEnd::Soon;
            if let Some(last) = last {
                let head = Some(last.encode_to_vec());
                state.large.push_back(LargeMessage {
                    id: 0,
                    head,
                    body: Bytes::new(),
                    whole: 0,
                });
            }
            // Here and now, for there may be no writer. What is left is for the one that there is.
            if !state.is_stuck {
                let _ = state.send(&self.socket);
            }
        }
        self.note_room(&state);
        drop(state);
        self.work.notify_one();
    }

    /// Takes nothing more, and sends nothing more. Returns what was not sent whole.
    pub(crate) fn abandon(&self) -> Vec<u64> {
        let mut state = self.lock();
        state.ending = WriterEnd::Now;
        let WriterState {
            now_ends,
            next_ends,
            large,
            sent,
            ..
        } = &mut *state;
        let now = now_ends.iter().filter(|(_, end)| end > sent);
        let unsent = now
            .chain(next_ends.iter())
            .map(|(id, _)| *id)
            .chain(large.iter().map(|large| large.id))
            .collect();
        state.now_ends.clear();
        state.next_ends.clear();
        state.large.clear();
        state.large_bytes = 0;
        self.note_room(&state);
        drop(state);
        self.socket.shut(Shutdown::Both);
        self.work.notify_one();
        unsent
    }

    /// Whether so much waits that nothing more should be asked for.
    pub(crate) fn is_full(&self) -> bool {
        *self.is_full.borrow()
    }

    /// Waits until it is not full, or nothing is sent any more.
    pub(crate) async fn room(&self) {
        // The sender is part of this.
        let _ = self.is_full.subscribe().wait_for(|is_full| !is_full).await;
    }

    /// Whether it is full now, for those who look, and for those who wait. To be called with each change of what waits.
    fn note_room(&self, state: &WriterState) {
        let waiting = if state.ending == WriterEnd::Now {
            0
        } else {
            state.waiting()
        };
        let is_full = if self.is_full() {
            waiting > FULL / 2
        } else {
            waiting > FULL
        };
        if is_full != self.is_full() {
            self.is_full.send_replace(is_full);
        }
    }

    /// Whether something was sent since this was last asked.
    pub(crate) fn has_moved(&self) -> bool {
        std::mem::take(&mut self.lock().has_moved)
    }

    /// Sends what others have left, until the outbox is closed and empty. The other side may take so long to read anything at all.
    pub(crate) async fn write(self: Arc<Self>, patience: Duration) -> io::Result<()> {
        loop {
            self.work.notified().await;
            self.write_all(patience).await?;
            let state = self.lock();
            match state.ending {
                WriterEnd::Now => return Ok(()),
                WriterEnd::Soon if state.is_empty() => {
                    drop(state);
                    self.socket.shut(Shutdown::Write);
                    return Ok(());
                }
                WriterEnd::No | WriterEnd::Soon => {}
            }
        }
    }

    async fn write_all(&self, patience: Duration) -> io::Result<()> {
        let mut waiting = None;
        loop {
            let is_sent = {
                let mut state = self.lock();
                let is_sent = state.ending == WriterEnd::Now || state.send(&self.socket)?;
                state.is_stuck = !is_sent;
                self.note_room(&state);
                is_sent
            };
            if is_sent {
                return Ok(());
            }
            let waiting = match &waiting {
                Some(waiting) => waiting,
                None => waiting.insert(self.socket.writable()?),
            };
            timeout(patience, waiting.writable()).await??.clear_ready();
        }
    }

    /// How many bytes wait to be sent.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.lock().waiting()
    }

    fn lock(&self) -> MutexGuard<'_, WriterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WriterState {
    fn is_empty(&self) -> bool {
        let is_taken = self.sent == self.now.len() && self.piece.is_empty();
        is_taken && !self.is_held_back && self.next.is_empty() && self.large.is_empty()
    }

    /// How many bytes wait to be sent.
    fn waiting(&self) -> usize {
        self.now.len() - self.sent + self.piece.len() + self.next.len() + self.large_bytes
    }

    /// Sends what can be at once. Returns whether it was all.
    fn send(&mut self, socket: &LinkSocket) -> io::Result<bool> {
        let sent = self.send_all(socket);
        self.is_held_back =
            matches!(&sent, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        if self.is_held_back {
            Ok(false)
        } else {
            sent.map(|()| true)
        }
    }

    fn send_all(&mut self, socket: &LinkSocket) -> io::Result<()> {
        while self.prepare() {
            let slices = [
                IoSlice::new(&self.now[self.sent..]),
                IoSlice::new(&self.piece),
            ];
            let used = if self.piece.is_empty() {
                &slices[..1]
            } else {
                &slices
            };
            match socket.write(used) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => {
                    self.has_moved = true;
                    let of_now = sent.min(self.now.len() - self.sent);
                    self.sent += of_now;
                    let _ = self.piece.split_to(sent - of_now);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        socket.flush()
    }

    /// Has something to be sent, if there is anything: all that is small, and a piece of what is large.
    fn prepare(&mut self) -> bool {
        if self.sent < self.now.len() || !self.piece.is_empty() {
            return true;
        }
        self.now.clear();
        self.now.shrink_to(KEPT);
        self.sent = 0;
        std::mem::swap(&mut self.now, &mut self.next);
        self.now_ends.clear();
        std::mem::swap(&mut self.now_ends, &mut self.next_ends);
        if let Some(large) = self.large.front_mut() {
            self.piece = large.body.split_to(large.body.len().min(PIECE));
            self.large_bytes -= self.piece.len();
            let head = large.head.take().unwrap_or_default();
            frame::put_beginning(&mut self.now, &head, self.piece.len(), large.whole);
            // Its last piece may not be sent whole; whoever cannot tell has to fear that it was.
            if large.body.is_empty() {
                self.large.pop_front();
            }
        }
        !self.now.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use raddle_wire::{frame::Frame, v1};

    use super::{
        super::{LinkReader, ReadAmount},
        *,
    };

    const PATIENCE: Duration = Duration::from_secs(30);

    fn pair() -> (Arc<LinkWriter>, LinkSocket) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        [&ours, &theirs]
            .into_iter()
            .for_each(|end| end.set_nonblocking(true).unwrap());
        let socket = |end: UnixStream| LinkSocket::new(end.into(), false, None);
        (LinkWriter::new(Arc::new(socket(ours))), socket(theirs))
    }

    fn head(id: u64) -> v1::Request {
        v1::Request { id, what: None }
    }

    /// The number of each frame, and the length of its body, until the end.
    async fn received(socket: LinkSocket) -> Vec<(u64, usize)> {
        let socket = Arc::new(socket);
        let readable = socket.readable().unwrap();
        let (mut inbox, mut frames) = (LinkReader::new(), Vec::new());
        loop {
            let mut ready = readable.readable().await.unwrap();
            let each = |frame: Frame| {
                assert!(frame.body.iter().all(|byte| *byte == 7));
                frames.push((
                    v1::Request::decode(frame.head).unwrap().id,
                    frame.body.len(),
                ));
                Ok(())
            };
            match inbox.read(&socket, each).unwrap() {
                ReadAmount::Last => return frames,
                ReadAmount::All => ready.clear_ready(),
                ReadAmount::Some => {}
            }
        }
    }

    fn body(bytes: usize) -> Bytes {
        vec![7; bytes].into()
    }

    #[tokio::test]
    async fn small_ones_overtake_large_ones_but_none_of_their_own_call() {
        let (outbox, theirs) = pair();
        let (one, other) = (3 * PIECE + 5, PIECE);
        for (id, bytes) in [(1, one), (1, 3), (2, other), (3, 4)] {
            outbox
                .push(id, &head(id), body(bytes), FlushMode::Soon)
                .unwrap();
        }
        outbox.close(Some(&head(9)));
        assert_eq!(
            outbox.push(1, &head(1), Bytes::new(), FlushMode::Now),
            Err(LinkClosed)
        );
        let (written, received) =
            tokio::join!(Arc::clone(&outbox).write(PATIENCE), received(theirs));
        written.unwrap();
        assert_eq!(received, [(3, 4), (1, one), (1, 3), (2, other), (9, 0)]);
    }

    #[tokio::test]
    async fn what_was_not_sent_whole_is_told_of_and_who_sends_ends() {
        let (outbox, theirs) = pair();
        outbox.push(1, &head(1), body(3), FlushMode::Now).unwrap();
        let many = 2..100;
        many.clone().for_each(|id| {
            outbox
                .push(id, &head(id), body(LARGE), FlushMode::Now)
                .unwrap()
        });
        outbox
            .push(100, &head(100), body(2 * PIECE), FlushMode::Now)
            .unwrap();
        let writing = tokio::spawn(Arc::clone(&outbox).write(PATIENCE));
        tokio::task::yield_now().await;
        let unsent = outbox.abandon();
        let sent = received(theirs).await;
        assert_eq!(sent[0], (1, 3));
        assert!(
            unsent.contains(&99) && unsent.contains(&100) && !unsent.contains(&1),
            "{unsent:?}"
        );
        let all: Vec<u64> = sent.iter().map(|(id, _)| *id).chain(unsent).collect();
        assert_eq!(all, (1..=100).collect::<Vec<_>>(), "each is on one side");
        tokio::time::timeout(std::time::Duration::from_secs(5), writing)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    }

    #[tokio::test]
    async fn who_may_wait_does_so_until_what_is_there_has_been_read() {
        let (outbox, theirs) = pair();
        let (mut bytes, mut id) = (0, 0);
        while !outbox.is_full() {
            id += 1;
            let size = if id % 2 == 0 { 100 } else { LARGE + 1 };
            outbox
                .push(id, &head(id), body(size), FlushMode::Now)
                .unwrap();
            bytes += size;
        }
        // What the system has taken does not wait here.
        assert!((FULL..3 * FULL).contains(&bytes), "{bytes}");
        let writing = tokio::spawn(Arc::clone(&outbox).write(PATIENCE));
        let waited = tokio::time::timeout(Duration::from_millis(50), outbox.room()).await;
        assert!(waited.is_err(), "nobody has read anything");
        let reading = tokio::spawn(received(theirs));
        tokio::time::timeout(PATIENCE, outbox.room())
            .await
            .expect("it is read");
        assert!(outbox.waiting() <= FULL / 2);
        outbox.close(None::<&v1::Request>);
        writing.await.unwrap().unwrap();
        assert_eq!(
            reading
                .await
                .unwrap()
                .iter()
                .map(|(_, size)| size)
                .sum::<usize>(),
            bytes
        );
    }

    #[tokio::test(start_paused = true)]
    async fn who_reads_nothing_for_too_long_is_given_up() {
        let (outbox, _theirs) = pair();
        outbox
            .push(1, &head(1), body(FULL), FlushMode::Now)
            .unwrap();
        let error = Arc::clone(&outbox).write(PATIENCE).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
