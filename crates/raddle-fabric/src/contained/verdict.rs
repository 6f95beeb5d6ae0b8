//! What a leash answers, and what its silence means. Pure.

use raddle_core::{Exit, frame::Decoder};
use raddle_exec::{Done, MAX_FROM_RUNNER};

/// The account of an attempt in a container, from that of its leash and what that answered. What the runner did to it counts as before.
pub(crate) fn judge(done: &mut Done, answer: &[u8]) {
    let mut decoder = Decoder::new(MAX_FROM_RUNNER);
    decoder.push(answer);
    let answer = decoder.next::<Done>().ok().flatten();
    // That of the leash is of no interest.
    done.usage = answer.as_ref().map(|answer| answer.usage).unwrap_or_default();
    if !matches!(done.exit, Exit::Code { .. } | Exit::Signal { .. }) {
        return;
    }
    done.exit = match answer.map(|answer| answer.exit) {
        // Not by its runner: the leash was ended by hand.
        Some(Exit::Cancelled) => Exit::Killed,
        Some(exit) => exit,
        // It had no time to answer. The container has ended with it.
        None => Exit::Lost { message: "the process that kept its container was killed".into() },
    };
}

#[cfg(test)]
mod tests {
    use raddle_core::{Usage, frame::encode};

    use super::*;

    fn judged(exit: Exit, answer: &[u8]) -> (Exit, u64) {
        let usage = Usage { user_us: 1, ..Usage::default() };
        let mut done = Done { usage, ..Done::without_start(exit) };
        judge(&mut done, answer);
        (done.exit, done.usage.user_us)
    }

    #[test]
    fn a_leash_speaks_for_its_command_and_the_runner_for_itself() {
        let ended = |exit| {
            let usage = Usage { user_us: 7, ..Usage::default() };
            encode(&Done { usage, ..Done::without_start(exit) })
        };
        let answer = ended(Exit::OutOfMemory);
        let ok = Exit::Code { code: 0 };
        assert_eq!(judged(ok.clone(), &answer), (Exit::OutOfMemory, 7));
        assert_eq!(judged(Exit::Timeout, &answer), (Exit::Timeout, 7));
        assert_eq!(judged(Exit::Cancelled, &ended(Exit::Cancelled)), (Exit::Cancelled, 7));
        assert_eq!(judged(ok.clone(), &ended(Exit::Cancelled)), (Exit::Killed, 7));
        assert_eq!(judged(Exit::Lapsed, b""), (Exit::Lapsed, 0));
        for silence in [&b""[..], b"{", &answer[..answer.len() - 1], &[1, 0, 0, 0, 9]] {
            assert!(matches!(judged(Exit::Signal { signal: 9 }, silence), (Exit::Lost { .. }, 0)));
            assert!(matches!(judged(ok.clone(), silence), (Exit::Lost { .. }, 0)), "that is no success");
        }
    }
}
