//! Who may do what here, and who was refused: counted, and told in the log without flooding it.

use std::{
    collections::BTreeMap,
    fmt::Display,
    io,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use raddle_tls::{Action, AllowRules, HandshakeError, Identity};
use tokio::sync::Notify;
use tonic::Code;
use tracing::warn;

use crate::{RpcError, proxy::Routing, stream::PeerIdentity};

/// How often the log tells of those who were refused for the same reason: of the first at once, and of those who follow so soon in one line.
const TOLD: Duration = Duration::from_secs(5);
/// The longest that is told of one.
const LONGEST: usize = 512;
/// What happens to the honest every day: it is counted, and the log does not tell of it.
const ORDINARY: [&str; 3] = ["full", "stopping", "hung_up"];

/// Decides who may do what.
#[derive(Default)]
pub(super) struct Authorizer {
    /// What is said of it. If nothing is, callers of this user may do everything, and others what [`AllowRules::default`] says.
    allow: Option<AllowRules>,
    /// And that is this.
    default: AllowRules,
    refused: Mutex<BTreeMap<&'static str, PermissionDenied>>,
    /// That there is somebody of whom the log has not told.
    is_untold: Notify,
}

#[derive(Default)]
struct PermissionDenied {
    count: u64,
    /// When it was told of, and how many there were then.
    told: Option<(Instant, u64)>,
}

/// Where somebody comes from: an address, or a process of this machine.
pub(super) type PeerOrigin = Option<IpAddr>;

/// Somebody who was let in.
#[derive(Clone, Debug)]
pub(super) struct AuthorizedPeer {
    pub(super) peer: PeerIdentity,
    pub(super) from: PeerOrigin,
    /// Where it may have the calls of routines go.
    pub(super) routing: Routing,
}

impl Authorizer {
    pub(super) fn new(allow: Option<AllowRules>) -> Self {
        Self {
            allow,
            ..Self::default()
        }
    }

    /// Whether this caller may do this.
    pub(super) fn check(
        &self,
        caller: &AuthorizedPeer,
        action: Action<'_>,
    ) -> Result<(), RpcError> {
        let Some((identity, rules)) = self.judges(&caller.peer) else {
            return Ok(());
        };
        if rules.permits(identity, action) {
            return Ok(());
        }
        let who = identity.map_or(
            "a caller without a certificate".to_owned(),
            ToString::to_string,
        );
        let what = match action {
            Action::Call(routine) => format!("call '{}'", super::shown(routine)),
            Action::Stop => "stop this worker".to_owned(),
            Action::Info => "ask what this worker is".to_owned(),
            Action::Route => "say where calls of routines go".to_owned(),
        };
        let message = format!("{who} may not {what}");
        self.refuse("not_allowed", &message, caller.from);
        Err(RpcError::refused(Code::PermissionDenied, message))
    }

    /// Somebody who is let in, from this machine or another. It is the worker who makes the calls of routines: of callers who may not say where they go,
    /// they go nowhere.
    pub(super) fn admit(
        &self,
        peer: PeerIdentity,
        from: PeerOrigin,
        is_here: bool,
    ) -> AuthorizedPeer {
        let may = self
            .judges(&peer)
            .is_none_or(|(caller, rules)| rules.permits(caller, Action::Route));
        let routing = match (may, is_here) {
            (false, _) => Routing::Nowhere,
            (true, false) => Routing::Beyond,
            (true, true) => Routing::Anywhere,
        };
        AuthorizedPeer {
            peer,
            from,
            routing,
        }
    }

    /// Whom to ask what this caller may do, and as whom. `None` if he may do everything.
    fn judges<'a>(
        &'a self,
        peer: &'a PeerIdentity,
    ) -> Option<(Option<&'a Identity>, &'a AllowRules)> {
        match (peer, &self.allow) {
            // Who has the same user can do as it likes with the worker in other ways.
            (PeerIdentity::SameUser, _) | (PeerIdentity::Unknown, None) => None,
            (PeerIdentity::Unknown, Some(rules)) => Some((None, rules)),
            (PeerIdentity::Certificate(caller), rules) => {
                Some((caller.as_ref(), rules.as_ref().unwrap_or(&self.default)))
            }
        }
    }

    /// Somebody was not even met: another user of this machine, or one too many.
    pub(super) fn shut_out(&self, error: &io::Error) {
        if error.kind() == io::ErrorKind::PermissionDenied {
            self.refuse(
                "not_allowed",
                &"another user of this machine may not call",
                None,
            );
        } else {
            self.refuse("crowded", error, None);
        }
    }

    /// Somebody did not get as far as to ask for anything.
    pub(super) fn turn_away(&self, error: &io::Error, from: PeerOrigin) {
        match HandshakeError::of(error) {
            Some(refusal) => self.refuse(refusal.reason().label(), &refusal, from),
            None => match error.kind() {
                io::ErrorKind::TimedOut => {
                    self.refuse("too_slow", &"said too little for too long", from)
                }
                // That there is no protocol which both speak, as in a handshake.
                io::ErrorKind::InvalidData => {
                    self.refuse("protocol", &"speaks neither gRPC nor over a link", from)
                }
                _ => self.refuse("hung_up", &error, from),
            },
        }
    }

    /// Somebody was let in, and had to make room for others, or found none.
    pub(super) fn crowd_out(&self, from: PeerOrigin) {
        self.refuse("crowded", &"there are too many connections", from);
    }

    /// Somebody who was let in is hung up on for this. One who hangs up himself is not told of.
    pub(super) fn hang_up_on(&self, error: &io::Error, from: PeerOrigin) {
        if let Some(refusal) = HandshakeError::of(error) {
            return self.refuse(refusal.reason().label(), &refusal, from);
        }
        if error.kind() == io::ErrorKind::InvalidData {
            self.refuse("malformed", &error, from);
        } else if error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none() {
            // Not the system's own word for a machine that is gone.
            self.refuse("unread", &"did not read what it was answered", from);
        }
    }

    /// A message of gRPC is not read.
    pub(super) fn refuse_message(&self, why: &str) {
        self.refuse("malformed", &why, None);
    }

    /// A call was not taken.
    pub(super) fn decline(&self, error: &RpcError, from: PeerOrigin) {
        let reason = match error.code {
            Code::ResourceExhausted => "full",
            Code::Unavailable => "stopping",
            Code::NotFound => "unknown_routine",
            Code::FailedPrecondition => "other_version",
            _ => "malformed",
        };
        self.refuse(reason, &error.message, from);
    }

    /// How many were refused, by the reason.
    pub(super) fn refused(&self) -> BTreeMap<String, u64> {
        self.lock()
            .iter()
            .map(|(reason, refused)| ((*reason).to_owned(), refused.count))
            .collect()
    }

    /// Tells of those of whom nothing was told because others had been just before. Costs nothing while nobody is refused.
    pub(super) async fn tell_of_the_rest(self: Arc<Self>) {
        loop {
            self.is_untold.notified().await;
            tokio::time::sleep(TOLD).await;
            let mut all = self.lock();
            let loud = all
                .iter_mut()
                .filter(|(reason, _)| !ORDINARY.contains(reason));
            let untold: Vec<_> = loud
                .filter_map(|(reason, refused)| Some((*reason, refused.tell()?)))
                .collect();
            drop(all);
            for (reason, times) in untold {
                warn!(reason, times, "others were refused");
            }
        }
    }

    fn refuse(&self, reason: &'static str, why: &dyn Display, from: PeerOrigin) {
        let mut all = self.lock();
        let refused = all.entry(reason).or_default();
        refused.count += 1;
        if ORDINARY.contains(&reason) {
            return;
        }
        if refused.told.is_some_and(|(told, _)| told.elapsed() < TOLD) {
            return self.is_untold.notify_one();
        }
        let times = refused.tell();
        drop(all);
        warn!(
            reason,
            times,
            from = from.map(display),
            "somebody was refused: {}",
            printable(why)
        );
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, PermissionDenied>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PermissionDenied {
    /// Counts those as told of whom nothing was told. Returns how many, if there are any.
    fn tell(&mut self) -> Option<u64> {
        let untold = self.count - self.told.map_or(0, |(_, count)| count);
        if untold > 0 {
            self.told = Some((Instant::now(), self.count));
        }
        (untold > 0).then_some(untold)
    }
}

/// As a line of a log may have it, whoever has written it.
fn printable(why: &dyn Display) -> String {
    let escaped = |char: char| {
        if char.is_control() {
            char.escape_default().collect()
        } else {
            String::from(char)
        }
    };
    why.to_string().chars().take(LONGEST).map(escaped).collect()
}

#[cfg(test)]
mod tests {
    use raddle_process::testing::capture_logs;

    use super::*;
    use crate::worker::REASONS;
    use raddle_tls::CertificateName;

    fn caller(peer: PeerIdentity) -> AuthorizedPeer {
        AuthorizedPeer {
            peer,
            from: None,
            routing: Routing::Anywhere,
        }
    }

    fn proven(uri: &str) -> AuthorizedPeer {
        caller(PeerIdentity::Certificate(Some(
            [CertificateName::Uri(uri.to_owned())]
                .into_iter()
                .collect::<Identity>(),
        )))
    }

    #[test]
    fn rules_are_for_those_who_are_not_this_user() {
        let gate = Authorizer::new(Some("spiffe://a/web = math.*".parse().unwrap()));
        let may = |caller: &AuthorizedPeer, action| gate.check(caller, action).is_ok();
        assert!(may(&caller(PeerIdentity::SameUser), Action::Stop));
        assert!(may(&proven("spiffe://a/web"), Action::Call("math.add")));
        for (caller, action) in [
            (proven("spiffe://a/web"), Action::Call("image")),
            (proven("spiffe://a/web"), Action::Stop),
            (proven("spiffe://a/other"), Action::Call("math.add")),
            (
                caller(PeerIdentity::Certificate(None)),
                Action::Call("math.add"),
            ),
            (caller(PeerIdentity::Unknown), Action::Info),
        ] {
            let error = gate.check(&caller, action).unwrap_err();
            assert_eq!(error.code, Code::PermissionDenied);
        }
        assert_eq!(gate.refused()["not_allowed"], 5);
    }

    #[test]
    fn every_reason_is_one_that_others_know() {
        let gate = Authorizer::default();
        use Code::{FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted, Unavailable};
        for code in [
            ResourceExhausted,
            Unavailable,
            NotFound,
            FailedPrecondition,
            InvalidArgument,
        ] {
            gate.decline(&RpcError::refused(code, ""), None);
        }
        for kind in [
            io::ErrorKind::TimedOut,
            io::ErrorKind::InvalidData,
            io::ErrorKind::ConnectionReset,
        ] {
            gate.turn_away(&kind.into(), None);
        }
        gate.hang_up_on(&io::ErrorKind::TimedOut.into(), None);
        gate.crowd_out(None);
        let refused = gate.refused();
        assert_eq!(refused.len(), 10);
        assert!(
            refused
                .keys()
                .all(|reason| REASONS.contains(&reason.as_str())),
            "{refused:?}"
        );
    }

    #[test]
    fn who_talks_nonsense_is_counted_and_who_hangs_up_is_not() {
        let gate = Authorizer::default();
        gate.hang_up_on(
            &io::Error::new(io::ErrorKind::InvalidData, "a frame is too large"),
            None,
        );
        gate.hang_up_on(&io::ErrorKind::InvalidData.into(), None);
        gate.hang_up_on(&io::ErrorKind::ConnectionReset.into(), None);
        assert_eq!(gate.refused(), [("malformed".to_owned(), 2)].into());
    }

    #[test]
    fn without_rules_a_certificate_is_enough_and_who_has_none_does_not_stop_a_worker() {
        let gate = Authorizer::default();
        for caller in [
            caller(PeerIdentity::SameUser),
            caller(PeerIdentity::Unknown),
            proven("spiffe://a/web"),
        ] {
            assert!(
                gate.check(&caller, Action::Stop).is_ok()
                    && gate.check(&caller, Action::Call("a")).is_ok()
            );
        }
        let unnamed = caller(PeerIdentity::Certificate(None));
        assert!(
            gate.check(&unnamed, Action::Call("a")).is_ok()
                && gate.check(&unnamed, Action::Stop).is_err()
        );
    }

    #[test]
    fn the_log_tells_of_the_first_and_of_the_rest_in_one_line_whatever_they_are_called() {
        let from = Some("10.0.0.9".parse().unwrap());
        let log = capture_logs(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .unwrap();
            runtime.block_on(async {
                let gate = Arc::new(Authorizer::default());
                let telling = tokio::spawn(Arc::clone(&gate).tell_of_the_rest());
                for _ in 0..1000 {
                    let name = "evil\u{1b}[2J\nroutine".repeat(100);
                    let message = format!("the worker has no routine '{name}'");
                    gate.decline(&RpcError::refused(Code::NotFound, message), from);
                    gate.decline(&RpcError::refused(Code::ResourceExhausted, "full"), from);
                }
                tokio::time::sleep(2 * TOLD).await;
                telling.abort();
            });
        });
        let lines: Vec<&str> = log.lines().collect();
        assert_eq!(lines.len(), 2, "{log}");
        assert!(
            lines[0].contains("no routine 'evil")
                && lines[0].contains("from=10.0.0.9")
                && lines[0].len() < 2000
        );
        assert!(
            lines[1].contains("reason=\"unknown_routine\" times=999"),
            "{log}"
        );
        assert!(!log.contains('\u{1b}'), "{log:?}");
    }

    #[test]
    fn whoever_may_not_say_where_calls_go_has_them_go_nowhere() {
        let (free, ruled) = (
            Authorizer::default(),
            Authorizer::new(Some(
                "spiffe://a/web = *\nspiffe://a/ops = @route"
                    .parse()
                    .unwrap(),
            )),
        );
        let (web, ops) = (proven("spiffe://a/web"), proven("spiffe://a/ops"));
        let routing = |gate: &Authorizer, caller: &AuthorizedPeer, is_here| {
            gate.admit(caller.peer.clone(), None, is_here).routing
        };
        assert_eq!(routing(&free, &web, false), Routing::Beyond);
        assert_eq!(routing(&free, &web, true), Routing::Anywhere);
        assert_eq!(routing(&ruled, &web, true), Routing::Nowhere);
        assert_eq!(routing(&ruled, &ops, false), Routing::Beyond);
        assert_eq!(
            routing(&free, &caller(PeerIdentity::Certificate(None)), true),
            Routing::Nowhere
        );
        assert_eq!(
            routing(&ruled, &caller(PeerIdentity::SameUser), true),
            Routing::Anywhere
        );
        assert_eq!(
            routing(&ruled, &caller(PeerIdentity::Unknown), true),
            Routing::Nowhere
        );
    }
}
