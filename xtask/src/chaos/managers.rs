//! Managers and groups of the campaign: their files, the requests to them, and how their processes
//! are found.

use std::{fs, io, time::Duration};

use serde_json::json;

use crate::{campaign_dir::CampaignDir, plan::Class, processes};

/// The type of manager that the root manager is asked for.
const MANAGER_TYPE: &str = "typed";
/// The name of such a manager, and of the task that requests it.
pub(crate) const MANAGER: &str = "worker-typed";
/// The task that its registry lists.
pub(crate) const REGISTRY_TASK: &str = "listed";
/// The queue whose messages become tasks of a group.
pub(crate) const MESSAGE_QUEUE: &str = "messages";
/// The slug of that group.
pub(crate) const MESSAGE_GROUP: &str = "reader";
/// The slug of the group worker with a trigger.
pub(crate) const TRIGGER_GROUP: &str = "timer";
/// The interval of that trigger.
pub(crate) const TRIGGER_INTERVAL: Duration = Duration::from_millis(300);
const REGISTRY: &str = "tasks.toml";
const GROUPS: &str = "groups.toml";

/// Arguments of a group manager.
pub(crate) const GROUP_MANAGER_ARGS: [&str; 3] = ["up", "-f", GROUPS];

/// Writes the files that managers read.
pub(crate) fn write_files(dir: &CampaignDir) -> io::Result<()> {
    let program = dir.chaos.display();
    let registry = format!(
        "[task.{REGISTRY_TASK}]\ncommand = ['{program}', 'task', '{{class}}']\nparams = {{ class = 'string' }}\nlimits = {{ max_fds = 256 }}\n"
    );
    fs::write(dir.file(REGISTRY), registry)?;
    let retry =
        "on_error = 'retry'\nretry = { attempts = 60, backoff = 'constant', base = '50ms' }";
    let groups = format!(
        "[process.{MESSAGE_GROUP}]\nreplicas = 2\nconcurrency = 2\nshutdown_timeout = '5s'\n[[process.{MESSAGE_GROUP}.worker]]\nslug = '{MESSAGE_GROUP}'\nsources = ['{MESSAGE_QUEUE}']\n\
         command = ['{program}', 'task', '-']\n{retry}\n\
         [process.{TRIGGER_GROUP}]\nshutdown_timeout = '5s'\n[[process.{TRIGGER_GROUP}.worker]]\nslug = '{TRIGGER_GROUP}'\n\
         command = ['{program}', 'task', 'quick']\n{retry}\ntrigger = {{ every = '{}ms', missed = 'all' }}\n",
        TRIGGER_INTERVAL.as_millis()
    );
    fs::write(dir.file(GROUPS), groups)
}

/// The message that requests a manager from the root manager.
pub(crate) fn manager_request(dir: &CampaignDir) -> String {
    let params = json!({ "type": MANAGER_TYPE, "registry": dir.file(REGISTRY), "limits": { "max_tasks": 4 } });
    json!({ "task": "worker", "params": params }).to_string()
}

/// The message that requests a task from such a manager. With `wait` it stays until there is a
/// manager.
pub(crate) fn task_request(class: Class) -> String {
    json!({ "task": REGISTRY_TASK, "params": { "class": class.name() }, "wait": true }).to_string()
}

/// The pids of the spawned managers and of their parents. Each is the child of a runner with the
/// same title.
pub(crate) fn find_spawned(dir: &CampaignDir) -> Vec<(u32, u32)> {
    let named: Vec<(u32, u32)> = processes::find_by_title(dir.path(), &format!(":{MANAGER}:"));
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
