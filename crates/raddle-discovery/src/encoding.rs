//! The encodings that a worker reads, by number (gRPC) and by name (text records).

use std::collections::BTreeSet;

pub use raddle_model::routine::Encoding;
use raddle_wire::v1;
use serde::{Deserialize, Deserializer};

/// A set of encodings. Empty means unknown.
pub type Encodings = BTreeSet<Encoding>;

/// The encoding for calls to a worker that reads these. Without any, the worker is most likely a
/// Raddle worker: the default.
pub fn preferred(reads: &Encodings) -> Encoding {
    reads.first().copied().unwrap_or_default()
}

/// Another encoding than the refused one that the worker reads.
pub fn alternative(refused: Encoding, reads: &Encodings) -> Option<Encoding> {
    reads.iter().copied().find(|encoding| *encoding != refused)
}

/// The encoding with this number, if it is known.
pub fn from_number(number: i32) -> Option<Encoding> {
    Some(match v1::Encoding::try_from(number).ok()? {
        v1::Encoding::MessagePack => Encoding::MessagePack,
        v1::Encoding::Json => Encoding::Json,
    })
}

/// The number of an encoding.
pub fn to_number(encoding: Encoding) -> i32 {
    let encoding = match encoding {
        Encoding::MessagePack => v1::Encoding::MessagePack,
        Encoding::Json => v1::Encoding::Json,
    };
    encoding.into()
}

/// The known encodings among these numbers. Unknown ones are useless, because this program cannot
/// write them.
pub fn from_numbers(numbers: &[i32]) -> Encodings {
    numbers
        .iter()
        .filter_map(|number| from_number(*number))
        .collect()
}

/// The numbers of encodings.
pub fn to_numbers(encodings: &Encodings) -> Vec<i32> {
    encodings.iter().copied().map(to_number).collect()
}

/// The known encodings in a comma-separated list of names.
pub fn from_names(names: &str) -> Encodings {
    names
        .split(',')
        .filter_map(|name| name.trim().parse().ok())
        .collect()
}

/// A comma-separated list of names.
pub fn to_names(encodings: &Encodings) -> String {
    encodings
        .iter()
        .map(|encoding| encoding.name())
        .collect::<Vec<_>>()
        .join(",")
}

/// Deserialises a list of names, and ignores unknown ones.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Encodings, D::Error> {
    let names = Vec::<String>::deserialize(deserializer)?;
    Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use Encoding::{Json, MessagePack};

    use super::*;

    #[test]
    fn the_best_common_encoding_is_chosen() {
        assert_eq!(preferred(&[].into()), MessagePack);
        assert_eq!(preferred(&[Json].into()), Json);
        assert_eq!(preferred(&[Json, MessagePack].into()), MessagePack);
        assert_eq!(alternative(MessagePack, &[Json].into()), Some(Json));
        assert_eq!(
            alternative(MessagePack, &[MessagePack, Json].into()),
            Some(Json)
        );
        assert_eq!(alternative(MessagePack, &[MessagePack].into()), None);
        assert_eq!(alternative(MessagePack, &[].into()), None);
    }

    #[test]
    fn unknown_encodings_are_ignored() {
        let all: Encodings = Encoding::ALL.into();
        assert_eq!(from_numbers(&to_numbers(&all)), all);
        assert_eq!(from_names(&to_names(&all)), all);
        assert_eq!(to_names(&all), "messagepack,json");
        assert_eq!(from_numbers(&[1, 77, -1]), [Json].into());
        assert_eq!(from_names("cbor, json ,"), [Json].into());
        assert_eq!(from_names(""), [].into());
    }
}
