//! `raddle metrics serve`: what waits in a broker, for Prometheus.

use raddle_fabric::metrics::Exporter;
use serde_json::json;

use crate::{
    args::ServeArgs,
    context::Context,
    error::{Failure, Outcome},
    interrupt::Interrupts,
    metrics, output,
};

pub(super) async fn serve(context: &Context, args: &ServeArgs) -> Outcome {
    let nowhere = || Failure::Usage("there is nowhere to listen".into());
    let server = metrics::bind(&args.into()).await?.ok_or_else(nowhere)?;
    let mut interrupts = Interrupts::catch()?;
    let broker = context.broker_of_worker().await?;
    let url = server.url();
    let serving = server.serve(metrics::queue_page(Exporter::new(broker), |_| ()));
    if context.json {
        output::json(&json!({ "metrics": url, "pid": std::process::id() }))?;
    } else {
        output::line(url)?;
    }
    interrupts.next().await;
    drop(serving);
    Ok(0)
}
