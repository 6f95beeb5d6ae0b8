//! Tests of which worker each balancer tries first.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use proptest::prelude::*;
use raddle_discovery::{WorkerMetadata, WorkerUid};
use tokio::time::Instant;

use super::{
    call, dispatch, end,
    fake::{self, Behavior, pool},
};
use crate::{
    balancer::{
        BalancerContext, Candidates, LeastLoaded, PowerOfTwo, RoundRobin, Sticky, hash_key,
        power_of_two, round_robin,
    },
    connection::ConnectionFactory,
};

fn metadata(address: &str) -> WorkerMetadata {
    let (tags, extra, encodings) = (Default::default(), Default::default(), Default::default());
    let (address, version) = (address.into(), "1".into());
    WorkerMetadata {
        uid: WorkerUid::new(),
        address,
        pid: 1,
        version,
        tags,
        extra,
        secure: false,
        encodings,
    }
}

/// Workers that are never connected to.
fn unconnected_workers(workers: usize) -> BalancerContext {
    let context = BalancerContext::default();
    (0..workers).for_each(|n| {
        context.put_worker(
            metadata(&format!("h:{}", n + 1)),
            ConnectionFactory::new("h:1", 1),
        )
    });
    context
}

#[tokio::test]
async fn round_robin_goes_round() {
    let (context, fakes) = pool([Behavior::Take; 3]);
    for _ in 0..9 {
        call(&RoundRobin, &context, Some(1)).await.unwrap();
    }
    assert_eq!(fakes.each_ref().map(|fake| fake.take_calls()), [3; 3]);
    let newcomer = fake::Fake::start(Behavior::Take);
    newcomer.add_to(&context);
    for _ in 0..8 {
        call(&RoundRobin, &context, None).await.unwrap();
    }
    assert_eq!(newcomer.take_calls(), 2);
}

/// Pseudo-random numbers below the argument, equal in each run.
fn dice(seed: u64) -> impl Fn(usize) -> usize {
    let last = std::cell::Cell::new(seed);
    move |end| {
        last.set(raddle_model::jitter::mix(last.get()));
        (last.get() % end as u64) as usize
    }
}

proptest! {
    #[test]
    fn round_robin_is_fair_to_candidates(count in 1_usize..12, mask in any::<u16>(), start in any::<usize>()) {
        let context = unconnected_workers(count);
        let workers = context.workers();
        let tried: Vec<usize> = (0..count).filter(|index| mask & (1 << index) != 0).collect();
        let candidates = Candidates { workers: &workers, tried: &tried, unconnected: &[], include_ejected: false, now: Instant::now() };
        let turn = AtomicUsize::new(start % 1_000);
        let mut counts = HashMap::new();
        let left = count - tried.len();
        for _ in 0..3 * left {
            let index = round_robin::choose(&candidates, || turn.fetch_add(1, Ordering::Relaxed)).unwrap();
            prop_assert!(!tried.contains(&index));
            *counts.entry(index).or_insert(0) += 1;
        }
        prop_assert_eq!(counts.len(), left);
        prop_assert!(counts.values().all(|count| *count == 3), "{:?}", counts);
        if left == 0 {
            prop_assert_eq!(round_robin::choose(&candidates, || turn.fetch_add(1, Ordering::Relaxed)), None);
        }
    }

    #[test]
    fn power_of_two_chooses_a_candidate(count in 0_usize..12, mask in any::<u16>(), seed in any::<u64>()) {
        let context = unconnected_workers(count);
        let workers = context.workers();
        let tried: Vec<usize> = (0..count).filter(|index| mask & (1 << index) != 0).collect();
        let candidates = Candidates { workers: &workers, tried: &tried, unconnected: &[], include_ejected: false, now: Instant::now() };
        let chosen = power_of_two::choose(&candidates, dice(seed));
        prop_assert_eq!(chosen.is_some(), tried.len() < count);
        prop_assert!(chosen.is_none_or(|index| index < count && !tried.contains(&index)));
    }
}

#[tokio::test]
async fn least_loaded_chooses_the_fewest_calls() {
    let (context, fakes) = pool([Behavior::Take; 3]);
    fakes.iter().for_each(|fake| fake.allow_end(false));
    let mut open = Vec::new();
    for _ in 0..6 {
        open.push(
            dispatch(&LeastLoaded, &context, fake::call(None))
                .await
                .unwrap(),
        );
    }
    assert_eq!(fakes.each_ref().map(|fake| fake.take_calls()), [2; 3]);
    // One worker is idle again, and gets calls until it has as many as the others: equals took
    // turns.
    drop((open.remove(4), open.remove(1)));
    for _ in 0..2 {
        open.push(
            dispatch(&LeastLoaded, &context, fake::call(None))
                .await
                .unwrap(),
        );
    }
    assert_eq!(fakes.each_ref().map(|fake| fake.take_calls()), [0, 2, 0]);
    drop(open);
    assert!(
        context
            .workers()
            .iter()
            .all(|worker| worker.in_flight() == 0)
    );
}

