//! Tests of `BrokerDiscovery` with an in-memory registry. `crates/raddle/tests/serve` tests it with
//! real workers, SQLite and Redis.

use std::{sync::Arc, time::Duration};

use raddle_broker::Broker;
use raddle_broker_connect::{BrokerUrl, connect};
use raddle_discovery::{
    Discovery, DiscoveryEvent, Encoding, Publisher, Subscription, WorkerMetadata, WorkerUid,
};
use raddle_model::{TaskSpec, WorkerEntry, worker::PoolWorkerInfo};
use tokio::time::timeout;

use super::{BrokerDiscovery, record};
use crate::worker::this_host;

fn sample() -> WorkerMetadata {
    WorkerMetadata {
        uid: WorkerUid::new(),
        address: "10.0.0.7:7070".into(),
        pid: 5,
        version: "1.2.3".into(),
        tags: ["gpu".into()].into(),
        extra: [("zone".into(), "b".into())].into(),
        secure: true,
        encodings: [Encoding::Json].into(),
    }
}

async fn registry(namespace: &str) -> (Arc<dyn Broker>, BrokerDiscovery) {
    let broker = connect(&BrokerUrl::Memory).await.unwrap();
    let discovery = BrokerDiscovery::new(namespace, Arc::clone(&broker)).unwrap();
    (broker, discovery)
}

async fn next_event(subscription: &mut Subscription) -> DiscoveryEvent {
    timeout(Duration::from_secs(30), subscription.next())
        .await
        .expect("an event")
        .unwrap()
}

#[tokio::test]
async fn reports_added_changed_and_removed_workers() {
    let (broker, discovery) = registry("math").await;
    let other = BrokerDiscovery::new("else", Arc::clone(&broker)).unwrap();
    let worker = sample();
    discovery
        .publish(DiscoveryEvent::Added(worker.clone()))
        .await
        .unwrap();
    other
        .publish(DiscoveryEvent::Added(sample()))
        .await
        .unwrap();
    let mut news = discovery.subscribe(None).await.unwrap();
    assert_eq!(
        next_event(&mut news).await,
        DiscoveryEvent::Added(worker.clone())
    );

    let changed = WorkerMetadata {
        tags: ["cpu".into()].into(),
        ..worker
    };
    discovery
        .publish(DiscoveryEvent::Updated(changed.clone()))
        .await
        .unwrap();
    assert_eq!(
        next_event(&mut news).await,
        DiscoveryEvent::Updated(changed.clone())
    );
    assert_eq!(
        broker.workers().await.unwrap().len(),
        2,
        "one entry for each"
    );
    discovery
        .publish(DiscoveryEvent::Dropped(changed.clone()))
        .await
        .unwrap();
    assert_eq!(
        next_event(&mut news).await,
        DiscoveryEvent::Dropped(changed)
    );
}

