//! `WorkerClass`: which containers or pods belong together, and their names.

use std::hash::{BuildHasher, RandomState};

use raddle_model::CapSet;

use super::LaunchId;

/// Workers that take the same tasks from the same broker. A spawner recognises the containers of
/// its predecessor by it, so the hash must never change between versions: containers would be
/// orphaned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerClass(String);

/// Labels of containers and pods: their class, and the spawner that created them.
pub(super) const CLASS: &str = "raddle.class";
pub(super) const SPAWNER: &str = "raddle.spawner";
/// Prefix of all names.
const PREFIX: &str = "raddle-";
/// Separates the hashed parts. It occurs in none of them.
const SEPARATOR: u8 = 0;

impl WorkerClass {
    /// The class of workers with these capabilities and queues. `location` names the broker,
    /// without password.
    pub fn new(location: &str, caps: &CapSet, queues: &[String]) -> Self {
        let caps = caps.to_string();
        let parts = [location, &caps]
            .into_iter()
            .chain(queues.iter().map(String::as_str));
        let hash = parts.fold(FNV_OFFSET, |hash, part| {
            fnv1a(fnv1a(hash, part.as_bytes()), &[SEPARATOR])
        });
        Self(format!("{hash:016x}"))
    }

    /// The class with this short name.
    #[cfg(feature = "docker")]
    pub(crate) fn parse(name: &str) -> Option<Self> {
        (name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .then(|| Self(name.into()))
    }

    /// The short name: sixteen hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A name for a new container of this class. It is also the host name, which the registry
    /// shows. It is random, because other spawners choose names too.
    pub(crate) fn new_id(&self) -> LaunchId {
        let number = RandomState::new().hash_one(0u8) as u32;
        LaunchId::named(&format!("{PREFIX}{}-{number:08x}", self.0))
    }

    /// Whether this is the name of a container of this class.
    pub(crate) fn matches(&self, name: &str) -> bool {
        let number = || {
            name.strip_prefix(PREFIX)?
                .strip_prefix(self.as_str())?
                .strip_prefix('-')
        };
        number().is_some_and(|number| {
            number.len() == 8 && number.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
    }
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// FNV-1a: it needs no security, but must never change.
fn fnv1a(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(location: &str, caps: &str, queues: &[&str]) -> WorkerClass {
        let queues: Vec<String> = queues.iter().map(ToString::to_string).collect();
        WorkerClass::new(location, &caps.parse().unwrap(), &queues)
    }

    #[test]
    fn a_class_depends_on_broker_capabilities_and_queues() {
        let one = class("sqlite:/a", "cpu", &["default"]);
        assert_eq!(one, class("sqlite:/a", "cpu", &["default"]));
        for other in [
            class("sqlite:/b", "cpu", &["default"]),
            class("sqlite:/a", "", &["default"]),
            class("sqlite:/a", "cpu", &["default", "b"]),
            class("sqlite:/a", "cpu", &["defaultb"]),
            class("sqlite:/acpu", "", &["default"]),
        ] {
            assert_ne!(one, other);
        }
        assert_eq!(
            one.as_str(),
            "2d5f3c97ba89aa16",
            "labels must stay the same across versions"
        );
    }

    #[test]
    fn recognises_names_of_its_class() {
        let one = class("sqlite:/a", "cpu", &["default"]);
        let id = one.new_id();
        let name = id.as_str();
        assert!(name.len() <= 63 && id != one.new_id());
        assert!(one.matches(name));
        assert!(!class("sqlite:/b", "cpu", &["default"]).matches(name));
        for wrong in [
            "",
            "vm",
            &name[1..],
            &name[..name.len() - 1],
            &format!("{name}0"),
            &name.replace("raddle-", "raddle_"),
        ] {
            assert!(!one.matches(wrong), "{wrong}");
        }
    }
}
