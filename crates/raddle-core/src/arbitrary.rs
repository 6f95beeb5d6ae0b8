//! Generated values for the property tests of this crate.

use std::time::Duration;

use jiff::Timestamp;
use proptest::{collection, option, prelude::*};
use serde_json::{Map, Value};

use crate::{
    CapSet, Exit, Limits, Retry, Span, Spec, State, Target, Tid,
    limits::LimitKind,
    retry::Backoff,
    spec::{Isolation, Network, Reserved, network::Place},
};

/// Any id there can be.
pub(crate) fn tid() -> impl Strategy<Value = Tid> {
    (1_000_000_000_000_000_000..=i64::MAX as u64).prop_map(|raw| Tid::from_u64(raw).expect("in the range of ids"))
}

/// Any state.
pub(crate) fn state() -> impl Strategy<Value = State> {
    proptest::sample::select(State::ALL.to_vec())
}

/// A span that a person could have written: to the nanosecond, up to a century.
pub(crate) fn span() -> impl Strategy<Value = Span> {
    let century = 100 * 365 * 86_400u64;
    prop_oneof![
        (0..century, 0..1_000_000_000u32).prop_map(|(secs, nanos)| Span(Duration::new(secs, nanos))),
        (0..century).prop_map(Span::secs),
        (0..10_000_000u64).prop_map(Span::millis),
    ]
}

/// A valid capability set.
pub(crate) fn caps() -> impl Strategy<Value = CapSet> {
    collection::vec("[a-c0-9._:@-]{1,3}", 0..6).prop_map(|tags| {
        let mut set = CapSet::new();
        for tag in tags {
            set.insert(&tag).expect("made of the letters of a tag");
        }
        set
    })
}

/// A capability set that people can ask for.
pub(crate) fn requires() -> impl Strategy<Value = CapSet> {
    collection::vec("[a-c0-9._:-][a-c0-9._:@-]{0,2}", 0..6)
        .prop_map(|tags| CapSet::from_people(&tags.join(",")).expect("made of the letters of a tag"))
}

/// A valid retry policy.
pub(crate) fn retry() -> impl Strategy<Value = Retry> {
    (1..20u32, backoff(), span(), span(), 0.0..=1.0f64).prop_map(|(attempts, backoff, base, max, jitter)| Retry {
        attempts,
        backoff,
        base,
        max,
        jitter,
    })
}

/// Any way for pauses to grow.
pub(crate) fn backoff() -> impl Strategy<Value = Backoff> {
    prop_oneof![Just(Backoff::Constant), Just(Backoff::Linear), Just(Backoff::Exponential)]
}

/// Any fate of a message in `reserved`.
pub(crate) fn reserved() -> impl Strategy<Value = Reserved> {
    prop_oneof![Just(Reserved::Requeue), Just(Reserved::Keep), Just(Reserved::Clear)]
}

/// Any end of an attempt that is neither success nor asked for nor a loss.
pub(crate) fn failure() -> impl Strategy<Value = Exit> {
    prop_oneof![
        prop_oneof![-255..0i32, 1..256i32].prop_map(|code| Exit::Code { code }),
        (1..65i32).prop_map(|signal| Exit::Signal { signal }),
        Just(Exit::Timeout),
        Just(Exit::OutOfMemory),
        Just(Exit::Limit { limit: LimitKind::MaxProcs }),
        Just(Exit::NotFound { message: "no such program".into() }),
        Just(Exit::NotExecutable { message: "not executable".into() }),
        Just(Exit::SpawnFailed { message: "no such folder".into() }),
    ]
}

/// Any end of an attempt.
pub(crate) fn exit() -> impl Strategy<Value = Exit> {
    prop_oneof![
        3 => failure(),
        2 => Just(Exit::Lost { message: "worker gone".into() }),
        1 => Just(Exit::Lapsed),
        1 => Just(Exit::Code { code: 0 }),
        1 => Just(Exit::Cancelled),
        1 => Just(Exit::Killed),
    ]
}

