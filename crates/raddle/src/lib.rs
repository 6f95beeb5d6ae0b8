//! Runs tasks in other processes, keeps them apart, spreads them evenly, and loses none.
//!
//! This is the crate that applications depend on. It adds no behaviour: the task model is [`core`],
//! brokers are `broker`, workers are `fabric`, attempts of tasks are `exec`, and calls of functions
//! in other processes are `pool`.
//!
//! # Calls
//!
//! A function with `#[raddle::routine]` is called like any other and runs in a worker process: one
//! round trip, no broker.
//!
#![cfg_attr(feature = "pool", doc = "```no_run")]
#![cfg_attr(not(feature = "pool"), doc = "```ignore")]
//! use raddle::{Stream, WorkerPool};
//!
//! #[raddle::routine]
//! async fn add(a: u64, b: u64) -> u64 {
//!     a + b
//! }
//!
//! #[raddle::routine]
//! fn countdown(from: u32) -> impl Stream<Item = u32> {
//!     futures_util::stream::iter((1..=from).rev())
//! }
//!
//! #[raddle::main]
//! async fn main() -> raddle::Result<()> {
//!     let pool = WorkerPool::builder().size(4).start().await?;
//!     pool.scope(async {
//!         assert_eq!(add(1, 2).await?, 3); // in a worker process
//!         let mut n = countdown(3); // a stream from a worker process
//!         while let Some(i) = n.next().await {
//!             println!("{}", i?);
//!         }
//!         Ok(())
//!     })
//!     .await
//! }
//! ```
//!
//! A function without a body declares a routine of another program, in any language, and is called in the same way:
//! `#[raddle::routine(name = "py.embed")] async fn embed(text: String) -> Vec<f32>;`
//!
//! `add::task(1, 2)` creates a task instead, which a broker keeps until it is done, and `add::local(1, 2)` runs in this process. `add::task(1, 2).schedule(&broker, Schedule::cron("sums", "@hourly"))` submits it on a schedule. `#[raddle::routines]` on an `impl` block is for methods.
//!
//! # Tasks
//!
#![cfg_attr(feature = "queue", doc = "```no_run")]
#![cfg_attr(not(feature = "queue"), doc = "```ignore")]
//! use raddle::prelude::*;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // First, while there is one thread: runners are this program started again, and exit in this call.
//!     raddle::exec::runner_main_if_requested(None);
//!     raddle::exec::title::init();
//!     tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(run())
//! }
//!
//! async fn run() -> Result<(), Box<dyn std::error::Error>> {
//!     let broker = connect(&"sqlite:.raddle/raddle.db".parse()?).await?;
//!     let submitted = broker.submit(vec![NewTask::new(TaskSpec::command(["echo", "hello"]))]).await?;
//!
//!     // A worker that exits as soon as nothing is waiting.
//!     let options = Options { idle_exit: Some(std::time::Duration::ZERO), ..Options::resident() };
//!     let worker = Worker::register(broker.clone(), options).await?;
//!     worker.run(Shutdown::new()).await?;
//!
//!     let task = broker.task(submitted[0].tid()).await?.expect("a finished task is kept for its result_ttl");
//!     assert_eq!(task.state, TaskState::Completed);
//!     Ok(())
//! }
//! ```

mod error;

pub use async_trait::async_trait;
pub use futures_core::Stream;
#[cfg(feature = "queue")]
pub use raddle_client::{
    handler::{self, Handler},
    routine::{
        ChainError, RoutineTask, TaskError, TaskHandle, cancelled, chain, is_cancelled, log,
        progress, trace,
    },
};
pub use raddle_macros::{main, routine, routines, shutdown, startup};
pub use raddle_model::{
    Schedule,
    routine::{State, state},
    schedule::MissedPolicy,
};
#[cfg(feature = "pool")]
pub use raddle_rpc::{Call, CallError, CallStream, Never, WorkerPool, WorkerProxy, context, spawn};

pub use self::error::{Error, Result};

/// Registers a handler with this program: a type that implements [`Handler`], created anew for each
/// task.
#[cfg(feature = "queue")]
#[macro_export]
macro_rules! handler {
    ($handler:expr) => {
        const _: () = {
            $crate::__private::inventory::submit! {
                $crate::__private::HandlerEntry { make: || ::std::boxed::Box::new($handler) }
            }
        };
    };
}

