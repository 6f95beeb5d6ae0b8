//! `raddle pool serve`.

use std::path::PathBuf;

use clap::Args;
use raddle_core::Span;
use raddle_pool::{connection::Address, credentials::Rule, standalone::Advertise};

use super::{CredentialsArgs, Finding, LogArgs};

/// Serve the routines of this program.
#[derive(Debug, Args)]
#[command(after_help = "Examples, where myapp is a program with #[raddle::main] and routines of its own:
  myapp pool serve --name render         as many workers as there are cores, for this user on this machine
  myapp pool serve --bind 10.0.0.7:7070 --workers 4 --tags gpu \\
      --credentials-ca ca.pem --credentials-cert w.pem --credentials-key w.key
                                         at ports 7070 to 7073, for callers with a certificate
  myapp pool serve --allow 'spiffe://prod/web = math.*' …
                                         who may call what; '@stop' and '@info' are rights, too

It stays in the foreground, and says so in a line when all workers serve. A worker that ends is
replaced. Ctrl-C (SIGINT) takes no more calls and waits for those in flight; a second one, or
SIGTERM, cancels them.")]
pub(crate) struct PoolServeArgs {
    /// Another program whose routines to serve: one with #[raddle::main]
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::ExecutablePath)]
    pub(crate) program: Option<PathBuf>,
    /// What the workers are called, and found by
    #[arg(long, default_value = "default")]
    pub(crate) name: String,
    /// How many workers; else as many as there are cores
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) workers: Option<u16>,
    /// Where they serve: host:port, and those after the first at the ports that follow; port 0 is any. Else a socket that
    /// only this user reaches or, with credentials, any port of the loopback
    #[arg(long, value_name = "ADDR")]
    pub(crate) bind: Option<Address>,
    /// Where others find them, if that is not where they serve: a host, and perhaps the first port
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) advertise: Option<Advertise>,
    /// How others find them: 'lan', those on the same network, by mDNS; 'file:FOLDER', those who read a file there for each;
    /// 'broker', those who read the registry of the same broker; 'dns', by a name that somebody else keeps; 'local', this
    /// user on this machine, who always does. Can be given several times
    #[arg(long, value_name = "HOW", value_delimiter = ',', default_value = "local")]
    pub(crate) discovery: Vec<Finding>,
    /// What they can do, for those who choose
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(crate) tags: Vec<String>,
    /// How many calls each takes at a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_in_flight: Option<u32>,
    /// How many plain functions each runs at a time [default: the number of cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_blocking: Option<u32>,
    /// Take no more calls after so long, and leave when those in flight have ended
    #[arg(long, value_name = "TIME")]
    pub(crate) max_uptime: Option<Span>,
    /// How long a worker may take to serve
    #[arg(long, value_name = "TIME", default_value = "30")]
    pub(crate) start_timeout: Span,
    /// Show metrics to Prometheus at this address, as 127.0.0.1:9464, and beside them /readyz and /healthz
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics_addr: Option<raddle_web::Address>,
    /// Let other machines look at the metrics, too: nothing is encrypted
    #[arg(long, requires = "metrics_addr")]
    pub(crate) metrics_public: bool,
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(flatten)]
    pub(crate) credentials: CredentialsArgs,
    /// Who may call what, stop a worker, and ask what it is: 'WHO = WHAT'. Can be given several times; else everybody with
    /// a certificate
    #[arg(long, value_name = "RULE", help_heading = "Credentials")]
    pub(crate) allow: Vec<Rule>,
    /// The same from a file, one rule a line
    #[arg(long, value_name = "FILE", help_heading = "Credentials", value_hint = clap::ValueHint::FilePath)]
    pub(crate) allow_file: Option<PathBuf>,
    /// Serve beyond this machine without TLS: whoever reaches the port may call
    #[arg(long, help_heading = "Credentials", conflicts_with = "credentials_ca")]
    pub(crate) insecure: bool,
}
