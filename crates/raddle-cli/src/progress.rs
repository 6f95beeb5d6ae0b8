//! Progress bars on stderr, hidden unless stderr is a terminal.

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

/// A bar that counts submitted tasks, with the total if it is known.
pub(crate) fn submitted(total: Option<u64>, is_wanted: bool) -> ProgressBar {
    match total {
        _ if !is_wanted => ProgressBar::hidden(),
        Some(total) => styled(
            ProgressBar::new(total),
            "{bar:30} {pos}/{len} submitted, {eta} left",
        ),
        None => styled(ProgressBar::new_spinner(), "{spinner} {pos} submitted"),
    }
}

/// A bar that counts finished tasks of a batch.
pub(crate) fn finished(total: u64, is_wanted: bool) -> ProgressBar {
    if !is_wanted {
        return ProgressBar::hidden();
    }
    styled(
        ProgressBar::new(total),
        "{bar:30} {pos}/{len} finished{msg}, {eta} left",
    )
}

/// A bar for the progress that a task reports.
pub(crate) fn of_task(is_wanted: bool) -> ProgressBar {
    if is_wanted {
        styled(ProgressBar::new(100), "{bar:30} {pos:>3} % {msg}")
    } else {
        ProgressBar::hidden()
    }
}

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("the templates are well-formed");
    bar.with_style(style).with_finish(ProgressFinish::AndClear)
}
