//! Encodings of the values of a call: compact between Raddle processes, JSON for all others.
//!
//! | | MessagePack | JSON |
//! | --- | --- | --- |
//! | integers | all | all, digit by digit; a reader that uses doubles loses precision beyond 2⁵³ |
//! | NaN and infinities | yes | refused |
//! | bytes, including `Vec<u8>` | as bytes | an array of numbers |
//! | integer keys | yes | as text, and converted back where an integer is expected |
//! | other keys that are not text | yes | refused |
//! | types with a human-readable and a binary form, such as IP addresses | binary | human-readable |

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize, Serializer, de::DeserializeOwned};
use serde_json::Value;

use super::{finite::Finite, json_value::JsonValue, raw_bytes};

/// The encoding of the values of a call.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// MessagePack with field names, so that processes of different versions can understand each
    /// other.
    #[default]
    MessagePack,
    /// JSON, which every language can read.
    Json,
}

/// The name is not that of an encoding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not an encoding: use messagepack or json")]
pub struct UnknownEncoding(String);

impl Encoding {
    /// All encodings, the preferred one first.
    pub const ALL: [Self; 2] = [Self::MessagePack, Self::Json];

    /// Returns the name of the encoding.
    pub fn name(self) -> &'static str {
        match self {
            Self::MessagePack => "messagepack",
            Self::Json => "json",
        }
    }

    /// Encodes a value.
    pub fn write<T: Serialize + 'static>(self, value: &T) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        self.write_to(&mut bytes, value)?;
        Ok(bytes)
    }

    /// Appends an encoded value to `bytes`.
    pub(super) fn write_to<T: Serialize + 'static>(
        self,
        bytes: &mut Vec<u8>,
        value: &T,
    ) -> Result<(), String> {
        match self {
            Self::MessagePack => {
                let written = match raw_bytes::as_bytes(value) {
                    Some(octets) => rmp_serde::Serializer::new(bytes).serialize_bytes(octets),
                    None => rmp_serde::encode::write_named(bytes, value),
                };
                written.map_err(|error| error.to_string())
            }
            Self::Json => {
                serde_json::to_writer(bytes, &Finite(value)).map_err(|error| error.to_string())
            }
        }
    }

    /// Decodes a value.
    pub fn read<T: DeserializeOwned + 'static>(self, bytes: &[u8]) -> Result<T, String> {
        match self {
            Self::MessagePack => {
                raw_bytes::read(&mut rmp_serde::Deserializer::from_read_ref(bytes))
                    .map_err(|error| error.to_string())
            }
            Self::Json => serde_json::from_slice(bytes).map_err(|error| error.to_string()),
        }
    }

    /// Transcodes a value of a known type.
    pub fn rewrite<T: Serialize + DeserializeOwned + 'static>(
        self,
        bytes: &[u8],
        to: Self,
    ) -> Result<Vec<u8>, String> {
        to.write(&self.read::<T>(bytes)?)
    }

    /// Transcodes a value of an unknown type. A type with a human-readable and a binary form ends
    /// up in the wrong one.
    pub fn rewrite_any(self, bytes: &[u8], to: Self) -> Result<Vec<u8>, String> {
        let value: Value = match self {
            Self::MessagePack => self.read::<JsonValue>(bytes)?.0,
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
        Self::ALL
            .into_iter()
            .find(|known| known.name() == name)
            .ok_or_else(|| UnknownEncoding(name.to_owned()))
    }
}

#[cfg(test)]
mod tests;
