//! A progress bar on stderr, when that is a terminal.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressStyle};

/// Shows how far something has come.
pub(crate) struct Progress(Option<ProgressBar>);

impl Progress {
    /// Begins, with the total if it is known. Nothing is shown unless stderr is a terminal.
    pub(crate) fn start(total: Option<u64>, quiet: bool) -> Self {
        if quiet || !io::stderr().is_terminal() {
            return Self(None);
        }
        let template = match total {
            Some(_) => "{bar:30} {pos}/{len} submitted, {eta} left",
            None => "{spinner} {pos} submitted",
        };
        let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
        bar.set_style(ProgressStyle::with_template(template).expect("the templates are well-formed"));
        Self(Some(bar))
    }

    /// So many more are done. `print` may write to the same terminal: the bar steps aside for it.
    pub(crate) fn advance<T>(&self, by: u64, print: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some(bar) => {
                bar.inc(by);
                bar.suspend(print)
            }
            None => print(),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
