//! The parser of queries.
//!
//! ```text
//! query = [term] {space term}
//! term  = ['-'] [field ':'] value {',' value}
//! value = '"' {char | '\' char} '"' | bare characters
//! ```

use std::{iter::Peekable, str::CharIndices, str::FromStr};

use jiff::{Timestamp, civil::Date, tz::TimeZone};

use super::{
    Comparison, Condition, ExitTest, FlagField, IdField, MAX_BYTES, MAX_TOKENS, NumberField,
    Pattern, QueryError, QueryErrorKind, SpanField, TaskQuery, Term, TextField, TimeField,
    TimePoint, term::EXIT_CODES,
};
use crate::{ExitStatus, HumanDuration, TaskState, tid::TidArg};

/// The prefix of the fields in the metadata.
const META: &str = "meta.";

/// Whether a character needs no quotes in the canonical text.
pub(super) fn is_bare(char: char) -> bool {
    char.is_alphanumeric() || "_.-/@+=~%#".contains(char)
}

/// A value as it was written.
#[derive(Debug)]
struct RawValue {
    /// Where it begins, in bytes.
    start: usize,
    is_quoted: bool,
    /// The texts between the stars.
    pieces: Vec<String>,
}

struct Parser<'a> {
    text: &'a str,
    chars: Peekable<CharIndices<'a>>,
    values: usize,
}

impl FromStr for TaskQuery {
    type Err = QueryError;

    fn from_str(text: &str) -> Result<Self, QueryError> {
        let too_long = QueryError {
            position: 0,
            kind: QueryErrorKind::TooLong,
        };
        if text.len() > MAX_BYTES {
            return Err(too_long);
        }
        let mut parser = Parser {
            text,
            chars: text.char_indices().peekable(),
            values: 0,
        };
        let query = parser.query()?;
        // The canonical text may be longer, and must be a query too.
        if query.to_string().len() > MAX_BYTES {
            return Err(too_long);
        }
        Ok(query)
    }
}

