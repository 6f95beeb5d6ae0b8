//! The lines that the user types: filter and commands.

use crossterm::event::{KeyCode, KeyEvent};
use raddle_model::{TaskQuery, tid::TidArg};

use super::{App, Effect, Prompt, PromptKind};
use crate::{
    command::{self, Command},
    overlay::Overlay,
    screen::Screen,
    table::RowId,
};

impl App {
    pub(super) fn press_in_prompt(&mut self, key: KeyEvent) -> Vec<Effect> {
        let Some(mut prompt) = self.prompt.take() else {
            return Vec::new();
        };
        match (key.code, prompt.kind) {
            (KeyCode::Esc, _) => return Vec::new(),
            (KeyCode::Enter, PromptKind::Filter) => match self.set_filter(&prompt.line.text()) {
                Ok(effects) => return effects,
                Err(remark) => prompt.remark = Some(remark),
            },
            (KeyCode::Enter, PromptKind::Command) => match command::parse(&prompt.line.text()) {
                Ok(command) => return self.perform_command(command),
                Err(remark) => prompt.remark = Some(remark),
            },
            (KeyCode::Tab, PromptKind::Command) => complete(&mut prompt),
            _ => {
                prompt.line.edit(key);
                prompt.remark = None;
            }
        }
        self.prompt = Some(prompt);
        Vec::new()
    }

    fn set_filter(&mut self, text: &str) -> Result<Vec<Effect>, String> {
        if !self.screen.takes_query() && self.screen != Screen::Overview {
            self.text_filter = text.trim().into();
            self.selected = 0;
            return Ok(Vec::new());
        }
        let query: TaskQuery = text.parse().map_err(|error| format!("{error}"))?;
        let screen = match self.screen {
            Screen::Overview => Screen::Tasks,
            screen => screen,
        };
        Ok(self.go(screen, query))
    }

    fn perform_command(&mut self, command: Command) -> Vec<Effect> {
        match command {
            Command::Quit => vec![Effect::Quit],
            Command::Help => {
                self.overlays.push(Overlay::Help);
                Vec::new()
            }
            Command::Show(screen) => self.go(screen, self.query.clone()),
            Command::Tasks(query) => self.go(Screen::Tasks, query),
            Command::Open(TidArg::Full(tid)) => self.open_tid(tid),
            Command::Open(TidArg::Short(short)) => {
                let rows = self.table().rows.into_iter();
                let found = rows.map(|row| row.id).find_map(|id| match id {
                    RowId::Task(tid) | RowId::Worker(tid) if tid.short() == short => Some(tid),
                    _ => None,
                });
                match (found, short.to_string().parse()) {
                    (Some(tid), _) => self.open_tid(tid),
                    // The query of an id finds it.
                    (None, Ok(query)) => self.go(Screen::Tasks, query),
                    (None, Err(_)) => Vec::new(),
                }
            }
            Command::Act(action) => self.act(action),
        }
    }
}

fn complete(prompt: &mut Prompt) {
    let (text, possible) = command::complete(&prompt.line.text());
    prompt.line = crate::line_editor::LineEditor::new(&text);
    prompt.remark = Some(possible.join(" "));
}
