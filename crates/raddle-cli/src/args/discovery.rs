//! How workers are found: the flags of all that publish them, or look for them.

use std::{path::PathBuf, str::FromStr};

use clap::Args;

use super::CredentialsArgs;

/// How workers are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DiscoveryArgs {
    /// By this user on this machine.
    Local,
    /// On the same network, by mDNS, under this name.
    #[cfg(feature = "lan")]
    Lan(Option<String>),
    /// Where they are written down.
    File(PathBuf),
    /// At the addresses of a name.
    Dns(Option<String>),
    /// In the registry of the broker, under this name.
    Broker(Option<String>),
}

/// Which workers to look for, and as whom to speak to them.
#[derive(Debug, Args)]
pub(crate) struct FindArgs {
    /// How to find workers: 'local', of this user on this machine; 'lan' or 'lan:NAME', on the same network by mDNS;
    /// 'file:PATH', listed in a file or directory; 'dns:NAME:PORT', by DNS; 'broker' or 'broker:NAME',
    /// those in the registry of the broker
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
        let (how, place) = match text.split_once(':') {
            Some((_, "")) => return Err(format!("nothing follows '{text}'")),
            Some((how, place)) => (how, Some(place.to_owned())),
            None => (text, None),
        };
        match (how, place) {
            ("local", None) => Ok(Self::Local),
            #[cfg(feature = "lan")]
            ("lan", name) => Ok(Self::Lan(name)),
            #[cfg(not(feature = "lan"))]
            ("lan", _) => Err(
                "this program was built without 'lan': build it with that feature of raddle".into(),
            ),
            ("file", Some(path)) => Ok(Self::File(path.into())),
            ("file", None) => Err("say where they are written down: 'file:PATH'".into()),
            ("dns", name) => Ok(Self::Dns(name)),
            ("broker", name) => Ok(Self::Broker(name)),
            _ => Err(
                "workers are found by 'local', 'lan', 'file:PATH', 'dns:NAME' or 'broker'".into(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_named_and_some_have_a_place() {
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
