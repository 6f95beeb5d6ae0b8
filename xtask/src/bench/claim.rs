//! The time of a claim with a million waiting tasks, against an almost empty queue.

use std::time::Instant;

use raddle_broker::Broker;

use crate::{
    Plan,
    project_dir::ProjectDir,
    queue::{enqueue, finish, register, request},
    stats::{Requirement, median, micros, print_rounds, ratio},
};

/// Claims timed in each round.
const CLAIMS: usize = 200;

pub(crate) fn bench(plan: &Plan) -> Vec<Requirement> {
    let many = if plan.quick { 100_000 } else { 1_000_000 };
    let (near_empty, full) = (ProjectDir::new(), ProjectDir::new());
    let (few_broker, many_broker) = (near_empty.broker(), full.broker());
    println!(
        "submitting {many} tasks took {:.1} s",
        enqueue(&full, &*many_broker, many).as_secs_f64()
    );
    let (mut few, mut lots) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        enqueue(&near_empty, &*few_broker, CLAIMS);
        few.push(claim_cost(&near_empty, &*few_broker));
        lots.push(claim_cost(&full, &*many_broker));
    }
    print_rounds("claim of one, queue nearly empty", "us", &few);
    print_rounds("claim of one, a million waiting", "us", &lots);
    vec![Requirement::at_most(
        "claim with a million waiting, of one nearly empty",
        ratio(&lots, &few),
        1.5,
    )]
}

/// The median time of a claim, in microseconds. The tasks are finished outside the measurement.
fn claim_cost(project: &ProjectDir, broker: &dyn Broker) -> f64 {
    project.wait(async {
        let owner = register(broker).await;
        let mut times = Vec::with_capacity(CLAIMS);
        let mut claims = Vec::with_capacity(CLAIMS);
        for _ in 0..CLAIMS {
            let began = Instant::now();
            claims.extend(
                broker
                    .claim(request(owner, 1))
                    .await
                    .expect("there are tasks"),
            );
            times.push(micros(began.elapsed()));
        }
        assert_eq!(claims.len(), CLAIMS);
        broker
            .complete(claims.iter().map(finish).collect())
            .await
            .expect("they are ours");
        broker
            .deregister(owner, None)
            .await
            .expect("it was registered");
        median(&times)
    })
}
