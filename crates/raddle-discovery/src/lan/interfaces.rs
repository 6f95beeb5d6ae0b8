//! The interfaces of this machine, and which of them are used.

use std::{io, net::IpAddr};

/// Which interfaces are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct InterfaceFilter(Option<Vec<String>>);

/// An address of an interface. One that has several is listed as often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) ip: IpAddr,
}

impl InterfaceFilter {
    /// These, by their names or addresses.
    pub(super) fn of(wanted: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self(Some(wanted.into_iter().map(Into::into).collect()))
    }

    /// Whether an address of an interface is used. If nothing is said, all are but the loopback; an interface by its name with all addresses that it
    /// has; and one by its address with that alone.
    pub(super) fn takes(&self, name: &str, ip: IpAddr) -> bool {
        match &self.0 {
            None => !ip.is_loopback(),
            Some(wanted) => wanted.iter().any(|wanted| is_meant(wanted, name, ip)),
        }
    }

    /// Those of these that are used. It is an error if one that was asked for is not among them: that would be a mistake that nobody sees.
    pub(super) fn among<'a>(&self, all: &'a [Interface]) -> io::Result<Vec<&'a Interface>> {
        let is_there = |wanted: &&String| all.iter().any(|one| is_meant(wanted, &one.name, one.ip));
        if let Some(missing) = self.0.iter().flatten().find(|wanted| !is_there(wanted)) {
            let mut names: Vec<_> = all.iter().map(|one| one.name.as_str()).collect();
            names.dedup();
            let message = format!(
                "there is no interface '{missing}', by name or by address; there are {}",
                names.join(", ")
            );
            return Err(io::Error::new(io::ErrorKind::NotFound, message));
        }
        Ok(all
            .iter()
            .filter(|one| self.takes(&one.name, one.ip))
            .collect())
    }
}

fn is_meant(wanted: &str, name: &str, ip: IpAddr) -> bool {
    wanted == name || wanted.parse() == Ok(ip)
}

/// All that there are, up or not, but for those that lead to one other machine alone: there is nobody to be found.
pub(super) fn all() -> io::Result<Vec<Interface>> {
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

/// The names of the loopback, where only this machine is heard.
pub(super) fn loopbacks() -> Vec<String> {
    all()
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
    fn interfaces_are_chosen_by_name_or_address() {
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
        let chosen = |choice: InterfaceFilter| {
            let places = choice.among(&all).map_err(|error| error.to_string())?;
            Ok::<_, String>(
                places
                    .iter()
                    .map(|one| one.ip.to_string())
                    .collect::<Vec<_>>()
                    .join(" "),
            )
        };
        let of = |wanted: &[&str]| chosen(InterfaceFilter::of(wanted.iter().copied()));
        assert_eq!(
            chosen(InterfaceFilter::default()).unwrap(),
            "10.0.0.1 fd00::1 10.1.0.1"
        );
        assert_eq!(of(&["eth0"]).unwrap(), "10.0.0.1 fd00::1");
        assert_eq!(of(&["10.1.0.1", "fd00::1"]).unwrap(), "fd00::1 10.1.0.1");
        assert_eq!(of(&["lo"]).unwrap(), "127.0.0.1 ::1");
        assert_eq!(of(&[]).unwrap(), "");
        let error = of(&["eth0", "eht1"]).unwrap_err();
        assert!(
            error.starts_with(
                "there is no interface 'eht1', by name or by address; there are lo, eth0, eth1"
            ),
            "{error}"
        );
    }

    #[test]
    fn this_machine_has_a_loopback() {
        assert!(loopbacks().contains(&"lo".to_owned()), "{:?}", loopbacks());
    }
}
