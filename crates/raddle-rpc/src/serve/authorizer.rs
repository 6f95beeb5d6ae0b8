//! Decides what a peer may do. Refusals are counted by reason, and logged without flooding the log.

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

/// Log interval per reason: the first refusal is logged at once, those within the interval in one
/// line.
const LOG_INTERVAL: Duration = Duration::from_secs(5);
/// Longest reason that is logged.
const MAX_REASON: usize = 512;
/// Reasons of everyday refusals: counted, and not logged.
const UNLOGGED: [&str; 3] = ["full", "stopping", "hung_up"];

/// Decides what a peer may do.
#[derive(Default)]
pub(super) struct Authorizer {
    /// The allow rules. Without, this user may do everything, and others what
    /// [`AllowRules::default`] permits.
    allow: Option<AllowRules>,
    /// `AllowRules::default`.
    default: AllowRules,
    refused: Mutex<BTreeMap<&'static str, RefusalCount>>,
    /// Wakes `log_suppressed`: a refusal was not logged.
    has_suppressed: Notify,
}

#[derive(Default)]
struct RefusalCount {
    count: u64,
    /// When a refusal was last logged, and the count at that time.
    last_logged: Option<(Instant, u64)>,
}

/// The IP address of a peer. `None` for a process of this machine.
pub(super) type PeerOrigin = Option<IpAddr>;

/// A peer whose connection was accepted.
#[derive(Clone, Debug)]
pub(super) struct AuthorizedPeer {
    pub(super) peer: PeerIdentity,
    pub(super) from: PeerOrigin,
    /// The rights of its calls over nested calls.
    pub(super) routing: Routing,
}

impl Authorizer {
    pub(super) fn new(allow: Option<AllowRules>) -> Self {
        Self {
            allow,
            ..Self::default()
        }
    }

    /// Whether the peer may perform the action.
    pub(super) fn check(
        &self,
        caller: &AuthorizedPeer,
        action: Action<'_>,
    ) -> Result<(), RpcError> {
        let Some((identity, rules)) = self.rules_for(&caller.peer) else {
            return Ok(());
        };
        if rules.permits(identity, action) {
            return Ok(());
        }
        let peer = identity.map_or(
            "a peer without a certificate".to_owned(),
            ToString::to_string,
        );
        let action = match action {
            Action::Call(routine) => format!("call '{}'", super::escape_name(routine)),
            Action::Stop => "stop this worker".to_owned(),
            Action::Info => "query this worker".to_owned(),
            Action::Route => "route nested calls".to_owned(),
        };
        let message = format!("{peer} may not {action}");
        self.refuse("not_allowed", &message, caller.from);
        Err(RpcError::refused(Code::PermissionDenied, message))
    }

    /// Accepts a peer, from this machine or another. Nested calls are made under the identity of
    /// this worker: a peer that may not route them gets none.
    pub(super) fn admit(
        &self,
        peer: PeerIdentity,
        from: PeerOrigin,
        is_local: bool,
    ) -> AuthorizedPeer {
        let may_route = self
            .rules_for(&peer)
            .is_none_or(|(caller, rules)| rules.permits(caller, Action::Route));
        let routing = match (may_route, is_local) {
            (false, _) => Routing::Forbidden,
            (true, false) => Routing::RemoteOnly,
            (true, true) => Routing::Unrestricted,
        };
        AuthorizedPeer {
            peer,
            from,
            routing,
        }
    }

