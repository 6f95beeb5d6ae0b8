//! Frames on their way. Reading and writing can be given up at any await and taken up again: both sides do one beside the other in one
//! `select!`.

use std::{collections::VecDeque, io, io::IoSlice, sync::Arc, time::Duration};

use raddle_model::frame::{self, Decoder};
use serde::de::DeserializeOwned;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use super::protocol::ProtocolError;

/// Whoever has begun a frame, or has an answer to take, and does not go on with it for so long is given up.
pub(super) const STALLED: Duration = Duration::from_secs(30);
/// Frames up to this size are read without asking for room.
const SMALL: usize = 64 * 1024;
/// How many frames go into one system call.
const AT_ONCE: usize = 16;

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionLost {
    #[error(transparent)]
    Malformed(#[from] ProtocolError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("nothing has moved for {} s", STALLED.as_secs())]
    Stalled,
}

impl From<frame::FrameError> for ConnectionLost {
    fn from(error: frame::FrameError) -> Self {
        Self::Malformed(error.into())
    }
}

/// What has arrived.
pub(super) struct FrameReader {
    decoder: Decoder,
    /// Room for large frames, in KiB, shared by all connections.
    budget: Option<Arc<Semaphore>>,
    room: Option<OwnedSemaphorePermit>,
    moved_at: Instant,
}

impl FrameReader {
    /// For frames of up to `max` bytes, and no more large ones at a time than `budget` has room for.
    pub(super) fn new(max: usize, budget: Option<Arc<Semaphore>>) -> Self {
        Self {
            decoder: Decoder::new(max),
            budget,
            room: None,
            moved_at: Instant::now(),
        }
    }

    /// The next message, and the room it takes until that is dropped; or `None` at the end. Can be dropped and called again.
    pub(super) async fn next<T: DeserializeOwned>(
        &mut self,
        from: &mut (impl AsyncRead + Unpin),
    ) -> Result<Option<(T, Option<OwnedSemaphorePermit>)>, ConnectionLost> {
        loop {
            if let Some(message) = self.decoder.next()? {
                return Ok(Some((message, self.room.take())));
            }
            let missing = self.decoder.missing()?.unwrap_or(0);
            if missing > SMALL
                && self.room.is_none()
                && let Some(budget) = &self.budget
            {
                let kib = u32::try_from(missing.div_ceil(1024)).unwrap_or(u32::MAX);
                // Never closed; and a frame within the bound fits into the budget.
                self.room = Arc::clone(budget).acquire_many_owned(kib).await.ok();
                self.moved_at = Instant::now();
            }
            // No more than has been announced and found room for, and grown with what comes.
            self.decoder.buffer().reserve(missing.clamp(4096, SMALL));
            if from.read_buf(self.decoder.buffer()).await? == 0 {
                return match self.decoder.is_empty() {
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
        (!self.decoder.is_empty()).then(|| self.moved_at + STALLED)
    }
}

/// Frames that wait to be written, each with something that is to hear of it: `T` is dropped unheard when the frame was not written.
pub(super) struct FrameWriter<T> {
    frames: VecDeque<(Vec<u8>, T)>,
    /// How much of the first one is written.
    written: usize,
    bytes: usize,
    moved_at: Instant,
}

impl<T> FrameWriter<T> {
    pub(super) fn new() -> Self {
        Self {
            frames: VecDeque::new(),
            written: 0,
            bytes: 0,
            moved_at: Instant::now(),
        }
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
        let mut written = to
            .write_vectored(&slices[..self.frames.len().min(AT_ONCE)])
            .await?;
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
