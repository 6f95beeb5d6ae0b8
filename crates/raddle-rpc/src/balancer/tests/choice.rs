//! Whom balancers ask first.

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
    fake::{self, Does, pool},
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

/// Workers that nobody speaks to.
fn silent(workers: usize) -> BalancerContext {
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
    let (context, fakes) = pool([Does::Take; 3]);
    for _ in 0..9 {
        call(&RoundRobin, &context, Some(1)).await.unwrap();
    }
    assert_eq!(fakes.each_ref().map(|fake| fake.asked()), [3; 3]);
    let newcomer = fake::Fake::start(Does::Take);
    newcomer.join(&context);
    for _ in 0..8 {
        call(&RoundRobin, &context, None).await.unwrap();
    }
    assert_eq!(newcomer.asked(), 2);
}

/// Numbers below another, the same each time.
fn dice(seed: u64) -> impl Fn(usize) -> usize {
    let last = std::cell::Cell::new(seed);
    move |end| {
        last.set(raddle_model::jitter::mix(last.get()));
        (last.get() % end as u64) as usize
    }
}

proptest! {
    #[test]
    fn round_robin_is_fair_to_those_who_may_be_asked(places in 1_usize..12, mask in any::<u16>(), start in any::<usize>()) {
        let context = silent(places);
        let workers = context.workers();
        let asked: Vec<usize> = (0..places).filter(|place| mask & (1 << place) != 0).collect();
        let candidates = Candidates { workers: &workers, asked: &asked, unmet: &[], ejected_too: false, now: Instant::now() };
        let turn = AtomicUsize::new(start % 1_000);
        let mut counts = HashMap::new();
        let left = places - asked.len();
        for _ in 0..3 * left {
            let place = round_robin::choose(&candidates, || turn.fetch_add(1, Ordering::Relaxed)).unwrap();
            prop_assert!(!asked.contains(&place));
            *counts.entry(place).or_insert(0) += 1;
        }
        prop_assert_eq!(counts.len(), left);
        prop_assert!(counts.values().all(|count| *count == 3), "{:?}", counts);
        if left == 0 {
            prop_assert_eq!(round_robin::choose(&candidates, || turn.fetch_add(1, Ordering::Relaxed)), None);
        }
    }

    #[test]
    fn power_of_two_asks_whoever_may_be_asked(places in 0_usize..12, mask in any::<u16>(), seed in any::<u64>()) {
        let context = silent(places);
        let workers = context.workers();
        let asked: Vec<usize> = (0..places).filter(|place| mask & (1 << place) != 0).collect();
        let candidates = Candidates { workers: &workers, asked: &asked, unmet: &[], ejected_too: false, now: Instant::now() };
        let chosen = power_of_two::choose(&candidates, dice(seed));
        prop_assert_eq!(chosen.is_some(), asked.len() < places);
        prop_assert!(chosen.is_none_or(|place| place < places && !asked.contains(&place)));
    }
}

#[tokio::test]
async fn least_loaded_asks_who_has_the_fewest() {
    let (context, fakes) = pool([Does::Take; 3]);
    fakes.iter().for_each(|fake| fake.let_end(false));
    let mut open = Vec::new();
    for _ in 0..6 {
        open.push(
            dispatch(&LeastLoaded, &context, fake::call(None))
                .await
                .unwrap(),
        );
    }
    assert_eq!(fakes.each_ref().map(|fake| fake.asked()), [2; 3]);
    // One has nothing to do any more, and takes calls until it has as many as the others. Among equals they went round.
    drop((open.remove(4), open.remove(1)));
    for _ in 0..2 {
        open.push(
            dispatch(&LeastLoaded, &context, fake::call(None))
                .await
                .unwrap(),
        );
    }
    assert_eq!(fakes.each_ref().map(|fake| fake.asked()), [0, 2, 0]);
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
    let context = silent(3);
    let workers = context.workers();
    let dice = dice(1);
    let chosen = || {
        let candidates = Candidates {
            workers: &workers,
            asked: &[],
            unmet: &[],
            ejected_too: false,
            now: Instant::now(),
        };
        let mut counts = [0; 3];
        (0..300).for_each(|_| counts[power_of_two::choose(&candidates, &dice).unwrap()] += 1);
        counts
    };
    let even = chosen();
    assert!(
        even.iter().all(|count| *count > 60),
        "nothing is known: {even:?}"
    );
    for (worker, millis) in workers.iter().zip([10, 10, 100]) {
        let mut under_way = worker.standing.ask(Instant::now(), None);
        under_way.hear(None);
        tokio::time::advance(Duration::from_millis(millis)).await;
    }
    let slow = chosen();
    assert!(
        slow[2] == 0 && slow[0] > 100 && slow[1] > 60,
        "one is slow: {slow:?}"
    );
    let busy: Vec<_> = (0..20)
        .map(|_| workers[0].standing.ask(Instant::now(), None))
        .collect();
    let both = chosen();
    assert!(
        both[0] == 0 && both[1] > 150 && both[2] > 60,
        "and one has much to do: {both:?}"
    );
    drop(busy);
    tokio::time::advance(Duration::from_secs(200)).await;
    assert!(chosen()[2] > 60, "it is tried again");
}

