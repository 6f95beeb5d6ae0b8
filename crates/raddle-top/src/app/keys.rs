//! The meaning of the keys.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use raddle_model::{
    TaskQuery, Tid,
    query::{Condition, IdField, Pattern, Term, TextField},
    schedule::SCHEDULE_KEY,
    tid::TidArg,
};
use raddle_view::select::FAILED;

use super::{App, Effect, Prompt, PromptKind};
use crate::{
    action::TaskAction, line_editor::LineEditor, output::OutputLines, overlay::Overlay,
    reader::Data, screen::Screen, table::RowId,
};

impl App {
    /// Applies a key.
    pub(crate) fn press(&mut self, key: KeyEvent) -> Vec<Effect> {
        self.message = None;
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && key.code == KeyCode::Char('c') {
            return vec![Effect::Quit];
        }
        if self.prompt.is_some() {
            return self.press_in_prompt(key);
        }
        if matches!(self.overlays.last(), Some(Overlay::Confirm { .. })) {
            return self.press_in_question(key);
        }
        if !self.overlays.is_empty()
            && let Some(effects) = self.press_over(key)
        {
            return effects;
        }
        match key.code {
            KeyCode::Char('d') if control => self.select_by(self.half_page()),
            KeyCode::Char('u') if control => self.select_by(-self.half_page()),
            // Terminals send Ctrl-\ as one of these.
            KeyCode::Char('\\' | '4') if control => self.marks.clear(),
            KeyCode::Char(_) if control => {}
            KeyCode::Char('q') => return vec![Effect::Quit],
            KeyCode::Char('?') => self.overlays.push(Overlay::Help),
            KeyCode::Char('/') => self.open_prompt(PromptKind::Filter),
            KeyCode::Char(':') => self.open_prompt(PromptKind::Command),
            KeyCode::Char('j') | KeyCode::Down => self.select_by(1),
            KeyCode::Char('k') | KeyCode::Up => self.select_by(-1),
            KeyCode::Char('l') | KeyCode::PageDown => self.select_by(self.page as isize),
            KeyCode::Char('h') | KeyCode::PageUp => self.select_by(-(self.page as isize)),
            KeyCode::Char('g') | KeyCode::Home => self.selected = 0,
            KeyCode::Char('G') | KeyCode::End => self.select_by(isize::MAX / 2),
            KeyCode::Right | KeyCode::Tab => {
                return self.go(self.screen.step(1), self.query.clone());
            }
            KeyCode::Left | KeyCode::BackTab => {
                return self.go(self.screen.step(-1), self.query.clone());
            }
            KeyCode::Char('[') => return self.walk_history(-1),
            KeyCode::Char(']') => return self.walk_history(1),
            KeyCode::Esc => return self.clear_filter(),
            KeyCode::Enter => return self.open_row(),
            KeyCode::Char('e') => return self.open_task(),
            KeyCode::Char('o') => return self.open_output(),
            KeyCode::Char('x') => self.mark(),
            KeyCode::Char(' ') => self.mark_range(),
            KeyCode::Char('A') => self.marks.extend(self.listed_tasks()),
            KeyCode::Char('y') => return self.copy_id(),
            KeyCode::Char('Y') => return vec![Effect::Copy(self.as_command())],
            KeyCode::Char('z') => return self.freeze(),
            KeyCode::Char('<') => return self.walk_time(-1),
            KeyCode::Char('>') => return self.walk_time(1),
            KeyCode::Char('+') if self.walk.is_some() => self.zoom_time(-1),
            KeyCode::Char('-') if self.walk.is_some() => self.zoom_time(1),
            KeyCode::Char('+') => return self.scale_group(1),
            KeyCode::Char('-') => return self.scale_group(-1),
            KeyCode::Char(key) => {
                if let Some(action) = action_of(key) {
                    return self.act(action);
                }
                if let Some(screen) = Screen::with_key(key) {
                    return self.go(screen, self.query.clone());
                }
            }
            _ => {}
        }
        Vec::new()
    }

