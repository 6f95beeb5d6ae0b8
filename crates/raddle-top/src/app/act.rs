//! Actions on what is marked or selected, and the question before them.

use crossterm::event::{KeyCode, KeyEvent};
use raddle_model::Tid;

use super::{App, Effect, Message};
use crate::{
    action::{Action, TaskAction},
    line_editor::LineEditor,
    overlay::Overlay,
    table::RowId,
};

/// From more tasks on, their number must be typed.
pub(crate) const MAX_UNTYPED: usize = 100;

impl App {
    /// Starts an action on the marked tasks, or on the row. One task needs no question: its key is
    /// a capital letter.
    pub(super) fn act(&mut self, action: TaskAction) -> Vec<Effect> {
        let is_pause = action == TaskAction::Pause;
        let no_overlay = self.overlays.is_empty();
        let row = self.selected_row().filter(|_| no_overlay);
        let settable = self.marks.is_empty() && !action.needs_care();
        match row {
            Some(RowId::Group { slug, .. }) if settable => {
                return vec![Effect::Perform(Action::SetGroup {
                    slug,
                    on: !is_pause,
                })];
            }
            Some(RowId::Schedule { name, .. }) if settable => {
                let paused = is_pause;
                return vec![Effect::Perform(Action::SetSchedule { name, paused })];
            }
            _ => {}
        }
        let tids = self.targets();
        if tids.is_empty() {
            self.say(format!("there is no task here to {}", action.verb()));
            return Vec::new();
        }
        let count = tids.len();
        let action_on_all = Action::Tasks(action, tids);
        if count == 1 || !action.needs_care() {
            return self.start(action_on_all);
        }
        self.overlays.push(Overlay::Confirm {
            action: action_on_all,
            typed: (count > MAX_UNTYPED).then(LineEditor::default),
        });
        Vec::new()
    }

    /// The tasks to act on.
    fn targets(&self) -> Vec<Tid> {
        let over = self.overlays.last();
        if let Some(Overlay::Task { tid, .. } | Overlay::Output { tid, .. }) = over {
            return vec![*tid];
        }
        if !self.marks.is_empty() {
            return self.marks.iter().copied().collect();
        }
        match self.selected_row() {
            Some(RowId::Task(tid) | RowId::Worker(tid)) => vec![tid],
            Some(RowId::Failure(tids)) => tids,
            _ => Vec::new(),
        }
    }

    fn start(&mut self, action: Action) -> Vec<Effect> {
        self.marks.clear();
        self.last_mark = None;
        self.say("working…".into());
        vec![Effect::Perform(action)]
    }

    pub(super) fn say(&mut self, text: String) {
        self.message = Some(Message {
            text,
            is_error: false,
        });
    }

    pub(super) fn press_in_question(&mut self, key: KeyEvent) -> Vec<Effect> {
        let Some(Overlay::Confirm { action, typed }) = self.overlays.pop() else {
            return Vec::new();
        };
        let wanted = match &action {
            Action::Tasks(_, tids) => tids.len().to_string(),
            _ => String::new(),
        };
        match (key.code, typed) {
            (KeyCode::Enter | KeyCode::Char('y'), None) => self.start(action),
            (KeyCode::Enter, Some(line)) if line.text() == wanted => self.start(action),
            (KeyCode::Enter, Some(_)) => {
                self.say(format!("not done: the number is {wanted}"));
                Vec::new()
            }
            (KeyCode::Esc, _) | (_, None) => {
                self.say("not done".into());
                Vec::new()
            }
            (_, Some(mut line)) => {
                line.edit(key);
                let typed = Some(line);
                self.overlays.push(Overlay::Confirm { action, typed });
                Vec::new()
            }
        }
    }

    /// Changes the number of processes of the selected group worker.
    pub(super) fn scale_group(&mut self, by: i32) -> Vec<Effect> {
        let Some(RowId::Group { slug, replicas, .. }) = self.selected_row() else {
            return Vec::new();
        };
        let replicas = replicas.saturating_add_signed(by);
        vec![Effect::Perform(Action::ScaleGroup { slug, replicas })]
    }
}
