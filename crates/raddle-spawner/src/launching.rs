//! Bringing a spawner to have the workers that it wants: how many it tells the core, and what it does of what the core says.

use std::time::Duration;

use raddle_supervisor::{ChildExit, SupervisorEffect, SupervisorEvent, SupervisorNotice};

use raddle_container::ExitKind;

use super::{
    Config, LaunchError, WarmPool,
    launcher::LaunchId,
    plan::launches,
    service::{GROUP, SpawnerService},
};

/// Why there is no worker.
pub(super) enum NoLaunch {
    /// The last one died before it was ready.
    Died(ExitKind),
    /// The last one died when it was ready, before it had a task.
    DiedIdle(ExitKind),
    Refused(LaunchError),
}

impl SpawnerService {
    /// Takes charge of what a spawner has left that is gone, if there may be something.
    pub(super) async fn inherit(&mut self, now: Duration) {
        if !self.estate || self.paused || !self.seen || self.core.held_until(GROUP, now).is_some() {
            return;
        }
        match self.launcher.inherit(&self.others).await {
            Ok(left) => {
                self.estate = false;
                for id in left {
                    tracing::info!(worker = %id, "took charge of a worker that another spawner has left");
                    let child = self.core.adopt(GROUP, now);
                    self.roster.inherited(id, child, now);
                }
            }
            Err(error) => {
                self.not_launched(error);
                self.core.note(SupervisorEvent::Refused(GROUP), now);
            }
        }
    }

    /// How many workers there are to be. Those that are there stay, whatever this says.
    pub(super) fn wanted(&mut self, now: Duration) -> usize {
        // Until nobody can have left any, nobody knows how many there are.
        if self.paused || !self.seen || self.estate {
            return 0;
        }
        let (warm_pool, max_workers) = (self.warm_pool(now), self.options.config.max_workers());
        self.roster.len()
            + launches(&self.roster.census(self.pending), warm_pool, max_workers) as usize
    }

    pub(super) async fn carry_out(&mut self, mut effects: Vec<SupervisorEffect>, now: Duration) {
        while !effects.is_empty() {
            let mut failed = false;
            for effect in effects {
                match effect {
                    SupervisorEffect::Start(child, _) => {
                        // What is in the way of one is in the way of those that were to be launched with it.
                        let launched = if failed { None } else { self.launch().await };
                        match launched {
                            Some(id) => self.roster.launched(id, child, now),
                            None => {
                                failed = true;
                                self.core
                                    .note(SupervisorEvent::Exited(child, ChildExit::Failure), now);
                            }
                        }
                    }
                    // All are told at once, when the stop is passed on.
                    SupervisorEffect::SetStopStage(..) => {}
                    SupervisorEffect::Notify(notice) => self.speak(notice),
                }
            }
            effects = if failed {
                self.core.on(SupervisorEvent::Time, now)
            } else {
                Vec::new()
            };
        }
    }

    async fn launch(&mut self) -> Option<LaunchId> {
        let launched = self.launcher.launch(self.line.tid).await;
        launched.map_err(|error| self.not_launched(error)).ok()
    }

    pub(super) fn not_launched(&mut self, error: LaunchError) {
        self.obstacles.met(error.kind);
        self.grief = Some(NoLaunch::Refused(error));
    }

    /// Says what people should know.
    fn speak(&self, notice: SupervisorNotice) {
        match (notice, &self.grief) {
            (SupervisorNotice::BackingOff { pause, number, .. }, Some(NoLaunch::Died(gone))) => {
                tracing::error!(
                    in_a_row = number,
                    "workers die before they are ready (the last one {gone}): the next is launched in {} s; what they say is above",
                    pause.as_secs_f64()
                )
            }
            (
                SupervisorNotice::BackingOff { pause, number, .. },
                Some(NoLaunch::DiedIdle(gone)),
            ) => {
                tracing::error!(
                    in_a_row = number,
                    "workers die as soon as they are ready (the last one {gone}): the next is launched in {} s; what they say is above",
                    pause.as_secs_f64()
                )
            }
            (SupervisorNotice::BackingOff { pause, .. }, Some(NoLaunch::Refused(error))) => {
                tracing::error!(%error, "no worker can be launched: tried again in {} s", pause.as_secs_f64());
            }
            (SupervisorNotice::Recovered(_), _) => tracing::info!("workers start again"),
            _ => {}
        }
    }

    /// How many to keep idle: none, once there was nothing to do for so long that they leave.
    pub(super) fn warm_pool(&mut self, now: Duration) -> u32 {
        let Config {
            warm_pool,
            idle_timeout,
            ..
        } = self.options.config;
        let size = match (warm_pool, &mut self.auto) {
            (WarmPool::Fixed(size), _) => size,
            (WarmPool::Auto, Some(auto)) => auto.size(now),
            (WarmPool::Auto, None) => 0,
        };
        let is_asleep = now.saturating_sub(self.last_task) >= idle_timeout.0;
        if is_asleep { 0 } else { size }
    }
}
