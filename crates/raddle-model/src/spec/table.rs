//! Structs that deserialize from a table only.
//!
//! A derived `Deserialize` also accepts an array for a struct, field by field in the order of
//! declaration: `limits = [512]` would set `memory_mb`. That is never intended, and adding a field
//! would change its meaning.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};

/// A `T` that was deserialized from a table.
pub(crate) struct Table<T>(pub(crate) T);

/// Deserializes a field from a table; for `deserialize_with`.
pub(crate) fn only<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Table::deserialize(deserializer).map(|Table(value)| value)
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Table<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_map(TableVisitor(PhantomData))
            .map(Self)
    }
}

struct TableVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for TableVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table of keys and values")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}
