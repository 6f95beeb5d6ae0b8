//! `raddle schedule run`: a worker that takes no tasks, and fires schedules.

use raddle_fabric::{Options, Shutdown, Worker};
use serde_json::json;

use crate::{args::ScheduleRunArgs, context::Context, error::Outcome, interrupt::Interrupts, output};

pub(super) async fn run(context: &Context, args: &ScheduleRunArgs) -> Outcome {
    let broker = context.broker_of_worker().await?;
    let mut interrupts = Interrupts::catch()?;
    let options = Options { name: args.name.clone(), ..Options::scheduler() };
    let worker = Worker::register(broker, options).await?;
    let tid = worker.tid();
    if context.json {
        output::json(&json!({ "tid": tid, "pid": std::process::id() }))?;
    } else {
        output::line(tid.to_string())?;
    }
    let shutdown = Shutdown::new();
    let mut working = Box::pin(worker.run(shutdown.clone()));
    loop {
        tokio::select! {
            ended = &mut working => {
                ended?;
                return Ok(0);
            }
            () = interrupts.next() => shutdown.request(),
        }
    }
}
