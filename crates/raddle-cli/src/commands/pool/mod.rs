//! `raddle pool`: the pools of this user on this machine, as far as they can be found and asked, and workers for them. None of it needs a broker.

mod ask;
mod credentials;
mod find;
mod list;
mod metrics;
mod ping;
mod publish;
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
        PoolCommand::Workers { pool } => workers::workers(global, pool.as_deref()).await,
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
