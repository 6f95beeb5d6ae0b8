//! What a failure means, and what to do about it.

use redis::{ErrorKind, RedisError};

use crate::Error;

/// Why a request was not answered.
#[derive(Debug)]
pub(super) enum Fault {
    /// The server is away, or not ready: the same request may be answered later.
    Away(String),
    /// The same request would fail again.
    Final(Box<Error>),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Final(Box::new(error))
    }
}

/// What a failure of a request means.
pub(super) fn explain(error: &RedisError, place: String) -> Fault {
    // Errors from inside a script carry their code somewhere in the text, depending on the server's version.
    let text = error.to_string();
    let says = |code: &str| error.code() == Some(code) || text.contains(code);
    let refused = |reason: &str, fix: &str| {
        Fault::from(Error::Refused { place: place.clone(), reason: reason.into(), fix: fix.into() })
    };
    if error.kind() == ErrorKind::AuthenticationFailed || says("WRONGPASS") || says("NOAUTH") {
        return refused(
            "does not accept the user and password",
            "give them in the URL, as in redis://USER:PASSWORD@HOST:PORT",
        );
    }
    if says("NOPERM") {
        let fix = "let the user run scripts and touch keys and channels that begin with raddle: ('ACL SETUSER NAME ~raddle:* &raddle:* +@all')";
        return refused("does not let this user do what is needed", fix);
    }
    if error.code() == Some("OOM") || text.contains("OOM command") {
        return Error::OutOfMemory { place }.into();
    }
    if says("WRONGTYPE") {
        return Error::Taken { place }.into();
    }
    if matches!(error.code(), Some("MOVED" | "ASK" | "CROSSSLOT")) {
        let is_node = |word: &&str| word.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let to = text.split([' ', ',', ')']).find(is_node).map_or(String::new(), |node| format!(" ({node})"));
        return refused(
            &format!("is one node of a cluster, and the namespace is on another{to}"),
            "name that node in the URL, or a server that is not a cluster",
        );
    }
    // The group goes with a worker's own stream, when others took the worker for dead: its next claim tells it so.
    let is_gone = matches!(error.code(), Some("NOGROUP" | "UNBLOCKED"));
    let is_busy =
        matches!(error.code(), Some("LOADING" | "MASTERDOWN" | "TRYAGAIN" | "CLUSTERDOWN" | "BUSY" | "READONLY"));
    let is_temporary = is_gone || is_busy || text.contains("READONLY");
    if is_temporary || is_lost(error) {
        return Fault::Away(text);
    }
    Error::Server { place, reason: text }.into()
}

/// Whether the connection is gone, or no answer came in time.
fn is_lost(error: &RedisError) -> bool {
    error.is_io_error() || error.is_timeout() || error.is_connection_dropped() || error.is_unrecoverable_error()
}
