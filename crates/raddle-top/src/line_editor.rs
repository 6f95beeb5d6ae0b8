//! A line of text that the user edits.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The most characters.
const MAX: usize = 2048;

/// A line of text, and where the cursor is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LineEditor {
    chars: Vec<char>,
    cursor: usize,
}

impl LineEditor {
    pub(crate) fn new(text: &str) -> Self {
        let chars: Vec<char> = text.chars().collect();
        Self {
            cursor: chars.len(),
            chars,
        }
    }

    pub(crate) fn text(&self) -> String {
        self.chars.iter().collect()
    }

    /// The number of characters before the cursor.
    pub(crate) fn cursor(&self) -> usize {
        self.cursor
    }

    /// Applies a key. Returns whether it was one of an editor.
    pub(crate) fn edit(&mut self, key: KeyEvent) -> bool {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('a') if control => self.cursor = 0,
            KeyCode::Char('e') if control => self.cursor = self.chars.len(),
            KeyCode::Char('u') if control => {
                self.chars.drain(..self.cursor);
                self.cursor = 0;
            }
            KeyCode::Char('w') if control => self.remove_word(),
            KeyCode::Char(_) if control => return false,
            KeyCode::Char(char) if self.chars.len() < MAX => {
                self.chars.insert(self.cursor, char);
                self.cursor += 1;
            }
            KeyCode::Backspace if self.cursor > 0 => {
                self.cursor -= 1;
                self.chars.remove(self.cursor);
            }
            KeyCode::Delete if self.cursor < self.chars.len() => {
                self.chars.remove(self.cursor);
            }
            KeyCode::Left => self.cursor = self.cursor.saturating_sub(1),
            KeyCode::Right => self.cursor = (self.cursor + 1).min(self.chars.len()),
            KeyCode::Home => self.cursor = 0,
            KeyCode::End => self.cursor = self.chars.len(),
            _ => return false,
        }
        true
    }

    fn remove_word(&mut self) {
        let before = &self.chars[..self.cursor];
        let word_end = before.iter().rposition(|char| !char.is_whitespace());
        let start = word_end.map_or(0, |end| {
            let gap = before[..end].iter().rposition(|char| char.is_whitespace());
            gap.map_or(0, |gap| gap + 1)
        });
        self.chars.drain(start..self.cursor);
        self.cursor = start;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_edit_the_line() {
        let mut line = LineEditor::new("state:failed naïve");
        let press =
            |line: &mut LineEditor, code, modifiers| line.edit(KeyEvent::new(code, modifiers));
        let none = KeyModifiers::NONE;
        press(&mut line, KeyCode::Left, none);
        press(&mut line, KeyCode::Backspace, none);
        assert_eq!(line.text(), "state:failed naïe");
        press(&mut line, KeyCode::End, none);
        press(&mut line, KeyCode::Char('w'), KeyModifiers::CONTROL);
        assert_eq!((line.text().as_str(), line.cursor()), ("state:failed ", 13));
        press(&mut line, KeyCode::Char('u'), KeyModifiers::CONTROL);
        press(&mut line, KeyCode::Backspace, none);
        press(&mut line, KeyCode::Char('x'), none);
        assert_eq!((line.text().as_str(), line.cursor()), ("x", 1));
        assert!(!press(&mut line, KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(!press(&mut line, KeyCode::Enter, none));
    }
}
