//! From a task's arguments to a function's.

use raddle_core::{Job, reply::Fault};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// What a task gives to its function: by position, then by name.
#[derive(Debug)]
pub struct Arguments {
    positional: std::vec::IntoIter<Value>,
    named: serde_json::Map<String, Value>,
}

impl Arguments {
    /// Those of a task for a function with `count` of them.
    pub fn of(job: Job, count: usize) -> Result<Self, Fault> {
        let (positional, named) = (job.spec.args, job.spec.kwargs);
        let given = positional.len() + named.len();
        if given != count {
            return Err(unfit(format!("it takes {count} and was given {given}")));
        }
        Ok(Self { positional: positional.into_iter(), named })
    }

    /// The next one, which the function calls `name`.
    pub fn next<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, Fault> {
        let value = match self.positional.next() {
            Some(value) => value,
            None => self.named.remove(name).ok_or_else(|| unfit(format!("'{name}' is missing")))?,
        };
        serde_json::from_value(value).map_err(|error| unfit(format!("'{name}': {error}")))
    }
}

/// There is no use in another try with the same arguments.
fn unfit(reason: String) -> Fault {
    Fault { message: format!("the arguments do not fit: {reason}"), panicked_at: None, permanent: true, value: None }
}
