//! `raddle top`: the terminal UI.

use std::io::{self, IsTerminal};

use crate::{
    args::TopArgs,
    context::Context,
    error::{OrFail, Outcome},
    output,
};

/// The size of the frame that is printed without a terminal: all sections of the overview fit.
const FRAME: (u16, u16) = (120, 80);

pub(super) async fn top(context: &Context, args: &TopArgs) -> Outcome {
    let query = args.query.join(" ").parse()?;
    let broker = context.open_existing().await?;
    let options = raddle_top::Options {
        broker: context.project.url.to_string(),
        query,
        colours: output::shows_colours(),
    };
    if context.json || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let (data, text) = raddle_top::print_frame(&*broker, options, FRAME).await?;
        return context.show(&data, || text);
    }
    raddle_top::run(broker, options)
        .await
        .or_raddle_at("cannot use the terminal")?;
    Ok(0)
}
