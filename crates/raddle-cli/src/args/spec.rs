//! Flags for the keys of a spec.

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

/// The spec of a task, without its command.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Task options")]
pub(crate) struct SpecArgs {
    /// A name for lists and filters [default: the name of the program]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// The timeout of each attempt (90, 1.5, 30s, 5m, 1h30m)
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<HumanDuration>,
    /// The memory limit of all its processes together, in MiB (512) or with a unit (512M, 2G)
    #[arg(long, value_name = "MB", value_parser = parse_mebibytes)]
    pub(crate) memory: Option<u64>,
    /// The CPU limit, where 100 is one core
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub(crate) cpu: Option<u32>,
    /// The limit of open files of each of its processes
    #[arg(long, value_name = "N")]
    pub(crate) max_fds: Option<u64>,
    /// The limit of processes and threads
    #[arg(long, value_name = "N")]
    pub(crate) max_procs: Option<u64>,
    /// Set an environment variable. Can be repeated
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) env: Vec<(String, String)>,
    /// The isolation level
    #[arg(long, value_name = "HOW", value_parser = one_of::<Isolation>(["shared", "process", "sandbox", "docker"]))]
    pub(crate) isolation: Option<Isolation>,
    /// Run without the sandbox layers that this system refuses, instead of failing
    #[arg(long)]
    pub(crate) isolation_fallback: bool,
    /// The network access of the sandbox: 'none', 'host', or endpoints such as example.org:443
    #[arg(long, value_name = "WHAT")]
    pub(crate) network: Option<NetworkPolicy>,
    /// Mount a directory or file of the host in the sandbox, read-only unless :rw is given. Can be
    /// repeated
    #[arg(long, value_name = "HOST:PATH[:rw]")]
    pub(crate) mount: Vec<Mount>,
    /// Mount this directory at /out in the sandbox, writable. Created if it does not exist
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// The working directory [default: the current one]
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<PathBuf>,
    /// Pass on standard input, which is read to its end (text, at most 16 MiB)
    #[arg(long)]
    pub(crate) stdin: bool,
    /// Retry a failed task up to N times
    #[arg(long, value_name = "N")]
    pub(crate) retry: Option<u32>,
    /// How the delay before a retry grows
    #[arg(long, value_name = "HOW", value_parser = one_of::<BackoffCurve>(["constant", "linear", "exponential"]))]
    pub(crate) backoff: Option<BackoffCurve>,
    /// The delay before the first retry
    #[arg(long, value_name = "TIME")]
    pub(crate) retry_base: Option<HumanDuration>,
    /// The longest delay before a retry
    #[arg(long, value_name = "TIME")]
    pub(crate) retry_max: Option<HumanDuration>,
    /// 0 to 9; higher runs first [default: 5]
    #[arg(long, value_name = "0-9", value_parser = clap::value_parser!(u8).range(0..=9))]
    pub(crate) priority: Option<u8>,
    /// Capabilities that a worker must have to take the task
    #[arg(long, value_name = "A,B", value_parser = CapSet::from_people)]
    pub(crate) requires: Option<CapSet>,
    /// The queue
    #[arg(long)]
    pub(crate) queue: Option<String>,
    /// Do not start the task before this delay has passed
    #[arg(long, value_name = "TIME", conflicts_with = "run_at")]
    pub(crate) delay: Option<HumanDuration>,
    /// Do not start the task before this time, such as 2026-11-30T08:00:00Z
    #[arg(long, value_name = "WHEN", value_parser = parse_time)]
    pub(crate) run_at: Option<Timestamp>,
    /// How long the task may wait for a worker before it expires; an expired task never runs
    #[arg(long, value_name = "TIME", conflicts_with = "run_before")]
    pub(crate) lifetime: Option<HumanDuration>,
    /// When the task expires, such as 2026-11-30T08:10:00Z
    #[arg(long, value_name = "WHEN", value_parser = parse_time)]
    pub(crate) run_before: Option<Timestamp>,
    /// Return the unfinished task with this key, if there is one, instead of submitting another
    #[arg(long, value_name = "KEY")]
    pub(crate) unique_key: Option<String>,
    /// A label for metrics
    #[arg(long)]
    pub(crate) kind: Option<String>,
    /// The batch of the task: see 'raddle batch'
    #[arg(long)]
    pub(crate) batch: Option<String>,
    /// How long to keep the record of the finished task
    #[arg(long, value_name = "TIME")]
    pub(crate) result_ttl: Option<HumanDuration>,
    /// Fate of its message when the task is stopped
    #[arg(long, value_name = "WHAT", value_parser = one_of::<ReservedPolicy>(ON_END))]
    pub(crate) on_stop: Option<ReservedPolicy>,
    /// Fate of its message when all attempts have failed
    #[arg(long, value_name = "WHAT", value_parser = one_of::<ReservedPolicy>(ON_END))]
    pub(crate) on_error: Option<ReservedPolicy>,
    /// The W3C trace context [default: TRACEPARENT of the environment]
    #[arg(long, value_name = "CONTEXT")]
    pub(crate) traceparent: Option<TraceParent>,
    /// The W3C tracestate
    #[arg(long, value_name = "LIST", requires = "traceparent")]
    pub(crate) tracestate: Option<TraceState>,
    /// Attach metadata. Can be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) meta: Vec<(String, String)>,
}

