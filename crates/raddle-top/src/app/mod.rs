//! The state of the TUI. It decides what a key does, without I/O.

mod act;
mod keys;
mod prompt;

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use raddle_model::{TaskQuery, Tid};

use crate::{
    action::Action,
    line_editor::LineEditor,
    overlay::Overlay,
    reader::{Data, OverData, ReadAnswer, ReadRequest},
    screen::Screen,
    table::{RowId, Table, table},
};

/// The steps of a walk in time, in seconds.
const STEPS: [i64; 6] = [1, 10, 60, 600, 3600, 86_400];
/// The step of a walk that begins.
const FIRST_STEP: usize = 1;

/// The state of the TUI.
#[derive(Debug)]
pub(crate) struct App {
    /// The broker, without a password.
    pub(crate) broker: String,
    pub(crate) screen: Screen,
    /// Which tasks are shown.
    pub(crate) query: TaskQuery,
    /// The part of a row that other screens show.
    pub(crate) text_filter: String,
    pub(crate) data: Data,
    /// When the data was read.
    pub(crate) read_at: Option<Timestamp>,
    /// The time that ages are counted to.
    pub(crate) now: Timestamp,
    pub(crate) selected: usize,
    pub(crate) marks: BTreeSet<Tid>,
    /// Where the range begins that Space marks.
    pub(crate) last_mark: Option<usize>,
    pub(crate) overlays: Vec<Overlay>,
    pub(crate) prompt: Option<Prompt>,
    pub(crate) message: Option<Message>,
    /// Why the broker does not answer.
    pub(crate) failure: Option<String>,
    pub(crate) walk: Option<Walk>,
    history: Vec<(Screen, TaskQuery)>,
    history_at: usize,
    /// The number of rows of a page.
    pub(crate) page: usize,
    pub(crate) colours: bool,
}

/// A line that the user types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prompt {
    pub(crate) kind: PromptKind,
    pub(crate) line: LineEditor,
    pub(crate) remark: Option<String>,
}

/// The purpose of a typed line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PromptKind {
    Filter,
    Command,
}

/// The outcome of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) text: String,
    pub(crate) is_error: bool,
}

/// A frozen screen, which may show the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Walk {
    pub(crate) at: Timestamp,
    step: usize,
}

impl Walk {
    pub(crate) fn step_seconds(self) -> i64 {
        STEPS[self.step]
    }
}

/// The consequence of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Quit,
    /// Read what is shown now.
    Read,
    Perform(Action),
    Copy(String),
}

impl App {
    pub(crate) fn new(broker: String, query: TaskQuery, now: Timestamp) -> Self {
        let screen = if query.is_empty() {
            Screen::Overview
        } else {
            Screen::Tasks
        };
        Self {
            broker,
            screen,
            history: vec![(screen, query.clone())],
            query,
            text_filter: String::new(),
            data: Data::Loading,
            read_at: None,
            now,
            selected: 0,
            marks: BTreeSet::new(),
            last_mark: None,
            overlays: Vec::new(),
            prompt: None,
            message: None,
            failure: None,
            walk: None,
            history_at: 0,
            page: 10,
            colours: true,
        }
    }

    /// The values to read.
    pub(crate) fn request(&self) -> ReadRequest {
        ReadRequest {
            screen: self.screen,
            query: self.query.clone(),
            at: self
                .walk
                .map(|walk| walk.at)
                .filter(|_| self.screen.has_past()),
            over: self.overlays.iter().rev().find_map(Overlay::request),
        }
    }

    /// Shows what was read, if it is still asked for. The selection stays on its row.
    pub(crate) fn show(&mut self, answer: ReadAnswer) {
        self.failure = None;
        let wanted = self.request();
        if let Some(data) = answer.over {
            self.show_over(data);
        }
        let ReadRequest {
            screen, query, at, ..
        } = answer.request;
        if (screen, &query, at) != (wanted.screen, &wanted.query, wanted.at) {
            return;
        }
        let selected = self.selected_row();
        self.data = answer.data;
        self.read_at = Some(answer.read_at);
        self.now = answer.read_at;
        let rows = self.table().rows;
        let again = selected.and_then(|id| rows.iter().position(|row| row.id == id));
        // At the top, new rows come into view.
        if self.selected > 0 {
            self.selected = again.unwrap_or(self.selected);
        }
        self.selected = self.selected.min(rows.len().saturating_sub(1));
    }

