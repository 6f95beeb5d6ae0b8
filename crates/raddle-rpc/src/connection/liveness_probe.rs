//! Whether a worker is still there that somebody waits for: when it is asked, and when it is given up. Pure: what is seen, and when, is given.
//!
//! A worker that is a process of this machine closes its socket when it ends, however it does. All that is left to find out is whether it stands still,
//! and there is no haste in that. A machine that loses its power, or a cable that is pulled, closes nothing. But a machine that is there
//! acknowledges what it is sent, whatever its processes do: so a worker that is silent is asked soon, and given up soon if not even its system has
//! heard that. If that has, and the worker says nothing, it may be busy, and has as long as one of this machine. That something comes from
//! there says nothing: what is sent to it may be lost all the same, and it says again what it does not know to be heard.

use std::time::Duration;

use tokio::time::Instant;

use crate::link::Acknowledged;

/// A worker that has heard a question, and says nothing for so long, stands still. With what comes before and after it is given up after 10 s, near
/// or far.
pub(super) const STILL: Duration = Duration::from_secs(9);
/// How long the system of another machine may take to acknowledge what it is sent. It does so at once: this is time for the way there and back, and
/// for what is lost on it to be sent again.
const ACKNOWLEDGED: Duration = Duration::from_millis(700);
/// How exactly a system says when it was: a tick of its clock, and a little.
const EXACT: Duration = Duration::from_millis(20);
/// How often a worker of another machine is looked at. With what comes before and after it is given up within 1.5 s.
const FAR: Duration = Duration::from_millis(250);
/// How often one of this machine is.
const NEAR: Duration = Duration::from_millis(500);

/// What is thought of a worker that somebody waits for.
#[derive(Debug)]
pub(super) struct LivenessProbe {
    is_far: bool,
    asked: Option<PendingPing>,
}

/// It was asked, and has not answered.
#[derive(Clone, Copy, Debug)]
struct PendingPing {
    /// When it was asked first, or something has moved since.
    since: Instant,
    /// When it was asked last.
    last: Instant,
    /// How much its system had acknowledged then.
    bytes: u64,
}

/// What is seen of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbeObservation {
    pub(super) now: Instant,
    /// It has said something since the last look.
    pub(super) is_heard: bool,
    /// Something was sent to it since the last look, or this process stood still. So much may be on its way that a question has to wait for it.
    pub(super) has_moved: bool,
    /// What its system has acknowledged, if it is another's, and that can be told.
    pub(super) acknowledged: Option<Acknowledged>,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeStep {
    /// It is there, or has time.
    Wait,
    /// It is asked whether it is there.
    Ask,
    /// It is not there: nobody has heard the question.
    Cut,
    /// It stands still: it does not answer.
    Still,
}

impl LivenessProbe {
    /// Of a worker that is reached over a network, or not.
    pub(super) fn new(is_far: bool) -> Self {
        Self {
            is_far,
            asked: None,
        }
    }

    /// How long until the next look.
    pub(super) fn pause(&self) -> Duration {
        if self.is_far { FAR } else { NEAR }
    }

    /// What follows from what is seen.
    pub(super) fn look(&mut self, seen: ProbeObservation) -> ProbeStep {
        if seen.is_heard {
            self.asked = None;
            return ProbeStep::Wait;
        }
        let bytes = seen
            .acknowledged
            .map_or(0, |acknowledged| acknowledged.bytes);
        let Some(asked) = &mut self.asked else {
            self.asked = Some(PendingPing {
                since: seen.now,
                last: seen.now,
                bytes,
            });
            return ProbeStep::Ask;
        };
        if seen.has_moved {
            asked.since = seen.now;
        }
        let asked_ago = seen.now - asked.last;
        let is_there = seen
            .acknowledged
            .map(|acknowledged| asked.is_acknowledged(acknowledged, asked_ago));
        match is_there {
            Some(false) if asked_ago >= ACKNOWLEDGED => ProbeStep::Cut,
            _ if seen.now - asked.since >= STILL => ProbeStep::Still,
            Some(true) => {
                // Its machine may go meanwhile.
                (asked.last, asked.bytes) = (seen.now, bytes);
                ProbeStep::Ask
            }
            Some(false) | None => ProbeStep::Wait,
        }
    }
}

