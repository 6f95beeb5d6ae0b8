//! What the macros write. Not for people.

use std::{fmt::Display, future::Future, process};

use raddle_core::reply::Fault;
use serde::Serialize;
use serde_json::Value;

pub use inventory;
pub use raddle_fabric::{
    handler::Entry,
    routine::{Arguments, Routine, Run},
};

/// The beginning of a program with routines: the last thing that its runners see.
pub fn enter() {
    raddle_exec::runner_main_if_asked(Some(raddle_fabric::routine::call));
    raddle_exec::title::init();
    if let Err(clash) = raddle_fabric::routine::Routines::of_this_program() {
        eprintln!("raddle: {clash}");
        process::exit(125);
    }
    #[cfg(feature = "worker")]
    if std::env::args_os()
        .nth(1)
        .is_some_and(|argument| argument == "worker" || argument == "spawner" || raddle_cli::is_internal(&argument))
    {
        process::exit(raddle_cli::run(Some(raddle_fabric::routine::call)).into());
    }
}

/// Runs the body of `main`.
pub fn block_on<F: Future>(body: F) -> F::Output {
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(body),
        Err(error) => {
            eprintln!("raddle: cannot start: {error}");
            process::exit(125);
        }
    }
}

/// The answer of a routine that cannot fail.
pub fn from_value(value: impl Serialize) -> Result<Value, Fault> {
    serde_json::to_value(value).map_err(|error| fault(format!("the result cannot be written as JSON: {error}")))
}

/// The answer of a routine that can.
pub fn from_result<T: Serialize, E: Display>(result: Result<T, E>) -> Result<Value, Fault> {
    match result {
        Ok(value) => from_value(value),
        // With its causes, where the error's type can tell them.
        Err(error) => Err(fault(format!("{error:#}"))),
    }
}

fn fault(message: String) -> Fault {
    Fault { message, panicked_at: None, permanent: false, value: None }
}
