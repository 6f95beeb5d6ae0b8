//! The transition table, written out a second time.

use proptest::prelude::*;

use super::*;
use crate::{arbitrary, event::TaskEventKind};

/// Rows: from. Columns: to, in the order of [`TaskState::ALL`]. `x` is a legal transition.
const TABLE: [&str; 8] = [
    // c  s  r  c  f  t  c  k
    ". x . . x . x x", // created: claimed, stopped, killed, or given up while waiting
    "x . x . x x x x", // spawning: given back, begun, or over before it began
    "x . . x x x x x", // running: over, or to be tried again
    ". . . . . . . .", // completed
    ". . . . . . . .", // failed
    ". . . . . . . .", // timeout
    ". . . . . . . .", // cancelled
    ". . . . . . . .", // killed
];

#[test]
fn transitions_match_the_table() {
    for (from, row) in TaskState::ALL.into_iter().zip(TABLE) {
        let row: Vec<bool> = row.split(' ').map(|cell| cell == "x").collect();
        for (to, legal) in TaskState::ALL.into_iter().zip(row) {
            assert_eq!(from.may_become(to), legal, "{from} -> {to}");
        }
    }
}

#[test]
fn lists_the_terminal_states() {
    let terminal: Vec<_> = TaskState::ALL
        .into_iter()
        .filter(|s| s.is_terminal())
        .map(TaskState::as_str)
        .collect();
    assert_eq!(
        terminal,
        ["completed", "failed", "timeout", "cancelled", "killed"]
    );
}

#[test]
fn every_state_is_reachable_and_only_terminal_ones_are_final() {
    for state in TaskState::ALL {
        let reached =
            state == TaskState::Created || TaskState::ALL.iter().any(|from| from.may_become(state));
        let left = TaskState::ALL.into_iter().any(|to| state.may_become(to));
        assert!(reached && left != state.is_terminal(), "{state}");
    }
}

#[test]
fn names_numbers_and_events_agree() {
    for (number, state) in TaskState::ALL.into_iter().enumerate() {
        assert_eq!(TaskState::from_u8(number as u8), Some(state));
        assert_eq!(state.as_str().parse(), Ok(state));
        assert_eq!(
            serde_json::to_value(state).expect("a string"),
            state.as_str()
        );
        let event = TaskEventKind::from(state);
        assert_eq!(
            (event.as_str(), event.is_terminal()),
            (state.as_str(), state.is_terminal())
        );
        assert_eq!(TaskEventKind::from_u8(number as u8), Some(event));
    }
    assert_eq!(TaskState::from_u8(8), None);
    assert!(
        "Running"
            .parse::<TaskState>()
            .is_err_and(|e| e.to_string().contains("'Running' is not a state"))
    );
}

#[test]
fn event_numbers_and_names_agree() {
    let mut number = 0;
    while let Some(event) = TaskEventKind::from_u8(number) {
        assert_eq!(event as u8, number);
        assert_eq!(
            serde_json::to_value(event).expect("a string"),
            event.as_str()
        );
        number += 1;
    }
    assert_eq!(number, 16);
}

proptest! {
    #[test]
    fn no_sequence_leaves_a_terminal_state(targets in proptest::collection::vec(arbitrary::state(), 0..100)) {
        let mut state = TaskState::Created;
        let mut ended = None;
        for target in targets {
            if state.may_become(target) {
                state = target;
            }
            if state.is_terminal() {
                prop_assert_eq!(*ended.get_or_insert(state), state);
            }
        }
    }
}
