//! Allow rules: which peer may do what. Pure.
//!
//! A rule is one line, `WHO = WHAT, WHAT…`. Rules add up; what no rule allows is refused.
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
//! | `spiffe://prod/web`, `spiffe://prod/*` | peers whose certificate has this URI. A `*` at the end matches any rest, one before it matches within a path segment |
//! | `web.internal`, `*.internal` | peers whose certificate has this DNS name. A `*` matches within a label |
//! | `*` | every peer with a verified certificate |
//! | `@anyone` | every peer, with a certificate or without |
//!
//! | what | |
//! | --- | --- |
//! | `math.add`, `math.*`, `*` | call routines of these names |
//! | `@stop` | stop the worker |
//! | `@info` | query the worker's identity, load and counters |
//! | `@route` | determine where nested calls go, which are made under the worker's identity |

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::{
    identity::Identity,
    pattern::{NamePattern, Pattern, PatternError},
};

/// Rules for which peer may do what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AllowRules {
    rules: Vec<Rule>,
}

/// One rule.
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

/// What a peer requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action<'a> {
    /// Call this routine.
    Call(&'a str),
    /// Stop the worker.
    Stop,
    /// Query the worker's identity, load and counters.
    Info,
    /// Determine where nested calls go.
    Route,
}

const ANYONE: &str = "@anyone";
const VERIFIED: &str = "*";
const STOP: &str = "@stop";
const INFO: &str = "@info";
const ROUTE: &str = "@route";

/// Why rules are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllowError {
    /// There are none. They would forbid everything, which is never intended.
    #[error(
        "there are no rules: give some, as 'spiffe://prod/* = math.*', or leave the option out"
    )]
    Empty,
    /// A rule is not of the form `WHO = WHAT`.
    #[error("the rule '{0}' is not of the form WHO = WHAT, as 'spiffe://prod/* = math.*'")]
    Form(String),
    /// A rule has an invalid name.
    #[error("in the rule '{rule}', '{name}': {reason}")]
    Name {
        /// The rule.
        rule: String,
        /// The invalid name.
        name: String,
        /// Why it is invalid.
        reason: PatternError,
    },
    /// A rule has an unknown keyword.
    #[error(
        "unknown keyword '{word}' in the rule '{rule}': WHO can be {ANYONE}, and WHAT can be {STOP}, {INFO} and {ROUTE}"
    )]
    Word {
        /// The rule.
        rule: String,
        /// The unknown keyword.
        word: String,
    },
}

impl AllowRules {
    /// Makes a set of rules.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Result<Self, AllowError> {
        let rules: Vec<_> = rules.into_iter().collect();
        if rules.is_empty() {
            Err(AllowError::Empty)
        } else {
            Ok(Self { rules })
        }
    }

    /// Whether the rules permit the action. `caller` is `None` without a verified certificate.
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

/// Peers with a verified certificate may do everything. Peers without one, which one-way TLS
/// accepts, may call routines and query the worker.
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

    /// Parses one rule per line. Empty lines and lines that start with `#` are ignored.
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
        // The last `=`: a URI may contain others, a routine cannot.
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
            Self::Info => f.write_str("query the worker"),
            Self::Route => f.write_str("route nested calls"),
        }
    }
}
