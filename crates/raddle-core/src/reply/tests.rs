use proptest::prelude::*;
use serde_json::json;

use super::*;

const ENDED: Exit = Exit::Code { code: 0 };

fn after(lines: &str, exit: Exit) -> (Exit, Option<Value>) {
    let mut dialogue = Dialogue::default();
    dialogue.hear(lines.as_bytes());
    dialogue.conclude(exit)
}

fn garbled(lines: &str) -> String {
    match after(lines, ENDED) {
        (Exit::Garbled { message }, None) => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn asides_come_at_once_and_the_answer_at_the_end() {
    let mut dialogue = Dialogue::default();
    let lines = "{\"progress\":{\"percent\":150,\"message\":\"far\"}}\n{\"log\":\"hm\"}\n{\"result\":[1]}";
    let asides = dialogue.hear(lines.as_bytes());
    let remark = Remark { level: Level::Info, message: "hm".into() };
    let progress = Progress { percent: Some(100.0), message: "far".into() };
    assert_eq!(asides, [Aside::Progress(progress), Aside::Log(remark)]);
    assert_eq!(dialogue.conclude(ENDED), (ENDED, Some(json!([1]))));
}

#[test]
fn what_is_chained_comes_at_once_too() {
    let mut dialogue = Dialogue::default();
    let line = r#"{"chain":{"target":{"command":["x","y"]},"priority":7,"delay":"2s"}}"#;
    let spec = Spec { priority: 7, delay: Some(crate::Span::secs(2)), ..Spec::command(["x", "y"]) };
    assert_eq!(dialogue.hear(format!("{line}\n").as_bytes()), [Aside::Chain(Box::new(spec))]);
}

#[test]
fn what_is_chained_and_no_task_is_named_with_its_path() {
    let chained = |spec: &str| garbled(&format!("{{\"chain\":{spec}}}\n{{\"result\":1}}\n"));
    let said = chained(r#"{"target":{"command":["x"]},"limits":{"memory":1}}"#);
    assert!(said.contains("it chained what is no task that could be run, at 'limits.memory'"), "{said}");
    let said = chained(r#"{"target":{"command":["x"]},"priority":12}"#);
    assert!(said.contains("at 'priority': must be 0 to 9"), "{said}");
    assert!(chained("7").contains("it chained what is no task"), "{}", chained("7"));
    assert!(chained(r#"{"target":{"service":"x"}}"#).contains("target"));
}

#[test]
fn an_error_is_the_tasks_own() {
    let plain = Exit::Error { message: "no".into(), permanent: false };
    assert_eq!(after("{\"error\":\"no\"}\n", Exit::Code { code: 7 }), (plain, None));
    let line = "{\"error\":{\"message\":\"no\",\"permanent\":true,\"value\":3}}";
    assert_eq!(after(line, ENDED), (Exit::Error { message: "no".into(), permanent: true }, Some(json!(3))));
    let line = "{\"error\":{\"message\":\"no\",\"panicked_at\":\"a.rs:1\"}}";
    assert_eq!(after(line, ENDED).0, Exit::Panicked { message: "no".into(), location: "a.rs:1".into() });
}

#[test]
fn what_cannot_be_understood_is_shown() {
    assert!(garbled("hello\n").contains("hello"));
    assert!(garbled("{\"progres\":{}}").contains("progres"));
    assert!(
        garbled("{\"progress\":{\"percent\":1,\"x\":1}}").contains("'x'")
            || garbled("{\"progress\":{\"x\":1}}").contains("x")
    );
    assert_eq!(garbled(""), "it ended without an answer");
    assert_eq!(garbled("{\"result\":1}\n{\"result\":2}\n"), "it answered twice");
    assert!(garbled(&"x".repeat(LONGEST_LINE + 1)).contains("more than"));
}

#[test]
fn how_the_process_ended_comes_first() {
    assert_eq!(after("{\"result\":1}\n", Exit::Timeout), (Exit::Timeout, None));
    assert_eq!(after("garbage\n", Exit::Signal { signal: 9 }), (Exit::Signal { signal: 9 }, None));
    assert_eq!(after("{\"result\":1}\n", Exit::Code { code: 3 }), (Exit::Code { code: 3 }, None));
}

proptest! {
    #[test]
    fn lines_are_the_same_however_they_are_cut(cuts in prop::collection::vec(0usize..120, 0..6), noise: Vec<u8>) {
        let mut text = b"{\"log\":\"a\"}\n\n{\"progress\":{}}\n{\"log\":\"b\"}\n{\"result\":{\"k\":\"v\"}}\n".to_vec();
        text.extend(noise);
        let mut whole = Dialogue::default();
        let expected = whole.hear(&text);
        let mut pieces = Dialogue::default();
        let (mut seen, mut rest) = (Vec::new(), text.as_slice());
        for cut in cuts {
            let (piece, behind) = rest.split_at(cut.min(rest.len()));
            seen.extend(pieces.hear(piece));
            rest = behind;
        }
        seen.extend(pieces.hear(rest));
        prop_assert_eq!(seen, expected);
        prop_assert_eq!(pieces.conclude(ENDED), whole.conclude(ENDED));
    }
}
