//! A page as a list of steps: files to write, and commands to type with the output that the page
//! shows.

use std::ops::Range;

/// One step of a page.
#[derive(Debug)]
pub(super) enum Step {
    /// The page has the reader write a file.
    File {
        path: String,
        content: String,
        /// The example of `crates/raddle/examples` that the file is.
        example: Option<String>,
    },
    /// The page has the reader type a command.
    Typed {
        text: String,
        shown: Vec<String>,
        /// The lines of the page that show the output.
        lines: Range<usize>,
    },
}

/// A fenced block of a page.
pub(super) struct Block<'a> {
    /// The words after the three backticks.
    pub(super) language: &'a str,
    /// The text of the comment on the line before the block.
    pub(super) comment: Option<&'a str>,
    pub(super) content: Vec<&'a str>,
    /// The index of the first line of the content.
    pub(super) first: usize,
}

/// The fenced blocks of a page, in order.
pub(super) fn blocks(text: &str) -> Vec<Block<'_>> {
    let lines: Vec<&str> = text.lines().collect();
    let (mut blocks, mut index) = (Vec::new(), 0);
    while index < lines.len() {
        let line = lines[index].trim_start();
        let Some(language) = line.strip_prefix("```") else {
            index += 1;
            continue;
        };
        let comment = index.checked_sub(1).and_then(|before| {
            let comment = lines[before].trim().strip_prefix("<!--")?;
            Some(comment.strip_suffix("-->")?.trim())
        });
        let first = index + 1;
        let length = lines[first..]
            .iter()
            .position(|line| line.trim() == "```")
            .expect("every block ends");
        blocks.push(Block {
            language: language.trim(),
            comment,
            content: lines[first..first + length].to_vec(),
            first,
        });
        index = first + length + 1;
    }
    blocks
}

/// The steps of a page. Console blocks that are not run are left out.
pub(super) fn steps(text: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for block in blocks(text) {
        let command = block.comment.and_then(|comment| comment.split_once(": "));
        match (command, block.language) {
            (Some(("file", path)), _) => {
                let (path, example) = match path.split_once(" = ") {
                    Some((path, example)) => (path, Some(example.to_owned())),
                    None => (path, None),
                };
                steps.push(Step::File {
                    path: path.to_owned(),
                    content: block.content.join("\n") + "\n",
                    example,
                });
            }
            (Some(("not run", reason)), "console") => assert!(!reason.is_empty()),
            (_, "console") => steps.extend(typed(&block)),
            _ => {}
        }
    }
    steps
}

/// The commands of a console block. A command goes on in lines that begin with `> `.
fn typed(block: &Block<'_>) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (offset, line) in block.content.iter().enumerate() {
        let at = block.first + offset;
        if let Some(text) = line.strip_prefix("$ ") {
            steps.push(Step::Typed {
                text: text.to_owned(),
                shown: Vec::new(),
                lines: at + 1..at + 1,
            });
            continue;
        }
        let Some(Step::Typed { text, shown, lines }) = steps.last_mut() else {
            panic!("no command stands before '{line}'");
        };
        lines.end = at + 1;
        match line.strip_prefix("> ") {
            Some(rest) if shown.is_empty() => {
                text.push('\n');
                text.push_str(rest);
                lines.start = at + 1;
            }
            _ => shown.push((*line).to_owned()),
        }
    }
    steps
}

#[test]
fn reads_commands_files_and_what_is_not_run() {
    let page = "# A\n<!-- file: a.toml -->\n```toml\na = 1\n```\n```console\n$ one \\\n> two\nshown\n$ three\n```\n<!-- not run: a cluster -->\n```console\n$ four\n```\n";
    let steps = steps(page);
    assert_eq!(steps.len(), 3, "{steps:?}");
    assert!(
        matches!(&steps[1], Step::Typed { text, shown, lines } if text == "one \\\ntwo" && shown == &["shown"] && *lines == (8..9))
    );
}
