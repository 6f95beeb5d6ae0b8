//! Flags that say what a task is to do, one for each key of a spec.

use std::path::PathBuf;

use clap::{
    Args,
    builder::{PossibleValuesParser, TypedValueParser},
};
use jiff::{Timestamp, fmt::temporal::Pieces};
use raddle_model::{
    CapSet, HumanDuration,
    retry::BackoffCurve,
    spec::{Isolation, Mount, NetworkPolicy, ReservedPolicy},
    trace::{TraceParent, TraceState},
};
use serde::de::DeserializeOwned;

/// What a task is to do, apart from its command.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Task options")]
pub(crate) struct SpecArgs {
    /// A name to find it by [default: that of its program]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// How long one attempt may take (90, 1.5, 30s, 5m, 1h30m)
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<HumanDuration>,
    /// How much memory its processes may use together, in MiB (512), or with a unit (512M, 2G)
    #[arg(long, value_name = "MB", value_parser = mebibytes)]
    pub(crate) memory: Option<u64>,
    /// How much processor time it may use, where 100 is one core
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub(crate) cpu: Option<u32>,
    /// How many files each of its processes may have open
    #[arg(long, value_name = "N")]
    pub(crate) max_fds: Option<u64>,
    /// How many processes and threads it may have
    #[arg(long, value_name = "N")]
    pub(crate) max_procs: Option<u64>,
    /// Set a variable in its environment; can be repeated
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = pair)]
    pub(crate) env: Vec<(String, String)>,
    /// The isolation level
    #[arg(long, value_name = "HOW", value_parser = one_of::<Isolation>(["process", "sandbox", "docker"]))]
    pub(crate) isolation: Option<Isolation>,
    /// Run without the sandbox layers that this system refuses, instead of failing
    #[arg(long)]
    pub(crate) isolation_fallback: bool,
    /// Network access of its sandbox: 'none', 'host', or endpoints such as example.org:443
    #[arg(long, value_name = "WHAT")]
    pub(crate) network: Option<NetworkPolicy>,
    /// Show its sandbox a directory or file of the host, which it can write only with :rw; can be repeated
    #[arg(long, value_name = "HOST:PATH[:rw]")]
    pub(crate) mount: Vec<Mount>,
    /// Show its sandbox this directory as /out, where it can write; made if it is not there
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Its working directory [default: the current one]
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<PathBuf>,
    /// Give it our standard input, read to its end (text, at most 16 MiB)
    #[arg(long)]
    pub(crate) stdin: bool,
    /// Try up to N more times after the first when it fails
    #[arg(long, value_name = "N")]
    pub(crate) retry: Option<u32>,
    /// How the pause before another try grows
    #[arg(long, value_name = "HOW", value_parser = one_of::<BackoffCurve>(["constant", "linear", "exponential"]))]
    pub(crate) backoff: Option<BackoffCurve>,
    /// The first pause before another try
    #[arg(long, value_name = "TIME")]
    pub(crate) retry_base: Option<HumanDuration>,
    /// The longest pause before another try
    #[arg(long, value_name = "TIME")]
    pub(crate) retry_max: Option<HumanDuration>,
    /// 0 to 9; higher runs first, and 5 is usual
    #[arg(long, value_name = "0-9", value_parser = clap::value_parser!(u8).range(0..=9))]
    pub(crate) priority: Option<u8>,
    /// Capabilities that a worker must have to take it
    #[arg(long, value_name = "A,B", value_parser = CapSet::from_people)]
    pub(crate) requires: Option<CapSet>,
    /// The queue it waits in
    #[arg(long)]
    pub(crate) queue: Option<String>,
    /// How long to wait before it may begin
    #[arg(long, value_name = "TIME", conflicts_with = "run_at")]
    pub(crate) delay: Option<HumanDuration>,
    /// When it may begin, such as 2026-11-30T08:00:00Z
    #[arg(long, value_name = "WHEN", value_parser = moment)]
    pub(crate) run_at: Option<Timestamp>,
    /// How long it may wait for a worker: after that it expires, and is never run
    #[arg(long, value_name = "TIME", conflicts_with = "run_before")]
    pub(crate) lifetime: Option<HumanDuration>,
    /// The same as a time, such as 2026-11-30T08:10:00Z
    #[arg(long, value_name = "WHEN", value_parser = moment)]
    pub(crate) run_before: Option<Timestamp>,
    /// While a task with this key is unfinished, return that one instead of submitting another
    #[arg(long, value_name = "KEY")]
    pub(crate) unique_key: Option<String>,
    /// A label for metrics
    #[arg(long)]
    pub(crate) kind: Option<String>,
    /// The batch it belongs to: see 'raddle batch'
    #[arg(long)]
    pub(crate) batch: Option<String>,
    /// How long to keep its record once it is finished
    #[arg(long, value_name = "TIME")]
    pub(crate) result_ttl: Option<HumanDuration>,
    /// What happens to its message when it is stopped
    #[arg(long, value_name = "WHAT", value_parser = one_of::<ReservedPolicy>(ON_END))]
    pub(crate) on_stop: Option<ReservedPolicy>,
    /// What happens to its message when its attempts are used up
    #[arg(long, value_name = "WHAT", value_parser = one_of::<ReservedPolicy>(ON_END))]
    pub(crate) on_error: Option<ReservedPolicy>,
    /// The W3C trace context it belongs to [default: TRACEPARENT of the environment]
    #[arg(long, value_name = "CONTEXT")]
    pub(crate) traceparent: Option<TraceParent>,
    /// The tracestate that goes with it
    #[arg(long, value_name = "LIST", requires = "traceparent")]
    pub(crate) tracestate: Option<TraceState>,
    /// Attach metadata; can be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub(crate) meta: Vec<(String, String)>,
}

