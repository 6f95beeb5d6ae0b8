//! How many workers to launch. Pure. The supervisor decides when, and how many at a time.

/// Current numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WorkerCounts {
    /// Tasks that the workers could claim.
    pub(super) pending: u64,
    /// Workers that wait for a task.
    pub(super) idle: u32,
    /// Workers that are not ready yet.
    pub(super) starting: u32,
    /// Workers that have had their task.
    pub(super) busy: u32,
}

impl WorkerCounts {
    /// Workers that can still take a task.
    pub(super) fn capacity(&self) -> u32 {
        self.idle.saturating_add(self.starting)
    }

    pub(super) fn live(&self) -> u32 {
        self.capacity().saturating_add(self.busy)
    }
}

/// How many more workers are needed so that `pending` plus the warm pool fit the capacity, within
/// `max_workers`.
pub(super) fn workers_to_launch(census: &WorkerCounts, warm_pool: u32, max_workers: u32) -> u32 {
    let wanted = census
        .pending
        .saturating_add(warm_pool.into())
        .saturating_sub(census.capacity().into());
    let room = max_workers.saturating_sub(census.live());
    u32::try_from(wanted).unwrap_or(u32::MAX).min(room)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WARM: u32 = 2;
    const MAX: u32 = 10;

    fn census(pending: u64, idle: u32, starting: u32, busy: u32) -> WorkerCounts {
        WorkerCounts {
            pending,
            idle,
            starting,
            busy,
        }
    }

    #[test]
    fn keeps_the_pool_ahead_of_demand() {
        assert_eq!(workers_to_launch(&census(0, 0, 0, 0), WARM, MAX), 2);
        assert_eq!(workers_to_launch(&census(0, 2, 0, 0), WARM, MAX), 0);
        assert_eq!(
            workers_to_launch(&census(0, 1, 1, 0), WARM, MAX),
            0,
            "a starting worker will be idle"
        );
        assert_eq!(
            workers_to_launch(&census(0, 1, 0, 1), WARM, MAX),
            1,
            "a busy worker is replaced"
        );
        assert_eq!(workers_to_launch(&census(3, 2, 0, 0), WARM, MAX), 3);
        assert_eq!(
            workers_to_launch(&census(0, 7, 0, 0), WARM, MAX),
            0,
            "surplus workers exit by themselves"
        );
        assert_eq!(workers_to_launch(&census(1, 0, 0, 0), 0, MAX), 1);
    }

    #[test]
    fn launches_up_to_the_limit() {
        assert_eq!(workers_to_launch(&census(1000, 0, 0, 0), WARM, MAX), 10);
        assert_eq!(workers_to_launch(&census(1000, 0, 5, 0), WARM, MAX), 5);
        assert_eq!(workers_to_launch(&census(1000, 0, 2, 6), WARM, MAX), 2);
        assert_eq!(workers_to_launch(&census(u64::MAX, 0, 0, 10), WARM, MAX), 0);
    }

    proptest! {
        #[test]
        fn bounds_hold_and_demand_is_met_when_they_allow(
            pending in 0..200u64, idle in 0..20u32, starting in 0..20u32, busy in 0..20u32,
            warm_pool in 0..10u32, max_workers in 1..60u32,
        ) {
            let census = census(pending, idle, starting, busy);
            let launched = workers_to_launch(&census, warm_pool, max_workers);
            prop_assert!(launched == 0 || census.live() + launched <= max_workers);
            // The documented rule, word for word.
            let calls = i128::from(pending) > i128::from(census.capacity()) - i128::from(warm_pool);
            prop_assert!(calls || launched == 0);
            let is_bound = census.live() + launched >= max_workers;
            let is_met = i128::from(pending) <= i128::from(census.capacity() + launched) - i128::from(warm_pool);
            prop_assert!(is_met || is_bound);
        }

        /// Start, claim, replace: the loop settles with a full pool and no waiting task.
        #[test]
        fn the_loop_settles(pending in 0..300u64, warm_pool in 0..8u32, above in 0..9u32) {
            let max_workers = (warm_pool + above).max(1);
            let mut now = census(pending, 0, 0, 0);
            for _ in 0..2000 {
                now.starting += workers_to_launch(&now, warm_pool, max_workers);
                (now.idle, now.starting) = (now.idle + now.starting, 0);
                let taken = now.idle.min(u32::try_from(now.pending).unwrap_or(u32::MAX));
                (now.idle, now.pending, now.busy) = (now.idle - taken, now.pending - u64::from(taken), 0);
            }
            prop_assert_eq!(now, census(0, now.idle, 0, 0));
            prop_assert!(now.idle >= warm_pool.min(max_workers));
        }
    }
}
