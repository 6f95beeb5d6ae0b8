//! The canonical text of a query.

use std::fmt::{self, Display, Formatter, Write};

use super::{Condition, ExitTest, Pattern, TaskQuery, Term, TimePoint, parse::is_bare};
use crate::HumanDuration;

impl Display for TaskQuery {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (index, term) in self.terms.iter().enumerate() {
            if index > 0 {
                f.write_char(' ')?;
            }
            write!(f, "{term}")?;
        }
        Ok(())
    }
}

impl Display for Term {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.negated {
            f.write_char('-')?;
        }
        match &self.condition {
            Condition::Word(words) => write_list(f, words, write_word),
            Condition::State(states) => {
                f.write_str("state:")?;
                write_list(f, states, |f, state| write!(f, "{state}"))
            }
            Condition::Text(field, patterns) => {
                write!(f, "{field}:")?;
                write_list(f, patterns, write_pattern)
            }
            Condition::Meta(key, patterns) => {
                write!(f, "meta.{key}:")?;
                write_list(f, patterns, write_pattern)
            }
            Condition::Error(patterns) => {
                f.write_str("error:")?;
                write_list(f, patterns, write_pattern)
            }
            Condition::Id(field, ids) => {
                write!(f, "{field}:")?;
                write_list(f, ids, |f, id| write!(f, "{id}"))
            }
            Condition::Flag(field, set) => {
                write!(f, "{field}:{}", if *set { "yes" } else { "no" })
            }
            Condition::Number(field, tests) => {
                write!(f, "{field}:")?;
                write_list(f, tests, |f, (how, number)| write!(f, "{how}{number}"))
            }
            Condition::Exit(tests) => {
                f.write_str("exit:")?;
                write_list(f, tests, |f, test| match test {
                    ExitTest::Code(how, code) => write!(f, "{how}{code}"),
                    ExitTest::Kind(kind) => f.write_str(kind),
                })
            }
            Condition::Span(field, tests) => {
                write!(f, "{field}:")?;
                write_list(f, tests, |f, (how, span)| {
                    write!(f, "{how}")?;
                    write_span(f, *span)
                })
            }
            Condition::Time(field, TimePoint::At(time)) => write!(f, "{field}:{time}"),
            Condition::Time(field, TimePoint::Ago(ago)) => {
                write!(f, "{field}:-")?;
                write_span(f, *ago)
            }
        }
    }
}

fn write_list<T>(
    f: &mut Formatter<'_>,
    values: &[T],
    write: impl Fn(&mut Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            f.write_char(',')?;
        }
        write(f, value)?;
    }
    Ok(())
}

/// Writes a word without a field, in quotes if it would be read as something else.
fn write_word(f: &mut Formatter<'_>, word: &Pattern) -> fmt::Result {
    let is_id = word.literal().is_some_and(|text| {
        [10, 19].contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
    });
    let first = &word.pieces()[0];
    write_text(f, word, is_id || first.starts_with('-'))
}

fn write_pattern(f: &mut Formatter<'_>, pattern: &Pattern) -> fmt::Result {
    write_text(f, pattern, false)
}

fn write_text(f: &mut Formatter<'_>, pattern: &Pattern, quote: bool) -> fmt::Result {
    let pieces = pattern.pieces();
    let is_plain = pieces.iter().all(|piece| piece.chars().all(is_bare));
    let is_empty = pattern.literal() == Some("");
    if is_plain && !quote && !is_empty {
        return f.write_str(&pieces.join("*"));
    }
    f.write_char('"')?;
    for (index, piece) in pieces.iter().enumerate() {
        if index > 0 {
            f.write_char('*')?;
        }
        for char in piece.chars() {
            if ['"', '\\', '*'].contains(&char) {
                f.write_char('\\')?;
            }
            f.write_char(char)?;
        }
    }
    f.write_char('"')
}

/// Writes a duration in its largest unit: `90m`, not `5400s`.
fn write_span(f: &mut Formatter<'_>, span: HumanDuration) -> fmt::Result {
    let secs = span.0.as_secs();
    if span.0.subsec_nanos() > 0 || secs == 0 {
        return write!(f, "{span}");
    }
    let (unit, name) = [(86_400, 'd'), (3600, 'h'), (60, 'm')]
        .into_iter()
        .find(|(unit, _)| secs.is_multiple_of(*unit))
        .unwrap_or((1, 's'));
    write!(f, "{}{name}", secs / unit)
}
