//! Tasks as others see them.

use std::time::Duration;

use raddle_model::{
    ControlCommand, ControlMessage, ExitStatus, HumanDuration, TaskSpec, TaskState, Tid,
};
use tokio::time::Instant;

use super::{Fixture, Handle, support::*};
use crate::{Error, Result, Summary, TaskFilter, WaitingRequest};

async fn found(broker: &Handle, filter: TaskFilter) -> Result<Vec<Tid>> {
    Ok(broker
        .tasks(filter)
        .await?
        .iter()
        .map(|task| task.tid)
        .collect())
}

fn any() -> TaskFilter {
    TaskFilter::default()
}

/// And no more than asked for.
pub async fn the_newest_come_first(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let mut tids = submit_all(broker, vec![spec("task"); 5]).await?;
    tids.reverse();
    assert_eq!(found(broker, any()).await?, tids);
    assert_eq!(
        found(broker, TaskFilter { limit: 2, ..any() }).await?,
        tids[..2]
    );
    for task in broker.tasks(any()).await? {
        assert_eq!(view(broker, task.tid).await?, task);
    }
    Ok(())
}

/// Each begins behind the last task of the one before, whatever is asked for.
pub async fn tasks_are_listed_in_pages(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    // A batch may be stored as one, and a page may end within it.
    let mut tids = submit_all(broker, vec![spec("task"); 5]).await?;
    tids.push(submit(broker, spec("task")).await?);
    for _ in 0..3 {
        end(broker, begin(broker, owner).await?, failure()).await?;
    }
    begin(broker, owner).await?;
    begin(broker, owner).await?;
    let filters = [
        any(),
        TaskFilter {
            services: true,
            ..any()
        },
        TaskFilter {
            dead: true,
            ..any()
        },
        TaskFilter {
            states: vec![TaskState::Failed],
            ..any()
        },
        TaskFilter {
            states: vec![TaskState::Running],
            ..any()
        },
        TaskFilter {
            states: vec![TaskState::Created, TaskState::Running],
            services: true,
            ..any()
        },
        TaskFilter {
            among: Some(tids.clone()),
            ..any()
        },
    ];
    for filter in filters {
        let all = found(broker, filter.clone()).await?;
        assert!(all.len() > 1, "{filter:?}");
        let (mut listed, mut page) = (Vec::new(), TaskFilter { limit: 2, ..filter });
        while let Some(last) = listed.last().copied().or(Tid::from_u64(i64::MAX as u64)) {
            page.before = Some(last);
            let next = found(broker, page.clone()).await?;
            if next.is_empty() {
                break;
            }
            listed.extend(next);
        }
        assert_eq!(listed, all, "{page:?}");
    }
    Ok(())
}

/// The newest first, each once, and none that is not there.
pub async fn tasks_are_found_by_id(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let tids = submit_all(broker, vec![spec("a"), spec("b"), spec("c")]).await?;
    let unknown = Tid::from_u64(1_500_000_000_000_000_000).expect("in the range of ids");
    let among = |tids: Vec<Tid>| TaskFilter {
        among: Some(tids),
        ..any()
    };
    let asked = vec![tids[0], unknown, tids[2], tids[0]];
    assert_eq!(
        found(broker, among(asked.clone())).await?,
        [tids[2], tids[0]]
    );
    assert_eq!(
        found(
            broker,
            TaskFilter {
                limit: 1,
                ..among(asked.clone())
            }
        )
        .await?,
        [tids[2]]
    );
    assert_eq!(
        found(
            broker,
            TaskFilter {
                name: Some("a".into()),
                ..among(asked)
            }
        )
        .await?,
        [tids[0]]
    );
    assert!(found(broker, among(vec![])).await?.is_empty());
    Ok(())
}

/// In one of several.
pub async fn tasks_are_found_by_state(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tids = submit_all(
        broker,
        vec![
            spec("done"),
            spec("running"),
            spec("spawning"),
            spec("waiting"),
        ],
    )
    .await?;
    end(broker, begin(broker, owner).await?, success()).await?;
    begin(broker, owner).await?;
    take(broker, owner).await?;
    let cases = [
        (vec![TaskState::Completed], vec![tids[0]]),
        (vec![TaskState::Running], vec![tids[1]]),
        (
            vec![TaskState::Running, TaskState::Spawning],
            vec![tids[2], tids[1]],
        ),
        (vec![TaskState::Created], vec![tids[3]]),
        (
            vec![TaskState::Created, TaskState::Completed],
            vec![tids[3], tids[0]],
        ),
        (vec![TaskState::Killed, TaskState::Failed], vec![]),
    ];
    for (states, expected) in cases {
        assert_eq!(
            found(
                broker,
                TaskFilter {
                    states: states.clone(),
                    ..any()
                }
            )
            .await?,
            expected,
            "{states:?}"
        );
    }
    Ok(())
}