    /// Applies a key to the uppermost overlay. `None` if the screen has it.
    fn press_over(&mut self, key: KeyEvent) -> Option<Vec<Effect>> {
        let half = self.half_page();
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        let by = match key.code {
            KeyCode::Esc | KeyCode::Char('q') => {
                self.overlays.pop();
                return Some(vec![Effect::Read]);
            }
            KeyCode::Char('?') if !matches!(self.overlays.last(), Some(Overlay::Help)) => {
                self.overlays.push(Overlay::Help);
                return Some(Vec::new());
            }
            KeyCode::Char('j') | KeyCode::Down => 1,
            KeyCode::Char('k') | KeyCode::Up => -1,
            KeyCode::Char('d') if control => half,
            KeyCode::Char('u') if control => -half,
            KeyCode::PageDown => self.page as isize,
            KeyCode::PageUp => -(self.page as isize),
            KeyCode::Char('g') | KeyCode::Home => isize::MIN / 2,
            KeyCode::Char('G') | KeyCode::End => isize::MAX / 2,
            _ => 0,
        };
        match self.overlays.last_mut()? {
            Overlay::Help => Some(Vec::new()),
            Overlay::Task { scroll, .. } => {
                if by != 0 {
                    *scroll = scroll.saturating_add_signed(by).min(10_000);
                    return Some(Vec::new());
                }
                match key.code {
                    KeyCode::Char('o') => Some(self.open_output()),
                    KeyCode::Char('y') => Some(self.copy_id()),
                    KeyCode::Char(key) => action_of(key).map(|action| self.act(action)),
                    _ => None,
                }
                .or(Some(Vec::new()))
            }
            Overlay::Output {
                below,
                follows,
                wraps,
                lines,
                ..
            } => {
                if by != 0 {
                    let most = lines.lines().count();
                    *below = below.saturating_add_signed(-by).min(most);
                    *follows = *below == 0;
                }
                match key.code {
                    KeyCode::Char('w') => *wraps = !*wraps,
                    KeyCode::Char('f') => {
                        *follows = !*follows;
                        *below = 0;
                    }
                    _ => {}
                }
                Some(vec![Effect::Read])
            }
            Overlay::Confirm { .. } => None,
        }
    }

    fn half_page(&self) -> isize {
        (self.page / 2).max(1) as isize
    }

    fn select_by(&mut self, by: isize) {
        let last = self.table().rows.len().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(by).min(last);
    }

    fn open_prompt(&mut self, kind: PromptKind) {
        let text = match kind {
            PromptKind::Command => String::new(),
            PromptKind::Filter if self.screen.takes_query() => self.query.to_string(),
            PromptKind::Filter => self.text_filter.clone(),
        };
        self.prompt = Some(Prompt {
            kind,
            line: LineEditor::new(&text),
            remark: None,
        });
    }

    fn clear_filter(&mut self) -> Vec<Effect> {
        self.text_filter.clear();
        if self.query.is_empty() {
            return Vec::new();
        }
        self.go(self.screen, TaskQuery::default())
    }

    /// Enter shows a task, or the tasks of a row.
    fn open_row(&mut self) -> Vec<Effect> {
        if matches!(self.data, Data::Overview(_)) {
            return self.go(Screen::Tasks, self.query.clone());
        }
        let text = |field, text: String| Condition::Text(field, vec![Pattern::exact(text)]);
        let conditions = match self.selected_row() {
            Some(RowId::Task(_)) => return self.open_task(),
            Some(RowId::Failure(_)) => self.failure_conditions(),
            Some(RowId::Queue(queue)) => vec![text(TextField::Queue, queue)],
            Some(RowId::Group { slug, .. }) => vec![text(TextField::Queue, slug)],
            Some(RowId::Worker(tid)) => {
                vec![Condition::Id(IdField::Worker, vec![TidArg::Full(tid)])]
            }
            Some(RowId::Schedule { name, .. }) => {
                let key = SCHEDULE_KEY.to_owned();
                vec![Condition::Meta(key, vec![Pattern::exact(name)])]
            }
            None => return Vec::new(),
        };
        let query = conditions.into_iter().map(Term::new).collect();
        self.go(Screen::Tasks, query)
    }

