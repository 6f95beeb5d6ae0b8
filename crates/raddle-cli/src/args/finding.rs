//! How workers are found: the flags of all that publish them, or look for them.

use std::{path::PathBuf, str::FromStr};

/// How workers are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// By this user on this machine.
    Local,
    /// On the same network, by mDNS.
    #[cfg(feature = "lan")]
    Lan,
    /// Where they are written down.
    File(PathBuf),
}

impl FromStr for Finding {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "local" => Ok(Self::Local),
            #[cfg(feature = "lan")]
            None if text == "lan" => Ok(Self::Lan),
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(path.into())),
            _ => Err("workers are found by 'local', 'lan' or 'file:PATH'".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_named_and_some_have_a_place() {
        assert_eq!("local".parse(), Ok(Finding::Local));
        assert_eq!("file:/srv/workers".parse(), Ok(Finding::File("/srv/workers".into())));
        for wrong in ["", "file", "file:", "local:x", "rumour"] {
            assert!(wrong.parse::<Finding>().is_err(), "{wrong}");
        }
    }
}
