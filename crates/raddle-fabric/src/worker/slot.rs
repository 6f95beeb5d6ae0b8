//! A slot: one runner, and the attempt that runs in it.

use std::{
    collections::{BTreeMap, HashSet},
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use raddle_broker::{Broker, Claim, Fence, Finish};
use raddle_core::{CapSet, Exit, Report, Target, handler::NoHandler, manager::Charter, spec::Isolation};
use raddle_exec::{Done, FencePage, Notice, Order, Program, Request, Runner, RunnerGone, RunnerOptions};
use tokio::{sync::mpsc, task::JoinHandle};

use super::{
    bound::Bound,
    chaining::{pass_on, pass_on_at_last},
    conversation::{Conversation, Heard},
    hand,
    keeping::{Orders, store},
    reporter::Reporter,
    request,
};
use crate::{contained, handler::Plugins, leftovers};

/// What every slot of a worker needs.
pub(super) struct Equipment {
    pub(super) broker: Arc<dyn Broker>,
    pub(super) fence: Arc<FencePage>,
    pub(super) runner: PathBuf,
    /// Its runner is started ahead of the task, which is the only one.
    pub(super) one_shot: bool,
    pub(super) idle_title: String,
    pub(super) grace: Duration,
    pub(super) bound: Bound,
    /// For tasks whose spec does not set it otherwise.
    pub(super) env: BTreeMap<String, String>,
    /// How far every task is kept apart, at least.
    pub(super) min_isolation: Isolation,
    /// What containers of tasks are made from.
    pub(super) task_image: Option<String>,
    /// The capabilities of the worker, and its handlers.
    pub(super) caps: CapSet,
    pub(super) plugins: Arc<Plugins>,
    /// What its manager may spawn, if it has one that is asked.
    pub(super) charter: Option<Arc<Charter>>,
    /// Why tasks were given back for which no handler fits, as far as it has been said.
    pub(super) said: Mutex<HashSet<String>>,
    /// The children that this process had before it was a worker: they have nothing to do with tasks.
    pub(super) strangers: Arc<[u32]>,
}

/// How many different reasons for giving tasks back are told apart.
const REASONS: usize = 1000;

impl Equipment {
    /// The end of an attempt that no handler here may run. Said once: such tasks come again and again.
    pub(super) fn unfit(&self, none: &NoHandler) -> Exit {
        let message = none.to_string();
        self.give_back(&message);
        Exit::Unfit { message }
    }

    /// Says why tasks are given back.
    fn give_back(&self, message: &str) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() < REASONS && said.insert(message.to_owned()) {
            tracing::warn!("tasks are given back: {message}");
        }
    }
}

/// What a slot tells its worker.
pub(super) struct News {
    pub(super) slot: usize,
    pub(super) fence: Fence,
    pub(super) what: What,
}

pub(super) enum What {
    /// The target has begun.
    Started { pid: u32 },
    /// The attempt is over, and the slot is free.
    Ended(Box<Finish>),
}

/// The worker's end of a slot.
pub(super) struct Slot {
    jobs: mpsc::UnboundedSender<Job>,
    task: JoinHandle<()>,
}

/// What a slot can be told. At most one claim and a few orders are ever under way, so the channel needs no bound.
pub(super) enum Job {
    Run(Box<Claim>),
    Order(Order),
}

impl Slot {
    pub(super) fn start(number: usize, equipment: Arc<Equipment>, news: mpsc::UnboundedSender<News>) -> Self {
        let (jobs, queue) = mpsc::unbounded_channel();
        let task = tokio::spawn(
            Occupant {
                number,
                equipment,
                news,
                runner: None,
                reporter: OnceLock::new(),
                #[cfg(feature = "docker")]
                sweeping: None,
            }
            .run(queue),
        );
        Self { jobs, task }
    }

    /// Runs an attempt. The slot must be free.
    pub(super) fn run(&self, claim: Box<Claim>) {
        let _ = self.jobs.send(Job::Run(claim));
    }

    /// Passes on an order about what runs; ignored when nothing does.
    pub(super) fn order(&self, order: Order) {
        let _ = self.jobs.send(Job::Order(order));
    }

    /// Ends the slot and its runner.
    pub(super) async fn close(self) {
        drop(self.jobs);
        let _ = self.task.await;
    }
}

