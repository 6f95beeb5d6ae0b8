//! What a leash answers, and what its silence means. Pure.

use raddle_model::{ExitStatus, frame::Decoder};
use raddle_runner::{ExecResult, MAX_FROM_RUNNER};

/// The account of an attempt in a container, from that of its leash and what that answered. What the runner did to it counts as before.
pub fn judge(done: &mut ExecResult, answer: &[u8]) {
    let mut decoder = Decoder::new(MAX_FROM_RUNNER);
    decoder.push(answer);
    let answer = decoder.next::<ExecResult>().ok().flatten();
    // That of the leash is of no interest.
    done.usage = answer
        .as_ref()
        .map(|answer| answer.usage)
        .unwrap_or_default();
    if !matches!(
        done.exit,
        ExitStatus::Code { .. } | ExitStatus::Signal { .. }
    ) {
        return;
    }
    done.exit = match answer.map(|answer| answer.exit) {
        // Not by its runner: the leash was ended by hand.
        Some(ExitStatus::Cancelled) => ExitStatus::Killed,
        Some(exit) => exit,
        // It had no time to answer. The container has ended with it.
        None => ExitStatus::WorkerLost {
            message: "the process that kept its container was killed".into(),
        },
    };
}

#[cfg(test)]
mod tests {
    use raddle_model::{ResourceUsage, frame::encode};

    use super::*;

    fn judged(exit: ExitStatus, answer: &[u8]) -> (ExitStatus, u64) {
        let usage = ResourceUsage {
            user_us: 1,
            ..ResourceUsage::default()
        };
        let mut done = ExecResult {
            usage,
            ..ExecResult::not_started(exit)
        };
        judge(&mut done, answer);
        (done.exit, done.usage.user_us)
    }

    #[test]
    fn a_leash_speaks_for_its_command_and_the_runner_for_itself() {
        let ended = |exit| {
            let usage = ResourceUsage {
                user_us: 7,
                ..ResourceUsage::default()
            };
            encode(&ExecResult {
                usage,
                ..ExecResult::not_started(exit)
            })
        };
        let answer = ended(ExitStatus::OutOfMemory);
        let ok = ExitStatus::Code { code: 0 };
        assert_eq!(judged(ok.clone(), &answer), (ExitStatus::OutOfMemory, 7));
        assert_eq!(
            judged(ExitStatus::Timeout, &answer),
            (ExitStatus::Timeout, 7)
        );
        assert_eq!(
            judged(ExitStatus::Cancelled, &ended(ExitStatus::Cancelled)),
            (ExitStatus::Cancelled, 7)
        );
        assert_eq!(
            judged(ok.clone(), &ended(ExitStatus::Cancelled)),
            (ExitStatus::Killed, 7)
        );
        assert_eq!(
            judged(ExitStatus::LeaseExpired, b""),
            (ExitStatus::LeaseExpired, 0)
        );
        for silence in [
            &b""[..],
            b"{",
            &answer[..answer.len() - 1],
            &[1, 0, 0, 0, 9],
        ] {
            assert!(matches!(
                judged(ExitStatus::Signal { signal: 9 }, silence),
                (ExitStatus::WorkerLost { .. }, 0)
            ));
            assert!(
                matches!(
                    judged(ok.clone(), silence),
                    (ExitStatus::WorkerLost { .. }, 0)
                ),
                "that is no success"
            );
        }
    }
}
