//! Reads lists of tasks page by page.

use raddle_model::TaskView;

use crate::{Broker, Result, TaskFilter};

/// The page size. Specs can be long, and over a socket a page is one reply.
pub(super) const AT_ONCE: u32 = 1000;

/// Passes each matching task to `see`, newest first, without those that are submitted meanwhile.
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
