//! Launching workers: how many the supervisor should keep, and carrying out its effects.

use std::time::Duration;

use raddle_supervisor::{ChildExit, SupervisorEffect, SupervisorEvent, SupervisorNotice};

use raddle_container::ExitKind;

use super::{
    Config, LaunchError, WarmPool,
    launcher::LaunchId,
    plan::workers_to_launch,
    service::{GROUP, SpawnerService},
};

/// Why a worker could not be launched.
pub(super) enum LastFailure {
    /// The last one died before it was ready.
    Died(ExitKind),
    /// The last one died when it was ready, before it had a task.
    DiedIdle(ExitKind),
    Refused(LaunchError),
}

impl SpawnerService {
    /// Adopts workers of a dead spawner, if there may be any.
    pub(super) async fn adopt_orphans(&mut self, now: Duration) {
        if !self.may_have_orphans
            || self.paused
            || !self.registry_read
            || self.core.held_until(GROUP, now).is_some()
        {
            return;
        }
        match self.launcher.adopt(&self.other_spawners).await {
            Ok(left) => {
                self.may_have_orphans = false;
                for id in left {
                    tracing::info!(worker = %id, "adopted a worker of another spawner");
                    let child = self.core.adopt(GROUP, now);
                    self.workers.add_adopted(id, child, now);
                }
            }
            Err(error) => {
                self.record_launch_failure(error);
                self.core.note(SupervisorEvent::Refused(GROUP), now);
            }
        }
    }

    /// How many workers to keep. Existing workers stay in any case.
    pub(super) fn wanted_workers(&mut self, now: Duration) -> usize {
        // Before the registry was read and orphans were adopted, the number of workers is unknown.
        if self.paused || !self.registry_read || self.may_have_orphans {
            return 0;
        }
        let (warm_pool, max_workers) = (self.warm_pool(now), self.options.config.max_workers());
        self.workers.len()
            + workers_to_launch(&self.workers.census(self.pending), warm_pool, max_workers) as usize
    }

    pub(super) async fn apply_effects(
        &mut self,
        mut effects: Vec<SupervisorEffect>,
        now: Duration,
    ) {
        while !effects.is_empty() {
            let mut failed = false;
            for effect in effects {
                match effect {
                    SupervisorEffect::Start(child, _) => {
                        // The same failure would hit the other launches of this round.
                        let launched = if failed { None } else { self.launch().await };
                        match launched {
                            Some(id) => self.workers.add_launched(id, child, now),
                            None => {
                                failed = true;
                                self.core
                                    .note(SupervisorEvent::Exited(child, ChildExit::Failure), now);
                            }
                        }
                    }
                    // All workers get the stop at once, see `forward_stop`.
                    SupervisorEffect::SetStopStage(..) => {}
                    SupervisorEffect::Notify(notice) => self.log_notice(notice),
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
        let launched = self.launcher.launch(self.registration.tid).await;
        launched
            .map_err(|error| self.record_launch_failure(error))
            .ok()
    }

    pub(super) fn record_launch_failure(&mut self, error: LaunchError) {
        self.launch_failures.record(error.kind);
        self.last_failure = Some(LastFailure::Refused(error));
    }

    /// Logs a notice of the supervisor.
    fn log_notice(&self, notice: SupervisorNotice) {
        match (notice, &self.last_failure) {
            (SupervisorNotice::BackingOff { pause, number, .. }, Some(LastFailure::Died(gone))) => {
                tracing::error!(
                    in_a_row = number,
                    "workers die before they are ready (the last one {gone}): the next launch is in {} s; their messages are above",
                    pause.as_secs_f64()
                )
            }
            (
                SupervisorNotice::BackingOff { pause, number, .. },
                Some(LastFailure::DiedIdle(gone)),
            ) => {
                tracing::error!(
                    in_a_row = number,
                    "workers die as soon as they are ready (the last one {gone}): the next launch is in {} s; their messages are above",
                    pause.as_secs_f64()
                )
            }
            (SupervisorNotice::BackingOff { pause, .. }, Some(LastFailure::Refused(error))) => {
                tracing::error!(%error, "no worker can be launched: tried again in {} s", pause.as_secs_f64());
            }
            (SupervisorNotice::Recovered(_), _) => tracing::info!("workers start again"),
            _ => {}
        }
    }

    /// How many workers to keep idle: none after `idle_timeout` without a task.
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
