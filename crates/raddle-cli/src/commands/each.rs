//! `raddle run --each-line` and `--array`: a batch of tasks that run inside this process.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use indicatif::ProgressBar;
use raddle_broker::{Broker, OutputStream};
use raddle_client::{routine::Routines, wait::MAX_WAIT};
use raddle_model::{TaskSpec, TaskState, TaskView, Tid, spec::RUN_QUEUE_PREFIX};
use raddle_view::task::{copy_output, result_record};
use raddle_worker::{
    Options, Shutdown, Worker, plugins::Plugins, run::can_run_inline, worker::WorkerEnd,
};
use tokio::time::timeout;

use super::{batch, submit};
use crate::{
    args::RunArgs,
    context::Context,
    error::{Failure, INTERRUPTED, Outcome, TASK_FAILED},
    format::count,
    interrupt::Interrupts,
    output, progress, spec, tid,
};

/// How many events are read at once.
const EVENTS_AT_ONCE: u32 = 1000;
/// How long the worker may take to stop after its last task.
const STOP_WITHIN: Duration = Duration::from_secs(10);

pub(super) async fn run_each(context: &Context, args: &RunArgs, mut template: TaskSpec) -> Outcome {
    if args.no_wait || args.no_inline || args.spec.queue.is_some() || !can_run_inline(&template) {
        let instead =
            "use 'raddle submit' to have workers run them, and 'raddle batch wait' to wait";
        return Err(Failure::Usage(format!(
            "'run' with --each-line or --array runs its tasks without workers: {instead}"
        )));
    }
    let (items, _) = submit::read_items(&args.items, args.spec.stdin)?
        .expect("the caller has checked that there are items");
    let name = template.batch.get_or_insert_with(spec::new_batch).clone();
    // A private queue: other workers have another environment.
    let queue = format!("{RUN_QUEUE_PREFIX}{}", spec::new_batch());
    template.queue.clone_from(&queue);
    let mut interrupts = Interrupts::install()?;
    let broker = context.open_broker().await?;
    // Read before the tasks exist, so that no end is missed.
    let last_event = broker.last_event().await?;
    let storing = store(
        &*broker,
        items.map(|item| spec::fill_template(&template, &item?)),
    );
    let unfinished = tokio::select! {
        unfinished = storing => unfinished?,
        () = interrupts.next() => {
            // Some tasks may be stored already, in a queue that no worker serves.
            super::batch::stop_all(&*broker, &name).await?;
            return Ok(super::run::interrupted(context));
        }
    };
    let shutdown = Shutdown::new();
    let registering = register(&broker, &queue, args.jobs);
    let Some(worker) = interrupts
        .start_unless_interrupted(&shutdown, registering)
        .await
    else {
        super::batch::stop_all(&*broker, &name).await?;
        return Ok(super::run::interrupted(context));
    };
    let worker = worker?;
    let bar = progress::finished(unfinished.len() as u64, !context.json && !context.quiet);
    let run = EachLineRun {
        context,
        broker: &*broker,
        name: &name,
        queue: &queue,
        unfinished,
        last_event,
        bar,
        failed: 0,
    };
    run.follow(worker.run(shutdown.clone()), &shutdown, interrupts)
        .await
}

/// Stores the tasks in groups, each whole or not at all.
async fn store(
    broker: &dyn Broker,
    specs: impl Iterator<Item = Outcome<TaskSpec>>,
) -> Outcome<BTreeSet<Tid>> {
    let (mut group, mut stored) = (submit::SubmitBatch::default(), BTreeSet::new());
    let mut groups = Vec::new();
    // Parse all lines first: an invalid line must not surface after an hour of work.
    for spec in specs {
        groups.extend(group.add(spec?));
    }
    groups.push(group.tasks);
    for group in groups {
        stored.extend(
            broker
                .submit(group)
                .await?
                .into_iter()
                .map(|submitted| submitted.tid()),
        );
    }
    Ok(stored)
}

/// Registers the worker that runs them in this process.
async fn register(broker: &Arc<dyn Broker>, queue: &str, jobs: Option<u32>) -> Outcome<Worker> {
    let cores = Options::resident().concurrency;
    let options = Options {
        queues: vec![queue.into()],
        concurrency: jobs.unwrap_or(cores),
        ..Options::inline(None)
    };
    let routines =
        Routines::of_this_program().map_err(|clash| Failure::Raddle(clash.to_string()))?;
    Ok(Worker::register(
        Arc::clone(broker),
        options.offering(&routines, Plugins::default()),
    )
    .await?)
}

