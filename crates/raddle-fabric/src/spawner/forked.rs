//! The launcher whose workers are wards: forked by a zygote, and spoken for by this process, for as long as there is a zygote. After that
//! workers are started as processes: a spawner does not end because of it.
//!
//! Each ward is a worker with an id and a lease of its own. What it costs is one process: claims, leases and results of all of them go
//! through the one broker that is open here, where they are written together.
//!
//! A worker is over after its task, and so is the process that the task ran in, which was forked for it. What watched over that process has
//! seen nothing of the task but its frames, and keeps its *seat* for a moment: the next worker that is launched takes it, where tasks
//! come faster than processes can be made and thrown away.

use std::{
    collections::{HashMap, VecDeque},
    io,
    sync::Arc,
};

use async_trait::async_trait;
use raddle_broker::Broker;
use raddle_core::{Tid, worker::WorkerInfo};
use raddle_exec::{Milestone, Nursery, Prefork, Told, Zygote};
use tokio::{
    sync::mpsc,
    time::{Duration, Instant},
};

use super::{
    launcher::{Gone, Id, LaunchError, Launcher, News, Tell},
    process::{Processes, Template},
};
use crate::{
    Options, Shutdown, Worker,
    worker::{EndReason, Ended},
};

/// How a worker is to be, asked anew for each; or why there can be none.
pub type Make = Box<dyn Fn() -> Result<Options, String> + Send>;

/// Forks workers.
pub struct Forks {
    nursery: Option<Nursery>,
    broker: Arc<dyn Broker>,
    make: Make,
    /// By their processes, as are all below.
    wards: HashMap<u32, Ward>,
    /// From those that speak for wards: at most three for each, so the channel needs no bound.
    said: mpsc::UnboundedReceiver<(u32, Said)>,
    say: mpsc::UnboundedSender<(u32, Said)>,
    /// Wards that are no worker at present, the one that has waited longest first.
    seats: VecDeque<Seat>,
    /// Nobody is to be launched any more.
    closing: bool,
    /// Wards that nobody will tell of any more.
    lost: VecDeque<(u32, Gone)>,
    instead: Processes,
}

/// A worker that is spoken for here.
struct Ward {
    shutdown: Shutdown,
    /// The process, for as long as it is not let go of.
    prefork: Option<Prefork>,
    /// How its process ended, if it has.
    gone: Option<Gone>,
    /// Whether nothing is left to be written of it, and whether that went well.
    over: Option<bool>,
}

/// A ward that waits to be a worker again.
struct Seat {
    id: u32,
    prefork: Prefork,
    since: Instant,
}

/// What is said by who speaks for a ward.
enum Said {
    Ready(Tid),
    Begun,
    /// It has left the registry.
    Over(Parting),
}

/// How a worker has left.
enum Parting {
    Failed,
    /// It was not needed.
    Idle,
    /// It has had its task.
    Done,
}

/// How long a seat is kept. Under load it is taken within milliseconds; what nobody takes in this time is not worth its memory.
const SEAT_KEPT: Duration = Duration::from_secs(1);

/// The exit code of a worker that could not be one.
const FAILED: i32 = 125;

impl Forks {
    /// Forks workers from `zygote`, each as `make` says, and starts them from `instead` when it is gone.
    pub fn new(zygote: Zygote, broker: Arc<dyn Broker>, make: Make, instead: Template) -> io::Result<Self> {
        let nursery = Some(zygote.open()?);
        let (say, said) = mpsc::unbounded_channel();
        let (wards, seats, lost) = (HashMap::new(), VecDeque::new(), VecDeque::new());
        let instead = Processes::new(instead);
        Ok(Self { nursery, broker, make, wards, said, say, seats, closing: false, lost, instead })
    }

    /// Goes on without the zygote. Its wards go on as well; nobody tells how they end.
    fn give_up(&mut self, error: &io::Error) {
        tracing::warn!(%error, "the zygote is gone: workers are started as processes from now on");
        self.nursery = None;
        self.seats.clear();
        for (id, ward) in &mut self.wards {
            ward.gone.get_or_insert(Gone::Code(0));
            self.lost.extend(ward.ended().map(|gone| (*id, gone)));
        }
        self.wards.retain(|_, ward| ward.ended().is_none());
    }

    fn speak_for(&mut self, id: u32, prefork: Prefork, spawner: Tid) {
        let shutdown = Shutdown::new();
        let (broker, say) = (Arc::clone(&self.broker), self.say.clone());
        let own = |options| Options { prefork: Some(prefork.clone()), parent: Some(spawner), ..options };
        let options = (self.make)().map(own);
        self.wards.insert(id, Ward { shutdown: shutdown.clone(), prefork: Some(prefork), gone: None, over: None });
        // It ends with its worker, of which it says so.
        tokio::spawn(async move {
            let parting = match options {
                Ok(options) => keep(id, broker, options, shutdown, &say).await,
                Err(reason) => {
                    tracing::error!("{reason}");
                    Parting::Failed
                }
            };
            let _ = say.send((id, Said::Over(parting)));
        });
    }

    fn told(&mut self, Told { pid, what }: Told) -> Option<(u32, News)> {
        let gone = match what {
            Milestone::Forked => return None,
            Milestone::Exited(code) => Gone::Code(code),
            Milestone::Killed(signal) => Gone::Signal(signal),
        };
        self.seats.retain(|seat| seat.id != pid);
        let ward = self.wards.get_mut(&pid)?;
        ward.gone = Some(gone);
        // It has nothing to speak for any more. If it has said all, it does not hear this.
        ward.shutdown.request();
        self.settle(pid)
    }

