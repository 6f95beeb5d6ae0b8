//! `raddle pool`.

use std::time::Duration;

use clap::{Args, Subcommand};
use raddle_model::{HumanDuration, duration::ParseDurationError};
use raddle_rpc::worker::StopMode;

use super::{FindArgs, PoolServeArgs};

/// Serve routines to pools; show, ask and stop the workers of pools.
#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    /// Run pool workers, which take calls of this program's routines
    #[command(visible_alias = "start")]
    Serve(Box<PoolServeArgs>),
    /// List the pools of this user on this machine
    #[command(after_help = "Example:
  raddle pool list --json | jq -r '.[].name'")]
    List,
    /// List the workers of pools, and what they are doing
    #[command(visible_alias = "show")]
    Workers(PoolWorkersArgs),
    /// Ping workers, and show the round-trip time
    Ping(PingArgs),
    /// Stop workers, and report the outcome of their calls
    Stop(PoolStopArgs),
}

/// List the workers of pools.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  raddle pool workers                    those of all pools of this user on this machine
  raddle pool workers render --json | jq '.[].in_flight'
  raddle pool workers render --discovery lan --credentials-ca ca.pem \\
      --credentials-cert own.pem --credentials-key own.key
                                         those on the network that are called so

Each is asked, and has a second to answer. One that does not is listed all the same.")]
pub(crate) struct PoolWorkersArgs {
    /// Only workers of this pool, with this uid, or at this address
    #[arg(value_name = "POOL|UID|ADDRESS")]
    pub(crate) target: Option<String>,
    #[command(flatten)]
    pub(crate) find: FindArgs,
}

/// Ask workers whether they are there.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  raddle pool ping render                each worker of a pool
  raddle pool ping --count 100 --interval 0 127.0.0.1:7070
  raddle pool ping --discovery file:/srv/workers

Exits with 0 if each of them answered each time within a second, 1 if not, 2 if there is no such
pool or worker.")]
pub(crate) struct PingArgs {
    /// A pool, the uid of a worker, or an address: unix:/path, unix-abstract:name or host:port. With --discovery, all
    /// that are found if nothing is named
    #[arg(value_name = "POOL|UID|ADDRESS", required_unless_present = "discovery")]
    pub(crate) target: Option<String>,
    /// How often to ask
    #[arg(short, long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: u32,
    /// How long to pause before asking again
    #[arg(short, long, value_name = "TIME", default_value = "1")]
    pub(crate) interval: HumanDuration,
    #[command(flatten)]
    pub(crate) find: FindArgs,
}

/// Stop workers.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  raddle pool stop render                calls in flight are cancelled
  raddle pool stop render --timeout 30   they have 30 s, and are cancelled then
  raddle pool stop 01990a2b-6f1c-7cc3-9d0e-0f5d8a2b4c6d --timeout -1
  raddle pool stop 10.0.0.7:7070 --credentials-ca ca.pem \\
      --credentials-cert own.pem --credentials-key own.key

The program that owns a pool starts another worker in the place of each that ends: this is for
workers that are to be started anew. To end a pool, end its program.")]
pub(crate) struct PoolStopArgs {
    /// A pool, the uid of a worker, or an address. With --discovery, all that are found if nothing is named
    #[arg(value_name = "POOL|UID|ADDRESS", required_unless_present = "discovery")]
    pub(crate) target: Option<String>,
    /// How long calls in flight may take before they are cancelled; 0: cancel at once, -1: wait
    #[arg(long, value_name = "TIME", default_value = "0", allow_negative_numbers = true, value_parser = patience)]
    pub(crate) timeout: StopMode,
    #[command(flatten)]
    pub(crate) find: FindArgs,
}

/// As workers understand it: less than nothing is no bound.
fn patience(text: &str) -> Result<StopMode, ParseDurationError> {
    if text
        .trim()
        .parse::<f64>()
        .is_ok_and(|seconds| seconds < 0.0)
    {
        return Ok(StopMode::Endless);
    }
    text.parse().map(|HumanDuration(time)| {
        if time == Duration::ZERO {
            StopMode::None
        } else {
            StopMode::For(time)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_none_some_or_endless() {
        assert_eq!(patience("0"), Ok(StopMode::None));
        assert_eq!(
            patience("1.5"),
            Ok(StopMode::For(Duration::from_millis(1500)))
        );
        assert_eq!(patience("2m"), Ok(StopMode::For(Duration::from_secs(120))));
        assert_eq!(patience("-1"), Ok(StopMode::Endless));
        for wrong in ["", "soon", "nan"] {
            assert!(patience(wrong).is_err(), "{wrong}");
        }
    }
}
