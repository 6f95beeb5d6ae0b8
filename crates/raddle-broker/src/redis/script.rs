//! The scripts: every step that changes more than one thing is one of them, and so happens whole or not at all.
//!
//! A script is linked from its own file and the pieces of `common.lua` that it uses, and declares the keys that it names: what a server does
//! not have to read, it does not have to do at every call.

use std::sync::LazyLock;

use super::keys::FIXED;

/// A script as the server runs it.
pub(super) struct Script {
    pub(super) text: String,
    /// The name under which a server that has seen it knows it.
    pub(super) hash: String,
    /// Which of the keys that are always the same it touches.
    pub(super) keys: Vec<usize>,
    /// What a caller that asks for it twice would have twice.
    pub(super) doubles: Option<&'static str>,
    /// Whether somebody waits for what it sends, more than the caller for its answer.
    pub(super) tells: bool,
}

macro_rules! scripts {
    ($($name:ident = $($file:literal)+ $(doubles $what:literal)? $(tells $tells:literal)?;)*) => {
        $(pub(super) static $name: LazyLock<Script> = LazyLock::new(|| {
            let doubles = None::<&str>$(.or(Some($what)))?;
            let tells = false $(|| $tells)?;
            Script { doubles, tells, ..Script::link(&[$(include_str!(concat!("lua/", $file))),+].concat()) }
        });)*

        #[cfg(test)]
        static ALL: &[&LazyLock<Script>] = &[$(&$name),*];
    };
}

scripts! {
    APPEND = "append.lua";
    APPLY = "apply.lua";
    BEAT = "beat.lua";
    BOOT = "boot.lua";
    CHAIN = "chain.lua" doubles "has chained tasks";
    CLAIM = "claim.lua";
    CONVERT = "convert.lua" "expiring.lua" "submit.lua";
    DEPTHS = "depths.lua";
    DISMISS = "dismiss.lua";
    FINISH = "finish.lua";
    FOLLOW = "follow.lua" "finish.lua";
    FORGET = "forget.lua";
    GONE = "gone.lua";
    HAND = "hand.lua" doubles "has stored a task" tells true;
    PURGE = "purge.lua";
    PUT = "put.lua" doubles "has stored a message";
    REFUSE = "refuse.lua";
    REGISTER = "register.lua";
    REGISTER_OWN = "register_own.lua";
    SCHEDULE = "schedule.lua" "expiring.lua" "submit.lua";
    STARTED = "started.lua";
    SUBMIT = "submit.lua" doubles "has stored a task";
    SUBMIT_EXPIRING = "expiring.lua" "submit.lua" doubles "has stored a task";
    TAKE = "take.lua";
    TELL = "tell.lua";
    WORDS = "words.lua";
}

impl Script {
    fn link(own: &str) -> Self {
        let mut text = without_comments(own);
        let common = without_comments(include_str!("lua/common.lua"));
        for piece in common.split("\n\n").collect::<Vec<_>>().into_iter().rev() {
            let names = defined_by(piece);
            if names.is_empty() || names.iter().any(|name| has_word(&text, name)) {
                text = format!("{piece}\n{text}");
            }
        }
        let keys: Vec<usize> = (0..FIXED.len()).filter(|&key| has_word(&text, &lua_name(key))).collect();
        let mut head = String::new();
        for (place, key) in keys.iter().enumerate() {
            head += &format!("local {} = KEYS[{}]\n", lua_name(*key), place + 1);
        }
        head += &format!("local FIXED = {}\n", keys.len());
        let text = head + &text;
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash, keys, doubles: None, tells: false }
    }
}

/// What a script calls one of the keys that are always the same.
fn lua_name(key: usize) -> String {
    FIXED[key].0.to_uppercase()
}

/// The names that a piece defines for those behind it. One that defines none is there for what it does.
fn defined_by(piece: &str) -> Vec<&str> {
    let names = piece.lines().filter_map(|line| {
        let names = line.strip_prefix("local ")?;
        Some(names.strip_prefix("function ").unwrap_or(names).split(['(', '=']).next().unwrap_or(names))
    });
    names.flat_map(|names| names.split(',')).map(str::trim).collect()
}

fn has_word(text: &str, word: &str) -> bool {
    let is_part = |next: Option<char>| next.is_some_and(|next| next.is_ascii_alphanumeric() || next == '_');
    text.match_indices(word)
        .any(|(at, _)| !is_part(text[..at].chars().next_back()) && !is_part(text[at + word.len()..].chars().next()))
}

fn without_comments(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("--"));
    lines.fold(String::new(), |text, line| text + line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_has_what_it_uses_and_no_more() {
        let refuse = Script::link("refuse(ARGV[4], ARGV[5])\nreturn answer({})\n");
        assert!(refuse.text.contains("local function refuse(") && refuse.text.contains("local function event("));
        assert!(!refuse.text.contains("local function line_up("));
        let named: Vec<&str> = refuse.keys.iter().map(|&key| FIXED[key].0).collect();
        assert_eq!(named, ["meta", "spec", "log"]);
    }

    #[test]
    fn every_name_of_a_script_is_defined_before_it_is_used() {
        for script in ALL {
            for (at, piece) in script.text.split("\n").enumerate() {
                for name in defined_by(piece).into_iter().filter(|name| !name.is_empty()) {
                    let before: String = script.text.split('\n').take(at).map(|line| format!("{line}\n")).collect();
                    let called = format!("{name}(");
                    assert!(!has_call(&before, &called), "{name} is called before it is there:\n{}", script.text);
                }
            }
        }
    }

    fn has_call(text: &str, call: &str) -> bool {
        text.match_indices(call).any(|(at, _)| {
            let before = text[..at].chars().next_back();
            !before.is_some_and(|before| before.is_ascii_alphanumeric() || "_.".contains(before))
        })
    }
}
