//! Spans as text, as numbers, and what is refused.

use proptest::prelude::*;

use super::*;
use crate::arbitrary;

proptest! {
    #[test]
    fn json_keeps_every_nanosecond(span in arbitrary::span()) {
        let json = serde_json::to_string(&span).expect("a number or text");
        prop_assert_eq!(serde_json::from_str::<Span>(&json).expect("the same"), span);
    }

    #[test]
    fn what_is_shown_can_be_read_back(span in arbitrary::span()) {
        prop_assert_eq!(span.to_string().parse(), Ok(span));
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC*|[0-9.eE+hmsinafd -]{0,12}") {
        if let Ok(span) = text.parse::<Span>() {
            prop_assert!(span.0 <= LONGEST);
        }
    }
}

#[test]
fn people_write_spans_in_many_ways() {
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
        assert_eq!(text.parse(), Ok(Span::millis(millis)), "{text}");
    }
}

#[test]
fn what_is_no_length_of_time_is_refused() {
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
        let error = text.parse::<Span>().expect_err(text).to_string();
        assert!(error.contains("is not a duration"), "{error}");
    }
    for json in ["-1", "-0.5", "1e300", "null", "true", "[1]", "{}", "\"soon\""] {
        assert!(serde_json::from_str::<Span>(json).is_err(), "{json}");
    }
}
