//! Decides when to ping a silent worker and when to give it up. Pure: observations and times are
//! arguments.
//!
//! A process of this machine closes its socket when it ends, however it ends. All that is left to
//! detect is a hang, which is not urgent. A machine that loses power, or a cable that is pulled,
//! closes nothing. But a running machine acknowledges TCP segments, whatever its processes do. So a
//! silent worker is pinged early, and given up early if not even its kernel acknowledges the ping.
//! If the kernel does and the worker does not respond, the worker may be busy, and has as long as a
//! local one. Segments *from* the worker's machine prove nothing: what is sent to it may still be
//! lost, and it retransmits what it does not know to be received.

use std::time::Duration;

use tokio::time::Instant;

use crate::link::Acknowledged;

/// A worker that received a ping and does not answer for this long hangs. With the time before and
/// after, it is given up after 10 s, local or remote.
pub(super) const HANG_TIMEOUT: Duration = Duration::from_secs(9);
/// How long another machine's kernel may take to acknowledge a segment. It normally does so at
/// once: this covers the round trip and retransmissions.
const ACK_TIMEOUT: Duration = Duration::from_millis(700);
/// Precision of the kernel's time stamps: a clock tick and some slack.
const CLOCK_SLACK: Duration = Duration::from_millis(20);
/// Probe interval for a worker on another machine. With the time before and after, it is given up
/// within 1.5 s.
const REMOTE_INTERVAL: Duration = Duration::from_millis(250);
/// Probe interval for a worker on this machine.
const LOCAL_INTERVAL: Duration = Duration::from_millis(500);

/// Liveness state of a worker that calls wait for.
#[derive(Debug)]
pub(super) struct LivenessProbe {
    is_remote: bool,
    ping: Option<PendingPing>,
}

/// A ping without an answer.
#[derive(Clone, Copy, Debug)]
struct PendingPing {
    /// When the first ping was sent, or when traffic last moved since.
    since: Instant,
    /// When the last ping was sent.
    last: Instant,
    /// Bytes that the worker's kernel had acknowledged then.
    bytes: u64,
}

/// Observations since the last round.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbeObservation {
    pub(super) now: Instant,
    /// Data has arrived since the last round.
    pub(super) has_received: bool,
    /// Data was sent since the last round, or this process was stalled. So much may be in transit
    /// that a ping has to queue behind it.
    pub(super) has_moved: bool,
    /// Acknowledgements by the remote kernel. `None` for a local socket.
    pub(super) acknowledged: Option<Acknowledged>,
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeStep {
    /// The worker is alive, or still has time.
    Wait,
    /// Send a ping.
    Ping,
    /// Give up: the machine is unreachable, its kernel acknowledges nothing.
    Unreachable,
    /// Give up: the worker hangs, its kernel acknowledges and it does not answer.
    Hung,
}

impl LivenessProbe {
    /// A probe for a worker on another machine, or on this one.
    pub(super) fn new(is_remote: bool) -> Self {
        Self {
            is_remote,
            ping: None,
        }
    }

    /// Time until the next round.
    pub(super) fn interval(&self) -> Duration {
        if self.is_remote {
            REMOTE_INTERVAL
        } else {
            LOCAL_INTERVAL
        }
    }

    /// Decides from an observation.
    pub(super) fn next_step(&mut self, observed: ProbeObservation) -> ProbeStep {
        if observed.has_received {
            self.ping = None;
            return ProbeStep::Wait;
        }
        let bytes = observed
            .acknowledged
            .map_or(0, |acknowledged| acknowledged.bytes);
        let Some(ping) = &mut self.ping else {
            self.ping = Some(PendingPing {
                since: observed.now,
                last: observed.now,
                bytes,
            });
            return ProbeStep::Ping;
        };
        if observed.has_moved {
            ping.since = observed.now;
        }
        let ping_age = observed.now - ping.last;
        let is_received = observed
            .acknowledged
            .map(|acknowledged| ping.is_acknowledged(acknowledged, ping_age));
        match is_received {
            Some(false) if ping_age >= ACK_TIMEOUT => ProbeStep::Unreachable,
            _ if observed.now - ping.since >= HANG_TIMEOUT => ProbeStep::Hung,
            Some(true) => {
                // The machine may go down while its worker is busy, so keep pinging.
                (ping.last, ping.bytes) = (observed.now, bytes);
                ProbeStep::Ping
            }
            Some(false) | None => ProbeStep::Wait,
        }
    }
}

