//! Proptest strategies for the types of this crate.

use std::time::Duration;

use jiff::Timestamp;
use proptest::{collection, option, prelude::*};
use serde_json::{Map, Value};

use crate::{
    CapSet, ExitStatus, HumanDuration, Limits, RetryPolicy, Target, TaskSpec, TaskState, Tid,
    limits::LimitKind,
    retry::BackoffCurve,
    spec::{Isolation, NetworkPolicy, ReservedPolicy, network::NetworkEndpoint},
};

pub(crate) fn tid() -> impl Strategy<Value = Tid> {
    (1_000_000_000_000_000_000..=i64::MAX as u64)
        .prop_map(|raw| Tid::from_u64(raw).expect("in the range of ids"))
}

pub(crate) fn state() -> impl Strategy<Value = TaskState> {
    proptest::sample::select(TaskState::ALL.to_vec())
}

/// Durations that a person could write: nanosecond precision, up to a century.
pub(crate) fn duration() -> impl Strategy<Value = HumanDuration> {
    let century = 100 * 365 * 86_400u64;
    prop_oneof![
        (0..century, 0..1_000_000_000u32)
            .prop_map(|(secs, nanos)| HumanDuration(Duration::new(secs, nanos))),
        (0..century).prop_map(HumanDuration::secs),
        (0..10_000_000u64).prop_map(HumanDuration::millis),
    ]
}

pub(crate) fn caps() -> impl Strategy<Value = CapSet> {
    collection::vec("[a-c0-9._:@-]{1,3}", 0..6).prop_map(|tags| {
        let mut set = CapSet::new();
        for tag in tags {
            set.insert(&tag).expect("made of the letters of a tag");
        }
        set
    })
}

/// Capability sets that users may require.
pub(crate) fn requires() -> impl Strategy<Value = CapSet> {
    collection::vec("[a-c0-9._:-][a-c0-9._:@-]{0,2}", 0..6).prop_map(|tags| {
        CapSet::from_people(&tags.join(",")).expect("made of the letters of a tag")
    })
}

/// Valid retry policies.
pub(crate) fn retry() -> impl Strategy<Value = RetryPolicy> {
    (1..20u32, backoff(), duration(), duration(), 0.0..=1.0f64).prop_map(
        |(attempts, backoff, base, max, jitter)| RetryPolicy {
            attempts,
            backoff,
            base,
            max,
            jitter,
        },
    )
}

pub(crate) fn backoff() -> impl Strategy<Value = BackoffCurve> {
    prop_oneof![
        Just(BackoffCurve::Constant),
        Just(BackoffCurve::Linear),
        Just(BackoffCurve::Exponential)
    ]
}

pub(crate) fn reserved() -> impl Strategy<Value = ReservedPolicy> {
    prop_oneof![
        Just(ReservedPolicy::Requeue),
        Just(ReservedPolicy::Keep),
        Just(ReservedPolicy::Clear)
    ]
}

/// Exits that are neither a success, nor requested, nor the loss of a worker.
pub(crate) fn failure() -> impl Strategy<Value = ExitStatus> {
    prop_oneof![
        prop_oneof![-255..0i32, 1..256i32].prop_map(|code| ExitStatus::Code { code }),
        (1..65i32).prop_map(|signal| ExitStatus::Signal { signal }),
        Just(ExitStatus::Timeout),
        Just(ExitStatus::OutOfMemory),
        Just(ExitStatus::Limit {
            limit: LimitKind::MaxProcs
        }),
        Just(ExitStatus::NotFound {
            message: "no such program".into()
        }),
        Just(ExitStatus::NotExecutable {
            message: "not executable".into()
        }),
        Just(ExitStatus::SpawnFailed {
            message: "no such directory".into()
        }),
    ]
}

pub(crate) fn exit() -> impl Strategy<Value = ExitStatus> {
    prop_oneof![
        3 => failure(),
        2 => Just(ExitStatus::WorkerLost { message: "worker gone".into() }),
        1 => Just(ExitStatus::LeaseExpired),
        1 => Just(ExitStatus::Code { code: 0 }),
        1 => Just(ExitStatus::Cancelled),
        1 => Just(ExitStatus::Killed),
    ]
}

