//! The wire between a worker and its runner: a type byte, a length in four bytes (little-endian), the payload.
//!
//! Both sides read the other's frames as if they were hostile: every length has a cap, every payload is checked, and the answer
//! to a malformed frame is to end the connection. Output and input travel as raw bytes.

use std::time::Duration;

use jiff::Timestamp;
use raddle_core::{Exit, Limits, Tid, Usage, moment::unix_nanos};
use serde::{Deserialize, Serialize};

use crate::message::{Done, Notice, Order, Program, Request, Sandbox, Stream};

/// Said in every frame that carries a structure. A runner is started from its worker's own file, so that another version on
/// the other side is an accident, and is refused.
pub(crate) const VERSION: u8 = 1;
const HEADER: usize = 5;
/// The longest frame that a worker may send: arguments and environment of a command, which the kernel bounds as well.
pub(crate) const MAX_TO_RUNNER: usize = 16 << 20;
/// The longest frame that a runner may send: a `Done` with what is left of the streams.
pub(crate) const MAX_TO_WORKER: usize = 1 << 20;
/// Input is cut into frames of this size.
const STDIN_CHUNK: usize = 1 << 20;
/// All the input of one command; the runner holds it in memory.
pub(crate) const MAX_STDIN: usize = 1 << 30;

const START: u8 = 1;
const STDIN: u8 = 2;
const ORDER: u8 = 3;
const STARTED: u8 = 16;
pub(crate) const STDOUT: u8 = 17;
pub(crate) const STDERR: u8 = 18;
const DONE: u8 = 19;
const REPLY: u8 = 20;

/// What can be wrong with a frame.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Malformed {
    #[error("a frame of {0} bytes is longer than allowed")]
    TooLong(usize),
    #[error("frames of type {0} are unknown here")]
    UnknownType(u8),
    #[error("version {0} is spoken on the other side, {VERSION} here")]
    Version(u8),
    #[error("a frame of type {0} is cut short")]
    Short(u8),
    #[error("a start came while an attempt was running")]
    OutOfTurn,
    #[error("unreadable structure in a frame")]
    Structure(#[from] rmp_serde::decode::Error),
}

/// A frame from the worker.
#[derive(Debug)]
pub(crate) enum ToRunner {
    /// Input of the command that the next `Start` names.
    Stdin(Vec<u8>),
    Start(Box<Start>),
    Order(Order),
}

/// A [`Request`] without its input.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) tid: Tid,
    pub(crate) attempt: u32,
    pub(crate) name: String,
    pub(crate) program: Program,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: Option<String>,
    pub(crate) has_stdin: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) limits: Limits,
    pub(crate) grace: Duration,
    pub(crate) overtime: Duration,
    pub(crate) sandbox: Option<Sandbox>,
}

#[derive(Serialize, Deserialize)]
struct Account {
    exit: Exit,
    usage: Usage,
    stdout_bytes: u64,
    stderr_bytes: u64,
    /// How much of what follows is standard output.
    stdout_len: u32,
    /// And how much of the rest is standard error.
    stderr_len: u32,
    /// Nanoseconds since the epoch.
    started_at: Option<i64>,
    ended_at: i64,
}

/// Appends the frames that start an attempt; nothing, if the runner would refuse them. The error says why.
pub(crate) fn put_request(out: &mut Vec<u8>, request: &Request) -> Result<(), &'static str> {
    let before = out.len();
    if request.stdin.as_ref().is_some_and(|stdin| stdin.len() > MAX_STDIN) {
        return Err("more than 1 GiB of standard input: use a file");
    }
    for chunk in request.stdin.iter().flat_map(|stdin| stdin.chunks(STDIN_CHUNK)) {
        put_raw(out, STDIN, chunk);
    }
    let start = Start {
        tid: request.tid,
        attempt: request.attempt,
        name: request.name.clone(),
        program: request.program.clone(),
        env: request.env.clone(),
        cwd: request.cwd.clone(),
        has_stdin: request.stdin.is_some(),
        timeout: request.timeout,
        limits: request.limits.clone(),
        grace: request.grace,
        overtime: request.overtime,
        sandbox: request.sandbox.clone(),
    };
    let at = out.len();
    put(out, START, |out| put_structure(out, &start));
    if out.len() - at > MAX_TO_RUNNER {
        out.truncate(before);
        return Err("arguments and environment are longer than any system takes");
    }
    Ok(())
}

