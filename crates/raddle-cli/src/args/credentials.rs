//! Who somebody is, and whom it trusts: the flags of all that speak TLS with workers.

use std::path::PathBuf;

use clap::Args;
use raddle_pool::credentials::PeerName;

/// Who we are, and whom we trust.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Credentials")]
pub(crate) struct CredentialsArgs {
    /// The CA that others are trusted by, a PEM file. With it, all is over TLS
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(crate) credentials_ca: Option<PathBuf>,
    /// Our certificate, a PEM file. Certificate, key and CA are read again when they change
    #[arg(long, value_name = "FILE", requires_all = ["credentials_ca", "credentials_key"], value_hint = clap::ValueHint::FilePath)]
    pub(crate) credentials_cert: Option<PathBuf>,
    /// Its key, a PEM file
    #[arg(long, value_name = "FILE", requires = "credentials_cert", value_hint = clap::ValueHint::FilePath)]
    pub(crate) credentials_key: Option<PathBuf>,
    /// Callers need no certificate: only workers prove who they are
    #[arg(long, requires = "credentials_ca")]
    pub(crate) no_mutual: bool,
    /// What a worker that is called may be named: a host, an address or a URI, as spiffe://prod/*; else it is the host of
    /// its address. Can be given several times
    #[arg(long, value_name = "NAME", requires = "credentials_ca")]
    pub(crate) expect: Vec<PeerName>,
}