const ON_END: [&str; 3] = ["requeue", "keep", "clear"];

/// Parses one of these names as a spec does. Names that are not listed are refused.
pub(crate) fn one_of<T: DeserializeOwned + Clone + Send + Sync + 'static>(
    names: impl Into<PossibleValuesParser>,
) -> impl TypedValueParser<Value = T> {
    names
        .into()
        .try_map(|name| serde_json::from_value(name.into()))
}

/// Parses an amount of memory in MiB, rounded up.
fn parse_mebibytes(text: &str) -> Result<u64, &'static str> {
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

/// Parses a share of a core, with or without a percent sign.
fn parse_percent(text: &str) -> Result<u32, &'static str> {
    text.strip_suffix('%')
        .unwrap_or(text)
        .parse()
        .map_err(|_| "write whole percent of a core: 50, or 200 for two cores")
}

/// Parses a time.
pub(crate) fn parse_time(text: &str) -> Result<Timestamp, &'static str> {
    const FORM: &str =
        "write date, time and zone: 2026-11-30T08:00:00Z, or 2026-11-30T08:00:00+01:00";
    const RANGE: &str = "is too far away: give a time before 9999-12-30T22:00:00Z";
    let is_whole = |pieces: Pieces<'_>| pieces.time().is_some() && pieces.offset().is_some();
    text.parse().map_err(|_| {
        if Pieces::parse(text).is_ok_and(is_whole) {
            RANGE
        } else {
            FORM
        }
    })
}

/// Parses a key and a value.
fn parse_pair(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.into(), value.into())),
        _ => Err("write it as KEY=VALUE"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_memory_with_units() {
        for (text, expected) in [
            ("512", 512),
            ("512M", 512),
            ("1g", 1024),
            ("2GiB", 2048),
            ("1k", 1),
            ("3000KB", 3),
        ] {
            assert_eq!(parse_mebibytes(text), Ok(expected), "{text}");
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
            assert!(parse_mebibytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_time_out_of_range_has_its_own_error() {
        assert!(
            parse_time("9999-12-30T21:59:59Z").is_ok()
                && parse_time("0001-01-01T00:00:00Z").is_ok()
        );
        assert!(
            parse_time("9999-12-31T23:59:59Z")
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
                parse_time(text)
                    .unwrap_err()
                    .contains("write date, time and zone"),
                "{text}"
            );
        }
    }

    #[test]
    fn parses_percent_with_and_without_sign() {
        assert_eq!(
            (parse_percent("50"), parse_percent("50%")),
            (Ok(50), Ok(50))
        );
        assert!(
            ["", "%", "half", "1.5", "-1", "50%%"]
                .into_iter()
                .all(|text| parse_percent(text).is_err())
        );
    }
}
