//! What a leash answers, and what its silence means. Pure.

use raddle_core::{Exit, Usage};
use raddle_exec::{Done, contained::Ended};

/// The account of an attempt in a container, from that of its leash and what that answered. What the runner did to it counts as before.
pub(crate) fn judge(done: &mut Done, answer: &[u8]) {
    // That of the leash is nobody's concern.
    done.usage = Usage::default();
    let answer = serde_json::from_slice::<Ended>(answer).ok();
    if let Some(Ended { usage, .. }) = &answer {
        done.usage = *usage;
    }
    if !matches!(done.exit, Exit::Code { .. } | Exit::Signal { .. }) {
        return;
    }
    done.exit = match answer {
        Some(ended) => ended.exit,
        // It had no time to answer. The container has ended with it.
        None => Exit::Lost { message: "the process that kept its container was killed".into() },
    };
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn judged(exit: Exit, answer: &[u8]) -> (Exit, u64) {
        let mut done = Done {
            exit,
            usage: Usage { user_us: 1, ..Usage::default() },
            stdout_bytes: 0,
            stderr_bytes: 0,
            stdout: Vec::new(),
            stderr: Vec::new(),
            reply: Vec::new(),
            started_at: None,
            ended_at: Timestamp::UNIX_EPOCH,
        };
        judge(&mut done, answer);
        (done.exit, done.usage.user_us)
    }

    #[test]
    fn a_leash_speaks_for_its_command_and_the_runner_for_itself() {
        let ended = Ended { exit: Exit::OutOfMemory, usage: Usage { user_us: 7, ..Usage::default() } };
        let answer = serde_json::to_vec(&ended).unwrap();
        let ok = Exit::Code { code: 0 };
        assert_eq!(judged(ok.clone(), &answer), (Exit::OutOfMemory, 7));
        assert_eq!(judged(Exit::Timeout, &answer), (Exit::Timeout, 7));
        assert_eq!(judged(Exit::Lapsed, b""), (Exit::Lapsed, 0));
        for silence in [&b""[..], b"{", b"{\"exit\":{\"kind\":\"code\"}}"] {
            assert!(matches!(judged(Exit::Signal { signal: 9 }, silence), (Exit::Lost { .. }, 0)));
            assert!(matches!(judged(ok.clone(), silence), (Exit::Lost { .. }, 0)), "that is no success");
        }
    }
}
