//! `raddle pool`: finds, inspects and runs pool workers. It needs no broker, except for discovery
//! by broker.

mod credentials;
mod discovery;
mod find;
mod list;
mod metrics;
mod ping;
mod serve;
mod stop;
mod tree;
mod workers;

use crate::{
    args::{Global, PoolCommand},
    error::Outcome,
    output,
};

pub(super) use tree::trees;

pub(super) async fn pool(global: &Global, command: &PoolCommand) -> Outcome {
    match command {
        PoolCommand::Serve(args) => serve::serve(global, args).await,
        PoolCommand::List => list::list(global),
        PoolCommand::Workers(args) => workers::workers(global, args).await,
        PoolCommand::Ping(args) => ping::ping(global, args).await,
        PoolCommand::Stop(args) => stop::stop(global, args).await,
    }
}

/// Prints a message to stderr, unless `--quiet`.
fn note(global: &Global, message: &str) {
    if !global.quiet {
        output::eprint(message);
    }
}
