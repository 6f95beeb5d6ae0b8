//! Which containers, or pods, belong together, and what they are called.

use std::hash::{BuildHasher, RandomState};

use raddle_model::CapSet;

use super::LaunchId;

/// Workers that take the same tasks from the same broker. It is what the next spawner knows the containers of the last one by, so it is the
/// same in every version: a change here would leave containers behind that nobody looks after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerClass(String);

/// The labels of containers and pods: their class, and the spawner that has made them.
pub(super) const CLASS: &str = "raddle.class";
pub(super) const SPAWNER: &str = "raddle.spawner";
/// What every name begins with.
const PREFIX: &str = "raddle-";
/// Between one part of what is hashed and the next: in none of them.
const SEPARATOR: u8 = 0;

impl WorkerClass {
    /// The class of workers with these capabilities and queues, on the broker at `location`, which must hold no password.
    pub fn new(location: &str, caps: &CapSet, queues: &[String]) -> Self {
        let caps = caps.to_string();
        let parts = [location, &caps]
            .into_iter()
            .chain(queues.iter().map(String::as_str));
        let hash = parts.fold(FNV_OFFSET, |hash, part| {
            fnv(fnv(hash, part.as_bytes()), &[SEPARATOR])
        });
        Self(format!("{hash:016x}"))
    }

    /// The class of this short name.
    #[cfg(feature = "docker")]
    pub(crate) fn named(name: &str) -> Option<Self> {
        (name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .then(|| Self(name.into()))
    }

    /// A short name: sixteen hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of a new container of this class; its host name, too, by which it is found in the registry. It is random, for other spawners name theirs too.
    pub(crate) fn new_id(&self) -> LaunchId {
        let number = RandomState::new().hash_one(0u8) as u32;
        LaunchId::named(&format!("{PREFIX}{}-{number:08x}", self.0))
    }

    /// Whether this is the name of such a container.
    pub(crate) fn has(&self, name: &str) -> bool {
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

/// FNV-1a: it need not withstand anybody, but must never change.
fn fnv(hash: u64, bytes: &[u8]) -> u64 {
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
    fn a_class_is_what_takes_the_same_tasks() {
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
            "what is written in labels stays as it is"
        );
    }

    #[test]
    fn names_are_told_apart() {
        let one = class("sqlite:/a", "cpu", &["default"]);
        let id = one.new_id();
        let name = id.as_str();
        assert!(name.len() <= 63 && id != one.new_id());
        assert!(one.has(name));
        assert!(!class("sqlite:/b", "cpu", &["default"]).has(name));
        for wrong in [
            "",
            "vm",
            &name[1..],
            &name[..name.len() - 1],
            &format!("{name}0"),
            &name.replace("raddle-", "raddle_"),
        ] {
            assert!(!one.has(wrong), "{wrong}");
        }
    }
}
