//! One request for a screen: who asks, for what, and with which settings.

use axum::http::StatusCode;
use jiff::Timestamp;
use raddle_broker::Broker;
use raddle_model::Tid;

use super::model::{Action, Cell};
use crate::{
    auth::{Caller, Right},
    problem::{Problem, Result},
    state::AppState,
};

/// The longest text of a value in a list.
const MAX_TEXT: usize = 300;

/// The most rows that a live page may name.
const MAX_ROWS: usize = 200;

/// One request for a screen.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) state: AppState,
    pub(crate) caller: Caller,
    /// The path, decoded, in segments.
    pub(crate) segments: Vec<String>,
    pub(crate) params: Vec<(String, String)>,
    pub(crate) now: Timestamp,
}

impl Context {
    /// Reads the path and the query string of `uri`, relative to the prefix.
    pub(crate) fn new(state: AppState, caller: Caller, uri: &str) -> Result<Self> {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let decoded = path
            .split('/')
            .filter(|segment| !segment.is_empty())
            .map(decode_text);
        let segments: Option<Vec<String>> = decoded.collect();
        let segments = segments
            .ok_or_else(|| Problem::new(StatusCode::BAD_REQUEST, "the path is not valid UTF-8"))?;
        Ok(Self {
            state,
            caller,
            segments,
            params: parse_query(query),
            now: Timestamp::now(),
        })
    }

    pub(crate) fn broker(&self) -> &dyn Broker {
        self.state.broker()
    }

    /// A parameter of the query string.
    pub(crate) fn param(&self, name: &str) -> Option<&str> {
        let found = self.params.iter().find(|(key, _)| key == name);
        found
            .map(|(_, value)| value.as_str())
            .filter(|value| !value.is_empty())
    }

    /// The ids of the rows that a live list shows; `None` for a request that names none.
    pub(crate) fn rows(&self) -> Option<Vec<Tid>> {
        let (_, rows) = self.params.iter().find(|(key, _)| key == "rows")?;
        Some(
            rows.split(',')
                .filter_map(|tid| tid.parse().ok())
                .take(MAX_ROWS)
                .collect(),
        )
    }

    /// A `curl` for a path of the API.
    pub(crate) fn curl(&self, path: &str) -> String {
        let url = self.url(&format!("/api/v1{path}"));
        format!(r#"curl -H "Authorization: Bearer $RADDLE_TOKEN" "$RADDLE_URL{url}""#)
    }

    /// A link. `path` is relative to the prefix and encoded already.
    pub(crate) fn url(&self, path: &str) -> String {
        self.state.url(path)
    }

    /// A link to a name below `path`.
    pub(crate) fn url_of(&self, path: &str, name: &str) -> String {
        self.url(&format!("{path}/{}", encode(name)))
    }

    /// A link to the tasks that a query finds.
    pub(crate) fn tasks_url(&self, query: &str) -> String {
        self.url(&format!("/tasks?q={}", encode(query)))
    }

    pub(crate) fn task(&self, tid: Tid) -> Cell {
        Cell::Task {
            href: self.url(&format!("/tasks/{tid}")),
            short: tid.short(),
        }
    }

    pub(crate) fn worker(&self, tid: Tid) -> Cell {
        Cell::Task {
            href: self.url(&format!("/workers/{tid}")),
            short: tid.short(),
        }
    }

    /// The name of the right if the caller lacks it, or if nothing may be changed here.
    pub(crate) fn missing(&self, right: Right) -> Option<&'static str> {
        let may = self.caller.may(right) && !self.state.options.is_read_only;
        (!may).then(|| right.as_str())
    }

    /// A button.
    pub(crate) fn action(&self, label: &str, path: &str, right: Right) -> Action {
        Action {
            href: self.url(path),
            label: label.into(),
            missing: self.missing(right),
            ..Action::default()
        }
    }
}

/// Percent-encodes a text for a path or a query string.
pub(crate) fn encode(text: &str) -> String {
    use std::fmt::Write as _;
    text.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b':' | b',' => {
                out.push(byte.into());
            }
            _ => write!(out, "%{byte:02X}").expect("a string takes any text"),
        }
        out
    })
}

pub(crate) fn decode_text(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || (rest.next()? as char).to_digit(16);
        let value = digit()? * 16 + digit()?;
        bytes.push(u8::try_from(value).ok()?);
    }
    String::from_utf8(bytes).ok()
}

/// Parses a query string or a form. Invalid parts are left out.
pub(crate) fn parse_query(text: &str) -> Vec<(String, String)> {
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let plain = |text: &str| decode_text(&text.replace('+', " "));
        Some((plain(key)?, plain(value)?))
    };
    text.split('&')
        .filter(|part| !part.is_empty())
        .filter_map(pair)
        .collect()
}

/// Cuts a long text, at the end of a character.
pub(crate) fn cut(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into(),
    }
}

/// Quotes a word for a shell, where it needs that.
pub(crate) fn shell(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_links() {
        for name in ["foo/bar.baz", "a%2Fb", "ä b+c&d=e", "\u{202e}x", "😀", ".."] {
            assert_eq!(decode_text(&encode(name)).as_deref(), Some(name));
            let query = format!("q={}&x=1", encode(name));
            assert_eq!(parse_query(&query)[0].1, name);
        }
        assert_eq!(decode_text("%zz"), None);
        assert_eq!(decode_text("%f"), None);
        assert_eq!(
            parse_query("a=1+2&&b&%zz=1"),
            [("a".into(), "1 2".into()), ("b".into(), String::new())]
        );
    }

    #[test]
    fn commands_can_be_pasted_into_a_shell() {
        assert_eq!(
            [shell("a-b"), shell("a b"), shell("it's"), shell("")],
            ["a-b", "'a b'", r"'it'\''s'", "''"]
        );
    }
}
