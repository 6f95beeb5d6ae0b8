//! The Lua scripts. Every operation that changes more than one key is one of them, and so atomic.
//!
//! A script is the names of the keys and the paragraphs of shared code that it uses, files that it
//! shares with others, and its own file.

use std::{collections::HashSet, sync::LazyLock};

use super::schema::FIXED;

/// A script.
pub(super) struct Script {
    pub(super) code: redis::Script,
    /// The effect that happens twice if a caller runs it again under another number.
    pub(super) doubles: Option<&'static str>,
}

macro_rules! scripts {
    ($($name:ident = $($file:literal)+ $(doubles $what:literal)?;)*) => {
        $(pub(super) static $name: LazyLock<Script> = LazyLock::new(|| Script {
            code: redis::Script::new(&assemble(concat!($(include_str!(concat!("lua/", $file))),+))),
            doubles: None::<&str>$(.or(Some($what)))?,
        });)*
    };
}

scripts! {
    ADVANCE_OPERATION = "changes.lua" "delete.lua" "advance_operation.lua";
    APPEND = "append.lua";
    APPLY_CHANGES = "changes.lua" "apply_changes.lua";
    APPLY_TRANSACTION = "apply_transaction.lua";
    CHAIN = "chain.lua" doubles "has chained tasks";
    CHANGE_SCHEDULE = "change_schedule.lua";
    CLAIM = "claim.lua";
    COMPLETE = "complete.lua";
    COUNT_BATCH = "count_batch.lua";
    DELETE_REPLIES = "delete_replies.lua";
    LIST_COMMANDS = "list_commands.lua";
    LOST_WORKERS = "lost_workers.lua";
    MARK_STARTED = "mark_started.lua";
    PAUSE_QUEUE = "pause_queue.lua";
    PURGE = "delete.lua" "purge.lua";
    PUT = "put.lua" doubles "has stored a message";
    QUEUE_SIZES = "queue_sizes.lua";
    READ = "read.lua";
    REFUSE_STALE = "refuse_stale.lua";
    REGISTER = "register.lua";
    REGISTER_ATTEMPT = "register_attempt.lua";
    REGISTER_EPHEMERAL = "register_ephemeral.lua";
    REMOVE_WORKER = "remove_worker.lua";
    RENEW_LEASE = "renew_lease.lua";
    SCAN_TASKS = "scan_tasks.lua";
    START_OPERATION = "start_operation.lua" doubles "has started an operation";
    START_RUN = "start_run.lua";
    SUBMIT = "submit.lua" doubles "has stored a task";
    TAKE = "take.lua";
    TAKE_COMMANDS = "take_commands.lua";
    TRANSFER = "transfer.lua";
}

/// Code that scripts share, in this order.
const SHARED: [&str; 4] = [
    include_str!("lua/common.lua"),
    include_str!("lua/records.lua"),
    include_str!("lua/workers.lua"),
    include_str!("lua/tasks.lua"),
];

/// The code of a script: of the fixed keys, whose names are in capitals, and of the paragraphs of
/// `SHARED` those that it uses, directly or by others, and those that define nothing. Defining
/// all would cost more than most scripts do.
fn assemble(own: &str) -> String {
    let keys = FIXED
        .iter()
        .map(|(name, _)| format!("local {} = ARGV[1] .. '{name}'", name.to_uppercase()));
    let shared = SHARED
        .iter()
        .flat_map(|file| paragraphs(file.trim_end()))
        .map(str::to_owned);
    let shared: Vec<String> = keys.chain(shared).collect();
    let mut used = words_of(own);
    let mut is_used = vec![false; shared.len()];
    loop {
        let before = used.len();
        for (paragraph, is_used) in shared.iter().zip(&mut is_used) {
            let defined = definitions(paragraph);
            if !*is_used && (defined.is_empty() || !defined.is_disjoint(&used)) {
                *is_used = true;
                used.extend(words_of(paragraph));
            }
        }
        if used.len() == before {
            break;
        }
    }
    let used = shared
        .into_iter()
        .zip(is_used)
        .filter(|(_, is_used)| *is_used);
    let used: Vec<String> = used.map(|(paragraph, _)| paragraph).collect();
    used.join("\n") + "\n" + own
}

/// Parts between blank lines. A blank line in a function is followed by an indented one.
fn paragraphs(code: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(code);
    std::iter::from_fn(move || {
        let code = rest?;
        let end = code
            .match_indices("\n\n")
            .find(|(at, _)| !code[at + 2..].starts_with([' ', '\n']));
        let (paragraph, after) =
            end.map_or((code, None), |(at, _)| (&code[..at], Some(&code[at + 2..])));
        rest = after;
        Some(paragraph)
    })
}

/// The local names that a paragraph defines for what follows.
fn definitions(paragraph: &str) -> HashSet<String> {
    let names = paragraph.lines().filter_map(|line| {
        let names = line.strip_prefix("local ")?;
        let names = names.strip_prefix("function ").unwrap_or(names);
        Some(names.split(['=', '(']).next().unwrap_or_default())
    });
    names.flat_map(words_of).collect()
}

/// The words of code, without those of its comments.
fn words_of(code: &str) -> HashSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    code.lines()
        .map(|line| line.split("--").next().unwrap_or_default())
        .flat_map(|line| line.split(|c| !is_part(c)))
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_has_what_it_uses() {
        let code = assemble("return answer(has_lease(ARGV[FIRST]))\n");
        for used in [
            "local function has_lease",
            "local LEASES",
            "MIN_SILENCE",
            "local call, fmt",
        ] {
            assert!(code.contains(used), "{used} in {code}");
        }
        for unused in ["local function submit(", "local SPECS", "outcomes"] {
            assert!(!code.contains(unused), "{unused} in {code}");
        }
    }

    #[test]
    fn a_comment_uses_nothing() {
        assert_eq!(words_of("a(b) -- c"), ["a", "b"].map(str::to_owned).into());
        let all: Vec<&str> = paragraphs("a\n  b\n\n  c\n\nd").collect();
        assert_eq!(all, ["a\n  b\n\n  c", "d"]);
    }
}
