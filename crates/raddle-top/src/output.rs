//! The output of a task, from near its end on.

use std::collections::VecDeque;

use raddle_broker::{Broker, OutputStream};
use raddle_model::{TaskState, Tid};
use raddle_view::{Error, find::get_task};

/// How much of a long output is shown at first.
const TAIL: u64 = 64 * 1024;
/// How much is read at once.
const PIECE: u32 = 64 * 1024;
/// The most bytes of one read. The part before them is skipped.
const MAX_READ: u64 = 512 * 1024;
/// The first guess for the length of an output.
const FIRST_GUESS: u64 = 64 * 1024;
/// The most lines that are kept.
const MAX_LINES: usize = 5000;
/// The longest part of a line that is kept, in characters.
const MAX_COLUMNS: usize = 4000;

/// Up to where the output of an attempt was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OutputPosition {
    pub(crate) attempt: u32,
    pub(crate) offsets: [u64; 2],
}

/// A part of the output of a task.
#[derive(Debug)]
pub(crate) struct OutputChunk {
    pub(crate) tid: Tid,
    /// Where it began; `None` for the first part.
    pub(crate) from: Option<OutputPosition>,
    pub(crate) position: OutputPosition,
    pub(crate) state: TaskState,
    /// The bytes of standard output and of standard error.
    pub(crate) bytes: [Vec<u8>; 2],
    /// How many bytes before them were left out.
    pub(crate) skipped: [u64; 2],
}

/// Reads the output of a task after a position. Another attempt begins anew.
pub(crate) async fn read_output(
    broker: &dyn Broker,
    tid: Tid,
    position: Option<OutputPosition>,
) -> Result<OutputChunk, Error> {
    let task = get_task(broker, tid).await?;
    let attempt = task.attempt;
    let from = position.filter(|position| position.attempt == attempt);
    let mut chunk = OutputChunk {
        tid,
        from,
        position: OutputPosition {
            attempt,
            offsets: from.map_or([0; 2], |from| from.offsets),
        },
        state: task.state,
        bytes: [Vec::new(), Vec::new()],
        skipped: [0; 2],
    };
    for (index, stream) in OutputStream::BOTH.into_iter().enumerate() {
        let offset = &mut chunk.position.offsets[index];
        let at_most = if from.is_some() { MAX_READ } else { TAIL };
        let end = find_end(broker, tid, attempt, stream, *offset).await?;
        let start = end.saturating_sub(at_most).max(*offset);
        chunk.skipped[index] = start - *offset;
        *offset = start;
        while *offset < end {
            let bytes = broker
                .read_output(tid, attempt, stream, *offset, PIECE)
                .await?;
            if bytes.is_empty() {
                break;
            }
            *offset += bytes.len() as u64;
            chunk.bytes[index].extend(bytes);
        }
    }
    Ok(chunk)
}

/// The length of an output, of which `from` bytes are known. A running task has no count of its
/// bytes, so this asks for single bytes: some forty times for a gigabyte.
async fn find_end(
    broker: &dyn Broker,
    tid: Tid,
    attempt: u32,
    stream: OutputStream,
    from: u64,
) -> Result<u64, Error> {
    let has = async |offset: u64| -> Result<bool, Error> {
        let byte = broker.read_output(tid, attempt, stream, offset, 1).await?;
        Ok(!byte.is_empty())
    };
    let (mut known, mut step) = (from, FIRST_GUESS);
    if !has(known).await? {
        return Ok(known);
    }
    while has(known + step).await? {
        known += step;
        step *= 2;
    }
    // There is a byte at `known`, and none at `missing`.
    let mut missing = known + step;
    while missing - known > 1 {
        let middle = known + (missing - known) / 2;
        if has(middle).await? {
            known = middle;
        } else {
            missing = middle;
        }
    }
    Ok(missing)
}

/// The lines of an output that are kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutputLines {
    pub(crate) position: Option<OutputPosition>,
    pub(crate) state: Option<TaskState>,
    lines: VecDeque<OutputLine>,
    /// The last lines of the streams, while they have no end.
    open: [Option<Vec<u8>>; 2],
}

/// A line of output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutputLine {
    pub(crate) is_error: bool,
    pub(crate) text: String,
}

impl OutputLines {
    /// Appends what was read. Parts that do not follow the last one are dropped.
    pub(crate) fn push(&mut self, chunk: OutputChunk) {
        if chunk.from.is_some() && chunk.from != self.position {
            return;
        }
        if chunk.from.is_none() && self.position.is_some() {
            self.add_line(false, format!("── attempt {} ──", chunk.position.attempt));
            self.open = [None, None];
        }
        self.position = Some(chunk.position);
        self.state = Some(chunk.state);
        for (index, bytes) in chunk.bytes.into_iter().enumerate() {
            let is_error = index == 1;
            let skipped = chunk.skipped[index];
            if skipped > 0 {
                self.open[index] = None;
                self.add_line(is_error, format!("── {skipped} bytes skipped ──"));
            }
            let mut line = self.open[index].take().unwrap_or_default();
            for byte in bytes {
                match byte {
                    b'\n' => self.add_line(is_error, printable(&std::mem::take(&mut line))),
                    byte if line.len() < MAX_COLUMNS => line.push(byte),
                    _ => {}
                }
            }
            self.open[index] = Some(line).filter(|line| !line.is_empty());
        }
    }

    fn add_line(&mut self, is_error: bool, text: String) {
        self.lines.push_back(OutputLine { is_error, text });
        while self.lines.len() > MAX_LINES {
            self.lines.pop_front();
        }
    }

    /// All lines, the open ones last.
    pub(crate) fn lines(&self) -> impl Iterator<Item = OutputLine> {
        let open = self.open.iter().enumerate().filter_map(|(index, line)| {
            Some(OutputLine {
                is_error: index == 1,
                text: printable(line.as_ref()?),
            })
        });
        self.lines.iter().cloned().chain(open)
    }
}

/// A line as text without control characters. After a carriage return the line is written over.
fn printable(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line).replace('\t', "    ");
    let text = raddle_view::failures::strip_escapes(&text);
    let visible = text.trim_end_matches('\r').rsplit('\r').next();
    visible.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(from: Option<OutputPosition>, end: u64, stdout: &[u8]) -> OutputChunk {
        OutputChunk {
            tid: Tid::from_u64(1_800_000_000_000_000_000).unwrap(),
            from,
            position: OutputPosition {
                attempt: 1,
                offsets: [end, 0],
            },
            state: TaskState::Running,
            bytes: [stdout.to_vec(), Vec::new()],
            skipped: [0; 2],
        }
    }

    #[test]
    fn lines_grow_and_are_plain_text() {
        let mut lines = OutputLines::default();
        lines.push(chunk(None, 5, b"one\ntw"));
        lines.push(chunk(
            lines.position,
            9,
            b"o\n\x1b[31mred\x1b[0m\n10%\r20%\ra\tb",
        ));
        let stale = OutputPosition::default();
        lines.push(chunk(Some(stale), 99, b"twice\n"));
        let texts: Vec<_> = lines.lines().map(|line| line.text).collect();
        assert_eq!(texts, ["one", "two", "red", "a    b"]);
    }

    #[test]
    fn long_outputs_and_lines_are_cut() {
        let mut lines = OutputLines::default();
        lines.push(chunk(None, 1, "x\n".repeat(2 * MAX_LINES).as_bytes()));
        assert_eq!(lines.lines().count(), MAX_LINES);
        lines.push(chunk(lines.position, 2, &vec![b'y'; 100_000]));
        assert_eq!(lines.lines().last().unwrap().text.len(), MAX_COLUMNS);
    }
}
