//! Parsing of control messages: as text, as JSON, and garbage.

use proptest::prelude::*;

use super::*;

fn any_command() -> impl Strategy<Value = ControlCommand> {
    proptest::sample::select(ControlCommand::ALL.to_vec())
}

proptest! {
    #[test]
    fn every_message_round_trips(command in any_command(), request_id in proptest::option::of(".*"), requeue: bool) {
        let message = ControlMessage { command, request_id, requeue };
        prop_assert_eq!(message.to_text().parse(), Ok(message));
    }

    #[test]
    fn parses_commands_in_any_case_with_surrounding_blanks(command in any_command(), upper: [bool; 6], pad in "[ \t\r\n]{0,3}") {
        let mixed: String = command
            .as_str()
            .chars()
            .zip(upper)
            .map(|(c, upper)| if upper { c } else { c.to_ascii_lowercase() })
            .collect();
        prop_assert_eq!(format!("{pad}{mixed}{pad}").parse(), Ok(ControlMessage::new(command)));
        prop_assert_eq!(format!("{{\"command\":\"{mixed}\"}}").parse(), Ok(ControlMessage::new(command)));
    }

    #[test]
    fn refuses_garbage_without_a_panic(text in "\\PC*|[\\[\\]{}\":, a-zA-Z]{0,40}") {
        if let Ok(message) = text.parse::<ControlMessage>() {
            let is_command = ControlCommand::ALL.iter().any(|w| w.as_str().eq_ignore_ascii_case(text.trim()));
            prop_assert!(is_command || text.trim().starts_with('{'), "{text:?} was taken for {message:?}");
        }
    }
}

#[test]
fn reply_repeats_the_request_id() {
    let message: ControlMessage = r#"{"command":"PING","request_id":"r-1"}"#.parse().unwrap();
    let reply = message.reply("ok", "running");
    assert_eq!(
        serde_json::to_string(&reply).unwrap(),
        r#"{"command":"PING","request_id":"r-1","status":"ok","state":"running"}"#
    );
    let message: ControlMessage = r#"{"command":"STOP","requeue":true}"#.parse().unwrap();
    assert!(message.requeue && message.request_id.is_none());
}

#[test]
fn refuses_invalid_messages_and_lists_the_commands() {
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
        let error = text.parse::<ControlMessage>().expect_err(text);
        assert!(
            error
                .to_string()
                .contains("STOP, KILL, PAUSE, RESUME, PING or STATUS")
        );
    }
}
