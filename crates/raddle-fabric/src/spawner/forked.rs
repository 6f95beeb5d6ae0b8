//! The launcher that has workers forked by a zygote, for as long as there is one. After that they are started as processes: a spawner does not
//! end because of it.

use std::{
    collections::{BTreeSet, VecDeque},
    io,
};

use async_trait::async_trait;
use raddle_core::Tid;
use raddle_exec::{Milestone, Nursery, Told, Zygote};

use super::{
    launcher::{Gone, Id, Launcher, News, Tell},
    process::{Processes, Template},
};

/// Forks workers.
pub struct Forks {
    nursery: Option<Nursery>,
    live: BTreeSet<Id>,
    /// What has become of those of a zygote that is gone, as far as anybody can tell.
    lost: VecDeque<Id>,
    instead: Processes,
}

impl Forks {
    /// Forks workers from `zygote`, and starts them from `instead` when that is gone.
    pub fn new(zygote: Zygote, instead: Template) -> io::Result<Self> {
        let nursery = Some(zygote.open()?);
        Ok(Self { nursery, live: BTreeSet::new(), lost: VecDeque::new(), instead: Processes::new(instead) })
    }

    /// Goes on without the zygote. Its workers go on as well; the registry knows them.
    fn give_up(&mut self, error: &io::Error) {
        tracing::warn!(%error, "the zygote is gone: workers are started as processes from now on");
        self.nursery = None;
        self.lost.extend(std::mem::take(&mut self.live));
    }

    fn note(&mut self, Told { pid, what }: Told) -> Option<(Id, News)> {
        let news = match what {
            Milestone::Forked => return None,
            Milestone::Ready(number) => News::Ready(Tid::from_u64(number)?),
            Milestone::Begun => News::Begun,
            Milestone::Exited(code) => News::Gone(Gone::Code(code)),
            Milestone::Killed(signal) => News::Gone(Gone::Signal(signal)),
        };
        if let News::Gone(_) = news {
            self.live.remove(&pid);
        }
        Some((pid, news))
    }
}

#[async_trait]
impl Launcher for Forks {
    async fn launch(&mut self) -> io::Result<Id> {
        if let Some(nursery) = &mut self.nursery {
            match nursery.fork().await {
                Ok(pid) => {
                    self.live.insert(pid);
                    return Ok(pid);
                }
                // The system gives no process now.
                Err(error) if matches!(error.kind(), io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock) => {
                    return Err(error);
                }
                Err(error) => self.give_up(&error),
            }
        }
        self.instead.launch().await
    }

    async fn next(&mut self) -> (Id, News) {
        loop {
            if let Some(id) = self.lost.pop_front() {
                return (id, News::Gone(Gone::Code(0)));
            }
            let Some(nursery) = &mut self.nursery else { return self.instead.next().await };
            match nursery.next().await {
                Ok(told) => {
                    if let Some(news) = self.note(told) {
                        return news;
                    }
                }
                Err(error) => self.give_up(&error),
            }
        }
    }

    fn tell(&mut self, what: Tell) {
        if let Some(nursery) = &self.nursery {
            match what {
                Tell::Stop => nursery.terminate(),
                Tell::Kill => nursery.kill(),
            }
        }
        self.instead.tell(what);
    }
}