    fn heard(&mut self, id: u32, said: Said) -> Option<(u32, News)> {
        match said {
            Said::Ready(tid) => Some((id, News::Ready(tid))),
            Said::Begun => Some((id, News::Begun)),
            Said::Over(parting) => {
                let ward = self.wards.get_mut(&id)?;
                ward.over = Some(!matches!(parting, Parting::Failed));
                let may_stay = matches!(parting, Parting::Done) && !self.closing && self.nursery.is_some();
                // One that is let go of leaves, and its zygote tells.
                let prefork = ward.prefork.take().filter(|prefork| may_stay && prefork.is_waiting());
                if let (Some(prefork), None) = (prefork, ward.gone) {
                    ward.gone = Some(Gone::Code(0));
                    self.seats.push_back(Seat { id, prefork, since: Instant::now() });
                } else if self.nursery.is_none() {
                    ward.gone.get_or_insert(Gone::Code(0));
                }
                self.settle(id)
            }
        }
    }

    /// Whether a worker is gone, and all about it is written.
    fn settle(&mut self, id: u32) -> Option<(u32, News)> {
        let gone = self.wards.get(&id)?.ended()?;
        self.wards.remove(&id);
        Some((id, News::Gone(gone)))
    }
}

impl Ward {
    fn ended(&self) -> Option<Gone> {
        match (self.gone?, self.over?) {
            (Gone::Code(0), false) => Some(Gone::Code(FAILED)),
            (gone, _) => Some(gone),
        }
    }
}

/// Speaks for a ward until it is over. Returns how that was.
async fn keep(
    id: u32,
    broker: Arc<dyn Broker>,
    options: Options,
    shutdown: Shutdown,
    say: &mpsc::UnboundedSender<(u32, Said)>,
) -> Parting {
    let worker = match Worker::register(broker, options).await {
        Ok(worker) => worker,
        Err(error) => {
            tracing::error!(%error, "a worker cannot be registered");
            return Parting::Failed;
        }
    };
    let _ = say.send((id, Said::Ready(worker.tid())));
    let mut begun = worker.begun();
    let mut working = Box::pin(worker.run(shutdown));
    let mut tells = true;
    loop {
        tokio::select! {
            ended = &mut working => {
                return match ended {
                    Ok(Ended { reason: EndReason::Done, .. }) => Parting::Done,
                    Ok(_) => Parting::Idle,
                    Err(error) => {
                        tracing::error!(pid = id, %error, "a worker failed");
                        Parting::Failed
                    }
                };
            }
            _ = begun.changed(), if tells => {
                tells = false;
                let _ = say.send((id, Said::Begun));
            }
        }
    }
}

#[async_trait]
impl Launcher for Forks {
    async fn launch(&mut self, spawner: Tid) -> Result<Id, LaunchError> {
        while let Some(Seat { id, prefork, .. }) = self.seats.pop_back() {
            if prefork.is_waiting() {
                self.speak_for(id, prefork, spawner);
                return Ok(Id::process(id));
            }
        }
        if let Some(nursery) = &mut self.nursery {
            match nursery.fork().await {
                Ok(prefork) => {
                    let (id, _) = prefork.worker_process();
                    self.speak_for(id, prefork, spawner);
                    return Ok(Id::process(id));
                }
                // The system gives no process now.
                Err(error) if matches!(error.kind(), io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock) => {
                    return Err(error.into());
                }
                Err(error) => self.give_up(&error),
            }
        }
        self.instead.launch(spawner).await
    }

    fn recognise(&self, info: &WorkerInfo) -> Option<Id> {
        self.instead.recognise(info)
    }

    async fn next(&mut self) -> (Id, News) {
        loop {
            if let Some((id, gone)) = self.lost.pop_front() {
                return (Id::process(id), News::Gone(gone));
            }
            let news = tokio::select! {
                // What was said of a worker comes before its end.
                biased;
                Some((id, said)) = self.said.recv() => self.heard(id, said),
                told = next_of(&mut self.nursery), if self.nursery.is_some() => match told {
                    Ok(told) => self.told(told),
                    Err(error) => {
                        self.give_up(&error);
                        None
                    }
                },
                () = rested(self.seats.front()) => {
                    self.seats.pop_front();
                    None
                }
                news = self.instead.next() => return news,
            };
            if let Some((pid, news)) = news {
                return (Id::process(pid), news);
            }
        }
    }

    fn tell(&mut self, what: Tell) {
        self.closing = true;
        self.seats.clear();
        match (what, &self.nursery) {
            (Tell::Stop, _) => self.wards.values().for_each(|ward| ward.shutdown.request()),
            (Tell::GiveBack, _) => self.wards.values().for_each(|ward| ward.shutdown.kill()),
            (Tell::Kill, Some(nursery)) => nursery.kill(),
            // Whoever speaks for them ends with this process; they find that out, and nobody can be sure of their numbers.
            (Tell::Kill, None) => {}
        }
        self.instead.tell(what);
    }
}

/// Returns when a seat has waited for long enough.
async fn rested(longest: Option<&Seat>) {
    match longest {
        Some(seat) => tokio::time::sleep_until(seat.since + SEAT_KEPT).await,
        None => std::future::pending().await,
    }
}

async fn next_of(nursery: &mut Option<Nursery>) -> io::Result<Told> {
    nursery.as_mut().expect("polled only when there is one").next().await
}
