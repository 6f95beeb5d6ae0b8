//! `raddle worker stop`.

use raddle_broker::{Broker, Error};
use raddle_core::{Control, Target, Tid, Word};
use tokio::time::Instant;

use super::control::{Answer, Report};
use crate::{
    args::StopArgs,
    context::Context,
    error::{Failure, Outcome},
    follow, tid as tids,
};

pub(super) async fn stop(context: &Context, args: &StopArgs) -> Outcome {
    let broker = context.onlooker().await?;
    let deadline = Instant::now() + args.timeout.0;
    let word = if args.kill { Word::Kill } else { Word::Stop };
    let workers = if args.all {
        broker.workers().await?.iter().map(|worker| worker.tid).collect()
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
    // All of them are told first, so that they end side by side.
    for tid in &workers {
        match broker.control(*tid, Control::new(word)).await {
            Ok(_) | Err(Error::Finished(..)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut report = Report::default();
    for tid in workers {
        let answer = match follow::until_finished(&*broker, tid, Some(deadline)).await {
            Ok(state) => Ok(Answer::Became(state)),
            Err(Failure::TimedOut(_)) => tids::view(&*broker, tid).await.map(|worker| Answer::Nothing(worker.state)),
            Err(failure) => Err(failure),
        };
        report.add(context, word, answer.map(|answer| (tid, answer)))?;
    }
    report.end(context)
}

/// Refuses a task that is none of ours: `raddle worker stop` with the wrong id must not end somebody's work.
async fn check_is_worker(broker: &dyn Broker, tid: Tid) -> Outcome<()> {
    match tids::view(broker, tid).await?.spec.target {
        Target::Service(_) => Ok(()),
        _ => Err(Failure::Usage(format!("task {tid} is not a worker: stop it with 'raddle task stop'"))),
    }
}