struct Occupant {
    number: usize,
    equipment: Arc<Equipment>,
    news: mpsc::UnboundedSender<News>,
    /// Started with the first task and kept for the next.
    runner: Option<Runner>,
    /// Started with the first word of progress.
    reporter: OnceLock<Reporter>,
    /// Looking for what a leash that was killed has left. It is waited for.
    #[cfg(feature = "docker")]
    sweeping: Option<JoinHandle<()>>,
}

impl Occupant {
    async fn run(mut self, mut queue: mpsc::UnboundedReceiver<Job>) {
        if self.equipment.one_shot {
            // Start the runner ahead of the task: a warm worker has its start-up behind it. If that fails, the task tries again.
            self.runner = self.ready_runner().await.ok();
        }
        while let Some(job) = queue.recv().await {
            // An order that finds nothing running has crossed the end of its task.
            let Job::Run(claim) = job else { continue };
            let fence = claim.fence;
            let finish = self.attempt(*claim, &mut queue).await;
            self.tell(fence, What::Ended(Box::new(finish)));
        }
        if let Some(runner) = self.runner {
            runner.close().await;
        }
        #[cfg(feature = "docker")]
        if let Some(sweeping) = self.sweeping {
            let _ = sweeping.await;
        }
    }

    async fn attempt(&mut self, claim: Claim, queue: &mut mpsc::UnboundedReceiver<Job>) -> Finish {
        let Claim { fence, spec } = claim;
        leftovers::of_earlier_attempts(&*self.equipment.broker, fence).await;
        // What it chains is of its trace, unless that says otherwise. Commands do not answer.
        let trace = (!matches!(spec.target, Target::Command(_))).then(|| spec.trace(fence.tid, fence.attempt));
        let (request, answers_on) = match request::of(&self.equipment, fence, spec) {
            Ok(order) => order,
            Err(exit) => return ended(fence, exit),
        };
        let may_chain = request.sandbox.is_none();
        let mut conversation = answers_on.zip(trace).map(|(on, trace)| Conversation::new(on, trace, may_chain));
        let is_contained = matches!(request.program, Program::Keeper(_));
        let mut answer = is_contained.then(Vec::new);
        let mut runner = match self.ready_runner().await {
            Ok(runner) => runner,
            Err(error) => {
                return ended(fence, Exit::Starved { message: format!("no process could be started for it: {error}") });
            }
        };
        self.equipment.bound.begun(self.number, &request);
        let watched = self.watch(&mut runner, &request, fence, queue, &mut conversation, &mut answer).await;
        self.equipment.bound.over(self.number);
        match watched {
            Ok(mut done) => {
                self.runner = Some(runner);
                if let Some(mut answer) = answer {
                    answer.append(&mut done.reply);
                    self.judge(&mut done, &answer, fence).await;
                }
                self.finish(fence, *done, conversation).await
            }
            // Its leash was killed with it.
            Err(gone) if is_contained && !gone.never_began() => {
                self.unleashed(fence).await;
                self.forsaken(fence, &gone, runner).await
            }
            Err(gone) if gone.never_began() => {
                ended(fence, Exit::Starved { message: "the system gave its runner less than a process needs".into() })
            }
            Err(gone) => self.forsaken(fence, &gone, runner).await,
        }
    }

    /// The end of an attempt whose runner was killed.
    async fn forsaken(&self, fence: Fence, gone: &RunnerGone, runner: Runner) -> Finish {
        hand::log!(warn, fence, %gone, "the runner was killed, and its task with it");
        drop(runner);
        // What the command had started was adopted by this process when the runner died.
        let keep = Arc::clone(&self.equipment.strangers);
        let _ = tokio::task::spawn_blocking(move || raddle_exec::reap_orphans(&keep)).await;
        ended(fence, Exit::Killed)
    }

    /// What has become of a container, whose leash gave this answer.
    async fn judge(&mut self, done: &mut Done, answer: &[u8], fence: Fence) {
        contained::judge(done, answer);
        if answer.is_empty() {
            self.unleashed(fence).await;
        }
        if let Exit::Unfit { message } = &done.exit {
            self.equipment.give_back(message);
        }
    }

    /// A leash was killed, and may have just asked for a container, or have one that is about to end.
    async fn unleashed(&mut self, fence: Fence) {
        #[cfg(feature = "docker")]
        {
            contained::end(fence).await;
            self.sweeping = Some(tokio::spawn(contained::sweep()));
        }
        #[cfg(not(feature = "docker"))]
        let _ = fence;
    }

