//! `raddle worker stop`.

use raddle_broker::{Broker, Error};
use raddle_model::{ControlCommand, ControlMessage, Tid, worker::kind};
use tokio::time::Instant;

use super::control::{BulkReport, CommandOutcome, UnansweredTask};
use crate::{
    args::StopArgs,
    context::Context,
    error::{Failure, Outcome},
    follow, tid as tids, worker,
};

pub(super) async fn stop(context: &Context, args: &StopArgs) -> Outcome {
    let broker = context.open_read_only().await?;
    let workers: Vec<Tid> = if args.all {
        let mut workers = broker.workers().await?;
        // An ephemeral worker leaves with its task.
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
    stop_these(context, &*broker, workers, args).await
}

/// Stops these workers.
pub(super) async fn stop_these(
    context: &Context,
    broker: &dyn Broker,
    workers: Vec<Tid>,
    args: &StopArgs,
) -> Outcome {
    let deadline = Instant::now() + args.timeout.0;
    let word = if args.kill {
        ControlCommand::Kill
    } else {
        ControlCommand::Stop
    };
    // Send all commands first, so that the workers stop side by side.
    let mut told = Vec::new();
    for tid in workers {
        match broker.control(tid, ControlMessage::new(word)).await {
            Ok(_) | Err(Error::Finished(..)) => told.push(tid),
            // Its spawner has stopped it.
            Err(Error::NotFound(_)) if args.all => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut report = BulkReport::default();
    for tid in told {
        let answer = match follow::until_finished(broker, tid, Some(deadline)).await {
            Ok(state) => Ok(CommandOutcome::Became(state)),
            Err(Failure::TimedOut(_)) => silence(broker, tid, word).await,
            Err(failure) => Err(failure),
        };
        report.add(context, word, answer.map(|answer| (tid, answer)))?;
    }
    report.end(context)
}

/// The state of a worker that has not stopped in time.
async fn silence(broker: &dyn Broker, tid: Tid, word: ControlCommand) -> Outcome<CommandOutcome> {
    let worker = tids::get_task(broker, tid).await?;
    Ok(CommandOutcome::Nothing(
        UnansweredTask::of(broker, &worker, word).await?,
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
                "worker {tid} takes calls, and no words from a broker: {instead} stops it"
            )));
        }
        let (pid, instead) = (
            entry.info.pid,
            "stop its task, or send SIGTERM to its process",
        );
        return Err(Failure::Usage(format!(
            "worker {tid} is there for one task: {instead}, which is {pid}"
        )));
    }
    if worker::is_worker(&tids::get_task(broker, tid).await?) {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "task {tid} is not a worker: stop it with 'raddle task stop'"
    )))
}
