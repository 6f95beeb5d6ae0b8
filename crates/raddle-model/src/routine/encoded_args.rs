//! Encodes the arguments and results of functions.

use serde::{Serialize, de::DeserializeOwned};

use super::{Arguments, Encoding, RoutineFailure, RoutineInput, RoutineOutcome, RoutineOutput};

/// The form in which a result is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputForm {
    /// The result of a task: JSON, which people read and the store keeps.
    Task,
    /// The result of a call.
    Call(Encoding),
}

/// A builder for the arguments of a call.
///
/// They are encoded before it is known which worker will receive them. That is nearly always a
/// Raddle process, so they are written in MessagePack, and transcoded to JSON for other workers.
#[derive(Clone, Debug)]
pub struct EncodedArgs {
    bytes: Vec<u8>,
    /// The error of the first argument that could not be encoded.
    refused: Option<String>,
    rewrite: ArgsTranscoder,
}

/// A function that transcodes arguments from MessagePack to JSON.
pub type ArgsTranscoder = fn(&[u8]) -> Result<Vec<u8>, String>;

/// Transcodes the arguments of a call from MessagePack to JSON, one by one.
#[derive(Debug)]
pub struct TranscodedArgs<'a> {
    arguments: Arguments<'a>,
    json: Vec<u8>,
}

impl OutputForm {
    /// Encodes a value that a function returned.
    pub fn value<T: Serialize + 'static>(self, value: &T) -> RoutineOutcome {
        match self {
            Self::Task => serde_json::to_value(value)
                .map(RoutineOutput::Json)
                .map_err(|error| RoutineFailure::Unwritable(error.to_string())),
            Self::Call(encoding) => encoding
                .write(value)
                .map(RoutineOutput::Bytes)
                .map_err(RoutineFailure::Unwritable),
        }
    }
}

impl EncodedArgs {
    /// Creates a builder for `count` arguments.
    ///
    /// # Panics
    /// If there are more than 15. The macro accepts at most 12.
    pub fn new(count: usize) -> Self {
        assert!(count < 16, "a routine takes at most 12 arguments");
        let rewrite = |bytes: &[u8]| Encoding::MessagePack.rewrite_any(bytes, Encoding::Json);
        // A MessagePack fixarray has a one-byte header.
        Self {
            bytes: vec![0x90 | count as u8],
            refused: None,
            rewrite,
        }
    }

    /// Takes arguments that are encoded already: an array in MessagePack.
    pub fn packed(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            ..Self::new(0)
        }
    }

    /// Sets the function that transcodes the arguments by their types, which only the generated
    /// code knows. Without it, [`Encoding::rewrite_any`] transcodes them.
    #[must_use]
    pub fn rewritten_by(self, rewrite: ArgsTranscoder) -> Self {
        Self { rewrite, ..self }
    }

    /// Appends an argument, which the function calls `name`.
    #[must_use]
    pub fn argument<T: Serialize + 'static>(mut self, name: &str, value: &T) -> Self {
        if let Err(error) = Encoding::MessagePack.write_to(&mut self.bytes, value) {
            self.refused.get_or_insert(format!(
                "the argument '{name}' cannot be serialized: {error}"
            ));
        }
        self
    }

    /// Returns the function that transcodes the arguments to JSON.
    pub fn rewrite(&self) -> ArgsTranscoder {
        self.rewrite
    }

    /// Returns the encoded arguments, or the error of the argument that cannot be encoded.
    pub fn finish(self) -> Result<Vec<u8>, String> {
        self.refused.map_or(Ok(self.bytes), Err)
    }
}

impl<'a> TranscodedArgs<'a> {
    /// Starts to transcode `count` arguments in MessagePack.
    pub fn new(packed: &'a [u8], count: usize) -> Result<Self, String> {
        let given = RoutineInput::Call(Encoding::MessagePack, packed);
        let arguments = Arguments::decode(given, count).map_err(|failure| failure.to_string())?;
        Ok(Self {
            arguments,
            json: b"[".to_vec(),
        })
    }

    /// Transcodes the next argument, which the function calls `name`.
    pub fn next<T: Serialize + DeserializeOwned + 'static>(
        &mut self,
        name: &str,
    ) -> Result<(), String> {
        let value: T = self
            .arguments
            .next(name)
            .map_err(|failure| failure.to_string())?;
        if self.json.len() > 1 {
            self.json.push(b',');
        }
        let written = Encoding::Json.write_to(&mut self.json, &value);
        written.map_err(|error| format!("the argument '{name}' cannot be written in JSON: {error}"))
    }

    /// Returns the JSON array.
    pub fn finish(mut self) -> Vec<u8> {
        self.json.push(b']');
        self.json
    }
}
