//! The launcher whose workers are wards: forked by a zygote, and spoken for by this process, for as long as there is a zygote. After that
//! workers are started as processes: a spawner does not end because of it.
//!
//! Each ward is a worker with an id and a lease of its own. What it costs is one process: claims, leases and results of all of them go
//! through the one broker that is open here, where they are written together.

use std::{
    collections::{HashMap, VecDeque},
    io,
    sync::Arc,
};

use async_trait::async_trait;
use raddle_broker::Broker;
use raddle_core::{Tid, worker::WorkerInfo};
use raddle_exec::{Milestone, Nursery, Prefork, Told, Zygote};
use tokio::sync::mpsc;

use super::{
    launcher::{Gone, Id, LaunchError, Launcher, News, Tell},
    process::{Processes, Template},
};
use crate::{Options, Shutdown, Worker};

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
    /// Wards that nobody will tell of any more.
    lost: VecDeque<(u32, Gone)>,
    instead: Processes,
}

/// A worker that is spoken for here.
struct Ward {
    shutdown: Shutdown,
    /// How its process ended, if it has.
    gone: Option<Gone>,
    /// Whether nothing is left to be written of it, and whether that went well.
    over: Option<bool>,
}

/// What is said by who speaks for a ward.
enum Said {
    Ready(Tid),
    Begun,
    /// It has left the registry; whether all went well.
    Over(bool),
}

/// The exit code of a worker that could not be one.
const FAILED: i32 = 125;

impl Forks {
    /// Forks workers from `zygote`, each as `make` says, and starts them from `instead` when it is gone.
    pub fn new(zygote: Zygote, broker: Arc<dyn Broker>, make: Make, instead: Template) -> io::Result<Self> {
        let nursery = Some(zygote.open()?);
        let (say, said) = mpsc::unbounded_channel();
        let (wards, lost) = (HashMap::new(), VecDeque::new());
        Ok(Self { nursery, broker, make, wards, said, say, lost, instead: Processes::new(instead) })
    }

    /// Goes on without the zygote. Its wards go on as well; nobody tells how they end.
    fn give_up(&mut self, error: &io::Error) {
        tracing::warn!(%error, "the zygote is gone: workers are started as processes from now on");
        self.nursery = None;
        for (id, ward) in &mut self.wards {
            ward.gone.get_or_insert(Gone::Code(0));
            self.lost.extend(ward.ended().map(|gone| (*id, gone)));
        }
        self.wards.retain(|_, ward| ward.ended().is_none());
    }

    fn speak_for(&mut self, id: u32, prefork: Prefork) {
        let shutdown = Shutdown::new();
        let (broker, say) = (Arc::clone(&self.broker), self.say.clone());
        let options = (self.make)().map(|options| Options { prefork: Some(prefork), ..options });
        self.wards.insert(id, Ward { shutdown: shutdown.clone(), gone: None, over: None });
        // It ends with its worker, of which it says so.
        tokio::spawn(async move {
            let went_well = match options {
                Ok(options) => keep(id, broker, options, shutdown, &say).await,
                Err(reason) => {
                    tracing::error!("{reason}");
                    false
                }
            };
            let _ = say.send((id, Said::Over(went_well)));
        });
    }

    fn told(&mut self, Told { pid, what }: Told) -> Option<(u32, News)> {
        let gone = match what {
            Milestone::Forked => return None,
            Milestone::Exited(code) => Gone::Code(code),
            Milestone::Killed(signal) => Gone::Signal(signal),
        };
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
            Said::Over(went_well) => {
                let ward = self.wards.get_mut(&id)?;
                ward.over = Some(went_well);
                if self.nursery.is_none() {
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

/// Speaks for a ward until it is over. Returns whether that went well.
async fn keep(
    id: u32,
    broker: Arc<dyn Broker>,
    options: Options,
    shutdown: Shutdown,
    say: &mpsc::UnboundedSender<(u32, Said)>,
) -> bool {
    let worker = match Worker::register(broker, options).await {
        Ok(worker) => worker,
        Err(error) => {
            tracing::error!(%error, "a worker cannot be registered");
            return false;
        }
    };
    let _ = say.send((id, Said::Ready(worker.tid())));
    let mut begun = worker.begun();
    let mut working = Box::pin(worker.run(shutdown));
    let mut tells = true;
    loop {
        tokio::select! {
            ended = &mut working => {
                if let Err(error) = &ended {
                    tracing::error!(pid = id, %error, "a worker failed");
                }
                return ended.is_ok();
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
        if let Some(nursery) = &mut self.nursery {
            match nursery.fork().await {
                Ok(prefork) => {
                    let id = prefork.worker_pid().expect("a zygote forks wards");
                    self.speak_for(id, prefork);
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
                news = self.instead.next() => return news,
            };
            if let Some((pid, news)) = news {
                return (Id::process(pid), news);
            }
        }
    }

    fn tell(&mut self, what: Tell) {
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

async fn next_of(nursery: &mut Option<Nursery>) -> io::Result<Told> {
    nursery.as_mut().expect("polled only when there is one").next().await
}
