//! Parses specs from text. Errors name the path of the invalid key.

use serde::de::DeserializeOwned;

use super::{InvalidSpec, TaskSpec, table::Table};

/// The text is not a valid spec.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParseSpecError {
    /// Not JSON, or an invalid key or type.
    #[error("at '{path}': {source}")]
    Json {
        /// Path of the invalid key, as `limits.memory_mb`.
        path: String,
        /// The parse error.
        source: serde_json::Error,
    },
    /// Not TOML, or an invalid key or type.
    #[error("at '{path}': {}", source.message())]
    Toml {
        /// Path of the invalid key, as `limits.memory_mb`.
        path: String,
        /// The parse error.
        source: toml::de::Error,
    },
    /// Well-formed, but not a task that can run.
    #[error(transparent)]
    Invalid(#[from] InvalidSpec),
}

impl TaskSpec {
    /// Parses and validates a spec in JSON.
    pub fn from_json(text: &str) -> Result<Self, ParseSpecError> {
        let spec: Self = read_json(text)?;
        spec.validate()?;
        Ok(spec)
    }

    /// Deserializes and validates a spec from a JSON value.
    pub fn from_value(value: serde_json::Value) -> Result<Self, ParseSpecError> {
        let Table(spec): Table<Self> =
            serde_path_to_error::deserialize(value).map_err(|e| ParseSpecError::Json {
                path: e.path().to_string(),
                source: e.into_inner(),
            })?;
        spec.validate()?;
        Ok(spec)
    }

    /// Parses and validates a spec in TOML.
    pub fn from_toml(text: &str) -> Result<Self, ParseSpecError> {
        let spec: Self = read_toml(text)?;
        spec.validate()?;
        Ok(spec)
    }
}

/// Deserializes one table from JSON.
pub(crate) fn read_json<T: DeserializeOwned>(text: &str) -> Result<T, ParseSpecError> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let Table(value): Table<T> =
        serde_path_to_error::deserialize(&mut reader).map_err(|e| ParseSpecError::Json {
            path: e.path().to_string(),
            source: e.into_inner(),
        })?;
    reader.end().map_err(|source| ParseSpecError::Json {
        path: ".".into(),
        source,
    })?;
    Ok(value)
}

/// Deserializes one table from TOML.
pub(crate) fn read_toml<T: DeserializeOwned>(text: &str) -> Result<T, ParseSpecError> {
    let toml_error = |path: String, source| ParseSpecError::Toml { path, source };
    let table: toml::Table = text.parse().map_err(|e| toml_error(".".into(), e))?;
    let mut value = toml::Value::Table(table);
    convert_toml_values(&mut value, "")?;
    serde_path_to_error::deserialize(value)
        .map_err(|e| toml_error(e.path().to_string(), e.into_inner()))
}

/// Converts values that only TOML has: dates become text. NaN and infinities are refused, because
/// JSON cannot represent them.
fn convert_toml_values(value: &mut toml::Value, path: &str) -> Result<(), InvalidSpec> {
    match value {
        toml::Value::Datetime(date) => *value = toml::Value::String(date.to_string()),
        toml::Value::Float(number) if !number.is_finite() => {
            let reason = format!("{number} cannot be stored: write it as text, '{number}'");
            return Err(InvalidSpec {
                path: path.to_owned().into(),
                reason,
            });
        }
        toml::Value::Array(items) => {
            for (i, item) in items.iter_mut().enumerate() {
                convert_toml_values(item, &format!("{path}[{i}]"))?;
            }
        }
        toml::Value::Table(table) => {
            for (key, item) in table.iter_mut() {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                convert_toml_values(item, &path)?;
            }
        }
        _ => {}
    }
    Ok(())
}
