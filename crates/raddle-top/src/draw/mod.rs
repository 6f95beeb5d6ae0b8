//! Shows a state on a buffer of cells. Pure: the same state gives the same cells.

mod over;
mod overview;
mod style;
mod table;

use ratatui::{
    buffer::Buffer,
    layout::{Position, Rect},
    style::Style,
};

use raddle_client::text::{age, printable};

use self::style::Theme;
use crate::{
    app::{App, Prompt, PromptKind},
    reader::Data,
    screen::Screen,
};

/// The narrowest terminal that has all titles in its first line.
const WIDE: u16 = 100;
/// The smallest terminal that shows anything.
const MIN: (u16, u16) = (20, 5);

/// Draws the state. Returns where the cursor is, if a line is typed.
pub(crate) fn draw(app: &App, area: Rect, buffer: &mut Buffer) -> Option<Position> {
    let theme = Theme::new(app.colours);
    if area.width < MIN.0 || area.height < MIN.1 {
        put(buffer, area, 0, 0, "too small", Style::new());
        return None;
    }
    draw_titles(app, area, buffer, &theme);
    draw_status(app, area, buffer, &theme);
    let body = Rect {
        y: area.y + 2,
        height: area.height - 3,
        ..area
    };
    match &app.data {
        Data::Loading => put(buffer, body, 0, 0, "reading…", theme.quiet()),
        Data::Overview(data) => overview::draw(data, app.now, body, buffer, &theme),
        _ => table::draw(app, body, buffer, &theme),
    }
    if let Some(overlay) = app.overlays.last() {
        over::draw(app, overlay, body, buffer, &theme);
    }
    draw_foot(app, area, buffer, &theme)
}

/// The number of rows of a table in a terminal of this height.
pub(crate) fn page(height: u16) -> usize {
    height.saturating_sub(4).max(1).into()
}

/// Writes text into a line of an area, cut at its end.
fn put(buffer: &mut Buffer, area: Rect, x: u16, y: u16, text: &str, style: Style) {
    if x < area.width && y < area.height {
        let width = usize::from(area.width - x);
        buffer.set_stringn(area.x + x, area.y + y, text, width, style);
    }
}

/// The number of cells of a text.
fn width(text: &str) -> u16 {
    u16::try_from(ratatui::text::Span::raw(text).width()).unwrap_or(u16::MAX)
}

fn draw_titles(app: &App, area: Rect, buffer: &mut Buffer, theme: &Theme) {
    let mut x = 0;
    for (number, screen) in (1..).zip(Screen::ALL) {
        let is_here = screen == app.screen;
        let title = match area.width >= WIDE || is_here {
            true => format!(" {number} {} ", screen.title()),
            false => format!(" {number} "),
        };
        let style = if is_here {
            theme.selected()
        } else {
            theme.quiet()
        };
        put(buffer, area, x, 0, &title, style);
        x += width(&title);
    }
    let broker = printable(&app.broker);
    let space = area.width.saturating_sub(x + 2);
    let broker = cut(&broker, space);
    put(
        buffer,
        area,
        area.width - width(&broker),
        0,
        &broker,
        theme.quiet(),
    );
}

/// The end of a text that fits, with a mark where it was cut.
fn cut(text: &str, space: u16) -> String {
    if width(text) <= space {
        return text.into();
    }
    let count = text.chars().count();
    let kept = usize::from(space.saturating_sub(1));
    let end = text
        .chars()
        .skip(count - kept.min(count))
        .collect::<String>();
    if space == 0 {
        String::new()
    } else {
        format!("…{end}")
    }
}