/// `*` stands for anything.
pub async fn tasks_are_found_by_name_and_queue(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let mail = |name| TaskSpec {
        queue: "mail".into(),
        ..spec(name)
    };
    let unnamed = TaskSpec::command(["/usr/bin/env", "x"]);
    let tids = submit_all(
        broker,
        vec![spec("build-1"), mail("build-2"), mail("send"), unnamed],
    )
    .await?;
    let cases = [
        (Some("build-1"), None, vec![tids[0]]),
        (Some("build-*"), None, vec![tids[1], tids[0]]),
        (Some("*2"), None, vec![tids[1]]),
        (Some("build"), None, vec![]),
        (Some("env"), None, vec![tids[3]]),
        (None, Some("mail"), vec![tids[2], tids[1]]),
        (Some("build-*"), Some("mail"), vec![tids[1]]),
        (None, Some("ma"), vec![]),
    ];
    for (name, queue, expected) in cases {
        let filter = TaskFilter {
            name: name.map(Into::into),
            queue: queue.map(Into::into),
            ..any()
        };
        assert_eq!(
            found(broker, filter).await?,
            expected,
            "{name:?} in {queue:?}"
        );
    }
    Ok(())
}

/// And only then.
pub async fn services_are_shown_on_request(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    assert_eq!(found(broker, any()).await?, [tid]);
    assert_eq!(
        found(
            broker,
            TaskFilter {
                services: true,
                ..any()
            }
        )
        .await?,
        [tid, owner]
    );
    let running = vec![TaskState::Running];
    assert!(
        found(
            broker,
            TaskFilter {
                states: running.clone(),
                ..any()
            }
        )
        .await?
        .is_empty()
    );
    assert_eq!(
        found(
            broker,
            TaskFilter {
                states: running,
                services: true,
                ..any()
            }
        )
        .await?,
        [owner]
    );
    Ok(())
}

/// Those that failed for good, and no others.
pub async fn dead_tasks_are_found(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tids = submit_all(broker, vec![spec("dead"), spec("well")]).await?;
    end(broker, begin(broker, owner).await?, failure()).await?;
    end(broker, begin(broker, owner).await?, success()).await?;
    assert_eq!(
        found(
            broker,
            TaskFilter {
                dead: true,
                ..any()
            }
        )
        .await?,
        tids[..1]
    );
    let completed = TaskFilter {
        dead: true,
        states: vec![TaskState::Completed],
        ..any()
    };
    assert!(found(broker, completed).await?.is_empty());
    Ok(())
}

/// Tasks and workers alike.
pub async fn short_ids_are_completed(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tids = submit_all(broker, vec![spec("task"); 3]).await?;
    for tid in tids.into_iter().chain([owner]) {
        assert_eq!(broker.resolve_short_id(tid.short()).await?, [tid]);
    }
    let unknown = Tid::from_u64(1_500_000_001_234_567_891).expect("in the range of ids");
    assert!(broker.resolve_short_id(unknown.short()).await?.is_empty());
    Ok(())
}

/// Among those that the same worker would take.
pub async fn a_task_knows_its_place_in_line(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let tids = submit_all(
        broker,
        vec![
            spec("a"),
            spec("b"),
            TaskSpec {
                priority: 9,
                ..spec("urgent")
            },
            TaskSpec {
                queue: "other".into(),
                ..spec("other")
            },
            TaskSpec {
                requires: caps("gpu"),
                ..spec("gpu")
            },
        ],
    )
    .await?;
    // A worker that has a gpu runs the others too.
    for (tid, ahead) in tids.iter().zip([1, 2, 0, 0, 3]) {
        assert_eq!(
            broker
                .count_waiting(WaitingRequest::ahead_of(&view(broker, *tid).await?))
                .await?,
            ahead
        );
    }
    Ok(())
}

