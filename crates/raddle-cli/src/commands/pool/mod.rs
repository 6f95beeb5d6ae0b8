//! `raddle pool`: pools and their workers, as far as they can be found and asked, and workers for them. None of it needs a broker, unless
//! somebody wants to find workers by one.

mod ask;
mod credentials;
mod find;
mod list;
mod metrics;
mod ping;
mod serve;
mod stop;
mod tree;
mod ways;
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

/// Tells the user something that is not data, unless told to be quiet.
fn note(global: &Global, message: &str) {
    if !global.quiet {
        output::complain(message);
    }
}
