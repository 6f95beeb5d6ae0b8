//! Frames on their way. Reading and writing can be given up at any await and taken up again: both sides do one beside the other in one
//! `select!`.

use std::{collections::VecDeque, io, io::IoSlice, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use super::protocol::{HEADER, Malformed, header};

/// Whoever has begun a frame, or has an answer to take, and does not go on with it for so long is given up.
pub(super) const STALLED: Duration = Duration::from_secs(30);
/// Frames up to this size are read without asking for room.
const SMALL: usize = 64 * 1024;
/// How many frames go into one system call.
const AT_ONCE: usize = 16;

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("nothing has moved for {} s", STALLED.as_secs())]
    Stalled,
}

/// A frame that has arrived.
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) id: u64,
    pub(super) payload: Vec<u8>,
    /// The room it takes, given back when it is dropped.
    pub(super) room: Option<OwnedSemaphorePermit>,
}

/// Bytes that have arrived.
pub(super) struct Inbox {
    buf: Vec<u8>,
    max: usize,
    /// Room for large frames, in KiB, shared by all connections.
    budget: Option<Arc<Semaphore>>,
    room: Option<OwnedSemaphorePermit>,
    moved_at: Instant,
}

impl Inbox {
    /// For frames of up to `max` bytes, and no more large ones at a time than `budget` has room for.
    pub(super) fn new(max: usize, budget: Option<Arc<Semaphore>>) -> Self {
        Self { buf: Vec::new(), max, budget, room: None, moved_at: Instant::now() }
    }

    /// The next frame, or `None` at the end. Can be dropped and called again.
    pub(super) async fn next(&mut self, from: &mut (impl AsyncRead + Unpin)) -> Result<Option<Frame>, Broken> {
        loop {
            if let Some((kind, id, len)) = self.buf.first_chunk().map(header) {
                if len > self.max {
                    return Err(Malformed::TooLong(len, self.max).into());
                }
                let whole = HEADER + len;
                if self.buf.len() >= whole {
                    let rest = self.buf.split_off(whole);
                    let mut payload = std::mem::replace(&mut self.buf, rest);
                    payload.drain(..HEADER);
                    return Ok(Some(Frame { kind, id, payload, room: self.room.take() }));
                }
                if len > SMALL
                    && self.room.is_none()
                    && let Some(budget) = &self.budget
                {
                    let kib = u32::try_from(len.div_ceil(1024)).unwrap_or(u32::MAX);
                    // Never closed; and a frame within the bound fits into the budget.
                    self.room = Arc::clone(budget).acquire_many_owned(kib).await.ok();
                    self.moved_at = Instant::now();
                }
                // No more than has been announced and found room for, and grown with what comes.
                self.buf.reserve((whole - self.buf.len()).min(SMALL.max(self.buf.len())));
            } else {
                self.buf.reserve(4096);
            }
            if from.read_buf(&mut self.buf).await? == 0 {
                return match self.buf.is_empty() {
                    true => Ok(None),
                    false => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                };
            }
            self.moved_at = Instant::now();
        }
    }

    /// Starts the clock anew, for a reader that has made the other side wait.
    pub(super) fn touch(&mut self) {
        self.moved_at = Instant::now();
    }

    /// When the frame that has begun must have gone on.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (!self.buf.is_empty()).then(|| self.moved_at + STALLED)
    }
}

/// Frames that wait to be written, each with something that is to hear of it: `T` is dropped unheard when the frame was not written.
pub(super) struct Outbox<T> {
    frames: VecDeque<(Vec<u8>, T)>,
    /// How much of the first one is written.
    written: usize,
    bytes: usize,
    moved_at: Instant,
}

impl<T> Outbox<T> {
    pub(super) fn new() -> Self {
        Self { frames: VecDeque::new(), written: 0, bytes: 0, moved_at: Instant::now() }
    }

    pub(super) fn push(&mut self, frame: Vec<u8>, with: T) {
        if self.frames.is_empty() {
            self.moved_at = Instant::now();
        }
        self.bytes += frame.len();
        self.frames.push_back((frame, with));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    /// How many bytes wait.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes some of it; gives back what belonged to the frames that are written now. Can be dropped and called again.
    pub(super) async fn write(&mut self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<Vec<T>> {
        let mut slices = [IoSlice::new(&[]); AT_ONCE];
        let mut skip = self.written;
        for (slice, (frame, _)) in slices.iter_mut().zip(&self.frames) {
            *slice = IoSlice::new(&frame[skip..]);
            skip = 0;
        }
        let mut written = to.write_vectored(&slices[..self.frames.len().min(AT_ONCE)]).await?;
        if written == 0 && !self.is_empty() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.moved_at = Instant::now();
        let mut gone = Vec::new();
        while let Some((frame, _)) = self.frames.front() {
            let left = frame.len() - self.written;
            if written < left {
                self.written += written;
                break;
            }
            written -= left;
            self.bytes -= frame.len();
            self.written = 0;
            gone.extend(self.frames.pop_front().map(|(_, with)| with));
        }
        Ok(gone)
    }

    /// When what waits must have gone on.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (!self.is_empty()).then(|| self.moved_at + STALLED)
    }
}

/// Waits for the earlier of two deadlines to pass.
pub(super) async fn stalled(a: Option<Instant>, b: Option<Instant>) {
    match a.into_iter().chain(b).min() {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
