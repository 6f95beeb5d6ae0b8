//! Reads what is on the screen from the broker.

use jiff::Timestamp;
use raddle_broker::Broker;
use raddle_groups::GroupWorkerView;
use raddle_model::{
    TaskQuery, Tid, WorkerEntry,
    query::{Condition, Term, TimeField, TimePoint},
};
use raddle_view::{
    Error,
    events::{EventList, last_events, state_after, task_events},
    failures::{FailureList, FailureReader},
    groups::list_groups,
    overview::Overview,
    queues::QueueList,
    schedule::{ScheduleDetail, list_schedules},
    task_detail::TaskDetail,
    tasks::{TaskList, TaskListOptions, list_tasks},
    workers::{HostWorkers, list_workers},
};
use serde::Serialize;

use crate::{
    output::{OutputChunk, OutputPosition, read_output},
    screen::Screen,
};

/// The most tasks on a screen.
const MAX_TASKS: u32 = 200;
/// How many tasks a read looks at. A rare filter shows how far it has looked.
const MAX_LOOKED_AT: u64 = 5000;
/// The most events on a screen.
const MAX_EVENTS: usize = 500;
/// How many due times of a schedule are shown.
const DUE_TIMES: usize = 3;

/// The values to read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ReadRequest {
    pub(crate) screen: Screen,
    /// Which tasks to read.
    pub(crate) query: TaskQuery,
    /// The time to show, if not now.
    pub(crate) at: Option<Timestamp>,
    /// The values to read for an overlay.
    pub(crate) over: Option<OverRequest>,
}

/// The values to read for the uppermost overlay.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum OverRequest {
    Task(Tid),
    Output(Tid, Option<OutputPosition>),
}

/// The values that a read has found.
#[derive(Debug)]
pub(crate) struct ReadAnswer {
    pub(crate) request: ReadRequest,
    pub(crate) data: Data,
    pub(crate) over: Option<OverData>,
    pub(crate) read_at: Timestamp,
}

/// The values that were read for an overlay.
#[derive(Debug)]
pub(crate) enum OverData {
    Task(Box<TaskDetail>),
    Output(OutputChunk),
}

/// The data of one screen.
#[derive(Debug, Default)]
pub(crate) enum Data {
    #[default]
    Loading,
    Overview(Box<OverviewData>),
    Tasks(TaskList),
    Failures(FailureList),
    Queues(QueueList),
    Workers(Vec<HostWorkers>),
    Pools(Vec<WorkerEntry>),
    Groups(Vec<GroupWorkerView>),
    Schedules(Vec<ScheduleDetail>),
    Events(EventList),
}

/// The data of the overview, which `--json` prints.
#[derive(Debug, Serialize)]
pub struct OverviewData {
    /// Counts of tasks, and workers.
    #[serde(flatten)]
    pub overview: Overview,
    /// The queues.
    pub queues: QueueList,
    /// The newest failures by cause.
    pub failures: FailureList,
    /// The workers by host.
    pub hosts: Vec<HostWorkers>,
    /// The schedules.
    pub schedules: Vec<ScheduleDetail>,
}

impl OverviewData {
    /// Reads the overview of the broker at `url`.
    pub(crate) async fn read(
        broker: &dyn Broker,
        url: String,
        failures: &mut FailureReader,
    ) -> Result<Self, Error> {
        Ok(Self {
            overview: Overview::read(broker, url).await?,
            queues: QueueList::read(broker).await?,
            failures: failures.read(broker, &TaskQuery::default()).await?,
            hosts: list_workers(broker).await?,
            schedules: schedules(broker).await?,
        })
    }
}

/// Reads what a request names.
pub(crate) async fn read(
    broker: &dyn Broker,
    url: String,
    failures: &mut FailureReader,
    request: ReadRequest,
) -> Result<ReadAnswer, Error> {
    let over = match &request.over {
        Some(OverRequest::Task(tid)) => Some(OverData::Task(Box::new(
            TaskDetail::read(broker, *tid).await?,
        ))),
        Some(OverRequest::Output(tid, position)) => Some(OverData::Output(
            read_output(broker, *tid, *position).await?,
        )),
        None => None,
    };
    let data = match request.screen {
        Screen::Overview => {
            Data::Overview(Box::new(OverviewData::read(broker, url, failures).await?))
        }
        Screen::Tasks => Data::Tasks(read_tasks(broker, &request.query, request.at).await?),
        Screen::Failures => Data::Failures(failures.read(broker, &request.query).await?),
        Screen::Queues => Data::Queues(QueueList::read(broker).await?),
        Screen::Workers => Data::Workers(list_workers(broker).await?),
        Screen::Pools => {
            let mut workers = broker.workers().await?;
            workers.retain(|worker| worker.info.takes_calls());
            Data::Pools(workers)
        }
        Screen::Groups => Data::Groups(list_groups(broker).await?),
        Screen::Schedules => Data::Schedules(schedules(broker).await?),
        Screen::Events => Data::Events(last_events(broker, request.at, MAX_EVENTS).await?),
    };
    Ok(ReadAnswer {
        request,
        data,
        over,
        read_at: Timestamp::now(),
    })
}

/// The tasks that match now, or that had been submitted at a time, with their states then.
async fn read_tasks(
    broker: &dyn Broker,
    query: &TaskQuery,
    at: Option<Timestamp>,
) -> Result<TaskList, Error> {
    let options = TaskListOptions {
        limit: MAX_TASKS,
        max_looked_at: MAX_LOOKED_AT,
        ..TaskListOptions::default()
    };
    let Some(at) = at else {
        return list_tasks(broker, query, &options).await;
    };
    let until = Condition::Time(TimeField::Until, TimePoint::At(at));
    let then = query.clone().and(TaskQuery::from_iter([Term::new(until)]));
    let mut list = list_tasks(broker, &then, &options).await?;
    for task in &mut list.items {
        let events = task_events(broker, task.tid).await?;
        let before = events.iter().filter(|event| event.at <= at);
        task.state = state_after(before).unwrap_or(task.state);
        if task.finished_at.is_some_and(|finished| finished > at) {
            (task.report, task.finished_at, task.dead) = (None, None, false);
        }
    }
    Ok(list)
}

async fn schedules(broker: &dyn Broker) -> Result<Vec<ScheduleDetail>, Error> {
    match list_schedules(broker, DUE_TIMES).await {
        Ok(schedules) => Ok(schedules),
        Err(raddle_client::schedule::Error::Broker(error)) => Err(error.into()),
        // Reading meets no other error.
        Err(_) => Ok(Vec::new()),
    }
}
