//! `Vec<u8>` as a MessagePack byte string.
//!
//! `serde` writes and reads a `Vec<u8>` number by number, which takes 50 times as long as a
//! `String` of that length. Here, values of the type `Vec<u8>` are copied as a whole instead.
//! Inside other types, `#[serde(with = "serde_bytes")]` does the same.

use std::{any::Any, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error, SeqAccess, Visitor, value::SeqAccessDeserializer},
};

/// Returns the bytes of a value that is a `Vec<u8>`.
pub(super) fn as_bytes<T: 'static>(value: &T) -> Option<&[u8]> {
    (value as &dyn Any)
        .downcast_ref::<Vec<u8>>()
        .map(Vec::as_slice)
}

/// Decodes a value. A `Vec<u8>` may be a byte string or an array of numbers.
pub(super) fn read<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: DeserializeOwned + 'static,
    D: Deserializer<'de>,
{
    let mut value = None::<T>;
    match (&mut value as &mut dyn Any).downcast_mut::<Option<Vec<u8>>>() {
        Some(bytes) => *bytes = Some(deserializer.deserialize_byte_buf(BytesVisitor)?),
        None => value = Some(T::deserialize(deserializer)?),
    }
    value.ok_or_else(|| D::Error::custom("there is no value"))
}

struct BytesVisitor;

impl<'de> Visitor<'de> for BytesVisitor {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes, or an array of them")
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
        Ok(bytes.to_vec())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, numbers: A) -> Result<Vec<u8>, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(numbers))
    }
}
