//! Reading a spec from text, with the path of the key that is wrong.

use serde::de::DeserializeOwned;

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
        let spec: Self = read_json(text)?;
        spec.validate()?;
        Ok(spec)
    }

    /// Checks a spec that has been read as any JSON.
    pub fn from_value(value: serde_json::Value) -> Result<Self, ParseSpecError> {
        let Table(spec): Table<Self> = serde_path_to_error::deserialize(value)
            .map_err(|e| ParseSpecError::Json { path: e.path().to_string(), source: e.into_inner() })?;
        spec.validate()?;
        Ok(spec)
    }

    /// Reads and checks a spec in TOML.
    pub fn from_toml(text: &str) -> Result<Self, ParseSpecError> {
        let spec: Self = read_toml(text)?;
        spec.validate()?;
        Ok(spec)
    }
}

/// Reads what is one table in JSON.
pub(crate) fn read_json<T: DeserializeOwned>(text: &str) -> Result<T, ParseSpecError> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let Table(value): Table<T> = serde_path_to_error::deserialize(&mut reader)
        .map_err(|e| ParseSpecError::Json { path: e.path().to_string(), source: e.into_inner() })?;
    reader.end().map_err(|source| ParseSpecError::Json { path: ".".into(), source })?;
    Ok(value)
}

/// Reads what is one table in TOML.
pub(crate) fn read_toml<T: DeserializeOwned>(text: &str) -> Result<T, ParseSpecError> {
    let toml_error = |path: String, source| ParseSpecError::Toml { path, source };
    let table: toml::Table = text.parse().map_err(|e| toml_error(".".into(), e))?;
    let mut value = toml::Value::Table(table);
    plain(&mut value, "")?;
    serde_path_to_error::deserialize(value).map_err(|e| toml_error(e.path().to_string(), e.into_inner()))
}

/// Makes JSON of what only TOML has: dates become text. Numbers that are none are refused, for nothing could stand for them.
fn plain(value: &mut toml::Value, path: &str) -> Result<(), InvalidSpec> {
    match value {
        toml::Value::Datetime(date) => *value = toml::Value::String(date.to_string()),
        toml::Value::Float(number) if !number.is_finite() => {
            let reason = format!("{number} cannot be stored: write it as text, '{number}'");
            return Err(InvalidSpec { path: path.to_owned().into(), reason });
        }
        toml::Value::Array(items) => {
            for (i, item) in items.iter_mut().enumerate() {
                plain(item, &format!("{path}[{i}]"))?;
            }
        }
        toml::Value::Table(table) => {
            for (key, item) in table.iter_mut() {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                plain(item, &path)?;
            }
        }
        _ => {}
    }
    Ok(())
}
