//! Outcomes by minute and name.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use raddle_model::{ControlCommand, ControlMessage, HumanDuration, TaskSpec};

use super::{Fixture, Handle, support::*};
use crate::{
    Result,
    queues::{AUDIT_KEPT, AUDIT_QUEUE},
    rollups::{MAX_NAMES, OTHER_NAMES, Outcomes},
};

/// All outcomes of the last hour, by name.
async fn outcomes(broker: &Handle, name: Option<&str>) -> Result<BTreeMap<String, Outcomes>> {
    let now = Timestamp::now();
    let (since, until) = (
        now - Duration::from_secs(3600),
        now + Duration::from_secs(120),
    );
    let mut sums = BTreeMap::<String, Outcomes>::new();
    for rollup in broker
        .outcome_rollups(since, until, name.map(str::to_owned))
        .await?
    {
        assert_eq!(rollup.minute.as_second() % 60, 0);
        sums.entry(rollup.name).or_default().merge(&rollup.outcomes);
    }
    Ok(sums)
}

/// Each outcome once, under the name of its task.
pub async fn outcomes_are_counted_by_name(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    for exit in [success(), success(), failure()] {
        submit(broker, spec("mail")).await?;
        let attempt_id = begin(broker, owner).await?;
        end(broker, attempt_id, exit).await?;
    }
    let retried = TaskSpec {
        name: Some("retried".into()),
        ..retrying(2, HumanDuration::default())
    };
    submit(broker, retried).await?;
    for exit in [failure(), success()] {
        let attempt_id = begin(broker, owner).await?;
        end(broker, attempt_id, exit).await?;
    }
    let stopped = submit(broker, spec("stopped")).await?;
    let stop = ControlMessage::new(ControlCommand::Stop);
    broker.control(stopped, stop).await?;

    let sums = outcomes(broker, None).await?;
    assert_eq!(
        sums.keys().map(String::as_str).collect::<Vec<_>>(),
        ["mail", "retried", "stopped"],
        "services are not counted"
    );
    let mail = &sums["mail"];
    assert_eq!((mail.submitted, mail.completed, mail.failed), (3, 2, 1));
    assert_eq!((mail.wait.count(), mail.run.count()), (3, 3));
    let retried = &sums["retried"];
    assert_eq!((retried.submitted, retried.completed), (1, 1));
    assert_eq!((retried.retried, retried.failed), (1, 0));
    assert_eq!((retried.wait.count(), retried.run.count()), (1, 1));
    let stopped = &sums["stopped"];
    assert_eq!((stopped.submitted, stopped.cancelled), (1, 1));
    assert_eq!((stopped.wait.count(), stopped.run.count()), (0, 0));
    assert_eq!(
        outcomes(broker, Some("mail")).await?.len(),
        1,
        "only this name"
    );
    Ok(())
}

/// A program with one name per task fills neither memory nor disk.
pub async fn a_minute_counts_a_limited_number_of_names(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let tasks = 3 * MAX_NAMES;
    let specs = (0..tasks).map(|n| spec(&format!("task-{n}"))).collect();
    submit_all(broker, specs).await?;
    let now = Timestamp::now();
    let (since, until) = (
        now - Duration::from_secs(3600),
        now + Duration::from_secs(120),
    );
    let rollups = broker.outcome_rollups(since, until, None).await?;
    let mut names = BTreeMap::<Timestamp, usize>::new();
    for rollup in &rollups {
        *names.entry(rollup.minute).or_default() += 1;
    }
    assert!(names.values().all(|names| *names <= MAX_NAMES + 1));
    let submitted = rollups.iter().map(|rollup| rollup.outcomes.submitted);
    assert_eq!(submitted.sum::<u64>(), tasks as u64);
    assert!(rollups.iter().any(|rollup| rollup.name == OTHER_NAMES));
    Ok(())
}

/// The newest entries are kept.
pub async fn purge_trims_the_audit_trail(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let most = AUDIT_KEPT as usize;
    for portion in (0..most + 5).collect::<Vec<_>>().chunks(5000) {
        let bodies = portion.iter().map(usize::to_string).collect();
        broker.put(free(AUDIT_QUEUE), bodies).await?;
    }
    broker.purge().await?;
    assert_eq!(
        queue_sizes(broker).await?[&free(AUDIT_QUEUE)],
        u64::from(AUDIT_KEPT)
    );
    assert_eq!(bodies(broker, &free(AUDIT_QUEUE)).await?[0], "5");
    Ok(())
}
