//! What operators ask of the broker, with a million finished tasks.

use std::time::{Duration, Instant};

use raddle_broker::{Broker, Queries, TaskFilter};
use raddle_model::Tid;

use crate::{
    Plan,
    project_dir::ProjectDir,
    queue::{claim_and_finish_all, enqueue, register},
    stats::{Requirement, median, print_rounds},
};

/// Questions timed in each round.
const QUESTIONS: usize = 20;
/// The records that a search looks at before it shows what it has.
const SLICE: u32 = 1000;

pub(crate) fn bench(plan: &Plan) -> Vec<Requirement> {
    let many = if plan.quick { 100_000 } else { 1_000_000 };
    let project = ProjectDir::new();
    let broker = project.broker();
    enqueue(&project, &*broker, many);
    let owner = project.wait(register(&*broker));
    project.wait(async {
        tokio::join!(
            claim_and_finish_all(&*broker, owner),
            claim_and_finish_all(&*broker, owner)
        )
    });
    let oldest = project.wait(oldest(&*broker));
    let rare = TaskFilter {
        name: Some("rare".into()),
        ..TaskFilter::default()
    };
    let slice = TaskFilter {
        max_examined: Some(SLICE),
        ..rare.clone()
    };
    let (mut summary, mut events, mut slices, mut search) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        summary.push(time(&project, QUESTIONS, async || {
            broker.summary().await.expect("the broker answers");
        }));
        events.push(time(&project, QUESTIONS, async || {
            let events = broker
                .events(Some(0), Some(oldest), 100, Duration::ZERO)
                .await
                .expect("the broker answers");
            assert!(events.len() > 2);
        }));
        slices.push(time(&project, QUESTIONS, async || {
            let page = broker.find_tasks(slice.clone()).await;
            assert_eq!(page.expect("the broker answers").looked_at, SLICE.into());
        }));
        search.push(time(&project, 1, async || {
            let found = broker.tasks(rare.clone()).await;
            assert!(found.expect("the broker answers").is_empty());
        }));
    }
    print_rounds("search of all records for a name", "ms", &search);
    vec![
        Requirement::at_most(
            "ms for a summary with a million finished tasks",
            print_rounds("summary", "ms", &summary),
            2.0,
        ),
        Requirement::at_most(
            "ms for the events of the oldest of a million tasks",
            print_rounds("events of the oldest task", "ms", &events),
            5.0,
        ),
        Requirement::at_most(
            "ms to look at 1,000 records for a name",
            print_rounds("search of 1,000 records", "ms", &slices),
            50.0,
        ),
    ]
}

/// The first task.
async fn oldest(broker: &dyn Broker) -> Tid {
    let events = broker.events(Some(0), None, 1, Duration::ZERO).await;
    events.expect("the broker answers")[0].tid
}

/// The median time of a question, in milliseconds.
fn time(project: &ProjectDir, questions: usize, ask: impl AsyncFn()) -> f64 {
    let mut times = Vec::with_capacity(questions);
    for _ in 0..questions {
        let began = Instant::now();
        project.wait(ask());
        times.push(began.elapsed().as_secs_f64() * 1000.0);
    }
    median(&times)
}
