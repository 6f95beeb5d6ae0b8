//! `raddle metrics serve`: metrics of a broker for Prometheus.

use raddle_telemetry::metrics::QueueExporter;
use serde_json::json;

use crate::{args::ServeArgs, context::Context, error::Outcome, interrupt::Interrupts, metrics};

pub(super) async fn serve(context: &Context, args: &ServeArgs) -> Outcome {
    let server = metrics::bind(args.metrics_addr, args.metrics_public).await?;
    let mut interrupts = Interrupts::install()?;
    let broker = context.open_for_worker().await?;
    let url = server.url();
    let serving = server.serve(metrics::queue_page(QueueExporter::new(broker), |_| ()));
    context.show(
        &json!({ "metrics": url, "pid": std::process::id() }),
        || format!("{url}\n"),
    )?;
    interrupts.next().await;
    drop(serving);
    Ok(0)
}
