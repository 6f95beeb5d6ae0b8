//! The content of pages as values: blocks of numbers, tables, fields and charts. The templates give
//! each its form, so all screens look and behave alike, and a block can be rendered alone when it
//! changes.

use std::time::Duration;

use askama::{Template, filters::HtmlSafe};
use jiff::Timestamp;
use raddle_client::text;
use raddle_model::{TaskState, tid::ShortTid, worker::WorkerStatus};

use super::charts::Svg;

/// A screen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Screen {
    pub(crate) title: String,
    /// The entry of the navigation that the screen belongs to.
    pub(crate) section: &'static str,
    pub(crate) subtitle: Vec<Cell>,
    pub(crate) actions: Vec<Action>,
    pub(crate) facets: Vec<Facet>,
    pub(crate) blocks: Vec<Block>,
    /// Commands that give the same answer.
    pub(crate) commands: Vec<String>,
    /// Whether the screen changes while it is open.
    pub(crate) is_live: bool,
}

/// A link that narrows a list.
#[derive(Clone, Debug)]
pub(crate) struct Facet {
    pub(crate) href: String,
    pub(crate) label: String,
    pub(crate) count: Option<u64>,
    pub(crate) is_current: bool,
}

/// A part of a screen, with an id of its own.
#[derive(Clone, Debug, Template)]
#[template(path = "block.html")]
pub(crate) struct Block {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) note: Option<Cell>,
    pub(crate) tools: Vec<Cell>,
    /// The class that says how wide it is.
    pub(crate) width: &'static str,
    pub(crate) body: Content,
}

/// The content of a block.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    Stats(Vec<Stat>),
    Table(Table),
    Fields(Vec<(&'static str, Cell)>),
    Lines(Vec<Cell>),
    Pre {
        text: String,
        label: String,
    },
    Notices(Vec<Notice>),
    Chart {
        svg: Svg,
        legend: Vec<(&'static str, &'static str)>,
    },
    Empty(Empty),
    Form(Form),
}

/// A number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stat {
    pub(crate) label: String,
    pub(crate) value: String,
    pub(crate) under: String,
    pub(crate) spark: Option<Svg>,
    pub(crate) href: Option<String>,
    pub(crate) tone: &'static str,
}

/// A table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Row>,
    pub(crate) empty: Option<Empty>,
    pub(crate) bulk: Option<Bulk>,
    pub(crate) pager: Vec<Cell>,
}

/// A column. The class says how it is aligned, and on which widths it is left out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) label: &'static str,
    pub(crate) class: &'static str,
}

/// A row of a table.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) id: String,
    /// The value of the row's check box.
    pub(crate) key: String,
    pub(crate) label: String,
    pub(crate) cells: Vec<Cell>,
}

/// The form around a table whose rows can be selected.
#[derive(Clone, Debug)]
pub(crate) struct Bulk {
    pub(crate) href: String,
    pub(crate) query: String,
    pub(crate) back: String,
    /// Verb, label, and the right that is missing.
    pub(crate) verbs: Vec<(&'static str, &'static str, Option<&'static str>)>,
}

/// The text in place of an empty list, and the next command to type.
#[derive(Clone, Debug, Template)]
#[template(path = "empty.html")]
pub(crate) struct Empty {
    pub(crate) what: String,
    pub(crate) why: String,
    pub(crate) command: Option<String>,
}

/// A sentence that needs attention, and what to do.
#[derive(Clone, Debug)]
pub(crate) struct Notice {
    pub(crate) tone: &'static str,
    pub(crate) text: String,
    pub(crate) hint: Option<String>,
}

/// A button that changes something.
#[derive(Clone, Debug, Default, Template)]
#[template(path = "action.html")]
pub(crate) struct Action {
    pub(crate) href: String,
    pub(crate) label: String,
    pub(crate) fields: Vec<(&'static str, String)>,
    /// The right that is missing.
    pub(crate) missing: Option<&'static str>,
    /// The question that the script asks first.
    pub(crate) confirm: Option<String>,
    pub(crate) is_danger: bool,
    pub(crate) is_main: bool,
}

/// A form.
#[derive(Clone, Debug)]
pub(crate) struct Form {
    pub(crate) href: String,
    pub(crate) button: &'static str,
    pub(crate) missing: Option<&'static str>,
    pub(crate) fields: Vec<FormField>,
}

/// A field of a form: a text, a long text with `rows`, or one of some `choices`.
#[derive(Clone, Debug, Default)]
pub(crate) struct FormField {
    pub(crate) name: &'static str,
    pub(crate) label: &'static str,
    pub(crate) value: String,
    pub(crate) help: &'static str,
    pub(crate) rows: u8,
    pub(crate) choices: Vec<String>,
    pub(crate) is_required: bool,
}

/// A value.
#[derive(Clone, Debug, Template)]
#[template(path = "cell.html")]
pub(crate) enum Cell {
    Text(String),
    Soft(String),
    Code(String),
    Link {
        href: String,
        text: String,
    },
    Task {
        href: String,
        short: ShortTid,
    },
    Named {
        href: String,
        name: String,
        under: Option<String>,
    },
    Under(String),
    State(Badge),
    Time {
        absolute: String,
        relative: String,
    },
    /// A time of day, which does not change as time passes.
    Clock {
        absolute: String,
        text: String,
    },
    /// A time span that still grows.
    Since {
        absolute: String,
        text: String,
    },
    Bar {
        share: f64,
        text: String,
    },
    Tags(Vec<String>),
    Svg(Svg),
    Action(Action),
    Many(Vec<Cell>),
}

/// A state as a word, a shape and a colour.
#[derive(Clone, Debug)]
pub(crate) struct Badge {
    pub(crate) word: String,
    pub(crate) icon: &'static str,
    pub(crate) tone: &'static str,
}

#[derive(Template)]
#[template(path = "head.html")]
struct HeadTemplate<'a> {
    page: &'a Screen,
}

#[derive(Template)]
#[template(path = "facets.html")]
struct FacetsTemplate<'a> {
    page: &'a Screen,
}

