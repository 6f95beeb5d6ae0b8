//! Tasks, each below the one that submitted it or the worker that runs it, and their resource
//! usage.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use raddle_broker::{Broker, TaskFilter};
use raddle_model::{TaskView, Tid};
use raddle_runner::{TreeUsage, tree_usage};
use raddle_worker::worker::is_local;
use serde_json::{Value, json};

use crate::Result;

/// How many tasks are in the trees, the newest.
pub const MAX_TASKS: u32 = 10_000;

/// A step of a walk through trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeStep {
    /// To a task, which may be the last of its siblings.
    Down {
        /// The task.
        tid: Tid,
        /// Whether it has no further sibling.
        is_last: bool,
    },
    /// Back from a task, after all that is below it.
    Up,
}

/// Tasks, each below the one that submitted it or the worker that runs it.
#[derive(Debug)]
pub struct TaskTree {
    tasks: BTreeMap<Tid, TaskView>,
    children: BTreeMap<Tid, BTreeSet<Tid>>,
    parents: BTreeMap<Tid, Tid>,
    /// The usage of running tasks on this machine, and of finished ones.
    usage: BTreeMap<Tid, TreeUsage>,
    read_at: Timestamp,
    is_complete: bool,
}

impl TaskTree {
    /// Reads the newest tasks, and adds `top`, however old it is.
    pub async fn read(broker: &dyn Broker, top: Option<TaskView>) -> Result<Self> {
        let filter = TaskFilter {
            services: true,
            limit: MAX_TASKS + 1,
            ..TaskFilter::default()
        };
        let mut newest = broker.tasks(filter).await?;
        let is_complete = newest.len() <= MAX_TASKS as usize;
        newest.truncate(MAX_TASKS as usize);
        let workers = broker.workers().await?;
        let local_workers: BTreeMap<Tid, u32> = workers
            .iter()
            .filter(|entry| is_local(&entry.info))
            .map(|entry| (entry.tid, entry.info.pid))
            .collect();
        let tree = Self::new(newest.into_iter().chain(top), Timestamp::now());
        let usage = tree
            .tasks
            .values()
            .filter_map(|task| Some((task.tid, task_usage(task, &local_workers)?)))
            .collect();
        Ok(Self {
            usage,
            is_complete,
            ..tree
        })
    }

    /// The trees of these tasks, which were read at that time, without their resource usage.
    pub fn new(tasks: impl IntoIterator<Item = TaskView>, read_at: Timestamp) -> Self {
        let tasks: BTreeMap<_, _> = tasks.into_iter().map(|task| (task.tid, task)).collect();
        let mut parents = BTreeMap::new();
        for task in tasks.values() {
            let worker = task
                .worker
                .filter(|worker| task.state.is_active() && *worker != task.tid);
            let mut candidates = task.parent.into_iter().chain(worker);
            if let Some(parent) = candidates.find(|parent| tasks.contains_key(parent)) {
                parents.insert(task.tid, parent);
            }
        }
        let mut children: BTreeMap<Tid, BTreeSet<Tid>> = BTreeMap::new();
        for (tid, parent) in &parents {
            children.entry(*parent).or_default().insert(*tid);
        }
        Self {
            tasks,
            children,
            parents,
            usage: BTreeMap::new(),
            read_at,
            is_complete: true,
        }
    }

    /// Whether these are all tasks of the broker.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// When the tasks were read.
    pub fn read_at(&self) -> Timestamp {
        self.read_at
    }

    /// A task of the trees.
    pub fn task(&self, tid: Tid) -> Option<&TaskView> {
        self.tasks.get(&tid)
    }

    /// The resource usage of a task, if it is known.
    pub fn usage(&self, tid: Tid) -> Option<&TreeUsage> {
        self.usage.get(&tid)
    }

    /// The roots of all trees with an unfinished task.
    pub fn roots(&self) -> Vec<Tid> {
        let mut alive = BTreeSet::new();
        for (tid, _) in self
            .tasks
            .iter()
            .filter(|(_, task)| !task.state.is_terminal())
        {
            let mut next = Some(*tid);
            while let Some(tid) = next.filter(|tid| alive.insert(*tid)) {
                next = self.parents.get(&tid).copied();
            }
        }
        alive
            .into_iter()
            .filter(|tid| !self.parents.contains_key(tid))
            .collect()
    }

    fn children(&self, tid: Tid) -> Vec<Tid> {
        self.children
            .get(&tid)
            .into_iter()
            .flatten()
            .copied()
            .collect()
    }

    /// Walks trees from top to bottom. It does not recurse: a chain of tasks may be longer than the
    /// stack allows.
    ///
    /// A task is submitted after its parent and never submits its own parent, so there are no
    /// cycles.
    pub fn walk(&self, roots: &[Tid], mut visit: impl FnMut(TreeStep)) {
        let mut levels = vec![Vec::from(roots).into_iter()];
        while let Some(level) = levels.last_mut() {
            match level.next() {
                Some(tid) => {
                    let is_last = level.len() == 0;
                    visit(TreeStep::Down { tid, is_last });
                    levels.push(self.children(tid).into_iter());
                }
                None => {
                    levels.pop();
                    if !levels.is_empty() {
                        visit(TreeStep::Up);
                    }
                }
            }
        }
    }

