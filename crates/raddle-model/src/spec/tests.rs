//! Specs round-trip through JSON and TOML, and errors name the invalid key.

use proptest::prelude::*;

use super::*;
use crate::arbitrary;

fn json_error(text: &str) -> String {
    TaskSpec::from_json(text).expect_err(text).to_string()
}

fn toml_error(text: &str) -> String {
    TaskSpec::from_toml(text).expect_err(text).to_string()
}

/// Returns the error of `validate` for a valid spec after `change`.
fn invalid(change: impl FnOnce(&mut TaskSpec)) -> String {
    let mut spec = TaskSpec::command(["true"]);
    spec.validate().expect("sound before the change");
    change(&mut spec);
    spec.validate()
        .expect_err("unsound after the change")
        .to_string()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn json_round_trips(spec in arbitrary::spec()) {
        let text = serde_json::to_string(&spec).expect("specs serialize");
        prop_assert_eq!(TaskSpec::from_json(&text).map_err(|e| e.to_string()), Ok(spec));
    }

    #[test]
    fn toml_round_trips(spec in arbitrary::spec()) {
        let text = toml::to_string(&spec).expect("specs without null serialize");
        prop_assert_eq!(TaskSpec::from_toml(&text).map_err(|e| e.to_string()), Ok(spec), "{}", text);
    }

    #[test]
    fn arbitrary_text_does_not_panic(text in "\\PC*|[\\[\\]{}\":,=\n a-z0-9]{0,60}") {
        let _ = TaskSpec::from_json(&text);
        let _ = TaskSpec::from_toml(&text);
    }

    #[test]
    fn needs_are_the_required_and_implied_tags(spec in arbitrary::spec()) {
        let needs = spec.needs();
        prop_assert!(spec.requires.is_subset(&needs));
        prop_assert!(needs.missing_from(&spec.requires).all(|tag| tag.starts_with('@')));
    }
}

#[test]
fn minimal_spec_has_defaults_and_serializes_minimally() {
    let json = r#"{"target":{"command":["true"]}}"#;
    let spec = TaskSpec::from_json(json).unwrap();
    assert_eq!(spec, TaskSpec::command(["true"]));
    assert_eq!(serde_json::to_string(&spec).unwrap(), json);
    assert_eq!(
        TaskSpec::from_toml("target.command = ['true']").unwrap(),
        spec
    );
    assert_eq!((spec.queue.as_str(), spec.priority), ("default", 5));
    assert_eq!(
        (spec.on_stop, spec.on_error, spec.isolation()),
        (
            ReservedPolicy::Clear,
            ReservedPolicy::Keep,
            Isolation::Process
        )
    );
    assert_eq!(spec.result_ttl(), DEFAULT_RESULT_TTL);
}

