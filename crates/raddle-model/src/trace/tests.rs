use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn tid(number: u64) -> Tid {
    Tid::from_u64(1_700_000_000_000_000_000 + number).unwrap()
}

#[test]
fn parses_the_examples_of_the_standard() {
    let parent: TraceParent = EXAMPLE.parse().unwrap();
    assert_eq!(
        (parent.to_string(), parent.is_sampled()),
        (EXAMPLE.to_owned(), true)
    );
    assert_eq!(
        (
            parent.trace.to_string().len(),
            parent.span.to_string().as_str()
        ),
        (32, "00f067aa0ba902b7")
    );
    let unsampled: TraceParent = EXAMPLE.replace("-01", "-00").parse().unwrap();
    assert!(!unsampled.is_sampled());
    // The known fields of a later version are parsed, and written in this version.
    let later: TraceParent = format!("cc{}-what-will-be", &EXAMPLE[2..]).parse().unwrap();
    assert_eq!(later.to_string(), EXAMPLE);
}

#[test]
fn refuses_invalid_trace_contexts() {
    for text in [
        "",
        "00",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
        "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.more",
        "0x-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00_4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7_01",
        "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    ] {
        assert!(text.parse::<TraceParent>().is_err(), "{text}");
    }
    for text in ["", "a\nb", "ä=1", &"x".repeat(513)] {
        assert!(text.parse::<TraceState>().is_err(), "{text}");
    }
    assert!("congo=t61rcWkgMzE,rojo=1".parse::<TraceState>().is_ok());
}

#[test]
fn attempts_are_spans_of_the_given_trace() {
    let mut spec = TaskSpec::command(["true"]);
    spec.traceparent = Some(EXAMPLE.replace("-01", "-00").parse().unwrap());
    spec.tracestate = Some("a=1".parse().unwrap());
    let (first, second) = (spec.trace(tid(0), 1), spec.trace(tid(0), 2));
    let named = spec.traceparent.unwrap();
    assert_eq!(
        (first.parent.trace, first.parent.flags, &first.state),
        (named.trace, 0, &spec.tracestate)
    );
    assert_ne!(first.parent.span, second.parent.span);
    assert_ne!(first.parent.span, named.span);
    assert_eq!(spec.trace(tid(0), 1), first, "the result is deterministic");
}

#[test]
fn a_task_without_a_trace_starts_one() {
    let spec = TaskSpec::command(["true"]);
    let (first, second, other) = (
        spec.trace(tid(0), 1),
        spec.trace(tid(0), 2),
        spec.trace(tid(4096), 1),
    );
    assert_eq!(first.parent.trace, second.parent.trace);
    assert_ne!(first.parent.trace, other.parent.trace);
    assert!(first.parent.is_sampled());
    let spans: HashSet<SpanId> = (0..10_000)
        .flat_map(|n| (1..4).map(move |a| SpanId::from_attempt(tid(n), a)))
        .collect();
    assert_eq!(spans.len(), 30_000);
}

proptest! {
    #[test]
    fn traceparent_round_trips(trace in 1u128.., span in 1u64.., flags: u8) {
        let parent = TraceParent { trace: TraceId(trace), span: SpanId(span), flags };
        prop_assert_eq!(parent.to_string().parse::<TraceParent>().unwrap(), parent);
    }

    #[test]
    fn any_trace_text_parses_without_a_panic(text in "\\PC{0,80}") {
        let _ = text.parse::<TraceParent>();
        let _ = text.parse::<TraceState>();
    }
}
