//! Control messages as text, as JSON, and as anything else.

use proptest::prelude::*;

use super::*;

fn word() -> impl Strategy<Value = Word> {
    proptest::sample::select(Word::ALL.to_vec())
}

proptest! {
    #[test]
    fn every_message_round_trips(command in word(), request_id in proptest::option::of(".*"), requeue: bool) {
        let message = Control { command, request_id, requeue };
        prop_assert_eq!(message.to_text().parse(), Ok(message));
    }

    #[test]
    fn a_word_is_taken_in_any_case_with_blanks_around(command in word(), upper: [bool; 6], pad in "[ \t\r\n]{0,3}") {
        let mixed: String = command
            .as_str()
            .chars()
            .zip(upper)
            .map(|(c, upper)| if upper { c } else { c.to_ascii_lowercase() })
            .collect();
        prop_assert_eq!(format!("{pad}{mixed}{pad}").parse(), Ok(Control::new(command)));
        prop_assert_eq!(format!("{{\"command\":\"{mixed}\"}}").parse(), Ok(Control::new(command)));
    }

    #[test]
    fn garbage_is_refused_without_a_panic(text in "\\PC*|[\\[\\]{}\":, a-zA-Z]{0,40}") {
        if let Ok(message) = text.parse::<Control>() {
            let is_word = Word::ALL.iter().any(|w| w.as_str().eq_ignore_ascii_case(text.trim()));
            prop_assert!(is_word || text.trim().starts_with('{'), "{text:?} was taken for {message:?}");
        }
    }
}

#[test]
fn json_carries_an_id_that_comes_back_in_the_reply() {
    let message: Control = r#"{"command":"PING","request_id":"r-1"}"#.parse().unwrap();
    let reply = message.reply("ok", "running");
    assert_eq!(
        serde_json::to_string(&reply).unwrap(),
        r#"{"command":"PING","request_id":"r-1","status":"ok","state":"running"}"#
    );
    let message: Control = r#"{"command":"STOP","requeue":true}"#.parse().unwrap();
    assert!(message.requeue && message.request_id.is_none());
}

#[test]
fn what_is_no_message_is_refused_with_the_words_there_are() {
    let bad = [
        "",
        " ",
        "HALT",
        "STOP NOW",
        "STOP\0",
        "\"STOP\"",
        "[\"KILL\"]",
        "[\"STOP\",null,true]",
        "{}",
        "{\"command\":\"HALT\"}",
        "{\"command\":1}",
        "{\"command\":\"STOP\"",
        "{\"command\":\"STOP\"} x",
        "{\"command\":\"STOP\",\"requestId\":\"1\"}",
        "{\"command\":\"STOP\",\"command\":\"KILL\"}",
        "{\"command\":\"STOP\",\"requeue\":\"yes\"}",
        "{\"command\":\"STOP\",\"request_id\":7}",
        "null",
        "0",
    ];
    for text in bad {
        let error = text.parse::<Control>().expect_err(text);
        assert!(error.to_string().contains("STOP, KILL, PAUSE, RESUME, PING or STATUS"));
    }
}
