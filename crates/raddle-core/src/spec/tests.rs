//! Specs in JSON and TOML: what goes in comes out, and what is wrong is named.

use proptest::prelude::*;

use super::*;
use crate::arbitrary;

fn json_error(text: &str) -> String {
    Spec::from_json(text).expect_err(text).to_string()
}

fn toml_error(text: &str) -> String {
    Spec::from_toml(text).expect_err(text).to_string()
}

/// What `validate` says of a sound spec after `change`.
fn invalid(change: impl FnOnce(&mut Spec)) -> String {
    let mut spec = Spec::command(["true"]);
    spec.validate().expect("sound before the change");
    change(&mut spec);
    spec.validate().expect_err("unsound after the change").to_string()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn json_round_trips(spec in arbitrary::spec()) {
        let text = serde_json::to_string(&spec).expect("specs serialize");
        prop_assert_eq!(Spec::from_json(&text).map_err(|e| e.to_string()), Ok(spec));
    }

    #[test]
    fn toml_round_trips(spec in arbitrary::spec()) {
        let text = toml::to_string(&spec).expect("specs without null serialize");
        prop_assert_eq!(Spec::from_toml(&text).map_err(|e| e.to_string()), Ok(spec), "{}", text);
    }

    #[test]
    fn no_text_makes_a_reader_panic(text in "\\PC*|[\\[\\]{}\":,=\n a-z0-9]{0,60}") {
        let _ = Spec::from_json(&text);
        let _ = Spec::from_toml(&text);
    }

    #[test]
    fn needs_are_what_is_required_and_what_the_target_implies(spec in arbitrary::spec()) {
        let needs = spec.needs();
        prop_assert!(spec.requires.is_subset(&needs));
        prop_assert!(needs.missing_from(&spec.requires).all(|tag| tag.starts_with('@')));
    }
}

#[test]
fn the_shortest_spec_has_every_default_and_stays_short() {
    let json = r#"{"target":{"command":["true"]}}"#;
    let spec = Spec::from_json(json).unwrap();
    assert_eq!(spec, Spec::command(["true"]));
    assert_eq!(serde_json::to_string(&spec).unwrap(), json);
    assert_eq!(Spec::from_toml("target.command = ['true']").unwrap(), spec);
    assert_eq!((spec.queue.as_str(), spec.priority), ("default", 5));
    assert_eq!((spec.on_stop, spec.on_error, spec.isolation), (Reserved::Clear, Reserved::Keep, Isolation::Process));
    assert_eq!(spec.result_ttl(), DEFAULT_RESULT_TTL);
}

