//! Task templates: commands with placeholders for parameters. No shell interprets them, and each
//! argument stays one argument.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{HumanDuration, Limits, spec::Isolation};

/// A task that can be requested by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskTemplate {
    /// The program and its arguments, with placeholders.
    pub(super) command: Vec<String>,
    /// Standard input, also with placeholders.
    pub(super) stdin: Option<String>,
    /// Declared parameters.
    #[serde(default)]
    pub(super) params: BTreeMap<String, ParamSpec>,
    pub(super) timeout: Option<HumanDuration>,
    #[serde(default)]
    pub(super) limits: Limits,
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
    pub(super) cwd: Option<String>,
    #[serde(default)]
    pub(super) isolation: Option<Isolation>,
}

/// A part of an argument.
pub(super) enum TemplatePart {
    /// Literal text.
    Text(String),
    /// Placeholder for the value of this parameter.
    Param(String),
}

/// Declaration of a parameter: its type and the allowed values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "DeclaredParam")]
pub(super) struct ParamSpec {
    #[serde(rename = "type")]
    pub(super) kind: ParamType,
    /// Without a default the parameter is required.
    pub(super) default: Option<Value>,
    /// The only allowed values, if set.
    pub(super) choices: Option<Vec<Value>>,
}

/// A parameter as written in the registry: the name of its type, or a table.
#[derive(Deserialize)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "a parameter is \"string\", \"integer\", \"number\" or \"boolean\", or a table { type, default, choices }"
)]
enum DeclaredParam {
    Kind(ParamType),
    More {
        #[serde(default, rename = "type")]
        kind: ParamType,
        default: Option<Value>,
        choices: Option<Vec<Value>>,
    },
}

impl From<DeclaredParam> for ParamSpec {
    fn from(declared: DeclaredParam) -> Self {
        match declared {
            DeclaredParam::Kind(kind) => Self {
                kind,
                default: None,
                choices: None,
            },
            DeclaredParam::More {
                kind,
                default,
                choices,
            } => Self {
                kind,
                default,
                choices,
            },
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ParamType {
    #[default]
    String,
    Integer,
    Number,
    Boolean,
}

/// Why parameters do not fit a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParamError {
    /// The template has no such parameter.
    #[error("has no parameter '{name}': {}", format_list("it takes", known))]
    Unknown {
        /// The given name.
        name: String,
        /// The parameters of the template.
        known: Vec<String>,
    },
    /// A required parameter is missing.
    #[error("needs the parameter '{name}', {kind}")]
    Missing {
        /// The parameter.
        name: String,
        /// Its type, in words.
        kind: &'static str,
    },
    /// The given value has the wrong type.
    #[error("takes {kind} for '{name}', and was given {given}")]
    Type {
        /// The parameter.
        name: String,
        /// Its type, in words.
        kind: &'static str,
        /// The given value.
        given: String,
    },
    /// The given value is not one of the choices.
    #[error("takes for '{name}' one of {}, and was given {given}", choices.join(", "))]
    Choice {
        /// The parameter.
        name: String,
        /// The allowed values.
        choices: Vec<String>,
        /// The given value.
        given: String,
    },
    /// The program would parse the value as an option.
    #[error(
        "takes no '{name}' that begins with '-', which could be taken for an option: put \"--\" before it in the template"
    )]
    Option {
        /// The parameter.
        name: String,
    },
    /// The value holds a NUL byte, which no argument can.
    #[error("was given a NUL byte for '{name}', which no program can be given")]
    Nul {
        /// The parameter.
        name: String,
    },
}

/// Formats `it takes a, b`, or `it takes none`.
pub(super) fn format_list(words: &str, names: &[String]) -> String {
    if names.is_empty() {
        format!("{words} none")
    } else {
        format!("{words} {}", names.join(", "))
    }
}

/// By convention, arguments after it are not options.
const END_OF_OPTIONS: &str = "--";
const CHECKED: &str = "the registry was checked when it was read";
/// Number of characters of a value that an error message shows.
const MAX_SHOWN_CHARS: usize = 80;

impl TaskTemplate {
    /// Builds the arguments and the standard input of a task from the given parameters.
    pub(super) fn fill(
        &self,
        given: &Map<String, Value>,
    ) -> Result<(Vec<String>, Option<String>), ParamError> {
        if let Some(name) = given.keys().find(|name| !self.params.contains_key(*name)) {
            return Err(ParamError::Unknown {
                name: name.clone(),
                known: self.params.keys().cloned().collect(),
            });
        }
        let mut values = BTreeMap::new();
        for (name, param) in &self.params {
            values.insert(name.as_str(), param.resolve_value(name, given.get(name))?);
        }
        let mut argv = Vec::with_capacity(self.command.len());
        for text in &self.command {
            let parts = parse_argument(text).expect(CHECKED);
            let argument = fill_parts(&parts, &values);
            if let Some(TemplatePart::Param(name)) = parts.first()
                && argument.starts_with('-')
                && !argv.iter().any(|before| before == END_OF_OPTIONS)
            {
                return Err(ParamError::Option { name: name.clone() });
            }
            argv.push(argument);
        }
        Ok((
            argv,
            self.stdin
                .as_ref()
                .map(|text| fill_parts(&parse_argument(text).expect(CHECKED), &values)),
        ))
    }
}

