//! How the values of a call are written down: compactly between programs of Raddle, and as JSON for all others.
//!
//! | | MessagePack | JSON |
//! | --- | --- | --- |
//! | whole numbers | all | all, digit by digit; whoever reads them as doubles loses some beyond 2⁵³ |
//! | NaN and infinities | yes | refused |
//! | bytes, a `Vec<u8>` among them | as such | a list of numbers |
//! | keys that are numbers | yes | as text, and numbers again where a number is expected |
//! | other keys that are no text | yes | refused |
//! | types with one form for people and one for machines, such as IP addresses | for machines | for people |

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize, Serializer, de::DeserializeOwned};
use serde_json::Value;

use super::{any::Any, finite::Finite, octets};

/// How the values of a call are written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// MessagePack, with the names of fields: programs of two versions can then still understand each other.
    #[default]
    MessagePack,
    /// What every language reads.
    Json,
}

/// Nothing is written down like that.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no encoding: use messagepack or json")]
pub struct UnknownEncoding(String);

impl Encoding {
    /// All of them, the best first.
    pub const ALL: [Self; 2] = [Self::MessagePack, Self::Json];

    /// What it is called where names are written.
    pub fn name(self) -> &'static str {
        match self {
            Self::MessagePack => "messagepack",
            Self::Json => "json",
        }
    }

    /// Writes a value down, or says why it cannot be.
    pub fn write<T: Serialize + 'static>(self, value: &T) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        self.write_to(&mut bytes, value)?;
        Ok(bytes)
    }

    /// The same, after what stands there.
    pub(super) fn write_to<T: Serialize + 'static>(self, bytes: &mut Vec<u8>, value: &T) -> Result<(), String> {
        match self {
            Self::MessagePack => {
                let written = match octets::as_bytes(value) {
                    Some(octets) => rmp_serde::Serializer::new(bytes).serialize_bytes(octets),
                    None => rmp_serde::encode::write_named(bytes, value),
                };
                written.map_err(|error| error.to_string())
            }
            Self::Json => serde_json::to_writer(bytes, &Finite(value)).map_err(|error| error.to_string()),
        }
    }

    /// Reads a value, or says why there is none.
    pub fn read<T: DeserializeOwned + 'static>(self, bytes: &[u8]) -> Result<T, String> {
        match self {
            Self::MessagePack => {
                octets::read(&mut rmp_serde::Deserializer::from_read_ref(bytes)).map_err(|error| error.to_string())
            }
            Self::Json => serde_json::from_slice(bytes).map_err(|error| error.to_string()),
        }
    }

    /// Writes a value of a type that is known in another encoding.
    pub fn rewrite<T: Serialize + DeserializeOwned + 'static>(self, bytes: &[u8], to: Self) -> Result<Vec<u8>, String> {
        to.write(&self.read::<T>(bytes)?)
    }

    /// The same of a value of which nothing is known but what stands there. One whose type has a form for people and another for machines is in the
    /// wrong one then.
    pub fn rewrite_any(self, bytes: &[u8], to: Self) -> Result<Vec<u8>, String> {
        let value: Value = match self {
            Self::MessagePack => self.read::<Any>(bytes)?.0,
            Self::Json => self.read(bytes)?,
        };
        to.write(&value)
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Encoding {
    type Err = UnknownEncoding;

    fn from_str(name: &str) -> Result<Self, UnknownEncoding> {
        Self::ALL.into_iter().find(|known| known.name() == name).ok_or_else(|| UnknownEncoding(name.to_owned()))
    }
}

#[cfg(test)]
mod tests;
