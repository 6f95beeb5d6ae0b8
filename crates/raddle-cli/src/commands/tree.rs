//! `raddle task tree`: which worker runs which task, which task submitted which, and their resource
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

use crate::{args::TaskArg, context::Context, error::Outcome, format, output, table, tid};

/// How many tasks are shown, the newest first.
const MOST: u32 = 10_000;

pub(super) async fn tree(context: &Context, arg: Option<TaskArg>) -> Outcome {
    let broker = context.open_read_only().await?;
    let top = match arg {
        Some(arg) => Some(tid::find(&*broker, arg).await?),
        None => None,
    };
    let from = top.as_ref().map(|task| task.tid);
    let (forest, is_whole) = TaskTree::grow(&*broker, top).await?;
    let (roots, (pools, pool_records)) = match from {
        Some(tid) => (vec![tid], Default::default()),
        None => (forest.roots(), pools().await),
    };
    if !is_whole {
        let older = "'raddle task list --all --limit N' lists older ones";
        context.note(format!(
            "there are more than {MOST} tasks, only the newest are in the tree: {older}"
        ));
    }
    let text = if context.json {
        forest.records(&roots, &pool_records)
    } else {
        forest.drawing(&roots) + &pools
    };
    output::raw(text.as_bytes())?;
    Ok(0)
}

/// The pools of this user, which no broker knows, as lines and as records.
async fn pools() -> (String, Vec<Value>) {
    #[cfg(feature = "pool")]
    return super::pool::trees().await;
    #[cfg(not(feature = "pool"))]
    Default::default()
}

/// A step of a walk through trees.
#[derive(Clone, Copy)]
enum TreeStep {
    /// To a task, which may be the last of its siblings.
    Down { tid: Tid, is_last: bool },
    /// Back from a task, after all that is below it.
    Up,
}

/// Tasks, each below the one that submitted it or the worker that runs it.
struct TaskTree {
    tasks: BTreeMap<Tid, TaskView>,
    below: BTreeMap<Tid, BTreeSet<Tid>>,
    above: BTreeMap<Tid, Tid>,
    /// The usage of running tasks on this machine, and of finished ones.
    uses: BTreeMap<Tid, TreeUsage>,
    now: Timestamp,
}

impl TaskTree {
    /// The newest tasks, and `top`, however old it is; and whether these are all.
    async fn grow(broker: &dyn Broker, top: Option<TaskView>) -> Outcome<(Self, bool)> {
        let filter = TaskFilter {
            services: true,
            limit: MOST + 1,
            ..TaskFilter::default()
        };
        let mut newest = broker.tasks(filter).await?;
        let is_whole = newest.len() <= MOST as usize;
        newest.truncate(MOST as usize);
        let tasks: BTreeMap<_, _> = newest
            .into_iter()
            .chain(top)
            .map(|task| (task.tid, task))
            .collect();
        let workers = broker.workers().await?;
        let here: BTreeMap<Tid, u32> = workers
            .iter()
            .filter(|entry| is_local(&entry.info))
            .map(|entry| (entry.tid, entry.info.pid))
            .collect();
        let uses = tasks
            .values()
            .filter_map(|task| Some((task.tid, used(task, &here)?)))
            .collect();
        Ok((
            Self {
                uses,
                now: Timestamp::now(),
                ..Self::from_tasks(tasks)
            },
            is_whole,
        ))
    }

    fn from_tasks(tasks: BTreeMap<Tid, TaskView>) -> Self {
        let mut above = BTreeMap::new();
        for task in tasks.values() {
            let worker = task
                .worker
                .filter(|worker| task.state.is_active() && *worker != task.tid);
            if let Some(place) = task
                .parent
                .into_iter()
                .chain(worker)
                .find(|place| tasks.contains_key(place))
            {
                above.insert(task.tid, place);
            }
        }
        let mut below: BTreeMap<Tid, BTreeSet<Tid>> = BTreeMap::new();
        for (tid, place) in &above {
            below.entry(*place).or_default().insert(*tid);
        }
        Self {
            tasks,
            below,
            above,
            uses: BTreeMap::new(),
            now: Timestamp::UNIX_EPOCH,
        }
    }

