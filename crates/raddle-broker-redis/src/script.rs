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
    APPLY_CHANGES = "apply_changes.lua";
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
    PURGE = "purge.lua";
    PUT = "put.lua" doubles "has stored a message";
    QUEUE_SIZES = "queue_sizes.lua";
    READ = "read.lua";
    REFUSE_STALE = "refuse_stale.lua";
    REGISTER = "register.lua";
    REGISTER_ATTEMPT = "register_attempt.lua";
    REGISTER_EPHEMERAL = "register_ephemeral.lua";
    REMOVE_WORKER = "remove_worker.lua";
    RENEW_LEASE = "renew_lease.lua";
    START_RUN = "start_run.lua";
    SUBMIT = "submit.lua" doubles "has stored a task";
    TAKE = "take.lua";
    TAKE_COMMANDS = "take_commands.lua";
    TRANSFER = "transfer.lua";
}

/// Defines the fixed keys under their names in capitals.
fn head() -> String {
    FIXED
        .iter()
        .map(|(name, _)| format!("local {} = ARGV[1] .. '{name}'\n", name.to_uppercase()))
        .collect()
}