#[tokio::test]
async fn withdrawing_deregisters_in_the_background() {
    let (broker, discovery) = registry("math").await;
    let worker = sample();
    discovery
        .publish(DiscoveryEvent::Added(worker.clone()))
        .await
        .unwrap();
    let mut news = discovery.subscribe(None).await.unwrap();
    assert_eq!(
        next_event(&mut news).await,
        DiscoveryEvent::Added(worker.clone())
    );
    discovery.withdraw(&worker);
    assert_eq!(next_event(&mut news).await, DiscoveryEvent::Dropped(worker));
    assert!(broker.workers().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_recheck_reads_the_registry_at_once() {
    let (broker, discovery) = registry("math").await;
    let discovery = discovery.poll_interval(Duration::from_secs(3600));
    let publisher = BrokerDiscovery::new("math", broker).unwrap();
    let mut news = discovery.subscribe(None).await.unwrap();
    publisher
        .publish(DiscoveryEvent::Added(sample()))
        .await
        .unwrap();
    assert!(
        timeout(Duration::from_millis(300), news.next())
            .await
            .is_err(),
        "the next periodic read is in an hour"
    );
    discovery.request_recheck(&sample());
    assert!(matches!(
        next_event(&mut news).await,
        DiscoveryEvent::Added(_)
    ));
}

#[tokio::test]
async fn an_entry_takes_no_tasks_and_lists_routines() {
    let (broker, discovery) = registry("math").await;
    let worker = sample();
    discovery
        .routines(["add", "sub"])
        .publish(DiscoveryEvent::Added(worker.clone()))
        .await
        .unwrap();
    let entries = broker.workers().await.unwrap();
    let [WorkerEntry { tid, info, .. }] = entries.as_slice() else {
        panic!("{entries:?}")
    };
    assert_eq!(
        (info.name.as_str(), info.kind.as_str(), info.pid),
        ("math", "pool", 5)
    );
    assert!(info.takes_calls() && !info.launches() && !info.can_take(&TaskSpec::command(["true"])));
    let callee = info.callee.as_deref().unwrap();
    assert_eq!(callee.routines, ["add".to_owned(), "sub".to_owned()].into());
    assert_eq!((callee.namespace.as_str(), callee.secure), ("math", true));
    assert_eq!(
        broker.task(*tid).await.unwrap(),
        None,
        "it has no task record"
    );
}

#[test]
fn ignores_invalid_and_machine_bound_entries() {
    let of = |host: &str, change: &dyn Fn(&mut PoolWorkerInfo)| {
        let mut info = record::write(&sample(), "math", &[].into()).unwrap();
        change(info.callee.as_mut().unwrap());
        info.host = host.to_owned();
        let entry = serde_json::json!({
            "tid": "1794000000000000000", "status": "active", "load": 0.0, "spawned_count": 0,
            "started_at": "2026-11-17T00:00:00Z", "queue": "T1794000000000000000.ctrl_in",
        });
        let mut whole = serde_json::to_value(&info).unwrap();
        whole
            .as_object_mut()
            .unwrap()
            .extend(entry.as_object().unwrap().clone());
        serde_json::from_value::<WorkerEntry>(whole).unwrap()
    };
    let here = this_host();
    let found = |host: &str, change: &dyn Fn(&mut PoolWorkerInfo)| {
        record::read(vec![of(host, change)], "math", &here).len()
    };
    assert_eq!(found("elsewhere", &|_| {}), 1);
    for machine_bound in [
        "unix:/run/w",
        "unix-abstract:w",
        "127.0.0.1:1",
        "[::1]:1",
        "localhost:1",
    ] {
        let at = |callee: &mut PoolWorkerInfo| callee.address = machine_bound.to_owned();
        assert_eq!(
            (found(&here, &at), found("elsewhere", &at)),
            (1, 0),
            "{machine_bound}"
        );
    }
    assert_eq!(
        found(&here, &|callee| callee.address = "0.0.0.0:1".into()),
        0
    );
    assert_eq!(found(&here, &|callee| callee.address = "nowhere".into()), 0);
    assert_eq!(found(&here, &|callee| callee.uid = "4711".into()), 0);
    assert_eq!(found(&here, &|callee| callee.namespace = "else".into()), 0);
    assert_eq!(
        found(&here, &|callee| _ = callee.tags.insert("\u{1b}[2J".into())),
        0
    );
    assert_eq!(
        found(&here, &|callee| _ = callee.encodings.insert("cbor".into())),
        1
    );
    let last = record::read(
        vec![of("a", &|_| {}), of("b", &|callee| callee.secure = false)],
        "math",
        &here,
    );
    assert_eq!(last.len(), 2, "each has its own uid");
}

#[test]
fn refuses_to_publish_a_wildcard_address() {
    let everywhere = WorkerMetadata {
        address: "0.0.0.0:7070".into(),
        ..sample()
    };
    let why = record::write(&everywhere, "math", &[].into()).unwrap_err();
    assert!(why.contains("say where others find it"), "{why}");
    assert!(
        record::write(
            &WorkerMetadata {
                address: "x".into(),
                ..sample()
            },
            "math",
            &[].into()
        )
        .is_err()
    );
}
