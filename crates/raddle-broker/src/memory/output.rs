//! What attempts wrote.

use std::time::Duration;

use async_trait::async_trait;
use raddle_core::Tid;

use super::{Memory, shared::Topic, state::State};
use crate::{
    Error, Output, Result,
    request::{Chunk, Cursor, Fence, Progress, Stream},
};

/// The most output given at once, so that a reader of a gigabyte holds little of it at a time.
const MAX_CHUNKS: usize = 1024 * 1024;
/// The most events given at once.
const MAX_EVENTS: usize = 1000;

#[async_trait]
impl Output for Memory {
    async fn append_output(&self, fence: Fence, stream: Stream, bytes: Vec<u8>) -> Result<()> {
        self.shared.change(|state, _| {
            // The worker learns with its next verdict that it is late; what it wrote has no place any more.
            if state.active(fence).is_some() {
                state.append_output(fence, stream, bytes);
            }
        });
        Ok(())
    }

    async fn read_output(&self, fence: Fence, stream: Stream, offset: u64, max: u32) -> Result<Vec<u8>> {
        Ok(self.shared.change(|state, _| slice(state.output_of(fence, stream), offset, max as usize).to_vec()))
    }

    async fn follow(&self, tid: Tid, cursor: Cursor, wait: Duration) -> Result<Progress> {
        let found = self.shared.wait_for(Topic::Progress, wait, |state, _| state.follow(tid, cursor)).await?;
        Ok(found.unwrap_or_else(|| Progress { cursor, ..Progress::default() }))
    }
}

impl State {
    /// Adds to the output of an attempt.
    pub(super) fn append_output(&mut self, fence: Fence, stream: Stream, bytes: Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let written = &mut self.output.entry(fence).or_default()[stream as usize];
        if written.is_empty() {
            *written = bytes
        } else {
            written.extend(bytes)
        }
        self.wake.progress = true;
    }

    /// All that an attempt wrote to one stream.
    pub(super) fn output_of(&self, fence: Fence, stream: Stream) -> &[u8] {
        self.output.get(&fence).map_or(&[], |streams| &streams[stream as usize])
    }

    /// What is new of a task, or `None` if that is nothing.
    fn follow(&self, tid: Tid, mut cursor: Cursor) -> Result<Option<Progress>> {
        let task = self.tasks.get(&tid).ok_or(Error::NotFound(tid))?;
        let events = self.events_of(tid, cursor.event, MAX_EVENTS);
        if let Some(last) = events.last() {
            cursor.event = last.id.as_u64();
        }
        let output = self.output_from(tid, &mut cursor);
        let given: usize = output.iter().map(|chunk| chunk.bytes.len()).sum();
        let all = given < MAX_CHUNKS && events.len() < MAX_EVENTS;
        let done = Some(task.state()).filter(|state| all && state.is_terminal());
        let news = !output.is_empty() || !events.is_empty() || done.is_some();
        Ok(news.then_some(Progress { output, events, cursor, done }))
    }

    /// The output after `cursor`, attempt by attempt. Output of a later attempt means that the earlier one is over:
    /// writes of any but the latest are refused.
    fn output_from(&self, tid: Tid, cursor: &mut Cursor) -> Vec<Chunk> {
        let mut room = MAX_CHUNKS;
        let mut chunks = Vec::new();
        let (first, last) = (Fence { tid, attempt: cursor.attempt }, Fence { tid, attempt: u32::MAX });
        for fence in self.output.range(first..=last).map(|(fence, _)| *fence) {
            if room == 0 {
                break;
            }
            if fence.attempt != cursor.attempt {
                (cursor.attempt, cursor.stdout, cursor.stderr) = (fence.attempt, 0, 0);
            }
            for (stream, seen) in Stream::BOTH.into_iter().zip([&mut cursor.stdout, &mut cursor.stderr]) {
                let bytes = slice(self.output_of(fence, stream), *seen, room).to_vec();
                *seen += bytes.len() as u64;
                room -= bytes.len();
                if !bytes.is_empty() {
                    chunks.push(Chunk { attempt: fence.attempt, stream, bytes });
                }
            }
        }
        chunks
    }
}

fn slice(written: &[u8], offset: u64, max: usize) -> &[u8] {
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(written.len());
    &written[start..start.saturating_add(max).min(written.len())]
}
