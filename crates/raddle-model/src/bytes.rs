//! For `#[serde(with = "raddle_model::bytes")]`: a byte string as one value, in formats that have
//! such a type. Serde writes a `Vec<u8>` as a sequence of numbers, which takes up to twice the
//! space. [`option`] does the same for an optional field.

use std::fmt;

use serde::{
    Deserializer, Serializer,
    de::{self, SeqAccess},
};

/// Upper bound of an allocation that rests on a length prefix alone.
const MAX_PREALLOCATION: usize = 64 * 1024;

/// Serializes a byte string.
pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}

/// Deserializes a byte string, or a sequence of numbers.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    deserializer.deserialize_byte_buf(Visitor)
}

struct Visitor;

impl<'de> de::Visitor<'de> for Visitor {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
        Ok(bytes.to_vec())
    }

    fn visit_byte_buf<E: de::Error>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
        Ok(bytes)
    }

    /// JSON has no byte strings: it writes them as arrays of numbers.
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<u8>, A::Error> {
        let mut bytes = Vec::with_capacity(seq.size_hint().unwrap_or(0).min(MAX_PREALLOCATION));
        while let Some(byte) = seq.next_element()? {
            bytes.push(byte);
        }
        Ok(bytes)
    }
}

/// The same for `Option<Vec<u8>>`.
pub mod option {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize)]
    struct Borrowed<'a>(#[serde(with = "super")] &'a [u8]);

    #[derive(Deserialize)]
    struct Owned(#[serde(with = "super")] Vec<u8>);

    /// Serializes a byte string or its absence.
    pub fn serialize<S: Serializer>(
        bytes: &Option<Vec<u8>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        bytes.as_deref().map(Borrowed).serialize(serializer)
    }

    /// Deserializes a byte string or its absence.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        Ok(Option::deserialize(deserializer)?.map(|Owned(bytes)| bytes))
    }
}
