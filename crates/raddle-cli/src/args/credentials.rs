//! Who somebody is, and whom it trusts: the flags of all that speak TLS with workers.

use std::path::PathBuf;

use clap::Args;
use raddle_tls::PeerName;

/// Who we are, and whom we trust.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Credentials")]
pub(crate) struct CredentialsArgs {
    /// The CA to verify peers with, a PEM file. Enables TLS
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(crate) credentials_ca: Option<PathBuf>,
    /// Our certificate, a PEM file. Certificate, key and CA are read again when they change
    #[arg(long, value_name = "FILE", requires_all = ["credentials_ca", "credentials_key"], value_hint = clap::ValueHint::FilePath)]
    pub(crate) credentials_cert: Option<PathBuf>,
    /// Its key, a PEM file
    #[arg(long, value_name = "FILE", requires = "credentials_cert", value_hint = clap::ValueHint::FilePath)]
    pub(crate) credentials_key: Option<PathBuf>,
    /// Use one-way TLS: callers need no certificate
    #[arg(long, requires = "credentials_ca")]
    pub(crate) no_mutual: bool,
    /// The name to expect in a worker's certificate: a host, an address or a URI, such as spiffe://prod/*
    /// [default: the host of its address]. Can be repeated
    #[arg(long, value_name = "NAME", requires = "credentials_ca")]
    pub(crate) expect: Vec<PeerName>,
}