    /// The roots of all trees with an unfinished task.
    fn roots(&self) -> Vec<Tid> {
        let mut alive = BTreeSet::new();
        for (tid, _) in self
            .tasks
            .iter()
            .filter(|(_, task)| !task.state.is_terminal())
        {
            let mut place = Some(*tid);
            while let Some(tid) = place.filter(|tid| alive.insert(*tid)) {
                place = self.above.get(&tid).copied();
            }
        }
        alive
            .into_iter()
            .filter(|tid| !self.above.contains_key(tid))
            .collect()
    }

    fn children(&self, tid: Tid) -> Vec<Tid> {
        self.below
            .get(&tid)
            .into_iter()
            .flatten()
            .copied()
            .collect()
    }

    fn label(&self, tid: Tid) -> String {
        match self.tasks.get(&tid) {
            Some(task) => {
                let paused = if task.paused { ", paused" } else { "" };
                let name = table::printable(task.spec.display_name());
                let age = format::age(task.created_at, self.now);
                let uses = self.uses.get(&tid).map_or_else(String::new, |uses| {
                    format!(
                        ", {} cpu, {} MiB",
                        format::fine(uses.cpu),
                        uses.rss_bytes >> 20
                    )
                });
                format!("{tid} {name} ({}{paused}) {age}{uses}", task.state)
            }
            None => tid.to_string(),
        }
    }