    /// The rules for this peer, and its identity under them. `None` if it may do everything.
    fn rules_for<'a>(
        &'a self,
        peer: &'a PeerIdentity,
    ) -> Option<(Option<&'a Identity>, &'a AllowRules)> {
        match (peer, &self.allow) {
            // A process of the same user can control the worker in other ways anyway.
            (PeerIdentity::SameUser, _) | (PeerIdentity::Unknown, None) => None,
            (PeerIdentity::Unknown, Some(rules)) => Some((None, rules)),
            (PeerIdentity::Certificate(caller), rules) => {
                Some((caller.as_ref(), rules.as_ref().unwrap_or(&self.default)))
            }
        }
    }

    /// A connection could not be accepted: another user of this machine, or no free descriptor.
    pub(super) fn record_accept_error(&self, error: &io::Error) {
        if error.kind() == io::ErrorKind::PermissionDenied {
            self.refuse(
                "not_allowed",
                &"another user of this machine tried to connect",
                None,
            );
        } else {
            self.refuse("crowded", error, None);
        }
    }

    /// A connection ended before the peer was accepted.
    pub(super) fn record_setup_failure(&self, error: &io::Error, from: PeerOrigin) {
        match HandshakeError::from_io(error) {
            Some(refusal) => self.refuse(refusal.reason().label(), &refusal, from),
            None => match error.kind() {
                io::ErrorKind::TimedOut => {
                    self.refuse("too_slow", &"timed out during connection setup", from)
                }
                // Or no common ALPN protocol in the TLS handshake.
                io::ErrorKind::InvalidData => self.refuse(
                    "protocol",
                    &"unknown protocol: neither gRPC nor a link",
                    from,
                ),
                _ => self.refuse("hung_up", &error, from),
            },
        }
    }

    /// A connection was closed to make room for others, or found no room.
    pub(super) fn record_eviction(&self, from: PeerOrigin) {
        self.refuse("crowded", &"too many connections", from);
    }

    /// The connection of an accepted peer is closed because of `error`. If the peer has closed it,
    /// that is not counted.
    pub(super) fn record_disconnect(&self, error: &io::Error, from: PeerOrigin) {
        if let Some(refusal) = HandshakeError::from_io(error) {
            return self.refuse(refusal.reason().label(), &refusal, from);
        }
        if error.kind() == io::ErrorKind::InvalidData {
            self.refuse("malformed", &error, from);
        } else if error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none() {
            // This is our own timeout, not the kernel's `ETIMEDOUT` for a machine that is gone.
            self.refuse("unread", &"the peer did not read its replies", from);
        }
    }

    /// A gRPC message was refused.
    pub(super) fn record_bad_message(&self, why: &str) {
        self.refuse("malformed", &why, None);
    }

    /// A call was not accepted.
    pub(super) fn record_refused_call(&self, error: &RpcError, from: PeerOrigin) {
        let reason = match error.code {
            Code::ResourceExhausted => "full",
            Code::Unavailable => "stopping",
            Code::NotFound => "unknown_routine",
            Code::FailedPrecondition => "other_version",
            _ => "malformed",
        };
        self.refuse(reason, &error.message, from);
    }

    /// Number of refusals by reason.
    pub(super) fn refused(&self) -> BTreeMap<String, u64> {
        self.lock()
            .iter()
            .map(|(reason, refused)| ((*reason).to_owned(), refused.count))
            .collect()
    }

    /// Logs the refusals that were suppressed because one was logged just before. Idle while
    /// nothing is refused.
    pub(super) async fn log_suppressed(self: Arc<Self>) {
        loop {
            self.has_suppressed.notified().await;
            tokio::time::sleep(LOG_INTERVAL).await;
            let mut all = self.lock();
            let logged = all
                .iter_mut()
                .filter(|(reason, _)| !UNLOGGED.contains(reason));
            let suppressed: Vec<_> = logged
                .filter_map(|(reason, refused)| Some((*reason, refused.mark_logged()?)))
                .collect();
            drop(all);
            for (reason, times) in suppressed {
                warn!(reason, times, "more refusals");
            }
        }
    }

    fn refuse(&self, reason: &'static str, why: &dyn Display, from: PeerOrigin) {
        let mut all = self.lock();
        let refused = all.entry(reason).or_default();
        refused.count += 1;
        if UNLOGGED.contains(&reason) {
            return;
        }
        if refused
            .last_logged
            .is_some_and(|(at, _)| at.elapsed() < LOG_INTERVAL)
        {
            return self.has_suppressed.notify_one();
        }
        let times = refused.mark_logged();
        drop(all);
        warn!(
            reason,
            times,
            from = from.map(display),
            "refused: {}",
            printable(why)
        );
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, RefusalCount>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RefusalCount {
    /// Marks all refusals as logged. Returns how many were not yet, if any.
    fn mark_logged(&mut self) -> Option<u64> {
        let suppressed = self.count - self.last_logged.map_or(0, |(_, count)| count);
        if suppressed > 0 {
            self.last_logged = Some((Instant::now(), self.count));
        }
        (suppressed > 0).then_some(suppressed)
    }
}

/// Escapes control characters and shortens: the text may come from a peer.
fn printable(why: &dyn Display) -> String {
    let escaped = |char: char| {
        if char.is_control() {
            char.escape_default().collect()
        } else {
            String::from(char)
        }
    };
    why.to_string()
        .chars()
        .take(MAX_REASON)
        .map(escaped)
        .collect()
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
            routing: Routing::Unrestricted,
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
    fn rules_apply_to_everyone_but_this_user() {
        let authorizer = Authorizer::new(Some("spiffe://a/web = math.*".parse().unwrap()));
        let may = |caller: &AuthorizedPeer, action| authorizer.check(caller, action).is_ok();
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
            let error = authorizer.check(&caller, action).unwrap_err();
            assert_eq!(error.code, Code::PermissionDenied);
        }
        assert_eq!(authorizer.refused()["not_allowed"], 5);
    }

    #[test]
    fn every_reason_is_documented() {
        let authorizer = Authorizer::default();
        use Code::{FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted, Unavailable};
        for code in [
            ResourceExhausted,
            Unavailable,
            NotFound,
            FailedPrecondition,
            InvalidArgument,
        ] {
            authorizer.record_refused_call(&RpcError::refused(code, ""), None);
        }
        for kind in [
            io::ErrorKind::TimedOut,
            io::ErrorKind::InvalidData,
            io::ErrorKind::ConnectionReset,
        ] {
            authorizer.record_setup_failure(&kind.into(), None);
        }
        authorizer.record_disconnect(&io::ErrorKind::TimedOut.into(), None);
        authorizer.record_eviction(None);
        let refused = authorizer.refused();
        assert_eq!(refused.len(), 10);
        assert!(
            refused
                .keys()
                .all(|reason| REASONS.contains(&reason.as_str())),
            "{refused:?}"
        );
    }

    #[test]
    fn malformed_data_is_counted_and_a_closed_connection_is_not() {
        let authorizer = Authorizer::default();
        authorizer.record_disconnect(
            &io::Error::new(io::ErrorKind::InvalidData, "a frame is too large"),
            None,
        );
        authorizer.record_disconnect(&io::ErrorKind::InvalidData.into(), None);
        authorizer.record_disconnect(&io::ErrorKind::ConnectionReset.into(), None);
        assert_eq!(authorizer.refused(), [("malformed".to_owned(), 2)].into());
    }

    #[test]
    fn without_rules_a_certificate_suffices_and_is_needed_to_stop_a_worker() {
        let authorizer = Authorizer::default();
        for caller in [
            caller(PeerIdentity::SameUser),
            caller(PeerIdentity::Unknown),
            proven("spiffe://a/web"),
        ] {
            assert!(
                authorizer.check(&caller, Action::Stop).is_ok()
                    && authorizer.check(&caller, Action::Call("a")).is_ok()
            );
        }
        let unnamed = caller(PeerIdentity::Certificate(None));
        assert!(
            authorizer.check(&unnamed, Action::Call("a")).is_ok()
                && authorizer.check(&unnamed, Action::Stop).is_err()
        );
    }

    #[test]
    fn log_has_the_first_refusal_and_the_rest_in_one_escaped_line() {
        let from = Some("10.0.0.9".parse().unwrap());
        let log = capture_logs(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .unwrap();
            runtime.block_on(async {
                let authorizer = Arc::new(Authorizer::default());
                let logging = tokio::spawn(Arc::clone(&authorizer).log_suppressed());
                for _ in 0..1000 {
                    let name = "evil\u{1b}[2J\nroutine".repeat(100);
                    let message = format!("the worker has no routine '{name}'");
                    authorizer
                        .record_refused_call(&RpcError::refused(Code::NotFound, message), from);
                    authorizer.record_refused_call(
                        &RpcError::refused(Code::ResourceExhausted, "full"),
                        from,
                    );
                }
                tokio::time::sleep(2 * LOG_INTERVAL).await;
                logging.abort();
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
    fn nested_calls_are_forbidden_without_the_route_right() {
        let (free, ruled) = (
            Authorizer::default(),
            Authorizer::new(Some(
                "spiffe://a/web = *\nspiffe://a/ops = @route"
                    .parse()
                    .unwrap(),
            )),
        );
        let (web, ops) = (proven("spiffe://a/web"), proven("spiffe://a/ops"));
        let routing = |authorizer: &Authorizer, caller: &AuthorizedPeer, is_local| {
            authorizer
                .admit(caller.peer.clone(), None, is_local)
                .routing
        };
        assert_eq!(routing(&free, &web, false), Routing::RemoteOnly);
        assert_eq!(routing(&free, &web, true), Routing::Unrestricted);
        assert_eq!(routing(&ruled, &web, true), Routing::Forbidden);
        assert_eq!(routing(&ruled, &ops, false), Routing::RemoteOnly);
        assert_eq!(
            routing(&free, &caller(PeerIdentity::Certificate(None)), true),
            Routing::Forbidden
        );
        assert_eq!(
            routing(&ruled, &caller(PeerIdentity::SameUser), true),
            Routing::Unrestricted
        );
        assert_eq!(
            routing(&ruled, &caller(PeerIdentity::Unknown), true),
            Routing::Forbidden
        );
    }
}
