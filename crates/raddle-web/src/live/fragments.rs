//! The parts of a screen that are replaced alone: blocks, and the rows of tables.

use std::hash::{DefaultHasher, Hash, Hasher};

use askama::Template;

use crate::pages::model::{Content, Screen};

/// A part of a screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fragment {
    /// The id of the element.
    pub(super) id: String,
    pub(super) html: String,
    hash: u64,
}

/// All parts of a screen, in order.
pub(super) fn of_page(page: &Screen) -> Vec<Fragment> {
    let mut fragments = vec![Fragment::new("b-head".into(), page.head_html())];
    if !page.facets.is_empty() {
        fragments.push(Fragment::new("b-facets".into(), page.facets_html()));
    }
    for block in &page.blocks {
        match &block.body {
            // Rows of a list never move under the reader: each is replaced alone.
            Content::Table(table) if table.bulk.is_some() => {
                let rows = table.rows.iter();
                fragments
                    .extend(rows.map(|row| Fragment::new(row.id.clone(), table.row_html(row))));
            }
            // A form may hold what someone types.
            Content::Form(_) => {}
            _ => fragments.push(Fragment::new(
                format!("b-{}", block.id),
                block.render().unwrap_or_default(),
            )),
        }
    }
    fragments
}

/// The parts of `new` that differ from `old`.
pub(super) fn changed<'a>(old: &[Fragment], new: &'a [Fragment]) -> Vec<&'a Fragment> {
    new.iter()
        .filter(|fragment| {
            let before = old.iter().find(|before| before.id == fragment.id);
            before.is_none_or(|before| before.hash != fragment.hash)
        })
        .collect()
}

/// Whether a part has gone: the order of the rest then differs, too.
pub(super) fn is_one_gone(old: &[Fragment], new: &[Fragment]) -> bool {
    old.iter()
        .any(|before| new.iter().all(|fragment| fragment.id != before.id))
}

impl Fragment {
    pub(super) fn new(id: String, html: String) -> Self {
        let mut hasher = DefaultHasher::new();
        without_times(&html).hash(&mut hasher);
        Self {
            id,
            html,
            hash: hasher.finish(),
        }
    }
}

/// The HTML without the words of times: "3s ago" changes by itself, and the script keeps it.
fn without_times(html: &str) -> String {
    let mut out = String::with_capacity(html.len());
    let mut rest = html;
    while let Some(at) = rest.find("<time ") {
        let (before, time) = rest.split_at(at);
        out.push_str(before);
        let end = time.find("</time>").unwrap_or(time.len());
        let open = time.find('>').map_or(end, |open| open.min(end));
        out.push_str(&time[..open]);
        rest = &time[end..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_sent_and_passing_time_is_no_difference() {
        let fragment = |id: &str, html: &str| Fragment::new(id.into(), html.into());
        let old = [
            fragment("a", "<p>1 <time title=\"x\">3s ago</time></p>"),
            fragment("b", "<p>1</p>"),
        ];
        let new = [
            fragment("a", "<p>1 <time title=\"x\">4s ago</time></p>"),
            fragment("b", "<p>2</p>"),
            fragment("c", "<p>3</p>"),
        ];
        let ids: Vec<&str> = changed(&old, &new)
            .iter()
            .map(|it| it.id.as_str())
            .collect();
        assert_eq!(ids, ["b", "c"]);
        assert!(!is_one_gone(&old, &new) && is_one_gone(&new, &old));
        let other = [fragment("a", "<p>1 <time title=\"y\">3s ago</time></p>")];
        assert_eq!(changed(&old, &other).len(), 1);
        assert_eq!(without_times("<time x"), "<time x");
    }
}