#[test]
fn unknown_keys_are_named_with_their_path() {
    for (path, json) in [
        ("tmeout", r#"{"target":{"command":["true"]},"tmeout":3}"#),
        (
            "limits.memoryMb",
            r#"{"target":{"command":["true"]},"limits":{"memoryMb":3}}"#,
        ),
        (
            "retry.retries",
            r#"{"target":{"command":["true"]},"retry":{"attempts":2,"retries":3}}"#,
        ),
        ("target", r#"{"target":{"cmd":["true"]}}"#),
    ] {
        let error = json_error(json);
        assert!(
            error.starts_with(&format!("at '{path}': unknown")),
            "{error}"
        );
    }
    for (path, toml) in [
        ("tmeout", "tmeout = 3\ntarget.command = ['true']"),
        (
            "limits.memoryMb",
            "target.command = ['true']\n[limits]\nmemoryMb = 3",
        ),
        (
            "retry.retries",
            "target.command = ['true']\nretry = { retries = 3 }",
        ),
    ] {
        let error = toml_error(toml);
        assert!(
            error.starts_with(&format!("at '{path}': unknown")),
            "{error}"
        );
    }
}

#[test]
fn wrong_types_are_named_with_their_path() {
    for (path, rest) in [
        ("name", r#""name":3"#),
        ("stdin", r#""stdin":["a"]"#),
        ("env.A", r#""env":{"A":1}"#),
        ("priority", r#""priority":-1"#),
        ("priority", r#""priority":256"#),
        ("priority", r#""priority":"high""#),
        ("timeout", r#""timeout":"soon""#),
        ("timeout", r#""timeout":-1"#),
        ("run_at", r#""run_at":"tomorrow""#),
        ("requires", r#""requires":"gpu""#),
        ("requires", r#""requires":["no blanks"]"#),
        ("limits", r#""limits":3"#),
        ("limits", r#""limits":[512]"#),
        ("limits.memory_mb", r#""limits":{"memory_mb":"1G"}"#),
        ("limits.cpu_percent", r#""limits":{"cpu_percent":1.5}"#),
        ("retry", r#""retry":[3]"#),
        ("retry.attempts", r#""retry":{"attempts":"3"}"#),
        ("retry.backoff", r#""retry":{"backoff":"quadratic"}"#),
        ("on_stop", r#""on_stop":"drop""#),
        ("isolation", r#""isolation":"vm""#),
        ("isolation_fallback", r#""isolation_fallback":"yes""#),
        ("network", r#""network":"all""#),
        ("network", r#""network":[]"#),
        ("network[0]", r#""network":[443]"#),
        ("network", r#""network":["example.org"]"#),
        ("network", r#""network":{"host":true}"#),
        ("kwargs", r#""kwargs":[1]"#),
        ("metadata", r#""metadata":"x""#),
    ] {
        let error = json_error(&format!(r#"{{"target":{{"command":["true"]}},{rest}}}"#));
        assert!(
            error.starts_with(&format!("at '{path}': ")),
            "{rest}: {error}"
        );
    }
    assert!(
        json_error(r#"{"target":{"command":["true",7]}}"#).starts_with("at 'target.command[1]': ")
    );
    assert!(json_error(r#"{"target":{"command":"true"}}"#).starts_with("at 'target.command': "));
    assert!(toml_error("target.command = ['true', 7]").starts_with("at 'target.command[1]': "));
    assert!(
        toml_error("target.command = ['true']\nlimits.max_fds = 'x'")
            .starts_with("at 'limits.max_fds': ")
    );
    assert!(toml_error("target.command = ['true']\nlimits = [512]").starts_with("at 'limits': "));
}

#[test]
fn refuses_incomplete_and_trailing_input() {
    assert!(json_error("{}").contains("missing field `target`"));
    assert!(toml_error("").contains("missing field `target`"));
    for json in [
        "",
        "null",
        "3",
        "[]",
        r#"["name",{"command":["true"]}]"#,
        r#"{"target":{"command":["true"]}"#,
    ] {
        assert!(TaskSpec::from_json(json).is_err(), "{json}");
    }
    let twice = r#"{"target":{"command":["true"]}} {"target":{"command":["true"]}}"#;
    assert!(json_error(twice).contains("trailing characters"));
    assert!(
        json_error(r#"{"target":{"command":["a"]},"target":{"command":["b"]}}"#)
            .contains("duplicate field")
    );
    assert!(json_error(r#"{"target":{"command":["a"],"routine":"b"}}"#).starts_with("at 'target"));
    assert!(toml_error("target.command = [").starts_with("at '.': "));
}

#[test]
fn commands_need_a_program_and_no_nul() {
    for (json, reason) in [
        (
            r#"{"target":{"command":[]}}"#,
            "at 'target.command': is empty",
        ),
        (
            r#"{"target":{"command":[""]}}"#,
            "at 'target.command': names no program",
        ),
        (
            r#"{"target":{"command":["a","b\u0000c"]}}"#,
            "at 'target.command': holds a NUL byte",
        ),
        (
            r#"{"target":{"command":["\u0000"]}}"#,
            "at 'target.command': holds a NUL byte",
        ),
    ] {
        let error = json_error(json);
        assert!(error.starts_with(reason), "{error}");
    }
    assert!(toml_error("target.command = []").starts_with("at 'target.command': is empty"));
}

#[test]
fn refuses_invalid_names_and_services() {
    assert!(
        invalid(|s| s.target = Target::Routine(String::new())).starts_with("at 'target.routine'")
    );
    assert!(
        invalid(|s| s.target = Target::Routine("a b".into())).starts_with("at 'target.routine'")
    );
    assert!(
        invalid(|s| s.target = Target::Handler("a;b".into())).starts_with("at 'target.handler'")
    );
    assert!(
        invalid(|s| s.target = Target::Service("worker".into()))
            .contains("services start themselves")
    );
}

#[test]
fn refuses_reserved_tags() {
    let reason = "at 'requires': tags that begin with @ are given by Raddle itself";
    assert_eq!(
        json_error(r#"{"target":{"command":["true"]},"requires":["gpu","@sandbox"]}"#),
        reason
    );
    assert_eq!(
        toml_error("target.command = ['true']\nrequires = ['@x']"),
        reason
    );
    assert_eq!(invalid(|s| s.requires = "@docker".parse().unwrap()), reason);
}

#[test]
fn errors_list_only_submittable_targets() {
    let listed = "unknown variant `cmd`, expected one of `command`, `routine`, `handler`";
    let error = json_error(r#"{"target":{"cmd":["true"]}}"#);
    assert!(
        error.contains(listed) && !error.contains("service"),
        "{error}"
    );
    let error = toml_error("target.cmd = ['true']");
    assert!(
        error.contains(listed) && !error.contains("service"),
        "{error}"
    );
    let stored = r#"{"service":"worker"}"#;
    let service: Target =
        serde_json::from_str(stored).expect("services are tasks too, and are read back");
    assert_eq!(
        (serde_json::to_string(&service).unwrap().as_str(), service),
        (stored, Target::Service("worker".into()))
    );
}

#[test]
fn validates_texts() {
    assert!(invalid(|s| s.name = Some(String::new())).starts_with("at 'name'"));
    assert!(invalid(|s| s.name = Some("x".repeat(129))).starts_with("at 'name'"));
    assert!(invalid(|s| s.name = Some("a\nb".into())).contains("control character"));
    assert!(invalid(|s| s.name = Some("a\0".into())).contains("control character"));
    assert!(invalid(|s| s.queue = String::new()).starts_with("at 'queue'"));
    assert!(invalid(|s| s.queue = "a b".into()).starts_with("at 'queue'"));
    assert!(invalid(|s| s.queue = "q".repeat(129)).starts_with("at 'queue'"));
    assert!(invalid(|s| s.cwd = Some(String::new())).starts_with("at 'cwd': is empty"));
    assert!(invalid(|s| s.cwd = Some("/a\0b".into())).starts_with("at 'cwd': holds a NUL"));
    assert!(invalid(|s| s.kind = Some("ä".into())).starts_with("at 'kind'"));
    assert!(invalid(|s| s.unique_key = Some(String::new())).starts_with("at 'unique_key'"));
    assert!(invalid(|s| s.unique_key = Some("k".repeat(513))).starts_with("at 'unique_key'"));
    for (key, value) in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "x\0")] {
        assert!(
            invalid(|s| drop(s.env.insert(key.into(), value.into()))).starts_with("at 'env'"),
            "{key:?}"
        );
    }
    assert!(invalid(|s| s.stdin = Some("x".repeat(MAX_SPEC_BYTES + 1))).starts_with("at 'stdin'"));
}

#[test]
fn accepts_any_printable_name() {
    for name in [
        "x",
        "Größe 10 €",
        "$(rm -rf /); `x` | & \"'",
        &"n".repeat(128),
    ] {
        let spec = TaskSpec {
            name: Some(name.into()),
            ..TaskSpec::command(["true"])
        };
        assert_eq!((spec.validate(), spec.display_name()), (Ok(()), name));
    }
    assert_eq!(
        TaskSpec::command(["/usr/bin/env", "x"]).display_name(),
        "env"
    );
    assert_eq!(
        TaskSpec::new(Target::Routine("crate::work".into())).display_name(),
        "crate::work"
    );
}

#[test]
fn validates_numbers() {
    assert!(invalid(|s| s.priority = 10).starts_with("at 'priority'"));
    assert!(invalid(|s| s.retry.attempts = 0).starts_with("at 'retry.attempts'"));
    assert!(invalid(|s| s.retry.attempts = 1_000_001).starts_with("at 'retry.attempts'"));
    for jitter in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        assert!(invalid(|s| s.retry.jitter = jitter).starts_with("at 'retry.jitter'"));
    }
    assert!(invalid(|s| s.timeout = Some(HumanDuration::default())).starts_with("at 'timeout'"));
    assert!(invalid(|s| s.limits.memory_mb = Some(0)).starts_with("at 'limits.memory_mb'"));
    assert!(invalid(|s| s.limits.cpu_percent = Some(0)).starts_with("at 'limits.cpu_percent'"));
    assert!(invalid(|s| s.limits.max_fds = Some(0)).starts_with("at 'limits.max_fds'"));
    assert!(invalid(|s| s.limits.max_procs = Some(0)).starts_with("at 'limits.max_procs'"));
    let both = |s: &mut TaskSpec| {
        (s.delay, s.run_at) = (Some(HumanDuration::secs(1)), Some(Timestamp::UNIX_EPOCH))
    };
    assert!(invalid(both).contains("exclude each other"));
}

#[test]
fn targets_and_isolation_imply_capabilities() {
    let needs = |target, isolation| {
        TaskSpec {
            isolation: Some(isolation),
            ..TaskSpec::new(target)
        }
        .needs()
        .to_string()
    };
    assert_eq!(
        needs(Target::Command(vec!["true".into()]), Isolation::Process),
        ""
    );
    assert_eq!(
        needs(Target::Routine("r".into()), Isolation::Process),
        "@routine:r"
    );
    assert_eq!(
        needs(Target::Handler("h".into()), Isolation::Docker),
        "@docker,@handler:h"
    );
    assert_eq!(
        needs(Target::Service("s".into()), Isolation::Sandbox),
        "@sandbox,@service"
    );
}

#[test]
fn routines_are_shared_unless_they_need_a_process() {
    let routine = || TaskSpec::new(Target::Routine("r".into()));
    assert_eq!(routine().isolation(), Isolation::Shared);
    assert_eq!(
        TaskSpec::new(Target::Handler("h".into())).isolation(),
        Isolation::Shared
    );
    assert_eq!(TaskSpec::command(["true"]).isolation(), Isolation::Process);
    type Change = (&'static str, fn(&mut TaskSpec));
    let changes: [Change; 6] = [
        ("limits.memory_mb", |s| s.limits.memory_mb = Some(1)),
        ("limits.cpu_percent", |s| s.limits.cpu_percent = Some(1)),
        ("limits.max_fds", |s| s.limits.max_fds = Some(1)),
        ("limits.max_procs", |s| s.limits.max_procs = Some(1)),
        ("cwd", |s| s.cwd = Some("/".into())),
        ("env", |s| drop(s.env.insert("K".into(), "v".into()))),
    ];
    for (key, change) in changes {
        let mut spec = routine();
        change(&mut spec);
        assert_eq!(spec.isolation(), Isolation::Process, "{key}");
        assert_eq!(spec.validate(), Ok(()));
        spec.isolation = Some(Isolation::Shared);
        let refused = spec.validate().unwrap_err();
        assert_eq!(refused.path, key);
        assert!(
            refused.reason.contains("use the isolation 'process'"),
            "{refused}"
        );
    }
    let shared = TaskSpec {
        isolation: Some(Isolation::Shared),
        ..TaskSpec::command(["true"])
    };
    assert!(
        shared
            .validate()
            .unwrap_err()
            .reason
            .contains("routines and handlers")
    );
    let text = "target.routine = 'r'\nisolation = 'shared'";
    assert_eq!(
        TaskSpec::from_toml(text).unwrap().isolation,
        Some(Isolation::Shared)
    );
    assert!(Isolation::Shared < Isolation::Process, "it is the weakest");
}

#[test]
fn refuses_cwd_in_a_sandbox_or_container() {
    for isolation in [Isolation::Sandbox, Isolation::Docker] {
        assert!(
            invalid(|s| (s.cwd, s.isolation) = (Some("/tmp".into()), Some(isolation)))
                .starts_with("at 'cwd': is not visible")
        );
    }
    let spec = TaskSpec {
        cwd: Some("/tmp".into()),
        ..TaskSpec::command(["true"])
    };
    assert_eq!(spec.validate(), Ok(()));
}

#[test]
fn network_and_fallback_need_a_sandbox() {
    let spec = |text: &str| {
        TaskSpec::from_toml(&format!(
            "target.command = ['true']\nisolation = 'sandbox'\n{text}"
        ))
        .unwrap()
    };
    let boxed = spec("isolation_fallback = true\nnetwork = ['Example.org:443', '[::1]:80']");
    let json = serde_json::to_value(&boxed).unwrap();
    assert_eq!(
        json["network"],
        serde_json::json!(["example.org:443", "[::1]:80"])
    );
    assert_eq!(json["isolation_fallback"], true);
    assert_eq!(spec("network = 'host'").network, NetworkPolicy::Host);
    assert_eq!(spec("network = 'none'"), spec(""));
    assert!(
        invalid(|s| s.isolation_fallback = true)
            .starts_with("at 'isolation_fallback': means nothing")
    );
    assert!(
        invalid(|s| s.network = NetworkPolicy::Host).starts_with("at 'network': means nothing")
    );
}

#[test]
fn refuses_two_targets() {
    let message = "names two targets, `command` and `routine`: give one";
    let error = json_error(r#"{"target":{"command":["true"],"routine":"r"}}"#);
    assert!(
        error.starts_with("at 'target': ") && error.contains(message),
        "{error}"
    );
    let error = toml_error("target = { command = ['true'], routine = 'r' }");
    assert!(
        error.starts_with("at 'target': ") && error.contains(message),
        "{error}"
    );
    assert!(json_error(r#"{"target":{}}"#).contains("names nothing to run"));
    assert!(json_error(r#"{"target":"true"}"#).contains("expected a target, as"));
}

#[test]
fn converts_or_refuses_toml_only_values() {
    let text =
        "target.command = ['true']\nrun_at = 2030-01-02T03:04:05Z\nargs = [1979-05-27, [07:32:00]]
                metadata.when = { at = 1979-05-27T07:32:00+01:00 }";
    let spec = TaskSpec::from_toml(text).unwrap();
    assert_eq!(spec.run_at, Some("2030-01-02T03:04:05Z".parse().unwrap()));
    assert_eq!(
        serde_json::to_value(&spec.args).unwrap(),
        serde_json::json!(["1979-05-27", ["07:32:00"]])
    );
    assert_eq!(
        spec.metadata["when"],
        serde_json::json!({ "at": "1979-05-27T07:32:00+01:00" })
    );
    for (number, path) in [
        ("args = [0.5, nan]", "args[1]"),
        ("metadata.a.b = inf", "metadata.a.b"),
        ("kwargs.x = -inf", "kwargs.x"),
    ] {
        let error = toml_error(&format!("target.command = ['true']\n{number}"));
        assert!(
            error.starts_with(&format!("at '{path}': ")) && error.contains("cannot be stored"),
            "{error}"
        );
    }
}

#[test]
fn refuses_oversized_arguments_and_environment() {
    let refusal = |spec: &TaskSpec| spec.validate().unwrap_err().path.into_owned();
    let mut spec = TaskSpec::command(["true"]);
    spec.env = (0..500_000)
        .map(|n| (format!("K{n}"), String::new()))
        .collect();
    assert_eq!(refusal(&spec), "env");
    spec.env = (0..100_000)
        .map(|n| (format!("K{n}"), String::new()))
        .collect();
    assert_eq!(spec.validate(), Ok(()));
    spec.target = Target::Command(vec!["true".into(), "x".repeat(5 * 1024 * 1024)]);
    assert_eq!(refusal(&spec), "target.command");
    spec.env.clear();
    assert_eq!(spec.validate(), Ok(()));
}

#[test]
fn delay_takes_precedence_over_run_at() {
    let (delay, at) = (
        HumanDuration::secs(5),
        "2030-01-02T03:04:05Z".parse().unwrap(),
    );
    let spec = |delay, run_at| TaskSpec {
        delay,
        run_at,
        ..TaskSpec::command(["true"])
    };
    assert_eq!(spec(None, None).start(), None);
    assert_eq!(spec(None, Some(at)).start(), Some(StartTime::At(at)));
    assert_eq!(
        spec(Some(delay), Some(at)).start(),
        Some(StartTime::After(delay.0))
    );
}

#[test]
fn resubmitted_specs_start_now_and_name_the_original() {
    let first = Tid::from_u64(1_700_000_000_000_000_000).unwrap();
    let mut spec = TaskSpec {
        delay: Some(HumanDuration::secs(5)),
        priority: 7,
        ..TaskSpec::command(["true"])
    };
    spec.metadata.insert("team".into(), "blue".into());
    let resubmitted = spec.once_more(first);
    assert_eq!((resubmitted.start(), resubmitted.priority), (None, 7));
    assert_eq!(
        serde_json::json!(resubmitted.metadata),
        serde_json::json!({ "team": "blue", "retry_of": first.to_string() })
    );
}

#[test]
fn once_more_moves_a_task_of_a_run_to_the_default_queue() {
    let first = Tid::from_u64(1_700_000_000_000_000_000).unwrap();
    let queue_of = |queue: &str| {
        TaskSpec {
            queue: queue.into(),
            ..TaskSpec::command(["true"])
        }
        .once_more(first)
        .queue
    };
    assert_eq!(
        (
            queue_of("raddle.run.b-1").as_str(),
            queue_of("mail").as_str()
        ),
        (DEFAULT_QUEUE, "mail")
    );
}

#[test]
fn lifetime_counts_from_the_submission() {
    let tid = Tid::from_u64(1_700_000_000_000_000_000).unwrap();
    let spec = |lifetime, run_before| TaskSpec {
        lifetime,
        run_before,
        ..TaskSpec::command(["true"])
    };
    let at: Timestamp = "2030-01-02T03:04:05Z".parse().unwrap();
    assert_eq!(
        (spec(None, None).expires_at(tid), spec(None, None).expires()),
        (None, false)
    );
    let with_lifetime = spec(Some(HumanDuration::secs(5)), None);
    assert_eq!(
        (with_lifetime.expires_at(tid), with_lifetime.expires()),
        (Some(1_700_000_005_000_000_000), true)
    );
    assert_eq!(spec(None, Some(at)).expires_at(tid), Some(unix_nanos(at)));
    let (unrun, failed) = (
        AttemptCounters {
            attempt: 2,
            ..AttemptCounters::default()
        },
        AttemptCounters {
            attempt: 1,
            failures: 1,
            losses: 0,
        },
    );
    assert!(!with_lifetime.has_expired(tid, unrun, 1_700_000_004_999_999_999));
    assert!(with_lifetime.has_expired(tid, unrun, 1_700_000_005_000_000_000));
    assert!(
        !with_lifetime.has_expired(tid, failed, i64::MAX),
        "it has been run in time"
    );
    assert_eq!(spec(None, Some(at)).once_more(tid).run_before, None);
}

#[test]
fn refuses_specs_that_expire_before_they_start() {
    let at = |second| Some(Timestamp::from_second(second).unwrap());
    assert!(
        invalid(|s| s.lifetime = Some(HumanDuration::default()))
            .starts_with("at 'lifetime': must be longer")
    );
    let both =
        |s: &mut TaskSpec| (s.lifetime, s.run_before) = (Some(HumanDuration::secs(1)), at(0));
    assert!(invalid(both).starts_with("at 'run_before': and lifetime exclude each other"));
    let never = |s: &mut TaskSpec| {
        (s.delay, s.lifetime) = (Some(HumanDuration::secs(5)), Some(HumanDuration::secs(5)))
    };
    assert!(invalid(never).starts_with("at 'lifetime': is over before the task may begin"));
    let never = |s: &mut TaskSpec| (s.run_at, s.run_before) = (at(10), at(10));
    assert!(invalid(never).starts_with("at 'run_before': is over before the task may begin"));
}

#[test]
fn specs_round_trip_through_message_pack() {
    for target in [
        Target::Command(vec!["a".into(), "b".into()]),
        Target::Service("worker".into()),
    ] {
        let spec = TaskSpec {
            timeout: Some(HumanDuration::millis(1500)),
            ..TaskSpec::new(target)
        };
        let bytes = rmp_serde::to_vec_named(&spec).unwrap();
        assert_eq!(rmp_serde::from_slice::<TaskSpec>(&bytes).unwrap(), spec);
        let bytes = rmp_serde::to_vec(&spec.target).unwrap();
        assert_eq!(
            rmp_serde::from_slice::<Target>(&bytes).unwrap(),
            spec.target
        );
    }
}

#[test]
fn refuses_nested_mounts() {
    let spec = |mounts: [&str; 2]| TaskSpec {
        isolation: Some(Isolation::Sandbox),
        mounts: mounts.map(|mount| mount.parse().unwrap()).into(),
        ..TaskSpec::command(["true"])
    };
    for bad in [
        ["/a:/x", "/b:/x"],
        ["/a:/data", "/b:/data/config"],
        ["/b:/data/config", "/a:/data:rw"],
    ] {
        assert!(spec(bad).validate().is_err(), "{bad:?}");
    }
    assert!(spec(["/a:/data", "/b:/data2"]).validate().is_ok());
}