impl PendingPing {
    /// Whether the remote kernel received the ping; or whether it could not be sent because the
    /// worker reads nothing, and its kernel still announces a zero window.
    fn is_acknowledged(&self, now: Acknowledged, ping_age: Duration) -> bool {
        now.bytes > self.bytes || !now.is_pending && now.last_ack < ping_age + CLOCK_SLACK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs rounds from the last received data on until the probe gives up. Returns the steps and
    /// the time taken. `acknowledged` gives the kernel's state at a time in milliseconds.
    fn run_probe(
        is_remote: bool,
        has_moved: bool,
        acknowledged: impl Fn(u64) -> Option<Acknowledged>,
    ) -> (Vec<ProbeStep>, Duration) {
        let (mut probe, began, mut steps) =
            (LivenessProbe::new(is_remote), Instant::now(), Vec::new());
        let mut now = began;
        while now - began < Duration::from_secs(60) {
            now += probe.interval();
            let acknowledged = acknowledged((now - began).as_millis() as u64);
            let next = probe.next_step(ProbeObservation {
                now,
                has_received: false,
                has_moved,
                acknowledged,
            });
            steps.push(next);
            if matches!(next, ProbeStep::Unreachable | ProbeStep::Hung) {
                break;
            }
        }
        (steps, now - began)
    }

    fn acknowledged(bytes: u64, is_pending: bool, last_ack: u64) -> Option<Acknowledged> {
        Some(Acknowledged {
            bytes,
            is_pending,
            last_ack: Duration::from_millis(last_ack),
        })
    }

    #[test]
    fn unreachable_machine_is_given_up_soon_despite_traffic() {
        for has_moved in [false, true] {
            let (steps, elapsed) = run_probe(true, has_moved, |at| acknowledged(7, true, at));
            assert_eq!(
                steps,
                [
                    ProbeStep::Ping,
                    ProbeStep::Wait,
                    ProbeStep::Wait,
                    ProbeStep::Unreachable
                ]
            );
            assert!(elapsed <= Duration::from_millis(1000), "{elapsed:?}");
            // Earlier data was acknowledged just when the ping was sent.
            let (_, elapsed) = run_probe(true, has_moved, |at| {
                acknowledged(7 + at.min(260), true, at)
            });
            assert!(elapsed <= Duration::from_millis(1500), "{elapsed:?}");
        }
    }

    #[test]
    fn machine_that_receives_nothing_is_given_up_although_it_sends() {
        let (steps, elapsed) = run_probe(true, false, |_| acknowledged(7, true, 0));
        assert_eq!(steps.last(), Some(&ProbeStep::Unreachable));
        assert!(elapsed <= Duration::from_millis(1000), "{elapsed:?}");
    }

    #[test]
    fn hung_worker_on_a_live_machine_has_the_full_timeout() {
        for takes_nothing in [false, true] {
            let kernel = |at| {
                if takes_nothing {
                    acknowledged(7, false, 1)
                } else {
                    acknowledged(at, false, 200)
                }
            };
            let (steps, elapsed) = run_probe(true, false, kernel);
            assert_eq!(steps.last(), Some(&ProbeStep::Hung));
            assert!(
                (HANG_TIMEOUT..HANG_TIMEOUT + 3 * REMOTE_INTERVAL).contains(&elapsed),
                "{elapsed:?}"
            );
        }
        let (steps, elapsed) = run_probe(false, false, |_| None);
        assert_eq!(
            (steps[0], steps.last()),
            (ProbeStep::Ping, Some(&ProbeStep::Hung))
        );
        assert!(
            steps[1..steps.len() - 1]
                .iter()
                .all(|step| *step == ProbeStep::Wait),
            "one ping: {steps:?}"
        );
        assert_eq!(elapsed, LOCAL_INTERVAL + HANG_TIMEOUT);
    }

    #[test]
    fn machine_that_goes_down_under_a_busy_worker_is_detected() {
        let (steps, elapsed) = run_probe(true, false, |at| {
            acknowledged(at.min(3_000), at > 3_000, at.saturating_sub(3_000))
        });
        assert_eq!(steps.last(), Some(&ProbeStep::Unreachable));
        assert!(elapsed < Duration::from_millis(4_500), "{elapsed:?}");
    }

    #[test]
    fn moving_traffic_postpones_the_hang_verdict() {
        let (steps, _) = run_probe(false, true, |_| None);
        assert!(!steps.contains(&ProbeStep::Hung));
        let (steps, _) = run_probe(true, true, |at| acknowledged(at, true, 0));
        assert!(!steps.contains(&ProbeStep::Hung) && !steps.contains(&ProbeStep::Unreachable));
    }

    #[test]
    fn received_data_resets_the_probe() {
        let (mut probe, began) = (LivenessProbe::new(true), Instant::now());
        let mut next_step = |millis, has_received| {
            let now = began + Duration::from_millis(millis);
            probe.next_step(ProbeObservation {
                now,
                has_received,
                has_moved: false,
                acknowledged: acknowledged(7, true, millis),
            })
        };
        assert_eq!(next_step(250, false), ProbeStep::Ping);
        assert_eq!(next_step(900, false), ProbeStep::Wait);
        assert_eq!(next_step(1200, true), ProbeStep::Wait);
        assert_eq!(next_step(1450, false), ProbeStep::Ping, "starts over");
    }
}