#[tokio::test]
async fn power_of_two_spreads_calls() {
    let (context, fakes) = pool([Does::Take; 4]);
    let balancer = PowerOfTwo;
    for _ in 0..80 {
        call(&balancer, &context, None).await.unwrap();
    }
    let asked = fakes.each_ref().map(|fake| fake.asked());
    assert_eq!(asked.iter().sum::<usize>(), 80);
    assert!(
        asked.iter().filter(|asked| **asked > 0).count() >= 3,
        "{asked:?}"
    );
}

#[tokio::test]
async fn sticky_asks_the_same_for_the_same_key() {
    let (context, fakes) = pool([Does::Take; 4]);
    let who = || fakes.iter().position(|fake| fake.asked() > 0).unwrap();
    let mut owners = HashMap::new();
    for key in (0..40).map(|n| hash_key(&n)) {
        call(&Sticky, &context, Some(key)).await.unwrap();
        owners.insert(key, who());
    }
    for (key, owner) in &owners {
        call(&Sticky, &context, Some(*key)).await.unwrap();
        assert_eq!(who(), *owner);
    }
    // When one goes, only its keys move; when it is back, they do as well.
    context.remove_worker(fakes[0].metadata.uid);
    for (key, owner) in &owners {
        call(&Sticky, &context, Some(*key)).await.unwrap();
        assert!(who() == *owner || *owner == 0);
    }
    fakes[0].join(&context);
    for (key, owner) in &owners {
        call(&Sticky, &context, Some(*key)).await.unwrap();
        assert_eq!(who(), *owner);
    }
    let without_key = (0..8).map(|_| call(&Sticky, &context, None));
    for call in without_key {
        call.await.unwrap();
    }
    assert_eq!(fakes.each_ref().map(|fake| fake.asked()), [2; 4]);
}

#[test]
fn sticky_gives_every_worker_its_part() {
    let context = silent(8);
    let workers = context.workers();
    let candidates = Candidates {
        workers: &workers,
        asked: &[],
        unmet: &[],
        ejected_too: false,
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
fn what_was_thought_of_a_worker_stays_while_it_is_the_same() {
    let context = BalancerContext::default();
    let put = |metadata: &WorkerMetadata| {
        context.put_worker(
            metadata.clone(),
            ConnectionFactory::new(&metadata.address, 1),
        )
    };
    let mut worker = metadata("h:1");
    put(&worker);
    let under_way = context.workers()[0].standing.ask(Instant::now(), None);
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
    drop(under_way);
    assert_eq!(context.workers()[0].in_flight(), 0);
    assert!(context.remove_worker(worker.uid) && !context.remove_worker(worker.uid));
}

#[tokio::test]
async fn a_call_that_is_kept_is_not_over() {
    let (context, fakes) = pool([Does::Take; 2]);
    fakes.iter().for_each(|fake| fake.let_end(false));
    let first = dispatch(&LeastLoaded, &context, fake::call(None))
        .await
        .unwrap();
    let busy = fakes.iter().position(|fake| fake.asked() > 0).unwrap();
    fakes[1 - busy].let_end(true);
    for _ in 0..5 {
        call(&LeastLoaded, &context, None).await.unwrap();
    }
    assert_eq!(
        (fakes[busy].asked(), fakes[1 - busy].asked()),
        (0, 5),
        "it has one, the other none"
    );
    fakes[busy].let_end(true);
    end(first).await;
}
