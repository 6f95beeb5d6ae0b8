//! Writing values down, and reading them again.

use serde::{Serialize, de::DeserializeOwned};

use super::{Answer, Failure, Outcome};

/// In which of the two forms something travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// For people, and for long.
    Json,
    /// MessagePack, with the names of fields: programs of two versions can then still understand each other.
    Packed,
}

/// The arguments of a call, being put together.
#[derive(Clone, Debug)]
pub struct Packed {
    bytes: Vec<u8>,
    /// An argument that cannot be written down.
    refused: Option<String>,
}

impl Form {
    /// A value that a function gives back.
    pub fn value<T: Serialize + ?Sized>(self, value: &T) -> Outcome {
        match self {
            Self::Json => {
                serde_json::to_value(value).map(Answer::Json).map_err(|error| Failure::Unwritable(error.to_string()))
            }
            Self::Packed => rmp_serde::to_vec_named(value)
                .map(Answer::Packed)
                .map_err(|error| Failure::Unwritable(error.to_string())),
        }
    }
}

impl Packed {
    /// For this many.
    ///
    /// # Panics
    /// If there are more than 15, of which the macro makes none.
    pub fn new(count: usize) -> Self {
        assert!(count < 16, "a routine takes at most 12 arguments");
        // The head of an array that short is one byte.
        Self { bytes: vec![0x90 | count as u8], refused: None }
    }

    /// Adds one, which the function calls `name`.
    pub fn argument<T: Serialize + ?Sized>(mut self, name: &str, value: &T) -> Self {
        if let Err(error) = rmp_serde::encode::write_named(&mut self.bytes, value) {
            self.refused.get_or_insert(format!("the argument '{name}' cannot be written down: {error}"));
        }
        self
    }

    /// All of them, or why there is one that cannot be sent.
    pub fn finish(self) -> Result<Vec<u8>, String> {
        self.refused.map_or(Ok(self.bytes), Err)
    }
}

/// Reads what a function has given back to a call.
pub fn unpack<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    rmp_serde::from_slice(bytes).map_err(|error| error.to_string())
}
