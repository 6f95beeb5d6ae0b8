//! Arguments of `raddle pool`.

use std::time::Duration;

use clap::{Args, Subcommand};
use raddle_model::{HumanDuration, duration::ParseDurationError};
use raddle_rpc::worker::StopMode;

use super::{FindArgs, PoolServeArgs};

/// Serves routines to pools; lists, pings and stops pool workers.
#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    /// Run pool workers, which take calls to this program's routines
    #[command(visible_alias = "start")]
    Serve(Box<PoolServeArgs>),
    /// List the pools of this user on this machine
    #[command(after_help = "Example:
  raddle pool list --json | jq -r '.[].name'")]
    List,
    /// List pool workers and their calls
    #[command(visible_alias = "show")]
    Workers(PoolWorkersArgs),
    /// Ping workers, and print the round-trip times
    Ping(PingArgs),
    /// Stop workers, and print the outcome of their calls
    Stop(PoolStopArgs),
}

/// Lists the workers of pools.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  raddle pool workers                    all pools of this user on this machine
  raddle pool workers render --json | jq '.[].in_flight'
  raddle pool workers render --discovery lan --credentials-ca ca.pem \\
      --credentials-cert own.pem --credentials-key own.key
                                         the pool of that name on the network

Each worker has one second to answer. A worker that does not answer is listed, too.")]
pub(crate) struct PoolWorkersArgs {
    /// Only workers of this pool, with this uid, or at this address
    #[arg(value_name = "POOL|UID|ADDRESS")]
    pub(crate) target: Option<String>,
    #[command(flatten)]
    pub(crate) find: FindArgs,
}

/// Pings workers.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  raddle pool ping render                all workers of a pool
  raddle pool ping --count 100 --interval 0 127.0.0.1:7070
  raddle pool ping --discovery file:/srv/workers

Exits with 0 if every worker answered every ping within a second, 1 if not, 2 if there is no such
pool or worker.")]
pub(crate) struct PingArgs {
    /// A pool, the uid of a worker, or an address: unix:/path, unix-abstract:name or host:port.
    /// With --discovery: all that are found unless one is named
    #[arg(value_name = "POOL|UID|ADDRESS", required_unless_present = "discovery")]
    pub(crate) target: Option<String>,
    /// How many pings to send to each worker
    #[arg(short, long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: u32,
    /// The pause between two pings
    #[arg(short, long, value_name = "TIME", default_value = "1")]
    pub(crate) interval: HumanDuration,
    #[command(flatten)]
    pub(crate) find: FindArgs,
}

/// Stops workers.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  raddle pool stop render                calls in flight are cancelled
  raddle pool stop render --timeout 30   they are cancelled after 30 s
  raddle pool stop 01990a2b-6f1c-7cc3-9d0e-0f5d8a2b4c6d --timeout -1
  raddle pool stop 10.0.0.7:7070 --credentials-ca ca.pem \\
      --credentials-cert own.pem --credentials-key own.key

The program that owns a pool replaces each worker that exits, so this command restarts workers. To
stop a pool, stop its program.")]
pub(crate) struct PoolStopArgs {
    /// A pool, the uid of a worker, or an address. With --discovery: all that are found unless one
    /// is named
    #[arg(value_name = "POOL|UID|ADDRESS", required_unless_present = "discovery")]
    pub(crate) target: Option<String>,
    /// How long to wait for calls in flight before they are cancelled; -1: without limit
    #[arg(long, value_name = "TIME", default_value = "0", allow_negative_numbers = true, value_parser = parse_stop_timeout)]
    pub(crate) timeout: StopMode,
    #[command(flatten)]
    pub(crate) find: FindArgs,
}

/// Parses a timeout. A negative number means no limit.
fn parse_stop_timeout(text: &str) -> Result<StopMode, ParseDurationError> {
    if text
        .trim()
        .parse::<f64>()
        .is_ok_and(|seconds| seconds < 0.0)
    {
        return Ok(StopMode::Drain);
    }
    text.parse().map(|HumanDuration(time)| {
        if time == Duration::ZERO {
            StopMode::Cancel
        } else {
            StopMode::DrainFor(time)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_stop_timeouts() {
        assert_eq!(parse_stop_timeout("0"), Ok(StopMode::Cancel));
        assert_eq!(
            parse_stop_timeout("1.5"),
            Ok(StopMode::DrainFor(Duration::from_millis(1500)))
        );
        assert_eq!(
            parse_stop_timeout("2m"),
            Ok(StopMode::DrainFor(Duration::from_secs(120)))
        );
        assert_eq!(parse_stop_timeout("-1"), Ok(StopMode::Drain));
        for wrong in ["", "soon", "nan"] {
            assert!(parse_stop_timeout(wrong).is_err(), "{wrong}");
        }
    }
}
