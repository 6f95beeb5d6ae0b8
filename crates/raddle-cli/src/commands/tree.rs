//! `raddle task tree`: who runs what, and which task submitted which.

use std::collections::{BTreeMap, BTreeSet};

use raddle_broker::{Broker, TaskFilter};
use raddle_core::{State, TaskView, Tid, tid::TidArg};
use serde_json::{Value, json};

use crate::{context::Context, error::Outcome, output, table, tid};

/// How many tasks are looked at, the newest first.
const MOST: u32 = 10_000;

pub(super) async fn tree(context: &Context, arg: Option<TidArg>) -> Outcome {
    let broker = context.onlooker().await?;
    let forest = Forest::grow(&*broker).await?;
    let roots = match arg {
        Some(arg) => vec![tid::find(&*broker, arg).await?.tid],
        None => forest.roots(),
    };
    if context.json {
        output::json(&roots.iter().map(|root| forest.record(*root)).collect::<Vec<_>>())?;
        return Ok(0);
    }
    let mut text = String::new();
    for root in roots {
        text.push_str(&forest.label(root));
        text.push('\n');
        forest.draw(root, "", &mut text);
    }
    output::raw(text.as_bytes())?;
    Ok(0)
}

/// Tasks, each below the one that submitted it or the worker that runs it.
struct Forest {
    tasks: BTreeMap<Tid, TaskView>,
    below: BTreeMap<Tid, BTreeSet<Tid>>,
    above: BTreeMap<Tid, Tid>,
}

impl Forest {
    async fn grow(broker: &dyn Broker) -> Outcome<Self> {
        let filter = TaskFilter { services: true, limit: MOST, ..TaskFilter::default() };
        let tasks = broker.tasks(filter).await?.into_iter().map(|task| (task.tid, task)).collect();
        Ok(Self::from_tasks(tasks))
    }

    fn from_tasks(tasks: BTreeMap<Tid, TaskView>) -> Self {
        let mut above = BTreeMap::new();
        for task in tasks.values() {
            let runs = matches!(task.state, State::Spawning | State::Running);
            let worker = task.worker.filter(|worker| runs && *worker != task.tid);
            if let Some(place) = task.parent.into_iter().chain(worker).find(|place| tasks.contains_key(place)) {
                above.insert(task.tid, place);
            }
        }
        let mut below: BTreeMap<Tid, BTreeSet<Tid>> = BTreeMap::new();
        for (tid, place) in &above {
            below.entry(*place).or_default().insert(*tid);
        }
        Self { tasks, below, above }
    }

    /// The tops of all trees in which something is unfinished.
    fn roots(&self) -> Vec<Tid> {
        self.tasks.keys().filter(|tid| !self.above.contains_key(tid) && self.is_alive(**tid)).copied().collect()
    }

    fn is_alive(&self, tid: Tid) -> bool {
        // A task is submitted after its parent and claimed by an older or younger worker, but never submits its own parent: there
        // are no rings to get lost in.
        self.tasks.get(&tid).is_some_and(|task| !task.state.is_terminal())
            || self.children(tid).any(|child| self.is_alive(child))
    }

    fn children(&self, tid: Tid) -> impl Iterator<Item = Tid> {
        self.below.get(&tid).into_iter().flatten().copied()
    }

    fn label(&self, tid: Tid) -> String {
        match self.tasks.get(&tid) {
            Some(task) => {
                let paused = if task.paused { ", paused" } else { "" };
                format!("{tid} {} ({}{paused})", table::printable(task.spec.display_name()), task.state)
            }
            None => tid.to_string(),
        }
    }

    fn draw(&self, tid: Tid, indent: &str, text: &mut String) {
        let children: Vec<Tid> = self.children(tid).collect();
        for (i, child) in children.iter().enumerate() {
            let (branch, further) = if i + 1 == children.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            text.push_str(&format!("{indent}{branch}{}\n", self.label(*child)));
            self.draw(*child, &format!("{indent}{further}"), text);
        }
    }

    fn record(&self, tid: Tid) -> Value {
        let task = self.tasks.get(&tid);
        json!({
            "tid": tid,
            "name": task.map(|task| task.spec.display_name()),
            "state": task.map(|task| task.state),
            "children": self.children(tid).map(|child| self.record(child)).collect::<Vec<_>>(),
        })
    }
}
