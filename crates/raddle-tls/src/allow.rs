//! Who may do what: rules, and the decision. Pure.
//!
//! A rule is one line, `WHO = WHAT, WHAT…`. Rights add up, and what no rule allows is refused.
//!
//! ```text
//! # who                        what
//! spiffe://prod/web          = math.*, image::resize
//! *.batch.internal           = *
//! spiffe://prod/ops/*        = *, @stop, @info
//! ```
//!
//! | who | |
//! | --- | --- |
//! | `spiffe://prod/web`, `spiffe://prod/*` | whose certificate has this URI. A `*` at the end takes all that follows, one before stays between two slashes |
//! | `web.internal`, `*.internal` | whose certificate has this DNS name. A `*` stays within a label |
//! | `*` | everybody whose certificate was verified |
//! | `@anyone` | everybody who gets as far as to ask, with a certificate or without |
//!
//! | what | |
//! | --- | --- |
//! | `math.add`, `math.*`, `*` | to call routines of these names |
//! | `@stop` | to stop the worker |
//! | `@info` | to ask what it is and what it is doing |
//! | `@route` | to say where the calls go that a routine makes: they are made as the worker |

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::{
    identity::Identity,
    pattern::{NamePattern, Pattern, PatternError},
};

/// Who may do what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AllowRules {
    rules: Vec<Rule>,
}

/// What somebody may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    who: RuleSubject,
    what: Vec<RuleAction>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum RuleSubject {
    Anyone,
    Verified,
    Named(NamePattern),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum RuleAction {
    Call(Pattern),
    Stop,
    Info,
    Route,
}

/// What is asked of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action<'a> {
    /// To call this routine.
    Call(&'a str),
    /// To stop.
    Stop,
    /// To say what it is, and what it is doing.
    Info,
    /// To have the calls of a routine go where the caller says.
    Route,
}

const ANYONE: &str = "@anyone";
const VERIFIED: &str = "*";
const STOP: &str = "@stop";
const INFO: &str = "@info";
const ROUTE: &str = "@route";

/// Why rules are none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllowError {
    /// There are none. It could only mean that nobody may do anything, which nobody means.
    #[error(
        "there are no rules: write some, as 'spiffe://prod/* = math.*', or leave them out altogether"
    )]
    Empty,
    /// One says nothing.
    #[error("the rule '{0}' is not of the form WHO = WHAT, as 'spiffe://prod/* = math.*'")]
    Form(String),
    /// One has a wrong name.
    #[error("in the rule '{rule}', '{name}': {reason}")]
    Name {
        /// All of it.
        rule: String,
        /// What is wrong.
        name: String,
        /// And why.
        reason: PatternError,
    },
    /// One has a word that nobody knows.
    #[error(
        "in the rule '{rule}', '{word}' is not known: there are {ANYONE} for who, and {STOP}, {INFO} and {ROUTE} for what"
    )]
    Word {
        /// All of it.
        rule: String,
        /// What is not known.
        word: String,
    },
}

impl AllowRules {
    /// These rules and no others.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Result<Self, AllowError> {
        let rules: Vec<_> = rules.into_iter().collect();
        if rules.is_empty() {
            Err(AllowError::Empty)
        } else {
            Ok(Self { rules })
        }
    }

    /// Whether a caller may do this. Without an identity he has shown no certificate that could be verified.
    pub fn permits(&self, caller: Option<&Identity>, action: Action<'_>) -> bool {
        self.rules
            .iter()
            .any(|rule| rule.is_about(action) && rule.is_for(caller))
    }
}

impl IntoIterator for AllowRules {
    type Item = Rule;
    type IntoIter = std::vec::IntoIter<Rule>;

    fn into_iter(self) -> Self::IntoIter {
        self.rules.into_iter()
    }
}

/// Whoever has a verified certificate may do everything. Whoever is let in without one, which takes one-way TLS, may call, and ask
/// what the worker is.
impl Default for AllowRules {
    fn default() -> Self {
        let all = || RuleAction::Call(Pattern::routine("*").expect("a star is a pattern"));
        let verified = Rule {
            who: RuleSubject::Verified,
            what: vec![all(), RuleAction::Stop, RuleAction::Info, RuleAction::Route],
        };
        Self {
            rules: vec![
                verified,
                Rule {
                    who: RuleSubject::Anyone,
                    what: vec![all(), RuleAction::Info],
                },
            ],
        }
    }
}

