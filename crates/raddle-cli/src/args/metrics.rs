//! `raddle metrics`, and the flags of all that show metrics.

use clap::{Args, Subcommand};
use raddle_web::Address;

/// Show metrics.
#[derive(Debug, Subcommand)]
pub(crate) enum MetricsCommand {
    /// Show what waits in a broker to Prometheus, in the foreground
    Serve(ServeArgs),
}

/// Serve metrics.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  raddle metrics serve                   then: curl http://127.0.0.1:9464/metrics
  raddle --queue-url redis://broker:6379/0 metrics serve --metrics-addr 0.0.0.0:9464 --metrics-public

One for each broker is enough. Workers and spawners show what they do themselves with a
--metrics-addr of their own; a spawner shows what waits, too.")]
pub(crate) struct ServeArgs {
    /// Where to listen
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9464")]
    pub(crate) metrics_addr: Address,
    /// Let other machines look, too: nothing is encrypted
    #[arg(long)]
    pub(crate) metrics_public: bool,
}

/// Where to show metrics, if anywhere.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct MetricsArgs {
    /// Show metrics to Prometheus at this address, as 127.0.0.1:9464
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics_addr: Option<Address>,
    /// Let other machines look at the metrics, too: nothing is encrypted
    #[arg(long, requires = "metrics_addr")]
    pub(crate) metrics_public: bool,
}

impl From<&ServeArgs> for MetricsArgs {
    fn from(args: &ServeArgs) -> Self {
        Self { metrics_addr: Some(args.metrics_addr), metrics_public: args.metrics_public }
    }
}
