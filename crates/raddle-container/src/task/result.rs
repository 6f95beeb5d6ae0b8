//! The result of an attempt in a container. Pure.

use raddle_model::{ExitStatus, frame::Decoder};
use raddle_runner::{ExecResult, MAX_FROM_RUNNER};

/// Replaces the result of a container supervisor by that of its container, which it sent as
/// `answer`. A stop by the runner keeps its exit status.
pub fn apply_container_result(done: &mut ExecResult, answer: &[u8]) {
    let mut decoder = Decoder::new(MAX_FROM_RUNNER);
    decoder.push(answer);
    let answer = decoder.next::<ExecResult>().ok().flatten();
    // The resource usage of the supervisor itself does not count.
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
        // The runner did not cancel it, so a user killed the supervisor's container by hand.
        Some(ExitStatus::Cancelled) => ExitStatus::Killed,
        Some(exit) => exit,
        // The supervisor had no time to answer. The container has ended with it.
        None => ExitStatus::WorkerLost {
            message: "its container supervisor was killed".into(),
        },
    };
}

#[cfg(test)]
mod tests {
    use raddle_model::{ResourceUsage, frame::encode};

    use super::*;

    fn applied(exit: ExitStatus, answer: &[u8]) -> (ExitStatus, u64) {
        let usage = ResourceUsage {
            user_us: 1,
            ..ResourceUsage::default()
        };
        let mut done = ExecResult {
            usage,
            ..ExecResult::not_started(exit)
        };
        apply_container_result(&mut done, answer);
        (done.exit, done.usage.user_us)
    }

    #[test]
    fn takes_the_supervisors_answer_unless_the_runner_stopped_it() {
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
        assert_eq!(applied(ok.clone(), &answer), (ExitStatus::OutOfMemory, 7));
        assert_eq!(
            applied(ExitStatus::Timeout, &answer),
            (ExitStatus::Timeout, 7)
        );
        assert_eq!(
            applied(ExitStatus::Cancelled, &ended(ExitStatus::Cancelled)),
            (ExitStatus::Cancelled, 7)
        );
        assert_eq!(
            applied(ok.clone(), &ended(ExitStatus::Cancelled)),
            (ExitStatus::Killed, 7)
        );
        assert_eq!(
            applied(ExitStatus::LeaseExpired, b""),
            (ExitStatus::LeaseExpired, 0)
        );
        for silence in [
            &b""[..],
            b"{",
            &answer[..answer.len() - 1],
            &[1, 0, 0, 0, 9],
        ] {
            assert!(matches!(
                applied(ExitStatus::Signal { signal: 9 }, silence),
                (ExitStatus::WorkerLost { .. }, 0)
            ));
            assert!(
                matches!(
                    applied(ok.clone(), silence),
                    (ExitStatus::WorkerLost { .. }, 0)
                ),
                "a missing answer is no success"
            );
        }
    }
}