#[derive(Template)]
#[template(path = "row.html")]
struct RowTemplate<'a> {
    row: &'a Row,
    columns: &'a [Column],
    has_check: bool,
}

impl HtmlSafe for Cell {}
impl HtmlSafe for Block {}
impl HtmlSafe for Action {}
impl HtmlSafe for Empty {}

impl Screen {
    /// The title with its buttons alone.
    pub(crate) fn head_html(&self) -> String {
        HeadTemplate { page: self }.render().unwrap_or_default()
    }

    /// The filters alone.
    pub(crate) fn facets_html(&self) -> String {
        FacetsTemplate { page: self }.render().unwrap_or_default()
    }
}

impl Block {
    pub(crate) fn new(id: impl Into<String>, title: impl Into<String>, body: Content) -> Self {
        Self {
            id: id.into(),
            title: title.into(),
            note: None,
            tools: Vec::new(),
            width: "",
            body,
        }
    }

    pub(crate) fn width(self, width: &'static str) -> Self {
        Self { width, ..self }
    }

    pub(crate) fn note(self, note: Cell) -> Self {
        Self {
            note: Some(note),
            ..self
        }
    }

    pub(crate) fn tool(mut self, tool: Cell) -> Self {
        self.tools.push(tool);
        self
    }
}

impl Table {
    pub(crate) fn new(columns: &[(&'static str, &'static str)]) -> Self {
        let column = |&(label, class)| Column { label, class };
        Self {
            columns: columns.iter().map(column).collect(),
            ..Self::default()
        }
    }

    pub(crate) fn empty(self, empty: Empty) -> Self {
        Self {
            empty: Some(empty),
            ..self
        }
    }

    /// Adds a row. `key` is unique in the screen.
    pub(crate) fn push(&mut self, key: impl Into<String>, label: &str, cells: Vec<Cell>) {
        let key = key.into();
        self.rows.push(Row {
            id: format!("r-{}", id_of(&key)),
            key,
            label: label.into(),
            cells,
        });
    }

    /// A row alone.
    pub(crate) fn row_html(&self, row: &Row) -> String {
        let template = RowTemplate {
            row,
            columns: &self.columns,
            has_check: self.bulk.is_some(),
        };
        template.render().unwrap_or_default()
    }
}

impl Empty {
    pub(crate) fn new(what: &str, why: &str, command: &str) -> Self {
        Self {
            what: what.into(),
            why: why.into(),
            command: (!command.is_empty()).then(|| command.into()),
        }
    }
}

impl Cell {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    pub(crate) fn soft(text: impl Into<String>) -> Self {
        Self::Soft(text.into())
    }

    pub(crate) fn num(n: u64) -> Self {
        match n {
            0 => Self::Soft("0".into()),
            n => Self::Text(number(n)),
        }
    }

    pub(crate) fn none() -> Self {
        Self::Soft("–".into())
    }

    pub(crate) fn state(state: TaskState) -> Self {
        Self::State(Badge::of_state(state))
    }

    pub(crate) fn badge(word: impl Into<String>, icon: &'static str, tone: &'static str) -> Self {
        Self::State(Badge {
            word: word.into(),
            icon,
            tone,
        })
    }