pub(crate) fn put_order(out: &mut Vec<u8>, order: Order) {
    let code = match order {
        Order::Stop => 0,
        Order::Kill => 1,
        Order::Pause => 2,
        Order::Resume => 3,
    };
    put_raw(out, ORDER, &[code]);
}

pub(crate) fn put_started(out: &mut Vec<u8>, pid: u32) {
    put_raw(out, STARTED, &pid.to_le_bytes());
}

pub(crate) fn put_output(out: &mut Vec<u8>, stream: Stream, bytes: &[u8]) {
    let kind = match stream {
        Stream::Stdout => STDOUT,
        Stream::Stderr => STDERR,
        Stream::Reply => REPLY,
    };
    put_raw(out, kind, bytes);
}

pub(crate) fn put_done(out: &mut Vec<u8>, done: &Done) {
    let account = Account {
        exit: done.exit.clone(),
        usage: done.usage,
        stdout_bytes: done.stdout_bytes,
        stderr_bytes: done.stderr_bytes,
        stdout_len: done.stdout.len() as u32,
        stderr_len: done.stderr.len() as u32,
        started_at: done.started_at.map(unix_nanos),
        ended_at: unix_nanos(done.ended_at),
    };
    put(out, DONE, |out| {
        let at = out.len();
        out.extend([0; 4]);
        put_structure(out, &account);
        let len = (out.len() - at - 4) as u32;
        out[at..at + 4].copy_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&done.stdout);
        out.extend_from_slice(&done.stderr);
        out.extend_from_slice(&done.reply);
    });
}

/// Takes the next frame of the worker off the front of `buf`; `None` if it is not whole yet.
pub(crate) fn take_to_runner(buf: &mut Vec<u8>) -> Result<Option<ToRunner>, Malformed> {
    take(buf, MAX_TO_RUNNER, |kind, payload| match (kind, payload) {
        (STDIN, bytes) => Ok(ToRunner::Stdin(bytes.to_vec())),
        (START, bytes) => Ok(ToRunner::Start(structure(kind, bytes)?)),
        (ORDER, [0]) => Ok(ToRunner::Order(Order::Stop)),
        (ORDER, [1]) => Ok(ToRunner::Order(Order::Kill)),
        (ORDER, [2]) => Ok(ToRunner::Order(Order::Pause)),
        (ORDER, [3]) => Ok(ToRunner::Order(Order::Resume)),
        (ORDER, _) => Err(Malformed::Short(kind)),
        _ => Err(Malformed::UnknownType(kind)),
    })
}

/// Takes the next frame of the runner off the front of `buf`; `None` if it is not whole yet.
pub(crate) fn take_to_worker(buf: &mut Vec<u8>) -> Result<Option<Notice>, Malformed> {
    take(buf, MAX_TO_WORKER, |kind, payload| {
        let output = |stream| Ok(Notice::Output { stream, bytes: payload.to_vec() });
        match kind {
            STARTED => {
                let pid = payload.try_into().map_err(|_| Malformed::Short(kind))?;
                Ok(Notice::Started { pid: u32::from_le_bytes(pid) })
            }
            STDOUT => output(Stream::Stdout),
            STDERR => output(Stream::Stderr),
            REPLY => output(Stream::Reply),
            DONE => done(payload).map(|done| Notice::Done(Box::new(done))),
            _ => Err(Malformed::UnknownType(kind)),
        }
    })
}

