//! Arguments of `raddle web`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use raddle_model::HumanDuration;
use raddle_web::{
    Address,
    auth::{Right, Role},
};

use super::{LogArgs, absolute};

/// Serves the operator's interface.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  raddle web                             then 'raddle web open' in another terminal
  raddle web --socket .raddle/web.sock   on the server; here: ssh -L 9460:/srv/app/.raddle/web.sock HOST
  raddle web --addr 0.0.0.0:9460 --tls-cert cert.pem --tls-key key.pem --allow-host raddle.example
  curl -H \"Authorization: Bearer $(cat .raddle/web.token)\" http://127.0.0.1:9460/api/v1/status

It asks for a token, also on this machine: every page in your browser could send it requests. The
owner's token is in .raddle/web.token, which only you can read."
)]
pub(crate) struct WebArgs {
    #[command(subcommand)]
    pub(crate) command: Option<WebCommand>,
    #[command(flatten)]
    pub(crate) serve: WebServeArgs,
}

/// Manages access to the operator's interface.
#[derive(Debug, Subcommand)]
pub(crate) enum WebCommand {
    /// Print a link that signs a browser in once, within a minute
    #[command(after_help = "Examples:
  raddle web open
  raddle web open 2140161024             the page of a task
  raddle web open 'state:failed queue:mail'")]
    Open {
        /// What to open: the id of a task or its last ten digits, or a query
        #[arg(value_name = "TID|QUERY")]
        what: Option<String>,
        /// The address of the server, if it is not the one of this project
        #[arg(long, value_name = "URL")]
        url: Option<String>,
    },
    /// Manage the tokens of people and programs
    #[command(subcommand)]
    Token(TokenCommand),
}

/// Manages tokens.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Create a token and print it, once
    #[command(after_help = "Examples:
  raddle web token add grafana --role viewer --expires 90d
  raddle web token add deploy --role operator --right submit")]
    Add {
        /// Who or what uses it
        name: String,
        /// viewer sees states; reader sees data, too; operator also controls, retries and scales;
        /// owner does everything
        #[arg(long, default_value = "viewer")]
        role: Role,
        /// A right besides those of the role: see, see-data, control, retry, scale, delete,
        /// messages, submit or admin
        #[arg(long = "right", value_name = "RIGHT")]
        rights: Vec<Right>,
        /// How long it is valid [default: until it is revoked]
        #[arg(long, value_name = "TIME")]
        expires: Option<HumanDuration>,
    },
    /// List tokens, without the tokens themselves
    #[command(after_help = "Example:
  raddle web token list")]
    List,
    /// Revoke tokens: their users are signed out within a second
    #[command(after_help = "Example:
  raddle web token revoke grafana")]
    Revoke {
        /// The name or the id
        #[arg(value_name = "NAME|ID", required = true)]
        names: Vec<String>,
    },
}

/// Where and how to serve.
#[derive(Debug, Args)]
pub(crate) struct WebServeArgs {
    /// The address to listen at
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9460")]
    pub(crate) addr: Address,
    /// Listen at this Unix socket instead. Processes of this user need no token
    #[arg(long, value_name = "PATH", value_parser = absolute(), value_hint = ValueHint::FilePath, conflicts_with_all = ["addr", "public", "tls_cert"])]
    pub(crate) socket: Option<PathBuf>,
    /// Serve TLS with this certificate chain, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key", value_hint = ValueHint::FilePath)]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert", value_hint = ValueHint::FilePath)]
    pub(crate) tls_key: Option<PathBuf>,
    /// Allow an address beyond loopback without TLS: everyone on that network can read along
    #[arg(long)]
    pub(crate) public: bool,
    /// The path under which a reverse proxy serves this, such as /raddle
    #[arg(long, value_name = "PATH", value_parser = parse_prefix, default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// A host name under which browsers reach this, such as raddle.example; repeat for more
    #[arg(long = "allow-host", value_name = "NAME")]
    pub(crate) allow_hosts: Vec<String>,
    /// Change nothing: no route that does exists
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Serve /metrics without a token
    #[arg(long)]
    pub(crate) open_metrics: bool,
    /// Start in the background
    #[arg(long)]
    pub(crate) detach: bool,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// A prefix begins with a slash and does not end with one.
fn parse_prefix(text: &str) -> Result<String, &'static str> {
    let trimmed = text.trim_end_matches('/');
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte);
    let is_path =
        trimmed.starts_with('/') && !trimmed.contains("//") && trimmed.bytes().all(is_plain);
    if trimmed.is_empty() || is_path {
        return Ok(trimmed.to_owned());
    }
    Err("give a path of letters, digits and - _ . ~, such as /raddle")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_a_path() {
        for (text, prefix) in [
            ("", ""),
            ("/", ""),
            ("/raddle", "/raddle"),
            ("/a/b/", "/a/b"),
        ] {
            assert_eq!(parse_prefix(text).as_deref(), Ok(prefix));
        }
        for text in ["raddle", "//evil.test", "/a b", "/{a}", "/a?b", "/a//b"] {
            assert!(parse_prefix(text).is_err(), "{text}");
        }
    }
}