    /// A time, in words relative to now, and absolute on request.
    pub(crate) fn time(at: Timestamp, now: Timestamp) -> Self {
        let relative = match at > now {
            true => format!("in {}", text::age(now, at)),
            false => format!("{} ago", text::age(at, now)),
        };
        Self::Time {
            absolute: text::time(at),
            relative,
        }
    }

    pub(crate) fn time_or_none(at: Option<Timestamp>, now: Timestamp) -> Self {
        at.map_or_else(Self::none, |at| Self::time(at, now))
    }

    /// The time since then.
    pub(crate) fn since(at: Timestamp, now: Timestamp) -> Self {
        Self::Since {
            absolute: text::time(at),
            text: text::age(at, now),
        }
    }

    pub(crate) fn took(time: Option<Duration>) -> Self {
        time.map_or_else(Self::none, |time| Self::Text(text::three_digits(time)))
    }

    pub(crate) fn bar(value: f64, max: f64, text: impl Into<String>) -> Self {
        let share = if max > 0.0 { value / max * 100.0 } else { 0.0 };
        Self::Bar {
            share: (share.clamp(0.0, 100.0) * 10.0).round() / 10.0,
            text: text.into(),
        }
    }
}

impl Badge {
    pub(crate) fn of_state(state: TaskState) -> Self {
        let (icon, tone) = match state {
            TaskState::Created => ("created", "wait"),
            TaskState::Spawning => ("spawning", "run"),
            TaskState::Running => ("running", "run"),
            TaskState::Completed => ("completed", "ok"),
            TaskState::Failed => ("failed", "bad"),
            TaskState::Timeout => ("timeout", "warn"),
            TaskState::Cancelled => ("cancelled", "off"),
            TaskState::Killed => ("killed", "bad"),
        };
        Self {
            word: state.as_str().into(),
            icon,
            tone,
        }
    }
}

/// The status of a worker as a badge.
pub(crate) fn worker_badge(status: WorkerStatus) -> Cell {
    let (icon, tone) = match status {
        WorkerStatus::Active => ("running", "ok"),
        WorkerStatus::Paused => ("paused", "off"),
        WorkerStatus::Draining => ("spawning", "warn"),
        _ => ("warn", "warn"),
    };
    Cell::badge(status.as_str().replace('_', " "), icon, tone)
}

/// A number with separators.
pub(crate) fn number(n: u64) -> String {
    let digits = n.to_string();
    let head = digits.len() % 3;
    let mut out = digits[..head].to_owned();
    for (i, digit) in digits[head..].chars().enumerate() {
        if i % 3 == 0 && !out.is_empty() {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

/// Bytes with a unit.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 4] = ["B", "kB", "MB", "GB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1000.0, unit + 1);
    }
    match unit {
        0 => format!("{n} B"),
        _ => format!("{value:.1} {}", UNITS[unit]),
    }
}

/// A text as a part of an element's id. Different texts get different ids.
pub(crate) fn id_of(text: &str) -> String {
    use std::fmt::Write as _;
    text.chars().fold(String::new(), |mut id, c| {
        match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '-' => id.push(c),
            c => write!(id, "_{:x}_", u32::from(c)).expect("a string takes any text"),
        }
        id
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        let plain = |n| number(n).replace('\u{202f}', " ");
        assert_eq!(
            [0, 12, 123, 1234, 1_234_567].map(plain),
            ["0", "12", "123", "1 234", "1 234 567"]
        );
        assert_eq!(
            [999, 1_000, 12_345_678].map(bytes),
            ["999 B", "1.0 kB", "12.3 MB"]
        );
    }

    #[test]
    fn hostile_texts_are_escaped_everywhere() {
        let hostile = "<img src=x onerror=alert(1)>\"'&";
        let mut table = Table::new(&[("a", ""), ("b", "")]);
        let named = Cell::Named {
            href: hostile.into(),
            name: hostile.into(),
            under: Some(hostile.into()),
        };
        let tags = Cell::Many(vec![Cell::Tags(vec![hostile.into()]), Cell::text(hostile)]);
        table.push(hostile, hostile, vec![named, tags]);
        let html = Block::new("x", hostile, Content::Table(table))
            .render()
            .unwrap();
        assert!(!html.contains("<img"), "{html}");
        // The id of the row has other escapes.
        let html = html.replace(&id_of(hostile), "");
        assert_eq!(
            html.matches("onerror").count(),
            html.matches("&#60;img").count()
        );
        assert_ne!(id_of("a b"), id_of("a_20_b"));
    }
}
