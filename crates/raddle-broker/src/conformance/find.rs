//! Lists of tasks in slices.

use raddle_model::{TaskState, Tid};

use super::{Fixture, Handle, support::*};
use crate::{Result, TaskFilter, TaskPage};

/// A filter with a query.
fn query(text: &str) -> TaskFilter {
    TaskFilter {
        query: text.parse().expect("cases write valid queries"),
        ..TaskFilter::default()
    }
}

async fn find(broker: &Handle, text: &str) -> Result<Vec<Tid>> {
    let tasks = broker.tasks(query(text)).await?;
    Ok(tasks.into_iter().map(|task| task.tid).collect())
}

/// However few records a slice looks at, each task is found once.
pub async fn slices_find_every_task_once(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let mut wanted = Vec::new();
    for n in 0..30 {
        let name = if n % 7 == 0 { "rare" } else { "common" };
        let tid = submit(broker, spec(name)).await?;
        if name == "rare" {
            wanted.insert(0, tid);
        }
    }
    for most in [1, 4, 10, 1000] {
        let mut filter = TaskFilter {
            max_examined: Some(most),
            ..query("name:rare")
        };
        let (mut found, mut looked_at) = (Vec::new(), 0);
        loop {
            let page: TaskPage = broker.find_tasks(filter.clone()).await?;
            assert!(page.looked_at <= u64::from(most), "{page:?}");
            looked_at += page.looked_at;
            found.extend(page.tasks.iter().map(|task| task.tid));
            if page.is_complete() {
                break;
            }
            assert!(filter.before.is_none_or(|before| page.next < Some(before)));
            filter.before = page.next;
        }
        assert_eq!(found, wanted, "in slices of {most}");
        assert_eq!(looked_at, 30, "in slices of {most}");
    }
    Ok(())
}

/// The cursor leads on from the last task of a full page.
pub async fn a_full_page_says_where_the_next_begins(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let tids = submit_all(broker, vec![spec("task"); 5]).await?;
    let mut filter = TaskFilter {
        limit: 2,
        ..TaskFilter::default()
    };
    let first = broker.find_tasks(filter.clone()).await?;
    assert_eq!(first.next, Some(tids[3]));
    filter.before = first.next;
    filter.limit = 10;
    let rest = broker.find_tasks(filter).await?;
    assert_eq!((rest.tasks.len(), rest.next), (3, None));
    Ok(())
}

/// In every place that a task can be in.
pub async fn queries_find_tasks(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let done = submit(broker, spec("done")).await?;
    let attempt_id = begin(broker, owner).await?;
    end(broker, attempt_id, success()).await?;
    let runs = submit(broker, spec("runs")).await?;
    begin(broker, owner).await?;
    let mut mail = spec("waits");
    mail.queue = "mail".into();
    let waits = submit(broker, mail).await?;
    for (text, expected) in [
        ("", vec![waits, runs, done]),
        ("state:completed", vec![done]),
        ("state:running", vec![runs]),
        ("state:created", vec![waits]),
        ("state:created,running", vec![waits, runs]),
        ("-state:completed", vec![waits, runs]),
        ("state:created state:running", vec![]),
        ("queue:mail", vec![waits]),
        ("state:created queue:default", vec![]),
        ("name:*s", vec![waits, runs]),
        ("dead:yes", vec![]),
        ("since:-1h", vec![waits, runs, done]),
        ("until:-1h", vec![]),
    ] {
        assert_eq!(find(broker, text).await?, expected, "{text}");
    }
    assert_eq!(find(broker, &format!("id:{runs}")).await?, [runs]);
    assert_eq!(
        find(broker, &format!("worker:{owner}")).await?,
        [runs, done]
    );
    let both = TaskFilter {
        states: vec![TaskState::Completed],
        ..query("state:running")
    };
    assert!(broker.tasks(both).await?.is_empty());
    Ok(())
}
