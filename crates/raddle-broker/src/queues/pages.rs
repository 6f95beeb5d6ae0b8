//! Going through tasks, however many there are.

use raddle_model::TaskView;

use crate::{Broker, Result, TaskFilter};

/// How many tasks are held at a time. Their specs can be long, and over a socket they are one answer.
pub(super) const AT_ONCE: u32 = 1000;

/// Shows `see` each task that fits, the newest first. What is submitted meanwhile is not among them.
pub(super) async fn each(
    broker: &dyn Broker,
    filter: TaskFilter,
    mut see: impl FnMut(TaskView) + Send,
) -> Result<()> {
    let mut filter = TaskFilter {
        limit: AT_ONCE,
        ..filter
    };
    loop {
        let page = broker.tasks(filter.clone()).await?;
        let last = page
            .last()
            .filter(|_| page.len() as u64 >= u64::from(AT_ONCE))
            .map(|task| task.tid);
        page.into_iter().for_each(&mut see);
        if last.is_none() {
            return Ok(());
        }
        filter.before = last;
    }
}
