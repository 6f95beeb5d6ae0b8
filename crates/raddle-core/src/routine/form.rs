//! Writing down what functions are given, and what they give back.

use serde::{Serialize, de::DeserializeOwned};

use super::{Answer, Arguments, Encoding, Failure, Given, Outcome};

/// How something travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// With a task: as JSON, for people, and for long.
    Task,
    /// With a call.
    Call(Encoding),
}

/// The arguments of a call, being put together.
///
/// They are put together before it is known who will read them. That is nearly always a worker of Raddle, so that they are written in
/// MessagePack; and where it is not, they are written once more, from that.
#[derive(Clone, Debug)]
pub struct Packed {
    bytes: Vec<u8>,
    /// An argument that cannot be written down.
    refused: Option<String>,
    rewrite: Rewrite,
}

/// Writes arguments in JSON that are there in MessagePack.
pub type Rewrite = fn(&[u8]) -> Result<Vec<u8>, String>;

/// The arguments of a call, being written in JSON.
#[derive(Debug)]
pub struct Rewriting<'a> {
    arguments: Arguments<'a>,
    json: Vec<u8>,
}

impl Form {
    /// A value that a function gives back.
    pub fn value<T: Serialize + 'static>(self, value: &T) -> Outcome {
        match self {
            Self::Task => {
                serde_json::to_value(value).map(Answer::Json).map_err(|error| Failure::Unwritable(error.to_string()))
            }
            Self::Call(encoding) => encoding.write(value).map(Answer::Bytes).map_err(Failure::Unwritable),
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
        let rewrite = |bytes: &[u8]| Encoding::MessagePack.rewrite_any(bytes, Encoding::Json);
        // The head of an array that short is one byte.
        Self { bytes: vec![0x90 | count as u8], refused: None, rewrite }
    }

    /// Says how they are written in JSON: by their types, which only whoever knows the function knows.
    #[must_use]
    pub fn rewritten_by(self, rewrite: Rewrite) -> Self {
        Self { rewrite, ..self }
    }

    /// Adds one, which the function calls `name`.
    #[must_use]
    pub fn argument<T: Serialize + 'static>(mut self, name: &str, value: &T) -> Self {
        if let Err(error) = Encoding::MessagePack.write_to(&mut self.bytes, value) {
            self.refused.get_or_insert(format!("the argument '{name}' cannot be written down: {error}"));
        }
        self
    }

    /// How they are written in JSON.
    pub fn rewrite(&self) -> Rewrite {
        self.rewrite
    }

    /// All of them, or why there is one that cannot be sent.
    pub fn finish(self) -> Result<Vec<u8>, String> {
        self.refused.map_or(Ok(self.bytes), Err)
    }
}

impl<'a> Rewriting<'a> {
    /// Of so many, in MessagePack.
    pub fn of(packed: &'a [u8], count: usize) -> Result<Self, String> {
        let given = Given::Call(Encoding::MessagePack, packed);
        let arguments = Arguments::of(given, count).map_err(|failure| failure.to_string())?;
        Ok(Self { arguments, json: b"[".to_vec() })
    }

    /// Writes the next one, which the function calls `name`.
    pub fn next<T: Serialize + DeserializeOwned + 'static>(&mut self, name: &str) -> Result<(), String> {
        let value: T = self.arguments.next(name).map_err(|failure| failure.to_string())?;
        if self.json.len() > 1 {
            self.json.push(b',');
        }
        let written = Encoding::Json.write_to(&mut self.json, &value);
        written.map_err(|error| format!("the argument '{name}' cannot be written in JSON: {error}"))
    }

    /// All of them.
    pub fn finish(mut self) -> Vec<u8> {
        self.json.push(b']');
        self.json
    }
}