impl Parser<'_> {
    fn query(&mut self) -> Result<TaskQuery, QueryError> {
        let mut terms = Vec::new();
        loop {
            while self.next_if(char::is_whitespace) {}
            if self.chars.peek().is_none() {
                return Ok(TaskQuery { terms });
            }
            terms.push(self.term()?);
        }
    }

    fn term(&mut self) -> Result<Term, QueryError> {
        let negated = self.next_if(|char| char == '-');
        let start = self.offset();
        let field = self.field();
        let mut values = Vec::new();
        loop {
            values.push(self.value()?);
            if !self.next_if(|char| char == ',') {
                break;
            }
        }
        let condition = match field {
            Some(field) => self.condition(start, &field, &values)?,
            None => self.words(&values)?,
        };
        Ok(Term { negated, condition })
    }

    /// The name of a field, if one comes next.
    fn field(&mut self) -> Option<String> {
        let rest = &self.text[self.offset()..];
        let end = rest
            .find(|char: char| char == ':' || char == ',' || char == '"' || char.is_whitespace());
        let name = rest[..end?].to_owned();
        if !rest[name.len()..].starts_with(':') {
            return None;
        }
        for _ in name.chars() {
            self.chars.next();
        }
        self.chars.next();
        Some(name)
    }

    fn value(&mut self) -> Result<RawValue, QueryError> {
        let start = self.offset();
        self.values += 1;
        if self.values > MAX_TOKENS {
            return Err(self.error(start, QueryErrorKind::TooMany));
        }
        let is_quoted = self.next_if(|char| char == '"');
        let pieces = if is_quoted {
            self.quoted(start)?
        } else {
            self.bare()?
        };
        Ok(RawValue {
            start,
            is_quoted,
            pieces,
        })
    }

    fn quoted(&mut self, start: usize) -> Result<Vec<String>, QueryError> {
        let mut pieces = vec![String::new()];
        loop {
            let char = self.chars.next().map(|(_, char)| char);
            let piece = pieces.last_mut().expect("never empty");
            match char {
                Some('"') => break,
                Some('*') => pieces.push(String::new()),
                Some('\\') => match self.chars.next() {
                    Some((_, char)) => piece.push(char),
                    None => return Err(self.error(start, QueryErrorKind::OpenQuote)),
                },
                Some(char) => piece.push(char),
                None => return Err(self.error(start, QueryErrorKind::OpenQuote)),
            }
        }
        match self.chars.peek().copied() {
            Some((at, char)) if char != ',' && !char.is_whitespace() => {
                Err(self.error(at, QueryErrorKind::NeedsQuotes(char)))
            }
            _ => Ok(pieces),
        }
    }

    fn bare(&mut self) -> Result<Vec<String>, QueryError> {
        let start = self.offset();
        let mut pieces = vec![String::new()];
        while let Some((at, char)) = self
            .chars
            .next_if(|(_, char)| *char != ',' && !char.is_whitespace())
        {
            match char {
                '"' | '\\' => return Err(self.error(at, QueryErrorKind::NeedsQuotes(char))),
                '*' => pieces.push(String::new()),
                char => pieces.last_mut().expect("never empty").push(char),
            }
        }
        if pieces == [""] {
            return Err(self.error(start, QueryErrorKind::NoValue));
        }
        Ok(pieces)
    }

    /// Words without a field: ids, or fragments of names.
    fn words(&self, values: &[RawValue]) -> Result<Condition, QueryError> {
        let is_id = |value: &RawValue| {
            let text = value.text();
            !value.is_quoted
                && [10, 19].contains(&text.len())
                && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        if values.iter().all(is_id) {
            return self.condition(values[0].start, IdField::Id.as_str(), values);
        }
        Ok(Condition::Word(lower_case_patterns(values)))
    }

    fn condition(
        &self,
        start: usize,
        field: &str,
        values: &[RawValue],
    ) -> Result<Condition, QueryError> {
        if let Some(field) = find(&TextField::ALL, field, |it| it.as_str()) {
            return Ok(Condition::Text(field, patterns(values)));
        }
        if let Some(field) = find(&IdField::ALL, field, |it| it.as_str()) {
            let ids = self.each(field.as_str(), values, |text| {
                text.parse::<TidArg>()
                    .map_err(|_| "give all 19 digits of an id, or the last 10".to_owned())
            })?;
            return Ok(Condition::Id(field, ids));
        }
        if let Some(field) = find(&NumberField::ALL, field, |it| it.as_str()) {
            let tests = self.each(field.as_str(), values, |text| {
                parse_number(text, field.range(), field.as_str())
            })?;
            return Ok(Condition::Number(field, tests));
        }
        if let Some(field) = find(&SpanField::ALL, field, |it| it.as_str()) {
            let tests = self.each(field.as_str(), values, |text| {
                let (how, rest) = split_comparison(text);
                let span = rest.parse().ok().filter(|_| how != Comparison::Equal);
                let hint = || format!("write a comparison, such as {field}:>30s");
                Ok((how, span.ok_or_else(hint)?))
            })?;
            return Ok(Condition::Span(field, tests));
        }
        if let Some(field) = find(&FlagField::ALL, field, |it| it.as_str()) {
            let set = self.only(field.as_str(), values, |text| match text {
                "yes" => Ok(true),
                "no" => Ok(false),
                _ => Err("write yes or no".into()),
            })?;
            return Ok(Condition::Flag(field, set));
        }
        if let Some(field) = find(&TimeField::ALL, field, |it| it.as_str()) {
            let point = self.only(field.as_str(), values, |text| {
                parse_time(text).ok_or_else(|| {
                    "write how long ago (-1h), or a time (2026-11-18T03:00Z)".to_owned()
                })
            })?;
            return Ok(Condition::Time(field, point));
        }
        match field {
            "state" => {
                let mut states = self.each(field, values, |text| {
                    text.parse::<TaskState>().map_err(|_| {
                        format!(
                            "use one of {}",
                            TaskState::ALL.map(TaskState::as_str).join(", ")
                        )
                    })
                })?;
                states.sort_unstable();
                states.dedup();
                Ok(Condition::State(states))
            }
            "exit" => Ok(Condition::Exit(self.each(field, values, parse_exit)?)),
            "error" => Ok(Condition::Error(lower_case_patterns(values))),
            _ => match field.strip_prefix(META) {
                Some(key) if !key.is_empty() && key.chars().all(is_bare) => {
                    Ok(Condition::Meta(key.into(), patterns(values)))
                }
                _ => Err(self.error(start, QueryErrorKind::UnknownField(field.into()))),
            },
        }
    }

    /// Parses each value; the error of `parse` is a hint.
    fn each<T>(
        &self,
        field: &str,
        values: &[RawValue],
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Vec<T>, QueryError> {
        let parse_value = |value: &RawValue| {
            let text = value.text();
            parse(&text).map_err(|hint| {
                let (field, value_text) = (field.to_owned(), text.clone());
                let kind = QueryErrorKind::BadValue {
                    field,
                    value: value_text,
                    hint,
                };
                self.error(value.start, kind)
            })
        };
        values.iter().map(parse_value).collect()
    }

    /// Parses the only value of a field.
    fn only<T>(
        &self,
        field: &str,
        values: &[RawValue],
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, QueryError> {
        if let Some(second) = values.get(1) {
            let kind = QueryErrorKind::BadValue {
                field: field.into(),
                value: second.text(),
                hint: "give one value".into(),
            };
            return Err(self.error(second.start, kind));
        }
        let mut parsed = self.each(field, values, parse)?;
        Ok(parsed.remove(0))
    }

    /// Where the rest begins, in bytes.
    fn offset(&mut self) -> usize {
        self.chars.peek().map_or(self.text.len(), |(at, _)| *at)
    }

    fn next_if(&mut self, test: impl Fn(char) -> bool) -> bool {
        self.chars.next_if(|(_, char)| test(*char)).is_some()
    }

    fn error(&self, at: usize, kind: QueryErrorKind) -> QueryError {
        QueryError {
            position: self.text[..at].chars().count(),
            kind,
        }
    }
}

impl RawValue {
    fn text(&self) -> String {
        self.pieces.join("*")
    }
}

fn patterns(values: &[RawValue]) -> Vec<Pattern> {
    let pieces = values.iter().map(|value| value.pieces.clone());
    pieces.map(Pattern::from_pieces).collect()
}

fn lower_case_patterns(values: &[RawValue]) -> Vec<Pattern> {
    let patterns = patterns(values);
    patterns.iter().map(Pattern::to_lower_case).collect()
}

fn find<T: Copy>(all: &[T], name: &str, name_of: impl Fn(T) -> &'static str) -> Option<T> {
    all.iter().copied().find(|field| name_of(*field) == name)
}

/// Splits off a comparison; without one, the value must be equal.
fn split_comparison(text: &str) -> (Comparison, &str) {
    if let Some(rest) = text.strip_prefix('=') {
        return (Comparison::Equal, rest);
    }
    // The longer names come first.
    let signs = Comparison::ALL.into_iter().skip(1);
    let found = signs
        .into_iter()
        .find_map(|how| Some((how, text.strip_prefix(how.as_str())?)));
    found.unwrap_or((Comparison::Equal, text))
}

fn parse_number(
    text: &str,
    range: std::ops::RangeInclusive<i32>,
    field: &str,
) -> Result<(Comparison, i32), String> {
    let (how, rest) = split_comparison(text);
    let number = rest.parse().ok().filter(|number| range.contains(number));
    let hint = || {
        let (least, most) = (range.start(), range.end());
        format!("write a number from {least} to {most}, or a comparison such as {field}:>2")
    };
    Ok((how, number.ok_or_else(hint)?))
}

fn parse_exit(text: &str) -> Result<ExitTest, String> {
    if let Some(kind) = ExitStatus::KINDS.into_iter().find(|kind| *kind == text) {
        return Ok(ExitTest::Kind(kind));
    }
    match parse_number(text, EXIT_CODES, "exit") {
        Ok((how, code)) => Ok(ExitTest::Code(how, code)),
        Err(hint) => Err(format!(
            "{hint}, or one of {}",
            ExitStatus::KINDS.join(", ")
        )),
    }
}

fn parse_time(text: &str) -> Option<TimePoint> {
    if let Some(ago) = text.strip_prefix('-') {
        return ago.parse::<HumanDuration>().ok().map(TimePoint::Ago);
    }
    let time = match text.parse::<Timestamp>() {
        Ok(time) => time,
        Err(_) => {
            let date = text.parse::<Date>().ok()?;
            date.to_zoned(TimeZone::UTC).ok()?.timestamp()
        }
    };
    Some(TimePoint::At(time))
}
