//! Titles are safe to paste into a shell, whatever the name of the task.

use proptest::prelude::*;

use super::*;
use crate::{TaskState, arbitrary};

proptest! {
    #[test]
    fn titles_are_shell_safe_for_any_name(tid in arbitrary::tid(), name in any::<String>(), state in arbitrary::state()) {
        let title = format(tid, &name, state.as_str());
        let safe = |c: char| c.is_ascii_alphanumeric() || "._-:".contains(c);
        prop_assert!(title.chars().all(safe), "{title:?}");
        prop_assert!(title.len() <= "raddle-".len() + 10 + 1 + MAX_NAME + 1 + "completed".len());
    }

    #[test]
    fn a_title_has_three_parts_for_any_name(tid in arbitrary::tid(), name in any::<String>(), state in arbitrary::state()) {
        let title = format(tid, &name, state.as_str());
        let parts: Vec<_> = title.split(':').collect();
        prop_assert_eq!(parts.len(), 3);
        prop_assert_eq!(parts[0], format!("raddle-{}", tid.short()));
        prop_assert!(!parts[1].is_empty());
        prop_assert_eq!(parts[2].parse::<TaskState>(), Ok(state));
    }

    #[test]
    fn plain_names_are_shown_as_they_are(tid in arbitrary::tid(), name in "[a-zA-Z0-9._-]{1,48}") {
        prop_assert_eq!(format(tid, &name, "running"), format!("raddle-{}:{name}:running", tid.short()));
    }
}

#[test]
fn replaces_shell_metacharacters() {
    let tid = "1790000000000000001".parse().unwrap();
    assert_eq!(
        format(tid, "$(rm -rf ~); echo 'x'", "running"),
        "raddle-0000000001:__rm_-rf_____echo__x_:running"
    );
    assert_eq!(format(tid, "", "created"), "raddle-0000000001:task:created");
    assert_eq!(
        format(tid, "a:b\n", "created"),
        "raddle-0000000001:a_b_:created"
    );
}
