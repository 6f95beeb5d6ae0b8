//! Sending messages over a link.

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

/// Larger bodies are sent in pieces from their own buffer. Copying smaller ones into one buffer is
/// cheaper.
const LARGE_BODY: usize = 64 * 1024;
/// Buffer capacity that is kept between writes.
const KEPT_CAPACITY: usize = 256 * 1024;
/// The writer is full with more than this waiting, until half of it is sent.
pub(crate) const FULL_BYTES: usize = 4 * 1024 * 1024;

/// Sends messages. `push` never waits, but tasks that can wait do so while the writer is full: the
/// reader of the peer's requests, and senders of stream items. That bounds what piles up for a peer
/// that does not read, however much it requests.
pub(crate) struct LinkWriter {
    socket: Arc<LinkSocket>,
    state: Mutex<WriterState>,
    /// Wakes the `write` task.
    work: Notify,
    /// Backpressure signal.
    is_full: watch::Sender<bool>,
}

#[derive(Default)]
struct WriterState {
    /// The bytes being sent; the first `sent` of them have left.
    current: Vec<u8>,
    sent: usize,
    /// The piece of a large body that follows `current`.
    piece: Bytes,
    /// The bytes to send after `piece`.
    queued: Vec<u8>,
    /// Ids and end offsets of the frames in `current` and `queued`: a frame that was not sent
    /// completely counts as unsent.
    current_ends: Vec<(u64, usize)>,
    queued_ends: Vec<(u64, usize)>,
    large: VecDeque<LargeMessage>,
    /// Bytes of `large` that are not being sent yet.
    large_bytes: usize,
    /// The last write would have blocked. With TLS, bytes may be buffered in the session.
    is_blocked: bool,
    /// The socket is full, and the `write` task waits for it.
    is_waiting: bool,
    /// Data was sent since `has_moved` was last called.
    has_moved: bool,
    phase: WriterPhase,
}

/// A message whose body is sent in pieces.
struct LargeMessage {
    id: u64,
    head: Option<Vec<u8>>,
    body: Bytes,
    total: usize,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum WriterPhase {
    #[default]
    Open,
    /// Queued messages are still sent.
    Closing,
    /// Nothing more is sent.
    Closed,
}

/// Whether a message can wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushMode {
    /// Write it at once.
    Now,
    /// Leave it to the `write` task, which sends several together.
    Deferred,
}

