//! Task lists are read page by page.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use raddle_model::{
    AttemptReport, CapSet, ExitStatus, QueueName, TaskSpec, Tid, queue_name::SystemQueue,
    worker::WorkerInfo,
};

use raddle_broker::{
    Call, CallHandler, ClaimRequest, Completion, LeaseRenewer, Leases, NewTask, Queries, Reply,
    Result, Tasks, queues,
};
use raddle_broker_sqlite::Sqlite;

/// The size of a page.
const PAGE_SIZE: u32 = 1000;

/// Records the largest number of tasks in a reply.
struct PageSizeRecorder {
    broker: Sqlite,
    longest: AtomicUsize,
}

#[async_trait]
impl CallHandler for PageSizeRecorder {
    async fn call(&self, call: Call) -> Result<Reply> {
        let reply = call.perform(&self.broker).await?;
        if let Reply::FindTasks(page) = &reply {
            self.longest.fetch_max(page.tasks.len(), Ordering::Relaxed);
        }
        Ok(reply)
    }
}

impl Leases for PageSizeRecorder {
    fn lease_renewer(&self, worker: Tid, ttl: Duration) -> Box<dyn LeaseRenewer> {
        self.broker.lease_renewer(worker, ttl)
    }
}

#[tokio::test]
async fn reads_at_most_one_page_of_tasks() {
    let broker = PageSizeRecorder {
        broker: Sqlite::in_memory().await.unwrap(),
        longest: AtomicUsize::new(0),
    };
    let (waiting, dead) = (PAGE_SIZE + 1, PAGE_SIZE + 2);
    let tasks = vec![NewTask::new(TaskSpec::command(["false"])); (waiting + dead) as usize];
    broker.submit(tasks).await.unwrap();
    let (queues, wait) = (vec!["default".into()], Duration::ZERO);
    let info = WorkerInfo {
        queues: queues.clone(),
        ..WorkerInfo::new("worker", "resident")
    };
    let owner = broker
        .register(info, Duration::from_secs(60))
        .await
        .unwrap();
    let claim = ClaimRequest {
        owner,
        caps: CapSet::new(),
        queues,
        only: None,
        max: dead,
        wait,
    };
    let report = AttemptReport::bare(ExitStatus::Code { code: 1 }, jiff::Timestamp::now());
    let end = |attempt_id| Completion {
        attempt_id,
        report: report.clone(),
        stdout: Vec::new(),
        stderr: Vec::new(),
    };
    let claims = broker.claim(claim).await.unwrap();
    broker
        .complete(claims.iter().map(|claim| end(claim.attempt_id)).collect())
        .await
        .unwrap();

    let stats = queues::stats(&broker, &QueueName::System(SystemQueue::Dead))
        .await
        .unwrap();
    assert_eq!(stats.messages, u64::from(dead));
    // Dead tasks have two queues each, the worker has one, and five queues show records.
    let listed = queues::list(&broker, "*").await.unwrap();
    assert_eq!(listed.len() as u32, waiting + 2 * dead + 1 + 5);
    let reached = queues::broadcast(&broker, "T*.ctrl_in", "PING")
        .await
        .unwrap();
    assert_eq!(reached.len() as u32, waiting + 1);
    let longest = broker.longest.load(Ordering::Relaxed);
    assert!(longest <= PAGE_SIZE as usize, "{longest} tasks at once");
}