/// Only tasks that the worker may claim are counted, and the first of them wakes a waiting reader.
pub async fn counts_waiting_tasks_that_a_worker_may_claim(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let look = |tags: &str, wait| {
        let request = WaitingRequest {
            caps: caps(tags),
            queues: vec!["default".into()],
            before: None,
            max: 3,
            wait,
        };
        async move { broker.count_waiting(request).await }
    };
    assert_eq!(look("gpu", Duration::ZERO).await?, 0);
    let gpu = TaskSpec {
        requires: caps("gpu"),
        ..spec("gpu")
    };
    let others = [
        TaskSpec {
            queue: "other".into(),
            ..spec("other")
        },
        TaskSpec {
            delay: Some(HumanDuration::secs(600)),
            ..spec("later")
        },
        TaskSpec {
            requires: caps("tpu"),
            ..spec("tpu")
        },
    ];
    submit_all(broker, others.to_vec()).await?;
    assert_eq!(look("gpu", Duration::ZERO).await?, 0);
    submit_all(broker, vec![gpu.clone(), spec("plain")]).await?;
    assert_eq!(
        (
            look("gpu", Duration::ZERO).await?,
            look("", Duration::ZERO).await?
        ),
        (2, 1)
    );
    // Overdue tasks count although no worker has claimed since.
    submit_all(
        broker,
        vec![TaskSpec {
            delay: Some(HumanDuration::millis(50)),
            ..spec("soon")
        }],
    )
    .await?;
    let begun = Instant::now();
    while look("", Duration::ZERO).await? < 2 {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "an overdue task is not counted"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    submit_all(broker, vec![gpu; 5]).await?;
    assert_eq!(
        look("gpu", Duration::ZERO).await?,
        3,
        "the count stops at the limit"
    );
    let owner = worker(broker).await?;
    while !claim(broker, owner, 10).await?.is_empty() {}
    let (woken, submitted) = tokio::join!(
        look("", Duration::from_secs(20)),
        submit_all(broker, vec![spec("new")])
    );
    submitted?;
    assert_eq!(woken?, 1);
    Ok(())
}

/// With the time of the first of them. Tasks that cannot be claimed now are not among them.
pub async fn counts_waiting_tasks_by_kind(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    assert_eq!(broker.summarize(KINDS).await?, Summary::default());
    let owner = worker(broker).await?;
    assert_eq!(
        broker.summarize(KINDS).await?,
        Summary::default(),
        "a worker is no work"
    );
    let kind = |kind: &str, name| TaskSpec {
        kind: Some(kind.into()),
        ..spec(name)
    };
    let tids = submit_all(
        broker,
        vec![
            kind("execute", "first"),
            TaskSpec {
                priority: 9,
                requires: caps("gpu"),
                ..kind("execute", "urgent")
            },
            TaskSpec {
                queue: "mail".into(),
                ..kind("mutate", "mail")
            },
            spec("plain"),
            TaskSpec {
                delay: Some(HumanDuration::secs(600)),
                ..kind("execute", "later")
            },
            kind("execute", "held"),
        ],
    )
    .await?;
    broker
        .control(tids[5], ControlMessage::new(ControlCommand::Pause))
        .await?;
    let summary = broker.summarize(KINDS).await?;
    let by_kind: Vec<(&str, u64)> = summary
        .kinds
        .iter()
        .map(|(kind, waiting)| (kind.as_str(), waiting.tasks))
        .collect();
    assert_eq!(by_kind, [("", 1), ("execute", 2), ("mutate", 1)]);
    let by_queue: Vec<(&str, u64)> = summary
        .ready
        .iter()
        .map(|(queue, tasks)| (queue.as_str(), *tasks))
        .collect();
    assert_eq!(by_queue, [("default", 3), ("mail", 1)]);
    assert_eq!(
        (
            summary.delayed,
            summary.paused,
            summary.states.get(&TaskState::Spawning),
            summary.dead
        ),
        (1, 1, None, 0)
    );
    assert_eq!(
        summary.kinds["execute"].since.as_nanosecond(),
        tids[0].unix_nanos().into()
    );

    // Claimed and begun, and dead.
    take(broker, owner).await?;
    end(broker, begin(broker, owner).await?, failure()).await?;
    let summary = broker.summarize(KINDS).await?;
    assert_eq!(
        (
            summary.states[&TaskState::Spawning],
            summary.dead,
            summary.kinds["execute"].tasks
        ),
        (1, 1, 1)
    );
    assert_eq!(
        summary.states.get(&TaskState::Failed),
        None,
        "finished tasks are not counted"
    );

    // An overdue task waits since its due time, although no worker has claimed since.
    let soon = submit(
        broker,
        TaskSpec {
            delay: Some(HumanDuration::millis(50)),
            ..kind("soon", "soon")
        },
    )
    .await?;
    let begun = Instant::now();
    let since = loop {
        if let Some(waiting) = broker.summarize(KINDS).await?.kinds.get("soon") {
            break waiting.since;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "an overdue task is not counted"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert!(
        since
            .duration_since(view(broker, soon).await?.created_at)
            .as_millis()
            >= 49
    );
    Ok(())
}

/// More than are looked at in one go.
pub async fn many_are_counted_by_kind(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let kinds = ["a", "b", "c"];
    let specs = (0..2500).map(|n| TaskSpec {
        kind: Some(kinds[n % 3].into()),
        priority: (n % 7) as u8,
        ..spec("task")
    });
    submit_all(broker, specs.collect()).await?;
    let summary = broker.summarize(KINDS).await?;
    let by_kind: Vec<u64> = summary
        .kinds
        .values()
        .map(|waiting| waiting.tasks)
        .collect();
    assert_eq!(
        (by_kind, summary.ready["default"]),
        (vec![834, 833, 833], 2500)
    );
    Ok(())
}

/// Nor can anything be said of it.
pub async fn an_unknown_task_is_not_there(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let unknown = Tid::from_u64(1_500_000_000_000_000_000).expect("in the range of ids");
    assert!(broker.task(unknown).await?.is_none());
    let refused = broker.resubmit(unknown, false).await;
    assert!(
        matches!(refused, Err(Error::NotFound(tid)) if tid == unknown),
        "{refused:?}"
    );
    Ok(())
}

/// Every task is counted once, and services are not.
pub async fn the_summary_adds_up(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let empty = broker.summary().await?;
    assert!(empty.states.is_empty() && empty.ready.is_empty());
    let mut specs = vec![spec("task"); 6];
    specs.push(TaskSpec {
        delay: Some(HumanDuration::secs(60)),
        ..spec("later")
    });
    specs.push(TaskSpec {
        queue: "mail".into(),
        ..spec("mail")
    });
    let tids = submit_all(broker, specs).await?;
    broker
        .control(tids[5], ControlMessage::new(ControlCommand::Pause))
        .await?;
    end(broker, begin(broker, owner).await?, success()).await?;
    end(broker, begin(broker, owner).await?, failure()).await?;
    begin(broker, owner).await?;
    take(broker, owner).await?;
    let summary = store.reopen().await.summary().await?;
    let states = [
        (TaskState::Created, 4),
        (TaskState::Spawning, 1),
        (TaskState::Running, 1),
        (TaskState::Completed, 1),
        (TaskState::Failed, 1),
    ];
    assert_eq!(summary.states, states.into());
    assert_eq!(
        summary.ready,
        [("default".to_string(), 1), ("mail".to_string(), 1)].into()
    );
    assert_eq!(
        (
            summary.delayed,
            summary.paused,
            summary.dead,
            summary.stale_writes
        ),
        (1, 1, 1, 0)
    );
    Ok(())
}

/// And says what survives what.
pub async fn the_engine_names_itself(store: &dyn Fixture) -> Result<()> {
    let health = store.broker().health().await?;
    assert!(
        !health.engine.is_empty() && !health.location.is_empty() && !health.durability.is_empty()
    );
    let bad: Vec<_> = health.checks.iter().filter(|check| !check.ok).collect();
    assert!(bad.is_empty(), "{bad:?}");
    Ok(())
}

/// As long as the attempt lasts that told it.
pub async fn progress_is_shown_while_the_attempt_runs(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    let first = begin(broker, owner).await?;
    assert_eq!(view(broker, tid).await?.progress, None);
    let progress = |percent, message: &str| raddle_model::Progress {
        percent,
        message: message.into(),
    };
    broker
        .report_progress(first, progress(Some(40.0), "almost halfway"))
        .await?;
    broker
        .report_progress(first, progress(Some(50.5), "halfway"))
        .await?;
    assert_eq!(
        view(broker, tid).await?.progress,
        Some(progress(Some(50.5), "halfway"))
    );
    let filter = TaskFilter {
        states: vec![TaskState::Running],
        ..TaskFilter::default()
    };
    assert_eq!(
        broker.tasks(filter).await?[0].progress,
        Some(progress(Some(50.5), "halfway"))
    );

    release(broker, first).await?;
    assert_eq!(view(broker, tid).await?.progress, None, "no worker runs it");
    let second = begin(broker, owner).await?;
    assert_eq!(
        view(broker, tid).await?.progress,
        None,
        "the second has said nothing"
    );
    broker.report_progress(second, progress(None, "hm")).await?;
    broker
        .report_progress(first, progress(Some(99.0), "late"))
        .await?;
    let shown = view(broker, tid).await?.progress;
    assert!(
        shown.is_none_or(|shown| shown.message == "hm"),
        "the first is over"
    );
    broker
        .complete(vec![completion(second, ExitStatus::Code { code: 0 })])
        .await?;
    assert_eq!(view(broker, tid).await?.progress, None);
    Ok(())
}
