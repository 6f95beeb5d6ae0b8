//! Cancellable reading and writing of frames: both can be dropped at any await point and called
//! again, so that one `select!` does both.

use std::{collections::VecDeque, io, io::IoSlice, sync::Arc, time::Duration};

use raddle_model::frame::{self, Decoder};
use serde::de::DeserializeOwned;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use super::protocol::ProtocolError;

/// The longest stall of a peer that has begun a frame, or has a reply to read.
pub(super) const STALLED: Duration = Duration::from_secs(30);
/// Frames up to this size are read without reserving budget.
const SMALL: usize = 64 * 1024;
/// The most frames per system call.
const AT_ONCE: usize = 16;

/// Why a connection is closed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionLost {
    #[error(transparent)]
    Malformed(#[from] ProtocolError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("no progress for {} s", STALLED.as_secs())]
    Stalled,
}

impl From<frame::FrameError> for ConnectionLost {
    fn from(error: frame::FrameError) -> Self {
        Self::Malformed(error.into())
    }
}

/// Reads frames.
pub(super) struct FrameReader {
    decoder: Decoder,
    /// The budget for large frames, in KiB, shared by all connections.
    budget: Option<Arc<Semaphore>>,
    room: Option<OwnedSemaphorePermit>,
    moved_at: Instant,
}

impl FrameReader {
    /// Reads frames of up to `max` bytes; large ones within `budget`.
    pub(super) fn new(max: usize, budget: Option<Arc<Semaphore>>) -> Self {
        Self {
            decoder: Decoder::new(max),
            budget,
            room: None,
            moved_at: Instant::now(),
        }
    }

    /// The next message with its share of the budget, or `None` at the end of the stream.
    /// Cancel-safe.
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
                // The semaphore is never closed, and a frame within the limit fits into the budget.
                self.room = Arc::clone(budget).acquire_many_owned(kib).await.ok();
                self.moved_at = Instant::now();
            }
            // Reserve no more than was announced and granted; grow with what arrives.
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

    /// Restarts the stall timer, after the reader itself has made the peer wait.
    pub(super) fn touch(&mut self) {
        self.moved_at = Instant::now();
    }

    /// When the frame in progress must have continued.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (!self.decoder.is_empty()).then(|| self.moved_at + STALLED)
    }
}

/// A queue of frames to write, each with a value: dropped if the frame was not written, returned if
/// it was.
pub(super) struct FrameWriter<T> {
    frames: VecDeque<(Vec<u8>, T)>,
    /// The written part of the first frame.
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

    /// The number of queued bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes some frames, and returns the values of those that are complete. Cancel-safe.
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

    /// When the queued frames must have progressed.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (!self.is_empty()).then(|| self.moved_at + STALLED)
    }
}

/// Waits for the earlier of two deadlines.
pub(super) async fn stalled(a: Option<Instant>, b: Option<Instant>) {
    match a.into_iter().chain(b).min() {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
