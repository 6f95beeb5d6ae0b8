//! The output of a task: the end of it in the page, all of it as a file.

use axum::{
    body::Body as HttpBody,
    extract::{Extension, State},
    http::{
        HeaderValue, Uri,
        header::{CONTENT_DISPOSITION, CONTENT_TYPE},
    },
    response::{IntoResponse, Response},
};
use raddle_broker::OutputStream;
use raddle_model::TaskView;

use super::{
    context::Context,
    model::{Block, Cell, Content, bytes},
    search,
};
use crate::{
    auth::Caller,
    problem::{Problem, Result},
    state::AppState,
};

/// How much of a stream a page shows: its end.
const SHOWN: u64 = 16 * 1024;
/// How much is read at once.
const CHUNK: u32 = 256 * 1024;
/// The longest spec in a page.
const MAX_TEXT: usize = 32 * 1024;

/// The end of each stream of the last attempt that has printed something.
pub(super) async fn blocks(cx: &Context, task: &TaskView) -> Result<Vec<Block>> {
    let mut blocks = Vec::new();
    for stream in OutputStream::BOTH {
        let name = name(stream);
        let (text, length) = tail(cx, task, stream).await?;
        if length == 0 {
            continue;
        }
        let title = if stream == OutputStream::Stdout {
            "Output"
        } else {
            "Errors"
        };
        let note = match length > SHOWN {
            true => format!("the last {} of {}", bytes(SHOWN), bytes(length)),
            false => bytes(length),
        };
        let download = Cell::Link {
            href: cx.url(&format!(
                "/tasks/{}/output/{}/{name}",
                task.tid, task.attempt
            )),
            text: "Download".into(),
        };
        let body = Content::Pre {
            text,
            label: format!("{title} of attempt {}", task.attempt),
        };
        let block = Block::new(name, title, body).tool(download);
        blocks.push(block.note(Cell::soft(format!("attempt {} · {note}", task.attempt))));
    }
    if blocks.len() == 2 {
        blocks.iter_mut().for_each(|block| block.width = "half");
    }
    Ok(blocks)
}

fn name(stream: OutputStream) -> &'static str {
    match stream {
        OutputStream::Stdout => "stdout",
        OutputStream::Stderr => "stderr",
    }
}

/// The end of a stream, and how long the stream is.
async fn tail(cx: &Context, task: &TaskView, stream: OutputStream) -> Result<(String, u64)> {
    let (broker, tid, attempt) = (cx.broker(), task.tid, task.attempt);
    // Not to the end: a running task may write faster than this reads.
    let length = raddle_view::task::output_length(broker, tid, attempt, stream).await?;
    let (mut offset, mut tail) = (length.saturating_sub(SHOWN), Vec::new());
    while offset < length {
        let left = u32::try_from(length - offset).unwrap_or(CHUNK).min(CHUNK);
        let piece = broker
            .read_output(tid, attempt, stream, offset, left)
            .await?;
        if piece.is_empty() {
            break;
        }
        offset += piece.len() as u64;
        tail.extend(piece);
    }
    Ok((printable(&String::from_utf8_lossy(&tail)), offset))
}

/// Replaces what a terminal would obey: escape sequences go, a carriage return begins a line again.
fn printable(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' if chars.next_if_eq(&'[').is_some() => {
                // A sequence ends with a letter.
                while chars.next().is_some_and(|c| !c.is_ascii_alphabetic()) {}
            }
            '\r' if chars.peek() == Some(&'\n') => {}
            '\r' => {
                let begin = out.rfind('\n').map_or(0, |at| at + 1);
                out.truncate(begin);
            }
            '\n' | '\t' => out.push(c),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Cuts a long text.
pub(super) fn shorten(text: &str) -> String {
    let end = text.floor_char_boundary(MAX_TEXT);
    match end < text.len() {
        true => format!(
            "{}\n… ({} in all: the command line shows it)",
            &text[..end],
            bytes(text.len() as u64)
        ),
        false => text.into(),
    }
}

/// Sends a stream of an attempt as a file, byte by byte as it was written.
pub(super) async fn download(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<Response> {
    let cx = Context::new(state, caller, super::path_of(&uri))?;
    let [_, tid, _, attempt, stream] = cx.segments.as_slice() else {
        return Err(Problem::not_found("there is no such output"));
    };
    let tid = search::tid_of(&cx, tid).await?;
    let attempt: u32 = attempt
        .parse()
        .map_err(|_| Problem::not_found("an attempt is a number"))?;
    let stream = OutputStream::BOTH
        .into_iter()
        .find(|it| name(*it) == stream)
        .ok_or_else(|| Problem::not_found("a stream is stdout or stderr"))?;
    let file = format!(
        "attachment; filename=\"{tid}-{attempt}-{}.txt\"",
        name(stream)
    );
    let pieces = futures_util::stream::try_unfold(
        (cx.state.clone(), 0),
        move |(state, offset)| async move {
            let piece = state
                .broker()
                .read_output(tid, attempt, stream, offset, CHUNK)
                .await
                .map_err(std::io::Error::other)?;
            let next = offset + piece.len() as u64;
            Ok::<_, std::io::Error>((!piece.is_empty()).then_some((piece, (state, next))))
        },
    );
    let mut response = HttpBody::from_stream(pieces).into_response();
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    headers.extend(HeaderValue::from_str(&file).map(|file| (CONTENT_DISPOSITION, file)));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_output_are_harmless() {
        assert_eq!(
            printable("a\u{1b}[31mred\u{1b}[0m\r\nb\0\tc"),
            "ared\nb\u{fffd}\tc"
        );
        assert_eq!(printable("x\n10 %\r50 %\r100 %\n"), "x\n100 %\n");
        assert_eq!(printable("\u{1b}[").len(), 0);
        let long = "ä".repeat(MAX_TEXT);
        assert!(shorten(&long).len() < MAX_TEXT + 100);
    }
}
