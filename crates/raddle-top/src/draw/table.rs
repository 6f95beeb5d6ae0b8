//! Tables that fit into the terminal.

use ratatui::{buffer::Buffer, layout::Rect};

use super::{put, style::Theme};
use crate::{
    app::App,
    table::{Column, RowId},
};

/// The cells between two columns.
const GAP: u16 = 1;
/// The cells before a row, for its mark.
const MARGIN: u16 = 2;

pub(super) fn draw(app: &App, area: Rect, buffer: &mut Buffer, theme: &Theme) {
    let table = app.table();
    let widths = fit(table.columns, area.width.saturating_sub(MARGIN));
    let mut x = MARGIN;
    for (column, width) in table.columns.iter().zip(&widths) {
        if let Some(width) = width {
            let cell = Rect {
                width: (x + width).min(area.width),
                ..area
            };
            put(buffer, cell, x, 0, column.title, theme.title());
            x += width + GAP;
        }
    }
    if table.rows.is_empty() {
        put(buffer, area, MARGIN, 1, table.empty, theme.quiet());
        return;
    }
    let page = usize::from(area.height.saturating_sub(1));
    let first = first_row(app.selected, page, table.rows.len());
    for (line, (index, row)) in (1..).zip(table.rows.iter().enumerate().skip(first).take(page)) {
        let mut style = theme.tone(row.tone);
        let is_selected = index == app.selected;
        if is_selected {
            style = style.patch(theme.selected());
            put(buffer, area, 0, line, &" ".repeat(area.width.into()), style);
        }
        let is_marked = matches!(row.id, RowId::Task(tid) if app.marks.contains(&tid));
        let sign = match (is_selected, is_marked) {
            (true, true) => ">*",
            (true, false) => ">",
            (false, true) => " *",
            (false, false) => "",
        };
        put(buffer, area, 0, line, sign, style);
        let mut x = MARGIN;
        for (cell, width) in row.cells.iter().zip(&widths) {
            if let Some(width) = width {
                let end = (x + width).min(area.width);
                let column = Rect { width: end, ..area };
                put(buffer, column, x, line, cell, style);
                x += width + GAP;
            }
        }
    }
}

/// The first row of a page that shows the selected one near its middle.
fn first_row(selected: usize, page: usize, rows: usize) -> usize {
    let last_first = rows.saturating_sub(page);
    selected.saturating_sub(page / 2).min(last_first)
}

/// The widths of the columns; `None` for those without room. Columns of high rank go first.
fn fit(columns: &[Column], room: u16) -> Vec<Option<u16>> {
    let mut rank = columns.iter().map(|column| column.rank).max().unwrap_or(0);
    let needed = |rank: u8| {
        let shown = columns.iter().filter(|column| column.rank <= rank);
        let widths: Vec<u16> = shown.map(|column| column.width).collect();
        widths.iter().sum::<u16>() + GAP * (widths.len() as u16).saturating_sub(1)
    };
    while rank > 0 && needed(rank) > room {
        rank -= 1;
    }
    let growing = columns.iter().filter(|column| column.grows).count() as u16;
    let spare = room.saturating_sub(needed(rank));
    let mut grown = 0;
    let widths = columns.iter().map(|column| {
        if column.rank > rank {
            return None;
        }
        if !column.grows {
            return Some(column.width);
        }
        grown += 1;
        // The last one takes what division leaves.
        let extra = match grown == growing {
            true => spare - spare / growing * (growing - 1),
            false => spare / growing,
        };
        Some(column.width + extra)
    });
    widths.collect()
}
