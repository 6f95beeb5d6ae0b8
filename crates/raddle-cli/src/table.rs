//! Columns for people.

/// Rows under headings, each column as wide as its widest cell.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings and no rows yet.
    pub(crate) fn new(headings: &[&str]) -> Self {
        Self { rows: vec![headings.iter().map(|h| (*h).to_owned()).collect()] }
    }

    /// Adds a row. What could move the cursor is taken out of its cells.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| printable(&cell)).collect());
    }

    /// The text, with lines that fit on a terminal. Elsewhere they are whole.
    pub(crate) fn render_to_fit(&self, width: Option<usize>) -> String {
        let Some(width) = width else { return self.render() };
        let fit = |line: &str| match line.char_indices().nth(width) {
            Some(_) => line.chars().take(width.saturating_sub(1)).chain(['…', '\n']).collect(),
            None => format!("{line}\n"),
        };
        self.render().lines().map(fit).collect()
    }

    /// The text, one line per row, each with its end.
    pub(crate) fn render(&self) -> String {
        let mut widths = vec![0; self.rows[0].len()];
        for row in &self.rows {
            row.iter().zip(&mut widths).for_each(|(cell, width)| *width = cell.chars().count().max(*width));
        }
        let line = |row: &Vec<String>| {
            let line: String = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}  ")).collect();
            format!("{}\n", line.trim_end())
        };
        self.rows.iter().map(line).collect()
    }
}

/// Lines of a label and a value each.
pub(crate) fn labelled(lines: &[(&str, String)]) -> String {
    lines.iter().map(|(label, value)| format!("{label:<11}{}\n", printable(value))).collect()
}

/// The text without what could move the cursor or change colours.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
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
}
