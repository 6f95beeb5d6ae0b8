//! Flags that select a discovery.

use std::{path::PathBuf, str::FromStr};

use clap::Args;

use super::CredentialsArgs;

/// A discovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DiscoveryArgs {
    /// The workers of this user on this machine.
    Local,
    /// mDNS on the same network, under this name.
    #[cfg(feature = "lan")]
    Lan(Option<String>),
    /// A file or directory that lists workers.
    File(PathBuf),
    /// The addresses of a DNS name.
    Dns(Option<String>),
    /// The registry of the broker, under this name.
    Broker(Option<String>),
}

/// Selects a discovery, and the credentials for its workers.
#[derive(Debug, Args)]
pub(crate) struct FindArgs {
    /// How to find workers: 'local', those of this user on this machine; 'lan' or 'lan:NAME', by
    /// mDNS on the same network; 'file:PATH', from a file or directory; 'dns:NAME:PORT', by DNS;
    /// 'broker' or 'broker:NAME', from the registry of the broker
    #[arg(
        long,
        value_name = "HOW",
        default_value = "local",
        hide_default_value = true
    )]
    pub(crate) discovery: DiscoveryArgs,
    #[command(flatten)]
    pub(crate) credentials: CredentialsArgs,
}

impl FromStr for DiscoveryArgs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, location) = match text.split_once(':') {
            Some((_, "")) => return Err(format!("nothing follows '{text}'")),
            Some((kind, location)) => (kind, Some(location.to_owned())),
            None => (text, None),
        };
        match (kind, location) {
            ("local", None) => Ok(Self::Local),
            #[cfg(feature = "lan")]
            ("lan", name) => Ok(Self::Lan(name)),
            #[cfg(not(feature = "lan"))]
            ("lan", _) => Err(
                "this program was built without 'lan': build it with the feature 'lan' of raddle"
                    .into(),
            ),
            ("file", Some(path)) => Ok(Self::File(path.into())),
            ("file", None) => Err("name the file or directory: 'file:PATH'".into()),
            ("dns", name) => Ok(Self::Dns(name)),
            ("broker", name) => Ok(Self::Broker(name)),
            _ => Err("expected 'local', 'lan', 'file:PATH', 'dns:NAME' or 'broker'".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_discoveries_and_their_locations() {
        for (text, finding) in [
            ("local", DiscoveryArgs::Local),
            (
                "file:/srv/workers",
                DiscoveryArgs::File("/srv/workers".into()),
            ),
            ("dns", DiscoveryArgs::Dns(None)),
            (
                "dns:workers.svc:7070",
                DiscoveryArgs::Dns(Some("workers.svc:7070".into())),
            ),
            ("broker", DiscoveryArgs::Broker(None)),
            ("broker:math", DiscoveryArgs::Broker(Some("math".into()))),
        ] {
            assert_eq!(text.parse(), Ok(finding), "{text}");
        }
        for wrong in ["", "file", "file:", "dns:", "broker:", "local:x", "rumour"] {
            assert!(wrong.parse::<DiscoveryArgs>().is_err(), "{wrong}");
        }
    }
}
