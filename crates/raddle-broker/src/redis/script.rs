//! The scripts: every step that changes more than one thing is one of them, and so happens whole or not at all.

use std::sync::LazyLock;

/// A script as the server runs it.
pub(super) struct Script {
    pub(super) text: String,
    /// The name under which a server that has seen it knows it.
    pub(super) hash: String,
}

macro_rules! scripts {
    ($($name:ident = $file:literal;)*) => {$(
        pub(super) static $name: LazyLock<Script> = LazyLock::new(|| {
            Script::new(concat!(include_str!("lua/common.lua"), include_str!(concat!("lua/", $file))))
        });
    )*};
}

scripts! {
    APPEND = "append.lua";
    APPLY = "apply.lua";
    BEAT = "beat.lua";
    BOOT = "boot.lua";
    CLAIM = "claim.lua";
    CLEAR = "clear.lua";
    DEPTHS = "depths.lua";
    DISMISS = "dismiss.lua";
    FINISH = "finish.lua";
    GONE = "gone.lua";
    PURGE = "purge.lua";
    PUT = "put.lua";
    REFUSE = "refuse.lua";
    REGISTER = "register.lua";
    REGISTER_OWN = "register_own.lua";
    STARTED = "started.lua";
    SUBMIT = "submit.lua";
    TAKE = "take.lua";
    WORDS = "words.lua";
}

impl Script {
    fn new(text: &str) -> Self {
        let hash = redis::Script::new(text).get_hash().to_owned();
        Self { text: text.to_owned(), hash }
    }
}
