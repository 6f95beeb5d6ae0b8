//! What an operator's interface may be told about its surroundings.

use std::time::Duration;

use raddle_broker_connect::BrokerUrl;

use crate::auth::Role;

/// The settings of an operator's interface.
#[derive(Clone, Debug)]
pub struct Options {
    /// The URL of the broker, without its password, as pages show it.
    pub broker_url: String,
    /// The broker for the checks of the doctor; without it there are none.
    pub doctor: Option<BrokerUrl>,
    /// The path under which a reverse proxy or another router serves this, such as `/raddle`;
    /// empty for the root. Links and the path of the cookie begin with it.
    pub prefix: String,
    /// Who is let in.
    pub sign_in: SignIn,
    /// Host names, with or without a port, that requests may name besides those of loopback.
    pub allowed_hosts: Vec<String>,
    /// The port that requests for a loopback name must have; `None` for any.
    pub port: Option<u16>,
    /// Whether browsers reach this over TLS, so that the cookie is only sent there.
    pub is_secure: bool,
    /// Whether no route that changes anything exists.
    pub is_read_only: bool,
    /// Whether `/metrics` answers without sign-in.
    pub has_open_metrics: bool,
    /// Signs cookies. Cookies stay valid across restarts with the same secret; the default is a
    /// new one for each process.
    pub secret: [u8; 32],
    /// How long a browser stays signed in.
    pub session: Duration,
}

/// Who is let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignIn {
    /// Those who have a token: this one, which is the owner's, or one that the broker knows.
    Tokens {
        /// The SHA-256 of the owner's token, if there is one.
        owner: Option<[u8; 32]>,
    },
    /// Everyone, with this role: the router around this one, or the mode of the socket, decides who
    /// gets here.
    Trusted(Role),
}

impl Default for Options {
    fn default() -> Self {
        Self {
            broker_url: String::new(),
            doctor: None,
            prefix: String::new(),
            sign_in: SignIn::Tokens { owner: None },
            allowed_hosts: Vec::new(),
            port: None,
            is_secure: false,
            is_read_only: false,
            has_open_metrics: false,
            secret: crate::auth::random_bytes(),
            session: Duration::from_hours(12),
        }
    }
}
