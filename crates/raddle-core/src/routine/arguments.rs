//! From the arguments of a task or a call to those of a function.

use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Failure, Given};

/// What a function is given, one after the other.
pub struct Arguments<'a>(Source<'a>);

enum Source<'a> {
    /// By position, then by name.
    Task { positional: std::vec::IntoIter<Value>, named: serde_json::Map<String, Value> },
    /// By position.
    Call(rmp_serde::Deserializer<rmp_serde::decode::ReadRefReader<'a, [u8]>>),
}

impl<'a> Arguments<'a> {
    /// Those for a function with `count` of them.
    pub fn of(given: Given<'a>, count: usize) -> Result<Self, Failure> {
        let (source, found) = match given {
            Given::Job(job) => {
                let (positional, named) = (job.spec.args, job.spec.kwargs);
                let found = positional.len() + named.len();
                (Source::Task { positional: positional.into_iter(), named }, found)
            }
            Given::Packed(bytes) => {
                // An array of fewer than 16, which is all that there are.
                let found = match bytes.first() {
                    Some(head @ 0x90..=0x9f) => usize::from(head & 0xf),
                    _ => return Err(Failure::Unfit("they are not an array".into())),
                };
                (Source::Call(rmp_serde::Deserializer::from_read_ref(&bytes[1..])), found)
            }
        };
        if found != count {
            return Err(Failure::Unfit(format!("it takes {count} and was given {found}")));
        }
        Ok(Self(source))
    }

    /// The next one, which the function calls `name`.
    pub fn next<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, Failure> {
        let read = match &mut self.0 {
            Source::Task { positional, named } => {
                let value = match positional.next() {
                    Some(value) => value,
                    None => named.remove(name).ok_or_else(|| Failure::Unfit(format!("'{name}' is missing")))?,
                };
                serde_json::from_value(value).map_err(|error| error.to_string())
            }
            Source::Call(rest) => T::deserialize(rest).map_err(|error| error.to_string()),
        };
        read.map_err(|error| Failure::Unfit(format!("'{name}': {error}")))
    }
}

impl fmt::Debug for Arguments<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arguments").finish_non_exhaustive()
    }
}
