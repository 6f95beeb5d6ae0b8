//! Runs tasks in other processes, keeps them apart, spreads them evenly, and loses none.
//!
//! This crate is the one that applications depend on. It adds nothing of its own: the task model is [`core`], the place where tasks are
//! kept is [`broker`], workers are [`fabric`], and one attempt of a task is [`exec`].
//!
//! ```no_run
//! use raddle::prelude::*;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // First of all, while there is one thread: runners are this same program, started again, and do not get past this line.
//!     raddle::exec::runner_main_if_asked(None);
//!     raddle::exec::title::init();
//!     tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(run())
//! }
//!
//! async fn run() -> Result<(), Box<dyn std::error::Error>> {
//!     let broker = connect(&"sqlite:.raddle/raddle.db".parse()?).await?;
//!     let submitted = broker.submit(vec![Submit::new(Spec::command(["echo", "hello"]))]).await?;
//!
//!     // A worker that leaves as soon as nothing is waiting.
//!     let options = Options { idle_exit: Some(std::time::Duration::ZERO), ..Options::resident() };
//!     let worker = Worker::register(broker.clone(), options).await?;
//!     worker.run(Shutdown::new()).await?;
//!
//!     let task = broker.task(submitted[0].tid()).await?.expect("a finished task is kept for its result_ttl");
//!     assert_eq!(task.state, State::Completed);
//!     Ok(())
//! }
//! ```

pub use async_trait::async_trait;
pub use raddle_fabric::{
    handler::{self, Handler},
    routine::{Handle, Task, TaskError, log, progress, trace},
};
pub use raddle_macros::{main, routine};

/// Registers a handler with this program: a value of a type that has the trait [`Handler`], made anew for each task.
#[macro_export]
macro_rules! handler {
    ($handler:expr) => {
        const _: () = {
            $crate::__private::inventory::submit! {
                $crate::__private::Entry { make: || ::std::boxed::Box::new($handler) }
            }
        };
    };
}

#[doc(hidden)]
pub mod __private;

pub use raddle_broker as broker;
pub use raddle_core as core;
pub use raddle_exec as exec;
pub use raddle_fabric as fabric;

pub mod prelude {
    //! What most programs need.

    pub use raddle_broker::{Broker, Stream, Submit, Submitted, TaskFilter, connect};
    pub use raddle_core::{
        CapSet, Control, Exit, Limits, Report, Retry, Span, Spec, State, Target, TaskView, Tid, Word,
    };
    pub use raddle_fabric::{Ended, Options, Shutdown, Worker};
}