    /// The tasks of a group of failures. The line is not part of a query.
    fn failure_conditions(&self) -> Vec<Condition> {
        let Data::Failures(list) = &self.data else {
            return Vec::new();
        };
        let Some(group) = list.items.get(self.selected) else {
            return Vec::new();
        };
        let name = vec![Pattern::exact(&group.name)];
        let kind = raddle_model::query::ExitTest::Kind(group.exit_kind);
        vec![
            Condition::State(FAILED.to_vec()),
            Condition::Text(TextField::Name, name),
            Condition::Exit(vec![kind]),
        ]
    }

    /// The task that is shown or selected.
    pub(super) fn current_task(&self) -> Option<Tid> {
        let over = self
            .overlays
            .iter()
            .rev()
            .find_map(|overlay| match overlay {
                Overlay::Task { tid, .. } | Overlay::Output { tid, .. } => Some(*tid),
                _ => None,
            });
        over.or_else(|| match self.selected_row()? {
            RowId::Task(tid) | RowId::Worker(tid) => Some(tid),
            RowId::Failure(tids) => tids.first().copied(),
            _ => None,
        })
    }

    fn open_task(&mut self) -> Vec<Effect> {
        match self.current_task() {
            Some(tid) => self.open_tid(tid),
            None => Vec::new(),
        }
    }

    pub(super) fn open_tid(&mut self, tid: Tid) -> Vec<Effect> {
        self.overlays.push(Overlay::Task {
            tid,
            detail: None,
            scroll: 0,
        });
        vec![Effect::Read]
    }

    fn open_output(&mut self) -> Vec<Effect> {
        let Some(tid) = self.current_task() else {
            return Vec::new();
        };
        self.overlays.push(Overlay::Output {
            tid,
            lines: OutputLines::default(),
            below: 0,
            follows: true,
            wraps: false,
        });
        vec![Effect::Read]
    }

    fn mark(&mut self) {
        if let Some(RowId::Task(tid)) = self.selected_row() {
            if !self.marks.remove(&tid) {
                self.marks.insert(tid);
            }
            self.last_mark = Some(self.selected);
            self.select_by(1);
        }
    }

    /// Marks the rows from the last mark to here.
    fn mark_range(&mut self) {
        let from = self.last_mark.unwrap_or(self.selected);
        let (first, last) = (from.min(self.selected), from.max(self.selected));
        let tasks = self.listed_tasks();
        let last = last.min(tasks.len().saturating_sub(1));
        self.marks
            .extend(tasks.get(first..=last).unwrap_or_default());
    }

    fn copy_id(&self) -> Vec<Effect> {
        let tid = self.current_task();
        tid.map(|tid| Effect::Copy(tid.to_string()))
            .into_iter()
            .collect()
    }

    /// The command that gives the same answer.
    pub(crate) fn as_command(&self) -> String {
        let query = match self.query.to_string() {
            query if query.is_empty() || !self.screen.takes_query() => String::new(),
            query => format!(" '{}'", query.replace('\'', r"'\''")),
        };
        if let Some(Overlay::Task { tid, .. }) = self.overlays.last() {
            return format!("raddle task explain {tid}");
        }
        let command = match self.screen {
            Screen::Overview => "raddle status",
            Screen::Tasks => "raddle task list",
            Screen::Failures => "raddle failures",
            Screen::Queues => "raddle queue stats",
            Screen::Workers => "raddle worker list",
            Screen::Pools => "raddle pool list",
            Screen::Groups => "raddle group list",
            Screen::Schedules => "raddle schedule list",
            Screen::Events => "raddle queue read raddle.tasks.log",
        };
        format!("{command}{query}")
    }
}

fn action_of(key: char) -> Option<TaskAction> {
    Some(match key {
        'R' => TaskAction::Retry,
        'T' => TaskAction::Stop,
        'K' => TaskAction::Kill,
        'D' => TaskAction::Delete,
        'p' => TaskAction::Pause,
        'r' => TaskAction::Resume,
        _ => return None,
    })
}