    /// The trees as a JSON array on one line, followed by further records. It is written as text
    /// because `serde_json` recurses into nested values.
    pub fn to_json(&self, roots: &[Tid], further: &[Value]) -> String {
        let mut text = String::from("[");
        let mut is_first = true;
        self.walk(roots, |step| {
            match step {
                TreeStep::Down { tid, .. } => {
                    if !is_first {
                        text.push(',');
                    }
                    self.push_task(&mut text, tid);
                }
                TreeStep::Up => text.push_str("]}"),
            }
            is_first = matches!(step, TreeStep::Down { .. });
        });
        for record in further {
            if !is_first {
                text.push(',');
            }
            text.push_str(&record.to_string());
            is_first = false;
        }
        text.push_str("]\n");
        text
    }

    /// Adds a task up to the beginning of its children.
    fn push_task(&self, text: &mut String, tid: Tid) {
        let task = self.tasks.get(&tid);
        let name = json!(task.map(|task| task.spec.display_name()));
        let state = json!(task.map(|task| task.state));
        let age = json!(task.map(|task| {
            self.read_at
                .duration_since(task.created_at)
                .as_secs()
                .max(0)
        }));
        let usage = self.usage.get(&tid);
        let cpu = json!(usage.map(|usage| usage.cpu.as_secs_f64()));
        let rss = json!(usage.map(|usage| usage.rss_bytes));
        let tid = json!(tid);
        let usage = format!(r#""age_seconds":{age},"cpu_seconds":{cpu},"rss_bytes":{rss}"#);
        text.push_str(&format!(
            r#"{{"tid":{tid},"name":{name},"state":{state},{usage},"children":["#
        ));
    }
}

/// The usage of a task. `local_workers` has the workers of this machine and their processes.
fn task_usage(task: &TaskView, local_workers: &BTreeMap<Tid, u32>) -> Option<TreeUsage> {
    if let Some(report) = &task.report {
        let usage = report.usage;
        let cpu = Duration::from_micros(usage.user_us + usage.system_us);
        return report.started_at.map(|_| TreeUsage {
            cpu,
            rss_bytes: usage.peak_rss_bytes,
        });
    }
    let worker_pid = local_workers.get(&task.tid).copied();
    let runner_pid = task.pid.filter(|_| {
        task.worker
            .is_some_and(|worker| local_workers.contains_key(&worker))
    });
    tree_usage(worker_pid.or(runner_pid)?)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use raddle_model::{TaskSpec, TaskState};

    use super::*;

    fn task(n: u64, parent: Option<u64>, state: TaskState) -> TaskView {
        let tid = |n| Tid::from_u64(1_700_000_000_000_000_000 + n).unwrap();
        let spec = TaskSpec {
            name: Some(format!("t\"{n}")),
            ..TaskSpec::command(["true"])
        };
        TaskView {
            state,
            parent: parent.map(tid),
            ..TaskView::new(tid(n), spec, Timestamp::UNIX_EPOCH)
        }
    }

    fn tree(tasks: impl IntoIterator<Item = TaskView>) -> TaskTree {
        TaskTree::new(tasks, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn serializes_trees_and_further_records_as_one_array() {
        let links = [
            (1, None),
            (2, Some(1)),
            (3, Some(2)),
            (4, Some(1)),
            (5, None),
            (6, None),
        ];
        let tree = tree(links.map(|(n, parent)| {
            let state = if matches!(n, 3 | 5) {
                TaskState::Created
            } else {
                TaskState::Completed
            };
            task(n, parent, state)
        }));
        let roots = tree.roots();
        let record = |n: u64, state: &str, children: Value| {
            json!({
                "tid": (1_700_000_000_000_000_000 + n).to_string(),
                "name": format!("t\"{n}"),
                "state": state,
                "age_seconds": 0,
                "cpu_seconds": null,
                "rss_bytes": null,
                "children": children,
            })
        };
        let parse = |text: String| serde_json::from_str::<Value>(&text).unwrap();
        let below = json!([
            record(2, "completed", json!([record(3, "created", json!([]))])),
            record(4, "completed", json!([]))
        ]);
        assert_eq!(
            parse(tree.to_json(&roots, &[])),
            json!([
                record(1, "completed", below),
                record(5, "created", json!([]))
            ])
        );
        let pools = [json!({ "pool": "a" }), json!({ "pool": "b" })];
        assert_eq!(parse(tree.to_json(&[], &pools)), json!(pools));
        assert_eq!(
            parse(tree.to_json(&roots[1..], &pools[..1])),
            json!([record(5, "created", json!([])), pools[0]])
        );
    }

    #[test]
    fn a_long_chain_is_walked_in_linear_time() {
        let most = u64::from(MAX_TASKS);
        let tree = tree((1..=most).map(|n| task(n, (n > 1).then(|| n - 1), TaskState::Created)));
        let began = Instant::now();
        let roots = tree.roots();
        assert_eq!(roots.len(), 1);
        let json = tree.to_json(&roots, &[]);
        assert_eq!(json.matches("\"tid\"").count() as u64, most);
        let elapsed = began.elapsed();
        assert!(elapsed < Duration::from_secs(20), "{elapsed:?}");
    }
}