/// The link takes no more messages.
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

    /// Queues a message, and sends it at once with `FlushMode::Now`.
    pub(crate) fn push(
        &self,
        id: u64,
        head: &impl Message,
        body: Bytes,
        mode: FlushMode,
    ) -> Result<(), LinkClosed> {
        let mut state = self.lock();
        if state.phase != WriterPhase::Open {
            return Err(LinkClosed);
        }
        let was_empty = state.is_empty();
        // Messages of one call keep their order.
        if body.len() > LARGE_BODY || state.large.iter().any(|large| large.id == id) {
            let total = body.len();
            state.large_bytes += total;
            state.large.push_back(LargeMessage {
                id,
                head: Some(head.encode_to_vec()),
                body,
                total,
            });
        } else {
            frame::put(&mut state.queued, head, &body);
            let end = state.queued.len();
            state.queued_ends.push((id, end));
        }
        // If the `write` task waits for the socket or was woken already, it sends this too.
        let sends_now = !state.is_waiting && mode == FlushMode::Now;
        let is_unsent = if sends_now {
            !matches!(state.send(&self.socket), Ok(true))
        } else {
            was_empty
        };
        self.update_full(&state);
        drop(state);
        if is_unsent {
            self.work.notify_one();
        }
        Ok(())
    }

    /// Removes a large message that was not started. Returns whether there was one: the peer will
    /// not see it.
    pub(crate) fn withdraw(&self, id: u64) -> bool {
        let mut state = self.lock();
        let index = state
            .large
            .iter()
            .position(|large| large.id == id && large.head.is_some());
        let withdrawn = index.and_then(|index| state.large.remove(index));
        state.large_bytes -= withdrawn.as_ref().map_or(0, |large| large.body.len());
        self.update_full(&state);
        drop(state);
        withdrawn.is_some()
    }

    /// Takes no more messages, and sends what is queued and then `last`.
    pub(crate) fn close(&self, last: Option<&impl Message>) {
        let mut state = self.lock();
        if state.phase == WriterPhase::Open {
            state.phase = WriterPhase::Closing;
            if let Some(last) = last {
                let head = Some(last.encode_to_vec());
                state.large.push_back(LargeMessage {
                    id: 0,
                    head,
                    body: Bytes::new(),
                    total: 0,
                });
            }
            // Send now, because there may be no `write` task. The rest is for the task, if
            // there is one.
            if !state.is_waiting {
                let _ = state.send(&self.socket);
            }
        }
        self.update_full(&state);
        drop(state);
        self.work.notify_one();
    }

    /// Takes and sends nothing more. Returns the ids of frames that were not sent completely.
    pub(crate) fn abandon(&self) -> Vec<u64> {
        let mut state = self.lock();
        state.phase = WriterPhase::Closed;
        let WriterState {
            current_ends,
            queued_ends,
            large,
            sent,
            ..
        } = &mut *state;
        let in_current = current_ends.iter().filter(|(_, end)| end > sent);
        let unsent = in_current
            .chain(queued_ends.iter())
            .map(|(id, _)| *id)
            .chain(large.iter().map(|large| large.id))
            .collect();
        state.current_ends.clear();
        state.queued_ends.clear();
        state.large.clear();
        state.large_bytes = 0;
        self.update_full(&state);
        drop(state);
        self.socket.shut_down(Shutdown::Both);
        self.work.notify_one();
        unsent
    }

    /// Whether so much is queued that no more requests should be read.
    pub(crate) fn is_full(&self) -> bool {
        *self.is_full.borrow()
    }

    /// Waits until the writer is not full, or closed.
    pub(crate) async fn wait_for_room(&self) {
        // The sender is part of `self`, so the channel cannot close.
        let _ = self.is_full.subscribe().wait_for(|is_full| !is_full).await;
    }

    /// Updates the backpressure signal. Call with each change of what is queued.
    fn update_full(&self, state: &WriterState) {
        let waiting = if state.phase == WriterPhase::Closed {
            0
        } else {
            state.queued_bytes()
        };
        let is_full = if self.is_full() {
            waiting > FULL_BYTES / 2
        } else {
            waiting > FULL_BYTES
        };
        if is_full != self.is_full() {
            self.is_full.send_replace(is_full);
        }
    }

    /// Whether data was sent since the last call.
    pub(crate) fn has_moved(&self) -> bool {
        std::mem::take(&mut self.lock().has_moved)
    }

    /// Sends queued messages until the writer is closed and empty. Fails when the peer reads
    /// nothing for `read_timeout`.
    pub(crate) async fn write(self: Arc<Self>, read_timeout: Duration) -> io::Result<()> {
        loop {
            self.work.notified().await;
            self.write_all(read_timeout).await?;
            let state = self.lock();
            match state.phase {
                WriterPhase::Closed => return Ok(()),
                WriterPhase::Closing if state.is_empty() => {
                    drop(state);
                    self.socket.shut_down(Shutdown::Write);
                    return Ok(());
                }
                WriterPhase::Open | WriterPhase::Closing => {}
            }
        }
    }

    async fn write_all(&self, read_timeout: Duration) -> io::Result<()> {
        let mut waiting = None;
        loop {
            let is_sent = {
                let mut state = self.lock();
                let is_sent = state.phase == WriterPhase::Closed || state.send(&self.socket)?;
                state.is_waiting = !is_sent;
                self.update_full(&state);
                is_sent
            };
            if is_sent {
                return Ok(());
            }
            let waiting = match &waiting {
                Some(waiting) => waiting,
                None => waiting.insert(self.socket.writable()?),
            };
            timeout(read_timeout, waiting.writable())
                .await??
                .clear_ready();
        }
    }

    /// Bytes queued.
    #[cfg(test)]
    pub(crate) fn queued_bytes(&self) -> usize {
        self.lock().queued_bytes()
    }

    fn lock(&self) -> MutexGuard<'_, WriterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WriterState {
    fn is_empty(&self) -> bool {
        let is_current_sent = self.sent == self.current.len() && self.piece.is_empty();
        is_current_sent && !self.is_blocked && self.queued.is_empty() && self.large.is_empty()
    }

    /// Bytes queued.
    fn queued_bytes(&self) -> usize {
        self.current.len() - self.sent + self.piece.len() + self.queued.len() + self.large_bytes
    }

    /// Sends without blocking. Returns whether everything was sent.
    fn send(&mut self, socket: &LinkSocket) -> io::Result<bool> {
        let sent = self.send_all(socket);
        self.is_blocked = matches!(&sent, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        if self.is_blocked {
            Ok(false)
        } else {
            sent.map(|()| true)
        }
    }

    fn send_all(&mut self, socket: &LinkSocket) -> io::Result<()> {
        while self.prepare() {
            let slices = [
                IoSlice::new(&self.current[self.sent..]),
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
                    let from_current = sent.min(self.current.len() - self.sent);
                    self.sent += from_current;
                    let _ = self.piece.split_to(sent - from_current);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        socket.flush()
    }

    /// Prepares the next write: all small messages, and one piece of a large one. Returns whether
    /// there is anything to send.
    fn prepare(&mut self) -> bool {
        if self.sent < self.current.len() || !self.piece.is_empty() {
            return true;
        }
        self.current.clear();
        self.current.shrink_to(KEPT_CAPACITY);
        self.sent = 0;
        std::mem::swap(&mut self.current, &mut self.queued);
        self.current_ends.clear();
        std::mem::swap(&mut self.current_ends, &mut self.queued_ends);
        if let Some(large) = self.large.front_mut() {
            self.piece = large.body.split_to(large.body.len().min(PIECE));
            self.large_bytes -= self.piece.len();
            let head = large.head.take().unwrap_or_default();
            frame::put_beginning(&mut self.current, &head, self.piece.len(), large.total);
            // From here on the message counts as sent, although its last piece may not be sent
            // completely.
            if large.body.is_empty() {
                self.large.pop_front();
            }
        }
        !self.current.is_empty()
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

    /// The id and body length of each frame, until the end of the stream.
    async fn received(socket: LinkSocket) -> Vec<(u64, usize)> {
        let socket = Arc::new(socket);
        let readable = socket.readable().unwrap();
        let (mut reader, mut frames) = (LinkReader::new(), Vec::new());
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
            match reader.read(&socket, each).unwrap() {
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
    async fn small_messages_overtake_large_ones_of_other_calls() {
        let (writer, theirs) = pair();
        let (one, other) = (3 * PIECE + 5, PIECE);
        for (id, bytes) in [(1, one), (1, 3), (2, other), (3, 4)] {
            writer
                .push(id, &head(id), body(bytes), FlushMode::Deferred)
                .unwrap();
        }
        writer.close(Some(&head(9)));
        assert_eq!(
            writer.push(1, &head(1), Bytes::new(), FlushMode::Now),
            Err(LinkClosed)
        );
        let (written, received) =
            tokio::join!(Arc::clone(&writer).write(PATIENCE), received(theirs));
        written.unwrap();
        assert_eq!(received, [(3, 4), (1, one), (1, 3), (2, other), (9, 0)]);
    }

    #[tokio::test]
    async fn abandon_returns_the_frames_that_were_not_sent() {
        let (writer, theirs) = pair();
        writer.push(1, &head(1), body(3), FlushMode::Now).unwrap();
        let many = 2..100;
        many.clone().for_each(|id| {
            writer
                .push(id, &head(id), body(LARGE_BODY), FlushMode::Now)
                .unwrap()
        });
        writer
            .push(100, &head(100), body(2 * PIECE), FlushMode::Now)
            .unwrap();
        let writing = tokio::spawn(Arc::clone(&writer).write(PATIENCE));
        tokio::task::yield_now().await;
        let unsent = writer.abandon();
        let sent = received(theirs).await;
        assert_eq!(sent[0], (1, 3));
        assert!(
            unsent.contains(&99) && unsent.contains(&100) && !unsent.contains(&1),
            "{unsent:?}"
        );
        let all: Vec<u64> = sent.iter().map(|(id, _)| *id).chain(unsent).collect();
        assert_eq!(
            all,
            (1..=100).collect::<Vec<_>>(),
            "each frame is either sent or unsent"
        );
        tokio::time::timeout(std::time::Duration::from_secs(5), writing)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    }

    #[tokio::test]
    async fn full_writer_has_room_after_the_peer_has_read() {
        let (writer, theirs) = pair();
        let (mut bytes, mut id) = (0, 0);
        while !writer.is_full() {
            id += 1;
            let size = if id % 2 == 0 { 100 } else { LARGE_BODY + 1 };
            writer
                .push(id, &head(id), body(size), FlushMode::Now)
                .unwrap();
            bytes += size;
        }
        // Bytes in the socket buffer do not count as queued.
        assert!((FULL_BYTES..3 * FULL_BYTES).contains(&bytes), "{bytes}");
        let writing = tokio::spawn(Arc::clone(&writer).write(PATIENCE));
        let waited = tokio::time::timeout(Duration::from_millis(50), writer.wait_for_room()).await;
        assert!(waited.is_err(), "the peer has read nothing");
        let reading = tokio::spawn(received(theirs));
        tokio::time::timeout(PATIENCE, writer.wait_for_room())
            .await
            .expect("the peer reads");
        assert!(writer.queued_bytes() <= FULL_BYTES / 2);
        writer.close(None::<&v1::Request>);
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
    async fn gives_up_a_peer_that_reads_nothing() {
        let (writer, _theirs) = pair();
        writer
            .push(1, &head(1), body(FULL_BYTES), FlushMode::Now)
            .unwrap();
        let error = Arc::clone(&writer).write(PATIENCE).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