    /// Walks trees from top to bottom. It does not recurse: a chain of tasks may be longer than the
    /// stack allows.
    ///
    /// A task is submitted after its parent and never submits its own parent, so there are no
    /// cycles.
    fn walk(&self, roots: Vec<Tid>, mut visit: impl FnMut(TreeStep)) {
        let mut levels = vec![roots.into_iter()];
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

    fn drawing(&self, roots: &[Tid]) -> String {
        let mut text = String::new();
        // The prefix of the branches at each level, and its length.
        let (mut indent, mut levels) = (String::new(), Vec::new());
        self.walk(roots.to_vec(), |step| match step {
            TreeStep::Down { tid, is_last } => {
                let (branch, further) = match (levels.is_empty(), is_last) {
                    (true, _) => ("", ""),
                    (false, true) => ("└─ ", "   "),
                    (false, false) => ("├─ ", "│  "),
                };
                levels.push(indent.len());
                text.push_str(&indent);
                text.push_str(branch);
                text.push_str(&self.label(tid));
                text.push('\n');
                indent.push_str(further);
            }
            TreeStep::Up => indent.truncate(levels.pop().unwrap_or(0)),
        });
        text
    }

    /// One line of JSON, with further records.
    fn records(&self, roots: &[Tid], besides: &[Value]) -> String {
        let mut text = String::from("[");
        let mut is_first = true;
        self.walk(roots.to_vec(), |step| {
            match step {
                TreeStep::Down { tid, .. } => {
                    if !is_first {
                        text.push(',');
                    }
                    let task = self.tasks.get(&tid);
                    let name = json!(task.map(|task| task.spec.display_name()));
                    let state = json!(task.map(|task| task.state));
                    let age = json!(
                        task.map(|task| self.now.duration_since(task.created_at).as_secs().max(0))
                    );
                    let uses = self.uses.get(&tid);
                    let (cpu, rss) = (
                        json!(uses.map(|u| u.cpu.as_secs_f64())),
                        json!(uses.map(|u| u.rss_bytes)),
                    );
                    let tid = json!(tid);
                    let uses =
                        format!(r#""age_seconds":{age},"cpu_seconds":{cpu},"rss_bytes":{rss}"#);
                    text.push_str(&format!(
                        r#"{{"tid":{tid},"name":{name},"state":{state},{uses},"children":["#
                    ));
                }
                TreeStep::Up => text.push_str("]}"),
            }
            is_first = matches!(step, TreeStep::Down { .. });
        });
        for record in besides {
            if !is_first {
                text.push(',');
            }
            text.push_str(&record.to_string());
            is_first = false;
        }
        text.push_str("]\n");
        text
    }
}

/// The usage of a task. `here` has the workers of this machine and their processes.
fn used(task: &TaskView, here: &BTreeMap<Tid, u32>) -> Option<TreeUsage> {
    if let Some(report) = &task.report {
        let usage = report.usage;
        let cpu = Duration::from_micros(usage.user_us + usage.system_us);
        return report.started_at.map(|_| TreeUsage {
            cpu,
            rss_bytes: usage.peak_rss_bytes,
        });
    }
    let own = here.get(&task.tid).copied();
    let run = task
        .pid
        .filter(|_| task.worker.is_some_and(|worker| here.contains_key(&worker)));
    tree_usage(own.or(run)?)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use raddle_model::{TaskSpec, TaskState};

    use super::*;

    fn task(n: u64, parent: Option<u64>, state: TaskState) -> TaskView {
        let tid = |n| Tid::from_u64(1_700_000_000_000_000_000 + n).unwrap();
        let spec = TaskSpec {
            name: Some(format!("t\"{n}")),
            ..TaskSpec::command(["true"])
        };
        let new = TaskView::new(tid(n), spec, jiff::Timestamp::UNIX_EPOCH);
        TaskView {
            state,
            parent: parent.map(tid),
            ..new
        }
    }

    fn forest(tasks: impl IntoIterator<Item = TaskView>) -> TaskTree {
        TaskTree::from_tasks(tasks.into_iter().map(|task| (task.tid, task)).collect())
    }

    #[test]
    fn trees_are_drawn_and_told() {
        let links = [
            (1, None),
            (2, Some(1)),
            (3, Some(2)),
            (4, Some(1)),
            (5, None),
            (6, None),
        ];
        let forest = forest(links.map(|(n, parent)| {
            task(
                n,
                parent,
                if matches!(n, 3 | 5) {
                    TaskState::Created
                } else {
                    TaskState::Completed
                },
            )
        }));
        let roots = forest.roots();
        let lines = [
            "1700000000000000001 t\"1 (completed) 0s",
            "├─ 1700000000000000002 t\"2 (completed) 0s",
            "│  └─ 1700000000000000003 t\"3 (created) 0s",
            "└─ 1700000000000000004 t\"4 (completed) 0s",
            "1700000000000000005 t\"5 (created) 0s",
            "",
        ];
        assert_eq!(forest.drawing(&roots), lines.join("\n"));
        let record = |n: u64, state: &str, children: serde_json::Value| json!({ "tid": (1_700_000_000_000_000_000 + n).to_string(), "name": format!("t\"{n}"), "state": state, "age_seconds": 0, "cpu_seconds": null, "rss_bytes": null, "children": children });
        let below = json!([
            record(2, "completed", json!([record(3, "created", json!([]))])),
            record(4, "completed", json!([]))
        ]);
        let told: serde_json::Value = serde_json::from_str(&forest.records(&roots, &[])).unwrap();
        assert_eq!(
            told,
            json!([
                record(1, "completed", below),
                record(5, "created", json!([]))
            ])
        );
        let pools = [json!({ "pool": "a" }), json!({ "pool": "b" })];
        let told: serde_json::Value = serde_json::from_str(&forest.records(&[], &pools)).unwrap();
        assert_eq!(told, json!(pools));
        let told: serde_json::Value =
            serde_json::from_str(&forest.records(&roots[1..], &pools[..1])).unwrap();
        assert_eq!(told, json!([record(5, "created", json!([])), pools[0]]));
    }

    #[test]
    fn a_long_chain_costs_little() {
        let most = u64::from(MOST);
        let forest =
            forest((1..=most).map(|n| task(n, (n > 1).then(|| n - 1), TaskState::Created)));
        let began = Instant::now();
        let roots = forest.roots();
        assert_eq!(roots.len(), 1);
        assert_eq!(
            forest.records(&roots, &[]).matches("\"tid\"").count() as u64,
            most
        );
        assert_eq!(forest.drawing(&roots).lines().count() as u64, most);
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{:?}",
            began.elapsed()
        );
    }
}
