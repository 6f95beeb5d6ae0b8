//! Classification of failures.

use std::fmt;

use redis::{ErrorKind, RedisError};

use raddle_broker::Error;

/// Why a request got no reply.
#[derive(Debug)]
pub(super) enum Fault {
    /// The server is away or not ready; the same request may succeed later.
    Away(String),
    /// The same, and the server may have performed the request.
    Lost(String),
    /// The server is down for all clients: it does not run, or is loading its data.
    Down(String),
    /// The same request would fail again.
    Final(Box<Error>),
}

impl Fault {
    /// Whether it is worth trying again.
    pub(super) fn may_pass(&self) -> bool {
        !matches!(self, Self::Final(_))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Away(reason) | Self::Lost(reason) | Self::Down(reason) => f.write_str(reason),
            Self::Final(error) => error.fmt(f),
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Final(Box::new(error))
    }
}

/// Classifies the failure of a request.
pub(super) fn explain(error: &RedisError, place: String) -> Fault {
    let said = said(error);
    let code = said.as_ref().map(|(code, _)| code.as_str());
    let text = said.as_ref().map_or_else(
        || error.to_string(),
        |(code, detail)| format!("{code} {detail}"),
    );
    // Errors from inside a script carry their code somewhere in the text, depending on the server
    // version.
    let says = |code: &str| text.contains(code);
    let refused = |reason: &str, fix: &str| {
        Fault::from(Error::Refused {
            place: place.clone(),
            reason: reason.into(),
            fix: fix.into(),
        })
    };
    if error.kind() == ErrorKind::AuthenticationFailed || says("WRONGPASS") || says("NOAUTH") {
        return refused(
            "does not accept the user and password",
            "give them in the URL, as in redis://USER:PASSWORD@HOST:PORT",
        );
    }
    if says("NOPERM") {
        let fix = "let the user run scripts and access keys and channels that begin with raddle: ('ACL SETUSER NAME ~raddle:* &raddle:* +@all')";
        return refused("denies this user a command that is needed", fix);
    }
    if code == Some("OOM") || says("OOM command") {
        return Error::OutOfMemory { place }.into();
    }
    if says("MISCONF") {
        return Error::Unwritable {
            place,
            reason: text,
        }
        .into();
    }
    if says("WRONGTYPE") {
        return Error::Taken { place }.into();
    }
    // `TRYAGAIN`: the cluster is moving the namespace, and keys are on both nodes for a moment.
    // `NOSCRIPT`: the next call sends the script.
    let is_busy = matches!(
        code,
        Some(
            "MASTERDOWN"
                | "TRYAGAIN"
                | "CLUSTERDOWN"
                | "BUSY"
                | "READONLY"
                | "ASK"
                | "UNBLOCKED"
                | "NOSCRIPT"
        )
    );
    if error.is_connection_refusal() || code == Some("LOADING") {
        return Fault::Down(text);
    }
    if is_busy || says("READONLY") {
        return Fault::Away(text);
    }
    if is_lost(error) {
        return Fault::Lost(text);
    }
    Error::Server {
        place,
        reason: text,
    }
    .into()
}

/// The code and the text of an error reply; of the first error of a pipeline.
pub(super) fn said(error: &RedisError) -> Option<(String, String)> {
    let errors = error.clone().into_server_errors()?;
    errors.first().map(|(_, first)| {
        (
            first.code().to_owned(),
            first.details().unwrap_or_default().to_owned(),
        )
    })
}

/// Whether the connection is lost, or the reply timed out.
fn is_lost(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_timeout()
        || error.is_connection_dropped()
        || error.is_unrecoverable_error()
}
