//! A task that a manager may spawn: a command with places for parameters. No shell reads it, and each argument stays one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Limits, Span, spec::Isolation};

/// A task that can be asked for by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Template {
    /// What is run: the program, and its arguments, with places for parameters.
    pub(super) command: Vec<String>,
    /// What is given to it on its standard input, with places as well.
    pub(super) stdin: Option<String>,
    /// What can be asked for.
    #[serde(default)]
    pub(super) params: BTreeMap<String, Param>,
    pub(super) timeout: Option<Span>,
    #[serde(default)]
    pub(super) limits: Limits,
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
    pub(super) cwd: Option<String>,
    #[serde(default)]
    pub(super) isolation: Isolation,
}

/// A part of an argument.
pub(super) enum Piece {
    /// As it stands.
    Text(String),
    /// What is given for this parameter.
    Param(String),
}

/// What can be given for a parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Declared")]
pub(super) struct Param {
    #[serde(rename = "type")]
    pub(super) kind: Kind,
    /// Without it, the parameter has to be given.
    pub(super) default: Option<Value>,
    /// Nothing but these.
    pub(super) choices: Option<Vec<Value>>,
}

/// A parameter as it is written: the name of its type, or that with more.
#[derive(Deserialize)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "a parameter is \"string\", \"integer\", \"number\" or \"boolean\", or a table { type, default, choices }"
)]
enum Declared {
    Kind(Kind),
    More {
        #[serde(default, rename = "type")]
        kind: Kind,
        default: Option<Value>,
        choices: Option<Vec<Value>>,
    },
}

impl From<Declared> for Param {
    fn from(declared: Declared) -> Self {
        match declared {
            Declared::Kind(kind) => Self { kind, default: None, choices: None },
            Declared::More { kind, default, choices } => Self { kind, default, choices },
        }
    }
}

/// The type of a parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    #[default]
    String,
    Integer,
    Number,
    Boolean,
}

/// Why parameters do not fit a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misfit {
    /// The template has no such parameter.
    #[error("has no parameter '{name}': {}", listed("it takes", known))]
    Unknown {
        /// What was given.
        name: String,
        /// Those it has.
        known: Vec<String>,
    },
    /// The parameter has to be given.
    #[error("needs the parameter '{name}', {kind}")]
    Missing {
        /// The parameter.
        name: String,
        /// What it is.
        kind: &'static str,
    },
    /// What was given is of another type.
    #[error("takes {kind} for '{name}', and was given {given}")]
    Type {
        /// The parameter.
        name: String,
        /// What it is.
        kind: &'static str,
        /// What was given.
        given: String,
    },
    /// What was given is none of those that can be.
    #[error("takes for '{name}' one of {}, and was given {given}", choices.join(", "))]
    Choice {
        /// The parameter.
        name: String,
        /// Those that can be given.
        choices: Vec<String>,
        /// What was given.
        given: String,
    },
    /// A program would take it for an option.
    #[error(
        "takes no '{name}' that begins with '-', which could be taken for an option: put \"--\" before it in the template"
    )]
    Option {
        /// The parameter.
        name: String,
    },
    /// No program can be given it.
    #[error("was given a NUL byte for '{name}', which no program can be given")]
    Nul {
        /// The parameter.
        name: String,
    },
}

/// `it takes a, b`, or that there are none.
pub(super) fn listed(words: &str, names: &[String]) -> String {
    if names.is_empty() { format!("{words} none") } else { format!("{words} {}", names.join(", ")) }
}

/// What ends the options of a command, by an old agreement.
const END_OF_OPTIONS: &str = "--";
const CHECKED: &str = "the registry was checked when it was read";
/// As much of a value as is shown.
const SHOWN: usize = 80;

impl Template {
    /// The arguments and standard input of the task that is asked for with these parameters.
    pub(super) fn fill(&self, given: &Map<String, Value>) -> Result<(Vec<String>, Option<String>), Misfit> {
        if let Some(name) = given.keys().find(|name| !self.params.contains_key(*name)) {
            return Err(Misfit::Unknown { name: name.clone(), known: self.params.keys().cloned().collect() });
        }
        let mut values = BTreeMap::new();
        for (name, param) in &self.params {
            values.insert(name.as_str(), param.value(name, given.get(name))?);
        }
        let mut argv = Vec::with_capacity(self.command.len());
        for text in &self.command {
            let pieces = parse(text).expect(CHECKED);
            let argument = write(&pieces, &values);
            if let Some(Piece::Param(name)) = pieces.first()
                && argument.starts_with('-')
                && !argv.iter().any(|before| before == END_OF_OPTIONS)
            {
                return Err(Misfit::Option { name: name.clone() });
            }
            argv.push(argument);
        }
        Ok((argv, self.stdin.as_ref().map(|text| write(&parse(text).expect(CHECKED), &values))))
    }
}

