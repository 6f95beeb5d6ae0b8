//! Overlays of a screen.

use raddle_model::Tid;
use raddle_view::task_detail::TaskDetail;

use crate::{action::Action, line_editor::LineEditor, output::OutputLines, reader::OverRequest};

/// An overlay of a screen.
#[derive(Debug)]
pub(crate) enum Overlay {
    /// The keys.
    Help,
    /// One task.
    Task {
        tid: Tid,
        detail: Option<Box<TaskDetail>>,
        scroll: usize,
    },
    /// The output of a task.
    Output {
        tid: Tid,
        lines: OutputLines,
        /// The number of lines below the window; it is 0 while it follows.
        below: usize,
        follows: bool,
        wraps: bool,
    },
    /// A question before an action.
    Confirm {
        action: Action,
        /// The typed line, where the count must be typed.
        typed: Option<LineEditor>,
    },
}

impl Overlay {
    /// The values to read for it.
    pub(crate) fn request(&self) -> Option<OverRequest> {
        match self {
            Self::Task { tid, .. } => Some(OverRequest::Task(*tid)),
            Self::Output { tid, lines, .. } => Some(OverRequest::Output(*tid, lines.position)),
            Self::Help | Self::Confirm { .. } => None,
        }
    }

    /// Whether it shows an output that may grow: that has no event.
    pub(crate) fn follows_output(&self) -> bool {
        match self {
            Self::Output { lines, follows, .. } => {
                *follows && lines.state.is_none_or(|state| !state.is_terminal())
            }
            _ => false,
        }
    }
}
