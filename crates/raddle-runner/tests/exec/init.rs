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

/// Has process 1 read some frames, and returns its answer.
fn answer_to(frames: &[Vec<u8>]) -> RunnerEvent {
    let mut init = Command::new(env!("CARGO_BIN_EXE_raddle-exec-runner"))
        .arg(INIT)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Its input stays open: it ends by itself when it has answered.
    let (mut stdin, mut said) = (init.stdin.take().unwrap(), Decoder::new(MAX_FROM_RUNNER));
    stdin.write_all(&frames.concat()).unwrap();
    init.stdout
        .take()
        .unwrap()
        .read_to_end(said.buffer())
        .unwrap();
    assert!(init.wait().unwrap().success());
    said.next().unwrap().expect("it has answered")
}

#[test]
fn process_1_runs_nothing_for_a_supervisor_of_another_version() {
    let request = ExecRequest::command("1794800817069096960".parse().unwrap(), "true", ["true"]);
    let start = encode(&ToRunner::Start(Cow::Owned(request)));
    let unknown = encode(&BTreeMap::from([("Begin", 1)]));
    let other = encode(&ToRunner::Version(VERSION + 1));
    for frames in [
        &[other, start.clone()][..],
        std::slice::from_ref(&start),
        &[unknown],
    ] {
        let RunnerEvent::Done(done) = answer_to(frames) else {
            panic!("it has begun")
        };
        let ExitStatus::NoHandler { message } = &done.exit else {
            panic!("{:?}", done.exit)
        };
        assert!(
            message.contains("different versions") && message.contains("restart the worker"),
            "{message}"
        );
    }
    // The same version gets further: to the look at the container, which this is not.
    let RunnerEvent::Done(done) = answer_to(&[encode(&ToRunner::Version(VERSION)), start]) else {
        panic!("it has begun")
    };
    assert!(
        matches!(done.exit, ExitStatus::SpawnFailed { .. }),
        "{:?}",
        done.exit
    );
}