/// The second line: the filter, marks, and what is wrong or frozen.
fn draw_status(app: &App, area: Rect, buffer: &mut Buffer, theme: &Theme) {
    let mut parts = Vec::new();
    if app.screen.takes_query() {
        let query = app.query.to_string();
        parts.push(if query.is_empty() {
            "all tasks".into()
        } else {
            query
        });
    } else if !app.text_filter.is_empty() {
        parts.push(format!("rows with '{}'", printable(&app.text_filter)));
    }
    if !app.marks.is_empty() {
        parts.push(format!("{} marked", app.marks.len()));
    }
    if let Some(remark) = app.table().remark {
        parts.push(remark);
    }
    let text = parts.join(" · ");
    put(buffer, area, 1, 1, &text, theme.plain());
    let (state, style) = match (&app.failure, app.walk) {
        (Some(failure), _) => (format!("broker lost: {}", printable(failure)), theme.bad()),
        (None, Some(walk)) => {
            let time = walk.at.strftime("%Y-%m-%d %H:%M:%SZ");
            let shown = if app.screen.has_past() {
                "at"
            } else {
                "frozen at"
            };
            (
                format!("{shown} {time}, step {} s", walk.step_seconds()),
                theme.busy(),
            )
        }
        (None, None) => (String::new(), theme.plain()),
    };
    let room = area.width.saturating_sub(2);
    let state: String = state.chars().take(room.into()).collect();
    let x = area.width.saturating_sub(width(&state) + 1);
    put(buffer, area, x, 1, &state, style);
}

/// The last line: what is typed, a message, or the keys; and the age of the data.
fn draw_foot(app: &App, area: Rect, buffer: &mut Buffer, theme: &Theme) -> Option<Position> {
    let line = area.height - 1;
    if let Some(Prompt {
        kind,
        line: typed,
        remark,
    }) = &app.prompt
    {
        let sign = match kind {
            PromptKind::Filter => "/",
            PromptKind::Command => ":",
        };
        if let Some(remark) = remark {
            put(
                buffer,
                area,
                1,
                line - 1,
                &" ".repeat(area.width.into()),
                theme.plain(),
            );
            put(buffer, area, 1, line - 1, remark, theme.bad());
        }
        // The end of a long line is more useful than its beginning.
        let room = usize::from(area.width.saturating_sub(2));
        let hidden = typed.cursor().saturating_sub(room.saturating_sub(1));
        let text: String = typed.text().chars().skip(hidden).collect();
        put(
            buffer,
            area,
            0,
            line,
            &format!("{sign}{text}"),
            theme.plain(),
        );
        let before: String = text.chars().take(typed.cursor() - hidden).collect();
        let x = (1 + width(&before)).min(area.width - 1);
        return Some(Position::new(area.x + x, area.y + line));
    }
    let read = match app.read_at {
        Some(at) => format!("{} old", age(at, app.now.max(at))),
        None => String::new(),
    };
    let (text, style) = match &app.message {
        Some(message) if message.is_error => (message.text.clone(), theme.bad()),
        Some(message) => (message.text.clone(), theme.good()),
        None => (keys(app).into(), theme.quiet()),
    };
    put(buffer, area, 0, line, &printable(&text), style);
    let shows_age = app.failure.is_some() || app.walk.is_some();
    if shows_age && app.message.is_none() {
        let x = area.width.saturating_sub(width(&read) + 1);
        put(
            buffer,
            area,
            x.saturating_sub(1),
            line,
            &format!(" {read}"),
            theme.quiet(),
        );
    }
    None
}

/// The keys that matter here.
fn keys(app: &App) -> &'static str {
    use crate::overlay::Overlay;
    match (app.overlays.last(), app.screen) {
        (Some(Overlay::Help), _) => "Esc back",
        (Some(Overlay::Task { .. }), _) => {
            "Esc back  o output  R retry  T stop  K kill  p pause  r resume  y copy id"
        }
        (Some(Overlay::Output { .. }), _) => "Esc back  f follow  w wrap  g G ends",
        (Some(Overlay::Confirm { .. }), _) => "Esc no",
        (None, Screen::Overview) => "? help  / filter  1-9 screens  q quit",
        (None, Screen::Tasks) => {
            "? help  / filter  e explain  o output  x mark  R retry  T stop  K kill  D delete  q quit"
        }
        (None, Screen::Failures) => "? help  / filter  Enter tasks  e sample  R retry all  q quit",
        (None, Screen::Groups) => "? help  Enter tasks  p off  r on  + - scale  q quit",
        (None, Screen::Schedules) => "? help  Enter tasks  p pause  r resume  q quit",
        (None, Screen::Workers) => {
            "? help  Enter tasks  e explain  p pause  r resume  T stop  q quit"
        }
        (None, _) => "? help  / filter  Enter open  z freeze  q quit",
    }
}

#[cfg(test)]
mod tests;
