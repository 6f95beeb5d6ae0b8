//! Progress bars on stderr. Where that is no terminal, a bar is hidden.

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

/// How many tasks are submitted, of how many if that is known.
pub(crate) fn submitted(total: Option<u64>, is_wanted: bool) -> ProgressBar {
    match total {
        _ if !is_wanted => ProgressBar::hidden(),
        Some(total) => styled(ProgressBar::new(total), "{bar:30} {pos}/{len} submitted, {eta} left"),
        None => styled(ProgressBar::new_spinner(), "{spinner} {pos} submitted"),
    }
}

/// How many tasks of a batch are finished.
pub(crate) fn finished(total: u64, is_wanted: bool) -> ProgressBar {
    if !is_wanted {
        return ProgressBar::hidden();
    }
    styled(ProgressBar::new(total), "{bar:30} {pos}/{len} finished{msg}, {eta} left")
}

/// How far a task says that it has come.
pub(crate) fn of_task(is_wanted: bool) -> ProgressBar {
    if is_wanted { styled(ProgressBar::new(100), "{bar:30} {pos:>3} % {msg}") } else { ProgressBar::hidden() }
}

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("the templates are well-formed");
    bar.with_style(style).with_finish(ProgressFinish::AndClear)
}
