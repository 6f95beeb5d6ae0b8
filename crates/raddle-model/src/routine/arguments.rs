//! Decodes the arguments of a task or a call into those of a function.

use std::fmt;

use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::{Value, value::RawValue};

use super::{Encoding, RoutineFailure, RoutineInput, raw_bytes};

/// Reads the arguments of a function in order.
pub struct Arguments<'a>(Source<'a>);

enum Source<'a> {
    /// By position, then by name.
    Task {
        positional: std::vec::IntoIter<Value>,
        named: serde_json::Map<String, Value>,
    },
    /// By position, in MessagePack.
    Packed(rmp_serde::Deserializer<rmp_serde::decode::ReadRefReader<'a, [u8]>>),
    /// By position, each as JSON.
    Json(std::vec::IntoIter<&'a RawValue>),
}

impl<'a> Arguments<'a> {
    /// Reads the arguments of a function that takes `count` of them.
    pub fn decode(given: RoutineInput<'a>, count: usize) -> Result<Self, RoutineFailure> {
        let not_an_array = |why: &str| RoutineFailure::Unfit(format!("they are not an array{why}"));
        let (source, found) = match given {
            RoutineInput::Job(job) => {
                let (positional, named) = (job.spec.args, job.spec.kwargs);
                let found = positional.len() + named.len();
                (
                    Source::Task {
                        positional: positional.into_iter(),
                        named,
                    },
                    found,
                )
            }
            RoutineInput::Call(Encoding::MessagePack, bytes) => {
                // A MessagePack fixarray: up to 15 elements, and routines take at most 12.
                let found = match bytes.first() {
                    Some(head @ 0x90..=0x9f) => usize::from(head & 0xf),
                    _ => return Err(not_an_array("")),
                };
                (
                    Source::Packed(rmp_serde::Deserializer::from_read_ref(&bytes[1..])),
                    found,
                )
            }
            RoutineInput::Call(Encoding::Json, bytes) => {
                let mut json = serde_json::Deserializer::from_slice(bytes);
                let read = Elements(count)
                    .deserialize(&mut json)
                    .and_then(|read| json.end().map(|()| read));
                let (elements, found) =
                    read.map_err(|error| not_an_array(&format!(": {error}")))?;
                (Source::Json(elements.into_iter()), found)
            }
        };
        if found != count {
            return Err(RoutineFailure::Unfit(format!(
                "it takes {count} and was given {found}"
            )));
        }
        Ok(Self(source))
    }

    /// Reads the next argument, which the function calls `name`.
    pub fn next<T: DeserializeOwned + 'static>(&mut self, name: &str) -> Result<T, RoutineFailure> {
        let missing = || RoutineFailure::Unfit(format!("'{name}' is missing"));
        let read = match &mut self.0 {
            Source::Task { positional, named } => {
                let value = match positional.next() {
                    Some(value) => value,
                    None => named.remove(name).ok_or_else(missing)?,
                };
                serde_json::from_value(value).map_err(|error| error.to_string())
            }
            Source::Packed(rest) => raw_bytes::read(rest).map_err(|error| error.to_string()),
            Source::Json(rest) => serde_json::from_str(rest.next().ok_or_else(missing)?.get())
                .map_err(|error| error.to_string()),
        };
        read.map_err(|error| RoutineFailure::Unfit(format!("'{name}': {error}")))
    }
}

/// Reads up to this many elements of an array without parsing them, and counts the rest. Excess
/// elements are not kept, however many there are.
struct Elements(usize);

impl<'de> DeserializeSeed<'de> for Elements {
    type Value = (Vec<&'de RawValue>, usize);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Elements {
    type Value = (Vec<&'de RawValue>, usize);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Value, A::Error> {
        let mut elements = Vec::with_capacity(self.0);
        while elements.len() < self.0 {
            let Some(element) = array.next_element()? else {
                break;
            };
            elements.push(element);
        }
        let mut found = elements.len();
        while elements.len() == self.0 && array.next_element::<IgnoredAny>()?.is_some() {
            found += 1;
        }
        Ok((elements, found))
    }
}

impl fmt::Debug for Arguments<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arguments").finish_non_exhaustive()
    }
}
