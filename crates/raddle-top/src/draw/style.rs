//! Colours. Each state is also told by its word: without colours nothing is lost.

use ratatui::style::{Color, Modifier, Style};

use crate::table::Tone;

/// The styles, with or without colours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Theme {
    colours: bool,
}

impl Theme {
    pub(super) fn new(colours: bool) -> Self {
        Self { colours }
    }

    fn coloured(self, colour: Color, otherwise: Modifier) -> Style {
        match self.colours {
            true => Style::new().fg(colour),
            false => Style::new().add_modifier(otherwise),
        }
    }

    pub(super) fn plain(self) -> Style {
        Style::new()
    }

    pub(super) fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub(super) fn quiet(self) -> Style {
        self.coloured(Color::DarkGray, Modifier::DIM)
    }

    pub(super) fn good(self) -> Style {
        self.coloured(Color::Green, Modifier::empty())
    }

    pub(super) fn bad(self) -> Style {
        self.coloured(Color::Red, Modifier::BOLD)
    }

    pub(super) fn busy(self) -> Style {
        self.coloured(Color::Cyan, Modifier::empty())
    }

    pub(super) fn tone(self, tone: Tone) -> Style {
        match tone {
            Tone::Plain => self.plain(),
            Tone::Good => self.good(),
            Tone::Bad => self.bad(),
            Tone::Busy => self.busy(),
            Tone::Quiet => self.quiet(),
        }
    }
}