#[tokio::test(start_paused = true)]
async fn power_of_two_avoids_the_slow_and_the_busy() {
    let context = unconnected_workers(3);
    let workers = context.workers();
    let dice = dice(1);
    let chosen = || {
        let candidates = Candidates {
            workers: &workers,
            tried: &[],
            unconnected: &[],
            include_ejected: false,
            now: Instant::now(),
        };
        let mut counts = [0; 3];
        (0..300).for_each(|_| counts[power_of_two::choose(&candidates, &dice).unwrap()] += 1);
        counts
    };
    let even = chosen();
    assert!(
        even.iter().all(|count| *count > 60),
        "no latency is known: {even:?}"
    );
    for (worker, millis) in workers.iter().zip([10, 10, 100]) {
        let mut in_flight_call = worker.health.begin_call(Instant::now(), None);
        in_flight_call.record_outcome(None);
        tokio::time::advance(Duration::from_millis(millis)).await;
    }
    let slow = chosen();
    assert!(
        slow[2] == 0 && slow[0] > 100 && slow[1] > 60,
        "one is slow: {slow:?}"
    );
    let busy: Vec<_> = (0..20)
        .map(|_| workers[0].health.begin_call(Instant::now(), None))
        .collect();
    let both = chosen();
    assert!(
        both[0] == 0 && both[1] > 150 && both[2] > 60,
        "and one is busy: {both:?}"
    );
    drop(busy);
    tokio::time::advance(Duration::from_secs(200)).await;
    assert!(chosen()[2] > 60, "it is tried again");
}

#[tokio::test]
async fn power_of_two_spreads_calls() {
    let (context, fakes) = pool([Behavior::Take; 4]);
    let balancer = PowerOfTwo;
    for _ in 0..80 {
        call(&balancer, &context, None).await.unwrap();
    }
    let calls = fakes.each_ref().map(|fake| fake.take_calls());
    assert_eq!(calls.iter().sum::<usize>(), 80);
    assert!(
        calls.iter().filter(|calls| **calls > 0).count() >= 3,
        "{calls:?}"
    );
}

#[tokio::test]
async fn sticky_chooses_the_same_worker_for_a_key() {
    let (context, fakes) = pool([Behavior::Take; 4]);
    let take_owner = || fakes.iter().position(|fake| fake.take_calls() > 0).unwrap();
    let mut owners = HashMap::new();
    for key in (0..40).map(|n| hash_key(&n)) {
        call(&Sticky, &context, Some(key)).await.unwrap();
        owners.insert(key, take_owner());
    }
    for (key, owner) in &owners {
        call(&Sticky, &context, Some(*key)).await.unwrap();
        assert_eq!(take_owner(), *owner);
    }
    // When a worker leaves, only its keys move; when it returns, they move back.
    context.remove_worker(fakes[0].metadata.uid);
    for (key, owner) in &owners {
        call(&Sticky, &context, Some(*key)).await.unwrap();
        assert!(take_owner() == *owner || *owner == 0);
    }
    fakes[0].add_to(&context);
    for (key, owner) in &owners {
        call(&Sticky, &context, Some(*key)).await.unwrap();
        assert_eq!(take_owner(), *owner);
    }
    let without_key = (0..8).map(|_| call(&Sticky, &context, None));
    for call in without_key {
        call.await.unwrap();
    }
    assert_eq!(fakes.each_ref().map(|fake| fake.take_calls()), [2; 4]);
}

#[test]
fn sticky_spreads_keys_evenly() {
    let context = unconnected_workers(8);
    let workers = context.workers();
    let candidates = Candidates {
        workers: &workers,
        tried: &[],
        unconnected: &[],
        include_ejected: false,
        now: Instant::now(),
    };
    let mut counts = [0; 8];
    (0..8_000_u64)
        .for_each(|key| counts[super::super::sticky::choose(&candidates, key).unwrap()] += 1);
    assert!(
        counts.iter().all(|count| (850..1150).contains(count)),
        "{counts:?}"
    );
}

#[test]
fn health_survives_an_update_but_not_a_restart() {
    let context = BalancerContext::default();
    let put = |metadata: &WorkerMetadata| {
        context.put_worker(
            metadata.clone(),
            ConnectionFactory::new(&metadata.address, 1),
        )
    };
    let mut worker = metadata("h:1");
    put(&worker);
    let in_flight_call = context.workers()[0].health.begin_call(Instant::now(), None);
    worker.tags.insert("gpu".into());
    put(&worker);
    assert_eq!(
        (context.workers().len(), context.workers()[0].in_flight()),
        (1, 1)
    );
    worker.pid += 1;
    put(&worker);
    assert_eq!(
        (context.workers().len(), context.workers()[0].in_flight()),
        (1, 0)
    );
    drop(in_flight_call);
    assert_eq!(context.workers()[0].in_flight(), 0);
    assert!(context.remove_worker(worker.uid) && !context.remove_worker(worker.uid));
}

#[tokio::test]
async fn kept_call_counts_as_load() {
    let (context, fakes) = pool([Behavior::Take; 2]);
    fakes.iter().for_each(|fake| fake.allow_end(false));
    let first = dispatch(&LeastLoaded, &context, fake::call(None))
        .await
        .unwrap();
    let busy = fakes.iter().position(|fake| fake.take_calls() > 0).unwrap();
    fakes[1 - busy].allow_end(true);
    for _ in 0..5 {
        call(&LeastLoaded, &context, None).await.unwrap();
    }
    assert_eq!(
        (fakes[busy].take_calls(), fakes[1 - busy].take_calls()),
        (0, 5),
        "one call against none"
    );
    fakes[busy].allow_end(true);
    end(first).await;
}
