//! Flags of commands that connect to workers with TLS.

use std::path::PathBuf;

use clap::Args;
use raddle_tls::PeerName;

/// Our credentials, and the CA that we trust.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Credentials")]
pub(crate) struct CredentialsArgs {
    /// The CA to verify peers with, a PEM file. Enables TLS
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(crate) credentials_ca: Option<PathBuf>,
    /// Our certificate, a PEM file. Changed files are reloaded
    #[arg(long, value_name = "FILE", requires_all = ["credentials_ca", "credentials_key"], value_hint = clap::ValueHint::FilePath)]
    pub(crate) credentials_cert: Option<PathBuf>,
    /// The key of our certificate, a PEM file
    #[arg(long, value_name = "FILE", requires = "credentials_cert", value_hint = clap::ValueHint::FilePath)]
    pub(crate) credentials_key: Option<PathBuf>,
    /// Use one-way TLS: callers need no certificate
    #[arg(long, requires = "credentials_ca")]
    pub(crate) no_mutual: bool,
    /// The name to expect in a worker's certificate: a host, an address or a URI, such as
    /// spiffe://prod/* [default: the host of its address]. Can be repeated
    #[arg(long, value_name = "NAME", requires = "credentials_ca")]
    pub(crate) expect: Vec<PeerName>,
}
