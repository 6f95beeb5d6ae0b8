//! Support for generated code. Not a public API.

mod crossing;
mod failing;

use std::{future::Future, process};

pub use inventory;
#[cfg(feature = "queue")]
pub use raddle_client::handler::HandlerEntry;
pub use raddle_model::routine::{
    Arguments, EncodedArgs, LifecycleHook, Routine, RoutineFn, StateValue, TranscodedArgs,
    required_state,
};
pub use raddle_model::spec::Isolation;

pub use self::{
    crossing::RoutineValue,
    failing::{
        NotResult, OpaqueError, ResultProbe, RoutineError, RoutineReturn, SerializableError,
    },
};

/// Runs the setup of a program with routines. In runners and workers it does not return.
#[cfg_attr(
    not(feature = "pool"),
    expect(unused_variables, reason = "only workers of pools say their version")
)]
pub fn enter(version: Option<&'static str>) {
    #[cfg(feature = "queue")]
    raddle_runner::runner_main_if_requested(Some(raddle_client::routine::call_function));
    raddle_process::title::init();
    if let Err(clash) = raddle_model::routine::Routines::of_this_program() {
        eprintln!("raddle: {clash}");
        process::exit(125);
    }
    #[cfg(feature = "queue")]
    raddle_client::host::host_main_if_asked();
    #[cfg(feature = "pool")]
    raddle_rpc::serve::main_if_asked(version.unwrap_or_default());
    #[cfg(feature = "worker")]
    if std::env::args_os()
        .nth(1)
        .is_some_and(|argument| is_ours(&argument))
    {
        process::exit(raddle_cli::run().into());
    }
}

/// Whether this argument starts the program as its own worker, or as the manager of its own groups.
#[cfg(feature = "worker")]
fn is_ours(argument: &std::ffi::OsStr) -> bool {
    let is_pool = cfg!(feature = "pool") && argument == "pool";
    is_pool
        || ["worker", "spawner", "up"]
            .iter()
            .any(|own| argument == *own)
        || raddle_cli::is_internal(argument)
}

/// Runs the body of `main`.
pub fn block_on<F: Future>(body: F) -> F::Output {
    let built = raddle_process::check_descriptors().and_then(|()| {
        tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
    });
    match built {
        Ok(runtime) => runtime.block_on(body),
        Err(error) => {
            eprintln!("raddle: cannot start: {error}");
            process::exit(125);
        }
    }
}
