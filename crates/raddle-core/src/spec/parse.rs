//! Reading a spec from text, with the path of the key that is wrong.

use super::{InvalidSpec, Spec, table::Table};

/// Why a text is not a spec.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParseSpecError {
    /// Not JSON, or a wrong key or type in it.
    #[error("at '{path}': {source}")]
    Json {
        /// The key that is wrong, as `limits.memory_mb`.
        path: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// Not TOML, or a wrong key or type in it.
    #[error("at '{path}': {}", source.message())]
    Toml {
        /// The key that is wrong, as `limits.memory_mb`.
        path: String,
        /// What is wrong with it.
        source: toml::de::Error,
    },
    /// Well-formed, but not a task that can be run.
    #[error(transparent)]
    Invalid(#[from] InvalidSpec),
}

impl Spec {
    /// Reads and checks a spec in JSON.
    pub fn from_json(text: &str) -> Result<Self, ParseSpecError> {
        let mut reader = serde_json::Deserializer::from_str(text);
        let Table(spec): Table<Self> = serde_path_to_error::deserialize(&mut reader)
            .map_err(|e| ParseSpecError::Json { path: e.path().to_string(), source: e.into_inner() })?;
        reader.end().map_err(|source| ParseSpecError::Json { path: ".".into(), source })?;
        spec.validate()?;
        Ok(spec)
    }

    /// Reads and checks a spec in TOML.
    pub fn from_toml(text: &str) -> Result<Self, ParseSpecError> {
        let toml_error = |path: String, source| ParseSpecError::Toml { path, source };
        let reader = toml::Deserializer::parse(text).map_err(|e| toml_error(".".into(), e))?;
        let spec: Self =
            serde_path_to_error::deserialize(reader).map_err(|e| toml_error(e.path().to_string(), e.into_inner()))?;
        spec.validate()?;
        Ok(spec)
    }
}