struct EachLineRun<'a> {
    context: &'a Context,
    broker: &'a dyn Broker,
    name: &'a str,
    /// The queue that only the worker of this run serves.
    queue: &'a str,
    /// The unfinished tasks.
    unfinished: BTreeSet<Tid>,
    /// The last event that was read.
    last_event: u64,
    bar: ProgressBar,
    /// How many did not complete.
    failed: u64,
}

impl EachLineRun<'_> {
    async fn follow(
        mut self,
        working: impl Future<Output = raddle_broker::Result<WorkerEnd>>,
        shutdown: &Shutdown,
        mut interrupts: Interrupts,
    ) -> Outcome {
        let (broker, mut interrupted, mut failure) = (self.broker, 0, None);
        let mut working = Box::pin(working);
        while !self.unfinished.is_empty() {
            let events = tokio::select! {
                biased;
                events = broker.events(Some(self.last_event), None, EVENTS_AT_ONCE, MAX_WAIT) => events?,
                ended = &mut working => {
                    ended?;
                    let (left, name, queue) = (count(self.unfinished.len() as u64, "task"), self.name, self.queue);
                    return Err(Failure::Raddle(format!(
                        "the worker of this run was stopped before {left} of batch {name} ended: \
                         run the rest with 'raddle worker start --queues {queue}'"
                    )));
                }
                () = interrupts.next() => {
                    interrupted += 1;
                    self.interrupt(interrupted, shutdown).await?;
                    if interrupted > 2 {
                        return Ok(INTERRUPTED);
                    }
                    continue;
                }
            };
            for event in events {
                self.last_event = event.id.as_u64();
                if event.event.is_terminal() && self.unfinished.remove(&event.tid) {
                    let shown = self.show(event.tid).await;
                    if let (Err(error), None) = (shown, &failure) {
                        // The output cannot be written: stop the tasks, as `raddle run` does.
                        batch::stop_all(broker, self.name).await?;
                        failure = Some(error);
                    }
                }
            }
        }
        shutdown.request();
        if let Ok(ended) = timeout(STOP_WITHIN, working).await {
            ended?;
        }
        self.bar.finish_and_clear();
        match failure {
            Some(failure) => Err(failure),
            None if interrupted > 0 => Ok(INTERRUPTED),
            None => Ok(if self.failed > 0 { TASK_FAILED } else { 0 }),
        }
    }

    /// The first signal stops all tasks, the second kills the running ones.
    async fn interrupt(&self, times: u32, shutdown: &Shutdown) -> Outcome<()> {
        let name = self.name;
        let note = |text: String| self.bar.suspend(|| self.context.note(text));
        match times {
            1 => {
                note(format!(
                    "stopping batch {name}; interrupt again to kill running tasks"
                ));
                batch::stop_all(self.broker, name).await
            }
            2 => {
                note(format!("killing the running tasks of batch {name}"));
                batch::kill_all(self.broker, name).await
            }
            _ => {
                shutdown.kill();
                Ok(())
            }
        }
    }

    /// Prints the output and the end of a task.
    async fn show(&mut self, tid: Tid) -> Outcome<()> {
        let task = tid::get_task(self.broker, tid).await?;
        self.failed += u64::from(task.state != TaskState::Completed);
        self.bar.inc(1);
        if self.failed > 0 {
            self.bar.set_message(format!(" ({} failed)", self.failed));
        }
        if self.context.json {
            let record = result_record(self.broker, &task).await?;
            return output::print_json(&record);
        }
        for stream in OutputStream::BOTH {
            let write = |bytes: &[u8]| self.bar.suspend(|| output::forward(stream, bytes));
            copy_output(self.broker, tid, task.attempt, stream, write).await?;
        }
        if task.state != TaskState::Completed {
            self.bar.suspend(|| self.context.note(describe_end(&task)));
        }
        Ok(())
    }
}

fn describe_end(task: &TaskView) -> String {
    let exit = task
        .report
        .as_ref()
        .map(|report| format!(": {}", report.exit))
        .unwrap_or_default();
    let item = task
        .spec
        .env
        .get(spec::ITEM)
        .map(|item| format!(" for '{item}'"))
        .unwrap_or_default();
    format!("task {}{item} is {}{exit}", task.tid, task.state)
}
