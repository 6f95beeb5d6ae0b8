use proptest::prelude::*;
use serde_json::json;

use super::*;

const ENDED: ExitStatus = ExitStatus::Code { code: 0 };

fn after(lines: &str, exit: ExitStatus) -> (ExitStatus, Option<Value>) {
    let mut parser = ReplyParser::default();
    parser.parse(lines.as_bytes());
    parser.conclude(exit)
}

fn malformed(lines: &str) -> String {
    match after(lines, ENDED) {
        (ExitStatus::ProtocolError { message }, None) => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn returns_output_immediately_and_the_result_at_the_end() {
    let mut parser = ReplyParser::default();
    let lines =
        "{\"progress\":{\"percent\":150,\"message\":\"far\"}}\n{\"log\":\"hm\"}\n{\"result\":[1]}";
    let output = parser.parse(lines.as_bytes());
    let entry = LogLine {
        level: LogLevel::Info,
        message: "hm".into(),
    };
    let progress = Progress {
        percent: Some(100.0),
        message: "far".into(),
    };
    assert_eq!(
        output,
        [ParsedOutput::Progress(progress), ParsedOutput::Log(entry)]
    );
    assert_eq!(parser.conclude(ENDED), (ENDED, Some(json!([1]))));
}

#[test]
fn returns_chained_tasks_immediately() {
    let mut parser = ReplyParser::default();
    let line = r#"{"chain":{"target":{"command":["x","y"]},"priority":7,"delay":"2s"}}"#;
    let spec = TaskSpec {
        priority: 7,
        delay: Some(crate::HumanDuration::secs(2)),
        ..TaskSpec::command(["x", "y"])
    };
    assert_eq!(
        parser.parse(format!("{line}\n").as_bytes()),
        [ParsedOutput::Chain(Box::new(spec))]
    );
}

#[test]
fn errors_of_chained_specs_name_the_path() {
    let chained = |spec: &str| malformed(&format!("{{\"chain\":{spec}}}\n{{\"result\":1}}\n"));
    let message = chained(r#"{"target":{"command":["x"]},"limits":{"memory":1}}"#);
    assert!(
        message.contains("it chained an invalid task, at 'limits.memory'"),
        "{message}"
    );
    let message = chained(r#"{"target":{"command":["x"]},"priority":12}"#);
    assert!(
        message.contains("at 'priority': must be 0 to 9"),
        "{message}"
    );
    assert!(
        chained("7").contains("it chained an invalid task"),
        "{}",
        chained("7")
    );
    assert!(chained(r#"{"target":{"service":"x"}}"#).contains("target"));
}

#[test]
fn converts_reported_errors_to_exits() {
    let plain = ExitStatus::Error {
        message: "no".into(),
        permanent: false,
        retry_after_ms: None,
    };
    assert_eq!(
        after("{\"error\":\"no\"}\n", ExitStatus::Code { code: 7 }),
        (plain, None)
    );
    let line = "{\"error\":{\"message\":\"no\",\"permanent\":true,\"value\":3}}";
    assert_eq!(
        after(line, ENDED),
        (
            ExitStatus::Error {
                message: "no".into(),
                permanent: true,
                retry_after_ms: None
            },
            Some(json!(3))
        )
    );
    let line = "{\"error\":{\"message\":\"no\",\"panicked_at\":\"a.rs:1\"}}";
    assert_eq!(
        after(line, ENDED).0,
        ExitStatus::Panicked {
            message: "no".into(),
            location: "a.rs:1".into()
        }
    );
}

#[test]
fn shows_the_malformed_line() {
    assert!(malformed("hello\n").contains("hello"));
    assert!(malformed("{\"progres\":{}}").contains("progres"));
    assert!(
        malformed("{\"progress\":{\"percent\":1,\"x\":1}}").contains("'x'")
            || malformed("{\"progress\":{\"x\":1}}").contains("x")
    );
    assert_eq!(malformed(""), "it ended without an answer");
    assert_eq!(
        malformed("{\"result\":1}\n{\"result\":2}\n"),
        "it answered twice"
    );
    assert!(malformed(&"x".repeat(LONGEST_LINE + 1)).contains("more than"));
}

#[test]
fn abnormal_exits_outweigh_the_reply() {
    assert_eq!(
        after("{\"result\":1}\n", ExitStatus::Timeout),
        (ExitStatus::Timeout, None)
    );
    assert_eq!(
        after("garbage\n", ExitStatus::Signal { signal: 9 }),
        (ExitStatus::Signal { signal: 9 }, None)
    );
    assert_eq!(
        after("{\"result\":1}\n", ExitStatus::Code { code: 3 }),
        (ExitStatus::Code { code: 3 }, None)
    );
}

proptest! {
    #[test]
    fn parses_replies_split_anywhere(cuts in prop::collection::vec(0usize..120, 0..6), noise: Vec<u8>) {
        let mut text = b"{\"log\":\"a\"}\n\n{\"progress\":{}}\n{\"log\":\"b\"}\n{\"result\":{\"k\":\"v\"}}\n".to_vec();
        text.extend(noise);
        let mut whole = ReplyParser::default();
        let expected = whole.parse(&text);
        let mut pieces = ReplyParser::default();
        let (mut seen, mut rest) = (Vec::new(), text.as_slice());
        for cut in cuts {
            let (piece, after_cut) = rest.split_at(cut.min(rest.len()));
            seen.extend(pieces.parse(piece));
            rest = after_cut;
        }
        seen.extend(pieces.parse(rest));
        prop_assert_eq!(seen, expected);
        prop_assert_eq!(pieces.conclude(ENDED), whole.conclude(ENDED));
    }
}