impl PendingPing {
    /// Whether the question has arrived, as far as its system is concerned; or could not be sent, because the worker takes nothing, and its system says
    /// so.
    fn is_acknowledged(&self, now: Acknowledged, asked_ago: Duration) -> bool {
        now.bytes > self.bytes || !now.is_waiting && now.heard < asked_ago + EXACT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What follows from one look after the other, from when it was last heard of on, and how long that takes. `acknowledged` says what is seen of its
    /// system at a time since then.
    fn looks(
        is_far: bool,
        has_moved: bool,
        acknowledged: impl Fn(u64) -> Option<Acknowledged>,
    ) -> (Vec<ProbeStep>, Duration) {
        let (mut pulse, began, mut steps) =
            (LivenessProbe::new(is_far), Instant::now(), Vec::new());
        let mut now = began;
        while now - began < Duration::from_secs(60) {
            now += pulse.pause();
            let acknowledged = acknowledged((now - began).as_millis() as u64);
            let next = pulse.look(ProbeObservation {
                now,
                is_heard: false,
                has_moved,
                acknowledged,
            });
            steps.push(next);
            if matches!(next, ProbeStep::Cut | ProbeStep::Still) {
                break;
            }
        }
        (steps, now - began)
    }

    fn seen(bytes: u64, is_waiting: bool, heard: u64) -> Option<Acknowledged> {
        Some(Acknowledged {
            bytes,
            is_waiting,
            heard: Duration::from_millis(heard),
        })
    }

    #[test]
    fn a_machine_that_is_gone_is_given_up_soon_whatever_is_sent_to_it() {
        for has_moved in [false, true] {
            let (steps, took) = looks(true, has_moved, |at| seen(7, true, at));
            assert_eq!(
                steps,
                [
                    ProbeStep::Ask,
                    ProbeStep::Wait,
                    ProbeStep::Wait,
                    ProbeStep::Cut
                ]
            );
            assert!(took <= Duration::from_millis(1000), "{took:?}");
            // What was sent before was acknowledged when it was just being asked.
            let (_, took) = looks(true, has_moved, |at| seen(7 + at.min(260), true, at));
            assert!(took <= Duration::from_millis(1500), "{took:?}");
        }
    }

    #[test]
    fn a_machine_that_hears_nothing_is_gone_though_it_goes_on_to_speak() {
        let (steps, took) = looks(true, false, |_| seen(7, true, 0));
        assert_eq!(steps.last(), Some(&ProbeStep::Cut));
        assert!(took <= Duration::from_millis(1000), "{took:?}");
    }

    #[test]
    fn a_worker_that_stands_still_on_a_machine_that_does_not_has_time() {
        for takes_nothing in [false, true] {
            let there = |at| {
                if takes_nothing {
                    seen(7, false, 1)
                } else {
                    seen(at, false, 200)
                }
            };
            let (steps, took) = looks(true, false, there);
            assert_eq!(steps.last(), Some(&ProbeStep::Still));
            assert!((STILL..STILL + 3 * FAR).contains(&took), "{took:?}");
        }
        let (steps, took) = looks(false, false, |_| None);
        assert_eq!(
            (steps[0], steps.last()),
            (ProbeStep::Ask, Some(&ProbeStep::Still))
        );
        assert!(
            steps[1..steps.len() - 1]
                .iter()
                .all(|step| *step == ProbeStep::Wait),
            "it is asked once: {steps:?}"
        );
        assert_eq!(took, NEAR + STILL);
    }

    #[test]
    fn a_machine_that_goes_while_its_worker_is_busy_is_noticed() {
        let (steps, took) = looks(true, false, |at| {
            seen(at.min(3_000), at > 3_000, at.saturating_sub(3_000))
        });
        assert_eq!(steps.last(), Some(&ProbeStep::Cut));
        assert!(took < Duration::from_millis(4_500), "{took:?}");
    }

    #[test]
    fn while_something_moves_nobody_stands_still() {
        let (steps, _) = looks(false, true, |_| None);
        assert!(!steps.contains(&ProbeStep::Still));
        let (steps, _) = looks(true, true, |at| seen(at, true, 0));
        assert!(!steps.contains(&ProbeStep::Still) && !steps.contains(&ProbeStep::Cut));
    }

    #[test]
    fn whoever_is_heard_is_there() {
        let (mut pulse, began) = (LivenessProbe::new(true), Instant::now());
        let mut look = |millis, is_heard| {
            let now = began + Duration::from_millis(millis);
            pulse.look(ProbeObservation {
                now,
                is_heard,
                has_moved: false,
                acknowledged: seen(7, true, millis),
            })
        };
        assert_eq!(look(250, false), ProbeStep::Ask);
        assert_eq!(look(900, false), ProbeStep::Wait);
        assert_eq!(look(1200, true), ProbeStep::Wait);
        assert_eq!(look(1450, false), ProbeStep::Ask, "it begins anew");
    }
}
