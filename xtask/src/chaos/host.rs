//! The host of the campaign: this program again, as a warm process that runs many tasks on threads.

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::{FromRawFd, OwnedFd},
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use raddle_model::host::{
    AttemptRef, FromHost, HostDecoder, HostError, HostHello, HostRoutine, PROTOCOL, RoutineKind,
    StartAttempt, ToHost, encode_message,
};

use crate::{plan::Class, task::Task};

/// The routine that every task in a host runs.
pub(crate) const ROUTINE: &str = "chaos";
/// The connection to the worker.
const CONNECTION: i32 = 3;
const READ: usize = 64 * 1024;

pub(crate) fn main() -> ExitCode {
    // SAFETY: a worker starts this program with its connection there, and nothing else uses it.
    let connection = File::from(unsafe { OwnedFd::from_raw_fd(CONNECTION) });
    match serve(&connection) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("chaos host: {error}");
            ExitCode::from(98)
        }
    }
}

fn serve(connection: &File) -> std::io::Result<()> {
    let writer = Arc::new(Mutex::new(connection.try_clone()?));
    let kind = RoutineKind::Plain;
    let hello = HostHello {
        protocol: PROTOCOL,
        language: "chaos".into(),
        routines: [(ROUTINE.to_owned(), HostRoutine { kind })].into(),
        concurrency: None,
        threads: None,
        encodings: Vec::new(),
    };
    send(&writer, &FromHost::Hello(hello), None);
    send(&writer, &FromHost::Ready {}, None);
    let mut reader = connection;
    let (mut decoder, mut buffer) = (HostDecoder::default(), vec![0; READ]);
    let mut running = Vec::new();
    loop {
        let read = reader.read(&mut buffer)?;
        if read == 0 {
            // The worker is gone.
            return Ok(());
        }
        decoder.buffer().extend_from_slice(&buffer[..read]);
        while let Some((message, payload)) =
            decoder.next_message().map_err(std::io::Error::other)?
        {
            match message {
                ToHost::Start(start) => {
                    send(&writer, &FromHost::Ack(AttemptRef { id: start.id }), None);
                    let writer = Arc::clone(&writer);
                    let class = class_of(payload.as_deref());
                    if class == Class::Blocks.name() {
                        // Here, where nothing is read meanwhile.
                        run(&start, &class, &writer);
                    } else {
                        running.retain(|one: &thread::JoinHandle<()>| !one.is_finished());
                        running.push(thread::spawn(move || run(&start, &class, &writer)));
                    }
                }
                ToHost::Ping(ping) => send(&writer, &FromHost::Pong(ping), None),
                ToHost::Stop(_) => {
                    running.into_iter().for_each(|one| drop(one.join()));
                    return Ok(());
                }
                _ => {}
            }
        }
    }
}

fn class_of(payload: Option<&[u8]>) -> String {
    let args: Vec<String> = serde_json::from_slice(payload.unwrap_or_default()).unwrap_or_default();
    args.into_iter().next().unwrap_or_default()
}

fn run(start: &StartAttempt<'_>, class: &str, writer: &Mutex<File>) {
    let id = start.id;
    let outcome = match start.tid {
        Some(tid) => Task::in_host(class, tid, start.attempt).and_then(Task::run_in_host),
        None => Err("it is no task".into()),
    };
    let failed = |message: String| {
        FromHost::Error(HostError {
            id,
            message,
            ..HostError::default()
        })
    };
    match outcome {
        Ok(true) => send(writer, &FromHost::Result(AttemptRef { id }), Some(b"null")),
        Ok(false) => send(writer, &failed("it is flaky".into()), None),
        Err(message) => send(writer, &failed(message), None),
    }
}

fn send(writer: &Mutex<File>, message: &FromHost, payload: Option<&[u8]>) {
    let mut bytes = Vec::new();
    encode_message(&mut bytes, message, payload);
    let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
    // Without its worker, this process is about to be killed.
    let _ = writer.write_all(&bytes);
}
