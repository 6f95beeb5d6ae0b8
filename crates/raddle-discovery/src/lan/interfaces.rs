//! The network interfaces of this machine, and the selection of those to use.

use std::{io, net::IpAddr};

/// Selects interfaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct InterfaceFilter(Option<Vec<String>>);

/// An address of an interface. An interface with several occurs several times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) ip: IpAddr,
}

impl InterfaceFilter {
    /// Selects these, by name or address.
    pub(super) fn new(wanted: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self(Some(wanted.into_iter().map(Into::into).collect()))
    }

    /// Whether an address of an interface is selected. By default all but the loopback are; an
    /// interface given by name with all its addresses, one given by address only with that.
    pub(super) fn matches(&self, name: &str, ip: IpAddr) -> bool {
        match &self.0 {
            None => !ip.is_loopback(),
            Some(wanted) => wanted
                .iter()
                .any(|wanted| is_name_or_address(wanted, name, ip)),
        }
    }

    /// The selected ones. An error if a given interface does not exist, because the mistake would
    /// go unnoticed.
    pub(super) fn select<'a>(&self, all: &'a [Interface]) -> io::Result<Vec<&'a Interface>> {
        let is_there = |wanted: &&String| {
            all.iter()
                .any(|one| is_name_or_address(wanted, &one.name, one.ip))
        };
        if let Some(missing) = self.0.iter().flatten().find(|wanted| !is_there(wanted)) {
            let mut names: Vec<_> = all.iter().map(|one| one.name.as_str()).collect();
            names.dedup();
            let message = format!(
                "there is no interface with the name or address '{missing}': there are {}",
                names.join(", ")
            );
            return Err(io::Error::new(io::ErrorKind::NotFound, message));
        }
        Ok(all
            .iter()
            .filter(|one| self.matches(&one.name, one.ip))
            .collect())
    }
}

fn is_name_or_address(wanted: &str, name: &str, ip: IpAddr) -> bool {
    wanted == name || wanted.parse() == Ok(ip)
}

/// All interfaces, up or down, except point-to-point ones, which lead to a single other machine.
pub(super) fn list_interfaces() -> io::Result<Vec<Interface>> {
    let all = if_addrs::get_if_addrs()?
        .into_iter()
        .filter(|one| !one.is_p2p());
    Ok(all
        .map(|one| Interface {
            ip: one.ip(),
            name: one.name,
        })
        .collect())
}

/// The names of the loopback interfaces.
pub(super) fn loopback_names() -> Vec<String> {
    list_interfaces()
        .unwrap_or_default()
        .into_iter()
        .filter(|one| one.ip.is_loopback())
        .map(|one| one.name)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_selected_by_name_or_address() {
        let one = |name: &str, ip: &str| Interface {
            name: name.into(),
            ip: ip.parse().unwrap(),
        };
        let all = [
            one("lo", "127.0.0.1"),
            one("eth0", "10.0.0.1"),
            one("eth0", "fd00::1"),
            one("eth1", "10.1.0.1"),
            one("lo", "::1"),
        ];
        let select = |filter: InterfaceFilter| {
            let selected = filter.select(&all).map_err(|error| error.to_string())?;
            Ok::<_, String>(
                selected
                    .iter()
                    .map(|one| one.ip.to_string())
                    .collect::<Vec<_>>()
                    .join(" "),
            )
        };
        let select_named = |wanted: &[&str]| select(InterfaceFilter::new(wanted.iter().copied()));
        assert_eq!(
            select(InterfaceFilter::default()).unwrap(),
            "10.0.0.1 fd00::1 10.1.0.1"
        );
        assert_eq!(select_named(&["eth0"]).unwrap(), "10.0.0.1 fd00::1");
        assert_eq!(
            select_named(&["10.1.0.1", "fd00::1"]).unwrap(),
            "fd00::1 10.1.0.1"
        );
        assert_eq!(select_named(&["lo"]).unwrap(), "127.0.0.1 ::1");
        assert_eq!(select_named(&[]).unwrap(), "");
        let error = select_named(&["eth0", "eht1"]).unwrap_err();
        assert!(
            error.starts_with(
                "there is no interface with the name or address 'eht1': there are lo, eth0, eth1"
            ),
            "{error}"
        );
    }

    #[test]
    fn this_machine_has_a_loopback() {
        assert!(
            loopback_names().contains(&"lo".to_owned()),
            "{:?}",
            loopback_names()
        );
    }
}