pub(super) fn is_param_name(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Parses an argument with placeholders: `{name}`; `{{` and `}}` are literal braces.
pub(super) fn parse_argument(text: &str) -> Result<Vec<TemplatePart>, String> {
    let (mut parts, mut plain, mut rest) = (Vec::new(), String::new(), text);
    while let Some(at) = rest.find(['{', '}']) {
        plain.push_str(&rest[..at]);
        let (brace, after) = rest[at..].split_at(1);
        if let Some(after) = after.strip_prefix(brace) {
            plain.push_str(brace);
            rest = after;
            continue;
        }
        let name = if brace == "{" {
            after.split_once('}')
        } else {
            None
        };
        let Some((name, after)) = name.filter(|(name, _)| is_param_name(name)) else {
            return Err(
                "has an unmatched brace: write {name}, or {{ and }} for literal braces".into(),
            );
        };
        if !plain.is_empty() {
            parts.push(TemplatePart::Text(std::mem::take(&mut plain)));
        }
        parts.push(TemplatePart::Param(name.into()));
        rest = after;
    }
    plain.push_str(rest);
    if !plain.is_empty() {
        parts.push(TemplatePart::Text(plain));
    }
    Ok(parts)
}

fn fill_parts(parts: &[TemplatePart], values: &BTreeMap<&str, String>) -> String {
    let text = |part: &TemplatePart| match part {
        TemplatePart::Text(text) => text.clone(),
        // The registry check ensures that every named parameter is declared.
        TemplatePart::Param(name) => values.get(name.as_str()).cloned().unwrap_or_default(),
    };
    parts.iter().map(text).collect()
}

impl ParamSpec {
    /// Refuses a declaration whose default or choices are inconsistent.
    pub(super) fn check(&self) -> Result<(), String> {
        let values = self.default.iter().chain(self.choices.iter().flatten());
        if let Some(wrong) = values
            .into_iter()
            .find(|value| self.kind.format_value(value).is_none())
        {
            return Err(format!(
                "is {}, and {} is none",
                self.kind.as_str(),
                truncate_value(wrong)
            ));
        }
        match (&self.default, &self.choices) {
            (_, Some(choices)) if choices.is_empty() => {
                Err("has no choices: leave them out to take any".into())
            }
            (Some(default), Some(choices)) if !choices.contains(default) => Err(format!(
                "has the default {}, which is none of its choices",
                truncate_value(default)
            )),
            _ => Ok(()),
        }
    }

    fn resolve_value(&self, name: &str, given: Option<&Value>) -> Result<String, ParamError> {
        let name = || name.to_owned();
        let value = given.or(self.default.as_ref());
        let value = value.ok_or_else(|| ParamError::Missing {
            name: name(),
            kind: self.kind.as_str(),
        })?;
        let text = self
            .kind
            .format_value(value)
            .ok_or_else(|| ParamError::Type {
                name: name(),
                kind: self.kind.as_str(),
                given: truncate_value(value),
            })?;
        if let Some(choices) = self
            .choices
            .as_ref()
            .filter(|choices| !choices.contains(value))
        {
            let choices = choices.iter().map(truncate_value).collect();
            return Err(ParamError::Choice {
                name: name(),
                choices,
                given: truncate_value(value),
            });
        }
        if text.contains('\0') {
            return Err(ParamError::Nul { name: name() });
        }
        Ok(text)
    }
}

impl ParamType {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::String => "a text",
            Self::Integer => "a whole number",
            Self::Number => "a number",
            Self::Boolean => "true or false",
        }
    }

    /// Formats a value as an argument, if it has this type.
    pub(super) fn format_value(self, value: &Value) -> Option<String> {
        match (self, value) {
            (Self::String, Value::String(text)) => Some(text.clone()),
            (Self::Integer, Value::Number(number)) if number.is_i64() || number.is_u64() => {
                Some(number.to_string())
            }
            (Self::Number, Value::Number(number)) => Some(number.to_string()),
            (Self::Boolean, Value::Bool(is)) => Some(is.to_string()),
            _ => None,
        }
    }
}

/// Formats a value for an error message, truncated if it is long.
pub(super) fn truncate_value(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
