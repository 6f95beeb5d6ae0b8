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

/// Shows how far a task says that it has come.
pub(crate) struct TaskProgress(Option<ProgressBar>);

impl TaskProgress {
    /// Nothing is shown unless stderr is a terminal.
    pub(crate) fn start(wanted: bool) -> Self {
        Self((wanted && io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(100);
            let style = ProgressStyle::with_template("{bar:30} {pos:>3} % {msg}");
            bar.set_style(style.expect("the template is well-formed"));
            bar
        }))
    }

    /// Whether anybody sees it.
    pub(crate) fn is_shown(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn set(&self, progress: &raddle_core::Progress) {
        if let Some(bar) = &self.0 {
            bar.set_position(progress.percent.unwrap_or(0.0) as u64);
            bar.set_message(crate::table::printable(&progress.message));
        }
    }

    /// `print` may write to the same terminal: the bar steps aside for it.
    pub(crate) fn aside<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}

impl Drop for TaskProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
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