/// Registers a worker of groups with this program: a type that implements
/// [`EventWorker`](group::EventWorker).
#[cfg(feature = "queue")]
#[macro_export]
macro_rules! event_worker {
    ($worker:ty) => {
        const _: () = {
            impl $crate::group::RegisteredEventWorker for $worker {
                const ROUTINE: &'static str =
                    ::core::concat!(::core::module_path!(), "::", ::core::stringify!($worker));
            }
            $crate::__private::inventory::submit! {
                $crate::__private::Routine {
                    name: <$worker as $crate::group::RegisteredEventWorker>::ROUTINE,
                    place: ::core::concat!(::core::file!(), ":", ::core::line!()),
                    isolation: $crate::__private::Isolation::Shared,
                    run: $crate::__private::RoutineFn::Async($crate::group::handle_event::<$worker>),
                }
            }
            $crate::__private::inventory::submit! {
                $crate::__private::LifecycleHook::Startup {
                    name: ::core::stringify!($worker),
                    run: $crate::group::start_up::<$worker>,
                }
            }
            $crate::__private::inventory::submit! {
                $crate::__private::LifecycleHook::Shutdown {
                    name: ::core::stringify!($worker),
                    run: $crate::group::shut_down::<$worker>,
                }
            }
        };
    };
}

/// Registers a function that decides whether the workers of this program accept a call:
/// `fn(raddle::pool::serve::Load<'_>) -> bool`. A call that is not accepted goes to another worker.
#[cfg(feature = "pool")]
#[macro_export]
macro_rules! backpressure {
    ($takes:expr) => {
        const _: () = {
            $crate::__private::inventory::submit! { $crate::pool::serve::Backpressure($takes) }
        };
    };
}

/// Registers a balancer of this program under a name, which its
/// [`Balancer::name`](pool::balancer::Balancer::name) must return: `balancer!("fewest",
/// Fewest::default())`. Calls that routines make in a pool with that balancer use one of these.
#[cfg(feature = "pool")]
#[macro_export]
macro_rules! balancer {
    ($name:expr, $balancer:expr) => {
        const _: () = {
            $crate::__private::inventory::submit! {
                $crate::pool::balancer::NamedBalancer { name: $name, make: || ::std::sync::Arc::new($balancer) }
            }
        };
    };
}

/// How callers find workers.
#[cfg(feature = "pool")]
pub mod discovery {
    pub use raddle_discovery::*;
    #[cfg(feature = "queue")]
    pub use raddle_worker::discovery::BrokerDiscovery;
}

#[doc(hidden)]
pub mod __private;

#[cfg(feature = "queue")]
pub mod broker {
    //! Brokers, which store tasks.

    pub use raddle_broker::*;
    pub use raddle_broker_connect::*;
}
#[cfg(feature = "queue")]
pub use raddle_client as client;
#[cfg(feature = "queue")]
pub use raddle_groups as group;
pub use raddle_model as core;
#[cfg(feature = "pool")]
pub use raddle_rpc as pool;
#[cfg(feature = "queue")]
pub use raddle_runner as exec;
#[cfg(feature = "queue")]
pub use raddle_spawner as spawner;
#[cfg(feature = "queue")]
pub use raddle_telemetry as telemetry;
#[cfg(feature = "pool")]
pub use raddle_tls as tls;
#[cfg(feature = "web")]
pub use raddle_web as web;
/// The wire protocol between workers and callers: for hand-written workers.
#[cfg(feature = "pool")]
pub use raddle_wire as wire;
#[cfg(feature = "queue")]
pub use raddle_worker as worker;

pub mod prelude {
    //! Names that most programs need.

    #[cfg(feature = "queue")]
    pub use raddle_broker::{Broker, NewTask, OutputStream, Submitted, TaskFilter};
    #[cfg(feature = "queue")]
    pub use raddle_broker_connect::connect;
    pub use raddle_model::{
        AttemptReport, CapSet, ControlCommand, ControlMessage, ExitStatus, HumanDuration, Limits,
        RetryPolicy, Schedule, Target, TaskSpec, TaskState, TaskView, Tid,
    };
    #[cfg(feature = "pool")]
    pub use raddle_rpc::{WorkerPool, WorkerProxy};
    #[cfg(feature = "queue")]
    pub use raddle_worker::{Options, Shutdown, Worker, WorkerEnd};
}

/// The Rust blocks of README.md and of the book, compiled as doctests.
#[cfg(doctest)]
mod book {
    macro_rules! compile {
        ($($name:ident $page:literal)*) => {
            $(
                #[doc = include_str!(concat!("../../../", $page))]
                struct $name;
            )*
        };
    }

    compile! {
        Readme "README.md"
        FirstFunction "docs/start/first-function.md"
        FirstPool "docs/start/first-pool.md"
        RustService "docs/tutorials/rust-service.md"
        ManyMachines "docs/tutorials/many-machines.md"
        Calls "docs/how-to/calls.md"
        Discovery "docs/how-to/discovery.md"
        Groups "docs/how-to/groups.md"
        Handlers "docs/how-to/handlers.md"
        Languages "docs/how-to/languages.md"
        Schedules "docs/how-to/schedules.md"
        Tls "docs/how-to/tls.md"
    }

    #[cfg(feature = "web")]
    compile! {
        Web "docs/how-to/web.md"
    }
}
