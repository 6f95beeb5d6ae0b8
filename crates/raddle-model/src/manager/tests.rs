//! Requests, registries, limits and routing.

use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{
    HumanDuration, Limits, Target, TaskSpec, Tid, WorkerEntry,
    queue_name::{ManagerQueue, QueueName, WAITING, requests},
    worker::{Heartbeat, WorkerInfo, WorkerStatus},
};

const TASKS: &str = r#"
[task.grep]
command = ["grep", "--max-count={count}", "--", "{pattern}", "{file}"]
timeout = "30s"
limits = { memory_mb = 64 }
[task.grep.params]
pattern = "string"
file = "string"
count = { type = "integer", default = 5 }

[task.tr]
command = ["tr", "a-z", "{to}"]
stdin = "{{{text}}}"
params = { text = "string", to = { choices = ["A-Z", "-d"] } }
"#;

fn policy(kind: &str) -> SpawnPolicy {
    SpawnPolicy {
        kind: kind.into(),
        registry: TaskRegistry::from_toml(TASKS).unwrap(),
        ceiling: "memory_mb=128,timeout=60".parse().unwrap(),
        manager_command: ManagerLaunchCommand {
            argv: ["raddle", "manager", "serve"].map(Into::into).into(),
            ..ManagerLaunchCommand::default()
        },
    }
}

fn resolve(kind: &str, request: &str) -> Result<TaskSpec, SpawnRefusal> {
    let queue = requests(kind);
    policy(kind).resolve(TaskSpec {
        queue,
        ..TaskSpec::new(Target::Request(request.into()))
    })
}

fn refused(kind: &str, request: &str) -> String {
    resolve(kind, request).unwrap_err().to_string()
}

#[test]
fn fills_templates_without_splitting_arguments() {
    let spec = resolve(
        "unix",
        r#"{"task": "grep", "params": {"pattern": "-a b; rm -rf $HOME", "file": "x y"}}"#,
    )
    .unwrap();
    let words = ["grep", "--max-count=5", "--", "-a b; rm -rf $HOME", "x y"].map(String::from);
    assert_eq!(spec.target, Target::Command(words.into()));
    assert_eq!(
        spec.limits,
        Limits {
            memory_mb: Some(64),
            ..Limits::default()
        }
    );
    assert_eq!(spec.timeout, Some(crate::HumanDuration::secs(30)));
    let spec = resolve(
        "unix",
        r#"{"task": "tr", "params": {"to": "A-Z", "text": "{}"}, "timeout": 9}"#,
    )
    .unwrap();
    assert_eq!(spec.stdin.as_deref(), Some("{{}}"));
    assert_eq!(
        (spec.limits.memory_mb, spec.timeout),
        (Some(128), Some(crate::HumanDuration::secs(9))),
        "the ceiling is given"
    );
}

