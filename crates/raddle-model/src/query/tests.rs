use jiff::SignedDuration;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{AttemptReport, ExitStatus, TaskSpec, TaskView, arbitrary};

const NOW: &str = "2026-11-18T12:00:00Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn query(text: &str) -> TaskQuery {
    text.parse()
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn canonical(text: &str) -> String {
    query(text).to_string()
}

fn failed_task() -> TaskView {
    let created = now() - SignedDuration::from_mins(30);
    let spec = TaskSpec {
        name: Some("frame-12".into()),
        queue: "mail".into(),
        kind: Some("render".into()),
        batch: Some("night".into()),
        requires: "gpu".parse().unwrap(),
        metadata: [("user".to_owned(), json!(17))].into_iter().collect(),
        ..TaskSpec::command(["render"])
    };
    let tid = Tid::from_u64(created.as_nanosecond() as u64).unwrap();
    let ended = created + SignedDuration::from_mins(10);
    TaskView {
        state: TaskState::Failed,
        attempt: 3,
        dead: true,
        worker: Tid::from_u64(1_795_000_000_000_000_007),
        claimed_at: Some(created + SignedDuration::from_mins(6)),
        finished_at: Some(ended),
        report: Some(AttemptReport {
            started_at: Some(ended - SignedDuration::from_secs(40)),
            ..AttemptReport::bare(ExitStatus::Code { code: 3 }, ended)
        }),
        ..TaskView::new(tid, spec, created)
    }
}

#[test]
fn each_field_selects_the_task() {
    let task = failed_task();
    for text in [
        "",
        "state:failed",
        "state:timeout,failed",
        "queue:mail",
        "name:frame-*",
        "name:other,frame-12",
        "kind:render",
        "batch:n*t",
        "cap:gpu",
        "worker:1795000000000000007",
        "worker:0000000007",
        "dead:yes paused:no delayed:no",
        "tries:>2 tries:3 tries:<=3 tries:>=3 tries:<4 tries:=3",
        "priority:5",
        "took:>30s took:<=40s",
        "waited:>5m waited:<7m",
        "exit:3",
        "exit:code",
        "exit:>2",
        "error:\"EXIT CODE\"",
        "meta.user:17",
        "since:-1h",
        "until:2026-11-18T11:45Z",
        "since:2026-11-18",
        "frame",
        "FRAME-1",
        "\"rame\"",
        "fr*2",
        "-state:completed -queue:other -dead:no -other",
        "  state:failed\tqueue:mail\n",
    ] {
        assert!(query(text).matches(&task, now()), "{text}");
    }
    assert!(query(&task.tid.to_string()).matches(&task, now()));
    assert!(query(&format!("id:{}", task.tid.short())).matches(&task, now()));
}

#[test]
fn each_field_rejects_the_task() {
    let task = failed_task();
    for text in [
        "state:completed",
        "state:failed state:timeout",
        "queue:mai",
        "name:frame",
        "kind:other",
        "batch:day",
        "cap:cpu",
        "worker:1795000000000000008",
        "parent:1795000000000000007",
        "dead:no",
        "paused:yes",
        "delayed:yes",
        "tries:>3",
        "priority:<5",
        "took:>40s",
        "waited:>10m",
        "exit:4",
        "exit:signal,timeout",
        "error:memory",
        "meta.user:1",
        "meta.other:17",
        "since:-10m",
        "until:-1h",
        "thing",
        "-frame",
        "-state:failed",
    ] {
        assert!(!query(text).matches(&task, now()), "{text}");
    }
}