fn done(payload: &[u8]) -> Result<Done, Malformed> {
    let short = || Malformed::Short(DONE);
    let (len, rest) = payload.split_first_chunk::<4>().ok_or_else(short)?;
    let (head, tail) = rest.split_at_checked(u32::from_le_bytes(*len) as usize).ok_or_else(short)?;
    let account: Account = structure(DONE, head)?;
    let (stdout, tail) = tail.split_at_checked(account.stdout_len as usize).ok_or_else(short)?;
    let (stderr, reply) = tail.split_at_checked(account.stderr_len as usize).ok_or_else(short)?;
    let time = |nanos: i64| Timestamp::from_nanosecond(nanos.into()).map_err(|_| short());
    Ok(Done {
        exit: account.exit,
        usage: account.usage,
        stdout_bytes: account.stdout_bytes,
        stderr_bytes: account.stderr_bytes,
        stdout: stdout.to_vec(),
        stderr: stderr.to_vec(),
        reply: reply.to_vec(),
        started_at: account.started_at.map(time).transpose()?,
        ended_at: time(account.ended_at)?,
    })
}

pub(crate) fn put(out: &mut Vec<u8>, kind: u8, payload: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend([kind, 0, 0, 0, 0]);
    payload(out);
    let len = (out.len() - at - HEADER) as u32;
    out[at + 1..at + HEADER].copy_from_slice(&len.to_le_bytes());
}

pub(crate) fn put_raw(out: &mut Vec<u8>, kind: u8, payload: &[u8]) {
    put(out, kind, |out| out.extend_from_slice(payload));
}

pub(crate) fn put_structure(out: &mut Vec<u8>, value: &impl Serialize) {
    out.push(VERSION);
    // With names: `Exit` is an enum with an inner tag, which the compact form cannot tell from a tuple.
    rmp_serde::encode::write_named(out, value).expect("our own structures are writable to memory");
}

pub(crate) fn structure<T: serde::de::DeserializeOwned>(kind: u8, bytes: &[u8]) -> Result<T, Malformed> {
    match bytes.split_first() {
        Some((&VERSION, rest)) => Ok(rmp_serde::from_slice(rest)?),
        Some((&other, _)) => Err(Malformed::Version(other)),
        None => Err(Malformed::Short(kind)),
    }
}

