//! The file that says what a manager may spawn: `tasks.toml`.
//!
//! ```toml
//! [task.grep]
//! command = ["grep", "-n", "--", "{pattern}", "{file}"]
//! timeout = "30s"
//! [task.grep.params]
//! pattern = "string"
//! file = { type = "string", default = "/etc/hosts" }
//! ```

use std::{collections::BTreeMap, ops::Range};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toml::Spanned;

use super::{
    WORKER,
    template::{Kind, Param, Piece, Template, shown},
};
use crate::{Limits, Span, Spec, caps::CapSet, spec::Isolation};

/// What a manager may spawn, by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Registry {
    pub(super) tasks: BTreeMap<String, Template>,
}

/// Why a text is no registry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct RegistryError {
    /// Where, counted from 1.
    pub line: usize,
    /// What is wrong there, and what to do.
    pub reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    task: BTreeMap<String, Spanned<Entry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    command: Spanned<Vec<String>>,
    stdin: Option<Spanned<String>>,
    #[serde(default)]
    params: BTreeMap<String, Spanned<Declared>>,
    timeout: Option<Span>,
    #[serde(default)]
    limits: Limits,
    #[serde(default)]
    env: BTreeMap<String, String>,
    cwd: Option<String>,
    #[serde(default)]
    isolation: Isolation,
}

/// A parameter: the name of its type, or that with more.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "a parameter is \"string\", \"integer\", \"number\" or \"boolean\", or a table { type, default, choices }"
)]
enum Declared {
    Kind(Kind),
    More(More),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct More {
    #[serde(default, rename = "type")]
    kind: Kind,
    default: Option<Value>,
    choices: Option<Vec<Value>>,
}

/// What is wrong, and at which byte of the text.
type Fault = (Range<usize>, String);

impl Registry {
    /// Reads what a file says.
    pub fn from_toml(text: &str) -> Result<Self, RegistryError> {
        let at = |span: Range<usize>, reason: String| {
            let before = text.as_bytes().get(..span.start).unwrap_or_default();
            RegistryError { line: 1 + before.iter().filter(|byte| **byte == b'\n').count(), reason }
        };
        let File { task } =
            toml::from_str(text).map_err(|error| at(error.span().unwrap_or(0..0), error.message().to_owned()))?;
        let mut tasks = BTreeMap::new();
        for (name, entry) in task {
            let span = entry.span();
            let template = read(&name, entry).map_err(|(span, reason)| at(span, format!("task '{name}': {reason}")))?;
            template.check().map_err(|reason| at(span, format!("task '{name}': {reason}")))?;
            tasks.insert(name, template);
        }
        Ok(Self { tasks })
    }

    /// The names of what can be asked for.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tasks.keys().map(String::as_str)
    }

    /// Whether nothing can be asked for.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }
}

fn read(name: &str, entry: Spanned<Entry>) -> Result<Template, Fault> {
    let span = entry.span();
    // It is a capability of the manager, too.
    if CapSet::from_people(name).is_err() || name.contains([',', ' ']) || name.is_empty() {
        let reason = "its name is none: use letters, digits and . _ - : (at most 64)";
        return Err((span, reason.into()));
    }
    if name == WORKER {
        return Err((span, "is what managers themselves are asked for by: give it another name".into()));
    }
    let Entry { command, stdin, params, timeout, limits, env, cwd, isolation } = entry.into_inner();
    let (command_span, words) = (command.span(), command.into_inner());
    let mut taken = BTreeMap::new();
    for (param, declared) in params {
        let span = declared.span();
        let reason = |reason: String| (span.clone(), format!("parameter '{param}' {reason}"));
        if !is_param(&param) {
            return Err(reason("has no good name: use letters, digits and _".into()));
        }
        taken.insert(param.clone(), declare(declared.into_inner()).map_err(reason)?);
    }
    let pieces = |text: &str, span: &Range<usize>| {
        let pieces = parse(text).map_err(|reason| (span.clone(), format!("'{text}' {reason}")))?;
        let strange = pieces.iter().find_map(|piece| match piece {
            Piece::Param(name) if !taken.contains_key(name) => Some(name),
            _ => None,
        });
        match strange {
            Some(name) => {
                let reason =
                    format!("'{text}' has a place for '{name}', which is not among its params: declare it there");
                Err((span.clone(), reason))
            }
            None => Ok(pieces),
        }
    };
    let command: Vec<Vec<Piece>> = words.iter().map(|word| pieces(word, &command_span)).collect::<Result<_, _>>()?;
    match command.first().map(Vec::as_slice) {
        Some([Piece::Text(program)]) if !program.is_empty() => {}
        Some([] | [Piece::Text(_)]) | None => {
            return Err((command_span, "command names no program: its first word is the program".into()));
        }
        Some(_) => {
            let reason = "the program itself cannot be a parameter: who asks would run what they like";
            return Err((command_span, reason.into()));
        }
    }
    let stdin = stdin.map(|text| pieces(text.get_ref(), &text.span())).transpose()?;
    let used = command.iter().chain(&stdin).flatten().filter_map(|piece| match piece {
        Piece::Param(name) => Some(name.as_str()),
        Piece::Text(_) => None,
    });
    let used: Vec<&str> = used.collect();
    if let Some(idle) = taken.keys().find(|name| !used.contains(&name.as_str())) {
        let reason = format!("parameter '{idle}' is used nowhere: write {{{idle}}} in command or stdin, or remove it");
        return Err((command_span, reason));
    }
    Ok(Template { command, stdin, params: taken, timeout, limits, env, cwd, isolation })
}

fn declare(declared: Declared) -> Result<Param, String> {
    let param = match declared {
        Declared::Kind(kind) => Param { kind, default: None, choices: None },
        Declared::More(More { kind, default, choices }) => Param { kind, default, choices },
    };
    let values = param.default.iter().chain(param.choices.iter().flatten());
    if let Some(wrong) = values.into_iter().find(|value| param.kind.write(value).is_none()) {
        return Err(format!("is {}, and {} is none", param.kind.as_str(), shown(wrong)));
    }
    match (&param.default, &param.choices) {
        (_, Some(choices)) if choices.is_empty() => Err("has no choices: leave them out to take any".into()),
        (Some(default), Some(choices)) if !choices.contains(default) => {
            Err(format!("has the default {}, which is none of its choices", shown(default)))
        }
        _ => Ok(param),
    }
}

fn is_param(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Reads an argument with places for parameters: `{name}`; `{{` and `}}` are braces.
fn parse(text: &str) -> Result<Vec<Piece>, String> {
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

impl Template {
    /// Refuses what no task could be.
    fn check(&self) -> Result<(), String> {
        let argv = self.command.iter().map(|pieces| match pieces.first() {
            Some(Piece::Text(text)) => text.clone(),
            _ => String::new(),
        });
        let spec = Spec {
            timeout: self.timeout,
            limits: self.limits.clone(),
            env: self.env.clone(),
            cwd: self.cwd.clone(),
            isolation: self.isolation,
            ..Spec::command(argv)
        };
        spec.validate().map_err(|error| error.to_string())
    }
}
