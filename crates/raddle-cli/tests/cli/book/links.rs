//! Every link of a Markdown file leads to a file that is there, and to a heading that it has. The
//! book is complete.

use std::{collections::BTreeSet, path::Path, process::Command};

use super::{page::blocks, pages, read, root};

/// Pages of the book that are not in `SUMMARY.md`: the summary itself.
const SUMMARY: &str = "docs/SUMMARY.md";

/// A path without its `.` and `..`.
fn normalized(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "." | "" => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The text of a page without its fenced blocks and without its code spans.
fn prose(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    for block in blocks(text) {
        for line in &mut lines[block.first..block.first + block.content.len()] {
            *line = "";
        }
    }
    let mut prose = String::new();
    for (index, part) in lines.join("\n").split('`').enumerate() {
        prose.push_str(if index % 2 == 0 { part } else { "code" });
    }
    prose
}

/// The targets of inline links and images.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let inline = prose
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'));
    let quoted = ["src=\"", "href=\""];
    let html = quoted.iter().flat_map(|attribute| {
        let values = prose.split(attribute).skip(1);
        values.filter_map(|rest| rest.split_once('"'))
    });
    inline
        .chain(html)
        .map(|(target, _)| target.to_owned())
        .collect()
}

/// The anchors of the headings of a page, as forges and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut is_code = false;
    let mut anchors = BTreeSet::new();
    for line in text.lines() {
        is_code ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#');
        if is_code || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        // Only the text of a link counts.
        let heading = heading
            .split("](")
            .map(|part| part.split_once(')').map_or(part, |(_, rest)| rest));
        let heading: String = heading.collect::<String>().trim().to_lowercase();
        let kept = |letter: &char| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter);
        let anchor: String = heading.chars().filter(kept).collect();
        anchors.insert(anchor.replace(' ', "-"));
    }
    anchors
}

/// The Markdown files that the repository tracks.
fn documents() -> Vec<String> {
    let listed = Command::new("git")
        .args(["ls-files", "*.md"])
        .current_dir(root())
        .output();
    let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
    let mut all: BTreeSet<String> = listed.lines().map(str::to_owned).collect();
    all.extend(pages());
    all.into_iter()
        .filter(|path| root().join(path).exists())
        .collect()
}

#[test]
fn links_lead_to_files_and_headings() {
    let mut broken = Vec::new();
    for page in documents() {
        let text = read(&page);
        let parent = Path::new(&page)
            .parent()
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        for link in links(&text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if path.is_empty() {
                page.clone()
            } else {
                normalized(&format!("{parent}/{path}"))
            };
            if !root().join(&target).exists() {
                broken.push(format!("{page}: {link}: no such file"));
            } else if !anchor.is_empty() && !anchors(&read(&target)).contains(anchor) {
                broken.push(format!("{page}: {link}: no such heading"));
            } else if page.starts_with("docs/") && !target.starts_with("docs/") {
                broken.push(format!(
                    "{page}: {link}: leads out of the book, name the path as code"
                ));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn the_summary_lists_every_page_once() {
    let mut listed: Vec<String> = links(&read(SUMMARY))
        .into_iter()
        .map(|link| format!("docs/{link}"))
        .collect();
    listed.sort();
    let pages: Vec<String> = pages().into_iter().filter(|page| page != SUMMARY).collect();
    assert_eq!(listed, pages);
}

/// A search engine, and a reader who searches a page, look for the words of the field.
#[test]
fn the_words_of_the_field_are_in_the_book() {
    let text: String = pages()
        .iter()
        .map(|page| read(page).to_lowercase())
        .collect();
    for word in [
        "at least once",
        "authentication",
        "backpressure",
        "circuit breaker",
        "cron",
        "dead letter",
        "exit code",
        "fencing",
        "graceful shutdown",
        "health check",
        "heartbeat",
        "idempotency",
        "load balancing",
        "man page",
        "message queue",
        "observability",
        "priority",
        "rate limit",
        "retention",
        "retry",
        "service discovery",
        "supervisor",
        "task queue",
        "timeout",
        "untrusted",
    ] {
        assert!(text.contains(word), "'{word}' is nowhere in the book");
    }
}

#[test]
fn finds_links_and_anchors() {
    let page = "# A `b` c\n[x](y.md#z) `[no](no)`\n```text\n# no [no](no)\n```\n## [Link](u) d\n";
    assert_eq!(links(page), ["y.md#z", "u"]);
    assert_eq!(
        anchors(page).into_iter().collect::<Vec<_>>(),
        ["a-b-c", "link-d"]
    );
}

/// The paths that the repository tracks.
fn tracked() -> Vec<String> {
    let listed = Command::new("git")
        .arg("ls-files")
        .current_dir(root())
        .output();
    let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
    listed.lines().map(str::to_owned).collect()
}

#[test]
fn the_internals_name_types_and_files_that_exist() {
    let files = tracked();
    let sources: String = files
        .iter()
        .filter(|path| {
            path.contains("/src/") && path.ends_with(".rs") && root().join(path).exists()
        })
        .map(|path| read(path))
        .collect();
    let known: BTreeSet<&str> = sources
        .split(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .collect();
    let is_type = |name: &str| {
        name.starts_with(|first: char| first.is_uppercase())
            && name.contains(|letter: char| letter.is_lowercase())
            && name.chars().all(char::is_alphanumeric)
    };
    let is_file = |name: &str| name.ends_with(".rs") || name.ends_with(".lua");
    let mut missing = Vec::new();
    let pages = pages()
        .into_iter()
        .filter(|page| page.starts_with("docs/design/"));
    for page in pages.chain(["ARCHITECTURE.md".to_owned(), "docs/glossary.md".to_owned()]) {
        let text = read(&page);
        for name in text
            .lines()
            .flat_map(|line| line.split('`').skip(1).step_by(2))
        {
            let exists = match name {
                name if is_file(name) => files
                    .iter()
                    .any(|path| format!("/{path}").ends_with(&format!("/{name}"))),
                name if is_type(name) => known.contains(name),
                _ => true,
            };
            if !exists {
                missing.push(format!("{page}: {name}"));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}
