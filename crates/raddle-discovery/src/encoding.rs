//! Which encodings somebody reads, as it is said to others.

use std::collections::BTreeSet;

pub use raddle_model::routine::Encoding;
use raddle_wire::v1;
use serde::{Deserialize, Deserializer};

/// The encodings that somebody reads. None: nothing was said of it.
pub type Encodings = BTreeSet<Encoding>;

/// That in which to call a worker that reads these. One that says nothing is most likely of Raddle.
pub fn best(reads: &Encodings) -> Encoding {
    reads.first().copied().unwrap_or_default()
}

/// Another one, for a worker that has refused this and says that it reads these.
pub fn instead_of(refused: Encoding, reads: &Encodings) -> Option<Encoding> {
    reads.iter().copied().find(|encoding| *encoding != refused)
}

/// The one of this number, if it is known.
pub fn of_number(number: i32) -> Option<Encoding> {
    Some(match v1::Encoding::try_from(number).ok()? {
        v1::Encoding::MessagePack => Encoding::MessagePack,
        v1::Encoding::Json => Encoding::Json,
    })
}

/// Its number.
pub fn number(encoding: Encoding) -> i32 {
    let encoding = match encoding {
        Encoding::MessagePack => v1::Encoding::MessagePack,
        Encoding::Json => v1::Encoding::Json,
    };
    encoding.into()
}

/// Those of these numbers that are known: nobody here could write in another.
pub fn of_numbers(numbers: &[i32]) -> Encodings {
    numbers
        .iter()
        .filter_map(|number| of_number(*number))
        .collect()
}

/// Their numbers.
pub fn numbers(encodings: &Encodings) -> Vec<i32> {
    encodings.iter().copied().map(number).collect()
}

/// Those of these names that are known, with commas between them.
pub fn of_names(names: &str) -> Encodings {
    names
        .split(',')
        .filter_map(|name| name.trim().parse().ok())
        .collect()
}

/// Their names, with commas between them.
pub fn names(encodings: &Encodings) -> String {
    encodings
        .iter()
        .map(|encoding| encoding.name())
        .collect::<Vec<_>>()
        .join(",")
}

/// Reads a list of names, of which those that are not known are left out.
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
    fn the_best_that_both_know_is_taken() {
        assert_eq!(best(&[].into()), MessagePack);
        assert_eq!(best(&[Json].into()), Json);
        assert_eq!(best(&[Json, MessagePack].into()), MessagePack);
        assert_eq!(instead_of(MessagePack, &[Json].into()), Some(Json));
        assert_eq!(
            instead_of(MessagePack, &[MessagePack, Json].into()),
            Some(Json)
        );
        assert_eq!(instead_of(MessagePack, &[MessagePack].into()), None);
        assert_eq!(instead_of(MessagePack, &[].into()), None);
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let all: Encodings = Encoding::ALL.into();
        assert_eq!(of_numbers(&numbers(&all)), all);
        assert_eq!(of_names(&names(&all)), all);
        assert_eq!(names(&all), "messagepack,json");
        assert_eq!(of_numbers(&[1, 77, -1]), [Json].into());
        assert_eq!(of_names("cbor, json ,"), [Json].into());
        assert_eq!(of_names(""), [].into());
    }
}
