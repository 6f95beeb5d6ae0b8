//! How many workers are wanted. A pure decision. How many of them are started at a time, and when, is decided by the core.

/// What is there now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WorkerCounts {
    /// Tasks that the workers could claim.
    pub(super) pending: u64,
    /// Workers that wait for a task.
    pub(super) idle: u32,
    /// Workers that were launched and are not ready yet.
    pub(super) starting: u32,
    /// Workers that have had their task.
    pub(super) busy: u32,
}

impl WorkerCounts {
    /// The workers that take a task each: those that are busy have had theirs.
    pub(super) fn capacity(&self) -> u32 {
        self.idle.saturating_add(self.starting)
    }

    pub(super) fn live(&self) -> u32 {
        self.capacity().saturating_add(self.busy)
    }
}

/// How many more workers there are to be: as many as it takes for `pending` to be no more than the capacity without the warm pool, within the bounds.
pub(super) fn launches(census: &WorkerCounts, warm_pool: u32, max_workers: u32) -> u32 {
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
    const MOST: u32 = 10;

    fn census(pending: u64, idle: u32, starting: u32, busy: u32) -> WorkerCounts {
        WorkerCounts {
            pending,
            idle,
            starting,
            busy,
        }
    }

    #[test]
    fn the_pool_is_kept_ahead_of_demand() {
        assert_eq!(launches(&census(0, 0, 0, 0), WARM, MOST), 2);
        assert_eq!(launches(&census(0, 2, 0, 0), WARM, MOST), 0);
        assert_eq!(
            launches(&census(0, 1, 1, 0), WARM, MOST),
            0,
            "one that starts will be idle"
        );
        assert_eq!(
            launches(&census(0, 1, 0, 1), WARM, MOST),
            1,
            "one that is busy is replaced"
        );
        assert_eq!(launches(&census(3, 2, 0, 0), WARM, MOST), 3);
        assert_eq!(
            launches(&census(0, 7, 0, 0), WARM, MOST),
            0,
            "too many leave by themselves"
        );
        assert_eq!(launches(&census(1, 0, 0, 0), 0, MOST), 1);
    }

    #[test]
    fn a_flood_is_met_within_bounds() {
        assert_eq!(launches(&census(1000, 0, 0, 0), WARM, MOST), 10);
        assert_eq!(launches(&census(1000, 0, 5, 0), WARM, MOST), 5);
        assert_eq!(launches(&census(1000, 0, 2, 6), WARM, MOST), 2);
        assert_eq!(launches(&census(u64::MAX, 0, 0, 10), WARM, MOST), 0);
    }

    proptest! {
        #[test]
        fn bounds_hold_and_demand_is_met_when_they_allow(
            pending in 0..200u64, idle in 0..20u32, starting in 0..20u32, busy in 0..20u32,
            warm_pool in 0..10u32, max_workers in 1..60u32,
        ) {
            let census = census(pending, idle, starting, busy);
            let launched = launches(&census, warm_pool, max_workers);
            prop_assert!(launched == 0 || census.live() + launched <= max_workers);
            // The rule of the loop, word for word.
            let calls = i128::from(pending) > i128::from(census.capacity()) - i128::from(warm_pool);
            prop_assert!(calls || launched == 0);
            let is_bound = census.live() + launched >= max_workers;
            let is_met = i128::from(pending) <= i128::from(census.capacity() + launched) - i128::from(warm_pool);
            prop_assert!(is_met || is_bound);
        }

        /// Started, claimed, replaced: the loop comes to rest with the pool full and nothing waiting.
        #[test]
        fn the_loop_comes_to_rest(pending in 0..300u64, warm_pool in 0..8u32, above in 0..9u32) {
            let max_workers = (warm_pool + above).max(1);
            let mut now = census(pending, 0, 0, 0);
            for _ in 0..2000 {
                now.starting += launches(&now, warm_pool, max_workers);
                (now.idle, now.starting) = (now.idle + now.starting, 0);
                let taken = now.idle.min(u32::try_from(now.pending).unwrap_or(u32::MAX));
                (now.idle, now.pending, now.busy) = (now.idle - taken, now.pending - u64::from(taken), 0);
            }
            prop_assert_eq!(now, census(0, now.idle, 0, 0));
            prop_assert!(now.idle >= warm_pool.min(max_workers));
        }
    }
}