#[test]
fn unknown_keys_are_named_with_their_path() {
    for (path, json) in [
        ("tmeout", r#"{"target":{"command":["true"]},"tmeout":3}"#),
        ("limits.memoryMb", r#"{"target":{"command":["true"]},"limits":{"memoryMb":3}}"#),
        ("retry.retries", r#"{"target":{"command":["true"]},"retry":{"attempts":2,"retries":3}}"#),
        ("target", r#"{"target":{"cmd":["true"]}}"#),
    ] {
        let error = json_error(json);
        assert!(error.starts_with(&format!("at '{path}': unknown")), "{error}");
    }
    for (path, toml) in [
        ("tmeout", "tmeout = 3\ntarget.command = ['true']"),
        ("limits.memoryMb", "target.command = ['true']\n[limits]\nmemoryMb = 3"),
        ("retry.retries", "target.command = ['true']\nretry = { retries = 3 }"),
    ] {
        let error = toml_error(toml);
        assert!(error.starts_with(&format!("at '{path}': unknown")), "{error}");
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
        assert!(error.starts_with(&format!("at '{path}': ")), "{rest}: {error}");
    }
    assert!(json_error(r#"{"target":{"command":["true",7]}}"#).starts_with("at 'target.command[1]': "));
    assert!(json_error(r#"{"target":{"command":"true"}}"#).starts_with("at 'target.command': "));
    assert!(toml_error("target.command = ['true', 7]").starts_with("at 'target.command[1]': "));
    assert!(toml_error("target.command = ['true']\nlimits.max_fds = 'x'").starts_with("at 'limits.max_fds': "));
    assert!(toml_error("target.command = ['true']\nlimits = [512]").starts_with("at 'limits': "));
}

#[test]
fn what_is_not_one_whole_spec_is_refused() {
    assert!(json_error("{}").contains("missing field `target`"));
    assert!(toml_error("").contains("missing field `target`"));
    for json in ["", "null", "3", "[]", r#"["name",{"command":["true"]}]"#, r#"{"target":{"command":["true"]}"#] {
        assert!(Spec::from_json(json).is_err(), "{json}");
    }
    let twice = r#"{"target":{"command":["true"]}} {"target":{"command":["true"]}}"#;
    assert!(json_error(twice).contains("trailing characters"));
    assert!(json_error(r#"{"target":{"command":["a"]},"target":{"command":["b"]}}"#).contains("duplicate field"));
    assert!(json_error(r#"{"target":{"command":["a"],"routine":"b"}}"#).starts_with("at 'target"));
    assert!(toml_error("target.command = [").starts_with("at '.': "));
}

#[test]
fn commands_need_a_program_and_no_nul() {
    for (json, reason) in [
        (r#"{"target":{"command":[]}}"#, "at 'target.command': is empty"),
        (r#"{"target":{"command":[""]}}"#, "at 'target.command': names no program"),
        (r#"{"target":{"command":["a","b\u0000c"]}}"#, "at 'target.command': holds a NUL byte"),
        (r#"{"target":{"command":["\u0000"]}}"#, "at 'target.command': holds a NUL byte"),
    ] {
        let error = json_error(json);
        assert!(error.starts_with(reason), "{error}");
    }
    assert!(toml_error("target.command = []").starts_with("at 'target.command': is empty"));
}

#[test]
fn targets_with_odd_names_and_services_are_refused() {
    assert!(invalid(|s| s.target = Target::Routine(String::new())).starts_with("at 'target.routine'"));
    assert!(invalid(|s| s.target = Target::Routine("a b".into())).starts_with("at 'target.routine'"));
    assert!(invalid(|s| s.target = Target::Handler("a;b".into())).starts_with("at 'target.handler'"));
    assert!(invalid(|s| s.target = Target::Service("worker".into())).contains("services start themselves"));
}

#[test]
fn the_tags_of_raddle_itself_cannot_be_required() {
    let reason = "at 'requires': tags that begin with @ are given by Raddle itself";
    assert_eq!(json_error(r#"{"target":{"command":["true"]},"requires":["gpu","@sandbox"]}"#), reason);
    assert_eq!(toml_error("target.command = ['true']\nrequires = ['@x']"), reason);
    assert_eq!(invalid(|s| s.requires = "@docker".parse().unwrap()), reason);
}

#[test]
fn targets_that_can_be_submitted_are_listed_where_another_is_named() {
    let listed = "unknown variant `cmd`, expected one of `command`, `routine`, `handler`";
    let error = json_error(r#"{"target":{"cmd":["true"]}}"#);
    assert!(error.contains(listed) && !error.contains("service"), "{error}");
    let error = toml_error("target.cmd = ['true']");
    assert!(error.contains(listed) && !error.contains("service"), "{error}");
    let stored = r#"{"service":"worker"}"#;
    let service: Target = serde_json::from_str(stored).expect("services are tasks too, and are read back");
    assert_eq!(
        (serde_json::to_string(&service).unwrap().as_str(), service),
        (stored, Target::Service("worker".into()))
    );
}

#[test]
fn texts_have_their_rules() {
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
        assert!(invalid(|s| drop(s.env.insert(key.into(), value.into()))).starts_with("at 'env'"), "{key:?}");
    }
    assert!(invalid(|s| s.stdin = Some("x".repeat(MAX_SPEC_BYTES + 1))).starts_with("at 'stdin'"));
}

#[test]
fn names_of_people_and_shells_are_fine() {
    for name in ["x", "Größe 10 €", "$(rm -rf /); `x` | & \"'", &"n".repeat(128)] {
        let spec = Spec { name: Some(name.into()), ..Spec::command(["true"]) };
        assert_eq!((spec.validate(), spec.display_name()), (Ok(()), name));
    }
    assert_eq!(Spec::command(["/usr/bin/env", "x"]).display_name(), "env");
    assert_eq!(Spec::new(Target::Routine("crate::work".into())).display_name(), "crate::work");
}

#[test]
fn numbers_have_their_rules() {
    assert!(invalid(|s| s.priority = 10).starts_with("at 'priority'"));
    assert!(invalid(|s| s.retry.attempts = 0).starts_with("at 'retry.attempts'"));
    assert!(invalid(|s| s.retry.attempts = 1_000_001).starts_with("at 'retry.attempts'"));
    for jitter in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        assert!(invalid(|s| s.retry.jitter = jitter).starts_with("at 'retry.jitter'"));
    }
    assert!(invalid(|s| s.timeout = Some(Span::default())).starts_with("at 'timeout'"));
    assert!(invalid(|s| s.limits.memory_mb = Some(0)).starts_with("at 'limits.memory_mb'"));
    assert!(invalid(|s| s.limits.cpu_percent = Some(0)).starts_with("at 'limits.cpu_percent'"));
    assert!(invalid(|s| s.limits.max_fds = Some(0)).starts_with("at 'limits.max_fds'"));
    assert!(invalid(|s| s.limits.max_procs = Some(0)).starts_with("at 'limits.max_procs'"));
    let both = |s: &mut Spec| (s.delay, s.run_at) = (Some(Span::secs(1)), Some(Timestamp::UNIX_EPOCH));
    assert!(invalid(both).contains("exclude each other"));
}

#[test]
fn targets_and_isolation_imply_what_a_worker_must_offer() {
    let needs = |target, isolation| Spec { isolation, ..Spec::new(target) }.needs().to_string();
    assert_eq!(needs(Target::Command(vec!["true".into()]), Isolation::Process), "");
    assert_eq!(needs(Target::Routine("r".into()), Isolation::Process), "@routine:r");
    assert_eq!(needs(Target::Handler("h".into()), Isolation::Docker), "@docker,@handler:h");
    assert_eq!(needs(Target::Service("s".into()), Isolation::Sandbox), "@sandbox,@service");
}

#[test]
fn a_sandbox_or_container_has_a_directory_of_its_own() {
    for isolation in [Isolation::Sandbox, Isolation::Docker] {
        assert!(
            invalid(|s| (s.cwd, s.isolation) = (Some("/tmp".into()), isolation))
                .starts_with("at 'cwd': is not visible")
        );
    }
    let spec = Spec { cwd: Some("/tmp".into()), ..Spec::command(["true"]) };
    assert_eq!(spec.validate(), Ok(()));
}

#[test]
fn a_network_and_a_fallback_belong_to_a_sandbox() {
    let spec =
        |text: &str| Spec::from_toml(&format!("target.command = ['true']\nisolation = 'sandbox'\n{text}")).unwrap();
    let boxed = spec("isolation_fallback = true\nnetwork = ['Example.org:443', '[::1]:80']");
    let json = serde_json::to_value(&boxed).unwrap();
    assert_eq!(json["network"], serde_json::json!(["example.org:443", "[::1]:80"]));
    assert_eq!(json["isolation_fallback"], true);
    assert_eq!(spec("network = 'host'").network, Network::Host);
    assert_eq!(spec("network = 'none'"), spec(""));
    assert!(invalid(|s| s.isolation_fallback = true).starts_with("at 'isolation_fallback': means nothing"));
    assert!(invalid(|s| s.network = Network::Host).starts_with("at 'network': means nothing"));
}

#[test]
fn two_targets_are_one_too_many() {
    let said = "names two targets, `command` and `routine`: give one";
    let error = json_error(r#"{"target":{"command":["true"],"routine":"r"}}"#);
    assert!(error.starts_with("at 'target': ") && error.contains(said), "{error}");
    let error = toml_error("target = { command = ['true'], routine = 'r' }");
    assert!(error.starts_with("at 'target': ") && error.contains(said), "{error}");
    assert!(json_error(r#"{"target":{}}"#).contains("names nothing to run"));
    assert!(json_error(r#"{"target":"true"}"#).contains("expected a target, as"));
}

#[test]
fn what_only_toml_has_is_made_plain_or_refused() {
    let text = "target.command = ['true']\nrun_at = 2030-01-02T03:04:05Z\nargs = [1979-05-27, [07:32:00]]
                metadata.when = { at = 1979-05-27T07:32:00+01:00 }";
    let spec = Spec::from_toml(text).unwrap();
    assert_eq!(spec.run_at, Some("2030-01-02T03:04:05Z".parse().unwrap()));
    assert_eq!(serde_json::to_value(&spec.args).unwrap(), serde_json::json!(["1979-05-27", ["07:32:00"]]));
    assert_eq!(spec.metadata["when"], serde_json::json!({ "at": "1979-05-27T07:32:00+01:00" }));
    for (number, path) in
        [("args = [0.5, nan]", "args[1]"), ("metadata.a.b = inf", "metadata.a.b"), ("kwargs.x = -inf", "kwargs.x")]
    {
        let error = toml_error(&format!("target.command = ['true']\n{number}"));
        assert!(error.starts_with(&format!("at '{path}': ")) && error.contains("cannot be stored"), "{error}");
    }
}

#[test]
fn what_no_program_can_be_given_is_refused() {
    let refusal = |spec: &Spec| spec.validate().unwrap_err().path.into_owned();
    let mut spec = Spec::command(["true"]);
    spec.env = (0..500_000).map(|n| (format!("K{n}"), String::new())).collect();
    assert_eq!(refusal(&spec), "env");
    spec.env = (0..100_000).map(|n| (format!("K{n}"), String::new())).collect();
    assert_eq!(spec.validate(), Ok(()));
    spec.target = Target::Command(vec!["true".into(), "x".repeat(5 * 1024 * 1024)]);
    assert_eq!(refusal(&spec), "target.command");
    spec.env.clear();
    assert_eq!(spec.validate(), Ok(()));
}

#[test]
fn a_delay_goes_before_a_time() {
    let (delay, at) = (Span::secs(5), "2030-01-02T03:04:05Z".parse().unwrap());
    let spec = |delay, run_at| Spec { delay, run_at, ..Spec::command(["true"]) };
    assert_eq!(spec(None, None).start(), None);
    assert_eq!(spec(None, Some(at)).start(), Some(Start::At(at)));
    assert_eq!(spec(Some(delay), Some(at)).start(), Some(Start::After(delay.0)));
}

#[test]
fn the_same_once_more_is_due_at_once_and_names_the_first() {
    let first = Tid::from_u64(1_700_000_000_000_000_000).unwrap();
    let mut spec = Spec { delay: Some(Span::secs(5)), priority: 7, ..Spec::command(["true"]) };
    spec.metadata.insert("team".into(), "blue".into());
    let again = spec.once_more(first);
    assert_eq!((again.start(), again.priority), (None, 7));
    assert_eq!(serde_json::json!(again.metadata), serde_json::json!({ "team": "blue", "retry_of": first.to_string() }));
}

#[test]
fn a_lifetime_counts_from_the_submission_and_a_time_is_a_time() {
    let tid = Tid::from_u64(1_700_000_000_000_000_000).unwrap();
    let spec = |lifetime, run_before| Spec { lifetime, run_before, ..Spec::command(["true"]) };
    let at: Timestamp = "2030-01-02T03:04:05Z".parse().unwrap();
    assert_eq!((spec(None, None).expires_at(tid), spec(None, None).expires()), (None, false));
    let lives = spec(Some(Span::secs(5)), None);
    assert_eq!((lives.expires_at(tid), lives.expires()), (Some(1_700_000_005_000_000_000), true));
    assert_eq!(spec(None, Some(at)).expires_at(tid), Some(unix_nanos(at)));
    let (unrun, failed) = (Tally { attempt: 2, ..Tally::default() }, Tally { attempt: 1, failures: 1, losses: 0 });
    assert!(!lives.has_expired(tid, unrun, 1_700_000_004_999_999_999));
    assert!(lives.has_expired(tid, unrun, 1_700_000_005_000_000_000));
    assert!(!lives.has_expired(tid, failed, i64::MAX), "it has been run in time");
    assert_eq!(spec(None, Some(at)).once_more(tid).run_before, None);
}

#[test]
fn what_would_never_run_is_refused() {
    let at = |second| Some(Timestamp::from_second(second).unwrap());
    assert!(invalid(|s| s.lifetime = Some(Span::default())).starts_with("at 'lifetime': must be longer"));
    let both = |s: &mut Spec| (s.lifetime, s.run_before) = (Some(Span::secs(1)), at(0));
    assert!(invalid(both).starts_with("at 'run_before': and lifetime exclude each other"));
    let never = |s: &mut Spec| (s.delay, s.lifetime) = (Some(Span::secs(5)), Some(Span::secs(5)));
    assert!(invalid(never).starts_with("at 'lifetime': is over before the task may begin"));
    let never = |s: &mut Spec| (s.run_at, s.run_before) = (at(10), at(10));
    assert!(invalid(never).starts_with("at 'run_before': is over before the task may begin"));
}

#[test]
fn a_spec_survives_messagepack() {
    for target in [Target::Command(vec!["a".into(), "b".into()]), Target::Service("worker".into())] {
        let spec = Spec { timeout: Some(Span::millis(1500)), ..Spec::new(target) };
        let bytes = rmp_serde::to_vec_named(&spec).unwrap();
        assert_eq!(rmp_serde::from_slice::<Spec>(&bytes).unwrap(), spec);
        let bytes = rmp_serde::to_vec(&spec.target).unwrap();
        assert_eq!(rmp_serde::from_slice::<Target>(&bytes).unwrap(), spec.target);
    }
}

#[test]
fn mounts_that_lie_within_each_other_are_refused() {
    let spec = |mounts: [&str; 2]| Spec {
        isolation: Isolation::Sandbox,
        mounts: mounts.map(|mount| mount.parse().unwrap()).into(),
        ..Spec::command(["true"])
    };
    for bad in [["/a:/x", "/b:/x"], ["/a:/data", "/b:/data/config"], ["/b:/data/config", "/a:/data:rw"]] {
        assert!(spec(bad).validate().is_err(), "{bad:?}");
    }
    assert!(spec(["/a:/data", "/b:/data2"]).validate().is_ok());
}