pub(super) fn is_param(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Reads an argument with places for parameters: `{name}`; `{{` and `}}` are braces.
pub(super) fn parse(text: &str) -> Result<Vec<Piece>, String> {
    let (mut pieces, mut plain, mut rest) = (Vec::new(), String::new(), text);
    while let Some(at) = rest.find(['{', '}']) {
        plain.push_str(&rest[..at]);
        let (brace, behind) = rest[at..].split_at(1);
        if let Some(behind) = behind.strip_prefix(brace) {
            plain.push_str(brace);
            rest = behind;
            continue;
        }
        let name = if brace == "{" { behind.split_once('}') } else { None };
        let Some((name, behind)) = name.filter(|(name, _)| is_param(name)) else {
            return Err("has a brace that belongs to no place: write {name}, or {{ and }} for braces".into());
        };
        if !plain.is_empty() {
            pieces.push(Piece::Text(std::mem::take(&mut plain)));
        }
        pieces.push(Piece::Param(name.into()));
        rest = behind;
    }
    plain.push_str(rest);
    if !plain.is_empty() {
        pieces.push(Piece::Text(plain));
    }
    Ok(pieces)
}

fn write(pieces: &[Piece], values: &BTreeMap<&str, String>) -> String {
    let text = |piece: &Piece| match piece {
        Piece::Text(text) => text.clone(),
        // Those that are named are declared: that was checked when the template was read.
        Piece::Param(name) => values.get(name.as_str()).cloned().unwrap_or_default(),
    };
    pieces.iter().map(text).collect()
}

impl Param {
    /// Refuses what no parameter could be.
    pub(super) fn check(&self) -> Result<(), String> {
        let values = self.default.iter().chain(self.choices.iter().flatten());
        if let Some(wrong) = values.into_iter().find(|value| self.kind.write(value).is_none()) {
            return Err(format!("is {}, and {} is none", self.kind.as_str(), shown(wrong)));
        }
        match (&self.default, &self.choices) {
            (_, Some(choices)) if choices.is_empty() => Err("has no choices: leave them out to take any".into()),
            (Some(default), Some(choices)) if !choices.contains(default) => {
                Err(format!("has the default {}, which is none of its choices", shown(default)))
            }
            _ => Ok(()),
        }
    }

    fn value(&self, name: &str, given: Option<&Value>) -> Result<String, Misfit> {
        let name = || name.to_owned();
        let value = given.or(self.default.as_ref());
        let value = value.ok_or_else(|| Misfit::Missing { name: name(), kind: self.kind.as_str() })?;
        let text = self.kind.write(value).ok_or_else(|| Misfit::Type {
            name: name(),
            kind: self.kind.as_str(),
            given: shown(value),
        })?;
        if let Some(choices) = self.choices.as_ref().filter(|choices| !choices.contains(value)) {
            let choices = choices.iter().map(shown).collect();
            return Err(Misfit::Choice { name: name(), choices, given: shown(value) });
        }
        if text.contains('\0') {
            return Err(Misfit::Nul { name: name() });
        }
        Ok(text)
    }
}

impl Kind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::String => "a text",
            Self::Integer => "a whole number",
            Self::Number => "a number",
            Self::Boolean => "true or false",
        }
    }

    /// A value as an argument, if it is of this type.
    pub(super) fn write(self, value: &Value) -> Option<String> {
        match (self, value) {
            (Self::String, Value::String(text)) => Some(text.clone()),
            (Self::Integer, Value::Number(number)) if number.is_i64() || number.is_u64() => Some(number.to_string()),
            (Self::Number, Value::Number(number)) => Some(number.to_string()),
            (Self::Boolean, Value::Bool(is)) => Some(is.to_string()),
            _ => None,
        }
    }
}

/// A value as people are shown it: whole, if it is short.
pub(super) fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