impl Rule {
    fn is_for(&self, caller: Option<&Identity>) -> bool {
        match &self.who {
            RuleSubject::Anyone => true,
            RuleSubject::Verified => caller.is_some(),
            RuleSubject::Named(pattern) => caller.is_some_and(|caller| pattern.matches(caller)),
        }
    }

    fn is_about(&self, action: Action<'_>) -> bool {
        self.what.iter().any(|what| match (what, action) {
            (RuleAction::Call(pattern), Action::Call(routine)) => pattern.matches(routine),
            (RuleAction::Stop, Action::Stop)
            | (RuleAction::Info, Action::Info)
            | (RuleAction::Route, Action::Route) => true,
            _ => false,
        })
    }
}

impl FromStr for AllowRules {
    type Err = AllowError;

    /// One rule a line. Empty lines, and those that begin with `#`, say nothing.
    fn from_str(text: &str) -> Result<Self, AllowError> {
        let lines = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self::new(lines.map(str::parse).collect::<Result<Vec<_>, _>>()?)
    }
}

impl FromStr for Rule {
    type Err = AllowError;

    fn from_str(text: &str) -> Result<Self, AllowError> {
        let text = text.trim();
        let wrong = |name: &str| {
            let (rule, name) = (text.to_owned(), name.to_owned());
            move |reason| AllowError::Name { rule, name, reason }
        };
        let unknown = |word: &str| AllowError::Word {
            rule: text.to_owned(),
            word: word.to_owned(),
        };
        // A URI may have an equals sign in it; a routine may not.
        let (who, what) = text
            .rsplit_once('=')
            .ok_or_else(|| AllowError::Form(text.to_owned()))?;
        let who = match who.trim() {
            "" => return Err(AllowError::Form(text.to_owned())),
            ANYONE => RuleSubject::Anyone,
            VERIFIED => RuleSubject::Verified,
            word if word.starts_with('@') => return Err(unknown(word)),
            name => RuleSubject::Named(NamePattern::new(name).map_err(wrong(name))?),
        };
        let read = |word: &str| match word {
            "" => Err(AllowError::Form(text.to_owned())),
            STOP => Ok(RuleAction::Stop),
            INFO => Ok(RuleAction::Info),
            ROUTE => Ok(RuleAction::Route),
            word if word.starts_with('@') => Err(unknown(word)),
            routine => Pattern::routine(routine)
                .map(RuleAction::Call)
                .map_err(wrong(routine)),
        };
        let what = what
            .split(',')
            .map(|word| read(word.trim()))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self { who, what })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.who {
            RuleSubject::Anyone => f.write_str(ANYONE)?,
            RuleSubject::Verified => f.write_str(VERIFIED)?,
            RuleSubject::Named(pattern) => pattern.fmt(f)?,
        }
        for (at, what) in self.what.iter().enumerate() {
            f.write_str(if at == 0 { " = " } else { ", " })?;
            match what {
                RuleAction::Call(pattern) => pattern.fmt(f)?,
                RuleAction::Stop => f.write_str(STOP)?,
                RuleAction::Info => f.write_str(INFO)?,
                RuleAction::Route => f.write_str(ROUTE)?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for AllowRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, rule) in self.rules.iter().enumerate() {
            write!(f, "{}{rule}", if at == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl TryFrom<String> for AllowRules {
    type Error = AllowError;

    fn try_from(text: String) -> Result<Self, AllowError> {
        text.parse()
    }
}

impl From<AllowRules> for String {
    fn from(allow: AllowRules) -> Self {
        allow.to_string()
    }
}

impl fmt::Display for Action<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(routine) => write!(f, "call {routine}"),
            Self::Stop => f.write_str("stop the worker"),
            Self::Info => f.write_str("ask what the worker is doing"),
            Self::Route => f.write_str("say where its calls go"),
        }
    }
}
