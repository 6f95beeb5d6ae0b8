//! Arguments of `raddle pool serve`.

use std::path::PathBuf;

use clap::Args;
use raddle_discovery::Address;
use raddle_model::HumanDuration;
use raddle_rpc::standalone::Advertise;
use raddle_tls::Rule;

use super::{CredentialsArgs, DiscoveryArgs, LogArgs};

/// Serves the routines of this program.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples, where myapp is a program with #[raddle::main] and routines:
  myapp pool serve --name render         one worker for each core, for this user on this machine
  myapp pool serve --bind 10.0.0.7:7070 --workers 4 --tags gpu \\
      --credentials-ca ca.pem --credentials-cert w.pem --credentials-key w.key
                                         ports 7070 to 7073, for callers with a certificate
  myapp pool serve --allow 'spiffe://prod/web = math.*' …
                                         callers may only call these; '@stop' and '@info' are rights, too

It runs in the foreground, and prints a line when all workers serve. A worker that exits is replaced.
After Ctrl-C (SIGINT) it takes no more calls and waits for those in flight; a second Ctrl-C, or
SIGTERM, cancels them."
)]
pub(crate) struct PoolServeArgs {
    /// Serve the routines of another program, one with #[raddle::main]
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::ExecutablePath)]
    pub(crate) program: Option<PathBuf>,
    /// The name of the pool, by which callers find its workers
    #[arg(long, default_value = "default")]
    pub(crate) name: String,
    /// The number of workers [default: the number of cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) workers: Option<u16>,
    /// Have a host run the routines: a program in any language that speaks the host protocol, with
    /// its arguments. Each worker starts one
    #[arg(long, value_name = "CMD", num_args = 1.., allow_hyphen_values = true, conflicts_with = "program")]
    pub(crate) host: Vec<String>,
    /// Have a host run the routines of this Python app, as MODULE:APP
    #[arg(long, value_name = "APP", conflicts_with_all = ["program", "host"])]
    pub(crate) python: Option<String>,
    /// The address of the first worker, host:port; others use the next ports. Port 0 is any port
    /// [default: a socket that only this user can reach or, with credentials, any loopback port]
    #[arg(long, value_name = "ADDR")]
    pub(crate) bind: Option<Address>,
    /// The address to publish, if it differs from --bind: a host, and optionally the first port
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) advertise: Option<Advertise>,
    /// Where to publish the workers: 'lan', by mDNS on the same network; 'file:DIR', one file for
    /// each worker; 'broker', in the registry of the broker; 'dns', a record that you maintain;
    /// 'local', for this user on this machine, which is always done. Can be repeated
    #[arg(
        long,
        value_name = "HOW",
        value_delimiter = ',',
        default_value = "local"
    )]
    pub(crate) discovery: Vec<DiscoveryArgs>,
    /// Tags by which callers select workers
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(crate) tags: Vec<String>,
    /// How many calls each worker takes at a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_in_flight: Option<u32>,
    /// How many synchronous functions each worker runs at a time [default: the number of cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_blocking: Option<u32>,
    /// Take no new calls after this time, and exit when those in flight have ended
    #[arg(long, value_name = "TIME")]
    pub(crate) max_uptime: Option<HumanDuration>,
    /// How long a worker may take to start
    #[arg(long, value_name = "TIME", default_value = "30")]
    pub(crate) start_timeout: HumanDuration,
    /// Serve Prometheus metrics at this address, such as 127.0.0.1:9464, with /readyz and /healthz
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics_addr: Option<raddle_web::Address>,
    /// Allow an address beyond loopback: metrics are not encrypted
    #[arg(long, requires = "metrics_addr")]
    pub(crate) metrics_public: bool,
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(flatten)]
    pub(crate) credentials: CredentialsArgs,
    /// A rule 'PEER = ACTIONS': which peer may call which routine, stop a worker or inspect it
    /// [default: every peer with a certificate]. Can be repeated
    #[arg(long, value_name = "RULE", help_heading = "Credentials")]
    pub(crate) allow: Vec<Rule>,
    /// Rules from a file, one per line
    #[arg(long, value_name = "FILE", help_heading = "Credentials", value_hint = clap::ValueHint::FilePath)]
    pub(crate) allow_file: Option<PathBuf>,
    /// Serve beyond this machine without TLS: every peer that reaches the port may call
    #[arg(long, help_heading = "Credentials", conflicts_with = "credentials_ca")]
    pub(crate) insecure: bool,
}
