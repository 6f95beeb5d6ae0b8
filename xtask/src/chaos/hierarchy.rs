//! Who stands above the workers: the managers of a type that the prime is asked for, and the groups. What they are told, and how they are found.

use std::{fs, io, time::Duration};

use serde_json::json;

use crate::{plan::Class, procs, site::Site};

/// The type of managers that the prime is asked for.
const KIND: &str = "typed";
/// What such a manager is called, and the task that is the request for it.
pub(crate) const MANAGER: &str = "worker-typed";
/// The task that its registry lists.
pub(crate) const CHORE: &str = "chore";
/// The queue whose every message is a task for a group.
pub(crate) const LETTERS: &str = "letters";
/// The slug of that group.
pub(crate) const POST: &str = "post";
/// The slug of the worker with a trigger.
pub(crate) const CLOCK: &str = "clock";
/// How often that is due.
pub(crate) const EVERY: Duration = Duration::from_millis(300);
const REGISTRY: &str = "tasks.toml";
const GROUPS: &str = "groups.toml";

/// A manager of groups.
pub(crate) const UP: [&str; 3] = ["up", "-f", GROUPS];

/// Writes the files that managers read.
pub(crate) fn write_files(site: &Site) -> io::Result<()> {
    let program = site.chaos.display();
    let registry = format!(
        "[task.{CHORE}]\ncommand = ['{program}', 'task', '{{class}}']\nparams = {{ class = 'string' }}\nlimits = {{ max_fds = 256 }}\n"
    );
    fs::write(site.file(REGISTRY), registry)?;
    let retry =
        "on_error = 'retry'\nretry = { attempts = 60, backoff = 'constant', base = '50ms' }";
    let groups = format!(
        "[process.{POST}]\nreplicas = 2\nconcurrency = 2\nshutdown_timeout = '5s'\n[[process.{POST}.worker]]\nslug = '{POST}'\nsources = ['{LETTERS}']\n\
         command = ['{program}', 'task', '-']\n{retry}\n\
         [process.{CLOCK}]\nshutdown_timeout = '5s'\n[[process.{CLOCK}.worker]]\nslug = '{CLOCK}'\n\
         command = ['{program}', 'task', 'quick']\n{retry}\ntrigger = {{ every = '{}ms', missed = 'all' }}\n",
        EVERY.as_millis()
    );
    fs::write(site.file(GROUPS), groups)
}

/// What the prime is asked for to have a manager.
pub(crate) fn wanted(site: &Site) -> String {
    let params =
        json!({ "type": KIND, "registry": site.file(REGISTRY), "limits": { "max_tasks": 4 } });
    json!({ "task": "worker", "params": params }).to_string()
}

/// What such a manager is asked for. It waits for one, if there is none.
pub(crate) fn chore(class: Class) -> String {
    json!({ "task": CHORE, "params": { "class": class.name() }, "wait": true }).to_string()
}

/// The managers that the prime has spawned. Each is the child of a runner, which wears the same name.
pub(crate) fn managers(site: &Site) -> Vec<(u32, u32)> {
    let named: Vec<(u32, u32)> = procs::titled(site.path(), &format!(":{MANAGER}:"));
    let parent_of = |pid: u32| {
        named
            .iter()
            .find(|(one, _)| *one == pid)
            .map(|(_, parent)| *parent)
    };
    named
        .iter()
        .copied()
        .filter(|(_, parent)| parent_of(*parent).is_some_and(|above| parent_of(above).is_none()))
        .collect()
}
