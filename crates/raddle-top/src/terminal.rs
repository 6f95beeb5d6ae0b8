//! The terminal, and its restoration however the program ends.

use std::io::{self, Stdout, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use crossterm::{
    cursor::Show,
    execute,
    terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode},
};
use ratatui::{Terminal, backend::CrosstermBackend};

/// Whether the terminal is to be restored.
static IS_SET_UP: AtomicBool = AtomicBool::new(false);

/// The terminal in raw mode, on its alternate screen.
pub(crate) struct Screenful {
    pub(crate) terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screenful {
    /// Sets up the terminal.
    pub(crate) fn open() -> io::Result<Self> {
        // The hook of the program exits the process, so destructors do not run after a panic.
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            report(info);
        }));
        enable_raw_mode()?;
        IS_SET_UP.store(true, Ordering::SeqCst);
        let opened = execute!(io::stdout(), EnterAlternateScreen)
            .and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        match opened {
            Ok(terminal) => Ok(Self { terminal }),
            Err(error) => {
                restore();
                Err(error)
            }
        }
    }

    /// Copies text to the clipboard of the terminal (OSC 52). Terminals that do not know it ignore
    /// it.
    pub(crate) fn copy(text: &str) -> io::Result<()> {
        let coded = data_encoding::BASE64.encode(text.as_bytes());
        let mut stdout = io::stdout().lock();
        write!(stdout, "\x1b]52;c;{coded}\x07")?;
        stdout.flush()
    }
}

impl Drop for Screenful {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal, once. Errors have no better place to go: the terminal may be gone.
fn restore() {
    if IS_SET_UP.swap(false, Ordering::SeqCst) {
        let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
}
