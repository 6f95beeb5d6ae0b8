//! Tables in text.

pub(crate) use raddle_client::text::printable;

/// Rows under headings. Each column is as wide as its widest cell.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    /// The colours of cells, as row, column and colour.
    colours: Vec<(usize, usize, Colour)>,
}

/// A colour of a terminal, as the parameter of its SGR sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    Red = 31,
    Green = 32,
    Yellow = 33,
    Cyan = 36,
}

impl Table {
    /// A table with these headings and no rows.
    pub(crate) fn new(headings: &[&str]) -> Self {
        Self {
            rows: vec![headings.iter().map(|h| (*h).to_owned()).collect()],
            colours: Vec::new(),
        }
    }

    /// Adds a row. Control characters are removed from its cells.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows
            .push(cells.into_iter().map(|cell| printable(&cell)).collect());
    }

    /// Colours a cell of the last row.
    pub(crate) fn colour(&mut self, column: usize, colour: Colour) {
        self.colours.push((self.rows.len() - 1, column, colour));
    }

    /// The text, with lines cut to the width of the terminal, if there is one.
    pub(crate) fn render_to_fit(&self, width: Option<usize>) -> String {
        let Some(width) = width else {
            return self.render();
        };
        let fit = |line: &str| match line.char_indices().nth(width) {
            Some(_) => line
                .chars()
                .take(width.saturating_sub(1))
                .chain(['…'])
                .collect(),
            None => line.to_owned(),
        };
        self.lines().iter().map(|line| fit(line) + "\n").collect()
    }

    /// The text of `render_to_fit`, with coloured cells.
    pub(crate) fn render_in_colour(&self, width: Option<usize>) -> String {
        let widths = self.widths();
        let text = self.render_to_fit(width);
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for (row, column, colour) in &self.colours {
            let from: usize = widths[..*column]
                .iter()
                .map(|width| width + GAP.len())
                .sum();
            let to = from + self.rows[*row][*column].chars().count();
            let line = &lines[*row];
            let at = |n: usize| line.char_indices().nth(n).map_or(line.len(), |(at, _)| at);
            let (from, to) = (at(from), at(to));
            lines[*row] = format!(
                "{}\x1b[{}m{}\x1b[0m{}",
                &line[..from],
                *colour as u8,
                &line[from..to],
                &line[to..]
            );
        }
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    /// The text, one line per row.
    pub(crate) fn render(&self) -> String {
        self.lines()
            .iter()
            .map(|line| format!("{line}\n"))
            .collect()
    }

    fn lines(&self) -> Vec<String> {
        let widths = self.widths();
        let line = |row: &Vec<String>| {
            let line: String = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:<width$}{GAP}"))
                .collect();
            line.trim_end().to_owned()
        };
        self.rows.iter().map(line).collect()
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths = vec![0; self.rows[0].len()];
        for row in &self.rows {
            row.iter()
                .zip(&mut widths)
                .for_each(|(cell, width)| *width = cell.chars().count().max(*width));
        }
        widths
    }
}

/// The gap between two columns.
const GAP: &str = "  ";

/// Lines of label and value.
pub(crate) fn labelled(lines: &[(&str, String)]) -> String {
    lines
        .iter()
        .map(|(label, value)| format!("{label:<11}{}\n", printable(value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_have_no_trailing_blanks() {
        let mut table = Table::new(&["A", "LONG"]);
        table.row(["ünï".into(), "x".into()]);
        table.row(["bc\x1b[2J".into(), String::new()]);
        assert_eq!(table.render(), "A       LONG\nünï     x\nbc?[2J\n");
    }

    #[test]
    fn lines_are_cut_to_the_width_of_a_terminal() {
        let mut table = Table::new(&["A", "B"]);
        table.row(["ünï".into(), "longer".into()]);
        assert_eq!(table.render_to_fit(Some(11)), "A    B\nünï  longer\n");
        assert_eq!(table.render_to_fit(Some(8)), "A    B\nünï  lo…\n");
        assert_eq!(table.render_to_fit(None), table.render());
    }

    #[test]
    fn colours_have_no_width_and_end_where_a_line_is_cut() {
        let mut table = Table::new(&["A", "B", "C"]);
        table.row(["ünï".into(), "good".into(), "x".into()]);
        table.colour(1, Colour::Green);
        assert_eq!(
            table.render_in_colour(None),
            "A    B     C\nünï  \x1b[32mgood\x1b[0m  x\n"
        );
        assert_eq!(
            table.render_in_colour(Some(8)),
            "A    B …\nünï  \x1b[32mgo…\x1b[0m\n"
        );
        assert_eq!(table.render_in_colour(Some(3)), "A …\nün…\x1b[32m\x1b[0m\n");
    }
}