pub(crate) fn take<T>(
    buf: &mut Vec<u8>,
    max: usize,
    parse: impl FnOnce(u8, &[u8]) -> Result<T, Malformed>,
) -> Result<Option<T>, Malformed> {
    let Some((header, rest)) = buf.split_first_chunk::<HEADER>() else { return Ok(None) };
    let [kind, len @ ..] = *header;
    let len = u32::from_le_bytes(len) as usize;
    if len > max {
        return Err(Malformed::TooLong(len));
    }
    let Some(payload) = rest.get(..len) else { return Ok(None) };
    let value = parse(kind, payload)?;
    buf.drain(..HEADER + len);
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn a_done() -> Done {
        Done {
            exit: Exit::NotFound { message: "command not found: x".into() },
            usage: Usage { peak_rss_bytes: 1, user_us: 2, system_us: 3 },
            stdout_bytes: 10,
            stderr_bytes: 20,
            stdout: b"out\xff".to_vec(),
            stderr: b"err".to_vec(),
            reply: b"reply".to_vec(),
            started_at: None,
            ended_at: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn a_request_arrives_as_it_was_sent() {
        let request = Request {
            tid: Tid::from_u64(1_700_000_000_000_000_000).unwrap(),
            attempt: 3,
            name: "n".into(),
            program: Program::Command(vec!["a".into(), "".into()]),
            env: vec![("K".into(), "v=w".into())],
            cwd: Some("/".into()),
            stdin: Some(vec![7; STDIN_CHUNK + 1]),
            timeout: Some(Duration::from_millis(1500)),
            limits: Limits { memory_mb: Some(5), ..Limits::default() },
            grace: Duration::from_secs(1),
            overtime: Duration::from_secs(1),
            sandbox: Some(Sandbox {
                network: "example.org:443".parse().unwrap(),
                fallback: true,
                folder: Some("/handlers".into()),
            }),
        };
        let mut buf = Vec::new();
        put_request(&mut buf, &request).unwrap();
        put_order(&mut buf, Order::Resume);
        let mut stdin = Vec::new();
        let start = loop {
            match take_to_runner(&mut buf).unwrap().unwrap() {
                ToRunner::Stdin(bytes) => stdin.extend(bytes),
                ToRunner::Start(start) => break start,
                other => panic!("{other:?} before start"),
            }
        };
        assert_eq!(Some(stdin), request.stdin);
        assert!(start.has_stdin);
        assert_eq!((start.tid, start.program, start.env), (request.tid, request.program, request.env));
        assert_eq!((start.timeout, start.limits), (request.timeout, request.limits));
        assert!(matches!(take_to_runner(&mut buf), Ok(Some(ToRunner::Order(Order::Resume)))));
        assert!(buf.is_empty());
    }

    #[test]
    fn a_done_arrives_byte_by_byte() {
        let mut wire = Vec::new();
        put_started(&mut wire, 77);
        put_output(&mut wire, Stream::Stderr, b"\x00\xff");
        put_done(&mut wire, &a_done());
        let (mut buf, mut seen) = (Vec::new(), Vec::new());
        for byte in wire {
            buf.push(byte);
            seen.extend(take_to_worker(&mut buf).unwrap());
        }
        let [Notice::Started { pid: 77 }, Notice::Output { stream: Stream::Stderr, bytes }, Notice::Done(done)] =
            &seen[..]
        else {
            panic!("{seen:?}")
        };
        assert_eq!(bytes, b"\x00\xff");
        assert_eq!((&done.exit, &done.stdout, &done.stderr), (&a_done().exit, &a_done().stdout, &a_done().stderr));
        assert_eq!(done.reply, a_done().reply);
    }

    #[test]
    fn every_exit_survives_the_wire() {
        use raddle_core::limits::LimitKind::MaxProcs;
        let message = String::from("m");
        let exits = [
            Exit::Code { code: 3 },
            Exit::Signal { signal: 9 },
            Exit::Timeout,
            Exit::OutOfMemory,
            Exit::Limit { limit: MaxProcs },
            Exit::NotExecutable { message: message.clone() },
            Exit::SpawnFailed { message: message.clone() },
            Exit::Lost { message },
            Exit::Lapsed,
            Exit::Cancelled,
            Exit::Killed,
        ];
        for exit in exits {
            let mut buf = Vec::new();
            put_done(&mut buf, &Done { exit: exit.clone(), ..a_done() });
            assert!(matches!(take_to_worker(&mut buf), Ok(Some(Notice::Done(done))) if done.exit == exit));
        }
    }

    #[test]
    fn hostile_frames_are_refused() {
        let huge = [START, 0xff, 0xff, 0xff, 0xff];
        assert!(matches!(take_to_runner(&mut huge.to_vec()), Err(Malformed::TooLong(_))));
        assert!(matches!(take_to_runner(&mut vec![99, 0, 0, 0, 0]), Err(Malformed::UnknownType(99))));
        assert!(matches!(take_to_runner(&mut vec![ORDER, 1, 0, 0, 0, 9]), Err(Malformed::Short(ORDER))));
        assert!(matches!(take_to_runner(&mut vec![START, 1, 0, 0, 0, 9]), Err(Malformed::Version(9))));
        assert!(matches!(take_to_worker(&mut vec![DONE, 1, 0, 0, 0, 9]), Err(Malformed::Short(DONE))));
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(mut bytes: Vec<u8>, kind in 0u8..24) {
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            let _ = take_to_runner(&mut bytes.clone());
            let _ = take_to_worker(&mut bytes);
        }
    }
}
