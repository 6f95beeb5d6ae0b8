//! Who may do what here, and who was refused: counted, and told in the log without flooding it.

use std::{
    collections::BTreeMap,
    fmt::Display,
    io,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tonic::Code;
use tracing::warn;

use crate::{
    RpcError,
    connection::Peer,
    credentials::{Action, Allow, Refusal},
};

/// How often the log tells of those who were refused for the same reason.
const TOLD: Duration = Duration::from_secs(5);

/// Decides who may do what.
#[derive(Default)]
pub(super) struct Gate {
    /// What is said of it. If nothing is, callers of this user may do everything, and others what [`Allow::default`] says.
    allow: Option<Allow>,
    refused: Mutex<BTreeMap<&'static str, Refused>>,
}

#[derive(Default)]
struct Refused {
    count: u64,
    /// When it was told of, and how many there were then.
    told: Option<(Instant, u64)>,
}

impl Gate {
    pub(super) fn new(allow: Option<Allow>) -> Self {
        Self { allow, refused: Mutex::default() }
    }

    /// Whether this caller may do this.
    pub(super) fn check(&self, peer: &Peer, action: Action<'_>) -> Result<(), RpcError> {
        let (is_allowed, who) = match (peer, &self.allow) {
            // Who has the same user can do as it likes with the worker in other ways.
            (Peer::User, _) | (Peer::Anybody, None) => return Ok(()),
            (Peer::Anybody, Some(allow)) => (allow.permits(None, action), "a caller without a certificate".to_owned()),
            (Peer::Proven(identity), allow) => {
                let who = identity.as_ref().map_or("a caller without a certificate".to_owned(), ToString::to_string);
                let is_allowed = match allow {
                    Some(allow) => allow.permits(identity.as_ref(), action),
                    None => Allow::default().permits(identity.as_ref(), action),
                };
                (is_allowed, who)
            }
        };
        if is_allowed {
            return Ok(());
        }
        let what = match action {
            Action::Call(routine) => format!("call '{}'", super::shown(routine)),
            Action::Stop => "stop this worker".to_owned(),
            Action::Info => "ask what this worker is".to_owned(),
        };
        let message = format!("{who} may not {what}");
        self.refuse("not_allowed", &message);
        Err(RpcError::refused(Code::PermissionDenied, message))
    }

    /// Somebody did not get as far as to ask for anything.
    pub(super) fn turn_away(&self, error: &io::Error) {
        match Refusal::of(error) {
            Some(refusal) => self.refuse(refusal.reason().label(), &refusal),
            None if error.kind() == io::ErrorKind::TimedOut => self.refuse("too_slow", &"said too little for too long"),
            None => self.refuse("hung_up", &error),
        }
    }

    /// A call was not taken. Others will take it, or its caller hears why: there is no need for the log to tell.
    pub(super) fn decline(&self, error: &RpcError) {
        let reason = match error.code {
            Code::ResourceExhausted => "full",
            Code::Unavailable => "stopping",
            Code::NotFound => "unknown_routine",
            Code::FailedPrecondition => "other_version",
            _ => "malformed",
        };
        self.lock().entry(reason).or_default().count += 1;
    }

    /// How many were refused, by the reason.
    pub(super) fn refused(&self) -> BTreeMap<String, u64> {
        self.lock().iter().map(|(reason, refused)| ((*reason).to_owned(), refused.count)).collect()
    }

    fn refuse(&self, reason: &'static str, why: &dyn Display) {
        let mut all = self.lock();
        let refused = all.entry(reason).or_default();
        refused.count += 1;
        let now = Instant::now();
        if refused.told.is_none_or(|(told, _)| now.duration_since(told) >= TOLD) {
            let since = refused.count - refused.told.map_or(0, |(_, count)| count);
            refused.told = Some((now, refused.count));
            drop(all);
            warn!(reason, times = since, "somebody was refused: {why}");
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Refused>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        credentials::{Identity, Name},
        worker::REASONS,
    };

    fn proven(uri: &str) -> Peer {
        Peer::Proven(Some([Name::Uri(uri.to_owned())].into_iter().collect::<Identity>()))
    }

    #[test]
    fn rules_are_for_those_who_are_not_this_user() {
        let gate = Gate::new(Some("spiffe://a/web = math.*".parse().unwrap()));
        let may = |peer: &Peer, action| gate.check(peer, action).is_ok();
        assert!(may(&Peer::User, Action::Stop));
        assert!(may(&proven("spiffe://a/web"), Action::Call("math.add")));
        for (peer, action) in [
            (proven("spiffe://a/web"), Action::Call("image")),
            (proven("spiffe://a/web"), Action::Stop),
            (proven("spiffe://a/other"), Action::Call("math.add")),
            (Peer::Proven(None), Action::Call("math.add")),
            (Peer::Anybody, Action::Info),
        ] {
            let error = gate.check(&peer, action).unwrap_err();
            assert_eq!(error.code, Code::PermissionDenied);
        }
        assert_eq!(gate.refused()["not_allowed"], 5);
    }

    #[test]
    fn every_reason_is_one_that_others_know() {
        let gate = Gate::default();
        use Code::{FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted, Unavailable};
        for code in [ResourceExhausted, Unavailable, NotFound, FailedPrecondition, InvalidArgument] {
            gate.decline(&RpcError::refused(code, ""));
        }
        gate.turn_away(&io::ErrorKind::TimedOut.into());
        gate.turn_away(&io::ErrorKind::ConnectionReset.into());
        let refused = gate.refused();
        assert_eq!(refused.len(), 7);
        assert!(refused.keys().all(|reason| REASONS.contains(&reason.as_str())), "{refused:?}");
    }

    #[test]
    fn without_rules_a_certificate_is_enough_and_who_has_none_does_not_stop_a_worker() {
        let gate = Gate::default();
        for peer in [Peer::User, Peer::Anybody, proven("spiffe://a/web")] {
            assert!(gate.check(&peer, Action::Stop).is_ok() && gate.check(&peer, Action::Call("a")).is_ok());
        }
        let unnamed = Peer::Proven(None);
        assert!(gate.check(&unnamed, Action::Call("a")).is_ok() && gate.check(&unnamed, Action::Stop).is_err());
    }
}