/// Valid specs that both JSON and TOML can express: TOML has no null.
pub(crate) fn spec() -> impl Strategy<Value = TaskSpec> {
    let texts = (
        option::of("[^\\p{Cc}]{1,30}"),
        option::of("\\PC{0,40}|(line\n\t){0,3}"),
        option::of("[a-z0-9._:@/-]{1,20}"),
        "[a-zA-Z0-9._:@/-]{1,20}",
        option::of("[^\\x00]{1,20}"),
        option::of("\\PC{1,20}"),
    );
    let values = (
        collection::vec(value(), 0..4),
        object(),
        object(),
        collection::btree_map("[A-Z_]{1,8}", "\\PC*", 0..4),
    );
    let positive = || duration().prop_filter("zero", |s| *s != HumanDuration::default());
    let times = (
        option::of(when()),
        option::of(positive()),
        option::of(duration()),
        option::of(positive()),
    );
    let trace = option::of((
        1u128..,
        1u64..,
        any::<u8>(),
        option::of("[a-z]{1,9}=[!-~]{0,9}"),
    ));
    let policies = (
        retry(),
        reserved(),
        reserved(),
        isolation(),
        limits(),
        requires(),
        0..=9u8,
    );
    (target(), texts, values, times, policies, trace).prop_map(
        |(target, texts, values, times, policies, trace)| {
            let mut spec = TaskSpec::new(target);
            (
                spec.name,
                spec.stdin,
                spec.kind,
                spec.queue,
                spec.cwd,
                spec.unique_key,
            ) = texts;
            (spec.args, spec.kwargs, spec.metadata, spec.env) = values;
            match times.0 {
                Some(When::After(delay)) => spec.delay = Some(delay),
                Some(When::At(at)) => spec.run_at = Some(at),
                None => {}
            }
            (spec.timeout, spec.result_ttl) = (times.1, times.2);
            spec.lifetime = times
                .3
                .filter(|life| spec.delay.is_none_or(|delay| delay < *life));
            let isolated;
            (
                spec.retry,
                spec.on_stop,
                spec.on_error,
                isolated,
                spec.limits,
                spec.requires,
                spec.priority,
            ) = policies;
            (spec.isolation, spec.isolation_fallback, spec.network) = isolated;
            if spec.isolation == Some(Isolation::Shared) && spec.process_only_key().is_some() {
                spec.isolation = None;
            }
            spec.cwd = spec
                .cwd
                .take()
                .filter(|_| spec.isolation() == Isolation::Process);
            if let Some((trace, span, flags, state)) = trace {
                let parent = format!("00-{trace:032x}-{span:016x}-{flags:02x}");
                spec.traceparent = Some(parent.parse().expect("made as it has to be"));
                spec.tracestate = state.map(|state| state.parse().expect("made as it has to be"));
            }
            spec
        },
    )
}

#[derive(Clone, Debug)]
enum When {
    After(HumanDuration),
    At(Timestamp),
}

fn when() -> impl Strategy<Value = When> {
    prop_oneof![
        duration().prop_map(When::After),
        (0..4_000_000_000i64, 0..1_000_000_000i32).prop_map(|(secs, nanos)| When::At(
            Timestamp::new(secs, nanos).expect("within the calendar")
        )),
    ]
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![
        ("[^\\x00]{1,12}", collection::vec("[^\\x00]{0,12}", 0..4)).prop_map(
            |(program, mut words)| {
                words.insert(0, program);
                Target::Command(words)
            }
        ),
        "[a-z:_]{1,20}".prop_map(Target::Routine),
        "[a-z:_]{1,20}".prop_map(Target::Handler),
    ]
}

fn isolation() -> impl Strategy<Value = (Option<Isolation>, bool, NetworkPolicy)> {
    prop_oneof![
        Just((None, false, NetworkPolicy::None)),
        Just((Some(Isolation::Shared), false, NetworkPolicy::None)),
        Just((Some(Isolation::Process), false, NetworkPolicy::None)),
        (any::<bool>(), network()).prop_map(|(fallback, network)| (
            Some(Isolation::Sandbox),
            fallback,
            network
        )),
        network().prop_map(|network| (Some(Isolation::Docker), false, network)),
    ]
}

fn network() -> impl Strategy<Value = NetworkPolicy> {
    let endpoint = prop_oneof![
        "[a-zA-Z0-9._-]{1,20}",
        Just("10.0.0.1".into()),
        Just("[fe80::1]".into())
    ];
    let endpoint = (endpoint, 1u16..).prop_filter_map("a name", |(host, port)| {
        NetworkEndpoint::new(&host, port).ok()
    });
    prop_oneof![
        Just(NetworkPolicy::None),
        Just(NetworkPolicy::Host),
        collection::vec(endpoint, 1..4)
            .prop_map(|endpoints| NetworkPolicy::only(endpoints).expect("not empty, and few")),
    ]
}

fn limits() -> impl Strategy<Value = Limits> {
    let some = || option::of(1..=i64::MAX as u64);
    (some(), option::of(1..=u32::MAX), some(), some()).prop_map(
        |(memory_mb, cpu_percent, max_fds, max_procs)| Limits {
            memory_mb,
            cpu_percent,
            max_fds,
            max_procs,
        },
    )
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
            collection::btree_map("\\PC{1,5}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn object() -> impl Strategy<Value = Map<String, Value>> {
    collection::btree_map("\\PC{1,8}", value(), 0..3).prop_map(|map| map.into_iter().collect())
}