/// A valid spec that both JSON and TOML can say: TOML has no null.
pub(crate) fn spec() -> impl Strategy<Value = Spec> {
    let texts = (
        option::of("[^\\p{Cc}]{1,30}"),
        option::of("\\PC{0,40}|(line\n\t){0,3}"),
        option::of("[a-z0-9._:@/-]{1,20}"),
        "[a-zA-Z0-9._:@/-]{1,20}",
        option::of("[^\\x00]{1,20}"),
        option::of("\\PC{1,20}"),
    );
    let values =
        (collection::vec(value(), 0..4), object(), object(), collection::btree_map("[A-Z_]{1,8}", "\\PC*", 0..4));
    let positive = || span().prop_filter("zero", |s| *s != Span::default());
    let times = (option::of(when()), option::of(positive()), option::of(span()), option::of(positive()));
    let trace = option::of((1u128.., 1u64.., any::<u8>(), option::of("[a-z]{1,9}=[!-~]{0,9}")));
    let policies = (retry(), reserved(), reserved(), isolation(), limits(), requires(), 0..=9u8);
    (target(), texts, values, times, policies, trace).prop_map(|(target, texts, values, times, policies, trace)| {
        let mut spec = Spec::new(target);
        (spec.name, spec.stdin, spec.kind, spec.queue, spec.cwd, spec.unique_key) = texts;
        (spec.args, spec.kwargs, spec.metadata, spec.env) = values;
        match times.0 {
            Some(When::After(delay)) => spec.delay = Some(delay),
            Some(When::At(at)) => spec.run_at = Some(at),
            None => {}
        }
        (spec.timeout, spec.result_ttl) = (times.1, times.2);
        spec.lifetime = times.3.filter(|life| spec.delay.is_none_or(|delay| delay < *life));
        let apart;
        (spec.retry, spec.on_stop, spec.on_error, apart, spec.limits, spec.requires, spec.priority) = policies;
        (spec.isolation, spec.isolation_fallback, spec.network) = apart;
        spec.cwd = spec.cwd.take().filter(|_| spec.isolation == Isolation::Process);
        if let Some((trace, span, flags, state)) = trace {
            let parent = format!("00-{trace:032x}-{span:016x}-{flags:02x}");
            spec.traceparent = Some(parent.parse().expect("made as it has to be"));
            spec.tracestate = state.map(|state| state.parse().expect("made as it has to be"));
        }
        spec
    })
}

#[derive(Clone, Debug)]
enum When {
    After(Span),
    At(Timestamp),
}

fn when() -> impl Strategy<Value = When> {
    prop_oneof![
        span().prop_map(When::After),
        (0..4_000_000_000i64, 0..1_000_000_000i32)
            .prop_map(|(secs, nanos)| When::At(Timestamp::new(secs, nanos).expect("within the calendar"))),
    ]
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![
        ("[^\\x00]{1,12}", collection::vec("[^\\x00]{0,12}", 0..4)).prop_map(|(program, mut words)| {
            words.insert(0, program);
            Target::Command(words)
        }),
        "[a-z:_]{1,20}".prop_map(Target::Routine),
        "[a-z:_]{1,20}".prop_map(Target::Handler),
    ]
}

fn isolation() -> impl Strategy<Value = (Isolation, bool, Network)> {
    prop_oneof![
        Just((Isolation::Process, false, Network::None)),
        (any::<bool>(), network()).prop_map(|(fallback, network)| (Isolation::Sandbox, fallback, network)),
        network().prop_map(|network| (Isolation::Docker, false, network)),
    ]
}

fn network() -> impl Strategy<Value = Network> {
    let place = prop_oneof!["[a-zA-Z0-9._-]{1,20}", Just("10.0.0.1".into()), Just("[fe80::1]".into())];
    let place = (place, 1u16..).prop_filter_map("a name", |(host, port)| Place::new(&host, port).ok());
    prop_oneof![
        Just(Network::None),
        Just(Network::Host),
        collection::vec(place, 1..4).prop_map(|places| Network::only(places).expect("not empty, and few")),
    ]
}

fn limits() -> impl Strategy<Value = Limits> {
    let some = || option::of(1..=i64::MAX as u64);
    (some(), option::of(1..=u32::MAX), some(), some()).prop_map(|(memory_mb, cpu_percent, max_fds, max_procs)| Limits {
        memory_mb,
        cpu_percent,
        max_fds,
        max_procs,
    })
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e9..1e9f64).prop_map(Value::from),
        "\\PC{0,10}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            collection::btree_map("\\PC{1,5}", inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn object() -> impl Strategy<Value = Map<String, Value>> {
    collection::btree_map("\\PC{1,8}", value(), 0..3).prop_map(|map| map.into_iter().collect())
}
