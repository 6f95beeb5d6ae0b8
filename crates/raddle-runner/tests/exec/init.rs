//! Process 1 of a container and supervisors of other versions.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    io::{Read, Write},
    process::{Command, Stdio},
};

use raddle_model::{
    ExitStatus,
    frame::{Decoder, encode},
};
use raddle_runner::{
    ExecRequest, MAX_FROM_RUNNER, RunnerEvent, ToRunner,
    container::{INIT, VERSION},
};

/// Sends frames to process 1 and returns its reply.
fn reply_to(frames: &[Vec<u8>]) -> RunnerEvent {
    let mut init = Command::new(env!("CARGO_BIN_EXE_raddle-exec-runner"))
        .arg(INIT)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Its input stays open: it exits by itself after the reply.
    let (mut stdin, mut said) = (init.stdin.take().unwrap(), Decoder::new(MAX_FROM_RUNNER));
    stdin.write_all(&frames.concat()).unwrap();
    init.stdout
        .take()
        .unwrap()
        .read_to_end(said.buffer())
        .unwrap();
    assert!(init.wait().unwrap().success());
    said.next().unwrap().expect("process 1 has replied")
}

#[test]
fn process_1_refuses_a_supervisor_of_another_version() {
    let request = ExecRequest::command("1794800817069096960".parse().unwrap(), "true", ["true"]);
    let start = encode(&ToRunner::Start(Cow::Owned(request)));
    let unknown = encode(&BTreeMap::from([("Begin", 1)]));
    let other = encode(&ToRunner::Version(VERSION + 1));
    for frames in [
        &[other, start.clone()][..],
        std::slice::from_ref(&start),
        &[unknown],
    ] {
        let RunnerEvent::Done(done) = reply_to(frames) else {
            panic!("the attempt has begun")
        };
        let ExitStatus::NoHandler { message } = &done.exit else {
            panic!("{:?}", done.exit)
        };
        assert!(
            message.contains("different versions") && message.contains("restart the worker"),
            "{message}"
        );
    }
    // With the same version it gets to the isolation check, which fails outside a container.
    let RunnerEvent::Done(done) = reply_to(&[encode(&ToRunner::Version(VERSION)), start]) else {
        panic!("the attempt has begun")
    };
    assert!(
        matches!(done.exit, ExitStatus::SpawnFailed { .. }),
        "{:?}",
        done.exit
    );
}
