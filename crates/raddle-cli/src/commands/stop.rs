//! `raddle worker stop`: stops workers, and waits for their exit.

use raddle_broker::{Broker, Error};
use raddle_model::{ControlCommand, ControlMessage, Tid, worker::kind};
use raddle_view::control::{CommandOutcome, UnansweredTask};
use tokio::time::Instant;

use super::control::BulkReport;
use crate::{
    args::StopArgs,
    context::Context,
    error::{Failure, Outcome},
    follow, tid as tids, worker,
};

pub(super) async fn stop(context: &Context, args: &StopArgs) -> Outcome {
    let broker = context.open_existing().await?;
    let workers: Vec<Tid> = if args.all {
        let mut workers = broker.workers().await?;
        // An ephemeral worker exits with its task.
        workers.retain(|worker| worker.info.kind != kind::INLINE && !worker.info.takes_calls());
        // Managers first, so that they do not replace their workers.
        workers.sort_by_key(|worker| !worker.info.queues.is_empty());
        workers.iter().map(|worker| worker.tid).collect()
    } else {
        let named = tids::resolve_all(&*broker, &args.tids).await?;
        for tid in &named {
            check_is_worker(&*broker, *tid).await?;
        }
        named
    };
    if workers.is_empty() {
        context.note("no worker is alive");
    }
    stop_workers(context, &*broker, workers, args).await
}

/// Stops these workers.
pub(super) async fn stop_workers(
    context: &Context,
    broker: &dyn Broker,
    workers: Vec<Tid>,
    args: &StopArgs,
) -> Outcome {
    let deadline = Instant::now() + args.timeout.0;
    let command = if args.kill {
        ControlCommand::Kill
    } else {
        ControlCommand::Stop
    };
    // Send all commands first, so that the workers stop side by side.
    let mut sent = Vec::new();
    for tid in workers {
        match broker.control(tid, ControlMessage::new(command)).await {
            Ok(_) | Err(Error::Finished(..)) => sent.push(tid),
            // Its spawner has stopped the worker.
            Err(Error::NotFound(_)) if args.all => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut report = BulkReport::default();
    for tid in sent {
        let answer = match follow::wait_until_finished(broker, tid, Some(deadline)).await {
            Ok(state) => Ok(CommandOutcome::Reached(state)),
            Err(Failure::TimedOut(_)) => read_unanswered(broker, tid, command).await,
            Err(failure) => Err(failure),
        };
        report.add(context, command, answer.map(|answer| (tid, answer)))?;
    }
    report.finish(context)
}

/// The state of a worker that has not stopped in time.
async fn read_unanswered(
    broker: &dyn Broker,
    tid: Tid,
    command: ControlCommand,
) -> Outcome<CommandOutcome> {
    let worker = tids::get_task(broker, tid).await?;
    Ok(CommandOutcome::NoReply(
        UnansweredTask::read(broker, &worker, command).await?,
    ))
}

/// Refuses a task that is no worker: `raddle worker stop` with a wrong id must not end a user's
/// task.
async fn check_is_worker(broker: &dyn Broker, tid: Tid) -> Outcome<()> {
    if let Some(entry) = broker
        .workers()
        .await?
        .into_iter()
        .find(|entry| entry.tid == tid)
        && broker.task(tid).await?.is_none()
    {
        if let Some(callee) = &entry.info.callee {
            let instead = format!(
                "'raddle pool stop --discovery broker:{} {}'",
                callee.namespace, callee.uid
            );
            return Err(Failure::Usage(format!(
                "worker {tid} takes calls, not control commands: stop it with {instead}"
            )));
        }
        let (pid, instead) = (
            entry.info.pid,
            "stop its task, or send SIGTERM to its process",
        );
        return Err(Failure::Usage(format!(
            "worker {tid} runs only one task: {instead} {pid}"
        )));
    }
    if worker::is_worker(&tids::get_task(broker, tid).await?) {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "task {tid} is not a worker: stop it with 'raddle task stop'"
    )))
}
