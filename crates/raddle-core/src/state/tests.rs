//! The table of states, written out a second time.

use proptest::prelude::*;

use super::*;
use crate::{arbitrary, event::EventKind};

/// Rows: from. Columns: to, in the order of [`State::ALL`]. `x` is a legal step.
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
fn every_pair_of_states_is_as_in_the_table() {
    for (from, row) in State::ALL.into_iter().zip(TABLE) {
        let row: Vec<bool> = row.split(' ').map(|cell| cell == "x").collect();
        for (to, legal) in State::ALL.into_iter().zip(row) {
            assert_eq!(from.may_become(to), legal, "{from} -> {to}");
        }
    }
}

#[test]
fn terminal_states_are_those_that_end_a_task() {
    let terminal: Vec<_> = State::ALL.into_iter().filter(|s| s.is_terminal()).map(State::as_str).collect();
    assert_eq!(terminal, ["completed", "failed", "timeout", "cancelled", "killed"]);
}

#[test]
fn every_state_can_be_reached_and_every_waiting_one_left() {
    for state in State::ALL {
        let reached = state == State::Created || State::ALL.iter().any(|from| from.may_become(state));
        let left = State::ALL.into_iter().any(|to| state.may_become(to));
        assert!(reached && left != state.is_terminal(), "{state}");
    }
}

#[test]
fn names_numbers_and_events_agree() {
    for (number, state) in State::ALL.into_iter().enumerate() {
        assert_eq!(State::from_u8(number as u8), Some(state));
        assert_eq!(state.as_str().parse(), Ok(state));
        assert_eq!(serde_json::to_value(state).expect("a string"), state.as_str());
        let event = EventKind::from(state);
        assert_eq!((event.as_str(), event.is_terminal()), (state.as_str(), state.is_terminal()));
        assert_eq!(EventKind::from_u8(number as u8), Some(event));
    }
    assert_eq!(State::from_u8(8), None);
    assert!("Running".parse::<State>().is_err_and(|e| e.to_string().contains("'Running' is not a state")));
}

#[test]
fn event_numbers_and_names_agree() {
    let mut number = 0;
    while let Some(event) = EventKind::from_u8(number) {
        assert_eq!(event as u8, number);
        assert_eq!(serde_json::to_value(event).expect("a string"), event.as_str());
        number += 1;
    }
    assert_eq!(number, 16);
}

proptest! {
    #[test]
    fn no_sequence_leaves_a_terminal_state(wishes in proptest::collection::vec(arbitrary::state(), 0..100)) {
        let mut state = State::Created;
        let mut ended = None;
        for wish in wishes {
            if state.may_become(wish) {
                state = wish;
            }
            if state.is_terminal() {
                prop_assert_eq!(*ended.get_or_insert(state), state);
            }
        }
    }
}