#[test]
fn reports_what_is_wrong_with_a_request() {
    let shape = r#"write {"task": NAME, "params": {…}}"#;
    assert_eq!(
        refused("unix", "grep it"),
        format!("not JSON (expected value at line 1 column 1): {shape}")
    );
    assert_eq!(
        refused("unix", "{\"task\": \"grep\""),
        format!("not JSON (EOF while parsing an object at line 1 column 15): {shape}")
    );
    assert!(refused("unix", "[1]").contains("a table of keys and values"));
    assert_eq!(
        refused("unix", "{}"),
        "at '.': names neither 'task' nor 'spec'"
    );
    assert!(refused("unix", r#"{"task": "grep", "parms": {}}"#).contains("unknown field `parms`"));
    assert!(refused("unix", r#"{"task": 7}"#).starts_with("at 'task': invalid type"));
    assert_eq!(
        refused("unix", r#"{"task": "rm"}"#),
        "unknown task 'rm': worker-unix lists grep, tr"
    );
    assert_eq!(
        refused("prime", r#"{"task": "rm"}"#),
        "unknown task 'rm': worker-prime lists grep, tr, and no live manager lists it: start one with 'raddle worker spawn', or set \"wait\": true"
    );
    let grep = |params: &str| {
        refused(
            "unix",
            &format!(r#"{{"task": "grep", "params": {params}}}"#),
        )
    };
    assert_eq!(
        grep(r#"{"file": "x"}"#),
        "task 'grep' needs the parameter 'pattern', a text"
    );
    assert_eq!(
        grep(r#"{"file": 1, "pattern": "x"}"#),
        "task 'grep' takes a text for 'file', and was given 1"
    );
    assert_eq!(
        grep(r#"{"file": "x", "pattern": "x", "count": 1.5}"#),
        "task 'grep' takes a whole number for 'count', and was given 1.5"
    );
    assert_eq!(
        grep(r#"{"shell": "x"}"#),
        "task 'grep' has no parameter 'shell': it takes count, file, pattern"
    );
    assert_eq!(
        grep("{\"file\": \"x\\u0000\", \"pattern\": \"x\"}"),
        "task 'grep' was given a NUL byte for 'file', which no program can be given"
    );
    assert_eq!(
        refused(
            "unix",
            r#"{"task": "tr", "params": {"text": "", "to": "rm"}}"#
        ),
        "task 'tr' takes for 'to' one of \"A-Z\", \"-d\", and was given \"rm\""
    );
    assert!(
        refused(
            "unix",
            r#"{"task": "tr", "params": {"text": "", "to": "-d"}}"#
        )
        .contains("begins with '-'")
    );
}

#[test]
fn refuses_requests_above_the_limits() {
    let above =
        r#"{"task": "tr", "params": {"text": "", "to": "A-Z"}, "limits": {"memory_mb": 256}}"#;
    assert_eq!(
        refused("unix", above),
        "memory_mb 256 is above the limit of this manager, which is 128: ask for 128 or less"
    );
    let long = r#"{"task": "tr", "params": {"text": "", "to": "A-Z"}, "timeout": "2m"}"#;
    assert_eq!(
        refused("unix", long),
        "timeout 120s is above the limit of this manager, which is 60s: ask for 60s or less"
    );
    let spec = TaskSpec {
        timeout: Some(crate::HumanDuration::secs(61)),
        ..TaskSpec::command(["true"])
    };
    assert!(
        policy(PRIME).resolve(spec).is_err(),
        "the root manager has limits as well"
    );
}

#[test]
fn requests_may_only_lower_template_limits() {
    let grep = |more: &str| {
        format!(r#"{{"task": "grep", "params": {{"pattern": "x", "file": "y"}}, {more}}}"#) // Its registry: 64 MiB, 30 s.
    };
    let spec = resolve(
        "unix",
        &grep(r#""limits": {"memory_mb": 32, "max_fds": 9}, "timeout": 5"#),
    )
    .unwrap();
    assert_eq!(
        (spec.limits.memory_mb, spec.limits.max_fds),
        (Some(32), Some(9))
    );
    assert_eq!(spec.timeout, Some(crate::HumanDuration::secs(5)));
    let template_limit = "the limit of task 'grep' of its registry, which is";
    assert_eq!(
        refused("unix", &grep(r#""limits": {"memory_mb": 65}"#)),
        format!("memory_mb 65 is above {template_limit} 64: ask for 64 or less")
    );
    assert_eq!(
        refused("unix", &grep(r#""timeout": "31s""#)),
        format!("timeout 31s is above {template_limit} 30s: ask for 30s or less")
    );
    // Where neither the template nor the manager sets a limit, the request may, up to the limit of
    // the manager.
    let above = grep(r#""limits": {"cpu_percent": 500}"#);
    assert_eq!(
        resolve("unix", &above).unwrap().limits.cpu_percent,
        Some(500)
    );
    let capped = SpawnPolicy {
        ceiling: "cpu_percent=100".parse().unwrap(),
        ..policy("unix")
    };
    let refusal = capped
        .resolve(TaskSpec::new(Target::Request(above)))
        .unwrap_err()
        .to_string();
    assert_eq!(
        refusal,
        "cpu_percent 500 is above the limit of this manager, which is 100: ask for 100 or less"
    );
}

#[test]
fn only_the_root_manager_runs_full_specs() {
    let unlisted = "worker-unix spawns what its registry lists, and nothing else: ask it for a task by its name";
    assert_eq!(
        refused("unix", r#"{"spec": {"target": {"command": ["true"]}}}"#),
        unlisted
    );
    assert_eq!(
        policy("unix")
            .resolve(TaskSpec::command(["true"]))
            .unwrap_err()
            .to_string(),
        unlisted
    );
    assert_eq!(
        policy(PRIME)
            .resolve(TaskSpec::command(["true"]))
            .unwrap()
            .target,
        TaskSpec::command(["true"]).target
    );
    assert!(
        refused("prime", r#"{"spec": {"target": {"comand": []}}}"#).starts_with("at 'spec.target'")
    );
    assert_eq!(
        refused(
            "prime",
            r#"{"spec": {"target": {"command": ["true"]}}, "wait": true}"#
        ),
        "at 'wait': means nothing beside 'spec': the spec says it itself"
    );
}

#[test]
fn root_manager_spawns_managers_within_its_limits() {
    let spec = resolve(
        "prime",
        r#"{"task": "worker", "params": {"type": "ai", "registry": "/r.toml", "limits": {"memory_mb": 8, "max_tasks": 3}}}"#,
    );
    let words = "raddle manager serve --type ai --registry /r.toml --limits max_tasks=3,memory_mb=8,timeout=60";
    let words: Vec<String> = words.split(' ').map(Into::into).collect();
    assert_eq!(spec.unwrap().target, Target::Command(words));
    let wrong = |params: &str| {
        refused(
            "prime",
            &format!(r#"{{"task": "worker", "params": {params}}}"#),
        )
    };
    assert!(
        wrong(r#"{"type": "ai", "registry": "/r", "limits": {"memory_mb": 129}}"#)
            .contains("memory_mb 129")
    );
    for kind in kind::ALL {
        assert!(
            wrong(&format!(r#"{{"type": "{kind}", "registry": "/r"}}"#))
                .starts_with("at 'params.type'"),
            "{kind}"
        );
    }
    assert!(wrong(r#"{"type": "a b", "registry": "/r"}"#).contains("lower-case"));
    assert!(wrong(r#"{"type": "ai", "registry": "r"}"#).starts_with("at 'params.registry'"));
    assert!(wrong(r#"{"registry": "/r"}"#).contains("missing field `type`"));
    assert_eq!(
        refused(
            "unix",
            r#"{"task": "worker", "params": {"type": "ai", "registry": "/r"}}"#
        ),
        "unknown task 'worker': worker-unix lists grep, tr"
    );
}

#[test]
fn managers_inherit_the_registry_of_the_root_manager() {
    let request = r#"{"task": "worker", "params": {"type": "secondary"}}"#;
    let mut policy = SpawnPolicy {
        ceiling: ResourceLimits::default(),
        ..policy("prime")
    };
    for (registry, words) in [
        (None, "--no-registry"),
        (Some("/r.toml"), "--registry /r.toml"),
    ] {
        policy.manager_command.registry = registry.map(Into::into);
        let spec = policy
            .resolve(TaskSpec::new(Target::Request(request.into())))
            .unwrap();
        let words = format!("raddle manager serve --type secondary {words}");
        assert_eq!(
            spec.target,
            Target::Command(words.split(' ').map(Into::into).collect())
        );
    }
}

#[test]
fn worker_requests_become_tasks_for_its_routines() {
    let worker = WorkerInfo {
        capabilities: "@routine:add,@handler:count,@handler:any,text"
            .parse()
            .unwrap(),
        queues: vec!["first".into(), "second".into()],
        ..WorkerInfo::new("w", kind::RESIDENT)
    };
    let resolve = |text: &str| admit_to_worker(&worker, text);
    let spec =
        resolve(r#"{"task": "add", "params": {"a": 1}, "priority": 7, "timeout": "5s"}"#).unwrap();
    assert_eq!(
        (&spec.target, spec.queue.as_str()),
        (&Target::Routine("add".into()), "first")
    );
    assert_eq!(
        (&spec.kwargs["a"], spec.priority, spec.timeout),
        (&json!(1), 7, Some(HumanDuration::secs(5)))
    );
    assert_eq!(
        resolve(r#"{"task": "count"}"#).unwrap().target,
        Target::Handler("count".into())
    );
    let spec = resolve(r#"{"task": "text"}"#).unwrap();
    assert_eq!(
        (spec.target, spec.requires.to_string()),
        (Target::Handler("any".into()), "text".into())
    );
    let spec = resolve(r#"{"spec": {"target": {"command": ["true"]}, "priority": 2}}"#).unwrap();
    assert_eq!((spec.queue.as_str(), spec.priority), ("first", 2));
    let refused = |text: &str| resolve(text).unwrap_err().to_string();
    assert_eq!(
        refused(r#"{"task": "video"}"#),
        "unknown task 'video': worker-resident lists count, add"
    );
    assert!(refused("add").contains("not JSON"));
    assert!(refused(r#"{"task": "@routine:add"}"#).contains("unknown task"));
}

#[test]
fn registry_errors_have_a_line_number() {
    for (text, line, words) in [
        (
            "[task.a]\ncommand = []",
            1,
            "task 'a': command names no program",
        ),
        (
            "\n[task.a]\ncommand = ['', 'x']",
            2,
            "command names no program",
        ),
        (
            "[task.a]\n\ncommand = ['{x}']\nparams = { x = 'string' }",
            1,
            "the program itself cannot be a parameter",
        ),
        (
            "[task.a]\ncommand = ['x', '{y}']",
            1,
            "'{y}' has a place for 'y', which is not among its params: declare it there",
        ),
        (
            "[task.a]\ncommand = ['x', '{']",
            1,
            "has an unmatched brace: write {name}, or {{ and }} for literal braces",
        ),
        (
            "[task.a]\ncommand = ['x', 'a}b']",
            1,
            "has an unmatched brace",
        ),
        (
            "[task.a]\ncommand = ['x']\n[task.a.params]\ny = 'string'",
            1,
            "parameter 'y' is used nowhere: write {y}",
        ),
        (
            "[task.a]\ncommand = ['x', '{y}']\n[task.a.params]\ny = 'text'",
            4,
            "a parameter is \"string\"",
        ),
        (
            "[task.a]\ncommand = ['x', '{y}']\n[task.a.params]\ny = { type = 'integer', default = 'x' }",
            1,
            "parameter 'y' is a whole number, and \"x\" is none",
        ),
        (
            "[task.a]\ncommand = ['x', '{y}']\n[task.a.params]\ny = { choices = [] }",
            1,
            "has no choices",
        ),
        (
            "[task.a]\ncommand = ['x', '{y}']\n[task.a.params]\ny = { default = 'c', choices = ['d'] }",
            1,
            "none of its choices",
        ),
        ("[task.a]\ncommand = 'x'", 2, "invalid type: string"),
        (
            "[task.a]\ncommand = ['x']\nshell = true",
            3,
            "unknown field `shell`",
        ),
        ("[tasks.a]\ncommand = ['x']", 1, "unknown field `tasks`"),
        ("[task.a]\ncommand = ['x'", 2, "array"),
        (
            "[task.worker]\ncommand = ['x']",
            1,
            "task 'worker': is reserved for starting managers",
        ),
        ("[task.'a b']\ncommand = ['x']", 1, "its name is invalid"),
        (
            "[task.a]\ncommand = ['x']\ntimeout = 0",
            1,
            "must be longer than zero",
        ),
        (
            "[task.a]\ncommand = ['x']\nlimits = { memory_mb = 0 }",
            1,
            "limits.memory_mb",
        ),
    ] {
        let error = TaskRegistry::from_toml(text).unwrap_err();
        assert!(error.reason.contains(words), "{text}: {error}");
        assert_eq!(error.line, line, "{text}: {error}");
    }
    assert!(TaskRegistry::from_toml("").unwrap().is_empty());
}

#[test]
fn limits_round_trip() {
    let text = "cpu_percent=50,max_fds=64,max_procs=8,max_tasks=4,memory_mb=512,timeout=1.5";
    assert_eq!(text.parse::<ResourceLimits>().unwrap().to_string(), text);
    assert_eq!(
        "".parse::<ResourceLimits>().unwrap(),
        ResourceLimits::default()
    );
    for wrong in [
        "memory=1",
        "memory_mb",
        "memory_mb=0",
        "max_tasks=-1",
        "timeout=0",
        "timeout=soon",
    ] {
        let error = wrong.parse::<ResourceLimits>().unwrap_err().to_string();
        assert!(
            error.contains(wrong) && error.contains("max_procs"),
            "{error}"
        );
    }
}

fn manager(n: u64, kind: &str, tasks: &str, busy: u32) -> WorkerEntry {
    let info = WorkerInfo {
        capabilities: tasks.parse().unwrap(),
        queues: vec![requests(kind), WAITING.into()],
        pid: 1,
        host: "here".into(),
        max_workers: 10,
        ..WorkerInfo::new(name_of(kind), kind)
    };
    let tid = Tid::from_u64(1_700_000_000_000_000_000 + n).unwrap();
    WorkerEntry::new(
        tid,
        info,
        Heartbeat {
            busy,
            ..Heartbeat::default()
        },
        Timestamp::UNIX_EPOCH,
    )
}

fn one_shot(manager: &WorkerEntry) -> WorkerEntry {
    let info = WorkerInfo {
        kind: "one-shot".into(),
        concurrency: 1,
        max_workers: 0,
        ..manager.info.clone()
    };
    WorkerEntry::new(
        manager.tid,
        info,
        Heartbeat::default(),
        Timestamp::UNIX_EPOCH,
    )
}

#[test]
fn reports_request_queue_and_load() {
    let unix = manager(1, "unix", "grep,sed", 4);
    assert_eq!(
        (unix.queue.as_deref(), unix.load),
        (Some("worker.unix.requests"), 0.4)
    );
    assert_eq!(
        manager(1, PRIME, "", 0).queue.as_deref(),
        Some("raddle.spawn.requests")
    );
    assert_eq!(
        one_shot(&unix).queue.as_deref(),
        Some("worker.unix.requests"),
        "its worker is asked as it is"
    );
    let entry =
        |info| WorkerEntry::new(unix.tid, info, Heartbeat::default(), Timestamp::UNIX_EPOCH);
    let resident = WorkerInfo {
        queues: vec!["default".into()],
        ..WorkerInfo::new("worker", "resident")
    };
    assert_eq!(entry(resident).queue, Some(format!("T{}.inbox", unix.tid)));
    assert_eq!(
        entry(WorkerInfo::new("run", "inline")).queue,
        None,
        "it takes no requests"
    );
}

#[test]
fn routes_to_the_least_loaded_manager_that_lists_the_task() {
    let mut all = vec![
        manager(1, PRIME, "", 0),
        manager(2, "unix", "grep,sed", 5),
        manager(3, "text", "grep", 2),
        manager(4, "ai", "ask", 0),
    ];
    all.push(one_shot(&all[1]));
    let route = |task: &str, more: &str, all: &[WorkerEntry]| {
        let RoutedRequest { spec, parent } =
            admit(PRIME, format!(r#"{{"task": "{task}"{more}}}"#), all);
        assert!(spec.validate().is_ok(), "{spec:?}");
        (
            spec.queue.clone(),
            spec.requires.to_string(),
            parent.map(|tid| tid.as_u64() % 10),
        )
    };
    let routed_to = |queue: &str, needs: &str, parent| (queue.to_owned(), needs.to_owned(), parent);
    assert_eq!(
        route("grep", "", &all),
        routed_to("worker.text.requests", "grep", Some(3))
    );
    assert_eq!(
        route("sed", "", &all),
        routed_to("worker.unix.requests", "sed", Some(2))
    );
    all[2].status = WorkerStatus::Draining;
    assert_eq!(
        route("grep", "", &all),
        routed_to("worker.unix.requests", "grep", Some(2)),
        "one that leaves is not asked"
    );
    assert_eq!(
        route("awk", "", &all),
        routed_to("raddle.spawn.requests", "", Some(1)),
        "the root manager reports that no manager has it"
    );
    assert_eq!(
        route("awk", r#", "wait": true"#, &all),
        routed_to(WAITING, "awk", None)
    );
    assert_eq!(
        route("awk", "", &[]),
        routed_to("raddle.spawn.requests", "", None)
    );
    // A message to the managers of a type stays with that type.
    let direct = admit("ai", r#"{"task": "grep"}"#.into(), &all);
    assert_eq!(
        (direct.spec.queue.as_str(), direct.parent),
        ("worker.ai.requests", Some(all[3].tid))
    );
    assert_eq!(direct.spec.display_name(), "grep");
}

#[test]
fn routes_specs_and_managers_to_the_root_manager() {
    let all = [manager(1, PRIME, "", 0), manager(2, "unix", "worker", 0)];
    let text =
        r#"{"spec": {"name": "x", "target": {"command": ["true"]}, "retry": {"attempts": 3}}}"#;
    let RoutedRequest { spec, parent } = admit(PRIME, text.into(), &all);
    assert_eq!(
        (spec.target, spec.queue.as_str()),
        (TaskSpec::command(["true"]).target, "raddle.spawn.requests")
    );
    assert_eq!((spec.retry.attempts, parent), (3, Some(all[0].tid)));
    let RoutedRequest { spec, .. } = admit(
        PRIME,
        r#"{"task": "worker", "params": {"type": "ai"}}"#.into(),
        &all,
    );
    assert_eq!(
        (spec.display_name(), spec.queue.as_str()),
        ("worker-ai", "raddle.spawn.requests")
    );
    assert!(spec.retry.attempts > 100, "it is kept alive");
}

#[test]
fn recognizes_manager_queues_by_name() {
    let desk = |name: &str| {
        let name: QueueName = name.parse().unwrap();
        name.desk().map(|(kind, desk)| (kind.to_owned(), desk))
    };
    assert_eq!(
        desk("raddle.spawn.requests"),
        Some((PRIME.into(), ManagerQueue::Requests))
    );
    assert_eq!(
        desk("worker.a-b.status"),
        Some(("a-b".into(), ManagerQueue::Status))
    );
    for none in [
        "worker.requests",
        "worker..requests",
        "worker.A.requests",
        "worker.resident.requests",
        "a.b.requests",
    ] {
        assert_eq!(desk(none), None, "{none}");
    }
}

proptest! {
    /// Any text becomes a task that can be stored and answered.
    #[test]
    fn any_text_becomes_a_valid_task(text in ".{0,60}", kind in "prime|unix") {
        let routed = admit(&kind, text, &[]);
        prop_assert!(routed.spec.validate().is_ok());
        let _ = policy(&kind).resolve(routed.spec);
    }

    /// No parameter value adds or removes arguments, or changes the program.
    #[test]
    fn parameters_do_not_change_the_argument_count(pattern in "[^\0]{0,20}", file in "[^\0]{0,20}") {
        let text = json!({ "task": "grep", "params": { "pattern": pattern, "file": file } }).to_string();
        let Target::Command(argv) = resolve("unix", &text).unwrap().target else { panic!("a command") };
        prop_assert_eq!(argv, vec!["grep".to_owned(), "--max-count=5".into(), "--".into(), pattern, file]);
    }
}
