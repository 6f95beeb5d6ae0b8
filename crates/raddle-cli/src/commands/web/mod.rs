//! `raddle web`: the operator's interface, its sign-in links and its tokens.

mod files;
mod open;
mod serve;
mod token;

use crate::{
    args::{WebArgs, WebCommand},
    context::Context,
    error::Outcome,
};

pub(super) async fn web(context: &Context, args: WebArgs) -> Outcome {
    match args.command {
        None => serve::serve(context, &args.serve).await,
        Some(WebCommand::Open { what, url }) => open::open(context, what, url).await,
        Some(WebCommand::Token(command)) => token::token(context, command).await,
    }
}
