//! Finds out who asks.

use std::time::Instant;

use axum::http::{Extensions, StatusCode, header::AUTHORIZATION, request::Parts};
use jiff::Timestamp;

use super::{
    PeerAddress, Right, Rights, Role, Token,
    cookie::{self, Subject},
    sha256,
};
use crate::{
    SignIn,
    problem::{Problem, Result},
    state::AppState,
};

/// Who asks, and what they may do.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// The name of the token.
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) rights: Rights,
    pub(crate) credential: Credential,
    subject: Option<Subject>,
    /// When the session ends, in seconds since the epoch.
    ends: Option<i64>,
}

/// How a caller is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Credential {
    /// By a token in the request, which no other page can make a browser send.
    Bearer,
    /// By the cookie, which browsers send by themselves.
    Cookie,
    /// By having reached the server at all.
    Ambient,
}

impl Caller {
    pub(crate) fn may(&self, right: Right) -> bool {
        self.rights.allow(right)
    }

    /// Fails with the right that is missing.
    pub(crate) fn require(&self, right: Right) -> Result<()> {
        if self.may(right) {
            return Ok(());
        }
        let Self { role, .. } = self;
        let problem = Problem::new(
            StatusCode::FORBIDDEN,
            format!("this needs the right '{right}', which the role {role} does not have"),
        );
        Err(Problem {
            right: Some(right.as_str()),
            ..problem.with_hint(format!(
                "ask for a token with it: 'raddle web token add NAME --role {role} --right {right}'"
            ))
        })
    }

    /// Whether the token still exists and the session has not ended. To be asked now and then while
    /// a stream is open.
    pub(crate) async fn is_still_valid(&self, state: &AppState) -> bool {
        let is_over = |ends: i64| Timestamp::now().as_second() >= ends;
        if self.ends.is_some_and(is_over) {
            return false;
        }
        match self.subject {
            Some(Subject::Token(id)) => {
                // A broker that does not answer revokes nothing.
                let found = state.tokens.find_by_id(state.broker(), id).await;
                found.map_or(true, |token| token.is_some())
            }
            _ => true,
        }
    }

    /// Finds out who sends a request. `None` if it says nothing about that.
    pub(super) async fn identify(state: &AppState, request: &Parts) -> Result<Option<Self>> {
        let headers = &request.headers;
        if let Some(value) = headers.get(AUTHORIZATION) {
            let token = value.to_str().ok().and_then(|value| {
                let (scheme, token) = value.split_once(' ')?;
                scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
            });
            let found = match token {
                Some(token) => Self::by_token(state, token).await?,
                None => None,
            };
            return match found {
                Some(caller) => Ok(Some(caller)),
                None => Err(wrong_token(state, &request.extensions)),
            };
        }
        if let SignIn::Trusted(role) = state.options.sign_in {
            return Ok(Some(Self::ambient(role)));
        }
        let now = Timestamp::now();
        let Some(session) = cookie::read(&state.options, headers, now) else {
            return Ok(None);
        };
        let caller = match session.subject {
            Subject::Owner => Some(Self::owner()),
            Subject::Token(id) => {
                let token = state.tokens.find_by_id(state.broker(), id).await?;
                token.as_ref().map(Self::of_token)
            }
        };
        Ok(caller.map(|caller| Self {
            credential: Credential::Cookie,
            ends: Some(session.ends),
            ..caller
        }))
    }

    /// The holder of a token.
    pub(super) async fn by_token(state: &AppState, token: &str) -> Result<Option<Self>> {
        if let SignIn::Tokens { owner: Some(hash) } = &state.options.sign_in
            // Hashes: how long the comparison takes says nothing about the token.
            && *hash == sha256(token)
        {
            return Ok(Some(Self::owner()));
        }
        let found = state.tokens.find_by_text(state.broker(), token).await?;
        Ok(found.as_ref().map(Self::of_token))
    }

    /// Whose session a cookie for this caller is.
    pub(super) fn subject(&self) -> Subject {
        self.subject.unwrap_or(Subject::Owner)
    }

    pub(super) fn owner() -> Self {
        Self {
            subject: Some(Subject::Owner),
            credential: Credential::Bearer,
            ..Self::ambient(Role::Owner)
        }
    }

    fn of_token(token: &Token) -> Self {
        Self {
            name: token.name().into(),
            role: token.role(),
            rights: token.rights(),
            credential: Credential::Bearer,
            subject: Some(Subject::Token(token.id)),
            ends: token.expires_at().map(|at| at.as_second()),
        }
    }

    fn ambient(role: Role) -> Self {
        Self {
            name: role.as_str().into(),
            role,
            rights: role.rights(),
            credential: Credential::Ambient,
            subject: None,
            ends: None,
        }
    }
}

/// Counts a wrong token.
pub(super) fn wrong_token(state: &AppState, request: &Extensions) -> Problem {
    let from = PeerAddress::of_request(request);
    if state.throttle.count_wrong(from, Instant::now()) {
        return Problem::new(
            StatusCode::TOO_MANY_REQUESTS,
            "too many wrong tokens came from this address: wait a minute",
        );
    }
    Problem::new(
        StatusCode::UNAUTHORIZED,
        "the token is wrong, has expired or was revoked: make one with 'raddle web token add NAME'",
    )
}

/// The problem of a request without credentials.
pub(super) fn not_signed_in() -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "you are not signed in").with_hint(
        "run 'raddle web open' for a link, or send a token: 'Authorization: Bearer TOKEN'",
    )
}