const ON_END: [&str; 3] = ["requeue", "keep", "clear"];

/// Reads one of these names as a spec does. Only what is listed is offered.
pub(crate) fn one_of<T: DeserializeOwned + Clone + Send + Sync + 'static>(
    names: impl Into<PossibleValuesParser>,
) -> impl TypedValueParser<Value = T> {
    names
        .into()
        .try_map(|name| serde_json::from_value(name.into()))
}

/// An amount of memory in whole MiB; what is less than one counts as one.
fn mebibytes(text: &str) -> Result<u64, &'static str> {
    const FORM: &str = "write whole MiB, or give a unit: 512, 512M, 2G";
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| FORM)?;
    match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "m" | "mb" | "mib" => Ok(number),
        "k" | "kb" | "kib" => Ok(number.div_ceil(1024)),
        "g" | "gb" | "gib" => number
            .checked_mul(1024)
            .ok_or("is more than any machine has"),
        _ => Err(FORM),
    }
}

/// A share of a core, with or without its sign.
fn percent(text: &str) -> Result<u32, &'static str> {
    text.strip_suffix('%')
        .unwrap_or(text)
        .parse()
        .map_err(|_| "write whole percent of a core: 50, or 200 for two cores")
}

pub(crate) fn moment(text: &str) -> Result<Timestamp, &'static str> {
    const FORM: &str =
        "write date, time and zone: 2026-11-30T08:00:00Z, or 2026-11-30T08:00:00+01:00";
    const RANGE: &str = "is too far away: name a time before 9999-12-30T22:00:00Z";
    let is_whole = |pieces: Pieces<'_>| pieces.time().is_some() && pieces.offset().is_some();
    text.parse().map_err(|_| {
        if Pieces::parse(text).is_ok_and(is_whole) {
            RANGE
        } else {
            FORM
        }
    })
}

fn pair(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.into(), value.into())),
        _ => Err("write it as KEY=VALUE"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_units() {
        for (text, expected) in [
            ("512", 512),
            ("512M", 512),
            ("1g", 1024),
            ("2GiB", 2048),
            ("1k", 1),
            ("3000KB", 3),
        ] {
            assert_eq!(mebibytes(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "g",
            "1.5g",
            "-1",
            "1 g",
            "1t",
            "many",
            &format!("{}g", u64::MAX),
        ] {
            assert!(mebibytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_time_that_cannot_be_told_is_not_a_mistake_in_form() {
        assert!(moment("9999-12-30T21:59:59Z").is_ok() && moment("0001-01-01T00:00:00Z").is_ok());
        assert!(
            moment("9999-12-31T23:59:59Z")
                .unwrap_err()
                .contains("too far away")
        );
        for text in [
            "",
            "tomorrow",
            "2026-11-30",
            "2026-11-30T08:00:00",
            "2026-13-30T08:00:00Z",
        ] {
            assert!(
                moment(text)
                    .unwrap_err()
                    .contains("write date, time and zone"),
                "{text}"
            );
        }
    }

    #[test]
    fn shares_may_have_their_sign() {
        assert_eq!((percent("50"), percent("50%")), (Ok(50), Ok(50)));
        assert!(
            ["", "%", "half", "1.5", "-1", "50%%"]
                .into_iter()
                .all(|text| percent(text).is_err())
        );
    }
}
