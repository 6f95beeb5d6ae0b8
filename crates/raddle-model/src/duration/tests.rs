//! Durations as text and as numbers, and the inputs that are refused.

use proptest::prelude::*;

use super::*;
use crate::arbitrary;

proptest! {
    #[test]
    fn json_keeps_every_nanosecond(duration in arbitrary::duration()) {
        let json = serde_json::to_string(&duration).expect("a number or text");
        prop_assert_eq!(serde_json::from_str::<HumanDuration>(&json).expect("the same"), duration);
    }

    #[test]
    fn display_round_trips(duration in arbitrary::duration()) {
        prop_assert_eq!(duration.to_string().parse(), Ok(duration));
    }

    #[test]
    fn any_text_parses_or_is_refused(text in "\\PC*|[0-9.eE+hmsinafd -]{0,12}") {
        if let Ok(duration) = text.parse::<HumanDuration>() {
            prop_assert!(duration.0 <= MAX_DURATION);
        }
    }
}

#[test]
fn parses_seconds_and_units() {
    for (text, millis) in [
        ("90", 90_000),
        ("1.5", 1_500),
        ("0", 0),
        (" 3 ", 3_000),
        ("500ms", 500),
        ("30s", 30_000),
        ("5m", 300_000),
        ("1h30m", 5_400_000),
        ("1h 30m", 5_400_000),
        ("2d", 172_800_000),
        ("1.5d", 129_600_000),
        ("1d 1h", 90_000_000),
    ] {
        assert_eq!(text.parse(), Ok(HumanDuration::millis(millis)), "{text}");
    }
}

#[test]
fn refuses_invalid_durations() {
    for text in [
        "",
        "-1",
        "-5s",
        "nan",
        "inf",
        "1e30",
        "soon",
        "5 parsecs",
        "101y",
        "1s\0",
        "d",
        "1day",
        "-1d",
        "1d-5s",
        "40000d",
    ] {
        let error = text.parse::<HumanDuration>().expect_err(text).to_string();
        assert!(error.contains("is not a duration"), "{error}");
    }
    for json in [
        "-1", "-0.5", "1e300", "null", "true", "[1]", "{}", "\"soon\"",
    ] {
        assert!(
            serde_json::from_str::<HumanDuration>(json).is_err(),
            "{json}"
        );
    }
}
