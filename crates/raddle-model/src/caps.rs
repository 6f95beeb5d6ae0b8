//! Capability sets: what a task requires and what a worker offers.

use std::{collections::BTreeSet, fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A set of capability tags such as `cpu`, `docker` or `gpu`, in sorted order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CapSet(BTreeSet<String>);

/// Prefix of the tags that Raddle itself assigns. Targets and isolation imply some of them
/// ([`TaskSpec::needs`](crate::TaskSpec::needs)); spawners identify each other by others
/// (`@former/TID`), which no task needs. A worker that could claim such a tag by hand would receive
/// tasks that it cannot run as required, or be mistaken for another worker.
const IMPLIED_PREFIX: char = '@';

/// Why a text is not a capability tag, or not one that users may set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidCap {
    /// The text has a character that a tag cannot have, or is too long.
    #[error("'{tag}' is not a capability: use letters, digits and . _ - : @ (at most 64)")]
    Malformed {
        /// The text.
        tag: String,
    },
    /// Only Raddle itself may claim or require this tag.
    #[error("'{tag}' cannot be asked for: tags that begin with @ are given by Raddle itself")]
    Implied {
        /// The tag.
        tag: String,
    },
}

impl CapSet {
    /// Creates the empty set. Any worker may claim a task that requires nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Parses tags that a user claims for a worker or requires for a task. Unlike [`FromStr`], it
    /// refuses the tags that Raddle itself assigns.
    pub fn from_people(text: &str) -> Result<Self, InvalidCap> {
        let set: Self = text.parse()?;
        if let Some(tag) = set.implied().next() {
            return Err(InvalidCap::Implied { tag: tag.into() });
        }
        Ok(set)
    }

    /// Returns the tags that Raddle itself assigns. Among the needs of a task, these are the ones
    /// that its target and isolation imply.
    pub fn implied(&self) -> impl Iterator<Item = &str> {
        self.iter().filter(|tag| tag.starts_with(IMPLIED_PREFIX))
    }

    /// Returns whether every tag of this set is in `offered`: the claim rule.
    pub fn is_subset(&self, offered: &Self) -> bool {
        self.0.is_subset(&offered.0)
    }

    /// Returns the tags that `offered` lacks.
    pub fn missing_from<'a>(&'a self, offered: &'a Self) -> impl Iterator<Item = &'a str> {
        self.0.difference(&offered.0).map(String::as_str)
    }

    /// Adds one tag, also one that only Raddle itself assigns.
    pub fn insert(&mut self, tag: &str) -> Result<(), InvalidCap> {
        if !is_valid(tag) {
            return Err(InvalidCap::Malformed { tag: tag.into() });
        }
        self.0.insert(tag.into());
        Ok(())
    }

    /// Returns this set without these tags.
    pub fn without(&self, tags: &[String]) -> Self {
        let mut rest = self.clone();
        for tag in tags {
            rest.0.remove(tag);
        }
        rest
    }

    /// Returns the tags in sorted order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Returns whether the set has no tags.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn is_valid(tag: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"._-:@".contains(&b);
    if tag.starts_with(IMPLIED_PREFIX) {
        // The tag may contain the name of a routine or a handler.
        return tag.len() <= 160 && tag.bytes().all(|b| is_plain(b) || b == b'/');
    }
    (1..=64).contains(&tag.len()) && tag.bytes().all(is_plain)
}

/// Parses comma-separated tags, as in `WORKER_CAPS`. Blanks around a tag and empty tags are
/// skipped.
impl FromStr for CapSet {
    type Err = InvalidCap;

    fn from_str(text: &str) -> Result<Self, InvalidCap> {
        let mut set = Self::new();
        for tag in text.split(',').map(str::trim).filter(|tag| !tag.is_empty()) {
            set.insert(tag)?;
        }
        Ok(set)
    }
}

impl fmt::Display for CapSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, tag) in self.iter().enumerate() {
            write!(f, "{}{tag}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl Serialize for CapSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for CapSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut set = Self::new();
        for tag in Vec::<String>::deserialize(deserializer)? {
            set.insert(&tag).map_err(de::Error::custom)?;
        }
        Ok(set)
    }
}

#[cfg(test)]
mod tests;
