//! The worker's lease deadline, as a runner enforces it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use raddle_model::ExitStatus;
use raddle_runner::{LeaseDeadlinePage, RunnerOptions};

use crate::support::{Rig, code, options};

fn with_lease_deadline() -> (Arc<LeaseDeadlinePage>, RunnerOptions) {
    let page = Arc::new(LeaseDeadlinePage::new().unwrap());
    (
        page.clone(),
        RunnerOptions {
            lease_deadline: Some(page),
            ..options()
        },
    )
}

fn extend_lease(page: &LeaseDeadlinePage, time: Duration) {
    page.extend_to(LeaseDeadlinePage::clock_now() + time.as_nanos() as u64);
}

fn is_lost(exit: &ExitStatus) -> bool {
    matches!(exit, ExitStatus::LeaseExpired)
}

#[tokio::test]
async fn kills_the_task_when_the_lease_ends() {
    let (page, options) = with_lease_deadline();
    let mut rig = Rig::with(&options).await;
    extend_lease(&page, Duration::from_millis(400));
    let begin = Instant::now();
    rig.start_until_output(&rig.sh("trap '' TERM; echo ready; sleep 300 & sleep 300"))
        .await;
    let exit = rig.end().await.done.exit;
    assert!(is_lost(&exit), "{exit:?}");
    assert!(
        (390..5000).contains(&begin.elapsed().as_millis()),
        "{:?}",
        begin.elapsed()
    );

    let refused = rig.run(&rig.sh("echo ran")).await;
    assert!(
        is_lost(&refused.done.exit) && refused.stdout.is_empty(),
        "without a lease nothing begins"
    );
    extend_lease(&page, Duration::from_secs(60));
    assert_eq!(rig.run(&rig.sh("exit 2")).await.done.exit, code(2));
    rig.finish().await;
}

#[tokio::test]
async fn keeps_running_while_the_lease_is_renewed() {
    let (page, options) = with_lease_deadline();
    let mut rig = Rig::with(&options).await;
    extend_lease(&page, Duration::from_millis(500));
    rig.start(&rig.sh("sleep 1.5; exit 3")).await;
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        extend_lease(&page, Duration::from_millis(500));
    }
    extend_lease(&page, Duration::from_secs(60));
    assert_eq!(rig.end().await.done.exit, code(3));
    rig.finish().await;
}

#[tokio::test]
async fn runs_without_a_lease_deadline() {
    let (_page, options) = with_lease_deadline();
    let mut rig = Rig::with(&options).await;
    assert_eq!(
        rig.run(&rig.sh("sleep 0.1; exit 3")).await.done.exit,
        code(3)
    );
    rig.finish().await;
}
