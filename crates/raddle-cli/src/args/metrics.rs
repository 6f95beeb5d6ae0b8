//! Arguments of `raddle metrics`, and the metrics flags of services.

use clap::{Args, Subcommand};
#[cfg(feature = "otlp")]
use raddle_telemetry::otlp::parse_endpoint;
use raddle_web::Address;

use super::LogArgs;

/// Serves metrics.
#[derive(Debug, Subcommand)]
pub(crate) enum MetricsCommand {
    /// Serve metrics of a broker to Prometheus, in the foreground
    #[command(visible_alias = "start")]
    Serve(ServeArgs),
}

/// Serves the metrics of a broker.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  raddle metrics serve                   test it with curl http://127.0.0.1:9464/metrics
  raddle --queue-url redis://broker:6379/0 metrics serve --metrics-addr 0.0.0.0:9464 --metrics-public

One for each broker is enough. Workers and spawners serve their own metrics with --metrics-addr; a
spawner serves those of the broker, too.")]
pub(crate) struct ServeArgs {
    /// The address to listen at
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9464")]
    pub(crate) metrics_addr: Address,
    /// Allow an address beyond loopback: metrics are not encrypted
    #[arg(long)]
    pub(crate) metrics_public: bool,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// Where to serve metrics and to send spans, if anywhere.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct MetricsArgs {
    /// Serve Prometheus metrics at this address, such as 127.0.0.1:9464
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics_addr: Option<Address>,
    /// Allow an address beyond loopback: metrics are not encrypted
    #[arg(long, requires = "metrics_addr")]
    pub(crate) metrics_public: bool,
    /// Send a span for each attempt to this OTLP collector, such as http://127.0.0.1:4318
    #[arg(long, value_name = "URL", value_parser = parse_endpoint)]
    pub(crate) otlp_endpoint: Option<String>,
}

impl MetricsArgs {
    /// Whether metrics or spans of workers are wanted.
    pub(crate) fn is_instrumented(&self) -> bool {
        self.metrics_addr.is_some() || self.sends_spans()
    }

    /// Whether spans are sent. A worker of a spawner inherits the environment of the spawner, which
    /// sends the spans of all its workers.
    #[cfg(feature = "otlp")]
    pub(crate) fn sends_spans(&self) -> bool {
        let is_under_spawner = || std::env::var_os(raddle_spawner::WARM_VARIABLE).is_some();
        self.otlp_endpoint.is_some()
            || raddle_telemetry::otlp::is_configured() && !is_under_spawner()
    }

    #[cfg(not(feature = "otlp"))]
    fn sends_spans(&self) -> bool {
        false
    }
}

#[cfg(not(feature = "otlp"))]
fn parse_endpoint(_: &str) -> Result<String, &'static str> {
    Err("this program is built without spans: build it with the feature `otlp`")
}
