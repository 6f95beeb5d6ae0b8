//! `raddle task tree`: which worker runs which task, which task submitted which, and their resource
//! usage.

use raddle_model::Tid;
use raddle_view::tree::{MAX_TASKS, TaskTree, TreeStep};
use serde_json::Value;

use crate::{args::TaskArg, context::Context, error::Outcome, format, output, table, tid};

pub(super) async fn tree(context: &Context, arg: Option<TaskArg>) -> Outcome {
    let broker = context.open_existing().await?;
    let top = match arg {
        Some(arg) => Some(tid::find_task(&*broker, arg).await?),
        None => None,
    };
    let top_tid = top.as_ref().map(|task| task.tid);
    let tree = TaskTree::read(&*broker, top).await?;
    let (roots, (pools, pool_records)) = match top_tid {
        Some(tid) => (vec![tid], Default::default()),
        None => (tree.roots(), pools().await),
    };
    if !tree.is_complete() {
        let older = "'raddle task list --all --limit N' lists older ones";
        context.note(format!(
            "there are more than {MAX_TASKS} tasks, only the newest are in the tree: {older}"
        ));
    }
    let text = if context.json {
        tree.to_json(&roots, &pool_records)
    } else {
        draw(&tree, &roots) + &pools
    };
    output::print_raw(text.as_bytes())?;
    Ok(0)
}

/// The pools of this user, which no broker knows, as lines and as records.
async fn pools() -> (String, Vec<Value>) {
    #[cfg(feature = "pool")]
    return super::pool::trees().await;
    #[cfg(not(feature = "pool"))]
    Default::default()
}

fn label(tree: &TaskTree, tid: Tid) -> String {
    let Some(task) = tree.task(tid) else {
        return tid.to_string();
    };
    let paused = if task.paused { ", paused" } else { "" };
    let name = table::printable(task.spec.display_name());
    let age = format::age(task.created_at, tree.read_at());
    let usage = tree.usage(tid).map_or_else(String::new, |usage| {
        let (cpu, mebibytes) = (format::three_digits(usage.cpu), usage.rss_bytes >> 20);
        format!(", {cpu} cpu, {mebibytes} MiB")
    });
    format!("{tid} {name} ({}{paused}) {age}{usage}", task.state)
}

fn draw(tree: &TaskTree, roots: &[Tid]) -> String {
    let mut text = String::new();
    // The prefix of the branches at each level, and its length.
    let (mut indent, mut levels) = (String::new(), Vec::new());
    tree.walk(roots, |step| match step {
        TreeStep::Down { tid, is_last } => {
            let (branch, further) = match (levels.is_empty(), is_last) {
                (true, _) => ("", ""),
                (false, true) => ("└─ ", "   "),
                (false, false) => ("├─ ", "│  "),
            };
            levels.push(indent.len());
            text.push_str(&indent);
            text.push_str(branch);
            text.push_str(&label(tree, tid));
            text.push('\n');
            indent.push_str(further);
        }
        TreeStep::Up => indent.truncate(levels.pop().unwrap_or(0)),
    });
    text
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use raddle_model::{TaskSpec, TaskState, TaskView};

    use super::*;

    #[test]
    fn draws_trees_with_unfinished_tasks() {
        let tid = |n| Tid::from_u64(1_700_000_000_000_000_000 + n).unwrap();
        let task = |n: u64, parent: Option<u64>| {
            let spec = TaskSpec {
                name: Some(format!("t\"{n}")),
                ..TaskSpec::command(["true"])
            };
            TaskView {
                state: if matches!(n, 3 | 5) {
                    TaskState::Created
                } else {
                    TaskState::Completed
                },
                parent: parent.map(tid),
                ..TaskView::new(tid(n), spec, Timestamp::UNIX_EPOCH)
            }
        };
        let links = [
            (1, None),
            (2, Some(1)),
            (3, Some(2)),
            (4, Some(1)),
            (5, None),
            (6, None),
        ];
        let tasks = links.map(|(n, parent)| task(n, parent));
        let tree = TaskTree::new(tasks, Timestamp::UNIX_EPOCH);
        let lines = [
            "1700000000000000001 t\"1 (completed) 0s",
            "├─ 1700000000000000002 t\"2 (completed) 0s",
            "│  └─ 1700000000000000003 t\"3 (created) 0s",
            "└─ 1700000000000000004 t\"4 (completed) 0s",
            "1700000000000000005 t\"5 (created) 0s",
            "",
        ];
        assert_eq!(draw(&tree, &tree.roots()), lines.join("\n"));
    }
}