    /// The runner, started or started anew: one may have been killed while it had nothing to do.
    async fn ready_runner(&mut self) -> std::io::Result<Runner> {
        if let Some(mut runner) = self.runner.take()
            && runner.is_alive()
        {
            return Ok(runner);
        }
        let Equipment { fence, runner, idle_title, .. } = &*self.equipment;
        Runner::spawn(&RunnerOptions {
            program: runner.clone(),
            title_idle: idle_title.clone(),
            fence: Some(Arc::clone(fence)),
        })
        .await
    }

    async fn watch(
        &self,
        runner: &mut Runner,
        request: &Request,
        fence: Fence,
        queue: &mut mpsc::UnboundedReceiver<Job>,
        conversation: &mut Option<Conversation>,
        answer: &mut Option<Vec<u8>>,
    ) -> Result<Box<Done>, RunnerGone> {
        runner.start(request).await?;
        let broker = &*self.equipment.broker;
        let mut orders = Orders::new(queue, |order| self.equipment.bound.told(self.number, order));
        loop {
            tokio::select! {
                notice = runner.next() => match notice? {
                    Notice::Started { pid } => self.tell(fence, What::Started { pid }),
                    Notice::Output { stream: raddle_exec::Stream::Reply, bytes } if answer.is_some() => {
                        // Not known to anybody else until the attempt is over, and so not kept.
                        answer.iter_mut().for_each(|answer| answer.extend_from_slice(&bytes));
                    }
                    Notice::Output { stream, bytes } => match conversation {
                        Some(with) if with.is_on(stream) => {
                            let Heard { log, progress, chained, is_garbled } = with.hear(&bytes);
                            if let Some(progress) = progress {
                                let start = || Reporter::start(Arc::clone(&self.equipment.broker));
                                self.reporter.get_or_init(start).tell(fence, progress);
                            }
                            if !log.is_empty() {
                                let storing = store(broker, fence, raddle_exec::Stream::Stderr, log);
                                orders.obey_while(storing, fence, runner).await?;
                            }
                            if !chained.is_empty() {
                                let passing = pass_on(broker, with.chain(fence, chained));
                                with.passed_on(orders.obey_during(passing, runner).await?);
                            }
                            if is_garbled || with.is_just_refused() {
                                runner.send(Order::Kill).await?;
                            }
                        }
                        _ => orders.obey_while(store(broker, fence, stream, bytes), fence, runner).await?,
                    },
                    Notice::Done(done) => return Ok(done),
                    _ => {}
                },
                job = orders.next() => orders.obey(job, runner).await?,
            }
        }
    }

    /// The end of an attempt that gave an account of itself. What it said last may still be to be passed on.
    async fn finish(&self, fence: Fence, done: Done, conversation: Option<Conversation>) -> Finish {
        let Done { exit, usage, mut stdout_bytes, mut stderr_bytes, mut stdout, mut stderr, reply, .. } = done;
        let (exit, value) = match conversation {
            None => (exit, None),
            Some(mut with) => {
                // What a handler says to us is no output of its task; what it wants in the log is.
                let rest = if with.is_on(raddle_exec::Stream::Stdout) {
                    stdout_bytes = 0;
                    std::mem::take(&mut stdout)
                } else {
                    reply
                };
                let Heard { log, chained, .. } = with.hear_out(&rest);
                stderr.extend(log);
                stderr_bytes += with.logged();
                // Nothing follows what has not succeeded.
                if exit.is_success() && !chained.is_empty() {
                    let passing = pass_on_at_last(&*self.equipment.broker, with.chain(fence, chained));
                    with.passed_on(passing.await);
                }
                with.conclude(exit)
            }
        };
        let (started_at, ended_at) = (done.started_at, done.ended_at);
        let report = Report { exit, started_at, ended_at, usage, stdout_bytes, stderr_bytes, value };
        Finish { fence, report, stdout, stderr }
    }

    fn tell(&self, fence: Fence, what: What) {
        let _ = self.news.send(News { slot: self.number, fence, what });
    }
}

/// The end of an attempt that has nothing else to tell.
pub(super) fn ended(fence: Fence, exit: Exit) -> Finish {
    let report = Report::bare(exit, Timestamp::now());
    Finish { fence, report, stdout: Vec::new(), stderr: Vec::new() }
}
