//! Arguments of `raddle cert`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use raddle_tls::issue::SubjectName;

/// Creates and inspects certificates for development.
#[derive(Debug, Subcommand)]
pub(crate) enum CertCommand {
    /// Create a CA: ca-cert.pem, which is public, and ca-key.pem, which is secret
    Ca(CaArgs),
    /// Issue a certificate for a worker or a caller, with its key
    Issue(IssueArgs),
    /// Show the contents of a certificate, never those of a key
    #[command(after_help = "Examples:
  raddle cert show certs/worker.internal-cert.pem
  raddle cert show certs/ca-cert.pem --json | jq -r '.[].not_after'")]
    Show {
        /// A PEM file
        file: PathBuf,
    },
}

/// Creates a CA.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  raddle cert ca --out certs             writes certs/ca-cert.pem and certs/ca-key.pem

Use it for development, and for a few machines that you administer yourself: it cannot revoke
certificates, and its key is not encrypted.")]
pub(crate) struct CaArgs {
    /// The directory to write to; created if it does not exist
    #[arg(short, long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// The display name of the CA
    #[arg(long, value_name = "NAME", default_value = "raddle development CA", value_parser = common_name)]
    pub(crate) name: String,
    /// How many days it is valid
    #[arg(long, value_name = "DAYS", default_value_t = 1825, value_parser = clap::value_parser!(u32).range(1..=36500))]
    pub(crate) days: u32,
    /// Replace an existing CA: peers no longer accept certificates that it has issued
    #[arg(long)]
    pub(crate) force: bool,
}

/// Issues a certificate.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  raddle cert issue worker.internal 10.0.0.7 --ca certs
  raddle cert issue spiffe://prod/render --ca certs --days 7 --out /etc/raddle
  raddle cert issue spiffe://prod/web --ca certs --caller

The certificate can serve and call. With --caller it can only call: its owner cannot act as a
worker. The first name is the name of the files. Existing files are replaced only with --force.")]
pub(crate) struct IssueArgs {
    /// The names in the certificate: host names, addresses, and at most one SPIFFE id
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<SubjectName>,
    /// The directory of the CA
    #[arg(long, value_name = "DIR")]
    pub(crate) ca: PathBuf,
    /// The directory to write to [default: that of the CA]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Issue a client certificate, which cannot be used to serve
    #[arg(long)]
    pub(crate) caller: bool,
    /// How many days it is valid; at most as long as the CA
    #[arg(long, value_name = "DAYS", default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=36500))]
    pub(crate) days: u32,
    /// Replace existing files
    #[arg(long)]
    pub(crate) force: bool,
}

/// Checks a common name; X.509 limits its length.
fn common_name(text: &str) -> Result<String, &'static str> {
    let is_one = (1..=64).contains(&text.chars().count()) && !text.contains(char::is_control);
    if is_one {
        Ok(text.to_owned())
    } else {
        Err("a name has 1 to 64 printable characters")
    }
}