    /// Gives what was read to the overlay of that task.
    fn show_over(&mut self, data: OverData) {
        let mut overlays = self.overlays.iter_mut().rev();
        match data {
            OverData::Task(read) => {
                let found = overlays.find_map(|overlay| match overlay {
                    Overlay::Task { tid, detail, .. } => (*tid == read.task.tid).then_some(detail),
                    _ => None,
                });
                if let Some(detail) = found {
                    *detail = Some(read);
                }
            }
            OverData::Output(chunk) => {
                let found = overlays.find_map(|overlay| match overlay {
                    Overlay::Output { tid, lines, .. } => (*tid == chunk.tid).then_some(lines),
                    _ => None,
                });
                if let Some(lines) = found {
                    lines.push(chunk);
                }
            }
        }
    }

    /// The outcome of an action.
    pub(crate) fn finish(&mut self, outcome: Result<String, String>) {
        let (text, is_error) = match outcome {
            Ok(text) => (text, false),
            Err(text) => (text, true),
        };
        self.message = Some(Message { text, is_error });
    }

    /// The rows of the screen.
    pub(crate) fn table(&self) -> Table {
        let mut table = table(&self.data, self.now);
        if !self.text_filter.is_empty() && !self.screen.takes_query() {
            let wanted = self.text_filter.to_lowercase();
            table.rows.retain(|row| {
                let mut cells = row.cells.iter();
                cells.any(|cell| cell.to_lowercase().contains(&wanted))
            });
        }
        table
    }

    pub(crate) fn selected_row(&self) -> Option<RowId> {
        let rows = self.table().rows;
        rows.into_iter().nth(self.selected).map(|row| row.id)
    }

    /// The tasks of the rows.
    fn listed_tasks(&self) -> Vec<Tid> {
        let rows = self.table().rows.into_iter();
        rows.filter_map(|row| match row.id {
            RowId::Task(tid) => Some(tid),
            _ => None,
        })
        .collect()
    }

    /// Goes to a screen, and remembers the way back.
    fn go(&mut self, screen: Screen, query: TaskQuery) -> Vec<Effect> {
        self.history.truncate(self.history_at + 1);
        self.history.push((screen, query.clone()));
        self.history_at = self.history.len() - 1;
        self.enter(screen, query)
    }

    fn walk_history(&mut self, by: isize) -> Vec<Effect> {
        let Some(index) = self.history_at.checked_add_signed(by) else {
            return Vec::new();
        };
        let Some((screen, query)) = self.history.get(index).cloned() else {
            return Vec::new();
        };
        self.history_at = index;
        self.enter(screen, query)
    }

    fn enter(&mut self, screen: Screen, query: TaskQuery) -> Vec<Effect> {
        if screen != self.screen || query != self.query {
            self.data = Data::Loading;
            self.selected = 0;
            self.last_mark = None;
        }
        if screen != self.screen {
            self.text_filter.clear();
        }
        self.overlays.clear();
        (self.screen, self.query) = (screen, query);
        vec![Effect::Read]
    }

    /// Freezes the screen, or lets it go on.
    fn freeze(&mut self) -> Vec<Effect> {
        self.walk = match self.walk {
            Some(_) => None,
            None => Some(Walk {
                at: self.now,
                step: FIRST_STEP,
            }),
        };
        vec![Effect::Read]
    }

    /// Walks in time, not beyond now.
    fn walk_time(&mut self, direction: i64) -> Vec<Effect> {
        let Some(walk) = &mut self.walk else {
            self.message = Some(Message {
                text: "freeze the screen with z first".into(),
                is_error: false,
            });
            return Vec::new();
        };
        let by = SignedDuration::from_secs(direction * walk.step_seconds());
        walk.at = walk
            .at
            .checked_add(by)
            .unwrap_or(walk.at)
            .min(Timestamp::now());
        vec![Effect::Read]
    }

    fn zoom_time(&mut self, by: isize) {
        if let Some(walk) = &mut self.walk {
            walk.step = walk.step.saturating_add_signed(by).min(STEPS.len() - 1);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
