//! The Lua scripts. Every operation that changes more than one key is one of them, and so atomic.
//!
//! A script is the names of the fixed keys, `common.lua`, and its own file.

use std::sync::LazyLock;

use super::schema::FIXED;

/// A script.
pub(super) struct Script {
    pub(super) code: redis::Script,
    /// The effect that happens twice if a caller runs it again under another number.
    pub(super) doubles: Option<&'static str>,
}

macro_rules! scripts {
    ($($name:ident = $file:literal $(doubles $what:literal)?;)*) => {
        $(pub(super) static $name: LazyLock<Script> = LazyLock::new(|| Script {
            code: redis::Script::new(&(head() + include_str!("lua/common.lua") + include_str!(concat!("lua/", $file)))),
            doubles: None::<&str>$(.or(Some($what)))?,
        });)*
    };
}

scripts! {
    APPEND = "append.lua";
    APPLY = "apply.lua";
    BATCH = "batch.lua";
    BEAT = "beat.lua";
    BOOT = "boot.lua";
    CHAIN = "chain.lua" doubles "has chained tasks";
    CLAIM = "claim.lua";
    COMPLETE = "complete.lua";
    CONVERT = "convert.lua";
    DEPTHS = "depths.lua";
    DISMISS = "dismiss.lua";

    FORGET = "forget.lua";
    GONE = "gone.lua";
    PURGE = "purge.lua";
    PUT = "put.lua" doubles "has stored a message";
    READ = "read.lua";
    REFUSE = "refuse.lua";
    REGISTER = "register.lua";
    REGISTER_OWN = "register_own.lua";
    SCHEDULE = "schedule.lua";
    STARTED = "started.lua";
    SUBMIT = "submit.lua" doubles "has stored a task";
    TAKE = "take.lua";
    TELL = "tell.lua";
    TRANSFER = "transfer.lua";
    WORDS = "words.lua";
}

/// Defines the fixed keys under their names in capitals.
fn head() -> String {
    FIXED
        .iter()
        .map(|(name, _)| format!("local {} = ARGV[1] .. '{name}'\n", name.to_uppercase()))
        .collect()
}