#[test]
fn canonical_text_is_short_and_equal() {
    for (text, expected) in [
        ("  state:timeout,failed,failed  ", "state:failed,timeout"),
        ("name:\"plain\"", "name:plain"),
        ("name:\"a b\"", "name:\"a b\""),
        (r#"name:"\*""#, r#"name:"\*""#),
        ("name:a***b", "name:a*b"),
        ("took:>5400", "took:>90m"),
        ("took:>1.5s", "took:>1.5s"),
        ("since:-86400", "since:-1d"),
        ("since:2026-11-18T03:00Z", "since:2026-11-18T03:00:00Z"),
        ("tries:=3", "tries:3"),
        ("2140161024", "id:2140161024"),
        ("\"2140161024\"", "\"2140161024\""),
        ("\"-x\"", "\"-x\""),
        ("--x", "-\"-x\""),
        ("\"a:b\"", "\"a:b\""),
        ("Frame", "frame"),
        ("dead:yes", "dead:yes"),
        ("exit:>=2,signal", "exit:>=2,signal"),
    ] {
        assert_eq!(canonical(text), expected);
        assert_eq!(canonical(expected), expected);
    }
}

#[test]
fn mistakes_have_a_position_and_a_fix() {
    for (text, position, part) in [
        ("state:faild", 6, "completed, failed"),
        ("queue:mail stat:failed", 11, "there is no field 'stat'"),
        ("naïve bad:1", 6, "there is no field 'bad'"),
        ("state:", 6, "a value is missing"),
        ("state:failed,", 13, "a value is missing"),
        ("name:\"open", 5, "a quote has no end"),
        ("name:a\"b", 6, "in quotes"),
        ("name:\"a\"b", 8, "in quotes"),
        ("a\\b", 1, "in quotes"),
        ("tries:>1000001", 6, "from 0 to 1000000"),
        ("priority:10", 9, "from 0 to 9"),
        ("exit:256", 5, "from -255 to 255"),
        ("took:30s", 5, "took:>30s"),
        ("took:>200y", 5, "took:>30s"),
        ("dead:maybe", 5, "yes or no"),
        ("dead:yes,no", 9, "give one value"),
        ("since:1h", 6, "-1h"),
        ("worker:12", 7, "19 digits"),
        ("9999999999999999999", 0, "19 digits"),
        ("sort:-took", 0, "there is no field 'sort'"),
        ("meta.:1", 0, "there is no field 'meta.'"),
        ("-", 1, "a value is missing"),
    ] {
        let error = text.parse::<TaskQuery>().unwrap_err();
        assert_eq!(error.position, position, "{text}: {error}");
        assert!(error.to_string().contains(part), "{text}: {error}");
    }
}

#[test]
fn the_size_of_a_query_is_bounded() {
    let words = |n: usize| vec!["a"; n].join(",");
    assert_eq!(query(&words(MAX_TOKENS)).terms().len(), 1);
    let error = words(MAX_TOKENS + 1).parse::<TaskQuery>().unwrap_err();
    assert_eq!(error.kind, QueryErrorKind::TooMany);
    assert_eq!(query(&"a".repeat(MAX_BYTES)).terms().len(), 1);
    let error = "a".repeat(MAX_BYTES + 1).parse::<TaskQuery>().unwrap_err();
    assert_eq!(error.kind, QueryErrorKind::TooLong);
    // Its canonical text has quotes.
    let error = "(".repeat(MAX_BYTES).parse::<TaskQuery>().unwrap_err();
    assert_eq!(error.kind, QueryErrorKind::TooLong);
}

#[test]
fn relative_times_move_until_they_are_fixed() {
    let moving = query("since:-1h until:-1m state:failed");
    let fixed = moving.clone().fix_times(now());
    let text = "since:2026-11-18T11:00:00Z until:2026-11-18T11:59:00Z state:failed";
    assert_eq!(fixed.to_string(), text);
    let (task, later) = (failed_task(), now() + SignedDuration::from_hours(1));
    assert!(!moving.matches(&task, later) && fixed.matches(&task, later));
}

#[test]
fn a_query_names_what_an_index_can_serve() {
    let query = query(
        "state:failed,timeout -state:timeout queue:mail name:a* worker:0000000007 dead:yes since:-1h until:-1m",
    );
    assert_eq!(query.states(), [TaskState::Failed]);
    assert_eq!(query.exact(TextField::Queue), Some("mail"));
    assert_eq!(query.exact(TextField::Name), None);
    assert_eq!(query.ids(IdField::Worker).map(<[_]>::len), Some(1));
    assert_eq!(query.ids(IdField::Id), None);
    assert!(query.requires(FlagField::Dead, true) && !query.requires(FlagField::Dead, false));
    let minute = SignedDuration::from_mins(1);
    let end = query
        .first_id_after(now())
        .map(|tid| i128::from(tid.as_u64()));
    assert_eq!(end, Some((now() - minute).as_nanosecond()));
    assert_eq!(query.oldest(now()), Some(now() - minute * 60));
}

#[test]
fn a_query_is_stored_as_its_text() {
    let stored = serde_json::to_string(&query("state:failed")).unwrap();
    assert_eq!(stored, "\"state:failed\"");
    assert_eq!(
        serde_json::from_str::<TaskQuery>(&stored).unwrap(),
        query("state:failed")
    );
}

fn text() -> impl Strategy<Value = String> {
    let value = prop_oneof![
        "[a-z0-9*-]{1,9}",
        r#""([^"\\]|\\.){0,9}""#,
        "[<>=]{0,2}-?[0-9.]{1,7}(ms|s|m|h|d)?",
        "[0-9]{10}",
        "[0-9]{19}",
        "yes|no|failed|created|code|signal|killed",
        "2026-1[0-2]-[0-2][0-9](T[0-2][0-9]:00Z)?",
        "\\PC{0,5}",
    ];
    let fields: Vec<&str> = error::FIELDS.split(", ").collect();
    let field = prop_oneof![
        proptest::sample::select(fields).prop_map(|name| format!("{name}:")),
        Just(String::new()),
        "[a-z:.]{0,4}",
    ];
    let values = proptest::collection::vec(value, 1..4).prop_map(|values| values.join(","));
    let term = ("-?", field, values).prop_map(|(not, field, values)| not + &field + &values);
    proptest::collection::vec(term, 0..6).prop_map(|terms| terms.join(" "))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any text is a query or a mistake at a position in it, and the canonical text of a query is
    /// an equal query.
    #[test]
    fn any_text_is_a_query_or_a_mistake(text in prop_oneof![text(), "\\PC{0,60}"]) {
        match text.parse::<TaskQuery>() {
            Ok(query) => {
                let canonical = query.to_string();
                let again: TaskQuery = canonical.parse().map_err(|error| {
                    TestCaseError::fail(format!("{canonical}: {error}"))
                })?;
                prop_assert_eq!(&again, &query);
                prop_assert_eq!(again.to_string(), canonical);
                query.matches(&failed_task(), now());
            }
            Err(error) => prop_assert!(error.position <= text.chars().count()),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A negated term selects exactly the tasks that the term does not.
    #[test]
    fn a_negated_term_selects_the_other_tasks(text in text(), spec in arbitrary::spec()) {
        if let Ok(query) = text.parse::<TaskQuery>() {
            let task = TaskView { spec, ..failed_task() };
            for term in query.terms() {
                let negated = Term { negated: !term.negated, condition: term.condition.clone() };
                let matches = |term: &Term| TaskQuery::from_iter([term.clone()]).matches(&task, now());
                prop_assert_ne!(matches(term), matches(&negated));
            }
        }
    }
}
